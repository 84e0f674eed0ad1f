"""Progress of downloads and generators on standard error: a line that is written over, or a line every tenth."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TextIO

from wavessm.training.progress import clock

_WIDTH = 24


class Bar:
    """Call it with (done, total); total 0 is not known.

    >>> import io
    >>> out = io.StringIO()
    >>> bar = Bar("text", "{:,} bytes".format, out)
    >>> for done in range(0, 101, 10):
    ...     bar(done, 100)
    >>> out.getvalue().splitlines()[-1]
    'text 100 %  100 bytes of 100 bytes'
    """

    def __init__(self, name: str, amount: Callable[[int], str], out: TextIO | None = None) -> None:
        self.name, self.amount, self.out = name, amount, out or sys.stderr
        self.began, self.first = time.monotonic(), -1
        self.shown = -1.0  # when, on a terminal; which tenth, elsewhere

    def __call__(self, done: int, total: int) -> None:
        if self.first < 0:
            self.first = done
        end = bool(total) and done >= total
        if self.out.isatty():
            now = time.monotonic()
            if end or now - self.shown >= 0.2:
                self.shown = now
                self.out.write("\r" + self.line(done, total)[:79].ljust(79) + ("\n" if end else ""))
                self.out.flush()
            return
        tenth = 10 * done // total if total else done >> 28
        if tenth != self.shown:
            self.shown = tenth
            self.out.write(self.text(done, total) + "\n")

    def text(self, done: int, total: int) -> str:
        if not total:
            return f"{self.name} {self.amount(done)}"
        return f"{self.name} {100 * done // total:3d} %  {self.amount(done)} of {self.amount(total)}"

    def line(self, done: int, total: int) -> str:
        """With a bar and the time left, for a terminal."""
        filled = _WIDTH * done // total if total else 0
        spent, came = time.monotonic() - self.began, done - self.first
        left = f"  {clock(spent * (total - done) / came)} left" if total and came and done < total else ""
        return f"{self.text(done, total)}  {'━' * filled}{'─' * (_WIDTH - filled)}{left}"


def megabytes(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"

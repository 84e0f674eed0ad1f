"""The one progress bar: rich on a terminal, plain lines elsewhere. Writes to standard error."""

from __future__ import annotations

import sys
import time
from datetime import timedelta
from typing import Any, Self, TextIO


class Progress:
    """Shows how far some work is; use it in a `with` block.

    Args:
        label: name of the work.
        total: its size, in any unit; 0 if it is not known.
        start: what was finished before.
        show: False shows nothing.
        out: where to write; default standard error.

    >>> with Progress("text", total=100, out=sys.stdout) as progress:
    ...     for done in (1, 50, 52, 100):
    ...         progress.update(done, f"{done} bytes")
    text  50 %  50 bytes...
    text 100 %  100 bytes
    """

    def __init__(
        self, label: str, total: int = 0, start: int = 0, show: bool = True, out: TextIO | None = None
    ) -> None:
        self.label, self.total, self.start, self.show = label, total, start, show
        self.out = sys.stderr if out is None else out
        self.began = time.monotonic()
        self.tenth = 10 * start // total if total else 0
        self.bar: Any = None

    def __enter__(self) -> Self:
        if not (self.show and self.out.isatty()):
            return self
        try:
            from rich import progress as rich
            from rich.console import Console
        except ImportError:  # plain lines
            return self
        text, left = rich.TextColumn("{task.fields[text]}"), rich.TimeRemainingColumn(elapsed_when_finished=True)
        columns = rich.TextColumn("{task.description}"), rich.BarColumn(bar_width=10), rich.TaskProgressColumn()
        self.bar = rich.Progress(*columns, text, left, console=Console(file=self.out))  # fits 80 columns
        self.bar.add_task(self.label, total=self.total or None, completed=self.start, text="")
        self.bar.start()
        return self

    def update(self, done: int, text: str = "", total: int | None = None, line: bool = False) -> None:
        """Show that `done` of `total` (default: as before) is finished, with some numbers as text.

        Without a terminal this prints a line for each tenth of the work, and for every update with `line`.
        """
        self.total = self.total if total is None else total
        if self.bar is not None:
            self.bar.update(self.bar.task_ids[0], completed=done, total=self.total or None, text=text)
            return
        tenth = 10 * done // self.total if self.total else done >> 28
        if not self.show or (tenth <= self.tenth and not line):
            return
        self.tenth = tenth
        percent = f" {100 * done // self.total:3d} %" if self.total else ""
        left = (time.monotonic() - self.began) * (self.total - done) / max(done - self.start, 1)
        ending = f"  {timedelta(seconds=round(left))} left" if done < self.total else ""
        print(f"{self.label}{percent}  {text}{ending}", file=self.out, flush=True)

    def __exit__(self, *error: object) -> None:
        if self.bar is not None:
            self.bar.stop()

"""Stage 8w: what a sweep shows: a table on a terminal, a line for every change elsewhere."""

from __future__ import annotations

import csv
import sys
import time
from pathlib import Path
from typing import Any

from wavessm_lab.sweep.run import SweepState

WIDEST = 40
"""Letters of a reason in the table; the table of runs has all of it."""


class Screen:
    """Call it with the board as often as you like."""

    def __init__(self, quiet: bool = False) -> None:
        self.quiet, self.said = quiet, ""
        self.live: Any = None

    def __call__(self, board: SweepState) -> None:
        if self.quiet:
            return
        if sys.stderr.isatty():
            self._draw(board)
        elif (said := summary(board)) != self.said:
            self.said = said
            print(said, file=sys.stderr)

    def _draw(self, board: SweepState) -> None:
        from rich.console import Console
        from rich.live import Live

        if self.live is None:
            self.live = Live(console=Console(stderr=True), auto_refresh=False)
            self.live.start()
        self.live.update(table(board), refresh=True)

    def close(self) -> None:
        """Give the terminal back."""
        if self.live is not None:
            self.live.stop()


def summary(board: SweepState) -> str:
    """One line."""
    parts = (("done", board.done), ("running", board.running), ("waiting", board.waiting), ("failed", board.failed))
    return ", ".join(f"{len(things)} {name}" for name, things in parts)


def table(board: SweepState, most: int = 12) -> Any:
    """Runs under way with their latest validation, then the latest failures and the next in line."""
    from rich.table import Table

    drawn = Table(title=summary(board), title_justify="left", box=None, expand=False)
    for name in ("run", "state", "step", "score", "time or reason"):
        drawn.add_column(name, overflow="ellipsis", no_wrap=True, min_width=len(name))
    for name in board.running:
        step, score = latest(board.desk.folder / name / "metrics.csv")
        drawn.add_row(name, "runs", step, score, f"{time.monotonic() - board.since[name]:.0f} s")
    for name, reason in list(board.failed.items())[-most:]:
        drawn.add_row(name, "failed", "", "", reason if len(reason) <= WIDEST else reason[: WIDEST - 1] + "…")
    for job in board.waiting[:most]:
        drawn.add_row(job.name, "waits", "", "", "")
    if len(board.waiting) > most:
        drawn.add_row(f"… and {len(board.waiting) - most} more", "waits", "", "", "")
    return drawn


def latest(path: Path) -> tuple[str, str]:
    """Step and first validation score of the last row of a metrics.csv; empty if there is none."""
    try:
        with path.open(newline="") as file:
            row = list(csv.DictReader(file))[-1]
    except (OSError, IndexError):
        return "", ""
    score = next(name for name in row if name.startswith("val_"))
    return row["step"], f"{score.removeprefix('val_')} {float(row[score]):.4g}"

"""What a sweep shows: a table on a terminal, a line for every change elsewhere."""

from __future__ import annotations

import csv
import sys
import time
from pathlib import Path
from typing import Any

from wavessm_lab.sweep.run import SweepState

WIDEST = 40
"""Letters of a reason that are shown; the table of runs has all of it."""


class Screen:
    """Shows a sweep; call it with the state after every change."""

    def __init__(self, quiet: bool = False) -> None:
        self.quiet, self.shown = quiet, ""
        self.live: Any = None

    def __call__(self, state: SweepState) -> None:
        if self.quiet:
            return
        if sys.stderr.isatty():
            self._draw(state)
        elif (line := summary(state)) != self.shown:
            self.shown = line
            print(line, file=sys.stderr)

    def _draw(self, state: SweepState) -> None:
        from rich.console import Console
        from rich.live import Live

        if self.live is None:
            self.live = Live(console=Console(stderr=True), auto_refresh=False)
            self.live.start()
        self.live.update(table(state), refresh=True)

    def close(self) -> None:
        """Stop drawing on the terminal."""
        if self.live is not None:
            self.live.stop()


def summary(state: SweepState) -> str:
    """Return the numbers of jobs in one line."""
    parts = (
        ("finished", state.finished),
        ("running", state.running),
        ("waiting", state.waiting),
        ("failed", state.failed),
    )
    return ", ".join(f"{len(things)} {name}" for name, things in parts)


def table(state: SweepState, limit: int = 12) -> Any:
    """Return a rich table: running jobs with their latest validation, then failed and waiting ones."""
    from rich.table import Table

    drawn = Table(title=summary(state), title_justify="left", box=None, expand=False)
    for name in ("run", "state", "step", "score", "time or reason"):
        drawn.add_column(name, overflow="ellipsis", no_wrap=True, min_width=len(name))
    for name in state.running:
        step, score = latest(state.paths.folder / name / "metrics.csv")
        drawn.add_row(name, "running", step, score, f"{time.monotonic() - state.started_at[name]:.0f} s")
    for name, reason in list(state.failed.items())[-limit:]:
        drawn.add_row(name, "failed", "", "", reason if len(reason) <= WIDEST else reason[: WIDEST - 1] + "…")
    for job in state.waiting[:limit]:
        drawn.add_row(job.name, "waiting", "", "", "")
    if len(state.waiting) > limit:
        drawn.add_row(f"… and {len(state.waiting) - limit} more", "waiting", "", "", "")
    return drawn


def latest(path: Path) -> tuple[str, str]:
    """Return step and first validation score of the last row of a metrics.csv; empty if there is none."""
    try:
        with path.open(newline="") as file:
            row = list(csv.DictReader(file))[-1]
    except (OSError, IndexError):
        return "", ""
    score = next(name for name in row if name.startswith("val_"))
    return row["step"], f"{score.removeprefix('val_')} {float(row[score]):.4g}"

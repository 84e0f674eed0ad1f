"""`wavessm demo`: two state spaces side by side, without any download."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from wavessm.cli.parse import parse


@dataclasses.dataclass(frozen=True)
class DemoOptions:
    """Train a wavelet state space and S4-LegS of the same size to find windows in noise."""

    out: Path = Path("runs/demo")
    """Folder for runs, figure and report."""
    seeds: int = 3
    """Runs of each model."""
    steps: int = 0
    """Steps of a run; 0 takes the demonstration's own."""


def main(arguments: list[str]) -> int:
    """Run `wavessm demo`; returns the exit status."""
    given = parse(DemoOptions, arguments, "wavessm demo")
    from wavessm.cli.demo_run import Setting, run_demo

    setting = Setting() if given.steps == 0 else dataclasses.replace(Setting(), steps=given.steps)
    run_demo(given.out, given.seeds, setting)
    return 0

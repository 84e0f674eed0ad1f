"""`wavessm report [RUNS.csv]`: a CSV of runs as tables and plots beside the paper's numbers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional

from wavessm.cli.parse import parse


@dataclass(frozen=True)
class ReportOptions:
    """Tables and plots of results beside the paper's: better, within noise, worse; missing cells stay empty."""

    runs: Positional[Path] = Path("results/runs.csv")
    """CSV that runs were written to."""
    out: Path = Path("runs/report")
    """Folder for report.md and the plots."""


def main(arguments: list[str]) -> int:
    """Run `wavessm report`; returns the exit status."""
    given = parse(ReportOptions, arguments, "wavessm report")
    from wavessm_lab.report.tables import write_report

    for path in write_report(given.runs, given.out):
        print(path)
    return 0

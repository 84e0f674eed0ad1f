"""`wavessm report`: a CSV of runs as tables and plots beside the paper's numbers."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from wavessm.cli.parse import first, parse


@dataclasses.dataclass(frozen=True)
class Options:
    runs: Path = Path("results/runs.csv")
    """CSV that runs were written to."""
    out: Path = Path("runs/report")
    """Folder for report.md, report.html and the plots."""


def main(arguments: list[str]) -> int:
    about = "Tables and plots of results beside the paper's: better, within noise, worse; missing cells stay empty."
    given = parse(Options, Options(), first(arguments, "runs"), "wavessm report", about)
    from wavessm_lab.report.tables import write_report

    for path in write_report(given.runs, given.out):
        print(path)
    return 0

"""`wavessm evaluate RUN --csv TABLE`: the command of the library, with its scores added to a table of runs."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from wavessm.cli.evaluate import DECIDING, EvaluateOptions, evaluate
from wavessm.cli.parse import parse
from wavessm.errors import OptionError


@dataclasses.dataclass(frozen=True)
class EvaluateIntoTable(EvaluateOptions):
    """Score a trained model, with 5 % and 95 % bootstrap quantiles (100 resamples of the cases)."""

    csv: Path | None = None
    """Table of runs to add the scores to; `wavessm report` reads it."""


def main(arguments: list[str]) -> int:
    """Run `wavessm evaluate`; returns the exit status."""
    given = parse(EvaluateIntoTable, arguments, "wavessm evaluate")
    if given.csv is None:
        evaluate(given)
        return 0
    from wavessm_lab.sweep.results import append, read, rows_of_evaluation

    if given.csv.is_dir():
        raise OptionError(f"--csv is {given.csv}, a folder; give a file, such as {given.csv / 'runs.csv'}.")
    read(given.csv)  # another table is refused before the work, not after it
    run, result = evaluate(given)
    words = []
    for name in DECIDING:
        if (value := getattr(given, name)) != getattr(EvaluateOptions, name):
            words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    if not append(given.csv, rows_of_evaluation(run, result, words)):
        print(f"{given.csv} has scores of this command already and was left as it is; take them out to write these.")
    return 0

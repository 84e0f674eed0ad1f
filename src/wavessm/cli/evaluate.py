"""`wavessm evaluate RUN`: the scores of a trained model, from its run folder."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal

from wavessm.cli.parse import parse, run_first
from wavessm.training.checkpoint import write_json
from wavessm.training.config import TrainConfig
from wavessm.training.evaluate import class_lines, evaluate_run, part_lines
from wavessm.training.results import append, read, rows_of_evaluation
from wavessm.training.run import Run


@dataclasses.dataclass(frozen=True)
class Options:
    run: Path
    """Run folder."""
    split: Literal["train", "val", "test"] = "test"
    """Part of the data."""
    every: int = 1
    """Hear every K-th sample only, with the model's steps K times as long."""
    hz: float | None = None
    """Another sampling rate: PTB-XL's own records at 500 Hz, or this rate by leaving samples out."""
    antialias: bool = False
    """Low-pass filter before samples are left out."""
    by_class: bool = False
    """Each class by itself too, with its number of cases: a mean over classes may hang on a few of them."""
    checkpoint: Literal["best", "last"] = "best"
    """Which model."""
    device: str = "auto"
    """auto, cpu or cuda."""
    out: Path | None = None
    """JSON file for the scores."""
    csv: Path | None = None
    """Table of runs to add the scores to; `wavessm report` reads it."""


def main(arguments: list[str]) -> int:
    about = "Scores of a trained model with 5 % and 95 % bootstrap quantiles (100 resamples of the cases)."
    given = parse(Options, None, run_first(arguments, "evaluate"), "wavessm evaluate RUN", about)
    from wavessm.training.run import pick_device

    device = pick_device(TrainConfig(device=given.device))
    run = Run.read(given.run)
    if given.csv is not None:
        read(given.csv)  # another table is refused before the work, not after it
    result = evaluate_run(
        run,
        given.split,
        rate=given.every,
        sampling_rate=given.hz,
        checkpoint=given.checkpoint,
        device=str(device),
        antialias=given.antialias,
        classes=given.by_class,
    )
    how = f", model rate {result.rate:g}" if result.rate != 1 else ""
    print(f"{given.split}: {result.cases} cases{how}{', low-pass filtered' if result.antialias else ''}")
    for name, value in result.scores.items():
        span = "   [{:.4f}, {:.4f}]".format(*result.intervals[name]) if name in result.intervals else ""
        print(f"  {name.replace('_', ' '):<14}{value:.4f}{span}")
    for line in [*part_lines(result.parts), *class_lines(result.classes)]:
        print(line)
    if given.out is not None:
        write_json(given.out, dataclasses.asdict(result))
    if given.csv is not None and not append(given.csv, rows_of_evaluation(run, result, _said(given))):
        print(f"{given.csv} has scores of this command already and was left as it is; take them out to write these.")
    return 0


def _said(given: Options) -> list[str]:
    """The options that decide the scores, as they would be typed."""
    words = []
    for field in dataclasses.fields(Options):
        value = getattr(given, field.name)
        if field.name in ("split", "every", "hz", "antialias", "checkpoint") and value != field.default:
            words += [f"--{field.name}"] if value is True else [f"--{field.name}", str(value)]
    return words

"""`wavessm evaluate RUN`: the scores of a trained model, from its run folder."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tyro.conf import Positional

from wavessm.cli.parse import parse

if TYPE_CHECKING:
    from wavessm.training import Run
    from wavessm.training.evaluate import Evaluation

DECIDING = ("split", "rate", "sampling_rate", "antialias", "checkpoint")
"""Options that decide the scores."""


@dataclasses.dataclass(frozen=True)
class EvaluateOptions:
    """Score a trained model, with 5 % and 95 % bootstrap quantiles (100 resamples of the cases)."""

    run: Positional[Path]
    """Run folder of `wavessm train`."""
    split: Literal["train", "val", "test"] = "test"
    """Part of the data."""
    rate: int = 1
    """Read every K-th sample only, with the model's steps K times as long."""
    sampling_rate: float | None = None
    """Samples per second: PTB-XL's own records at 500 Hz, or this rate by leaving samples out."""
    antialias: bool = False
    """Low-pass filter before samples are left out."""
    by_class: bool = False
    """Also score each class, with its number of cases: a mean over classes may depend on a few of them."""
    checkpoint: Literal["best", "last"] = "best"
    """Which model."""
    device: str = "auto"
    """auto, cpu or cuda."""
    out: Path | None = None
    """JSON file for the scores."""


def main(arguments: list[str]) -> int:
    """Run `wavessm evaluate`; returns the exit status."""
    evaluate(parse(EvaluateOptions, arguments, "wavessm evaluate"))
    return 0


def evaluate(given: EvaluateOptions) -> tuple[Run, Evaluation]:
    """Score the model, print the scores, write them where asked for."""
    from wavessm.training import Run, TrainConfig, evaluate_run, pick_device
    from wavessm.training.checkpoint import write_json
    from wavessm.training.evaluate import score_lines

    device, run = pick_device(TrainConfig(device=given.device)), Run.read(given.run)
    chosen = {name: getattr(given, name) for name in DECIDING}
    result = evaluate_run(run, **chosen, device=str(device), classes=given.by_class)
    how = f", model rate {result.rate:g}" if result.rate != 1 else ""
    print(f"{given.split}: {result.cases} cases{how}{', low-pass filtered' if result.antialias else ''}")
    for name, value in result.scores.items():
        span = "   [{:.4f}, {:.4f}]".format(*result.intervals[name]) if name in result.intervals else ""
        print(f"  {name.replace('_', ' '):<14}{value:.4f}{span}")
    weakest_first = dict(sorted(result.classes.items(), key=lambda item: item[1]["score"]))
    for line in score_lines(result.parts | weakest_first):
        print(line)
    if given.out is not None:
        write_json(given.out, dataclasses.asdict(result))
    return run, result

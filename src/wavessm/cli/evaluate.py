"""`wavessm evaluate RUN`: the scores of a trained model, from its run folder."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tyro.conf import Positional

from wavessm.cli.parse import parse
from wavessm.errors import OptionError

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
    by_group: bool = False
    """Also score each group of cases (person, machine, speaker), with mean and spread over groups."""
    checkpoint: Literal["best", "last"] = "best"
    """Which model."""
    device: str = "auto"
    """auto, cpu or cuda."""
    out: Path | None = None
    """JSON file for the scores."""
    plot: Path | None = None
    """Figure: confusion matrix of classes, precision and recall of labels, residuals of numbers; a CSV is beside it."""


def main(arguments: list[str]) -> int:
    """Run `wavessm evaluate`; returns the exit status."""
    evaluate(parse(EvaluateOptions, arguments, "wavessm evaluate"))
    return 0


def evaluate(given: EvaluateOptions) -> tuple[Run, Evaluation]:
    """Score the model, print the scores, write them where asked for."""
    from wavessm.training import Run, TrainConfig, pick_device
    from wavessm.training.checkpoint import write_json
    from wavessm.training.evaluate import evaluate_run, score_lines
    from wavessm.training.scores import draw_scores, group_line

    device, run = pick_device(TrainConfig(device=given.device)), Run.read(given.run)
    if given.plot is not None and (run.info.kind == "forecast" or given.plot.suffix not in (".png", ".pdf", ".svg")):
        raise OptionError(f"plot is {given.plot}; expected .png, .pdf, .svg of a run with classes, labels or numbers.")
    if given.by_class and not run.info.classes:
        raise OptionError(f"evaluate: a {run.info.kind} has no classes; leave --by-class out.")
    chosen = {name: getattr(given, name) for name in DECIDING}
    result = evaluate_run(run, **chosen, device=str(device))
    if given.by_group and not result.groups:
        raise OptionError("evaluate: these data have no groups; add groups.npy, groups.csv or a column group.")
    width = 14 if not result.details else 2 + max(map(len, result.scores | result.details))
    how = f", model rate {result.rate:g}" if result.rate != 1 else ""
    print(f"{given.split}: {result.cases} cases{how}{', low-pass filtered' if result.antialias else ''}")
    for name, value in (result.scores | result.details).items():
        span = "   [{:.4f}, {:.4f}]".format(*result.intervals[name]) if name in result.intervals else ""
        print(f"  {name.replace('_', ' '):<{width}}{value:.4f}{span}")
    weakest_first = dict(sorted(result.classes.items(), key=lambda item: item[1]["score"]))
    for line in score_lines(result.parts | (weakest_first if given.by_class else {}) | result.targets):
        print(line)
    if given.by_group:
        for line in [*(group_line(result.groups, name) for name in result.scores), *score_lines(result.groups)]:
            print(line)
    if given.out is not None:
        write_json(given.out, result.to_dict())
    if given.plot is not None and result.outputs is not None:
        draw_scores(run.info, *result.outputs, given.plot)
        print(f"figure: {given.plot}   numbers: {given.plot.with_suffix('.csv')}")
    return run, result

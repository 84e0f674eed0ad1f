"""Scores of a trained model from its run folder: any split, at the sampling rate of training or another one."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from wavessm.data.source import Batch, DataInfo, Source
from wavessm.data.task import PublishedOptions
from wavessm.errors import OptionError, check_int, check_positive, unknown_name
from wavessm.training import metrics
from wavessm.training import scores as more
from wavessm.training.batches import EvalBatches
from wavessm.training.distributed import ALONE, DistInfo

if TYPE_CHECKING:
    from wavessm.training.run import Run

SPLITS = ("train", "val", "test")


class Outputs(NamedTuple):
    """What a model gave for the cases of a split."""

    outputs: np.ndarray  # (cases, d_output)
    targets: np.ndarray  # (cases,) or (cases, d_output)
    thresholds: np.ndarray  # (d_output,) of labels


@dataclass(frozen=True)
class Evaluation:
    """Scores of one split with their intervals, and how they were computed."""

    split: str
    cases: int
    rate: float
    scores: dict[str, float]
    intervals: dict[str, tuple[float, float]]
    antialias: bool  # a low-pass filter was applied before leaving samples out
    parts: dict[str, dict[str, Any]]  # scores of each part of a test split
    checkpoint: str
    groups: dict[str, dict[str, float]]  # cases and scores of each
    details: dict[str, float] = field(default_factory=dict)  # `scores.details`
    classes: dict[str, dict[str, float]] = field(default_factory=dict)  # cases (or steps) and score of each
    targets: dict[str, dict[str, float]] = field(default_factory=dict)  # `scores.by_target`
    outputs: Outputs | None = field(default=None, repr=False)  # of classes, labels and numbers

    def to_dict(self) -> dict[str, Any]:
        """Return what is written down: everything except the outputs of the cases."""
        return {name: value for name, value in vars(self).items() if name != "outputs"}


def evaluate_run(
    run: Run,
    split: str = "test",
    rate: int = 1,
    sampling_rate: float | None = None,
    checkpoint: str = "best",
    device: str = "cpu",
    antialias: bool = False,
) -> Evaluation:
    """Score the model of a run.

    Args:
        run: The run.
        split: "train", "val" or "test".
        rate: Read every `rate`-th sample only, with the model's steps `rate` times as long.
        sampling_rate: Hertz instead of a ratio: PTB-XL's own records at 100 or 500, else every k-th sample.
        checkpoint: "best" or "last".
        device: Where the model runs.
        antialias: Apply a low-pass filter before samples are left out.
    """
    if split not in SPLITS:
        raise unknown_name("split", split, SPLITS)
    info, options = run.info, None
    factor, ratio = check_int(rate, "evaluate: rate", minimum=1), float(rate)
    if sampling_rate is not None:
        if factor != 1:
            raise OptionError("evaluate: give sampling_rate or rate, not both.")
        options, factor, ratio = _at_sampling_rate(run, sampling_rate)
    if ratio != 1 and (info.symbols or info.timed or info.kind in ("forecast", "steps")):
        raise OptionError("evaluate: tokens and forecasts count steps, and so do times and labels of steps; another "
                          "sampling rate would change the task.")  # fmt: skip
    if ratio != 1 and info.front_end != "none":
        raise OptionError("evaluate: this run reads log energies, not samples; predict reads files of higher rates.")
    if antialias and factor == 1:
        raise OptionError("evaluate: antialias filters before samples are left out; give a rate above 1.")
    source = getattr(run.load_data(options), split).to(device)
    model = run.load_model(checkpoint).to(device)
    rows, kept = [], []
    for output, target in _outputs(model, source, run.config.eval_batch_size, ratio, factor, antialias):
        rows.append(metrics.rows(info.kind, output, target, info.quantiles).cpu())
        if info.kind == "steps":
            output, target = output[target >= 0], target[target >= 0]
        if info.kind != "forecast":
            kept.append((output.cpu(), target.cpu()))
    table = torch.cat(rows).numpy()
    scores, spans = metrics.summarise(info.kind, table), metrics.bootstrap(info.kind, table)
    parts = score_parts(info, table) if split == "test" else {}
    groups = {} if source.groups is None else more.by_group(info.kind, table, source.groups)
    result = Evaluation(split, len(table), ratio, scores, spans, antialias, parts, checkpoint, groups)
    if not kept:
        return result
    outputs, targets = (torch.cat(each).numpy() for each in zip(*kept, strict=True))
    own = Outputs(outputs.astype(np.float64), targets, np.array(run.thresholds() or [0.5] * info.d_output))
    details, classes = more.details(info, *own), more.by_class(info, table) if info.classes else {}
    numbers = more.by_target(info, *own[:2]) if info.kind == "regression" and info.target_scale else {}
    return dataclasses.replace(result, details=details, classes=classes, targets=numbers, outputs=own)


def _at_sampling_rate(run: Run, sampling_rate: float) -> tuple[Any, int, float]:
    """Data options where they change, the factor of decimation, and the model's rate."""
    check_positive(sampling_rate, "evaluate: sampling_rate")
    own, options = run.info.sampling_rate, run.options
    if own is None:
        raise OptionError("evaluate: the sampling rate of these data is not known; use --rate K for every K-th sample.")
    if isinstance(options, PublishedOptions) and hasattr(options, "sampling_rate") and sampling_rate in (100, 500):
        return dataclasses.replace(options, sampling_rate=int(sampling_rate)), 1, own / sampling_rate  # type: ignore[call-arg]
    ratio = own / sampling_rate
    if ratio < 1 or not math.isclose(ratio, round(ratio)):
        raise OptionError(f"evaluate: sampling_rate is {sampling_rate:g}, expected {own:g} divided by a whole number.")
    return None, round(ratio), float(round(ratio))


def evaluate_split(
    model: Any, source: Source, info: DataInfo, batch_size: int, dist: DistInfo = ALONE
) -> tuple[dict[str, float], np.ndarray]:
    """Scores over a whole split, and the rows (cases, k) they come from, the same in every process.

    The model is a `SequenceModel` or one of `closed_form.py`; it stays in evaluation mode.
    """
    rows = [metrics.rows(info.kind, *pair, info.quantiles) for pair in _outputs(model, source, batch_size, dist=dist)]
    table = dist.rows(torch.cat(rows)[: EvalBatches(source, batch_size, dist).cases])
    return metrics.summarise(info.kind, table), table


@torch.no_grad()
def _outputs(
    model: Any, source: Source, size: int, rate: float = 1.0, factor: int = 1, antialias: bool = False,
    dist: DistInfo = ALONE,
) -> Iterator[tuple[Tensor, Tensor]]:  # fmt: skip
    """Outputs and targets of every batch of a split; `factor` and `antialias` as in `decimate`."""
    model.eval()
    if hasattr(source, "forecasts"):
        yield from source.forecasts(model, size)
        return
    for batch in EvalBatches(source, size, dist):
        batch = decimate(batch, factor, antialias)
        yield model(batch.x, rate=rate, **batch.inputs()).to(batch.y.device), batch.y


def score_parts(info: DataInfo, table: np.ndarray) -> dict[str, dict[str, Any]]:
    """Scores and intervals of each part of a test split, from the rows of its cases; empty where it has no parts."""
    rows = np.split(table, len(info.parts)) if info.parts else []
    return {
        part: {**metrics.summarise(info.kind, own), "intervals": metrics.bootstrap(info.kind, own)}
        for part, own in zip(info.parts, rows, strict=True)
    }


def decimate(batch: Batch, factor: int, antialias: bool = False) -> Batch:
    """Keep every `factor`-th sample of the input; `antialias` first removes what these cannot carry, by a windowed sinc
    without delay, zeros beyond the ends."""
    if factor == 1:
        return batch
    lengths = None if batch.lengths is None else torch.div(batch.lengths + factor - 1, factor, rounding_mode="floor")
    if not antialias:
        return batch._replace(x=batch.x[:, ::factor], lengths=lengths)
    from scipy.signal import firwin, resample_poly

    taps = firwin(32 * factor + 1, 0.9 / factor, window=("kaiser", 8.0))
    x = torch.from_numpy(resample_poly(batch.x.cpu().numpy(), 1, factor, axis=1, window=taps))
    return batch._replace(x=x.to(batch.x), lengths=lengths)


def score_lines(groups: dict[str, dict[str, Any]]) -> list[str]:
    """Scores of the parts of a split, or of classes, as the command line prints them.

    >>> score_lines({"2": {"cases": 12345, "relative_mse": 0.5, "mse": 1.0, "intervals": {}}})
    ['     2: cases 12345  relative mse 0.5  mse 1']
    """
    form = {True: "d", False: ".4g"}
    return [
        f"  {name:>4}: "
        + "  ".join(f"{n.replace('_', ' ')} {v:{form[isinstance(v, int)]}}" for n, v in own.items() if n != "intervals")
        for name, own in groups.items()
    ]

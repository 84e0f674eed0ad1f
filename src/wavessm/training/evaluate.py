"""Scores of a trained model from its run folder: any split, at the sampling rate of training or another one."""

from __future__ import annotations

import dataclasses
import logging
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from wavessm.data.source import Batch, DataInfo, Source
from wavessm.errors import OptionError, check_int, check_positive, unknown_name
from wavessm.training import metrics
from wavessm.training import scores as more
from wavessm.training.batches import EvalBatches
from wavessm.training.run import Run

log = logging.getLogger("wavessm.training")

SPLITS = ("train", "val", "test")


@dataclass(frozen=True)
class Evaluation:
    """Scores of one split with their intervals, and how they were computed."""

    split: str
    cases: int
    rate: float
    scores: dict[str, float]
    intervals: dict[str, tuple[float, float]]
    antialias: bool = False  # a low-pass filter was applied before leaving samples out
    parts: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)  # scores of each part of a test split
    classes: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)  # cases and score of each
    checkpoint: str = "best"
    details: dict[str, float] = dataclasses.field(default_factory=dict)  # `scores.details`
    groups: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)  # cases and scores of each
    targets: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)  # `scores.by_target`
    outputs: Outputs | None = dataclasses.field(default=None, repr=False)  # of classes, labels and numbers

    def to_dict(self) -> dict[str, Any]:
        """Return what is written down: everything except the outputs of the cases."""
        return {name: value for name, value in vars(self).items() if name != "outputs"}


class Outputs(NamedTuple):
    """What a model gave for the cases of a split."""

    outputs: np.ndarray  # (cases, d_output)
    targets: np.ndarray  # (cases,) or (cases, d_output)
    thresholds: np.ndarray  # (d_output,) of labels


def evaluate_run(
    run: Run,
    split: str = "test",
    rate: int = 1,
    sampling_rate: float | None = None,
    checkpoint: str = "best",
    device: str = "cpu",
    antialias: bool = False,
    classes: bool = False,
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
        classes: Score each class by itself too.
    """
    if split not in SPLITS:
        raise unknown_name("split", split, SPLITS)
    factor, ratio, options = check_int(rate, "evaluate: rate", minimum=1), float(rate), None
    if sampling_rate is not None:
        if factor != 1:
            raise OptionError("evaluate: give sampling_rate or rate, not both.")
        options, factor, ratio = _at_sampling_rate(run, sampling_rate)
    if run.info.symbols and ratio != 1:
        raise OptionError("evaluate: tokens have no sampling rate; leave rate and sampling_rate out.")
    if run.info.kind == "forecast" and ratio != 1:
        raise OptionError("evaluate: a forecast has a horizon in steps; another sampling rate would change the task.")
    if classes and not run.info.classes:
        raise OptionError(f"evaluate: a {run.info.kind} has no classes; leave --by-class out.")
    if antialias and factor == 1:
        raise OptionError("evaluate: antialias filters before samples are left out; give a rate above 1.")
    source = getattr(run.load_data(options), split).to(device)
    model, info = run.load_model(checkpoint).to(device), run.info
    kept: list[tuple[Tensor, Tensor]] = []
    how = run.config.eval_batch_size, factor, ratio, antialias
    scores, table = evaluate_split(model, source, info, *how, kept=None if info.kind == "forecast" else kept)
    parts = score_parts(info, table) if split == "test" else {}
    each = metrics.by_class(info.kind, table, info.classes) if classes else {}
    spans = metrics.bootstrap(info.kind, table)
    result = Evaluation(split, len(table), ratio, scores, spans, antialias, parts, each, checkpoint)
    return _with_details(run, result, table, getattr(source, "groups", None), kept)


def _with_details(run: Run, result: Evaluation, table: np.ndarray, groups: Any, kept: Any) -> Evaluation:
    """The evaluation with scores of rare classes, of groups and of targets, where the data have them."""
    info = run.info
    by_group = {} if groups is None else more.by_group(info.kind, table, groups)
    if info.kind == "forecast":
        return dataclasses.replace(result, groups=by_group)
    outputs, targets = (torch.cat(each).cpu().numpy() for each in zip(*kept, strict=True))
    thresholds = np.array(more.read_thresholds(run) or [0.5] * info.d_output)
    own = Outputs(outputs.astype(np.float64), targets, thresholds)
    each = more.by_target(info, *own[:2]) if info.kind == "regression" and info.target_scale else {}
    return dataclasses.replace(result, details=more.details(info, *own), groups=by_group, targets=each, outputs=own)


def _at_sampling_rate(run: Run, sampling_rate: float) -> tuple[Any, int, float]:
    """Data options where they change, the factor of decimation, and the model's rate."""
    check_positive(sampling_rate, "evaluate: sampling_rate")
    own, options = run.info.sampling_rate, run.options
    if own is None:
        raise OptionError("evaluate: the sampling rate of these data is not known; use --rate K for every K-th sample.")
    if hasattr(options, "sampling_rate") and sampling_rate in (100, 500):
        return dataclasses.replace(options, sampling_rate=int(sampling_rate)), 1, own / sampling_rate  # type: ignore[call-arg]
    ratio = own / sampling_rate
    if ratio < 1 or not math.isclose(ratio, round(ratio)):
        raise OptionError(f"evaluate: sampling_rate is {sampling_rate:g}, expected {own:g} divided by a whole number.")
    return None, round(ratio), float(round(ratio))


@torch.no_grad()
def evaluate_split(
    model: Any,
    source: Source,
    info: DataInfo,
    batch_size: int,
    factor: int = 1,
    rate: float = 1.0,
    antialias: bool = False,
    kept: list[tuple[Tensor, Tensor]] | None = None,
) -> tuple[dict[str, float], np.ndarray]:
    """Scores over a whole split, and the rows (cases, k) they come from; `factor` and `antialias` as in `decimate`.

    The model is a `SequenceModel` or one of `closed_form.py`; it stays in evaluation mode. Outputs and targets of every
    batch are added to `kept`.
    """
    model.eval()
    parts: list[Tensor] = []
    for batch in EvalBatches(source, batch_size):
        batch = decimate(batch, factor, antialias)
        output = model(batch.x, lengths=batch.lengths, rate=rate, marks=batch.marks)
        output = output.to(batch.y.device)
        parts.append(metrics.rows(info.kind, output, batch.y).cpu())
        if kept is not None:
            kept.append((output, batch.y))
    table = torch.cat(parts).numpy()
    return metrics.summarise(info.kind, table), table


def score_parts(info: DataInfo, table: np.ndarray) -> dict[str, dict[str, Any]]:
    """Scores and intervals of each part of a test split, from the rows of its cases; empty where it has no parts."""
    rows = np.split(table, len(info.parts)) if info.parts else []
    return {
        part: {**metrics.summarise(info.kind, own), "intervals": metrics.bootstrap(info.kind, own)}
        for part, own in zip(info.parts, rows, strict=True)
    }


def decimate(batch: Batch, factor: int, antialias: bool = False) -> Batch:
    """Keep every `factor`-th sample of the input, after a low-pass filter if asked for."""
    if factor == 1:
        return batch
    lengths = None if batch.lengths is None else torch.div(batch.lengths + factor - 1, factor, rounding_mode="floor")
    x = low_pass(batch.x, factor) if antialias else batch.x
    return batch._replace(x=x[:, ::factor], lengths=lengths)


def low_pass(x: Tensor, factor: int) -> Tensor:
    """Remove what every `factor`-th sample cannot carry: a windowed sinc without delay, zeros beyond the ends.

    >>> tone = torch.cos(torch.pi * 0.9 * torch.arange(400.0))[None, :, None]  # (batch, length, channels)
    >>> bool(low_pass(tone, 2)[:, 50:350].abs().max() < 0.01)
    True
    """
    from scipy.ndimage import convolve1d
    from scipy.signal import firwin

    taps = firwin(32 * factor + 1, 0.9 / factor, window=("kaiser", 8.0))
    return torch.from_numpy(convolve1d(x.cpu().numpy(), taps, axis=1, mode="constant")).to(x)


def score_lines(groups: dict[str, dict[str, Any]]) -> list[str]:
    """Scores of the parts of a split, or of classes, as the command line prints them.

    >>> score_lines({"2": {"relative_mse": 0.5, "mse": 1.0, "intervals": {}}})
    ['     2: relative mse 0.5  mse 1']
    """
    return [
        f"  {name:>4}: " + "  ".join(f"{n.replace('_', ' ')} {v:.4g}" for n, v in own.items() if n != "intervals")
        for name, own in groups.items()
    ]

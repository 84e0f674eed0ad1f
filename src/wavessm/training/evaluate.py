"""Stage 8m: scores of a trained model from its run folder: any split, at its own or another sampling rate."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from wavessm.data.source import Batch, DataInfo, Source
from wavessm.errors import OptionError, check_positive, unknown_name
from wavessm.nn.model import SequenceModel
from wavessm.training import metrics
from wavessm.training.batches import EvalBatches
from wavessm.training.folder import Run

SPLITS = ("train", "val", "test")


@dataclass(frozen=True)
class Evaluation:
    """Scores of one split with their intervals, and how they were taken."""

    split: str
    cases: int
    rate: float
    scores: dict[str, float]
    intervals: dict[str, tuple[float, float]]
    antialias: bool = False  # a low-pass filter went before leaving samples out
    parts: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)  # scores of each part of a test split
    classes: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)  # cases and score of each
    checkpoint: str = "best"


def evaluate_run(
    run: Run,
    split: str = "test",
    every: int = 1,
    hz: float | None = None,
    which: str = "best",
    device: str = "cpu",
    antialias: bool = False,
    classes: bool = False,
) -> Evaluation:
    """Scores of a run's model.

    every: hear every k-th sample only, without a filter, with the steps of the model k times as long. antialias: with a
    low-pass filter before.
    hz: the same signal recorded at another rate: PTB-XL's own files where it has them, else every k-th sample.
    classes: each class by itself too.
    """
    if split not in SPLITS:
        raise unknown_name("split", split, SPLITS)
    if every < 1:
        raise OptionError(f"evaluate: every is {every}, expected at least 1.")
    options: Any = None  # those of the run
    rate = float(every)
    if hz is not None:
        if every != 1:
            raise OptionError("evaluate: give hz or every, not both.")
        options, every, rate = _at_rate(run, hz)
    if run.info.symbols and rate != 1:
        raise OptionError("evaluate: tokens have no sampling rate; leave --every and --hz out.")
    if run.info.kind == "forecast" and rate != 1:
        raise OptionError("evaluate: a forecast has a horizon in steps; another sampling rate would change the task.")
    if classes and not run.info.classes:
        raise OptionError(f"evaluate: a {run.info.kind} has no classes; leave --by-class out.")
    data = run.load_data(options)
    model = run.load_model(which).to(device)
    source = getattr(data, split)
    if antialias and every == 1:
        raise OptionError("evaluate: antialias filters before samples are left out; give every, or hz below training.")
    table_scores, table = evaluate_split(
        model, source.to(device), run.info, run.recipe.eval_batch_size, every=every, rate=rate, antialias=antialias
    )
    spans = intervals(run.info.kind, table)
    parts = score_parts(run.info, table) if split == "test" else {}
    each = metrics.by_class(run.info.kind, table, run.info.classes) if classes else {}
    return Evaluation(split, len(table), rate, table_scores, spans, antialias, parts, each, which)


def score_parts(info: DataInfo, table: np.ndarray) -> dict[str, dict[str, Any]]:
    """Scores and intervals of each part of a test split, from the rows of its cases; none where it has no parts."""
    rows = np.split(table, len(info.parts)) if info.parts else []
    return {
        part: {**metrics.summarise(info.kind, own), "intervals": intervals(info.kind, own)}
        for part, own in zip(info.parts, rows, strict=True)
    }


def part_lines(parts: dict[str, dict[str, Any]]) -> list[str]:
    """Scores of parts as the command line prints them.

    >>> part_lines({"2": {"relative_mse": 0.5, "mse": 1.0, "intervals": {}}})
    ['     2: relative mse 0.5  mse 1']
    """
    return [
        f"  {part:>4}: " + "  ".join(f"{n.replace('_', ' ')} {v:.4g}" for n, v in own.items() if n != "intervals")
        for part, own in parts.items()
    ]


def class_lines(classes: dict[str, dict[str, float]]) -> list[str]:
    """Scores of classes as the command line prints them, the lowest first.

    >>> class_lines({"quiet": {"cases": 12, "score": 0.9}, "loud": {"cases": 1, "score": 0.5}})
    ['  0.5000  loud (1 case)', '  0.9000  quiet (12 cases)']
    """
    ordered = sorted(classes.items(), key=lambda item: (math.isnan(item[1]["score"]), item[1]["score"]))
    return [
        f"  {own['score']:.4f}  {name} ({own['cases']} case{'' if own['cases'] == 1 else 's'})" for name, own in ordered
    ]


def intervals(kind: str, table: np.ndarray) -> dict[str, tuple[float, float]]:
    """5 % and 95 % quantiles of the scores; none where the cases are too few to be drawn again."""
    try:
        return metrics.bootstrap(kind, table)
    except OptionError:
        return {}


def _at_rate(run: Run, hz: float) -> tuple[Any, int, float]:
    """Data options if they are others, decimation and model rate for a signal at `hz`."""
    check_positive(hz, "evaluate: hz")
    if run.info.rate is None:
        raise OptionError(
            "evaluate: the sampling rate of these data is not known; use --every K for every K-th sample."
        )
    own, options = run.info.rate, run.options
    if hasattr(options, "hz") and hz in (100, 500):
        return dataclasses.replace(options, hz=int(hz)), 1, own / hz  # type: ignore[type-var]
    every = own / hz
    if every < 1 or not math.isclose(every, round(every)):
        raise OptionError(f"evaluate: hz is {hz:g}, expected {own:g} divided by a whole number.")
    return None, round(every), float(round(every))


def thin(batch: Batch, every: int, antialias: bool = False) -> Batch:
    """Every k-th sample of the input, after a low-pass filter if asked for."""
    if every == 1:
        return batch
    lengths = None if batch.lengths is None else torch.div(batch.lengths + every - 1, every, rounding_mode="floor")
    x = low_pass(batch.x, every) if antialias else batch.x
    return Batch(x[:, ::every], batch.y, lengths, batch.marks)


def low_pass(x: Tensor, every: int) -> Tensor:
    """What every k-th sample can carry: a windowed sinc without delay, zeros beyond the ends. (batch, length, channels)

    >>> tone = torch.cos(torch.pi * 0.9 * torch.arange(400.0))[None, :, None]
    >>> bool(low_pass(tone, 2)[:, 50:350].abs().max() < 0.01)
    True
    """
    half = 16 * every
    t = torch.arange(-half, half + 1, device=x.device, dtype=torch.float64)
    taps = torch.special.sinc(0.9 * t / every) * torch.kaiser_window(
        2 * half + 1, periodic=False, beta=8.0, dtype=torch.float64, device=x.device
    )
    kernel = (taps / taps.sum()).to(x.dtype)[None, None]
    rows = x.transpose(1, 2).flatten(0, 1)[:, None]  # (batch · channels, 1, length)
    heard = torch.nn.functional.conv1d(rows, kernel, padding=half)
    return heard[:, 0].unflatten(0, (x.shape[0], x.shape[2])).transpose(1, 2)


@torch.no_grad()
def evaluate_split(
    model: SequenceModel,
    source: Source,
    info: DataInfo,
    batch_size: int,
    every: int = 1,
    rate: float = 1.0,
    antialias: bool = False,
) -> tuple[dict[str, float], np.ndarray]:
    """Scores over a whole split and the rows they come from. The model is in evaluation mode afterwards."""
    model.eval()
    parts: list[Tensor] = []
    for batch in EvalBatches(source, batch_size):
        batch = thin(batch, every, antialias)
        output = model(batch.x, lengths=batch.lengths, rate=rate, marks=batch.marks)
        parts.append(metrics.rows(info.kind, output, batch.y).cpu())
    table = torch.cat(parts).numpy()
    return metrics.summarise(info.kind, table), table

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
from wavessm.errors import OptionError
from wavessm.models import SequenceModel
from wavessm.registry import unknown_name
from wavessm.training import metrics
from wavessm.training.folder import Run
from wavessm.training.loader import Whole

SPLITS = ("train", "val", "test")


@dataclass(frozen=True)
class Evaluation:
    """Scores of one split with their intervals, and how they were taken."""

    split: str
    cases: int
    rate: float
    scores: dict[str, float]
    intervals: dict[str, tuple[float, float]]


def evaluate_run(
    run: Run, split: str = "test", every: int = 1, hz: float | None = None, which: str = "best", device: str = "cpu"
) -> Evaluation:
    """Scores of a run's model.

    every: hear every k-th sample only, without a filter, with the steps of the model k times as long.
    hz: the same signal recorded at another rate: PTB-XL's own files where it has them, else every k-th sample.
    """
    if split not in SPLITS:
        raise unknown_name("split", split, SPLITS)
    if every < 1:
        raise OptionError(f"evaluate: every is {every}, expected at least 1.")
    options: Any = run.options
    rate = float(every)
    if hz is not None:
        if every != 1:
            raise OptionError("evaluate: give hz or every, not both.")
        options, every, rate = _at_rate(run, hz)
    if run.info.kind == "forecast" and rate != 1:
        raise OptionError("evaluate: a forecast has a horizon in steps; another sampling rate would change the task.")
    data = options.load(run.recipe.seed)
    model = run.load_model(which).to(device)
    source = getattr(data, split)
    table_scores, table = evaluate_split(
        model, source.to(device), run.info, run.recipe.eval_batch_size, every=every, rate=rate
    )
    intervals = metrics.bootstrap(run.info.kind, table) if len(table) > 1 else {}
    return Evaluation(split, len(table), rate, table_scores, intervals)


def _at_rate(run: Run, hz: float) -> tuple[Any, int, float]:
    """Data options, decimation and model rate for a signal at `hz`."""
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
    return options, round(every), float(round(every))


def thin(batch: Batch, every: int) -> Batch:
    """Every k-th sample of the input."""
    if every == 1:
        return batch
    lengths = None if batch.lengths is None else torch.div(batch.lengths + every - 1, every, rounding_mode="floor")
    return Batch(batch.x[:, ::every], batch.y, lengths, batch.marks)


@torch.no_grad()
def evaluate_split(
    model: SequenceModel, source: Source, info: DataInfo, batch_size: int, every: int = 1, rate: float = 1.0
) -> tuple[dict[str, float], np.ndarray]:
    """Scores over a whole split and the rows they come from. The model is in evaluation mode afterwards."""
    model.eval()
    parts: list[Tensor] = []
    for batch in Whole(source, batch_size):
        batch = thin(batch, every)
        output = model(batch.x, lengths=batch.lengths, rate=rate, marks=batch.marks)
        parts.append(metrics.rows(info.kind, output, batch.y).cpu())
    table = torch.cat(parts).numpy()
    return metrics.summarise(info.kind, table), table

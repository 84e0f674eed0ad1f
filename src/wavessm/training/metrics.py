"""Stage 8d: losses and scores by the kind of a data set, over the whole split.

Every case of a split leaves one row of numbers; a score is a function of all rows. Batches therefore never enter a
score, and a bootstrap interval is the same function of resampled rows.

    multilabel  row = scores and labels of the classes     macro AUROC (classes with both labels present)
    multiclass  row = class given, class right             accuracy
    forecast    row = mean squared and absolute error      MSE, MAE
    regression  row = errors, mean and square of targets   relative MSE = MSE / variance of the target, MSE, MAE
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from wavessm.errors import OptionError

RESAMPLES = 100
QUANTILES = (0.05, 0.95)
HOPELESS = 2000
"""Resamples after which it is given up, if not one of them could be used."""
ROUNDING = 1e-12
"""Part of the mean square of targets below which their variance is none."""


@dataclass(frozen=True)
class Score:
    """The score that selects a checkpoint, and which way is better."""

    name: str
    highest: bool

    def better(self, new: float, old: float | None) -> bool:
        """Whether `new` beats `old`; NaN beats nothing, anything beats None."""
        if math.isnan(new):
            return False
        return old is None or (new > old if self.highest else new < old)


SELECTION = {
    "multilabel": Score("auroc", highest=True),
    "multiclass": Score("accuracy", highest=True),
    "forecast": Score("mse", highest=False),
    "regression": Score("relative_mse", highest=False),
}


def loss(kind: str, output: Tensor, target: Tensor) -> Tensor:
    """What training lowers: binary cross-entropy, cross-entropy or mean squared error."""
    if kind == "multilabel":
        return F.binary_cross_entropy_with_logits(output.float(), target.float())
    if kind == "multiclass":
        return F.cross_entropy(output.float(), target)
    return F.mse_loss(output.float(), target.float())


def rows(kind: str, output: Tensor, target: Tensor) -> Tensor:
    """One row of float64 for each case. (batch, …), (batch, …) → (batch, k)"""
    output = output.double()
    if kind == "multilabel":
        return torch.cat([output, target.double()], dim=1)
    if kind == "multiclass":
        return torch.stack([output.argmax(1), target], dim=1).double()
    error, target = (output - target.double()).flatten(1), target.double().flatten(1)
    columns = [error.square().mean(1), error.abs().mean(1)]
    if kind == "regression":
        columns += [target.mean(1), target.square().mean(1)]
    return torch.stack(columns, dim=1)


def summarise(kind: str, table: np.ndarray) -> dict[str, float]:
    """The scores of a split from the rows of its cases. (cases, k)

    >>> summarise("multiclass", np.array([[0, 0], [1, 2.0]]))
    {'accuracy': 0.5}
    """
    if kind == "multilabel":
        return {"auroc": float(_mean(auroc(*np.split(table, 2, axis=1))))}
    if kind == "multiclass":
        return {"accuracy": float(np.mean(table[:, 0] == table[:, 1]))}
    mean = table.mean(axis=0)
    scores = {"mse": float(mean[0]), "mae": float(mean[1])}
    if kind == "regression":
        variance = mean[3] - mean[2] ** 2
        scores = {"relative_mse": float(mean[0] / variance) if variance > ROUNDING * mean[3] else math.nan, **scores}
    return scores


def auroc(scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Area under the ROC curve of every class, ties shared; NaN where a label is missing. (cases, classes) → (classes,)

    A positive outranks a negative with this probability: the rank sum of the positives gives it exactly.
    """
    from scipy.stats import rankdata

    positive = labels > 0.5
    above, below = positive.sum(axis=0).astype(float), (~positive).sum(axis=0).astype(float)
    rank_sum = np.where(positive, rankdata(scores, axis=0), 0).sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        area = (rank_sum - above * (above + 1) / 2) / (above * below)
    return np.where((above > 0) & (below > 0), area, np.nan)


def by_class(kind: str, table: np.ndarray, classes: tuple[str, ...]) -> dict[str, dict[str, float]]:
    """Cases of each class and its AUROC, or how many of them were given it; NaN where that has no value. (cases, k)

    >>> by_class("multiclass", np.array([[0, 0], [1, 1], [0, 1.0]]), ("quiet", "loud"))
    {'quiet': {'cases': 1, 'score': 1.0}, 'loud': {'cases': 2, 'score': 0.5}}
    """
    if kind == "multilabel":
        scores, labels = np.split(table, 2, axis=1)
        cases, values = (labels > 0.5).sum(axis=0), auroc(scores, labels)
    elif kind == "multiclass":
        given, right = table.astype(int).T
        cases = np.bincount(right, minlength=len(classes))
        hits = np.bincount(right[given == right], minlength=len(classes))
        values = np.where(cases > 0, hits / np.maximum(cases, 1), np.nan)
    else:
        raise OptionError(f"by class: a {kind} has no classes; leave it out.")
    found = zip(classes, cases.tolist(), values.tolist(), strict=True)
    return {name: {"cases": int(n), "score": value} for name, n, value in found}


def _mean(values: np.ndarray) -> float:
    kept = values[~np.isnan(values)]
    return float(kept.mean()) if len(kept) else math.nan


def bootstrap(
    kind: str, table: np.ndarray, seed: int = 0, resamples: int = RESAMPLES
) -> dict[str, tuple[float, float]]:
    """5 % and 95 % quantiles of the scores over resamples of the cases. (cases, k)

    A multi-label resample is drawn again until every class that has a positive in the split has one in it, and any
    resample until it has the scores that the split has. A score that the split lacks has no interval.
    """
    if len(table) < 2:
        raise OptionError(f"bootstrap: {len(table)} cases, expected at least 2.")
    random = np.random.default_rng(seed)
    labels = np.split(table, 2, axis=1)[1] > 0.5 if kind == "multilabel" else np.ones((len(table), 1), dtype=bool)
    labels = labels[:, labels.any(axis=0)]
    names = [name for name, value in summarise(kind, table).items() if not math.isnan(value)]
    drawn: list[dict[str, float]] = []
    for tries in range(1000 * resamples):
        if len(drawn) == resamples or (tries == HOPELESS and not drawn):
            break
        index = random.integers(len(table), size=len(table))
        if labels[index].any(axis=0).all():
            scores = summarise(kind, table[index])
            if not any(math.isnan(scores[name]) for name in names):
                drawn.append(scores)
    if len(drawn) < resamples:
        raise OptionError(
            "bootstrap: too few cases of some class, or too few that differ; report the score without interval."
        )
    return {name: _span([scores[name] for scores in drawn]) for name in names}


def _span(values: list[float]) -> tuple[float, float]:
    low, high = np.quantile(values, QUANTILES)
    return float(low), float(high)

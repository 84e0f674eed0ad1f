"""Losses and scores by the kind of a data set, over a whole split.

Every case gives one row of numbers, and a score is a function of all rows, so it does not depend on batches and its
bootstrap interval is the same function of resampled rows.

    multilabel  row = outputs and labels of the classes    macro AUROC (over classes with both labels present)
    multiclass  row = predicted class, true class          accuracy
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

RESAMPLES = 100
QUANTILES = (0.05, 0.95)
MAX_FAILED_DRAWS = 2000
"""Resamples after which a bootstrap ends, if none of them could be used."""
ROUNDING = 1e-12
"""Fraction of the mean square of targets below which their variance counts as zero."""


@dataclass(frozen=True)
class SelectionScore:
    """The score that selects a checkpoint, and whether higher is better."""

    name: str
    highest: bool

    def better(self, new: float, old: float | None) -> bool:
        """Whether `new` beats `old`; NaN beats nothing, any number beats None."""
        return not math.isnan(new) and (old is None or (new > old if self.highest else new < old))


SELECTION = {
    "multilabel": SelectionScore("auroc", highest=True),
    "multiclass": SelectionScore("accuracy", highest=True),
    "forecast": SelectionScore("mse", highest=False),
    "regression": SelectionScore("relative_mse", highest=False),
}


def loss(
    kind: str, output: Tensor, target: Tensor, weight: Tensor | None = None, class_weight: Tensor | None = None
) -> Tensor:
    """The training loss: binary cross-entropy, cross-entropy or mean squared error.

    Args:
        kind: of the data set.
        output: (batch, …) of a model.
        target: (batch, …).
        weight: (batch,) of the cases, with mean 1 over the training split.
        class_weight: (classes,) of `class_weights`.
    """
    reduction = "mean" if weight is None and (class_weight is None or kind == "multilabel") else "none"
    if kind == "multilabel":
        each = F.binary_cross_entropy_with_logits(
            output.float(), target.float(), pos_weight=class_weight, reduction=reduction
        )
    elif kind == "multiclass":
        each = F.cross_entropy(output.float(), target, reduction=reduction)
        each = each if class_weight is None else each * class_weight[target]
    else:
        each = F.mse_loss(output.float(), target.float(), reduction=reduction)
    return (each if weight is None else each.flatten(1).mean(1) * weight if each.dim() > 1 else each * weight).mean()


def class_weights(kind: str, targets: Tensor, classes: int) -> Tensor:
    """Balanced weights (classes,) from the targets of a training split, 1 for a class without a case.

    Those of classes are cases / (classes · cases of the class), with mean 1 over the cases; those of the positives of a
    label are negatives / positives.

    >>> class_weights("multiclass", torch.tensor([0, 0, 0, 1]), 2).tolist()
    [0.6666666865348816, 2.0]
    """
    if kind == "multilabel":
        positive = targets.float().sum(0)
        return torch.where(positive > 0, (len(targets) - positive) / positive.clamp_min(1), 1.0)
    counts = torch.bincount(targets, minlength=classes)
    return torch.where(counts > 0, len(targets) / ((counts > 0).sum() * counts.clamp_min(1)), 1.0).float()


def rows(kind: str, output: Tensor, target: Tensor) -> Tensor:
    """One row of float64 per case: outputs and targets (batch, …) → (batch, k)."""
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
    """The scores of a split from the rows (cases, k) of its cases.

    >>> summarise("multiclass", np.array([[0, 0], [1, 2.0]]))
    {'accuracy': 0.5}
    """
    if kind == "multilabel":
        areas = auroc(*np.split(table, 2, axis=1))
        areas = areas[~np.isnan(areas)]
        return {"auroc": float(areas.mean()) if len(areas) else math.nan}
    if kind == "multiclass":
        return {"accuracy": float(np.mean(table[:, 0] == table[:, 1]))}
    mean = table.mean(axis=0)
    scores = {"mse": float(mean[0]), "mae": float(mean[1])}
    if kind == "regression":
        variance = mean[3] - mean[2] ** 2
        scores = {"relative_mse": float(mean[0] / variance) if variance > ROUNDING * mean[3] else math.nan, **scores}
    return scores


def auroc(scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Area under the ROC curve of every class, ties shared. (cases, classes), (cases, classes) → (classes,)

    It is the probability that a positive outranks a negative, exact from the rank sum of the positives; NaN where a
    class has no positive or no negative.
    """
    from scipy.stats import rankdata

    positive = labels > 0.5
    above, below = positive.sum(axis=0).astype(float), (~positive).sum(axis=0).astype(float)
    rank_sum = np.where(positive, rankdata(scores, axis=0), 0).sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        area = (rank_sum - above * (above + 1) / 2) / (above * below)
    return np.where((above > 0) & (below > 0), area, np.nan)


def by_class(kind: str, table: np.ndarray, classes: tuple[str, ...]) -> dict[str, dict[str, float]]:
    """Number of cases of each class with its AUROC (multilabel) or recall (multiclass); NaN where that has no value.

    >>> by_class("multiclass", np.array([[0, 0], [1, 1], [0, 1.0]]), ("quiet", "loud"))
    {'quiet': {'cases': 1, 'score': 1.0}, 'loud': {'cases': 2, 'score': 0.5}}
    """
    if kind == "multilabel":
        scores, labels = np.split(table, 2, axis=1)
        cases, values = (labels > 0.5).sum(axis=0), auroc(scores, labels)
    else:
        predicted, true = table.astype(int).T
        cases = np.bincount(true, minlength=len(classes))
        hits = np.bincount(true[predicted == true], minlength=len(classes))
        values = np.where(cases > 0, hits / np.maximum(cases, 1), np.nan)
    found = zip(classes, cases.tolist(), values.tolist(), strict=True)
    return {name: {"cases": int(n), "score": value} for name, n, value in found}


def bootstrap(
    kind: str, table: np.ndarray, seed: int = 0, resamples: int = RESAMPLES
) -> dict[str, tuple[float, float]]:
    """5 % and 95 % quantiles of the scores of rows (cases, k) over resamples of the cases.

    A multi-label resample is drawn again until every class that has a positive in the split has one in it, and any
    resample until it has the scores that the split has. Empty where the cases are too few or too much alike for that.
    """
    random = np.random.default_rng(seed)
    labels = np.split(table, 2, axis=1)[1] > 0.5 if kind == "multilabel" else np.ones((len(table), 1), dtype=bool)
    labels = labels[:, labels.any(axis=0)]
    names = [name for name, value in summarise(kind, table).items() if not math.isnan(value)]
    drawn: list[dict[str, float]] = []
    for attempt in range(1000 * resamples if len(table) > 1 else 0):
        if len(drawn) == resamples or (attempt == MAX_FAILED_DRAWS and not drawn):
            break
        index = random.integers(len(table), size=len(table))
        if labels[index].any(axis=0).all():
            scores = summarise(kind, table[index])
            if not any(math.isnan(scores[name]) for name in names):
                drawn.append(scores)
    if len(drawn) < resamples:
        return {}
    spans = {name: np.quantile([scores[name] for scores in drawn], QUANTILES).tolist() for name in names}
    return {name: (low, high) for name, (low, high) in spans.items()}

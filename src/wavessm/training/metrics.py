"""Losses and scores by the kind of a data set, over a whole split.

Every case gives one row of numbers, and a score is a function of all rows, so it does not depend on batches and its
bootstrap interval is the same function of resampled rows.

    multilabel  row = outputs and labels of the classes    macro AUROC (over classes with both labels present)
    multiclass  row = predicted class, true class          accuracy
    steps       row = confusion matrix of true steps;      accuracy, balanced accuracy, macro F1; precision, recall, F1
                  matched, predicted and true events         of events: runs of a class, matched if they share half
    forecast    row = mean squared and absolute error      MSE, MAE
    regression  row = errors, mean and square of targets   relative MSE = MSE / variance of the target, MSE, MAE;
                  with quantiles also their loss           pinball loss, coverage: share of targets between the outer
                  and what they cover                        ones; errors are those of the one nearest to 0.5
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from wavessm.ops.modes import exact

RESAMPLES = 100
QUANTILES = (0.05, 0.95)
MAX_FAILED_DRAWS = 2000
"""Resamples after which a bootstrap ends, if fewer than one in a hundred of them could be used."""
OVERLAP = 0.5
"""Share of their union that a predicted and a true event have in common at least, to be one."""
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
    "steps": SelectionScore("macro_f1", highest=True),
    "forecast": SelectionScore("mse", highest=False),
    "regression": SelectionScore("relative_mse", highest=False),
    "quantiles": SelectionScore("pinball", highest=False),
}


def loss(
    kind: str, output: Tensor, target: Tensor, weight: Tensor | None = None, class_weight: Tensor | None = None,
    levels: Sequence[float] = (),
) -> Tensor:  # fmt: skip
    """The training loss () of output (batch, …) and target (batch, …): (binary) cross-entropy, mean squared error, or
    the pinball loss of quantiles.

    weight: (batch,) of the cases, with mean 1 over the training split; class_weight: (classes,) of `class_weights`;
    levels: of the quantiles of a regression.
    """
    reduction = "mean" if weight is None and (class_weight is None or kind == "multilabel") else "none"
    if kind == "multilabel":
        entropy = F.binary_cross_entropy_with_logits
        each = entropy(output.float(), target.float(), pos_weight=class_weight, reduction=reduction)
    elif kind == "steps":  # the mean over the true steps of a case, then over cases: parts of a batch add up
        each = F.cross_entropy(output.float().transpose(1, 2), target, weight=class_weight, reduction="none")
        each = each.sum(1) / (target >= 0).sum(1)
    elif kind == "multiclass":
        each = F.cross_entropy(output.float(), target, reduction=reduction)
        each = each if class_weight is None else each * class_weight[target]
    elif levels:
        each = pinball(by_level(output.float(), levels), target.float(), levels)
    else:  # NaN was not observed: no error
        target = torch.where(target.isnan(), output, target) if kind == "forecast" else target
        each = F.mse_loss(output.float(), target.float(), reduction=reduction)
    return (each if weight is None else each.flatten(1).mean(1) * weight if each.dim() > 1 else each * weight).mean()


def by_level(output: Tensor, levels: Sequence[float]) -> Tensor:
    """Quantiles (batch, numbers, levels) of outputs (batch, numbers · levels), in rising order: they never cross."""
    return output.unflatten(1, (-1, len(levels))).sort(2).values


def pinball(quantiles: Tensor, target: Tensor, levels: Sequence[float]) -> Tensor:
    """The loss (batch, numbers, levels) whose least mean is at the quantiles; target (batch, numbers).

    >>> pinball(torch.tensor([[[1.0, 1.0]]]), torch.tensor([[2.0]]), (0.1, 0.9)).tolist()
    [[[0.10000000149011612, 0.8999999761581421]]]
    """
    error, level = target[..., None] - quantiles, quantiles.new_tensor(levels)
    return torch.maximum(level * error, (level - 1) * error)


def middle(levels: Sequence[float]) -> int:
    """Place of the level nearest to 0.5, which stands for the prediction."""
    return min(range(len(levels)), key=lambda at: abs(levels[at] - 0.5))


def class_weights(kind: str, targets: Tensor, classes: int) -> Tensor:
    """Balanced weights (classes,) from the targets of a training split, 1 where a class or label has none or all.

    Those of classes are cases / (classes · cases of the class), with mean 1 over the cases; those of the positives of a
    label are negatives / positives.

    >>> class_weights("multiclass", torch.tensor([0, 0, 0, 1]), 2).tolist()
    [0.6666666865348816, 2.0]
    """
    if kind == "multilabel":
        positive = targets.float().sum(0)
        both = (positive > 0) & (positive < len(targets))
        return torch.where(both, (len(targets) - positive) / positive.clamp_min(1), 1.0)
    counts = torch.bincount(targets.flatten(), minlength=classes)
    return torch.where(counts > 0, targets.numel() / ((counts > 0).sum() * counts.clamp_min(1)), 1.0).float()


def weigh_cases(kind: str, targets: Tensor, class_weight: Tensor | None, weight: Tensor | None) -> Tensor | None:
    """Weights of the cases for a closed form: (cases,) times those of their classes, (cases, labels) for labels."""
    if class_weight is None:
        return weight
    if kind == "multiclass":
        return class_weight[targets] if weight is None else class_weight[targets] * weight
    each = torch.where(targets > 0, class_weight, 1.0)
    return each if weight is None else each * weight[:, None]


def rows(kind: str, output: Tensor, target: Tensor, levels: Sequence[float] = ()) -> Tensor:
    """One row of float64 per case: outputs and targets (batch, …) → (batch, k); levels of quantiles as in `loss`."""
    output = exact(output)
    target = target.to(output.device)
    if kind == "multilabel":
        return torch.cat([output, target.double()], dim=1)
    if kind == "multiclass":
        return torch.stack([output.argmax(1), target], dim=1).double()
    if kind == "steps":
        pairs = zip(output.argmax(2).cpu().numpy(), target.cpu().numpy(), strict=True)
        each = [step_row(predicted[true >= 0], true[true >= 0], output.shape[2]) for predicted, true in pairs]
        return torch.from_numpy(np.stack(each)).to(output)
    target, more = target.double(), []
    if levels:
        quantiles = by_level(output, levels)
        inside = (quantiles[..., 0] <= target) & (target <= quantiles[..., -1])
        more = [pinball(quantiles, target, levels).flatten(1).mean(1), inside.double().mean(1)]
        output = quantiles[..., middle(levels)]
    error, target = (output - target).flatten(1), target.flatten(1)
    columns = [error.square().nanmean(1), error.abs().nanmean(1)]
    if kind == "regression":
        columns += [target.mean(1), target.square().mean(1), *more]
    return torch.stack(columns, dim=1)


def step_row(predicted: np.ndarray, true: np.ndarray, classes: int) -> np.ndarray:
    """Confusion matrix (true, predicted) of the steps of a case, then matched, predicted and true events by class.

    Args:
        predicted: (steps,) numbers of classes; an event is a run of one of them.
        true: (steps,).
        classes: how many there are.

    >>> step_row(np.array([0, 0, 1, 1, 0]), np.array([0, 1, 1, 1, 1]), 2).tolist()
    [1.0, 0.0, 2.0, 2.0, 1.0, 1.0, 2.0, 1.0, 1.0, 1.0]
    """
    table = np.bincount(true * classes + predicted, minlength=classes**2)
    events = [(np.diff(each, prepend=-1) != 0).cumsum() - 1 for each in (predicted, true)]  # number of the run
    (size, label), (true_size, true_label) = (
        (np.bincount(run), each[np.unique(run, return_index=True)[1]])
        for run, each in zip(events, (predicted, true), strict=True)
    )
    pair, shared = np.unique(events[1] * len(size) + events[0], return_counts=True)
    b, a = np.divmod(pair, len(size))
    same = (label[a] == true_label[b]) & (shared >= OVERLAP * (size[a] + true_size[b] - shared))
    counts = [np.bincount(each, minlength=classes) for each in (label[a][same], label, true_label)]
    return np.concatenate([table, *counts]).astype(np.float64)


def step_scores(table: np.ndarray) -> tuple[dict[str, float], np.ndarray]:
    """Scores of steps and of events from rows (cases, k) of `step_row`, and F1 of the events of each class."""
    total = table.sum(axis=0)
    classes = round(math.sqrt(len(total) + 2.25) - 1.5)  # classes² + 3 classes numbers
    matrix, (hits, found, events) = total[: classes**2].reshape(classes, classes), total[classes**2 :].reshape(3, -1)
    right, true, predicted = matrix.diagonal(), matrix.sum(axis=1), matrix.sum(axis=0)
    there = true > 0
    scores = {
        "accuracy": right.sum() / true.sum(),
        "balanced_accuracy": (right[there] / true[there]).mean(),
        "macro_f1": (2 * right / np.maximum(true + predicted, 1))[there | (predicted > 0)].mean(),
        "event_precision": hits.sum() / found.sum(),
        "event_recall": hits.sum() / events.sum(),
        "event_f1": 2 * hits.sum() / (found.sum() + events.sum()),
    }
    each = np.where(events > 0, 2 * hits / np.maximum(found + events, 1), np.nan)
    return {name: float(value) for name, value in scores.items()}, each


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
    if kind == "steps":
        return step_scores(table)[0]
    mean = table.mean(axis=0)
    scores = {"mse": float(mean[0]), "mae": float(mean[1])}
    if kind == "regression":
        variance = mean[3] - mean[2] ** 2
        scores = {"relative_mse": float(mean[0] / variance) if variance > ROUNDING * mean[3] else math.nan, **scores}
        scores |= {name: float(value) for name, value in zip(("pinball", "coverage"), mean[4:], strict=False)}
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
        if len(drawn) == resamples or (attempt >= MAX_FAILED_DRAWS and len(drawn) < attempt / 100):
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

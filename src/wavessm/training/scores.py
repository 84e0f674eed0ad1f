"""More than one score of a split: rare classes, thresholds of labels, groups, errors by target, and their figures.

Place in the pipeline: `metrics.py` has the score that selects a model; `evaluate.py` shows these beside it. Outputs are
(cases, d_output), targets (cases,) or (cases, d_output), and thresholds (labels,) probabilities, throughout.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.special import expit, softmax

from wavessm.data.info import DataInfo
from wavessm.training import metrics
from wavessm.training.record import pyplot, save_figure, write_csv

DRAWN_LABELS = 40
"""Names on an axis beyond which numbers are left out."""
DRAWN_CLASSES = 10
"""Classes beyond which learning curves are not drawn for each."""
Arrays3 = tuple[np.ndarray, np.ndarray, np.ndarray]


def details(info: DataInfo, outputs: np.ndarray, targets: np.ndarray, thresholds: np.ndarray) -> dict[str, float]:
    """Balanced accuracy, macro F1 and macro average precision of classes; the last two of labels; R² of numbers.

    Classes without a case in the split are left out of the means; where a mean has no class, or a split one class only,
    it is NaN, not 1.
    """
    if info.kind == "regression":
        if info.target_scale is None:  # a generated set, whose outputs are one quantity
            return {}
        return {"r2": float(np.mean([own["r2"] for own in by_target(info, outputs, targets).values()]))}
    scores, predicted, true = decisions(info, outputs, targets, thresholds)
    table, precision = label_table(predicted, true), average_precision(scores, true)
    if info.kind == "multilabel":
        return {"macro_f1": _mean(table["f1"]), "average_precision": _mean(precision)}
    if true.any(axis=0).sum() < 2:
        return dict.fromkeys(("balanced_accuracy", "macro_f1", "average_precision"), math.nan)
    f1 = np.where(predicted.any(axis=0) & ~true.any(axis=0), 0.0, table["f1"])  # a class that is only predicted
    return {"balanced_accuracy": _mean(table["recall"]), "macro_f1": _mean(f1), "average_precision": _mean(precision)}


def _mean(values: np.ndarray) -> float:
    return float(np.nanmean(values)) if not np.isnan(values).all() else math.nan


def decisions(info: DataInfo, outputs: np.ndarray, targets: np.ndarray, thresholds: np.ndarray) -> Arrays3:
    """Scores, what is predicted and what is true for every class or label, (cases, classes) each."""
    if info.kind == "multilabel":
        return outputs, expit(outputs) >= thresholds, targets > 0.5
    one_hot = np.eye(len(info.classes), dtype=bool)
    return softmax(outputs, axis=1), one_hot[outputs.argmax(1)], one_hot[targets]


def label_table(predicted: np.ndarray, true: np.ndarray) -> dict[str, np.ndarray]:
    """Cases, precision, recall and F1 of each label (labels,); NaN for a label without a case."""
    hits, found, cases = (part.sum(axis=0).astype(float) for part in (predicted & true, predicted, true))
    table = {"precision": hits / np.maximum(found, 1), "recall": hits / np.maximum(cases, 1),
             "f1": 2 * hits / np.maximum(found + cases, 1)}  # fmt: skip
    return {"cases": cases.astype(int)} | {name: np.where(cases > 0, each, np.nan) for name, each in table.items()}


def by_class(info: DataInfo, table: np.ndarray) -> dict[str, dict[str, float]]:
    """Number of cases (or steps) of each class, with its AUROC (multilabel) or recall; NaN where that has no value.

    From the rows (cases, k) of `metrics.rows`; classes of steps also have F1 of their events.

    >>> info = DataInfo("multiclass", 1, 2, 9, ("quiet", "loud"))
    >>> by_class(info, np.array([[0, 0], [1, 1], [0, 1.0]]))
    {'quiet': {'cases': 1, 'score': 1.0}, 'loud': {'cases': 2, 'score': 0.5}}
    """
    n = len(info.classes)
    if info.kind == "multilabel":
        outputs, labels = np.split(table, 2, axis=1)
        columns = {"cases": labels.sum(axis=0).astype(int), "score": metrics.auroc(outputs, labels)}
    else:
        steps = info.kind == "steps"
        predicted, true = table[:, :2].T.astype(int)
        matrix = table.sum(axis=0)[: n * n].reshape(n, n) if steps else confusion(predicted, true, n)
        cases = matrix.sum(axis=1).astype(int)
        recall = np.where(cases > 0, matrix.diagonal() / np.maximum(cases, 1), np.nan)
        columns = {"steps" if steps else "cases": cases, "score": recall}
        columns |= {"event_f1": metrics.step_scores(table)[1]} if steps else {}
    return {name: {key: own[at].item() for key, own in columns.items()} for at, name in enumerate(info.classes)}


def class_curves(info: DataInfo, table: np.ndarray) -> dict[str, float]:
    """Scores of a few classes by name, as metrics.csv has them: "recall V"; classes without a case are left out."""
    if not 1 < len(info.classes) <= DRAWN_CLASSES:
        return {}
    what = "auroc" if info.kind == "multilabel" else "recall"
    scores = {name: own["score"] for name, own in by_class(info, table).items()}
    return {f"{what} {name}": score for name, score in scores.items() if not math.isnan(score)}


def confusion(predicted: np.ndarray, true: np.ndarray, classes: int) -> np.ndarray:
    """Number of cases of each true class (rows) by predicted class (columns).

    >>> confusion(np.array([0, 1, 1]), np.array([0, 0, 1]), 2).tolist()
    [[1, 1], [0, 1]]
    """
    return np.bincount(true * classes + predicted, minlength=classes**2).reshape(classes, classes)


def average_precision(scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Mean precision over recall by class, ties shared: (cases, classes) twice → (classes,), NaN without a positive."""
    areas = np.full(scores.shape[1], np.nan)
    for at, (score, label) in enumerate(zip(scores.T, labels.T > 0.5, strict=True)):
        if label.any():
            hits, predicted, _ = _ranked(score, label)
            areas[at] = (np.diff(hits, prepend=0) * hits / predicted).sum() / label.sum()
    return areas


def _ranked(score: np.ndarray, label: np.ndarray) -> Arrays3:
    """Positives found and cases predicted at every distinct score, from the highest down, and these scores."""
    order = np.argsort(-score, kind="stable")
    last = np.flatnonzero(np.append(np.diff(score[order]) != 0, True))
    return label[order].cumsum()[last], last + 1, score[order][last]


def best_thresholds(table: np.ndarray) -> np.ndarray:
    """The probability of each label that gives the best F1 on rows of `metrics.rows`, 0.5 for one without a positive.

    Among equally good ones it is the one nearest to 0.5; thresholds lie midway between two predictions.

    >>> best_thresholds(np.array([[2.0, 1], [-1.0, 1], [-3.0, 0]])).round(3).tolist()
    [0.158]
    """
    scores, labels = np.split(table, 2, axis=1)
    chosen = np.full(scores.shape[1], 0.5)
    for at, (score, label) in enumerate(zip(expit(scores).T, labels.T > 0.5, strict=True)):
        if label.any():
            hits, predicted, levels = _ranked(score, label)
            f1 = 2 * hits / (predicted + label.sum())
            middle = (levels + np.append(levels[1:], 0.0)) / 2
            best = middle[f1 >= f1.max() - 1e-12]
            chosen[at] = best[np.abs(best - 0.5).argmin()]
    return chosen


def by_target(info: DataInfo, outputs: np.ndarray, targets: np.ndarray) -> dict[str, dict[str, float]]:
    """R², mean absolute and mean squared error of each number, in the units of the data; R² of a constant is NaN.

    Those of quantiles are of the one nearest to 0.5, beside their pinball loss and the share of the outer ones' cover.
    """
    predicted, quantiles, true = in_units(info, outputs, targets)
    error, spread = predicted - true, true.var(axis=0)
    r2 = np.where(spread > 0, 1 - (error**2).mean(axis=0) / np.where(spread > 0, spread, 1), np.nan)
    columns = {"r2": r2, "mae": np.abs(error).mean(axis=0), "mse": (error**2).mean(axis=0)}
    if info.quantiles:
        loss = metrics.pinball(torch.from_numpy(quantiles), torch.from_numpy(true), info.quantiles)
        columns["pinball"] = loss.mean((0, 2)).numpy()
        columns["coverage"] = ((quantiles[..., 0] <= true) & (true <= quantiles[..., -1])).mean(axis=0)
    return {f"y{at}": {name: float(own[at]) for name, own in columns.items()} for at in range(true.shape[1])}


def in_units(info: DataInfo, outputs: np.ndarray, targets: np.ndarray) -> Arrays3:
    """Predictions (cases, numbers), their quantiles (cases, numbers, levels) and targets in the units of the data."""
    given, true = (info.restore(torch.from_numpy(each.reshape(len(each), -1))) for each in (outputs, targets))
    levels = info.quantiles or (0.5,)
    quantiles = metrics.by_level(given, levels).numpy()
    return quantiles[..., metrics.middle(levels)], quantiles, true.numpy()


def by_group(kind: str, table: np.ndarray, groups: np.ndarray) -> dict[str, dict[str, float]]:
    """Number of cases and scores of each group, from the rows of `metrics.rows`.

    >>> by_group("multiclass", np.array([[0, 0], [1, 1], [0, 1.0]]), np.array(["a", "a", "b"]))
    {'a': {'cases': 2, 'accuracy': 1.0}, 'b': {'cases': 1, 'accuracy': 0.0}}
    """
    rows = ((name, table[groups == name]) for name in np.unique(groups).tolist())
    return {name: {"cases": len(own), **metrics.summarise(kind, own)} for name, own in rows}


def group_line(groups: dict[str, dict[str, float]], name: str) -> str:
    """Mean, standard deviation and extremes of a score over groups, as the command line prints them."""
    values = np.array([own[name] for own in groups.values() if not math.isnan(own[name])])
    spread = "not defined"
    if values.size:
        spread = f"mean {values.mean():.4f}, sd {values.std():.4f}, from {values.min():.4f} to {values.max():.4f}"
    return f"  {name.replace('_', ' ')} by group: {spread} ({values.size} of {len(groups)} groups)"


def draw_scores(info: DataInfo, outputs: np.ndarray, targets: np.ndarray, thresholds: np.ndarray, path: Path) -> None:
    """Draw a confusion matrix, precision and recall of labels, or residuals; the numbers go to a CSV beside it."""
    figure, axes = pyplot().subplots(figsize=(6.4, 5.4))
    if info.kind in ("multiclass", "steps"):
        matrix = confusion(outputs.argmax(1), targets, len(info.classes))
        columns: dict[str, Any] = {"true": info.classes, **dict(zip(info.classes, matrix.T.tolist(), strict=True))}
        _draw_matrix(axes, matrix, info.classes)
    elif info.kind == "multilabel":
        scores, predicted, true = decisions(info, outputs, targets, thresholds)
        table = label_table(predicted, true) | {"threshold": thresholds}
        table |= {"average_precision": average_precision(scores, true)}
        columns = {"label": info.classes, **{name: own.tolist() for name, own in table.items()}}
        axes.scatter(columns["recall"], columns["precision"], s=18)
        for name, *place in list(zip(info.classes, table["recall"], table["precision"], strict=True))[:DRAWN_LABELS]:
            axes.annotate(name, place, fontsize=7)
        axes.set(xlabel="recall", ylabel="precision", xlim=(-0.03, 1.03), ylim=(-0.03, 1.03))
    else:
        predicted, quantiles, true = in_units(info, outputs, targets)
        columns = {"case": range(len(true))}
        for at, (own, guess, spans) in enumerate(zip(true.T, predicted.T, quantiles.swapaxes(0, 1), strict=True)):
            columns |= {f"y{at}": own.tolist(), f"predicted_y{at}": guess.tolist()}
            columns |= {f"y{at}_q{q:g}": each.tolist() for q, each in zip(info.quantiles, spans.T, strict=False)}
            axes.plot(guess, own - guess, ".", color=f"C{at}", label=f"y{at}")
            if info.quantiles:
                axes.vlines(guess, spans[:, 0] - guess, spans[:, -1] - guess, color=f"C{at}", lw=0.6, alpha=0.4)
        axes.axhline(0, color="grey", lw=0.8)
        axes.set(xlabel="prediction", ylabel="residual: true value less prediction")
        axes.legend(fontsize=8)
    save_figure(figure, path)
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    write_csv(path.with_suffix(".csv"), rows, digits=6)


def _draw_matrix(axes: Any, matrix: np.ndarray, classes: tuple[str, ...]) -> None:
    """A confusion matrix, coloured by the share of its row, with the numbers of cases where they fit."""
    share = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    image = axes.imshow(share, cmap="Blues", vmin=0, vmax=1)
    axes.figure.colorbar(image, label="share of the true class")
    axes.set(xlabel="predicted class", ylabel="true class")
    if len(classes) <= DRAWN_LABELS:
        axes.set_xticks(range(len(classes)), classes, rotation=45, ha="right", fontsize=8)
        axes.set_yticks(range(len(classes)), classes, fontsize=8)
        for (row, column), count in np.ndenumerate(matrix):
            dark = "white" if share[row, column] > 0.5 else "black"
            axes.text(column, row, str(count), ha="center", va="center", fontsize=7, color=dark)

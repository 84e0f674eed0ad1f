"""More than one score of a split: rare classes, thresholds of labels, groups, errors by target, and their figures.

Place in the pipeline: `metrics.py` has the score that selects a model; `evaluate.py` shows these beside it.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import expit

from wavessm.data.info import DataInfo
from wavessm.training import metrics
from wavessm.training.checkpoint import RunError
from wavessm.training.record import pyplot, save_figure, write_csv

if TYPE_CHECKING:
    from wavessm.training.run import Run

DRAWN_LABELS = 40
"""Names on an axis beyond which numbers are left out."""


def details(info: DataInfo, outputs: np.ndarray, targets: np.ndarray, thresholds: np.ndarray) -> dict[str, float]:
    """Balanced accuracy, macro F1 and macro average precision of classes; the last two of labels; R² of numbers.

    Classes without a case in the split are left out of the means; where a mean has no class, or a split one class only,
    it is NaN, not 1.

    Args:
        info: of the data.
        outputs: (cases, d_output) of the model.
        targets: (cases,) or (cases, d_output).
        thresholds: (classes,) probabilities from which on a label is predicted.
    """
    if info.kind == "regression":
        if info.target_scale is None:  # a generated set, whose outputs are one quantity
            return {}
        return {"r2": float(np.mean([own["r2"] for own in by_target(info, outputs, targets).values()]))}
    if info.kind == "multilabel":
        f1 = label_table(outputs, targets, thresholds)["f1"]
        return {"macro_f1": _mean(f1), "average_precision": _mean(average_precision(outputs, targets))}
    matrix = confusion(outputs.argmax(1), targets, len(info.classes))
    cases, found, hits = matrix.sum(axis=1), matrix.sum(axis=0), matrix.diagonal()
    if (cases > 0).sum() < 2:
        return dict.fromkeys(("balanced_accuracy", "macro_f1", "average_precision"), math.nan)
    f1 = np.where(cases + found > 0, 2 * hits / np.maximum(cases + found, 1), np.nan)
    recall = np.where(cases > 0, hits / np.maximum(cases, 1), np.nan)
    exact = np.exp(outputs - outputs.max(axis=1, keepdims=True))
    precision = average_precision(exact / exact.sum(axis=1, keepdims=True), np.eye(len(info.classes))[targets])
    return {"balanced_accuracy": _mean(recall), "macro_f1": _mean(f1), "average_precision": _mean(precision)}


def _mean(values: np.ndarray) -> float:
    return float(np.nanmean(values)) if not np.isnan(values).all() else math.nan


def confusion(predicted: np.ndarray, true: np.ndarray, classes: int) -> np.ndarray:
    """Number of cases of each true class (rows) by predicted class (columns).

    >>> confusion(np.array([0, 1, 1]), np.array([0, 0, 1]), 2).tolist()
    [[1, 1], [0, 1]]
    """
    return np.bincount(true * classes + predicted, minlength=classes**2).reshape(classes, classes)


def average_precision(scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Mean precision over the recall of every class, ties shared: (cases, classes) twice → (classes,), NaN without a
    positive."""
    areas = np.full(scores.shape[1], np.nan)
    for at, (score, label) in enumerate(zip(scores.T, labels.T > 0.5, strict=True)):
        if label.any():
            hits, predicted, _ = _ranked(score, label)
            areas[at] = (np.diff(hits, prepend=0) * hits / predicted).sum() / label.sum()
    return areas


def _ranked(score: np.ndarray, label: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
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


def read_thresholds(run: Run) -> list[float] | None:
    """The thresholds of a run's labels, from result.json; None for other kinds and for runs without them."""
    path = run.folder / "result.json"
    if run.info.kind != "multilabel" or not path.is_file():
        return None
    try:
        found = json.loads(path.read_text()).get("thresholds")
        values = None if found is None else [float(found[name]) for name in run.info.classes]
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as reason:
        raise RunError(
            f"{path}: its thresholds cannot be read ({reason!r}); resume the run to write it anew."
        ) from reason
    if values is not None and not all(0 <= value <= 1 for value in values):
        raise RunError(f"{path}: thresholds are {values}, expected probabilities; resume the run.")
    return values


def label_table(outputs: np.ndarray, targets: np.ndarray, thresholds: np.ndarray) -> dict[str, np.ndarray]:
    """Cases, precision, recall and F1 of each label (labels,); NaN for a label without a case."""
    predicted, true = expit(outputs) >= thresholds, targets > 0.5
    hits, found, cases = (part.sum(axis=0).astype(float) for part in (predicted & true, predicted, true))
    table = {"precision": hits / np.maximum(found, 1), "recall": hits / np.maximum(cases, 1),
             "f1": 2 * hits / np.maximum(found + cases, 1)}  # fmt: skip
    return {"cases": cases.astype(int)} | {name: np.where(cases > 0, each, np.nan) for name, each in table.items()}


def by_target(info: DataInfo, outputs: np.ndarray, targets: np.ndarray) -> dict[str, dict[str, float]]:
    """R², mean absolute and mean squared error of each number, in the units of the data; R² of a constant is NaN."""
    predicted, true = in_units(info, outputs), in_units(info, targets)
    error, spread = predicted - true, true.var(axis=0)
    r2 = np.where(spread > 0, 1 - (error**2).mean(axis=0) / np.where(spread > 0, spread, 1), np.nan)
    columns = zip(r2.tolist(), np.abs(error).mean(axis=0).tolist(), (error**2).mean(axis=0).tolist(), strict=True)
    return {f"y{at}": dict(zip(("r2", "mae", "mse"), own, strict=True)) for at, own in enumerate(columns)}


def in_units(info: DataInfo, values: np.ndarray) -> np.ndarray:
    """Standardised numbers (cases, d_output) in the units of the data."""
    mean, std = info.target_scale or ((0.0,), (1.0,))
    return values.reshape(len(values), -1).astype(np.float64) * np.array(std) + np.array(mean)


def by_group(kind: str, table: np.ndarray, groups: np.ndarray) -> dict[str, dict[str, float]]:
    """Number of cases and scores of each group, from the rows of `metrics.rows`.

    >>> by_group("multiclass", np.array([[0, 0], [1, 1], [0, 1.0]]), np.array(["a", "a", "b"]))
    {'a': {'cases': 2, 'accuracy': 1.0}, 'b': {'cases': 1, 'accuracy': 0.0}}
    """
    rows = ((name, table[groups == name]) for name in np.unique(groups).tolist())
    return {name: {"cases": len(own), **metrics.summarise(kind, own)} for name, own in rows}


def group_line(groups: dict[str, dict[str, float]], name: str) -> str:
    """Mean, standard deviation and extremes of a score over groups, as the command line prints them."""
    values = np.array([own[name] for own in groups.values()])
    values = values[~np.isnan(values)]
    if not values.size:
        return f"  {name.replace('_', ' ')} by group: not defined in any of {len(groups)} groups"
    return (f"  {name.replace('_', ' ')} by group: mean {values.mean():.4f}, sd {values.std():.4f}, from "
            f"{values.min():.4f} to {values.max():.4f} ({values.size} of {len(groups)} groups)")  # fmt: skip


def draw_scores(
    info: DataInfo, outputs: np.ndarray, targets: np.ndarray, thresholds: np.ndarray, path: Path
) -> list[dict[str, Any]]:
    """Draw a confusion matrix, precision and recall of labels, or residuals, and write the numbers to a CSV beside it.

    Arguments as in `details`; returns the rows of the CSV.
    """
    plt = pyplot()
    figure, axes = plt.subplots(figsize=(6.4, 5.4))
    if info.kind == "multiclass":
        matrix = confusion(outputs.argmax(1), targets, len(info.classes))
        rows: list[dict[str, Any]] = [
            {"true": name, **dict(zip(info.classes, own, strict=True))}
            for name, own in zip(info.classes, matrix.tolist(), strict=True)
        ]
        _draw_matrix(axes, matrix, info.classes)
    elif info.kind == "multilabel":
        columns = label_table(outputs, targets, thresholds) | {"threshold": thresholds}
        columns |= {"average_precision": average_precision(outputs, targets)}
        rows = [{"label": name, **{key: own[at].item() for key, own in columns.items()}}
                for at, name in enumerate(info.classes)]  # fmt: skip
        axes.scatter(columns["recall"], columns["precision"], s=18)
        for row in rows[:DRAWN_LABELS]:
            axes.annotate(row["label"], (row["recall"], row["precision"]), fontsize=7)
        axes.set(xlabel="recall", ylabel="precision", xlim=(-0.03, 1.03), ylim=(-0.03, 1.03))
    else:
        predicted, true = in_units(info, outputs), in_units(info, targets)
        rows = [{"case": case, **{f"y{at}": float(true[case, at]) for at in range(true.shape[1])},
                 **{f"predicted_y{at}": float(predicted[case, at]) for at in range(true.shape[1])}}
                for case in range(len(true))]  # fmt: skip
        for at in range(true.shape[1]):
            axes.plot(predicted[:, at], true[:, at] - predicted[:, at], ".", label=f"y{at}")
        axes.axhline(0, color="grey", lw=0.8)
        axes.set(xlabel="prediction", ylabel="residual: true value less prediction")
        axes.legend(fontsize=8)
    save_figure(figure, path)
    write_csv(path.with_suffix(".csv"), rows, digits=6)
    return rows


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

"""From labelled cases to a data set: classes, the split where none is given, scaling, padding.

Place in the pipeline: `own` and `signals` read files into `Cases`; `make_set` turns them into a `DataSet`.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable

import numpy as np
import torch

from wavessm.data.source import Arrays, DataInfo, DataSet
from wavessm.errors import DataError

log = logging.getLogger("wavessm.data")

PARTS = ("train", "val", "test")
FRACTIONS = {"val": 0.15, "test": 0.15}
_GOLDEN = 0.6180339887498949


@dataclasses.dataclass(frozen=True)
class Cases:
    """Raw cases. part: (cases,) of "train", "val", "test"; or "" of all, where no parts are given.

    name: what to call a case in a message.
    """

    values: np.ndarray  # (cases, length, channels) float32, zero beyond a case's length
    lengths: np.ndarray  # (cases,) int64
    targets: np.ndarray  # (cases,) or (cases, k)
    part: np.ndarray
    name: Callable[[int], str]
    source: str


@dataclasses.dataclass(frozen=True)
class About:
    """What the files said beside the cases."""

    kind: str
    classes: tuple[str, ...] = ()  # of a multi-label table; found from the labels otherwise
    channels: tuple[str, ...] = ()
    rate: float | None = None
    skipped: tuple[str, ...] = ()


def make_set(name: str, cases: Cases, about: About, seed: int) -> DataSet:
    """Split, encode and scale. Scaling is per channel, with mean and standard deviation of the training part."""
    _check_targets(cases, about.kind)
    rows = split(cases, about.kind, seed)
    targets, classes, target_scale = _encode(cases, about, rows)
    mean, std = _channel_scale(cases, rows["train"])
    values = (cases.values - mean) / std
    padded = np.arange(values.shape[1]) >= cases.lengths[:, None]
    values[padded] = 0.0
    lengths = torch.from_numpy(cases.lengths) if padded.any() else None
    x, y = torch.from_numpy(values.astype(np.float32, copy=False)), torch.from_numpy(targets)
    parts = {}
    for part in PARTS:
        index = torch.from_numpy(rows[part])
        parts[part] = Arrays(x[index], y[index], None if lengths is None else lengths[index])
    info = DataInfo(
        about.kind,
        d_input=x.shape[2],
        d_output=len(classes) or y.shape[1],
        length=x.shape[1],
        classes=classes,
        channels=about.channels,
        scale=(tuple(mean.tolist()), tuple(std.tolist())),
        target_scale=target_scale,
        rate=about.rate,
        skipped=about.skipped,
    )
    return DataSet(name, parts["train"], parts["val"], parts["test"], info)


def guess_kind(targets: np.ndarray) -> str:
    """What y means: two dimensions of 0 and 1 are labels, other floats and columns of numbers values, the rest classes.

    >>> guess_kind(np.array([0, 2, 1])), guess_kind(np.array([0.5, 1.5])), guess_kind(np.array([[0, 1], [1, 1]]))
    ('multiclass', 'regression', 'multilabel')
    """
    if targets.ndim == 2 and targets.dtype.kind in "buif" and np.isin(targets, (0, 1)).all():
        return "multilabel"
    columns = targets.ndim == 2 and targets.shape[1] > 1 and targets.dtype.kind in "ui"
    return "regression" if targets.dtype.kind == "f" or columns else "multiclass"


def split(cases: Cases, kind: str, seed: int) -> dict[str, np.ndarray]:
    """Rows of each part. Given parts stay; missing ones are drawn from the training cases, 15 % each, by class.

    Every class keeps at least one case in training. Where there are parts, a case outside of them is refused.
    """
    rows = {part: np.flatnonzero(cases.part == part) for part in PARTS}
    loose = np.flatnonzero(cases.part == "")
    if 0 < loose.size < len(cases.part):
        there = " and ".join(part for part in PARTS if rows[part].size)
        raise DataError(
            f"{cases.name(int(loose[0]))}: in none of the parts {', '.join(PARTS)}, though others are in {there} "
            f"({loose.size} such cases); move them into a part."
        )
    pool = loose if loose.size else rows["train"]
    if not pool.size:
        raise DataError(f"{cases.source}: no case is left for training.")
    rows["train"] = pool
    missing = [part for part in ("val", "test") if not rows[part].size]
    if missing:
        keys = _strata(cases.targets[pool], kind)
        counts = {part: max(1, round(FRACTIONS[part] * pool.size)) for part in missing}
        order = _stratified_order(keys, np.random.default_rng(seed))
        if order.size < sum(counts.values()) + 1:
            raise DataError(
                f"{cases.source}: {pool.size} cases in {np.unique(keys).size} classes are too few to draw a "
                f"{' and a '.join(missing)} part from; give more cases, or the parts as files."
            )
        for part, count in counts.items():
            rows[part], order = np.sort(pool[order[:count]]), order[count:]
        taken = np.concatenate([rows[part] for part in missing])
        rows["train"] = np.setdiff1d(pool, taken)
    return rows


def _check_targets(cases: Cases, kind: str) -> None:
    """Refuse targets that the kind cannot have."""
    targets, numbers = cases.targets, cases.targets.dtype.kind in "buif"
    if kind == "multiclass" and targets.ndim != 1:
        raise DataError(
            f"{cases.source}: classes of shape {targets.shape}, expected ({len(targets)},); save y[:, 0], or say with "
            "kind that these are values (regression) or labels (multilabel)."
        )
    if kind != "multiclass" and not numbers:
        raise DataError(
            f"{cases.source}: targets of {targets.dtype}, expected numbers for {kind}; text is for classes."
        )
    if kind == "multilabel" and targets.ndim != 2:
        raise DataError(
            f"{cases.source}: labels of shape {targets.shape}, expected ({len(targets)}, k), a column of 0 and 1 for "
            "each label; for one class a case, the kind is multiclass."
        )
    if kind == "multilabel" and (odd := np.argwhere(~np.isin(targets, (0, 1)))).size:
        case, label = (int(i) for i in odd[0])
        raise DataError(
            f"{cases.name(case)}: label {label} is {targets[case, label]:g}, expected 0 or 1 ({len(odd)} such labels)."
        )
    if kind != "multilabel" and numbers and (gaps := np.argwhere(~np.isfinite(targets))).size:
        raise DataError(
            f"{cases.name(int(gaps[0][0]))}: NaN in its target ({len(gaps)} in all); fill it or leave the case out."
        )


def _strata(targets: np.ndarray, kind: str) -> np.ndarray:
    """A class for every case (cases,): its label, the rarest of several labels, or one class for all."""
    if kind == "multiclass":
        return np.unique(targets, return_inverse=True)[1]
    if kind == "regression":
        return np.zeros(len(targets), np.int64)
    frequency = np.where(targets > 0, targets.sum(axis=0), np.inf)
    return np.where(targets.any(axis=1), frequency.argmin(axis=1), -1)


def _stratified_order(keys: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Rows in an order whose every beginning has the classes in their proportions, one row of each class left out.

    Rows sorted by class get the points of a golden-ratio sequence; in any run of them these points are spread evenly.
    """
    order = rng.permutation(len(keys))
    _, first = np.unique(keys[order], return_index=True)
    rest = np.delete(order, first)
    rest = rest[np.argsort(keys[rest], kind="stable")]
    points = (rng.random() + _GOLDEN * np.arange(rest.size)) % 1.0
    return rest[np.argsort(points)]


def _encode(
    cases: Cases, about: About, rows: dict[str, np.ndarray]
) -> tuple[np.ndarray, tuple[str, ...], tuple[tuple[float, ...], tuple[float, ...]] | None]:
    """Targets as training takes them, classes, and the scale of real targets."""
    targets, train = cases.targets, rows["train"]
    if about.kind == "multiclass":
        known = np.unique(targets[train])
        if known.size < 2:
            raise DataError(f"{cases.source}: every training case has the label {known[0]!s}; expected two classes.")
        place = np.searchsorted(known, targets).clip(max=known.size - 1)
        if (unseen := np.flatnonzero(known[place] != targets)).size:
            raise DataError(
                f"{cases.name(int(unseen[0]))}: label {targets[unseen[0]]!s} never occurs in training "
                f"({unseen.size} such cases); move some to the training part or leave them out."
            )
        return place.astype(np.int64), tuple(str(label) for label in known), None
    if about.kind == "multilabel":
        classes = about.classes or tuple(str(i) for i in range(targets.shape[1]))
        if (unseen := np.flatnonzero(~(targets[train] > 0).any(axis=0))).size:
            raise DataError(f"{cases.source}: label {classes[unseen[0]]} never occurs in training; leave it out.")
        return targets.astype(np.float32), classes, None
    real = targets.reshape(len(targets), -1).astype(np.float64)
    mean, std = real[train].mean(axis=0), real[train].std(axis=0)
    if (std == 0).any():
        flat = int(np.flatnonzero(std == 0)[0])
        raise DataError(f"{cases.source}: target {flat} is constant ({mean[flat]:g}) in training; nothing to learn.")
    return ((real - mean) / std).astype(np.float32), (), (tuple(mean.tolist()), tuple(std.tolist()))


def _channel_scale(cases: Cases, train: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation (channels,) float32 over true samples of the training cases; NaN is refused."""
    finite = np.isfinite(cases.values)
    if not finite.all():
        gaps = np.argwhere(~finite)
        case, step, channel = (int(i) for i in gaps[0])
        raise DataError(
            f"{cases.name(case)}: NaN (or infinity) at step {step}, channel {channel} ({len(gaps)} in all); "
            f"fill it or leave the case out."
        )
    count = int(cases.lengths[train].sum())
    inside = np.arange(cases.values.shape[1]) < cases.lengths[:, None]
    chunks = np.array_split(train, max(1, train.size // 256))
    mean = sum(cases.values[rows][inside[rows]].sum(axis=0, dtype=np.float64) for rows in chunks) / count
    std = np.sqrt(sum(((cases.values[rows][inside[rows]] - mean) ** 2).sum(axis=0) for rows in chunks) / count)
    if (flat := np.flatnonzero(std <= 1e-7 * np.abs(mean))).size:  # float32 knows no finer difference
        raise DataError(
            f"{cases.source}: channel {flat[0]} is constant ({mean[flat[0]]:g}) in all training cases; leave it out."
        )
    return mean.astype(np.float32), std.astype(np.float32)

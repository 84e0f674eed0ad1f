"""From labelled cases to a data set: reading recordings, the split where none is given, classes, scaling.

Place in the pipeline: `datasets/arrays.py`, `wav.py` and `wfdb.py` list cases; `files.py` reads them.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from wavessm.data.cache import Prepared, cached
from wavessm.data.files import Signal, unit_name
from wavessm.data.info import DataInfo, DataSet, Scale, tuples
from wavessm.errors import DataError

log = logging.getLogger("wavessm.data")

PARTS = {
    "train": "train", "training": "train", "val": "val", "valid": "val", "validation": "val", "dev": "val",
    "test": "test", "testing": "test",
}  # fmt: skip
"""What folders and columns may call a part → its name."""
FRACTIONS = {"val": 0.15, "test": 0.15}
_GOLDEN = 0.6180339887498949


@dataclasses.dataclass(frozen=True)
class Cases:
    """Raw cases with their targets, and what the files told about them."""

    values: np.ndarray  # (samples, channels) float32, the cases one after another
    lengths: np.ndarray  # (cases,) int64
    targets: np.ndarray  # (cases,) or (cases, k)
    part: np.ndarray  # (cases,) of "train", "val", "test"; or "" of all, where no parts are given
    name: Callable[[Any], str]  # what to call a case in a message
    source: str
    kind: str
    classes: tuple[str, ...] = ()  # of a multi-label table; found from the labels otherwise
    about: dict[str, Any] = dataclasses.field(default_factory=dict)  # other fields of `DataInfo`
    groups: np.ndarray | None = None  # (cases,) who or what a case is of: no group is in two parts
    weights: np.ndarray | None = None  # (cases,) of the cases in the training loss

    @property
    def starts(self) -> np.ndarray:
        """First row of each case (cases,) int64."""
        return np.cumsum(self.lengths) - self.lengths

    def samples(self, rows: np.ndarray) -> np.ndarray:
        """Samples (samples, channels) of some cases."""
        return np.concatenate(
            [self.values[at : at + n] for at, n in zip(self.starts[rows], self.lengths[rows], strict=True)]
        )


def without_padding(X: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the samples (samples, channels) of padded cases X (cases, length, channels), one case after another."""
    whole = int(lengths.min()) == X.shape[1]
    return X.reshape(-1, X.shape[2]) if whole else X[np.arange(X.shape[1]) < lengths[:, None]]


def make_set(name: str, cases: Cases) -> DataSet:
    """Split, encode and scale cases. Scaling is per channel, with mean and standard deviation of the training part.

    NaN is a missing sample: it stays NaN, and `info.missing` is the share of them.
    """
    import torch

    from wavessm.data.source import Arrays, Ragged

    _check_targets(cases)
    rows = split(cases)
    targets, classes, target_scale = _encode(cases, rows)
    mean, std = _channel_scale(cases, rows["train"])
    scale = (tuple(mean.tolist()), tuple(std.tolist()))
    longest, channels = int(cases.lengths.max()), cases.values.shape[1]
    info = DataInfo(cases.kind, channels, len(classes) or targets.shape[1], longest, classes, scale=scale,
                    target_scale=target_scale, missing=float(np.isnan(cases.values).mean()), **cases.about)  # fmt: skip
    y, lengths = torch.from_numpy(targets), torch.from_numpy(cases.lengths)
    x = torch.from_numpy(cases.values)
    if info.scaling == "recording":
        x = torch.cat([info.standardise(one) for one in x.split(cases.lengths.tolist())])
    else:
        x = info.standardise(x)
    scaled = dataclasses.replace(cases, values=x.numpy())

    def part(rows: np.ndarray) -> Arrays | Ragged:
        x, own = torch.from_numpy(scaled.samples(rows)), lengths[rows]
        if int(cases.lengths.min()) == longest:
            return Arrays(x.view(-1, longest, channels), y[rows])
        return Ragged(x, own.cumsum(0) - own, own, y[rows])

    train, val, test = map(part, rows.values())
    if cases.weights is not None:
        train.weight = torch.from_numpy(_mean_one(cases, rows["train"]))
    if cases.groups is not None:
        train.groups, val.groups, test.groups = (cases.groups[i] for i in rows.values())
    _warn_of_absent(cases, classes, targets, rows)
    return DataSet(name, train, val, test, info)


def guess_kind(targets: np.ndarray) -> str:
    """What y means: two dimensions of 0 and 1 are labels, other floats and columns of numbers values, the rest classes.

    >>> guess_kind(np.array([0, 2, 1])), guess_kind(np.array([0.5, 1.5])), guess_kind(np.array([[0, 1], [1, 1]]))
    ('multiclass', 'regression', 'multilabel')
    """
    if targets.ndim == 2 and targets.dtype.kind in "buif" and np.isin(targets, (0, 1)).all():
        return "multilabel"
    columns = targets.ndim == 2 and targets.shape[1] > 1 and targets.dtype.kind in "ui"
    return "regression" if targets.dtype.kind == "f" or columns else "multiclass"


def split(cases: Cases) -> dict[str, np.ndarray]:
    """Rows of each part. Given parts stay; missing ones are drawn from the training cases, 15 % each, by class.

    Every class keeps at least one case in training. Where there are parts, a case outside of them is refused. Cases of
    a group stay together; parts that are given and share a group are refused.
    """
    rows = {part: np.flatnonzero(cases.part == part) for part in ("train", "val", "test")}
    loose = np.flatnonzero(cases.part == "")
    if 0 < loose.size < len(cases.part):
        raise DataError(f"{cases.name(loose[0])}: in none of the parts {', '.join(rows)}, though others are "
                        f"({loose.size} such cases); move them into a part.")  # fmt: skip
    pool = loose if loose.size else rows["train"]
    if not pool.size:
        raise DataError(f"{cases.source}: no case is left for training.")
    rows["train"] = pool
    if cases.groups is not None:
        _check_groups(cases.groups, rows, cases.source)
    missing = [part for part in ("val", "test") if not rows[part].size]
    if missing and cases.groups is not None:
        keys, fractions = _strata(cases.targets[pool], cases.kind), [FRACTIONS[part] for part in missing]
        drawn = split_groups(keys, cases.groups[pool], fractions, np.random.default_rng(0), cases.source)
        rows["train"], *others = (pool[part] for part in drawn)
        rows |= dict(zip(missing, others, strict=True))
    elif missing:
        keys = _strata(cases.targets[pool], cases.kind)
        counts = {part: max(1, round(FRACTIONS[part] * pool.size)) for part in missing}
        order = _stratified_order(keys, np.random.default_rng(0))
        if order.size < sum(counts.values()) + 1:
            raise DataError(f"{cases.source}: {pool.size} cases in {np.unique(keys).size} classes are too few to draw "
                            f"a {' and a '.join(missing)} part from; give more, or the parts as files.")  # fmt: skip
        for part, count in counts.items():
            rows[part], order = np.sort(pool[order[:count]]), order[count:]
        taken = np.concatenate([rows[part] for part in missing])
        rows["train"] = np.setdiff1d(pool, taken)
    return rows


def split_groups(
    keys: np.ndarray, groups: np.ndarray, fractions: list[float], rng: np.random.Generator, source: str
) -> list[np.ndarray]:
    """Rows of the training part, then of parts of these fractions, no group in two of them.

    Groups are assigned one by one, largest first, to the part whose classes then deviate least from their proportions.
    Each class keeps a group in training, and each part has one.

    Args:
        keys: (cases,) the class of each case.
        groups: (cases,) its group.
        fractions: of the parts beside the training part.
        rng: breaks ties.
        source: what to call the cases in a message.

    >>> rows = split_groups(np.array([0, 1] * 5), np.repeat(["a", "b", "c", "d", "e"], 2), [0.2], rng=
    ...                     np.random.default_rng(0), source="X")
    >>> [len(part) for part in rows]
    [8, 2]
    """
    names, number = np.unique(groups, return_inverse=True)
    classes, key = np.unique(keys, return_inverse=True)
    table = np.zeros((len(names), len(classes)))
    np.add.at(table, (number, key), 1)
    totals = table.sum(axis=0)
    wanted = np.outer([1 - sum(fractions), *fractions], totals)
    filled, part_of = np.zeros_like(wanted), np.full(len(names), -1)

    def assign(group: int, part: int) -> None:
        part_of[group] = part
        filled[part] += table[group]

    for one in np.argsort(totals):
        if not filled[0, one]:
            assign(int(table[:, one].argmax()), 0)
    rest = rng.permutation(np.flatnonzero(part_of < 0))
    if len(rest) < len(fractions):
        raise DataError(f"{source}: {len(names)} groups are too few to draw {len(fractions)} parts beside training and "
                        "to keep every class there; give more, or the parts as files.")  # fmt: skip
    rest = rest[np.argsort(-table[rest].sum(axis=1), kind="stable")]
    for at, group in enumerate(rest):
        cost = ((((filled + table[group]) - wanted) ** 2 - (filled - wanted) ** 2) / totals).sum(axis=1)
        empty = np.flatnonzero(filled.sum(axis=1) == 0)
        last = len(rest) - at <= len(empty)  # the groups that are left are needed for empty parts
        assign(int(group), int(empty[cost[empty].argmin()] if last else cost.argmin()))
    return [np.flatnonzero(part_of[number] == part) for part in range(len(wanted))]


def _check_groups(groups: np.ndarray, rows: dict[str, np.ndarray], source: str) -> None:
    """Refuse parts that share a group."""
    for first, second in itertools.combinations(rows, 2):
        if (shared := np.intersect1d(groups[rows[first]], groups[rows[second]])).size:
            raise DataError(f"{source}: group {shared[0]} is in {first} and in {second} ({shared.size} such groups); "
                            "move its cases into one part.")  # fmt: skip


def _mean_one(cases: Cases, train: np.ndarray) -> np.ndarray:
    """Weights of the training cases (cases,) float32, their mean 1."""
    weights = np.asarray(cases.weights, np.float64)
    if (odd := np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))).size:
        raise DataError(f"{cases.name(odd[0])}: its weight is {weights[odd[0]]:g}, expected a number of at least 0.")
    if not weights[train].any():
        raise DataError(f"{cases.source}: all training cases have weight 0; give some of them more.")
    return (weights[train] / weights[train].mean()).astype(np.float32)


def _warn_of_absent(cases: Cases, classes: tuple[str, ...], targets: np.ndarray, rows: dict[str, np.ndarray]) -> None:
    """Log classes that no case of the validation or test part has: scores say nothing about them."""
    for part in ("val", "test") if classes else ():
        own = targets[rows[part]]
        counts = np.bincount(own, minlength=len(classes)) if own.ndim == 1 else own.sum(axis=0)
        if absent := [name for name, count in zip(classes, counts, strict=True) if not count]:
            log.warning("%s: the %s part has no case of %s; its scores say nothing about %s", cases.source, part,
                        ", ".join(absent[:8]) + (", …" if len(absent) > 8 else ""),
                        "it" if len(absent) == 1 else "them")  # fmt: skip


def _check_targets(cases: Cases) -> None:
    """Refuse targets that the kind cannot have."""
    targets, kind, numbers = cases.targets, cases.kind, cases.targets.dtype.kind in "buif"
    shape = {"multiclass": f"({len(targets)},)", "multilabel": f"({len(targets)}, k), columns of 0 and 1"}.get(kind, "")
    if (kind == "multiclass" and targets.ndim != 1) or (kind == "multilabel" and targets.ndim != 2):
        raise DataError(f"{cases.source}: targets of shape {targets.shape}, expected {shape} for {kind}; save y[:, 0], "
                        "or give the kind.")  # fmt: skip
    if kind != "multiclass" and not numbers:
        raise DataError(f"{cases.source}: targets of {targets.dtype}, expected numbers for {kind}; text is for classes")
    good = np.isin(targets, (0, 1)) if kind == "multilabel" else np.isfinite(targets) if numbers else np.array(True)
    if (odd := np.argwhere(~good)).size:
        expected = "0 or 1" if kind == "multilabel" else "a finite number"
        which = f"label {odd[0][1]}" if targets.ndim > 1 else "its target"
        raise DataError(f"{cases.name(odd[0][0])}: {which} is {targets[tuple(odd[0])]:g}, expected {expected} "
                        f"({len(odd)} such); fill it or leave the case out.")  # fmt: skip


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


def _encode(cases: Cases, rows: dict[str, np.ndarray]) -> tuple[np.ndarray, tuple[str, ...], Scale | None]:
    """Targets as training takes them, classes, and the scale of real targets."""
    targets, train = cases.targets, rows["train"]
    if cases.kind == "multiclass":
        known = np.unique(targets[train])
        if known.size < 2:
            raise DataError(f"{cases.source}: every training case has the label {known[0]!s}; expected two classes.")
        place = np.searchsorted(known, targets).clip(max=known.size - 1)
        if (unseen := np.flatnonzero(known[place] != targets)).size:
            raise DataError(f"{cases.name(unseen[0])}: label {targets[unseen[0]]!s} never occurs in training "
                            f"({unseen.size} such cases); move some to training or leave them out.")  # fmt: skip
        return place.astype(np.int64), tuple(str(label) for label in known), None
    if cases.kind == "multilabel":
        classes = cases.classes or tuple(str(i) for i in range(targets.shape[1]))
        for label in np.flatnonzero(~(targets[train] > 0).any(axis=0)):
            raise DataError(f"{cases.source}: label {classes[label]} never occurs in training; leave it out.")
        return targets.astype(np.float32), classes, None
    real = targets.reshape(len(targets), -1).astype(np.float64)
    mean, std = real[train].mean(axis=0), real[train].std(axis=0)
    for flat in np.flatnonzero(std == 0):
        raise DataError(f"{cases.source}: target {flat} is constant ({mean[flat]:g}) in training; nothing to learn.")
    return ((real - mean) / std).astype(np.float32), (), (tuple(mean.tolist()), tuple(std.tolist()))


def _channel_scale(cases: Cases, train: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation (channels,) float32 over true samples of the training cases; NaN is left out."""
    if (endless := np.argwhere(np.isinf(cases.values))).size:
        row, channel = (int(i) for i in endless[0])
        case = int(np.searchsorted(cases.starts, row, side="right")) - 1
        raise DataError(f"{cases.name(case)}: infinity at step {row - cases.starts[case]}, channel {channel} "
                        f"({len(endless)} in all); leave the case out, or write NaN for a missing sample.")  # fmt: skip
    chunks = np.array_split(train, max(1, train.size // 256))
    count = sum((~np.isnan(cases.samples(rows))).sum(axis=0) for rows in chunks)
    for empty in np.flatnonzero(count == 0):
        raise DataError(f"{cases.source}: channel {empty} is NaN in all training cases; leave it out.")
    mean = sum(np.nansum(cases.samples(rows), axis=0, dtype=np.float64) for rows in chunks) / count
    std = np.sqrt(sum(np.nansum((cases.samples(rows) - mean) ** 2, axis=0) for rows in chunks) / count)
    for flat in np.flatnonzero(std <= 1e-7 * np.abs(mean)):  # float32 knows no finer difference
        raise DataError(f"{cases.source}: channel {flat} is constant ({mean[flat]:g}) in all training cases; leave it "
                        "out.")  # fmt: skip
    return mean.astype(np.float32), std.astype(np.float32)


class Recordings(NamedTuple):
    """Files below a folder with their targets and parts."""

    folder: Path
    files: list[str]
    targets: Any  # (files,) of text, or (files, k) of 0 and 1
    parts: list[str]
    kind: str
    classes: tuple[str, ...] = ()
    groups: list[str] | None = None


def load_recordings(
    name: str,
    listed: Recordings,
    files: list[Path],
    read: Callable[[Path], Signal],
    skip_bad: bool,
    options: Mapping[str, Any] | None = None,
    scaling: str = "global",
) -> DataSet:
    """Read recordings once, cache them and make a set of them.

    `files` are all that `read` opens, `options` what it depends on besides. What cannot be read raises `DataError`;
    with `skip_bad` it is left out and listed in `info.skipped`.
    """
    folder = listed.folder
    prepared = cached(
        name, folder, files, {"names": listed.files, "flat": True, **(options or {})}, lambda: _read_all(listed, read)
    )
    skipped = prepared.bad_files(skip_bad, str(folder))
    good = np.array([file not in skipped for file in listed.files])
    names = np.array(listed.files)[good]
    targets = np.asarray(listed.targets, dtype=str if listed.kind == "multiclass" else None)
    cases = Cases(
        np.array(prepared.arrays["values"]),
        np.array(prepared.arrays["lengths"]),
        targets[good],
        np.array(listed.parts)[good],
        lambda i: str(folder / names[i]),
        str(folder),
        listed.kind,
        listed.classes,
        {
            "skipped": skipped,
            "scaling": scaling,
            **{name: tuples(value) for name, value in prepared.notes["about"].items()},
        },
        None if listed.groups is None else np.array(listed.groups)[good],
    )
    return make_set(name, cases)


def _read_all(listed: Recordings, read: Callable[[Path], Signal]) -> Prepared:
    """Every sound file: values (samples, channels) one after another, lengths (cases,). The most common format is that
    of the set; files that differ count as bad.
    """
    signals: dict[str, Signal] = {}
    bad: dict[str, str] = {}
    for file in listed.files:
        try:
            signals[file] = read(listed.folder / file)
        except DataError as reason:
            bad[file] = str(reason)
    if not signals:
        first = next(iter(bad.values()))
        raise DataError(f"{listed.folder}: none of {len(bad)} files could be read; the first: {first}")
    formats = {file: _format(signal) for file, signal in signals.items()}
    common = collections.Counter(formats.values()).most_common(1)[0][0]
    for file, found in formats.items():
        if unit_name(found) != unit_name(common):
            bad[file] = f"{listed.folder / file}: {found}; the others have {common}."
            del signals[file]
    one = next(iter(signals.values()))
    lengths = np.array([len(signal.values) for signal in signals.values()], np.int64)
    values = np.concatenate([signal.values for signal in signals.values()])
    about = {"sampling_rate": one.sampling_rate, "channels": one.channels, "units": one.units}
    return Prepared({"values": values, "lengths": lengths}, {"bad": bad, "about": about})


def _format(signal: Signal) -> str:
    named = f" ({', '.join(signal.channels)})" if signal.channels else ""
    measured = f" in {', '.join(signal.units)}" if signal.units else ""
    return f"{signal.sampling_rate:g} Hz, {signal.values.shape[1]} channels{named}{measured}"

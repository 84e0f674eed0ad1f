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
from typing import TYPE_CHECKING, Any

import numpy as np

from wavessm.data.cache import Prepared, cached, read_each
from wavessm.data.files import Signal, align, resample
from wavessm.data.info import DataInfo, DataSet, Scale, tuples
from wavessm.data.task import OwnOptions
from wavessm.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger("wavessm.data")

PARTS = {
    "train": "train", "training": "train", "val": "val", "valid": "val", "validation": "val", "dev": "val",
    "test": "test", "testing": "test",
}  # fmt: skip
"""What folders and columns may call a part → its name."""
SOUND = 4000.0
"""Hertz from which recordings are read as log energies, if nothing else is said."""
FRACTIONS = {"val": 0.15, "test": 0.15}
_GOLDEN = 0.6180339887498949


@dataclasses.dataclass(frozen=True)
class Cases:
    """Raw cases with their targets, and what the files told about them."""

    names: list[str]  # what to call each case in a message
    targets: np.ndarray  # (cases,) or (cases, k); of kind "steps" (samples,), a label for each sample of `values`
    part: np.ndarray  # (cases,) of "train", "val", "test"; or "" of all, where no parts are given
    source: str
    kind: str
    values: np.ndarray  # (samples, channels) float32, the cases one after another
    lengths: np.ndarray  # (cases,) int64
    classes: tuple[str, ...] = ()  # of a multi-label table; found from the labels otherwise
    about: dict[str, Any] = dataclasses.field(default_factory=dict)  # other fields of `DataInfo`
    groups: np.ndarray | None = None  # (cases,) who or what a case is of: no group is in two parts
    weights: np.ndarray | None = None  # (cases,) of the cases in the training loss
    times: np.ndarray | None = None  # (samples,) float64: when samples of irregular signals were taken

    @property
    def owner(self) -> np.ndarray:
        """The case that each target is of."""
        return np.repeat(np.arange(len(self.names)), self.lengths if self.kind == "steps" else 1)


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
    whole = _of_whole_cases(cases) if cases.kind == "steps" else cases
    rows = split(whole)
    targets, classes, target_scale = _encode(cases, rows)
    longest, channels = int(cases.lengths.max()), cases.values.shape[1]
    info = DataInfo(cases.kind, channels, len(target_scale[0] if target_scale else classes), longest, classes,
                    scale=_channel_scale(cases, rows["train"]), target_scale=target_scale,
                    missing=float(np.isnan(cases.values).mean()), **cases.about)  # fmt: skip
    if info.front_end == "auto":
        sound = info.sampling_rate is not None and info.sampling_rate >= SOUND
        info = dataclasses.replace(info, front_end="energies" if sound else "none")
    y, x = (torch.from_numpy(values) for values in (targets, cases.values))
    pieces = x.split(cases.lengths.tolist())
    if info.scaling == "recording" or info.front_end == "energies":
        pieces = tuple(map(info.standardise, pieces))
    else:
        pieces = info.standardise(x).split(cases.lengths.tolist())
    if info.front_end == "energies":
        std, mean = torch.std_mean(torch.cat([pieces[row] for row in rows["train"]]), dim=0)
        info = dataclasses.replace(info, frame_scale=(tuple(mean.tolist()), tuple(std.clamp(min=1e-3).tolist())))
        pieces = tuple(map(info.scale_frames, pieces))
    lengths, by_step = torch.tensor([len(piece) for piece in pieces]), cases.kind == "steps"
    labels = y.split(cases.lengths.tolist()) if by_step else ()
    times = () if cases.times is None else torch.from_numpy(cases.times).split(cases.lengths.tolist())
    if times:
        step = float(torch.cat([times[row].diff() for row in rows["train"]]).median())
        times = tuple((each - each[0]) / step for each in times)
        info = dataclasses.replace(info, timed=True, step=step)

    def part(rows: np.ndarray) -> Arrays | Ragged:
        x, own = torch.cat([pieces[row] for row in rows]), lengths[rows]
        targets = torch.cat([labels[row] for row in rows]) if by_step else y[rows]
        moments = torch.cat([times[row] for row in rows]) if times else None
        if int(lengths.min()) != int(lengths.max()):
            source: Any = Ragged(x, own.cumsum(0) - own, own, targets)
            source.by_step = by_step
        else:
            source = Arrays(x.view(len(own), -1, x.shape[1]), targets.view(len(own), -1) if by_step else targets)
            moments = None if moments is None else moments.view(len(own), -1)
        source.times = moments
        return source

    train, val, test = map(part, rows.values())
    if cases.weights is not None:
        train.weight = torch.from_numpy(_mean_one(cases, rows["train"]))
    if cases.groups is not None:
        train.groups, val.groups, test.groups = (cases.groups[i] for i in rows.values())
    _warn_of_absent(cases, classes, targets if whole is cases else whole.targets, rows)
    return DataSet(name, train, val, test, info)


def _of_whole_cases(cases: Cases) -> Cases:
    """Cases whose targets (cases, classes) say which classes their steps have, for a split that keeps all of them."""
    names, label = np.unique(cases.targets, return_inverse=True)
    found = np.zeros((len(cases.names), len(names)), np.int64)
    found[cases.owner, label] = 1
    return dataclasses.replace(cases, kind="multilabel", targets=found)


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
        raise DataError(f"{cases.names[loose[0]]}: in none of the parts {', '.join(rows)}, though others are "
                        f"({loose.size} such cases); move them into a part.")  # fmt: skip
    if not (pool := loose if loose.size else rows["train"]).size:
        raise DataError(f"{cases.source}: no case is left for training.")
    rows["train"] = pool
    if cases.groups is not None:
        for first, second in itertools.combinations(rows, 2):
            if (shared := np.intersect1d(cases.groups[rows[first]], cases.groups[rows[second]])).size:
                raise DataError(f"{cases.source}: group {shared[0]} is in {first} and in {second} ({shared.size} such "
                                "groups); move its cases into one part.")  # fmt: skip
    if missing := [part for part in FRACTIONS if not rows[part].size]:
        keys, fractions = _strata(cases.targets[pool], cases.kind), [FRACTIONS[part] for part in missing]
        rng = np.random.default_rng(0)
        if cases.groups is None:
            drawn = _split_cases(keys, fractions, rng, cases.source)
        else:
            drawn = split_groups(keys, cases.groups[pool], fractions, rng, cases.source)
        rows |= {part: pool[own] for part, own in zip(("train", *missing), drawn, strict=True)}
    return rows


def _split_cases(keys: np.ndarray, fractions: list[float], rng: np.random.Generator, source: str) -> list[np.ndarray]:
    """As `split_groups`, without groups: every part has the classes `keys` (cases,) in their proportions.

    Rows sorted by class get the points of a golden-ratio sequence; in any run of them these points are spread evenly.
    """
    order, counts = rng.permutation(len(keys)), [max(1, round(fraction * len(keys))) for fraction in fractions]
    classes, first = np.unique(keys[order], return_index=True)
    rest = np.delete(order, first)  # one case of each class stays in training
    if rest.size < sum(counts) + 1:
        raise DataError(f"{source}: {len(keys)} cases in {classes.size} classes are too few to draw {len(counts)} "
                        "parts beside training; give more, or the parts as files.")  # fmt: skip
    rest = rest[np.argsort(keys[rest], kind="stable")]
    rest = rest[np.argsort((rng.random() + _GOLDEN * np.arange(rest.size)) % 1.0)]
    parts = [np.sort(part) for part in np.split(rest, np.cumsum(counts))[:-1]]
    return [np.setdiff1d(order, np.concatenate(parts)), *parts]


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


def _mean_one(cases: Cases, train: np.ndarray) -> np.ndarray:
    """Weights of the training cases (cases,) float32, their mean 1."""
    weights = np.asarray(cases.weights, np.float64)
    if (odd := np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))).size:
        raise DataError(f"{cases.names[odd[0]]}: its weight is {weights[odd[0]]:g}, expected a number of at least 0.")
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
    if (kind in ("multiclass", "steps") and targets.ndim != 1) or (kind == "multilabel" and targets.ndim != 2):
        raise DataError(f"{cases.source}: targets of shape {targets.shape}, expected {shape} for {kind}; save y[:, 0], "
                        "or give the kind.")  # fmt: skip
    if kind not in ("multiclass", "steps") and not numbers:
        raise DataError(f"{cases.source}: targets of {targets.dtype}, expected numbers for {kind}; text is for classes")
    good = np.isin(targets, (0, 1)) if kind == "multilabel" else np.isfinite(targets) if numbers else np.array(True)
    if (odd := np.argwhere(~good)).size:
        expected = "0 or 1" if kind == "multilabel" else "a finite number"
        which = f"label {odd[0][1]}" if targets.ndim > 1 else "its target"
        case = cases.names[cases.owner[odd[0][0]]]
        raise DataError(f"{case}: {which} is {targets[tuple(odd[0])]:g}, expected {expected} ({len(odd)} such); fill "
                        "it or leave the case out.")  # fmt: skip


def _strata(targets: np.ndarray, kind: str) -> np.ndarray:
    """A class for every case (cases,): its label, the rarest of several labels, or one class for all."""
    if kind == "multiclass":
        return np.unique(targets, return_inverse=True)[1]
    if kind == "regression":
        return np.zeros(len(targets), np.int64)
    frequency = np.where(targets > 0, targets.sum(axis=0), np.inf)
    return np.where(targets.any(axis=1), frequency.argmin(axis=1), -1)


def _encode(cases: Cases, rows: dict[str, np.ndarray]) -> tuple[np.ndarray, tuple[str, ...], Scale | None]:
    """Targets as training takes them, classes, and the scale of real targets."""
    targets, train = cases.targets, rows["train"]
    if cases.kind in ("multiclass", "steps"):
        known = np.unique(targets[np.isin(cases.owner, train)])
        if known.size < 2:
            raise DataError(f"{cases.source}: every training case has the label {known[0]!s}; expected two classes.")
        place = np.searchsorted(known, targets).clip(max=known.size - 1)
        if (unseen := np.flatnonzero(known[place] != targets)).size:
            case = cases.names[cases.owner[unseen[0]]]
            raise DataError(f"{case}: label {targets[unseen[0]]!s} never occurs in training ({unseen.size} such); move "
                            "some to training or leave them out.")  # fmt: skip
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
    each = len(cases.about.get("quantiles", ())) or 1  # outputs of a target
    scale = tuple(mean.repeat(each).tolist()), tuple(std.repeat(each).tolist())
    return ((real - mean) / std).astype(np.float32), (), scale


def _channel_scale(cases: Cases, train: np.ndarray) -> Scale:
    """Mean and standard deviation of each channel over true samples of the training cases; NaN is left out."""
    ends = np.cumsum(cases.lengths)
    if (endless := np.argwhere(np.isinf(cases.values))).size:
        row, channel = endless[0].tolist()
        case = int(np.searchsorted(ends, row, side="right"))
        raise DataError(f"{cases.names[case]}: infinity at step {row - ends[case] + cases.lengths[case]}, channel "
                        f"{channel} ({len(endless)} in all); leave the case out, or write NaN for a missing "
                        "sample.")  # fmt: skip
    pieces = np.split(cases.values, ends[:-1])
    chunks = [[pieces[row] for row in rows] for rows in np.array_split(train, max(1, train.size // 256))]
    count = sum((~np.isnan(np.concatenate(chunk))).sum(axis=0) for chunk in chunks)
    for empty in np.flatnonzero(count == 0):
        raise DataError(f"{cases.source}: channel {empty} is NaN in all training cases; leave it out.")
    mean = sum(np.nansum(np.concatenate(chunk), axis=0, dtype=np.float64) for chunk in chunks) / count
    std = np.sqrt(sum(np.nansum((np.concatenate(chunk) - mean) ** 2, axis=0) for chunk in chunks) / count)
    for flat in np.flatnonzero(std <= 1e-7 * np.abs(mean)):  # float32 knows no finer difference
        raise DataError(f"{cases.source}: channel {flat} is constant ({mean[flat]:g}) in training cases; leave it out.")
    return tuple(mean.astype(np.float32).tolist()), tuple(std.astype(np.float32).tolist())


# -- recordings -------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class RecordingOptions(OwnOptions):
    """Options of a user's own recordings."""

    folder: str = ""
    """Folder with the recordings."""
    sampling_rate: float | None = None
    """Resample all recordings to this rate in hertz; None refuses those of another rate than most have."""
    skip_bad: bool = False
    """Leave out recordings that cannot be read, and list them."""

    def shorten(self, signal: Signal, sampling_rate: float | None = None) -> Signal:
        return resample(signal, self.sampling_rate) if self.sampling_rate else signal

    def read_all(
        self, name: str, files: list[str], read: Callable[[Path], Signal], key: Mapping[str, Any], named: bool = True
    ) -> tuple[list[str], np.ndarray, np.ndarray, dict[str, Any]]:
        """Read the recordings `files` below the folder once, and cache them under a name; `key` is what `read` depends
        on. What cannot be read raises `DataError`; with `skip_bad` it is left out and listed. That includes recordings
        of another format than most have: another rate, number, or where they are `named`, names of channels.

        Returns names of files, samples (samples, channels) float32 of one after another, lengths (files,) int64, and
        what they tell, fields of `DataInfo`.
        """
        folder = self.place()
        parents = {(folder / file).parent for file in files}
        opened = [path for parent in parents for path in parent.glob("*") if path.is_file()]
        key = {"names": files, "sampling_rate": self.sampling_rate, **key}
        prepared = cached(name, folder, opened, key, lambda: _read_all(folder, files, read, named))
        about = {**tuples(prepared.notes["about"]), "skipped": prepared.bad_files(self.skip_bad, str(folder))}
        values, lengths = (np.array(prepared.arrays[each]) for each in ("values", "lengths"))
        return prepared.notes["files"], values, lengths, about

    def load_table(
        self, name: str, table: pd.DataFrame, read: Callable[[Path], Signal], key: Mapping[str, Any], **about: Any
    ) -> DataSet:
        """Read the recordings of a table and make a set of them; see `read_all`.

        Its columns: record, a path below the folder; split, train, val or test, or "" of all; group, if there is one;
        and one of classes, or several of 0 and 1.
        """
        folder, files = self.place(), table["record"].tolist()
        names = tuple(table.columns.drop(["record", "split", "group"], errors="ignore"))
        kind = "multiclass" if len(names) == 1 else "multilabel"
        files, values, lengths, found = self.read_all(name, files, read, key)
        table = table[table["record"].isin(files)]
        targets = table[names[0]].to_numpy(str) if len(names) == 1 else table[list(names)].to_numpy(np.float64)
        return make_set(name, Cases(
            [str(folder / file) for file in files], targets, table["split"].to_numpy(str), str(folder), kind,
            values, lengths, () if kind == "multiclass" else names, found | about,
            table["group"].to_numpy(str) if "group" in table.columns else None,
        ))  # fmt: skip


def _read_all(folder: Path, files: list[str], read: Callable[[Path], Signal], named: bool) -> Prepared:
    """Every sound file. The most common format is that of the set, files that differ count as bad; volts are converted
    to those of the first file."""
    signals, bad = read_each(files, lambda file: read(folder / file), folder)
    formats = {file: _format(signal, named) for file, signal in signals.items()}
    common = collections.Counter(formats.values()).most_common(1)[0][0]
    one = next(signal for file, signal in signals.items() if formats[file] == common)
    for file, found in formats.items():
        try:
            if found.lower() != common.lower():
                rate, leads = found.split()[0] != common.split()[0], "(" in found
                hint = " --sampling-rate makes them one." if rate else " --leads chooses." if leads else ""
                raise DataError(f"{folder / file}: {found}; the others have {common}.{hint}")
            signals[file] = signals[file]._replace(values=align(signals[file], (), one.units, folder / file))
        except DataError as reason:
            bad[file] = str(reason)
            del signals[file]
    lengths = np.array([len(signal.values) for signal in signals.values()], np.int64)
    values = np.concatenate([signal.values for signal in signals.values()])
    alike = named or len({signal.channels for signal in signals.values()}) == 1
    about = {"sampling_rate": one.sampling_rate, "channels": one.channels if alike else (), "units": one.units}
    return Prepared({"values": values, "lengths": lengths}, {"bad": bad, "files": list(signals), "about": about})


def _format(signal: Signal, named: bool) -> str:
    names = f" ({', '.join(signal.channels)})" if signal.channels and named else ""
    return f"{signal.sampling_rate:g} Hz, {signal.values.shape[1]} channels{names}"

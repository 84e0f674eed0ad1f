"""Beats, or other events, inside your own long WFDB records: each case is a window around one of them.

A folder as MIT-BIH is published works as it is: five classes of beats, and the split by records of de Chazal, O'Dwyer
and Reilly (2004). No patient is on both sides of it but the one of records 201 and 202, as published.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from wavessm.data.cases import Cases, RecordingOptions, make_set
from wavessm.data.datasets.wfdb import read_leads, words
from wavessm.data.files import Signal, call_wfdb, resample
from wavessm.data.info import DataSet
from wavessm.data.tables import need_columns, numbers, read_table
from wavessm.data.task import Recipe, Task
from wavessm.errors import DataError, import_extra

log = logging.getLogger("wavessm.data")

AAMI = {
    symbol: group
    for group, symbols in {"N": "NLRBejn", "S": "AaJS", "V": "VEr", "F": "F", "Q": "/fQ"}.items()
    for symbol in symbols
}
"""Beat symbol of MIT-BIH → class of ANSI/AAMI EC57: normal, supraventricular, ventricular, fusion, unknown or paced."""

RR = ("pre-RR", "post-RR")
"""Channels that `cut_windows` can add."""
PAPER_SPLIT = {
    "train": "101 106 108 109 112 115 116 118 119 122 201 203 205 208 209 215 230",
    "val": "114 124 207 220 223",
    "test": "100 103 105 111 113 117 121 123 200 202 210 212 213 214 219 221 222 228 231 232 233 234",
}
"""Records of MIT-BIH: train and val are de Chazal's DS1 (which of them validate is our choice), test is DS2."""
_PART_OF = {record: part for part, records in PAPER_SPLIT.items() for record in records.split()}


@dataclass(frozen=True)
class BeatsOptions(RecordingOptions):
    """RECORD.hea, RECORD.dat and RECORD.atr; symbols of the annotations become the classes N, S, V, F and Q of AAMI.

    Where all records are those of MIT-BIH, its split is used; otherwise records with 15 % of the events are drawn for
    validation and for test each, with the classes in their proportions. No record is in two parts.
    """

    annotations: str = "atr"
    """Extension of the annotation files."""
    events: str | None = None
    """CSV with columns record, start, end (may be left out) and label, instead of annotation files."""
    leads: str = ""
    """Leads by name or by position from 0, with commas: MLII,V1; default the first lead of the first record."""
    before: float = 0.3
    """Seconds of a window before the start of an event."""
    after: float = 0.5
    """Seconds of a window after the end of an event."""
    rr: bool = True
    """Add constant channels to annotated beats: the time to the one before and to the next, over the record's mean."""
    classes: str = ""
    """Classes to keep, with commas: N,S,V; default all."""
    leave_out: str = "102,104,107,217"
    """Records to leave out, with commas; the default are MIT-BIH's paced ones."""

    checks: ClassVar[dict[str, Any]] = {"before": (lambda value: 0 <= value < np.inf, "0 or more seconds")}

    def load(self, seed: int) -> DataSet:
        folder, table = self.place(), self._table()
        records = self._records(table)
        leads = words(self.leads) or [read_leads(folder / records[0], folder, ()).channels[0]]
        files, samples, lengths, about = self.read_all(
            "beats", records, lambda at: self.shorten(read_leads(at, folder, leads)), {"leads": leads}, not self.leads
        )
        rate, ignored, rr = about["sampling_rate"], Counter[str](), self.rr and not self.events
        found: list[tuple[np.ndarray, str, str, str]] = []
        for name, values in zip(files, np.split(samples, lengths.cumsum()[:-1]), strict=True):
            path, other = folder / name, Counter[str]()
            if (events := table.get(name)) is None:
                events, other = read_beats(path, self.annotations)
            cut, kept = cut_windows(Signal(values, rate), events, self.before, self.after, rate, rr, path)
            ignored.update(other, **{"at the ends, without a whole window": len(events.start) - len(cut)})
            for window, start, label in zip(cut, kept.start, kept.labels.tolist(), strict=True):
                if label in (words(self.classes) or [label]):
                    found.append((window, f"{path}, {label} at {start:g} s", label, name))
        left_out = ", ".join(f"{count} {what}" for what, count in ignored.most_common() if count)
        if not found:
            raise DataError(f"{folder}: no event is left in {len(records)} records; found only "
                            f"{left_out or 'empty annotation files'}.")  # fmt: skip
        if left_out:
            log.warning("%s: left out %s", folder, left_out)
        windows, names, labels, record = zip(*found, strict=True)
        part = np.array([_PART_OF.get(Path(name).name, "") for name in record])
        if set(part.tolist()) != set(PAPER_SPLIT):  # not MIT-BIH: records are groups that are drawn
            part = np.full(len(record), "")
        added = RR if rr else ()
        channels, units = about["channels"], (*about["units"], *("" for _ in added))
        about = {**about, "channels": (*channels, *added) if channels else (), "units": units}
        return make_set("beats", Cases(list(names), np.array(labels), part, str(folder), "multiclass",
                        np.concatenate(windows), np.array([len(window) for window in windows]), about=about,
                        groups=np.array(record)))  # fmt: skip

    def files(self) -> list[Path]:
        folder, records = self.place(), self._records(self._table())
        beside = [Path(self.events)] if self.events else [folder / f"{name}.{self.annotations}" for name in records]
        return [*(folder / f"{name}.hea" for name in records), *beside]  # headers hold the sums of the signals

    def _table(self) -> dict[str, Events]:
        return read_events(Path(self.events)) if self.events else {}

    def _records(self, table: dict[str, Events]) -> list[str]:
        """Names of the records: those of the table of events, or all headers of the folder."""
        if not (folder := self.place()).is_dir():
            raise DataError(f"{folder}: no such folder; expected one with WFDB records.")
        names = table or sorted(path.stem for path in folder.glob("*.hea"))
        found = [name for name in names if Path(name).name not in words(self.leave_out)]
        if not found:
            raise DataError(f"{folder}: no WFDB record (*.hea) in it, beside those that are left out.")
        return found


# -- events -----------------------------------------------------------------------------------------------------------


class Events(NamedTuple):
    """Labelled stretches of one record; a beat starts and ends at one instant."""

    start: np.ndarray  # (events,) float64, seconds
    end: np.ndarray  # (events,) float64, seconds
    labels: np.ndarray  # (events,) text

    def keep(self, which: np.ndarray) -> Events:
        """Return some of the events: (events,) bool."""
        return Events(*(column[which] for column in self))


def read_beats(record: Path, extension: str) -> tuple[Events, Counter[str]]:
    """Read the beats of a WFDB annotation file (usually .atr) in the five classes of `AAMI`.

    Returns:
        The beats, and how often each symbol occurs that is no beat and was left out.
    """
    if not Path(f"{record}.{extension}").is_file():
        raise DataError(f"{record}.{extension}: the annotation file is missing; add it, or give the extension of "
                        "yours (--annotations) or a table (--events).")  # fmt: skip
    wfdb = import_extra("wfdb", "WFDB annotations")
    with call_wfdb(f"{record}.{extension}"):
        found = wfdb.rdann(str(record), extension)
    seconds = np.asarray(found.sample, np.float64) / found.fs  # of the annotations, else of the header
    known = np.array([symbol in AAMI for symbol in found.symbol], bool)
    labels = np.array([AAMI.get(symbol, "") for symbol in found.symbol], str)
    other = Counter(symbol for symbol in found.symbol if symbol not in AAMI)
    return Events(seconds, seconds, labels).keep(known), other


def read_events(path: Path) -> dict[str, Events]:
    """Read a table with the columns record, start, label and, unless events are instants, end: record → its events."""
    table = read_table(path, text=True)
    need_columns(table, ["record", "start", "label"], path)
    for column in ("record", "label"):
        for line in table.index[table[column].isna()]:
            raise DataError(f"{path}: nothing in column {column!r}, line {line}; fill it or drop the row.")
    start, end = numbers(table, ["start", "end" if "end" in table.columns else "start"], path).T
    for at in np.flatnonzero(end < start):
        raise DataError(f"{path}: an event ends at {end[at]:g} before its start {start[at]:g}, line {table.index[at]}.")
    every = Events(start, end, table["label"].to_numpy(str))
    names = table["record"].to_numpy(str)
    return {str(name): every.keep(names == name) for name in dict.fromkeys(names)}


def cut_windows(
    signal: Signal, events: Events, before: float, after: float, sampling_rate: float, rr: bool, where: Any
) -> tuple[list[np.ndarray], Events]:
    """Cut a window from `before` seconds before the start of each event to `after` seconds after its end.

    With `rr` two constant channels are added: the time since the event before and to the next one, over the mean.

    Returns:
        Windows (length, channels) float32 at `sampling_rate`, and the events that they belong to: all whose window lies
        inside the record. An event outside of it raises `DataError`.
    """
    duration = len(signal.values) / (signal.sampling_rate or sampling_rate)
    for at in np.flatnonzero((events.start < 0) | (events.start >= duration) | (events.end > duration)):
        raise DataError(f"{where}: {events.labels[at]} at {events.start[at]:g} s lies outside of its {duration:g} s; "
                        "is the annotation that of another record?")  # fmt: skip
    values = resample(signal, sampling_rate).values
    first = np.rint(events.start * sampling_rate).astype(int) - round(before * sampling_rate)
    last = np.rint(events.end * sampling_rate).astype(int) + max(1, round(after * sampling_rate))
    ratios = np.ones((len(first), 2), np.float32)
    if rr and len(first) > 1:
        gaps = np.diff(events.start) / np.diff(events.start).mean()
        ratios[1:, 0] = ratios[:-1, 1] = gaps
    inside = (first >= 0) & (last <= len(values))
    windows = [values[first[i] : last[i]] for i in np.flatnonzero(inside)]
    if rr:
        pairs = zip(windows, ratios[inside], strict=True)
        windows = [np.hstack([window, np.broadcast_to(ratio, (len(window), 2))]) for window, ratio in pairs]
    return windows, events.keep(inside)


RECIPES = {
    "best": Recipe(
        {"d_model": 64, "n_layers": 4, "dropout": 0.1, "bidirectional": True},
        {"lr": 5e-3, "weight_decay": 0.01, "batch_size": 128, "epochs": 10, "schedule": "one-cycle", "warmup": 0.3},
    )
}
TASKS = (Task("beats", BeatsOptions(), RECIPES, "folder", closed_form="features"),)

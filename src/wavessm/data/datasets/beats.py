"""Beats, or other events, inside your own long WFDB records: each case is a window around one of them.

A folder as MIT-BIH is published works as it is: five classes of beats, and the split by records of de Chazal, O'Dwyer
and Reilly (2004). No patient is on both sides of it but the one of records 201 and 202, as published.
"""

from __future__ import annotations

import dataclasses
import logging
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from wavessm.data.cache import Prepared, cached
from wavessm.data.cases import FRACTIONS, Cases, make_set
from wavessm.data.events import Events, cut_windows, pick_leads, read_beats, read_events
from wavessm.data.files import Signal, align, inside, read_record, record_files
from wavessm.data.info import DataSet, tuples
from wavessm.data.task import OwnOptions, Recipe, Task
from wavessm.errors import DataError

log = logging.getLogger("wavessm.data")

PAPER_SPLIT = {
    "train": (
        "101", "106", "108", "109", "112", "115", "116", "118", "119", "122", "201", "203", "205", "208", "209", "215",
        "230",
    ),
    "val": ("114", "124", "207", "220", "223"),
    "test": (
        "100", "103", "105", "111", "113", "117", "121", "123", "200", "202", "210", "212", "213", "214", "219", "221",
        "222", "228", "231", "232", "233", "234",
    ),
}  # fmt: skip
"""Records of MIT-BIH: train and val are de Chazal's DS1 (which of them validate is our choice), test is DS2."""
_PART_OF = {record: part for part, records in PAPER_SPLIT.items() for record in records}


@dataclass(frozen=True)
class BeatsOptions(OwnOptions):
    """RECORD.hea, RECORD.dat and RECORD.atr; symbols of the annotations become the classes N, S, V, F and Q of AAMI.

    Where all records are those of MIT-BIH, its split is used; otherwise 15 % of the records are drawn for validation
    and 15 % for test. No record is in two parts.
    """

    folder: str = ""
    """Folder with WFDB records and their annotation files."""
    annotations: str = "atr"
    """Extension of the annotation files."""
    events: str | None = None
    """CSV with columns record, start, end (may be left out) and label, instead of annotation files."""
    events_in: Literal["seconds", "samples"] = "seconds"
    """What start and end of --events count."""
    leads: str = ""
    """Leads by name or by position from 0, with commas: MLII,V1; default the first lead of the first record."""
    before: float = 0.3
    """Seconds of a window before the start of an event."""
    after: float = 0.5
    """Seconds of a window after the end of an event."""
    sampling_rate: float | None = None
    """Resample all records to this rate in hertz; None takes that of the first, and refuses others."""
    rr: bool = False
    """Add two constant channels: the time to the beat before and to the next, over the mean of the record."""
    classes: str = ""
    """Classes to keep, with commas: N,S,V; default all."""
    leave_out: str = "102,104,107,217"
    """Records to leave out, with commas; the default are MIT-BIH's paced ones."""
    split_seed: int = 0
    """Seed of the split by records, where it is drawn."""
    skip_bad: bool = False
    """Leave out records that cannot be read or lack a lead, and list them."""

    checks: ClassVar[dict[str, Any]] = {
        "before": (lambda value: 0 <= value < np.inf, "0 or more seconds"),
        "split_seed": (lambda value: value >= 0, "0 or more"),
    }

    def load(self, seed: int) -> DataSet:
        folder, records = self.place(), self._records()
        options = dataclasses.asdict(dataclasses.replace(self, folder="", skip_bad=False))
        prepared = cached("beats", folder, self._all_files(records), options, lambda: self._read_all(records))
        skipped = prepared.bad_files(self.skip_bad, str(folder))
        values, lengths, targets, record, start = (np.array(prepared.arrays[name]) for name in _ARRAYS)
        notes = prepared.notes
        if notes["left_out"]:
            log.warning("%s: left out %s", folder, notes["left_out"])
        part = self._split(record, targets)
        known = set(targets[part == "train"])
        if missing := sorted(set(targets) - known):
            raise DataError(f"{folder}: no {missing[0]} in the training records ({', '.join(sorted(known)) or 'none'} "
                            f"are); leave it out with --classes {','.join(sorted(known))}.")  # fmt: skip
        about = {"skipped": skipped, **{name: tuples(value) for name, value in notes["about"].items()}}

        def name(case: int) -> str:
            return f"{folder / record[case]}, {targets[case]} at {start[case]:g} s"

        return make_set("beats", Cases(values, lengths, targets, part, name, str(folder), "multiclass", about=about))

    def files(self) -> list[Path]:
        return [path for path in self._all_files(self._records()) if path.suffix != ".dat"]  # headers hold their sums

    def _table(self) -> dict[str, Events]:
        return read_events(Path(self.events)) if self.events else {}

    def _records(self) -> list[str]:
        """Names of the records: those of the table of events, or all headers of the folder."""
        folder, without = self.place(), self.leave_out.split(",")
        if not folder.is_dir():
            raise DataError(f"{folder}: no such folder; expected one with WFDB records.")
        names = list(self._table()) or sorted(path.stem for path in folder.glob("*.hea"))
        found = [name for name in names if Path(name).name not in without]
        if not found:
            raise DataError(f"{folder}: no WFDB record (*.hea) in it, beside those that are left out.")
        return found

    def _all_files(self, records: list[str]) -> list[Path]:
        folder, found = self.place(), [Path(self.events)] if self.events else []
        for name in records:
            with suppress(DataError):  # left to the reader
                found += record_files(inside(folder / name, [folder]), [folder])
            found += [] if self.events else [folder / f"{name}.{self.annotations}"]
        return found

    def _read_all(self, records: list[str]) -> Prepared:
        """Windows of all records, padded where events differ in duration, with labels, records and times."""
        bad: dict[str, str] = {}
        ignored: Counter[str] = Counter()
        table, signals = self._table(), dict[str, Signal]()
        windows: list[np.ndarray] = []
        labels, record, start = [], [], []
        for name in records:
            try:
                signal, own, events, other = self._read(name, table, next(iter(signals.values()), None))
            except DataError as reason:
                bad[name] = str(reason)
                continue
            signals[name] = signal
            windows += own
            labels += events.labels.tolist()
            start += events.start.tolist()
            record += [name] * len(own)
            ignored += other
        if not windows:
            why = next(iter(bad.values()), f"found only {_listed(ignored) or 'empty annotation files'}.")
            raise DataError(f"{self.place()}: no event is left in {len(records)} records; {why}")
        lengths = np.array([len(window) for window in windows], np.int64)
        values = np.zeros((len(windows), int(lengths.max()), windows[0].shape[1]), np.float32)
        for row, window in zip(values, windows, strict=True):
            row[: len(window)] = window
        arrays = (values, lengths, np.array(labels), np.array(record), np.array(start))
        notes = {"bad": bad, "left_out": _listed(ignored), "about": self._about(list(signals.values()))}
        return Prepared(dict(zip(_ARRAYS, arrays, strict=True)), notes)

    def _read(
        self, name: str, table: dict[str, Events], first: Signal | None
    ) -> tuple[Signal, list[np.ndarray], Events, Counter[str]]:
        """Leads, windows and events of a record, and what was left out; units and rate are those of the first."""
        folder, other = self.place(), Counter[str]()
        path = inside(folder / name, [folder])
        signal = read_record(path, [folder])
        own = signal.sampling_rate or 1.0
        by_name = first.channels if first and not self.leads else signal.channels[:1]
        signal = pick_leads(signal, _words(self.leads) or by_name, path)
        first = first or signal
        rate = self.sampling_rate or first.sampling_rate or 1.0
        if self.sampling_rate is None and own != rate:
            raise DataError(f"{path}: {own:g} Hz, the records before it have {rate:g} Hz; resample all to one rate "
                            "with --sampling-rate.")  # fmt: skip
        signal = signal._replace(values=align(signal, (), first.units, path), units=first.units)
        if self.events:
            scale = own if self.events_in == "samples" else 1.0
            events = Events(table[name].start / scale, table[name].end / scale, table[name].labels)
        else:
            events, other = read_beats(path, self.annotations, own)
        windows, kept = cut_windows(signal, events, self.before, self.after, rate, self.rr, path)
        other["at the ends, without a whole window"] += len(events.start) - len(windows)
        wanted = np.isin(kept.labels, _words(self.classes)) if self.classes else np.ones(len(windows), bool)
        return signal, [windows[i] for i in np.flatnonzero(wanted)], kept.keep(wanted), other

    def _about(self, signals: list[Signal]) -> dict[str, Any]:
        """Rate, channels and units of the set; leads by position may have several names, and then have none."""
        first = signals[0]
        named = all(signal.channels == first.channels for signal in signals)
        more = ("pre-RR", "post-RR") if self.rr else ()
        return {
            "sampling_rate": self.sampling_rate or first.sampling_rate,
            "channels": [*first.channels, *more] if named else [],
            "units": [*first.units, *("" for _ in more)],
        }

    def _split(self, record: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """The part of each case, by its record."""
        names = np.unique(record)
        part_of = {name: _PART_OF.get(Path(name).name, "") for name in names.tolist()}
        if set(part_of.values()) == set(PAPER_SPLIT):
            return np.array([part_of[name] for name in record.tolist()])
        if "" not in part_of.values():
            log.warning("%s: MIT-BIH without records of each part; its records are split at random", self.place())
        counts = {part: max(1, round(fraction * len(names))) for part, fraction in FRACTIONS.items()}
        if len(names) <= sum(counts.values()):
            raise DataError(f"{self.place()}: {len(names)} records with events; expected three or more to split.")
        rng = np.random.default_rng(self.split_seed)
        for _ in range(100):  # until each class occurs in training
            order = rng.permutation(names).tolist()
            drawn = ["val"] * counts["val"] + ["test"] * counts["test"]
            part_of = dict(zip(order, drawn + ["train"] * (len(names) - len(drawn)), strict=True))
            part = np.array([part_of[name] for name in record.tolist()])
            if set(targets[part == "train"]) == set(targets):
                break
        return part


_ARRAYS = ("values", "lengths", "targets", "record", "start")


def _listed(ignored: Counter[str]) -> str:
    """Symbols that are no beats, and how many there were of each."""
    return ", ".join(f"{count} {what}" for what, count in ignored.most_common() if count)


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


RECIPES = {
    "best": Recipe(
        {"d_model": 64, "n_layers": 4, "dropout": 0.1, "bidirectional": True},
        {"lr": 5e-3, "weight_decay": 0.01, "batch_size": 128, "epochs": 10, "schedule": "one-cycle", "warmup": 0.3},
    )
}
TASKS = (Task("beats", BeatsOptions(), RECIPES, "folder"),)

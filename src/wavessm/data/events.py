"""Events inside a long record, such as heartbeats: reading them, choosing leads, cutting a window around each.

Place in the pipeline: `files.py` reads records; `datasets/beats.py` and `training/events.py` use what is here.
"""

from __future__ import annotations

import warnings
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from wavessm.data.files import Signal
from wavessm.data.tables import need_columns, numbers, read_table
from wavessm.errors import DataError, import_extra

AAMI = {
    symbol: group
    for group, symbols in {"N": "NLRBejn", "S": "AaJS", "V": "VEr", "F": "F", "Q": "/fQ"}.items()
    for symbol in symbols
}
"""Beat symbol of MIT-BIH → class of ANSI/AAMI EC57: normal, supraventricular, ventricular, fusion, unknown or paced."""

RR = ("pre-RR", "post-RR")
"""Channels that `cut_windows` can add."""


class Events(NamedTuple):
    """Labelled stretches of one record; a beat starts and ends at one instant."""

    start: np.ndarray  # (events,) float64, seconds
    end: np.ndarray  # (events,) float64, seconds
    labels: np.ndarray  # (events,) text

    def keep(self, which: np.ndarray) -> Events:
        """Return some of the events: (events,) bool."""
        return Events(*(column[which] for column in self))


def read_beats(record: Path, extension: str, sampling_rate: float) -> tuple[Events, Counter[str]]:
    """Read the beats of a WFDB annotation file (usually .atr) in the five classes of `AAMI`.

    Returns:
        The beats, and how often each symbol occurs that is no beat and was left out.
    """
    if not Path(f"{record}.{extension}").is_file():
        raise DataError(f"{record}.{extension}: the annotation file is missing; add it, or give the extension of "
                        "yours (--annotations) or a table (--events).")  # fmt: skip
    wfdb = import_extra("wfdb", "WFDB annotations")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = wfdb.rdann(str(record), extension)
    except Exception as reason:  # wfdb raises whatever its parsing meets
        what = " ".join(str(reason).split()) or type(reason).__name__
        raise DataError(f"{record}.{extension}: wfdb cannot read it ({what}).") from reason
    seconds = np.asarray(found.sample, np.float64) / (found.fs or sampling_rate)
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


def resample(signal: Signal, sampling_rate: float) -> Signal:
    """Return a record at another sampling rate, low-passed by a polyphase filter where that is lower.

    Missing samples (NaN) are bridged by straight lines for the filter, and are missing afterwards too.
    """
    from scipy.signal import resample_poly

    own = signal.sampling_rate or sampling_rate
    if own == sampling_rate:
        return signal
    ratio = Fraction(sampling_rate / own).limit_denominator(1000)
    gaps, steps = np.isnan(signal.values), np.arange(len(signal.values))
    lines = [np.interp(steps, steps[~gap], own[~gap]) if not gap.all() else np.zeros(len(own))
             for own, gap in zip(signal.values.T, gaps.T, strict=True)]  # fmt: skip
    values = resample_poly(np.stack(lines, axis=1), ratio.numerator, ratio.denominator, axis=0, padtype="line")
    before = np.arange(len(values)) * ratio.denominator // ratio.numerator  # the sample at or before each
    values[gaps[before]] = np.nan
    return signal._replace(values=values.astype(np.float32), sampling_rate=sampling_rate)


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

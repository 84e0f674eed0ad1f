"""WFDB records: a fast, checked reader of format 16, and the wfdb package for every other format.

Format 16 (PTB-XL, most 12-lead sets) is little-endian int16, leads interleaved. The header names for each lead the
first value and the sum of all samples modulo 65,536; both are checked, so a truncated or altered file is found.
Place in the pipeline: `ptbxl` and `own` read records through this file.
"""

from __future__ import annotations

import os
import re
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from wavessm.errors import DataError, MissingExtraError

_MISSING = -32768  # WFDB's mark for "no sample" in format 16
_FORMAT = re.compile(r"(\d+)(x\d+)?(:\d+)?(\+\d+)?")
_GAIN = re.compile(r"([-+0-9.eE]+)(?:\(([-+0-9]+)\))?(?:/(.*))?")


class Lead(NamedTuple):
    """One signal line of a header."""

    file: str
    format: str
    gain: float  # units per physical unit
    baseline: int
    units: str
    first: int | None
    checksum: int | None
    name: str


class Header(NamedTuple):
    """A parsed .hea file."""

    rate: float
    samples: int
    leads: tuple[Lead, ...]
    segments: int

    @property
    def plain(self) -> bool:
        """Whether the fast path can read it: one segment, one file, format 16 without extras."""
        same = {(lead.file, lead.format) for lead in self.leads}
        return self.segments == 0 and len(same) == 1 and self.leads[0].format == "16"


class Record(NamedTuple):
    """A record in physical units."""

    values: np.ndarray  # (samples, leads) float32
    rate: float
    names: tuple[str, ...]
    units: tuple[str, ...]


def parse_header(text: str, path: str) -> Header:
    """The fields of a .hea file; `path` is for messages.

    >>> header = parse_header("r 1 100 4\\nr.dat 16 1000.0(0)/mV 16 0 -2 65530 0 II\\n", "r.hea")
    >>> header.rate, header.samples, header.leads[0].gain, header.leads[0].name
    (100.0, 4, 1000.0, 'II')
    """
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    try:
        fields = lines[0].split()
        segments = int(fields[0].split("/")[1]) if "/" in fields[0] else 0
        count = int(fields[1])
        rate = float(re.split(r"[/(]", fields[2])[0]) if len(fields) > 2 else 250.0
        samples = int(fields[3]) if len(fields) > 3 else 0
        leads = () if segments else tuple(_parse_lead(line) for line in lines[1 : count + 1])
    except (IndexError, ValueError, AttributeError) as reason:
        raise DataError(f"{path}: not a WFDB header ({reason or 'it is empty'}).") from reason
    if not segments and len(leads) != count:
        raise DataError(f"{path}: truncated header, {len(leads)} of {count} signal lines.")
    return Header(rate, samples, leads, segments)


def _parse_lead(line: str) -> Lead:
    fields = line.split(maxsplit=8)
    plain, *extras = _FORMAT.fullmatch(fields[1]).groups()  # type: ignore[union-attr]
    gain, baseline, units = (_GAIN.fullmatch(fields[2]).groups() if len(fields) > 2 else (0, None, None))  # type: ignore[union-attr]  # fmt: skip
    zero = int(fields[4]) if len(fields) > 4 else 0
    return Lead(
        fields[0],
        fields[1] if any(extras) else plain,
        float(gain) or 200.0,
        int(baseline) if baseline else zero,
        units or "mV",
        int(fields[5]) if len(fields) > 5 else None,
        int(fields[6]) if len(fields) > 6 else None,
        fields[8].strip() if len(fields) > 8 else "",
    )


def read_header(path: str) -> Header:
    """The header of the record `path` (without suffix)."""
    try:
        with open(path + ".hea", encoding="latin-1") as file:
            return parse_header(file.read(), path + ".hea")
    except FileNotFoundError:
        raise DataError(f"{path}.hea: the header is missing.") from None
    except OSError as reason:
        raise DataError(f"{path}.hea: unreadable ({reason.strerror}).") from reason


def read_samples(path: str, header: Header) -> np.ndarray:
    """The integers (samples, leads) int16 of a plain record, size and presence checked; see `check_samples`."""
    file = os.path.join(os.path.dirname(path), header.leads[0].file)
    try:
        with open(file, "rb") as handle:
            data = handle.read()
    except FileNotFoundError:
        raise DataError(f"{file}: the signal file is missing.") from None
    except OSError as reason:
        raise DataError(f"{file}: unreadable ({reason.strerror}).") from reason
    width = 2 * len(header.leads)
    samples = header.samples or len(data) // width
    if len(data) != samples * width or not data:
        word = "truncated" if len(data) < samples * width or not data else "too long"
        raise DataError(f"{file}: {word}, {len(data):,} bytes, expected {samples * width:,} by its header.")
    return np.frombuffer(data, "<i2").reshape(samples, -1)


def check_samples(path: str, header: Header, values: np.ndarray) -> None:
    """First values, checksums and missing samples of `values` (samples, leads) int16, against the header."""
    _check_sums(path, header, values)
    if values.min() == _MISSING:
        gaps = np.argwhere(values == _MISSING)
        row, column = gaps[0]
        raise DataError(f"{path}: NaN in lead {header.leads[column].name}, sample {row} ({len(gaps)} in all).")


def _check_sums(path: str, header: Header, values: np.ndarray) -> None:
    sums = values.sum(axis=0, dtype=np.int64) & 0xFFFF
    for lead, first, total in zip(header.leads, values[0], sums, strict=True):
        if lead.first is not None and lead.first != first:
            raise DataError(f"{path}: lead {lead.name} begins with {first}, its header says {lead.first}: damaged.")
        if lead.checksum is not None and (lead.checksum - int(total)) & 0xFFFF:
            raise DataError(
                f"{path}: lead {lead.name} has checksum {total}, its header says {lead.checksum & 0xFFFF}: damaged."
            )


def read_record(path: str | Path) -> Record:
    """A record (path without suffix, or with .hea or .dat) in physical units, checked.

    Raises `DataError` naming the file where it is missing, truncated, damaged or has missing samples.
    """
    path = re.sub(r"\.(hea|dat)$", "", os.fspath(path))
    header = read_header(path)
    if not header.plain:
        return _read_by_wfdb(path, header)
    integers = read_samples(path, header)
    check_samples(path, header, integers)
    baseline = np.array([lead.baseline for lead in header.leads], np.float64)
    gain = np.array([lead.gain for lead in header.leads], np.float64)
    values = ((integers - baseline) / gain).astype(np.float32)
    return Record(values, header.rate, *_titles(header.leads))


def _titles(leads: tuple[Lead, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return tuple(lead.name for lead in leads), tuple(lead.units for lead in leads)


def import_wfdb() -> Any:
    """The wfdb package, without what it makes pandas remark on."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import wfdb
    except ImportError as reason:
        raise MissingExtraError(
            "this WFDB format needs the wfdb package; install it with pip install 'wavessm[train]'."
        ) from reason
    return wfdb


def _read_by_wfdb(path: str, header: Header) -> Record:
    wfdb = import_wfdb()
    whole = header.segments == 0 and all(lead.format.isdigit() for lead in header.leads)  # samples as they were stored
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            record = wfdb.rdrecord(path, physical=not whole)
    except Exception as reason:  # wfdb raises whatever its parsing meets
        what = " ".join(str(reason).split()) or type(reason).__name__
        raise DataError(f"{path}: wfdb cannot read it ({what}).") from reason
    if whole:
        _check_sums(path, header, record.d_signal)  # wfdb does not
        record.p_signal = record.dac()
    values = np.asarray(record.p_signal, np.float32)
    if (gaps := np.argwhere(~np.isfinite(values))).size:
        row, column = gaps[0]
        raise DataError(f"{path}: NaN in lead {record.sig_name[column]}, sample {row} ({len(gaps)} in all).")
    return Record(values, float(record.fs), tuple(record.sig_name), tuple(record.units))

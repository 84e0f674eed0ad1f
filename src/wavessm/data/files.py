"""One reader for each kind of file: WAV, NumPy arrays, CSV columns, WFDB records. Training and prediction use them.

`tables.py` reads tables with dates.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import re
import struct
import warnings
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from wavessm.data.tables import DATE_NAMES, LARGEST, counted, first_line, is_number, numbers, read_table
from wavessm.errors import DataError, OptionError, import_extra

log = logging.getLogger("wavessm.data")
UNKNOWN_SIZE = 0xFFFFFFFF  # written by programs that stream into a WAV file
VOLTS = {"v": 1.0, "mv": 1e-3, "uv": 1e-6, "nv": 1e-9}


class Signal(NamedTuple):
    """One recording."""

    values: np.ndarray  # (length, channels) float32
    sampling_rate: float | None  # hertz
    channels: tuple[str, ...] = ()
    units: tuple[str, ...] = ()
    times: np.ndarray | None = None  # (length,) float64


def read_signal(path: str | Path, timed: bool = False) -> Signal:
    """Read one recording by its suffix.

    Args:
        path: .wav, .npy (length,) or (length, channels), .csv (a column each, `date` left out; a first line of numbers
            alone is a sample), or a WFDB record (.hea, .dat).
        timed: the first column of a .npy or .csv file holds times, which increase.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if timed and suffix not in (".npy", ".csv"):
        raise OptionError(f"{path}: its samples are evenly spaced; times are the first column of a .npy or .csv file.")
    if suffix == ".wav":
        return read_wav(path)
    if suffix in (".hea", ".dat"):
        return read_record(path)
    if suffix == ".csv":
        return _read_columns(path, timed)
    if suffix == ".npy":
        values = read_npy(path)
        if values.ndim not in (1, 2) or values.dtype.kind not in "buif":
            raise DataError(f"{path}: shape {values.shape} of {values.dtype}, expected numbers (length, channels).")
        return _split_times(values if values.ndim == 2 else values[:, None], (), timed, path)
    raise DataError(f"{path}: unknown kind of file {suffix or 'without suffix'!r}; expected .wav, .npy, .csv or .hea.")


def _split_times(values: np.ndarray, names: tuple[str, ...], timed: bool, path: Path) -> Signal:
    """A signal of columns (length, channels), or of times and then channels."""
    if not timed:
        return Signal(to_float32(values, path), None, names)
    times = check_times(values[:, 0].astype(np.float64), path)
    return Signal(to_float32(values[:, 1:], path), None, names[1:], times=times)


def check_times(times: np.ndarray, where: Any) -> np.ndarray:
    """Return times (length,) as they are, or raise `DataError` where they do not increase."""
    for at in np.flatnonzero(~((np.diff(times) > 0) & np.isfinite(times[1:]))):
        raise DataError(f"{where}: times do not increase, {times[at + 1]:.10g} at step {at + 1} comes after "
                        f"{times[at]:.10g}; sort them, drop doubles.")  # fmt: skip
    return times


def read_npy(path: Path) -> np.ndarray:
    """Read an array file; ragged ones (arrays of objects) and damaged ones are refused."""
    try:
        with np.errstate(all="ignore"):  # a header may say anything; mapping the file holds it to the size
            return np.array(np.lib.format.open_memmap(path, mode="r"))
    except FileNotFoundError:
        raise DataError(f"{path}: no such file.") from None
    except Exception as reason:  # NumPy raises whatever its parsing meets
        if "Python objects" in str(reason):
            raise DataError(f"{path}: ragged (an array of objects), expected rows of one length: fill up with zeros "
                            "and give lengths.npy, or, for text, save it with astype(str).") from reason  # fmt: skip
        raise DataError(f"{path}: not a readable .npy file ({' '.join(str(reason).split())[:200]}).") from reason


def to_float32(values: np.ndarray, where: Any) -> np.ndarray:
    """Return numbers as float32; one that is finite, but beyond float32, raises `DataError`."""
    with np.errstate(over="ignore"):
        single = values.astype(np.float32)
    if (large := np.argwhere(np.isinf(single) & np.isfinite(values))).size:
        raise DataError(f"{where}: {values[tuple(large[0])]:g} at {tuple(large[0].tolist())}, expected numbers up to "
                        f"{LARGEST:.2g}, the largest of float32 ({len(large)} in all); scale the data.")  # fmt: skip
    return single


def pick_leads(signal: Signal, leads: Sequence[str], where: Any) -> Signal:
    """Return some leads of a record in this order, by name (letter case does not matter) or by position from 0."""
    names = [name.upper() for name in signal.channels]
    rows = []
    for lead in leads:
        if lead.upper() not in names and not (lead.isdecimal() and int(lead) < len(names)):
            raise DataError(f"{where}: no lead {lead!r}; it has {', '.join(signal.channels)}.")
        rows.append(names.index(lead.upper()) if lead.upper() in names else int(lead))
    picked = [tuple(each[row] for row in rows) if each else () for each in (signal.channels, signal.units)]
    return signal._replace(values=signal.values[:, rows], channels=picked[0], units=picked[1])


def align(signal: Signal, channels: Sequence[str], units: Sequence[str], where: Any) -> np.ndarray:
    """Return the samples (length, channels) of training's leads in its units, where names and units are known.

    A lead that is not there, or a unit that is no volt, millivolt or microvolt and differs, raises `DataError`.
    """
    if signal.channels and channels:
        signal = pick_leads(signal, channels, where)
    found, expected = list(map(unit_name, signal.units)), list(map(unit_name, units))
    if found == expected or len(found) != len(expected):
        return signal.values
    pairs = list(zip(found, expected, strict=True))
    if any(own != other and not {own, other} <= VOLTS.keys() for own, other in pairs):
        raise DataError(f"{where}: in {', '.join(found)}, expected {', '.join(expected)} as in training.")
    factors = [VOLTS.get(own, 1.0) / VOLTS.get(other, 1.0) for own, other in pairs]
    return to_float32(signal.values * np.array(factors), where)


def resample(signal: Signal, sampling_rate: float) -> Signal:
    """Return a record at another sampling rate, low-passed by a polyphase filter where that is lower.

    Missing samples (NaN) are bridged by straight lines for the filter, and are missing afterwards too.
    """
    from scipy.signal import resample_poly

    if (own := signal.sampling_rate or sampling_rate) == sampling_rate:
        return signal
    ratio = Fraction(sampling_rate / own).limit_denominator(1000)
    gaps, steps = np.isnan(signal.values), np.arange(len(signal.values))
    lines = [np.interp(steps, steps[~gap], own[~gap]) if not gap.all() else np.zeros(len(own))
             for own, gap in zip(signal.values.T, gaps.T, strict=True)]  # fmt: skip
    values = resample_poly(np.stack(lines, axis=1), ratio.numerator, ratio.denominator, axis=0, padtype="line")
    before = np.arange(len(values)) * ratio.denominator // ratio.numerator  # the sample at or before each
    values[gaps[before]] = np.nan
    return signal._replace(values=values.astype(np.float32), sampling_rate=sampling_rate)


def unit_name(unit: str) -> str:
    """Return a unit as it is compared: letter case and the sign for micro do not matter."""
    return unit.lower().replace("\u00b5", "u").replace("\u03bc", "u")


def _read_columns(path: Path, timed: bool) -> Signal:
    """A CSV file; a first line with names and numbers is refused, since it may be a sample with a fault."""
    header = first_line(path)
    numeric = [is_number(name) for name in header if name.lower() != "date"]
    if any(numeric) and not all(numeric):
        raise DataError(f"{path}: the first line is {','.join(header)[:60]!r}; expected names or numbers, not both.")
    bare = any(numeric) and len(numeric) == len(header) and not counted(header)
    table = read_table(path, bare=bare)
    if len(table) == 0:
        raise DataError(f"{path}: no rows below the header.")
    names = [name for name in table.columns if timed or name.lower() not in DATE_NAMES]
    if left_out := {*table.columns} - {*names, "date"}:
        log.warning("%s: column %r is left out; predict --times reads it", path, left_out.pop())
    values = numbers(table, names, path, gaps=True)
    if len(table.columns) == 1:  # an empty line is then an empty field, which pandas passes over
        lines = path.read_text(encoding="utf-8-sig").strip().splitlines()[not bare :]
        known, values = values, np.full((len(lines), 1), np.nan)
        values[[bool(line.strip()) for line in lines]] = known
    return _split_times(values, () if bare else tuple(names), timed, path)


# -- WAV --------------------------------------------------------------------------------------------------------------


class WavHeader(NamedTuple):
    """What precedes the samples of a WAV file."""

    code: int  # number format: 1 is PCM, 3 float
    bits: int
    channels: int
    sampling_rate: int
    size: int  # bytes of samples; 0 or UNKNOWN_SIZE where the writer did not know


def read_wav(path: str | Path) -> Signal:
    """Read a WAV file: (length, channels), in [-1, 1] for PCM. Truncated and unreadable files raise `DataError`."""
    path = Path(path)
    values, rate = wav_samples(path, "float32")
    if not len(values):
        raise DataError(f"{path}: no samples in this WAV file.")
    if (gaps := np.argwhere(~np.isfinite(values))).size:
        raise DataError(f"{path}: NaN at sample {gaps[0][0]}, channel {gaps[0][1]} ({len(gaps)} in all).")
    return Signal(values, float(rate))


def wav_samples(path: Path, dtype: str) -> tuple[np.ndarray, int]:
    """Return samples (length, channels) of a WAV file as `dtype`, and their sampling rate."""
    try:
        size = path.stat().st_size
        with open(path, "rb") as file:
            header, there = wav_header(file, path), size - file.tell()
            rf64 = file.seek(0) == 0 and file.read(4) == b"RF64"
    except OSError as reason:
        raise DataError(f"{path}: unreadable ({reason.strerror}).") from reason
    # libsndfile would read what is there without a word
    if header.size > there and header.size != UNKNOWN_SIZE and not rf64:
        raise DataError(f"{path}: truncated, {there:,} bytes of sound, expected {header.size:,} by its header.")
    soundfile = import_extra("soundfile", "WAV files")
    try:
        return soundfile.read(path, dtype=dtype, always_2d=True)
    except (RuntimeError, OSError, ValueError) as reason:
        raise DataError(f"{path}: not a readable WAV file ({' '.join(str(reason).split())}).") from reason


def wav_header(file: IO[bytes], path: Path) -> WavHeader:
    """Read the header of an open WAV file and leave it at the first sample; an incomplete one raises `DataError`."""
    start = file.read(12)
    if len(start) < 12 or start[8:] != b"WAVE" or start[:4] not in (b"RIFF", b"RIFX", b"RF64"):
        raise DataError(f"{path}: not a WAV file (no RIFF/WAVE header).")
    order = ">" if start[:4] == b"RIFX" else "<"
    form = (0, 0, 0, 0)
    while len(head := file.read(8)) == 8:
        name, size = head[:4], struct.unpack(order + "I", head[4:])[0]
        if name == b"data":
            return WavHeader(*form, size)
        body = file.read(size + size % 2)
        if name == b"fmt " and len(body) >= 16:
            code, channels, rate, _, block, bits = struct.unpack(order + "HHIIHH", body[:16])
            if code == 0xFFFE and len(body) >= 26:  # the true format comes later
                code = struct.unpack(order + "H", body[24:26])[0]
            form = (code, bits, channels, rate)
            if code in (1, 3) and bits != 24 and block != channels * -(-bits // 8):  # some keep 24 bits in four bytes
                raise DataError(f"{path}: its header contradicts itself: {channels} channels of {bits} bits in {block} "
                                "bytes.")  # fmt: skip
    raise DataError(f"{path}: truncated, it ends before its data.")


# -- WFDB -------------------------------------------------------------------------------------------------------------


def read_record(path: str | Path) -> Signal:
    """Read a WFDB record (without suffix, or with .hea or .dat) in physical units, checked; NaN is a missing sample.

    The wfdb package reads it. First values and sums are held to those of the header, which the package does not do.

    Raises:
        DataError: naming the file where it is missing, truncated or damaged.
    """
    base, wfdb = re.sub(r"\.(hea|dat)$", "", os.fspath(path)), import_extra("wfdb", "WFDB records")
    units = _read_units(Path(f"{base}.hea"))
    with call_wfdb(base):
        record = wfdb.rdrecord(base, physical=False)
        values, firsts, sums = record.dac(), record.d_signal[0], record.d_signal.sum(axis=0, dtype=np.int64)
    if not 0 < record.fs < math.inf:
        raise DataError(f"{base}.hea: a sampling rate of {record.fs:g} Hz, expected one above 0.")
    for lead, name in enumerate(record.sig_name):
        if record.samps_per_frame[lead] != 1:  # wfdb gives the mean of several samples
            continue
        for what, found, said in (
            ("first value", firsts[lead], record.init_value[lead]), ("checksum", sums[lead], record.checksum[lead])
        ):  # fmt: skip
            if said is not None and (said - int(found)) & 0xFFFF:
                raise DataError(f"{base}: lead {name} has the {what} {found}, its header says {said}: damaged.")
    return Signal(to_float32(values, path), float(record.fs), tuple(name or "" for name in record.sig_name), units)


def _read_units(file: Path) -> tuple[str, ...]:
    """The units of a header, of which wfdb keeps ASCII alone (µV would be V).

    Records of several segments are refused, and signal files that are missing or in other folders than their header.
    """
    try:
        lines = (line.split() for line in file.read_text(encoding="latin-1").splitlines())
    except OSError as reason:
        raise DataError(f"{file}: the header is missing or unreadable ({reason.strerror}).") from reason
    first, *leads = [words for words in lines if words and words[0][0] != "#"] or [[""]]
    if "/" in first[0] or first[1:2] != [str(len(leads))]:
        raise DataError(f"{file}: not a WFDB header of one segment with a line for each signal.")
    for name in {words[0] for words in leads}:
        if not inside(file.parent / name, [file.parent]).is_file():
            raise DataError(f"{file.parent / name}: the signal file is missing.")
    return tuple("".join(words[2:3]).partition("/")[2] or "mV" for words in leads)


@contextlib.contextmanager
def call_wfdb(what: str) -> Iterator[None]:
    """Turn whatever the wfdb package raises into a `DataError` that names the file."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except Exception as reason:
        said = " ".join(str(reason).split()) or type(reason).__name__
        raise DataError(f"{what}: wfdb cannot read it, truncated or damaged ({said}).") from reason


def inside(path: str | Path, folders: Sequence[str | Path]) -> Path:
    """Return a path that came from a file or a page, if it lies in one of the folders, links resolved; else raise."""
    try:
        fine = any(Path(path).resolve().is_relative_to(Path(folder).resolve()) for folder in folders)
    except (OSError, ValueError, RuntimeError):  # loops of links, a zero byte
        fine = False
    if not fine:
        given = ", ".join(map(str, folders)) or "none"
        raise DataError(f"{path}: outside of the folders that may be read ({given}); move it there or give its folder.")
    return Path(path)

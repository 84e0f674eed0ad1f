"""One reader for each kind of file: WAV, NumPy arrays, CSV columns, WFDB records. Training and prediction use them.

WFDB records of format 16 (PTB-XL, most 12-lead sets) are read here: little-endian int16, leads interleaved; the header
names for each lead the first value and the sum of all samples modulo 65,536, and both are checked. The wfdb package
reads the other formats. `tables.py` reads tables with dates.
"""

from __future__ import annotations

import os
import re
import struct
import warnings
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from wavessm.data.tables import counted, first_line, is_number, numbers, read_table
from wavessm.errors import DataError, MissingExtraError

UNKNOWN_SIZE = 0xFFFFFFFF  # written by programs that stream into a WAV file
_MISSING = -32768  # WFDB's mark for "no sample" in format 16
_FORMAT = re.compile(r"(\d+)(x\d+)?(:\d+)?(\+\d+)?")
_GAIN = re.compile(r"([-+0-9.eE]+)(?:\(([-+0-9]+)\))?(?:/(.*))?")


class Signal(NamedTuple):
    """One recording."""

    values: np.ndarray  # (length, channels) float32
    sampling_rate: float | None  # hertz
    channels: tuple[str, ...] = ()
    units: tuple[str, ...] = ()


def read_signal(path: str | Path) -> Signal:
    """Read one recording by its suffix.

    Args:
        path: .wav, .npy (length,) or (length, channels), .csv (a column each, `date` left out; a first line of numbers
            alone is a sample), or a WFDB record (.hea, .dat).
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix == ".wav":
        return read_wav(path)
    if suffix in (".hea", ".dat"):
        return read_record(path)
    if suffix == ".csv":
        return _read_columns(path)
    if suffix == ".npy":
        values = read_npy(path)
        if values.ndim not in (1, 2) or values.dtype.kind not in "buif":
            raise DataError(f"{path}: shape {values.shape} of {values.dtype}, expected numbers (length, channels).")
        return Signal(values.reshape(len(values), -1).astype(np.float32), None)
    raise DataError(f"{path}: unknown kind of file {suffix or 'without suffix'!r}; expected .wav, .npy, .csv or .hea.")


def read_npy(path: Path) -> np.ndarray:
    """Read an array file; ragged ones (arrays of objects) and damaged ones are refused."""
    try:
        return np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file.") from None
    except (ValueError, EOFError, OSError) as reason:
        if "allow_pickle" in str(reason) or "Object arrays" in str(reason):
            raise DataError(
                f"{path}: ragged (an array of objects), expected rows of one length: fill cases up with zeros and give "
                f"lengths.npy, or, for text, save it with astype(str)."
            ) from reason
        raise DataError(f"{path}: not a readable .npy file ({' '.join(str(reason).split())}).") from reason


def _read_columns(path: Path) -> Signal:
    """A CSV file; a first line with names and numbers is refused, since it may be a sample with a fault."""
    header = first_line(path)
    numeric = [is_number(name) for name in header if name.lower() != "date"]
    if any(numeric) and not all(numeric):
        raise DataError(f"{path}: the first line is {','.join(header)[:60]!r}; expected names or numbers, not both.")
    bare = any(numeric) and len(numeric) == len(header) and not counted(header)
    table = read_table(path, bare=bare)
    if len(table) == 0:
        raise DataError(f"{path}: no rows below the header.")
    names = [str(name) for name in table.columns if str(name).lower() != "date"]
    return Signal(numbers(table, names, path).astype(np.float32), None, () if bare else tuple(names))


# -- WAV --------------------------------------------------------------------------------------------------------------


class WavHeader(NamedTuple):
    """What precedes the samples of a WAV file."""

    code: int  # number format: 1 is PCM, 3 float
    bits: int
    channels: int
    sampling_rate: int
    start: int  # byte at which the samples start
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
            header = wav_header(file, path)
            rf64 = file.seek(0) == 0 and file.read(4) == b"RF64"
    except OSError as reason:
        raise DataError(f"{path}: unreadable ({reason.strerror}).") from reason
    # libsndfile would read what is there without a word
    if header.size > size - header.start and header.size != UNKNOWN_SIZE and not rf64:
        raise DataError(f"{path}: truncated, {size - header.start:,} bytes of sound, expected {header.size:,} by its "
                        "header.")  # fmt: skip
    try:
        import soundfile
    except ImportError as reason:
        raise MissingExtraError("WAV files need soundfile; install it with pip install 'wavessm[train]'.") from reason
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
            return WavHeader(*form, file.tell(), size)
        body = file.read(size + size % 2)
        if name == b"fmt " and len(body) >= 16:
            code, channels, rate, _, _, bits = struct.unpack(order + "HHIIHH", body[:16])
            if code == 0xFFFE and len(body) >= 26:  # the true format comes later
                code = struct.unpack(order + "H", body[24:26])[0]
            form = (code, bits, channels, rate)
    raise DataError(f"{path}: truncated, it ends before its data.")


# -- WFDB -------------------------------------------------------------------------------------------------------------


class Lead(NamedTuple):
    """One signal line of a WFDB header."""

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

    sampling_rate: float
    samples: int
    leads: tuple[Lead, ...]
    segments: int

    @property
    def plain(self) -> bool:
        """Whether it can be read without the wfdb package: one segment, one file, format 16 without extras."""
        same = {(lead.file, lead.format) for lead in self.leads}
        return self.segments == 0 and len(same) == 1 and self.leads[0].format == "16"


def parse_header(text: str, path: str) -> Header:
    """Return the fields of a .hea file; `path` is for messages.

    >>> header = parse_header("r 1 100 4\\nr.dat 16 1000.0(0)/mV 16 0 -2 65530 0 II\\n", "r.hea")
    >>> header.sampling_rate, header.samples, header.leads[0].gain, header.leads[0].name
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
    """Read the header of the record `path` (without suffix)."""
    return parse_header(_read_bytes(path + ".hea", "header").decode("latin-1"), path + ".hea")


def _read_bytes(file: str, what: str) -> bytes:
    try:
        return Path(file).read_bytes()
    except FileNotFoundError:
        raise DataError(f"{file}: the {what} is missing.") from None
    except OSError as reason:
        raise DataError(f"{file}: unreadable ({reason.strerror}).") from reason


def read_samples(path: str, header: Header) -> np.ndarray:
    """Return the integers (samples, leads) int16 of a plain record, of the size that its header says."""
    file = os.path.join(os.path.dirname(path), header.leads[0].file)
    data = _read_bytes(file, "signal file")
    width = 2 * len(header.leads)
    samples = header.samples or len(data) // width
    if len(data) != samples * width or not data:
        word = "truncated" if len(data) < samples * width or not data else "too long"
        raise DataError(f"{file}: {word}, {len(data):,} bytes, expected {samples * width:,} by its header.")
    return np.frombuffer(data, "<i2").reshape(samples, -1)


def check_samples(path: str, header: Header, values: np.ndarray) -> None:
    """Compare first values, checksums and missing samples of `values` (samples, leads) int16 with the header."""
    _check_sums(path, header, values)
    _check_gaps(path, values == _MISSING, [lead.name for lead in header.leads])


def _check_gaps(path: str, gaps: np.ndarray, names: list[str]) -> None:
    if gaps.any():
        row, column = np.argwhere(gaps)[0]
        raise DataError(f"{path}: NaN in lead {names[column]}, sample {row} ({gaps.sum()} in all).")


def _check_sums(path: str, header: Header, values: np.ndarray) -> None:
    sums = values.sum(axis=0, dtype=np.int64) & 0xFFFF
    for lead, first, total in zip(header.leads, values[0], sums, strict=True):
        if lead.first is not None and lead.first != first:
            raise DataError(f"{path}: lead {lead.name} begins with {first}, its header says {lead.first}: damaged.")
        if lead.checksum is not None and (lead.checksum - int(total)) & 0xFFFF:
            raise DataError(
                f"{path}: lead {lead.name} has checksum {total}, its header says {lead.checksum & 0xFFFF}: damaged."
            )


def read_record(path: str | Path) -> Signal:
    """Read a WFDB record in physical units, checked.

    Args:
        path: without suffix, or with .hea or .dat.

    Raises:
        DataError: naming the file where it is missing, truncated, damaged or has missing samples.
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
    names, units = (tuple(getattr(lead, field) for lead in header.leads) for field in ("name", "units"))
    return Signal(values, header.sampling_rate, names, units)


def import_wfdb() -> Any:
    """Return the wfdb package, without what it makes pandas warn about."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import wfdb
    except ImportError as reason:
        raise MissingExtraError(
            "this WFDB format needs the wfdb package; install it with pip install 'wavessm[train]'."
        ) from reason
    return wfdb


def _read_by_wfdb(path: str, header: Header) -> Signal:
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
    _check_gaps(path, ~np.isfinite(values), record.sig_name)
    return Signal(values, float(record.fs), tuple(record.sig_name), tuple(record.units))

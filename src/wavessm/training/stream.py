"""Predictions on data that are still coming: standard input, a text file or a WAV file that grows.

Text has one sample per line, fields separated by commas or blanks, with a header or without. A causal classifier keeps
its state and predicts from all samples so far after every chunk; a forecaster reads the latest context.
"""

from __future__ import annotations

import csv
import itertools
import logging
import math
import os
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from wavessm.data.files import UNKNOWN_SIZE, wav_header
from wavessm.data.source import DataInfo
from wavessm.data.tables import DATE_NAMES, Clock, counted, is_number, same_clock
from wavessm.data.windows import Series
from wavessm.errors import DataError, OptionError, check_int
from wavessm.nn.streaming import sampled
from wavessm.training.predict import Row, check_dates, check_values, decode, forecast_rows
from wavessm.training.run import Run
from wavessm.training.scores import read_thresholds

log = logging.getLogger("wavessm.training")
POLL_SECONDS = 0.1
_EXPECTED = "expected fields separated by commas or blanks, decimals with a point"
_PCM = {(1, 8): ("u1", 128, 2**7), (1, 16): ("<i2", 0, 2**15), (1, 32): ("<i4", 0, 2**31), (3, 32): ("<f4", 0, 1),
        (3, 64): ("<f8", 0, 1)}  # fmt: skip
Chunks = Iterator[tuple[np.ndarray, np.ndarray | None]]
"""Samples (≤ chunk, channels) with their dates in seconds, or None."""


def predict_stream(
    run: Run, source: Path | Iterable[str], chunk: int | None = None, rate: float = 1.0, idle: float = math.inf
) -> Iterator[list[Row]]:
    """Predict after every chunk of a stream.

    The first prediction is made before this returns, so a stream without one is refused before anything is written.

    Args:
        run: The run whose best model predicts.
        source: A growing .wav or text file, or lines of text.
        chunk: Samples between predictions; None takes a tenth of a second, or one sample.
        rate: Sampling rate of training divided by that of the stream. A WAV file says it itself.
        idle: Seconds without new data after which a file counts as complete.
    """
    size = max(1, round((run.info.sampling_rate or 0) / 10)) if chunk is None else check_int(chunk, "chunk", minimum=1)
    if run.info.kind == "forecast" and rate != 1:
        raise OptionError("a forecaster's steps are rows; it takes no other sampling rate.")
    if run.info.symbols or run.info.step_scale is not None:
        raise OptionError("this model reads tokens, or scales every step by itself; it cannot read a stream.")
    if run.info.kind != "forecast" and run.method == "gradient" and run.model.bidirectional:
        raise OptionError("this model also reads backwards and cannot stream; train one with --no-bidirectional.")
    chunks: Chunks
    if isinstance(source, Path) and source.suffix.lower() == ".wav":
        rate = wav_rate(run, source, rate)
        chunks = ((values, None) for values in follow_wav(source, idle, size))
    else:
        chunks = _parse_lines(_follow_lines(source, idle) if isinstance(source, Path) else source, run, size)
    rows = _forecasts(run, chunks) if run.info.kind == "forecast" else _decisions(run, chunks, rate)
    return itertools.chain([next(rows)], rows)


@torch.no_grad()
def _decisions(run: Run, chunks: Chunks, rate: float) -> Iterator[list[Row]]:
    model: Any = sampled(run.load_model(), rate)
    state, samples, thresholds = model.initial_state(1), 0, read_thresholds(run)
    if run.info.scaling == "recording":
        log.warning("a stream is scaled by the level of all training recordings, not by its own, which is known at its "
                    "end; record at a like level, or train with --scaling global.")  # fmt: skip
    for values, _ in chunks:
        x = run.info.standardise(check_values(run, values, f"stream, from sample {samples}"), stream=True)
        output, state = model.stream(x[None], state, rate=rate)
        samples += len(values)
        yield [{"samples": samples, **decode(run.info, output[0], thresholds)}]
    if not samples:
        raise DataError("the stream ended without a sample.")


def _forecasts(run: Run, chunks: Chunks) -> Iterator[list[Row]]:
    info, model, rows, first = run.info, run.load_model(), 0, True
    past, seconds = np.empty((0, info.d_input)), np.empty(0, dtype=np.int64)
    for values, dates in chunks:
        check_values(run, values, f"stream, from row {rows}")
        rows += len(values)
        past = np.concatenate([past, values])[-info.length :]
        seconds = seconds if dates is None else np.concatenate([seconds, dates])[-info.length :]
        if len(past) == info.length:
            series = Series(past, info.channels, seconds if len(seconds) else None, "the stream")
            if first:
                check_dates(info, series)
                first = False
            yield [{"rows": rows, **row} for row in forecast_rows(run, model, series)]
    if rows < info.length:
        raise DataError(f"the stream ended after {rows} rows; the model needs a context of {info.length}.")


def _poll(read: Callable[[], bytes | None], idle: float) -> Iterator[bytes]:
    """New data of a file, until `read` returns None or nothing has come for `idle` seconds."""
    since = time.monotonic()
    while (data := read()) is not None:
        if data:
            since = time.monotonic()
            yield data
        elif time.monotonic() - since > idle:
            return
        else:
            time.sleep(POLL_SECONDS)


def _follow_lines(path: Path, idle: float) -> Iterator[str]:
    with path.open("rb") as file:
        line = b""
        for data in _poll(file.readline, idle):
            line += data
            if line.endswith(b"\n"):
                yield line.decode()
                line = b""
        if line:
            yield line.decode()


def wav_rate(run: Run, path: Path, rate: float = 1.0) -> float:
    """Sampling rate of training divided by that of a WAV file; a `rate` that contradicts it is refused."""
    with path.open("rb") as file:
        sampling_rate = wav_header(file, path).sampling_rate
    if run.info.sampling_rate is None or not sampling_rate:
        return rate
    found = run.info.sampling_rate / sampling_rate
    if rate not in (1, found):
        raise OptionError(f"rate is {rate:g}, but {path} is at {sampling_rate} Hz and training was at "
                          f"{run.info.sampling_rate:g}, which makes {found:g}; leave it out.")  # fmt: skip
    return found


def follow_wav(path: Path, idle: float, chunk: int) -> Iterator[np.ndarray]:
    """Yield samples of a WAV file as they are written, (≤ chunk, channels) float32, whatever length its header says.

    They end before the file does only where another RIFF chunk of a complete file (a list of titles, say) follows them.
    """
    with path.open("rb") as file:
        header, held = wav_header(file, path), bytearray()
        big_endian = file.seek(0) == 0 and file.read(4) == b"RIFX"
        file.seek(header.start)
        if (header.code, header.bits) not in _PCM or not header.channels or big_endian:
            raise DataError(f"{path}: this kind of WAV cannot be followed; use 16-bit or float samples.")
        dtype, offset, scale = _PCM[header.code, header.bits]
        frame = header.channels * header.bits // 8
        end = None if header.size in (0, UNKNOWN_SIZE) else header.start + header.size

        def samples() -> np.ndarray:
            numbers = np.frombuffer(bytes(held[: len(held) // frame * frame]), dtype).astype(np.float32)
            held.clear()
            return ((numbers - offset) / scale).reshape(-1, header.channels)

        for data in _poll(lambda: _read_sound(file, chunk * frame - len(held), end), idle):
            held.extend(data)
            if len(held) == chunk * frame:
                yield samples()
        if len(held) >= frame:
            yield samples()


def _read_sound(file: IO[bytes], count: int, end: int | None) -> bytes | None:
    """The next bytes; None where another RIFF chunk starts at `end`, the last byte of sound by the header."""
    at = file.tell()
    if end is None or at > end:
        return file.read(count)
    if at < end:
        return file.read(min(count, end - at))
    file.seek(end % 2, os.SEEK_CUR)  # RIFF chunks start at even places
    head, left = file.read(8), os.fstat(file.fileno()).st_size - file.tell()
    file.seek(end)
    if len(head) < 8:
        return b""
    if head[:4].isascii() and head[:4].decode().isprintable() and struct.unpack("<I", head[4:])[0] <= left:
        return None
    return file.read(count)  # more sound than the header knew of


def _parse_lines(lines: Iterable[str], run: Run, chunk: int) -> Chunks:
    """Chunks of samples from lines of numbers; a header selects the columns."""
    info, rows, clock = run.info, _cells(lines), Clock("the stream")
    first = list(itertools.islice(rows, 1))
    names = first[0][1] if first and _is_header(info, first[0][1]) else None
    channels, date = (list(range(info.d_input)), None) if names is None else _columns(run, names)
    width = info.d_input if names is None else len(names)
    rows = rows if names is not None else itertools.chain(first, rows)
    while found := list(itertools.islice(rows, chunk)):
        values = np.array([_numbers(cells, channels, width, number) for number, cells in found])
        if date is None or not (info.mark_sizes or info.mark_width):
            yield values, None
        else:
            dates = np.array([clock.read(cells[date], number) for number, cells in found])
            same_clock(clock.offset or "", info.offset, "the stream")
            yield values, dates


def _cells(lines: Iterable[str]) -> Iterator[tuple[int, list[str]]]:
    """The number and the fields of every line that is not blank."""
    try:
        for number, line in enumerate(lines, start=1):
            line = line.removeprefix("\ufeff") if number == 1 else line  # the mark some programs start a file with
            if cells := next(csv.reader([line])) if "," in line else line.split():
                yield number, [cell.strip() for cell in cells]
    except (UnicodeDecodeError, csv.Error):
        raise DataError(f"the stream is not text in UTF-8; {_EXPECTED}.") from None


def _is_header(info: DataInfo, cells: list[str]) -> bool:
    """Whether a first line has no number in it, or all channels of the model beside something else."""
    if counted(cells) or all(cell and not is_number(cell) for cell in cells):
        return True
    return {*info.channels} < {*cells} and bool(info.channels) and not all(map(is_number, cells))


def _columns(run: Run, names: list[str]) -> tuple[list[int], int | None]:
    """Places of the channels and of the date under a header."""
    listed, info = ", ".join(names)[:60], run.info
    if any(";" in name for name in names):
        raise DataError(f"the stream begins with {listed!r}; {_EXPECTED}.")
    if len({*names}) < len(names):
        raise DataError(f"the stream has a column twice; its header has {listed}.")
    own = getattr(run.options, "date_column", None)
    date = next((at for at, name in enumerate(names) if (name == own if own else name.lower() in DATE_NAMES)), None)
    wanted = info.channels or tuple(name for at, name in enumerate(names) if at != date)
    if missing := [name for name in wanted if name not in names]:
        raise DataError(f"the stream has no column {missing[0]!r}; its header has {listed}.")
    if len(wanted) != info.d_input:
        raise DataError(f"the stream has columns {listed}; expected {info.d_input}, one per channel.")
    return [names.index(name) for name in wanted], date


def _numbers(cells: list[str], channels: list[int], width: int, number: int) -> list[float]:
    """The channels of a line of `width` fields."""
    if len(cells) != width:
        raise DataError(f"line {number} of the stream: {len(cells)} fields, expected {width}.")
    try:
        return [float(cells[at]) for at in channels]
    except ValueError:
        line = ",".join(cells)[:60]
        raise DataError(f"line {number} of the stream: {line!r} is not a row of numbers; {_EXPECTED}.") from None

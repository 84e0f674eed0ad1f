"""Stage 8o: predictions on a stream: standard input, or a file that grows.

Lines of numbers (comma or blanks, one sample a line, a header with names if there is one) or the samples of a WAV file
that is still being written. A causal classifier keeps its state and says after every chunk what it makes of all it has
heard; a forecaster looks at the latest context.
"""

from __future__ import annotations

import csv
import itertools
import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple, cast

import numpy as np
import torch

from wavessm.data.dates import DATE_NAMES, Clock, same_clock
from wavessm.data.series import Series
from wavessm.data.signals import UNKNOWN_SIZE
from wavessm.data.tables import counted, is_number
from wavessm.errors import DataError, OptionError
from wavessm.nn.model import SequenceModel
from wavessm.nn.streaming import sampled
from wavessm.training.folder import Run
from wavessm.training.predict import Row, check_values, forecast, judge, names_of

POLL_SECONDS = 0.1
_EXPECTED = "expected fields separated by commas or blanks, decimals with a point"
_PCM = {(1, 8): ("u1", 128, 2**7), (1, 16): ("<i2", 0, 2**15), (1, 32): ("<i4", 0, 2**31), (3, 32): ("<f4", 0, 1),
        (3, 64): ("<f8", 0, 1)}  # fmt: skip


def follow_lines(path: Path, idle: float) -> Iterator[str]:
    """Whole lines of a text file as they come, until nothing has come for `idle` seconds."""
    with path.open("rb") as file:
        held, since = b"", time.monotonic()
        while True:
            text = file.readline()
            if text:
                held, since = held + text, time.monotonic()
                if held.endswith(b"\n"):
                    yield held.decode()
                    held = b""
            elif time.monotonic() - since > idle:
                if held:
                    yield held.decode()
                return
            else:
                time.sleep(POLL_SECONDS)


def follow_wav(path: Path, idle: float, chunk: int) -> Iterator[np.ndarray]:
    """Samples of a WAV file as they are written, whatever length its header says. → (≤ chunk, channels)

    Only where something else of a finished file follows (a list of titles, say) do they end before the file does.
    """
    with path.open("rb") as file:
        (dtype, offset, scale), channels, width, _, length = _wav_header(file, path)
        since, held = time.monotonic(), b""
        size, end = channels * width, None if length in (0, UNKNOWN_SIZE) else file.tell() + length
        while True:
            data = _read_sound(file, chunk * size - len(held), end)
            if data:
                held, since = held + data, time.monotonic()
            idle_now = data is None or time.monotonic() - since > idle
            if len(held) == chunk * size or (idle_now and len(held) >= size):
                whole = held[: len(held) // size * size]
                held = held[len(whole) :]
                yield ((np.frombuffer(whole, dtype).astype(np.float32) - offset) / scale).reshape(-1, channels)
            elif idle_now:
                return
            elif not data:
                time.sleep(POLL_SECONDS)


def _read_sound(file: IO[bytes], count: int, end: int | None) -> bytes | None:
    """The next bytes, none where none have come; None where another chunk begins at `end`, that of the header."""
    at = file.tell()
    if end is None or at > end:
        return file.read(count)
    if at < end:
        return file.read(min(count, end - at))
    file.seek(end % 2, os.SEEK_CUR)  # chunks begin at even places
    head, there = file.read(8), os.fstat(file.fileno()).st_size - file.tell()
    file.seek(end)
    if len(head) < 8:
        return b""
    if head[:4].isascii() and head[:4].decode().isprintable() and struct.unpack("<I", head[4:])[0] <= there:
        return None
    return file.read(count)  # more sound than the header knew of


def wav_step(run: Run, path: Path, rate: float = 1.0) -> float:
    """The `rate` of `predict_stream` for a WAV file, by its header and the sampling rate of training."""
    with path.open("rb") as file:
        hertz = _wav_header(file, path)[3]
    if run.info.rate is None:
        return rate
    found = run.info.rate / hertz
    if rate not in (1, found):
        raise OptionError(f"rate is {rate:g}, but {path} is at {hertz} Hz and training was at {run.info.rate:g}, which "
                          f"makes {found:g}; leave it out.")  # fmt: skip
    return found


def _wav_header(file: IO[bytes], path: Path) -> tuple[tuple[str, int, int], int, int, int, int]:
    """Leaves the file at its first sample; number format, channels, bytes a number, samples a second, bytes of all."""
    start = file.read(12)
    if start[:4] != b"RIFF" or start[8:] != b"WAVE":
        raise DataError(f"{path}: not a WAV file; follow a .wav or a file of lines.")
    form, rate = None, 0
    while True:
        head = file.read(8)
        if len(head) < 8:
            raise DataError(f"{path}: the header of this WAV file is not complete.")
        name, length = head[:4], struct.unpack("<I", head[4:])[0]
        if name == b"data":
            break
        body = file.read(length + length % 2)
        if len(body) < length:
            raise DataError(f"{path}: the header of this WAV file is not complete.")
        if name == b"fmt ":
            code, channels, rate, _, _, bits = struct.unpack("<HHIIHH", body[:16])
            form = (struct.unpack("<H", body[24:26])[0] if code == 0xFFFE else code, bits), channels
    if form is None or form[0] not in _PCM or not form[1] or not rate:
        raise DataError(f"{path}: its samples are of a kind that cannot be followed; use 16-bit or float WAV.")
    return _PCM[form[0]], form[1], form[0][1] // 8, rate, length


def read_lines(lines: Iterator[str], run: Run, chunk: int) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
    """Chunks of samples (≤ chunk, channels) and their dates, from lines of numbers; a header chooses the columns."""
    header: _Header | None = None
    clock, dated = Clock("the stream"), bool(run.info.mark_sizes or run.info.mark_width)
    values: list[list[float]] = []
    dates: list[int] = []
    for row, (number, cells) in enumerate(_cells(lines)):
        if row == 0 and _are_names(run, cells):
            header = _Header.read(run, cells)
            continue
        values.append(_sample(run, header, number, cells))
        if dated and header is not None and header.date is not None:
            dates.append(clock.read(cells[header.date], number))
            same_clock(clock.offset or "", run.info.offset, "the stream")
        if len(values) == chunk:
            yield np.array(values), np.array(dates) if dates else None
            values, dates = [], []
    if values:
        yield np.array(values), np.array(dates) if dates else None


def _cells(lines: Iterator[str]) -> Iterator[tuple[int, list[str]]]:
    """The fields of every line that is not blank, with its number."""
    number = 0
    try:
        for number, line in enumerate(lines, start=1):
            if number == 1:
                line = line.removeprefix("\ufeff")  # some programs begin a file with this mark
            cells = next(csv.reader([line])) if "," in line else line.split()
            if cells:
                yield number, [cell.strip() for cell in cells]
    except UnicodeDecodeError:
        raise DataError(f"the stream is not text in UTF-8; {_EXPECTED}.") from None
    except csv.Error as reason:
        raise DataError(f"line {number} of the stream cannot be read ({reason}); {_EXPECTED}.") from None


def _are_names(run: Run, cells: list[str]) -> bool:
    """Whether a first line is a header: no number in it, or all channels of the model beside something else."""
    if counted(cells) or all(cell and not is_number(cell) for cell in cells):
        return True
    return {*run.info.channels} < {*cells} and bool(run.info.channels) and not all(map(is_number, cells))


class _Header(NamedTuple):
    """Where the channels and the date are in a line of so many fields."""

    channels: list[int]
    date: int | None
    size: int

    @classmethod
    def read(cls, run: Run, names: list[str]) -> _Header:
        shown = ", ".join(names)[:60]
        if any(";" in name for name in names):
            raise DataError(f"the stream begins with {shown!r}; {_EXPECTED}.")
        if len({*names}) < len(names):
            raise DataError(f"the stream has a column twice; its header has {shown}.")
        own = getattr(run.options, "date_column", None)
        dates = [own] if own else [name for name in names if name.lower() in DATE_NAMES]
        date = names.index(dates[0]) if dates and dates[0] in names else None
        wanted = run.info.channels or tuple(name for at, name in enumerate(names) if at != date)
        missing = [name for name in wanted if name not in names]
        if missing:
            raise DataError(f"the stream has no column {missing[0]!r}; its header has {', '.join(names)}.")
        if len(wanted) != run.info.d_input:
            raise DataError(f"the stream has columns {shown}; expected {run.info.d_input}, one a channel.")
        return cls([names.index(name) for name in wanted], date, len(names))


def _sample(run: Run, header: _Header | None, number: int, cells: list[str]) -> list[float]:
    """The channels of a line."""
    where = f"line {number} of the stream"
    if header is not None and len(cells) != header.size:
        raise DataError(f"{where}: {len(cells)} fields, expected {header.size}, one for each name of the header.")
    try:
        sample = [float(cell) for cell in (cells if header is None else [cells[at] for at in header.channels])]
    except ValueError:
        raise DataError(f"{where}: {','.join(cells)[:60]!r} is not a row of numbers; {_EXPECTED}.") from None
    if len(sample) != run.info.d_input:
        raise DataError(f"{where}: {len(sample)} numbers, expected {run.info.d_input}, one a channel.")
    return sample


def predict_stream(
    run: Run, chunks: Iterator[tuple[np.ndarray, np.ndarray | None]], rate: float = 1.0
) -> Iterator[list[Row]]:
    """After every chunk, the rows that can be said now. Returns when the first are there: a stream that has none is
    refused before anything is written.
    """
    if run.info.kind == "forecast":
        if rate != 1:
            raise OptionError("a forecaster's steps are rows; it takes no other sampling rate.")
        return _begun(_forecasts(run, run.load_model(), chunks))
    if run.info.symbols or run.info.step_scale is not None:
        raise OptionError("this model reads tokens, or scales every step by itself; it cannot hear a stream.")
    if run.model.bidirectional:
        raise OptionError("this model also reads backwards and cannot stream; train one with --no-bidirectional.")
    model = cast(SequenceModel, sampled(run.load_model(), rate))
    return _begun(_judgements(run, model, chunks, rate))


def _begun(answers: Iterator[list[Row]]) -> Iterator[list[Row]]:
    return itertools.chain([next(answers)], answers)


@torch.no_grad()
def _judgements(
    run: Run, model: SequenceModel, chunks: Iterator[tuple[np.ndarray, np.ndarray | None]], rate: float
) -> Iterator[list[Row]]:
    state, heard = model.initial_state(1), 0
    for values, _ in chunks:
        x = run.info.standardise(check_values(run.info, values, f"stream, from sample {heard}"))
        output, state = model.stream(x[None], state, rate=rate)
        heard += len(values)
        yield [{"samples": heard, **judge(run.info, output[0])}]
    if not heard:
        raise DataError("the stream ended without a sample.")


def _forecasts(
    run: Run, model: SequenceModel, chunks: Iterator[tuple[np.ndarray, np.ndarray | None]]
) -> Iterator[list[Row]]:
    info, heard = run.info, 0
    past, seconds = np.empty((0, info.d_input)), np.empty(0, dtype=np.int64)
    for values, dates in chunks:
        check_values(info, values, f"stream, from row {heard}")
        heard += len(values)
        past = np.concatenate([past, values])[-info.length :]
        seconds = np.concatenate([seconds, np.empty(0, np.int64) if dates is None else dates])[-info.length :]
        if len(past) == info.length:
            series = Series(past, info.channels, seconds if len(seconds) else None, "the stream")
            rows = forecast(run, model, series)
            yield [
                {"rows": heard, "step": step + 1, **dict(zip(names_of(info), row.tolist(), strict=True))}
                for step, row in enumerate(rows)
            ]
    if heard < info.length:
        raise DataError(f"the stream ended after {heard} rows; the model needs a context of {info.length}.")

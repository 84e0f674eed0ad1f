"""Stage 8o: predictions on a stream: standard input, or a file that grows.

Lines of numbers (comma or blanks, one sample a line, a header with names if there is one) or the samples of a WAV file
that is still being written. A causal classifier keeps its state and says after every chunk what it makes of all it has
heard; a forecaster looks at the latest context.
"""

from __future__ import annotations

import csv
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

import numpy as np
import torch

from wavessm.data.series import Series
from wavessm.errors import DataError, OptionError
from wavessm.models import SequenceModel
from wavessm.streaming import sampled
from wavessm.training.folder import Run
from wavessm.training.predict import DATE_NAMES, Row, check_values, forecast, judge, names_of

POLL_SECONDS = 0.1
_PCM = {(1, 8): ("u1", 128, 2**7), (1, 16): ("<i2", 0, 2**15), (1, 32): ("<i4", 0, 2**31), (3, 32): ("<f4", 0, 1),
        (3, 64): ("<f8", 0, 1)}  # fmt: skip


def follow_lines(path: Path, idle: float) -> Iterator[str]:
    """Whole lines of a text file as they come, until nothing has come for `idle` seconds."""
    with path.open() as file:
        held, since = "", time.monotonic()
        while True:
            text = file.readline()
            if text:
                held, since = held + text, time.monotonic()
                if held.endswith("\n"):
                    yield held
                    held = ""
            elif time.monotonic() - since > idle:
                if held:
                    yield held
                return
            else:
                time.sleep(POLL_SECONDS)


def follow_wav(path: Path, idle: float, chunk: int) -> Iterator[np.ndarray]:
    """Samples of a WAV file as they are written, whatever length its header says. → (≤ chunk, channels)"""
    with path.open("rb") as file:
        kind, channels, width = _wav_header(file, path)
        dtype, offset, scale = kind
        since, held = time.monotonic(), b""
        size = channels * width
        while True:
            data = file.read(chunk * size - len(held))
            if data:
                held, since = held + data, time.monotonic()
            idle_now = time.monotonic() - since > idle
            if len(held) == chunk * size or (idle_now and len(held) >= size):
                whole = held[: len(held) // size * size]
                held = held[len(whole) :]
                yield ((np.frombuffer(whole, dtype).astype(np.float32) - offset) / scale).reshape(-1, channels)
            elif idle_now:
                return
            elif not data:
                time.sleep(POLL_SECONDS)


def _wav_header(file: IO[bytes], path: Path) -> tuple[tuple[str, int, int], int, int]:
    """Leaves the file at its first sample; number format, channels, bytes a number."""
    start = file.read(12)
    if start[:4] != b"RIFF" or start[8:] != b"WAVE":
        raise DataError(f"{path}: not a WAV file; follow a .wav or a file of lines.")
    form = None
    while True:
        head = file.read(8)
        if len(head) < 8:
            raise DataError(f"{path}: the header of this WAV file is not complete.")
        name, length = head[:4], struct.unpack("<I", head[4:])[0]
        if name == b"data":
            break
        body = file.read(length + length % 2)
        if name == b"fmt ":
            code, channels, _, _, _, bits = struct.unpack("<HHIIHH", body[:16])
            form = (struct.unpack("<H", body[24:26])[0] if code == 0xFFFE else code, bits), channels
    if form is None or form[0] not in _PCM:
        raise DataError(f"{path}: its samples are of a kind that cannot be followed; use 16-bit or float WAV.")
    return _PCM[form[0]], form[1], form[0][1] // 8


def read_lines(lines: Iterator[str], run: Run, chunk: int) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
    """Chunks of samples (≤ chunk, channels) and their dates, from lines of numbers; a header chooses the columns."""
    columns: list[int] | None = None
    date: int | None = None
    values: list[list[float]] = []
    dates: list[str] = []
    for number, line in enumerate(lines, start=1):
        cells = next(csv.reader([line])) if "," in line else line.split()
        if not cells:
            continue
        if number == 1 and not _is_number(cells[-1]):
            columns, date = _columns(run, [cell.strip() for cell in cells])
            continue
        try:
            values.append([float(cell) for cell in (cells if columns is None else [cells[at] for at in columns])])
        except (ValueError, IndexError):
            raise DataError(f"line {number} of the stream: {line.strip()[:60]!r} is not a row of numbers.") from None
        if len(values[-1]) != run.info.d_input:
            raise DataError(
                f"line {number} of the stream: {len(values[-1])} numbers, expected {run.info.d_input}, one a channel."
            )
        if date is not None:
            dates.append(cells[date])
        if len(values) == chunk:
            yield np.array(values), _seconds(dates)
            values, dates = [], []
    if values:
        yield np.array(values), _seconds(dates)


def _columns(run: Run, header: list[str]) -> tuple[list[int] | None, int | None]:
    wanted = list(run.info.channels)
    date = next((at for at, name in enumerate(header) if name.lower() in DATE_NAMES), None)
    if not wanted:
        return [at for at in range(len(header)) if at != date], date
    missing = [name for name in wanted if name not in header]
    if missing:
        raise DataError(f"the stream has no column {missing[0]!r}; its header has {', '.join(header)}.")
    return [header.index(name) for name in wanted], date


def _seconds(dates: list[str]) -> np.ndarray | None:
    if not dates:
        return None
    try:
        return np.array(dates, dtype="datetime64[s]").astype(np.int64)
    except ValueError:
        raise DataError(f"the stream has a date {dates[0]!r}; expected one like 2024-05-01 13:00:00.") from None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def predict_stream(
    run: Run, chunks: Iterator[tuple[np.ndarray, np.ndarray | None]], rate: float = 1.0
) -> Iterator[list[Row]]:
    """After every chunk, the rows that can be said now."""
    if run.info.kind == "forecast":
        if rate != 1:
            raise OptionError("a forecaster's steps are rows; it takes no other sampling rate.")
        return _forecasts(run, run.load_model(), chunks)
    if run.info.symbols or run.info.step_scale is not None:
        raise OptionError("this model reads tokens, or scales every step by itself; it cannot hear a stream.")
    if run.model.bidirectional:
        raise OptionError("this model also reads backwards and cannot stream; train one with --no-bidirectional.")
    model = cast(SequenceModel, sampled(run.load_model(), rate))
    return _judgements(run, model, chunks, rate)


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

"""Predictions on data that are still coming: lines of text, or a WAV stream.

Text has one sample per line, fields separated by commas or blanks, with a header or without. A causal classifier keeps
its state and predicts from all samples so far after every chunk; a forecaster reads the latest context.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import torch

from wavessm.data.files import UNKNOWN_SIZE, WavHeader, check_times, wav_header
from wavessm.data.info import DataInfo, FrameStream
from wavessm.data.tables import DATE_NAMES, counted, import_pandas, is_number, parse_dates, same_clock
from wavessm.errors import DataError, OptionError, check_int
from wavessm.nn.streaming import sampled
from wavessm.training.predict import Row, check_dates, check_timed, check_values, decode_all, forecast_rows, step_rows
from wavessm.training.run import Run

log = logging.getLogger("wavessm.training")
_EXPECTED = "expected fields separated by commas or blanks, decimals with a point"
_PCM = {(1, 16): ("<i2", 2**15), (1, 32): ("<i4", 2**31), (3, 32): ("<f4", 1)}
"""Code and bits of WAV samples that can be streamed, and their NumPy type and scale."""
Chunks = Iterator[tuple[np.ndarray, np.ndarray | None]]
"""Samples (≤ chunk, channels) with their dates in seconds, or None."""


def predict_stream(
    run: Run, source: Iterable[str | bytes], chunk: int | None = None, rate: float = 1.0, times: bool = False
) -> Iterator[list[Row]]:
    """Predict after every chunk of a stream.

    The first prediction is made before this returns, so a stream without one is refused before anything is written.

    Args:
        run: The run whose best model predicts.
        source: Lines of text, or a binary file of lines or of WAV, such as a pipe (`sys.stdin.buffer`).
        chunk: Samples between predictions; None takes a tenth of a second, or one sample.
        rate: Sampling rate of training divided by that of the stream. A WAV file says it itself.
        times: Whether the first field of a line says when the sample was taken.
    """
    check_timed(run, times)
    size = max(1, round((run.info.sampling_rate or 0) / 10)) if chunk is None else check_int(chunk, "chunk", minimum=1)
    if run.info.kind == "forecast" and rate != 1:
        raise OptionError("a forecaster's steps are rows; it takes no other sampling rate.")
    if run.info.symbols:
        raise OptionError("this model reads tokens; it cannot read a stream.")
    if run.info.kind != "forecast" and run.method == "gradient" and run.model.bidirectional:
        raise OptionError("this model also reads backwards and cannot stream; train one with --no-bidirectional.")
    chunks: Chunks
    file: Any = source
    if hasattr(source, "peek") and file.peek(4)[:4] in (b"RIFF", b"RIFX"):
        if rate != 1 or times:
            raise OptionError("a WAV stream has a sampling rate of its own; leave rate and times out.")
        small, header = file.peek(4)[:4] == b"RIFF", wav_header(file, Path("the stream"))
        if not small or (header.code, header.bits) not in _PCM or not header.channels:
            raise DataError("the stream is a WAV that cannot be read bit by bit; send 16-bit, 32-bit or float samples.")
        own = header.sampling_rate
        rate = run.info.sampling_rate / own if run.info.sampling_rate and own else 1.0
        chunks = _read_wav(file, size, header)
    else:
        chunks = _parse_lines(source, run, size, times)
    rows = _forecasts(run, chunks, times) if run.info.kind == "forecast" else _decisions(run, chunks, rate, times)
    return itertools.chain([next(rows)], rows)


@torch.no_grad()
def _decisions(run: Run, chunks: Chunks, rate: float, times: bool) -> Iterator[list[Row]]:
    frames = FrameStream(run.info, rate) if run.info.front_end == "energies" else None
    rate = rate if frames is None else 1.0
    model: Any = sampled(run.load_model(), rate)
    start: float | None = None
    state, samples, thresholds = model.initial_state(1), 0, run.thresholds()
    if run.info.scaling == "recording":
        log.warning("a stream is scaled by the level of all training recordings, not by its own, which is known at its "
                    "end; record at a like level, or train with --scaling global.")  # fmt: skip
    for values, moments in chunks:
        x = run.info.standardise(check_values(run, values, f"stream, from sample {samples}"), stream=True)
        x = x if frames is None else frames(x)
        first, samples = samples, samples + len(values)
        if not len(x):  # no frame is complete yet
            continue
        if times and moments is not None:
            start = moments[0] if start is None else start
            output, state = model.stream(x[None], state, rate=rate, times=run.info.in_steps(moments, start))
        else:
            output, state = model.stream(x[None], state, rate=rate)
        yield [{"samples": samples, **row} for row in decode_all(run.info, output[0], thresholds, first)]
    if not samples:
        raise DataError("the stream ended without a sample.")


def _forecasts(run: Run, chunks: Chunks, times: bool) -> Iterator[list[Row]]:
    from wavessm.data.series import TimeSeries, clock_index, pd, step_of

    info, model, rows, needed = run.info, run.load_model(), 0, 1 if run.method == "linear" else run.info.length
    past, seconds, stream = np.empty((0, info.d_input)), np.empty(0), None
    numbers = info.step is None  # times, if there are any, are no dates
    for values, dates in _on_grid(chunks, info.step or step_of(model.series_[0].index)) if times else chunks:
        check_values(run, values, f"stream, from row {rows}")
        again = dates is not None and len(seconds) > 0 and dates[0] == seconds[-1]  # at the last point of the grid
        rows += len(values) - again
        past = np.concatenate([past[: len(past) - again], values])[-info.length :]
        past = pd.DataFrame(past).ffill().bfill().to_numpy()
        if dates is not None:
            seconds = np.concatenate([seconds[: len(seconds) - again], dates])[-info.length :]
        if len(past) < needed:
            continue
        index = pd.RangeIndex(len(past))
        if len(seconds):
            index = pd.Index(seconds, name="time") if numbers else clock_index(seconds)
        series = TimeSeries(past, "frame", index, info.channels)
        if rows - len(values) < needed:
            check_dates(info, series, "the stream")
        if run.method == "linear":
            stream = stream or model.row_stream()
            found = step_rows(info, *stream(values, series, again))
        else:
            found = forecast_rows(run, model, series, "the stream")
        yield [{"rows": rows, **row} for row in found]
    if rows < needed:
        raise DataError(f"the stream ended after {rows} rows; the model needs a context of {info.length}.")


def _on_grid(chunks: Chunks, step: float) -> Chunks:
    """Rows at uneven times on a grid of whole steps: NaN where none came, the last of those at one point.
    A chunk whose first date is the last of the chunk before brings a later row of that point."""
    first, last = np.nan, -1
    for values, dates in chunks:
        assert dates is not None
        first = step * round(dates[0] / step) if np.isnan(first) else first
        places = np.round((dates - first) / step).astype(int)
        begin, last = min(places[0], last + 1), int(places[-1])
        rows = np.full((last - begin + 1, values.shape[1]), np.nan)
        rows[places - begin] = values
        yield rows, first + step * np.arange(begin, last + 1)


def _read_wav(file: IO[bytes], chunk: int, header: WavHeader) -> Chunks:
    """Samples of a WAV stream behind its header, up to the size that this says, if it says one, or the end."""
    dtype, scale = _PCM[header.code, header.bits]
    frame, left = header.channels * header.bits // 8, header.size or UNKNOWN_SIZE
    while data := file.read(min(chunk * frame, left)):
        left -= len(data) if left < UNKNOWN_SIZE else 0
        samples = np.frombuffer(data[: len(data) // frame * frame], dtype).astype(np.float32) / scale
        if len(samples):
            yield samples.reshape(-1, header.channels), None


def _parse_lines(lines: Iterable[str | bytes], run: Run, chunk: int, times: bool) -> Chunks:
    """Chunks of samples from lines of numbers, times first if there are any; a header selects the columns."""
    info, rows, last = run.info, _cells(lines), np.empty(0)
    first = list(itertools.islice(rows, 1))
    names = first[0][1] if first and (counted(first[0][1]) or not any(map(is_number, first[0][1]))) else None
    channels, date = (list(range(info.d_input)), None) if names is None else _columns(run, names[times:])
    channels = [at + times for at in channels]
    width = info.d_input + times if names is None else len(names)
    rows = rows if names is not None else itertools.chain(first, rows)
    while found := list(itertools.islice(rows, chunk)):
        values = np.array([_numbers(cells, channels, width, number) for number, cells in found])
        if not times and (date is None or not (info.mark_sizes or info.mark_width)):
            yield values, None
            continue
        moments = _moments({number: cells[0 if times else cast(int, date)] for number, cells in found}, info, times)
        check_times(np.concatenate([last, moments]), f"the stream, before line {found[-1][0] + 1}")
        last = moments[-1:]
        yield values, moments


def _moments(texts: dict[int, str], info: DataInfo, times: bool) -> np.ndarray:
    """When samples were taken, by the lines of their texts: dates in seconds, or in a stream with times numbers."""
    if times and all(map(is_number, texts.values())):
        return np.array(list(texts.values()), dtype=np.float64)
    seconds, offset = parse_dates(import_pandas().Series(texts, dtype=str), "the stream")
    same_clock(offset, info.offset, "the stream")
    return seconds


def _cells(lines: Iterable[str | bytes]) -> Iterator[tuple[int, list[str]]]:
    """The number and the fields of every line that is not blank."""
    try:
        for number, line in enumerate(lines, start=1):
            line = line.decode() if isinstance(line, bytes) else line
            line = line.removeprefix("\ufeff") if number == 1 else line  # the mark some programs start a file with
            if line.strip():
                yield number, [cell.strip() for cell in (line.split(",") if "," in line else line.split())]
    except UnicodeDecodeError:
        raise DataError(f"the stream is not text in UTF-8; {_EXPECTED}.") from None


def _columns(run: Run, names: list[str]) -> tuple[list[int], int | None]:
    """Places of the channels and of the date under a header."""
    listed, info = ", ".join(names)[:60], run.info
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
        return [float(cells[at] or "nan") for at in channels]  # nothing between two commas is a missing sample
    except ValueError:
        line = ",".join(cells)[:60]
        raise DataError(f"line {number} of the stream: {line!r} is not a row of numbers; {_EXPECTED}.") from None

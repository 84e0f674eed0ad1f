"""`wavessm predict RUN FILES…`: predictions for new files, or on a stream."""

from __future__ import annotations

import csv
import dataclasses
import math
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from wavessm.cli.parse import parse, run_first
from wavessm.data.source import DataInfo
from wavessm.errors import OptionError
from wavessm.training.folder import Run
from wavessm.training.pictures import draw_predictions
from wavessm.training.predict import date_column, predict_files, require_files
from wavessm.training.stream import follow_lines, follow_wav, predict_stream, read_lines, wav_step


@dataclasses.dataclass(frozen=True)
class Options:
    run: Path
    """Run folder."""
    files: tuple[str, ...] = ()
    """Files to predict; - reads lines of numbers from standard input."""
    follow: Path | None = None
    """A WAV file or a file of lines that is being written."""
    idle: float = float("inf")
    """Stop following after so many seconds without anything new."""
    chunk: int | None = None
    """Samples between predictions on a stream; None takes a tenth of a second, or one."""
    rate: float = 1.0
    """On a stream: 2 if it comes at half the sampling rate of training."""
    out: str = "-"
    """CSV file; - is standard output."""
    plot: Path | None = None
    """PNG file for a figure."""


ABOUT = "Predictions as CSV: FILES are .wav, .npy, .csv or WFDB records; - or --follow FILE predicts on a stream."


def main(arguments: list[str]) -> int:
    given = parse(Options, None, _named(arguments), "wavessm predict RUN FILES", ABOUT)
    run = Run.read(given.run)
    streams = given.follow is not None or given.files == ("-",)
    if given.follow is not None and given.files:
        raise OptionError("give files or --follow, not both.")
    if not streams and (given.chunk, given.rate) != (None, 1.0):
        raise OptionError("--chunk and --rate are for streams; a file is read whole, at the rate it says itself.")
    _refuse_inputs(given)
    if given.plot is not None:
        _check_plot(given.plot)
    if streams:
        rows = _stream(run, given)
    else:
        paths = [Path(name) for name in given.files]
        require_files(paths)
        rows = predict_files(run, paths)
        _write(given.out, [rows], _digits(run.info))
    if given.plot is not None and rows:
        context = None if streams or run.info.kind != "forecast" else _context(run, Path(given.files[-1]))
        draw_predictions(run.info, rows, given.plot, context)
        print(f"figure: {given.plot}", file=sys.stderr)
    return 0


def _check_plot(path: Path) -> None:
    """Say now what would go wrong after all predictions are made."""
    from wavessm.training.record import pyplot

    pyplot()  # matplotlib may be missing
    if path.suffix.lower() not in (".png", ".pdf", ".svg"):
        raise OptionError(f"plot is {path}; expected a file that ends in .png, .pdf or .svg.")


def _named(arguments: list[str]) -> list[str]:
    """RUN FILES… as --run RUN --files FILES…"""
    arguments = run_first(arguments, "predict")
    if arguments[:1] == ["--run"]:
        count = next((i for i, a in enumerate(arguments[2:]) if a.startswith("--")), len(arguments) - 2)
        files = arguments[2 : 2 + count]
        if files:
            return [*arguments[:2], *arguments[2 + count :], "--files", *files]
    return arguments


def _stream(run: Run, given: Options) -> list[dict[str, Any]]:
    chunk = max(1, round((run.info.rate or 0) / 10)) if given.chunk is None else given.chunk
    if chunk < 1:
        raise OptionError(f"chunk is {chunk}, expected at least 1.")
    rate = given.rate
    chunks: Iterator[tuple[np.ndarray, np.ndarray | None]]
    if given.follow is None:
        chunks = read_lines(iter(sys.stdin.readline, ""), run, chunk)
    elif given.follow.suffix.lower() == ".wav":
        rate = wav_step(run, given.follow, rate)
        chunks = ((values, None) for values in follow_wav(given.follow, given.idle, chunk))
    else:
        chunks = read_lines(follow_lines(given.follow, given.idle), run, chunk)
    return _write(given.out, predict_stream(run, chunks, rate), _digits(run.info))


def _digits(info: DataInfo) -> int:
    """How many to write: six of what the data vary by, on top of those of their level.

    >>> _digits(DataInfo("forecast", 1, 1, 24, target_scale=((1e9,), (2.0,))))
    14
    """
    means, stds = info.target_scale or ((), ())
    level = max((abs(mean) / std for mean, std in zip(means, stds, strict=True)), default=0.0)
    return 6 + max(0, int(math.log10(max(level, 1.0))))


def _refuse_inputs(given: Options) -> None:
    """One line where a result would be written over what is read."""
    files = [given.follow] if given.follow is not None else [Path(name) for name in given.files if name != "-"]
    names = [str(file) for file in files]
    records = [name.removesuffix(".hea").removesuffix(".dat") for name in names]  # of WFDB: two files each
    read = {
        Path(name).resolve() for name in (*names, *(f"{name}{end}" for name in records for end in (".hea", ".dat")))
    }
    for name, path in (("out", None if given.out == "-" else Path(given.out)), ("plot", given.plot)):
        if path is not None and path.resolve() in read:
            raise OptionError(f"{name} is {path}, a file to predict; give another, it would be overwritten.")


def _write(out: str, groups: Iterable[list[dict[str, Any]]], digits: int) -> list[dict[str, Any]]:
    """All rows, each group written as soon as it is there."""
    written: list[dict[str, Any]] = []
    file: IO[str] = sys.stdout if out == "-" else Path(out).open("w", newline="")  # noqa: SIM115
    try:
        writer = None
        for rows in groups:
            if writer is None:
                writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
                writer.writeheader()
            for row in rows:
                writer.writerow({k: f"{v:.{digits}g}" if isinstance(v, float) else v for k, v in row.items()})
            file.flush()
            written += rows
    except KeyboardInterrupt:  # the way to end a stream
        pass
    finally:
        if file is not sys.stdout:
            file.close()
    if out != "-":
        print(f"{len(written)} rows: {out}", file=sys.stderr)
    return written


def _context(run: Run, path: Path) -> np.ndarray:
    from wavessm.data.series import read_series

    series = read_series(path, list(run.info.columns), date_column(run, path))
    return series.values[-min(run.info.length, 4 * run.info.horizon) :]

"""`wavessm predict RUN FILES…`: predictions for new files, or on a stream."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

from wavessm.cli.parse import parse, run_first
from wavessm.errors import OptionError
from wavessm.training.predict import draw_predictions, predict_files, read_context, write_rows
from wavessm.training.run import Run
from wavessm.training.stream import predict_stream


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
    paths = [Path(name) for name in given.files]
    if streams:
        source = given.follow or iter(sys.stdin.readline, "")
        groups = predict_stream(run, source, given.chunk, given.rate, given.idle)
    else:
        groups = iter([predict_files(run, paths)])
    count, rows = write_rows(run.info, groups, given.out, collect=given.plot is not None)
    if given.out != "-":
        print(f"{count} rows: {given.out}", file=sys.stderr)
    if given.plot is not None and rows:
        context = None if streams or run.info.kind != "forecast" else read_context(run, paths[-1])
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

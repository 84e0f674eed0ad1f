"""`wavessm predict RUN FILES…`: predictions for new files, or on a stream."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

from tyro.conf import Positional

from wavessm.cli.parse import parse
from wavessm.errors import OptionError


@dataclasses.dataclass(frozen=True)
class PredictOptions:
    """Predict new files or a stream with a trained model, as CSV."""

    run: Positional[Path]
    """Run folder of `wavessm train`, model folder, or name of a model that comes with the library."""
    files: Positional[tuple[str, ...]] = ()
    """Files to predict: .wav, .npy, .csv or WFDB records; - reads lines of numbers, or WAV, from standard input."""
    chunk: int | None = None
    """Samples between predictions on a stream; default a tenth of a second, or one sample."""
    sampling_rate: float | None = None
    """Samples per second of files that do not say it (.npy, .csv); default that of training."""
    times: bool = False
    """The first column of a stream, .npy or .csv file says when each sample was taken."""
    rate: float = 1.0
    """On a stream: 2 if its sampling rate is half that of training."""
    events: bool = False
    """Of long records: a row for each annotated beat, or events with times from overlapping windows."""
    stride: float | None = None
    """With --events: seconds between overlapping windows, where beats are not to be read from annotations."""
    out: str = "-"
    """CSV file; - is standard output."""
    plot: Path | None = None
    """PNG file for a figure."""


def main(arguments: list[str]) -> int:
    """Run `wavessm predict`; returns the exit status."""
    given = parse(PredictOptions, arguments, "wavessm predict")
    from wavessm.training import Run, draw_predictions, predict_files, predict_stream, read_context, write_rows
    from wavessm.training.events import draw_events, predict_events

    run = Run.read(given.run)
    streams = given.files == ("-",)
    if not streams and (given.chunk, given.rate) != (None, 1.0):
        raise OptionError("--chunk and --rate are for streams; a file is read whole, at its own sampling rate.")
    if given.times and (given.events or given.rate != 1):
        raise OptionError("--times says when samples were taken; leave --events and --rate out.")
    if (streams or not given.files) if given.events else given.stride is not None:
        raise OptionError("--events and --stride read whole records: predict RUN RECORD.hea --events [--stride 0.1].")
    _check_outputs(given)
    paths = [Path(name) for name in given.files]
    if streams:
        groups = predict_stream(run, getattr(sys.stdin, "buffer", sys.stdin), given.chunk, given.rate, given.times)
    elif given.events:
        groups = ([{"file": str(path), **row} for row in predict_events(run, path, given.stride)] for path in paths)
    else:
        groups = iter([predict_files(run, paths, given.sampling_rate, given.times)])
    count, rows = write_rows(run.info, groups, given.out, collect=given.plot is not None)
    if given.out != "-":
        print(f"{count} rows: {given.out}", file=sys.stderr)
    if given.plot is not None and given.events:
        draw_events(run, paths[-1], [row for row in rows if row["file"] == str(paths[-1])], given.plot)
        print(f"figure: {given.plot}", file=sys.stderr)
    elif given.plot is not None and rows:
        context = None if streams or run.info.kind != "forecast" else read_context(run, paths[-1])
        draw_predictions(run.info, rows, given.plot, context)
        print(f"figure: {given.plot}", file=sys.stderr)
    return 0


def _check_outputs(given: PredictOptions) -> None:
    """Refuse a figure that could not be drawn, and to overwrite an input file, before any prediction is made."""
    if given.plot is not None:
        from wavessm.training.record import pyplot

        pyplot()  # matplotlib may be missing
        if given.plot.suffix.lower() not in (".png", ".pdf", ".svg"):
            raise OptionError(f"plot is {given.plot}; expected a file that ends in .png, .pdf or .svg.")
    names = [Path(name).resolve() for name in given.files]
    read = {*names, *(name.with_suffix(end) for name in names for end in (".hea", ".dat", ".atr"))}  # of WFDB
    if given.out != "-" and Path(given.out).resolve() in read:
        raise OptionError(f"out is {given.out}, a file to predict; give another, it would be overwritten.")

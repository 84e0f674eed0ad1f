"""Events in a long record: the class of each annotated beat, or overlapping windows merged into a track with times.

`predict.py` gives one prediction for a whole recording; the windows are those of `data/datasets/beats.py`.
"""

from __future__ import annotations

import logging
import math
from pathlib import Path

import numpy as np
import torch

from wavessm.data.datasets.beats import RR, BeatsOptions, cut_windows, read_beats
from wavessm.data.files import Signal, align, pick_leads, read_signal, resample
from wavessm.data.info import DataInfo
from wavessm.errors import DataError, OptionError, check_positive
from wavessm.training.predict import Row, check_values, decode
from wavessm.training.record import pyplot, save_figure
from wavessm.training.run import Run

log = logging.getLogger("wavessm.training")
STRIP_SECONDS, MOST_STRIPS = 60, 8
"""Seconds of a record in one strip of a figure, and strips at most: longer records have longer ones."""


def predict_events(run: Run, path: Path, stride: float | None = None) -> list[Row]:
    """Predict the events of a long record with the best model of a run.

    Args:
        run: of a classifier.
        path: the record; one of WFDB with its suffix .hea or .dat.
        stride: seconds between overlapping windows; None takes the annotated beats where the run was trained on beats
            and the annotation file is there, else a quarter of a window. A model of steps has no windows.

    Returns:
        One row for each beat (time, annotated, prediction, a probability for each class), or for each event of the
        track (start, end, prediction, score: the mean probability). Times are seconds, with three decimals (samples,
        where the sampling rate is not known).
    """
    info, options = run.info, run.options
    if info.kind == "steps":
        return _runs_of_steps(run, _read(run, path), path)
    if info.kind != "multiclass" or info.symbols:
        raise OptionError(f"predict: --events needs a classifier of signals; {run.task} is none, leave it out.")
    if stride is not None:
        check_positive(stride, "stride")
    signal, beats = _read(run, path), options if isinstance(options, BeatsOptions) and not options.events else None
    rate, record = signal.sampling_rate or 1.0, path.with_suffix("")
    if beats and stride is None and Path(f"{record}.{beats.annotations}").exists():
        events, _ = read_beats(record, beats.annotations)
        target = info.sampling_rate or rate
        windows, events = cut_windows(signal, events, beats.before, beats.after, target, beats.rr, path)
        if not windows:
            raise DataError(f"{record}.{beats.annotations}: no beat with a whole window around it.")
        rows = _outputs(run, windows)
        return [
            {"time": f"{time:.3f}", "annotated": label, **decode(info, output)}
            for time, label, output in zip(events.start, events.labels.tolist(), rows, strict=True)
        ]
    if info.channels[-2:] == RR:
        raise OptionError("predict: the model reads distances of beats; give their annotations, or train with --no-rr.")
    if isinstance(options, BeatsOptions):
        log.warning("%s: the model was trained on windows around events; predictions between them mean little", path)
    return _track(run, resample(signal, info.sampling_rate or rate), stride, path)


def _read(run: Run, path: Path) -> Signal:
    """A record with the leads and in the units of training, at its own sampling rate."""
    info, signal = run.info, read_signal(path)
    channels = tuple(name for name in info.channels if name not in RR)
    leads = channels or tuple(filter(None, getattr(run.options, "leads", "").split(",")))
    if leads and signal.channels:
        signal = pick_leads(signal, leads, path)
    values = align(signal, channels, info.units[: signal.values.shape[1]], path)
    return Signal(values, signal.sampling_rate or info.sampling_rate or 1.0)


@torch.no_grad()
def _outputs(run: Run, windows: list[np.ndarray]) -> torch.Tensor:
    """Outputs (windows, classes) of the best model for windows of one length."""
    info, model = run.info, run.load_model()
    check_values(run, np.concatenate(windows), run.task)
    batches = (np.stack(windows[k : k + 256]) for k in range(0, len(windows), 256))
    return torch.cat([model(info.standardise(torch.from_numpy(batch))) for batch in batches]).cpu()


def _track(run: Run, signal: Signal, stride: float | None, path: Path) -> list[Row]:
    """Windows over the whole record, probabilities averaged where they overlap, equal neighbours joined."""
    info, samples, rate = run.info, len(signal.values), signal.sampling_rate or 1.0
    length = info.length
    step = max(1, length // 4 if stride is None else round(stride * rate))
    if samples < length or step > length:
        raise DataError(f"{path}: {samples / rate:g} s, windows of {length / rate:g} s every {step / rate:g} s; "
                        "expected a record as long as a window, and a stride no longer than one.")  # fmt: skip
    starts = np.unique([*range(0, samples - length + 1, step), samples - length])
    outputs = _outputs(run, [signal.values[start : start + length] for start in starts])
    edges = np.unique([starts, starts + length])
    change = np.zeros((len(edges), 1 + info.d_output))  # of the number of windows and of the sum of probabilities
    each = np.column_stack([np.ones(len(starts)), torch.softmax(outputs.double(), dim=1).numpy()])
    np.add.at(change, np.searchsorted(edges, starts), each)
    np.add.at(change, np.searchsorted(edges, starts + length), -each)
    sums = change.cumsum(axis=0)[:-1]
    return _merge(info, sums[:, 1:] / sums[:, :1], edges, rate)


@torch.no_grad()
def _runs_of_steps(run: Run, signal: Signal, path: Path) -> list[Row]:
    """A whole record through a model that labels each step."""
    own = signal.sampling_rate or 1.0
    x = run.info.standardise(check_values(run, signal.values, str(path)))
    output = run.load_model()(x[None], rate=(run.info.sampling_rate or own) / own)[0]
    return _merge(run.info, torch.softmax(output.double(), dim=1).numpy(), np.arange(len(x) + 1), own)


def _merge(info: DataInfo, mean: np.ndarray, edges: np.ndarray, rate: float) -> list[Row]:
    """Events of probabilities (stretches, classes) between edges (stretches + 1,), equal neighbours joined."""
    spans = np.diff(edges)
    label = mean.argmax(axis=1)
    first = np.flatnonzero(np.diff(label, prepend=-1))
    totals = np.add.reduceat(mean[np.arange(len(label)), label] * spans, first)
    ends = np.append(edges[first[1:]], edges[-1])
    return [
        {"start": f"{a / rate:.3f}", "end": f"{b / rate:.3f}", "prediction": info.classes[name],
         "score": float(total / (b - a))}
        for a, b, name, total in zip(edges[first], ends, label[first], totals, strict=True)
    ]  # fmt: skip


def draw_events(run: Run, path: Path, rows: list[Row], out: Path) -> None:
    """Draw the first lead of a record with its predicted events in colours, a long one in strips."""
    signal = _read(run, path)
    rate, values = signal.sampling_rate or 1.0, signal.values[:, 0]
    edges = np.linspace(0, len(values), 1 + min(MOST_STRIPS, math.ceil(len(values) / rate / STRIP_SECONDS))).astype(int)
    size = (12, 1.2 + 2.4 * (len(edges) - 1))
    figure, strips = pyplot().subplots(len(edges) - 1, figsize=size, sharey=True, squeeze=False)
    for axes, first, last in zip(strips[:, 0], edges[:-1], edges[1:], strict=True):
        axes.plot(np.arange(first, last) / rate, values[first:last], color="0.6", linewidth=0.6)
        for k, name in enumerate(run.info.classes):
            own = [row for row in rows if row["prediction"] == name]
            at = np.rint([float(row["time"]) * rate for row in own if "time" in row]).astype(int)
            at = at[(at >= first) & (at < last)]
            axes.plot(at / rate, values[at], "o", color=f"C{k}", markersize=4, label=name)
            for row in own if "start" in rows[0] else ():
                axes.axvspan(float(row["start"]), float(row["end"]), color=f"C{k}", alpha=0.3, linewidth=0)
        axes.set(xlim=(first / rate, last / rate), ylabel=run.info.units[0] if run.info.units else "signal")
    strips[-1, 0].set_xlabel("seconds")
    strips[0, 0].legend(fontsize=8, ncols=len(run.info.classes), loc="lower right", bbox_to_anchor=(1, 1))
    save_figure(figure, out)

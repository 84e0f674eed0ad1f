"""How well each family remembers: stream a signal into N numbers, read it back, measure.

Scaled memories are asked for the whole signal; translated ones have a window of half its length and are asked for the
newer half, after all of it was processed. Errors are root mean squares in units of the signal's own (1 = no memory):
everywhere, around jumps (`signals.near_jumps`; nan where the stretch has none) and elsewhere. `projection` is the error
of the best reconstruction in the frame's span: what the online dynamics could at most reach. Two naive rows: the
signal's mean, and N block means.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

from wavessm.frames import BASES, PAPER_FAMILIES
from wavessm.inspection.drawing import Drawing, canvas
from wavessm.memory import OnlineMemory
from wavessm.operators import MEASURES, make_operator
from wavessm_lab.studies import COLOURS, LABELS, by_family
from wavessm_lab.studies.frame_bounds import frame_for
from wavessm_lab.studies.signals import StudySignal, classical, ecg

SIZES = (16, 32, 64, 128)


def errors(signal: StudySignal, reconstruction: np.ndarray) -> dict[str, float]:
    """Root mean square error everywhere, around jumps and elsewhere, of the last len(reconstruction) samples."""
    truth, abrupt = signal.values[-len(reconstruction) :], signal.abrupt[-len(reconstruction) :]
    squares = (reconstruction - truth) ** 2
    unit = np.sqrt(np.mean(truth**2))

    def rms(where: np.ndarray) -> float:
        return float(np.sqrt(np.mean(squares[where])) / unit) if where.any() else float("nan")

    return {"overall": rms(np.full(len(truth), True)), "jumps": rms(abrupt), "smooth": rms(~abrupt)}


def asked_for(signal: StudySignal, measure: str) -> np.ndarray:
    """Return the part of the signal that a memory must reconstruct."""
    return signal.values if measure == "scaled" else signal.values[len(signal.values) // 2 :]


def remember(family: str, span: str, measure: str, n: int, signals: list[StudySignal]) -> Iterator[dict[str, Any]]:
    """Rows for signals of one length, streamed as one batch."""
    operator = make_operator(frame_for(family, n, span).tighten(), measure)
    batch = np.stack([signal.values for signal in signals])
    length = len(asked_for(signals[0], measure))
    memory = OnlineMemory(operator, window=None if measure == "scaled" else length)
    memory.push(batch)
    recalled = memory.reconstruct(memory.state, grid=length).numpy()
    # least squares on the sample points, so that nothing in the span could do better there
    atoms = operator.frame.evaluate((np.arange(length) + 0.5) / length)
    for signal, values in zip(signals, recalled, strict=True):
        truth = asked_for(signal, measure)
        best = atoms.T @ np.linalg.lstsq(atoms.T, truth, rcond=None)[0]
        yield {
            "signal": signal.name,
            "measure": measure,
            "family": family,
            "range": span,
            "n": n,
            **errors(signal, values),
            "projection": errors(signal, best)["overall"],
        }


def naive(signal: StudySignal, measure: str, n: int) -> Iterator[dict[str, Any]]:
    """Rows of the two naive memories: the mean, and n block means."""
    truth = asked_for(signal, measure)
    blocks = np.concatenate([np.full(len(part), part.mean()) for part in np.array_split(truth, n)])
    for family, values in (("(mean)", np.full(len(truth), truth.mean())), ("(block means)", blocks)):
        row = {"signal": signal.name, "measure": measure, "family": family, "range": "", "n": n}
        yield {**row, **errors(signal, values), "projection": float("nan")}


def reconstruction_errors(sizes: tuple[int, ...] = SIZES, length: int = 2048) -> Drawing:
    """Errors over N, a panel for each signal and measure; the classical signals have `length` samples."""
    groups = [classical(length), [ecg()]]
    names = [signal.name for group in groups for signal in group]
    rows: list[dict[str, Any]] = []
    for measure, n in product(MEASURES, sizes):
        rows += [row for group in groups for signal in group for row in naive(signal, measure, n)]
        for family in (*PAPER_FAMILIES, *BASES):
            for span, group in product(("default",) if family in BASES else ("default", "to n/2"), groups):
                rows += remember(family, span, measure, n, group)
    with canvas() as plt:
        figure, axes = plt.subplots(2, len(names), figsize=(2.6 * len(names), 6), sharex=True)
        for (i, measure), (j, name) in product(enumerate(MEASURES), enumerate(names)):
            for family in (*LABELS, "(block means)"):
                key = (name, measure, family)
                mine = [r for r in rows if (r["signal"], r["measure"], r["family"]) == key and r["range"] != "to n/2"]
                look = {"color": COLOURS[family]} if family in COLOURS else {"color": "k", "linestyle": ":"}
                label = LABELS.get(family, "block means")
                axes[i, j].plot(sizes, [r["overall"] for r in mine], marker=".", label=label, **look)
            axes[i, j].set(xscale="log", yscale="log", title=f"{name}, {measure}")
            axes[i, j].set_xticks(sizes, [str(n) for n in sizes])
            axes[i, j].xaxis.minorticks_off()
        for axis in axes[:, 0]:
            axis.set_ylabel("error (no memory = 1)")
        figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=len(LABELS) + 1)
    error = {(r["signal"], r["family"], r["n"], r["measure"], r["range"]): r["overall"] for r in rows}
    recalled = {family: error["ecg", family, sizes[-1], "scaled", "default"] for family in ("morlet", "legendre")}
    caption = (
        f"Error of what memories of N numbers give back of {len(names)} signals, in units of the signal's own size; "
        f"for the ECG at N = {sizes[-1]}, scaled measure: {by_family(recalled)}."
    )
    return Drawing(figure, rows, caption)

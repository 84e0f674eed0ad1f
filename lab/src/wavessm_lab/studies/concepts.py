"""Pictures behind the words of the documentation: measures, a memory that streams, matrices and modes of operators.

measures   the same atoms over the past at three times: stretched (scaled) or sliding (translated)
memory     an ECG streamed into N numbers: the state as it fills, and what Morlet and Legendre recall of it
matrices   A of the five families and of Legendre, under both measures
modes      eigenvalues of −A; κ(V) is the condition number of its eigenvectors
"""

from __future__ import annotations

from typing import Any

import numpy as np

from wavessm.frames import Array
from wavessm.inspection.drawing import Drawing, canvas
from wavessm.memory import OnlineMemory
from wavessm.operators import MEASURES, make_operator
from wavessm_lab.studies import COLOURS, LABELS, by_family, table_rows, wide_rows
from wavessm_lab.studies.signals import ecg

CENTRES = (0.1, 0.3, 0.5, 0.7, 0.9)


def bumps(s: Array, width: float = 0.045) -> Array:
    """Five Mexican hats over the window, zero outside of it. (L,) → (5, L)"""
    x = (s - np.array(CENTRES)[:, None]) / width
    return np.where((s >= 0) & (s <= 1), (1 - x**2) * np.exp(-(x**2) / 2), 0.0)


def two_measures(points: int = 601, theta: float = 0.3) -> Drawing:
    """Where the atoms stand over the past at three times, under both measures."""
    time = np.linspace(0, 1, points)
    windows = {
        "scaled: the whole past": lambda t: time / t,
        "translated: the last θ": lambda t: (time - t + theta) / theta,
    }
    rows: list[dict[str, Any]] = []
    with canvas() as plt:
        figure, axes = plt.subplots(1, 2, figsize=(9.4, 3.2), sharey=True)
        for axis, (name, window) in zip(axes, windows.items(), strict=True):
            for place, t in enumerate((0.4, 0.7, 1.0)):
                for k, atom in enumerate(bumps(window(t))):
                    inside = (window(t) >= 0) & (window(t) <= 1)
                    axis.plot(time[inside], 2 * (2 - place) + atom[inside], color=plt.cm.viridis(k / 5))
                    drawn = {"time": time[inside][::5], "value": atom[inside][::5]}
                    rows += table_rows(drawn, measure=name.split(":")[0], now=t, atom=k)
                axis.axvline(t, ymin=(2 - place) / 3, ymax=(3 - place) / 3, color="0.5", linestyle=":")
                axis.text(t - 0.008, 2 * (2 - place) + 1.15, f"now = {t:g}", ha="right", fontsize=8, color="0.4")
            axis.set(title=name, xlabel="time", xlim=(0, 1.02), yticks=[])
            axis.spines["left"].set_visible(False)
    caption = (
        "Five atoms over the past at three times: under the scaled measure they widen as the past grows and nothing "
        f"leaves, under the translated one they slide with a window of θ = {theta:g} and what leaves it is forgotten."
    )
    return Drawing(figure, rows, caption)


def streamed_memory(n: int = 64) -> Drawing:
    """The state of a Morlet memory while an ECG streams in, and the whole past read back from the last state."""
    x = ecg().values
    t = (np.arange(len(x)) + 0.5) / len(x)
    recalled, errors = {}, {}
    for family in ("morlet", "legendre"):
        memory = OnlineMemory(make_operator(family, "scaled", n))
        memory.push(x)
        recalled[family] = memory.reconstruct(memory.state, grid=len(x)).numpy()
        errors[family] = float(np.sqrt(np.mean((recalled[family] - x) ** 2) / np.mean(x**2)))
    operator = make_operator("morlet", "scaled", n)
    states = OnlineMemory(operator).project(x).numpy()[:, np.argsort(operator.frame.centres)]  # (length, N)
    with canvas() as plt:
        figure, axes = plt.subplots(3, 1, figsize=(9.4, 6), sharex=True, height_ratios=[1.2, 1, 1])
        size = np.abs(states) / np.abs(states).max()
        axes[0].imshow(size.T**0.5, aspect="auto", cmap="magma", origin="lower", extent=(0, 1, 0, n))
        axes[0].set(
            title="the state as the signal streams in (Morlet, by centre; brighter: larger)", ylabel="coordinate"
        )
        for axis, family in zip(axes[1:], recalled, strict=True):
            axis.plot(t, x, color="0.75", linewidth=2.2)
            axis.plot(t, recalled[family], color=COLOURS[family])
            axis.set(title=f"{LABELS[family]}: read back from the last state", xlim=(0, 1))
        axes[2].set_xlabel("time (right: now)")
    caption = (
        f"{len(x):,} samples of an ECG (grey) in {n} numbers, scaled measure: each beat enters at the newest "
        f"coordinates and moves on; read back from the last state the error is {by_family(errors)} of the signal's own "
        "size."
    )
    return Drawing(figure, table_rows({"t": t, "signal": x, **recalled}), caption)


def transition_matrices(n: int = 40) -> Drawing:
    """A of the tight frames, each in units of its own largest entry, coloured by sign and the root of the size."""
    rows: list[dict[str, Any]] = []
    families = [family for family in LABELS if family != "fourier"]
    with canvas() as plt:
        figure, axes = plt.subplots(2, len(families), figsize=(11, 4.1))
        for line, measure in zip(axes, MEASURES, strict=True):
            for axis, family in zip(line, families, strict=True):
                A = make_operator(family, measure, n).A
                rows += wide_rows(A, "a", family=family, measure=measure)
                peak = np.abs(A).max()
                shown = np.sign(A) * np.sqrt(np.abs(A) / peak)
                image = axis.imshow(shown, cmap="RdBu_r", vmin=-1, vmax=1)
                axis.set(xticks=[], yticks=[], xlabel=f"largest |entry| {peak:.0f}")
                for side in axis.spines.values():
                    side.set_visible(True)
                    side.set_linewidth(0.5)
                if measure == "scaled":
                    axis.set_title(LABELS[family])
            line[0].set_ylabel(measure)
        bar = figure.colorbar(image, ax=axes, shrink=0.7, aspect=30, ticks=[-1, -0.5, 0, 0.5, 1])
        bar.ax.set_yticklabels(["−1", "−¼", "0", "¼", "1"])
        bar.set_label("entry / largest |entry|")
    caption = (
        f"A of the tight frames at N = {n}: atoms are ordered scale by scale, so neighbours in time and scale couple "
        "near the diagonals; scaled Legendre is lower triangular, every order fed by all lower ones."
    )
    return Drawing(figure, rows, caption)


def modes_of_operators(n: int = 64) -> Drawing:
    """Eigenvalues of −A of two wavelet frames and of Legendre, with the condition number of the eigenvectors."""
    rows: list[dict[str, Any]] = []
    conditions = {}
    with canvas() as plt:
        figure, axes = plt.subplots(1, 3, figsize=(9.4, 3.4))
        for axis, family in zip(axes, ("morlet", "db6", "legendre"), strict=True):
            lam, V = np.linalg.eig(-make_operator(family, "scaled", n).A)
            conditions[family] = float(np.linalg.cond(V))
            axis.axvline(-0.5, color="0.8", linewidth=0.9)
            axis.plot(lam.real, lam.imag, ".", color=COLOURS[family])
            axis.set(title=f"{LABELS[family]}, κ(V) = {conditions[family]:.0e}", xlabel="Re λ")
            rows += table_rows({"re": lam.real, "im": lam.imag}, family=family)
        axes[0].set_ylabel("Im λ")
        axes[2].plot(-np.arange(1, n + 1), np.zeros(n), "k|", markersize=5, label="exact")  # A is triangular: 1 … N
        axes[2].legend(loc="upper right", handletextpad=0.2)
    caption = (
        f"Eigenvalues of −A at N = {n}, scaled measure, as double precision finds them; condition numbers of the "
        f"eigenvectors: {by_family(conditions, '.0e')}. Wavelets become modes; Legendre's exact eigenvalues are "
        f"−1 … −{n}, and those found are an artefact."
    )
    return Drawing(figure, rows, caption)

"""What each number of the state holds of the past: the Jacobian ∂h_T/∂x_t, drawn, and measured as localisation.

J        (N, T) row n is the weight of every past sample in coordinate n
centre   energy-weighted mean of t/T along a row;   spread   its standard deviation (1/√12 = 0.29 if uniform)
e_A      (N,) energy of each coordinate that comes from window A;   overlap   cosine between e_A and e_B:
         1 if the same coordinates hold both windows in the same proportions, 0 if no coordinate holds both
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from wavessm.discretize import zoh
from wavessm.frames import Array
from wavessm.inspection.drawing import Drawing, canvas
from wavessm.memory import OnlineMemory
from wavessm.operators import Operator, make_operator
from wavessm_lab.studies import COLOURS, LABELS, by_family, table_rows, wide_rows

UNIFORM = 1 / np.sqrt(12)
"""Spread of a coordinate in which all of the window has the same weight."""


def localisation(J: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Centre and spread of the energy of each row, in units of the length. (N, T) → (N,), (N,)

    >>> centre, spread = localisation(np.array([[0.0, 0.0, 1.0, 0.0], [1.0, 1.0, 1.0, 1.0]]))
    >>> centre.tolist(), spread.round(2).tolist()
    ([0.625, 0.5], [0.0, 0.28])
    """
    energy = J**2 / np.sum(J**2, axis=1, keepdims=True)
    t = (np.arange(J.shape[1]) + 0.5) / J.shape[1]
    centre = energy @ t
    return centre, np.sqrt(np.sum(energy * (t - centre[:, None]) ** 2, axis=1))


@lru_cache(maxsize=16)
def jacobian(family: str, n: int, length: int) -> Array:
    """∂h_T/∂x_t of the scaled memory of a tight frame, exact for samples held constant. (N, T)"""
    return OnlineMemory(make_operator(family, "scaled", n)).jacobian(length).numpy()


def impulse_response(operator: Operator, dt: float, length: int) -> Array:
    """State of a layer with the constant step dt after one impulse, sample by sample. (N, length)"""
    step = zoh(operator.system, dt)
    state, columns = step.B, []
    for _ in range(length):
        columns.append(state)
        state = step.apply(state)
    return np.stack(columns, axis=1)


def window_energy(J: Array, windows: int) -> Array:
    """Return the energy of each coordinate that comes from each of equal windows. (N, T) → (windows, N)"""
    return np.stack([np.sum(part**2, axis=1) for part in np.array_split(J, windows, axis=1)])


def overlaps(J: Array, windows: int) -> Array:
    """Overlap between every two windows, as in the module's docstring. (windows, windows)"""
    energy = window_energy(J, windows)
    energy = energy / np.linalg.norm(energy, axis=1, keepdims=True)
    return energy @ energy.T


def _picture(axis: Any, J: Array, title: str) -> None:
    share = np.abs(J) / np.abs(J).max(axis=1, keepdims=True)
    axis.imshow(share, aspect="auto", cmap="magma", vmin=0, vmax=1, extent=(0, 1, len(J), 0))
    axis.set(title=title, xticks=[0, 0.5, 1])


def jacobian_of_morlet(n: int = 100, length: int = 400, horizon: float = 4.0) -> Drawing:
    """Morlet under the scaled measure: in the frame's order, by centre, and as a layer runs the same A.

    horizon  T·Δ of the layer's constant step: it then reaches samples up to e^−horizon of the window's age
    """
    J = jacobian("morlet", n, length)
    centre, spread = localisation(J)
    constant = impulse_response(make_operator("morlet", "scaled", n), horizon / length, length)[:, ::-1]
    panels = {"frame's order": J, "by centre": J[np.argsort(centre)], "constant step": constant}
    rows = [row for name, matrix in panels.items() for row in wide_rows(matrix, "t", panel=name)]
    with canvas() as plt:
        figure, axes = plt.subplots(1, 3, figsize=(11, 4))
        titles = ("whole past, atoms scale by scale", "the same, sorted by centre", f"constant step, TΔ = {horizon:g}")
        for axis, matrix, title in zip(axes, panels.values(), titles, strict=True):
            _picture(axis, matrix, title)
            axis.set_xlabel("t / T (right: now)")
        axes[0].set_ylabel("coordinate")
        figure.colorbar(axes[0].images[0], ax=axes, shrink=0.8, label="|∂h/∂x| / largest of the row")
    caption = (
        f"∂h_T/∂x_t of a Morlet memory, N = {n}, scaled measure, row by row in units of its largest entry: each scale "
        f"is a diagonal, the median coordinate has spread {np.median(spread):.3f} (uniform: {UNIFORM:.2f})."
    )
    return Drawing(figure, rows, caption)


def jacobian_of_families(n: int = 100, length: int = 400) -> Drawing:
    """The same for every family and the two baselines, sorted by centre."""
    rows: list[dict[str, Any]] = []
    spreads: dict[str, float] = {}
    with canvas() as plt:
        figure, axes = plt.subplots(2, 4, figsize=(11, 6.2), sharex=True, sharey=True)
        for axis, family in zip(axes.flat, LABELS, strict=False):
            J = jacobian(family, n, length)
            centre, spread = localisation(J)
            spreads[family] = float(np.median(spread))
            rows += wide_rows(J, "t", family=family)
            # polynomials and sinusoids have no place of their own: they stay in their order
            ordered = J if family in ("legendre", "fourier") else J[np.argsort(centre)]
            _picture(axis, ordered, f"{LABELS[family]}, median spread {spreads[family]:.2f}")
        axes[1, 3].set_visible(False)
        axes[0, 3].tick_params(labelbottom=True)
        for axis in axes[:, 0]:
            axis.set_ylabel("coordinate")
        for axis in axes[1]:
            axis.set_xlabel("t / T (right: now)")
        figure.colorbar(axes[0, 0].images[0], ax=axes, shrink=0.6, label="|∂h/∂x| / largest of the row")
    caption = (
        f"∂h_T/∂x_t at N = {n}, scaled measure, wavelets sorted by centre, Legendre and Fourier by order: median "
        f"spreads {by_family(spreads)}."
    )
    return Drawing(figure, rows, caption)


def localisation_of_coordinates(n: int = 64, length: int = 1024) -> Drawing:
    """Centre and spread of every coordinate, of the memory and of the atom it belongs to."""
    rows: list[dict[str, Any]] = []
    medians, of_atoms = {}, {}
    with canvas() as plt:
        figure, axes = plt.subplots(1, 2, figsize=(9.4, 4), sharey=True, width_ratios=[1.5, 1])
        for place, family in enumerate(LABELS):
            centre, spread = localisation(jacobian(family, n, length))
            frame = make_operator(family, "scaled", n).frame
            medians[family], of_atoms[family] = float(np.median(spread)), float(np.median(frame.spreads))
            memory = {"coordinate": np.arange(n), "centre": centre, "spread": spread}
            rows += table_rows({**memory, "atom_centre": frame.centres, "atom_spread": frame.spreads}, family=family)
            axes[0].scatter(centre, spread, s=13, color=COLOURS[family], linewidth=0)
            box = axes[1].boxplot(spread, positions=[place], widths=0.6, showfliers=False, medianprops={"color": "k"})
            box["boxes"][0].set_color(COLOURS[family])
            axes[1].plot(place, of_atoms[family], "D", ms=5, color=COLOURS[family], markerfacecolor="w")
        for axis in axes:
            axis.axhline(UNIFORM, color="0.7", linestyle="--", linewidth=0.9, zorder=0)
        axes[0].set(xlabel="centre (1 = now)", ylabel="spread", xlim=(0, 1), title="every coordinate")
        axes[0].text(0.99, UNIFORM + 0.004, "uniform over the window", color="0.5", fontsize=7.5, ha="right")
        axes[1].set_xticks(range(len(LABELS)), LABELS.values(), rotation=40, ha="right", weight="bold")
        for label, colour in zip(axes[1].get_xticklabels(), COLOURS.values(), strict=True):
            label.set_color(colour)
        axes[1].set_title("quartiles (◇ median of the tight atoms)")
    caption = (
        f"Energy-weighted centre and spread of every coordinate of scaled memories, N = {n}; median spread: "
        f"{by_family(medians)}; of the tight atoms themselves: {by_family(of_atoms)}."
    )
    return Drawing(figure, rows, caption)


def overlap_of_windows(n: int = 64, length: int = 1024, windows: int = 8) -> Drawing:
    """Which windows of the past share their coordinates: the overlap matrix of each family."""
    rows: list[dict[str, Any]] = []
    apart = {}
    distance = np.abs(np.subtract.outer(np.arange(windows), np.arange(windows)))
    with canvas() as plt:
        figure, axes = plt.subplots(1, len(LABELS), figsize=(12, 2.5))
        for axis, family in zip(axes, LABELS, strict=True):
            overlap = overlaps(jacobian(family, n, length), windows)
            apart[family] = float(overlap[distance >= 2].mean())
            rows += wide_rows(overlap, "window", family=family)
            image = axis.imshow(overlap, cmap="viridis", vmin=0, vmax=1)
            axis.set(xticks=[0, windows - 1], yticks=[0, windows - 1], title=LABELS[family])
            axis.set_xticklabels(["oldest", "now"])
            axis.set_yticklabels([])
            axis.set_xlabel(f"apart: {apart[family]:.2f}")
        axes[0].set_ylabel("window")
        figure.colorbar(image, ax=axes, shrink=0.9, label="overlap")
    caption = (
        f"Overlap of the coordinates that hold {windows} disjoint windows, N = {n}, scaled measure (0: no coordinate "
        f"holds both); mean over windows that do not touch: {by_family(apart)}."
    )
    return Drawing(figure, rows, caption)

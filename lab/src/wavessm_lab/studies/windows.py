"""Window separability: what a linear probe reads of one window of the past, and from which coordinates.

A signal of `values` independent unit values, each held for an equal stretch, is streamed into a scaled memory of N
numbers, and a little noise is added to the state. The past is cut into windows. For each window the best linear probe
(closed form: the limit of infinitely many training signals) reads its values from

    whole     the whole state
    kept      one block of coordinates, all others masked, the probe trained for it
    masked    the whole state with one block of coordinates set to zero, the probe not trained again

Score: R², the share of the window's variance that is read; 1 is all of it, and any B coordinates of a memory that
mixes everything give about B / values. There are as many blocks as windows, of equal size, and block j holds the
coordinates that belong to window j best: the assignment that maximises the energy shares, made anew for each family.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import linalg
from scipy.optimize import linear_sum_assignment

from wavessm.frames import Array
from wavessm.inspection.drawing import Drawing, canvas
from wavessm_lab.studies import LABELS, wide_rows
from wavessm_lab.studies.jacobian import jacobian, window_energy

NOISE = 0.01
"""Standard deviation of the noise on the state, in units of a coordinate's own."""


@dataclass(frozen=True)
class Scores:
    """R² of the probes: whole (windows,), kept and masked (windows, blocks)."""

    whole: Array
    kept: Array
    masked: Array

    @property
    def own(self) -> tuple[float, float]:
        """Mean R² of a window from its own block alone, and without it."""
        return float(np.diag(self.kept).mean()), float(np.diag(self.masked).mean())

    @property
    def others(self) -> tuple[float, float]:
        """Mean R² of a window from another's block alone, and without another's."""
        off = ~np.eye(len(self.kept), dtype=bool)
        return float(self.kept[off].mean()), float(self.masked[off].mean())


def assign(G: Array, windows: int) -> npt.NDArray[np.intp]:
    """The window that each coordinate belongs to, equally many to each. (N, values) → (N,)"""
    energy = window_energy(G, windows)
    share = (energy / energy.sum(axis=0)).T  # (N, windows)
    size = len(G) // windows
    return linear_sum_assignment(-np.repeat(share, size, axis=1))[1] // size


def probe(G: Array, targets: Array, noise: float) -> Array:
    """The best linear probe P of `targets` x from the state G x + noise, for white x. (d, m)

    G  (m, values) state;  targets  (d, values)
    """
    covariance: Array = G @ G.T + noise**2 * np.eye(len(G))
    return linalg.solve(covariance, G @ targets.T, assume_a="pos").T


def score(P: Array, G: Array, targets: Array, noise: float) -> float:
    """R² of the probe P."""
    return float(1 - (np.sum((P @ G - targets) ** 2) + noise**2 * np.sum(P**2)) / len(targets))


def separability(family: str, n: int = 64, values: int = 32, windows: int = 8, length: int = 1024) -> Scores:
    """All probes on the scaled memory of one family."""
    G = jacobian(family, n, length).reshape(n, values, -1).sum(axis=2)  # each value is held for length / values samples
    noise = NOISE * float(np.sqrt(np.mean(np.sum(G**2, axis=1))))
    block = assign(G, windows)
    whole, kept, masked = np.empty(windows), np.empty((windows, windows)), np.empty((windows, windows))
    for i, targets in enumerate(np.split(np.eye(values), windows)):
        P = probe(G, targets, noise)
        whole[i] = score(P, G, targets, noise)
        for j in range(windows):
            own = G[block == j]
            kept[i, j] = score(probe(own, targets, noise), own, targets, noise)
            masked[i, j] = score(P * (block != j), G, targets, noise)
    return Scores(whole, kept, masked)


def window_probes(n: int = 64, values: int = 32, windows: int = 8, length: int = 1024) -> Drawing:
    """Kept and masked, window by block, for every family."""
    rows, found = [], {family: separability(family, n, values, windows, length) for family in LABELS}
    with canvas() as plt:
        figure, axes = plt.subplots(2, len(LABELS), figsize=(12, 4.2))
        for (kept, masked), (family, scores) in zip(axes.T, found.items(), strict=True):
            for axis, matrix, mean in zip(
                (kept, masked), (scores.kept, scores.masked), zip(scores.own, scores.others, strict=True), strict=True
            ):
                image = axis.imshow(matrix, cmap="viridis", vmin=0, vmax=1)
                axis.set(xticks=[], yticks=[], xlabel=f"own {mean[0]:.2f}, others {mean[1]:.2f}")
            kept.set_title(f"{LABELS[family]}\nwhole state {scores.whole.mean():.2f}")
            for name, matrix in (("kept", scores.kept), ("masked", scores.masked)):
                for row, whole in zip(wide_rows(matrix, "block", family=family, probe=name), scores.whole, strict=True):
                    rows.append({**row, "whole": float(whole)})
        axes[0, 0].set_ylabel("only block j kept\nwindow i (down: newer)")
        axes[1, 0].set_ylabel("block j masked\nwindow i (down: newer)")
        figure.colorbar(image, ax=axes, shrink=0.8, label="R² of the probe")
    morlet, legs, least = found["morlet"], found["legendre"], min(scores.whole.min() for scores in found.values())
    caption = (
        f"Linear probes of {windows} windows of {values} held values, N = {n}: from the whole state every family "
        f"reads every window (R² at least {least:.3f}), from the window's own "
        f"{n // windows} coordinates Morlet {morlet.own[0]:.2f}, LegS {legs.own[0]:.2f}; masking these leaves Morlet "
        f"{morlet.own[1]:.2f} of the window and {morlet.others[1]:.2f} of the others, LegS {legs.own[1]:.2f} and "
        f"{legs.others[1]:.2f}."
    )
    return Drawing(figure, rows, caption)

"""Everything about a family, a size and a measure: frame, operator, modes, kernel, Jacobian.

Values are computed when they are first used and then cached; `study` returns the same `Study` for the same choice.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from wavessm.frames import BASES, Array, Frame, make_frame
from wavessm.memory import OnlineMemory
from wavessm.operators import Operator, make_operator
from wavessm.structure import Diagonal
from wavessm_lab.explore.allowed import AllowedFiles
from wavessm_lab.explore.signals import read_atoms
from wavessm_lab.explore.state import FILE, State
from wavessm_lab.studies.jacobian import impulse_response, localisation

HORIZON = {"scaled": 4.0, "translated": 1.5}
"""How far kernels are drawn, in the operator's own time: a translated one ends at 1."""
LAGS = 300
LENGTH = 256
"""Samples of the Jacobian, and of the window there."""
CELLS = (160, 96)
"""Points in time and in frequency at which coverage is taken."""
SHOWN = 7
"""Atoms that are drawn."""


@dataclass(frozen=True)
class Choice:
    """What a study depends on; `stamp` is the time of a file of atoms, 0 for a family."""

    family: str
    n: int
    measure: str
    low: float | None = None
    high: float | None = None
    stamp: int = 0


def choice_of(state: State, family: str, allowed: AllowedFiles) -> Choice:
    """Return the choice of one side of the page."""
    if family.startswith(FILE):
        path = allowed.file(family.removeprefix(FILE))
        return Choice(family, 0, state.measure, stamp=path.stat().st_mtime_ns)
    if not is_tiled(family):
        return Choice(family, state.n, state.measure)
    return Choice(family, state.n, state.measure, state.low, state.high)


def is_tiled(family: str) -> bool:
    """Return whether a range of frequencies can be chosen for a family."""
    return family not in BASES and not family.startswith(FILE)


@lru_cache(maxsize=32)
def study(choice: Choice) -> Study:
    """Return the study of a choice."""
    return Study(choice)


class Study:
    """See the module's docstring. Arrays are float64; coordinates are in the frame's order unless said otherwise."""

    def __init__(self, choice: Choice) -> None:
        self.choice = choice
        self.lock = threading.RLock()  # a memory keeps tables between calls and is not thread-safe

    @property
    def label(self) -> str:
        """What the page calls it."""
        family = self.choice.family
        return Path(family).name if family.startswith(FILE) else family

    @cached_property
    def frame(self) -> Frame:
        """The atoms as they were placed or read."""
        choice = self.choice
        if choice.family.startswith(FILE):
            return read_atoms(Path(choice.family.removeprefix(FILE)))
        return make_frame(choice.family, choice.n, f_min=choice.low, f_max=choice.high)

    @property
    def tight(self) -> Frame:
        """The atoms after tightening: what a memory holds."""
        return self.frame.tighten()

    @cached_property
    def order(self) -> npt.NDArray[np.intp]:
        """(N,) coordinates from the oldest to the newest place; polynomials and sinusoids as they are."""
        if self.choice.family in BASES:
            return np.arange(self.frame.n)
        return np.argsort(self.tight.centres, kind="stable")

    @cached_property
    def shown(self) -> npt.NDArray[np.intp]:
        """A few atoms from slow to fast, in different places."""
        by_frequency = np.argsort(self.pitch, kind="stable")
        bands = np.array_split(by_frequency, min(SHOWN, self.frame.n))
        places = (0.25, 0.5, 0.75)
        centres = self.tight.centres
        return np.array([band[np.argmin(np.abs(centres[band] - places[k % 3]))] for k, band in enumerate(bands)])

    @cached_property
    def _spectra(self) -> tuple[Array, Array]:
        """f (F,) in cycles per window, evenly in octaves, and |φ̂_n(f)|² of the tight atoms. (N, F)"""
        top = max(4.0, 1.6 * float(self.tight.frequencies.max()))
        f = np.geomspace(0.25, min(top, len(self.tight.grid) / 4), CELLS[1])
        weighted = self.tight.atoms * self.tight.weights
        phase = 2 * np.pi * np.outer(self.tight.grid, f)
        return f, (weighted @ np.cos(phase)) ** 2 + (weighted @ np.sin(phase)) ** 2

    @cached_property
    def pitch(self) -> Array:
        """(N,) median frequency of each tight atom: half of its energy lies below. In cycles per window."""
        f, power = self._spectra
        below = np.cumsum(power * f, axis=1)  # on a logarithmic scale df is in proportion to f
        return f[np.argmax(below >= below[:, -1:] / 2, axis=1)]

    @cached_property
    def coverage(self) -> tuple[Array, Array, Array]:
        """s (T,), f (F,) in cycles per window and c (F, T) = Σ_n φ_n(s)² |φ̂_n(f)|² of the tight atoms.

        Where every detail of a signal is held, c is 1: one number per unit of time and frequency.
        """
        f, power = self._spectra
        s = (np.arange(CELLS[0]) + 0.5) / CELLS[0]
        return s, f, power.T @ self.tight.evaluate(s) ** 2

    @cached_property
    def operator(self) -> Operator:
        """Of the tight frame."""
        return make_operator(self.tight, self.choice.measure)

    @cached_property
    def modes(self) -> Diagonal:
        """Eigenvalues of −A and how well its eigenvectors are conditioned, however badly."""
        return self.operator.to_diagonal(max_condition=float("inf"))

    @cached_property
    def kernel(self) -> tuple[Array, Array]:
        """Lags (L,) in the operator's time and the response of every coordinate to an impulse there. (N, L)"""
        horizon = HORIZON[self.choice.measure]
        lags = np.linspace(0, horizon, LAGS, endpoint=False)
        return lags, impulse_response(self.operator, horizon / LAGS, LAGS) / (horizon / LAGS)

    def memory(self, window: float) -> OnlineMemory:
        """A memory; `window` in samples counts under the translated measure only."""
        return OnlineMemory(self.operator, None if self.choice.measure == "scaled" else window)

    @cached_property
    def jacobian(self) -> Array:
        """∂h_T/∂x_t after `LENGTH` samples. (N, LENGTH)"""
        return self.memory(LENGTH).jacobian(LENGTH).numpy()

    @cached_property
    def spread(self) -> float:
        """Median spread of the past in a coordinate, in units of the window; 0.29 if it is uniform."""
        return float(np.median(localisation(self.jacobian)[1]))

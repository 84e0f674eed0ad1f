"""Orthogonal matching pursuit with a ridge over large dictionaries of localised atoms.

    D    dictionary, one unit atom a row                                  (n, length)
    I    the atoms chosen so far, k of them
    R    Cholesky factor of D_I D_Iᵀ + ridge · 1                          (k, k), lower
    y    R⁻¹ D_I f                                                        (k,)
    W    D D_Iᵀ R⁻ᵀ: all atoms against the orthogonalised chosen ones     (n, k)

Each step chooses the atom that fits the residual best, α = D (f − D_Iᵀ c), c the ridge fit on I. Nothing is refitted:
the row of R that belongs to atom i is the row W_i, so one new column of W brings R, y and α up to date,

    ρ² = 1 + ridge − |W_i|²,   w = (D d_i − W W_i) / ρ,   υ = (d_i·f − W_i·y) / ρ,   α ← α − υ w.

The dictionary is kept in panels of time, each with the atoms that reach into it: D d_i costs little for a short atom.
scikit-learn's pursuit multiplies the whole dictionary with the residual at each step instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import linalg

Array = npt.NDArray[np.float64]
Rows = npt.NDArray[np.intp]

PANEL = 128
"""Samples a panel."""

DEPENDENT = 1e-14
"""A chosen atom whose squared distance from the span of the others is below this ends the pursuit."""


@dataclass(frozen=True, eq=False)
class Dictionary:
    """n unit atoms of one length.

    panels  for every PANEL samples: atoms that reach into them (m,), increasing, and their values there (m, samples)
    """

    panels: tuple[tuple[Rows, Array], ...]
    n: int
    length: int

    @staticmethod
    def of(panels: Iterable[tuple[Rows, Array]], n: int, length: int) -> Dictionary:
        """Scale the atoms to unit norm."""
        panels, energy = tuple(panels), np.zeros(n)
        for rows, values in panels:
            energy[rows] += np.einsum("ij,ij->i", values, values)
        norms = np.sqrt(energy)
        return Dictionary(tuple((rows, values / norms[rows, None]) for rows, values in panels), n, length)

    def correlate(self, signal: Array, start: int = 0, stop: int | None = None) -> Array:
        """D f for a signal (length,) that is zero outside the panels start … stop. (n,)"""
        out = np.zeros(self.n)
        for p, (rows, values) in list(enumerate(self.panels))[start:stop]:
            out[rows] += values @ signal[p * PANEL : (p + 1) * PANEL]
        return out

    def atom(self, i: int) -> tuple[Array, int, int]:
        """Atom i (length,), and the panels start … stop that hold all of it."""
        out, held = np.zeros(self.length), []
        for p, (rows, values) in enumerate(self.panels):
            place = int(np.searchsorted(rows, i))
            if place < len(rows) and rows[place] == i:
                out[p * PANEL : (p + 1) * PANEL] = values[place]
                held.append(p)
        return out, held[0], held[-1] + 1


def cwt_dictionary(
    wavelet: Callable[[Array], Array],
    reach: float,
    length: int,
    scales: Array,
    shifts: Array,
    constant: bool = False,
) -> Dictionary:
    """Atoms a^(−1/2) ψ((t − b)/a) on the grid i / (length − 1), of unit norm there; atom k has scale k // len(shifts).

    reach            ψ(x) counts as zero for |x| > reach
    scales, shifts   a and b, in units of the window
    constant         one more atom that does not change at all, for targets with a mean
    """
    t = np.linspace(0, 1, length)
    a, b = np.repeat(scales, len(shifts)), np.tile(shifts, len(scales))
    n, panels = len(a) + constant, []
    for start in range(0, length, PANEL):
        here = t[start : start + PANEL]
        rows = np.flatnonzero((b + reach * a >= here[0]) & (b - reach * a <= here[-1]))
        values = wavelet((here - b[rows, None]) / a[rows, None])
        if constant:
            rows, values = np.append(rows, n - 1), np.concatenate([values, np.ones((1, len(here)))])
        panels.append((rows, values))
    return Dictionary.of(panels, n, length)


@dataclass(frozen=True, eq=False)
class Pursuit:
    """What a pursuit chose, in order, and the fit on any number of its first choices.

    chosen  (k,) atoms of the dictionary by number
    atoms   (k, length) themselves
    R, y    as in the module's docstring; leading parts belong to the first choices alone
    """

    chosen: Rows
    atoms: Array
    R: Array
    y: Array

    def coefficients(self, budget: int) -> Array:
        """The ridge fit on the first `budget` atoms. (min(budget, k),)"""
        k = min(budget, len(self.chosen))
        return linalg.solve_triangular(self.R[:k, :k], self.y[:k], lower=True, trans="T")

    def approximation(self, budget: int) -> Array:
        """The signal as the first `budget` atoms give it. (length,)"""
        c = self.coefficients(budget)
        return c @ self.atoms[: len(c)]


def matching_pursuit(dictionary: Dictionary, signal: Array, budget: int, ridge: float = 0.0) -> Pursuit:
    """Choose at most `budget` atoms for a signal (length,), greedily; fewer where the next would depend on them.

    >>> spikes = Dictionary.of([(np.arange(5), np.eye(5) + np.eye(5, k=1))], 5, 5)
    >>> matching_pursuit(spikes, np.array([0.0, 3.0, 3.0, 0.0, 1.0]), budget=2).chosen.tolist()
    [1, 4]
    """
    budget = min(budget, dictionary.n)
    fit = dictionary.correlate(signal)
    alpha = fit.copy()
    W = np.zeros((dictionary.n, budget), order="F")
    R, y = np.zeros((budget, budget)), np.zeros(budget)
    atoms, chosen = np.zeros((budget, dictionary.length)), np.zeros(budget, np.intp)
    free = np.ones(dictionary.n)
    for k in range(budget):
        i = int(np.argmax(np.abs(alpha) * free))
        row = W[i, :k].copy()
        rest = 1 + ridge - row @ row
        if rest < DEPENDENT or alpha[i] == 0:
            return Pursuit(chosen[:k], atoms[:k], R[:k, :k], y[:k])
        chosen[k], free[i] = i, 0.0
        atoms[k], start, stop = dictionary.atom(i)
        R[k, :k], R[k, k] = row, np.sqrt(rest)
        y[k] = (fit[i] - row @ y[:k]) / R[k, k]
        W[:, k] = (dictionary.correlate(atoms[k], start, stop) - W[:, :k] @ row) / R[k, k]
        alpha -= y[k] * W[:, k]
    return Pursuit(chosen, atoms, R, y)

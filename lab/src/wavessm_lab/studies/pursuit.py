"""Orthogonal matching pursuit with a ridge over large dictionaries of localised atoms.

    D    dictionary, one unit atom a row                                  (n, length)
    I    the atoms chosen so far, k of them
    R    Cholesky factor of D_I D_Iᵀ + ridge · 1                          (k, k), lower
    y    R⁻¹ D_I f                                                        (k,)
    W    D D_Iᵀ R⁻ᵀ: all atoms against the orthogonalised chosen ones     (n, k)

Each step chooses the atom that fits the residual best, α = D (f − D_Iᵀ c), c the ridge fit on I. Nothing is refitted:
the row of R that belongs to atom i is the row W_i, so one new column of W brings R, y and α up to date,

    ρ² = 1 + ridge − |W_i|²,   w = (D d_i − W W_i) / ρ,   υ = (d_i·f − W_i·y) / ρ,   α ← α − υ w.

The dictionary is kept in panels of time. A panel holds only the atoms that reach into it, and those that are smooth
there by a few polynomial coefficients, so D d_i costs little. scikit-learn's pursuit multiplies the whole dictionary
with the residual at each step instead; `benchmarks/pursuit.py` has the two side by side.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy import linalg

from wavessm.errors import OptionError, ShapeError, check_int

Array = npt.NDArray[np.float64]
Rows = npt.NDArray[np.intp]

PANEL = 128
"""Samples a panel."""

DEGREES = (8, 16, 28, 44)
"""Numbers of polynomials that may stand for an atom on a panel; where none is enough, its values do."""

ROUNDING = 2e-15
"""Polynomials are enough if they miss an atom of unit norm by no more than this."""

DEPENDENT = 1e-14
"""A chosen atom whose squared distance from the span of the others is below this ends the pursuit."""


@dataclass(frozen=True, eq=False)
class Panel:
    """The part of a dictionary on some consecutive samples.

    parts        atoms by number (m,), increasing, with their coefficients (m, degrees) on the first polynomials
    values       atoms by number (m,), increasing, with their values (m, samples): those that are not smooth here
    polynomials  (degrees, samples) orthonormal, by degree
    """

    parts: tuple[tuple[Rows, Array], ...]
    values: tuple[Rows, Array]
    polynomials: Array

    @staticmethod
    def of(rows: Rows, values: Array) -> Panel:
        """Atoms by number, increasing, and their values (len(rows), samples)."""
        polynomials = _polynomials(values.shape[1])
        coefficients = values @ polynomials.T
        beyond = np.sum((values - coefficients @ polynomials) ** 2, axis=1)
        left, parts = np.ones(len(rows), bool), []
        for degrees in DEGREES:
            if degrees < values.shape[1]:
                missed = np.sum(coefficients[:, degrees:] ** 2, axis=1) + beyond
                enough = left & (missed < ROUNDING**2)
                parts.append((rows[enough], coefficients[enough, :degrees]))
                left &= ~enough
        return Panel(tuple(parts), (rows[left], values[left]), polynomials)

    def correlate(self, signal: Array, out: Array) -> None:
        """Add the inner products with a signal (samples,) to those of all atoms (n,)."""
        projected = self.polynomials @ signal
        for rows, coefficients in self.parts:
            out[rows] += coefficients @ projected[: coefficients.shape[1]]
        rows, values = self.values
        out[rows] += values @ signal

    def atom(self, i: int) -> Array | None:
        """Atom i on these samples, None where it does not reach them. (samples,)"""
        for rows, numbers in (*self.parts, self.values):
            place = int(np.searchsorted(rows, i))
            if place < len(rows) and rows[place] == i:
                smooth = rows is not self.values[0]
                return numbers[place] @ self.polynomials[: numbers.shape[1]] if smooth else numbers[place]
        return None


@lru_cache(maxsize=8)
def _polynomials(samples: int) -> Array:
    """Orthonormal polynomials on `samples` even steps, up to the largest of DEGREES. (degrees, samples)"""
    x = np.linspace(-1, 1, samples)
    return np.linalg.qr(np.polynomial.chebyshev.chebvander(x, min(max(DEGREES), samples) - 1))[0].T.copy()


@dataclass(frozen=True, eq=False)
class Dictionary:
    """n unit atoms of one length, in panels of PANEL samples."""

    panels: tuple[Panel, ...]
    n: int
    length: int

    @staticmethod
    def of(atoms: Array) -> Dictionary:
        """The rows (n, length) of a matrix, scaled to unit norm."""
        norms = np.linalg.norm(atoms, axis=1)
        if not norms.all():
            raise OptionError(f"Dictionary: atom {int(norms.argmin())} is zero on the whole grid; drop it.")
        panels = []
        for start in range(0, atoms.shape[1], PANEL):
            values = atoms[:, start : start + PANEL] / norms[:, None]
            rows = np.flatnonzero(values.any(axis=1))
            panels.append(Panel.of(rows, values[rows]))
        return Dictionary(tuple(panels), *atoms.shape)

    def correlate(self, signal: Array, start: int = 0, stop: int | None = None) -> Array:
        """D f for a signal (length,) that is zero outside the panels start … stop. (n,)"""
        out = np.zeros(self.n)
        for p in range(start, len(self.panels) if stop is None else stop):
            self.panels[p].correlate(signal[p * PANEL : (p + 1) * PANEL], out)
        return out

    def atom(self, i: int) -> tuple[Array, int, int]:
        """Atom i (length,), and the panels start … stop that hold all of it."""
        out, held = np.zeros(self.length), []
        for p, panel in enumerate(self.panels):
            part = panel.atom(i)
            if part is not None:
                out[p * PANEL : (p + 1) * PANEL] = part
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
    n = len(a) + constant
    panels, energy = [], np.zeros(n)
    for start in range(0, length, PANEL):
        here = t[start : start + PANEL]
        rows = np.flatnonzero((b + reach * a >= here[0]) & (b - reach * a <= here[-1]))
        values = wavelet((here - b[rows, None]) / a[rows, None])
        if constant:
            rows, values = np.append(rows, n - 1), np.concatenate([values, np.ones((1, len(here)))])
        energy[rows] += np.einsum("ij,ij->i", values, values)
        panels.append((rows, values))
    if not energy.all():
        raise OptionError("cwt_dictionary: an atom is zero on the whole grid; choose larger scales or a finer grid.")
    norms = np.sqrt(energy)
    return Dictionary(tuple(Panel.of(rows, values / norms[rows, None]) for rows, values in panels), n, length)


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

    >>> spikes = Dictionary.of(np.eye(5) + np.eye(5, k=1))
    >>> matching_pursuit(spikes, np.array([0.0, 3.0, 3.0, 0.0, 1.0]), budget=2).chosen.tolist()
    [1, 4]
    """
    if signal.shape != (dictionary.length,):
        raise ShapeError(f"matching_pursuit: signal has shape {signal.shape}, expected ({dictionary.length},).")
    budget = min(check_int(budget, "matching_pursuit: budget", minimum=1), dictionary.n)
    if not 0 <= ridge < np.inf:
        raise OptionError(f"matching_pursuit: ridge is {ridge}, expected a number of at least 0.")
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

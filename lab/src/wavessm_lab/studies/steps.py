"""Step functions on a budget: N terms of Legendre, of an orthonormal wavelet, or of a dictionary by matching pursuit.

    f_one = 1 from t = ½;   f_two = 0, 1, 0.3 on the thirds;   grid t_i = i / (L − 1)
    e_N   = (Δt Σ (f − g)²)^½ with Δt = 1 / (L − 1)

Legendre keeps the N largest of TERMS coefficients of √(2n+1) P_n(2t − 1), in closed form: for the indicator of [s, 1]
and x = 2s − 1, a_0 = 1 − s and a_n = (P_{n−1}(x) − P_{n+1}(x)) / (2 √(2n+1)). Gauss–Legendre quadrature, which is
inexact on a jump, stands beside it. db6 keeps the N largest coefficients of a periodised transform at its deepest
level. The dictionaries and the pursuit are in `pursuit.py`; figures in `budget.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pywt
from scipy import special

from wavessm.frames import Array
from wavessm_lab.studies.pursuit import Dictionary, Pursuit, cwt_dictionary, matching_pursuit

BUDGETS = (32, 64, 128, 256)
GRIDS = (1024, 2048, 4096)
TERMS = 2048
NODES = 4096
"""Gauss–Legendre points of the quadrature."""


@dataclass(frozen=True)
class Steps:
    """A function on [0, 1] that is heights[k] between its k-th and its next place."""

    places: tuple[float, ...]
    heights: tuple[float, ...]

    def values(self, t: Array) -> Array:
        """f at points t."""
        return np.asarray(self.heights)[np.searchsorted(self.places, t, side="right")]


TARGETS = {"one": Steps((1 / 2,), (0.0, 1.0)), "two": Steps((1 / 3, 2 / 3), (0.0, 1.0, 0.3))}


def grid_error(f: Array, g: Array) -> float:
    """e_N of two functions on the grid."""
    return float(np.linalg.norm(f - g) / np.sqrt(len(f) - 1))


def _largest(coefficients: Array, budget: int) -> Array:
    """The coefficients with all but the `budget` largest set to zero."""
    kept = np.argsort(-np.abs(coefficients), kind="stable")[:budget]
    out = np.zeros_like(coefficients)
    out[kept] = coefficients[kept]
    return out


# -- Legendre -----------------------------------------------------------------------------------------------


def legendre_functions(t: Array, terms: int) -> Iterator[Array]:
    """√(2n+1) P_n(2t − 1) for n = 0, 1, … by the three-term recurrence."""
    x, before, now = 2 * t - 1, np.zeros_like(t), np.ones_like(t)
    for n in range(terms):
        yield np.sqrt(2 * n + 1) * now
        before, now = now, ((2 * n + 1) * x * now - n * before) / (n + 1)


def legendre_coefficients(target: Steps, terms: int = TERMS) -> Array:
    """Coefficients of a step function in closed form. (terms,)"""
    n = np.arange(1, terms)
    out = np.zeros(terms)
    out[0] = target.heights[0]
    for place, jump in zip(target.places, np.diff(target.heights), strict=True):
        x = 2 * place - 1
        out[0] += jump * (1 - place)
        difference = special.eval_legendre(n - 1, x) - special.eval_legendre(n + 1, x)
        out[1:] += jump * difference / (2 * np.sqrt(2 * n + 1))
    return out


def quadrature_coefficients(target: Steps, terms: int = TERMS, nodes: int = NODES) -> Array:
    """The same by Gauss–Legendre quadrature over the whole window. (terms,)"""
    x, w = special.roots_legendre(nodes)
    t = (x + 1) / 2
    weighted = w / 2 * target.values(t)
    return np.array([weighted @ values for values in legendre_functions(t, terms)])


def legendre_approximations(coefficients: Array, length: int, budgets: tuple[int, ...]) -> dict[int, Array]:
    """The N largest terms on the grid, for every budget N."""
    kept = np.stack([_largest(coefficients, budget) for budget in budgets])
    out = np.zeros((len(budgets), length))
    for c, values in zip(kept.T, legendre_functions(np.linspace(0, 1, length), len(coefficients)), strict=True):
        if c.any():
            out += c[:, None] * values
    return dict(zip(budgets, out, strict=True))


# -- orthonormal wavelets -----------------------------------------------------------------------------------


def dwt_approximations(
    f: Array, budgets: tuple[int, ...], wavelet: str = "db6", mode: str = "periodization"
) -> dict[int, Array]:
    """The N largest coefficients of the deepest transform, inverted."""
    level = pywt.dwt_max_level(len(f), pywt.Wavelet(wavelet).dec_len)
    packed, slices = pywt.coeffs_to_array(pywt.wavedec(f, wavelet, mode=mode, level=level))
    out = {}
    for budget in budgets:
        kept = pywt.array_to_coeffs(_largest(packed, budget), slices, output_format="wavedec")
        out[budget] = pywt.waverec(kept, wavelet, mode=mode)[: len(f)]
    return out


# -- dictionaries -------------------------------------------------------------------------------------------


MOTHERS: dict[str, tuple[Callable[[Array], Array], float]] = {
    "mexh": (lambda x: (1 - x * x) * np.exp(-x * x / 2), 9.5),
    "morl": (lambda x: np.cos(5 * x) * np.exp(-x * x / 2), 9.0),
    "gaus2": (lambda x: (4 * x * x - 2) * np.exp(-x * x), 6.7),
    "gaus3": (lambda x: x * (12 - 8 * x * x) * np.exp(-x * x), 6.8),
}
"""Mother wavelets as PyWavelets has them, up to a factor, and the reach beyond which they are below rounding."""


@dataclass(frozen=True)
class Atoms:
    """A dictionary over a grid: geometric scales from two grid steps to a quarter of the window, and uniform shifts."""

    wavelet: str
    length: int = 2048
    scales: int = 48
    shifts: int = 512
    constant: bool = False


@lru_cache(maxsize=1)
def dictionary(atoms: Atoms) -> Dictionary:
    """The dictionary of a description; the last one is kept, since both targets use it."""
    mother, reach = MOTHERS[atoms.wavelet]
    scales = np.geomspace(2 / (atoms.length - 1), 0.25, atoms.scales)
    shifts = np.linspace(0, 1, atoms.shifts)
    return cwt_dictionary(mother, reach, atoms.length, scales, shifts, atoms.constant)


def pursue(target: Steps, atoms: Atoms, budget: int = max(BUDGETS), ridge: float = 1e-8) -> Pursuit:
    """The matching pursuit of a target over a dictionary."""
    return matching_pursuit(dictionary(atoms), target.values(np.linspace(0, 1, atoms.length)), budget, ridge)


# -- all methods by name ------------------------------------------------------------------------------------

METHODS = ("legendre", "legendre, quadrature", "db6", "gaus2", "gaus3", "mexh", "morl", "morl + constant")


@lru_cache(maxsize=64)
def approximations(method: str, target: str, length: int = 2048) -> dict[int, Array]:
    """What a method of METHODS makes of a target of TARGETS, for every budget of BUDGETS."""
    f = TARGETS[target]
    if method == "legendre":
        return legendre_approximations(legendre_coefficients(f), length, BUDGETS)
    if method == "legendre, quadrature":
        return legendre_approximations(_quadrature(target), length, BUDGETS)
    if method == "db6":
        return dwt_approximations(f.values(np.linspace(0, 1, length)), BUDGETS)
    wavelet, _, constant = method.partition(" + ")
    found = pursue(f, Atoms(wavelet, length, constant=bool(constant)))
    return {budget: found.approximation(budget) for budget in BUDGETS}


@lru_cache(maxsize=4)
def _quadrature(target: str) -> Array:
    return quadrature_coefficients(TARGETS[target])

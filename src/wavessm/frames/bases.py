"""The baselines: polynomial, Fourier and Gabor families, each a function (n, points) → atoms and a natural grid.

Atoms have unit energy. s runs over [0, 1] with 1 as now.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import special

from wavessm.frames.quadrature import Array, Quadrature
from wavessm.frames.recipe import allocate


def default_quadrature(n: int) -> Quadrature:
    """Panels of order 8 with 16 points an atom, at least 2,049."""
    return Quadrature.panels(max(256, 2 * n), order=8)


def single_panel(n: int) -> Quadrature:
    """One panel whose order integrates products of polynomials of degree < n exactly, with room to spare."""
    return Quadrature.panels(1, order=max(64, 2 * n))


@dataclass(frozen=True)
class Basis:
    """A family that is not tiled from a mother wavelet.

    atoms       (n, s) → (n, len(s)) values at points s of [0, 1]
    quadrature  n → the grid on which those atoms are resolved
    """

    atoms: Callable[[int, Array], Array]
    quadrature: Callable[[int], Quadrature] = default_quadrature
    reference: str = ""


def _legendre(n: int, s: Array) -> Array:
    k = np.arange(n)[:, None]
    return np.sqrt(2 * k + 1) * special.eval_legendre(k, 2 * s - 1)


def _chebyshev(n: int, s: Array) -> Array:
    k = np.arange(n)[:, None]
    return np.cos(k * np.arccos(np.clip(2 * s - 1, -1, 1))) / np.sqrt(0.5 * (1 - 1 / (4 * k**2 - 1)))


def _fourier(n: int, s: Array) -> Array:
    k = np.arange(n)[:, None]
    angle = 2 * np.pi * ((k + 1) // 2) * s
    return np.where(k % 2 == 1, np.cos(angle), np.where(k == 0, np.sqrt(0.5), np.sin(angle))) * np.sqrt(2)


def _laguerre(n: int, s: Array) -> Array:
    """Laguerre functions e^{−x/2} L_k(x) of the age x = 4n(1 − s), over which even the last has decayed.

    The recurrence runs on values scaled by their running magnitude, since e^{−x/2} alone underflows.
    """
    x = 4 * n * (1 - s)
    log_scale = -x / 2
    before, now = np.zeros_like(x), np.ones_like(x)
    rows = []
    for k in range(n):
        rows.append(now * np.exp(log_scale))
        before, now = now, ((2 * k + 1 - x) * now - k * before) / (k + 1)
        size = np.maximum(np.abs(now), np.abs(before))
        log_scale = log_scale + np.log(size)
        before, now = before / size, now / size
    return np.sqrt(4 * n) * np.array(rows)


BERNSTEIN_DEGREE = 9
"""Largest degree of one Bernstein piece: κ(S) of degree d is binomial(2d + 1, d), beyond 1e16 from d = 28."""


def _bernstein_pieces(n: int) -> np.ndarray:
    """Degrees of the pieces; joined continuously, pieces of degree d_i carry 1 + Σ d_i atoms."""
    pieces = -(-(n - 1) // BERNSTEIN_DEGREE)
    return allocate(np.ones(pieces), n - 1)


def _bernstein(n: int, s: Array) -> Array:
    """Bernstein polynomials, composite (as in Bézier curves) once n − 1 exceeds the largest degree."""
    degrees = _bernstein_pieces(n)
    atoms = np.zeros((n, len(s)))
    position = np.clip(s * len(degrees), 0, None)
    first = 0
    for piece, degree in enumerate(degrees):
        t = position - piece
        inside = (t >= 0) & (t <= 1)
        k = np.arange(degree + 1)[:, None]
        t = t[inside]
        # A joint belongs to both pieces with the same value, so assigning twice is continuous.
        atoms[first : first + degree + 1, inside] = special.binom(degree, k) * t**k * (1 - t) ** (degree - k)
        first += degree
    return atoms


def _gabor(n: int, s: Array) -> Array:
    """Gaussian windows on a critical lattice: about √n centres, and bands of cosines and sines √n cycles apart."""
    rows = max(1, round(np.sqrt(n)))
    spacing = n / rows
    counts = allocate(np.ones(rows), n)
    atoms = []
    for row, count in enumerate(counts):
        centres = (np.arange(count) + 0.5) / count
        distance = s - centres[:, None]
        wave = np.sin if row % 2 == 0 and row else np.cos
        phase = 2 * np.pi * ((row + 1) // 2) * spacing * distance
        atoms.append(np.exp(-np.pi * (spacing * distance) ** 2) * wave(phase))
    return np.concatenate(atoms)


def _bernstein_grid(n: int) -> Quadrature:
    return Quadrature.panels(len(_bernstein_pieces(n)), order=4 * BERNSTEIN_DEGREE)


BASES = {
    "legendre": Basis(_legendre, single_panel, "orthonormal shifted Legendre polynomials; HiPPO (Gu et al. 2020)"),
    "fourier": Basis(_fourier, reference="1, √2 cos 2πks, √2 sin 2πks; HiPPO-FouT"),
    "chebyshev": Basis(_chebyshev, single_panel, "Chebyshev polynomials of the first kind, unit energy"),
    "laguerre": Basis(_laguerre, lambda n: Quadrature.panels(1, order=3 * n + 64), "Laguerre functions of the age"),
    "bernstein": Basis(_bernstein, _bernstein_grid, "Bernstein polynomials; composite beyond degree 9"),
    "gabor": Basis(_gabor, reference="Gabor 1946, critical lattice"),
}

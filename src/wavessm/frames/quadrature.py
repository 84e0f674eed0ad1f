"""Grids on [0, 1] that integrate and differentiate consistently.

The window is cut into panels. On each panel a function is represented by its values at Legendre–Gauss–Lobatto points,
and neighbouring panels share their end point. With H the diagonal matrix of weights and D the derivative, Q = H D
satisfies *summation by parts*,

    Q + Qᵀ = e_L e_Lᵀ − e_0 e_0ᵀ,

the discrete form of ∫ f′g + ∫ f g′ = f(1)g(1) − f(0)g(0). It holds to rounding at every order, which makes the
structure of the operators exact instead of approximate. Read next: `frame.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy import sparse, special

from wavessm.errors import OptionError, check_int, is_int, real_array, shape_error

Array = npt.NDArray[np.float64]


def frozen(values: npt.ArrayLike) -> Array:
    """Return a read-only float64 copy, safe to share between cached objects."""
    array = np.array(values, dtype=np.float64, order="C")
    array.setflags(write=False)
    return array


@lru_cache(maxsize=32)
def lobatto(order: int) -> tuple[Array, Array, Array]:
    """Return one panel of degree p: Gauss–Lobatto points x (p + 1,) and weights w (p + 1,) on [−1, 1], Q = diag(w) D.

    Q (p + 1, p + 1) does not depend on the width of the panel. Degree 1 is the trapezoid rule.
    """
    inner = special.roots_jacobi(order - 1, 1.0, 1.0)[0] if order > 1 else []
    x = np.concatenate([[-1.0], inner, [1.0]])
    p = special.eval_legendre(order, x)
    w = 2.0 / (order * (order + 1) * p**2)
    gaps = np.subtract.outer(x, x)
    np.fill_diagonal(gaps, 1.0)
    D = np.divide.outer(p, p) / gaps
    np.fill_diagonal(D, 0.0)
    D[0, 0], D[-1, -1] = -order * (order + 1) / 4, order * (order + 1) / 4
    Q = w[:, None] * D
    # Exact in exact arithmetic; enforcing it here keeps the identity at rounding for orders in the hundreds.
    skew = (Q - Q.T) / 2
    skew[0, 0], skew[-1, -1] = -0.5, 0.5
    return frozen(x), frozen(w), frozen(skew)


@dataclass(frozen=True, eq=False)
class Quadrature:
    """Points, weights and derivative on [0, 1]; build one with `panels` or `from_points`.

    Attributes:
        grid: Points from 0 to 1, shape (L,) with L = panels · order + 1.
        weights: Positive weights that sum to 1: ∫ f ≈ weights · f, shape (L,).
        breaks: Ends of the panels, shape (panels + 1,).
        order: Polynomial degree on each panel.
    """

    grid: Array
    weights: Array
    breaks: Array
    order: int

    @staticmethod
    def panels(panels: int | npt.ArrayLike, order: int = 8) -> Quadrature:
        """Return Gauss–Lobatto points of one order on each panel; exact for polynomials of degree < 2 · order.

        Args:
            panels: The number of equal panels, or their ends: increasing numbers from 0 to 1.
            order: Polynomial degree on each panel.

        Raises:
            OptionError: The ends do not increase from 0 to 1.

        Example:
            >>> quad = Quadrature.panels(4, order=6)
            >>> len(quad.grid), float(quad.weights @ quad.grid**11)
            (25, 0.0833333333333333...)
        """
        breaks = np.linspace(0, 1, int(panels) + 1) if is_int(panels) else real_array(panels, "Quadrature")  # type: ignore[arg-type]
        if breaks.ndim != 1 or len(breaks) < 2 or not np.all(np.diff(breaks) > 0):
            raise OptionError("Quadrature: grid points and panel ends must be increasing numbers from 0 to 1.")
        if np.abs(breaks[[0, -1]] - [0, 1]).max() > 1e-12:
            raise OptionError(f"Quadrature: the points span [{breaks[0]:g}, {breaks[-1]:g}], expected [0, 1].")
        order = check_int(order, "Quadrature: order", minimum=1)
        x, w, _ = lobatto(order)
        widths = np.diff(breaks)
        points = breaks[:-1, None] + widths[:, None] * (x + 1) / 2  # (panels, order + 1)
        grid = np.append(points[:, :-1].ravel(), 1.0)
        grid[0] = 0.0
        weights = np.zeros_like(grid)
        index = np.arange(len(widths))[:, None] * order + np.arange(order + 1)
        np.add.at(weights, index, widths[:, None] * w / 2)
        return Quadrature(frozen(grid), frozen(weights), frozen(breaks), order)

    @staticmethod
    def from_points(grid: npt.ArrayLike, weights: npt.ArrayLike | None = None) -> Quadrature:
        """Return the trapezoid rule on increasing points from 0 to 1, or own weights that sum to 1, both (L,)."""
        points = real_array(grid, "Quadrature: grid")
        quad = Quadrature.panels(points, order=1)
        if weights is None:
            return quad
        given = real_array(weights, "Quadrature: weights")
        if given.shape != points.shape:
            raise shape_error("Quadrature: weights", given, f"{points.shape} as the grid")
        if not np.all(given > 0) or abs(given.sum() - 1) > 1e-3:
            raise OptionError(f"Quadrature: weights sum to {given.sum():g}, expected positive ones that sum to 1.")
        return Quadrature(quad.grid, frozen(given), quad.breaks, 1)

    def derivative_moments(self, values: Array) -> Array:
        """Return Q f along the last axis, (..., L) → (..., L): `derivative_moments(f) @ g` is ∫ f′ g."""
        _, _, Q = lobatto(self.order)
        panels, p = len(self.breaks) - 1, self.order
        lead = values.shape[:-1]
        left = values[..., :-1].reshape(*lead, panels, p)
        right = values[..., p::p, None]
        blocks = np.concatenate([left, right], axis=-1) @ Q.T  # (..., panels, p + 1)
        out = np.zeros_like(values)
        out[..., :-1] = blocks[..., :p].reshape(*lead, panels * p)
        out[..., p::p] += blocks[..., p]
        return out

    def derivative(self, values: Array) -> Array:
        """Return df/ds along the last axis, (..., L) → (..., L)."""
        # Q goes with the panels' own weights, whatever weights the user integrates with
        return self.derivative_moments(values) / Quadrature.panels(self.breaks, self.order).weights

    def interpolation(self, points: Array) -> sparse.csr_array:
        """Return the matrix (P, L) from values on the grid to values at P points of [0, 1]."""
        x, _, _ = lobatto(self.order)
        p = self.order
        panel = np.clip(np.searchsorted(self.breaks, points, side="right") - 1, 0, len(self.breaks) - 2)
        left, width = self.breaks[panel], np.diff(self.breaks)[panel]
        local = 2 * (points - left) / width - 1
        gap = local[:, None] - x
        hit = gap == 0
        # The barycentric weights of Gauss–Lobatto points are proportional to 1 / P_order(x).
        terms = 1 / (special.eval_legendre(p, x) * np.where(hit, 1.0, gap))
        rows = np.where(hit.any(1, keepdims=True), hit, terms)
        rows = rows / rows.sum(1, keepdims=True)
        columns = panel[:, None] * p + np.arange(p + 1)
        where = np.arange(len(points) + 1) * (p + 1)
        return sparse.csr_array((rows.ravel(), columns.ravel(), where), shape=(len(points), len(self.grid)))

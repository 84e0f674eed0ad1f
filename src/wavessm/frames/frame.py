"""A frame: N atoms on [0, 1] with the quadrature that integrates them.

    φ_n        atom n, row n of `atoms`                              (N, L)
    S          Gram matrix, S_ij = ⟨φ_i, φ_j⟩                        (N, N)
    φ̃ = S⁻¹φ   dual frame: f = Σ ⟨f, φ_n⟩ φ̃_n for f in the span
    S^{−1/2}φ  tight frame: orthonormal atoms, each as close to its original as orthonormality allows

Everything is float64 and read-only. Read next: `tiling.py` (how wavelet atoms are placed), then `family.py`.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import numpy.typing as npt

from wavessm.errors import NotFiniteError, OptionError, RankError, ShapeError, real_array, shape_error
from wavessm.frames.quadrature import Array, Quadrature, frozen

TIGHT_TOLERANCE = 1e-9
"""Largest deviation of an entry of the Gram matrix from the identity's in a frame that counts as tight."""


class Frame:
    """N atoms on [0, 1]: Gram matrix, bounds, dual, tightening, analysis and synthesis.

    Args:
        atoms: Samples of the atoms, one atom per row, shape (N, L) with 2 ≤ N ≤ L.
        grid: Increasing points from 0 to 1, shape (L,), or a `Quadrature`; evenly spaced by default.
        weights: Quadrature weights, shape (L,); the trapezoid rule by default.
        name: The name that error messages use.

    Raises:
        ShapeError: Arrays whose shapes do not fit together.
        NotFiniteError: Atoms or grid with NaN or infinity.
        OptionError: A grid that does not increase from 0 to 1, or weights beside a `Quadrature`.

    Example:
        >>> import numpy as np
        >>> s = np.linspace(0, 1, 513)
        >>> frame = Frame([np.ones_like(s), s, s**2])
        >>> frame.rank(), bool(frame.condition_number() > 100)
        (3, True)
        >>> bool(np.allclose(frame.tighten().gram(), np.eye(3)))
        True
    """

    def __init__(
        self,
        atoms: npt.ArrayLike,
        grid: npt.ArrayLike | Quadrature | None = None,
        weights: npt.ArrayLike | None = None,
        name: str = "frame",
    ) -> None:
        self.atoms = frozen(real_array(atoms, "Frame: atoms"))
        self.name = name
        if self.atoms.ndim != 2 or not 2 <= self.atoms.shape[0] <= self.atoms.shape[1]:
            expected = "(n, length) with one atom per row and 2 ≤ n ≤ length; more atoms need a finer grid"
            raise shape_error("Frame: atoms", self.atoms, expected)
        n, length = self.atoms.shape
        if broken := int((~np.isfinite(self.atoms)).any(axis=1).sum()):
            raise NotFiniteError(f"Frame: {broken} of {n} atoms hold NaN or infinity.")
        if not isinstance(grid, Quadrature):
            grid = Quadrature.from_points(np.linspace(0, 1, length) if grid is None else grid, weights)
        elif weights is not None:
            raise OptionError("Frame: a Quadrature has weights of its own; pass points and weights, or it alone.")
        self.quadrature = grid
        if len(grid.grid) != length:
            raise ShapeError(f"Frame: atoms have {length} samples but the grid has {len(grid.grid)} points.")

    def __repr__(self) -> str:
        return f"Frame({self.name!r}, n={self.n}, points={len(self.grid)})"

    @property
    def n(self) -> int:
        """Number of atoms N."""
        return self.atoms.shape[0]

    @property
    def grid(self) -> Array:
        """Points at which the atoms are sampled, shape (L,)."""
        return self.quadrature.grid

    @property
    def weights(self) -> Array:
        """Quadrature weights, ∫ f ≈ weights · f, shape (L,)."""
        return self.quadrature.weights

    @cached_property
    def _svd(self) -> tuple[Array, Array, Array]:
        """U, σ, Vᵀ of the atoms times √weights, so that S = U σ² Uᵀ.

        Taken from the atoms and not from S, it resolves condition numbers of S far beyond 1/eps.
        """
        return np.linalg.svd(self.atoms * np.sqrt(self.weights), full_matrices=False)

    def gram(self) -> Array:
        """Return S_ij = ⟨φ_i, φ_j⟩, shape (N, N)."""
        return (self.atoms * self.weights) @ self.atoms.T

    def bounds(self) -> tuple[float, float]:
        """Return the (lower, upper) frame bounds on the span: the extreme eigenvalues of S."""
        sigma = self._svd[1]
        return float(sigma[-1] ** 2), float(sigma[0] ** 2)

    def condition_number(self) -> float:
        """Return κ(S) = upper / lower; infinite if the atoms are dependent."""
        lower, upper = self.bounds()
        return upper / lower if lower > 0 else float("inf")

    def rank(self) -> int:
        """Return the number of atoms that are independent in double precision."""
        sigma = self._svd[1]
        return int(np.sum(sigma > sigma[0] * max(self.atoms.shape) * np.finfo(float).eps))

    def require_full_rank(self) -> None:
        """Raise `RankError` with the rank if the atoms are dependent."""
        rank = self.rank()
        if rank < self.n:
            raise RankError(
                f"{self.name}: the {self.n} atoms have rank {rank} (κ(S) = {self.condition_number():.1e}); use fewer "
                "atoms, spread them over more frequencies (larger f_max, fewer scales) or drop repeated ones."
            )

    @cached_property
    def is_tight(self) -> bool:
        """Whether the atoms are orthonormal."""
        return bool(np.abs(self.gram() - np.eye(self.n)).max() < TIGHT_TOLERANCE)

    def dual(self) -> Frame:
        """Return the dual frame S⁻¹φ on the same grid; raises `RankError` if the atoms are dependent."""
        return self._dual_and_tight[0]

    def tighten(self) -> Frame:
        """Return the tight frame S^{−1/2}φ, whose Gram matrix is I; raises `RankError` if the atoms are dependent."""
        return self._dual_and_tight[1]

    @cached_property
    def _dual_and_tight(self) -> tuple[Frame, Frame]:
        self.require_full_rank()
        U, sigma, Vt = self._svd
        root = np.sqrt(self.weights)  # divided by last: another rounding gives eigenvectors of operators another sign
        dual = Frame((U / sigma) @ Vt / root, self.quadrature, name=f"dual of {self.name}")
        return dual, Frame(U @ Vt / root, self.quadrature, name=self.name)

    def analyse(self, signal: npt.ArrayLike) -> Array:
        """Return the coefficients ⟨f, φ_n⟩ of signals sampled on the grid, (..., L) → (..., N)."""
        return _last_axis(signal, len(self.grid), "analyse") @ (self.atoms * self.weights).T

    def synthesise(self, coefficients: npt.ArrayLike) -> Array:
        """Return Σ c_n φ_n on the grid, (..., N) → (..., L).

        `frame.dual().synthesise(frame.analyse(f))` is the projection of f on the span.
        """
        return _last_axis(coefficients, self.n, "synthesise") @ self.atoms

    def evaluate(self, points: npt.ArrayLike) -> Array:
        """Return the atoms at any P points of [0, 1], interpolated from the grid, (P,) → (N, P)."""
        where = real_array(points, "Frame.evaluate: points")
        if where.ndim != 1 or not np.all((where >= 0) & (where <= 1)):
            got = f"shape {where.shape} over [{where.min():g}, {where.max():g}]"
            raise OptionError(f"Frame.evaluate: expected points (P,) in [0, 1], got {got}.")
        return (self.quadrature.interpolation(where) @ self.atoms.T).T

    @cached_property
    def _energy(self) -> Array:
        """(N, L) shares of the energy of each atom, every row summing to 1, or to 0 for an atom of zeros."""
        return self.atoms**2 * self.weights / self._totals[:, None]

    @cached_property
    def _totals(self) -> Array:
        """(N,) energy of each atom, 1 for one of zeros."""
        total = self.atoms**2 @ self.weights
        return np.where(total > 0, total, 1.0)

    @cached_property
    def centres(self) -> Array:
        """Energy-weighted mean position of each atom in [0, 1], where 1 is now, shape (N,)."""
        return frozen(self._energy @ self.grid)

    @cached_property
    def spreads(self) -> Array:
        """Energy-weighted standard deviation of each atom around its centre, shape (N,)."""
        return frozen(np.sqrt(np.sum(self._energy * (self.grid - self.centres[:, None]) ** 2, axis=1)))

    @cached_property
    def frequencies(self) -> Array:
        """Root mean square frequency of each atom in cycles per window, from the derivative, shape (N,).

        For an oscillating atom this is its pseudo-frequency (`tiling.py`); a broad-band atom lies somewhat above it.
        """
        slope = self.quadrature.derivative(self.atoms) ** 2 @ self.weights
        return frozen(np.sqrt(slope / self._totals) / (2 * np.pi))

    def share(self, start: float, stop: float) -> Array:
        """Return the share of the energy of each atom in [start, stop], shape (N,): the coordinates that see it."""
        if not 0 <= start < stop <= 1:
            raise OptionError(f"Frame.share: got [{start:g}, {stop:g}], expected 0 ≤ start < stop ≤ 1.")
        return self._energy @ ((self.grid >= start) & (self.grid <= stop))


def _last_axis(values: npt.ArrayLike, size: int, call: str) -> Array:
    array = real_array(values, f"Frame.{call}")
    if array.ndim == 0 or array.shape[-1] != size:
        raise shape_error(f"Frame.{call}: the argument", array, f"(..., {size})")
    return array

"""Stage 1b: a frame, N atoms on [0, 1] with the quadrature that integrates them.

    φ_n        atom n, row n of `atoms`                              (N, L)
    S          Gram matrix, S_ij = ⟨φ_i, φ_j⟩                        (N, N)
    φ̃ = S⁻¹φ   dual frame: f = Σ ⟨f, φ_n⟩ φ̃_n for f in the span
    S^{−1/2}φ  tight frame: orthonormal atoms, each as close to its original as orthonormality allows

Everything is float64 and read-only. Read next: `frames/recipe.py` (how wavelet atoms are placed),
`operators.py` (what a frame becomes).
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import numpy.typing as npt

from wavessm.errors import NotFiniteError, OptionError, RankError, ShapeError, real_array
from wavessm.frames.quadrature import Array, Quadrature, frozen

TIGHT_TOLERANCE = 1e-9
"""A frame counts as tight when no entry of its Gram matrix is further than this from the identity's."""


class Frame:
    """N atoms on [0, 1]: Gram matrix, bounds, dual, tightening, analysis and synthesis.

    atoms    (N, L) samples of the atoms, N ≥ 2 and N ≤ L
    grid     (L,) increasing points from 0 to 1, or a `Quadrature`; evenly spaced if not given
    weights  (L,) quadrature weights; the trapezoid rule if not given
    name     what error messages call the frame

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
        if self.atoms.ndim != 2:
            raise ShapeError(f"Frame: atoms have shape {self.atoms.shape}, expected (n, length), one atom a row.")
        n, length = self.atoms.shape
        if n < 2:
            raise ShapeError(f"Frame: got {n} atom, expected at least 2.")
        if n > length:
            raise ShapeError(f"Frame: {n} atoms on {length} points must be dependent; sample on a finer grid.")
        broken = np.flatnonzero(~np.isfinite(self.atoms).all(axis=1))
        if len(broken):
            raise NotFiniteError(f"Frame: {len(broken)} of {n} atoms hold NaN or infinity, the first is {broken[0]}.")
        if isinstance(grid, Quadrature):
            if weights is not None:
                raise OptionError("Frame: a Quadrature has weights of its own; give points and weights, or it alone.")
            self.quadrature = grid
        else:
            self.quadrature = Quadrature.from_points(np.linspace(0, 1, length) if grid is None else grid, weights)
        if len(self.quadrature.grid) != length:
            raise ShapeError(f"Frame: atoms have {length} samples but the grid has {len(self.quadrature.grid)} points.")

    def __repr__(self) -> str:
        return f"Frame({self.name!r}, n={self.n}, points={len(self.grid)})"

    @property
    def n(self) -> int:
        """The number of atoms N."""
        return self.atoms.shape[0]

    @property
    def grid(self) -> Array:
        """(L,) points the atoms are sampled at."""
        return self.quadrature.grid

    @property
    def weights(self) -> Array:
        """(L,) quadrature weights: ∫ f ≈ weights · f."""
        return self.quadrature.weights

    # -- how the atoms relate -------------------------------------------------------------------------------

    @cached_property
    def _svd(self) -> tuple[Array, Array, Array]:
        """U, σ, Vᵀ of the atoms scaled so that rows of the product integrate: S = U σ² Uᵀ.

        Taken from the atoms and not from S, it sees condition numbers far beyond 1/eps of S.
        """
        return np.linalg.svd(self.atoms * np.sqrt(self.weights), full_matrices=False)

    def gram(self) -> Array:
        """S_ij = ⟨φ_i, φ_j⟩. (N, N)"""
        return (self.atoms * self.weights) @ self.atoms.T

    def bounds(self) -> tuple[float, float]:
        """(lower, upper) frame bounds on the span: the extreme eigenvalues of S."""
        sigma = self._svd[1]
        return float(sigma[-1] ** 2), float(sigma[0] ** 2)

    def condition_number(self) -> float:
        """κ(S) = upper / lower; infinite if the atoms are dependent."""
        lower, upper = self.bounds()
        return upper / lower if lower > 0 else float("inf")

    def rank(self) -> int:
        """How many of the atoms are independent in double precision."""
        sigma = self._svd[1]
        return int(np.sum(sigma > sigma[0] * max(self.atoms.shape) * np.finfo(float).eps))

    def require_full_rank(self) -> None:
        """Raise `RankError` with the rank unless the atoms are independent."""
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

    @cached_property
    def _dual(self) -> Frame:
        self.require_full_rank()
        U, sigma, Vt = self._svd
        return Frame((U / sigma) @ Vt / np.sqrt(self.weights), self.quadrature, name=f"dual of {self.name}")

    def dual(self) -> Frame:
        """The dual frame S⁻¹φ on the same grid."""
        return self._dual

    @cached_property
    def _tight(self) -> Frame:
        self.require_full_rank()
        U, _, Vt = self._svd
        return Frame(U @ Vt / np.sqrt(self.weights), self.quadrature, name=self.name)

    def tighten(self) -> Frame:
        """The tight frame S^{−1/2}φ on the same grid: Gram matrix I."""
        return self._tight

    # -- signals --------------------------------------------------------------------------------------------

    def analyse(self, signal: npt.ArrayLike) -> Array:
        """Coefficients ⟨f, φ_n⟩ of signals sampled on the grid. (..., L) → (..., N)"""
        return self._last_axis(signal, len(self.grid), "analyse", "grid points") @ (self.atoms * self.weights).T

    def synthesise(self, coefficients: npt.ArrayLike) -> Array:
        """Σ c_n φ_n on the grid; `frame.dual().synthesise(frame.analyse(f))` projects f. (..., N) → (..., L)"""
        return self._last_axis(coefficients, self.n, "synthesise", "atoms") @ self.atoms

    def _last_axis(self, values: npt.ArrayLike, size: int, call: str, what: str) -> Array:
        array = real_array(values, f"Frame.{call}")
        if array.ndim == 0 or array.shape[-1] != size:
            raise ShapeError(
                f"Frame.{call}: got shape {array.shape}, expected (..., {size}), as many as there are {what}."
            )
        return array

    def evaluate(self, points: npt.ArrayLike) -> Array:
        """The atoms at any points of [0, 1], by the interpolant of the grid. (P,) → (N, P)"""
        where = real_array(points, "Frame.evaluate: points")
        if where.ndim != 1 or not len(where):
            raise ShapeError(f"Frame.evaluate: points have shape {where.shape}, expected (count,) with count ≥ 1.")
        if not (where.min() >= 0 and where.max() <= 1):
            raise OptionError(
                f"Frame.evaluate: points span [{where.min():g}, {where.max():g}], expected within [0, 1]."
            )
        return (self.quadrature.interpolation(where) @ self.atoms.T).T

    # -- where the atoms sit --------------------------------------------------------------------------------

    @cached_property
    def _energy(self) -> Array:
        """(N, L) shares of each atom's energy, every row summing to 1."""
        energy = self.atoms**2 * self.weights
        total = energy.sum(axis=1, keepdims=True)
        return energy / np.where(total > 0, total, 1.0)

    @cached_property
    def centres(self) -> Array:
        """(N,) energy-weighted mean position of each atom in [0, 1]; 1 is now."""
        return frozen(self._energy @ self.grid)

    @cached_property
    def spreads(self) -> Array:
        """(N,) energy-weighted standard deviation around the centre."""
        return frozen(np.sqrt(np.sum(self._energy * (self.grid - self.centres[:, None]) ** 2, axis=1)))

    @cached_property
    def frequencies(self) -> Array:
        """(N,) root mean square frequency in cycles per window, from the derivative.

        For an oscillating atom this is the recipe's pseudo-frequency; a broad-band atom lies somewhat above it.
        """
        slope = np.sum(self.quadrature.derivative(self.atoms) ** 2 * self.weights, axis=1)
        total = np.sum(self.atoms**2 * self.weights, axis=1)
        return frozen(np.sqrt(slope / np.where(total > 0, total, 1.0)) / (2 * np.pi))

    def share(self, start: float, stop: float) -> Array:
        """(N,) how much of each atom's energy lies in [start, stop]: which coordinates hold that stretch."""
        if not 0 <= start < stop <= 1:
            raise OptionError(f"Frame.share: [{start:g}, {stop:g}] is not a stretch of [0, 1] with start < stop.")
        return self._energy @ ((self.grid >= start) & (self.grid <= stop))

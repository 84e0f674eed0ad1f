"""Three exact forms of one state space, ẋ = A x + B u.

    Dense      A as it is
    DPLR       A = V (diag(lam) − P Qᴴ) V⁻¹    normal plus low rank, V unitary
    Diagonal   A = V diag(lam) V⁻¹             V well conditioned or refused

lam (N,), P and Q (N, rank), B (N,) are in the coordinates x of the form; the frame's coordinates are h = V x.
Conjugate modes are neighbours, so that a real system can be run on one of each pair (`one_of_each_pair`).
Read next: `discretize.py`, which maps each form to itself in discrete time.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy import linalg

from wavessm.errors import ConditionError

Real = npt.NDArray[np.floating]
Complex = npt.NDArray[np.complexfloating]

MAX_CONDITION = 1e8
"""Condition number of the eigenvectors beyond which a diagonal form has lost half of its digits and is refused."""


@dataclass(frozen=True, eq=False)
class Dense:
    """The state matrix as it is: A (N, N), real or complex, and the input vector B (N,)."""

    A: npt.NDArray
    B: npt.NDArray

    def to_dense(self) -> npt.NDArray:
        """Return A in the frame's coordinates, shape (N, N)."""
        return self.A

    def apply(self, x: npt.NDArray) -> npt.NDArray:
        """Return A x for states x, (..., N) → (..., N)."""
        return x @ self.A.T

    def to_coordinates(self, h: npt.NDArray) -> npt.NDArray:
        """Return the form's coordinates of the frame's, (..., N) → (..., N)."""
        return h

    def from_coordinates(self, x: npt.NDArray) -> npt.NDArray:
        """Return the frame's coordinates of the form's, (..., N) → (..., N)."""
        return x


class _Modal:
    """What forms with modes lam (N,) and coordinates h = V x have in common."""

    lam: Complex
    V: Complex

    def to_coordinates(self, h: npt.NDArray) -> Complex:
        """Return x = V⁻¹ h, (..., N) → (..., N)."""
        return np.linalg.solve(self.V, np.asarray(h, complex)[..., None])[..., 0]

    def from_coordinates(self, x: npt.NDArray) -> Real:
        """Return h = V x of a real system, (..., N) → (..., N)."""
        return (x @ self.V.T).real

    @cached_property
    def one_of_each_pair(self) -> tuple[npt.NDArray[np.int_], Real]:
        """Indices of the modes with Im ≥ 0, and weights: 2 for one of a conjugate pair, 1 for a real mode.

        For a real system V x = Re(Σ weight · V[:, i] x_i) over these modes.
        """
        kept = np.flatnonzero(self.lam.imag >= 0)
        return kept, np.where(self.lam.imag[kept] > 0, 2.0, 1.0)


@dataclass(frozen=True, eq=False)
class Diagonal(_Modal):
    """A = V diag(lam) V⁻¹, with condition_number = κ₂(V)."""

    lam: Complex  # eigenvalues (N,)
    B: Complex  # V⁻¹ B, (N,)
    V: Complex  # eigenvectors as unit columns, (N, N)
    condition_number: float

    def to_dense(self) -> Real:
        """Return A in the frame's coordinates, shape (N, N)."""
        return np.linalg.solve(self.V.T, (self.V * self.lam).T).T.real

    def apply(self, x: npt.NDArray) -> Complex:
        """Return diag(lam) x, (..., N) → (..., N)."""
        return self.lam * x


@dataclass(frozen=True, eq=False)
class DPLR(_Modal):
    """A = V (diag(lam) − P Qᴴ) Vᴴ with V unitary; Q is the same as P in continuous time."""

    lam: Complex  # (N,)
    P: Complex  # (N, rank)
    B: Complex  # Vᴴ B, (N,)
    V: Complex  # (N, N)
    Q: Complex  # (N, rank)

    @property
    def rank(self) -> int:
        """Rank of the correction: 1 (scaled) or 2 (translated)."""
        return self.P.shape[1]

    def to_dense(self) -> Real:
        """Return A in the frame's coordinates, shape (N, N)."""
        core = np.diag(self.lam) - self.P @ self.Q.conj().T
        return (self.V @ core @ self.V.conj().T).real

    def apply(self, x: npt.NDArray) -> Complex:
        """Return (diag(lam) − P Qᴴ) x in O(N), (..., N) → (..., N)."""
        return self.lam * x - (x @ self.Q.conj()) @ self.P.T


def skew_plus_low_rank(A: Real, B: Real, shift: float, P: Real) -> DPLR:
    """Return the DPLR form of A = K + shift·I − P Pᵀ (N, N) with K real and skew-symmetric, B (N,), P (N, rank).

    The eigenvalues ±iω of K come from its real Schur form, whose 2×2 blocks pair them exactly, whatever the number of
    zeros among them.

    Example:
        >>> A, P = np.array([[0.0, 2.0], [-2.0, -1.0]]), np.array([[0.0], [1.0]])
        >>> skew_plus_low_rank(A, np.ones(2), 0.0, P).lam.tolist()
        [2j, -2j]
    """
    K = (A - A.T) / 2
    T, Z = linalg.schur(K, output="real")
    lam, V = np.full(len(K), shift, complex), Z.astype(complex)
    for i in np.flatnonzero(np.diag(T, -1)):
        omega = (T[i, i + 1] - T[i + 1, i]) / 2
        # K (z₁ + i z₂) = iω (z₁ + i z₂) where the block is [[0, ω], [−ω, 0]]
        plus = (Z[:, i] + 1j * (1 if omega > 0 else -1) * Z[:, i + 1]) / np.sqrt(2)
        V[:, i], V[:, i + 1] = plus, plus.conj()
        lam[i] += 1j * abs(omega)
        lam[i + 1] -= 1j * abs(omega)
    VH = V.conj().T
    return DPLR(lam, VH @ P, VH @ B, V, VH @ P)


def diagonalise(system: Dense, max_condition: float = MAX_CONDITION) -> Diagonal:
    """Return the diagonal form, or raise `ConditionError` with the condition number of its eigenvectors."""
    lam, V = linalg.eig(system.A)
    condition = float(np.linalg.cond(V))
    if not condition <= max_condition:
        raise ConditionError(
            f"to_diagonal: the eigenvectors of this {len(lam)}-dimensional operator have condition number "
            f"{condition:.1e}, more than {max_condition:.0e}, so its modes carry no information in double precision. "
            "Use the DPLR form, to_dplr(), which is exact."
        )
    return Diagonal(lam, np.linalg.solve(V, system.B.astype(complex)), V, condition)

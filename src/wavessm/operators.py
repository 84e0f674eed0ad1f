"""From a frame and a measure to the operator of its online projection.

The sign is fixed here and nowhere else, as the paper has it:

    scaled      ḣ = −(1/t) A h + (1/t) B u     A = (S + ⟨sφ′, φᵀ⟩) S⁻¹        the past [0, t] mapped to [0, 1]
    translated  ḣ = −(1/θ) A h + (1/θ) B u     A = (⟨φ′, φᵀ⟩ + z zᵀ) S⁻¹       the last θ, sliding

    A        (N, N)   B = b = φ(1)   (N,)   z = φ(0)   (N,)   S   Gram matrix, I for a tight frame

Integrating by parts gives, for any frame, A S + S Aᵀ = S + b bᵀ (scaled) and b bᵀ + z zᵀ (translated). Here it
holds to rounding because the quadrature sums by parts and s∂ₛ is taken in the split form ½(s∂ₛ + ∂ₛs) − ½. On a
tight frame it makes −A a skew matrix minus rank 1 or 2. Read next: `structure.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from wavessm.errors import ConditionError, OptionError, check_int, unknown_name
from wavessm.frames import Array, Frame, frozen, make_frame
from wavessm.structure import DPLR, MAX_CONDITION, Dense, Diagonal, diagonalise, skew_plus_low_rank

MEASURES = ("scaled", "translated")
"""How the past is weighed: all of it, or a sliding window."""


@dataclass(frozen=True, eq=False)
class Operator:
    """The dynamics of a projection memory, in float64; build one with `make_operator`."""

    A: Array  # (N, N); the state moves by −A
    B: Array  # (N,), atoms at s = 1, where the input enters
    z: Array  # (N,), atoms at s = 0, where a window ends
    measure: str
    frame: Frame  # whose coefficients are the state

    @property
    def n(self) -> int:
        """State size N."""
        return len(self.B)

    def __repr__(self) -> str:
        return f"Operator({self.frame.name!r}, measure={self.measure!r}, n={self.n})"

    def identity_residual(self) -> float:
        """Return max |A S + S Aᵀ − (S + b bᵀ)| (scaled) or max |A S + S Aᵀ − (b bᵀ + z zᵀ)| (translated)."""
        S = np.eye(self.n) if self.frame.is_tight else self.frame.gram()
        AS = self.A @ S
        boundary = np.outer(self.B, self.B) + (S if self.measure == "scaled" else np.outer(self.z, self.z))
        return float(np.abs(AS + AS.T - boundary).max())

    def norm_bound(self) -> float:
        """Return the paper's bound ‖A‖₂ ≤ ‖A S‖₂ / λ_min(S): how far a badly conditioned frame may inflate A."""
        return float(np.linalg.norm(self.A @ self.frame.gram(), 2) / self.frame.bounds()[0])

    @property
    def system(self) -> Dense:
        """The state space ẋ = −A x + B u, without the factor 1/t or 1/θ."""
        return Dense(-self.A, self.B)

    def to_dplr(self) -> DPLR:
        """Return the exact DPLR form, of rank 1 (scaled) or 2 (translated), or raise if the frame is not tight."""
        if not self.frame.is_tight:
            raise ConditionError(
                f"to_dplr: the frame '{self.frame.name}' is not tight (κ(S) = {self.frame.condition_number():.1e}), "
                "so −A is not normal plus low rank. Build the operator from frame.tighten()."
            )
        if self.measure == "scaled":
            return skew_plus_low_rank(-self.A, self.B, shift=-0.5, P=self.B[:, None] / np.sqrt(2))
        return skew_plus_low_rank(-self.A, self.B, shift=0.0, P=np.stack([self.B, self.z], 1) / np.sqrt(2))

    def to_diagonal(self, max_condition: float = MAX_CONDITION) -> Diagonal:
        """Return the exact diagonal form, or raise if the eigenvectors' condition number exceeds `max_condition`."""
        return diagonalise(self.system, max_condition)


def make_operator(source: str | Frame, measure: str | None = None, n: int | None = None) -> Operator:
    """Return the operator of a frame, of the tight frame of a family, or of a closed form.

    A frame that is not tight gives the raw operator of the paper's least-squares lemma, in its own coordinates. The
    same call twice in a process returns the same operator.

    Args:
        source: A `Frame`; the name of a family, whose frame is built with its defaults and tightened; or a closed
            form: "legs" (scaled Legendre), "legt" (translated Legendre), "fout" (translated Fourier).
        measure: "scaled" (default) or "translated"; a closed form has its own.
        n: State size N, needed with a name.

    Raises:
        UnknownNameError: A measure or family that does not exist.
        OptionError: No state size, or a measure or size that contradicts the source.
        RankError: A frame with dependent atoms.

    Example:
        >>> op = make_operator(make_frame("db6", n=32).tighten(), measure="scaled")
        >>> op.identity_residual() < 1e-10
        True
        >>> make_operator("legs", n=3).A.round(3).tolist()
        [[1.0, 0.0, 0.0], [1.732, 2.0, 0.0], [2.236, 3.873, 3.0]]
    """
    if measure is not None and measure not in MEASURES:
        raise unknown_name("measure", measure, MEASURES)
    if isinstance(source, Frame):
        if n is not None and n != source.n:
            raise OptionError(f"make_operator: n is {n} but the frame has {source.n} atoms; leave n out.")
        return _of_frame(source, measure or "scaled")
    if not isinstance(source, str):
        raise OptionError(f"make_operator: got {type(source).__name__}, expected a Frame or a name; wrap it in Frame.")
    if n is None:
        raise OptionError(f"make_operator: '{source}' needs a state size; pass n, as in n=64.")
    n = check_int(n, "make_operator: n", minimum=2)
    if source not in CLOSED_FORMS:
        return _of_frame(make_frame(source, n).tighten(), measure or "scaled")
    family, own, _ = CLOSED_FORMS[source]
    if measure not in (None, own):
        raise OptionError(f"make_operator: '{source}' is {own}; for {measure} use the family '{family}'.")
    return _closed_form(source, n)


@lru_cache(maxsize=64)
def _of_frame(frame: Frame, measure: str) -> Operator:
    if not frame.is_tight:
        frame.require_full_rank()
    F, quadrature = frame.atoms, frame.quadrature
    # ⟨·, φ̃ᵀ⟩ = ⟨·, φᵀ⟩ S⁻¹: through the dual's own atoms it loses √κ(S), through S⁻¹ it would lose κ(S)
    dual = F if frame.is_tight else frame.dual().atoms
    b, z = F[:, -1], F[:, 0]
    if measure == "scaled":
        s = frame.grid
        # ⟨sφ_i′, φ_j⟩ = ½⟨sφ_i′, φ_j⟩ + ½⟨(sφ_i)′, φ_j⟩ − ½⟨φ_i, φ_j⟩
        split = (quadrature.derivative_moments(F) * s + quadrature.derivative_moments(F * s)) / 2
        A = split @ dual.T + np.eye(frame.n) / 2
    else:
        A = quadrature.derivative_moments(F) @ dual.T + np.outer(z, dual[:, 0])
    return Operator(frozen(A), frozen(b), frozen(z), measure, frame)


def _legs(n: int) -> tuple[Array, Array, Array]:
    root = np.sqrt(2 * np.arange(n) + 1)
    A = np.tril(np.outer(root, root), -1) + np.diag(np.arange(1.0, n + 1))
    return A, root, root * (-1.0) ** np.arange(n)


def _legt(n: int) -> tuple[Array, Array, Array]:
    root = np.sqrt(2 * np.arange(n) + 1)
    sign = (-1.0) ** np.arange(n)
    weights = np.tril(np.ones((n, n)), -1) + np.triu(np.outer(sign, sign))
    return weights * np.outer(root, root), root, root * sign


def _fout(n: int) -> tuple[Array, Array, Array]:
    k = np.arange(n)
    edge = np.where(k == 0, 1.0, np.where(k % 2 == 1, np.sqrt(2), 0.0))
    A = np.outer(edge, edge)
    cosine = np.arange(1, n - 1, 2)
    A[cosine, cosine + 1] -= np.pi * (cosine + 1)
    A[cosine + 1, cosine] += np.pi * (cosine + 1)
    return A, edge, edge


CLOSED_FORMS = {
    "legs": ("legendre", "scaled", _legs),
    "legt": ("legendre", "translated", _legt),
    "fout": ("fourier", "translated", _fout),
}
"""Name → family, measure and function of n that returns A, B, z."""


@lru_cache(maxsize=64)
def _closed_form(name: str, n: int) -> Operator:
    family, measure, matrices = CLOSED_FORMS[name]
    A, b, z = (frozen(matrix) for matrix in matrices(n))
    return Operator(A, b, z, measure, make_frame(family, n))

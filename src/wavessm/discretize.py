"""Sampling a state space: ẋ = A x + B u becomes x_{k+1} = Ā x_k + B̄ u_k over a step dt.

    zoh                    exact for an input that is constant over the step
    bilinear               trapezoidal rule (Tustin): maps the left half plane onto the unit disc
    generalised_bilinear   α = 0 forward Euler, ½ bilinear, 1 backward Euler

Pure functions: each structure is mapped to the same structure with (Ā, B̄), so that one step of the result is
`system.apply(x) + system.B * u`. Only the exponential of a DPLR form is not DPLR; `zoh` returns it dense.
Read next: `memory`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy import linalg

from wavessm.errors import OptionError, check_positive
from wavessm.structure import DPLR, Dense, Diagonal

Structure = Dense | DPLR | Diagonal


def zoh(system: Structure, dt: float) -> Structure:
    """Sample by zero-order hold over a step dt > 0: Ā = exp(dt A), B̄ = ∫₀^dt exp(σA) dσ B.

    Returns the same kind of form, for a DPLR form the dense one.
    """
    dt = _check(system, dt)
    if isinstance(system, Diagonal):
        x = dt * system.lam
        return Diagonal(np.exp(x), dt * _expm1_ratio(x) * system.B, system.V, system.condition_number)
    if isinstance(system, DPLR):
        system = Dense(system.to_dense(), system.from_coordinates(system.B))
    n = len(system.B)
    # exp of [[A, B], [0, 0]] holds both, for singular A too.
    joint = np.zeros((n + 1, n + 1), dtype=np.result_type(system.A, system.B))
    joint[:n, :n], joint[:n, n] = dt * system.A, dt * system.B
    joint = linalg.expm(joint)
    return Dense(joint[:n, :n], joint[:n, n])


def generalised_bilinear(system: Structure, dt: float, alpha: float) -> Structure:
    """Sample by Ā = (I − α dt A)⁻¹(I + (1 − α) dt A), B̄ = (I − α dt A)⁻¹ dt B, in O(N) where the structure allows.

    Returns the same kind of form; alpha goes from 0 (forward Euler) to 1 (backward Euler).
    """
    dt = _check(system, dt)
    if not 0 <= alpha <= 1:
        raise OptionError(f"generalised_bilinear: alpha is {alpha}, expected 0 (forward) to 1 (backward Euler).")
    if isinstance(system, Dense):
        identity = np.eye(len(system.B))
        right = np.column_stack([identity + (1 - alpha) * dt * system.A, dt * system.B])
        solved = np.linalg.solve(identity - alpha * dt * system.A, right)
        return Dense(solved[:, :-1], solved[:, -1])
    inverse = 1 / (1 - alpha * dt * system.lam)
    lam = inverse * (1 + (1 - alpha) * dt * system.lam)
    if isinstance(system, Diagonal):
        return Diagonal(lam, inverse * dt * system.B, system.V, system.condition_number)
    # Woodbury: (I − α dt A)⁻¹ = diag(inverse) − α P̄ Q̄ᴴ, and Ā = diag(lam) − P̄ Q̄ᴴ with the same factors.
    left = inverse[:, None] * system.P
    small = np.linalg.inv(np.eye(system.rank) + alpha * dt * system.Q.conj().T @ left)
    P = dt * left @ small
    Q = inverse.conj()[:, None] * system.Q
    B = dt * (inverse * system.B - alpha * P @ (Q.conj().T @ system.B))
    return DPLR(lam, P, B, system.V, Q)


def bilinear(system: Structure, dt: float) -> Structure:
    """Sample by the bilinear rule, `generalised_bilinear` with α = ½."""
    return generalised_bilinear(system, dt, 0.5)


def _check(system: Structure, dt: float) -> float:
    if not isinstance(system, Structure):
        kind = type(system).__name__
        raise OptionError(f"discretisation: got {kind}; expected op.system, op.to_dplr() or op.to_diagonal().")
    return check_positive(dt, "discretisation: dt")


def _expm1_ratio(x: npt.NDArray) -> npt.NDArray:
    """(eˣ − 1) / x without cancellation, 1 at x = 0."""
    safe = np.where(x == 0, 1.0, x)
    return np.where(x == 0, 1.0, np.expm1(safe) / safe)

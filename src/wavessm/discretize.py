"""Sampling a state space: ẋ = A x + B u becomes x_{k+1} = Ā x_k + B̄ u_k over a step dt.

    zoh                    exact for an input held constant over the step
    bilinear               trapezoidal rule (Tustin): maps the left half plane onto the unit disc
    generalised_bilinear   α = 0 forward Euler, ½ bilinear, 1 backward Euler

Pure functions: each structure goes in, the same structure with (Ā, B̄) comes out, so that one step of the result is
`system.apply(x) + system.B * u`. Only the exponential of a DPLR form is not DPLR; `zoh` returns it dense.
"""

from __future__ import annotations

from functools import singledispatch

import numpy as np
import numpy.typing as npt
from scipy import linalg

from wavessm.errors import OptionError
from wavessm.structure import DPLR, Dense, Diagonal

Structure = Dense | DPLR | Diagonal


def expm1_ratio(x: npt.NDArray) -> npt.NDArray:
    """(eˣ − 1) / x without cancellation, 1 at x = 0.

    >>> expm1_ratio(np.array([0.0, 1e-12])).tolist()
    [1.0, 1.0000000000005]
    """
    safe = np.where(x == 0, 1.0, x)
    return np.where(x == 0, 1.0, np.expm1(safe) / safe)


def _not_a_structure(system: object) -> OptionError:
    return OptionError(
        f"discretisation: got {type(system).__name__}, expected Dense, DPLR or Diagonal; an operator gives them as "
        "op.system, op.to_dplr() and op.to_diagonal()."
    )


@singledispatch
def _zoh(system: object, dt: float) -> Structure:
    raise _not_a_structure(system)


@_zoh.register
def _(system: Dense, dt: float) -> Structure:
    n = len(system.B)
    # exp of [[A, B], [0, 0]] holds both, for singular A too.
    joint = np.zeros((n + 1, n + 1), dtype=np.result_type(system.A, system.B))
    joint[:n, :n], joint[:n, n] = dt * system.A, dt * system.B
    joint = linalg.expm(joint)
    return Dense(joint[:n, :n], joint[:n, n])


@_zoh.register
def _(system: Diagonal, dt: float) -> Structure:
    x = dt * system.lam
    return Diagonal(np.exp(x), dt * expm1_ratio(x) * system.B, system.V, system.condition_number)


@_zoh.register
def _(system: DPLR, dt: float) -> Structure:
    return _zoh(Dense(system.to_dense(), system.from_coordinates(system.B)), dt)


@singledispatch
def _tustin(system: object, dt: float, alpha: float) -> Structure:
    raise _not_a_structure(system)


@_tustin.register
def _(system: Dense, dt: float, alpha: float) -> Structure:
    identity = np.eye(len(system.B))
    right = np.column_stack([identity + (1 - alpha) * dt * system.A, dt * system.B])
    solved = np.linalg.solve(identity - alpha * dt * system.A, right)
    return Dense(solved[:, :-1], solved[:, -1])


@_tustin.register
def _(system: Diagonal, dt: float, alpha: float) -> Structure:
    inverse = 1 / (1 - alpha * dt * system.lam)
    lam = inverse * (1 + (1 - alpha) * dt * system.lam)
    return Diagonal(lam, inverse * dt * system.B, system.V, system.condition_number)


@_tustin.register
def _(system: DPLR, dt: float, alpha: float) -> Structure:
    # Woodbury: (I − α dt A)⁻¹ = diag(inverse) − α P̄ Q̄ᴴ, and Ā = diag(lam) − P̄ Q̄ᴴ with the same factors.
    inverse = 1 / (1 - alpha * dt * system.lam)
    lam = inverse * (1 + (1 - alpha) * dt * system.lam)
    left = inverse[:, None] * system.P
    small = np.linalg.inv(np.eye(system.rank) + alpha * dt * system.Q.conj().T @ left)
    P = dt * left @ small
    Q = inverse.conj()[:, None] * system.Q
    B = dt * (inverse * system.B - alpha * P @ (Q.conj().T @ system.B))
    return DPLR(lam, P, B, system.V, Q)


def zoh(system: Structure, dt: float) -> Structure:
    """Zero-order hold: Ā = exp(dt A), B̄ = ∫₀^dt exp(σA) dσ B."""
    return _zoh(system, _checked(dt))


def generalised_bilinear(system: Structure, dt: float, alpha: float) -> Structure:
    """Ā = (I − α dt A)⁻¹(I + (1 − α) dt A), B̄ = (I − α dt A)⁻¹ dt B, in O(N) where the structure allows."""
    if not 0 <= alpha <= 1:
        raise OptionError(f"generalised_bilinear: alpha is {alpha}, expected 0 (forward) to 1 (backward Euler).")
    return _tustin(system, _checked(dt), alpha)


def bilinear(system: Structure, dt: float) -> Structure:
    """Ā = (I − dt/2 A)⁻¹(I + dt/2 A), B̄ = (I − dt/2 A)⁻¹ dt B."""
    return generalised_bilinear(system, dt, 0.5)


def _checked(dt: float) -> float:
    if not (np.isfinite(dt) and dt > 0):
        raise OptionError(f"discretisation: dt is {dt}, expected a positive step.")
    return float(dt)

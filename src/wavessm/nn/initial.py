"""The initial modes of a layer: the operator of a family in diagonal or DPLR form, one of each conjugate pair.

Translated operators have modes that do not decay at all. A decay is learned through its logarithm, so it gets a floor.
Read next: `layer.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from wavessm.errors import ConditionError, OptionError, check_int, unknown_name
from wavessm.frames import RESERVED, families, is_family
from wavessm.nn.config import B_INITS, MAX_STATE, POLYNOMIAL
from wavessm.operators import MEASURES, Operator, make_operator
from wavessm.structure import DPLR, Complex, Diagonal

STRUCTURES = ("diagonal", "dplr")
"""Forms of the state matrix that a layer can have."""

DECAY_FLOOR = 1e-3
"""Smallest initial −Re λ: a mode that remembers about a thousand time constants of the layer's Δ."""


@dataclass(frozen=True, eq=False)
class InitialModes:
    """Where the dynamics of a layer start; complex modes come first, then the real ones."""

    lam: Complex  # (modes,) λ with Re λ ≤ −DECAY_FLOOR
    B: Complex  # (modes,) input weights
    P: Complex  # (rank, modes) low-rank factor; rank 0 for the diagonal structure
    readout: Complex  # (modes, N): a real readout c (N,) of the frame's coordinates is the output vector readout · c
    weight: npt.NDArray[np.floating]  # (modes,) 2 for one of a conjugate pair, 1 for a real one, in Re Σ weight · C · x
    structure: str

    @property
    def n_complex(self) -> int:
        """Number of modes that are one of a conjugate pair."""
        return int((self.weight == 2).sum())

    def slots(self, values: Complex) -> npt.NDArray[np.float32]:
        """Return numbers of all modes as pairs of reals, one complex or two real, (..., modes) → (..., slots, 2)."""
        complex_, real = values[..., : self.n_complex], values[..., self.n_complex :].real
        if real.shape[-1] % 2:
            real = np.concatenate([real, np.zeros_like(real[..., :1])], axis=-1)
        pairs = [np.stack([complex_.real, complex_.imag], -1), real.reshape(*real.shape[:-1], -1, 2)]
        return np.concatenate(pairs, axis=-2).astype(np.float32)


def initial_modes(
    family: str, measure: str | None, d_state: int, structure: str | None, b_init: str | None = None
) -> InitialModes:
    """Return the initial modes of a layer with these options of `WaveSSM`, checked.

    structure=None is DPLR for polynomial families and where the operator does not diagonalise, else diagonal.
    """
    for name, value, known in (
        ("measure", measure, MEASURES), ("structure", structure, STRUCTURES), ("b_init", b_init, B_INITS)
    ):  # fmt: skip
        if value not in (None, *known):
            raise unknown_name(name, value, known)
    check_family(family)
    if check_int(d_state, "WaveSSM: d_state", minimum=2) > MAX_STATE:
        raise OptionError(f"WaveSSM: d_state is {d_state}, expected at most {MAX_STATE:,}.")
    return _initial_modes(family, measure, d_state, structure, b_init)


def check_family(name: str) -> None:
    """Raise `UnknownNameError` for a family that no layer can start from."""
    if not isinstance(name, str):
        raise OptionError(f"WaveSSM: family is a {type(name).__name__}, expected a name; see register_family.")
    if name not in RESERVED and not is_family(name):
        raise unknown_name("family", name, [*families(), *RESERVED])


@lru_cache(maxsize=64)
def _initial_modes(
    family: str, measure: str | None, d_state: int, structure: str | None, b_init: str | None
) -> InitialModes:
    if family in _S4D:
        if measure or b_init or structure == "dplr" or d_state % 2:
            raise OptionError(
                f"WaveSSM: '{family}' has diagonal modes in pairs; it takes an even d_state and no measure, b_init or "
                "structure='dplr'."
            )
        ones, none = np.ones(d_state // 2), np.zeros((0, d_state // 2), complex)
        lam = -0.5 + 1j * _S4D[family](np.arange(d_state // 2, dtype=float), d_state)
        return InitialModes(lam, ones + 0j, none, np.hstack([np.diag(ones), 1j * np.diag(ones)]), 2 * ones, "diagonal")
    operator = make_operator(family, measure, d_state)
    if structure != "dplr" and not (structure is None and family in POLYNOMIAL):
        try:
            return _diagonal(operator, b_init)
        except ConditionError:
            if structure == "diagonal":
                raise
    if b_init is not None:
        raise OptionError(f"WaveSSM: b_init goes with structure='diagonal'; this '{family}' layer is DPLR.")
    form = operator.to_dplr()
    kept, weight, lam = _complex_first(form)
    return InitialModes(lam, form.B[kept], form.P[kept].T, form.V[:, kept].T, weight, "dplr")


def _diagonal(operator: Operator, b_init: str | None) -> InitialModes:
    form = operator.to_diagonal()
    kept, weight, lam = _complex_first(form)
    B, none = form.B[kept], np.zeros((0, len(kept)), complex)
    # The length of an eigenvector is free. Unit ones would make products of B and C as large as the condition number,
    # to cancel in the sum. "equal": white noise gives every mode the variance |B|² / (−2 Re λ) = ½, the mean over
    # LegS coordinates. "slow-modes": B is equal for all, so slow modes dominate, for tasks that are all memory.
    wanted = np.sqrt(-lam.real) if b_init != "slow-modes" else np.linalg.norm(operator.B) / np.sqrt(operator.n)
    scale = wanted / np.maximum(np.abs(B), 1e-12 * np.abs(B).max())
    return InitialModes(lam, B * scale, none, (form.V[:, kept] / scale).T, weight, "diagonal")


def _complex_first(form: Diagonal | DPLR) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Indices of one of each pair with complex modes first, their weights, and their λ with the floor."""
    kept, weight = form.one_of_each_pair
    order = np.argsort(-weight, kind="stable")
    lam = form.lam[kept[order]]
    return kept[order], weight[order], np.minimum(lam.real, -DECAY_FLOOR) + 1j * lam.imag


_S4D = {
    "s4d-legs": lambda n, d_state: np.sort(np.abs(make_operator("legs", n=d_state).to_dplr().lam.imag))[::2],
    "s4d-lin": lambda n, d_state: np.pi * n,
    "s4d-inv": lambda n, d_state: d_state / np.pi * (d_state / (2 * n + 1) - 1),
}  # frequencies of the initialisations of S4D (Gu et al. 2022); the decay is ½ and B is 1

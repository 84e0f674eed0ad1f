"""Stage 5a: where a layer's modes start: a family's operator in diagonal or DPLR form, one of each conjugate pair.

    lam     (modes,) Re ≤ −floor        B   (modes,)        P   (rank, modes), rank 0 for the diagonal structure
    readout (modes, N): a real readout c (N,) of the frame's coordinates is the complex output vector readout · c
    weight  (modes,): 2 for one of a pair, 1 for a real mode; outputs are Re Σ weight · C · x

Translated operators have modes that do not decay at all. A decay is learned through its logarithm, so it gets a floor.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from wavessm.errors import ConditionError, OptionError, check_int, unknown_name
from wavessm.frames import RESERVED, families, is_family
from wavessm.nn.config import B_INITS
from wavessm.operators import CLOSED_FORMS, MEASURES, Operator, make_operator

STRUCTURES = ("diagonal", "dplr")

POLYNOMIAL = ("legs", "legt", "legendre", "chebyshev")
"""Families whose layers are DPLR at every size unless asked otherwise; small ones would still diagonalise."""

DECAY_FLOOR = 1e-3
"""Smallest −Re λ at the start: a mode that remembers about a thousand time constants of the layer's Δ."""


@dataclass(frozen=True, eq=False)
class Initial:
    """See the module's docstring; the `n_complex` complex modes come first, then the real ones."""

    lam: npt.NDArray[np.complexfloating]
    B: npt.NDArray[np.complexfloating]
    P: npt.NDArray[np.complexfloating]
    readout: npt.NDArray[np.complexfloating]
    weight: npt.NDArray[np.floating]
    structure: str

    @property
    def n_complex(self) -> int:
        """How many modes are one of a conjugate pair."""
        return int((self.weight == 2).sum())

    def slots(self, values: npt.NDArray[np.complexfloating]) -> npt.NDArray[np.float32]:
        """Numbers of all modes in pairs of reals, one complex or two real. (..., modes) → (..., slots, 2)"""
        complex_ = values[..., : self.n_complex]
        real = values[..., self.n_complex :].real
        if real.shape[-1] % 2:
            real = np.concatenate([real, np.zeros_like(real[..., :1])], axis=-1)
        pairs = [np.stack([complex_.real, complex_.imag], -1), real.reshape(*real.shape[:-1], -1, 2)]
        return np.concatenate(pairs, axis=-2).astype(np.float32)


def initial_modes(
    family: str, measure: str | None, d_state: int, structure: str | None, b_init: str | None = None
) -> Initial:
    """The start of a layer; `structure` None takes the diagonal form where there is one, DPLR for polynomial families.

    family  a name of `families()`, a closed form (legs, legt, fout), or s4d-legs, s4d-lin, s4d-inv
    b_init  diagonal frames: how strongly inputs move the modes, see `_diagonal`
    """
    if not isinstance(family, str):
        raise OptionError(f"WaveSSM: family is a {type(family).__name__}, expected a name; see register_family.")
    if measure not in (None, *MEASURES):
        raise unknown_name("measure", measure, MEASURES)
    if b_init not in (None, *B_INITS):
        raise unknown_name("b_init", b_init, B_INITS)
    if structure not in (None, *STRUCTURES):
        raise unknown_name("structure", structure, STRUCTURES)
    return _initial_modes(family, measure, check_int(d_state, "WaveSSM: d_state", least=2), structure, b_init)


def check_family(name: str) -> None:
    """Refuse what no layer can start from."""
    known = [*families(), *RESERVED]
    if name not in RESERVED and not is_family(name):
        raise unknown_name("family", name, known)


@lru_cache(maxsize=64)
def _initial_modes(
    family: str, measure: str | None, d_state: int, structure: str | None, b_init: str | None
) -> Initial:
    if family in S4D:
        if structure == "dplr":
            raise OptionError(f"WaveSSM: '{family}' is a diagonal initialisation; use structure='diagonal' or 'legs'.")
        return _s4d(family, d_state)
    check_family(family)
    operator = make_operator(family, None if family in CLOSED_FORMS else measure, d_state)
    if structure == "dplr" or (structure is None and family in POLYNOMIAL):
        return _dplr(operator)
    try:
        return _diagonal(operator, b_init)
    except ConditionError:
        if structure == "diagonal":
            raise
        return _dplr(operator)


def _diagonal(operator: Operator, b_init: str | None) -> Initial:
    form = operator.to_diagonal()
    kept, weight = _complex_first(*form.one_of_each_pair)
    lam, B, none = _floored(form.lam[kept]), form.B[kept], np.zeros((0, len(kept)), complex)
    # The length of an eigenvector is free. Unit ones would make products of B and C as large as the condition number,
    # to cancel in the sum. "equal": white noise gives every mode the variance |B|² / (−2 Re λ) = ½, the mean over
    # LegS coordinates. "slow-modes": B is equal for all, so slow modes dominate, for tasks that are all memory.
    wanted = np.sqrt(-lam.real) if b_init != "slow-modes" else np.linalg.norm(operator.B) / np.sqrt(operator.n)
    scale = wanted / np.maximum(np.abs(B), 1e-12 * np.abs(B).max())
    return Initial(lam, B * scale, none, (form.V[:, kept] / scale).T, weight, "diagonal")


def _dplr(operator: Operator) -> Initial:
    form = operator.to_dplr()
    kept, weight = _complex_first(*form.one_of_each_pair)
    return Initial(_floored(form.lam[kept]), form.B[kept], form.P[kept].T, form.V[:, kept].T, weight, "dplr")


def _complex_first(kept: npt.NDArray[np.integer], weight: npt.NDArray[np.floating]) -> tuple[np.ndarray, np.ndarray]:
    order = np.argsort(-weight, kind="stable")
    return kept[order], weight[order]


def _floored(lam: npt.NDArray[np.complexfloating]) -> npt.NDArray[np.complexfloating]:
    return np.minimum(lam.real, -DECAY_FLOOR) + 1j * lam.imag


def _linear(n: npt.NDArray[np.floating], d_state: int) -> npt.NDArray[np.floating]:
    return np.pi * n


def _inverse(n: npt.NDArray[np.floating], d_state: int) -> npt.NDArray[np.floating]:
    return d_state / np.pi * (d_state / (2 * n + 1) - 1)


def _legendre(n: npt.NDArray[np.floating], d_state: int) -> npt.NDArray[np.floating]:
    """Of LegS without its term of low rank."""
    normal = _dplr(make_operator("legs", None, 2 * len(n)))
    return np.sort(np.abs(normal.lam[: normal.n_complex].imag))


S4D = {"s4d-legs": _legendre, "s4d-lin": _linear, "s4d-inv": _inverse}
"""Frequencies of S4D's initialisations (Gu et al. 2022); the decay is ½ and B is 1."""


def _s4d(family: str, d_state: int) -> Initial:
    modes = d_state // 2
    n = np.arange(modes, dtype=float)
    lam = -0.5 + 1j * S4D[family](n, d_state)
    readout = np.concatenate([np.eye(modes), 1j * np.eye(modes)], axis=1)
    ones = np.ones(modes)
    return Initial(lam, ones.astype(complex), np.zeros((0, modes), complex), readout, 2 * ones, "diagonal")

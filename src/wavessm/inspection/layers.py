"""Kernels, modes and time scales of a layer, in samples; divide by the sampling rate for seconds.

A channel with step Δ runs a mode λ of its copy as λ̄ = e^{Δλ} (zero-order hold), or as an eigenvalue of its sampled
matrix where the state is dense (DPLR). With log λ̄ = −1/τ + iω, a mode falls to 1/e in τ samples and turns once in 2π/ω.
"""

from __future__ import annotations

from typing import NamedTuple, cast

import numpy as np
import torch
from torch import nn

from wavessm.errors import OptionError, check_int
from wavessm.nn.layer import WaveSSM
from wavessm.ops.tables import Dense

REACH = 0.9
"""Part of a kernel's energy that its reach holds."""


class ModeTimes(NamedTuple):
    """Of every mode of every channel, in samples; one of each conjugate pair, both where the state is dense."""

    decay: np.ndarray  # (channels, modes): until it has fallen to 1/e
    period: np.ndarray  # (channels, modes): of one turn, infinite for modes that do not turn


class TimeScales(NamedTuple):
    """Of every channel of a layer, in samples unless said otherwise. All (channels,)."""

    dt: np.ndarray  # the learned step Δ
    window: np.ndarray  # 1/Δ, about what the channel can hear back
    slowest: np.ndarray  # decay of its slowest mode
    fastest: np.ndarray  # decay of its fastest mode
    shortest_period: np.ndarray  # of its modes
    lag: np.ndarray  # energy-weighted mean of its kernel
    reach: np.ndarray  # samples that hold 90 % of its kernel's energy


def layers_of(model: nn.Module) -> list[WaveSSM]:
    """Every `WaveSSM` of a model, from input to output."""
    found = [module for module in model.modules() if isinstance(module, WaveSSM)]
    if not found:
        raise OptionError(f"inspect: the {type(model).__name__} has no WaveSSM layer.")
    return found


@torch.no_grad()
def kernels(layer: WaveSSM, length: int, rate: float = 1.0) -> np.ndarray:
    """What each channel adds up of its past: weights of the sample now, the one before it, … (directions, d, length)"""
    return layer.kernel(length, rate).cpu().numpy()


@torch.no_grad()
def mode_times(layer: WaveSSM, rate: float = 1.0) -> ModeTimes:
    """Decay and period of the layer's modes as they run.

    >>> times = mode_times(WaveSSM(d_model=3, d_state=8, family="s4d-lin", dt_min=0.01, dt_max=0.01))
    >>> times.decay[0].round().tolist(), times.period[0].round().tolist()
    ([200.0, 200.0, 200.0, 200.0], [inf, 200.0, 100.0, 67.0])
    """
    system = layer.discrete(rate)
    if isinstance(system, Dense):
        log_lam = np.log(np.linalg.eigvals(system.A[:, : layer.d_state, : layer.d_state].cpu().numpy()))
    else:
        log_lam = complex_modes(system.log_lam.cpu().numpy(), system.n_complex, layer.log_decay.shape[1])
    with np.errstate(divide="ignore"):
        return ModeTimes(-1 / log_lam.real, 2 * np.pi / np.abs(log_lam.imag))


def complex_modes(slots: np.ndarray, n_complex: int, modes: int) -> np.ndarray:
    """Numbers in slots, complex modes first, as complex numbers of all modes. (..., slots, 2) → (..., modes)"""
    first = slots[..., :n_complex, 0] + 1j * slots[..., :n_complex, 1]
    rest = slots[..., n_complex:, :].reshape(*slots.shape[:-2], -1)[..., : modes - n_complex]
    return np.concatenate([first, rest.astype(complex)], axis=-1)


def time_scales(layer: WaveSSM, length: int, rate: float = 1.0) -> TimeScales:
    """Steps, modes and kernels of the channels in samples; `length` is how much of the kernels is looked at.

    >>> scales = time_scales(WaveSSM(d_model=2, d_state=8, dt_min=0.02, dt_max=0.02), length=200)
    >>> scales.window.round().tolist()
    [50.0, 50.0]
    """
    length = check_int(length, "length", least=2)
    times = mode_times(layer, rate)
    dt = np.exp(cast(torch.Tensor, layer.log_dt).detach().double().cpu().numpy()) * rate
    energy = np.square(kernels(layer, length, rate)).sum(0)  # both directions
    energy /= energy.sum(1, keepdims=True)
    lags = np.arange(length)
    reach = 1 + (np.cumsum(energy, axis=1) < REACH).sum(1)
    return TimeScales(
        dt, 1 / dt, times.decay.max(1), times.decay.min(1), times.period.min(1), energy @ lags,
        np.minimum(reach, length).astype(float),
    )  # fmt: skip

"""Kernels, modes, time scales and memory of a layer, in samples.

A channel with step Δ runs a mode λ as λ̄ = e^{Δλ} (zero-order hold), or as an eigenvalue of its sampled matrix where the
state is dense (DPLR). With log λ̄ = −1/τ + iω, a mode decays to 1/e in τ samples and has a period of 2π/ω.
"""

from __future__ import annotations

from typing import NamedTuple, cast

import numpy as np
import torch
from torch import nn

from wavessm.errors import OptionError, check_int
from wavessm.nn.initial import initial_modes
from wavessm.nn.layer import WaveSSM
from wavessm.ops.tables import DenseSystem, repeated, squared

REACH = 0.9
"""Fraction of a kernel's energy that its reach holds."""


class ModeTimes(NamedTuple):
    """Times of every mode of every channel in samples; one of each conjugate pair, both where the state is dense."""

    decay: np.ndarray  # (channels, modes): to 1/e
    period: np.ndarray  # (channels, modes): infinite for real modes


class TimeScales(NamedTuple):
    """Time scales of every channel of a layer, in samples unless said otherwise. All (channels,)."""

    dt: np.ndarray  # the learned step Δ
    window: np.ndarray  # 1/Δ, about how far back the channel can look
    slowest: np.ndarray  # decay of its slowest mode
    fastest: np.ndarray  # decay of its fastest mode
    shortest_period: np.ndarray  # of its modes
    lag: np.ndarray  # energy-weighted mean lag of its kernel
    reach: np.ndarray  # samples that hold 90 % of its kernel's energy


def layers_of(model: nn.Module) -> list[WaveSSM]:
    """Every `WaveSSM` of a model, from input to output."""
    found = [module for module in model.modules() if isinstance(module, WaveSSM)]
    if not found:
        raise OptionError(f"inspect: the {type(model).__name__} has no WaveSSM layer.")
    return found


@torch.no_grad()
def mode_times(layer: WaveSSM, rate: float = 1.0) -> ModeTimes:
    """Decay and period of the layer's modes in discrete time.

    >>> times = mode_times(WaveSSM(d_model=3, d_state=8, family="s4d-lin", dt_min=0.01, dt_max=0.01))
    >>> times.decay[0].round().tolist(), times.period[0].round().tolist()
    ([200.0, 200.0, 200.0, 200.0], [inf, 200.0, 100.0, 67.0])
    """
    system = layer.discrete(rate)
    if isinstance(system, DenseSystem):
        log_lam = np.log(np.linalg.eigvals(system.A[:, : layer.d_state, : layer.d_state].cpu().numpy()))
    else:
        log_lam = _complex_modes(system.log_lam, system.n_complex, layer.log_decay.shape[1])
    with np.errstate(divide="ignore"):
        return ModeTimes(-1 / log_lam.real, 2 * np.pi / np.abs(log_lam.imag))


def _complex_modes(slots: torch.Tensor, n_complex: int, modes: int) -> np.ndarray:
    """Numbers stored in pairs, complex ones first, as complex numbers. (..., slots, 2) → (..., modes)"""
    pairs = slots.cpu().numpy()
    first = pairs[..., :n_complex, 0] + 1j * pairs[..., :n_complex, 1]
    rest = pairs[..., n_complex:, :].reshape(*pairs.shape[:-2], -1)[..., : modes - n_complex]
    return np.concatenate([first, rest.astype(complex)], axis=-1)


def time_scales(layer: WaveSSM, length: int, rate: float = 1.0) -> TimeScales:
    """Steps, modes and kernels of the channels in samples, from the first `length` weights of the kernels.

    >>> scales = time_scales(WaveSSM(d_model=2, d_state=8, dt_min=0.02, dt_max=0.02), length=200)
    >>> scales.window.round().tolist()
    [50.0, 50.0]
    """
    length = check_int(length, "length", minimum=2)
    decay, period = mode_times(layer, rate)
    dt = np.exp(cast(torch.Tensor, layer.log_dt).detach().double().cpu().numpy()) * rate
    energy = np.square(layer.kernel(length, rate).detach().cpu().numpy()).sum(0)  # both directions
    energy /= energy.sum(1, keepdims=True)
    reach = np.minimum(1 + (np.cumsum(energy, axis=1) < REACH).sum(1), length).astype(float)
    return TimeScales(dt, 1 / dt, decay.max(1), decay.min(1), period.min(1), energy @ np.arange(length), reach)


@torch.no_grad()
def jacobian(layer: WaveSSM, length: int, channel: int = 0, rate: float = 1.0) -> np.ndarray:
    """The paper's ∂h_T/∂x_t of one channel after `length` samples, the oldest first. (N, length)

    h = V x are the frame's coordinates of the state x, one per atom, with the V that the layer was initialised with. Of
    two directions it is the state of the one that reads forwards; the other mirrors it.

    >>> layer = WaveSSM(d_model=2, d_state=16, dt_min=0.01, dt_max=0.01)
    >>> jacobian(layer, 100).shape
    (16, 100)
    """
    length, channel = check_int(length, "length", minimum=1), check_int(channel, "channel", minimum=0)
    if channel >= layer.d_model:
        raise OptionError(f"inspect: channel is {channel}, expected 0 to {layer.d_model - 1}.")
    start = initial_modes(layer.family, layer.measure, layer.d_state, layer.structure, layer.b_init)
    system, modes = layer.discrete(rate), len(start.weight)
    if isinstance(system, DenseSystem):
        A, B = system.A[channel], system.B[channel]
        states = repeated(squared(A.T, length), B[None], length)
        x = _complex_modes(states.unflatten(1, (-1, 2)), start.n_complex, modes).T
    else:
        z = _complex_modes(system.log_lam[channel], system.n_complex, modes)
        B = layer.B[channel * layer.n_ssm // layer.d_model].double()
        dt = float(layer.log_dt[channel].double().exp()) * rate
        held = dt * _complex_modes(B, system.n_complex, modes) * (np.expm1(z) / z)
        x = held[:, None] * np.exp(np.outer(z, np.arange(length)))  # (modes, ages)
    return ((start.weight[:, None] * start.readout).T @ x).real[:, ::-1]


def memory(J: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Middle and spread of the energy of each row of a Jacobian, in samples before now. (N, T) → (N,), (N,)

    >>> memory(np.array([[0.0, 1.0, 0.0, 0.0]]))
    (array([2.5]), array([0.]))
    """
    centre, spread = localisation(J)
    return (1 - centre) * J.shape[1], spread * J.shape[1]


def localisation(J: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Centre and spread of the energy of each row, in units of the length. (N, T) → (N,), (N,)

    >>> centre, spread = localisation(np.array([[0.0, 0.0, 1.0, 0.0], [1.0, 1.0, 1.0, 1.0]]))
    >>> centre.tolist(), spread.round(2).tolist()
    ([0.625, 0.5], [0.0, 0.28])
    """
    energy = J**2 / np.sum(J**2, axis=1, keepdims=True)
    t = (np.arange(J.shape[1]) + 0.5) / J.shape[1]
    centre = energy @ t
    return centre, np.sqrt(np.sum(energy * (t - centre[:, None]) ** 2, axis=1))

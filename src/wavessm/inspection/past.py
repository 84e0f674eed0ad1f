"""Which stretch of the past each number of a layer's state holds: the paper's Jacobian ∂h_T/∂x_t, as the layer runs.

h = V x are the frame's coordinates of the state x, one for each atom, V the change of coordinates that the layer began
with. Training moves the modes and what drives them, and with them what each coordinate hears. A layer of two directions
has this state in the direction that reads forwards; the other mirrors it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from wavessm.errors import OptionError, check_int
from wavessm.inspection.layers import complex_modes
from wavessm.nn.initial import initial_modes
from wavessm.nn.layer import WaveSSM
from wavessm.ops.tables import Dense, repeated


class Stretches(NamedTuple):
    """What each coordinate holds, energy-weighted, in samples."""

    lag: np.ndarray  # (N,) how long ago the middle of it was
    spread: np.ndarray  # (N,) its standard deviation


@torch.no_grad()
def jacobian(layer: WaveSSM, length: int, channel: int = 0, rate: float = 1.0) -> np.ndarray:
    """∂h/∂x_t of one channel after `length` samples, the oldest first. (N, length)

    >>> layer = WaveSSM(d_model=2, d_state=16, dt_min=0.01, dt_max=0.01)
    >>> jacobian(layer, 100).shape
    (16, 100)
    """
    length, channel = check_int(length, "length", least=1), check_int(channel, "channel", least=0)
    if channel >= layer.d_model:
        raise OptionError(f"inspect: channel is {channel}, expected 0 to {layer.d_model - 1}.")
    start = initial_modes(layer.family, layer.measure, layer.d_state, layer.structure, layer.b_init)
    system = layer.discrete(rate)
    if isinstance(system, Dense):
        states = repeated(system.A[channel : channel + 1], system.B[channel : channel + 1, :, None], length)[0]
        x = complex_modes(states.T.unflatten(1, (-1, 2)).cpu().numpy(), start.n_complex, len(start.weight)).T
    else:
        modes = len(start.weight)
        z = complex_modes(system.log_lam[channel].cpu().numpy(), system.n_complex, modes)
        B = layer.B[channel * layer.n_ssm // layer.d_model].double().cpu().numpy()
        dt = float(layer.log_dt[channel].double().exp()) * rate
        held = dt * complex_modes(B, system.n_complex, modes) * (np.expm1(z) / z)
        x = held[:, None] * np.exp(np.outer(z, np.arange(length)))  # (modes, ages)
    return ((start.weight[:, None] * start.readout).T @ x).real[:, ::-1]


def stretches(J: np.ndarray) -> Stretches:
    """Middle and spread of what each row of a Jacobian hears, in samples. (N, T)

    >>> stretches(np.array([[0.0, 1.0, 0.0, 0.0]]))
    Stretches(lag=array([2.5]), spread=array([0.]))
    """
    centre, spread = localisation(J)
    return Stretches((1 - centre) * J.shape[1], spread * J.shape[1])


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

"""Slots: how N real state variables sit in pairs, and the modes of a layer sampled in time.

A slot is a pair of reals. Complex slots, which come first, are one complex number of a conjugate pair; the others are
two real modes side by side. Both multiply in an algebra of their own, complex numbers or pairs, so one set of formulas
is enough: c is 1 for a complex slot and 0 for two real modes, the unit is (1, 1 − c), and a system reads

    x[l] = λ̄ x[l−1] + u[l] · unit        y[l] = trace(w x[l])        trace(z) = z₀ + (1 − c) z₁

Where the number of real modes is odd, the last half slot is empty: its weight is zero.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

HAVE_FLOAT64 = ("cpu", "cuda", "meta")
"""Devices with float64 arithmetic; GPUs of Apple have none."""


class Modes(NamedTuple):
    """Parameters of a diagonal layer; `copies` divides `channels`.

    modes counts complex and real modes, n_complex the complex ones; slots = n_complex + ⌈(modes − n_complex) / 2⌉
    """

    log_dt: Tensor  # (channels,)
    log_decay: Tensor  # (copies, modes): log(−Re λ)
    frequency: Tensor  # (copies, n_complex): Im λ
    B: Tensor  # (copies, slots, 2)
    C: Tensor  # (directions, channels, slots, 2)

    @property
    def n_complex(self) -> int:
        """Number of complex modes."""
        return self.frequency.shape[1]


class DiagonalSystem(NamedTuple):
    """A diagonal system in discrete time, float64."""

    log_lam: Tensor  # (channels, slots, 2)
    w: Tensor  # (directions, channels, slots, 2)
    n_complex: int


def exact(parameter: Tensor) -> Tensor:
    """A parameter in float64, on the CPU if its device has none: tables are made there and moved."""
    return (parameter if parameter.device.type in HAVE_FLOAT64 else parameter.cpu()).double()


def flags(n_complex: int, slots: int, like: Tensor) -> Tensor:
    """c: 1 for complex slots, 0 for the others. (slots,)"""
    return (torch.arange(slots, device=like.device) < n_complex).to(like.dtype)


def multiply(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """The product of slots; c are their flags, in the shape of a[..., 0]. (..., 2), (..., 2) → (..., 2)"""
    (a0, a1), (b0, b1) = a.unbind(-1), b.unbind(-1)
    cross = a1 * b1
    return torch.stack([a0 * b0 - c * cross, c * (a0 * b1 + a1 * b0) + (1 - c) * cross], dim=-1)


def trace(z: Tensor, c: Tensor) -> Tensor:
    """The contribution of slots to the output. (..., 2) → (...)"""
    return z[..., 0] + (1 - c) * z[..., 1]


def exponential(z: Tensor, n_complex: int) -> Tensor:
    """e^z of slots. (channels, slots, ..., 2) → the same"""
    first, second = z[:, :n_complex].unbind(-1)
    size = torch.exp(first)
    turned = torch.stack([size * torch.cos(second), size * torch.sin(second)], -1)
    return turned if n_complex == z.shape[1] else torch.cat([turned, torch.exp(z[:, n_complex:])], dim=1)


def weights(modes: int, n_complex: int, like: Tensor) -> Tensor:
    """2 for one of a conjugate pair, 1 for a real mode, 0 for an empty half. (slots, 2)"""
    slots = n_complex + (modes - n_complex + 1) // 2
    weight = like.new_full((slots, 2), 1.0)
    weight[:n_complex] = 2.0
    if (modes - n_complex) % 2:
        weight[-1, 1] = 0.0
    return weight


def continuous(log_decay: Tensor, frequency: Tensor) -> Tensor:
    """λ as slots, float64. (copies, modes), (copies, n_complex) → (copies, slots, 2)"""
    decay = -torch.exp(exact(log_decay))
    n_complex = frequency.shape[1]
    real = decay[:, n_complex:]
    if real.shape[1] % 2:
        real = torch.cat([real, real[:, -1:]], dim=1)  # an empty half decays like its neighbour
    return torch.cat([torch.stack([decay[:, :n_complex], exact(frequency)], -1), real.unflatten(1, (-1, 2))], dim=1)


def per_channel(values: Tensor, channels: int) -> Tensor:
    """One row for each channel from one for each copy. (copies, ...) → (channels, ...)"""
    return values.repeat_interleave(channels // values.shape[0], dim=0)


def step_sizes(log_dt: Tensor, rate: float) -> Tensor:
    """Δ times the rate, float64. (channels,) → (channels, 1, 1)"""
    return (torch.exp(exact(log_dt)) * rate)[:, None, None]


def sample(modes: Modes, rate: float) -> DiagonalSystem:
    """The layer in discrete time by zero-order hold: log λ̄ = Δλ and w = weight · C · B · Δφ(Δλ), φ(z) = (e^z − 1)/z."""
    channels, n_complex = len(modes.log_dt), modes.frequency.shape[1]
    lam = continuous(modes.log_decay, modes.frequency)
    c = flags(n_complex, lam.shape[1], lam)
    dt = step_sizes(modes.log_dt, rate)
    z = dt * per_channel(lam, channels)
    weight = weights(modes.log_decay.shape[1], n_complex, lam)
    held = multiply(dt * phi(z, n_complex), per_channel(exact(modes.B), channels), c)
    return DiagonalSystem(z, multiply(exact(modes.C) * weight, held, c), n_complex)


def phi(z: Tensor, n_complex: int) -> Tensor:
    """(e^z − 1)/z of slots (channels, slots, 2): by its series near zero, where the difference would cancel."""
    c = flags(n_complex, z.shape[1], z)
    first, second = z.unbind(-1)
    size = torch.stack([first.square() + c * second.square(), second.square() + c * first.square()], -1)
    small = size < 1e-6
    conjugate = torch.stack([first, (1 - 2 * c) * second], -1)
    unit = torch.stack([torch.ones_like(c), 1 - c], -1).expand_as(z)
    far = multiply(exponential(z, n_complex) - unit, conjugate / torch.where(small, 1.0, size), c)
    near = unit
    for k in (5, 4, 3, 2):
        near = unit + multiply(z / k, near, c)
    return torch.where(small, near, far)

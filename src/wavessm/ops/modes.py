"""A layer's parameters, and the layer sampled in time.

A *slot* is a pair of reals. Complex slots, which come first, are one complex number of a conjugate pair; the others are
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
    """Parameters of a layer, diagonal or (with P) diagonal plus low rank; `copies` divides `channels`.

    modes counts complex and real modes, n_complex the complex ones; slots = n_complex + ⌈(modes − n_complex) / 2⌉
    """

    log_dt: Tensor  # (channels,)
    log_decay: Tensor  # (copies, modes): log(−Re λ)
    frequency: Tensor  # (copies, n_complex): Im λ
    B: Tensor  # (copies, slots, 2)
    C: Tensor  # (directions, channels, slots, 2)
    P: Tensor | None = None  # (copies, rank, slots, 2), rank 1 or 2


class DiagonalSystem(NamedTuple):
    """A diagonal system in discrete time, float64."""

    log_lam: Tensor  # (channels, slots, 2)
    w: Tensor  # (directions, channels, slots, 2)
    n_complex: int


class DenseSystem(NamedTuple):
    """A dense system of R = 2 · slots reals in discrete time, float64: x[l] = A x[l−1] + B u[l], y[l] = C x[l]."""

    A: Tensor  # (channels, R, R)
    B: Tensor  # (channels, R)
    C: Tensor  # (directions, channels, R)


def sample(layer: Modes, rate: float) -> DiagonalSystem | DenseSystem:
    """The layer in discrete time: diagonal by zero-order hold, DPLR by the bilinear rule (see `resolvent`).

    log λ̄ = Δλ and w = weight · C · B · Δφ(Δλ), φ(z) = (e^z − 1)/z; or Ā = 2G − I and B̄ = Δ G B.
    """
    channels, n_complex = len(layer.log_dt), layer.frequency.shape[1]
    dt, B = step_sizes(layer.log_dt, rate), per_channel(exact(layer.B), channels)
    weight = weights(layer.log_decay.shape[1], n_complex, dt)
    if layer.P is None:
        lam = continuous(layer.log_decay, layer.frequency)
        c, z = flags(n_complex, lam.shape[1], lam), dt * per_channel(lam, channels)
        held = multiply(dt * phi(z, n_complex), B, c)
        return DiagonalSystem(z, multiply(exact(layer.C) * weight, held, c), n_complex)
    e, U, V, c = resolvent(layer, rate)
    first, second = (2 * e).unbind(-1)
    A = -2 * torch.bmm(U, V.transpose(1, 2))
    blocks = A.view(channels, len(c), 2, len(c), 2).diagonal(dim1=1, dim2=3)  # (channels, 2, 2, slots)
    other = c * first + (1 - c) * second - 1
    blocks += torch.stack([first - 1, -c * second, c * second, other], 1).unflatten(1, (2, 2))
    B = dt * B
    flat = B.flatten(1)[..., None]
    B = multiply(e, B, c).flatten(1) - torch.bmm(U, torch.bmm(V.transpose(1, 2), flat))[..., 0]
    weight[:n_complex, 1].neg_()  # the real part of a product
    return DenseSystem(A, B, (exact(layer.C) * weight).flatten(2))


def resolvent(layer: Modes, rate: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """G = (I − Δ/2 A)⁻¹ of a DPLR layer, A = Λ − P Qᵀ on R = 2 · slots reals, Q = weight ∘ P, by Woodbury:

        G = e − U Vᵀ        e = (1 − Δλ/2)⁻¹ slot by slot,  U = e P (2/Δ + Qᵀ e P)⁻¹,  V = eᵀ Q        rank 1 or 2

    No system is solved, and a step costs O(N). Returns e (channels, slots, 2), U and V (channels, R, rank), float64,
    and the flags c (slots,).
    """
    assert layer.P is not None
    channels, n_complex = len(layer.log_dt), layer.frequency.shape[1]
    lam = per_channel(continuous(layer.log_decay, layer.frequency), channels)
    P, dt = per_channel(exact(layer.P), channels), step_sizes(layer.log_dt, rate)
    c = flags(n_complex, lam.shape[1], lam)
    z = torch.stack([torch.ones_like(c), 1 - c], -1) - 0.5 * dt * lam
    square = z.square()
    size = torch.stack([square[..., 0] + c * square[..., 1], square[..., 1] + c * square[..., 0]], -1)
    mirror = torch.stack([torch.ones_like(c), 1 - 2 * c], -1)
    e = z * mirror / size
    Q = P * weights(layer.log_decay.shape[1], n_complex, lam)
    eP = multiply(e[:, None], P, c).flatten(2)  # (channels, rank, R)
    V = multiply((e * mirror)[:, None], Q, c).flatten(2)
    small = Q.flatten(2) @ eP.transpose(1, 2) + 2 / dt * torch.eye(P.shape[1], dtype=dt.dtype, device=dt.device)
    return e, eP.transpose(1, 2) @ _inverse(small), V.transpose(1, 2), c


def _inverse(small: Tensor) -> Tensor:
    """Inverse of (channels, rank, rank), rank 1 or 2, without a launch for each pivot."""
    if small.shape[-1] == 1:
        return 1 / small
    (a, b), (c, d) = (row.unbind(-1) for row in small.unbind(-2))
    return torch.stack([d, -b, -c, a], -1).unflatten(-1, (2, 2)) / (a * d - b * c)[:, None, None]


def exact(values: Tensor) -> Tensor:
    """A tensor in float64, on the CPU if its device has none: tables are made there and moved."""
    return values.to(float64_device(values), torch.float64)


def float64_device(like: Tensor) -> torch.device:
    """Where float64 numbers for a tensor are: on its device, or on the CPU."""
    return like.device if like.device.type in HAVE_FLOAT64 else torch.device("cpu")


def flags(n_complex: int, slots: int, like: Tensor) -> Tensor:
    """c: 1 for complex slots, 0 for the others. (slots,)"""
    return (torch.arange(slots, device=like.device) < n_complex).to(like.dtype)


def multiply(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """The product of slots; c are their flags, in the shape of a[..., 0]. (..., 2), (..., 2) → (..., 2)"""
    (a0, a1), (b0, b1) = a.unbind(-1), b.unbind(-1)
    cross = a1 * b1
    return torch.stack([a0 * b0 - c * cross, c * (a0 * b1 + a1 * b0) + (1 - c) * cross], dim=-1)


def pair_factors(numbers: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """Factors `same` and `across` of numbers · x = same · x + across · (x with each pair swapped). (..., slots, 2)"""
    first, second = numbers.unbind(-1)
    return torch.stack([first, c * first + (1 - c) * second], -1), torch.stack([-c * second, c * second], -1)


def exponential(z: Tensor, n_complex: int) -> Tensor:
    """e^z of slots. (channels, slots, ..., 2) → the same"""
    first, second = z[:, :n_complex].unbind(-1)
    size = torch.exp(first)
    turned = torch.stack([size * torch.cos(second), size * torch.sin(second)], -1)
    return turned if n_complex == z.shape[1] else torch.cat([turned, torch.exp(z[:, n_complex:])], dim=1)


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

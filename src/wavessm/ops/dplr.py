"""Diagonal plus low rank, sampled by the bilinear rule: Ā = 2G − I and B̄ = Δ G B with G = (I − Δ/2 A)⁻¹.

A = Λ − P Qᵀ on R = 2 · slots reals, Q = weight ∘ P, so G is again diagonal plus low rank (Woodbury), in closed form:

    G = e − U Vᵀ        e = (1 − Δλ/2)⁻¹ slot by slot,  U = e P (2/Δ + Qᵀ e P)⁻¹,  V = eᵀ Q        rank 1 or 2

No system is solved, and a step costs O(N).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from wavessm.ops.modes import continuous, exact, flags, multiply, per_channel, step_sizes, weights
from wavessm.ops.tables import DenseSystem


class LowRank(NamedTuple):
    """Parameters of a DPLR layer; shapes as in `modes.Modes`."""

    log_dt: Tensor  # (channels,)
    log_decay: Tensor  # (copies, modes)
    frequency: Tensor  # (copies, n_complex)
    B: Tensor  # (copies, slots, 2)
    C: Tensor  # (directions, channels, slots, 2)
    P: Tensor  # (copies, rank, slots, 2)


class Resolvent(NamedTuple):
    """G = e − U Vᵀ of each channel, float64."""

    e: Tensor  # (channels, slots, 2)
    U: Tensor  # (channels, R, rank)
    V: Tensor  # (channels, R, rank)
    c: Tensor  # (slots,) flags


def sample(layer: LowRank, rate: float) -> DenseSystem:
    """The layer in discrete time, as a dense system."""
    e, U, V, c = resolvent(layer, rate)
    (channels, slots, _), n_complex = e.shape, layer.frequency.shape[1]
    first, second = (2 * e).unbind(-1)
    A = -2 * torch.bmm(U, V.transpose(1, 2))
    blocks = A.view(channels, slots, 2, slots, 2).diagonal(dim1=1, dim2=3)  # (channels, 2, 2, slots)
    other = c * first + (1 - c) * second - 1
    blocks += torch.stack([first - 1, -c * second, c * second, other], 1).unflatten(1, (2, 2))
    B = step_sizes(layer.log_dt, rate) * per_channel(exact(layer.B), channels)
    flat = B.flatten(1)[..., None]
    B = multiply(e, B, c).flatten(1) - torch.bmm(U, torch.bmm(V.transpose(1, 2), flat))[..., 0]
    readout = weights(layer.log_decay.shape[1], n_complex, e)
    readout[:n_complex, 1].neg_()  # the real part of a product
    return DenseSystem(A, B, (exact(layer.C) * readout).flatten(2))


def resolvent(layer: LowRank, rate: float) -> Resolvent:
    """The resolvent of a layer at a rate; see the module's docstring."""
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
    return Resolvent(e, eP.transpose(1, 2) @ _inverse(small), V.transpose(1, 2), c)


def _inverse(small: Tensor) -> Tensor:
    """Inverse of (channels, rank, rank), rank 1 or 2, without a launch for each pivot."""
    if small.shape[-1] == 1:
        return 1 / small
    (a, b), (c, d) = (row.unbind(-1) for row in small.unbind(-2))
    return torch.stack([d, -b, -c, a], -1).unflatten(-1, (2, 2)) / (a * d - b * c)[:, None, None]

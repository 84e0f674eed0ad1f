"""Diagonal plus low rank, sampled by the bilinear rule: Ā = 2G − I and B̄ = Δ G B with G = (I − Δ/2 A)⁻¹.

A = Λ − P Qᵀ on R = 2 · slots reals, Q = weight ∘ P, so G is again diagonal plus low rank (Woodbury), in closed form:

    G = e − U Vᵀ        e = (1 − Δλ/2)⁻¹ slot by slot,  U = e P (2/Δ + Qᵀ e P)⁻¹,  V = eᵀ Q        rank 1 or 2

No system is solved, and a step costs O(N). The gradient needs G alone: dA = Δ/2 · Gᵀ dG Gᵀ.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from wavessm.ops.derivatives import first_only
from wavessm.ops.modes import continuous, flags, multiply, per_channel, weights
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
    return DenseSystem(*_Bilinear.apply(*layer, rate))


def _signs(layer: LowRank) -> Tensor:
    """Factors from C to the readout of R reals: weights, and a minus for imaginary parts. (slots, 2) float64"""
    n_complex, modes = layer.frequency.shape[1], layer.log_decay.shape[1]
    weight = weights(modes, n_complex, layer.C.new_empty((), dtype=torch.float64))
    weight[:n_complex, 1].neg_()
    return weight


def _resolvent(lam: Tensor, P: Tensor, dt: Tensor, n_complex: int, modes: int) -> Resolvent:
    """See the module's docstring. lam (channels, slots, 2), P (channels, rank, slots, 2), dt (channels,)"""
    c = flags(n_complex, lam.shape[1], lam)
    unit = torch.stack([torch.ones_like(c), 1 - c], -1)
    z = unit - 0.5 * dt[:, None, None] * lam
    square = z.square()
    size = torch.stack([square[..., 0] + c * square[..., 1], square[..., 1] + c * square[..., 0]], -1)
    mirror = torch.stack([torch.ones_like(c), 1 - 2 * c], -1)
    e = z * mirror / size
    Q = P * weights(modes, n_complex, lam)
    eP = multiply(e[:, None], P, c).flatten(2)  # (channels, rank, R)
    V = multiply((e * mirror)[:, None], Q, c).flatten(2)
    small = Q.flatten(2) @ eP.transpose(1, 2) + torch.diag_embed((2 / dt)[:, None].expand(-1, P.shape[1]))
    return Resolvent(e, eP.transpose(1, 2) @ _inverse(small), V.transpose(1, 2), c)


def resolvent_of(layer: LowRank, rate: float) -> Resolvent:
    """The resolvent of a layer at a rate."""
    channels, n_complex = len(layer.log_dt), layer.frequency.shape[1]
    lam = per_channel(continuous(layer.log_decay, layer.frequency), channels)
    dt = torch.exp(layer.log_dt.double()) * rate
    return _resolvent(lam, per_channel(layer.P.double(), channels), dt, n_complex, layer.log_decay.shape[1])


def _inverse(small: Tensor) -> Tensor:
    """Inverse of (channels, rank, rank), rank 1 or 2, without a launch for each pivot."""
    if small.shape[-1] == 1:
        return 1 / small
    (a, b), (c, d) = (row.unbind(-1) for row in small.unbind(-2))
    return torch.stack([d, -b, -c, a], -1).unflatten(-1, (2, 2)) / (a * d - b * c)[:, None, None]


def _dense(resolved: Resolvent) -> Tensor:
    """G as a matrix. (channels, R, R)"""
    e, U, V, c = resolved
    G = torch.bmm(U, V.transpose(1, 2)).neg_()
    blocks = G.view(len(e), len(c), 2, len(c), 2).diagonal(dim1=1, dim2=3)  # (channels, 2, 2, slots)
    first, second = e.unbind(-1)
    blocks += torch.stack([first, -c * second, c * second, c * first + (1 - c) * second], 1).unflatten(1, (2, 2))
    return G


class _Bilinear(torch.autograd.Function):
    """From a layer's parameters to Ā, B̄ and the readout, as one node of autograd instead of about fifty."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
        *parameters, rate = arguments
        layer = LowRank(*parameters)
        n_complex, modes, channels = layer.frequency.shape[1], layer.log_decay.shape[1], len(layer.log_dt)
        lam = continuous(layer.log_decay, layer.frequency)
        dt = torch.exp(layer.log_dt.double()) * rate
        P, B = per_channel(layer.P.double(), channels), per_channel(layer.B.double(), channels).flatten(1)
        G = _dense(_resolvent(per_channel(lam, channels), P, dt, n_complex, modes))
        ctx.save_for_backward(G, P, B, dt, lam)
        ctx.layer = layer.P.shape, n_complex, modes
        ctx.dtypes = [parameter.dtype for parameter in parameters]
        A_bar = 2 * G
        A_bar.diagonal(dim1=1, dim2=2).sub_(1)
        B_bar = torch.bmm(G, (dt[:, None] * B)[..., None])[..., 0]
        return A_bar, B_bar, (layer.C * _signs(layer)).flatten(2)

    @staticmethod
    @first_only
    def backward(ctx: Any, dA_bar: Tensor, dB_bar: Tensor, dC: Tensor) -> tuple[Tensor | None, ...]:
        G, P, B, dt, lam = ctx.saved_tensors
        (copies, _, slots, _), n_complex, modes = ctx.layer
        c, weight = flags(n_complex, slots, P), weights(modes, n_complex, P)
        dG = torch.baddbmm(dA_bar, dB_bar[..., None], (dt[:, None] * B)[:, None], beta=2)
        G_t = G.transpose(1, 2)
        F = torch.bmm(torch.bmm(G_t, dG), G_t)
        back = torch.bmm(G_t, dB_bar[..., None])[..., 0]
        # A = 2/Δ (I − G⁻¹), so ⟨F, A⟩ needs no A
        ddt = (F.diagonal(dim1=1, dim2=2).sum(-1) - (G * dG).sum((1, 2))) / dt + (back * B).sum(-1)
        dA = F.mul_(0.5 * dt[:, None, None])
        blocks = dA.view(-1, slots, 2, slots, 2).diagonal(dim1=1, dim2=3)  # (channels, 2, 2, slots)
        first = blocks[:, 0, 0] + c * blocks[:, 1, 1]
        second = c * (blocks[:, 1, 0] - blocks[:, 0, 1]) + (1 - c) * blocks[:, 1, 1]
        P = P.flatten(2).transpose(1, 2)  # (channels, R, rank)
        flat = weight.flatten()[:, None]
        dP = -torch.bmm(dA, P * flat) - flat * torch.bmm(dA.transpose(1, 2), P)

        def gathered(values: Tensor) -> Tensor:  # over the channels of a copy
            return values.unflatten(0, (copies, -1)).sum(1)

        dlam = gathered(torch.stack([first, second], -1))
        dlog_decay, dfrequency = _mode_gradients(dlam, lam, n_complex, modes)
        weight[:n_complex, 1].neg_()
        gradients = (
            ddt * dt,
            dlog_decay,
            dfrequency,
            gathered(dt[:, None] * back).unflatten(1, (slots, 2)),
            dC.unflatten(2, (slots, 2)) * weight,
            gathered(dP).transpose(1, 2).unflatten(2, (slots, 2)),
        )
        return *(gradient.to(dtype) for gradient, dtype in zip(gradients, ctx.dtypes, strict=True)), None


def _mode_gradients(dlam: Tensor, lam: Tensor, n_complex: int, modes: int) -> tuple[Tensor, Tensor]:
    """Gradients of log(−Re λ) and Im λ, from those of the slots (copies, slots, 2)."""
    scaled = dlam * lam
    real = scaled[:, n_complex:].flatten(1)
    if (modes - n_complex) % 2:  # the empty half decays like its neighbour
        real = torch.cat([real[:, :-2], real[:, -2:].sum(1, keepdim=True)], dim=1)
    return torch.cat([scaled[:, :n_complex, 0], real], dim=1), dlam[:, :n_complex, 1]

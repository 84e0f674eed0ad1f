"""The reference: one loop over time in float64, nothing shared with the fast paths. Imports torch alone."""

from __future__ import annotations

import torch
from torch import Tensor


def diagonal_scan(
    u: Tensor,  # (batch, channels, length)
    log_lam: Tensor,  # (channels, slots, 2)
    w: Tensor,  # (channels, slots, 2)
    n_complex: int,
    state: Tensor,  # (batch, channels, slots, 2)
    passed: Tensor | None = None,  # (batch, length): steps since the sample before, one if None
    held: Tensor | None = None,  # (batch, channels or 1, length): steps over which a sample is held, one if None
) -> tuple[Tensor, Tensor]:
    """x[l] = λ̄^passed x[l−1] + (λ̄^held − 1) / (λ̄ − 1) u[l] for each mode, λ̄ = exp(log_lam), and y[l] = Re Σ w x[l].

    The first `n_complex` slots are complex modes, real and imaginary part; the others hold two real modes each. Returns
    y (batch, channels, length) and the state after the last sample, in float64, differentiable.
    """
    values = log_lam.double(), w.double(), state.double()
    groups = [
        tuple(torch.view_as_complex(t[..., :n_complex, :].contiguous()) for t in values),
        tuple(t[..., n_complex:, :].flatten(-2) for t in values),
    ]
    outputs, ends = [], []
    for z, weight, x in groups:
        out, decay = [], torch.exp(z)
        for k, u_k in enumerate(u.double().unbind(-1)):
            added = u_k[..., None]
            if passed is not None and held is not None:
                added = (torch.exp(z * held[..., k, None]) - 1) / (torch.exp(z) - 1) * added
                decay = torch.exp(z * passed[:, k, None, None])
            x = decay * x + added
            out.append((weight * x).real.sum(-1))
        outputs.append(torch.stack(out, dim=-1))
        ends.append(x)
    return outputs[0] + outputs[1], torch.cat([torch.view_as_real(ends[0]), ends[1].unflatten(-1, (-1, 2))], dim=2)


def dense_scan(
    u: Tensor,  # (batch, channels, length)
    A: Tensor,  # (channels, R, R)
    B: Tensor,  # (channels, R)
    C: Tensor,  # (channels, R)
    state: Tensor,  # (batch, channels, R)
) -> tuple[Tensor, Tensor]:
    """The same for a dense real state: x[l] = A x[l−1] + B u[l], y[l] = C x[l]."""
    A, B, C, x = A.double(), B.double(), C.double(), state.double()
    out = []
    for u_l in u.double().unbind(-1):
        x = (A @ x[..., None])[..., 0] + B * u_l[..., None]
        out.append((C * x).sum(-1))
    return torch.stack(out, dim=-1), x

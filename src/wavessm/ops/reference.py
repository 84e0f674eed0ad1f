"""The reference: one loop over time in float64, nothing shared with the fast paths. Imports torch alone.

    x[l] = λ̄ x[l−1] + u[l]          λ̄ = exp(log_lam), one x for each mode
    y[l] = Re Σ_n w_n x_n[l]

The first `n_complex` slots are complex modes, real and imaginary part; the others hold two real modes each.
"""

from __future__ import annotations

import torch
from torch import Tensor


def diagonal_scan(
    u: Tensor,  # (batch, channels, length)
    log_lam: Tensor,  # (channels, slots, 2)
    w: Tensor,  # (channels, slots, 2)
    n_complex: int,
    state: Tensor,  # (batch, channels, slots, 2)
) -> tuple[Tensor, Tensor]:
    """y (batch, channels, length) and the state after the last sample, in float64, differentiable."""
    log_lam, w, state = log_lam.double(), w.double(), state.double()
    lam = torch.exp(torch.view_as_complex(log_lam[:, :n_complex].contiguous()))
    weight = torch.view_as_complex(w[:, :n_complex].contiguous())
    x = torch.view_as_complex(state[:, :, :n_complex].contiguous())
    plain_lam, plain_weight, plain = torch.exp(log_lam[:, n_complex:]), w[:, n_complex:], state[:, :, n_complex:]
    out = []
    for u_l in u.double().unbind(-1):
        x = lam * x + u_l[..., None]
        plain = plain_lam * plain + u_l[..., None, None]
        out.append((weight * x).sum(-1).real + (plain_weight * plain).sum((-1, -2)))
    return torch.stack(out, dim=-1), torch.cat([torch.view_as_real(x), plain], dim=2)


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


def irregular_scan(
    u: Tensor,  # (batch, channels, length)
    log_lam: Tensor,  # (channels, slots, 2)
    w: Tensor,  # (channels, slots, 2)
    n_complex: int,
    passed: Tensor,  # (batch, length): steps since the sample before
    held: Tensor,  # (batch, channels or 1, length): steps over which a sample is held
    state: Tensor,  # (batch, channels, slots, 2)
) -> tuple[Tensor, Tensor]:
    """As `diagonal_scan` with gaps: x[l] = λ̄^passed x[l−1] + (λ̄^held − 1) / (λ̄ − 1) u[l]."""
    log_lam, w, state = log_lam.double(), w.double(), state.double()
    groups = [
        tuple(torch.view_as_complex(t[..., :n_complex, :].contiguous()) for t in (log_lam, w, state)),
        tuple(t[..., n_complex:, :].flatten(-2) for t in (log_lam, w, state)),
    ]
    outputs, ends = [], []
    for z, weight, x in groups:
        out = []
        for k, u_k in enumerate(u.double().unbind(-1)):
            rho = (torch.exp(z * held[..., k, None]) - 1) / (torch.exp(z) - 1)
            x = torch.exp(z * passed[:, k, None, None]) * x + rho * u_k[..., None]
            out.append((weight * x).real.sum(-1))
        outputs.append(torch.stack(out, dim=-1))
        ends.append(x)
    return outputs[0] + outputs[1], torch.cat([torch.view_as_real(ends[0]), ends[1].unflatten(-1, (-1, 2))], dim=2)

"""The slow truth: one loop over time in float64, nothing shared with the fast paths. Imports torch alone.

    x[l] = λ̄ x[l−1] + u[l]          λ̄ = exp(log_lam), one x for each mode
    y[l] = Re Σ_n w_n x_n[l]

Complex numbers are pairs of reals on a last axis of two, as everywhere in the engine.
"""

from __future__ import annotations

import torch
from torch import Tensor


def diagonal_scan(
    u: Tensor,  # (batch, channels, length)
    log_lam: Tensor,  # (channels, modes, 2)
    w: Tensor,  # (channels, modes, 2)
    state: Tensor,  # (batch, channels, modes, 2)
) -> tuple[Tensor, Tensor]:
    """y (batch, channels, length) and the state after the last sample, in float64, differentiable."""
    lam = torch.exp(torch.view_as_complex(log_lam.double()))
    weight = torch.view_as_complex(w.double())
    x = torch.view_as_complex(state.double())
    out = []
    for u_l in u.double().unbind(-1):
        x = lam * x + u_l[..., None]
        out.append((weight * x).sum(-1).real)
    return torch.stack(out, dim=-1), torch.view_as_real(x)


def dense_scan(
    u: Tensor,  # (batch, channels, length)
    A: Tensor,  # (channels, R, R)
    B: Tensor,  # (channels, R)
    C: Tensor,  # (channels, R)
    state: Tensor,  # (batch, channels, R)
) -> tuple[Tensor, Tensor]:
    """x[l] = A x[l−1] + B u[l], y[l] = C x[l]: the same for a dense real state."""
    A, B, C, x = A.double(), B.double(), C.double(), state.double()
    out = []
    for u_l in u.double().unbind(-1):
        x = (A @ x[..., None])[..., 0] + B * u_l[..., None]
        out.append((C * x).sum(-1))
    return torch.stack(out, dim=-1), x

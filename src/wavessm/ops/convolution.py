"""The long convolution by FFT, for whole sequences from a zero state: its kernel is as long as the sequence."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from wavessm.ops.derivatives import first_only


def convolve(u: Tensor, K: Tensor, D: Tensor | None = None) -> Tensor:
    """Convolve causally with K[0] and, if there are two, anticausally with K[1]; D u is added at no cost.

    Args:
        u: Signals (batch, channels, L).
        K: Kernels (directions, channels, L).
        D: Weights of the direct path (channels,), or None.
    """
    length = u.shape[-1]
    k = F.pad(K[0], (0, length))
    if D is not None:
        k = k + F.pad(D[:, None], (0, 2 * length - 1))
    if len(K) == 2:  # lag −j is at index 2L − j of a circular convolution
        k = k + F.pad(K[1], (0, length)).flip(-1).roll(1, dims=-1)
    return _Circular.apply(u, k.to(u.dtype))


class _Circular(torch.autograd.Function):
    """The first L samples of u (batch, channels, L) convolved around with k (channels, 2 L).

    Its gradients reuse the spectra; autograd through real FFTs would take complex ones of twice the size.
    """

    @staticmethod
    def forward(ctx: Any, u: Tensor, k: Tensor) -> Tensor:
        size = k.shape[-1]
        u_hat, k_hat = torch.fft.rfft(u, n=size), torch.fft.rfft(k, n=size)
        ctx.save_for_backward(u_hat, k_hat)
        return torch.fft.irfft(u_hat * k_hat, n=size)[..., : u.shape[-1]]

    @staticmethod
    @first_only
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor]:
        u_hat, k_hat = ctx.saved_tensors
        length = dy.shape[-1]
        dy_hat = torch.fft.rfft(dy, n=2 * length)
        dk = torch.fft.irfft(torch.linalg.vecdot(u_hat, dy_hat, dim=0), n=2 * length)
        du = torch.fft.irfft(dy_hat.mul_(k_hat.conj()), n=2 * length)[..., :length]
        return du, dk

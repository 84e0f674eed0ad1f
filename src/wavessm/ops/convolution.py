"""The long convolution by FFT, for whole sequences from a zero state: its kernel is as long as the sequence."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from wavessm.ops.derivatives import first_only, full_precision
from wavessm.ops.modes import DenseSystem, DiagonalSystem, flags, multiply
from wavessm.ops.tables import power, powers, repeated, squared


def kernel(system: DiagonalSystem | DenseSystem, length: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """The convolution kernel, Σ trace(w λ̄^l) or C A^l B for l < length. (directions, channels, length)

    Over l = iM + j it is one product of two short tables; diagonal ones are made in float64 and multiplied in `dtype`.
    """
    inner = max(1, round(length**0.5))
    outer = -(-length // inner)
    if isinstance(system, DenseSystem):
        A, B, C = system
        squares = squared(A, inner)
        right = repeated([square.transpose(1, 2) for square in squares], B[:, None], inner)  # (channels, M, R)
        left = repeated(squared(power(squares, inner), outer), C[:, :, None], outer)  # (directions, channels, L/M, R)
        return (left @ right.transpose(1, 2)).flatten(2)[..., :length].to(dtype)
    log_lam, w, n_complex = system
    ticks = torch.arange(inner + 1, dtype=log_lam.dtype, device=log_lam.device)
    near, far = (powers(system, l, dtype) for l in (ticks[:inner], inner * ticks[:outer]))
    c = flags(n_complex, log_lam.shape[1], near)[:, None]
    near = near * torch.stack([torch.ones_like(c), 1 - 2 * c], -1)
    far = multiply(w[..., None, :].to(dtype), far, c)
    left, right = (torch.cat(table.unbind(-1), dim=-2) for table in (far, near))
    return _Product.apply(left.transpose(2, 3), right).flatten(2)[..., :length]


class _Product(torch.autograd.Function):
    """a b, whose gradients leave autocast too. (directions, channels, m, k), (channels, k, n)"""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return a @ b

    @staticmethod
    @full_precision
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
        a, b = ctx.saved_tensors
        return g @ b.transpose(1, 2), (a.transpose(2, 3) @ g).sum(0)


def convolve(u: Tensor, K: Tensor, D: Tensor | None = None) -> Tensor:
    """Convolve u (batch, channels, L) causally with K[0] and, if there are two, anticausally with K[1], K (directions,
    channels, L); D u with D (channels,) is added at no cost."""
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

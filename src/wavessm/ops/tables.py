"""What the chunked scan multiplies by, made from the modes in float64 and cast once.

Over a chunk of M samples with state s before it, inputs u (M,) and λ̄ = exp(log_lam):

    y  = u T + s C          T (M, M)   T[i, j] = K[j − i], K[l] = Re Σ w λ̄^l the kernel
    s' = λ̄^M s + u E        C (2N, M)  Re(w λ̄^{j+1} s);   E (M, 2N)  λ̄^{M−1−i}

N is the number of modes and 2N counts real and imaginary parts, interleaved. Powers of λ̄ at float32 would lose their
phase within a few thousand samples; here no exponent is larger than M, and the tables hold O(N M) numbers a channel.
Ordinary autograd carries gradients from the tables to log_lam and w.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Tables(NamedTuple):
    """See the module's docstring; `decay` is λ̄^M."""

    T: Tensor  # (channels, M, M)
    E: Tensor  # (channels, M, 2N)
    C: Tensor  # (channels, 2N, M)
    decay: Tensor  # (channels, N, 2), or (channels, R, R) of a dense state


def powers(log_lam: Tensor, exponents: Tensor) -> Tensor:
    """exp(log_lam · e) for real exponents, float64. (channels, N, 2), (M,) → (channels, N, M, 2)"""
    real, imag = log_lam.double().unbind(-1)
    size = torch.exp(real[..., None] * exponents)
    angle = imag[..., None] * exponents
    return torch.stack([size * torch.cos(angle), size * torch.sin(angle)], dim=-1)


def multiply(a: Tensor, b: Tensor) -> Tensor:
    """The product of complex pairs. (..., 2), (..., 2) → (..., 2)"""
    (ar, ai), (br, bi) = a.unbind(-1), b.unbind(-1)
    return torch.stack([ar * br - ai * bi, ar * bi + ai * br], dim=-1)


def make_tables(log_lam: Tensor, w: Tensor, chunk: int, dtype: torch.dtype) -> Tables:
    """The tables of one chunk length. log_lam, w (channels, N, 2)"""
    exponents = torch.arange(chunk + 1, dtype=torch.float64, device=log_lam.device)
    lam = powers(log_lam, exponents)  # (channels, N, M + 1, 2)
    weighted = multiply(w.double()[..., None, :], lam)
    kernel = weighted[..., :-1, 0].sum(1)  # (channels, M)
    T = toeplitz(kernel)
    E = lam[..., :-1, :].flip(2).permute(0, 2, 1, 3).flatten(2)
    readout = weighted[..., 1:, :]
    C = torch.stack([readout[..., 0], -readout[..., 1]], dim=2).flatten(1, 2)
    return Tables(T.to(dtype), E.to(dtype), C.to(dtype), lam[..., -1, :].to(dtype))


def make_dense_tables(A: Tensor, B: Tensor, C: Tensor, chunk: int, dtype: torch.dtype) -> Tables:
    """The same for x[l] = A x[l−1] + B u[l], y[l] = C x[l] with a dense A. A (channels, R, R), B and C (channels, R)"""
    A, B, C = A.double(), B.double(), C.double()
    columns = repeated(A, B[..., None], chunk)  # (channels, R, M): A^j B
    rows = repeated(A.transpose(1, 2), A.transpose(1, 2) @ C[..., None], chunk)  # (channels, R, M): C A^{j+1}
    kernel = (C[:, None] @ columns)[:, 0]
    E = columns.flip(-1).transpose(1, 2)
    decay = torch.linalg.matrix_power(A, chunk)
    return Tables(toeplitz(kernel).to(dtype), E.to(dtype), rows.to(dtype), decay.to(dtype))


def repeated(A: Tensor, v: Tensor, count: int) -> Tensor:
    """v, A v, A² v, … by doubling. (channels, R, R), (channels, R, 1) → (channels, R, count)"""
    while v.shape[-1] < count:
        v = torch.cat([v, A @ v[..., : count - v.shape[-1]]], dim=-1)
        A = A @ A
    return v


def dense_kernel(A: Tensor, B: Tensor, C: Tensor, length: int) -> Tensor:
    """K[l] = C A^l B for l < length, over l = iM + j. (channels, length) float64"""
    A, B, C = A.double(), B.double(), C.double()
    inner = max(1, round(length**0.5))
    right = repeated(A, B[..., None], inner)  # (channels, R, M)
    stride = torch.linalg.matrix_power(A, inner).transpose(1, 2)
    left = repeated(stride, C[..., None], -(-length // inner))  # (channels, R, L/M)
    return (left.transpose(1, 2) @ right).flatten(1)[:, :length]


def toeplitz(kernel: Tensor) -> Tensor:
    """T[i, j] = kernel[j − i] for j ≥ i, else 0. (channels, M) → (channels, M, M)"""
    size = kernel.shape[-1]
    lag = torch.arange(size, device=kernel.device)
    lag = lag[None, :] - lag[:, None]
    return torch.where(lag >= 0, kernel[:, lag.clamp(min=0)], kernel.new_zeros(()))


def kernel(log_lam: Tensor, w: Tensor, length: int) -> Tensor:
    """K[l] = Re Σ w λ̄^l for l < length, as one matrix product over l = iM + j. (channels, length) float64"""
    inner = max(1, round(length**0.5))
    outer = -(-length // inner)
    ticks = torch.arange(max(inner, outer), dtype=torch.float64, device=log_lam.device)
    fine = powers(log_lam, ticks[:inner])  # (channels, N, M, 2)
    coarse = multiply(w.double()[..., None, :], powers(log_lam, inner * ticks[:outer]))  # (channels, N, L/M, 2)
    left = torch.stack([coarse[..., 0], -coarse[..., 1]], dim=2).flatten(1, 2)  # (channels, 2N, L/M)
    right = fine.movedim(-1, 2).flatten(1, 2)  # (channels, 2N, M)
    return (left.transpose(1, 2) @ right).flatten(1)[:, :length]

"""The matrices of the chunked scan, made in float64 and cast once.

Over a chunk of M samples u (M,), with R = 2 · slots real state variables s before it:

    y  = u T + s C          T (M, M)   T[i, j] = K[j − i], K the kernel
    s' = D s + u E          E (M, R)   from each sample to the state;  C (R, M) from the state to each output

Powers of λ̄ in float32 would lose their phase within a few thousand samples; here no exponent is larger than M, and the
tables hold O(R M) numbers for each channel. Backwards in time the same tables are transposed: Tᵀ for T, Eᵀ reads the
state after the chunk, and Cᵀ passes u on to the state before it.
"""

from __future__ import annotations

from functools import reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor

from wavessm.ops.derivatives import first_only, full_precision
from wavessm.ops.modes import DiagonalSystem, exponential, flags, multiply, trace


class DenseSystem(NamedTuple):
    """A dense system in discrete time, float64: x[l] = A x[l−1] + B u[l], y[l] = C x[l]."""

    A: Tensor  # (channels, R, R)
    B: Tensor  # (channels, R)
    C: Tensor  # (directions, channels, R)


class ChunkTables(NamedTuple):
    """See the module's docstring. The second direction, where there is one, reads backwards."""

    K: Tensor  # (directions, channels, M)
    E: Tensor  # (channels, M, R)
    C: Tensor  # (directions, channels, R, M)
    decay: Tensor  # D: λ̄^M of each slot (channels, slots, 2), or (channels, R, R) of a dense state


def diagonal_tables(system: DiagonalSystem, chunk: int) -> ChunkTables:
    """The tables of a diagonal system for chunks of one length, float64."""
    log_lam, w, n_complex = system
    c = flags(n_complex, log_lam.shape[1], log_lam)
    lam = powers(system, torch.arange(chunk + 1, dtype=log_lam.dtype, device=log_lam.device), log_lam.dtype)
    weighted = multiply(w[..., None, :], lam, c[:, None])  # (directions, channels, slots, M + 1, 2)
    K = trace(weighted[..., :-1, :], c[:, None]).sum(2)
    E = lam[:, :, :-1].flip(2).transpose(1, 2).flatten(2)
    readout = weighted[..., 1:, :] * torch.stack([torch.ones_like(c), 1 - 2 * c], -1)[:, None]
    return ChunkTables(K, E, readout.transpose(3, 4).flatten(2, 3), lam[:, :, -1])


def powers(system: DiagonalSystem, exponents: Tensor, dtype: torch.dtype) -> Tensor:
    """λ̄^l, made in float64 and cast. (M,) → (channels, slots, M, 2)"""
    return _Powers.apply(system.log_lam, system.n_complex, exponents, dtype)


class _Powers(torch.autograd.Function):
    """z l → e^{zl}, whose gradient l conj(e^{zl}) takes a third of autograd's passes, in `dtype`."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, n_complex: int, exponents: Tensor, dtype: torch.dtype) -> Tensor:
        p = exponential(z[:, :, None] * exponents[:, None], n_complex).to(dtype)
        ctx.save_for_backward(p, exponents.to(dtype))
        ctx.n_complex = n_complex
        return p

    @staticmethod
    @first_only
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        p, exponents = ctx.saved_tensors
        (p_0, p_1), (g_0, g_1) = p[:, : ctx.n_complex].unbind(-1), g[:, : ctx.n_complex].unbind(-1)
        turned = torch.stack([p_0 * g_0 + p_1 * g_1, p_0 * g_1 - p_1 * g_0], -2)
        real = (p[:, ctx.n_complex :] * g[:, ctx.n_complex :]).transpose(2, 3)
        return (torch.cat([turned, real], dim=1) @ exponents).double(), None, None, None


def dense_tables(system: DenseSystem, chunk: int) -> ChunkTables:
    """The same for a dense system, by doubling: ⌈log₂ M⌉ products of matrices."""
    A, B, C = system
    squares = squared(A, chunk)
    inputs = repeated([square.transpose(1, 2) for square in squares], B[:, None], chunk)  # (channels, M, R)
    outputs = repeated(squares, C[:, :, None], chunk)  # (directions, channels, M, R)
    K = (outputs @ B[..., None])[..., 0]
    return ChunkTables(K, inputs.flip(1), (outputs @ A).transpose(2, 3), power(squares, chunk))


def squared(A: Tensor, count: int) -> list[Tensor]:
    """A, A², A⁴, … as far as the powers up to A^count need them."""
    squares = [A]
    while 2 ** len(squares) <= count:
        squares.append(squares[-1] @ squares[-1])
    return squares


def power(squares: list[Tensor], exponent: int) -> Tensor:
    """A^exponent from the results of `squared`."""
    return reduce(torch.matmul, (square for bit, square in enumerate(squares) if exponent >> bit & 1))


def repeated(squares: list[Tensor], v: Tensor, count: int) -> Tensor:
    """Rows v, v A, v A², … by doubling, from the results of `squared`. (..., 1, R) → (..., count, R)"""
    for square in squares[: (count - 1).bit_length()]:
        have = v.shape[-2]
        v = torch.cat([v, (v if 2 * have <= count else v[..., : count - have, :]) @ square], dim=-2)
    return v


def toeplitz(kernel: Tensor) -> Tensor:
    """T[..., i, j] = kernel[..., j − i] for j ≥ i, else 0. (..., M) → (..., M, M)"""
    size = kernel.shape[-1]
    padded = torch.nn.functional.pad(kernel, (size - 1, 0))  # row i is a window of it, one step earlier each time
    return padded.unfold(-1, size, 1).flip(-2)


def diagonal_kernel(system: DiagonalSystem, length: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """K[l] = Σ trace(w λ̄^l) for l < length, over l = iM + j. (directions, channels, length)

    One product of two short tables, made in float64 and multiplied in `dtype`.
    """
    log_lam, w, n_complex = system
    inner = max(1, round(length**0.5))
    ticks = torch.arange(inner + 1, dtype=log_lam.dtype, device=log_lam.device)
    near, far = (powers(system, l, dtype) for l in (ticks[:inner], inner * ticks[: -(-length // inner)]))
    c = flags(n_complex, log_lam.shape[1], near)
    near = near * torch.stack([torch.ones_like(c), 1 - 2 * c], -1)[:, None]
    far = multiply(w[..., None, :].to(dtype), far, c[:, None])
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


def dense_kernel(system: DenseSystem, length: int) -> Tensor:
    """K[l] = C A^l B for l < length, over l = iM + j. (directions, channels, length)"""
    A, B, C = system
    inner = max(1, round(length**0.5))
    outer = -(-length // inner)
    squares = squared(A, inner)
    right = repeated([square.transpose(1, 2) for square in squares], B[:, None], inner)  # (channels, M, R)
    left = repeated(squared(power(squares, inner), outer), C[:, :, None], outer)  # (directions, channels, L/M, R)
    return (left @ right.transpose(1, 2)).flatten(2)[..., :length]


def kernel(system: DiagonalSystem | DenseSystem, length: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """The convolution kernel of a system. (directions, channels, length)"""
    if isinstance(system, DenseSystem):
        return dense_kernel(system, length).to(dtype)
    return diagonal_kernel(system, length, dtype)

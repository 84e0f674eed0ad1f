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

from wavessm.ops.derivatives import first_only
from wavessm.ops.modes import DenseSystem, DiagonalSystem, exponential, flags, multiply, pair_factors


class ChunkTables(NamedTuple):
    """See the module's docstring. The second direction, where there is one, reads backwards.

    In the R variables of a diagonal system the first halves of all slots come before the second halves.
    """

    K: Tensor  # (directions, channels, M)
    E: Tensor  # (channels, M, R)
    C: Tensor  # (directions, channels, R, M)
    decay: Tensor  # (channels, R, R), or (2, channels, 1, R): D s = d₀ s + d₁ (s with its halves exchanged)


def chunk_tables(system: DiagonalSystem | DenseSystem, chunk: int) -> ChunkTables:
    """The tables of a system for chunks of one length, float64; dense ones by doubling, ⌈log₂ M⌉ products."""
    if isinstance(system, DenseSystem):
        A, B, C = system
        squares = squared(A, chunk)
        inputs = repeated([square.transpose(1, 2) for square in squares], B[:, None], chunk)  # (channels, M, R)
        outputs = repeated(squares, C[:, :, None], chunk)  # (directions, channels, M, R)
        K = (outputs @ B[..., None])[..., 0]
        return ChunkTables(K, inputs.flip(1), (outputs @ A).transpose(2, 3), power(squares, chunk))
    log_lam, w, n_complex = system
    c = flags(n_complex, log_lam.shape[1], log_lam)[:, None]
    lam = powers(system, torch.arange(chunk + 1, dtype=log_lam.dtype, device=log_lam.device), log_lam.dtype)
    weighted = multiply(w[..., None, :], lam, c)  # (directions, channels, slots, M + 1, 2)
    K = (weighted[..., :-1, 0] + (1 - c) * weighted[..., :-1, 1]).sum(2)
    E = lam[:, :, :-1].flip(2).permute(0, 2, 3, 1).flatten(2)
    readout = weighted[..., 1:, :] * torch.stack([torch.ones_like(c), 1 - 2 * c], -1)
    decay = torch.stack(pair_factors(lam[:, :, -1], c[:, 0])).mT.flatten(2)[:, :, None]
    return ChunkTables(K, E, readout.permute(0, 1, 4, 2, 3).flatten(2, 3), decay)


def powers(system: DiagonalSystem, exponents: Tensor, dtype: torch.dtype) -> Tensor:
    """λ̄^l, made in float64 and cast. (M,) → (channels, slots, M, 2)"""
    if torch.compiler.is_compiling():  # PyTorch 2.11 traces the function below to wrong gradients
        return exponential(system.log_lam[:, :, None] * exponents[:, None], system.n_complex).to(dtype)
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

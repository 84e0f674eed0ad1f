"""The matrices of the chunked scan, made in float64 and cast once.

Over a chunk of M samples u (M,), with R = 2 · slots real state variables s before it:

    y  = u T + s C          T (M, M)   T[i, j] = K[j − i], K the kernel
    s' = D s + u E          E (M, R)   from each sample to the state;  C (R, M) from the state to each output

Powers of λ̄ in float32 would lose their phase within a few thousand samples; here no exponent is larger than M, and the
tables hold O(R M) numbers for each channel. Backwards in time the same tables are transposed: Tᵀ for T, Eᵀ reads the
state after the chunk, and Cᵀ passes u on to the state before it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from wavessm.ops.derivatives import first_only
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
    exponents = torch.arange(chunk + 1, dtype=log_lam.dtype, device=log_lam.device)
    lam = exponential(log_lam[:, :, None] * exponents[:, None], c[:, None])  # (channels, slots, M + 1, 2)
    weighted = multiply(w[..., None, :], lam, c[:, None])  # (directions, channels, slots, M + 1, 2)
    K = trace(weighted[..., :-1, :], c[:, None]).sum(2)
    E = lam[:, :, :-1].flip(2).transpose(1, 2).flatten(2)
    readout = weighted[..., 1:, :] * torch.stack([torch.ones_like(c), 1 - 2 * c], -1)[:, None]
    return ChunkTables(K, E, readout.transpose(3, 4).flatten(2, 3), lam[:, :, -1])


def dense_tables(system: DenseSystem, chunk: int) -> ChunkTables:
    """The same for a dense system, by doubling: ⌈log₂ M⌉ products of matrices."""
    return ChunkTables(*_DenseTables.apply(*system, chunk))


class _DenseTables(torch.autograd.Function):
    """Rows A^j B and C A^j for j < M grow in place, two products a doubling, beside the powers A^{2^k}."""

    @staticmethod
    def forward(ctx: Any, A: Tensor, B: Tensor, C: Tensor, chunk: int) -> tuple[Tensor, ...]:
        channels, R = B.shape
        directions = len(C)
        inputs = B.new_empty(channels, chunk, R)
        outputs = B.new_empty(channels, chunk + 1, directions, R)
        inputs[:, 0], outputs[:, 0] = B, C.transpose(0, 1)
        squares, have = [A], 1
        while have < chunk:
            to = min(2 * have, chunk)
            _product(inputs[:, : to - have], squares[-1].transpose(1, 2), out=inputs[:, have:to])
            _product(outputs[:, : to - have].flatten(1, 2), squares[-1], out=outputs[:, have:to].flatten(1, 2))
            squares.append(torch.bmm(squares[-1], squares[-1]))
            have = to
        over = squares[-1] if chunk == 1 << (len(squares) - 1) else torch.linalg.matrix_power(A, chunk)
        _product(outputs[:, 0], over, out=outputs[:, chunk])
        K = torch.bmm(outputs[:, :chunk].flatten(1, 2), B[..., None]).view(channels, chunk, directions)
        ctx.save_for_backward(inputs, outputs, *squares)
        return K.permute(2, 0, 1), inputs.flip(1), outputs[:, 1:].permute(2, 0, 3, 1), over

    @staticmethod
    @first_only
    def backward(ctx: Any, dK: Tensor, dE: Tensor, dC: Tensor, dover: Tensor) -> tuple[Tensor | None, ...]:
        inputs, outputs, *squares = ctx.saved_tensors
        channels, chunk, _ = inputs.shape
        A, B = squares[0], inputs[:, 0]
        dinputs, doutputs = dE.flip(1), torch.empty_like(outputs)
        doutputs[:, 1:] = dC.permute(1, 3, 0, 2)
        doutputs[:, 0] = 0
        dK = dK.permute(1, 2, 0).reshape(channels, 1, -1)  # (channels, 1, M · directions)
        rows, drows = outputs[:, :chunk].flatten(1, 2), doutputs[:, :chunk].flatten(1, 2)
        dinputs[:, :1] += torch.bmm(dK, rows)
        drows.baddbmm_(dK.transpose(1, 2), B[:, None])
        # the last row is C A^M
        at_power = chunk == 1 << (len(squares) - 1)
        over = squares[-1] if at_power else torch.linalg.matrix_power(A, chunk)
        dover = torch.baddbmm(dover, outputs[:, 0].transpose(1, 2), doutputs[:, chunk])
        doutputs[:, 0] += torch.bmm(doutputs[:, chunk], over.transpose(1, 2))
        dsquare = dover if at_power else torch.zeros_like(A)
        have = chunk
        for k in range(len(squares) - 2, -1, -1):
            square, start = squares[k], 1 << k
            old, new, back = slice(0, have - start), slice(start, have), square.transpose(1, 2)
            d_in, d_out = dinputs[:, new], doutputs[:, new].flatten(1, 2)
            dinputs[:, old].baddbmm_(d_in, square)
            doutputs[:, old].flatten(1, 2).baddbmm_(d_out, back)
            dsquare = torch.baddbmm(torch.bmm(dsquare, back), back, dsquare)
            dsquare.baddbmm_(d_in.transpose(1, 2), inputs[:, old])
            dsquare.baddbmm_(outputs[:, old].flatten(1, 2).transpose(1, 2), d_out)
            have = start
        dA = dsquare if at_power else dsquare + _power_gradient(A, chunk, dover)
        return dA, dinputs[:, 0], doutputs[:, 0].transpose(0, 1), None


def _product(a: Tensor, b: Tensor, out: Tensor) -> None:
    """out = a b; torch.compile does not support an `out=` that is a slice."""
    if torch.compiler.is_compiling():
        out.copy_(torch.bmm(a, b))
    else:
        torch.bmm(a, b, out=out)


def _power_gradient(A: Tensor, exponent: int, gradient: Tensor) -> Tensor:
    """Gradient of A^exponent, for chunks that are no power of two: the rest at the end of a stream."""
    with torch.enable_grad():
        A = A.detach().requires_grad_()
        return torch.autograd.grad(torch.linalg.matrix_power(A, exponent), A, gradient)[0]


def toeplitz(kernel: Tensor) -> Tensor:
    """T[..., i, j] = kernel[..., j − i] for j ≥ i, else 0. (..., M) → (..., M, M)"""
    size = kernel.shape[-1]
    padded = torch.nn.functional.pad(kernel, (size - 1, 0))  # row i is a window of it, one step earlier each time
    return padded.unfold(-1, size, 1).flip(-2)


def diagonal_kernel(system: DiagonalSystem, length: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """K[l] = Σ trace(w λ̄^l) for l < length. (directions, channels, length)"""
    log_lam, w, n_complex = system
    return _DiagonalKernel.apply(_complex_modes(log_lam, n_complex), _complex_modes(w, n_complex), length, dtype)


def _complex_modes(x: Tensor, n_complex: int) -> Tensor:
    """Slots as complex numbers, a real mode by itself. (..., slots, 2) → (..., n_complex + 2 (slots − n_complex))"""
    first, second = x.unbind(-1)
    real = x[..., n_complex:, :].flatten(-2)
    complex_ = torch.complex(first[..., :n_complex], second[..., :n_complex])
    return torch.cat([complex_, torch.complex(real, torch.zeros_like(real))], dim=-1)


class _DiagonalKernel(torch.autograd.Function):
    """K[iM + j] = Re Σ (w e^{z iM}) e^{z j}: one product of two short tables of reals, made in float64 and multiplied
    in `dtype`; so are their gradients. z (channels, modes), w (directions, channels, modes), complex."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, w: Tensor, length: int, dtype: torch.dtype) -> Tensor:
        inner = max(1, round(length**0.5))
        outer = -(-length // inner)
        ticks = torch.arange(max(inner, outer), dtype=torch.float64, device=z.device)
        fine = torch.exp(z[..., None] * ticks[:inner])  # (channels, modes, M)
        far = torch.exp(z[..., None] * (inner * ticks[:outer]))  # (channels, modes, L/M)
        fine, coarse = _planes(fine, dtype), _planes((w[..., None] * far).conj(), dtype)
        ctx.save_for_backward(fine, coarse, far.to(dtype.to_complex()))
        ctx.length = length
        return (coarse.transpose(2, 3) @ fine).flatten(2)[..., :length]

    @staticmethod
    @first_only
    def backward(ctx: Any, dK: Tensor) -> tuple[Tensor | None, ...]:
        fine, coarse, far = ctx.saved_tensors
        inner, outer = fine.shape[-1], coarse.shape[-1]
        dK = torch.nn.functional.pad(dK, (0, inner * outer - ctx.length)).unflatten(2, (outer, inner))
        # Re(coarse · fine) gives each factor the conjugate of the other; e^{zt} gives z t times its own conjugate
        dfine = _number((coarse @ dK).sum(0))
        dcoarse = _number(fine @ dK.transpose(2, 3)).conj()
        ticks = torch.arange(max(inner, outer), dtype=dK.dtype, device=dK.device).to(far.dtype)
        moved = _number(coarse) * dcoarse  # (directions, channels, modes, L/M)
        dz = (_number(fine).conj() * dfine) @ ticks[:inner] + moved.sum(0) @ (inner * ticks[:outer])
        dw = torch.linalg.vecdot(far.expand_as(dcoarse), dcoarse)
        return dz.to(torch.complex128), dw.to(torch.complex128), None, None


def _planes(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Real parts, then imaginary ones. (..., m, n) complex → (..., 2 m, n)"""
    return torch.cat([x.real, x.imag], dim=-2).to(dtype)


def _number(x: Tensor) -> Tensor:
    """The inverse of `_planes`."""
    return torch.complex(*x.chunk(2, dim=-2))


def dense_kernel(system: DenseSystem, length: int) -> Tensor:
    """K[l] = C A^l B for l < length, over l = iM + j. (directions, channels, length)"""
    A, B, C = system
    inner = max(1, round(length**0.5))
    right = repeated(A, B[..., None], inner)  # (channels, R, M)
    stride = torch.linalg.matrix_power(A, inner).transpose(1, 2)
    left = repeated(stride, C[..., None], -(-length // inner))  # (directions, channels, R, L/M)
    return (left.transpose(2, 3) @ right).flatten(2)[..., :length]


def repeated(A: Tensor, v: Tensor, count: int) -> Tensor:
    """v, A v, A² v, … by doubling. (channels, R, R), (..., channels, R, 1) → (..., channels, R, count)"""
    while v.shape[-1] < count:
        v = torch.cat([v, A @ v[..., : count - v.shape[-1]]], dim=-1)
        A = A @ A
    return v

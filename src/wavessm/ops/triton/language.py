"""Triton where it is installed, and what several kernels share: sizes, products, the modes of a layer."""

from __future__ import annotations

import os
from typing import Any

try:
    import triton  # type: ignore
    import triton.language as tl  # type: ignore

    jit, missing = triton.jit, None
except ImportError as error:  # kernels stay plain Python functions, and `scan.unavailable` gives the reason
    tl, missing = None, str(error)

    def jit(function: Any) -> Any:
        """The function as it is."""
        return function


INTERPRETED = None if tl is None else tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")


def cdiv(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)


def power_of_two(n: int, min_value: int = 16) -> int:
    """The smallest power of two that is at least n and `min_value`."""
    return max(min_value, 1 << (n - 1).bit_length())


@jit
def round_tf32(x):
    """x rounded to the 11 leading bits that a TF32 product reads."""
    return ((x.to(tl.int32, bitcast=True) + 0x1000) & -0x2000).to(tl.float32, bitcast=True)


@jit
def dot(a, b, total, PRECISION: tl.constexpr):
    """total + a b on tensor cores, in the arithmetic PRECISION."""
    if PRECISION == "bf16":
        a, b = a.to(tl.bfloat16), b.to(tl.bfloat16)
        if INTERPRETED:  # there the bit patterns would be multiplied
            a, b = a.to(tl.float32), b.to(tl.float32)
        return tl.dot(a, b, total)
    a, b = a.to(tl.float32), b.to(tl.float32)
    if PRECISION == "tf32":
        return tl.dot(a, b, total, input_precision="tf32")
    # three products have float32's accuracy; `total` stays outside them, since tensor cores cut off what they add
    a_top, b_top = round_tf32(a), round_tf32(b)
    product = tl.dot(a - a_top, b_top, input_precision="tf32")
    product = tl.dot(a_top, b - b_top, product, input_precision="tf32")
    return total + tl.dot(a_top, b_top, product, input_precision="tf32")


@jit
def load_f64(pointer, mask):
    """float64, zero outside the mask."""
    return tl.load(pointer, mask=mask, other=0.0).to(tl.float64)


@jit
def slot_weights(n, modes, n_complex):
    """The weights of slots n, and c."""
    c = (n < n_complex).to(tl.float64)
    beside = 2 * n - n_complex + 1 < modes
    return (1.0 + c, tl.where(n < n_complex, 2.0, tl.where(beside, 1.0, 0.0)).to(tl.float64)), c


@jit
def continuous(log_decay, frequency, copy, n, ok, modes, n_complex):
    """λ of slots n; an empty half decays like its neighbour."""
    is_complex = n < n_complex
    mode = tl.where(is_complex, n, 2 * n - n_complex)
    decay = -tl.exp(load_f64(log_decay + copy * modes + mode, ok))
    beside = tl.minimum(mode + 1, modes - 1)
    other = -tl.exp(load_f64(log_decay + copy * modes + beside, ok & (n >= n_complex)))
    return decay, tl.where(is_complex, load_f64(frequency + copy * n_complex + n, ok & is_complex), other)


@jit
def store_rates(to, n, lam, g, ok, modes, n_complex):
    """Gradients of log(−Re λ) and, behind them, of Im λ, from those of λ."""
    is_complex = n < n_complex
    mode = tl.where(is_complex, n, 2 * n - n_complex)
    empty = (n >= n_complex) & (mode + 1 >= modes)
    to_decay = g[0] * lam[0] + tl.where(empty, g[1] * lam[1], 0.0)
    tl.store(to + mode, to_decay.to(tl.float32), mask=ok)
    tl.store(to + mode + 1, (g[1] * lam[1]).to(tl.float32), mask=ok & (n >= n_complex) & (mode + 1 < modes))
    tl.store(to + modes + n, g[1].to(tl.float32), mask=ok & is_complex)

"""Triton where it is installed, and what several kernels share: sizes, products, the modes of a layer."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

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


class kernel:
    """A decorator: a kernel that is launched as in Triton, kernel[grid](*arguments, **options).

    Triton looks at every argument of every launch, which takes longer than small kernels run. Launches like an earlier
    one (the same numbers, options and types, pointers divisible by 16) call what was compiled for that one.
    """

    def __init__(self, function: Callable) -> None:
        self.function = jit(function)
        self.compiled: dict[tuple, tuple[Callable, list]] = {}

    def __getitem__(self, grid: tuple[int, ...]) -> Callable:
        return partial(self.launch, grid)

    def launch(self, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
        """Launch the kernel on the device of its first argument; all numbers are part of what makes launches alike."""
        device = arguments[0].get_device()
        if device >= 0 and device != torch.cuda.current_device():  # Triton launches on the current one
            with torch.cuda.device(device):
                return self.launch(grid, *arguments, **options)
        values, like, addresses = [], [grid, *options.values()], 0
        for value in arguments:
            if isinstance(value, Tensor):
                like += value.dtype, value.get_device()
                value = value.data_ptr()
                addresses |= value
            else:
                like.append(value)
            values.append(value)
        found = None if addresses % 16 else self.compiled.get(key := tuple(like))
        if found is not None:
            run, others = found
            run(*values, *others)
            return
        made = self.function[grid](*arguments, **options)
        if addresses % 16 == 0 and made is not None:  # the interpreter compiles nothing
            if len(self.compiled) >= MOST_LAUNCHES:
                self.compiled.clear()
            names = self.function.arg_names[len(arguments) :]
            run = made.__getitem__((*grid, 1, 1)[:3])  # made[...] fails where it is a future
            self.compiled[key] = run, [options[name] for name in names]


MOST_LAUNCHES = 1024
"""Different launches that a kernel remembers."""


def cdiv(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)


def power_of_two(n: int, min_value: int = 16) -> int:
    """The smallest power of two that is at least n and `min_value`."""
    return max(min_value, 1 << (n - 1).bit_length())


@jit
def halves(x, largest):
    """x = scale · (top + low / 2048): two float16 with 11 bits each, and the power of two that brings `largest`, the
    largest |x| of a row or of all, to the upper end of float16's range. What is 2^28 times smaller loses bits."""
    exponent = tl.maximum(largest.to(tl.int32, bitcast=True) & 0x7F800000, 0x07800000)
    x *= (0x7F000000 - (exponent - 0x07000000)).to(tl.float32, bitcast=True)
    top = x.to(tl.float16)
    low = ((x - top.to(tl.float32)) * 2048).to(tl.float16)
    return top, low, (exponent - 0x07000000).to(tl.float32, bitcast=True)


@jit
def dot(a, b, total, PRECISION: tl.constexpr, a_largest=None, b_largest=None):
    """total + a b on tensor cores, in the arithmetic PRECISION; fp32 takes the largest |a|, by default of each row, and
    |b|, by default of all."""
    if PRECISION == "bf16":
        a, b = a.to(tl.bfloat16), b.to(tl.bfloat16)
        if INTERPRETED:  # there the bit patterns would be multiplied
            a, b = a.to(tl.float32), b.to(tl.float32)
        return tl.dot(a, b, total)
    a, b = a.to(tl.float32), b.to(tl.float32)
    if PRECISION == "tf32":
        return tl.dot(a, b, total, input_precision="tf32")
    if a_largest is None:
        a_largest = tl.max(tl.abs(a), 1, keep_dims=True)
    if b_largest is None:
        b_largest = tl.max(tl.abs(b))
    # three products have float32's accuracy; `total` stays outside them, since tensor cores cut off what they add
    a_top, a_low, a_scale = halves(a, a_largest)
    b_top, b_low, b_scale = halves(b, b_largest)
    product = tl.dot(a_low, b_top)
    product = tl.dot(a_top, b_low, product) * (1 / 2048)
    return total + tl.dot(a_top, b_top, product) * (a_scale * b_scale)


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

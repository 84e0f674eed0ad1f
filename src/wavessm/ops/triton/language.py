"""Triton where it is installed, and what several kernels say in it."""

from __future__ import annotations

from typing import Any

try:
    import triton  # type: ignore
    import triton.language as tl  # type: ignore

    jit = triton.jit
    missing = None
except ImportError as error:  # the functions below stay plain Python, and `triton_scan.available` tells why
    missing = str(error)

    def jit(function: Any) -> Any:
        return function


@jit
def dot(a: tl.tensor, b: tl.tensor, total: tl.tensor, PRECISION: tl.constexpr) -> tl.tensor:
    """total + a b"""
    if PRECISION == "bf16":
        return tl.dot(a.to(tl.bfloat16), b.to(tl.bfloat16), total)
    elif PRECISION == "rounded":  # the interpreter would multiply the bit patterns of bfloat16
        return tl.dot(a.to(tl.bfloat16).to(tl.float32), b.to(tl.bfloat16).to(tl.float32), total)
    else:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), total, input_precision=PRECISION)

"""Stage 4: the engine. One dispatch point over the backends that can run a scan.

    reference   a float64 loop over time
    torch       chunked matrix products, anywhere PyTorch runs
    triton      the same walk fused into one kernel, on NVIDIA GPUs

An explicit choice that cannot serve raises with the reason; "auto" takes the fastest that can and says once, in the
log, why a faster one could not.
"""

from __future__ import annotations

import logging
from functools import lru_cache

import torch
from torch import Tensor

from wavessm.errors import OptionError
from wavessm.ops import reference, scan
from wavessm.registry import unknown_name

BACKENDS = ("auto", "torch", "triton", "reference")
PRECISIONS = ("fp32", "tf32", "bf16")

log = logging.getLogger("wavessm")


def check_backend(backend: str) -> None:
    """Raise `UnknownNameError` for a backend that does not exist."""
    if backend not in BACKENDS:
        raise unknown_name("backend", backend, BACKENDS)


def check_precision(precision: str) -> None:
    """Raise `UnknownNameError` for an arithmetic that does not exist."""
    if precision not in PRECISIONS:
        raise unknown_name("precision", precision, PRECISIONS)


def diagonal_scan(
    u: Tensor,  # (batch, channels, length)
    log_lam: Tensor,  # (channels, modes, 2)
    w: Tensor,  # (channels, modes, 2)
    state: Tensor | None = None,  # (batch, channels, modes, 2)
    backend: str = "auto",
    precision: str = "fp32",
) -> tuple[Tensor, Tensor]:
    """x[l] = λ̄ x[l−1] + u[l], y[l] = Re Σ w x[l]; returns y (batch, channels, length) and the last x.

    `precision` is the arithmetic inside the triton backend; the others follow u's dtype.
    """
    check_backend(backend)
    check_precision(precision)
    if backend == "reference":
        zero = u.new_zeros(u.shape[0], *log_lam.shape) if state is None else state
        y, last = reference.diagonal_scan(u, log_lam, w, zero)
        return y.to(u.dtype), last.to(u.dtype)
    reason = _triton_refuses(u, backend)
    if reason is None:
        from wavessm.ops import triton_scan

        return triton_scan.diagonal_scan(u, log_lam, w, state, precision)
    if backend == "triton":
        raise OptionError(f"backend='triton' cannot serve this call: {reason}; use backend='auto' or 'torch'.")
    if backend == "auto" and u.is_cuda:
        _say_once(reason)
    return scan.diagonal_scan(u, log_lam, w, state)


def dense_scan(
    u: Tensor,  # (batch, channels, length)
    A: Tensor,  # (channels, R, R)
    B: Tensor,  # (channels, R)
    C: Tensor,  # (channels, R)
    state: Tensor | None = None,  # (batch, channels, R)
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """x[l] = A x[l−1] + B u[l], y[l] = C x[l] for a dense real state."""
    check_backend(backend)
    if backend == "triton":
        raise OptionError("backend='triton' has no kernel for a dense state yet; use backend='auto' or 'torch'.")
    if backend == "reference":
        zero = u.new_zeros(u.shape[0], *B.shape) if state is None else state
        y, last = reference.dense_scan(u, A, B, C, zero)
        return y.to(u.dtype), last.to(u.dtype)
    return scan.dense_scan(u, A, B, C, state)


def _triton_refuses(u: Tensor, backend: str) -> str | None:
    """Why the triton backend cannot, or under "auto" should not, take this call; None if it does."""
    if backend == "torch":
        return "not asked for"
    if backend == "auto" and not u.is_cuda:
        return "the input is not on a GPU"
    if backend == "auto" and torch.compiler.is_compiling():
        return "torch.compile traces the torch backend"
    try:
        from wavessm.ops import triton_scan
    except ImportError as reason:
        return f"triton is not installed ({reason})"
    return triton_scan.available(u)


@lru_cache(maxsize=64)
def _say_once(reason: str) -> None:
    log.info("the triton backend stands aside: %s; running the torch backend.", reason)

"""What the hand-written backward passes of this package have in common: full precision, and first derivatives only.

They leave autocast, as layers do in their forward pass: under it, products of their float32 tables would be bfloat16.
Those that use saved tensors which autograd does not see refuse to be differentiated, since terms would be missing.
PyTorch's `once_differentiable` raises on `.backward()`; `torch.autograd.grad` of chosen inputs bypasses it silently.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch

T = TypeVar("T")


def full_precision(backward: Callable[..., T], once: bool = False) -> Callable[..., T]:
    """Run a backward pass without autocast; with `once`, raise `RuntimeError` when called with create_graph=True."""

    @functools.wraps(backward)
    def outside(ctx: Any, *gradients: Any) -> T:
        if torch.compiler.is_compiling():  # PyTorch itself refuses second derivatives of a compiled graph
            return backward(ctx, *gradients)
        if once and torch.is_grad_enabled():
            raise RuntimeError(
                "wavessm: got create_graph=True, but this operation has first derivatives only; leave create_graph "
                "out, or use backend='reference'."
            )
        with without_autocast(next(gradient.device.type for gradient in gradients if gradient is not None)):
            return backward(ctx, *gradients)

    return outside


def without_autocast(device: str) -> Any:
    """A context without autocast on a kind of device; where it is off already, entering one costs more than asking."""
    enabled = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
    return torch.autocast(device, enabled=False) if enabled else contextlib.nullcontext()


first_only = functools.partial(full_precision, once=True)

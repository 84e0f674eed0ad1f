"""First derivatives only, in full precision: what the hand-written backward passes of this package have in common.

They refuse to be differentiated:

they use saved tensors that autograd does not see, so their derivatives would lack terms. PyTorch's
`once_differentiable` raises on `.backward()`, but `torch.autograd.grad` of chosen inputs bypasses it silently. And they
leave autocast, as layers do in their forward pass: under it, products of their float32 tables would be bfloat16.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch

T = TypeVar("T")


def first_only(backward: Callable[..., T]) -> Callable[..., T]:
    """Make a backward pass raise `RuntimeError` when called with create_graph=True, and run it without autocast."""

    @functools.wraps(backward)
    def checked(ctx: Any, *gradients: Any) -> T:
        if torch.compiler.is_compiling():  # PyTorch itself refuses second derivatives of a compiled graph
            return backward(ctx, *gradients)
        if torch.is_grad_enabled():
            raise RuntimeError(
                "wavessm: got create_graph=True, but this operation has first derivatives only; leave create_graph "
                "out, or use backend='reference'."
            )
        device = next(gradient.device.type for gradient in gradients if gradient is not None)
        with torch.autocast(device, enabled=False):
            return backward(ctx, *gradients)

    return checked

"""First derivatives only: the hand-written backward passes of this package refuse to be differentiated.

They use saved tensors that autograd does not see, so their derivatives would lack terms. PyTorch's
`once_differentiable` raises on `.backward()`, but `torch.autograd.grad` of chosen inputs bypasses it silently.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch

T = TypeVar("T")


def first_only(backward: Callable[..., T]) -> Callable[..., T]:
    """Make a backward pass raise `RuntimeError` when called with create_graph=True."""

    @functools.wraps(backward)
    def checked(ctx: Any, *gradients: Any) -> T:
        # PyTorch itself refuses second derivatives of a compiled graph
        if not torch.compiler.is_compiling() and torch.is_grad_enabled():
            raise RuntimeError(
                "wavessm: got create_graph=True, but this operation has first derivatives only; leave create_graph "
                "out, or use backend='reference'."
            )
        return backward(ctx, *gradients)

    return checked

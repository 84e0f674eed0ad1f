"""First derivatives only: what the hand-written backward passes of this folder refuse.

They multiply saved tensors that autograd knows nothing of, so a derivative of theirs would lack terms or be zero.
PyTorch's `once_differentiable` raises where `.backward()` meets it; `torch.autograd.grad` of chosen inputs goes round
it and is silently wrong. Here `create_graph=True` is refused before that.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch

T = TypeVar("T")


def first_only(backward: Callable[..., T]) -> Callable[..., T]:
    """A backward pass that raises `RuntimeError` where its own derivative would be recorded."""

    @functools.wraps(backward)
    def checked(ctx: Any, *gradients: Any) -> T:
        # a compiled graph has no second derivatives either, and PyTorch says so
        if not torch.compiler.is_compiling() and torch.is_grad_enabled():
            raise RuntimeError(
                "wavessm: got create_graph=True, but this operation has first derivatives only; leave create_graph "
                "out, or use backend='reference' (for DPLR layers by the signal only)."
            )
        return backward(ctx, *gradients)

    return checked

"""How this package tells PyTorch of functions with gradients of their own: as operators, and without autocast.

Operators stay whole in the graphs of `torch.compile` and `torch.export`, whatever happens inside. Backward passes leave
autocast, as layers do in their forward pass: under it, products of their float32 tables would be bfloat16. Those that
use saved tensors which autograd does not see refuse to be differentiated, since terms would be missing. PyTorch's
`once_differentiable` raises on `.backward()`; `torch.autograd.grad` of chosen inputs bypasses it silently.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch

T = TypeVar("T")
_LIBRARY = torch.library.Library("wavessm", "FRAGMENT")
# asked once: before 2.13 torch.compile breaks its graph at the question
_HAVE_AUTOCAST = tuple(kind for kind in ("cpu", "cuda", "mps", "xpu") if torch.amp.is_autocast_available(kind))


def operator(
    fake: Callable, gradient: Callable | None = None, keep: Callable = lambda inputs, _: (inputs, ()), outputs: int = 1
) -> Callable[[Callable], Callable]:
    """Register a function with annotated arguments as operator `wavessm::name`, and return a call of it.

    Args:
        fake: Returns empty outputs for the same arguments.
        gradient: The backward pass, (what was kept, *gradients of the outputs) → those of the arguments.
        keep: Returns the tensors that the backward pass needs, and then what else, from arguments and outputs.
        outputs: How many outputs, the first ones, have gradients.

    Where nothing traces the call, it is a plain function of autograd: PyTorch's way to an operator written in Python
    (`torch.library.custom_op`) takes three times as long.
    """

    def register(run: Callable) -> Callable:
        name = run.__name__
        _LIBRARY.define(name + torch.library.infer_schema(run, mutates_args=()))
        _LIBRARY.impl(name, run, "CompositeExplicitAutograd")
        torch.library.register_fake(f"wavessm::{name}", fake, lib=_LIBRARY)
        traced, plain = getattr(torch.ops.wavessm, name).default, run

        def below(*inputs: Any) -> Any:
            with torch._C._AutoDispatchBelowAutograd():
                return traced(*inputs)

        if gradient is not None:
            node, plain = (_node(call, gradient, keep, outputs) for call in (below, run))
            several = traced._schema.returns[0].type.kind() == "ListType"
            _LIBRARY.impl(name, lambda *inputs: list(node(*inputs)) if several else node(*inputs), "Autograd")

        @functools.wraps(run)
        def call(*inputs: Any) -> Any:
            if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack():
                return traced(*inputs)
            return plain(*inputs)

        return call

    return register


def _node(run: Callable, gradient: Callable, keep: Callable, outputs: int) -> Callable:
    """A function with its gradient, for autograd."""

    class Node(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Any:
            made = run(*inputs)
            tensors, ctx.others = keep(inputs, made)
            ctx.save_for_backward(*tensors)
            if isinstance(made, torch.Tensor):
                return made
            ctx.set_materialize_grads(False)  # most have no gradient
            ctx.mark_non_differentiable(*made[outputs:])
            return tuple(made)

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            return gradient((*ctx.saved_tensors, *ctx.others), *gradients)

    # What `Function.apply` does before is for transforms of torch.func, and takes as long again.
    direct = super(torch.autograd.Function, Node).apply
    return lambda *inputs: (Node.apply if torch._C._are_functorch_transforms_active() else direct)(*inputs)


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
    enabled = device in _HAVE_AUTOCAST and torch.is_autocast_enabled(device)
    return torch.autocast(device, enabled=False) if enabled else contextlib.nullcontext()


first_only = functools.partial(full_precision, once=True)

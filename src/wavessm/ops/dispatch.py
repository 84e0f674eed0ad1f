"""The one dispatch point over the backends that can run a layer.

    reference   a float64 loop over time
    torch       FFT convolution, or chunked matrix products where there is a state; anywhere PyTorch runs
    triton      the chunked products fused into one kernel, on NVIDIA GPUs

A backend that was asked for and does not support the call raises with the reason. "auto" takes the fastest one that
does, and logs once why a faster one is not used.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn import functional as F

from wavessm.errors import OptionError, unknown_name
from wavessm.ops import reference
from wavessm.ops.convolution import convolve, kernel
from wavessm.ops.modes import DenseSystem, DiagonalSystem, Modes, sample
from wavessm.ops.scan import is_symbolic, scan

BACKENDS = ("auto", "torch", "triton", "reference")
PRECISIONS = ("fp32", "tf32", "bf16")

CONVOLVE_FROM = 512
"""Length from which PyTorch's FFT is faster than its chunked scan."""

log = logging.getLogger("wavessm")


class Engine(NamedTuple):
    """How to run a layer."""

    backend: str = "auto"
    precision: str = "fp32"  # arithmetic of the triton backend; the others follow the input's dtype

    def check(self) -> Engine:
        """Return itself, or raise `UnknownNameError` for a backend or a precision that does not exist."""
        if self.backend not in BACKENDS:
            raise unknown_name("backend", self.backend, BACKENDS)
        if self.precision not in PRECISIONS:
            raise unknown_name("precision", self.precision, PRECISIONS)
        return self


DEFAULT = Engine()


def run_layer(
    u: Tensor,  # (batch, channels, length)
    layer: Modes,
    D: Tensor,  # (channels,)
    rate: float = 1.0,
    state: Tensor | None = None,  # (batch, channels, slots, 2)
    want_state: bool = False,
    engine: Engine = DEFAULT,
) -> tuple[Tensor, Tensor | None]:
    """Run a layer with its direct path D over signals in channels-first order, its step sizes times `rate`.

    Returns y like u, and the state after the last sample if wanted, else None; with two directions there is none.
    Raises `OptionError` where the backend does not support the call: the kernels of triton, or transforms of torch.func
    and forward-mode differentiation, which the reference alone supports.
    """
    engine.check()
    transformed = not torch.compiler.is_compiling() and (
        torch._C._functorch.peek_interpreter_stack() is not None or forward_ad._current_level >= 0
    )
    if transformed and engine.backend != "reference":
        raise OptionError(
            "WaveSSM: torch.func transforms (vmap, jvp, grad …) and forward-mode differentiation need "
            "backend='reference'; for gradients call torch.autograd.grad, for batches use the batch axis."
        )
    # in float32's accuracy FFT is faster than products with a large dense state
    large = layer.P is not None and layer.B.shape[1] > 32 and engine == DEFAULT and state is None and not want_state
    kernels = triton_for(u, engine, layer)
    if kernels is not None and not (large and u.shape[-1] >= CONVOLVE_FROM):
        return kernels.scan.run_layer(u, layer, D, rate, state, want_state, engine.precision)
    flat = None if state is None else state.flatten(2)
    y, last = run_system(u, sample(layer, rate), D, flat, want_state, engine)
    return y, None if last is None else last.unflatten(-1, (-1, 2))


def run_system(
    u: Tensor,  # (batch, channels, length)
    system: DiagonalSystem | DenseSystem,
    D: Tensor,  # (channels,)
    state: Tensor | None = None,  # (batch, channels, R)
    want_state: bool = False,
    engine: Engine = DEFAULT,
) -> tuple[Tensor, Tensor | None]:
    """Run a system in discrete time by the reference, the convolution or the chunked scan; see `run_layer`."""
    two_way = (system.w if isinstance(system, DiagonalSystem) else system.C).shape[0] == 2

    def run(u: Tensor) -> tuple[Tensor, Tensor | None]:
        if engine.backend == "reference":
            y, last = run_reference(u, system, 0, state)
            y = y + run_reference(u.flip(-1), system, 1, None)[0].flip(-1) if two_way else y
            return y + D.to(u.dtype)[:, None] * u, last if want_state else None
        if state is None and not want_state and not is_symbolic(u.shape[-1]) and u.shape[-1] >= CONVOLVE_FROM:
            return convolve(u, kernel(system, u.shape[-1], u.dtype).to(u.device), D), None
        return scan(u, system, D, state, want_state)

    return run(u) if two_way else nan_safe(run, u)


def nan_safe(run: Callable[[Tensor], tuple[Tensor, Tensor | None]], u: Tensor) -> tuple[Tensor, Tensor | None]:
    """`run` on u without NaN and infinity, which products over a chunk would carry to earlier samples; y and the last
    state (batch, channels, R) are NaN from the first sample on that was not finite."""
    broken = torch.cumsum(u * 0, dim=-1)  # 0 · ∞ is NaN too
    y, last = run(torch.nan_to_num(u, nan=0.0, posinf=0.0, neginf=0.0))
    return y + broken, None if last is None else last + broken[..., -1, None]


def run_reference(
    u: Tensor, system: DiagonalSystem | DenseSystem, direction: int, state: Tensor | None, *gap: Tensor
) -> tuple[Tensor, Tensor]:
    """One direction by the loop of `reference`; state (batch, channels, R) or None, gap as `irregular.Gaps`."""
    if isinstance(system, DenseSystem):
        zero = u.new_zeros(u.shape[0], *system.B.shape) if state is None else state
        y, last = reference.dense_scan(u, system.A, system.B, system.C[direction], zero)
    else:
        zero = u.new_zeros(u.shape[0], *system.log_lam.shape) if state is None else state.unflatten(-1, (-1, 2))
        y, last = reference.diagonal_scan(u, system.log_lam, system.w[direction], system.n_complex, zero, *gap)
    return y.to(u.dtype), last.flatten(2).to(u.dtype)


def activate(
    x: Tensor,  # (batch, length, channels)
    before: Tensor | None = None,  # (batch, 1, channels) dropout's factors, constant over time
    after: Tensor | None = None,  # (batch, 1, channels)
    engine: Engine = DEFAULT,
) -> Tensor:
    """after · GELU(before · x). The output of a scan lies channels first; one kernel transposes it on the way."""
    first = x.transpose(1, 2)
    kernels = triton_for(first, engine) if first.is_contiguous() and not x.is_contiguous() else None
    if kernels is not None:
        return kernels.gate.activate(first, before, after)
    x = x.contiguous()  # elementwise gradients and products are slow on views
    z = F.gelu(x if before is None else x * before.to(x.dtype))
    return z if after is None else z * after.to(x.dtype)


def normalize(
    x: Tensor,  # (batch, length, channels)
    norm: nn.LayerNorm | nn.BatchNorm1d,
    mask: Tensor | None = None,  # (batch, length, 1)
    engine: Engine = DEFAULT,
    first: bool = False,
) -> Tensor:
    """norm(x); batch norm in training takes the samples under the mask alone, and is zero elsewhere. In bfloat16 the
    kernels return bfloat16; with `first` they write channels first, as a scan reads them."""
    layer_norm = isinstance(norm, nn.LayerNorm)
    kernels = triton_for(x, engine) if x.numel() and (layer_norm or norm.training) else None
    kernels = kernels if kernels is not None and x.shape[-1] <= kernels.norm.MAX_FEATURES else None
    low = x.dtype == torch.bfloat16 and engine.precision == "bf16"
    if isinstance(norm, nn.LayerNorm):
        return norm(x) if kernels is None else kernels.norm.layer_norm(x, norm, low, first)
    plain = type(norm) is nn.BatchNorm1d and norm.track_running_stats and norm.affine and norm.momentum is not None
    several = mask is not None or x.numel() > x.shape[-1]  # PyTorch raises for a single sample
    if kernels is not None and plain and several:
        return kernels.norm.batch_norm(x, mask, norm, first)
    return norm(x.flatten(0, 1)).view_as(x) if mask is None or not norm.training else masked_batch_norm(x, mask, norm)


def masked_batch_norm(x: Tensor, mask: Tensor, norm: nn.BatchNorm1d) -> Tensor:
    """Return batch norm of the samples under the mask alone, zero elsewhere; running statistics are updated.

    No sample is gathered, so nothing waits for a GPU to count them. x (batch, length, d_model), mask (batch, length, 1)
    """
    dtype = x.dtype
    x = x.masked_fill(~mask, 0).to(torch.promote_types(dtype, torch.float32))
    weight = mask.to(x.dtype)
    count = weight.sum()
    mean = x.sum((0, 1)) / count
    centred = (x - mean) * weight
    variance = centred.square().sum((0, 1)) / count
    if norm.track_running_stats and norm.running_mean is not None and norm.running_var is not None:
        with torch.no_grad():
            cast(Tensor, norm.num_batches_tracked).add_(1)
            unbiased = variance * (count / (count - 1).clamp(min=1))
            for running, now in ((norm.running_mean, mean), (norm.running_var, unbiased)):
                running.lerp_(now.to(running.dtype), cast(float, norm.momentum))
    return ((centred * torch.rsqrt(variance + norm.eps) * norm.weight + norm.bias) * weight).to(dtype)


def gate(
    z: Tensor,  # (batch, length, channels)
    project: nn.Linear,  # channels → 2 channels
    factors: Tensor | None = None,  # (batch, 1, channels) dropout's factors, constant over time
    around: Tensor | None = None,  # (batch, length, channels) is added
    engine: Engine = DEFAULT,
) -> Tensor:
    """around + factors · GLU(project(z))."""
    kernels = None if project.bias is None else triton_for(z, engine)
    if kernels is not None:
        around = None if around is None else around.contiguous()
        return kernels.gate.gate(F.linear(z, project.weight.to(z.dtype)).contiguous(), project.bias, factors, around)
    y = F.glu(project(z), dim=-1)
    y = y if factors is None else y * factors.to(z.dtype)
    return y if around is None else around + y


def in_bfloat16(x: Tensor, engine: Engine) -> Tensor:
    """x in bfloat16 where autocast asks for it and kernels compute no finer, else as it is."""
    device = x.device.type
    if engine.precision != "bf16" or x.dtype != torch.float32 or not torch.is_autocast_enabled(device):
        return x
    wanted = torch.get_autocast_dtype(device) == torch.bfloat16
    return x.bfloat16() if wanted and triton_for(x, engine) is not None else x


def triton_for(u: Tensor, engine: Engine, layer: Modes | None = None) -> Any:
    """The package of kernels if the triton backend runs a call with this input, for a layer or (None) elementwise, else
    None; raises `OptionError` if it was asked for and does not."""
    if engine.backend in ("torch", "reference") or (engine.backend == "auto" and not u.is_cuda):
        return None
    from wavessm.ops import triton

    reason = triton.scan.unavailable(u, layer)
    if reason is not None and engine.backend == "triton":
        raise OptionError(f"backend='triton' does not support this call: {reason}; use backend='auto' or 'torch'.")
    if reason is not None and not torch.compiler.is_compiling():
        _log_once(reason)
    return triton if reason is None else None


@lru_cache(maxsize=64)
def _log_once(reason: str) -> None:
    log.info("the triton backend is not used: %s; running the torch backend.", reason)

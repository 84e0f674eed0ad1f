"""Stage 4: the engine. One dispatch point over the backends that can run a layer.

    reference   a float64 loop over time
    torch       FFT convolution, or chunked matrix products where there is a state; anywhere PyTorch runs
    triton      the same walk fused into one kernel, on NVIDIA GPUs

An explicit choice that cannot serve raises with the reason; "auto" takes the fastest that can and says once, in the
log, why a faster one could not.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from wavessm.errors import OptionError, unknown_name
from wavessm.ops import dplr, reference
from wavessm.ops.convolution import convolve
from wavessm.ops.dplr import LowRank
from wavessm.ops.modes import Modes, Sampled, sample
from wavessm.ops.scan import scan, tables_of
from wavessm.ops.tables import Dense, dense_kernel, diagonal_kernel

BACKENDS = ("auto", "torch", "triton", "reference")
PRECISIONS = ("fp32", "tf32", "bf16")

CONVOLVE_FROM = 512
"""Length from which PyTorch's FFT outruns its chunked scan."""

log = logging.getLogger("wavessm")


class Engine(NamedTuple):
    """Which backend, and the arithmetic inside the triton one; the others follow the input's dtype."""

    backend: str = "auto"
    precision: str = "fp32"

    def checked(self) -> Engine:
        """Itself, or `UnknownNameError` for a backend or an arithmetic that does not exist."""
        if self.backend not in BACKENDS:
            raise unknown_name("backend", self.backend, BACKENDS)
        if self.precision not in PRECISIONS:
            raise unknown_name("precision", self.precision, PRECISIONS)
        return self


def run_modes(
    u: Tensor,  # (batch, channels, length)
    modes: Modes,
    D: Tensor,  # (channels,)
    rate: float = 1.0,
    state: Tensor | None = None,  # (batch, channels, slots, 2)
    want_state: bool = False,
    engine: Engine = Engine(),  # noqa: B008  (immutable)
) -> tuple[Tensor, Tensor | None]:
    """A diagonal layer in channels-first order: y like u, and the state after the last sample if wanted."""
    if use_triton(u, engine, dense=0, slots=modes.B.shape[1]):
        from wavessm.ops.triton import scan as triton_scan

        return triton_scan.run_modes(u, modes, D, rate, state, want_state, engine.precision)
    y, last = _run(u, sample(modes, rate), D, None if state is None else state.flatten(2), want_state, engine)
    return y, None if last is None else last.unflatten(-1, (-1, 2))


def run_low_rank(
    u: Tensor,  # (batch, channels, length)
    layer: LowRank,
    D: Tensor,  # (channels,)
    rate: float = 1.0,
    state: Tensor | None = None,  # (batch, channels, slots, 2)
    want_state: bool = False,
    engine: Engine = Engine(),  # noqa: B008  (immutable)
) -> tuple[Tensor, Tensor | None]:
    """The same for a DPLR layer."""
    width = 2 * layer.B.shape[1]
    if use_triton(u, engine, dense=width, slots=0) and not _convolves(u, width, state, want_state, engine):
        from wavessm.ops.triton import scan as triton_scan

        return triton_scan.run_low_rank(u, layer, D, rate, state, want_state, engine.precision)
    y, last = _run(u, dplr.sample(layer, rate), D, None if state is None else state.flatten(2), want_state, engine)
    return y, None if last is None else last.unflatten(-1, (-1, 2))


def run_dense(
    u: Tensor,  # (batch, channels, length)
    system: Dense,
    D: Tensor,  # (channels,)
    state: Tensor | None = None,  # (batch, channels, R)
    want_state: bool = False,
    engine: Engine = Engine(),  # noqa: B008  (immutable)
) -> tuple[Tensor, Tensor | None]:
    """Any dense system, by the reference or by torch."""
    return _run(u, system, D, state, want_state, engine.checked())


def _convolves(u: Tensor, width: int, state: Tensor | None, want_state: bool, engine: Engine) -> bool:
    """Whether FFT beats the walk, as it does where a large dense state is multiplied in float32's accuracy."""
    large = width > 64 and engine == Engine("auto", "fp32")
    return large and state is None and not want_state and u.shape[-1] >= CONVOLVE_FROM


def _run(
    u: Tensor, system: Sampled | Dense, D: Tensor, state: Tensor | None, want_state: bool, engine: Engine
) -> tuple[Tensor, Tensor | None]:
    """Whichever of reference, convolution and chunked scan serves this call."""
    both = (system.w if isinstance(system, Sampled) else system.C).shape[0] == 2
    last: Tensor | None = None
    if engine.backend == "reference" and both:
        y = _reference(u, system, 0, None)[0] + _reference(u.flip(-1), system, 1, None)[0].flip(-1)
    elif engine.backend == "reference":
        y, last = guarded(lambda finite: _reference(finite, system, 0, state), u)
    elif both:
        return _whole(u, system, D), None
    elif state is None and not want_state:
        return guarded(lambda finite: (_whole(finite, system, D), None), u)
    else:
        y, last = guarded(lambda finite: scan(finite, tables_of(system, u.dtype), state, want_state), u)
    return y + D.to(u.dtype)[:, None] * u, last if want_state else None


def guarded(run: Callable[[Tensor], tuple[Tensor, Tensor | None]], u: Tensor) -> tuple[Tensor, Tensor | None]:
    """`run` on u without NaN and infinity, which products over a chunk would carry to earlier samples; then NaN in y
    and in the last state (batch, channels, R) from the first broken sample on."""
    broken = torch.cumsum(u * 0, dim=-1)  # 0 · ∞ is NaN too
    y, last = run(torch.nan_to_num(u, nan=0.0, posinf=0.0, neginf=0.0))
    return y + broken, None if last is None else last + broken[..., -1, None]


def _whole(u: Tensor, system: Sampled | Dense, D: Tensor) -> Tensor:
    """A whole sequence from rest: by FFT unless it is short."""
    length = u.shape[-1]
    if length < CONVOLVE_FROM:
        return scan(u, tables_of(system, u.dtype))[0] + D.to(u.dtype)[:, None] * u
    K = dense_kernel(system, length) if isinstance(system, Dense) else diagonal_kernel(system, length, u.dtype)
    return convolve(u, K, D)


def _reference(u: Tensor, system: Sampled | Dense, direction: int, state: Tensor | None) -> tuple[Tensor, Tensor]:
    if isinstance(system, Dense):
        zero = u.new_zeros(u.shape[0], *system.B.shape) if state is None else state
        y, last = reference.dense_scan(u, system.A, system.B, system.C[direction], zero)
    else:
        zero = u.new_zeros(u.shape[0], *system.log_lam.shape) if state is None else state.unflatten(-1, (-1, 2))
        y, last = reference.diagonal_scan(u, system.log_lam, system.w[direction], system.n_complex, zero)
        last = last.flatten(2)
    return y.to(u.dtype), last.to(u.dtype)


def activate(
    x: Tensor,  # (batch, length, channels)
    before: Tensor | None = None,  # (batch, 1, channels) dropout's factors, constant over time
    after: Tensor | None = None,  # (batch, 1, channels)
    engine: Engine = Engine(),  # noqa: B008  (immutable)
) -> Tensor:
    """after · GELU(before · x). Out of a scan x lies channels first; one kernel turns it on the way."""
    first = x.transpose(1, 2)
    if first.is_contiguous() and not x.is_contiguous() and use_triton(first, engine, dense=0, slots=0):
        from wavessm.ops.triton import turn as triton_turn

        return triton_turn.activate(first, before, after)
    x = x.contiguous()  # elementwise gradients and products are slow on views
    z = F.gelu(x if before is None else x * before)
    return z if after is None else z * after


def layer_norm(
    x: Tensor,  # (batch, length, channels)
    norm: nn.LayerNorm,
    engine: Engine = Engine(),  # noqa: B008  (immutable)
) -> Tensor:
    """norm(x)."""
    if use_triton(x, engine, dense=0, slots=0) and x.numel():
        from wavessm.ops.triton import norm as triton_norm

        if x.shape[-1] <= triton_norm.WIDEST:
            return triton_norm.layer_norm(x, norm.weight, norm.bias, norm.eps)
    return norm(x)


def batch_norm(
    x: Tensor,  # (batch, length, channels)
    norm: nn.BatchNorm1d,  # in training
    mask: Tensor | None = None,  # (batch, length, 1)
    engine: Engine = Engine(),  # noqa: B008  (immutable)
) -> Tensor | None:
    """What `norm` would make of the samples under the mask alone, zero elsewhere; None where no kernel serves."""
    plain = type(norm) is nn.BatchNorm1d and norm.track_running_stats and norm.affine and norm.momentum is not None
    several = x.numel() > (x.shape[-1] if mask is None else 0)  # a single sample has no variance, PyTorch says so
    if plain and several and use_triton(x, engine, dense=0, slots=0):
        from wavessm.ops.triton import batch_norm as triton_batch_norm

        if x.shape[-1] <= triton_batch_norm.WIDEST:
            return triton_batch_norm.batch_norm(x, mask, norm)
    return None


def gate(
    z: Tensor,  # (batch, length, channels)
    project: nn.Linear,  # to twice as many
    factors: Tensor | None = None,  # (batch, 1, channels) dropout's factors, constant over time
    around: Tensor | None = None,  # (batch, length, channels) is added
    engine: Engine = Engine(),  # noqa: B008  (immutable)
) -> Tensor:
    """around + factors · GLU(project(z))."""
    if project.bias is not None and use_triton(z, engine, dense=0, slots=0):
        from wavessm.ops.triton import gate as triton_gate

        return triton_gate.gate(F.linear(z, project.weight), project.bias, factors, around)
    y = F.glu(project(z), dim=-1)
    y = y if factors is None else y * factors
    return y if around is None else around + y


def use_triton(u: Tensor, engine: Engine, dense: int, slots: int) -> bool:
    """Whether the triton backend takes this call; raises if it was asked for and cannot."""
    engine.checked()
    reason = _triton_refuses(u, engine.backend, dense, slots)
    if reason is None:
        return True
    if engine.backend == "triton":
        raise OptionError(f"backend='triton' cannot serve this call: {reason}; use backend='auto' or 'torch'.")
    if engine.backend == "auto" and u.is_cuda:
        _say_once(reason)
    return False


def _triton_refuses(u: Tensor, backend: str, dense: int, slots: int) -> str | None:
    """Why the triton backend cannot, or under "auto" should not, take this call; None if it does."""
    if backend in ("torch", "reference"):
        return "not asked for"
    if backend == "auto" and not u.is_cuda:
        return "the input is not on a GPU"
    if backend == "auto" and torch.compiler.is_compiling():
        return "torch.compile traces the torch backend"
    try:
        from wavessm.ops.triton import scan as triton_scan
    except ImportError as reason:
        return f"triton is not installed ({reason})"
    return triton_scan.available(u, dense, slots)


@lru_cache(maxsize=64)
def _say_once(reason: str) -> None:
    log.info("the triton backend stands aside: %s; running the torch backend.", reason)

"""Layers discretised once, for streams.

`WaveSSM` computes its tables on every call, because training changes what they are made of. A model that only runs can
store them: `sampled(model)` is a copy whose layers do, with tables for each chunk length on first use, and O(N) per
single step for both structures. `sampled(model, packet=160)` also compiles the step for packets of that length.
"""

from __future__ import annotations

import copy
import functools
import math
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from wavessm.errors import OptionError, check_int
from wavessm.nn.layer import WaveSSM, check_sample, check_signals
from wavessm.ops import DenseSystem, Engine, modes, nan_safe
from wavessm.ops.scan import ScanTables, run_chunks, scan_tables, walk_chunks

CHUNK = {"diagonal": 16, "dplr": 32}
"""Samples in a product: few enough for the tables to stay in a core's cache, more where a decay is a matrix."""


def sampled(model: nn.Module, rate: float = 1.0, packet: int | None = None) -> nn.Module:
    """A copy of a model in evaluation mode whose causal layers store their tables: for streams, not for training.

    Args:
        model: A layer or any module with `WaveSSM` layers inside.
        rate: Sampling rate of training divided by that of the stream.
        packet: Samples in most packets: `stream`, or `forward` of a model without, is compiled for this length by
            `torch.compile` at its first call, which takes a C++ compiler and up to minutes. Packets of other lengths,
            or with a number that is not finite, run as without it.

    Example:
        >>> block = nn.Sequential(WaveSSM(4, 16), WaveSSM(4, 16, family="legs"))
        >>> x = torch.randn(1, 50, 4)
        >>> torch.allclose(sampled(block)(x), block(x), atol=1e-5)
        True
    """
    if not isinstance(model, nn.Module):
        raise OptionError(f"sampled: model is a {type(model).__name__}, expected a layer or a model.")
    if isinstance(model, WaveSSM):
        model = SampledLayer(model, rate)
    else:
        model = copy.deepcopy(model).eval().requires_grad_(False)
        for module in list(model.modules()):
            for name, child in module.named_children():
                if isinstance(child, WaveSSM) and not child.bidirectional:
                    setattr(module, name, SampledLayer(child, rate))
    return model if packet is None else _compiled(model, check_int(packet, "sampled: packet", minimum=1))


def _compiled(model: nn.Module, packet: int) -> nn.Module:
    """The model with `stream` or `forward` compiled for packets of one length."""
    for module in model.modules():
        if isinstance(module, SampledLayer):
            module.make_tables(packet)
    name = "stream" if hasattr(model, "stream") else "forward"
    plain = getattr(model, name)
    fast = torch.compile(plain, dynamic=False)

    @functools.wraps(plain)
    def run(x: Tensor, *others: Any, **options: Any) -> Any:
        regular = isinstance(x, Tensor) and x.dim() > 1 and x.shape[1] == packet and math.isfinite(x.sum())
        with torch.no_grad():  # strides are part of what is compiled for
            return fast(x.contiguous(), *others, **options) if regular else plain(x, *others, **options)

    setattr(model, name, run)
    return model


class SampledLayer(nn.Module):
    """A causal `WaveSSM` in discrete time at one rate; called like the layer, without gradients.

    Tables and states are at least float32, whatever the layer is; outputs have the type of the input.
    """

    def __init__(self, layer: WaveSSM, rate: float = 1.0) -> None:
        super().__init__()
        if layer.bidirectional:
            raise OptionError("SampledLayer: a bidirectional layer reads the future; use bidirectional=False.")
        self.d_model, self.n_slots, self.rate = layer.d_model, layer.n_slots, rate
        self.dtype = torch.promote_types(layer.D.dtype, torch.float32)  # a decay of 0.999 is 1 in bfloat16
        self.chunk = CHUNK[layer.structure]
        self.engine, self.bidirectional = Engine("torch"), False
        with torch.no_grad():
            self.D = layer.D.detach().to(self.dtype, copy=True)
            self.system = layer.discrete(rate)
            self._step = _Step(*(table.to(self.dtype).to(self.D.device) for table in _step_tables(layer, rate)))
        self._tables: dict[int, ScanTables] = {}
        self._at_times = functools.partial(copy.deepcopy(layer).requires_grad_(False), rate=rate)

    def forward(
        self,
        x: Tensor,  # (batch, length, d_model)
        state: Any = None,  # (batch, d_model, slots, 2)
        return_state: bool = False,
        rate: float = 1.0,
        lengths: Tensor | None = None,
        times: Tensor | None = None,
    ) -> Tensor | tuple[Tensor, Any]:
        """As `WaveSSM.forward`, for sequences of one length; `rate` is the one it was sampled for, or left out.

        With times, also those of missing="gap", every gap has decays of its own: no tables, the layer's own speed.
        """
        if rate not in (1, self.rate):
            raise OptionError(f"SampledLayer: sampled at rate {self.rate}, got rate {rate!r}; call sampled() again.")
        if lengths is not None:
            raise OptionError("SampledLayer: got lengths, expected sequences of one length; call the model itself.")
        if times is not None:
            with torch.no_grad():
                return self._at_times(x, state, return_state, times=times)
        check_signals(x, state, self.d_model, self.n_slots)
        with torch.no_grad():
            if x.shape[1] == 1 and state is not None:
                u = x[:, 0].to(self.dtype)
                y, last = self._step(u, state)
                y = torch.addcmul(y, self.D, u)[:, None]
            else:
                u, flat = x.to(self.dtype).mT, None if state is None else state.flatten(2)
                run = functools.partial(self._chunks, state=flat)
                finite = torch.compiler.is_compiling() or math.isfinite(u.sum())
                y, flat = run(u) if finite else nan_safe(run, u)
                y, last = y.mT, cast(Tensor, flat).unflatten(-1, (-1, 2)).contiguous()
        return (y.to(x.dtype), last) if return_state else y.to(x.dtype)

    def initial_state(self, batch: int) -> Tensor:
        """As `WaveSSM.initial_state`, at least in float32."""
        batch = check_int(batch, "SampledLayer.initial_state: batch", minimum=1)
        return self.D.new_zeros(batch, self.d_model, self.n_slots, 2)

    def step(self, x_t: Tensor, state: Tensor, rate: float = 1.0) -> tuple[Tensor, Tensor]:
        """Process one sample (batch, d_model) in O(N); returns y_t and the next state."""
        check_sample(x_t, self.d_model)
        state = self.initial_state(len(x_t)) if state is None else state
        y, state = self.forward(x_t[:, None], state, return_state=True, rate=rate)
        return y[:, 0], state

    def make_tables(self, length: int) -> None:
        """Make the tables for packets of one length, where they are missing."""
        for size in (self.chunk, length % self.chunk):
            if 0 < size <= length and size not in self._tables:
                self._tables[size] = scan_tables(self.system, self.D, size)

    def _chunks(self, u: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        """Whole chunks, then the remainder. u (batch, d_model, length), state (batch, d_model, R)"""
        length, outputs = u.shape[2], []
        self.make_tables(length)
        rest = length % self.chunk
        for part in u.split([length - rest, rest], dim=2):
            if size := min(self.chunk, part.shape[2]):
                y, state = run_chunks(part, self._tables[size], state, walk_chunks)
                outputs.append(y)
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=2), cast(Tensor, state)


class _Step(NamedTuple):
    """x ← D x − U Vᵀ x + B u, y = C x, with D x = same · x + across · (x with each pair swapped)."""

    same: Tensor  # (d_model, slots, 2), like the next three
    across: Tensor
    B: Tensor
    C: Tensor
    U: Tensor | None = None  # (d_model, R, rank)
    V: Tensor | None = None

    def __call__(self, x_t: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        after = self.same * state + self.across * state.flip(-1) + self.B * x_t[..., None, None]
        if self.U is not None:
            projected = torch.einsum("bhr,hrk->bhk", state.flatten(2), self.V)
            after = after - torch.einsum("bhk,hrk->bhr", projected, self.U).unflatten(-1, (-1, 2))
        return (self.C * after).sum((-1, -2)), after


def _step_tables(layer: WaveSSM, rate: float) -> tuple[Tensor, ...]:
    """Arguments of `_Step`."""
    parameters, system = layer.system(), layer.discrete(rate)
    if isinstance(system, DenseSystem):
        e, U, V, c = modes.resolvent(parameters, rate)
        same, across = modes.pair_factors(e, c)
        B, C = (values.unflatten(-1, (-1, 2)) for values in (system.B, system.C[0]))
        return 2 * same - 1, 2 * across, B, C, 2 * U, V
    log_lam, w, n_complex = system
    c = modes.flags(n_complex, log_lam.shape[1], log_lam)
    one = torch.ones_like(c)
    B, C = torch.stack([one, 1 - c], -1), w[0] * torch.stack([one, 1 - 2 * c], -1)
    return *modes.pair_factors(modes.exponential(log_lam, n_complex), c), B, C

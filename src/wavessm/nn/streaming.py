"""Stage 5b: a layer sampled once, for streams.

`WaveSSM` forms its tables anew on every call, because training moves what they are made of. A model that only runs can
keep them: `sampled(model)` is a copy whose layers do.

    chunks   tables of the sizes that come, made on first use
    steps    O(N) a sample for both structures: modes one by one, or diagonal plus low rank
"""

from __future__ import annotations

import copy
import math
from typing import cast

import torch
from torch import Tensor, nn

from wavessm.errors import OptionError, check_int
from wavessm.nn.layer import WaveSSM, check_sample, check_signals
from wavessm.ops import Engine, dplr, modes, nan_safe, stream_tables
from wavessm.ops.stream_tables import StreamTables, run_chunks

CHUNK = {"diagonal": 16, "dplr": 32}
"""Samples in a product: few enough for the tables to stay in a core's cache, more where a decay is a matrix."""


def sampled(model: nn.Module, rate: float = 1.0) -> nn.Module:
    """A copy of a model, in eval mode, that keeps what its causal layers computed: for streams, not for training.

    >>> block = nn.Sequential(WaveSSM(4, 16), WaveSSM(4, 16, family="legs"))
    >>> x = torch.randn(1, 50, 4)
    >>> torch.allclose(sampled(block)(x), block(x), atol=1e-5)
    True
    """
    if isinstance(model, WaveSSM):
        return SampledLayer(model, rate)
    if not isinstance(model, nn.Module):
        raise OptionError(f"sampled: model is a {type(model).__name__}, expected a layer or a model.")
    model = copy.deepcopy(model).eval().requires_grad_(False)
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, WaveSSM) and not child.bidirectional:
                kept = SampledLayer(child, rate)
                kept.inside = True
                setattr(module, name, kept)
    return model


class SampledLayer(nn.Module):
    """A causal `WaveSSM` in discrete time at one rate; called as the layer is, without gradients.

    Tables and states are float32 or finer, whatever the layer is; outputs have the type of the input.
    """

    inside: bool = False
    """Whether a model calls it, which passes rate 1.0 on where none is said."""

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
            self.stepper = self._stepper(layer, rate)
        self._tables: dict[int, StreamTables] = {}

    def forward(
        self,
        x: Tensor,  # (batch, length, d_model)
        state: Tensor | None = None,  # (batch, d_model, slots, 2)
        return_state: bool = False,
        rate: float | None = None,
        lengths: Tensor | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """As `WaveSSM.forward`, at the rate it was sampled for."""
        self._check_rate(rate)
        if lengths is not None:
            raise OptionError("SampledLayer: got lengths, expected streams of one length; call the model itself.")
        check_signals(x, state, self.d_model, self.n_slots)
        if x.shape[1] == 1 and state is not None and return_state:
            y, state = self.step(x[:, 0], state)
            return y[:, None], state
        with torch.no_grad():
            u = x.to(self.dtype)
            flat = None if state is None else state.flatten(2)
            if math.isfinite(u.sum()):
                y, last = self._walk(u, flat)
            else:
                y, last = nan_safe(lambda finite: self._turned(finite, flat), u.transpose(1, 2))
                y = y.transpose(1, 2)
        y = y.to(x.dtype)
        return (y, cast(Tensor, last).unflatten(-1, (-1, 2))) if return_state else y

    def _check_rate(self, rate: float | None) -> None:
        if not (rate is None or rate == self.rate or (self.inside and rate == 1)):
            raise OptionError(
                f"SampledLayer: sampled at rate {self.rate}, got rate {rate!r}; call sampled(model, rate) again, or "
                "the model itself."
            )

    def _walk(self, u: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Whole chunks, then what is left over. u (batch, length, d_model), state (batch, d_model, R)"""
        left = u.shape[1] % self.chunk
        if left == u.shape[1]:
            return run_chunks(u, self._kept(left), state)
        y, state = run_chunks(u[:, : u.shape[1] - left], self._kept(self.chunk), state)
        if not left:
            return y, state
        tail, state = run_chunks(u[:, -left:], self._kept(left), state)
        return torch.cat([y, tail], dim=1), state

    def _turned(self, u: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor | None]:
        y, state = self._walk(u.transpose(1, 2).contiguous(), state)
        return y.transpose(1, 2), state

    def _kept(self, chunk: int) -> StreamTables:
        if chunk not in self._tables:
            self._tables[chunk] = stream_tables.build(self.system, self.D, chunk, self.dtype)
        return self._tables[chunk]

    def initial_state(self, batch: int) -> Tensor:
        """As in `WaveSSM`, at least in float32."""
        batch = check_int(batch, "SampledLayer.initial_state: batch", least=1)
        return self.D.new_zeros(batch, self.d_model, self.n_slots, 2)

    def step(self, x_t: Tensor, state: Tensor, rate: float | None = None) -> tuple[Tensor, Tensor]:
        """One sample (batch, d_model) in O(N)."""
        self._check_rate(rate)
        check_sample(x_t, self.d_model)
        state = self.initial_state(len(x_t)) if state is None else state
        check_signals(x_t[:, None], state, self.d_model, self.n_slots)
        with torch.no_grad():
            u = x_t.to(self.dtype)
            y, state = self.stepper(u, state)
            return torch.addcmul(y, self.D, u).to(x_t.dtype), state

    def _stepper(self, layer: WaveSSM, rate: float) -> Stepper:
        kind = ModalStepper if layer.structure == "diagonal" else LowRankStepper
        return kind(layer, rate, self.dtype)


class Stepper:
    """One sample and a state (batch, d_model, slots, 2) to the output without D, and the next state."""

    def __call__(self, x_t: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        raise NotImplementedError


class ModalStepper(Stepper):
    """x ← λ̄ x + u, y = trace(w x)."""

    def __init__(self, layer: WaveSSM, rate: float, dtype: torch.dtype) -> None:
        log_lam, w, n_complex = modes.sample(layer._modes(), rate)
        c = modes.flags(n_complex, log_lam.shape[1], log_lam)
        first, second = modes.exponential(log_lam, c).unbind(-1)
        self.same = torch.stack([first, c * first + (1 - c) * second], -1).to(dtype)
        self.across = torch.stack([-c * second, c * second], -1).to(dtype)
        self.unit = torch.stack([torch.ones_like(c), 1 - c], -1).to(dtype)
        self.w = (w[0] * torch.stack([torch.ones_like(c), 1 - 2 * c], -1)).to(dtype)

    def __call__(self, x_t: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        state = self.same * state + self.across * state.flip(-1) + self.unit * x_t[..., None, None]
        return (self.w * state).sum((-1, -2)), state


class LowRankStepper(Stepper):
    """x ← 2 (e x − U Vᵀ x) − x + B̄ u, y = C x; see `ops.dplr`."""

    def __init__(self, layer: WaveSSM, rate: float, dtype: torch.dtype) -> None:
        low_rank = layer._low_rank()
        system = dplr.sample(low_rank, rate)
        e, U, V, c = dplr.resolvent_of(low_rank, rate)
        first, second = e.unbind(-1)
        same = 2 * torch.stack([first, c * first + (1 - c) * second], -1) - 1
        across = 2 * torch.stack([-c * second, c * second], -1)
        self.same, self.across = same.to(dtype), across.to(dtype)
        self.U, self.V = (2 * U).to(dtype), V.to(dtype)  # (d_model, R, rank)
        self.B, self.C = system.B.to(dtype), system.C[0].to(dtype)

    def __call__(self, x_t: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        projected = torch.einsum("bhr,hrk->bhk", state.flatten(2), self.V)
        turned = (self.same * state + self.across * state.flip(-1)).flatten(2)
        after = turned - torch.einsum("bhk,hrk->bhr", projected, self.U) + self.B * x_t[..., None]
        return (self.C * after).sum(-1), after.unflatten(-1, (-1, 2))

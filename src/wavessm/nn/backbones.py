"""The backbone, (batch, length, d_model) → (batch, length, d_model): a stack of residual blocks of `WaveSSM`.

    z = norm(x)                                     pre-norm; post-norm normalises after the addition instead
    z = dropout(GLU(Linear(dropout(GELU(dropout(ssm(z)))))))
    y = x + z

Causal blocks stream in chunks of any size, in eval mode with batch norm too. Padding has no effect, and lengths stay on
their device. Read next: `heads.py`.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from wavessm.errors import OptionError, unknown_name
from wavessm.nn.config import NORMS, ModelConfig
from wavessm.nn.layer import State, WaveSSM, time_mask
from wavessm.ops import Engine, activate, gate, in_bfloat16, normalize

States = tuple[State, ...]
"""One state per layer, batch on axis 0."""
_ENGINE = Engine()


class TiedDropout(nn.Module):
    """Dropout with probability p whose mask has one number per case and feature, constant over time."""

    generator: torch.Generator | None = None
    """Where masks are drawn from; None is torch's global generator."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """Apply the dropout to x (batch, length, d_model)."""
        factors = self.factors(x)
        return x if factors is None else x * factors.to(x.dtype)

    def factors(self, x: Tensor) -> Tensor | None:
        """Return what x is multiplied by, 0 or 1/(1 − p), shape (batch, 1, d_model); None if there is no dropout."""
        if not self.training or self.p == 0:
            return None
        dtype = torch.promote_types(x.dtype, torch.float32)  # 1/(1 − p) in bfloat16 would be off by up to 0.4 %
        ones = torch.ones(len(x), 1, x.shape[2], dtype=dtype, device=x.device)
        if self.generator is None:
            return F.dropout(ones, self.p)
        return ones.bernoulli_(1 - self.p, generator=self.generator).div_(1 - self.p)

    def extra_repr(self) -> str:
        return f"p={self.p}"


class SequenceNorm(nn.Module):
    """Layer norm over features, batch norm over batch and time without padding, or none, by kind."""

    def __init__(self, d_model: int, kind: str) -> None:
        super().__init__()
        if kind not in NORMS:
            raise unknown_name("norm", kind, NORMS)
        self.kind = kind
        self.norm = {"layer": nn.LayerNorm, "batch": nn.BatchNorm1d, "none": nn.Identity}[kind](d_model)

    def forward(self, x: Tensor, mask: Tensor | None = None, engine: Engine = _ENGINE, first: bool = False) -> Tensor:
        """Normalise x (batch, length, d_model); samples outside the mask (batch, length, 1) have no influence. With
        `first`, the result may lie channels first in memory."""
        return x if self.kind == "none" else normalize(x, cast(nn.LayerNorm, self.norm), mask, engine, first)


class ResidualBlock(nn.Module):
    """A `WaveSSM` with norm, gated projection and a residual path.

    Args:
        layer: The sequence layer inside.
        norm: "layer", "batch" or "none".
        prenorm: Normalise before the layer, or after the addition; has no effect and must be True for norm="none".
        dropout: Probability of the tied dropout.

    Example:
        >>> block = ResidualBlock(WaveSSM(8, 16), norm="batch").eval()
        >>> x = torch.randn(2, 30, 8)
        >>> state, outputs = block.initial_state(2), []
        >>> for x_t in x.unbind(1):
        ...     y_t, state = block.step(x_t, state)
        ...     outputs.append(y_t)
        >>> torch.allclose(torch.stack(outputs, 1), block(x), atol=1e-5)
        True
    """

    def __init__(self, layer: WaveSSM, norm: str = "layer", prenorm: bool = True, dropout: float = 0.0) -> None:
        super().__init__()
        if norm == "none" and not prenorm:
            raise OptionError("ResidualBlock: prenorm=False goes with norm='layer' or 'batch'; leave it out.")
        self.layer, self.prenorm = layer, prenorm
        self.norm = SequenceNorm(layer.d_model, norm)
        self.project = nn.Linear(layer.d_model, 2 * layer.d_model)
        self.dropout = TiedDropout(dropout)

    def forward(
        self,
        x: Tensor,  # (batch, length, d_model)
        state: State | None = None,
        return_state: bool = False,
        rate: float = 1.0,
        lengths: Tensor | None = None,  # (batch,)
        tail: int | None = None,
        times: Tensor | None = None,  # (batch, length)
        observed: Tensor | None = None,  # (batch, length)
    ) -> Tensor | tuple[Tensor, State]:
        """Process sequences as `WaveSSM.forward` does; with `tail` (and no lengths), return only the last steps.

        With `observed`, which goes with times, the layer skips samples where it is False. Under autocast to bfloat16
        the output is bfloat16 where precision is "bf16" and the kernels run.
        """
        mask = None if lengths is None else time_mask(lengths, x.shape[1]).to(x.device)
        engine = self.layer.engine
        x = in_bfloat16(x, engine)
        z = self.norm(x, mask, engine, first=self.layer.bidirectional) if self.prenorm else x
        z = z if observed is None else z.masked_fill(~observed[..., None], torch.nan)
        out = self.layer(z, state=state, return_state=return_state, rate=rate, lengths=lengths, times=times)
        z, after = cast(tuple[Tensor, Tensor], out) if return_state else (cast(Tensor, out), None)
        if tail is not None:  # after the layer steps are independent
            z = z.transpose(1, 2)[..., -tail:].contiguous().transpose(1, 2)  # channels first, as the layer returns it
            x = x[:, -tail:]
        z = activate(z, self.dropout.factors(z), self.dropout.factors(z), engine)
        y = gate(z, self.project, self.dropout.factors(z), x, engine)
        y = y if self.prenorm else self.norm(y, mask, engine)
        return (y, after) if after is not None else y

    def step(self, x_t: Tensor, state: State, rate: float = 1.0) -> tuple[Tensor, State]:
        """Process one sample (batch, d_model); returns y (batch, d_model) and the next state."""
        if self.training and self.norm.kind == "batch":
            raise OptionError("ResidualBlock.step: batch norm in training needs whole sequences; call model.eval().")
        y, state = self.forward(x_t[:, None], state=state, return_state=True, rate=rate)
        return y[:, 0], state

    def initial_state(self, batch: int) -> Tensor:
        """Return the zero state of the layer."""
        return cast(Tensor, self.layer.initial_state(batch))


class Stack(nn.Module):
    """Residual blocks one after another, and one more norm where they are pre-norm."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(self._block(config, first=index == 0) for index in range(config.n_layers))
        self.norm = SequenceNorm(config.d_model, config.norm) if config.prenorm else None
        self.kind, self.engine = config.norm, Engine(config.backend, config.precision)

    @staticmethod
    def _block(config: ModelConfig, first: bool) -> ResidualBlock:
        names = ("d_state", "family", "measure", "structure", "bidirectional", "backend", "precision", "b_init")
        layer = WaveSSM(
            config.d_model,
            **{name: getattr(config, name) for name in names},
            dt_min=(first and config.dt_min_first) or config.dt_min,
            dt_max=(first and config.dt_max_first) or config.dt_max,
            n_ssm=config.d_model if config.n_ssm is None else config.n_ssm,
        )
        return ResidualBlock(layer, norm=config.norm, prenorm=config.prenorm, dropout=config.dropout)

    def forward(
        self,
        h: Tensor,  # (batch, length, d_model)
        lengths: Tensor | None = None,  # (batch,)
        rate: float = 1.0,
        tail: int | None = None,
        times: Tensor | None = None,  # (batch, length)
        observed: Tensor | None = None,  # (batch, length)
    ) -> Tensor:
        """Process whole sequences as `ResidualBlock` does; returns all steps, or only the last `tail` of them."""
        *before, last = self.blocks
        options = {"rate": rate, "lengths": lengths, "times": times, "observed": observed}
        for block in before:
            h = block(h, **options)
        h = last(h, **options, tail=tail if lengths is None and self.kind != "batch" else None)
        if self.norm is None:
            return h
        return self.norm(h, None if lengths is None else time_mask(lengths, h.shape[1]), self.engine)

    def initial_state(self, batch: int) -> States:
        """Return the states before the first sample."""
        return tuple(cast(ResidualBlock, block).initial_state(batch) for block in self.blocks)

    def stream(
        self, h: Tensor, states: States, rate: float = 1.0, times: Tensor | None = None, observed: Tensor | None = None
    ) -> tuple[Tensor, States]:
        """Process a chunk (batch, length, d_model) from the states; returns outputs and the states after it."""
        after = []
        for block, state in zip(self.blocks, states, strict=True):
            h, state = block(h, state=state, return_state=True, rate=rate, times=times, observed=observed)
            after.append(state)
        return (h if self.norm is None else self.norm(h, None, self.engine)), tuple(after)

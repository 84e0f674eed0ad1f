"""The residual block that models stack.

    z = norm(x)                                     pre-norm; post-norm normalises after the addition instead
    z = dropout(GLU(Linear(dropout(GELU(dropout(ssm(z)))))))
    y = x + z

All of it streams: a causal block takes a state, chunks of any size and single steps, in eval mode with batch norm too.
Read next: `config.py`, `encoders.py`, `backbones.py`.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from wavessm.errors import OptionError, unknown_name
from wavessm.nn.config import NORMS
from wavessm.nn.layer import WaveSSM, time_mask
from wavessm.ops import Engine, activate, batch_norm, gate, layer_norm


class TiedDropout(nn.Module):
    """Dropout whose mask has one number per case and feature, constant over time.

    Args:
        p: Probability of zero.
    """

    generator: torch.Generator | None = None
    """Where masks are drawn from; None is torch's global generator."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """Apply the dropout to x (batch, length, d_model)."""
        factors = self.factors(x)
        return x if factors is None else x * factors

    def factors(self, x: Tensor) -> Tensor | None:
        """Return what x is multiplied by, 0 or 1/(1 − p), shape (batch, 1, d_model); None if there is no dropout."""
        if not self.training or self.p == 0:
            return None
        ones = torch.ones(len(x), 1, x.shape[2], dtype=x.dtype, device=x.device)
        if self.generator is None:
            return F.dropout(ones, self.p)
        return ones.bernoulli_(1 - self.p, generator=self.generator).div_(1 - self.p)

    def extra_repr(self) -> str:
        return f"p={self.p}"


class SequenceNorm(nn.Module):
    """Layer norm over features, batch norm over batch and time without padding, or none.

    Args:
        d_model: Features.
        kind: "layer", "batch" or "none".
    """

    def __init__(self, d_model: int, kind: str) -> None:
        super().__init__()
        if kind not in NORMS:
            raise unknown_name("norm", kind, NORMS)
        self.kind = kind
        self.norm = {"layer": nn.LayerNorm, "batch": nn.BatchNorm1d, "none": nn.Identity}[kind](d_model)

    def forward(
        self,
        x: Tensor,  # (batch, length, d_model)
        mask: Tensor | None = None,  # (batch, length, 1)
        engine: Engine = Engine(),  # noqa: B008  (immutable)
    ) -> Tensor:
        """Normalise x; samples outside the mask have no influence."""
        if self.kind == "none":
            return x
        if self.kind == "layer":
            return layer_norm(x, cast(nn.LayerNorm, self.norm), engine)
        norm = cast(nn.BatchNorm1d, self.norm)
        if self.training and (y := batch_norm(x, norm, mask, engine)) is not None:
            return y
        if mask is None or not self.training:
            return norm(x.flatten(0, 1)).view_as(x)
        return masked_batch_norm(x, mask, norm)


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
            step = cast(float, norm.momentum)
            norm.running_mean.lerp_(mean.to(norm.running_mean.dtype), step)
            unbiased = variance * (count / (count - 1).clamp(min=1))
            norm.running_var.lerp_(unbiased.to(norm.running_var.dtype), step)
    return ((centred * torch.rsqrt(variance + norm.eps) * norm.weight + norm.bias) * weight).to(dtype)


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
        state: Tensor | None = None,
        return_state: bool = False,
        rate: float = 1.0,
        lengths: Tensor | None = None,  # (batch,)
        tail: int | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Process sequences as `WaveSSM.forward` does; with `tail`, return only the last `tail` steps."""
        if tail is not None and (lengths is not None or not 1 <= tail <= x.shape[1]):
            raise OptionError(f"ResidualBlock: tail is {tail}, expected 1 to {x.shape[1]}, without lengths.")
        mask = None if lengths is None else time_mask(lengths, x.shape[1]).to(x.device)
        engine = self.layer.engine
        z = self.norm(x, mask, engine) if self.prenorm else x
        out = self.layer(z, state=state, return_state=return_state, rate=rate, lengths=lengths)
        z, after = cast(tuple[Tensor, Tensor], out) if return_state else (cast(Tensor, out), None)
        if tail is not None:  # after the layer steps are independent
            z = z.transpose(1, 2)[..., -tail:].contiguous().transpose(1, 2)  # channels first, as the layer returns it
            x = x[:, -tail:]
        z = activate(z, self.dropout.factors(z), self.dropout.factors(z), engine)
        y = gate(z, self.project, self.dropout.factors(z), x, engine)
        y = y if self.prenorm else self.norm(y, mask, engine)
        return (y, after) if after is not None else y

    def step(self, x_t: Tensor, state: Tensor, rate: float = 1.0) -> tuple[Tensor, Tensor]:
        """Process one sample (batch, d_model); returns y (batch, d_model) and the next state."""
        if self.training and self.norm.kind == "batch":
            raise OptionError("ResidualBlock.step: batch norm in training needs whole sequences; call model.eval().")
        y, state = self.forward(x_t[:, None], state=state, return_state=True, rate=rate)
        return y[:, 0], state

    def initial_state(self, batch: int) -> Tensor:
        """As in `WaveSSM`."""
        return self.layer.initial_state(batch)

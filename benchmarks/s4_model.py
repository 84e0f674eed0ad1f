"""The models of the tables built from official S4 blocks, of a checkout of state-spaces/s4 given by path."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Size:
    """A model and its batches."""

    batch: int = 64
    d_model: int = 256
    n_layers: int = 6
    d_state: int = 64
    bidirectional: bool = True
    norm: str = "batch"
    d_input: int = 12
    d_output: int = 5
    last: int = 0  # steps at the end that are read out; 0 takes the mean of all


class ChannelNorm(nn.LayerNorm):
    """Layer norm of (batch, channels, length)."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.transpose(1, 2)).transpose(1, 2)


NORMS: dict[str, Callable[[int], nn.Module]] = {
    "batch": nn.BatchNorm1d,
    "layer": ChannelNorm,
    "none": lambda d_model: nn.Identity(),
}


class S4Model(nn.Module):
    """Encoder, pre-norm residual S4 blocks, norm, mean over time or the last steps, decoder; channels first."""

    def __init__(self, block: Callable[[], nn.Module], size: Size) -> None:
        super().__init__()
        self.last = size.last
        self.encoder, self.decoder = nn.Linear(size.d_input, size.d_model), nn.Linear(size.d_model, size.d_output)
        self.blocks = nn.ModuleList(block() for _ in range(size.n_layers))
        self.norms = nn.ModuleList(NORMS[size.norm](size.d_model) for _ in range(size.n_layers + 1))

    def forward(self, x: Tensor) -> Tensor:  # (batch, length, d_input)
        x = self.encoder(x).transpose(1, 2)
        for norm, block in zip(self.norms, self.blocks, strict=False):
            x = x + block(norm(x))[0]
        x = self.norms[-1](x)
        return self.decoder(x[..., -self.last :].transpose(1, 2) if self.last else x.mean(-1))


def s4_step(checkout: Path, size: Size, length: int, device: torch.device, dropout: float = 0.1) -> Callable[[], Any]:
    """A call that does one training step, forward to optimiser, on random cases."""
    for folder in (checkout / "extensions" / "kernels", checkout):
        if str(folder) not in sys.path:
            sys.path.insert(0, str(folder))
    from models.s4.s4 import S4Block

    def block() -> nn.Module:
        return S4Block(
            size.d_model, bidirectional=size.bidirectional, transposed=True, dropout=dropout, tie_dropout=True,
            mode="dplr", init="legs", d_state=size.d_state,
        )  # fmt: skip

    model = S4Model(block, size).to(device)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=device.type == "cuda")
    x = torch.randn(size.batch, length, size.d_input, device=device)
    y = torch.rand_like(model(x[:1])).round().expand(size.batch, *[-1] * (2 if size.last else 1)).clone()
    loss = F.mse_loss if size.last else F.binary_cross_entropy_with_logits

    def step() -> None:
        loss(model(x), y).backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)

    return step

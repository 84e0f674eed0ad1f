"""What the benchmarks compare with: official S4 blocks of a checkout of state-spaces/s4, attention, LSTMs, Mamba-2."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Block(nn.Module):
    """A sequence layer with GELU and a gated projection behind it, as in our residual block."""

    def __init__(self, layer: nn.Module, d_model: int) -> None:
        super().__init__()
        self.layer, self.project = layer, nn.Linear(d_model, 2 * d_model)

    def forward(self, x: Tensor) -> Tensor:
        return F.glu(self.project(F.gelu(self.layer(x))), dim=-1)


class Attention(nn.Module):
    """Attention with heads of 64 features, by PyTorch's fused `scaled_dot_product_attention`."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.heads = max(1, d_model // 64)
        self.inputs, self.output = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.inputs(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return self.output(F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2))


class InBfloat16(nn.Module):
    """A block under autocast to bfloat16, which the fused kernels of attention need."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, torch.bfloat16):
            return self.inner(x).float()


class FirstOutput(nn.Module):
    """A layer that returns (output, state), without the state: LSTMs and S4 blocks."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)[0]


def official_s4(checkout: Path) -> Any:
    """The module `models.s4.s4` of a checkout; its CUDA extension is used if it was built there."""
    for folder in (checkout / "extensions" / "kernels", checkout):
        if str(folder) not in sys.path:
            sys.path.insert(0, str(folder))
    from models.s4 import s4

    return s4


class S4Model(nn.Module):
    """Encoder, pre-norm residual S4 blocks with batch norm, mean over time, decoder; channels first inside."""

    def __init__(self, blocks: list[nn.Module], d_model: int, d_input: int, d_output: int) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(d_input, d_model), nn.Linear(d_model, d_output)
        self.blocks = nn.ModuleList(blocks)
        self.norms = nn.ModuleList(nn.BatchNorm1d(d_model) for _ in range(len(blocks) + 1))

    def forward(self, x: Tensor) -> Tensor:  # (batch, length, d_input)
        x = self.encoder(x).transpose(1, 2)
        for norm, block in zip(self.norms, self.blocks, strict=False):
            x = x + block(norm(x))[0]
        return self.decoder(self.norms[-1](x).mean(-1))


def s4_step(checkout: Path, size: dict[str, int], shape: tuple[int, int, int], device: torch.device) -> Callable:
    """One training step of an `S4Model`, forward to optimiser, on random cases with several labels.

    size   d_model, d_state, n_layers and batch;  shape  (length, inputs, labels)
    """
    s4, (length, d_input, d_output) = official_s4(checkout), shape
    options = {"bidirectional": True, "transposed": True, "dropout": 0.1, "tie_dropout": True, "mode": "dplr"}
    blocks = [
        s4.S4Block(size["d_model"], init="legs", d_state=size["d_state"], **options) for _ in range(size["n_layers"])
    ]
    model = S4Model(blocks, size["d_model"], d_input, d_output).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=device.type == "cuda")
    x = torch.randn(size["batch"], length, d_input, device=device)
    y = torch.rand(size["batch"], d_output, device=device).round()

    def step() -> None:
        F.binary_cross_entropy_with_logits(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step

"""`WaveSSM` inside your own Lightning module, on one device or on several with DDP.

    python examples/own_lightning.py                    # one process
    python examples/own_lightning.py --processes 2      # DDP on two CPU processes; on GPUs, devices="auto"

The layer is an `nn.Module` like any other; `ws.param_groups` gives its dynamics a learning rate of their own.
"""

from __future__ import annotations

import argparse
import logging

import lightning
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import wavessm as ws


class Delay(lightning.LightningModule):
    """Learns to repeat its input some steps later."""

    def __init__(self, d_model: int = 16) -> None:
        super().__init__()
        self.encode = nn.Linear(1, d_model)
        self.block = ws.ResidualBlock(ws.WaveSSM(d_model, d_state=32, dt_min=0.01, dt_max=0.1))
        self.decode = nn.Linear(d_model, 1)
        self.last = float("nan")

    def forward(self, x: Tensor) -> Tensor:  # (batch, length, 1) → the same
        return self.decode(self.block(self.encode(x)))

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        x, y = batch
        loss = nn.functional.mse_loss(self(x), y)
        self.last = loss.item()
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(ws.param_groups(self, lr=0.01, weight_decay=0.01))


def loader(cases: int = 128, length: int = 64, delay: int = 5) -> DataLoader:
    x = torch.randn(cases, length, 1, generator=torch.Generator().manual_seed(0)).cumsum(1) / 8
    y = torch.cat([torch.zeros(cases, delay, 1), x[:, :-delay]], dim=1)
    return DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)


def main(processes: int = 1, epochs: int = 8) -> float:
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    lightning.seed_everything(0, verbose=False)
    model = Delay()
    trainer = lightning.Trainer(
        accelerator="cpu", devices=processes, strategy="ddp" if processes > 1 else "auto", max_epochs=epochs,
        logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(model, loader())
    if trainer.is_global_zero:
        print(f"loss after {epochs} epochs on {processes} process(es): {model.last:.4f}")
    return model.last


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=1)
    main(parser.parse_args().processes)

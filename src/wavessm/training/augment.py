"""Augmentation: random changes of training batches on their device, each an option of `TrainConfig`, off by default.

They are a function of seed, step and process alone, so a resumed run draws what an uninterrupted one would have drawn.
Missing samples stay missing and padding stays zero. Crops are sources of their own (`data/crops.py`).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from wavessm.data.source import Batch, DataInfo
from wavessm.errors import OptionError
from wavessm.training.config import AUGMENTATIONS, TrainConfig

N_RATES = 9
"""Rates of a time warp; few, since each is a CUDA graph of its own where steps are captured."""


def augment(batch: Batch, config: TrainConfig, step: int, rank: int = 0) -> Batch:
    """Return a training batch, x (batch, length, channels), with the random changes that the config asks for at this
    step of the training in the process `rank`; without any, the batch itself."""
    if not any(getattr(config, name) for name in AUGMENTATIONS):
        return batch
    x, device = batch.x, batch.x.device
    few = np.random.default_rng((config.seed, step, rank))  # numbers of the whole batch
    generator = torch.Generator(device).manual_seed(int(few.integers(2**62)))
    if config.mixup:
        partner = torch.randperm(len(x), generator=generator, device=device)
        share = torch.full((), few.beta(config.mixup, config.mixup), device=device, dtype=x.dtype)
        x = torch.lerp(x[partner], x, share)
        longest = None if batch.lengths is None else torch.maximum(batch.lengths, batch.lengths[partner])
        batch = batch._replace(partner=partner, share=share, lengths=longest)
    if config.amplitude:
        factor = torch.rand(len(x), 1, 1, generator=generator, device=device, dtype=x.dtype) * 2 - 1
        x = x * (1 + config.amplitude) ** factor
    if config.jitter:
        noise = torch.randn(x.shape, generator=generator, device=device, dtype=x.dtype)
        if batch.lengths is not None:
            steps = torch.arange(x.shape[1], device=device)
            noise = noise.masked_fill_((steps >= batch.lengths[:, None])[..., None], 0)
        x = x + config.jitter * noise
    if config.channel_dropout:
        chance = torch.rand(len(x), 1, x.shape[2], generator=generator, device=device)
        kept = (chance >= config.channel_dropout) | (chance == chance.amax(2, keepdim=True))  # one stays in any case
        x = x * kept  # NaN stays NaN
    if config.time_warp:
        batch = batch._replace(rate=float((1 + config.time_warp) ** few.choice(np.linspace(-1, 1, N_RATES))))
    return batch._replace(x=x)


def mixed_loss(loss: Callable[[Tensor, Tensor, Tensor | None], Tensor], output: Tensor, batch: Batch) -> Tensor:
    """Return loss(output, y, weight); of cases that were mixed, that of both targets by their shares.

    For cross-entropy this is the loss of mixed targets, for squared errors it has the same gradient.
    """
    own = loss(output, batch.y, batch.weight)
    if batch.partner is None or batch.share is None:
        return own
    weight = None if batch.weight is None else batch.weight[batch.partner]
    return torch.lerp(loss(output, batch.y[batch.partner], weight), own, batch.share)


def check_augmentation(config: TrainConfig, info: DataInfo) -> None:
    """Refuse changes that such data do not survive."""
    targets = "does not fit forecasts, whose targets would have to change too"
    for names, refused, what in (
        (AUGMENTATIONS, info.symbols, "does not fit tokens"),
        (("amplitude", "time_warp", "mixup"), info.kind == "forecast", targets),
        (("mixup",), info.timed, "does not fit samples with times of their own"),
        (("time_warp", "mixup"), config.objective != "labels", "is for training with labels only, not pretraining"),
    ):
        for name in names if refused else ():
            if getattr(config, name):
                raise OptionError(f"--{name.replace('_', '-')} {what}; leave it out.")

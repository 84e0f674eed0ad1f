"""Pretraining without labels, through the one loop: a wrapper around a model whose output is the loss.

    cpc      the output of a causal model at the end of a patch tells the latents of the patches that come from those
             of other times and cases (InfoNCE; van den Oord et al. 2018)
    masked   random patches of the signal are zero, and predicted from the rest

A ridge on pooled outputs of the backbone against the labels, where there are some, follows the progress: the linear
probe. Labels are used for nothing else. `finetune.py` takes the result.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from wavessm.data.source import DataSet, Source
from wavessm.errors import OptionError
from wavessm.features.ridge import fit_ridge
from wavessm.nn.encoders import masked_mean
from wavessm.nn.model import SequenceModel
from wavessm.ops.modes import exact
from wavessm.training import metrics
from wavessm.training.batches import EvalBatches
from wavessm.training.config import TrainConfig
from wavessm.training.distributed import DistInfo
from wavessm.training.loop import Objective

ANCHORS = 512
"""Pairs of a time and its future that a step of cpc compares, drawn from batch and time, for each distance."""
TEMPERATURE = 0.1
PROBE_CASES = 4000
"""Training cases that the linear probe is fitted to, at most."""


class Pretrainer(nn.Module):
    """A model, whose head is left alone, and the layers of its pretraining; a call returns the loss ()."""

    def __init__(self, model: SequenceModel, config: TrainConfig) -> None:
        super().__init__()
        self.model, self.objective, self.patch = model, config.objective, config.patch
        self.ahead, self.mask_share, d = config.ahead, config.mask_share, model.config.d_model
        model.head.requires_grad_(False)
        if self.objective == "masked":
            if model.config.encoder == "embedding":
                raise OptionError("masked pretraining predicts signals, these are tokens; use --objective cpc.")
            self.reconstruct = nn.Linear(d, model.config.d_input)
            return
        if model.config.bidirectional:
            raise OptionError("cpc needs a causal model; use --no-bidirectional, or --objective masked.")
        self.latent = nn.Sequential(nn.Conv1d(d, d, self.patch, self.patch), nn.GELU(), nn.Conv1d(d, d, 1))
        self.predict = nn.ModuleList(nn.Linear(d, d) for _ in range(self.ahead))

    def forward(self, x: Tensor, lengths: Tensor | None = None, marks: Tensor | None = None) -> Tensor:
        """Return the loss of a batch; arguments as in `SequenceModel.forward`, of which marks may be longer."""
        if x.dim() == (3 if self.model.config.encoder == "embedding" else 4):  # pairs
            x, lengths = x.flatten(0, 1), None if lengths is None else lengths.flatten()
        marks = None if marks is None else marks[:, : x.shape[1]]
        return self._masked(x, lengths, marks) if self.objective == "masked" else self._cpc(x, lengths, marks)

    def _masked(self, x: Tensor, lengths: Tensor | None, marks: Tensor | None) -> Tensor:
        patches = -(-x.shape[1] // self.patch)
        hidden = torch.rand(len(x), patches, device=x.device) < self.mask_share
        hidden = hidden.repeat_interleave(self.patch, 1)[:, : x.shape[1], None]
        _, h = self.model.features(x.masked_fill(hidden, 0.0), lengths, marks)
        scored = hidden & ~x.isnan()
        if lengths is not None:
            scored = scored & (torch.arange(x.shape[1], device=x.device)[:, None] < lengths[:, None, None])
        error = (self.reconstruct(h).float() - x.nan_to_num()).square().masked_fill(~scored, 0.0)
        return error.sum() / scored.sum().clamp(min=1)

    def _cpc(self, x: Tensor, lengths: Tensor | None, marks: Tensor | None) -> Tensor:
        z, h = self.model.features(x, lengths, marks)
        if (count := x.shape[1] // self.patch) < 2:
            raise OptionError(f"cpc: {x.shape[1]} samples hold fewer than two patches of {self.patch}; lower --patch.")
        z = self.latent(z.transpose(1, 2)).transpose(1, 2)  # (batch, patches, d)
        h = h[:, self.patch - 1 :: self.patch][:, :count]  # what is known at the end of each patch
        patches = x.new_full((len(x),), count) if lengths is None else lengths // self.patch
        case = torch.randint(len(x), (ANCHORS,), device=x.device)
        total, weight = torch.zeros(2, device=h.device)  # float32 whatever the model returns: counts are exact
        for k, predict in enumerate(self.predict, start=1):
            room = (patches[case] - k).long()
            at = (torch.rand(ANCHORS, device=x.device) * room).long().clamp(min=0)
            there = (at + k).clamp(max=count - 1)
            one, other = predict(h[case, at]), z[case, there]
            logits = F.normalize(one.float(), dim=-1) @ F.normalize(other.float(), dim=-1).T / TEMPERATURE
            same = (case[:, None] == case) & (there[:, None] == there)
            same = same & ~torch.eye(ANCHORS, dtype=torch.bool, device=x.device)  # one patch drawn twice is no negative
            logits = logits.masked_fill(same | (room <= 0), float("-inf")).diagonal_scatter(logits.diagonal())
            each = F.cross_entropy(logits, torch.arange(ANCHORS, device=x.device), reduction="none")
            total, weight = total + (each * (room > 0)).sum(), weight + (room > 0).sum()
        return total / weight.clamp(min=1)


def pretrain_objective(
    network: Pretrainer, data: DataSet, train: Source, config: TrainConfig, dist: DistInfo
) -> Objective:
    """Return what the loop trains for; `train` may hold crops of the cases in `data`, to which the probe is fitted."""

    def loss(model: Any, batch: Any) -> Tensor:
        return model(batch.x, lengths=batch.lengths, marks=batch.marks)

    def validate() -> dict[str, float]:
        device = next(network.parameters()).device
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(0)
            batches = EvalBatches(data.val, config.eval_batch_size, dist)
            rows = [exact(loss(network, batch)).expand(len(batch.x), 1) for batch in batches]
        mean = float(dist.rows(torch.cat(rows)[: batches.cases]).mean())
        return {"loss": mean, **linear_probe(network.model, data, data.val, config.eval_batch_size)}

    return Objective(train, loss, validate)


@torch.no_grad()
def linear_probe(model: SequenceModel, data: DataSet, split: Source, batch_size: int) -> dict[str, float]:
    """Score a ridge from pooled outputs of the backbone to the labels on a split: probe_accuracy, probe_auroc, …

    It is fitted to the training split, `PROBE_CASES` of it at most. Forecasts, steps, pairs and generated tasks have no
    score. The model is in evaluation mode.
    """
    kind, info = data.info.kind, data.info
    if kind in ("forecast", "steps") or data.train.draws:
        return {}
    step = max(1, len(data.train) // PROBE_CASES)
    index = torch.arange(0, len(data.train), step, device=data.train.device)[:PROBE_CASES]
    known = list(_pooled(model, data.train, index, batch_size))
    if not known or known[0][0].dim() != 2:
        return {}
    features, y = torch.cat([h for h, _ in known]).float(), torch.cat([target for _, target in known])
    targets = F.one_hot(y, info.d_output) if kind == "multiclass" else y
    fitted = fit_ridge(features, targets.float().flatten(1))
    every = torch.arange(len(split), device=split.device)
    rows = [metrics.rows(kind, fitted(h.float()), y) for h, y in _pooled(model, split, every, batch_size)]
    scores = metrics.summarise(kind, torch.cat(rows).cpu().numpy())
    return {f"probe_{name}": value for name, value in scores.items()}


def _pooled(model: SequenceModel, source: Source, index: Tensor, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Outputs of the backbone averaged over time (batch, d_model), and targets, batch by batch."""
    for part in source.split(index, batch_size):
        batch = source.take(part)
        if batch.x.dim() > (2 if model.config.encoder == "embedding" else 3):
            return
        yield masked_mean(model.features(batch.x, batch.lengths, batch.marks)[1], batch.lengths), batch.y

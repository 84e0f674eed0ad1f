"""Probabilities from the scores of a ridge: logistic curves fitted to scores that each case got without itself."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

PRIOR = 1e-2
"""Penalty on the logarithm of the slopes and on the offsets: few cases keep the curves plain."""


@dataclass
class Calibration:
    """Slope and offset of each output. kind: "multiclass" (softmax) or "multilabel" (a sigmoid each)."""

    kind: str
    slope: Tensor  # () or (outputs,)
    offset: Tensor  # (outputs,)

    def logits(self, scores: Tensor) -> Tensor:
        """Calibrated logits (cases, outputs)."""
        return scores * self.slope + self.offset

    def probabilities(self, scores: Tensor) -> Tensor:
        """Probabilities (cases, outputs)."""
        logits = self.logits(scores)
        return logits.softmax(1) if self.kind == "multiclass" else logits.sigmoid()


def calibrate(kind: str, scores: Tensor, targets: Tensor, weights: Tensor | None = None) -> Calibration:
    """Fit slopes and offsets by maximum likelihood.

    Args:
        kind: "multiclass" has one slope for all classes, "multilabel" one for each label.
        scores: (cases, outputs), of each case without itself.
        targets: (cases,) classes, or (cases, labels) of 0 and 1.
        weights: (cases,) or None.
    """
    scores = scores.double()
    outputs = scores.shape[1]
    log_slope = torch.zeros(outputs if kind == "multilabel" else (), dtype=torch.float64, device=scores.device)
    parameters = [(log_slope + 1.0).requires_grad_(), torch.zeros(outputs, dtype=torch.float64, device=scores.device)]
    parameters[1].requires_grad_()
    optimiser = torch.optim.LBFGS(parameters, max_iter=100, line_search_fn="strong_wolfe")
    w = torch.ones(len(scores), device=scores.device) if weights is None else weights.to(scores.device)

    def loss() -> Tensor:
        optimiser.zero_grad()
        slope, offset = parameters
        logits = scores * slope.exp() + offset
        if kind == "multiclass":
            each = F.cross_entropy(logits, targets, reduction="none")
        else:
            each = F.binary_cross_entropy_with_logits(logits, targets.double(), reduction="none").mean(1)
        value = (w * each).sum() / w.sum()
        value = value + PRIOR * ((slope - 1.0).square().mean() + offset.square().mean())
        value.backward()
        return value

    with torch.enable_grad():
        optimiser.step(loss)
    return Calibration(kind, parameters[0].detach().exp().float(), parameters[1].detach().float())

"""Which samples contribute to a class: integrated gradients share a classifier's score among the samples of its input.

With F the logit of one output and x the standardised input, the share of a sample is x ∫₀¹ ∂F/∂x (a x) da. The shares
add up to F(x) − F(0), where zero is the mean of the training data (Sundararajan et al. 2017). Padding has no share.
"""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from wavessm.errors import OptionError, ShapeError, check_int, unknown_name
from wavessm.inspection.model import InspectedModel, load
from wavessm.nn.layer import time_mask, whole_lengths
from wavessm.nn.model import SequenceModel


class Saliency(NamedTuple):
    """Shares of the samples in the score of one output, case by case."""

    values: Tensor  # (cases, length, d_input); zero where padded
    target: Tensor  # (cases,) number of the output
    score: Tensor  # (cases,) its logit F(x)
    baseline: Tensor  # (cases,) F(0)
    lengths: Tensor  # (cases,)

    @property
    def gap(self) -> Tensor:
        """|Σ shares − (F(x) − F(0))|, the error of the quadrature. (cases,)"""
        return (self.values.sum((1, 2)) - (self.score - self.baseline)).abs()


def saliency(source: Any, signals: Any, target: int | str | None = None, steps: int = 16) -> Saliency:
    """Share the score of a class among the samples of raw signals.

    Args:
        source: An `InspectedModel`, or what `load` takes.
        signals: Shape (cases, channels, time), or a list of (channels, time) of any lengths.
        target: Number or name of a class; None takes the predicted class of each case.
        steps: Points of the Gauss-Legendre rule along the path from zero to the signal.
    """
    inspected = source if isinstance(source, InspectedModel) else load(source)
    if isinstance(target, str):
        if target not in inspected.classes:
            raise unknown_name("class", target, inspected.classes)
        target = inspected.classes.index(target)
    x, lengths = inspected.standardise(signals)
    return attribute(inspected.model, x, lengths, target, steps)


def attribute(
    model: SequenceModel,
    x: Tensor,  # (cases, length, d_input)
    lengths: Tensor | None = None,  # (cases,)
    target: int | None = None,
    steps: int = 16,
) -> Saliency:
    """As `saliency`, for a model and its own input; the model is left as it was.

    >>> from wavessm.nn.presets import create_model
    >>> model = create_model("wavessm-small", d_input=2, d_output=3).eval()
    >>> shares = attribute(model, torch.randn(4, 60, 2))
    >>> shares.values.shape, bool(shares.gap.max() < 1e-3)
    (torch.Size([4, 60, 2]), True)
    """
    config = model.config
    if config.head not in ("pool", "last") or config.encoder == "calendar":
        raise OptionError(f"saliency: the head is {config.head!r}, expected a classifier: 'pool' or 'last'.")
    if not isinstance(x, Tensor) or not x.is_floating_point() or x.dim() != 3:
        raise ShapeError("saliency: expected real signals (cases, length, d_input); tokens cannot be made smaller.")
    if target is not None and not 0 <= check_int(target, "target", minimum=0) < config.d_output:
        raise OptionError(f"saliency: target is {target}, expected 0 to {config.d_output - 1}.")
    points, weights = np.polynomial.legendre.leggauss(check_int(steps, "saliency: steps", minimum=1))
    ends = whole_lengths(torch.full((len(x),), x.shape[1]) if lengths is None else lengths, x, "saliency")
    model, x = (
        copy.deepcopy(model).eval().requires_grad_(False),
        x.detach().masked_fill(~time_mask(ends, x.shape[1]), 0),
    )
    logits = model(x, ends)
    chosen = logits.argmax(1) if target is None else logits.new_full((len(x),), target, dtype=torch.long)

    def score(x: Tensor) -> Tensor:  # (cases, length, d_input) → (cases,)
        return model(x, ends).gather(1, chosen[:, None])[:, 0]

    slope = torch.zeros_like(x)
    for point, weight in zip((points + 1) / 2, weights / 2, strict=True):
        at = (float(point) * x).requires_grad_()
        slope += float(weight) * torch.autograd.grad(score(at).sum(), at)[0]
    return Saliency(x * slope, chosen, score(x), score(torch.zeros_like(x)), ends)

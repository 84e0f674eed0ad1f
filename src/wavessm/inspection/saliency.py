"""Which samples contribute to a class: three ways to share a classifier's score among the samples of its input.

F is the logit of one output, x the input of the model, b a baseline (zero is the mean of the training data).

    gradient    x − b times ∂F/∂x: what a small change would do, to first order
    integrated  (x − b) ∫₀¹ ∂F/∂x (b + a (x − b)) da: the shares add up to F(x) − F(b) (Sundararajan et al. 2017)
    occlusion   F(x) − F(x with a window of b in place of the signal), shared evenly by the samples of each window

Padding has no share. Nothing is trained, and the model is left as it was.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from wavessm.errors import OptionError, ShapeError, check_int, unknown_name
from wavessm.inspection.model import InspectedModel, load
from wavessm.nn.layer import time_mask, whole_lengths
from wavessm.nn.model import SequenceModel

METHODS = ("integrated", "gradient", "occlusion")
STEPS = 16
"""Points of the Gauss-Legendre rule along the path from the baseline."""


class Saliency(NamedTuple):
    """Shares of the samples in the score of one output, case by case."""

    values: Tensor  # (cases, length, d_input); zero where padded
    target: Tensor  # (cases,) number of the output
    score: Tensor  # (cases,) its logit F(x)
    baseline: Tensor  # (cases,) F(b)
    lengths: Tensor  # (cases,)

    @property
    def gap(self) -> Tensor:
        """|Σ shares − (F(x) − F(b))|: zero but for the quadrature where method="integrated". (cases,)"""
        return (self.values.sum((1, 2)) - (self.score - self.baseline)).abs()


def saliency(
    source: Any,
    signals: Any,
    target: int | str | None = None,
    method: str = "integrated",
    steps: int | None = None,
    window: int | None = None,
) -> Saliency:
    """Share the score of a class among the samples of raw signals.

    Args:
        source: An `InspectedModel`, or what `load` takes.
        signals: Shape (cases, channels, time), or a list of (channels, time) of any lengths.
        target: Number or name of a class; None takes the predicted class of each case.
        method: "integrated", "gradient" or "occlusion".
        steps: Points along the path of "integrated", by default 16.
        window: Samples that "occlusion" hides, by default a twentieth of the signal.
    """
    inspected = source if isinstance(source, InspectedModel) else load(source)
    if isinstance(target, str):
        if target not in inspected.classes:
            raise unknown_name("class", target, inspected.classes)
        target = inspected.classes.index(target)
    x, lengths = inspected.standardise(signals)
    return attribute(inspected.model, x, lengths, target, method, steps, window)


def attribute(
    model: SequenceModel,
    x: Tensor,  # (cases, length, d_input)
    lengths: Tensor | None = None,  # (cases,)
    target: int | None = None,
    method: str = "integrated",
    steps: int | None = None,
    window: int | None = None,
) -> Saliency:
    """As `saliency`, for a model and its own input.

    >>> from wavessm.nn.presets import create_model
    >>> model = create_model("wavessm-small", d_input=2, d_output=3).eval()
    >>> shares = attribute(model, torch.randn(4, 60, 2))
    >>> shares.values.shape, bool(shares.gap.max() < 1e-3)
    (torch.Size([4, 60, 2]), True)
    """
    if method not in METHODS:
        raise unknown_name("method", method, METHODS)
    for name, value, owner in (("steps", steps, "integrated"), ("window", window, "occlusion")):
        if value is not None and check_int(value, f"saliency: {name}", minimum=1) and method != owner:
            raise OptionError(f"saliency: {name} goes with method={owner!r}, the method is {method!r}.")
    if model.config.head not in ("pool", "last") or model.config.encoder == "calendar":
        raise OptionError(f"saliency: the head is {model.config.head!r}, expected a classifier: 'pool' or 'last'.")
    if not isinstance(x, Tensor) or not x.is_floating_point() or x.dim() != 3:
        raise ShapeError("saliency: expected real signals (cases, length, d_input); tokens cannot be made smaller.")
    if target is not None and not 0 <= check_int(target, "target", minimum=0) < model.config.d_output:
        raise OptionError(f"saliency: target is {target}, expected 0 to {model.config.d_output - 1}.")
    was_training = {module: module.training for module in model.modules()}
    model.eval()
    try:
        return _attribute(model, x, lengths, target, method, steps or STEPS, window)
    finally:
        for module, training in was_training.items():
            module.training = training


@torch.no_grad()
def _attribute(model: SequenceModel, x: Tensor, lengths: Tensor | None, target: int | None, method: str, steps: int,
               window: int | None) -> Saliency:  # fmt: skip
    ends = whole_lengths(torch.full((len(x),), x.shape[1]) if lengths is None else lengths, x, "saliency")
    mask = time_mask(ends, x.shape[1])
    x = x.detach().masked_fill(~mask, 0)
    predicted = model(x, ends).argmax(1)
    chosen = predicted if target is None else torch.full_like(predicted, target)

    def score(x: Tensor) -> Tensor:  # (cases, length, d_input) → (cases,)
        return model(x, ends).gather(1, chosen[:, None])[:, 0]

    def gradient(x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            return torch.autograd.grad(score(x).sum(), x)[0]

    if method == "occlusion":
        values = _occlude(score, x, window)
    elif method == "gradient":
        values = x * gradient(x)
    else:
        points, weights = np.polynomial.legendre.leggauss(steps)
        values = torch.zeros_like(x)
        for point, weight in zip((points + 1) / 2, weights / 2, strict=True):
            values += float(weight) * gradient(float(point) * x)
        values *= x
    return Saliency(values.masked_fill(~mask, 0), chosen, score(x), score(torch.zeros_like(x)), ends)


def _occlude(score: Callable[[Tensor], Tensor], x: Tensor, window: int | None) -> Tensor:
    """Windows that overlap by half; a sample's share is the mean over the windows with it, all channels together."""
    length = x.shape[1]
    width = min(window or max(1, length // 20), length)
    full, values, count = score(x), torch.zeros_like(x), torch.zeros(length)
    for start in {*range(0, length - width + 1, max(1, width // 2)), length - width}:
        hidden = x.clone()
        hidden[:, start : start + width] = 0
        values[:, start : start + width] += (full - score(hidden))[:, None, None] / (width * x.shape[2])
        count[start : start + width] += 1
    return values / count[:, None]

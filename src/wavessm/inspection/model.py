"""The model that is inspected, what is known about its data, and which samples contribute to a class.

Integrated gradients share a classifier's score among the samples of its input. With F the logit of one output and x the
standardised input, the share of a sample is x ∫₀¹ ∂F/∂x (a x) da. The shares add up to F(x) − F(0), where zero is the
mean of the training data (Sundararajan et al. 2017). Padding has no share.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from wavessm.data.source import DataInfo
from wavessm.errors import DataError, OptionError, ShapeError, check_int, check_positive, real_array, shape_error
from wavessm.nn.layer import time_mask, whole_lengths
from wavessm.nn.model import SequenceModel
from wavessm.nn.pretrained import load_model, read_extra
from wavessm.training.run import Run

LENGTH = 1000
"""Samples to look back where nothing says how long the signals are."""


@dataclass(frozen=True, eq=False)
class InspectedModel:
    """A trained model in evaluation mode, on the CPU."""

    name: str
    model: SequenceModel
    info: DataInfo | None  # what is known about its data: scaling, classes
    length: int  # samples of a signal
    sampling_rate: float | None = None  # hertz, where known

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the outputs of a classifier, where they are known."""
        return () if self.info is None or self.info.kind not in ("multiclass", "multilabel") else self.info.classes

    def seconds(self, samples: Any) -> Any:
        """Samples as seconds; unchanged where the sampling rate is not known."""
        return samples if self.sampling_rate is None else samples / self.sampling_rate

    @property
    def unit(self) -> str:
        """Unit of what `seconds` returns."""
        return "samples" if self.sampling_rate is None else "s"

    def standardise(self, signals: Any) -> tuple[Tensor, Tensor]:
        """Raw signals (cases, channels, time), or a list of (channels, time), as model input.

        Returns:
            x (cases, length, channels), zero where padded, and lengths (cases,).
        """
        d, rows = self.model.config.d_input, []
        for at, signal in enumerate(signals):
            array = real_array(signal, f"inspect: case {at} of the signals")
            channels = array[None] if array.ndim == 1 else array
            if channels.ndim != 2 or len(channels) != d or not array.size or not np.isfinite(array).all():
                expected = f"finite numbers (channels, time) = ({d}, ≥ 1)"
                raise shape_error(f"inspect: case {at} of the signals", array, expected)
            raw = torch.from_numpy(channels.T.copy())
            rows.append((raw if self.info is None else self.info.standardise(raw)).float())
        if not rows:
            raise ShapeError("inspect: there are no signals, expected (cases ≥ 1, channels, time).")
        return pad_sequence(rows, batch_first=True), torch.tensor([len(row) for row in rows])


def load(source: Any, sampling_rate: float | None = None, length: int | None = None) -> InspectedModel:
    """Load a model to inspect.

    Args:
        source: A `SequenceModel`, a fitted classifier, a run folder or a model folder.
        sampling_rate: Hertz, where the source does not know it or it differs.
        length: Samples of a signal, where the source does not know it or it differs.

    Example:
        >>> from wavessm.nn.presets import create_model
        >>> load(create_model("wavessm-small", d_input=2), sampling_rate=100.0).seconds(50)
        0.5
    """
    name, info = type(source).__name__, None
    if isinstance(source, str | Path):
        model, info = _read(Path(source))
        name = Path(source).name
    elif isinstance(source, SequenceModel):
        model = source
    elif hasattr(source, "model_") and hasattr(source, "classes_"):
        model = source.model_
        scale = (tuple(map(float, source.mean_)), tuple(map(float, source.scale_)))
        kind, classes = "multilabel" if source.multilabel_ else "multiclass", tuple(map(str, source.classes_))
        config = model.config
        info = DataInfo(kind, config.d_input, config.d_output, source.length_, classes, scale=scale)
    else:
        raise OptionError(f"inspect: got a {name}, expected a SequenceModel, a fitted classifier or a folder.")
    known = info.length + info.horizon if info else LENGTH
    length = known if length is None else check_int(length, "length", minimum=2)
    if sampling_rate is not None:
        check_positive(sampling_rate, "sampling_rate")
    elif info is not None:
        sampling_rate = info.step_rate or (1 / info.step if info.step else None)
    return InspectedModel(name, model.cpu().eval(), info, length, sampling_rate)


def _read(folder: Path) -> tuple[SequenceModel, DataInfo | None]:
    """The model of a run folder or a model folder, and what it knows about its data."""
    if (folder / "run.json").is_file():
        run = Run.read(folder)
        if run.method != "gradient":
            raise OptionError(f"inspect: {folder} was fitted by method {run.method}, which has no layers to show.")
        return run.load_model(), run.info
    if not (folder / "config.json").is_file():
        raise DataError(f"{folder}: neither a run folder (run.json) nor a model folder (config.json).")
    extra = read_extra(folder)
    info = DataInfo.from_dict(extra["info"]) if isinstance(extra, dict) and "info" in extra else None
    return load_model(folder), info


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


def saliency(
    model: SequenceModel, x: Tensor, lengths: Tensor | None = None, target: int | None = None, steps: int = 16
) -> Saliency:
    """Share the score of a class among the samples of a classifier's input; the model is left as it was.

    Args:
        model: A model with the head "pool" or "last".
        x: Input of the model, of `InspectedModel.standardise`, shape (cases, length, d_input).
        lengths: True lengths of padded cases, shape (cases,).
        target: Number of a class; None takes the predicted class of each case.
        steps: Points of the Gauss-Legendre rule along the path from zero to the signal.

    Example:
        >>> from wavessm.nn.presets import create_model
        >>> shares = saliency(create_model("wavessm-small", d_input=2, d_output=3), torch.randn(4, 60, 2))
        >>> shares.values.shape, bool(shares.gap.max() < 1e-3)
        (torch.Size([4, 60, 2]), True)
    """
    config = model.config
    if config.head not in ("pool", "last") or config.encoder != "linear":
        raise OptionError(f"saliency: head {config.head!r} and encoder {config.encoder!r}, expected a classifier of "
                          "signals: 'pool' or 'last', and 'linear'.")  # fmt: skip
    if target is not None and not 0 <= check_int(target, "target", minimum=0) < config.d_output:
        raise OptionError(f"saliency: target is {target}, expected 0 to {config.d_output - 1}.")
    points, weights = np.polynomial.legendre.leggauss(check_int(steps, "saliency: steps", minimum=1))
    ends = whole_lengths(torch.full((len(x),), x.shape[1]) if lengths is None else lengths, x, "saliency")
    model = copy.deepcopy(model).eval().requires_grad_(False)
    x = x.detach().masked_fill(~time_mask(ends, x.shape[1]), 0)
    logits = model(x, ends)
    chosen = logits.argmax(1) if target is None else logits.new_full((len(x),), target, dtype=torch.long)

    def score(x: Tensor) -> Tensor:  # (cases, length, d_input) → (cases,)
        return model(x, ends).gather(1, chosen[:, None])[:, 0]

    slope = torch.zeros_like(x)
    for point, weight in zip((points + 1) / 2, weights / 2, strict=True):
        at = (float(point) * x).requires_grad_()
        slope += float(weight) * torch.autograd.grad(score(at).sum(), at)[0]
    return Saliency(x * slope, chosen, score(x), score(torch.zeros_like(x)), ends)

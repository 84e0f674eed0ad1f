"""The model that is inspected and what is known about its data, from any place where trained models are kept."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from wavessm.data.source import DataInfo
from wavessm.errors import DataError, OptionError, ShapeError, check_int, check_positive, real_array
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
    info: DataInfo | None
    """What is known about its data: scaling, classes."""
    length: int
    """Samples of a signal."""
    sampling_rate: float | None = None
    """Hertz, where known."""

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
                raise ShapeError(
                    f"inspect: case {at} of the signals has shape {array.shape}, expected finite numbers (channels, "
                    f"time) = ({d}, ≥ 1)."
                )
            raw = torch.from_numpy(channels.T.copy())
            rows.append((raw if self.info is None else self.info.standardise(raw)).float())
        if not rows:
            raise ShapeError("inspect: there are no signals, expected (cases ≥ 1, channels, time).")
        return pad_sequence(rows, batch_first=True), torch.tensor([len(row) for row in rows])


def load(
    source: Any, sampling_rate: float | None = None, length: int | None = None, checkpoint: str = "best"
) -> InspectedModel:
    """Load a model to inspect.

    Args:
        source: A `SequenceModel`, a fitted estimator, a run folder or a model folder.
        sampling_rate: Hertz, where the source does not know it or it differs.
        length: Samples of a signal, where the source does not know it or it differs.
        checkpoint: "best" or "last" of a run folder.

    Example:
        >>> from wavessm.nn.presets import create_model
        >>> load(create_model("wavessm-small", d_input=2), sampling_rate=100.0).seconds(50)
        0.5
    """
    if checkpoint != "best" and not (isinstance(source, str | Path) and (Path(source) / "run.json").is_file()):
        raise OptionError(f"inspect: checkpoint {checkpoint!r} goes with a run folder; leave it out.")
    if isinstance(source, SequenceModel):
        found = InspectedModel("model", source, None, LENGTH)
    elif hasattr(source, "model_"):
        found = _of_estimator(source)
    elif isinstance(source, str | Path):
        found = _of_folder(Path(source), checkpoint)
    else:
        raise OptionError(
            f"inspect: got a {type(source).__name__}, expected a SequenceModel, a fitted estimator or a folder."
        )
    if (backbone := found.model.config.backbone) != "wavessm":
        raise OptionError(f"inspect: the backbone is {backbone!r}, expected 'wavessm', which has modes.")
    rate = found.sampling_rate if sampling_rate is None else check_positive(sampling_rate, "sampling_rate")
    length = found.length if length is None else check_int(length, "length", minimum=2)
    return dataclasses.replace(found, model=found.model.cpu().eval(), length=length, sampling_rate=rate)


def _of_estimator(estimator: Any) -> InspectedModel:
    name, config = type(estimator).__name__, estimator.model_.config
    if hasattr(estimator, "classes_"):
        scale = (tuple(map(float, estimator.mean_)), tuple(map(float, estimator.scale_)))
        kind = "multilabel" if estimator.multilabel_ else "multiclass"
        classes = tuple(str(label) for label in estimator.classes_)
        info = DataInfo(kind, config.d_input, config.d_output, estimator.length_, classes, scale=scale)
        return InspectedModel(name, estimator.model_, info, estimator.length_)
    from wavessm.estimators.series import step_seconds

    step = step_seconds(estimator.series_[0].index)
    length = estimator.context_ + int(estimator.horizon)
    return InspectedModel(name, estimator.model_, None, length, None if step is None else 1 / step)


def _of_folder(folder: Path, checkpoint: str) -> InspectedModel:
    if (folder / "run.json").is_file():
        run = Run.read(folder)
        if run.method != "gradient":
            raise OptionError(f"inspect: {folder} was fitted by method {run.method}, which has no layers to show.")
        model, info = run.load_model(checkpoint), run.info
    elif (folder / "config.json").is_file():
        model, extra = load_model(folder), read_extra(folder)
        if not isinstance(extra, dict) or "info" not in extra:
            return InspectedModel(folder.name, model, None, LENGTH)
        info = DataInfo.from_dict(extra["info"])
    else:
        raise DataError(f"{folder}: neither a run folder (run.json) nor a model folder (config.json).")
    rate = info.sampling_rate if info.sampling_rate is not None or info.step is None else 1 / info.step
    return InspectedModel(folder.name, model, info, info.length + info.horizon, rate)

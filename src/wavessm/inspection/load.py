"""What is inspected: a model and what is known about its data, from any of the places where trained models live."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from wavessm.data.source import DataInfo
from wavessm.errors import DataError, OptionError, ShapeError, check_int, check_positive
from wavessm.nn.model import SequenceModel

LENGTH = 1000
"""Samples looked at where nothing says how long the signals are."""


@dataclass(frozen=True, eq=False)
class InspectedModel:
    """A trained model in evaluation mode, on the CPU.

    info    what is known about its data: scaling, classes; None if nothing is
    length  samples of a signal
    hz      samples a second, None if not known
    """

    name: str
    model: SequenceModel
    info: DataInfo | None
    length: int
    hz: float | None = None

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the outputs of a classifier, where they are known."""
        return () if self.info is None or self.info.kind not in ("multiclass", "multilabel") else self.info.classes

    def seconds(self, samples: Any) -> Any:
        """Samples as seconds; as they are where the sampling rate is not known."""
        return samples if self.hz is None else samples / self.hz

    @property
    def unit(self) -> str:
        return "samples" if self.hz is None else "s"

    def hear(self, signals: Any) -> tuple[Tensor, Tensor]:
        """Raw signals (cases, channels, time), or a list of (channels, time), as x (cases, length, d) and lengths."""
        arrays = [np.atleast_2d(np.asarray(signal, dtype=np.float64)) for signal in _listed(signals)]
        d = self.model.config.d_input
        for at, array in enumerate(arrays):
            if array.ndim != 2 or array.shape[0] != d or not array.shape[1] or not np.isfinite(array).all():
                raise ShapeError(
                    f"inspect: case {at} of the signals has shape {array.shape}, expected finite numbers (channels, "
                    f"time) = ({d}, ≥ 1)."
                )
        lengths = torch.tensor([array.shape[1] for array in arrays])
        x = torch.zeros(len(arrays), int(lengths.max()), d)
        for row, array in zip(x, arrays, strict=True):
            raw = torch.from_numpy(array.T.copy())
            row[: array.shape[1]] = (raw if self.info is None else self.info.standardise(raw)).float()
        return x, lengths


def _listed(signals: Any) -> Sequence[Any]:
    signals = signals.detach().cpu().numpy() if isinstance(signals, Tensor) else signals
    if isinstance(signals, np.ndarray) and signals.dtype != object and signals.ndim not in (2, 3):
        raise ShapeError(
            f"inspect: signals have shape {signals.shape}, expected (cases, channels, time) or (cases, time)."
        )
    if not len(signals):
        raise ShapeError("inspect: no signals came; give at least one case.")
    return signals


def load_inspected(
    source: Any, hz: float | None = None, length: int | None = None, checkpoint: str = "best"
) -> InspectedModel:
    """The subject of a `SequenceModel`, a fitted estimator (ours or its sktime form), a run folder or a model folder.

    hz, length  sampling rate and samples of a signal, where the source does not say or says something else

    >>> from wavessm.nn.presets import create_model
    >>> load_inspected(create_model("wavessm-small", d_input=2), hz=100.0).seconds(50)
    0.5
    """
    source = getattr(source, "estimator_", source)
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
    if found.model.config.backbone != "wavessm":
        raise OptionError(
            f"inspect: the backbone is {found.model.config.backbone!r}, expected 'wavessm', which has modes."
        )
    return dataclasses.replace(
        found,
        model=found.model.cpu().eval(),
        length=found.length if length is None else check_int(length, "length", least=2),
        hz=found.hz if hz is None else check_positive(hz, "hz"),
    )


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
        from wavessm.training.folder import Run

        run = Run.read(folder)
        return _known(folder.name, run.load_model(checkpoint), run.info)
    if (folder / "config.json").is_file():
        from wavessm.nn.pretrained import load_model, read_extra

        model, extra = load_model(folder), read_extra(folder)
        info = extra.get("info") if isinstance(extra, dict) else None
        if info is None:
            return InspectedModel(folder.name, model, None, LENGTH)
        return _known(folder.name, model, DataInfo.from_dict(info))
    raise DataError(f"{folder}: neither a run folder (run.json) nor a model folder (config.json).")


def _known(name: str, model: SequenceModel, info: DataInfo) -> InspectedModel:
    hz = info.rate if info.rate is not None else None if info.step is None else 1 / info.step
    return InspectedModel(name, model, info, info.length + info.horizon, hz)

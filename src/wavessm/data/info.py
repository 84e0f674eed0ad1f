"""What a loader returns: a `DataSet` of three sources (`source.py`) and a `DataInfo`. Imports no torch by itself."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from wavessm.errors import OptionError, check_int, check_positive

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import Tensor

    from wavessm.data.source import Source

Scale = tuple[tuple[float, ...], tuple[float, ...]]
"""Means and standard deviations."""
SILENCE = 1e-5
"""RMS below which a recording is not made as loud as the others, of full scale 1: a third of a step of 16 bits."""


@dataclasses.dataclass(frozen=True)
class DataInfo:
    """What training, evaluation and prediction need to know about a set, as plain numbers and strings."""

    kind: str  # "multilabel", "multiclass", "forecast" or "regression"
    d_input: int
    d_output: int
    length: int  # of x; of the context for "forecast"
    classes: tuple[str, ...] = ()
    horizon: int = 0
    columns: tuple[str, ...] = ()  # names of the outputs of a forecast
    channels: tuple[str, ...] = ()  # names of the inputs, where known
    scale: Scale | None = None  # of the input channels, or one for all; x in a batch is (raw - mean) / std
    target_scale: Scale | None = None  # of the outputs, for "forecast" and "regression"
    units: tuple[str, ...] = ()  # of the inputs, where the files have them
    sampling_rate: float | None = None  # hertz
    mark_sizes: tuple[int, ...] = ()  # table sizes of marks that are embedded
    mark_width: int = 0  # number of marks that are real
    target_variance: float | None = None  # known in closed form for generated sets
    step: float | None = None  # seconds between rows of a series
    offset: str = ""  # of its clock to UTC, where the dates have one
    skipped: tuple[str, ...] = ()  # bad files left out with skip_bad
    symbols: tuple[str, ...] = ()  # what the numbers of a token sequence stand for; d_input is then 1
    step_scale: Scale | None = None  # of every step, for one channel
    missing: float = 0.0  # share of samples that are NaN
    scaling: str = "global"  # or "recording": each without its mean, divided by its RMS; `scale` is then for streams
    parts: tuple[str, ...] = ()  # of the test split: the same number of cases each, one after another, scored apart

    def standardise(self, x: Tensor, stream: bool = False) -> Tensor:
        """Scale raw values (…, length, channels) as x in a batch is.

        With scaling "recording" x is one recording, or several of one length. The level of a stream is known at its end
        only: a `stream` is scaled as all training recordings together.
        """
        if self.scaling == "recording" and not stream:
            x = x - x.mean(-2, keepdim=True)
            return x / x.square().mean((-2, -1), keepdim=True).sqrt().clamp(min=SILENCE)
        if self.step_scale is not None:
            mean, std = (x.new_tensor(values[: x.shape[-2]])[:, None] for values in self.step_scale)
            return (x[..., : len(mean), :] - mean) / std
        return x if self.scale is None else (x - x.new_tensor(self.scale[0])) / x.new_tensor(self.scale[1])

    def restore(self, y: Tensor) -> Tensor:
        """Return outputs (…, d_output) in the units of the data, in float64: float32 has few digits at a high level."""
        mean, std = self.target_scale or ((0.0,), (1.0,))
        y = y.double()
        return y * y.new_tensor(std) + y.new_tensor(mean)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> DataInfo:
        """Return the info of `to_dict`, JSON's lists as tuples; the older name `rate` is understood.

        >>> info = DataInfo("regression", 2, 1, 10, scale=((0.0, 1.0), (1.0, 2.0)))
        >>> import json
        >>> DataInfo.from_dict(json.loads(json.dumps(info.to_dict()))) == info
        True
        """
        values = {"sampling_rate" if name == "rate" else name: tuples(value) for name, value in values.items()}
        if unknown := sorted(set(values) - {field.name for field in dataclasses.fields(cls)}):
            raise OptionError(f"DataInfo: unknown field {unknown[0]!r}; written by another version of wavessm?")
        info = cls(**values)
        for name, minimum in {"d_input": 1, "d_output": 1, "length": 1, "horizon": 0, "mark_width": 0}.items():
            check_int(getattr(info, name), f"DataInfo: {name}", minimum)
        for name in ("sampling_rate", "step", "target_variance"):
            if getattr(info, name) is not None:
                check_positive(getattr(info, name), f"DataInfo: {name}")
        sizes = {"classes": info.d_output, "columns": info.d_output, "channels": info.d_input, "units": info.d_input}
        for name in (*sizes, "skipped", "symbols", "parts"):
            names, count = getattr(info, name), sizes.get(name)
            if not isinstance(names, tuple) or not all(isinstance(each, str) for each in names):
                raise OptionError(f"DataInfo: {name} is {names!r}, expected {count or 'some'} names, or none.")
            if count and len(names) not in (0, count):
                raise OptionError(f"DataInfo: {name} is {names!r}, expected {count} names, or none.")
        if info.scaling not in ("global", "recording"):
            raise OptionError(f"DataInfo: scaling is {info.scaling!r}, expected 'global' or 'recording'.")
        for name in ("scale", "target_scale", "step_scale"):
            if not _is_scale(getattr(info, name)):
                raise OptionError(f"DataInfo: {name} is not a row of means and one of positive standard deviations.")
        return info


def _is_scale(scale: Any) -> bool:
    """Whether this is None, or two rows of finite numbers of one length, the second of them positive."""
    try:
        mean, std = scale or ((0.0,), (1.0,))
        finite = all(isinstance(value, int | float) and math.isfinite(value) for value in (*mean, *std))
        return finite and len(mean) == len(std) and all(value > 0 for value in std)
    except (TypeError, ValueError):
        return False


def tuples(value: Any) -> Any:
    """Return JSON's lists, also those inside of lists, as tuples."""
    return tuple(tuples(item) for item in value) if isinstance(value, list | tuple) else value


@dataclasses.dataclass(frozen=True)
class DataSet:
    """Three splits and what is known about them."""

    name: str
    train: Source
    val: Source
    test: Source
    info: DataInfo

    def to(self, device: torch.device | str) -> DataSet:
        """Return the set with all three splits on a device."""
        return dataclasses.replace(self, **{part: getattr(self, part).to(device) for part in ("train", "val", "test")})


def split_set(name: str, arrays: Mapping[str, np.ndarray], info: DataInfo, affine: Any = None) -> DataSet:
    """Return the set of the arrays x_train, y_train, x_val, y_val, x_test, y_test; see `Arrays` for `affine`."""
    import torch

    from wavessm.data.source import Arrays

    def part(name: str) -> Arrays:
        return Arrays(torch.from_numpy(arrays[f"x_{name}"]), torch.from_numpy(arrays[f"y_{name}"]), affine=affine)

    return DataSet(name, part("train"), part("val"), part("test"), info)

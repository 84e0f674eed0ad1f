"""What a loader returns: a `DataSet` of three sources (`source.py`) and a `DataInfo`. Imports no torch by itself."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from wavessm.errors import DataError, OptionError
from wavessm.nn.config import check_fields

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from wavessm.data.source import Source
    from wavessm.features.energies import EnergyBank

Scale = tuple[tuple[float, ...], tuple[float, ...]]
"""Means and standard deviations."""


@dataclasses.dataclass(frozen=True)
class DataInfo:
    """What training, evaluation and prediction need to know about a set, as plain numbers and strings."""

    kind: str  # "multilabel", "multiclass", "steps" (a class for each step), "forecast" or "regression"
    d_input: int
    d_output: int
    length: int  # of x; of the context for "forecast"
    classes: tuple[str, ...] = ()
    horizon: int = 0
    columns: tuple[str, ...] = ()  # names of the outputs of a forecast
    channels: tuple[str, ...] = ()  # names of the inputs, where known
    some_channels: bool = False  # trained with channels left out, or on any single one: a recording may have others
    scale: Scale | None = None  # of the input channels, or one for all; x in a batch is (raw - mean) / std
    target_scale: Scale | None = None  # of the outputs, for "forecast" and "regression"
    units: tuple[str, ...] = ()  # of the inputs, where the files have them
    sampling_rate: float | None = None  # hertz
    mark_sizes: tuple[int, ...] = ()  # table sizes of marks that are embedded
    mark_width: int = 0  # number of marks that are real
    target_variance: float | None = None  # known in closed form for generated sets
    step: float | None = None  # seconds between rows of a series; the median gap of samples with times
    timed: bool = False  # whether models are given the times of samples, divided by `step`
    offset: str = ""  # of its clock to UTC, where the dates have one
    skipped: tuple[str, ...] = ()  # bad files left out with skip_bad
    symbols: tuple[str, ...] = ()  # what the numbers of a token sequence stand for; d_input is then 1
    missing: float = 0.0  # share of samples that are NaN
    scaling: Literal["global", "recording"] = "global"
    """"recording": each without its mean, divided by its RMS; `scale` is then for streams."""
    front_end: Literal["none", "energies"] = "none"
    """"energies": a model reads frames of log energies of the signals (`features/energies.py`), not their samples."""
    frame_scale: Scale | None = None  # of the columns of a frame
    quantiles: tuple[float, ...] = ()  # of a regression, rising: each number has an output for every one of them
    parts: tuple[str, ...] = ()  # of the test split: the same number of cases each, one after another, scored apart

    @property
    def width(self) -> int:
        """Channels of a model's input: those of the signals, or the columns of a frame."""
        return self.d_input * self.energy_bank().n_bands if self.front_end == "energies" else self.d_input

    @property
    def step_rate(self) -> float | None:
        """Steps of a model's input in a second: samples, or frames; None where it is not known."""
        frame = self.energy_bank().hop if self.front_end == "energies" else 1
        return self.sampling_rate and self.sampling_rate / frame

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the channels of a model's input, where known: those of the signals, or frequencies."""
        if self.front_end == "none":
            return self.channels
        named = self.d_input > 1 and bool(self.channels)
        return self.energy_bank().channel_names(self.channels if named else ("",) * self.d_input)

    def standardise(self, x: Tensor, stream: bool = False, sampling_rate: float | None = None) -> Tensor:
        """Return raw values (…, length, channels) as x in a batch is: scaled, as frames of a front end if there is one.

        With scaling "recording" x is one recording, or several of one length. The level of a stream is known at its end
        only: a `stream` is scaled as all training recordings together, and `FrameStream` makes its frames. A front end
        reads signals of another sampling rate as they are.
        """
        if self.scaling == "recording" and not stream:
            from wavessm.features.energies import level

            x = level(x)
        elif self.scale is not None:
            x = (x - x.new_tensor(self.scale[0])) / x.new_tensor(self.scale[1])
        if self.front_end == "none" or stream:
            return x
        frames = self.energy_bank(sampling_rate)(x.float().reshape(-1, *x.shape[-2:]))
        return self.scale_frames(frames.view(*x.shape[:-2], *frames.shape[1:]))

    def energy_bank(self, sampling_rate: float | None = None) -> EnergyBank:
        """Return the filters of the front end for signals of a sampling rate, by default that of training."""
        assert self.sampling_rate is not None
        return _energy_bank(sampling_rate or self.sampling_rate, self.sampling_rate)

    def scale_frames(self, frames: Tensor) -> Tensor:
        """Standardise frames (…, length, width)."""
        mean, std = self.frame_scale or ((0.0,), (1.0,))
        return (frames - frames.new_tensor(mean)) / frames.new_tensor(std)

    def restore(self, y: Tensor) -> Tensor:
        """Return outputs (…, d_output), or targets, in the units of the data, in float64: float32 has few digits."""
        y, (mean, std) = y.double(), self.target_scale or ((0.0,), (1.0,))
        step = 1 if y.shape[-1] == self.d_output else len(self.quantiles) or 1
        return y * y.new_tensor(std[::step]) + y.new_tensor(mean[::step])

    def in_steps(self, times: np.ndarray, start: float) -> Tensor:
        """Return times (length,) since `start` as a model takes them, (1, length): in steps of training."""
        import torch

        step = self.step or 1 / (self.sampling_rate or 1.0)
        return torch.from_numpy((np.asarray(times, np.float64) - start) / step)[None]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> DataInfo:
        """Return the info of `to_dict`, JSON's lists as tuples, checked; fields of older runs are understood.

        >>> info = DataInfo("regression", 2, 1, 10, scale=((0.0, 1.0), (1.0, 2.0)))
        >>> import json
        >>> DataInfo.from_dict(json.loads(json.dumps(info.to_dict()))) == info
        True
        """
        values = {"sampling_rate" if name == "rate" else name: tuples(value) for name, value in values.items()}
        if values.pop("step_scale", None):
            raise OptionError("DataInfo: scaled step by step (s4-compat), which is no longer read; train again.")
        if unknown := sorted(set(values) - {field.name for field in dataclasses.fields(cls)}):
            raise OptionError(f"DataInfo: unknown field {unknown[0]!r}; written by another version of wavessm?")
        info = cls(**values)
        check_fields(info, dict.fromkeys(("horizon", "mark_width", "missing"), (lambda value: value >= 0, "0 or more")))
        sizes = {"classes": info.d_output, "columns": info.d_output, "channels": info.d_input, "units": info.d_input}
        for name in (*sizes, "skipped", "symbols", "parts"):
            names = getattr(info, name)
            fine = isinstance(names, tuple) and all(isinstance(each, str) for each in names)
            if not fine or len(names) not in (0, sizes.get(name, len(names))):
                raise OptionError(f"DataInfo: {name} is {names!r}, expected {sizes.get(name, 'some')} names, or none.")
        for name in ("scale", "target_scale", "frame_scale"):
            if not _is_scale(getattr(info, name)):
                raise OptionError(f"DataInfo: {name} is not a row of means and one of positive standard deviations.")
        return info


@functools.cache
def _energy_bank(sampling_rate: float, trained: float) -> EnergyBank:
    """Filters for signals of a sampling rate with the frequencies of those of training, made once."""
    from wavessm.features.energies import HIGHEST, EnergyBank

    if sampling_rate < trained:
        raise DataError(f"the signal has {sampling_rate:g} Hz, the model was trained at {trained:g} Hz and reads "
                        "frequencies that it does not have; record it at that rate or above.")  # fmt: skip
    return EnergyBank(sampling_rate, highest=HIGHEST * trained)


class FrameStream:
    """Samples of a stream, as they come, to frames of the front end; `rate` is the rate of training over its own."""

    def __init__(self, info: DataInfo, rate: float = 1.0) -> None:
        import torch

        self.info, self.bank = info, info.energy_bank((info.sampling_rate or 0.0) / rate)
        self.state, self.rest = self.bank.initial_state(1, info.d_input), torch.empty(0, info.d_input)

    def __call__(self, x: Tensor) -> Tensor:
        """Return the frames (frames, width) that are complete after some more scaled samples (length, channels)."""
        import torch

        x = torch.cat([self.rest, x.float()])
        whole = len(x) // self.bank.hop * self.bank.hop
        frames, self.state = self.bank.stream(x[None, :whole], self.state)
        self.rest = x[whole:]
        return self.info.scale_frames(frames[0])


def _is_scale(scale: Any) -> bool:
    """Whether this is None, or two rows of finite numbers of one length, the second of them positive."""
    try:
        mean, std = np.asarray(scale or ((0.0,), (1.0,)), np.float64)
        return bool(np.isfinite([mean, std]).all() and (std > 0).all())
    except (TypeError, ValueError):
        return False


def tuples(value: Any) -> Any:
    """Return JSON's lists, also those inside of lists and dictionaries, as tuples."""
    if isinstance(value, dict):
        return {name: tuples(item) for name, item in value.items()}
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


def split_set(name: str, arrays: Mapping[str, np.ndarray], info: DataInfo, affine: tuple[float, float]) -> DataSet:
    """Return the set of the arrays x_train, y_train, x_val, y_val, x_test, y_test; see `Arrays` for `affine`."""
    import torch

    from wavessm.data.source import Arrays

    def part(name: str) -> Arrays:
        return Arrays(torch.from_numpy(arrays[f"x_{name}"]), torch.from_numpy(arrays[f"y_{name}"]), affine=affine)

    return DataSet(name, part("train"), part("val"), part("test"), info)

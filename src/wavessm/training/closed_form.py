"""Models that are fitted in closed form, in seconds: state features with a ridge, and the linear forecast.

Both are called, streamed and moved between devices as a `SequenceModel` is, so that evaluation and prediction know
nothing of them. The training split is fitted; the validation split chooses the penalties of the linear forecast and is
only scored for state features, whose penalty is chosen by leave-one-out on the training split.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from wavessm.data.source import DataInfo, DataSet, Windows
from wavessm.errors import OptionError
from wavessm.features import Calibration, FeatureConfig, FeatureModel, FeatureStream, Ridge, SignalFeatures
from wavessm.features.line import Part, context_for, default_members, fit_line, season_steps
from wavessm.training import metrics
from wavessm.training.config import TrainConfig


class FeatureNet(nn.Module):
    """State features with a ridge, called as a `SequenceModel`: signals (batch, length, channels) to logits or numbers.

    Args:
        model: the fitted model.
    """

    def __init__(self, model: FeatureModel) -> None:
        super().__init__()
        self.model = model

    @property
    def size(self) -> int:
        """Fitted numbers of the head, those of features that are used."""
        coef = self.model.ridge.coef
        return int(coef.any(1).sum() + 1) * coef.shape[1]

    @torch.no_grad()
    def forward(
        self, x: Tensor, lengths: Tensor | None = None, rate: float = 1.0, marks: Tensor | None = None
    ) -> Tensor:
        """Logits or numbers (batch, d_output) of signals of the sampling rate of training."""
        _check_rate(rate)
        return self.model.logits(x.cpu(), None if lengths is None else lengths.cpu())

    def initial_state(self, batch: int) -> FeatureStream:
        """The state before the first sample of `batch` streams."""
        if self.model.features.bank.config.stretches:
            raise OptionError(
                "this model pools over stretches of whole signals and cannot stream; train one with --no-stretches."
            )
        return self.model.stream(batch)

    def stream(self, x: Tensor, state: FeatureStream, rate: float = 1.0) -> tuple[Tensor, FeatureStream]:
        """Process a chunk; returns the output for the whole stream so far, and the state."""
        _check_rate(rate)
        return state.step(x), state

    def to(self, *args: Any, **kwargs: Any) -> FeatureNet:
        """The model itself, on another device."""
        device = torch.device(*args, **kwargs)
        for _, owner, name in self._tensors():
            if owner is not self.model.features:  # signals are scaled where they are
                setattr(owner, name, getattr(owner, name).to(device))
        return self

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:  # type: ignore[override]
        """Every tensor by name."""
        return {name: getattr(owner, attribute).cpu() for name, owner, attribute in self._tensors()}

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> None:
        """Take the tensors of `state_dict`, which must have the shapes of those that are there."""
        for name, owner, attribute in self._tensors():
            old, new = getattr(owner, attribute), state_dict[name]
            if old.shape != new.shape or old.dtype != new.dtype:
                raise RuntimeError(f"{name} has another shape")
            setattr(owner, attribute, new)

    def _tensors(self) -> Iterator[tuple[str, Any, str]]:
        """Name, owner and attribute of everything that was drawn or fitted."""
        features, bank = self.model.features, self.model.features.bank
        owners: dict[str, tuple[Any, tuple[str, ...]]] = {
            "signals": (features, ("mean", "scale")),
            "bank": (bank, ("mixing",)),
            "values": (bank.values, ("levels",)),
            "ridge": (self.model.ridge, ("mean", "scale", "coef", "intercept")),
        }
        if self.model.calibration is not None:
            owners["calibration"] = self.model.calibration, ("slope", "offset")
        for k, group in enumerate(bank.groups):
            owners[f"group{k}"] = group, ("source", "weight", "into", "decay", "bias", "stretch")
        for name, (owner, attributes) in owners.items():
            yield from ((f"{name}.{attribute}", owner, attribute) for attribute in attributes)

    def describe(self) -> dict[str, Any]:
        """Plain values from which `restore` makes a model of the same shape."""
        bank, ridge = self.model.features.bank, self.model.ridge
        config = {name: list(v) if isinstance(v, tuple) else v for name, v in vars(bank.config).items()}
        return {"bank": config, "length": bank.length, "seed": bank.seed, "chosen": list(ridge.chosen),
                "penalty": ridge.penalty, "error": ridge.error}  # fmt: skip

    @classmethod
    def restore(cls, described: Mapping[str, Any], info: DataInfo) -> FeatureNet:
        """A model of the shape of `describe`, its tensors yet to be loaded."""
        values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in described["bank"].items()}
        noise = torch.randn(2, described["length"], info.d_input, generator=torch.Generator().manual_seed(0))
        features = SignalFeatures(noise, None, FeatureConfig(**values), described["seed"], "cpu")
        columns, outputs = torch.zeros(features.bank.n_features), torch.zeros(info.d_output)
        ridge = Ridge(columns, columns, columns[:, None] * outputs, outputs, described["penalty"],
                      tuple(described["chosen"]), columns[:0], columns[:0], described["error"])  # fmt: skip
        slope = outputs if info.kind == "multilabel" else torch.zeros(())
        calibration = None if info.kind == "regression" else Calibration(info.kind, slope, outputs)
        return cls(FeatureModel(features, ridge, calibration))


class LineModel(nn.Module):
    """The linear forecast, called as a `SequenceModel`: a map of the context minus its last value, which is added back.

    Args:
        context: rows that it reads.
        horizon: rows that it forecasts.
        maps: 1 for a map shared by all columns, or the number of columns.
    """

    def __init__(self, context: int, horizon: int, maps: int) -> None:
        super().__init__()
        self.W = nn.Parameter(torch.zeros(maps, context, horizon))

    @property
    def size(self) -> int:
        """Fitted numbers."""
        return self.W.numel()

    def forward(
        self, x: Tensor, lengths: Tensor | None = None, rate: float = 1.0, marks: Tensor | None = None
    ) -> Tensor:
        """Forecasts (batch, horizon, columns) after contexts x (batch, context, columns)."""
        last = x[:, -1:]
        W = self.W.expand(x.shape[2], -1, -1)
        return torch.einsum("blc,clh->bhc", x - last, W) + last

    def describe(self) -> dict[str, Any]:
        """Plain values from which `restore` makes a model of the same shape."""
        return {"maps": len(self.W)}

    @classmethod
    def restore(cls, described: Mapping[str, Any], info: DataInfo) -> LineModel:
        """A model of the shape of `describe`, its map yet to be loaded."""
        return cls(info.length, info.horizon, described["maps"])


ClosedForm = FeatureNet | LineModel
CLOSED: dict[str, type[FeatureNet] | type[LineModel]] = {"features": FeatureNet, "linear": LineModel}
"""Methods of `TrainConfig` that need no gradient."""


def _check_rate(rate: float) -> None:
    if rate != 1:
        raise OptionError(
            f"state features read signals of the sampling rate of training, this is another (rate {rate:g}); resample "
            "them, or train with --method gradient."
        )


def prepare(options: Any, config: TrainConfig) -> tuple[Any, DataSet]:
    """The data options with the context that a linear forecast chooses where none is given, and the data.

    Raises:
        OptionError: the data are not of the kind that the method fits.
    """
    data = options.load(config.seed)
    if config.method == "linear" and getattr(options, "context", 1) is None:
        train = data.train
        rows = int(train.starts[-1]) + train.context + train.horizon
        context = context_for(data.info.horizon, season_steps(data.info.step), rows)
        options = dataclasses.replace(options, context=context)
        data = options.load(config.seed)
    if config.method == "features":  # no case is taken for others: a source that draws would start elsewhere
        signals = data.info.kind != "forecast" and not data.info.symbols
        if not signals or data.train.take(torch.arange(1)).y.dim() > 2:
            what = "tokens" if data.info.symbols else f"a {data.info.kind}"
            raise OptionError(f"method is 'features', which classifies signals or gives numbers; this is {what}.")
    if config.method == "linear" and not isinstance(data.train, Windows):
        raise OptionError(f"method is 'linear', which forecasts tables; this is a {data.info.kind}.")
    return options, without_calendar(data, config)


def without_calendar(data: DataSet, config: TrainConfig) -> DataSet:
    """The data as a method reads them: a linear forecast has no calendar."""
    if config.method != "linear":
        return data
    parts = {name: getattr(data, name) for name in ("train", "val", "test")}
    for name, part in parts.items():
        parts[name] = Windows(part.series, None, part.context, part.horizon, part.columns, part.starts)
    return dataclasses.replace(data, info=dataclasses.replace(data.info, mark_sizes=(), mark_width=0), **parts)


def fit_closed(data: DataSet, config: TrainConfig, device: torch.device, missing: str = "hold") -> ClosedForm:
    """Fit a model to the training split of data on the CPU; `missing` as in `ModelConfig`."""
    if config.method == "linear":
        return _fit_line(data)
    x, y, lengths, _, weights = data.train.take(torch.arange(len(data.train)))
    balance = class_balance(data, config)
    if balance is not None and data.info.kind == "multilabel":
        raise OptionError("class_weight with several labels needs --method gradient.")
    if balance is not None:
        weights = balance[y] if weights is None else weights * balance[y]
    bank = FeatureConfig(
        n_features=config.n_features, stretches=config.stretches, missing="gap" if missing == "gap" else "hold"
    )
    return FeatureNet(FeatureModel.fit(x, y, data.info.kind, lengths, weights, bank, config.seed, device))


def class_balance(data: DataSet, config: TrainConfig) -> Tensor | None:
    """The weights of `metrics.class_weights` for class_weight="balanced", else None."""
    if config.class_weight == "none":
        return None
    labels = getattr(data.train, "y", None)
    if not data.info.classes or labels is None:
        raise OptionError("class_weight is 'balanced', but these data have no classes to count; leave it out.")
    return metrics.class_weights(data.info.kind, labels, len(data.info.classes))


def _fit_line(data: DataSet) -> LineModel:
    """The map of the context; cuts that are fitted on the past alone choose its penalty, see `features/line.py`."""
    train, val, horizon = cast(Windows, data.train), cast(Windows, data.val), data.info.horizon
    values = train.series[:, list(train.columns)].double().numpy()
    first = int(train.starts[0]) + train.context
    end, stop = (int(part.starts[-1]) + part.context + horizon for part in (train, val))

    def part(begin: int, end: int) -> list[Part]:
        return [Part(values, None, begin, end)]

    edges = itertools.pairwise([end // 2, end * 3 // 4, end, stop])
    cuts = [(part(first, a), part(a, b)) for a, b in edges if min(a - first, b - a) >= horizon]
    season = season_steps(data.info.step)
    members = default_members(train.context, season, memory=False)
    line = fit_line(cuts, part(first, end), members, season, horizon)
    W = line.W if line.W.ndim == 3 else line.W[None]
    model = LineModel(train.context, horizon, len(W))
    model.W.data = torch.from_numpy(W.astype(np.float32))
    return model

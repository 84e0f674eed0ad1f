"""Models that are fitted in closed form, in seconds: state features with a ridge, and the linear forecast.

Both are called, streamed and moved between devices as a `SequenceModel` is, so that evaluation and prediction know
nothing of them. The training split is fitted; the validation split chooses the penalties of the linear forecast and is
only scored for state features, whose penalty is chosen by leave-one-out on the training split.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from wavessm.data.source import DataInfo, DataSet, Windows
from wavessm.errors import OptionError
from wavessm.features import FeatureConfig, FeatureModel
from wavessm.features.line import Part, context_for, default_members, fit_line, season_steps
from wavessm.training import metrics
from wavessm.training.config import TrainConfig


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


ClosedForm = FeatureModel | LineModel
CLOSED: dict[str, type[FeatureModel] | type[LineModel]] = {"features": FeatureModel, "linear": LineModel}
"""Methods of `TrainConfig` that need no gradient."""


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
        signals = data.info.kind not in ("forecast", "steps") and not data.info.symbols
        if not signals or data.train.take(torch.arange(1)).y.dim() > 2:
            steps = "a label for each step" if data.info.kind == "steps" else f"a {data.info.kind}"
            what = "tokens" if data.info.symbols else steps
            raise OptionError(f"method is 'features', which classifies signals or gives numbers; this is {what}.")
    if config.method == "linear" and not isinstance(data.train, Windows):
        raise OptionError(f"method is 'linear', which forecasts tables; this is a {data.info.kind}.")
    if config.method in CLOSED and data.info.timed:
        raise OptionError(f"method is {config.method!r}, which reads no times; use --method gradient.")
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
    cases = data.train.take(torch.arange(len(data.train)))
    weights = metrics.weigh_cases(data.info.kind, cases.y, class_balance(data, config), cases.weight)
    bank = FeatureConfig(
        n_features=config.n_features, stretches=config.stretches, missing="gap" if missing == "gap" else "hold"
    )
    return FeatureModel.fit(cases.x, cases.y, data.info.kind, cases.lengths, weights, bank, config.seed, device)


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

"""Models that are fitted in closed form, in seconds: state features with a ridge, and the linear forecast.

Both are called, streamed and moved between devices as a `SequenceModel` is, so that evaluation and prediction know
nothing of them. The training split is fitted; the validation split chooses the penalties of the linear forecast and is
only scored for state features, whose penalty is chosen by leave-one-out on the training split.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor

from wavessm.data.source import DataInfo, DataSet
from wavessm.errors import OptionError
from wavessm.features import FeatureConfig, FeatureModel
from wavessm.features.ridge import with_quantiles
from wavessm.training import metrics
from wavessm.training.config import TrainConfig

CLOSED = ("features", "linear")
"""Methods of `TrainConfig` that need no gradient."""


def restore(method: str, described: Mapping[str, Any], info: DataInfo) -> Any:
    """The model of a run of such a method, its numbers yet to be loaded."""
    if method == "features":
        return FeatureModel.restore(described, info)
    from wavessm.training.line_model import LineModel

    return LineModel.restore(described, info)


def load_data(options: Any, config: TrainConfig) -> DataSet:
    """The data as a method reads them: a linear forecast has whole series, not windows.

    Raises:
        OptionError: the data are not of the kind that the method fits.
    """
    if config.method == "linear" and hasattr(options, "line_options"):
        from wavessm.training.line_model import series_set

        return series_set(options)
    data = options.load(config.seed)
    if config.method == "linear":
        raise OptionError(f"method is 'linear', which forecasts tables; this is a {data.info.kind}.")
    if config.method == "features":  # no case is taken for others: a source that draws would start elsewhere
        signals = data.info.kind not in ("forecast", "steps") and not data.info.symbols
        if not signals or data.train.take(torch.arange(1)).y.dim() > 2:
            steps = "a label for each step" if data.info.kind == "steps" else f"a {data.info.kind}"
            what = "tokens" if data.info.symbols else steps
            raise OptionError(f"method is 'features', which classifies signals or gives numbers; this is {what}.")
        if data.info.timed:
            raise OptionError("method is 'features', which reads no times; use --method gradient.")
    return data


def fit_closed(data: DataSet, config: TrainConfig, device: torch.device, missing: str = "hold") -> Any:
    """Fit a model to the training split of data on the CPU; `missing` as in `ModelConfig`."""
    if config.method == "linear":
        return cast(Any, data.train).model.fit_line()
    cases = data.train.take(torch.arange(len(data.train)))
    weights = metrics.weigh_cases(data.info.kind, cases.y, class_balance(data, config), cases.weight)
    missing = "gap" if missing == "gap" else "hold"
    bank = FeatureConfig(n_features=config.n_features, stretches=config.stretches, missing=missing)
    model = FeatureModel.fit(cases.x, cases.y, data.info.kind, cases.lengths, weights, bank, config.seed, device)
    if data.info.quantiles:
        model.ridge = with_quantiles(model.ridge, cases.y, data.info.quantiles, weights)
    return model


def class_balance(data: DataSet, config: TrainConfig) -> Tensor | None:
    """The weights of `metrics.class_weights` for class_weight="balanced", else None."""
    if config.class_weight == "none":
        return None
    labels = getattr(data.train, "y", None)
    if not data.info.classes or labels is None:
        raise OptionError("class_weight is 'balanced', but these data have no classes to count; leave it out.")
    return metrics.class_weights(data.info.kind, labels, len(data.info.classes))

"""What the `best` recipe of a forecast chooses for a data set and horizon, for one column or all.

`SETTINGS` are named settings, each a few options of `wavessm train forecast`; what one leaves open is as in `COMMON`.
`CHOSEN` says which setting had the lowest validation error for a data set and horizon; else the recipe
stands as it is. `results/forecast/README.md` has the comparison; the test split plays no part in the choice.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from typing import Any, TypeVar

from wavessm.nn.config import ModelConfig
from wavessm.training.config import TrainConfig

Data = TypeVar("Data")

COMMON: dict[str, Any] = {
    "instance_norm": "last",
    "direct": True,
    "direct_start": "ridge",
    "calendar": "waves",
    "future_calendar": True,
    "horizon_mask": True,
    "context": None,
    "d_model": 128,
    "dropout": 0.25,
    "lr": 5e-4,
    "lr_ssm": 5e-4,
    "lr_direct": 1e-4,
    "weight_decay": 0.01,
    "schedule": "one-cycle",
    "warmup": 0.3,
    "epochs": 5,
    "batch_size": 50,
    "val_per_epoch": 5,
    "patience": 0,
    "eval_batch_size": 512,
}
"""Every option that some setting may change, so that a setting is complete."""

_LEVELS: dict[str, dict[str, Any]] = {
    "level": {},
    "raw": {"instance_norm": "none"},
    "mean": {"instance_norm": "mean"},
    "scaled": {"instance_norm": "mean_std"},
}
_CALENDARS: dict[str, dict[str, Any]] = {"": {}, "-year": {"calendar": "waves-year"}}
_CONTEXTS: dict[str, dict[str, Any]] = {
    "": {},
    "-week": {"context": 168},
    "-fortnight": {"context": 336},
    "-long": {"context": 720},
}
SETTINGS: dict[str, dict[str, Any]] = {
    "".join(names): _LEVELS[names[0]] | _CALENDARS[names[1]] | _CONTEXTS[names[2]]
    for names in itertools.product(_LEVELS, _CALENDARS, _CONTEXTS)
}
"""Named settings. level: the last value is taken off; raw: nothing is; mean: the mean of the context is; scaled: also
divided by its deviation; year: the calendar knows the season; week, fortnight, long: 168, 336 or 720 steps of context
instead of Informer's."""

CHOSEN: dict[str, dict[tuple[str, int], str]] = {
    "uni": {
        **{("ETTh1", horizon): "level-year" for horizon in (24, 48, 168, 336, 720)},
        **{("ETTh2", horizon): "raw-year" for horizon in (24, 48)},
        **{("ETTh2", horizon): "raw-year-week" for horizon in (168, 336, 720)},
        **{("ETTm1", horizon): "level-year-long" for horizon in (24, 48, 96, 288, 672)},
        ("WTH", 24): "level-year",
        **{("WTH", horizon): "raw-year" for horizon in (48, 168, 336, 720)},
        **{("ECL", horizon): "level-long" for horizon in (48, 960)},
        **{("ECL", horizon): "level-year-long" for horizon in (168, 336, 720)},
    },
    "multi": {
        ("ETTh1", 24): "scaled-fortnight",
        **{("ETTh1", horizon): "raw" for horizon in (48, 720)},
        **{("ETTh1", horizon): "raw-fortnight" for horizon in (168, 336)},
        ("ETTh2", 24): "mean-fortnight",
        **{("ETTh2", horizon): "mean-year-week" for horizon in (48, 168, 336, 720)},
        ("ETTm1", 24): "level-long",
        ("ETTm1", 48): "raw-long",
        ("ETTm1", 96): "scaled-fortnight",
        ("ETTm1", 288): "raw-fortnight",
        ("ETTm1", 672): "raw-week",
        **{("WTH", horizon): "raw-year" for horizon in (24, 168)},
        **{("WTH", horizon): "raw-year-fortnight" for horizon in (48, 336)},
        ("WTH", 720): "raw-year-week",
    },
}
"""Variables, then data set and horizon → setting, by the validation error of where its training starts."""


def tuned(data: Data, model: ModelConfig, config: TrainConfig) -> tuple[Data, ModelConfig, TrainConfig]:
    """Data options, model and training with the setting chosen for these data; unchanged where none is."""
    dataset, horizon, variables = (getattr(data, field, None) for field in ("dataset", "horizon", "variables"))
    chosen: Mapping[Any, str] = CHOSEN.get(str(variables), {})
    if (dataset, horizon) not in chosen:
        return data, model, config
    return apply(data, model, config, {**COMMON, **SETTINGS[chosen[dataset, horizon]]})


def apply(
    data: Data, model: ModelConfig, config: TrainConfig, setting: Mapping[str, Any]
) -> tuple[Data, ModelConfig, TrainConfig]:
    """The same with the options of one setting; a name that several have is an option of the first that has it."""
    left = dict(setting)

    def changed(options: Any) -> Any:
        return dataclasses.replace(options, **{name: left.pop(name) for name in vars(options) if name in left})

    data, config = changed(data), changed(config)
    return data, changed(model), config

"""Models by name, with the sizes of the paper's experiments, and small ones to start from.

`create_model("wavessm-ptbxl", family="legs")` is the S4 baseline of the same size; every field can be overridden.
"""

from __future__ import annotations

from typing import Any

from wavessm.errors import Registry
from wavessm.nn.config import ModelConfig
from wavessm.nn.model import SequenceModel

_PRESETS: Registry[ModelConfig] = Registry("model")

_CLASSIFIER = ModelConfig(d_model=256, n_layers=6, d_state=64, norm="batch", bidirectional=True, head="pool")


def _preset(name: str, base: ModelConfig, **fields: Any) -> None:
    _PRESETS.register(name, base.replace(**fields))


_preset("wavessm-small", ModelConfig(), d_output=2, d_model=32, n_layers=2, d_state=32)
_preset("wavessm-ptbxl", _CLASSIFIER, d_input=12, d_output=5, dropout=0.1)
_preset(
    "wavessm-forecast", ModelConfig(), n_layers=2, dropout=0.25, encoder="calendar", mark_sizes=(13, 32, 7, 24),
    head="forecast", horizon=24,
)  # fmt: skip
_preset("wavessm-window-copy", ModelConfig(), d_input=2, d_output=8, n_layers=2, head="last")
_preset("wavessm-speech", _CLASSIFIER, d_output=35, d_model=128, n_ssm=2)
_preset("wavessm-listops", _CLASSIFIER, d_output=10, encoder="embedding", vocabulary=18, prenorm=False)
_preset("wavessm-text", _CLASSIFIER, d_output=2, encoder="embedding", vocabulary=135)
_preset("wavessm-retrieval", _CLASSIFIER, d_output=2, encoder="embedding", vocabulary=98, head="pair")
_preset("wavessm-image", _CLASSIFIER, d_output=10, d_model=512, norm="layer", prenorm=False, dropout=0.1)
_preset("wavessm-pathfinder", _CLASSIFIER, d_output=2, d_state=128, n_ssm=None)
_preset("wavessm-pathx", _CLASSIFIER, d_output=2, d_state=128, n_ssm=None)


def presets() -> list[str]:
    """The names `create_model` knows.

    >>> presets()[:3]
    ['wavessm-small', 'wavessm-ptbxl', 'wavessm-forecast']
    """
    return _PRESETS.names()


def preset_config(name: str, **overrides: Any) -> ModelConfig:
    """Return the config of a preset with some fields replaced; see `ModelConfig.replace`."""
    return _PRESETS[name].replace(**overrides)


def create_model(name: str, **overrides: Any) -> SequenceModel:
    """A new model by name; overrides are fields of `ModelConfig`, checked.

    >>> create_model("wavessm-small", d_input=3, family="legs").config.d_model
    32
    """
    return SequenceModel(preset_config(name, **overrides))

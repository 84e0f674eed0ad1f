"""Models by name, with the sizes of the paper's experiments, and small ones to start from.

`create_model("wavessm-ptbxl", family="legs")` is the S4 baseline of the same size; every field can be overridden.
"""

from __future__ import annotations

from typing import Any

from wavessm.errors import unknown_name
from wavessm.nn.config import ModelConfig
from wavessm.nn.model import SequenceModel

_PLAIN = ModelConfig()
_CLASSIFIER = ModelConfig(d_model=256, n_layers=6, d_state=64, norm="batch", bidirectional=True, head="pool")
_TOKENS = _CLASSIFIER.replace(d_output=2, encoder="embedding", vocabulary=135)
_IMAGES = _CLASSIFIER.replace(d_output=2, d_state=128, n_ssm=None)

PRESETS = {
    "wavessm-small": _PLAIN.replace(d_output=2, d_model=32, n_layers=2, d_state=32),
    "wavessm-ptbxl": _CLASSIFIER.replace(d_input=12, d_output=5, dropout=0.1),
    "wavessm-forecast": _PLAIN.replace(
        n_layers=2, dropout=0.25, encoder="calendar", mark_sizes=(13, 32, 7, 24), head="forecast", horizon=24
    ),
    "wavessm-window-copy": _PLAIN.replace(d_input=2, d_output=8, n_layers=2, head="last"),
    "wavessm-speech": _CLASSIFIER.replace(d_output=35, d_model=128, n_ssm=2),
    "wavessm-listops": _TOKENS.replace(d_output=10, vocabulary=18, prenorm=False),
    "wavessm-text": _TOKENS,
    "wavessm-retrieval": _TOKENS.replace(vocabulary=98, head="pair"),
    "wavessm-image": _CLASSIFIER.replace(d_output=10, d_model=512, norm="layer", prenorm=False, dropout=0.1),
    "wavessm-pathfinder": _IMAGES,
    "wavessm-pathx": _IMAGES,
}


def presets() -> list[str]:
    """Return the names `create_model` knows."""
    return list(PRESETS)


def preset_config(name: str, **overrides: Any) -> ModelConfig:
    """Return the config of a preset with some fields replaced; see `ModelConfig.replace`."""
    if name not in PRESETS:
        raise unknown_name("model", name, PRESETS)
    return PRESETS[name].replace(**overrides)


def create_model(name: str, **overrides: Any) -> SequenceModel:
    """A new model by name; overrides are fields of `ModelConfig`, checked.

    >>> create_model("wavessm-small", d_input=3, family="legs").config.d_model
    32
    """
    return SequenceModel(preset_config(name, **overrides))

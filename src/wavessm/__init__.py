"""State-space sequence layers whose state is the coefficient vector of a frame of localised waveforms.

Names are imported when they are first used, so that `import wavessm` loads neither torch nor an optional dependency.
Read in this order: frames, operators, structure, discretize, memory, ops, nn, features, data, training, estimators,
export, inspection, cli.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wavessm.discretize import bilinear, generalised_bilinear, zoh
    from wavessm.errors import (
        ConditionError,
        MissingExtraError,
        NotFiniteError,
        OptionError,
        RankError,
        ShapeError,
        UnknownNameError,
        WaveSSMError,
    )
    from wavessm.estimators import LogEnergies, StateFeatures, WaveSSMClassifier, WaveSSMForecaster, WaveSSMRegressor
    from wavessm.frames import PAPER_FAMILIES, Frame, Quadrature, Wavelet, families, make_frame, register_family
    from wavessm.memory import OnlineMemory
    from wavessm.nn.backbones import ResidualBlock
    from wavessm.nn.config import ModelConfig
    from wavessm.nn.layer import WaveSSM, param_groups
    from wavessm.nn.model import ModelState, SequenceModel
    from wavessm.nn.presets import create_model, preset_config, presets
    from wavessm.nn.pretrained import pretrained
    from wavessm.nn.streaming import SampledLayer, sampled
    from wavessm.operators import Operator, make_operator
    from wavessm.structure import DPLR, Dense, Diagonal
    from wavessm.training.config import TrainConfig
    from wavessm.training.finetune import adapt
    from wavessm.training.fit import train
    from wavessm.training.predict import predict

__version__ = "0.1.0"

__all__ = [
    "DPLR", "PAPER_FAMILIES", "ConditionError", "Dense", "Diagonal", "Frame", "LogEnergies", "MissingExtraError",
    "ModelConfig", "ModelState", "NotFiniteError", "OnlineMemory", "Operator", "OptionError", "Quadrature", "RankError",
    "ResidualBlock", "SampledLayer", "SequenceModel", "ShapeError", "StateFeatures", "TrainConfig",
    "UnknownNameError", "WaveSSM", "WaveSSMClassifier", "WaveSSMError", "WaveSSMForecaster", "WaveSSMRegressor",
    "Wavelet", "adapt", "bilinear", "create_model", "families", "generalised_bilinear", "make_frame", "make_operator",
    "param_groups", "predict", "preset_config", "presets", "pretrained", "register_family", "sampled", "train", "zoh",
]  # fmt: skip

_HOME = {
    "discretize": "bilinear generalised_bilinear zoh",
    "errors": "ConditionError MissingExtraError NotFiniteError OptionError RankError ShapeError UnknownNameError "
    "WaveSSMError",
    "estimators": "LogEnergies StateFeatures WaveSSMClassifier WaveSSMForecaster WaveSSMRegressor",
    "frames": "PAPER_FAMILIES Frame Quadrature Wavelet families make_frame register_family",
    "memory": "OnlineMemory",
    "nn.backbones": "ResidualBlock",
    "nn.config": "ModelConfig",
    "nn.layer": "WaveSSM param_groups",
    "nn.model": "ModelState SequenceModel",
    "nn.presets": "create_model preset_config presets",
    "nn.pretrained": "pretrained",
    "nn.streaming": "SampledLayer sampled",
    "operators": "Operator make_operator",
    "structure": "DPLR Dense Diagonal",
    "training": "TrainConfig train",
    "training.finetune": "adapt",
    "training.predict": "predict",
}
_ROOMS = ("cli", "data", "export", "features", "inspection", "nn", "ops", *_HOME)


def __getattr__(name: str) -> Any:
    """A public name or a module of the package, imported when it is first asked for."""
    if name in _ROOMS:
        return import_module(f"{__name__}.{name}")
    for module, names in _HOME.items():
        if name in names.split():
            value = globals()[name] = getattr(import_module(f"{__name__}.{module}"), name)
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

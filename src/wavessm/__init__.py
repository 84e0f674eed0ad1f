"""State-space sequence layers whose state is the coefficient vector of a frame of localised waveforms.

Read the modules in this order: frames, operators, structure, discretize, flows, memory, ops, initial, layer, streaming,
blocks, config, encoders, backbones, heads, models, presets;
then estimators, hub, export, inspection.
"""

from typing import TYPE_CHECKING, Any

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
from wavessm.frames import PAPER_FAMILIES, Frame, Quadrature, Wavelet, families, make_frame, register_family
from wavessm.memory import OnlineMemory
from wavessm.nn.block import ResidualBlock
from wavessm.nn.config import ModelConfig
from wavessm.nn.layer import WaveSSM, param_groups
from wavessm.nn.model import ModelState, SequenceModel
from wavessm.nn.presets import create_model, preset_config, presets
from wavessm.nn.streaming import SampledLayer, sampled
from wavessm.operators import Operator, make_operator
from wavessm.structure import DPLR, Dense, Diagonal

if TYPE_CHECKING:
    from wavessm.estimators import WaveSSMClassifier, WaveSSMForecaster

__version__ = "0.1.0"

__all__ = [
    "DPLR",
    "PAPER_FAMILIES",
    "ConditionError",
    "Dense",
    "Diagonal",
    "Frame",
    "MissingExtraError",
    "ModelConfig",
    "ModelState",
    "NotFiniteError",
    "OnlineMemory",
    "Operator",
    "OptionError",
    "Quadrature",
    "RankError",
    "ResidualBlock",
    "SampledLayer",
    "SequenceModel",
    "ShapeError",
    "UnknownNameError",
    "WaveSSM",
    "WaveSSMClassifier",
    "WaveSSMError",
    "WaveSSMForecaster",
    "Wavelet",
    "bilinear",
    "create_model",
    "families",
    "generalised_bilinear",
    "make_frame",
    "make_operator",
    "param_groups",
    "preset_config",
    "presets",
    "register_family",
    "sampled",
    "zoh",
]


def __getattr__(name: str) -> Any:
    """The estimators, loaded when first asked for: they need scikit-learn and the layers do not."""
    if name in ("WaveSSMClassifier", "WaveSSMForecaster"):
        from wavessm import estimators

        return getattr(estimators, name)
    raise AttributeError(f"module 'wavessm' has no attribute {name!r}")

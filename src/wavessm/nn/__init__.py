"""Layers and models. Read `initial`, `layer`, `block`, `config`, `encoders`, `backbones`, `heads`, `model`; then
`presets`, `streaming`, `pretrained`. Names are imported on first use: `ModelConfig` needs no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wavessm.nn.block import ResidualBlock, SequenceNorm, TiedDropout, masked_batch_norm
    from wavessm.nn.config import ModelConfig
    from wavessm.nn.heads import DirectPath
    from wavessm.nn.initial import initial_modes
    from wavessm.nn.layer import SSM_PARAMETERS, WaveSSM, param_groups, time_mask, whole_lengths
    from wavessm.nn.model import ModelState, SequenceModel
    from wavessm.nn.presets import create_model, preset_config
    from wavessm.nn.streaming import SampledLayer, sampled

__all__ = [
    "SSM_PARAMETERS", "DirectPath", "ModelConfig", "ModelState", "ResidualBlock", "SampledLayer", "SequenceModel",
    "SequenceNorm", "TiedDropout", "WaveSSM", "create_model", "initial_modes", "masked_batch_norm", "param_groups",
    "preset_config", "sampled", "time_mask", "whole_lengths",
]  # fmt: skip

_HOME = {
    "block": "ResidualBlock SequenceNorm TiedDropout masked_batch_norm",
    "config": "ModelConfig",
    "heads": "DirectPath",
    "initial": "initial_modes",
    "layer": "SSM_PARAMETERS WaveSSM param_groups time_mask whole_lengths",
    "model": "ModelState SequenceModel",
    "presets": "create_model preset_config",
    "streaming": "SampledLayer sampled",
}


def __getattr__(name: str) -> Any:
    for module, names in _HOME.items():
        if name in names.split():
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

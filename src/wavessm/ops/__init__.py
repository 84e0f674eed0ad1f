"""The engine: runs a layer's state space over signals, on whatever backend supports the call.

Read `modes` (a layer's parameters, sampled in time), `reference` (the float64 loop), `tables` and `scan` (chunks in
plain PyTorch), `convolution`, then `dispatch`, which chooses; `wavessm.ops.triton` holds the kernels.
"""

from wavessm.ops.dispatch import Engine, activate, batch_norm, gate, layer_norm, nan_safe, run_layer, use_triton
from wavessm.ops.modes import DenseSystem, DiagonalSystem, Modes

__all__ = [
    "DenseSystem", "DiagonalSystem", "Engine", "Modes", "activate", "batch_norm", "gate", "layer_norm", "nan_safe",
    "run_layer", "use_triton",
]  # fmt: skip

"""The engine: runs a layer's state space over signals, on whatever backend supports the call.

Read `modes` and `dplr` (a layer's parameters, sampled in time), `reference` (the float64 loop), `tables` and `scan`
(chunks in plain PyTorch), `convolution`, then `dispatch`, which chooses; `wavessm.ops.triton` holds the kernels.
"""

from wavessm.ops.dispatch import (
    BACKENDS,
    PRECISIONS,
    Engine,
    activate,
    batch_norm,
    gate,
    layer_norm,
    nan_safe,
    run_layer,
    run_system,
    use_triton,
)
from wavessm.ops.dplr import LowRank
from wavessm.ops.modes import DiagonalSystem, Modes
from wavessm.ops.tables import DenseSystem

__all__ = [
    "BACKENDS", "PRECISIONS", "DenseSystem", "DiagonalSystem", "Engine", "LowRank", "Modes", "activate", "batch_norm",
    "gate", "layer_norm", "nan_safe", "run_layer", "run_system", "use_triton",
]  # fmt: skip

"""The engine: runs a layer's state space over signals, on whatever backend supports the call.

Read `modes` (a layer's parameters, sampled in time), `reference` (the float64 loop), `tables` and `scan` (chunks in
plain PyTorch), `convolution`, then `dispatch`, which chooses; `wavessm.ops.triton` holds the kernels.
"""

from wavessm.ops.dispatch import Engine, activate, gate, in_bfloat16, nan_safe, normalize, run_layer, triton_for
from wavessm.ops.modes import DenseSystem, DiagonalSystem, Modes

__all__ = [
    "DenseSystem", "DiagonalSystem", "Engine", "Modes", "activate", "gate", "in_bfloat16", "nan_safe", "normalize",
    "run_layer", "triton_for",
]  # fmt: skip

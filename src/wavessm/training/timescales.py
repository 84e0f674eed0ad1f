"""Stage 8y: a model that has learnt on short sequences, made ready for longer ones.

A layer's kernel is a function of time over 1/Δ. With Δ divided by k and B multiplied by it, zero-order hold gives

    K(t) → K(t / k)

so what a layer remembers of a sequence, as a fraction of its length, stays as it was. The first layer keeps its steps:
what it hears of the signal itself (delays, edges) does not grow with the length.
"""

from __future__ import annotations

import math

import torch
from torch import nn

from wavessm.nn.layer import WaveSSM


def slow_down(model: nn.Module, factor: float) -> None:
    """Slow all layers but the first down, in place; models without such layers (LSTM, Transformer) stay as they are.

    >>> layers = nn.ModuleList(WaveSSM(1, 8, dt_max=1e-3) for _ in range(2))
    >>> with torch.no_grad():
    ...     one, two = (layer.kernel(100)[0, 0] for layer in layers)
    ...     slow_down(layers, 2)
    ...     same, slow = (layer.kernel(100)[0, 0] for layer in layers)
    >>> torch.equal(same, one), bool((slow[::2] - two[:50]).abs().max() < 0.05 * two.abs().max())
    (True, True)
    """
    layers = [module for module in model.modules() if isinstance(module, WaveSSM)]
    with torch.no_grad():
        for layer in layers[1:]:
            layer.log_dt.sub_(math.log(factor))
            layer.B.mul_(factor)

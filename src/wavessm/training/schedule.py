"""Stage 8b: the learning rate as a pure function of the step, so that a resumed run has nothing to restore."""

from __future__ import annotations

import math

FLOOR = 1 / 25
"""Where one-cycle starts, as a fraction of the highest rate."""


def factor(step: int, total: int, schedule: str, warmup: float) -> float:
    """What the highest learning rates are multiplied with at `step`, counted from 0.

    cosine     0 → 1 linearly over the warm-up, then half a cosine to 0 after the last step
    one-cycle  1/25 → 1 → 0, both along half a cosine
    constant   0 → 1 over the warm-up, then 1

    >>> [round(factor(step, 10, "cosine", 0.2), 3) for step in (0, 1, 2, 6, 9)]
    [0.5, 1.0, 1.0, 0.5, 0.038]
    """
    rise = warmup if warmup >= 1 else warmup * total
    if schedule == "one-cycle":
        if step < rise:
            return 1 - (1 - FLOOR) * (1 + math.cos(math.pi * step / rise)) / 2
        return (1 + math.cos(math.pi * (step - rise) / max(total - rise, 1))) / 2
    if step < rise:
        return min(1.0, (step + 1) / rise)
    if schedule == "constant":
        return 1.0
    return (1 + math.cos(math.pi * (step - rise) / max(total - rise, 1))) / 2

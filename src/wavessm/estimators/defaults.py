"""Stage 9b: what the estimators choose where nothing is said, from the size of the data alone.

Steps: a channel with step Δ hears about 1/Δ samples back, so the range goes from the whole sequence to a few samples.
Width and depth grow with the number of cases; the number of epochs falls with it, so that the work stays that of a
coffee break on a small CPU. What was chosen is in `choices_`, and printed if `verbose`.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from wavessm.errors import OptionError
from wavessm.nn.config import ModelConfig

SHORTEST = 10.0
"""Samples that the fastest channels hear."""

STEPS = 1500
"""Optimiser steps a fit aims at."""


class Size(NamedTuple):
    """Of a model and of its training."""

    d_model: int
    n_layers: int
    d_state: int


def step_range(length: int) -> tuple[float, float]:
    """Δ of the slowest and the fastest channels for sequences of `length` samples.

    >>> step_range(100)
    (0.01, 0.1)
    """
    slowest = 1.0 / max(length, 2)
    return slowest, max(1 / SHORTEST, 2 * slowest)


def model_size(cases: int, length: int) -> Size:
    """Width, depth and state for so many cases.

    >>> model_size(60, 150), model_size(20_000, 1000)
    (Size(d_model=32, n_layers=2, d_state=32), Size(d_model=64, n_layers=4, d_state=64))
    """
    d_model = 32 if cases < 1000 else 64
    n_layers = 2 if cases < 500 else 3 if cases < 5000 else 4
    return Size(d_model, n_layers, 32 if length < 500 else 64)


def model_choices(estimator: Any, cases: int, length: int, heard: int) -> dict[str, Any]:
    """Family, sizes and steps of an estimator's model: what it was given, the rest for `cases` of `length` samples.

    heard  samples that the slowest channels should hear
    """
    slow, fast = step_range(heard)
    chosen = {**model_size(cases, length)._asdict(), "dt_min": slow, "dt_max": fast}
    given = {name: getattr(estimator, name) for name in chosen}
    return {"family": estimator.family} | {
        name: value if given[name] is None else given[name] for name, value in chosen.items()
    }


def refuse_changes(estimator: Any, config: ModelConfig) -> None:
    """One line about an option of a warm start that the model to go on with does not have."""
    for name in ("family", "d_model", "n_layers", "d_state", "bidirectional", "dropout", "dt_min", "dt_max", "horizon"):
        given = getattr(estimator, name, None)
        if given is not None:
            refuse_change(name, given, getattr(config, name))


def refuse_change(what: str, now: Any, before: Any) -> None:
    """One line where a warm start needs another model."""
    if now != before:
        raise OptionError(
            f"warm_start: {what} is {now!r}, but the model to go on with has {before!r}; use warm_start=False to begin "
            "anew."
        )


def batch_size(cases: int) -> int:
    """At least four batches in an epoch, of 8 to 64 cases.

    >>> batch_size(36), batch_size(500)
    (9, 64)
    """
    return min(64, max(8, math.ceil(cases / 4)))


def epochs(cases: int, batch: int) -> int:
    """Epochs that make about `STEPS` steps, from 10 to 200.

    >>> epochs(36, 9), epochs(10_000, 64)
    (200, 10)
    """
    return min(200, max(10, round(STEPS / math.ceil(cases / batch))))


def describe(choices: dict[str, object]) -> str:
    """One line of name=value."""
    return ", ".join(f"{name}={value:.3g}" if isinstance(value, float) else f"{name}={value}"
                     for name, value in choices.items())  # fmt: skip

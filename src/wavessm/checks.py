"""Checks of what a user hands in, shared by every public call."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np
import torch

from wavessm.errors import OptionError, ShapeError


def is_whole(value: object) -> bool:
    """Whether a value counts: Python and NumPy integers do, booleans and floats do not."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool | np.bool_)


def whole(value: Any, name: str, least: int) -> int:
    """The value as an int of at least `least`, or `OptionError`.

    >>> whole(np.int64(3), "n", least=2)
    3
    """
    if not is_whole(value) or operator.index(value) < least:
        raise OptionError(f"{name} is {value!r}, expected a whole number of at least {least}.")
    return operator.index(value)


def positive(value: Any, name: str) -> float:
    """The value as a finite float above zero, or `OptionError`."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not (math.isfinite(number) and number > 0):
        raise OptionError(f"{name} is {value!r}, expected a positive finite number.")
    return number


def can_look(x: torch.Tensor) -> bool:
    """Whether the values of a tensor may be looked at without waiting for a device or breaking a compiled graph."""
    return x.device.type == "cpu" and not torch.compiler.is_compiling()


def real_array(values: Any, what: str) -> np.ndarray:
    """Anything array-like as float64, tensors that require gradients included; ragged or complex input is refused."""
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu().numpy()
    try:
        array = np.asarray(values)
        if not np.iscomplexobj(array):
            return np.asarray(array, dtype=np.float64, order="C")
    except (TypeError, ValueError) as reason:
        raise ShapeError(f"{what}: expected an array of real numbers with rows of one length ({reason}).") from reason
    raise OptionError(f"{what}: got complex numbers; give real and imaginary parts as two.")

"""The errors that wavessm raises, and the checks that raise them where a user's call enters.

Every message is one line: what was given, what was expected, what to do. All errors are `ValueError`s, so code that
knows nothing about wavessm can still catch them. Read next: `frames`.
"""

from __future__ import annotations

import difflib
import importlib
import math
import numbers
import operator
import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import torch


class WaveSSMError(ValueError):
    """Base of every error raised on purpose by wavessm."""


class UnknownNameError(WaveSSMError):
    """A name that is not registered; the message offers the closest one."""


class OptionError(WaveSSMError):
    """An option outside its range, or one that has no effect on this object."""


class ShapeError(WaveSSMError):
    """An array whose shape does not fit the call."""


class NotFiniteError(WaveSSMError):
    """NaN or infinity where a number was expected."""


class DataError(WaveSSMError):
    """A file or table that is missing, damaged or in another format; the message names it."""


class RankError(WaveSSMError):
    """Atoms that are linearly dependent, so that no dual frame exists."""


class ConditionError(WaveSSMError):
    """A change of coordinates too ill-conditioned to be meaningful."""


class MissingExtraError(WaveSSMError, ImportError):
    """A feature whose optional dependency is not installed."""


def import_extra(name: str, purpose: str, extra: str = "train") -> Any:
    """Return an optional package that a purpose such as "WAV files" needs, or raise with the extra that brings it."""
    try:
        with warnings.catch_warnings():  # of packages about each other
            warnings.simplefilter("ignore")
            return importlib.import_module(name)
    except ImportError as reason:
        raise MissingExtraError(f"{purpose} need {name}; install it with pip install 'wavessm[{extra}]'.") from reason


def unknown_name(kind: str, name: object, known: Iterable[str]) -> UnknownNameError:
    """Return the error for an unknown name of some kind, offering the closest of the known ones.

    Example:
        >>> str(unknown_name("measure", "scald", ["scaled", "translated"]))
        "unknown measure 'scald': did you mean 'scaled'? Known: scaled, translated."
    """
    names = list(known)
    lower = {other.lower(): other for other in names}
    close = difflib.get_close_matches(str(name).lower(), lower, n=1, cutoff=0.6)
    hint = f": did you mean '{lower[close[0]]}'?" if close else "."
    listed = ", ".join(names[:12]) + (f", … ({len(names)} in all)" if len(names) > 12 else "")
    return UnknownNameError(f"unknown {kind} {name!r}{hint} Known: {listed}.")


def shape_error(name: str, value: Any, expected: str) -> ShapeError:
    """Return the error for a value that is not an array of the expected shape, such as "(batch, length)"."""
    given = f"has shape {tuple(value.shape)}" if hasattr(value, "shape") else f"is a {type(value).__name__}"
    return ShapeError(f"{name} {given}, expected {expected}.")


def shown(value: Any) -> str:
    """Return a value as a message shows it, in part of one line: an array by its type and shape."""
    return f"a {type(value).__name__} of shape {value.shape}" if getattr(value, "shape", ()) else repr(value)[:60]


def is_int(value: object) -> bool:
    """Return whether a value is a Python or NumPy integer; booleans and floats are not."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def check_int(value: Any, name: str, minimum: int) -> int:
    """Return the value as an int of at least `minimum`, or raise `OptionError` with its name."""
    if not is_int(value) or operator.index(value) < minimum:
        raise OptionError(f"{name} is {shown(value)}, expected a whole number of at least {minimum}.")
    return operator.index(value)


def check_number(value: Any, name: str, below: float = math.inf) -> float:
    """Return the value as a float, 0 ≤ value < below, or raise `OptionError` with its name."""
    if not isinstance(value, numbers.Real) or not 0 <= float(value) < below:
        raise OptionError(f"{name} is {shown(value)}, expected a number 0 ≤ {name} < {below:g}.")
    return float(value)


def check_positive(value: Any, name: str) -> float:
    """Return the value as a float above zero and within float32, or raise `OptionError` with its name."""
    try:
        number = math.nan if isinstance(value, str) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not 0 < number < 1e38:
        raise OptionError(f"{name} is {shown(value)}, expected a positive finite number below 1e38.")
    return number


def can_sync(x: torch.Tensor) -> bool:
    """Return whether values of x may be read without waiting for a GPU or breaking a compiled graph."""
    import torch

    return x.device.type == "cpu" and not torch.compiler.is_compiling()


def real_array(values: Any, name: str) -> np.ndarray:
    """Return array-like values, tensors included, as float64; raises on ragged rows and complex numbers."""
    import numpy as np
    import torch

    if isinstance(values, torch.Tensor):
        values = values.detach().cpu().numpy()
    try:
        array = np.asarray(values)
        if not np.iscomplexobj(array):
            return np.asarray(array, dtype=np.float64, order="C")
    except (TypeError, ValueError) as reason:
        raise ShapeError(f"{name}: expected an array of real numbers with rows of equal length ({reason}).") from reason
    raise OptionError(f"{name}: got complex numbers; pass real and imaginary parts separately.")

"""Stage 9c: what a classifier may be given, as one padded tensor with lengths.

(cases, channels, time)     an array
(cases, time)               an array or DataFrame of one channel
[(channels, time), (time,)] a list of arrays of any lengths; of pandas tables (time, channels)
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.utils.validation import check_array, validate_data
from torch import Tensor

from wavessm.errors import NotFiniteError, ShapeError


class Cases(NamedTuple):
    """Signals with time before channels, zero after their end."""

    values: Tensor  # (cases, length, channels)
    lengths: Tensor | None  # (cases,); None where all have the length of the array

    def take(self, index: Tensor) -> Cases:
        """Some of them, no longer than the longest one needs."""
        if self.lengths is None:
            return Cases(self.values[index], None)
        lengths = self.lengths[index]
        return Cases(self.values[index, : int(lengths.max())], lengths)

    def to(self, device: torch.device) -> Cases:
        return Cases(self.values.to(device), None if self.lengths is None else self.lengths.to(device))


def is_list_of_arrays(X: Any) -> bool:
    """Whether X is a list, tuple or object array of arrays or pandas tables, each a case of its own length."""
    if isinstance(X, np.ndarray):
        return X.dtype == object and X.ndim == 1 and len(X) > 0 and isinstance(X[0], np.ndarray)
    return isinstance(X, list | tuple) and len(X) > 0 and all(map(_is_signal, X))


def _is_signal(case: Any) -> bool:
    return isinstance(case, np.ndarray | Tensor) or (hasattr(case, "to_numpy") and hasattr(case, "index"))


def _array(case: Any) -> np.ndarray:
    """(channels, time) or (time,); a table of pandas has time downwards."""
    if isinstance(case, Tensor):
        return case.detach().cpu().numpy()
    return np.asarray(case) if isinstance(case, np.ndarray) else case.to_numpy().T


def read_cases(estimator: Any, X: Any, reset: bool) -> Cases:
    """X as cases; with `reset` the estimator learns `n_features_in_` and `n_channels_`, else X is held against them."""
    if isinstance(X, Tensor):
        X = X.detach().cpu().numpy()
    if is_list_of_arrays(X):
        cases = _from_list(estimator, X)
        if reset:
            estimator.n_features_in_, estimator._columns = cases.values.shape[2], False
            if hasattr(estimator, "feature_names_in_"):
                del estimator.feature_names_in_
    else:
        cases = _from_array(estimator, X, reset)
    channels = cases.values.shape[2]
    if reset:
        estimator.n_channels_ = channels
    elif channels != estimator.n_channels_:
        raise ShapeError(
            f"{_name(estimator)}: X has {channels} channels, expected the {estimator.n_channels_} of fit; "
            "X is (cases, channels, time)."
        )
    return cases


def _from_array(estimator: Any, X: Any, reset: bool) -> Cases:
    try:
        rank = np.ndim(X) if isinstance(X, list | tuple) else getattr(X, "ndim", 2)
    except ValueError as reason:
        raise ShapeError(
            f"{_name(estimator)}: X has rows of several lengths; give a list of NumPy arrays (channels, time)."
        ) from reason
    if rank > 3:
        raise ShapeError(f"{_name(estimator)}: X has {rank} axes, expected (cases, channels, time) or (cases, time).")
    # Columns are compared between tables only: signals of another length are welcome as (cases, channels, time).
    if reset or rank < 2 or (rank == 2 and estimator._columns):
        array = validate_data(estimator, X, reset=reset, dtype=np.float64, allow_nd=True, ensure_all_finite=False)
    else:
        array = check_array(
            X, dtype=np.float64, allow_nd=True, estimator=estimator, input_name="X", ensure_all_finite=False
        )
    broken = np.argwhere(~np.isfinite(array))
    if len(broken):
        raise _not_finite(estimator, int(broken[0][0]))
    if reset:
        estimator._columns = array.ndim == 2
    if array.shape[-1] == 0:
        raise ShapeError(f"{_name(estimator)}: X has shape {array.shape}, expected at least one sample in time.")
    signals = array[:, None] if array.ndim == 2 else array
    return Cases(torch.from_numpy(np.ascontiguousarray(signals.transpose(0, 2, 1), dtype=np.float32)), None)


def _not_finite(estimator: Any, at: int) -> NotFiniteError:
    return NotFiniteError(f"{_name(estimator)}: case {at} of X has NaN or infinity; fill or drop it first.")


def _from_list(estimator: Any, X: Any) -> Cases:
    signals: list[np.ndarray] = []
    for at, case in enumerate(X):
        array = _array(case)
        if array.dtype.kind not in "fiub" or array.ndim not in (1, 2) or 0 in array.shape:
            raise ShapeError(
                f"{_name(estimator)}: case {at} of X is {array.shape} of {array.dtype}, expected real numbers "
                "(channels, time) or (time,)."
            )
        array = array[None] if array.ndim == 1 else array
        if not np.isfinite(array).all():
            raise _not_finite(estimator, at)
        if signals and len(array) != len(signals[0]):
            raise ShapeError(
                f"{_name(estimator)}: case {at} of X has {len(array)} channels, case 0 has {len(signals[0])}."
            )
        signals.append(array)
    lengths = torch.tensor([array.shape[1] for array in signals])
    values = torch.zeros(len(signals), int(lengths.max()), len(signals[0]))
    for row, array in zip(values, signals, strict=True):
        row[: array.shape[1]] = torch.from_numpy(array.T.astype(np.float32))
    return Cases(values, None if int(lengths.min()) == int(lengths.max()) else lengths)


def _name(estimator: Any) -> str:
    return type(estimator).__name__

"""Stage 9c: what a classifier may be given, as one padded tensor with lengths.

(cases, channels, time)     an array
(cases, time)               an array or DataFrame of one channel
[(channels, time), (time,)] a list of arrays of any lengths; of pandas tables (time, channels), channels by name
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.utils import assert_all_finite
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_array, column_or_1d, validate_data
from torch import Tensor

from wavessm.data.tables import LARGEST
from wavessm.errors import DataError, NotFiniteError, OptionError, ShapeError
from wavessm.estimators.defaults import refuse_change
from wavessm.estimators.tables import first_unfit, places


class Cases(NamedTuple):
    """Signals with time before channels, zero after their end."""

    values: Tensor  # (cases, length, channels) float64 as they came, float32 once standardised
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
    """X as cases; with `reset` the estimator learns `n_features_in_`, `n_channels_` and `channel_names_`, else X is
    held against them."""
    if isinstance(X, Tensor):
        X = X.detach().cpu().numpy()
    names = None if reset else estimator.channel_names_
    if is_list_of_arrays(X):
        cases, names = _from_list(estimator, X, names)
        if reset:
            estimator.n_features_in_, estimator._columns = cases.values.shape[2], False
            if hasattr(estimator, "feature_names_in_"):
                del estimator.feature_names_in_
    else:
        cases = _from_array(estimator, X, reset)
    channels = cases.values.shape[2]
    if reset:
        estimator.n_channels_, estimator.channel_names_ = channels, names
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
    if 0 in array.shape:
        raise ShapeError(
            f"{_name(estimator)}: X has shape {array.shape}, expected at least one channel and one sample in time."
        )
    if found := first_unfit(array):
        raise _unfit(estimator, *found)
    if reset:
        estimator._columns = array.ndim == 2
    signals = array[:, None] if array.ndim == 2 else array
    return Cases(torch.from_numpy(signals.transpose(0, 2, 1).copy()), None)


def _unfit(estimator: Any, at: int, value: float) -> NotFiniteError | DataError:
    if not np.isfinite(value):
        return NotFiniteError(f"{_name(estimator)}: case {at} of X has NaN or infinity; fill or drop it first.")
    return DataError(
        f"{_name(estimator)}: case {at} of X has {value:g}, beyond float32 ({LARGEST:.2g} at most); use a larger unit."
    )


def _from_list(estimator: Any, X: Any, names: list | None) -> tuple[Cases, list | None]:
    """Cases, and the names of their channels: those given, else the first table's."""
    signals: list[np.ndarray] = []
    for at, case in enumerate(X):
        array = _array(case)
        if hasattr(case, "columns") and case.shape[1] > 1:  # one channel needs no name
            names = list(case.columns) if names is None else names
            array = array[places(case.columns, names, f"{_name(estimator)}: case {at} of X")]
        if array.dtype.kind not in "fiub" or array.ndim not in (1, 2) or 0 in array.shape:
            raise ShapeError(
                f"{_name(estimator)}: case {at} of X is {array.shape} of {array.dtype}, expected real numbers "
                "(channels, time) or (time,)."
            )
        array = array[None] if array.ndim == 1 else array
        if found := first_unfit(array):
            raise _unfit(estimator, at, found[1])
        if signals and len(array) != len(signals[0]):
            raise ShapeError(
                f"{_name(estimator)}: case {at} of X has {len(array)} channels, case 0 has {len(signals[0])}."
            )
        signals.append(array)
    lengths = torch.tensor([array.shape[1] for array in signals])
    values = torch.zeros(len(signals), int(lengths.max()), len(signals[0]), dtype=torch.float64)
    for row, array in zip(values, signals, strict=True):
        row[: array.shape[1]] = torch.from_numpy(array.T.astype(np.float64))
    return Cases(values, None if int(lengths.min()) == int(lengths.max()) else lengths), names


def read_targets(estimator: Any, y: Any, cases: int, reset: bool) -> Tensor:
    """y as whole numbers (cases,) or, for labels, zeros and ones (cases, labels); with `reset` the estimator learns
    `classes_` and `multilabel_`, else y is held against them."""
    if y is None:
        raise OptionError(f"{_name(estimator)}: requires y to be passed, but the target y is None.")
    if (plain := getattr(getattr(y, "dtype", None), "numpy_dtype", None)) is not None:  # Int64, boolean of pandas
        _check_labels(estimator, list(y))
        y = np.asarray(y, dtype=plain)
    if getattr(y, "dtype", None) is not None and np.asarray(y).dtype.kind == "f":
        assert_all_finite(np.asarray(y), input_name="y")
    _check_labels(estimator, y)
    check_classification_targets(y)
    multilabel = type_of_target(y) == "multilabel-indicator"
    if not multilabel:
        y = column_or_1d(y, warn=True)
    elif hasattr(y, "toarray"):
        y = y.toarray()
    if len(y) != cases:
        raise ShapeError(f"{_name(estimator)}: X has {cases} cases and y {len(y)}: inconsistent numbers of samples.")
    if multilabel:
        targets = torch.from_numpy(np.asarray(y).astype(np.float32))
        classes = np.asarray(y.columns) if hasattr(y, "columns") else np.arange(targets.shape[1])
    else:
        classes, numbers = np.unique(y, return_inverse=True)
        targets = torch.from_numpy(numbers.astype(np.int64))
        if len(classes) < 2:
            raise OptionError(f"{_name(estimator)}: y has one class, '{classes[0]}'; a classifier needs at least two.")
    if not reset:
        refuse_change("the list of classes", classes.tolist(), estimator.classes_.tolist())
        refuse_change("several labels at once", multilabel, estimator.multilabel_)
    estimator.classes_, estimator.multilabel_ = classes, multilabel
    return targets


def _check_labels(estimator: Any, y: Any) -> None:
    """One line about a label that is missing, or text among numbers."""
    if not isinstance(y, list | tuple) and getattr(getattr(y, "dtype", None), "kind", "") != "O":
        return
    labels, who = list(y), _name(estimator)
    for at, label in enumerate(labels):
        if (
            label is None
            or type(label).__name__ in ("NAType", "NaTType")
            or (isinstance(label, float) and label != label)
        ):
            raise DataError(f"{who}: y has {label!r} for case {at}, expected a label; drop the case or name it.")
    texts = [isinstance(label, str) for label in labels]
    if any(texts) and not all(texts):
        text, other = labels[texts.index(True)], labels[texts.index(False)]
        raise DataError(f"{who}: y has {text!r} and {other!r}, expected labels of one kind; make them all text.")


def _name(estimator: Any) -> str:
    return type(estimator).__name__

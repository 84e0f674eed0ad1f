"""What a classifier reads, as one padded tensor with lengths, and its labels as numbers.

X is (cases, channels, time), (cases, time) of one channel, or a list of arrays (channels, time) or (time,) of any
lengths; a list may also hold pandas tables (time, channels), whose channels go by their names.
"""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_array, column_or_1d, validate_data
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from wavessm.data.source import Arrays
from wavessm.data.tables import Scale, check_finite, column_order
from wavessm.errors import DataError, NotFiniteError, OptionError, ShapeError, real_array
from wavessm.nn.encoders import hold

SWAPPED = 8  # channels for each sample beyond which time was probably given before channels
AXES = "X is (cases, channels, time), (cases, time) or a list of arrays (channels, time)"


class Signals(NamedTuple):
    """Cases with time before channels, zero after their end."""

    values: Tensor  # (cases, length, channels) float64
    lengths: Tensor | None  # (cases,); None where all cases have the length of the tensor

    def samples(self) -> Tensor:
        """All samples (samples, channels), without padding."""
        if self.lengths is None:
            return self.values.flatten(0, 1)
        return self.values[torch.arange(self.values.shape[1]) < self.lengths[:, None]]

    def typical_length(self) -> int:
        """Samples of a case, the median where they differ."""
        return int(self.values.shape[1] if self.lengths is None else self.lengths.double().median())

    def take(self, index: Tensor) -> Signals:
        """Some of the cases."""
        return Signals(self.values[index], None if self.lengths is None else self.lengths[index])

    def source(self, scale: Scale, targets: Tensor, fill: bool = False) -> Arrays:
        """What a model trains on: standardised signals and their targets (cases, …); `fill` holds values over NaN."""
        x = torch.from_numpy(scale.apply(self.values.numpy())).float()
        return Arrays(hold(x)[0] if fill else x, targets, self.lengths)


def read_signals(estimator: Any, X: Any, reset: bool, lengths: Any = None) -> Signals:
    """X as the estimator was given it; `reset` sets what the estimator knows of its channels, else X must agree.

    NaN is a missing sample where the estimator's option `missing` allows it; lengths: (cases,) of a padded array.
    """
    X = X.detach().cpu().numpy() if isinstance(X, Tensor) else X
    names, gaps = None if reset else estimator.channel_names_, getattr(estimator, "missing", "error") != "error"
    if _is_list(X):
        signals, names = _from_list(X, names)
        if reset:
            estimator.n_features_in_, estimator._columns = signals.values.shape[2], False
            vars(estimator).pop("feature_names_in_", None)
    else:
        signals = _from_array(estimator, X, reset)
    if gaps and bool((endless := signals.values.isinf().flatten(1).any(1)).any()):
        raise NotFiniteError(f"case {int(endless.int().argmax())} of X has infinity; drop it, or put NaN in its place.")
    check_finite(signals.values.numpy(), "case {} of X", gaps)
    cases, length, channels = signals.values.shape
    if reset:
        if channels > SWAPPED * length:
            told = f"X has {channels} channels of {length} samples; {AXES}: swap the last two axes if yours differ."
            warnings.warn(told, stacklevel=3)
        estimator.n_channels_, estimator.channel_names_ = channels, names
    elif channels != estimator.n_channels_:
        hint = "; swap the last two axes of yours" if length == estimator.n_channels_ else ""
        raise ShapeError(f"X has {channels} channels, expected the {estimator.n_channels_} of fit; {AXES}{hint}.")
    if lengths is None:
        return signals
    given = torch.as_tensor(np.asarray(lengths)).long()
    if given.shape != (cases,) or int(given.min()) < 1 or int(given.max()) > length:
        raise ShapeError(f"lengths are {lengths!r}, expected ({cases},) numbers from 1 to {length}.")
    return Signals(signals.values, given)


def _is_list(X: Any) -> bool:
    """Whether X is a list, tuple or object array of arrays or pandas tables."""
    if isinstance(X, np.ndarray):
        return X.dtype == object and X.ndim == 1 and len(X) > 0 and isinstance(X[0], np.ndarray)
    arrays = isinstance(X, list | tuple) and all(isinstance(x, np.ndarray | Tensor) or _is_table(x) for x in X)
    return arrays and len(X) > 0


def _is_table(case: Any) -> bool:
    return hasattr(case, "to_numpy") and hasattr(case, "index")


def _from_array(estimator: Any, X: Any, reset: bool) -> Signals:
    try:
        rank = np.ndim(X) if isinstance(X, list | tuple) else getattr(X, "ndim", 2)
    except ValueError as reason:
        raise ShapeError(f"X has rows of several lengths, which a list of NumPy arrays may have; {AXES}.") from reason
    if rank not in (2, 3):
        raise ShapeError(f"X has {rank} axes; {AXES}. Reshape your data.")
    options: dict[str, Any] = {"dtype": np.float64, "allow_nd": True, "ensure_all_finite": False}
    # Columns are compared between tables only: signals of another length are welcome as (cases, channels, time).
    if reset or (rank == 2 and estimator._columns):
        array = validate_data(estimator, X, reset=reset, **options)
    else:
        array = check_array(X, estimator=estimator, input_name="X", **options)
    if 0 in array.shape:
        raise ShapeError(f"X has shape {array.shape}, expected at least one channel and one sample; {AXES}.")
    if reset:
        estimator._columns = array.ndim == 2
    signals = array[:, None] if array.ndim == 2 else array
    return Signals(torch.from_numpy(signals.transpose(0, 2, 1).copy()), None)


def _from_list(X: Any, names: list | None) -> tuple[Signals, list | None]:
    """The cases, and the names of their channels: those given, else the first table's."""
    arrays: list[np.ndarray] = []
    for at, case in enumerate(X):
        where = f"case {at} of X"
        array = real_array(case.to_numpy().T if _is_table(case) else case, where)
        if hasattr(case, "columns") and case.shape[1] > 1:  # one channel needs no name
            names = list(case.columns) if names is None else names
            array = array[column_order(case.columns, names, where)]
        if array.ndim not in (1, 2) or 0 in array.shape:
            raise ShapeError(f"{where} has shape {array.shape}, expected (channels, time) or (time,).")
        array = np.atleast_2d(array)
        if arrays and len(array) != len(arrays[0]):
            raise ShapeError(f"{where} has {len(array)} channels, case 0 has {len(arrays[0])}; {AXES}.")
        arrays.append(array)
    lengths = torch.tensor([array.shape[1] for array in arrays])
    values = pad_sequence([torch.from_numpy(array.T.copy()).double() for array in arrays], batch_first=True)
    return Signals(values, None if int(lengths.min()) == int(lengths.max()) else lengths), names


def read_labels(y: Any, cases: int, classes: Any = None) -> tuple[Tensor, np.ndarray, bool]:
    """Labels as numbers of classes (cases,), or zeros and ones (cases, labels); the classes; whether it is the latter.

    The classes are those of y, or those given.
    """
    y = _without_gaps(y)
    if type_of_target(y) == "multiclass-multioutput":
        raise OptionError(f"y has shape {np.shape(y)}; estimators take a label for each case, or columns of 0 and 1. A "
                          "label for each step is a task of `wavessm train arrays`.")  # fmt: skip
    check_classification_targets(y)
    multilabel = type_of_target(y) == "multilabel-indicator"
    names, y = getattr(y, "columns", None), np.asarray(y) if multilabel else column_or_1d(y, warn=True)
    if len(y) != cases:
        raise ShapeError(f"X has {cases} cases and y {len(y)}: inconsistent numbers of samples; {AXES}. A table of "
                         "all cases becomes a list by [table for _, table in X.groupby(level=0)].")  # fmt: skip
    if multilabel:
        classes = np.arange(y.shape[1]) if names is None else np.asarray(names)
        return torch.from_numpy(y.astype(np.float32)), classes, True
    found = np.unique(y)
    if classes is None and len(found) < 2:
        raise OptionError(f"y has one class, '{found[0]}'; a classifier needs at least two.")
    if classes is None and len(found) == cases:
        warnings.warn(f"y has {cases} classes in {cases} cases: one case says nothing of their spread.", stacklevel=5)
    classes = found if classes is None else np.unique(classes)
    if (unknown := np.setdiff1d(found, classes)).size:
        raise DataError(f"y has the label {unknown.tolist()[0]!r}, which is not among classes.")
    return torch.from_numpy(np.searchsorted(classes, y)), classes, False


def _without_gaps(y: Any) -> Any:
    """y, dense and in a NumPy type; missing and infinite labels are refused."""
    import pandas as pd

    if y is None:
        raise OptionError("fit requires y to be passed, but the target y is None.")
    y = y.toarray() if hasattr(y, "toarray") else y
    labels = np.asarray(y, dtype=object)
    endless = [isinstance(label, float | np.floating) and np.isinf(label) for label in labels.flat]
    if (lost := np.argwhere(pd.isna(labels) | np.reshape(endless, labels.shape))).size:
        raise DataError(f"y has {labels[tuple(lost[0])]} for case {lost[0][0]}, expected a label; drop or name it.")
    if (plain := getattr(getattr(y, "dtype", None), "numpy_dtype", None)) is not None:  # Int64, boolean of pandas
        return np.asarray(y, dtype=plain)
    return y

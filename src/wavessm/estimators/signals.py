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

from wavessm.data.source import Arrays
from wavessm.errors import DataError, NotFiniteError, OptionError, ShapeError, real_array
from wavessm.estimators.base import Scale, check_finite, check_unchanged, column_order, predict_all
from wavessm.nn.model import SequenceModel

SWAPPED = 8
"""Channels for each sample beyond which time was probably given before channels."""
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

    def without_gaps(self) -> Signals:
        """The signals themselves; NaN, which gradient training does not read, is refused."""
        if (lost := self.values.isnan().flatten(1).any(1)).any():
            case = int(lost.nonzero()[0])
            raise NotFiniteError(f"case {case} of X has NaN, which needs method='features'; or fill or drop it first.")
        return self

    def take(self, index: Tensor) -> Signals:
        """Some of the cases."""
        return Signals(self.values[index], None if self.lengths is None else self.lengths[index])

    def source(self, scale: Scale, targets: Tensor) -> Arrays:
        """What a model trains on: standardised signals and their targets (cases, …)."""
        return Arrays(torch.from_numpy(scale.apply(self.values.numpy())).float(), targets, self.lengths)


class TrainedModel(NamedTuple):
    """A model trained by gradient descent on standardised signals."""

    model: SequenceModel
    scale: Scale  # of each channel

    def decision_function(self, signals: Signals) -> np.ndarray:
        """Logits or standardised numbers (cases, outputs) float64."""
        source = signals.source(self.scale, torch.zeros(len(signals.values)))
        return predict_all(self.model, source.to(next(self.model.parameters()).device)).double().cpu().numpy()


def read_signals(estimator: Any, X: Any, reset: bool, gaps: bool = False) -> Signals:
    """X as the estimator was given it; `reset` sets what the estimator knows of its channels, else X must agree.

    With `gaps`, NaN is a missing sample.
    """
    X = X.detach().cpu().numpy() if isinstance(X, Tensor) else X
    names = None if reset else estimator.channel_names_
    if _is_list(X):
        signals, names = _from_list(X, names, gaps)
        if reset:
            estimator.n_features_in_, estimator._columns = signals.values.shape[2], False
            vars(estimator).pop("feature_names_in_", None)
    else:
        signals = _from_array(estimator, X, reset, gaps)
    _, length, channels = signals.values.shape
    if reset:
        if channels > SWAPPED * length:
            warnings.warn(
                f"X has {channels} channels of {length} samples; {AXES}: swap the last two axes if yours differ.",
                stacklevel=3,
            )
        estimator.n_channels_, estimator.channel_names_ = channels, names
    elif channels != estimator.n_channels_:
        swapped = length == estimator.n_channels_
        hint = "; swap the last two axes of yours" if swapped else ""
        raise ShapeError(f"X has {channels} channels, expected the {estimator.n_channels_} of fit; {AXES}{hint}.")
    return signals


def _is_list(X: Any) -> bool:
    """Whether X is a list, tuple or object array of arrays or pandas tables."""
    if isinstance(X, np.ndarray):
        return X.dtype == object and X.ndim == 1 and len(X) > 0 and isinstance(X[0], np.ndarray)
    arrays = isinstance(X, list | tuple) and all(isinstance(x, np.ndarray | Tensor) or _is_table(x) for x in X)
    return arrays and len(X) > 0


def _is_table(case: Any) -> bool:
    return hasattr(case, "to_numpy") and hasattr(case, "index")


def _from_array(estimator: Any, X: Any, reset: bool, gaps: bool) -> Signals:
    try:
        rank = np.ndim(X) if isinstance(X, list | tuple) else getattr(X, "ndim", 2)
    except ValueError as reason:
        raise ShapeError(f"X has rows of several lengths, which a list of NumPy arrays may have; {AXES}.") from reason
    if rank > 3:
        raise ShapeError(f"X has {rank} axes; {AXES}.")
    options: dict[str, Any] = {"dtype": np.float64, "allow_nd": True, "ensure_all_finite": False}
    # Columns are compared between tables only: signals of another length are welcome as (cases, channels, time).
    if reset or rank < 2 or (rank == 2 and estimator._columns):
        array = validate_data(estimator, X, reset=reset, **options)
    else:
        array = check_array(X, estimator=estimator, input_name="X", **options)
    if 0 in array.shape:
        raise ShapeError(f"X has shape {array.shape}, expected at least one channel and one sample; {AXES}.")
    check_finite(array, "case {} of X", gaps)
    if reset:
        estimator._columns = array.ndim == 2
    signals = array[:, None] if array.ndim == 2 else array
    return Signals(torch.from_numpy(signals.transpose(0, 2, 1).copy()), None)


def _from_list(X: Any, names: list | None, gaps: bool) -> tuple[Signals, list | None]:
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
        check_finite(array, where, gaps)
        if arrays and len(array) != len(arrays[0]):
            raise ShapeError(f"{where} has {len(array)} channels, case 0 has {len(arrays[0])}; {AXES}.")
        arrays.append(array)
    lengths = torch.tensor([array.shape[1] for array in arrays])
    values = torch.zeros(len(arrays), int(lengths.max()), len(arrays[0]), dtype=torch.float64)
    for row, array in zip(values, arrays, strict=True):
        row[: array.shape[1]] = torch.from_numpy(array.T.copy())
    return Signals(values, None if int(lengths.min()) == int(lengths.max()) else lengths), names


def read_targets(estimator: Any, y: Any, cases: int, reset: bool) -> Tensor:
    """Labels as numbers of classes (cases,), or as zeros and ones (cases, labels).

    With `reset` the estimator learns `classes_` and `multilabel_`, else y must agree with them.
    """
    y = _without_gaps(y)
    check_classification_targets(y)
    multilabel = type_of_target(y) == "multilabel-indicator"
    if not multilabel:
        y = column_or_1d(y, warn=True)
    if len(y) != cases:
        raise ShapeError(f"X has {cases} cases and y {len(y)}: inconsistent numbers of samples; {AXES}.")
    if multilabel:
        targets = torch.from_numpy(np.asarray(y).astype(np.float32))
        classes = np.asarray(y.columns) if hasattr(y, "columns") else np.arange(targets.shape[1])
    else:
        classes, numbers = np.unique(y, return_inverse=True)
        targets = torch.from_numpy(numbers.astype(np.int64))
        if len(classes) < 2:
            raise OptionError(f"y has one class, '{classes[0]}'; a classifier needs at least two.")
    if not reset:
        check_unchanged("the list of classes", classes.tolist(), estimator.classes_.tolist())
        check_unchanged("multilabel", multilabel, estimator.multilabel_)
    estimator.classes_, estimator.multilabel_ = classes, multilabel
    return targets


def _without_gaps(y: Any) -> Any:
    """y, dense and in a NumPy type; missing and infinite labels are refused."""
    import pandas as pd

    if y is None:
        raise OptionError("fit requires y to be passed, but the target y is None.")
    y = y.toarray() if hasattr(y, "toarray") else y
    for (case, *_), label in np.ndenumerate(np.asarray(y, dtype=object)):
        if pd.isna(label) or (isinstance(label, float | np.floating) and np.isinf(label)):
            raise DataError(f"y has {label} for case {case}, expected a label; drop the case or name it.")
    if (plain := getattr(getattr(y, "dtype", None), "numpy_dtype", None)) is not None:  # Int64, boolean of pandas
        return np.asarray(y, dtype=plain)
    return y

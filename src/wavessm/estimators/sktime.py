"""The estimators in sktime's form: a classifier of panels and a forecaster with a horizon. Needs the extra `sktime`.

Each holds one of our estimators; a search names its options `estimator__family`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from sklearn.base import clone

from wavessm.errors import DataError, MissingExtraError
from wavessm.estimators.classifier import WaveSSMClassifier
from wavessm.estimators.forecaster import WaveSSMForecaster

try:
    from sktime.classification.base import BaseClassifier
    from sktime.forecasting.base import BaseForecaster, ForecastingHorizon
except ImportError as reason:
    raise MissingExtraError("this needs sktime: pip install 'wavessm[sktime]'.") from reason

TAGS = {
    "authors": "wavessm",
    "maintainers": "wavessm",
    "capability:multivariate": True,
    "capability:categorical_in_X": False,
    "capability:random_state": True,
    "property:randomness": "derandomized",
}
TINY: dict[str, Any] = {"d_model": 4, "d_state": 4, "n_layers": 1, "max_epochs": 2, "random_state": 0}


class SktimeClassifier(BaseClassifier):
    """A `WaveSSMClassifier` in sktime's form, for panels of several channels and of unequal lengths.

    Args:
        estimator: The classifier; None takes its defaults. After fit `estimator_` is its trained copy.
        random_state: Replaces that of the estimator, unless None.

    >>> random = np.random.default_rng(0)
    >>> X, y = random.standard_normal((10, 2, 30)), np.arange(10) % 2
    >>> model = SktimeClassifier(WaveSSMClassifier(max_epochs=1, random_state=0)).fit(X, y)
    >>> model.predict_proba(X).shape
    (10, 2)
    """

    _tags = TAGS | {
        "X_inner_mtype": "df-list",
        "capability:unequal_length": True,
        "capability:predict_proba": True,
        "capability:class_weight": True,
    }

    def __init__(self, estimator: WaveSSMClassifier | None = None, random_state: Any = None) -> None:
        self.estimator = estimator
        self.random_state = random_state
        super().__init__()

    def _fit(self, X: Any, y: np.ndarray) -> SktimeClassifier:
        self.estimator_ = _copy(WaveSSMClassifier() if self.estimator is None else self.estimator, self.random_state)
        self.estimator_.fit(_arrays(X), y)
        return self

    def _predict(self, X: Any) -> np.ndarray:
        return self.estimator_.predict(_arrays(X))

    def _predict_proba(self, X: Any) -> np.ndarray:
        return self.estimator_.predict_proba(_arrays(X))

    @classmethod
    def get_test_params(cls, parameter_set: str = "default") -> list[dict[str, Any]]:
        """Small models for sktime's own checks."""
        return [
            {"estimator": WaveSSMClassifier(**TINY)},
            {"estimator": WaveSSMClassifier(**TINY, family="db6", bidirectional=False)},
        ]


def _copy(estimator: Any, random_state: Any) -> Any:
    """A copy to train, with the random state if one is given."""
    copy = clone(estimator)
    return copy if random_state is None else copy.set_params(random_state=random_state)


def _arrays(X: list[pd.DataFrame]) -> list[np.ndarray]:
    """Tables (time, channels) as arrays (channels, time)."""
    return [table.to_numpy(dtype=np.float64).T for table in X]


class SktimeForecaster(BaseForecaster):
    """A `WaveSSMForecaster` in sktime's form, with covariates known beforehand and conformal intervals.

    `update` gives it new values; with update_params it is trained again on all values.

    Args:
        estimator: The forecaster; None takes its defaults, with the largest step of `fh` in fit as its horizon. After
            fit `estimator_` is its trained copy.
        random_state: Replaces that of the estimator, unless None.

    >>> y = pd.Series(np.sin(np.arange(80) / 2), index=pd.period_range("2020-01", periods=80, freq="M"))
    >>> model = SktimeForecaster(WaveSSMForecaster(horizon=3, max_epochs=1, random_state=0)).fit(y, fh=[1, 3])
    >>> model.predict().index.astype(str).tolist()
    ['2026-09', '2026-11']
    """

    _tags = TAGS | {
        "y_inner_mtype": ["pd.Series", "pd.DataFrame"],
        "X_inner_mtype": "pd.DataFrame",
        "capability:exogenous": True,
        "capability:insample": False,
        "capability:pred_int": True,
        "capability:pred_int:insample": False,
        "capability:non_contiguous_X": False,
        "capability:update": True,
        "requires-fh-in-fit": False,
    }
    _config = {"remember_data": False}  # noqa: RUF012  `seen_` and `known_` have the data
    _y = _X = None  # what sktime remembers where that is switched on

    def __init__(self, estimator: WaveSSMForecaster | None = None, random_state: Any = None) -> None:
        self.estimator = estimator
        self.random_state = random_state
        super().__init__()

    def _fit(self, y: Any, X: Any, fh: Any) -> SktimeForecaster:
        inner = self.estimator
        if inner is None:
            steps = np.ones(1) if fh is None else np.asarray(fh.to_relative(self.cutoff))
            inner = WaveSSMForecaster(horizon=max(1, int(steps.max())))
        self.estimator_ = _copy(inner, self.random_state)
        self.seen_, self.known_ = y, X
        self.estimator_.fit(y, X)
        return self

    def _update(self, y: Any, X: Any = None, update_params: bool = True) -> SktimeForecaster:
        self.seen_ = _joined(self.seen_, y)
        self.known_ = None if self.known_ is None else _joined(self.known_, X)
        if update_params:
            self.estimator_.fit(self.seen_, self.known_)
        return self

    def _predict(self, fh: Any, X: Any) -> Any:
        steps, covariates = self._ahead(fh, X)
        values = self.estimator_.predict(int(steps.max()), series=self.seen_, covariates=covariates)
        return values.iloc[steps - 1].set_axis(fh.to_absolute_index(self.cutoff), axis=0)

    def _predict_interval(self, fh: Any, X: Any, coverage: list[float]) -> pd.DataFrame:
        steps, covariates = self._ahead(fh, X)
        names = self._get_varnames()
        columns = pd.MultiIndex.from_product([names, coverage, ["lower", "upper"]])
        table = pd.DataFrame(index=fh.to_absolute_index(self.cutoff), columns=columns, dtype=float)
        for level in coverage:
            bounds = self.estimator_.predict_interval(int(steps.max()), level, self.seen_, covariates)
            for side, values in zip(("lower", "upper"), bounds, strict=True):
                picked = np.asarray(values, dtype=float).reshape(len(values), -1)[steps - 1]
                for column, name in enumerate(names):
                    table[(name, level, side)] = picked[:, column]
        return table

    def _ahead(self, fh: Any, X: Any) -> tuple[np.ndarray, Any]:
        """Steps ahead (n,), and the covariates of all that was seen and of every step up to the last one."""
        steps = np.asarray(fh.to_relative(self.cutoff), dtype=int)
        if self.known_ is None:
            return steps, None
        every = ForecastingHorizon(np.arange(1, steps.max() + 1), is_relative=True).to_absolute_index(self.cutoff)
        given = None if X is None else X.reindex(every)
        if given is None or given.isna().any(axis=None):
            raise DataError(
                f"X: fit had covariates, so predict needs those of every step from {every[0]} to {every[-1]}."
            )
        return steps, pd.concat([self.known_.reindex(self.seen_.index), given])

    @classmethod
    def get_test_params(cls, parameter_set: str = "default") -> list[dict[str, Any]]:
        """Small models for sktime's own checks."""
        short = TINY | {"horizon": 4, "context": 1, "validation_fraction": 0.7}  # the checks have short series
        return [
            {"estimator": WaveSSMForecaster(**short)},
            {"estimator": WaveSSMForecaster(**short, family="legs"), "random_state": 1},
        ]


def _joined(old: Any, new: Any) -> Any:
    """Old rows and new ones; a new row replaces an old one."""
    if new is None:
        return old
    both = pd.concat([old, new])
    return both[~both.index.duplicated(keep="last")].sort_index()

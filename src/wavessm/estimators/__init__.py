"""A classifier and a forecaster with scikit-learn's conventions, for people with data in memory.

    WaveSSMClassifier().fit(X, y).predict_proba(X)        X (cases, channels, time), (cases, time) or a list of arrays
    WaveSSMForecaster(horizon=24).fit(series).predict()   arrays (time,) or (time, columns), pandas, or several of them

Read `base.py` (options, defaults, training), then each estimator after what it reads: `signals.py`, `series.py`.
"""

from __future__ import annotations

from wavessm.errors import MissingExtraError

try:
    import sklearn  # noqa: F401
except ImportError as reason:
    raise MissingExtraError("the estimators need scikit-learn: pip install 'wavessm[estimators]'.") from reason

from wavessm.estimators.classifier import WaveSSMClassifier
from wavessm.estimators.features import StateFeatures
from wavessm.estimators.forecaster import WaveSSMForecaster
from wavessm.estimators.regressor import WaveSSMRegressor
from wavessm.estimators.sound import LogEnergies
from wavessm.training.backtest import Backtest

__all__ = ["Backtest", "LogEnergies", "StateFeatures", "WaveSSMClassifier", "WaveSSMForecaster", "WaveSSMRegressor"]

"""Stage 9: models for people with data: a classifier and a forecaster that follow scikit-learn's conventions.

    WaveSSMClassifier().fit(X, y).predict_proba(X)        X (cases, channels, time), (cases, time) or a list of arrays
    WaveSSMForecaster(horizon=24).fit(series).predict()   arrays, pandas, or several of them

Read `fitting.py` (the training loop), `defaults.py` (what is chosen when nothing is said), `tables.py`, `arrays.py`,
`index.py` and `series.py` (what may come in), then the two estimators.
"""

from __future__ import annotations

from wavessm.errors import MissingExtraError

try:
    import sklearn  # noqa: F401
except ImportError as reason:
    raise MissingExtraError("the estimators need scikit-learn: pip install 'wavessm[estimators]'.") from reason

from wavessm.estimators.backtest import Backtest, Interval
from wavessm.estimators.classifier import WaveSSMClassifier
from wavessm.estimators.forecaster import WaveSSMForecaster

__all__ = ["Backtest", "Interval", "WaveSSMClassifier", "WaveSSMForecaster"]

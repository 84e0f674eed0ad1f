"""The estimators in sktime's form: some of the checks that sktime ships, and that nothing is lost on the way.

All of sktime's checks: benchmarks/estimator_checks.py, results in results/estimators/checks.csv.
"""

import functools

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("sktime", reason="needs sktime: pip install 'wavessm[sktime]'")

from sktime.utils.estimator_checks import check_estimator

from wavessm.errors import DataError
from wavessm.estimators import WaveSSMClassifier, WaveSSMForecaster
from wavessm.estimators.sktime import SktimeClassifier, SktimeForecaster

SMALL = {"d_model": 8, "d_state": 8, "n_layers": 1, "random_state": 0}

CHECKS = {
    SktimeClassifier: [
        "test_classifier_output",
        "test_fit_does_not_overwrite_hyper_params",
        "test_set_params_sklearn",
        "test_random_tags",
    ],
    SktimeForecaster: [
        "test_predict_interval",
        "test_update_predict_single",
        "test__y_remember_data",
        "test_fit_does_not_overwrite_hyper_params",
        "test_random_tags",
    ],
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", CHECKS)
def test_sktimes_own_checks_hold(kind):
    results = check_estimator(kind, tests_to_run=CHECKS[kind], verbose=False)
    assert {name.partition("[")[0] for name in results} == set(CHECKS[kind])
    failed = {name: str(result) for name, result in results.items() if not isinstance(result, str)}
    assert not failed


def ragged(cases=8):
    """Two channels of unequal lengths as a table with two levels of index, and as a list of arrays"""
    random = np.random.default_rng(0)
    arrays = [random.standard_normal((2, 20 + case)) for case in range(cases)]
    tables = [pd.DataFrame(array.T, columns=["a", "b"]) for array in arrays]
    return pd.concat(tables, keys=range(cases), names=["case", "time"]), arrays, np.arange(cases) % 2


def test_a_panel_of_unequal_lengths_is_classified_as_our_list_of_arrays():
    table, arrays, y = ragged()
    inner = WaveSSMClassifier(max_epochs=2, **SMALL)
    wanted = inner.fit(arrays, y).predict_proba(arrays)
    model = SktimeClassifier(inner).fit(table, y)
    np.testing.assert_allclose(model.predict_proba(table), wanted, atol=1e-12)
    other = SktimeClassifier(inner, random_state=5).fit(table, y)
    assert not np.allclose(other.predict_proba(table), wanted), "the given random state takes the estimator's place"
    assert SktimeClassifier(inner).set_params(estimator__family="db6").get_params()["estimator__family"] == "db6"


def monthly(length=60):
    random = np.random.default_rng(0)
    values = np.sin(2 * np.pi * np.arange(length) / 12) + 0.1 * random.standard_normal(length)
    return pd.Series(values, index=pd.period_range("2020-01", periods=length, freq="M"), name="load")


def test_steps_are_picked_and_new_values_are_read_without_training():
    y = monthly()
    inner = WaveSSMForecaster(horizon=4, context=12, max_epochs=2, **SMALL)
    wanted = inner.fit(y[:50]).predict(6)
    model = SktimeForecaster(inner).fit(y[:50], fh=[2, 6])
    np.testing.assert_allclose(model.predict(), wanted.iloc[[1, 5]], atol=1e-12)
    bounds = model.predict_interval(coverage=0.5)
    np.testing.assert_allclose(bounds["load"][0.5]["upper"], inner.predict_interval(6, 0.5).upper.iloc[[1, 5]])
    trained = model.estimator_.model_
    model.update(y[50:], update_params=False)
    assert model.estimator_.model_ is trained
    assert model.predict().index.astype(str).tolist() == ["2025-02", "2025-06"]
    np.testing.assert_allclose(model.predict(), inner.predict(6, series=y).iloc[[1, 5]], atol=1e-12)
    model.update(y[50:], update_params=True)
    assert model.estimator_.model_ is not trained


def test_the_horizon_comes_from_what_fit_is_asked_for(monkeypatch):
    quick = functools.partial(WaveSSMForecaster, max_epochs=1, **SMALL)
    monkeypatch.setattr("wavessm.estimators.sktime.WaveSSMForecaster", quick)
    fitted = SktimeForecaster(random_state=7).fit(monthly(40), fh=[1, 5])
    assert fitted.estimator_.horizon == 5
    assert fitted.estimator_.random_state == 7


def test_covariates_of_a_step_between_are_asked_for():
    y = monthly()
    X = pd.DataFrame({"promotion": (np.arange(60) % 3 == 0).astype(float)}, index=y.index)
    model = SktimeForecaster(WaveSSMForecaster(horizon=3, context=6, max_epochs=2, **SMALL)).fit(y[:50], X[:50])
    ahead = model.predict(fh=[1, 3], X=X[50:])
    wanted = WaveSSMForecaster(horizon=3, context=6, max_epochs=2, **SMALL).fit(y[:50], X[:50])
    np.testing.assert_allclose(ahead, wanted.predict(3, covariates=X[50:53]).iloc[[0, 2]], atol=1e-12)
    with pytest.raises(DataError, match="every step from 2024-03 to 2024-05") as raised:
        model.predict(fh=[1, 3], X=X.iloc[[50, 52]])
    assert "\n" not in str(raised.value)

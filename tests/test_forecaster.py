"""The forecaster: what goes in and comes out, intervals, and that no forecast knows its future."""

import copy

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, TimeSeriesSplit

import wavessm as ws
from wavessm.errors import DataError
from wavessm.estimators import WaveSSMForecaster
from wavessm.estimators.forecaster import improves
from wavessm.features import line
from wavessm.training.backtest import conformal, step_quantiles

SMALL = {"d_model": 8, "d_state": 8, "n_layers": 1, "random_state": 0, "learning_rate": 0.02}


def season(length=240, seed=0, noise=0.1, columns=1):
    """(length, columns) with a period of 12"""
    random = np.random.default_rng(seed)
    t = np.arange(length)[:, None] + 3 * np.arange(columns)
    return 5 + np.sin(2 * np.pi * t / 12) + noise * random.standard_normal((length, columns))


@pytest.fixture(scope="module")
def fitted():
    return WaveSSMForecaster(horizon=6, context=24).fit(season(400)[:, 0])


def between(model, level):
    """A copy of a fitted model that gives the quantiles around the middle `level`."""
    return copy.copy(model).set_params(quantiles=((1 - level) / 2, (1 + level) / 2))


def test_learns_a_season_better_than_repeating_the_last_value(fitted):
    result = fitted.backtest(season(200, seed=1)[:, 0])
    assert result.mase < 0.5
    assert result.r2 > 0.7


def test_backtest_counts_as_one_would_by_hand(fitted):
    series = season(60, seed=2)[:, 0]
    result = fitted.backtest(series, stride=7)
    origins = np.arange(24, 60 - 6 + 1, 7)
    by_hand = np.stack([fitted.predict(series=series[:end]) for end in origins])
    truth = np.stack([series[end : end + 6] for end in origins])
    np.testing.assert_array_equal(result.origins[:, 1], origins)
    np.testing.assert_allclose(result.forecasts[..., 0], by_hand, rtol=1e-5)
    assert result.mae == pytest.approx(np.abs(by_hand - truth).mean(), rel=1e-5)
    assert result.rmse == pytest.approx(np.sqrt(np.square(by_hand - truth).mean()), rel=1e-5)
    naive = np.abs(series[origins - 1][:, None] - truth).mean()
    assert result.mase == pytest.approx(result.mae / naive, rel=1e-5)


def test_no_forecast_knows_its_future(fitted):
    series = season(60, seed=3)[:, 0]
    before = fitted.backtest(series).forecasts
    series[40:] = 99.0
    after = fitted.backtest(series).forecasts
    origins = np.arange(24, 55)
    np.testing.assert_array_equal(after[origins <= 40], before[origins <= 40])
    assert not np.allclose(after[origins > 40], before[origins > 40])


def test_beyond_the_horizon_it_reads_its_own_forecasts(fitted):
    series = season(60, seed=4)[:, 0]
    first = fitted.predict(series=series)
    both = np.concatenate([series, first])
    np.testing.assert_allclose(fitted.predict(15, series=series)[6:12], fitted.predict(series=both), rtol=1e-4)
    assert fitted.predict(2).shape == (2,)
    np.testing.assert_array_equal(fitted.predict(2), fitted.predict(6)[:2])


def test_intervals_cover_what_they_promise(fitted):
    new = season(400, seed=5)[:, 0]
    for level in (0.5, 0.9):
        covered = between(fitted, level).backtest(new).coverage
        assert abs(covered - level) < 0.12, (level, covered)
    narrow, wide = between(fitted, 0.5).predict(), between(fitted, 0.9).predict()
    assert (wide[:, 1] - wide[:, 0] > narrow[:, 1] - narrow[:, 0]).all()
    assert ((wide[:, 0] < fitted.predict()) & (fitted.predict() < wide[:, 1])).all()
    with pytest.raises(DataError, match=r"the quantile 0\.0005 needs 1999"):
        between(fitted, 0.999).predict()


@pytest.mark.parametrize(("freq", "rows", "horizon"), [("MS", 72, 12), ("QS", 48, 8), ("YS", 40, 6)])
def test_short_series_have_quantiles_by_the_errors_of_all_steps(freq, rows, horizon):
    series = pd.Series(season(rows, noise=1.0)[:, 0], pd.date_range("1990-01-01", periods=rows, freq=freq))
    model = WaveSSMForecaster(horizon=horizon, quantiles=(0.1, 0.3, 0.5, 0.7, 0.9)).fit(series)
    ahead = model.predict().to_numpy()
    assert ahead.shape == (horizon, 5)
    assert (np.diff(ahead) > 0).all()
    before = model.predict().to_numpy()
    with pytest.raises(DataError, match=r"the quantile 0\.001 needs 999"):  # refused by fit, which keeps what was there
        model.set_params(quantiles=(0.001, 0.9)).fit(series[5:])
    np.testing.assert_array_equal(model.set_params(quantiles=(0.1, 0.3, 0.5, 0.7, 0.9)).predict(), before)


def test_pooled_errors_have_the_size_of_their_step():
    errors = np.random.default_rng(0).standard_normal((60, 4, 1)) * np.array([1.0, 2.0, 4.0, 3.0])[:, None]
    errors[5:, 2:] = np.nan
    found = step_quantiles(errors, [0.05, 0.95])
    np.testing.assert_array_equal(found[0.95][:2], conformal(errors[:, :2], 0.95))
    size = np.sqrt(np.nanmean(np.square(errors), axis=0))
    pooled = (errors / np.maximum.accumulate(size)).ravel()
    assert found[0.95][2, 0] == pytest.approx(size[2, 0] * conformal(pooled, 0.95))
    assert (found[0.95][3] >= found[0.95][2]).all(), "the fourth step is taken to be no smaller than the third"


def test_intervals_come_from_the_end_that_training_never_saw():
    series = season(300, noise=0.05)[:, 0]
    loud = series.copy()
    loud[-30:] += np.random.default_rng(1).normal(0, 1.0, 30)  # the calibrating half of the last fifth
    widths = []
    for given in (series, loud):
        model = WaveSSMForecaster(horizon=3, context=24, max_epochs=4, **SMALL).fit(given)
        widths.append(np.diff(between(model, 0.8).predict()).mean())
    assert widths[1] > widths[0] + 0.8, "noise of deviation 1 is ± 1.28 at this level"


@pytest.mark.parametrize("freq", ["h", "D", "MS", "B"])
def test_dates_continue_where_the_series_ends(freq):
    index = pd.date_range("2023-11-01", periods=120, freq=freq, name="when")
    series = pd.Series(season(120)[:, 0], index=index, name="load")
    model = WaveSSMForecaster(horizon=4, context=12, max_epochs=1, **SMALL).fit(series)
    ahead = model.predict(7)
    assert ahead.name == "load"
    pd.testing.assert_index_equal(ahead.index, pd.date_range(index[-1], periods=8, freq=freq, name="when")[1:])
    assert model.marks_.cycles, "the calendar is read"


def test_frames_keep_their_columns_and_integer_indices_continue():
    frame = pd.DataFrame(season(120, columns=2), columns=["a", "b"], index=np.arange(0, 240, 2))
    model = WaveSSMForecaster(horizon=3, max_epochs=1, **SMALL).fit(frame)
    ahead = model.predict()
    assert list(ahead.columns) == ["a", "b"]
    assert ahead.index.tolist() == [240, 242, 244]
    assert WaveSSMForecaster(horizon=3, max_epochs=1, **SMALL).fit(frame.to_numpy()).predict().shape == (3, 2)


@pytest.mark.parametrize(
    ("index", "wanted"),
    [
        (pd.Index(0.5 * np.arange(90), name="s"), [45.0, 45.5]),
        (pd.Index(np.round(1958.2 + np.arange(90) / 12, 3)), [1965.700, 1965.783]),
    ],
)
def test_any_regular_index_continues(index, wanted):
    series = pd.Series(season(90)[:, 0], index=index)
    ahead = WaveSSMForecaster(horizon=2, context=12, max_epochs=1, **SMALL).fit(series).predict()
    np.testing.assert_allclose(ahead.index, wanted, atol=1e-3)


def test_several_series_share_a_model_and_keep_their_scales():
    low, high = season(150)[:, 0], 1000 * season(170, seed=1)[:, 0]
    model = WaveSSMForecaster(horizon=6, context=24, max_epochs=10, **SMALL).fit({"low": low, "high": high})
    ahead = model.predict()
    assert list(ahead) == ["low", "high"]
    assert 2 < ahead["low"].mean() < 8 < 2000 < ahead["high"].mean() < 8000
    again = clone(model).fit([low, high]).predict()
    np.testing.assert_array_equal(again[1], ahead["high"])


def test_series_keep_their_scales_in_any_order_by_their_keys():
    low, high = season(120)[:, 0], 1000 * season(120, seed=1)[:, 0]
    model = WaveSSMForecaster(horizon=6, context=24, max_epochs=1, **SMALL).fit({"low": low, "high": high})
    model.set_params(quantiles=(0.25, 0.75))
    width = {key: np.diff(values) for key, values in model.predict().items()}
    for given in ({"high": high, "low": low}, {"high": high}, {"high": high, "new": low}):
        there = {key: np.diff(values) for key, values in model.predict(series=given).items()}
        np.testing.assert_allclose(there["high"], width["high"], rtol=1e-5)
    assert 0 < there["new"].max() < 10 * width["low"].max()
    swapped = model.predict(series=[high, low])  # a list has places only
    assert np.diff(swapped[0]).min() > 100 * width["low"].max(), "its width follows its context"
    orders = [{"low": low, "high": high}, {"high": high, "low": low}]
    first, second = (model.backtest(series, h=2, stride=5) for series in orders)
    assert (first.mae, first.coverage) == pytest.approx((second.mae, second.coverage))


def test_covariates_known_beforehand_move_the_forecast():
    random = np.random.default_rng(0)
    promotion = (random.random((300, 1)) < 0.3).astype(float)
    series = 10 + 5 * promotion[:, 0] + 0.1 * random.standard_normal(300)
    model = WaveSSMForecaster(horizon=4, context=12, max_epochs=15, **SMALL).fit(series, promotion)
    ahead = model.predict(covariates=np.array([[0.0], [1.0], [0.0], [1.0]]))
    assert (ahead[[1, 3]] - ahead[[0, 2]] > 2).all()
    longer = model.predict(6, covariates=np.array([[0.0], [1.0], [0.0], [1.0], [1.0], [0.0]]))
    np.testing.assert_allclose(longer[:4], ahead, rtol=1e-5)
    assert longer[4] - longer[5] > 2
    with pytest.raises(ws.OptionError, match=r"fit had covariates; give those of the next 4 steps"):
        model.predict()
    with pytest.raises(ws.OptionError, match=r"give those of the series and of the next 0 steps"):
        model.backtest(series)
    assert model.backtest(series, covariates=promotion).mae < 1
    with pytest.raises(ws.OptionError, match="fit had no covariates; leave them out"):
        WaveSSMForecaster(max_epochs=1, **SMALL).fit(series).predict(covariates=promotion[:1])
    with pytest.raises(ws.ShapeError, match=r"expected \(4, 1\)"):
        model.predict(covariates=np.zeros((3, 1)))
    assert model.backtest().mae < 1


def test_follows_scikit_learns_conventions():
    model = WaveSSMForecaster(horizon=3, context=12, max_epochs=1, **SMALL)
    assert clone(model).get_params() == model.get_params()
    series = season(200)
    search = GridSearchCV(model, {"context": [6, 24]}, cv=TimeSeriesSplit(2)).fit(series)
    assert search.best_params_["context"] in (6, 24)
    first = clone(model).fit(series).predict()
    np.testing.assert_array_equal(clone(model).fit(series).predict(), first)
    warm = clone(model).set_params(warm_start=True, method="gradient").fit(series)
    inside = warm.model_
    assert warm.fit(series).model_ is inside
    with pytest.raises(ws.OptionError, match="warm_start: d_model is 16, but the fitted model has 8"):
        warm.set_params(d_model=16).fit(series)


def test_the_rows_set_aside_do_not_reach_what_calibrates():
    series = season(200)[:, 0]
    changed = series.copy()
    changed[180:] += 50
    options = {"horizon": 3, "context": 12}
    plain, other = (WaveSSMForecaster(**options).fit(one) for one in (series, changed))
    np.testing.assert_array_equal(plain.series_[0].scale.mean, other.series_[0].scale.mean)
    np.testing.assert_array_equal(plain.held_.line.W, other.held_.line.W)
    assert not np.allclose(plain.line_.W, other.line_.W), "refit reads them"
    np.testing.assert_array_equal(WaveSSMForecaster(**options, refit=False).fit(changed).line_.W, plain.held_.line.W)


STORES = pd.DataFrame(
    {"store": ["a"] * 40 + ["b"] * 40, "date": [*pd.date_range("2024", periods=40)] * 2, "sales": np.arange(80.0)}
)


@pytest.mark.parametrize(
    ("series", "options", "error", "words"),
    [
        (np.r_[np.zeros(50), np.nan], {}, ws.NotFiniteError, "series: row 50 has NaN or infinity"),
        (np.zeros((5, 2, 2)), {}, ws.ShapeError, r"shape \(5, 2, 2\), expected \(time,\) or \(time, columns\)"),
        (["a", "b"], {}, ws.WaveSSMError, "expected an array of real numbers"),
        (np.zeros(90), {"method": "linar"}, ws.UnknownNameError, "did you mean 'linear'"),
        (np.zeros(90), {"missing": "drop"}, ws.UnknownNameError, "Known: error, hold, gap"),
        (np.zeros(90), {"quantiles": (0.1, 1.5)}, ws.OptionError, "quantiles is 1.5"),
        (np.zeros(90), {"split": (80, 20)}, ws.OptionError, r"ends at rows \[80, 100\] of 90"),
        (np.zeros(90), {"split": ("2024", "2025")}, DataError, "the series have no dates"),
        (np.zeros(90), {"split": 0.5}, ws.OptionError, "two counts, two fractions, or the dates"),
        (np.arange(12.0), {"method": "gradient", "horizon": 3}, DataError, "needs rows to choose by"),
        (np.zeros(9), {"horizon": 8}, DataError, "the series has 9 steps, 1 to train on"),
        ([np.zeros(90), np.zeros(9)], {"horizon": 8}, DataError, "series 1 has 9 steps"),
        ({"a": np.zeros(90), "b": np.zeros(9)}, {"horizon": 8}, DataError, "series 'b' has 9 steps"),
        (np.zeros(90), {"horizon": 0}, ws.OptionError, "horizon is 0"),
        (np.zeros(90), {"calendar": "no"}, ws.OptionError, "calendar is 'no'"),
        (np.zeros(90), {"validation_fraction": 1.0}, ws.OptionError, "validation_fraction is 1.0"),
        ([np.zeros(90), np.zeros((90, 2))], {}, ws.ShapeError, "series 1 has 2 columns"),
        ({}, {}, ws.ShapeError, "empty, expected"),
        (pd.Series(np.arange(9.0), index=list("abcdefghi")), {}, DataError, r"not dates or numbers \('a' …\)"),
        (1e300 * np.arange(90.0), {}, DataError, r"row 1 has 1e\+300, beyond float32 \(3\.4e\+38 at most\)"),
        (STORES[["date", "sales"]], {}, DataError, r"column 'date' holds dates; use series\.set_index\('date'\)"),
        (STORES[["date", "sales"]].astype({"date": str}), {}, DataError, r"'date' holds dates; use series\.set_index"),
        (STORES, {}, DataError, r"column 'store' holds text \('a'\); .* name the columns unique_id, ds and y"),
        (STORES.set_index(["store", "date"]), {}, DataError, "2 levels; .*reset_index.* unique_id, ds and y"),
        (STORES.set_index("date").sales.sort_index(), {}, DataError, "are repeated, .* unique_id, ds and y"),
        (np.arange(90.0), {"validation_fraction": "x"}, ws.OptionError, "validation_fraction is 'x'"),
    ],
)
def test_wrong_series_are_one_line(series, options, error, words):
    with pytest.raises(error, match=words) as raised:
        WaveSSMForecaster(**({"horizon": 2, "max_epochs": 1} | SMALL | options)).fit(series)
    assert "\n" not in str(raised.value)


def dated(freq, length=90):
    return pd.Series(season(length)[:, 0], index=pd.date_range("2024", periods=length, freq=freq))


def test_columns_go_by_their_names():
    frame = pd.DataFrame(season(120, columns=2) * [1, 10], columns=["a", "b"])
    known = pd.DataFrame(season(123, seed=1, columns=2) * [1, 10], columns=["p", "q"])
    past, future = known[:120], known[120:]
    model = WaveSSMForecaster(horizon=3, context=12, max_epochs=1, **SMALL).fit(frame, past)
    assert (model.column_names_, model.covariate_names_) == (["a", "b"], ["p", "q"])
    wanted = model.predict(covariates=future)
    pd.testing.assert_frame_equal(model.predict(covariates=future[["q", "p"]]), wanted)
    pd.testing.assert_frame_equal(model.predict(series=frame[["b", "a"]], covariates=known[["q", "p"]]), wanted)
    result = model.backtest(frame[["b", "a"]], covariates=past[["q", "p"]])
    np.testing.assert_array_equal(result.forecasts, model.backtest(frame, covariates=past).forecasts)
    both = [clone(model).fit([frame, second]).predict()[1] for second in (frame, frame[["b", "a"]])]
    pd.testing.assert_frame_equal(*both)
    other = {"a": "z", "p": "z"}
    for call, words in (
        (
            lambda: model.predict(series=frame.rename(columns=other), covariates=known),
            "series: the columns are 'z', 'b'",
        ),
        (lambda: model.predict(covariates=future.rename(columns=other)), "covariates: the columns are 'z', 'q'"),
        (lambda: clone(model).fit([frame, frame.rename(columns=other)]), "series 1: .* expected 'a', 'b' in any order"),
    ):
        with pytest.raises(DataError, match=words) as raised:
            call()
        assert "\n" not in str(raised.value)


def test_rows_of_another_step_are_refused():
    hourly = WaveSSMForecaster(horizon=3, context=12, max_epochs=1, **SMALL).fit(dated("h"))
    for call in (
        lambda: hourly.predict(series=dated("D")),
        lambda: hourly.backtest(dated("D")),
        lambda: clone(hourly).fit([dated("h"), dated("D")]),
    ):
        with pytest.raises(
            DataError, match="its rows are 1 day, 0:00:00 apart, but the model was trained on rows 1:00:00 apart"
        ) as raised:
            call()
        assert "\n" not in str(raised.value)
    monthly = clone(hourly).fit(dated("MS"))
    assert len(monthly.predict(series=dated("ME", 12))) == 3, "months are as long as they are"
    daily = clone(hourly).set_params(context=2).fit(dated("B"))
    few = dated("B", 6)[3:]  # Thursday, Friday, Monday
    assert len(daily.predict(series=few.set_axis(pd.DatetimeIndex(few.index, freq=None)))) == 3


@pytest.mark.parametrize(
    ("index", "words"),
    [
        (np.arange(90)[::-1], "its index does not rise"),
        (np.r_[0:40, 39:89], "1 time stamps are repeated, the first is 39"),
        (np.r_[0:40, 41:91], "its index has gaps"),
        (0.5 * np.r_[0:40, 41:91], "its index has gaps"),
        (pd.period_range("2020", periods=90, freq="M"), r"not dates or numbers .*\.to_timestamp\(\)"),
        (pd.date_range("2024", periods=91).delete(40), "its index has gaps"),
        (pd.date_range("2024", periods=90).date, "not dates or numbers .*pd.to_datetime"),
    ],
)
def test_an_irregular_index_is_one_line(index, words):
    with pytest.raises(DataError, match=words) as raised:
        WaveSSMForecaster(max_epochs=1).fit(pd.Series(season(90)[:, 0], index=index))
    assert "\n" not in str(raised.value)


def test_a_warm_start_keeps_its_choices_and_refuses_another_model():
    series = season(90)[:, 0]
    model = WaveSSMForecaster(horizon=3, max_epochs=1, warm_start=True, method="gradient", **SMALL).fit(series[:60])
    first, context = model.model_, model.context_
    assert model.fit(series).model_ is first
    assert model.context_ == context
    with pytest.raises(ws.ShapeError, match="series 0 has 2 columns, expected 1"):
        model.fit(season(90, columns=2))
    with pytest.raises(ws.OptionError, match=r"warm_start: encoder is 'calendar', .* has 'linear'"):
        model.fit(series, series[:, None])
    assert model.predict().shape == (3,), "a refused fit leaves the last one"


def test_dates_continue_in_their_time_zone_and_calendars_are_read_in_that_of_fit():
    index = pd.date_range("2024-03-29", periods=96, freq="h", tz="Europe/Berlin")  # the clock changes on the way
    series = pd.Series(season(96)[:, 0], index=index)
    model = WaveSSMForecaster(horizon=3, context=12, max_epochs=1, **SMALL).fit(series)
    assert model.season_ == 24
    expected = pd.date_range(index[-1], periods=4, freq="h")[1:]
    pd.testing.assert_index_equal(model.predict().index, expected)
    elsewhere = model.predict(series=series.tz_convert("Asia/Tokyo"))
    np.testing.assert_array_equal(elsewhere, model.predict())
    assert str(elsewhere.index.tz) == "Asia/Tokyo"
    with pytest.raises(DataError, match=r"time zone None, .* Europe/Berlin"):
        model.predict(series=series.tz_localize(None).asfreq("h").ffill())


def test_covariates_of_other_dates_are_refused():
    index = pd.date_range("2024", periods=60, freq="D")
    series = pd.Series(season(60)[:, 0], index=index)
    known = pd.DataFrame({"price": np.arange(60.0)}, index=index)
    model = WaveSSMForecaster(horizon=3, context=7, max_epochs=1, **SMALL).fit(series, known)
    ahead = pd.DataFrame({"price": np.arange(3.0)}, index=pd.date_range(index[-1], periods=4, freq="D")[1:])
    assert model.predict(covariates=ahead).index[0] == ahead.index[0]
    for wrong in (ahead.shift(1, freq="D"), ahead.shift(-3, freq="D")):
        with pytest.raises(DataError, match="expected those of the series, which ends at 2024-02-29") as raised:
            model.predict(covariates=wrong)
        assert "\n" not in str(raised.value)
    with pytest.raises(ws.ShapeError, match=r"expected \(3, 1\)"):
        model.predict(covariates=np.zeros((3, 2)))


def test_small_units_are_as_good_as_large_ones():
    options = {"horizon": 3, "context": 12, "max_epochs": 3, **SMALL}
    series = season(150)[:, 0]
    large = WaveSSMForecaster(**options).fit(series).predict()
    small = WaveSSMForecaster(**options).fit(1e-9 * series).predict()
    np.testing.assert_allclose(1e9 * small, large, rtol=1e-4)


# -- the line ----------------------------------------------------------------------------------------------------------


def windows(values, context, horizon):
    """Contexts (n, context) and what follows (n, horizon), both minus the last value, of every column."""
    rows = [
        (values[o - context : o, c] - values[o - 1, c], values[o : o + horizon, c] - values[o - 1, c])
        for c in range(values.shape[1])
        for o in range(context, len(values) - horizon + 1)
    ]
    return (np.stack(side) for side in zip(*rows, strict=True))


@pytest.mark.parametrize("rows", [40, 131])  # few windows are multiplied out, more follow the table of lag products
def test_tables_of_lag_products_are_means_over_windows(rows):
    values = season(rows, columns=2)
    x, y = windows(values, 7, 5)
    found = line.Moments.of([line.Part(values, None, 7, rows)], line.Features(7, ()), 5)
    np.testing.assert_allclose(found.G, x.T @ x / len(x), atol=1e-10)
    np.testing.assert_allclose(found.R, x.T @ y / len(x), atol=1e-10)
    W = np.random.default_rng(0).standard_normal((7, 5))
    np.testing.assert_allclose(found.error(W), np.square(x @ W - y).mean(0), atol=1e-9)


def test_the_line_is_the_ridge_regression_of_its_windows():
    values = season(150, columns=2)
    parts = [line.Part(values, None, 6, 150)]
    fitted = line.fit_line([], parts, [line.Features(6)], season=12, horizon=4)
    x, y = windows(values, 6, 4)
    penalty = np.diag((1 + np.arange(6, 0, -1) / 12) ** 2)
    np.testing.assert_allclose(fitted.W, np.linalg.solve(x.T @ x / len(x) + penalty, x.T @ y / len(x)), atol=1e-8)


@pytest.mark.parametrize(
    ("freq", "steps"),
    [("s", 60), ("min", 60), ("5min", 288), ("15min", 96), ("90min", 16), ("h", 24), ("2h", 12), ("3h", 8), ("4h", 6),
     ("6h", 4), ("8h", 21), ("12h", 14), ("D", 7), ("B", 5), ("W", 52), ("MS", 12), ("QS", 4), ("2QS", 2), ("YS", 1)],
)  # fmt: skip
def test_the_season_is_a_day_a_week_or_a_year(freq, steps):
    assert WaveSSMForecaster(horizon=2).fit(dated(freq, 48)).season_ == steps


def test_a_series_that_starts_flat_is_forecast_as_what_follows():
    values = np.concatenate([np.zeros(300), np.random.default_rng(0).poisson(20, 60)])
    model = WaveSSMForecaster(horizon=7, season=7).fit(values)
    assert {penalty for _, penalty in model.line_.members} == {max(line.PENALTIES)}  # no cut fits more than zeros
    assert np.abs(model.predict() - 20).max() < 10


def test_a_memory_is_the_running_mean_of_its_season():
    values = np.random.default_rng(0).standard_normal((50, 2))
    found = line.Memory(7, 3)(values)
    mean = values[33 - 28]
    for k, row in enumerate((12, 19, 26, 33), start=2):
        mean = mean + (values[row] - mean) / min(k, 3)
    np.testing.assert_allclose(found[33], mean)
    features = line.Features(9, (line.Memory(7, 3),))
    before = features.at(features.channels(values), np.array([40]))[0]
    np.testing.assert_allclose(before, np.concatenate([values[31:40], found[33:40]]) - values[39])


def test_what_was_not_observed_has_no_part_in_the_fit():
    """Sums over windows against a loop over every observed value; a window without any does not count."""
    random = np.random.default_rng(0)
    values, gaps = random.standard_normal((60, 2)), random.random((60, 2)) < 0.3
    gaps[20:26] = True
    part, features, horizon = line.Part(values, gaps, 9, 60), line.Features(4, (line.Memory(5, 3),)), 3
    assert (
        part.origins(horizon).tolist()
        == [*range(9, 20), *range(24, 58)]
        == [k for k in range(9, 58) if not gaps[k : k + horizon].all()]
    )
    R, yy, seen = np.zeros((9, horizon)), np.zeros(horizon), np.zeros(horizon)
    for origin in part.origins(horizon):
        r = features.at(features.channels(values), np.array([origin]))[0]
        for step, column in np.argwhere(~gaps[origin : origin + horizon]):
            ahead = values[origin + step, column] - values[origin - 1, column]
            R[:, step] += r[:, column] * ahead
            yy[step], seen[step] = yy[step] + ahead**2, seen[step] + 1
    found = line.Moments.of([part], features, horizon)
    np.testing.assert_allclose(found.R, R / seen)
    np.testing.assert_allclose(found.yy, yy / seen)
    whole = [line.Moments.of([line.Part(values, one, 9, 60)], features, 3) for one in (None, np.zeros_like(gaps))]
    for name in ("G", "R", "yy"):
        np.testing.assert_allclose(getattr(whole[0], name), getattr(whole[1], name), atol=1e-12)


def test_half_of_the_samples_at_random_leave_a_forecast():
    values = season(800)
    values[np.random.default_rng(0).random(800) < 0.5] = np.nan
    gap, hold = (WaveSSMForecaster(12, 48, missing=how).fit(values) for how in ("gap", "hold"))
    truth = season(812)[800:]
    assert np.abs(gap.predict() - truth).mean() < 0.9 * np.abs(hold.predict() - truth).mean()
    result = gap.backtest()
    assert np.isnan(result.truth).mean() == pytest.approx(0.5, abs=0.1)
    assert np.isfinite([result.mae, result.rmse, result.mase, result.r2]).all()


def test_columns_have_maps_of_their_own_where_that_helps():
    t, random = np.arange(600), np.random.default_rng(0)
    both = np.stack([np.sin(2 * np.pi * t / 12), np.sin(2 * np.pi * t / 17)], axis=1)
    both += 0.05 * random.standard_normal(both.shape)
    model = WaveSSMForecaster(horizon=6, context=6, refit=False).fit(both)
    assert model.line_.W.shape == (2, 6, 6)
    assert WaveSSMForecaster(horizon=6, context=6).fit(np.tile(both, 9)).line_.W.ndim == 2, "many columns share one"


def test_memories_look_further_back_than_the_context():
    random = np.random.default_rng(0)
    series = np.tile(random.standard_normal(24), 60) + random.standard_normal(24 * 60)
    options = {"horizon": 24, "context": 24, "season": 24}
    near, far = (WaveSSMForecaster(**options, memory=memory).fit(series) for memory in (False, True))
    assert far.backtest().rmse < 0.95 * near.backtest().rmse


def test_a_stream_forecasts_what_predict_does(fitted):
    t, noise = np.arange(480), np.random.default_rng(0).standard_normal(480)
    waves = 3 * np.sin(2 * np.pi * t / 168) + 2 * np.sin(2 * np.pi * t / 24) + noise
    dated = pd.Series(waves, index=pd.date_range("2024", periods=480, freq="h"))
    for model in (fitted, WaveSSMForecaster(horizon=5, context=2).fit(dated)):
        new = season(8, seed=7)[:, 0]
        stream, so_far = model.stream(), list(model.series_[0].values[:, 0])
        for value in new:
            ahead = stream.step(value)
            so_far.append(value)
        given = np.array(so_far)
        if model is not fitted:
            assert model.line_.B is not None, "the calendar is on the way"
            given = pd.Series(given, index=pd.date_range("2024", periods=len(given), freq="h"))
        np.testing.assert_allclose(ahead[:, 0], model.predict(series=given), rtol=1e-9)


def test_gradient_training_starts_at_the_line_and_must_be_better_to_stay():
    series = season(400)[:, 0]
    options = {"horizon": 6, "context": 24, "method": "gradient", "max_epochs": 1, **SMALL}
    plain = WaveSSMForecaster(**options).fit(series)
    assert plain.method_ == "linear", "there is nothing left to learn"
    started = clone(plain)
    config = plain.model_.config
    torch.testing.assert_close(started._new_model(config, 0)(torch.randn(2, 24, 1)), torch.zeros(2, 6, 1))
    gain = np.random.default_rng(0).standard_normal(300) + 0.05
    assert not improves(gain, 20)
    assert improves(gain + 1, 20)
    assert not improves(gain + 1, 100), "three blocks prove nothing"


def test_a_state_space_that_learns_more_than_a_line_is_kept():
    random = np.random.default_rng(0)
    x = [0.3]
    for _ in range(899):  # the logistic map: no line can forecast it
        x.append(3.9 * x[-1] * (1 - x[-1]))
    series = np.array(x) + 0.01 * random.standard_normal(900)
    options = {**SMALL, "d_model": 16, "learning_rate": 0.01}
    model = WaveSSMForecaster(horizon=1, context=4, method="gradient", max_epochs=20, dropout=0.0, **options).fit(
        series
    )
    assert model.method_ == "gradient"
    assert model.backtest().rmse < 0.8 * WaveSSMForecaster(horizon=1, context=4).fit(series).backtest().rmse


# -- quantiles, tables, repairs ---------------------------------------------------------------------------------------


def test_quantiles_never_cross_and_come_in_the_form_of_the_series():
    levels = (0.9, 0.1, 0.5)
    frame = pd.DataFrame(season(300, columns=2), columns=["a", "b"], index=pd.date_range("2024", periods=300))
    model = WaveSSMForecaster(horizon=4, context=12, quantiles=levels)
    both = model.fit(frame).predict()
    assert both.columns.tolist() == [(name, level) for name in "ab" for level in (0.1, 0.5, 0.9)]
    assert (np.diff(both["a"].to_numpy()) >= 0).all()
    assert model.fit(frame["a"]).predict().columns.tolist() == [0.1, 0.5, 0.9]
    assert model.fit(frame["a"].to_numpy()).predict().shape == (4, 3)
    assert model.fit(frame.to_numpy()).predict(6).shape == (6, 2, 3)
    result = model.fit(season(600)[:, 0]).backtest(season(300, seed=4)[:, 0])
    assert abs((result.truth <= result.quantiles[0.9]).mean() - 0.9) < 0.08
    assert list(result.quantiles) == [0.1, 0.5, 0.9]
    inside = (result.quantiles[0.1] <= result.truth) & (result.truth <= result.quantiles[0.9])
    assert result.coverage == inside.mean()
    by_hand = []
    for level, values in result.quantiles.items():
        error = result.truth - values
        by_hand.append(2 * np.where(error > 0, level * error, (level - 1) * error).sum() / np.abs(result.truth).sum())
    assert result.weighted_quantile_loss() == pytest.approx(np.mean(by_hand))
    with pytest.raises(ws.OptionError, match="quantiles need calibrating rows"):
        WaveSSMForecaster(horizon=4, quantiles=levels, validation_fraction=0).fit(season(90)[:, 0]).predict()


def long_table():
    index = pd.date_range("2024", periods=130, freq="D")
    parts = []
    for key, length, scale in (("a", 130, 1), ("b", 90, 100)):
        values = scale * season(length, seed=length)[:, 0]
        parts.append(pd.DataFrame({"unique_id": key, "ds": index[-length:], "y": values}))
    return pd.concat(parts, ignore_index=True)


def test_a_long_table_is_read_as_it_is():
    table = long_table()
    model = WaveSSMForecaster(horizon=5).fit(table)
    ahead = model.predict()
    assert ahead.columns.tolist() == ["unique_id", "ds", "y"]
    assert ahead["unique_id"].tolist() == ["a"] * 5 + ["b"] * 5
    by_key = {key: part.set_index("ds")["y"] for key, part in table.groupby("unique_id")}
    wanted = WaveSSMForecaster(horizon=5).fit(by_key).predict()
    np.testing.assert_allclose(ahead["y"], np.concatenate([wanted["a"], wanted["b"]]))
    pd.testing.assert_frame_equal(clone(model).fit(table.assign(ds=table["ds"].astype(str))).predict(), ahead)
    with pytest.raises(DataError, match="column 'ds' has text that is no date"):
        clone(model).fit(table.assign(ds="soon"))
    quantiles = clone(model).set_params(quantiles=(0.2, 0.8)).fit(table).predict()
    assert quantiles.columns.tolist() == ["unique_id", "ds", 0.2, 0.8]
    new = pd.DataFrame({"unique_id": "new", "ds": pd.date_range("2024-05-01", periods=3), "y": [1.0, 2.0, 3.0]})
    assert model.predict(series=new)["y"].notna().all(), "three rows are enough to start"


def test_other_columns_of_a_long_table_are_covariates():
    random = np.random.default_rng(0)
    table = long_table()
    table["price"] = random.random(len(table))
    table["y"] = table["y"] + 3 * table.groupby("unique_id")["y"].transform("std") * table["price"]
    model = WaveSSMForecaster(horizon=2, context=14, calendar=False).fit(table)
    ahead = pd.concat(
        pd.DataFrame({"unique_id": key, "ds": pd.date_range("2024-05-10", periods=2), "price": [0.0, 1.0]})
        for key in "ab"
    )
    found = model.predict(covariates=ahead)["y"].to_numpy()
    assert found[1] - found[0] > 1.5
    assert found[3] - found[2] > 150
    with pytest.raises(ws.OptionError, match="fit had covariates; give those of the next 2 steps"):
        model.predict()


def test_repeated_and_missing_time_stamps_are_repaired_as_asked():
    index = pd.date_range("2024", periods=200, freq="h")
    series = pd.Series(season(200)[:, 0], index=index)
    twice = pd.concat([series, series.iloc[[50]] + 2]).sort_index(kind="stable")
    fit = WaveSSMForecaster(horizon=3, context=12, duplicates="mean").fit
    assert fit(twice).series_[0].values[50, 0] == pytest.approx(series.iloc[50] + 1)
    last = WaveSSMForecaster(horizon=3, context=12, duplicates="last").fit(twice)
    assert last.series_[0].values[50, 0] == pytest.approx(series.iloc[50] + 2)
    holes = series.drop(index[60:64])
    holes.iloc[80] = np.nan
    with pytest.raises(DataError, match="has gaps or no regular step; choose missing='hold', 'gap' or 'skip'"):
        fit(holes)
    hold, gap = (WaveSSMForecaster(horizon=3, context=12, missing=how).fit(holes) for how in ("hold", "gap"))
    for model in (hold, gap):
        np.testing.assert_array_equal(model.series_[0].values[60:64, 0], np.full(4, series.iloc[59]))
    assert hold.series_[0].gaps is None
    assert np.flatnonzero(gap.series_[0].gaps).tolist() == [60, 61, 62, 63, 84]
    assert not np.allclose(hold.line_.W, gap.line_.W)
    compared = gap.backtest(holes, stride=1)
    assert not set(compared.origins[:, 1]) & {60, 61}
    at = int(np.flatnonzero(compared.origins[:, 1] == 62)[0])
    assert np.isnan(compared.truth[at, :, 0]).tolist() == [True, True, False]
    between = pd.concat([series, series.iloc[[0]].shift(freq="20min")]).sort_index()
    with pytest.raises(DataError, match="on a grid of 0 days 01:00:00, the median step, 1 rows fall together"):
        WaveSSMForecaster(missing="gap").fit(between)


def test_splits_by_counts_fractions_and_dates_agree():
    series = pd.Series(season(200)[:, 0], index=pd.date_range("2024", periods=200, freq="D"))
    models = [
        WaveSSMForecaster(horizon=4, context=12, split=split).fit(series)
        for split in ((140, 30), (0.7, 0.15), (series.index[140], str(series.index[170])))
    ]
    for model in models:
        assert (model.split_.train_end.tolist(), model.split_.stop_end.tolist()) == ([140], [170])
        np.testing.assert_array_equal(model.line_.W, models[0].line_.W)


def test_a_backtest_is_a_table_and_may_refit():
    frame = pd.DataFrame(season(300, columns=2), columns=["a", "b"], index=pd.date_range("2024", periods=300))
    model = WaveSSMForecaster(horizon=4, context=12, quantiles=(0.1, 0.9)).fit(frame[:250])
    result = model.backtest(frame, stride=50)
    table = result.frame
    assert table.columns.tolist() == ["unique_id", "cutoff", "step", "ds", "column", "y", "forecast", 0.1, 0.9]
    assert len(table) == result.forecasts.size
    row = table[(table["cutoff"] == frame.index[111]) & (table["step"] == 3) & (table["column"] == "b")].iloc[0]
    assert row["ds"] == frame.index[114]
    assert row["y"] == frame["b"].iloc[114]
    assert row["forecast"] == result.forecasts[2, 2, 1]
    again = model.backtest(frame, stride=50, refit=True)
    origin = int(again.origins[-1, 1])
    alone = clone(model).set_params(quantiles=None).fit(frame[:250])
    alone.line_ = alone._refit(alone.held_.line, [model._read(frame)[0][0]], [origin])
    assert not np.allclose(again.forecasts[-1], result.forecasts[-1])
    scaled = model._read(frame)[0][0].scaled()
    wanted = model.series_[0].scale.undo(alone.line_.forecast(scaled, np.array([origin]))[0])
    if alone.line_.B is None:
        np.testing.assert_allclose(again.forecasts[-1], wanted)


def test_intervals_are_as_wide_as_their_context_is_restless():
    random = np.random.default_rng(0)
    loud = np.where(np.arange(2000) // 200 % 2, 3.0, 0.5)
    values = loud * random.standard_normal(2000)
    model = WaveSSMForecaster(horizon=2, context=40, quantiles=(0.1, 0.9), refit=False).fit(values[:1600])
    result = model.backtest(values, begin=1640)
    width = (result.quantiles[0.9] - result.quantiles[0.1])[:, 0, 0]
    context = np.array([values[origin - 40 : origin].std() for origin in result.origins[:, 1]])
    scaled = np.sqrt(0.3 + (context / model.series_[0].scale.deviation) ** 2)
    np.testing.assert_allclose(width / width[0], scaled / scaled[0], rtol=1e-9)
    inside = (result.quantiles[0.1] <= result.truth) & (result.truth <= result.quantiles[0.9])
    assert abs(inside.mean() - 0.8) < 0.1
    assert np.diff(model.predict(series=values[:1800])[0])[0] == pytest.approx(width[1800 - 1640], rel=1e-9)


def test_quantiles_follow_the_truth_where_it_drifts_and_never_cross():
    random, levels = np.random.default_rng(0), (0.1, 0.5, 0.9)
    model = WaveSSMForecaster(horizon=4, context=12, quantiles=levels).fit(season(400)[:, 0])
    wild = 5 + np.sin(2 * np.pi * np.arange(4000) / 12) + 0.2 * random.standard_normal(4000)
    still, follow = (model.backtest(wild, adaptive=adaptive) for adaptive in (False, True))
    assert still.coverage < 0.6
    late = slice(2500, None)  # noise is twice that of fit: it takes some two thousand samples to get there
    inside = (follow.quantiles[0.1] <= follow.truth) & (follow.truth <= follow.quantiles[0.9])
    assert abs(inside[late].mean() - 0.8) < 0.08
    assert (np.diff(np.stack([follow.quantiles[level] for level in levels]), axis=0) >= 0).all()
    changed = wild.copy()
    changed[500:] += 9
    other = model.backtest(changed, adaptive=True)
    known = follow.origins[:, 1] <= 500
    np.testing.assert_array_equal(other.quantiles[0.9][known], follow.quantiles[0.9][known])
    stream, start = model.stream(), len(model.series_[0].values)
    both = np.concatenate([model.series_[0].values[:, 0], wild[:60]])
    steps = [stream.step(value) for value in wild[:60]]
    backtest = model.backtest(np.append(both, wild[60:64]), adaptive=True, begin=start + 1)
    for level, k in zip(levels, range(3), strict=True):
        np.testing.assert_allclose(steps[-1][:, 0, k], backtest.quantiles[level][-1, :, 0], rtol=1e-9)


def shops(count, rows, seed):
    """Hourly sales of shops: level by size, the shape of the day by kind. Returns a long table and their features."""
    random, index = np.random.default_rng(seed), pd.date_range("2024-01-01", periods=rows, freq="h")
    parts, static = [], []
    for k in range(count):
        size, kind = random.uniform(1, 6), ("office", "bar")[random.integers(2)]
        shape = np.sin(2 * np.pi * (index.hour + 12 * (kind == "bar")) / 24)
        y = np.exp(size) * (3 + shape + 0.2 * random.standard_normal(rows))
        parts.append(pd.DataFrame({"unique_id": f"s{seed}-{k}", "ds": index, "y": y}))
        static.append({"unique_id": f"s{seed}-{k}", "size": size, "kind": kind})
    return pd.concat(parts, ignore_index=True), pd.DataFrame(static)


def test_static_features_start_a_series_that_fit_has_not_seen():
    table, static = shops(40, 24 * 15, 0)
    model = WaveSSMForecaster(horizon=24, context=48).fit(table, static=static)
    new, features = shops(6, 30, 1)
    few = new.groupby("unique_id").head(3)
    truth = new.groupby("unique_id").nth(slice(3, 27))
    level = truth.groupby("unique_id")["y"].mean()
    errors = []
    for given in ({}, {"static": features}):
        ahead = model.predict(series=few, **given)
        assert ahead["ds"].iloc[0] == pd.Timestamp("2024-01-01 03:00")
        error = np.abs(ahead["y"].to_numpy() - truth["y"].to_numpy()).reshape(6, 24).mean(axis=1)
        errors.append((error / level.to_numpy()).mean())
    assert errors[1] < 0.1 < 0.2 < errors[0], "noise alone is 0.05"
    one = model.predict(series=new.groupby("unique_id").head(1), static=features)
    assert one["ds"].iloc[0] == pd.Timestamp("2024-01-01 01:00"), "the step is that of fit"
    known = table.groupby("unique_id").head(200)
    np.testing.assert_array_equal(
        model.predict(series=known, static=static)["y"], model.predict(series=known)["y"], "series of fit need none"
    )
    result = model.backtest(new, h=3, static=features)
    assert result.origins[:, 1].min() == 48, "the first rows, after a predicted history"
    with pytest.raises(DataError, match="static has no row for the series 's1-0'"):
        model.predict(series=few, static=static)
    with pytest.raises(ws.OptionError, match="static: fit had none"):
        WaveSSMForecaster(horizon=2).fit(table).predict(series=few, static=features)


def test_intervals_are_as_wide_as_errors_at_their_place_in_the_season():
    """Noise of 10 by day and of 1 at night: one width for both would cover two thirds of the days and all nights."""
    hours, random = np.arange(3000) % 24, np.random.default_rng(0)
    day = (hours >= 8) & (hours < 20)
    y = 50 * day + np.where(day, 10.0, 1.0) * random.standard_normal(3000)
    series = pd.Series(y, index=pd.date_range("2024-01-01", periods=3000, freq="h"))
    model = WaveSSMForecaster(horizon=24, quantiles=(0.1, 0.9)).fit(series)
    low, high = model.predict()[[0.1, 0.9]].to_numpy().T
    truth = 50 * day[:24] + np.where(day[:24], 10.0, 1.0) * random.standard_normal((500, 24))
    covered = ((low < truth) & (truth < high)).mean(0)
    assert 0.7 < covered[day[:24]].mean() < 0.9
    assert 0.7 < covered[~day[:24]].mean() < 0.95
    narrow = (high - low)[~day[:24]].mean() / (high - low)[day[:24]].mean()
    stream = model.stream()
    ahead = stream.step(y[0])  # the hour after the series is the first of a day
    assert narrow < 0.25
    np.testing.assert_allclose((ahead[:, 0, 1] - ahead[:, 0, 0])[:23], (high - low)[1:], rtol=0.15)

"""The forecaster: what goes in and comes out, intervals, and that no forecast knows its future."""

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, TimeSeriesSplit

import wavessm as ws
from wavessm.errors import DataError
from wavessm.estimators import WaveSSMForecaster

SMALL = {"d_model": 8, "d_state": 8, "n_layers": 1, "random_state": 0, "learning_rate": 0.02}


def season(length=240, seed=0, noise=0.1, columns=1):
    """(length, columns) with a period of 12"""
    random = np.random.default_rng(seed)
    t = np.arange(length)[:, None] + 3 * np.arange(columns)
    return 5 + np.sin(2 * np.pi * t / 12) + noise * random.standard_normal((length, columns))


@pytest.fixture(scope="module")
def fitted():
    return WaveSSMForecaster(horizon=6, context=24, max_epochs=15, **SMALL).fit(season(400)[:, 0])


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
        covered = fitted.backtest(new, level=level).coverage
        assert abs(covered - level) < 0.12, (level, covered)
    narrow, wide = fitted.predict_interval(level=0.5), fitted.predict_interval(level=0.9)
    assert (wide.upper - wide.lower > narrow.upper - narrow.lower).all()
    np.testing.assert_allclose((wide.upper + wide.lower) / 2, fitted.predict())
    with pytest.raises(DataError, match=r"level 0\.999 needs 999"):
        fitted.predict_interval(level=0.999)
    with pytest.raises(ws.OptionError, match="level is 'a', expected a number 0 ≤ level < 1"):
        fitted.predict_interval(level="a")


def test_intervals_come_from_the_end_that_training_never_saw():
    series = season(300, noise=0.05)[:, 0]
    loud = series.copy()
    loud[-30:] += np.random.default_rng(1).normal(0, 1.0, 30)  # the calibrating half of the last fifth
    widths = []
    for given in (series, loud):
        model = WaveSSMForecaster(horizon=3, context=24, max_epochs=4, **SMALL).fit(given)
        lower, upper = model.predict_interval(level=0.8)
        widths.append((upper - lower).mean())
    assert widths[1] > widths[0] + 0.8, "noise of deviation 1 is ± 1.28 at this level"


@pytest.mark.parametrize("freq", ["h", "D", "MS", "B"])
def test_dates_continue_where_the_series_ends(freq):
    index = pd.date_range("2023-11-01", periods=120, freq=freq, name="when")
    series = pd.Series(season(120)[:, 0], index=index, name="load")
    model = WaveSSMForecaster(horizon=4, context=12, max_epochs=1, **SMALL).fit(series)
    ahead = model.predict(7)
    assert ahead.name == "load"
    pd.testing.assert_index_equal(ahead.index, pd.date_range(index[-1], periods=8, freq=freq, name="when")[1:])
    assert model.model_.config.encoder == "calendar"


def test_frames_keep_their_columns_and_integer_indices_continue():
    frame = pd.DataFrame(season(120, columns=2), columns=["a", "b"], index=np.arange(0, 240, 2))
    model = WaveSSMForecaster(horizon=3, max_epochs=1, **SMALL).fit(frame)
    ahead = model.predict()
    assert list(ahead.columns) == ["a", "b"]
    assert ahead.index.tolist() == [240, 242, 244]
    assert model.predict_interval(level=0.5).lower.shape == (3, 2)
    assert WaveSSMForecaster(horizon=3, max_epochs=1, **SMALL).fit(frame.to_numpy()).predict().shape == (3, 2)


@pytest.mark.parametrize(
    ("index", "wanted"),
    [
        (pd.period_range("2020-01", periods=90, freq="M"), pd.period_range("2027-07", periods=2, freq="M")),
        (pd.Index(0.5 * np.arange(90), name="s"), [45.0, 45.5]),
        (pd.timedelta_range(0, periods=90, freq="h"), pd.to_timedelta(["90h", "91h"])),
        (pd.Index(np.round(1958.2 + np.arange(90) / 12, 3)), [1965.700, 1965.783]),
    ],
)
def test_any_regular_index_continues(index, wanted):
    series = pd.Series(season(90)[:, 0], index=index)
    ahead = WaveSSMForecaster(horizon=2, context=12, max_epochs=1, **SMALL).fit(series).predict()
    if ahead.index.dtype.kind == "f":
        np.testing.assert_allclose(ahead.index, wanted, atol=1e-3)
    else:
        assert list(ahead.index) == list(wanted)


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
    lower, upper = model.predict_interval(level=0.5)
    for given in ({"high": high, "low": low}, {"high": high}, {"high": high, "new": low}):
        there = model.predict_interval(level=0.5, series=given)
        np.testing.assert_allclose(there.upper["high"] - there.lower["high"], upper["high"] - lower["high"], rtol=1e-5)
    assert 0 < (there.upper["new"] - there.lower["new"]).max() < 10 * (upper["low"] - lower["low"]).max()
    swapped = model.predict_interval(level=0.5, series=[high, low])  # a list has places only
    np.testing.assert_allclose(swapped.upper[0] - swapped.lower[0], upper["low"] - lower["low"], rtol=1e-3)
    orders = [{"low": low, "high": high}, {"high": high, "low": low}]
    first, second = (model.backtest(series, h=2, stride=5, level=0.5) for series in orders)
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
    search = GridSearchCV(model, {"family": ["morlet", "legs"]}, cv=TimeSeriesSplit(2)).fit(series)
    assert search.best_params_["family"] in ("morlet", "legs")
    first = clone(model).fit(series).predict()
    np.testing.assert_array_equal(clone(model).fit(series).predict(), first)
    warm = clone(model).set_params(warm_start=True).fit(series)
    inside = warm.model_
    assert warm.fit(series).model_ is inside
    with pytest.raises(ws.OptionError, match="warm_start: d_model is 16, but the fitted model has 8"):
        warm.set_params(d_model=16).fit(series)


def test_the_stretch_set_aside_is_not_trained_on():
    series = season(200)[:, 0]
    changed = series.copy()
    changed[160:] += 50
    options = {"horizon": 3, "context": 12, "max_epochs": 2, "n_iter_no_change": 2, **SMALL}
    plain = WaveSSMForecaster(**options).fit(series)
    other = WaveSSMForecaster(**options).fit(changed)
    np.testing.assert_array_equal(plain.series_[0].scale.mean, other.series_[0].scale.mean)
    assert plain.history_.loss == other.history_.loss
    assert plain.history_.validation != other.history_.validation


@pytest.mark.parametrize(
    ("series", "options", "error", "words"),
    [
        (np.r_[np.zeros(50), np.nan], {}, ws.NotFiniteError, "series: row 50 has NaN or infinity"),
        (np.zeros((5, 2, 2)), {}, ws.ShapeError, r"shape \(5, 2, 2\), expected \(time,\) or \(time, columns\)"),
        (["a", "b"], {}, ws.WaveSSMError, "expected an array of real numbers"),
        (np.full(90, 3.0), {}, DataError, r"series 0: column 0 is constant \(3\) over the 72 training steps"),
        (np.stack([np.arange(90.0), np.zeros(90)], 1), {}, DataError, "column 1 is constant"),
        ([np.arange(90.0), np.r_[np.zeros(80), 1.0]], {}, DataError, "series 1: column 0 is constant"),
        (np.zeros(9), {"horizon": 8}, DataError, "the shortest series has 9 steps"),
        (np.zeros(90), {"horizon": 0}, ws.OptionError, "horizon is 0"),
        (np.zeros(90), {"calendar": "no"}, ws.OptionError, "calendar is 'no'"),
        (np.zeros(90), {"validation_fraction": 1.0}, ws.OptionError, "validation_fraction is 1.0"),
        ([np.zeros(90), np.zeros((90, 2))], {}, ws.ShapeError, "series 1 has 2 columns"),
        ({}, {}, ws.ShapeError, "empty, expected"),
        (pd.Series(np.arange(9.0), index=list("abcdefghi")), {}, DataError, r"not dates or numbers \('a' …\)"),
        (1e300 * np.arange(90.0), {}, DataError, r"row 1 has 1e\+300, beyond float32 \(3\.4e\+38 at most\)"),
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
        (np.r_[0:40, 39:89], "its index does not rise"),
        (np.r_[0:40, 41:91], "its index has gaps"),
        (0.5 * np.r_[0:40, 41:91], "its index has gaps"),
        (pd.period_range("2020", periods=91, freq="M").delete(40), "its index has gaps"),
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
    model = WaveSSMForecaster(horizon=3, max_epochs=1, warm_start=True, **SMALL).fit(series[:60])
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
    with pytest.raises(ws.NotFiniteError, match="too far from those of fit"):
        WaveSSMForecaster(**options).fit(1e-60 * series).predict(series=series)

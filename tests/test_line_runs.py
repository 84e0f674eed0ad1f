"""`wavessm train csv` in closed form and `WaveSSMForecaster` on the same rows: the same forecasts, number by number."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
import torch

import wavessm as ws
from contracts import check_mistake
from wavessm.cli import main
from wavessm.estimators import WaveSSMForecaster
from wavessm.training import Run, predict_files, predict_stream, read_rows

QUANTILES = (0.1, 0.5, 0.9)


def hourly(rows=700, columns=2, seed=0, start="2024-01-01"):
    """A day, a week and some noise, on a level far from zero."""
    random, t = np.random.default_rng(seed), np.arange(rows)[:, None] + 5 * np.arange(columns)
    values = 200 + 10 * np.sin(2 * np.pi * t / 24) + 4 * np.sin(2 * np.pi * t / 168)
    index = pd.date_range(start, periods=rows, freq="h", name="date")
    return pd.DataFrame(values + random.standard_normal(values.shape), index, [f"c{k}" for k in range(columns)])


def damaged():
    """Rows left out, an empty field, and stamps that come twice."""
    frame = hourly().drop(index=hourly().index[[100, 101, 333, 690]])
    frame.iloc[40, 0] = np.nan
    return pd.concat([frame, frame.iloc[[7, 7, 500]] + 3]).sort_index(kind="stable")


def long_table():
    parts = [hourly(rows, 1, rows, start)["c0"] * scale for rows, start, scale in
             ((700, "2024-01-01", 1.0), (400, "2024-02-01", 50.0), (500, "2024-01-05", 0.01))]  # fmt: skip
    each = zip(("north", "south", "west"), parts, strict=True)
    tables = [pd.DataFrame({"unique_id": key, "ds": one.index, "y": one.to_numpy()}) for key, one in each]
    return pd.concat(tables, ignore_index=True)


def fit(folder, frame, words, index=True):
    """A run of the command line on a table."""
    frame.to_csv(folder / "table.csv", index=index)
    line = ["train", "csv", str(folder / "table.csv"), "--horizon", "12", "--out", str(folder / "run"), "--quiet"]
    assert main([*line, *words.split(), "--quantiles", *map(str, QUANTILES)]) == 0
    return Run.read(folder / "run")


CASES = {
    "plain": (hourly, "", {}),
    "split by counts": (hourly, "--split 500 90", {"split": (500, 90)}),
    "split by dates": (hourly, "--split 2024-01-20 2024-01-25", {"split": ("2024-01-20", "2024-01-25")}),
    "no memory": (hourly, "--no-memory --context 30", {"memory": False, "context": 30}),
    "no calendar": (hourly, "--calendar none --season 12", {"calendar": False, "season": 12}),
    "no refit": (hourly, "--no-refit", {"refit": False}),
    "holes held": (damaged, "--missing hold --duplicates last", {"missing": "hold", "duplicates": "last"}),
    "gaps": (damaged, "--missing gap --duplicates mean", {"missing": "gap", "duplicates": "mean"}),
    "rows skipped": (damaged, "--missing skip --duplicates mean", {"missing": "skip", "duplicates": "mean"}),
    "time zone": (lambda: hourly().tz_localize("+05:00"), "", {}),
}


@pytest.mark.parametrize("case", CASES)
def test_a_run_forecasts_what_the_estimator_does(tmp_path, case):
    make, words, options = CASES[case]
    frame = make()
    run = fit(tmp_path, frame, words)
    model = WaveSSMForecaster(12, **({"split": (0.7, 0.1)} | options)).fit(frame)
    ahead = pd.DataFrame(predict_files(run, [tmp_path / "table.csv"]))
    wanted = model.predict()
    assert ahead["date"].tolist() == [date.isoformat() for date in wanted.index]
    np.testing.assert_allclose(ahead[["c0", "c1"]], wanted, rtol=1e-9)
    model.set_params(quantiles=QUANTILES)
    for (column, level), values in model.predict().items():
        np.testing.assert_allclose(ahead[f"{column} {level:g}"], values, rtol=1e-9, err_msg=f"{column} {level}")
    result = json.loads((run.folder / "result.json").read_text())
    held = model.backtest()
    error = (held.forecasts - held.truth) / model.series_[0].scale.deviation
    assert result["test_mse"] == pytest.approx(np.nanmean(np.square(error), axis=(1, 2)).mean()), (
        "of the line without the test rows"
    )


def test_series_of_a_long_table_share_one_run(tmp_path):
    table = long_table()
    run = fit(tmp_path, table.sample(frac=1, random_state=0), "", index=False)
    model = WaveSSMForecaster(12, split=(0.7, 0.1), quantiles=QUANTILES).fit(table)
    ahead, wanted = pd.DataFrame(predict_files(run, [tmp_path / "table.csv"])), model.predict()
    assert ahead["unique_id"].tolist() == wanted["unique_id"].tolist()
    assert ahead["date"].tolist() == [date.isoformat() for date in wanted["ds"]]
    for level in QUANTILES:
        np.testing.assert_allclose(ahead[f"y {level:g}"], wanted[level], rtol=1e-9)
    some = table[table["unique_id"] == "south"]
    some.to_csv(tmp_path / "some.csv", index=False)
    one = pd.DataFrame(predict_files(run, [tmp_path / "some.csv"]))
    np.testing.assert_allclose(one["y"], ahead["y"][ahead["unique_id"] == "south"], rtol=1e-9, err_msg="its own scale")


@pytest.mark.parametrize("chunk", [1, 50, 350])
def test_a_stream_of_a_run_starts_anywhere_and_ends_as_its_file(tmp_path, chunk):
    frame = hourly()
    run = fit(tmp_path, frame, "")
    frame[:350].to_csv(tmp_path / "new.csv")
    wanted = predict_files(run, [tmp_path / "new.csv"])
    *_, rows = predict_stream(run, (tmp_path / "new.csv").read_text().splitlines(keepends=True), chunk)
    for row, expected in zip(rows, wanted, strict=True):
        assert (row["date"], row["c0"]) == (expected["date"], pytest.approx(expected["c0"], rel=1e-9))
        assert row["c1 0.1"] < row["c1 0.5"] < row["c1 0.9"]
        if chunk == 350:  # nothing has come since that the quantiles could follow
            assert row["c1 0.9"] == pytest.approx(expected["c1 0.9"], rel=1e-9)


@pytest.mark.parametrize("long", [False, True])
def test_covariates_come_with_the_table_and_with_the_rows_to_forecast(tmp_path, long):
    frame = hourly(columns=1)
    price = pd.Series(np.random.default_rng(2).standard_normal(712), hourly(712, 1).index)
    frame["c0"] += 20 * price[:700]
    model = WaveSSMForecaster(12, split=(0.7, 0.1)).fit(frame[["c0"]], covariates=price[:700].to_frame())
    wanted = model.predict(covariates=price[700:].to_frame())["c0"].to_numpy()
    table = frame.reindex(price.index).assign(price=price).rename_axis("date")
    if long:
        table = table.reset_index().rename(columns={"date": "ds", "c0": "y"}).assign(unique_id="a")
        table = pd.concat([table, table.assign(unique_id="b", y=2 * table["y"])]).sample(frac=1, random_state=0)
    run = fit(tmp_path, table, "--covariates price", index=not long)
    rows = predict_files(run, [tmp_path / "table.csv"])
    found = np.array([row["y" if long else "c0"] for row in rows])
    np.testing.assert_allclose(found[:12], wanted, rtol=1e-2 if long else 1e-9)
    assert np.corrcoef(found[:12], price[700:])[0, 1] > 0.9
    if long:
        np.testing.assert_allclose(found[12:], 2 * found[:12], rtol=1e-6)
    if not long:
        table[:700].to_csv(tmp_path / "short.csv")
        with pytest.raises(ws.WaveSSMError, match="of all steps of the series and of those to forecast"):
            predict_files(run, [tmp_path / "short.csv"])


def test_static_features_start_a_series_that_the_run_has_not_seen(tmp_path):
    random, index = np.random.default_rng(0), pd.date_range("2024", periods=200, freq="h")
    sizes = random.uniform(1, 5, 31)
    day = np.sin(2 * np.pi * np.arange(200) / 24)
    each = [
        pd.DataFrame(
            {"unique_id": f"s{k}", "ds": index, "y": np.exp(size) * (3 + day + 0.1 * random.standard_normal(200))}
        )
        for k, size in enumerate(sizes)
    ]
    static = pd.DataFrame({"unique_id": [f"s{k}" for k in range(31)], "size": sizes})
    static.to_csv(tmp_path / "static.csv", index=False)
    run = fit(tmp_path, pd.concat(each[:30]), f"--static {tmp_path / 'static.csv'}", index=False)
    each[30][:2].to_csv(tmp_path / "new.csv", index=False)
    found = [row["y"] for row in predict_files(run, [tmp_path / "new.csv"])]
    model = WaveSSMForecaster(12, split=(0.7, 0.1)).fit(pd.concat(each[:30]), static=static)
    np.testing.assert_allclose(found, model.predict(series=each[30][:2], static=static)["y"], rtol=1e-6)
    assert np.abs(found / each[30]["y"][2:14] - 1).mean() < 0.1


def test_a_stream_at_uneven_times_ends_as_its_file(tmp_path, caplog):
    """Minutes by a clock that jitters, some lost: a file and a stream are on one grid."""
    random = np.random.default_rng(1)
    seconds = 60.0 * np.arange(900) + random.uniform(-40, 40, 900)
    seconds = np.sort(seconds[random.random(900) < 0.8])
    values = 5 + np.sin(2 * np.pi * seconds / 3600) + 0.05 * random.standard_normal(len(seconds))
    frame = pd.DataFrame({"c0": values}, pd.Timestamp("2024") + pd.to_timedelta(seconds, "s"))
    run = fit(tmp_path, frame.rename_axis("date"), "--missing gap --duplicates last")
    wanted, lines = predict_files(run, [tmp_path / "table.csv"]), (tmp_path / "table.csv").read_text().splitlines()
    truth = 5 + np.sin(2 * np.pi * (900 + np.arange(12)) / 60)
    assert np.abs([row["c0"] for row in wanted] - truth).mean() < 0.1
    for chunk in (1, 90, len(seconds)):
        *_, rows = predict_stream(run, lines, chunk, times=True)
        for row, expected in zip(rows, wanted, strict=True):
            assert (row["date"], row["c0"]) == (expected["date"], pytest.approx(expected["c0"], rel=1e-6))
    model = WaveSSMForecaster(12, split=(0.7, 0.1), missing="gap", duplicates="last").fit(frame)
    np.testing.assert_allclose(model.predict()["c0"], [row["c0"] for row in wanted], rtol=1e-9)
    assert "times are uneven" in caplog.text


MISTAKES = {
    "": "its index has gaps or no regular step; choose missing=",
    "--missing gap": "3 time stamps are repeated, the first is 2024-01-01 07:00:00; choose duplicates='mean'",
    "--missing gap --duplicates mean --split 0.9 0.5": "split is (0.9, 0.5), which ends at rows",
    "--missing gap --duplicates mean --quantiles 0.0001": "the quantile 0.0001 needs",
    "--missing gap --duplicates mean --split 0.9": "--split",
    "--missing gap --duplicates mean --epochs 1 --split 2024-01-29 2024-01-30": "too few for context",
}


@pytest.mark.parametrize("words", MISTAKES)
def test_mistakes_are_one_line(tmp_path, words, capsys):
    frame = damaged() if words else damaged().groupby(level=0).last().dropna()
    frame.to_csv(tmp_path / "table.csv")
    line = ["train", "csv", str(tmp_path / "table.csv"), "--out", str(tmp_path / "run"), *words.split()]
    check_mistake(line, MISTAKES[words], capsys)


def test_a_training_shows_its_error_beside_those_of_the_line_and_naive_forecasts(tmp_path, capsys):
    frame = hourly(400, 1)
    frame.to_csv(tmp_path / "table.csv")
    words = ["train", "csv", str(tmp_path / "table.csv"), "--horizon", "12", "--context", "48", "--out"]
    small = ["--steps", "2", "--val-per-epoch", "1000", "--n-layers", "1", "--d-model", "4", "--d-state", "4"]
    assert main([*words, str(tmp_path / "run"), *small]) == 0
    said = capsys.readouterr().err
    (_, row), data = read_rows(tmp_path / "run/metrics.csv"), Run.read(tmp_path / "run").load_data()
    x, y = (data.val.take(torch.arange(len(data.val)))[k] for k in (0, 1))
    assert row["last_value_mse"] == pytest.approx(float((x[:, -1:] - y).square().mean()), rel=1e-5)
    assert row["seasonal_day_mse"] == pytest.approx(float((x[:, -24:-12] - y).square().mean()), rel=1e-5)
    assert row["line_mse"] < row["seasonal_day_mse"] < row["last_value_mse"]
    assert f"(line {row['line_mse']:.4g}, last value {row['last_value_mse']:.4g}, seasonal day" in said
    model = WaveSSMForecaster(12, 48, method="gradient", max_epochs=1, d_model=4, d_state=4, n_layers=1, verbose=1)
    model.fit(frame["c0"])
    assert "(line " in capsys.readouterr().err
    row = model.history_.rows[-1]
    assert row["line_loss"] < row["last_season_loss"] < row["last_value_loss"]

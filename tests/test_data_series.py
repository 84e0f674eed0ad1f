"""Informer's series and own CSV files: parts, marks, scaling, and forecasts that need no training."""

import numpy as np
import pandas as pd
import pytest
import torch

import miniatures
from miniatures import load_csv, load_forecast
from wavessm.data import baseline_scores, read_signal
from wavessm.data.datasets.csv import CsvOptions
from wavessm.data.datasets.forecast import SETS
from wavessm.data.series import read_csv
from wavessm.data.series import read_series as read
from wavessm.data.tables import same_step
from wavessm.data.task import DataOptions
from wavessm.data.windows import make_marks
from wavessm.errors import DataError, OptionError, UnknownNameError


@pytest.fixture(autouse=True)
def own_cache(monkeypatch):
    monkeypatch.delenv("WAVESSM_CACHE", raising=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("forecasting")
    for name in ("ETTh1", "ETTh2", "ETTm1", "WTH"):
        miniatures.forecast(folder, name)
    miniatures.forecast(folder, "ECL", columns=5)
    return folder


def every(source):
    return source.take(torch.arange(len(source)))


# --- published series

PARTS = {
    "ETTh1": (8640, 2880, 2880),
    "ETTh2": (8640, 2880, 2880),
    "ETTm1": (34560, 11520, 11520),
    "WTH": (1400, 200, 400),
    "ECL": (1819, 261, 520),  # int(0.7 * 2600) is 1819, in Informer's code too
}


@pytest.mark.parametrize("multivariate", [False, True])
@pytest.mark.parametrize("name", PARTS)
def test_windows_scale_and_parts_are_those_of_the_file(folder, name, multivariate):
    train, val, test = PARTS[name]
    context, horizon = 50, 13
    data = load_forecast(folder, name, horizon, multivariate, context)
    table = pd.read_csv(folder / f"{name}.csv")
    columns = list(table.columns[1:]) if multivariate else [SETS[name].target]
    assert columns[-1] == SETS[name].target
    values = table[columns].to_numpy()
    mean, std = values[:train].mean(axis=0), values[:train].std(axis=0)
    scaled = (values - mean) / std
    assert len(data.train) == train - context - horizon + 1
    assert (len(data.val), len(data.test)) == (val - horizon + 1, test - horizon + 1)
    for part, first in (("train", 0), ("val", train - context), ("test", train + val - context)):
        source = getattr(data, part)
        for window in (0, len(source) - 1):
            batch = source.take(torch.tensor([window]))
            start = first + window
            np.testing.assert_allclose(batch.x[0], scaled[start : start + context], atol=1e-4)
            np.testing.assert_allclose(batch.y[0], scaled[start + context : start + context + horizon], atol=1e-4)
    last_row = {"train": train, "val": train + val, "test": train + val + test}
    for part, stop in last_row.items():
        source = getattr(data, part)
        assert int(source.starts[-1]) + context + horizon == stop
    np.testing.assert_allclose(data.info.scale, (mean, std), rtol=1e-12)
    assert data.info.columns == tuple(columns)
    assert (data.info.d_input, data.info.d_output) == (len(columns),) * 2
    np.testing.assert_allclose(data.info.restore(batch.y), values[stop - horizon : stop][None], atol=1e-3)


def test_context_lengths_are_informers():
    """A few entries of its scripts, of each set and setting."""
    expected = {
        ("ETTh1", 24): (720, 48), ("ETTh1", 720): (720, 336), ("ETTh2", 48): (96, 96), ("ETTh2", 720): (336, 720),
        ("ETTm1", 24): (96, 672), ("ETTm1", 96): (384, 384), ("ETTm1", 288): (384, 672), ("WTH", 168): (168, 336),
        ("WTH", 24): (720, 168), ("WTH", 48): (720, 96), ("WTH", 336): (336, 720), ("ECL", 960): (384, 384),
        ("ETTh1", 168): (720, 168), ("ETTh2", 336): (336, 336),
    }  # fmt: skip
    assert {(name, horizon): SETS[name].lengths[horizon] for name, horizon in expected} == expected


def test_the_published_context_is_taken_where_none_is_given(folder):
    assert load_forecast(folder, "ETTh1", 24).info.length == 720
    assert load_forecast(folder, "ETTh1", 24, multivariate=True).info.length == 48
    assert load_forecast(folder, "Weather", 48, True).info.length == 96
    with pytest.raises(OptionError, match=r"no context length is published for horizon 25 .*24, 48.*give context"):
        load_forecast(folder, "ETTh1", 25)
    assert len(load_forecast(folder, "ETTh1", 25, context=30).test) == 2880 - 25 + 1


@pytest.mark.parametrize("name", ["ETTh1", "ETTm1", "WTH"])
def test_marks_are_the_calendar(folder, name):
    table = pd.read_csv(folder / f"{name}.csv")
    dates = pd.to_datetime(table["date"], format="%m/%d/%Y %H:%M" if name == "WTH" else "%Y-%m-%d %H:%M:%S").dt
    fields = [dates.month, dates.day, dates.day_of_week, dates.hour]
    real = [dates.hour / 23, dates.day_of_week / 6, (dates.day - 1) / 30, (dates.day_of_year - 1) / 365]
    if name == "ETTm1":
        fields, real = [*fields, dates.minute // 15], [dates.minute / 59, *real]
    for calendar, expected in (("table", np.stack(fields, 1)), ("numbers", np.stack(real, 1) - 0.5)):
        data = load_forecast(folder, name, 24, context=96, calendar=calendar, future_calendar=True)
        np.testing.assert_allclose(data.train.marks, expected, atol=1e-6)
        sizes = (13, 32, 7, 24, 4)[: len(fields)]
        assert data.info.mark_sizes == (sizes if calendar == "table" else ())
        assert data.info.mark_width == (0 if calendar == "table" else len(real))
        assert data.train.marks.dtype == (torch.int64 if calendar == "table" else torch.float32)
        assert data.train.take(torch.tensor([3])).marks[0, -1].equal(data.train.marks[3 + 96 + 23])
    quiet = load_forecast(folder, name, 24, context=96)
    assert not quiet.train.take(torch.tensor([3])).marks[0, 96:].any()


def test_marks_stay_inside_their_tables_over_many_years():
    hours = np.arange(0, 3 * 366 * 24) * 3600 + 10 * 365 * 86400
    marks, sizes = make_marks(hours, "table", minutes=True)
    assert (marks.max(dim=0).values < torch.tensor(sizes)).all()
    real, none = make_marks(hours, "numbers", minutes=True)
    assert none == ()
    assert real.abs().max() == 0.5


def test_missing_series_say_where_they_are_published(tmp_path):
    with pytest.raises(
        DataError, match=r"ETTh1: no ETTh1.csv in .*published at https://github.com/zhouhaoyi/ETDataset"
    ):
        load_forecast(tmp_path)
    with pytest.raises(UnknownNameError, match=r"unknown forecasting set 'ETTh3'.*Known: ETTh1"):
        load_forecast(tmp_path, "ETTh3")
    table = pd.DataFrame({"OT": miniatures.series(2000, 1, 24)[:, 0]})
    table.insert(0, "date", pd.date_range("2020", periods=2000, freq="h"))
    table.to_csv(tmp_path / "ECL_univariate.csv", index=False)
    assert load_forecast(tmp_path, "ECL", 48, context=100).info.columns == ("OT",)
    with pytest.raises(DataError, match=r"ECL_univariate.csv has one column only; .* needs ECL.csv, published at"):
        load_forecast(tmp_path, "ECL", 48, multivariate=True)
    miniatures.forecast(tmp_path, "ETTh2", rows=5000)
    with pytest.raises(DataError, match=r"5,000 rows, expected at least 14,400 .*published at"):
        load_forecast(tmp_path, "ETTh2")
    pd.read_csv(tmp_path / "ETTh2.csv").drop(columns="OT").to_csv(tmp_path / "ETTh2.csv", index=False)
    with pytest.raises(DataError, match=r"ETTh2.csv: column 'OT' is missing"):
        load_forecast(tmp_path, "ETTh2")


# --- own CSV


def test_a_csv_is_cut_in_time_order_and_scaled_by_its_training_rows(tmp_path):
    path = miniatures.csv(tmp_path / "mine.csv", rows=501)
    data = load_csv(path, horizon=6, context=20)
    values = pd.read_csv(path)[["load", "wind"]].to_numpy()
    assert (len(data.train), len(data.val), len(data.test)) == (351 - 25, 50 - 5, 100 - 5)
    np.testing.assert_allclose(data.info.scale, (values[:351].mean(0), values[:351].std(0)), rtol=1e-9)
    batch = every(data.test)
    np.testing.assert_allclose(data.info.restore(batch.y)[-1], values[-6:], atol=1e-4)
    assert data.info.mark_sizes == (13, 32, 7, 24)
    one = load_csv(path, target="wind", horizon=6, context=20)
    torch.testing.assert_close(every(one.val).x[..., 0], every(data.val).x[..., 1])
    assert one.info.columns == ("wind",)


def test_dates_are_found_by_name_and_may_be_absent_or_day_first(tmp_path):
    table = pd.read_csv(miniatures.csv(tmp_path / "a.csv", rows=400))
    table.rename(columns={"date": "Timestamp"}).to_csv(tmp_path / "b.csv", index=False)
    assert load_csv(tmp_path / "b.csv", horizon=5, context=10).info.mark_sizes == (13, 32, 7, 24)
    table.rename(columns={"date": "when"}).to_csv(tmp_path / "c.csv", index=False)
    assert load_csv(tmp_path / "c.csv", horizon=5, context=10, date_column="when").info.step == 3600
    table.drop(columns="date").to_csv(tmp_path / "d.csv", index=False)
    bare = load_csv(tmp_path / "d.csv", horizon=5, context=10)
    assert bare.info.mark_sizes == ()
    assert bare.train.take(torch.arange(2)).marks is None
    days = pd.date_range("2024-02-01", periods=400, freq="D")
    table.assign(date=days.strftime("%d/%m/%Y")).to_csv(tmp_path / "e.csv", index=False)
    first = load_csv(tmp_path / "e.csv", horizon=5, context=10).train.marks[:3]
    assert first[:, :2].tolist() == [[2, 1], [2, 2], [2, 3]]
    quarter = pd.date_range("2024-01-01", periods=400, freq="15min")
    table.assign(date=quarter).to_csv(tmp_path / "f.csv", index=False)
    assert load_csv(tmp_path / "f.csv", horizon=5, context=10).info.mark_sizes == (13, 32, 7, 24, 4)


def test_a_column_named_as_dates_that_holds_numbers_is_times_if_they_rise(tmp_path, caplog):
    table = pd.read_csv(miniatures.csv(tmp_path / "a.csv", rows=200))
    path = tmp_path / "b.csv"
    table.assign(date=np.arange(200) * 0.01).rename(columns={"date": "time"}).to_csv(path, index=False)
    data = load_csv(path, horizon=5, context=10)
    assert (data.info.columns, data.info.mark_sizes, data.info.step) == (("load", "wind"), (), None)
    assert load_csv(path, "wind", horizon=5, context=10).info.columns == ("wind",)
    table.assign(date=np.arange(200) % 7).rename(columns={"date": "time"}).to_csv(tmp_path / "c.csv", index=False)
    assert load_csv(tmp_path / "c.csv", horizon=5, context=10).info.columns == ("load", "wind")
    assert "column 'time' holds numbers that do not rise; it is left out" in caplog.text
    with pytest.raises(DataError, match="is a number, not a date"):
        load_csv(path, date_column="time")


@pytest.mark.parametrize(
    ("dates", "step"),
    [
        (["2024-01-31", "2024-02-29", "2024-03-31"], 31 * 86400),
        (["2024-05-02", "2024-05-03", "2024-05-06", "2024-05-07"], 86400),
        (["2024-05-03"], 86400),
    ],
)
def test_steps_may_differ_by_the_calendar_alone(dates, step):
    seconds = np.array(dates, "datetime64[s]").astype(np.int64)
    same_step(seconds, step, "a table")
    if len(dates) > 1:
        with pytest.raises(DataError, match=r"its rows are .* apart, but the model was trained on rows 1:00:00 apart"):
            same_step(seconds, 3600.0, "a table")


def broken_csv(path, kind):
    table = pd.read_csv(miniatures.csv(path, rows=200))
    if kind == "text":
        table["wind"] = table["wind"].astype(object)
        table.loc[17, "wind"] = "calm"
    elif kind == "nan":
        table.loc[[5, 90], "load"] = np.nan
    elif kind == "infinite":
        table.loc[7, "load"] = np.inf
    elif kind == "dates":
        table.loc[3, "date"] = "yesterday"
    elif kind == "no date":
        table.loc[3, "date"] = None
    elif kind == "backwards":
        table.loc[[8, 9], "date"] = table.loc[[9, 8], "date"].to_numpy()
    elif kind == "only dates":
        table = table[["date"]]
    elif kind == "no rows":
        table = table[:0]
    table.to_csv(path, index=False)
    return path


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("text", r"'calm' in column 'wind', line 19 \(1 in all\)"),
        ("nan", r"NaN in column 'load', line 7 \(2 in all\)"),
        ("infinite", r"inf in column 'load', line 9"),
        ("dates", r"column 'date', line 5: 'yesterday' is not a date; expected one like 2024-05-01 13:00:00\.$"),
        ("no date", r"column 'date', line 5: no date"),
        ("backwards", r"column 'date', line 11: dates do not rise, '2024-01-01 08:00:00' comes after"),
        ("only dates", r"no column beside the date"),
        ("no rows", r"no rows below the header"),
    ],
)
def test_bad_rows_are_refused_in_one_line_that_says_where(tmp_path, kind, message):
    path = broken_csv(tmp_path / "own.csv", kind)
    with pytest.raises(DataError, match=message) as caught:
        load_csv(path, horizon=4, context=8)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_a_column_that_is_constant_in_training_keeps_its_unit(tmp_path):
    path = miniatures.csv(tmp_path / "own.csv", rows=200)
    pd.read_csv(path).assign(wind=[0.1] * 140 + [0.6] * 60).to_csv(path, index=False)
    data = load_csv(path, horizon=4, context=8)
    assert data.info.scale[1][1] == 1.0
    np.testing.assert_allclose(data.test.take(torch.arange(3)).y[..., 1], 0.5, atol=1e-6)


def test_bad_csv_options_and_files_say_what_is_wrong(tmp_path):
    path = miniatures.csv(tmp_path / "own.csv", rows=200)
    with pytest.raises(DataError, match=r"column 'solar' is missing; the file has date, load, wind"):
        load_csv(path, target="solar")
    with pytest.raises(DataError, match=r"column 'when' is missing"):
        load_csv(path, date_column="when")
    with pytest.raises(DataError, match=r"the val part has 20 rows, too few for context 60 \+ horizon 24"):
        load_csv(path, context=60)
    with pytest.raises(DataError, match=r"the train part has 140 rows, too few for context 160"):
        load_csv(path, context=160)
    with pytest.raises(OptionError, match="horizon is 0"):
        load_csv(path, horizon=0)
    with pytest.raises(DataError, match=r"nowhere.csv: no such file"):
        load_csv(tmp_path / "nowhere.csv")
    (tmp_path / "empty.csv").write_text("")
    with pytest.raises(DataError, match=r"empty.csv: not a readable CSV table"):
        load_csv(tmp_path / "empty.csv")
    (tmp_path / "ragged.csv").write_text("a,b\n1,2\n1,2,3,4\n")
    with pytest.raises(DataError, match=r"ragged.csv: not a readable .* Expected 2 fields in line 3, saw 4"):
        load_csv(tmp_path / "ragged.csv")


TABLES = {
    "load\n50,13\n": "not a readable CSV table",
    "date,load\n2024-01-01\n": "line 2 has 1 fields, expected 2",
    "1.5,2\n3,4\n": "has no line with names, the first is '1.5,2'",
    "load,load\n1,2\n": "column 'load' is there 2 times",
    "load\n1\n1e60\n": r"1e\+60 in column 'load', line 3 .* numbers up to 3.4e\+38",
    b"load\n\xff\n": "not a readable CSV table",
}


@pytest.mark.parametrize("text", TABLES)
def test_a_table_is_read_as_it_is_written_or_refused(tmp_path, text):
    path = tmp_path / "own.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(DataError, match=TABLES[text]) as caught:
        load_csv(path, horizon=1, context=1)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_other_separators_are_refused_with_the_expected_one(tmp_path):
    for mark in (";", "\t"):
        (tmp_path / "b.csv").write_text(f"date{mark}load\n2024-01-01{mark}1,5\n")
        with pytest.raises(DataError, match="separate columns by commas, decimals by a point"):
            load_csv(tmp_path / "b.csv", horizon=2, context=5)


def test_columns_of_a_long_table_that_are_not_read_are_named(tmp_path):
    path = tmp_path / "long.csv"
    path.write_text("unique_id,ds,y,price,shop\na,2024-01-01,1,2,x\na,2024-01-02,2,2,x\n")
    frame, left_out = read_csv(path)
    assert list(frame.columns) == ["unique_id", "ds", "y"]
    assert left_out.endswith("left out: price, shop")


@pytest.mark.parametrize(
    ("order", "columns", "words"),
    [
        ("date", ["store", "date", "sales"], r"column 'store' holds text \('a'\); choose a column by --target"),
        ("store", ["date", "sales"], "dates do not rise, .* name the columns unique_id, ds and y"),
        ("store", ["sales", "when"], "column 'when' holds dates .* by --date-column"),
    ],
)
def test_tables_of_several_series_say_how_to_name_their_columns(tmp_path, order, columns, words):
    dates = pd.date_range("2024-01-01", periods=30).astype(str)
    table = pd.DataFrame({"store": ["a"] * 30 + ["b"] * 30, "date": [*dates, *dates], "sales": np.arange(60.0)})
    path = tmp_path / "own.csv"
    table.assign(when=table["date"]).sort_values(order, kind="stable")[columns].to_csv(path, index=False)
    with pytest.raises(DataError, match=words) as caught:
        read_csv(path)
    assert str(caught.value).endswith("name the columns unique_id, ds and y if there are several series.")


@pytest.mark.parametrize("kind", ["wide", "long"])
def test_an_index_that_nobody_made_is_left_out(tmp_path, kind):
    table = pd.DataFrame({"unique_id": "a", "ds": pd.date_range("2024-01-01", periods=30), "y": np.arange(30.0)})
    table = table if kind == "long" else table.drop(columns="unique_id").rename(columns={"ds": "day"})
    table.to_csv(tmp_path / "a.csv", index=False)
    table.to_csv(tmp_path / "b.csv")
    wanted, (frame, left_out) = read_csv(tmp_path / "a.csv")[0], read_csv(tmp_path / "b.csv")
    pd.testing.assert_frame_equal(frame, wanted)
    assert left_out == "the first column has no name and counts the rows; it is left out"
    table.set_axis(np.arange(30) * 2).to_csv(tmp_path / "c.csv")
    assert kind == "long" or "Unnamed: 0" in read_csv(tmp_path / "c.csv", ["Unnamed: 0", "y"], "day")[0]


@pytest.mark.parametrize(("name", "unit"), [("ts", 1), ("Epoch", 1000), ("unix", 1000), ("timestamp", 1)])
def test_unix_seconds_and_milliseconds_are_dates(tmp_path, name, unit):
    dates = pd.date_range("2024-03-01", periods=48, freq="h", unit="us")
    table = pd.DataFrame({"load": np.arange(48.0), name: dates.as_unit("s").asi8 * unit})
    table.to_csv(tmp_path / "own.csv", index=False)
    frame, _ = read_csv(tmp_path / "own.csv")
    assert list(frame.columns) == ["load"]
    np.testing.assert_array_equal(frame.index, dates)
    table[name] = np.arange(48)
    table.to_csv(tmp_path / "own.csv", index=False)
    assert (name in read_csv(tmp_path / "own.csv")[0].columns) == (name != "timestamp"), "small numbers are values"


def dated(path, *dates):
    path.write_text("date,load\n" + "".join(f"{date},{k}\n" for k, date in enumerate(dates)))
    (series,), _ = read(read_csv(path, None, "date")[0], str(path), DataOptions())
    return series


DATES = {
    ("2024-01-09 07:00", "2024-01-09 08:00:00"): ("2024-01-09T07", "2024-01-09T08"),
    ("2024-01-09T07:00:00.250", "2024-01-09T07:00:01.250"): ("2024-01-09T07:00:00.250", "2024-01-09T07:00:01.250"),
    ("2024-01-09 07:00:00+05:00", "2024-01-09 08:00:00+05:00"): ("2024-01-09T07", "2024-01-09T08"),
    ("2024-01-09 07:00:00 UTC", "2024-01-09t08:00:00z"): ("2024-01-09T07", "2024-01-09T08"),
    ("2024-01-09 07:00:00-05", "2024-01-09 08:00:00-05"): ("2024-01-09T07", "2024-01-09T08"),
    ("1704067200", "1704070800"): ("2024-01-01T00", "2024-01-01T01"),
    ("1704067200250", "1704067201250"): ("2024-01-01T00:00:00.250", "2024-01-01T00:00:01.250"),
    ("2024/1/9", "2024/1/10"): ("2024-01-09", "2024-01-10"),
    ("2023-12", "2024-01"): ("2023-12-01", "2024-01-01"),
    ("12.01.2024 7:00", "13.01.2024 7:00"): ("2024-01-12T07", "2024-01-13T07"),
    ("1/12/2010 0:00", "1/13/2010 0:00"): ("2010-01-12", "2010-01-13"),
    ("1/13/2010 12:00:00 AM", "1/13/2010 1:00:00 PM"): ("2010-01-13", "2010-01-13T13"),
    ("09-Jan-2024 07:00", "9 January 2024 8:00"): ("2024-01-09T07", "2024-01-09T08"),
}


OFFSETS = {"+05:00": "+05:00", " UTC": "+00:00", "00-05": "-05:00"}


@pytest.mark.parametrize("dates", DATES)
def test_dates_are_those_of_the_clock_on_the_wall(tmp_path, dates):
    series = dated(tmp_path / "own.csv", *dates)
    assert series.clock.tolist() == (np.array(DATES[dates], "datetime64[ms]").astype(int) / 1000).tolist()
    assert series.offset == next((offset for end, offset in OFFSETS.items() if dates[0].endswith(end)), "")


NO_DATES = {
    ("09/01/2024 07:00", "10/01/2024 07:00"): "'09/01/2024 07:00' may be day or month first; expected the year first",
    ("2024-01-09 07:00+05:00", "2024-01-09 08:00+06:00"): "dates are at several offsets to UTC",
    ("2024-01-09 07:00", "2024-01-09 08:00Z"): "dates are at several offsets to UTC",
    ("170406", "170407"): "line 2: '170406' is a number, not a date; expected one like",
    ("20240101", "20240102"): "'20240101' is a number, not a date",
    ("2023", "2024"): "'2023' is a number, not a date",
    ("2024-02-29", "2024-02-30"): "line 3: '2024-02-30' is not a date",
    ("2024-01-01 13:00 PM",): "not a date",
    ("09-Jab-2024",): "not a date",
    ("2024-01-01 00:00:00.75", "2024-01-01 00:00:00.25"): "line 3: dates do not rise",
    ("31/12/2023", "", "1/1/2024"): "line 3: no date",
}


@pytest.mark.parametrize("dates", NO_DATES)
def test_what_is_no_date_is_named_with_its_line(tmp_path, dates):
    with pytest.raises(DataError, match=NO_DATES[dates]) as caught:
        dated(tmp_path / "own.csv", *dates)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("dates", "next_ones"),
    [
        (("2024-01-31", "2024-02-29", "2024-03-31"), ("2024-04-30", "2024-05-31")),
        (("2024-01-01", "2024-04-01", "2024-07-01"), ("2024-10-01", "2025-01-01")),
        (("2024-05-02", "2024-05-03", "2024-05-06"), ("2024-05-07", "2024-05-08")),
        (("2024-05-02 06:00", "2024-05-02 07:00"), ("2024-05-02T08", "2024-05-02T09")),
        (("2024-12-23", "2024-12-24", "2024-12-26"), ("2024-12-27T12", "2024-12-29")),  # no weekend was left out
    ],
)
def test_dates_continue_by_the_calendar(tmp_path, dates, next_ones):
    ahead = dated(tmp_path / "own.csv", *dates).future(2)
    assert ahead.tolist() == pd.DatetimeIndex(next_ones).tolist()


def test_a_recording_needs_no_line_with_names(tmp_path):
    path = tmp_path / "live.csv"
    for text, channels in (
        ("1,2\n3,4\n", ()),
        ("p,q\n1,2\n3,4\n", ("p", "q")),
        ("date,0,1\nx,1,2\ny,3,4\n", ("0", "1")),
    ):
        path.write_text(text)
        signal = read_signal(path)
        assert (signal.values.tolist(), signal.channels) == ([[1, 2], [3, 4]], channels)
    for text, words in (("0.1,abc\n1,2\n", "names or numbers, not both"), ("p,q\n", "no rows below the header")):
        path.write_text(text)
        with pytest.raises(DataError, match=words):
            read_signal(path)


def test_uneven_steps_are_refused_or_repaired_as_asked(tmp_path):
    path = miniatures.csv(tmp_path / "own.csv", rows=200)
    pd.read_csv(path).drop(index=50).to_csv(path, index=False)
    with pytest.raises(DataError, match=r"own.csv: its index has gaps or no regular step; .*--missing gap"):
        load_csv(path, horizon=4, context=8)
    counts = [len(load_csv(path, horizon=4, context=8, missing=how).train) for how in ("skip", "hold", "gap")]
    assert counts == [139 - 11, 140 - 11, 140 - 11]
    y = every(load_csv(path, horizon=4, context=8, missing="gap").train).y
    assert y.isnan().any(-1).sum() == 4, "the row that is not there is in four horizons, and not observed"


@pytest.mark.parametrize("numbers", [False, True])
def test_uneven_times_are_on_a_grid_with_gaps(tmp_path, caplog, numbers):
    """A clock that jitters by a few seconds, a lost half hour, two readings in one minute."""
    random = np.random.default_rng(0)
    seconds = 60 * np.arange(400) + np.append(0, random.uniform(-9, 9, 399))
    seconds = np.insert(np.delete(seconds, range(100, 130)), 200, seconds[230] - 5)
    values = np.sin(2 * np.pi * seconds / 3600)
    frame = pd.DataFrame({"time": seconds if numbers else pd.Timestamp("2024") + pd.to_timedelta(seconds, "s")})
    frame.assign(load=values).to_csv(tmp_path / "a.csv", index=False)
    options = {"horizon": 5, "context": 20, "missing": "gap"}
    with pytest.raises(DataError, match=r"the median step, 1 rows fall together .*--duplicates mean"):
        load_csv(tmp_path / "a.csv", **options)
    data = load_csv(tmp_path / "a.csv", duplicates="last", **options)
    grid = "60.0" if numbers else "0 days 00:01:00"
    assert f"onto a grid of {grid} of which 7 % is empty; 1 fell together with another" in caplog.text
    truth = data.info.restore(torch.from_numpy(next(data.train.rows())[1])).numpy()[:, 0]
    assert np.flatnonzero(np.isnan(truth)).tolist() == [*range(100, 130)]
    np.testing.assert_allclose(truth[130:], np.sin(2 * np.pi * np.arange(130, 400) / 60), atol=0.02)
    later = load_csv(tmp_path / "a.csv", duplicates="mean", **options)
    assert data.info.step == later.info.step == (None if numbers else 60)


def test_missing_months_are_months(tmp_path):
    index = pd.date_range("2015-01-01", periods=60, freq="MS").delete([7, 30])
    pd.DataFrame({"date": index, "load": np.arange(58.0)}).to_csv(tmp_path / "a.csv", index=False)
    (series,), _ = read(read_csv(tmp_path / "a.csv")[0], "a", CsvOptions(missing="gap"))
    assert series.index.equals(pd.date_range("2015-01-01", periods=60, freq="MS"))
    assert np.flatnonzero(series.gaps).tolist() == [7, 30]


# --- forecasts without training


def test_scores_are_errors_over_windows_steps_and_columns(tmp_path):
    data = load_csv(miniatures.csv(tmp_path / "a.csv", rows=900), horizon=30, context=48)
    batch, scores = every(data.test), baseline_scores(data)
    assert list(scores) == ["last value", "seasonal day", "seasonal week"]
    last = batch.x[:, -1:].expand(-1, 30, -1)
    day = torch.cat([batch.x[:, -24:], batch.x[:, -24:-18]], dim=1)
    for name, forecast in (("last value", last), ("seasonal day", day)):
        error = forecast - batch.y
        assert scores[name].mse == pytest.approx(float(error.square().mean()), rel=1e-5)
        assert scores[name].mae == pytest.approx(float(error.abs().mean()), rel=1e-5)


def test_baselines_are_for_forecasts_only(tmp_path):
    from wavessm_lab.tasks.window_copy import WindowCopy

    with pytest.raises(OptionError, match="window-copy is a regression set"):
        baseline_scores(WindowCopy(length=64, windows=1, cases=2).load(0))

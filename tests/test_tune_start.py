"""Starts of forecasts: validation errors setting by setting, and the chosen ones as a baseline."""

import csv
import dataclasses
import importlib
import sys
from pathlib import Path

import pytest
import torch

import miniatures
import wavessm as ws
from wavessm.data.source import DataSet, Windows
from wavessm.tasks import ForecastOptions, model_config
from wavessm.training.direct import start_at_ridge
from wavessm.training.task_recipes import recipe
from wavessm_lab.tasks import forecast_settings as settings

NAMES = "level,scaled-year-week"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("starts")
    miniatures.forecast(folder, "WTH", rows=2000, columns=3)
    return folder


@pytest.fixture
def script(monkeypatch):
    """The scripts of benchmarks/, by name."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent / "benchmarks"))
    yield importlib.import_module
    for name in ("tune_start", "baselines"):
        sys.modules.pop(name, None)


def search(script, folder, *words, horizons="48", names=NAMES):
    line = ["--data-root", str(folder), "--out", str(folder / "table.csv"), "--sets", "WTH", "--horizons", horizons]
    script("tune_start").run([*line, "--settings", names, *words])
    with (folder / "table.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def ridge(folder, name, variables="multi", stride=1):
    """The error of a start, with larger blocks and windows thinned by hand."""
    place = ForecastOptions(str(folder), "WTH", 48, variables)
    data_options, chosen = settings.settle(place, recipe("forecast"), settings.complete(name))
    data = data_options.load(0)
    for source in (data.train, data.val):
        source.starts = source.starts[torch.arange(len(source)) % stride == 0]
    options = dataclasses.replace(chosen.model, d_model=4, n_layers=1, d_state=8)
    return start_at_ridge(ws.SequenceModel(model_config("forecast", options, data.info, "fp32")), data).error


def test_every_setting_has_its_validation_error_and_the_same_line_goes_on(script, folder, capsys, monkeypatch):
    asked: list[Windows] = []
    take = Windows.take
    monkeypatch.setattr(Windows, "take", lambda self, index: asked.append(self) or take(self, index))
    loaded: list[DataSet] = []
    load = ForecastOptions.load
    monkeypatch.setattr(ForecastOptions, "load", lambda self, seed: loaded.append(load(self, seed)) or loaded[-1])
    rows = search(script, folder, "--stride", "3")
    first_of_test = loaded[0].test.starts[0] + loaded[0].test.seq_len
    assert max(s.starts[-1] + s.seq_len + s.horizon for s in asked) <= first_of_test, "the test split is not read"
    assert [(row["setting"], row["context"]) for row in rows] == [("level", "96"), ("scaled-year-week", "168")]
    for row in rows:
        assert (row["horizon"], row["variables"], row["stride"]) == ("48", "multi", "3")
        assert float(row["val_mse"]) == pytest.approx(ridge(folder, row["setting"], stride=3), rel=1e-4)
        assert "torch" in row["machine"]
    best = min(rows, key=lambda row: float(row["val_mse"]))["setting"]
    assert f'("WTH", 48): "{best}",' in capsys.readouterr().out
    assert search(script, folder, "--stride", "3") == rows
    more = search(script, folder, "--variables", "uni", names="level")
    assert more[:2] == rows
    assert len(more) == 3
    assert float(more[2]["val_mse"]) == pytest.approx(ridge(folder, "level", "uni"), rel=1e-4)


def test_a_context_that_is_the_published_one_is_not_tried_twice(script, folder):
    rows = search(script, folder, horizons="24", names="raw,raw-week")
    assert [row["setting"] for row in rows if row["horizon"] == "24"] == ["raw"]
    with pytest.raises(ws.UnknownNameError, match="did you mean 'level-year'"):
        search(script, folder, names="levelyear")


def test_the_start_is_a_baseline_of_one_column_and_of_all(script, folder, monkeypatch):
    baselines = script("baselines")
    monkeypatch.setattr(baselines, "SETS", {"WTH": dataclasses.replace(baselines.SETS["WTH"], lengths={48: (0, 0)})})
    chosen = {"uni": {("WTH", 48): "raw"}, "multi": {("WTH", 48): "scaled-year-week"}}
    monkeypatch.setattr(settings, "CHOSEN", chosen)
    rows = baselines.starts(str(folder), "uni,multi")
    assert [(row["variables"], row["metric"]) for row in rows] == [
        ("uni", "mse"), ("uni", "mae"), ("multi", "mse"), ("multi", "mae"),
    ]  # fmt: skip
    for row in rows:
        assert (row["model"], row["dataset"], row["horizon"]) == ("linear with calendar", "Weather", 48)
    place = ForecastOptions(str(folder), "WTH", 48, "multi")
    model, data, _ = script("tune_start").start(*settings.tuned(place, recipe("forecast")))
    batch = data.test.take(torch.arange(len(data.test)))
    with torch.no_grad():
        error = model.eval()(batch.x, marks=batch.marks) - batch.y
    assert data.info.length == 168
    assert [rows[2]["value"], rows[3]["value"]] == pytest.approx(
        [float(error.square().mean()), float(error.abs().mean())], rel=1e-4
    )


def test_the_settings_of_all_columns_are_those_with_the_least_error_in_the_committed_table(script):
    with (Path(__file__).parent.parent / "results" / "forecast" / "multi_settings.csv").open(newline="") as file:
        found = script("tune_start").best(list(csv.DictReader(file)))
    assert settings.CHOSEN["multi"] == {place: errors[0][1] for place, errors in found.items()}

"""The scripts of benchmarks/: those that documents quote exist and start; what they must not get wrong."""

import csv
import dataclasses
import importlib
import re
import runpy
import sys
from pathlib import Path

import pytest
import torch

import miniatures
from wavessm.data.datasets.forecast import ForecastOptions
from wavessm_lab.tasks import forecast_settings

ROOT = Path(__file__).parent.parent
SCRIPTS = sorted(path.stem for path in (ROOT / "benchmarks").glob("*.py"))
LIBRARIES = ("common", "no_gpu", "peers", "scan")


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    yield importlib.import_module
    for name in SCRIPTS:
        sys.modules.pop(name, None)


@pytest.mark.parametrize("page", ["README.md", "docs", "results"])
def test_quoted_scripts_exist_or_are_of_a_revision(page):
    pages = [ROOT / page] if page.endswith(".md") else sorted((ROOT / page).rglob("*.md"))
    for path in pages:
        for section in path.read_text().split("\n#"):
            missing = set(re.findall(r"benchmarks/(\w+)\.py", section)) - set(SCRIPTS)
            assert not missing or "revision" in section, f"{path}: {missing}"


@pytest.mark.parametrize("name", [name for name in SCRIPTS if name not in (*LIBRARIES, "sanitize")])
def test_every_script_has_help(script, name, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(ROOT / "benchmarks" / f"{name}.py"), run_name="__main__")
    assert not ended.value.code
    assert "usage:" in capsys.readouterr().out


def test_a_step_of_the_ptbxl_model_is_timed(script, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["ptbxl.py", "--tiny", "--out", str(tmp_path)])
    script("ptbxl").main()
    with (tmp_path / "ptbxl.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) >= 3
    assert all(float(row["step_ms"]) > 0 for row in rows)
    assert "ptbxl.py --tiny" in (tmp_path / "ptbxl.md").read_text()


def test_a_wrong_layer_gets_no_time(script):
    engine, shape = script("engine"), script("common").Shape(1, 2, 4, 50)
    cpu = torch.device("cpu")
    row = engine.measure(lambda: engine.our_block(shape, cpu, "morlet", "fp32"), shape, cpu)
    assert row["step_ms"] > 0
    engine.TOLERANCE["fp32"] = 0.0
    assert list(engine.measured({"ours": lambda: engine.our_block(shape, cpu, "morlet", "fp32")}, shape, cpu, "x")) == [
        ("ours", None)
    ]


def test_the_start_of_forecasts_is_a_baseline(script, tmp_path, monkeypatch):
    miniatures.forecast(tmp_path, "WTH", rows=2000, columns=3)
    baselines = script("baselines")
    monkeypatch.setattr(baselines, "SETS", {"WTH": dataclasses.replace(baselines.SETS["WTH"], lengths={48: (0, 0)})})
    chosen = {"uni": {("WTH", 48): "raw"}, "multi": {("WTH", 48): "scaled-year-week"}}
    monkeypatch.setattr(forecast_settings, "CHOSEN", chosen)
    rows = baselines.starts(str(tmp_path), ["uni", "multi"])
    assert [(row["variables"], row["metric"]) for row in rows] == [
        ("uni", "mse"), ("uni", "mae"), ("multi", "mse"), ("multi", "mae"),
    ]  # fmt: skip
    assert all((row["model"], row["horizon"]) == ("linear with calendar", 48) for row in rows)
    test = ForecastOptions(str(tmp_path), "WTH", 48, "multi").load(0).test
    batch = test.take(torch.arange(len(test)))
    assert rows[2]["value"] < float(batch.y.square().mean()), "better than the mean"


def test_forecasts_of_all_columns_use_the_setting_with_the_smallest_error_in_the_committed_table():
    best: dict[tuple[str, int], tuple[float, str]] = {}
    with (ROOT / "results" / "forecast" / "multi_settings.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            place, error = (row["dataset"], int(row["horizon"])), (float(row["val_mse"]), row["setting"])
            best[place] = min(best.get(place, error), error)
    assert forecast_settings.CHOSEN["multi"] == {place: name for place, (_, name) in best.items()}

"""The comparison of settings: every run a row, failed ones too, resumed where it stopped, the test split unread."""

import csv
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

import miniatures
import wavessm as ws

SCRIPT = Path(__file__).parent.parent / "benchmarks" / "tune_forecast.py"
TINY = ["--d-model", "4", "--n-layers", "1", "--d-state", "8", "--device", "cpu", "--precision", "fp32", "--steps", "2",
        "--batch-size", "4"]  # fmt: skip


def tune(folder, *words, extra=TINY):
    line = [
        sys.executable,
        str(SCRIPT),
        "--data-root",
        str(folder),
        "--out",
        str(folder / "tune"),
        *words,
        "--",
        *extra,
    ]
    return subprocess.run(line, capture_output=True, text=True, timeout=200)


def rows_of(folder):
    with (folder / "tune" / "tune.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tune")
    miniatures.forecast(folder, "WTH", rows=1200)
    (folder / "settings.toml").write_text(
        "[plain]\ntimeenc = 0\ndirect = false\ndirect_start = 'zero'\nseq_len = 20\n\n"
        "['WTH:year']\ntimeenc = 3\ninstance_norm = 'none'\nseq_len = 20\n\n[broken]\nseq_len = 9999\n\n['ECL:raw']\n"
    )
    return folder


def test_every_run_is_a_row_and_the_same_line_goes_on(folder):
    words = ["--sets", "WTH", "--horizons", "24", "--candidates", str(folder / "settings.toml"), "--jobs", "2"]
    first = tune(folder, *words)
    assert first.returncode == 1, first.stderr
    rows = rows_of(folder)
    assert {(row["candidate"], row["status"] == "ok") for row in rows} == {
        ("plain", True), ("year", True), ("broken", False),
    }  # fmt: skip
    assert "too few for context 9999" in next(row["status"] for row in rows if row["candidate"] == "broken")
    good = {row["candidate"]: row for row in rows if row["status"] == "ok"}
    for name, row in good.items():
        assert (row["dataset"], row["horizon"], row["seed"]) == ("WTH", "24", "0")
        assert float(row["seconds"]) > 0
        assert int(row["best_step"]) in ((1, 2) if name == "plain" else (0, 1, 2))
        assert "--no-test" in row["command"].split()
        run = next(p for p in (folder / "tune").glob("forecast-*/run.json") if row["command"] in p.read_text())
        content = json.loads(run.read_text())
        assert (content["data"]["timeenc"], content["model"]["direct"]) == (
            (0, False) if name == "plain" else (3, True)
        )
        with (run.parent / "metrics.csv").open(newline="") as file:
            scores = [float(row["val_mse"]) for row in csv.DictReader(file)]
        if name == "plain":
            assert float(row["val_mse"]) == pytest.approx(min(scores), rel=1e-5)
        else:  # its start counts too
            assert float(row["val_mse"]) <= min(scores) * (1 + 1e-5)
        assert not any(key.startswith("test") for key in json.loads((run.parent / "result.json").read_text()))
    best = min(good, key=lambda name: float(good[name]["val_mse"]))
    assert f'("WTH", 24): "{best}",' in first.stdout
    again = tune(folder, *words, "--seeds", "0,1")
    assert again.returncode == 1
    assert len(rows_of(folder)) == 6
    assert [row for row in rows_of(folder) if row["seed"] == "0"] == rows, "what was done is not done again"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("tune_forecast", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["tune_forecast"] = module
    spec.loader.exec_module(module)
    return module


def test_a_candidate_may_be_for_one_data_set_only(script):
    given, extra = script.parsed(
        [
            "--data-root",
            "x",
            "--sets",
            "WTH,ECL",
            "--horizons",
            "720",
            "--candidates",
            "level,ECL:raw",
            "--seeds",
            "0,1",
        ]
    )
    trials = script.plan(given, [*extra, "--device", "cpu"])
    assert [(t.dataset, t.candidate, t.seed) for t in trials] == [
        ("WTH", "level", 0), ("WTH", "level", 1), ("ECL", "level", 0), ("ECL", "level", 1), ("ECL", "raw", 0),
        ("ECL", "raw", 1),
    ]  # fmt: skip
    assert len({t.job.name for t in trials}) == 6
    assert {t.job.recipe.model.instance_norm for t in trials if t.candidate == "raw"} == {"none"}
    assert {t.job.recipe.model.structure for t in trials} == {"diagonal"}


def test_the_best_candidate_is_the_one_with_the_least_mean_of_as_many_runs(script):
    def row(candidate, error, status="ok"):
        return {"dataset": "WTH", "horizon": 24, "candidate": candidate, "val_mse": str(error), "status": status}

    rows = [row("a", 0.3), row("a", 0.1), row("b", 0.05), row("b", "", "failed: x"), row("c", 0.25), row("c", 0.25)]
    assert script.ranked(rows) == {("WTH", 24): [(pytest.approx(0.2), "a"), (0.25, "c")]}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--sets", "ETTh9"], "expected some of ETTh1"),
        (["--sets", "WTH", "--horizons", "25"], "none of the sets has such a horizon"),
        (["--sets", "WTH", "--candidates", "lvl"], "unknown setting 'lvl'"),
        (["--sets", "WTH", "--horizons", "24", "--candidates", "ECL:raw"], "no run: none of the sets"),
        (["--sets", "WTH", "--candidates", "nowhere.toml"], "cannot be read as TOML"),
        (["--sets", "WTH", "--horizons", "24", "--candidates", "raw"], "WTH"),
    ],
)
def test_mistakes_are_one_line(tmp_path, script, words, said):
    with pytest.raises(ws.WaveSSMError, match=said) as raised:
        script.run(["--data-root", str(tmp_path), "--out", str(tmp_path / "tune"), *words, "--", *TINY])
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "tune").exists()

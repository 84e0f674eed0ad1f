"""The benchmark of whole tables reads the table of runs aright and runs where there is no GPU."""

import csv
import importlib
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parent.parent


@pytest.fixture
def table_time(monkeypatch):
    """The script's `main`, given the words of a command line."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    script = importlib.import_module("table_time")
    precision = torch.get_float32_matmul_precision()

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["table_time.py", *map(str, words)])
        script.main()

    yield run
    torch.set_float32_matmul_precision(precision)


def read(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_steps_of_runs_are_counted(tmp_path, table_time):
    rows = read(ROOT / "results" / "runs.csv")
    ecg = next(row for row in rows if row["task"] == "ptbxl-form" and row["epochs"])
    copying = next(row for row in rows if row["task"] == "window-copy" and row["epochs"])
    with (tmp_path / "runs.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows([ecg, ecg, copying])  # a run has a row for each of its scores
    line = ["--tiny", "--runs", tmp_path / "runs.csv"]
    table_time(*line, "--out", tmp_path)
    made = {row["table"]: row for row in read(tmp_path / "table_time.csv")}
    assert made["ptbxl-form"]["steps"] == "904", "8 epochs of 7,197 records in batches of 64"
    assert made["window-copy"]["steps"] == "10000"
    assert all(float(row["diagonal_minutes"]) > 0 and float(row["dplr_minutes"]) > 0 for row in made.values())
    table_time(*line, "--out", tmp_path / "again", "--times", tmp_path / "step_times.csv")
    minutes = [float(row["dplr_minutes"]) for row in read(tmp_path / "again" / "table_time.csv")]
    assert minutes == pytest.approx([float(row["dplr_minutes"]) for row in made.values()], rel=1e-3)
    table_time(*line, "--out", tmp_path / "anew", "--times", tmp_path / "step_times.csv", "--groups", "window-copy")
    before, after = read(tmp_path / "step_times.csv"), read(tmp_path / "anew" / "step_times.csv")
    assert [row for row in after if row["group"] == "ptbxl"] == [row for row in before if row["group"] == "ptbxl"]
    assert len(after) == len(before)
    with pytest.raises(SystemExit, match=r"no group 'nix'; known: ptbxl, "):
        table_time(*line, "--groups", "nix")
    (tmp_path / "other.csv").write_text("group,length,who,milliseconds,machine,torch\n")
    with pytest.raises(
        SystemExit, match=r"has no step times of ptbxl,window-copy; time them with --groups ptbxl,window-copy\.$"
    ):
        table_time(*line, "--times", tmp_path / "other.csv")


@pytest.mark.parametrize(("name", "said"), [("missing.csv", "no such file"), ("empty.csv", "has no finished run")])
def test_a_table_without_runs_is_one_line(tmp_path, table_time, name, said):
    (tmp_path / "empty.csv").touch()
    with pytest.raises(SystemExit, match=said) as end:
        table_time("--runs", tmp_path / name)
    assert "\n" not in str(end.value)

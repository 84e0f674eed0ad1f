"""The benchmark of whole tables reads the table of runs aright and runs where there is no GPU."""

import csv
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def test_the_steps_of_runs_are_counted(tmp_path):
    line = [sys.executable, str(ROOT / "benchmarks" / "table_time.py"), "--tiny", "--runs", str(tmp_path / "runs.csv")]
    with (ROOT / "results" / "runs.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    ecg = next(row for row in rows if row["task"] == "ptbxl-form" and row["epochs"])
    copying = next(row for row in rows if row["task"] == "window-copy" and row["epochs"])
    with (tmp_path / "runs.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows([ecg, ecg, copying])  # a run has a row for each of its scores
    done = subprocess.run([*line, "--out", str(tmp_path)], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    with (tmp_path / "table_time.csv").open(newline="") as file:
        made = {row["table"]: row for row in csv.DictReader(file)}
    assert made["ptbxl-form"]["steps"] == "904", "8 epochs of 7,197 records in batches of 64"
    assert made["window-copy"]["steps"] == "10000"
    again = subprocess.run(
        [*line, "--out", str(tmp_path / "again"), "--times", str(tmp_path / "step_times.csv")],
        capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert again.returncode == 0, again.stderr
    with (tmp_path / "again" / "table_time.csv").open(newline="") as file:
        minutes = [float(row["dplr_minutes"]) for row in csv.DictReader(file)]
    (tmp_path / "other.csv").write_text("group,length,who,milliseconds,machine,torch\n")
    bad = subprocess.run([*line, "--times", str(tmp_path / "other.csv")], capture_output=True, text=True, timeout=200)
    assert bad.returncode == 1
    assert bad.stderr.endswith("has no step times of ptbxl, window-copy; time them anew.\n")
    assert minutes == pytest.approx([float(row["dplr_minutes"]) for row in made.values()], rel=1e-3)
    assert all(float(row["diagonal_minutes"]) > 0 and float(row["dplr_minutes"]) > 0 for row in made.values())


def test_a_table_without_runs_is_one_line(tmp_path):
    (tmp_path / "empty.csv").touch()
    for name, said in (("missing.csv", "no such file"), ("empty.csv", "has no finished run")):
        line = [sys.executable, str(ROOT / "benchmarks" / "table_time.py"), "--runs", str(tmp_path / name)]
        done = subprocess.run(line, capture_output=True, text=True, timeout=100)
        assert done.returncode == 1
        assert said in done.stderr
        assert done.stderr.count("\n") == 1

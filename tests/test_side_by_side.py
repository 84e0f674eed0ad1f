"""The benchmark of models side by side runs where there is no GPU, and its totals are the sums of its parts."""

import csv
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parent.parent / "benchmarks" / "side_by_side.py"


def test_models_train_side_by_side(tmp_path):
    line = [sys.executable, str(SCRIPT), "--tiny", "--counts", "2", "1", "--seconds", "0.3", "--models", "forecast"]
    done = subprocess.run([*line, "--out", str(tmp_path)], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    with (tmp_path / "throughput.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["model"], row["processes"]) for row in rows] == [("forecast", "1"), ("forecast", "2")]
    for row in rows:
        each, slowest, total = (float(row[f"cases_s_{name}"]) for name in ("each", "slowest", "total"))
        assert 0 < slowest <= each
        assert abs(total - each * int(row["processes"])) < 1e-3 * total
    assert float(rows[0]["times_one"]) == 1
    assert "side_by_side.py --tiny" in (tmp_path / "throughput.md").read_text()

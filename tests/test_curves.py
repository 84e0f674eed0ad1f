"""Loss curves of one tiny model per kind of task stay what they were."""

import csv
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def read(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_training_has_the_loss_curves_of_the_committed_table(tmp_path):
    """On the machine that made the table they are equal to the last digit; others round differently."""
    out = tmp_path / "curves.csv"
    subprocess.run([sys.executable, str(ROOT / "benchmarks/same_curves.py"), str(out)], check=True, cwd=tmp_path)
    now, before = read(out), read(ROOT / "results/house/curves_after.csv")
    assert [(row["run"], row["step"]) for row in now] == [(row["run"], row["step"]) for row in before]
    for new, old in zip(now, before, strict=True):
        for name in ("train_loss", "lr"):
            assert float(new[name]) == pytest.approx(float(old[name]), rel=0.003), f"{name} of {new}, was {old}"

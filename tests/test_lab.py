"""The studies, end to end at small sizes."""

import csv

import numpy as np
import pytest

from wavessm_lab.studies import conditioning, memory
from wavessm_lab.studies.signals import classical, ecg, near_jumps


def test_conditioning_study_writes_its_table(tmp_path):
    conditioning.main(["--out", str(tmp_path), "--sizes", "8", "16"])
    rows = list(csv.DictReader((tmp_path / "conditioning.csv").read_text().splitlines()))
    assert {row["family"] for row in rows} >= {"morlet", "db6", "legendre", "gabor"}
    for row in rows:
        assert float(row["kappa_tight"]) <= 1 + 1e-9
        assert float(row["residual_scaled"]) < 1e-10
    assert (tmp_path / "conditioning.png").exists()
    assert (
        f"wavessm_lab.studies.conditioning --out {tmp_path} --sizes 8 16`" in (tmp_path / "PROVENANCE.md").read_text()
    )


def test_memory_study_writes_its_table(tmp_path):
    memory.main(["--out", str(tmp_path), "--sizes", "16", "--length", "256"])
    rows = list(csv.DictReader((tmp_path / "reconstruction.csv").read_text().splitlines()))
    assert {row["signal"] for row in rows} == {s.name for s in classical(256)} | {"ecg"}
    for row in rows:
        if row["projection"] != "nan":
            assert float(row["projection"]) <= float(row["overall"]) + 1e-6, "nothing in the span does better"
    mean = [float(row["overall"]) for row in rows if row["family"] == "(mean)" and row["signal"] == "ecg"]
    assert mean[0] == pytest.approx(1.0)


def test_jumps_are_found_where_they_are():
    values = np.where(np.arange(1000) < 400, 0.0, 1.0)
    marked = np.flatnonzero(near_jumps(values, reach=0.01))
    assert marked.min() == 389
    assert marked.max() == 409
    assert ecg().abrupt.mean() < 0.2

"""The studies, end to end at small sizes."""

import numpy as np
import pytest

from wavessm.operators import make_operator
from wavessm_lab.studies import frame_bounds, memory
from wavessm_lab.studies.signals import classical, ecg, near_jumps


def test_tables_of_conditioning_hold_the_identity_for_every_tight_frame():
    rows = frame_bounds.condition_numbers(sizes=(8, 16)).rows
    assert {row["family"] for row in rows} >= {"morlet", "db6", "legendre", "gabor"}
    for row in rows:
        if row["rank"] == row["n"]:
            assert row["kappa_tight"] <= 1 + 1e-9
            assert row["residual_scaled"] < 1e-10
        else:
            assert np.isnan(row["residual_scaled"])
    modes = make_operator("db6", "translated", 16).to_diagonal()
    mine = next(r for r in rows if (r["family"], r["range"], r["n"]) == ("db6", "default", 16))
    assert mine["eigenvectors_translated"] == pytest.approx(modes.condition_number)


def test_memories_give_back_no_more_than_their_span_and_more_than_nothing():
    rows = memory.reconstruction_errors(sizes=(16,), length=256).rows
    assert {row["signal"] for row in rows} == {s.name for s in classical(256)} | {"ecg"}
    for row in rows:
        if not np.isnan(row["projection"]):
            assert row["projection"] <= row["overall"] + 1e-6, "nothing in the span does better"
    mean = [row["overall"] for row in rows if row["family"] == "(mean)" and row["signal"] == "ecg"]
    assert mean[0] == pytest.approx(1.0)


def test_jumps_are_found_where_they_are():
    values = np.where(np.arange(1000) < 400, 0.0, 1.0)
    marked = np.flatnonzero(near_jumps(values, reach=0.01))
    assert marked.min() == 389
    assert marked.max() == 409
    assert ecg().abrupt.mean() < 0.2

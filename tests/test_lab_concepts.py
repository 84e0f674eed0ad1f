"""The figures behind the concepts: atoms where the measures put them, a memory that recalls, modes of an operator."""

import numpy as np
import pytest

from wavessm.inspection.drawing import canvas
from wavessm.operators import make_operator
from wavessm_lab.studies import concepts
from wavessm_lab.studies.signals import ecg


@pytest.fixture(autouse=True)
def closed_figures():
    yield
    with canvas() as plt:
        plt.close("all")


def test_atoms_stretch_under_the_scaled_measure_and_slide_under_the_translated_one():
    rows = concepts.two_measures(points=2001, theta=0.3).rows
    for measure, place in (("scaled", lambda t, c: t * c), ("translated", lambda t, c: t - 0.3 + 0.3 * c)):
        for now in (0.4, 1.0):
            for k, centre in enumerate(concepts.CENTRES):
                drawn = [row for row in rows if (row["measure"], row["now"], row["atom"]) == (measure, now, k)]
                peak = max(drawn, key=lambda row: row["value"])
                assert peak["time"] == pytest.approx(place(now, centre), abs=0.003)


def test_streamed_memory_recalls_as_well_as_its_caption_says():
    drawing = concepts.streamed_memory(n=32)
    x = np.array([row["signal"] for row in drawing.rows])
    assert np.allclose(x, ecg().values)
    for family, label in (("morlet", "Morlet"), ("legendre", "Legendre")):
        recalled = np.array([row[family] for row in drawing.rows])
        error = np.sqrt(np.mean((recalled - x) ** 2) / np.mean(x**2))
        assert f"{label} {error:.2f}" in drawing.caption
        atoms = make_operator(family, "scaled", 32).frame.evaluate((np.arange(len(x)) + 0.5) / len(x))
        best = x - atoms.T @ np.linalg.lstsq(atoms.T, x, rcond=None)[0]
        assert np.sqrt(np.mean(best**2) / np.mean(x**2)) < error < 1, "no better than the span allows, and no silence"


def test_modes_are_the_operators_eigenvalues():
    rows = concepts.modes_of_operators(n=16).rows
    for family in ("morlet", "db6", "legendre"):
        lam = np.array([row["re"] + 1j * row["im"] for row in rows if row["family"] == family])
        A = make_operator(family, "scaled", 16).A
        assert lam.real.max() < -0.5 + 1e-9
        assert lam.sum().real == pytest.approx(-np.trace(A))
        assert np.sum(lam**2).real == pytest.approx(np.trace(A @ A), rel=1e-6)
    legendre = sorted(row["re"] for row in rows if row["family"] == "legendre")
    assert legendre == pytest.approx(sorted(-np.arange(1.0, 17)), rel=1e-2), "at this size they can still be found"

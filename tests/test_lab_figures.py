"""The command that makes the figures, and the studies of frames, coordinates and windows behind them."""

import csv
from itertools import pairwise

import numpy as np
import pytest

from contracts import check_mistake
from wavessm.cli import main
from wavessm.frames import make_frame
from wavessm.inspection.drawing import Drawing, canvas
from wavessm.operators import make_operator
from wavessm_lab.studies import LABELS, atoms, concepts, figures, frame_bounds, jacobian, memory, windows
from wavessm_lab.studies.signals import classical, ecg, near_jumps


@pytest.fixture(autouse=True)
def closed_figures():
    yield
    with canvas() as plt:
        plt.close("all")


# -- the command --------------------------------------------------------------------------------------------


def test_command_writes_picture_document_data_and_caption_the_same_every_time(tmp_path, capsys):
    for folder in ("first", "second"):
        assert main(["figures", "overlap", "legendre-morlet", "--out", str(tmp_path / folder)]) == 0
    assert "overlap (" in capsys.readouterr().out
    first = {path.name: path.read_bytes() for path in (tmp_path / "first").iterdir()}
    second = {path.name: path.read_bytes() for path in (tmp_path / "second").iterdir()}
    assert set(first) == {
        "PROVENANCE.md",
        *(f"{name}.{end}" for name in ("overlap", "legendre-morlet") for end in ("png", "pdf", "csv", "txt")),
    }
    for name in set(first) - {"PROVENANCE.md"}:
        assert first[name] == second[name], f"{name} differs from run to run"
    assert first["overlap.png"].startswith(b"\x89PNG")
    assert first["overlap.pdf"].startswith(b"%PDF")
    assert first["overlap.txt"].decode().count("\n") == 1
    rows = list(csv.DictReader(first["overlap.csv"].decode().splitlines()))
    assert len(rows) == len(LABELS) * 8


def test_command_answers_wrong_names_with_the_closest_and_lists_the_right_ones(tmp_path, capsys):
    check_mistake(["figures", "overlop", "--out", str(tmp_path)], "did you mean 'overlap'?", capsys)
    check_mistake(["figures", "overlap", "--gallery", str(tmp_path)], "whole set", capsys)
    assert not list(tmp_path.iterdir())
    assert main(["figures", "--list"]) == 0
    assert capsys.readouterr().out.split() == list(figures.FIGURES)


def test_gallery_shows_every_figure_once():
    names = list(figures.FIGURES)
    assert sorted(name for section in figures.SECTIONS.values() for name in section) == sorted(names)
    page = figures.gallery_page({name: f"caption of {name}." for name in names})
    for name in names:
        assert page.count(f"(figures/{name}.png)") == 1
        assert page.count(f"caption of {name}.") == 1


def test_whole_set_writes_the_gallery_beside_its_pictures(tmp_path, monkeypatch):
    def blank():
        with canvas() as plt:
            return Drawing(plt.figure(figsize=(1, 1)), [{"x": 1.0}], "nothing to see.")

    for name in figures.FIGURES:
        monkeypatch.setitem(figures.FIGURES, name, blank)
    assert main(["figures", "--out", str(tmp_path / "out"), "--gallery", str(tmp_path / "docs")]) == 0
    page = (tmp_path / "docs" / "gallery.md").read_text()
    for name in figures.FIGURES:
        assert f"figures/{name}.png" in page
        assert (tmp_path / "docs" / "figures" / f"{name}.png").exists()
        assert (tmp_path / "out" / f"{name}.pdf").exists()


# -- atoms and matrices -------------------------------------------------------------------------------------


def test_drawn_atoms_have_unit_energy_and_narrow_with_the_scale():
    rows = atoms.atoms_at_three_scales(points=1200).rows
    s = np.array([row["s"] for row in rows])
    names = [name for name in rows[0] if name != "s"]
    assert len(names) == 3 * (4 + 3), "three tapers of DPSS"

    def spread(name):
        energy = np.array([row[name] for row in rows]) ** 2
        assert energy.mean() == pytest.approx(1)
        return np.sqrt(energy @ (s - energy @ s / energy.sum()) ** 2 / energy.sum())

    for family in ("morlet", "gauss", "mexhat", "db6"):
        wide, middle, narrow = (spread(f"{family}_{scale:g}") for scale in atoms.SCALES)
        assert middle / wide == pytest.approx(0.315, rel=0.02)
        assert narrow / wide == pytest.approx(0.125, rel=0.02)


def test_drawn_matrices_are_the_operators():
    rows = [r for r in concepts.transition_matrices(n=12).rows if (r["family"], r["measure"]) == ("legendre", "scaled")]
    shown = np.array([[row[f"a{k}"] for k in range(12)] for row in rows])
    assert np.allclose(shown, make_operator("legs", n=12).A, atol=1e-9)


# -- conditioning and the lemma -----------------------------------------------------------------------------


def test_raw_frames_with_the_papers_hop_become_dependent_and_tight_ones_stay_at_one():
    rows = frame_bounds.condition_numbers(sizes=(8, 64)).rows
    hop = {(row["family"], row["n"]): row for row in rows if row["range"] == "hop"}
    assert hop["mexhat", 8]["kappa_raw"] < 1e10 < 1e20 < hop["mexhat", 64]["kappa_raw"]
    assert hop["mexhat", 64]["rank"] < 64
    assert np.isnan(hop["mexhat", 64]["kappa_tight"])
    for row in rows:
        if row["range"] == "default":
            assert row["kappa_raw"] <= 1.01e12
            assert row["kappa_tight"] < 1 + 1e-9
            assert row["residual_scaled"] < 1e-10
    default = next(r for r in rows if (r["range"], r["family"], r["n"]) == ("default", "db6", 64))
    S = make_frame("db6", 64).gram()
    assert default["kappa_raw"] == pytest.approx(np.linalg.cond(S), rel=1e-3)
    modes = make_operator("db6", "translated", 64).to_diagonal()
    assert default["eigenvectors_translated"] == pytest.approx(modes.condition_number)


@pytest.mark.parametrize("measure", ["scaled", "translated"])
def test_lemma_bounds_the_norm_and_the_similarity_bounds_it_more_closely(measure):
    found = [frame_bounds.measure_lemma("gauss", 20, alpha, measure) for alpha in (3.0, 1.5, 1.0)]
    for row in found:
        frame = frame_bounds.raw_frame("gauss", 20, row["alpha"])
        A = make_operator(frame, measure).A
        S = frame.gram()
        assert row["norm"] == pytest.approx(np.linalg.svd(A)[1][0])
        # λ_min through S itself loses κ(S); a part in a hundred is enough here
        assert row["bound"] == pytest.approx(np.linalg.norm(A @ S, 2) / np.linalg.eigvalsh(S)[0], rel=0.01)
        assert row["norm"] <= row["bound"] * (1 + 1e-9)
        assert row["norm"] <= row["similarity_bound"] * (1 + 1e-6)
    assert all(second["kappa"] > 10 * first["kappa"] for first, second in pairwise(found))
    assert found[-1]["norm"] > 10 * found[-1]["norm_tight"], "bad conditioning inflates A"
    assert frame_bounds.measure_lemma("mexhat", 64, 0.75, measure) is None, "dependent atoms have no operator"


# -- what coordinates hear ----------------------------------------------------------------------------------


def test_localisation_of_a_box_and_overlap_of_separate_and_of_shared_coordinates():
    J = np.zeros((2, 100))
    J[0, :50], J[1, 50:] = 1.0, 2.0
    centre, spread = jacobian.localisation(J)
    assert centre.tolist() == pytest.approx([0.25, 0.75])
    assert spread.tolist() == pytest.approx([0.5 / np.sqrt(12)] * 2, rel=1e-3)
    assert jacobian.overlaps(J, 2).tolist() == [[1, 0], [0, 1]]
    assert np.allclose(jacobian.overlaps(np.ones((2, 100)), 2), 1)


def test_wavelets_are_local_where_legendre_and_fourier_are_not():
    rows = jacobian.localisation_of_coordinates(n=32, length=256).rows
    median = {f: np.median([row["spread"] for row in rows if row["family"] == f]) for f in LABELS}
    assert median["morlet"] < 0.15
    assert median["morlet"] < median["gauss"] < median["fourier"] < median["legendre"]
    apart = {family: jacobian.overlaps(jacobian.jacobian(family, 32, 256), 8)[0, 4] for family in LABELS}
    assert apart["morlet"] < 0.1 < 0.9 < apart["legendre"]


def test_jacobian_with_a_constant_step_is_the_layers_impulse_response():
    drawing = jacobian.jacobian_of_morlet(n=16, length=40, horizon=2.0)
    rows = [row for row in drawing.rows if row["panel"] == "constant step"]
    shown = np.array([[row[f"t{k}"] for k in range(40)] for row in rows])
    operator = make_operator("morlet", "scaled", 16)
    lam, V = np.linalg.eig(-operator.A)
    age, dt = np.arange(39, -1, -1) * 2.0 / 40, 2.0 / 40
    weights = np.linalg.solve(V, operator.B)[:, None] * np.exp(np.outer(lam, age)) * np.expm1(lam * dt)[:, None]
    assert np.allclose(shown, (V @ (weights / lam[:, None])).real, atol=1e-9)


# -- probes -------------------------------------------------------------------------------------------------


def test_closed_form_probe_is_the_limit_of_probes_trained_on_many_signals():
    rng = np.random.default_rng(0)
    G, targets, noise = rng.standard_normal((5, 8)), np.eye(8)[:2], 0.3
    x = rng.standard_normal((200_000, 8))
    state = x @ G.T + noise * rng.standard_normal((len(x), 5))
    trained = np.linalg.lstsq(state, x[:, :2], rcond=None)[0].T
    P = windows.probe(G, targets, noise)
    assert np.allclose(P, trained, atol=0.01)
    measured = 1 - np.mean((state @ P.T - x[:, :2]) ** 2)
    assert windows.score(P, G, targets, noise) == pytest.approx(measured, abs=0.01)


def test_blocks_are_of_equal_size_and_follow_the_energy():
    G = np.kron(np.eye(4)[[2, 0, 3, 1]], np.ones((2, 3)))  # two coordinates for each of four windows of three values
    assert windows.assign(G, 4).tolist() == [2, 2, 0, 0, 3, 3, 1, 1]


def test_whole_states_read_all_windows_but_only_wavelets_keep_them_in_blocks():
    wave, legs = windows.separability("mexhat"), windows.separability("legendre")
    assert min(wave.whole.min(), legs.whole.min()) > 0.98, "a linear probe separates windows in both memories"
    assert wave.own[0] > 0.9
    assert legs.own[0] < 0.4, "eight global coordinates hold a quarter of everything"
    assert wave.others[1] - wave.own[1] > 0.4, "masking a block forgets its window"
    assert abs(legs.others[1] - legs.own[1]) < 0.1


# -- concepts -----------------------------------------------------------------------------------------------


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


# -- memories and signals -----------------------------------------------------------------------------------


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

"""Step functions on a budget: coefficients, transforms, the pursuit and the values they must reproduce."""

import numpy as np
import pytest
import pywt

from wavessm_lab.studies import budget, steps
from wavessm_lab.studies.pursuit import PANEL, Dictionary, cwt_dictionary, matching_pursuit
from wavessm_lab.studies.steps import BUDGETS, TARGETS, Atoms, grid_error


def grid_values(target, length):
    return TARGETS[target].values(np.linspace(0, 1, length))


# -- targets and Legendre -----------------------------------------------------------------------------------


def test_targets_jump_where_they_should():
    t = np.array([0.0, 0.3333, 0.3334, 0.4999, 0.5, 0.6666, 0.6667, 1.0])
    assert TARGETS["one"].values(t).tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert TARGETS["two"].values(t).tolist() == [0, 0, 1, 1, 1, 1, 0.3, 0.3]


@pytest.mark.parametrize("target", TARGETS)
def test_closed_form_coefficients_match_quadrature_on_each_smooth_piece(target):
    f = TARGETS[target]
    ends = (0.0, *f.places, 1.0)
    x, w = np.polynomial.legendre.leggauss(60)  # exact for polynomials up to degree 119
    expected = np.zeros(61)
    for low, high, height in zip(ends, ends[1:], f.heights, strict=False):
        t = low + (high - low) * (x + 1) / 2
        for n in range(61):
            values = np.polynomial.legendre.Legendre.basis(n)(2 * t - 1) * np.sqrt(2 * n + 1)
            expected[n] += height * (high - low) / 2 * (w @ values)
    assert np.abs(steps.legendre_coefficients(f, 61) - expected).max() < 1e-13


def test_quadrature_over_the_jump_is_close_and_inexact():
    f = TARGETS["two"]
    exact, approximate = steps.legendre_coefficients(f, 300), steps.quadrature_coefficients(f, 300, nodes=1024)
    assert 1e-7 < np.abs(exact - approximate).max() < 3e-3


@pytest.mark.parametrize(
    ("target", "expected"), [("one", (0.0505, 0.0355, 0.0250, 0.0177)), ("two", (0.0617, 0.0436, 0.0307, 0.0218))]
)
def test_legendre_errors_and_slope(target, expected):
    f, found = grid_values(target, 2048), steps.approximations("legendre", target)
    errors = {n: grid_error(f, found[n]) for n in BUDGETS}
    assert list(errors.values()) == pytest.approx(expected, rel=0.02)
    assert budget.slope(errors) == pytest.approx(-0.5, abs=0.05)


def test_the_theorems_rate_holds_for_the_exact_error_over_a_longer_range():
    energy = np.sort(steps.legendre_coefficients(TARGETS["one"], 20_000) ** 2)[::-1]
    sizes = 2 ** np.arange(5, 10)
    tails = [np.sqrt(energy[n:].sum()) for n in sizes]
    assert np.polyfit(np.log(sizes), np.log(tails), 1)[0] == pytest.approx(-0.5, abs=0.03)


# -- db6 ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", TARGETS)
def test_dwt_error_is_the_energy_of_what_was_dropped(target):
    f = grid_values(target, 2048)
    level = pywt.dwt_max_level(2048, 12)
    assert level == 7
    energy = np.sort(pywt.coeffs_to_array(pywt.wavedec(f, "db6", "periodization", level))[0] ** 2)[::-1]
    for n, g in steps.dwt_approximations(f, BUDGETS).items():
        assert grid_error(f, g) == pytest.approx(np.sqrt(energy[n:].sum() / 2047), rel=1e-6, abs=1e-14)


def test_dwt_errors_of_two_steps_are_those_of_the_protocol():
    f = grid_values("two", 2048)
    errors = [grid_error(f, g) for g in steps.dwt_approximations(f, BUDGETS).values()]
    assert errors[:3] == pytest.approx([0.036, 0.012, 4e-4], rel=0.2)
    assert errors[3] < 1e-14, "256 exceeds the number of non-zero coefficients"


# -- the pursuit --------------------------------------------------------------------------------------------


def dictionary_of(atoms):
    """The rows of a matrix as a dictionary."""
    every = np.arange(len(atoms))
    return Dictionary.of([(every, atoms[:, k : k + PANEL]) for k in range(0, atoms.shape[1], PANEL)], *atoms.shape)


def refitting_pursuit(D, f, size, ridge):
    """The textbook: correlate with the residual, choose, solve the whole ridge problem anew."""
    chosen, residual = [], f
    for _ in range(size):
        fit = np.abs(D @ residual)
        fit[chosen] = 0
        chosen.append(int(fit.argmax()))
        A = D[chosen]
        c = np.linalg.solve(A @ A.T + ridge * np.eye(len(A)), A @ f)
        residual = f - c @ A
    return chosen, c


@pytest.mark.parametrize("ridge", [0.0, 1e-8, 1e-2, 5.0])
@pytest.mark.parametrize("length", [129, 300])
def test_pursuit_equals_the_one_that_refits(ridge, length):
    rng = np.random.default_rng(3)
    atoms = rng.standard_normal((500, length)) * (np.abs(np.arange(length) - rng.uniform(0, length, (500, 1))) < 40)
    atoms /= np.linalg.norm(atoms, axis=1, keepdims=True)
    f = rng.standard_normal(length)
    found = matching_pursuit(dictionary_of(atoms), f, 60, ridge)
    chosen, c = refitting_pursuit(atoms, f, 60, ridge)
    assert found.chosen.tolist() == chosen
    assert np.allclose(found.coefficients(60), c, atol=1e-9)
    shorter = refitting_pursuit(atoms, f, 17, ridge)[1]
    assert np.allclose(found.coefficients(17), shorter, atol=1e-10), "leading parts are the pursuits of smaller budgets"
    assert np.allclose(found.approximation(60), c @ atoms[chosen], atol=1e-9)


@pytest.mark.parametrize("wavelet", ["mexh", "morl", "gaus3"])
def test_pursuit_on_a_coherent_dictionary_equals_the_one_that_refits(wavelet):
    D = steps.dictionary(Atoms(wavelet, 512, 12, 100))
    dense = np.stack([D.atom(i)[0] for i in range(D.n)])
    f = grid_values("two", 512) + 0.01 * np.random.default_rng(0).standard_normal(512)
    chosen, _ = refitting_pursuit(dense, f, 80, 1e-8)
    assert matching_pursuit(D, f, 80, 1e-8).chosen.tolist() == chosen


@pytest.mark.parametrize("wavelet", steps.MOTHERS)
def test_dictionary_holds_the_dilated_and_shifted_wavelet_of_pywavelets(wavelet):
    a, b, length = np.array([0.011, 0.2]), np.linspace(0, 1, 7), 401
    D = cwt_dictionary(*steps.MOTHERS[wavelet], length, a, b)
    psi, x = pywt.ContinuousWavelet(wavelet).wavefun(length=1 << 14)
    t = np.linspace(0, 1, length)
    f = np.random.default_rng(1).standard_normal(length)
    for i in range(D.n):
        expected = np.interp((t - b[i % 7]) / a[i // 7], x, psi, left=0, right=0)
        atom, _, _ = D.atom(i)
        assert np.linalg.norm(atom) == pytest.approx(1, abs=1e-14)
        # 3e-5: PyWavelets cuts gaus at |x| = 5 and samples finely, not exactly
        assert abs(abs(atom @ expected) - np.linalg.norm(expected)) < 3e-5 * np.linalg.norm(expected)
        assert D.correlate(f)[i] == pytest.approx(atom @ f, abs=1e-12)


PROTOCOL = {
    "mexh": (0.014, 0.014, 0.012, 0.009),
    "gaus2": (0.015, 0.010, 0.008, 0.007),
    "gaus3": (0.019, 0.012, 0.010, 0.010),
    "morl": (0.45, 0.033, 0.006, 0.004),
}


@pytest.mark.parametrize("wavelet", PROTOCOL)
def test_pursuit_errors_are_those_of_the_protocol(wavelet):
    found = steps.pursue(TARGETS["one"], Atoms(wavelet, 1024, 24, 256), ridge=0.0)
    errors = [grid_error(grid_values("one", 1024), found.approximation(n)) for n in BUDGETS]
    assert errors == pytest.approx(PROTOCOL[wavelet], abs=6e-4, rel=0.01)


def test_a_constant_atom_gives_morlet_its_mean():
    found = steps.pursue(TARGETS["one"], Atoms("morl", 1024, 24, 256, constant=True), budget=32, ridge=0.0)
    assert grid_error(grid_values("one", 1024), found.approximation(32)) == pytest.approx(0.078, abs=6e-4)


def test_methods_by_name_know_the_constant_atom():
    f = grid_values("one", 256)
    plain, with_mean = (steps.approximations(method, "one", 256)[32] for method in ("morl", "morl + constant"))
    assert grid_error(f, with_mean) < 0.5 * grid_error(f, plain)


def test_pursuit_stops_where_atoms_depend():
    atoms = np.array([[1.0, 0, 0, 0], [0, 1, 0, 0], [1, 1, 0, 0]])
    assert len(matching_pursuit(dictionary_of(atoms), np.array([1.0, 0.3, 0, 0]), 3).chosen) == 2
    assert len(matching_pursuit(dictionary_of(atoms), np.zeros(4), 3).chosen) == 0


def test_error_figure_tabulates_every_method_grid_and_budget():
    drawing = budget.error_curves(grids=(256, 512), shown=512, methods=("legendre", "db6"))
    assert len(drawing.rows) == 2 * 2 * 2 * len(BUDGETS)
    row = next(r for r in drawing.rows if (r["target"], r["method"], r["grid"], r["n"]) == ("two", "db6", 512, 64))
    f = grid_values("two", 512)
    assert row["error"] == grid_error(f, steps.dwt_approximations(f, BUDGETS)[64])

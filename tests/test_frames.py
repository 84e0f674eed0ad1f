"""Quadrature, tiling, the families and the properties of a frame."""

import numpy as np
import pytest
import pywt
from hypothesis import given
from hypothesis import strategies as st
from scipy import special
from scipy.integrate import trapezoid

import wavessm as ws
from wavessm.frames import Basis, Quadrature, Wavelet, allocate, lobatto


@given(st.integers(1, 12), st.integers(1, 9), st.integers(0, 2**31))
def test_quadrature_sums_by_parts(panels, order, seed):
    rng = np.random.default_rng(seed)
    breaks = np.concatenate([[0.0], np.sort(rng.uniform(0.01, 0.99, panels - 1)), [1.0]])
    quad = Quadrature.panels(breaks, order)
    f, g = rng.standard_normal((2, len(quad.grid)))
    by_parts = quad.derivative_moments(f) @ g + quad.derivative_moments(g) @ f
    np.testing.assert_allclose(by_parts, f[-1] * g[-1] - f[0] * g[0], atol=1e-12 * order**2 * len(quad.grid))


@pytest.mark.parametrize(("panels", "order"), [(1, 3), (5, 4), (1, 40), (7, 9)])
def test_quadrature_is_exact_for_polynomials(panels, order):
    quad = Quadrature.panels(panels, order)
    for degree in range(2 * order):
        np.testing.assert_allclose(quad.weights @ quad.grid**degree, 1 / (degree + 1), rtol=1e-12)
    power = quad.grid**order
    np.testing.assert_allclose(quad.derivative(power), order * quad.grid ** (order - 1), atol=1e-9)
    points = np.linspace(0, 1, 33)
    np.testing.assert_allclose(quad.interpolation(points) @ power, points**order, atol=1e-12)


def test_order_one_is_the_trapezoid_rule_on_any_grid():
    grid = np.array([0, 0.1, 0.4, 0.5, 1.0])
    f = np.array([3.0, 1.0, 4.0, 1.0, 5.0])
    np.testing.assert_allclose(Quadrature.from_points(grid).weights @ f, trapezoid(f, grid))


@pytest.mark.parametrize("order", [1, 2, 8, 200, 1024])
def test_lobatto_tables_sum_by_parts_and_integrate(order):
    x, w, Q = lobatto(order)
    boundary = np.zeros_like(Q)
    boundary[0, 0], boundary[-1, -1] = -1, 1
    assert np.abs(Q + Q.T - boundary).max() < 1e-14
    np.testing.assert_allclose(w.sum(), 2)
    np.testing.assert_allclose(Q @ x, w, atol=1e-10, err_msg="the derivative of x is 1")


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=12), st.integers(1, 600))
def test_allocation_is_exact_and_proportional(desired, total):
    counts = allocate(desired, total)
    assert counts.sum() == total
    quota = np.array(desired) / np.sum(desired) * total
    assert np.all(np.abs(counts - quota) < 1)


def test_frequency_and_spread_of_a_mother_wavelet():
    hat = ws.Wavelet(lambda x: (1 - x**2) * np.exp(-(x**2) / 2))
    assert hat.frequency == pytest.approx(np.sqrt(2) / (2 * np.pi), rel=1e-3)
    assert hat.spread == pytest.approx(np.sqrt(7 / 6), rel=1e-6)
    measured = ws.Wavelet(lambda x: np.exp(-(x**2) / 2) * np.cos(5 * x)).frequency
    assert measured == pytest.approx(pywt.central_frequency("morl"), rel=0.03)


def test_tiling_follows_the_papers_steps_with_given_options():
    frame = ws.make_frame("mexhat", 40, scales=4, f_min=1.0, f_max=8.0)
    # pseudo-frequencies 1, 2, 4, 8: proportions 1 : 2 : 4 : 8 of 40 by largest remainder
    counts = [3, 5, 11, 21]
    np.testing.assert_array_equal(allocate([1, 2, 4, 8], 40), counts)
    grid, start = frame.grid, 0
    for f, count in zip([1, 2, 4, 8], counts, strict=True):
        scale = np.sqrt(2) / (2 * np.pi) / f
        for row, centre in enumerate(np.linspace(0, 1, count)):
            x = (grid - centre) / scale
            atom = np.where(np.abs(x) <= 8, (1 - x**2) * np.exp(-(x**2) / 2), 0)
            atom /= np.sqrt(frame.weights @ atom**2)
            np.testing.assert_allclose(frame.atoms[start + row], atom, atol=1e-12)
        start += count


def test_pseudo_frequencies_may_be_given_one_by_one():
    frame = ws.make_frame("morlet", 12, scales=[2.0, 4.0])
    assert frame.frequencies[:4].max() < 3 < frame.frequencies[4:].min()


@pytest.mark.parametrize("order", [1, 2, 3, 5])
def test_gauss_is_the_derivative_of_a_gaussian(order):
    frame = ws.make_frame("gauss", 9, order=order)
    own = ws.make_frame(
        ws.Wavelet(
            lambda x: np.polyval(special.hermitenorm(order), x) * np.exp(-(x**2) / 2),
            support=(-8 - order / 4, 8 + order / 4),
            centre_frequency=np.sqrt(order) / (2 * np.pi),
        ),
        9,
    )
    np.testing.assert_allclose(frame.atoms, own.atoms, atol=1e-10)


def test_mexhat_and_second_gaussian_derivative_span_the_same_atoms():
    np.testing.assert_allclose(ws.make_frame("mexhat", 20).atoms, -ws.make_frame("gauss", 20, order=2).atoms, atol=1e-9)


@pytest.mark.parametrize("family", ["cmor", "cgau3", "shan", "fbsp", "cmor1.5-2.0"])
def test_complex_wavelets_become_pairs_at_one_centre(family):
    frame = ws.make_frame(family, 16, scales=[12.0])
    middle = slice(6, 10)  # away from the ends, the two parts share a centre and are orthogonal
    np.testing.assert_allclose(frame.centres[middle][0::2], frame.centres[middle][1::2], atol=0.01)
    assert np.abs(np.diag(frame.gram()[middle, middle], 1)[0::2]).max() < 0.02


def test_odd_sizes_drop_one_voice_of_the_last_centre():
    pairs, odd = ws.make_frame("cmor", 16, scales=[3.0]), ws.make_frame("cmor", 15, scales=[3.0])
    np.testing.assert_allclose(pairs.atoms[:15], odd.atoms, atol=1e-12)


def test_dpss_atoms_come_in_three_tapers():
    inner = ws.make_frame("dpss", 12, scales=[10.0]).gram()[3:6, 3:6]  # one centre away from the ends
    np.testing.assert_allclose(inner, np.eye(3), atol=0.01, err_msg="tapers of one centre are orthogonal")


def test_discrete_wavelets_have_their_vanishing_moments():
    # db6 has six: ∫ xᵏ ψ = 0 for k < 6, seen on an atom whose support lies inside the window
    frame = ws.make_frame("db6", 11, scales=[30.0])
    atom, s = frame.atoms[5], frame.grid - 0.5
    for k in range(4):
        assert abs(frame.weights @ (atom * s**k)) < 1e-6


@pytest.mark.parametrize("n", [8, 33, 64])
@pytest.mark.parametrize("family", ["legendre", "fourier"])
def test_orthonormal_families_are(family, n):
    np.testing.assert_allclose(ws.make_frame(family, n).gram(), np.eye(n), atol=1e-11)


def test_chebyshev_spans_the_legendre_space():
    cheb, leg = ws.make_frame("chebyshev", 20), ws.make_frame("legendre", 20)
    back = leg.synthesise(leg.analyse(cheb.atoms))
    np.testing.assert_allclose(back, cheb.atoms, atol=1e-11)


def test_a_frame_knows_where_its_atoms_sit():
    frame = ws.make_frame("morlet", 21, scales=[12.0])
    np.testing.assert_allclose(frame.centres[3:-3], np.linspace(0, 1, 21)[3:-3], atol=0.001)
    scale = 5 / (2 * np.pi) / 12
    np.testing.assert_allclose(frame.spreads[3:-3], scale / np.sqrt(2), rtol=0.02)
    np.testing.assert_allclose(frame.frequencies[3:-3], 12, rtol=0.02)
    share = frame.share(0.45, 0.55)
    assert share[10] > 0.75, "the atom at the middle holds the middle"
    assert share[0] < 1e-6, "the atom at the start does not"


def test_evaluate_interpolates_the_atoms():
    frame = ws.make_frame("morlet", 32)
    points = np.linspace(0, 1, 77)
    finer = ws.make_frame("morlet", 32, grid=8193)
    np.testing.assert_allclose(frame.evaluate(points), finer.evaluate(points), atol=1e-8)
    np.testing.assert_allclose(frame.evaluate(frame.grid), frame.atoms, atol=1e-12)


def test_the_users_own_atoms_and_grid():
    s = np.sort(np.concatenate([[0, 1], np.random.default_rng(0).uniform(0, 1, 2000)]))
    frame = ws.Frame([np.sin(np.pi * k * s) for k in range(1, 6)], grid=s)
    np.testing.assert_allclose(frame.gram(), np.eye(5) / 2, atol=1e-4)
    weights = np.full(len(s), 1 / len(s))
    assert ws.Frame(frame.atoms, grid=s, weights=weights).rank() == 5


def test_a_mother_wavelet_may_be_a_bare_function():
    def ricker(x):
        return (1 - x**2) * np.exp(-(x**2) / 2)

    np.testing.assert_allclose(
        ws.make_frame(ricker, 16, scales=3, f_min=1, f_max=6).frequencies,
        ws.make_frame("mexhat", 16, scales=3, f_min=1, f_max=6).frequencies,
        rtol=0.02,
    )


def test_a_registered_family_is_known_everywhere():
    name = "test-triangle"
    if name not in ws.families():
        ws.register_family(name, ws.Wavelet(lambda x: np.clip(1 - np.abs(x), 0, None) * np.sign(x), support=(-1, 1)))
    assert ws.make_operator(name, n=12).identity_residual() < 1e-10
    with pytest.raises(ws.OptionError, match="already registered"):
        ws.register_family(name, ws.Wavelet(np.sin))


def test_building_twice_is_free():
    assert ws.make_frame("morlet", 48) is ws.make_frame("morlet", n=48)
    assert ws.make_operator("morlet", n=48) is ws.make_operator("morlet", measure="scaled", n=48)
    frame = ws.make_frame("morlet", 48)
    assert frame.tighten() is frame.tighten()
    assert ws.make_operator(frame.tighten()) is ws.make_operator(frame.tighten(), "scaled")


def test_shared_arrays_cannot_be_written_to():
    frame, operator = ws.make_frame("gauss", 8), ws.make_operator("gauss", n=8)
    for array in (frame.atoms, frame.grid, frame.weights, frame.centres, operator.A, operator.B, operator.z):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


def test_numpy_integers_count():
    assert ws.make_frame("morlet", np.int64(12), scales=np.int64(3), grid=np.int64(1025)).n == 12
    assert len(Quadrature.panels(np.int64(4), np.int64(3)).grid) == 13


def test_a_given_alpha_is_taken_as_given():
    wide, wider = (ws.make_frame("morlet", 24, alpha=alpha).frequencies.max() for alpha in (1.0, 2.0))
    assert wider == pytest.approx(2 * wide, rel=0.1)


def test_every_scale_of_the_default_range_has_two_atoms():
    frame = ws.make_frame("gauss", 98)
    slowest = np.sort(frame.frequencies)[:2]
    assert slowest[1] < 1.5, "two slow atoms, so that the ends of the window can be told apart"


def test_own_weights_leave_the_derivative_alone():
    s = np.linspace(0, 1, 1001)
    simpson = np.where(np.arange(1001) % 2 == 1, 4.0, 2.0) / 3000
    simpson[[0, -1]] /= 2
    frame = ws.Frame([np.sin(6 * np.pi * s), np.cos(6 * np.pi * s)], weights=simpson)
    np.testing.assert_allclose(frame.frequencies, 3, rtol=1e-3)


def test_a_registered_name_is_the_users_own_even_if_it_reads_as_parameters():
    hat = Wavelet(lambda x: (1 - x**2) * np.exp(-(x**2) / 2))
    ws.register_family("shan2-1", hat)
    np.testing.assert_array_equal(ws.make_frame("shan2-1", 8).atoms, ws.make_frame(hat, 8).atoms)
    assert ws.make_frame("shan2-1.5", 8).n == 8


def test_a_support_may_be_a_list():
    wavelet = Wavelet(lambda x: np.exp(-(x**2) / 2) * np.cos(5 * x), support=[-8, 8])
    assert wavelet.support == (-8.0, 8.0)
    assert ws.make_frame(wavelet, 8).n == 8


def test_a_basis_of_the_wrong_shape_gets_one_line():
    with pytest.raises(ws.ShapeError, match=r"has shape \(5, 2049\), expected \(n, points\) = \(4, 2049\)"):
        ws.make_frame(Basis(lambda n, s: s ** np.arange(n + 1)[:, None]), 4)
    with pytest.raises(ws.ShapeError, match=r"has shape \(2049,\)"):
        ws.make_frame(Basis(lambda n, s: s), 4)

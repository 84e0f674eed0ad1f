"""Operators against closed forms and analysis, and the discretisations of all structures."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import linalg

import wavessm as ws
from wavessm.structure import skew_plus_low_rank

SMALL = [("morlet", 17, "scaled"), ("gauss", 16, "translated"), ("db6", 9, "translated"), ("fourier", 8, "translated")]


@pytest.mark.parametrize(
    ("name", "family", "measure"),
    [("legs", "legendre", "scaled"), ("legt", "legendre", "translated"), ("fout", "fourier", "translated")],
)
@pytest.mark.parametrize("n", [2, 5, 31, 32, 64])
def test_the_builder_gives_the_closed_forms_back(name, family, measure, n):
    closed = ws.make_operator(name, n=n)
    built = ws.make_operator(ws.make_frame(family, n).tighten(), measure)
    size = np.abs(closed.A).max()
    np.testing.assert_allclose(built.A, closed.A, atol=1e-8 * size)
    np.testing.assert_allclose(built.B, closed.B, atol=1e-8 * np.sqrt(size))
    np.testing.assert_allclose(built.z, closed.z, atol=1e-8 * np.sqrt(size))


def test_legs_is_hippos_matrix():
    n = 12
    A = np.zeros((n, n))
    for i in range(n):
        for j in range(n):
            A[i, j] = np.sqrt((2 * i + 1) * (2 * j + 1)) if i > j else (i + 1 if i == j else 0)
    np.testing.assert_allclose(ws.make_operator("legs", n=n).A, A, rtol=1e-14)


def test_entries_are_inner_products_with_the_derivative():
    """Against analytic derivatives of smooth atoms on a much finer grid, for a raw frame."""
    f, n = [1.0, 2.0, 4.0], 12
    frame = ws.make_frame("gauss", n, scales=f)
    s = np.linspace(0, 1, 200_001)
    w = np.full(len(s), 1 / (len(s) - 1))
    w[[0, -1]] /= 2
    atoms, slopes = [], []
    for frequency, count in zip(f, [2, 3, 7], strict=True):
        scale = 1 / (2 * np.pi * frequency)
        for centre in np.linspace(0, 1, count):
            x = (s - centre) / scale
            atom = x * np.exp(-(x**2) / 2)
            norm = np.sqrt(w @ atom**2)
            atoms.append(atom / norm)
            slopes.append((1 - x**2) * np.exp(-(x**2) / 2) / scale / norm)
    atoms, slopes = np.array(atoms), np.array(slopes)
    gram = (atoms * w) @ atoms.T
    scaled = np.linalg.solve(gram, (gram + (s * slopes * w) @ atoms.T).T).T
    np.testing.assert_allclose(ws.make_operator(frame, "scaled").A, scaled, rtol=1e-6, atol=1e-6 * np.abs(scaled).max())
    z = atoms[:, 0]
    translated = np.linalg.solve(gram, ((slopes * w) @ atoms.T + np.outer(z, z)).T).T
    np.testing.assert_allclose(
        ws.make_operator(frame, "translated").A, translated, rtol=1e-6, atol=1e-6 * np.abs(translated).max()
    )


@pytest.mark.parametrize("family", ws.PAPER_FAMILIES)
def test_the_raw_operator_is_the_least_squares_projection(family):
    """The paper's lemma: A − I minimises ‖s∂F − X F‖ over X, and its norm obeys the bound."""
    frame = ws.make_frame(family, 12, scales=4, f_min=1.0, f_max=6.0)
    operator = ws.make_operator(frame, "scaled")
    root = np.sqrt(frame.weights)
    slope = frame.grid * frame.quadrature.derivative(frame.atoms)
    X = np.linalg.lstsq((frame.atoms * root).T, (slope * root).T, rcond=None)[0].T
    np.testing.assert_allclose(operator.A - np.eye(12), X, atol=1e-3 * np.abs(X).max())
    assert np.linalg.norm(operator.A, 2) <= operator.norm_bound()
    assert operator.identity_residual() < 1e-9


@given(st.integers(2, 24), st.sampled_from(ws.PAPER_FAMILIES), st.sampled_from(["scaled", "translated"]))
def test_raw_and_tight_operators_are_similar(n, family, measure):
    """A_raw = T⁻¹ A_tight T for the change of coordinates T between the two frames."""
    frame = ws.make_frame(family, n, scales=max(2, n // 4), f_min=1.0, f_max=max(1.5, n / 2))
    tight = frame.tighten()
    T = tight.analyse(frame.atoms)  # raw atoms in tight coordinates
    raw = ws.make_operator(frame, measure).A
    tight_A = ws.make_operator(tight, measure).A
    np.testing.assert_allclose(raw @ T, T @ tight_A, atol=1e-9 * np.abs(tight_A).max() * frame.condition_number())


def test_zero_and_repeated_frequencies_are_paired():
    """A skew matrix with three zero eigenvalues and a double pair, in an arbitrary orthonormal basis."""
    blocks = [0.0, 3.0, 3.0, 0.0, 0.0, 1e-9]
    K = np.zeros((9, 9))
    i = 0
    for omega in blocks:
        if omega:
            K[i, i + 1], K[i + 1, i] = omega, -omega
            i += 2
        else:
            i += 1
    turn = linalg.qr(np.random.default_rng(0).standard_normal((9, 9)))[0]
    K = turn @ K @ turn.T
    K = (K - K.T) / 2
    P = np.random.default_rng(1).standard_normal((9, 2))
    form = skew_plus_low_rank(K - 0.5 * np.eye(9) - P @ P.T, np.ones(9), -0.5, P)
    np.testing.assert_allclose(form.to_dense(), K - 0.5 * np.eye(9) - P @ P.T, atol=1e-12)
    np.testing.assert_allclose(np.sort(form.lam.imag)[[0, 1, -2, -1]], [-3, -3, 3, 3], atol=1e-12)
    np.testing.assert_allclose(form.lam.imag.sum(), 0, atol=1e-12)
    _, weight = form.one_of_each_pair
    assert weight.sum() == 9


@pytest.mark.parametrize(("family", "n", "measure"), SMALL)
@pytest.mark.parametrize("dt", [0.3, 0.01])
def test_zero_order_hold_is_the_exponential(family, n, measure, dt):
    operator = ws.make_operator(family, measure, n)
    A = -operator.A
    joint = np.block([[A, operator.B[:, None]], [np.zeros((1, n + 1))]])
    exact = linalg.expm(dt * joint)
    for form in (operator.system, operator.to_dplr(), operator.to_diagonal()):
        sampled = ws.zoh(form, dt)
        np.testing.assert_allclose(sampled.to_dense(), exact[:n, :n], atol=1e-10)
        np.testing.assert_allclose(sampled.from_coordinates(sampled.B), exact[:n, n], atol=1e-10)


@pytest.mark.parametrize(("family", "n", "measure"), SMALL)
@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.5, 1.0])
def test_bilinear_family_is_the_same_for_every_structure(family, n, measure, alpha):
    operator, dt = ws.make_operator(family, measure, n), 0.07
    A, identity = -operator.A, np.eye(n)
    A_bar = np.linalg.solve(identity - alpha * dt * A, identity + (1 - alpha) * dt * A)
    B_bar = np.linalg.solve(identity - alpha * dt * A, dt * operator.B)
    for form in (operator.system, operator.to_dplr(), operator.to_diagonal()):
        sampled = ws.generalised_bilinear(form, dt, alpha)
        assert type(sampled) is type(form)
        np.testing.assert_allclose(sampled.to_dense(), A_bar, atol=1e-9)
        np.testing.assert_allclose(sampled.from_coordinates(sampled.B), B_bar, atol=1e-9)
        h = np.random.default_rng(0).standard_normal(n)
        one = sampled.from_coordinates(sampled.apply(sampled.to_coordinates(h)) + sampled.B * 0.7)
        np.testing.assert_allclose(one, A_bar @ h + 0.7 * B_bar, atol=1e-9)


@pytest.mark.parametrize(("alpha", "order"), [(0.0, 1), (0.5, 2), (1.0, 1)])
def test_bilinear_family_converges_at_its_order(alpha, order):
    system = ws.make_operator("gauss", n=8).system
    time, errors = 0.1, []
    for steps in (200, 400):
        step = ws.generalised_bilinear(system, time / steps, alpha)
        errors.append(np.abs(np.linalg.matrix_power(step.A, steps) - linalg.expm(time * system.A)).max())
    assert np.log2(errors[0] / errors[1]) == pytest.approx(order, abs=0.1)


@given(st.sampled_from(ws.PAPER_FAMILIES), st.integers(2, 40), st.floats(1e-4, 10))
def test_sampled_systems_do_not_grow(family, n, dt):
    """A tight scaled operator is dissipative, so exact and bilinear steps contract in the Euclidean norm."""
    system = ws.make_operator(family, n=n).system
    for sampled in (ws.zoh(system, dt), ws.bilinear(system, dt)):
        assert np.linalg.norm(sampled.to_dense(), 2) <= 1 + 1e-9


def test_the_raw_operator_survives_bad_conditioning():
    """κ(S) near 1e20: through the dual's atoms the raw operator still has the tight one's spectrum."""
    s = np.linspace(0, 1, 2049)
    frame = ws.Frame([np.exp(-(((s - c) / 0.2) ** 2)) for c in np.linspace(0, 1, 16)])
    assert frame.condition_number() > 1e12
    raw, tight = ws.make_operator(frame), ws.make_operator(frame.tighten())
    assert np.linalg.eigvals(raw.A).real.min() > 0.49
    T = frame.tighten().analyse(frame.atoms)
    back = np.linalg.solve(T, raw.A @ T)
    np.testing.assert_allclose(back, tight.A, atol=1e-3 * np.abs(tight.A).max())

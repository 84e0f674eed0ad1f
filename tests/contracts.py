"""What every frame, operator, structure and refusal must satisfy. A new one inherits these by being passed in.

`test_contracts.py` runs them over the families, and shows each of them failing on a wrong object.
"""

from __future__ import annotations

import numpy as np
import pytest

import wavessm as ws
from wavessm.cli import main

TOLERANCE = {
    "identity": 1e-10,  # max |A + Aᵀ − …|, the quadrature sums by parts to rounding
    "tight": 1e-9,  # Gram matrix against I
    "dense": 1e-9,  # relative, conversions back to dense
    "half_plane": 1e-9,  # how far an eigenvalue may stray across its bound
}


def check_frame(frame: ws.Frame) -> None:
    n, length = frame.atoms.shape
    assert n == frame.n
    assert frame.grid.shape == frame.weights.shape == (length,), "grid and weights go with the atoms"
    assert frame.grid[0] == 0, "the grid starts at 0"
    assert frame.grid[-1] == 1, "the grid ends at 1"
    assert np.all(frame.weights > 0), "weights are positive"
    assert abs(frame.weights.sum() - 1) < 1e-12, "weights integrate 1 to 1"

    gram = frame.gram()
    kappa = frame.condition_number()
    lower, upper = frame.bounds()
    np.testing.assert_allclose(gram, gram.T, atol=1e-13 * upper, err_msg="Gram matrix is symmetric")
    eigenvalues = np.linalg.eigvalsh(gram)
    np.testing.assert_allclose(eigenvalues[-1], upper, rtol=1e-9, err_msg="upper bound is the largest eigenvalue")
    np.testing.assert_allclose(eigenvalues[0], lower, rtol=1e-6, atol=1e-13 * upper, err_msg="lower bound")
    assert frame.rank() == n, f"{n} atoms are independent"

    dual = frame.dual()
    np.testing.assert_allclose(
        frame.analyse(dual.atoms), np.eye(n), atol=1e-14 * n * kappa, err_msg="dual is biorthogonal"
    )
    tight = frame.tighten()
    assert np.abs(tight.gram() - np.eye(n)).max() < TOLERANCE["tight"], "tight Gram matrix is I"
    assert tight.condition_number() <= 1 + TOLERANCE["tight"], "tight frame has condition number 1"
    back = tight.synthesise(tight.analyse(frame.atoms))
    size = np.abs(frame.atoms).max()
    np.testing.assert_allclose(back, frame.atoms, atol=1e-10 * size, err_msg="tightening keeps the span")

    assert np.all((frame.centres >= 0) & (frame.centres <= 1)), "centres lie in the window"
    assert np.all(frame.spreads > 0), "atoms have a width"
    assert np.all(frame.spreads <= 0.5 + 1e-9), "no atom is wider than the window allows"
    np.testing.assert_allclose(frame.share(0, 1), 1, err_msg="the whole window holds all of the energy")


def check_operator(operator: ws.Operator) -> None:
    A, b, z = operator.A, operator.B, operator.z
    n = operator.n
    identity = np.eye(n) if operator.measure == "scaled" else np.outer(z, z)
    residual = np.abs(A + A.T - identity - np.outer(b, b)).max()
    assert residual <= TOLERANCE["identity"], f"A + Aᵀ is off by {residual:.1e}"
    assert abs(operator.identity_residual() - residual) < 1e-15 * max(1, np.abs(A).max()), "residual is as reported"
    floor = 0.5 if operator.measure == "scaled" else 0.0
    slowest = np.linalg.eigvals(A).real.min()
    assert slowest >= floor - TOLERANCE["half_plane"], f"an eigenvalue of A has real part {slowest}"
    assert np.linalg.norm(A, 2) <= operator.norm_bound() * (1 + 1e-9), "the norm bound bounds"

    size = np.abs(A).max()
    dplr = operator.to_dplr()
    assert dplr.rank == (1 if operator.measure == "scaled" else 2)
    check_structure(dplr, -A, b)
    np.testing.assert_allclose(dplr.V @ dplr.V.conj().T, np.eye(n), atol=1e-11, err_msg="V is unitary")
    np.testing.assert_allclose(dplr.lam.real, -floor, atol=1e-9 * size, err_msg="DPLR modes share one real part")
    try:
        diagonal = operator.to_diagonal()
    except ws.ConditionError:
        assert operator.to_diagonal(np.inf).condition_number > 1e6, "refused although well conditioned"
        return
    check_structure(diagonal, -A, b, condition=diagonal.condition_number)
    np.testing.assert_allclose(diagonal.condition_number, np.linalg.cond(diagonal.V), rtol=1e-6)


def check_structure(form: ws.DPLR | ws.Diagonal, A: np.ndarray, B: np.ndarray, condition: float = 1.0) -> None:
    n, size = len(B), np.abs(A).max()
    tolerance = TOLERANCE["dense"] * condition
    np.testing.assert_allclose(form.to_dense(), A, atol=tolerance * size, err_msg="to_dense gives A back")
    np.testing.assert_allclose(form.from_coordinates(form.B), B, atol=tolerance * np.abs(B).max(), err_msg="B")
    h = np.random.default_rng(0).standard_normal((3, n))
    x = form.to_coordinates(h)
    np.testing.assert_allclose(form.from_coordinates(x), h, atol=tolerance, err_msg="coordinates there and back")
    np.testing.assert_allclose(
        form.from_coordinates(form.apply(x)), h @ A.T, atol=tolerance * size * n, err_msg="apply is A"
    )
    kept, weight = form.one_of_each_pair
    assert weight.sum() == n, "one of each pair accounts for every mode"
    half = (x[:, kept] * weight @ form.V[:, kept].T).real
    np.testing.assert_allclose(half, h, atol=tolerance, err_msg="one of each pair carries a real state")


def check_refused(call, error: type[Exception], words: str) -> None:
    """A wrong call raises this error, in one line with these words."""
    with pytest.raises(error, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)


def check_mistake(command: list[str], words: str, capsys: pytest.CaptureFixture) -> None:
    """A wrong command prints one line with these words, and ends with status 2."""
    capsys.readouterr()  # what came before
    assert main(command) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1, said
    assert "Traceback" not in said

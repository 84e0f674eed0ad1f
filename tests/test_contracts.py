"""The contracts over all families, and each contract failing on a wrong object."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import wavessm as ws
from contracts import check_frame, check_operator, check_structure
from wavessm.frames import BASES

NAMED = (*ws.PAPER_FAMILIES, *BASES)
OTHERS = [name for name in ws.families() if name not in NAMED]
SIZES = [*itertools.product(NAMED, (8, 15, 63, 64, 256)), *itertools.product(OTHERS, (8, 33, 64))]


@pytest.mark.parametrize(("family", "n"), SIZES)
def test_every_family_satisfies_the_contracts(family, n):
    frame = ws.make_frame(family, n)
    check_frame(frame)
    for measure in ("scaled", "translated"):
        check_operator(ws.make_operator(frame.tighten(), measure))


@pytest.mark.parametrize("family", NAMED)
def test_largest_size_has_full_rank(family):
    assert ws.make_frame(family, 512).rank() == 512


@given(st.sampled_from(ws.families()), st.integers(2, 100), st.sampled_from(["scaled", "translated"]))
def test_any_family_and_size(family, n, measure):
    frame = ws.make_frame(family, n)
    assert frame.rank() == n
    check_operator(ws.make_operator(frame.tighten(), measure))


@pytest.mark.parametrize("name", ["legs", "legt", "fout"])
@pytest.mark.parametrize("n", [2, 8, 15, 64])
def test_closed_forms_satisfy_the_operator_contract(name, n):
    check_operator(ws.make_operator(name, n=n))


# -- wrong objects --------------------------------------------------------------------------------------------


class Liar(ws.Frame):
    """A frame whose tightening forgets to whiten."""

    def tighten(self):
        return self


def test_frame_contract_fails_on_a_frame_that_does_not_tighten():
    frame = ws.make_frame("morlet", 16)
    with pytest.raises(AssertionError, match="tight Gram matrix"):
        check_frame(Liar(frame.atoms, frame.quadrature))


def test_frame_contract_fails_on_dependent_atoms():
    atoms = ws.make_frame("morlet", 16).atoms.copy()
    atoms[3] = atoms[4]
    with pytest.raises(AssertionError, match="independent"):
        check_frame(ws.Frame(atoms, ws.make_frame("morlet", 16).quadrature))


def test_operator_contract_fails_on_a_plain_finite_difference():
    tight = ws.make_frame("morlet", 16).tighten()
    derivative = np.gradient(tight.atoms, tight.grid, axis=1)
    A = np.eye(16) + (tight.grid * derivative * tight.weights) @ tight.atoms.T
    with pytest.raises(AssertionError, match="off by"):
        check_operator(ws.Operator(A, tight.atoms[:, -1], tight.atoms[:, 0], "scaled", tight))


def test_operator_contract_fails_on_the_wrong_measure():
    operator = ws.make_operator("gauss", n=16)
    with pytest.raises(AssertionError):
        check_operator(replace(operator, measure="translated"))


def test_structure_contract_fails_on_a_mode_that_moved():
    operator = ws.make_operator("db6", n=16)
    form = operator.to_diagonal()
    moved = form.lam.copy()
    moved[0] *= 1 + 1e-3
    with pytest.raises(AssertionError, match="to_dense"):
        check_structure(replace(form, lam=moved), -operator.A, operator.B, form.condition_number)


def test_structure_contract_fails_on_a_low_rank_term_of_the_wrong_sign():
    operator = ws.make_operator("db6", n=16)
    form = operator.to_dplr()
    with pytest.raises(AssertionError, match="to_dense"):
        check_structure(replace(form, Q=-form.Q), -operator.A, operator.B)

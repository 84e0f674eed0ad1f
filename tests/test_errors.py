"""Bad input: one line of a named error that says what came, what was expected and what to do."""

import numpy as np
import pytest
import torch

import wavessm as ws
from contracts import check_refused
from wavessm.errors import check_int, check_positive
from wavessm.memory import recurrence

s = np.linspace(0, 1, 101)
FRAME = ws.make_frame("morlet", 8)
TIGHT = FRAME.tighten()
OPERATOR = ws.make_operator(TIGHT)
TRANSLATED = ws.make_operator(TIGHT, "translated")


def memory():
    return ws.OnlineMemory(OPERATOR)


def busy_memory():
    stream = memory()
    stream.push(np.zeros((2, 5)))
    return stream


BAD = {
    "misspelt family": (lambda: ws.make_frame("morlett", 8), ws.UnknownNameError, "did you mean 'morlet'"),
    "family of nothing": (lambda: ws.make_frame("zzz", 8), ws.UnknownNameError, "Known: morlet"),
    "misspelt measure": (lambda: ws.make_operator(TIGHT, "scale"), ws.UnknownNameError, "did you mean 'scaled'"),
    "one atom": (lambda: ws.make_frame("morlet", 1), ws.OptionError, "n is 1, expected a whole number of at least 2"),
    "grid too coarse": (lambda: ws.make_frame("morlet", 200, grid=257), ws.OptionError, "too large for a grid of 257"),
    "grid of nothing": (lambda: ws.make_frame("morlet", 2, grid=3), ws.OptionError, "whole number of at least 9"),
    "too narrow": (lambda: ws.make_frame("morlet", 8, f_max=1e5), ws.OptionError, "too narrow for 2049 grid points"),
    "dependent by range": (
        lambda: ws.make_frame("morlet", 64, scales=8, f_max=2.0),
        ws.RankError,
        r"64 atoms have rank \d+",
    ),
    "f_min above f_max": (lambda: ws.make_frame("morlet", 8, f_min=3, f_max=2), ws.OptionError, "0 < f_min ≤ f_max"),
    "scales and range": (
        lambda: ws.make_frame("morlet", 8, scales=[2.0], f_max=3),
        ws.OptionError,
        "goes without f_min",
    ),
    "one scale and f_min": (lambda: ws.make_frame("morlet", 8, scales=1, f_min=1), ws.OptionError, "has no effect"),
    "alpha and f_max": (lambda: ws.make_frame("morlet", 8, alpha=1.0, f_max=3), ws.OptionError, "leave one"),
    "dense alpha": (lambda: ws.make_frame("mexhat", 64, alpha=0.1), ws.RankError, "rank"),
    "float n": (lambda: ws.make_frame("morlet", 16.7), ws.OptionError, "n is 16.7"),
    "true n": (lambda: ws.make_frame("morlet", True), ws.OptionError, "n is True"),
    "infinite range": (lambda: ws.make_frame("morlet", 8, f_max=np.inf), ws.OptionError, "f_max is inf"),
    "degenerate parameters": (lambda: ws.make_frame("cmor0-0", 8), ws.UnknownNameError, "cmor"),
    "wavelet without a frequency": (lambda: ws.make_frame(lambda x: np.exp(-x * x), 8), ws.OptionError, "peaks at"),
    "ragged atoms": (lambda: ws.Frame([[1.0, 2.0], [1.0]]), ws.ShapeError, "rows of equal length"),
    "complex atoms": (lambda: ws.Frame(np.ones((2, 5)) * 1j), ws.OptionError, "complex"),
    "two sets of weights": (lambda: ws.Frame(FRAME.atoms, FRAME.quadrature, FRAME.weights), ws.OptionError, "alone"),
    "reserved name": (lambda: ws.register_family("legs", ws.Wavelet(np.sin)), ws.OptionError, "closed form"),
    "operator of an array": (lambda: ws.make_operator(np.ones((3, 9))), ws.OptionError, "got ndarray"),
    "memory of a frame": (lambda: ws.OnlineMemory(FRAME), ws.OptionError, "got Frame"),
    "alpha for a basis": (lambda: ws.make_frame("legendre", 8, alpha=0.5), ws.OptionError, "takes no alpha"),
    "f_min for a basis": (lambda: ws.make_frame("legendre", 8, f_min=0.1), ws.OptionError, "takes no f_min"),
    "order for morlet": (lambda: ws.make_frame("morlet", 8, order=2), ws.OptionError, "takes no order"),
    "wavelet of zeros": (lambda: ws.make_frame(lambda x: 0 * x, 8), ws.OptionError, "zero on its support"),
    "wavelet of NaN": (lambda: ws.make_frame(lambda x: x / 0 * np.nan, 8), ws.NotFiniteError, "NaN"),
    "wavelet of the wrong shape": (lambda: ws.make_frame(lambda x: 1.0, 8), ws.ShapeError, "output of the function"),
    "support reversed": (lambda: ws.Wavelet(np.sin, (1, -1)), ws.OptionError, "low < high"),
    "support without end": (lambda: ws.Wavelet(np.sin, (-np.inf, np.inf)), ws.OptionError, "finite"),
    "flat atoms": (lambda: ws.Frame(np.ones(5)), ws.ShapeError, r"expected \(n, length\)"),
    "one row": (lambda: ws.Frame(np.ones((1, 5))), ws.ShapeError, "2 ≤ n ≤ length"),
    "more atoms than points": (lambda: ws.Frame(np.ones((9, 5))), ws.ShapeError, "finer grid"),
    "NaN atoms": (lambda: ws.Frame([s, s * np.nan]), ws.NotFiniteError, "1 of 2 atoms hold NaN or infinity"),
    "dependent atoms": (lambda: ws.Frame([s, s, s**2]).tighten(), ws.RankError, "3 atoms have rank 2"),
    "operator of dependent atoms": (lambda: ws.make_operator(ws.Frame([s, 2 * s])), ws.RankError, "rank 1"),
    "grid of another length": (lambda: ws.Frame([s, s**2], grid=s[::2]), ws.ShapeError, "the grid has 51 points"),
    "grid beyond the window": (lambda: ws.Frame([s, s**2], grid=2 * s), ws.OptionError, r"span \[0, 2\]"),
    "grid not increasing": (lambda: ws.Frame([s, s**2], grid=s[::-1]), ws.OptionError, "increasing"),
    "NaN grid": (lambda: ws.Frame([s, s**2], grid=s * np.nan), ws.OptionError, "increasing"),
    "weights of ones": (lambda: ws.Frame([s, s**2], weights=np.ones(101)), ws.OptionError, "sum to 101"),
    "too few weights": (lambda: ws.Frame([s, s**2], weights=np.ones(3)), ws.ShapeError, r"shape \(3,\)"),
    "signal of another length": (lambda: FRAME.analyse(np.ones(7)), ws.ShapeError, r"expected \(\.\.\., 2049\)"),
    "too few coefficients": (lambda: FRAME.synthesise(np.ones(7)), ws.ShapeError, r"expected \(\.\.\., 8\)"),
    "points outside": (lambda: FRAME.evaluate([0.5, 1.5]), ws.OptionError, r"\[0\.5, 1\.5\]"),
    "empty stretch": (lambda: FRAME.share(0.5, 0.5), ws.OptionError, "start < stop"),
    "no size": (lambda: ws.make_operator("legs"), ws.OptionError, "pass n"),
    "another size": (lambda: ws.make_operator(TIGHT, n=9), ws.OptionError, "frame has 8 atoms"),
    "legs translated": (lambda: ws.make_operator("legs", "translated", 8), ws.OptionError, "use the family 'legendre'"),
    "raw frame to DPLR": (lambda: ws.make_operator(FRAME).to_dplr(), ws.ConditionError, "frame.tighten"),
    "diagonalising LegS": (
        lambda: ws.make_operator("legs", n=64).to_diagonal(),
        ws.ConditionError,
        r"number \d.*to_dplr",
    ),
    "zero step": (lambda: ws.zoh(OPERATOR.system, 0.0), ws.OptionError, "expected a positive"),
    "alpha of two": (lambda: ws.generalised_bilinear(OPERATOR.system, 0.1, 2.0), ws.OptionError, "alpha is 2.0"),
    "discretising an operator": (lambda: ws.bilinear(OPERATOR, 0.1), ws.OptionError, "op.system"),
    "window of zero": (lambda: ws.OnlineMemory(TRANSLATED, 0), ws.OptionError, "samples is 0"),
    "no window": (lambda: ws.OnlineMemory(TRANSLATED), ws.OptionError, "samples is None"),
    "window for scaled": (lambda: ws.OnlineMemory(OPERATOR, 10), ws.OptionError, "leave window out"),
    "half precision": (lambda: ws.OnlineMemory(OPERATOR, dtype=torch.float16), ws.OptionError, "float32 or"),
    "NaN sample": (lambda: memory().step(float("nan")), ws.NotFiniteError, "1 of 1 samples"),
    "infinite samples": (lambda: memory().project([1, np.inf]), ws.NotFiniteError, "1 of 2 samples"),
    "no samples": (lambda: memory().push([]), ws.ShapeError, "length ≥ 1"),
    "scalar signal": (lambda: memory().project(3.0), ws.ShapeError, "length ≥ 1"),
    "another batch": (lambda: busy_memory().push(np.zeros((3, 5))), ws.ShapeError, "call reset"),
    "state of the wrong size": (lambda: memory().reconstruct(np.ones(7)), ws.ShapeError, r"expected \(\.\.\., 8\)"),
    "reconstruction on nothing": (lambda: memory().reconstruct(np.ones(8), grid=0), ws.OptionError, "at least 1"),
    "misspelt method": (lambda: recurrence(OPERATOR, [1.0], method="biliner"), ws.UnknownNameError, "of recurrence"),
    "complex signal": (lambda: memory().project([1 + 2j]), ws.OptionError, "project: got complex numbers"),
    "complex tensor": (lambda: memory().push(torch.tensor([1 + 2j])), ws.OptionError, "push: got complex numbers"),
    "jacobian of nothing": (lambda: memory().jacobian(0), ws.OptionError, "at least 1"),
}


@pytest.mark.parametrize("value", [16.7, "16", True, 0, None, np.float64(3), -1])
def test_whole_numbers_are_whole_and_large_enough(value):
    with pytest.raises(ws.OptionError, match=r"n is .*, expected a whole number of at least 1\.$"):
        check_int(value, "n", minimum=1)


@pytest.mark.parametrize("value", [0, -1.0, np.nan, np.inf, 1e300, "ten", None, [1, 2]])
def test_positive_numbers_are_positive_and_finite(value):
    with pytest.raises(ws.OptionError, match=r"dt is .*, expected a positive finite number below 1e38\.$"):
        check_positive(value, "dt")


@pytest.mark.parametrize("case", BAD)
def test_bad_input_gets_one_clear_line(case):
    _, error, _ = BAD[case]
    assert issubclass(error, ws.WaveSSMError)
    assert issubclass(error, ValueError)
    with np.errstate(all="ignore"):
        check_refused(*BAD[case])


def test_a_refused_sample_leaves_the_stream_as_it_was():
    stream = busy_memory()
    before = stream.state.clone()
    with pytest.raises(ws.NotFiniteError):
        stream.push([[1.0, np.nan], [0.0, 0.0]])
    assert torch.equal(stream.state, before)
    assert stream.samples == 5

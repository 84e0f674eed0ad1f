"""The Triton scan against the float64 loop, run by Triton's interpreter on the CPU (full sizes are timed on a GPU)."""

import importlib.util
import sys

import pytest
import torch

from wavessm.errors import OptionError
from wavessm.ops import reference, triton_scan
from wavessm.ops.tables import make_tables
from wavessm.ops.triton_scan import Settings

NAMES = ("y", "state", "du", "dlog_lam", "dw", "dstate")
# The interpreter multiplies float32 exactly whatever tl.dot is told, so TF32 shows its own error on a GPU only.
# Its bfloat16 is truncated where a GPU rounds: twice the error.
TOLERANCE = {"fp32": 2e-6, "tf32": 2e-6, "bf16": 2e-2}


def problem(batch, channels, modes, length, dtype=torch.float32):
    """Slow, barely damped modes, so that the state matters far beyond a chunk."""
    draw = torch.Generator().manual_seed(batch + 10 * modes + 100 * length)
    decay = 10 ** (-3 + 2 * torch.rand(channels, modes, generator=draw))
    angle = 3 * torch.rand(channels, modes, generator=draw)
    log_lam = torch.stack([-decay, angle], dim=-1)
    w = torch.randn(channels, modes, 2, generator=draw) / modes**0.5
    u = torch.randn(batch, channels, length, generator=draw).to(dtype)
    state = torch.randn(batch, channels, modes, 2, generator=draw)
    return u, log_lam, w, state


def results(scan, u, log_lam, w, state, weights):
    """Outputs and the gradients of a random linear function of them, in the order of NAMES."""
    inputs = [t.detach().requires_grad_() for t in (u, log_lam, w, state)]
    outputs = scan(*inputs)
    loss = sum((out.double() * weight).sum() for out, weight in zip(outputs, weights, strict=True))
    return [*outputs, *torch.autograd.grad(loss, inputs)]


def assert_equal_to_reference(u, log_lam, w, state, precision="fp32", settings=None, tolerance=None):
    draw = torch.Generator().manual_seed(0)
    weights = [torch.randn(t.shape, generator=draw, dtype=torch.float64) for t in (u, state)]

    def scan(*inputs):
        return triton_scan.diagonal_scan(*inputs, precision=precision, settings=settings)

    got = results(scan, u, log_lam, w, state, weights)
    want = results(reference.diagonal_scan, u, log_lam, w, state, weights)
    for name, a, b in zip(NAMES, got, want, strict=True):
        error = ((a.double() - b).norm() / b.norm()).item()
        assert error < (tolerance or TOLERANCE[precision]), f"{name}: {error:.1e} at u {tuple(u.shape)}"


@pytest.mark.parametrize(
    ("batch", "channels", "modes", "length"),
    [(1, 2, 1, 1), (3, 1, 2, 2), (2, 2, 7, 63), (2, 1, 16, 64), (17, 1, 5, 65), (1, 2, 33, 200), (2, 1, 128, 130)],
)
def test_outputs_and_gradients_equal_the_reference(batch, channels, modes, length):
    assert_equal_to_reference(*problem(batch, channels, modes, length))


@pytest.mark.parametrize("precision", triton_scan.PRECISIONS)
def test_each_arithmetic_keeps_its_accuracy(precision):
    assert_equal_to_reference(*problem(3, 2, 15, 150), precision=precision)


def test_bfloat16_signals_are_rounded_on_the_way_out_only():
    u, log_lam, w, state = problem(2, 2, 6, 100, torch.bfloat16)
    assert_equal_to_reference(u, log_lam, w, state, tolerance=8e-3)  # bfloat16 keeps 8 bits; the interpreter truncates
    y, after = triton_scan.diagonal_scan(u, log_lam, w, state)
    assert (y.dtype, after.dtype) == (torch.bfloat16, torch.float32)


@pytest.mark.parametrize("length", [15, 96, 250])
@pytest.mark.parametrize("segments", [2, 5])
def test_segments_equal_the_reference(segments, length):
    settings = Settings(chunk=16, tile=16, segments=segments)
    assert_equal_to_reference(*problem(3, 2, 3, length), settings=settings)


def test_input_and_gradient_of_any_strides():
    u, log_lam, w, state = problem(2, 3, 4, 70)
    transposed = u.transpose(1, 2).contiguous().transpose(1, 2)
    every_other = torch.stack([u, torch.zeros_like(u)], dim=-1).flatten(2)[..., ::2]
    for view in (transposed, every_other, u.transpose(0, 1).contiguous().transpose(0, 1)):
        assert view.stride() != u.stride()
        assert_equal_to_reference(view, log_lam, w, state)
    shared = u[:1, :1].expand(2, 3, 70)  # strides of zero
    assert_equal_to_reference(shared, log_lam, w, state)


def test_no_state_is_a_state_of_zeros():
    u, log_lam, w, state = problem(2, 2, 5, 80)
    inputs = [t.requires_grad_() for t in (u, log_lam, w)]
    y, after = triton_scan.diagonal_scan(*inputs, None)
    y_zero, after_zero = triton_scan.diagonal_scan(*inputs, torch.zeros_like(state))
    assert torch.equal(y, y_zero)
    assert torch.equal(after, after_zero)
    loss, loss_zero = (y.square().sum() + after.sum(), y_zero.square().sum() + after_zero.sum())
    pairs = zip(torch.autograd.grad(loss, inputs), torch.autograd.grad(loss_zero, inputs), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_gradients_from_the_output_or_the_state_alone():
    u, log_lam, w, state = problem(2, 2, 5, 80)
    for which in (0, 1):
        inputs = [t.detach().requires_grad_() for t in (u, log_lam, state)]
        got = torch.autograd.grad(
            triton_scan.diagonal_scan(inputs[0], inputs[1], w, inputs[2])[which].square().sum(), inputs
        )
        want = torch.autograd.grad(
            reference.diagonal_scan(inputs[0], inputs[1], w, inputs[2])[which].square().sum(), inputs
        )
        for a, b in zip(got, want, strict=True):
            assert (a - b).norm() < 2e-6 * b.norm()


def test_frozen_modes_still_pass_gradients_to_the_input():
    u, log_lam, w, state = problem(2, 2, 5, 80)
    u.requires_grad_()
    got = torch.autograd.grad(triton_scan.diagonal_scan(u, log_lam, w, state)[0].square().sum(), u)[0]
    want = torch.autograd.grad(reference.diagonal_scan(u, log_lam, w, state)[0].square().sum(), u)[0]
    assert (got - want).norm() < 2e-6 * want.norm()


def test_what_it_cannot_serve_is_refused_with_the_reason(monkeypatch):
    u, log_lam, w, state = problem(1, 1, 2, 4)
    assert triton_scan.available(u) is None
    with pytest.raises(OptionError, match=r"torch\.float64"):
        triton_scan.diagonal_scan(u.double(), log_lam, w, state)
    with pytest.raises(OptionError, match=r"fp16.*expected one of fp32, tf32, bf16"):
        triton_scan.diagonal_scan(u, log_lam, w, state, precision="fp16")
    monkeypatch.delenv("TRITON_INTERPRET")
    assert "cpu" in str(triton_scan.available(u))
    monkeypatch.setattr(triton_scan, "_missing", "No module named 'triton'")
    assert "pip install triton" in str(triton_scan.available(u))


def test_module_imports_without_triton_and_keeps_the_reason(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    spec = importlib.util.spec_from_file_location("triton_scan_alone", triton_scan.__file__)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)  # dataclasses look their module up
    spec.loader.exec_module(module)
    assert "triton is not installed" in module.available(torch.zeros(1, 1, 1))
    with pytest.raises(OptionError, match="pip install triton"):
        module.diagonal_scan(*problem(1, 1, 2, 4))


def test_tables_equal_those_of_the_torch_path():
    _, log_lam, w, _ = problem(1, 3, 11, 5)
    want = make_tables(log_lam, w, 32, torch.float64)
    K, E, C, decay = triton_scan.split_tables(log_lam, w, 32)
    pairs = {
        "K": (K, want.T[:, 0]),
        "E": (E, want.E.unflatten(2, (-1, 2)).permute(0, 3, 1, 2)),
        "C": (C, want.C.unflatten(1, (-1, 2)).transpose(1, 2)),
        "decay": (decay, want.decay.transpose(1, 2)),
    }
    for name, (a, b) in pairs.items():
        assert (a - b).abs().max() < 1e-6 * b.abs().max(), name

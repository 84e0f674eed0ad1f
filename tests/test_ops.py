"""The torch engine against the float64 loop: outputs and all gradients, at odd sizes."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import wavessm as ws
from wavessm.ops import dense_scan, diagonal_scan, scan
from wavessm.ops.tables import dense_kernel, kernel

SHAPES = [(1, 1, 1, 1), (2, 3, 4, 2), (3, 2, 8, 63), (1, 3, 7, 64), (2, 3, 16, 65), (2, 2, 32, 1000)]


def system(batch, channels, modes, length, dtype=torch.float64):
    generator = torch.Generator().manual_seed(length)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=dtype)

    log_lam = torch.stack(
        [-0.1 * torch.rand(channels, modes, generator=generator, dtype=dtype), draw(channels, modes)], -1
    )
    return [draw(batch, channels, length), log_lam, draw(channels, modes, 2), draw(batch, channels, modes, 2)]


def dense_system(batch, channels, width, length):
    generator = torch.Generator().manual_seed(length)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    return [
        draw(batch, channels, length),
        0.3 * draw(channels, width, width) / width**0.5,
        draw(channels, width),
        draw(channels, width),
        draw(batch, channels, width),
    ]


def outputs_and_gradients(op, arguments):
    arguments = [a.clone().requires_grad_() for a in arguments]
    outputs = op(*arguments)
    generator = torch.Generator().manual_seed(0)
    seeds = [torch.randn(o.shape, generator=generator, dtype=o.dtype) for o in outputs]
    return [*(o.detach() for o in outputs), *torch.autograd.grad(outputs, arguments, seeds)]


def assert_same(ours, theirs, names, tolerance):
    for name, a, b in zip(names, ours, theirs, strict=True):
        size = max(1.0, float(b.abs().max()))
        difference = float((a - b).abs().max())
        assert difference <= tolerance * size, (
            f"{name} differs by {difference:.1e} of {size:.1e}, shape {tuple(b.shape)}"
        )


DIAGONAL = ("y", "state", "du", "dlog_lam", "dw", "dstate")
DENSE = ("y", "state", "du", "dA", "dB", "dC", "dstate")


@pytest.mark.parametrize("shape", SHAPES)
def test_diagonal_scan_is_the_reference(shape):
    arguments = system(*shape)
    fast = outputs_and_gradients(lambda *a: diagonal_scan(*a, backend="torch"), arguments)
    slow = outputs_and_gradients(lambda *a: diagonal_scan(*a, backend="reference"), arguments)
    assert_same(fast, slow, DIAGONAL, 1e-11)


@pytest.mark.parametrize("shape", [*SHAPES[:-1], (2, 2, 9, 300)])
def test_dense_scan_is_the_reference(shape):
    arguments = dense_system(*shape)
    fast = outputs_and_gradients(lambda *a: dense_scan(*a, backend="torch"), arguments)
    slow = outputs_and_gradients(lambda *a: dense_scan(*a, backend="reference"), arguments)
    assert_same(fast, slow, DENSE, 1e-11)


@pytest.mark.parametrize("shape", SHAPES)
def test_single_precision_keeps_five_digits(shape):
    arguments = [a.float() for a in system(*shape)]
    fast = outputs_and_gradients(lambda *a: diagonal_scan(*a, backend="torch"), arguments)
    # the reference computes in double whatever comes, and returns what came
    slow = outputs_and_gradients(lambda *a: diagonal_scan(*a, backend="reference"), arguments)
    assert_same(fast, slow, DIAGONAL, 1e-5)


@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 9), st.integers(1, 200), st.integers(1, 199))
def test_any_split_is_the_whole(batch, channels, modes, length, cut):
    u, log_lam, w, state = system(batch, channels, modes, length)
    whole, last = diagonal_scan(u, log_lam, w, state)
    cut = min(cut, length - 1)
    if cut == 0:
        return
    first, middle = diagonal_scan(u[..., :cut], log_lam, w, state)
    rest, end = diagonal_scan(u[..., cut:], log_lam, w, middle)
    torch.testing.assert_close(torch.cat([first, rest], -1), whole, atol=1e-10, rtol=1e-10)
    torch.testing.assert_close(end, last, atol=1e-10, rtol=1e-10)


def test_input_may_be_any_view():
    u, log_lam, w, state = system(2, 6, 4, 130)
    expected = diagonal_scan(u, log_lam, w, state)[0]
    view = u.transpose(1, 2).contiguous().transpose(1, 2)
    torch.testing.assert_close(diagonal_scan(view, log_lam, w, state)[0], expected)
    spread = torch.zeros(2, 6, 260, dtype=u.dtype)
    spread[..., ::2] = u
    torch.testing.assert_close(diagonal_scan(spread[..., ::2], log_lam, w, state)[0], expected)


@pytest.mark.parametrize("length", [1, 2, 17, 1000, 65_536])
def test_kernel_is_accurate_at_any_length(length):
    _, log_lam, w, _ = system(1, 2, 8, 5)
    log_lam = log_lam * torch.tensor([1e-3, 1.0])
    ticks = torch.tensor([0, length // 2, length - 1])
    lam = torch.view_as_complex(log_lam)
    direct = (torch.view_as_complex(w)[..., None] * torch.exp(lam[..., None] * ticks)).sum(1).real
    torch.testing.assert_close(kernel(log_lam, w, length)[:, ticks], direct, atol=1e-9, rtol=1e-9)


def test_dense_kernel_is_the_impulse_response():
    _, A, B, C, _ = dense_system(1, 3, 6, 5)
    impulse = torch.zeros(1, 3, 150, dtype=torch.float64)
    impulse[..., 0] = 1
    torch.testing.assert_close(dense_kernel(A, B, C, 150), dense_scan(impulse, A, B, C, backend="reference")[0][0])


def test_gradients_by_finite_differences():
    arguments = [a.requires_grad_() for a in system(1, 2, 2, 7)]
    assert torch.autograd.gradcheck(lambda *a: scan.diagonal_scan(*a), arguments)


def test_wrong_backends_are_refused_by_name():
    arguments = system(1, 1, 1, 3)
    with pytest.raises(ws.UnknownNameError, match="did you mean 'torch'"):
        diagonal_scan(*arguments, backend="torhc")
    with pytest.raises(ws.UnknownNameError, match="precision"):
        diagonal_scan(*arguments, precision="fp64")
    with pytest.raises(ws.OptionError, match="cannot serve this call"):
        diagonal_scan(*arguments, backend="triton")  # float64
    with pytest.raises(ws.OptionError, match="dense state"):
        dense_scan(*dense_system(1, 1, 2, 3), backend="triton")

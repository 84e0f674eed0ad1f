"""The torch engine against the float64 loop: outputs and all gradients, at odd sizes."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import wavessm as ws
from wavessm.ops import DenseSystem, DiagonalSystem, Engine, Modes, run_layer
from wavessm.ops.convolution import kernel
from wavessm.ops.dispatch import run_system
from wavessm.ops.modes import phi, sample
from wavessm.ops.scan import scan
from wavessm.ops.tables import chunk_tables

# batch, channels, complex modes, real modes, length
SHAPES = [(1, 1, 1, 0, 1), (2, 3, 0, 3, 2), (3, 2, 7, 1, 63), (1, 3, 5, 2, 64), (2, 3, 16, 0, 65), (2, 2, 31, 2, 1000)]


def draws(seed, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return lambda *shape: torch.randn(*shape, generator=generator, dtype=dtype)


def problem(batch, channels, n_complex, real, length, directions=1, copies=1, dtype=torch.float64):
    """u, the modes' parameters, D and a state: slow modes, so that the state matters far beyond a chunk."""
    draw, slots = draws(length, dtype), n_complex + (real + 1) // 2
    state = draw(batch, channels, slots, 2)
    if real % 2:
        state[:, :, -1, 1] = 0
    parameters = [
        -1 + 0.3 * draw(channels),
        -2 + draw(copies, n_complex + real),
        5 * draw(copies, n_complex),
        draw(copies, slots, 2),
        draw(directions, channels, slots, 2) / slots**0.5,
    ]
    return draw(batch, channels, length), parameters, draw(channels), state


def dense_problem(batch, channels, width, length, directions=1):
    draw = draws(length)
    A = 0.3 * draw(channels, width, width) / width**0.5
    return (
        draw(batch, channels, length),
        [A, draw(channels, width), draw(directions, channels, width)],
        draw(channels),
        draw(batch, channels, width),
    )


def outputs_and_gradients(op, inputs):
    inputs = [a.detach().clone().requires_grad_() for a in inputs]
    outputs = [o for o in op(*inputs) if o is not None]
    generator = torch.Generator().manual_seed(0)
    seeds = [torch.randn(o.shape, generator=generator, dtype=torch.float64).to(o) for o in outputs]
    return [*(o.detach() for o in outputs), *torch.autograd.grad(outputs, inputs, seeds)]


def assert_same(ours, theirs, tolerance, names=None):
    for name, a, b in zip(names or range(len(ours)), ours, theirs, strict=True):
        size = max(1.0, float(b.abs().max())) if b.numel() else 1.0
        difference = float((a.double() - b.double()).abs().max()) if b.numel() else 0.0
        assert difference <= tolerance * size, (
            f"{name} differs by {difference:.1e} of {size:.1e}, shape {tuple(b.shape)}"
        )


MODAL = ("y", "state", "du", "dlog_dt", "dlog_decay", "dfrequency", "dB", "dC", "dD", "dstate")


def modal(backend, precision="fp32", rate=1.0):
    """u, state, D, then the parameters → y, last"""

    def op(u, *rest):
        *parameters, D, state = rest
        return run_layer(u, Modes(*parameters), D, rate, state, True, Engine(backend, precision))

    return op


def two_way(backend, precision="fp32"):
    def op(u, *rest):
        *parameters, D = rest
        return run_layer(u, Modes(*parameters), D, engine=Engine(backend, precision))

    return op


@pytest.mark.parametrize("shape", SHAPES)
def test_modes_equal_the_reference(shape):
    u, parameters, D, state = problem(*shape)
    inputs = [u, *parameters, D, state]
    fast, slow = (outputs_and_gradients(modal(backend), inputs) for backend in ("torch", "reference"))
    assert_same(fast, slow, 1e-10, MODAL)


@pytest.mark.parametrize("shape", SHAPES)
def test_both_directions_equal_the_reference(shape):
    u, parameters, D, _ = problem(*shape, directions=2)
    fast, slow = (outputs_and_gradients(two_way(backend), [u, *parameters, D]) for backend in ("torch", "reference"))
    assert_same(fast, slow, 1e-10, [name for name in MODAL if "state" not in name])


def test_copies_gather_the_gradients_of_their_channels():
    u, parameters, D, state = problem(2, 6, 3, 1, 70, copies=3)
    inputs = [u, *parameters, D, state]
    fast, slow = (outputs_and_gradients(modal(backend), inputs) for backend in ("torch", "reference"))
    assert_same(fast, slow, 1e-10, MODAL)


@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (2, 3, 4, 2), (3, 2, 8, 63), (2, 3, 16, 65), (2, 2, 9, 300)])
def test_a_dense_state_equals_the_reference(shape, directions):
    u, parameters, D, state = dense_problem(*shape, directions=directions)

    def op(backend):
        def run(u, A, B, C, D, *state):
            return run_system(u, DenseSystem(A, B, C), D, *state, want_state=directions == 1, engine=Engine(backend))

        return run

    inputs = [u, *parameters, D, *([state] if directions == 1 else [])]
    fast, slow = (outputs_and_gradients(op(backend), inputs) for backend in ("torch", "reference"))
    assert_same(fast, slow, 1e-10)


@pytest.mark.parametrize("shape", SHAPES)
def test_single_precision_keeps_five_digits(shape):
    u, parameters, D, state = problem(*shape, dtype=torch.float32)
    inputs = [u, *parameters, D, state]
    # the reference computes in double whatever comes, and returns what came
    fast, slow = (outputs_and_gradients(modal(backend), inputs) for backend in ("torch", "reference"))
    assert_same(fast, slow, 2e-5, MODAL)


@given(st.integers(1, 3), st.integers(0, 5), st.integers(0, 4), st.integers(2, 200), st.integers(1, 199))
def test_any_split_is_the_whole(batch, n_complex, real, length, cut):
    real += n_complex + real == 0
    u, parameters, D, state = problem(batch, 2, n_complex, real, length)
    modes, cut = Modes(*parameters), min(cut, length - 1)
    whole, last = run_layer(u, modes, D, 1.0, state, True)
    first, middle = run_layer(u[..., :cut], modes, D, 1.0, state, True)
    rest, end = run_layer(u[..., cut:], modes, D, 1.0, middle, True)
    torch.testing.assert_close(torch.cat([first, rest], -1), whole, atol=1e-10, rtol=1e-10)
    torch.testing.assert_close(end, last, atol=1e-10, rtol=1e-10)


def test_input_may_be_any_view():
    u, parameters, D, state = problem(2, 6, 4, 1, 130)
    modes = Modes(*parameters)
    expected = run_layer(u, modes, D, 1.0, state)[0]
    view = u.transpose(1, 2).contiguous().transpose(1, 2)
    torch.testing.assert_close(run_layer(view, modes, D, 1.0, state)[0], expected)
    spread = torch.zeros(2, 6, 260, dtype=u.dtype)
    spread[..., ::2] = u
    torch.testing.assert_close(run_layer(spread[..., ::2], modes, D, 1.0, state)[0], expected)


@given(st.floats(-30, 2))
def test_phi_is_the_integral_of_the_exponential(exponent):
    """∫₀¹ e^{zs} ds by Gauss–Legendre, for a complex slot and for two real ones."""
    size = 10.0**exponent
    z = torch.tensor([[-size, 0.7 * size], [-size, -2 * size]], dtype=torch.float64)
    nodes, weight = np.polynomial.legendre.leggauss(200)
    by_quadrature = [weight @ np.exp(v * (nodes + 1) / 2) / 2 for v in (complex(-1, 0.7) * size, -size, -2 * size)]
    turned, first, second = by_quadrature
    expected = torch.tensor([[turned.real, turned.imag], [first, second]], dtype=torch.float64)
    torch.testing.assert_close(phi(z[None], 1)[0], expected, atol=1e-12, rtol=1e-10)


@pytest.mark.parametrize("length", [1, 2, 17, 1000, 65_536])
def test_kernel_is_accurate_at_any_length(length):
    draw = draws(length)
    log_lam, w = 1e-3 * -draw(2, 5, 2).abs(), draw(1, 2, 5, 2)
    log_lam[:, :3, 1] = draw(2, 3)
    ticks = torch.tensor([0, length // 2, length - 1])
    lam = torch.view_as_complex(log_lam[:, :3].contiguous())
    direct = (
        (torch.view_as_complex(w[0, :, :3].contiguous())[..., None] * torch.exp(lam[..., None] * ticks)).sum(1).real
    )
    direct += (w[0, :, 3:, :, None] * torch.exp(log_lam[:, 3:, :, None] * ticks)).sum((1, 2))
    K = kernel(DiagonalSystem(log_lam, w, 3), length)
    torch.testing.assert_close(K[0][:, ticks], direct, atol=1e-9, rtol=1e-9)


def test_dense_kernel_is_the_impulse_response():
    _, parameters, D, _ = dense_problem(1, 3, 6, 5)
    impulse = torch.zeros(1, 3, 150, dtype=torch.float64)
    impulse[..., 0] = 1
    y, _ = run_system(impulse, DenseSystem(*parameters), 0 * D, engine=Engine("reference"))
    torch.testing.assert_close(kernel(DenseSystem(*parameters), 150)[0], y[0])


@pytest.mark.parametrize("chunk", [1, 2, 5, 16, 23])
def test_dense_tables_hold_powers(chunk):
    _, (A, B, C), _, _ = dense_problem(1, 2, 5, 3, directions=2)
    K, E, out, decay = chunk_tables(DenseSystem(A, B, C), chunk)
    powers = torch.stack([torch.linalg.matrix_power(A, j) for j in range(chunk + 1)])
    columns = torch.einsum("jhrs,hs->hjr", powers[:chunk], B)
    torch.testing.assert_close(E, columns.flip(1))
    torch.testing.assert_close(K, torch.einsum("dhr,hjr->dhj", C, columns))
    torch.testing.assert_close(out, torch.einsum("dhr,jhrs->dhsj", C, powers[1:]))
    torch.testing.assert_close(decay, powers[chunk])


@pytest.mark.parametrize("chunk", [1, 4, 7])
def test_gradients_of_tables_by_finite_differences(chunk):
    _, parameters, _, _ = dense_problem(1, 2, 3, 3, directions=2)
    parameters = [p.requires_grad_() for p in parameters]
    assert torch.autograd.gradcheck(lambda *p: tuple(chunk_tables(DenseSystem(*p), chunk)), parameters)
    _, modal_parameters, _, _ = problem(1, 2, 2, 1, 3, directions=2)
    modal_parameters = [p.requires_grad_() for p in modal_parameters]
    assert torch.autograd.gradcheck(lambda *p: tuple(chunk_tables(sample(Modes(*p), 1.0), chunk)), modal_parameters)


def low_rank(rank, n_complex=2, real=1, channels=4, copies=2):
    _, parameters, _, _ = problem(1, channels, n_complex, real, 9, copies=copies)
    slots = parameters[3].shape[1]
    P = draws(3)(copies, rank, slots, 2)
    if real % 2:
        P[..., -1, 1] = 0
        parameters[3][:, -1, 1] = 0
    return Modes(*parameters, P)


@pytest.mark.parametrize("rank", [1, 2])
def test_bilinear_rule_in_closed_form_solves_the_system(rank):
    layer = low_rank(rank)
    system = sample(layer, 1.5)
    for h in range(4):
        lam = -layer.log_decay[h // 2].exp()
        blocks = [torch.tensor([[lam[n], -f], [f, lam[n]]]) for n, f in enumerate(layer.frequency[h // 2])]
        blocks.append(torch.diag(torch.stack([lam[2], lam[2]])))
        P = layer.P[h // 2].flatten(1)
        A = torch.block_diag(*blocks) - P.T @ (P * torch.tensor([2.0, 2.0, 2.0, 2.0, 1.0, 0.0]))
        half = 0.5 * 1.5 * layer.log_dt[h].exp() * A
        eye = torch.eye(6, dtype=torch.float64)
        torch.testing.assert_close(system.A[h], torch.linalg.solve(eye - half, eye + half))
        B_bar = torch.linalg.solve(eye - half, 1.5 * layer.log_dt[h].exp() * layer.B[h // 2].flatten())
        torch.testing.assert_close(system.B[h], B_bar)


@pytest.mark.parametrize("rank", [1, 2])
def test_gradients_of_the_bilinear_rule_by_finite_differences(rank):
    parameters = [p.requires_grad_() for p in low_rank(rank, channels=2, copies=1)]
    assert torch.autograd.gradcheck(lambda *p: sample(Modes(*p), 1.0)[:3], parameters)


def test_gradients_of_the_scan_by_finite_differences():
    u, parameters, D, state = problem(1, 2, 1, 1, 7)
    inputs = [a.requires_grad_() for a in (u, *parameters, D, state)]
    assert torch.autograd.gradcheck(modal("torch"), inputs)
    u, (A, B, C), D, state = dense_problem(1, 2, 2, 130)
    inputs = [a.requires_grad_() for a in (u[..., :7], A, B, C, D, state)]
    assert torch.autograd.gradcheck(lambda u, A, B, C, D, s: scan(u, DenseSystem(A, B, C), D, s, True), inputs)


def test_wrong_backends_are_refused_by_name():
    u, parameters, D, _ = problem(1, 1, 1, 0, 3)
    modes = Modes(*parameters)
    with pytest.raises(ws.UnknownNameError, match="did you mean 'torch'"):
        run_layer(u, modes, D, engine=Engine("torhc"))
    with pytest.raises(ws.UnknownNameError, match="precision"):
        run_layer(u, modes, D, engine=Engine(precision="fp64"))
    with pytest.raises(ws.OptionError, match="does not support this call"):
        run_layer(u, modes, D, engine=Engine("triton"))  # float64


@pytest.mark.parametrize(
    ("family", "length", "name"), [("morlet", 600, "x"), ("legs", 600, "x"), ("morlet", 20, "log_dt")]
)
def test_second_derivatives_are_refused_not_wrong(family, length, name):
    layer, x = ws.WaveSSM(2, 4, family=family).double(), torch.randn(1, length, 2, dtype=torch.float64)
    wanted = x.requires_grad_() if name == "x" else getattr(layer, name)
    with pytest.raises(RuntimeError, match="first derivatives only"):
        torch.autograd.grad(layer(x).square().sum(), wanted, create_graph=True)
    torch.autograd.grad(layer(x).square().sum(), wanted)


def test_second_derivatives_of_a_short_dense_scan_by_finite_differences():
    u, parameters, D, state = dense_problem(1, 1, 2, 5)
    inputs = [a.requires_grad_() for a in (u, *parameters, D, state)]

    def run(u, A, B, C, D, state):
        return scan(u, DenseSystem(A, B, C), D, state, want_state=True, chunk=2)

    assert torch.autograd.gradgradcheck(run, inputs)


@pytest.mark.parametrize("family", ["morlet", "legs"])
def test_short_sequences_have_second_derivatives_by_their_input(family):
    torch.manual_seed(0)
    layer, x = ws.WaveSSM(2, 4, family=family).double(), torch.randn(1, 9, 2, dtype=torch.float64)
    assert torch.autograd.gradgradcheck(layer, (x.requires_grad_(),))
    slow = ws.WaveSSM(2, 4, family=family, backend="reference").double()
    slow.load_state_dict(layer.state_dict())
    long = torch.randn(1, 511, 2, dtype=torch.float64, requires_grad=True)
    for each in (layer, slow):
        (gradient,) = torch.autograd.grad(each(long).square().sum(), long, create_graph=True)
        gradient.square().sum().backward()
    torch.testing.assert_close([p.grad for p in layer.parameters()], [p.grad for p in slow.parameters()])


@pytest.mark.parametrize("family", ["morlet", "legs"])
def test_the_reference_has_second_derivatives(family):
    torch.manual_seed(0)
    layer, x = ws.WaveSSM(2, 4, family=family, backend="reference").double(), torch.randn(1, 9, 2, dtype=torch.float64)

    def penalty(C):
        u = x.clone().requires_grad_()
        y = torch.func.functional_call(layer, {"C": C}, (u,))
        return torch.autograd.grad(y.square().sum(), u, create_graph=True)[0].square().sum()

    assert torch.autograd.gradcheck(penalty, layer.C.detach().clone().requires_grad_())

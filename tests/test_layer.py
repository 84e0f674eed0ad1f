"""`WaveSSM` and the residual block: equal ways to run, what they refuse, what training needs of them."""

import copy
import inspect
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import wavessm as ws
from contracts import check_refused
from wavessm.nn.backbones import TiedDropout
from wavessm.nn.initial import initial_modes
from wavessm.nn.layer import SSM_PARAMETERS, time_mask
from wavessm.ops.dispatch import masked_batch_norm
from wavessm.ops.modes import sample

KINDS = {
    "morlet": {"family": "morlet"},
    "gauss translated": {"family": "gauss", "measure": "translated"},
    "db6 DPLR rank 1": {"family": "db6", "structure": "dplr"},
    "dpss DPLR rank 2": {"family": "dpss", "measure": "translated", "structure": "dplr"},
    "legs": {"family": "legs"},
    "legt": {"family": "legt"},
    "fout": {"family": "fout"},
    "s4d-legs": {"family": "s4d-legs"},
    "s4d-lin": {"family": "s4d-lin"},
    "s4d-inv": {"family": "s4d-inv"},
}


def make(kind="morlet", d_model=3, d_state=16, **options):
    torch.manual_seed(0)
    d_state -= d_state % 2 if kind.startswith("s4d-") else 0  # their modes come in pairs
    return ws.WaveSSM(d_model, d_state, dt_min=0.01, **KINDS[kind], **options).double()


def signal(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_s4d_legs_has_the_spectrum_of_the_normal_part():
    n = np.arange(16)
    root = np.sqrt(2 * n + 1)
    A = -(np.tril(np.outer(root, root), -1) + np.diag(n + 1.0))
    normal = np.linalg.eigvals(A + np.outer(root, root) / 2)  # S4's P is √(n + ½)
    assert np.allclose(normal.real, -0.5)
    lam = initial_modes("s4d-legs", None, 16, None).lam
    assert np.allclose(np.sort(lam.imag), np.sort(normal.imag[normal.imag > 0]))
    assert np.all(lam.real == -0.5)


@pytest.mark.parametrize("d_state", [2, 15, 64])
@pytest.mark.parametrize("kind", KINDS)
def test_forward_is_the_convolution_with_the_kernel_and_the_reference(kind, d_state):
    layer, x = make(kind, d_state=d_state), signal(2, 131, 3)
    y = layer(x)
    K = layer.kernel(131)
    assert K.shape == (1, 3, 131)
    size = 2 * 131
    spectrum = torch.fft.rfft(x.transpose(1, 2), n=size) * torch.fft.rfft(K[0], n=size)
    expected = torch.fft.irfft(spectrum, n=size)[..., :131].transpose(1, 2) + layer.D * x
    torch.testing.assert_close(y, expected, atol=1e-9, rtol=1e-9)
    layer.engine = ws.ops.Engine("reference")
    torch.testing.assert_close(layer(x), y, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("measure", ["scaled", "translated"])
@pytest.mark.parametrize("family", ["morlet", "db6", "gauss"])
def test_diagonal_and_dplr_start_as_the_same_continuous_system(family, measure):
    """Their impulse responses at small steps, where the two discretisations agree."""
    operator = ws.make_operator(family, measure, 12)
    c = np.random.default_rng(0).standard_normal(12)
    times = np.linspace(0, 2, 9)
    from scipy.linalg import expm

    exact = np.array([c @ expm(-operator.A * t) @ operator.B for t in times])
    start = initial_modes(family, measure, 12, "diagonal")
    output = (start.readout @ c) * start.weight
    modal = np.array([np.sum(output * np.exp(start.lam * t) * start.B).real for t in times])
    np.testing.assert_allclose(modal, exact, atol=0.02 * np.abs(exact).max() + 1e-9)  # the decay floor
    dplr = initial_modes(family, measure, 12, "dplr")
    full_lam = np.concatenate([dplr.lam, dplr.lam[dplr.weight == 2].conj()])
    full_P = np.concatenate([dplr.P, dplr.P[:, dplr.weight == 2].conj()], axis=1)
    full_B = np.concatenate([dplr.B, dplr.B[dplr.weight == 2].conj()])
    full_C = np.concatenate([dplr.readout @ c, (dplr.readout @ c)[dplr.weight == 2].conj()])
    A = np.diag(full_lam) - full_P.T @ full_P.conj()
    low_rank = np.array([(full_C @ expm(A * t) @ full_B).real for t in times])
    np.testing.assert_allclose(low_rank, exact, atol=0.02 * np.abs(exact).max() + 1e-9)


def test_diagonal_layers_are_sampled_by_zero_order_hold():
    layer = make("morlet", d_model=1, d_state=8)
    dt, n_complex = float(layer.log_dt.detach().exp()), layer.frequency.shape[1]
    decay, B, C = -layer.log_decay[0].detach().exp(), layer.B[0].detach(), layer.C[0, 0].detach()
    assert 0 < n_complex < len(decay), "complex and real modes"

    def complex_slots(values):
        return torch.view_as_complex(values[:n_complex].contiguous())

    lam = torch.cat(
        [torch.complex(decay[:n_complex], layer.frequency[0].detach()), decay[n_complex:].to(torch.complex128)]
    )
    B = torch.cat([complex_slots(B), B[n_complex:].flatten().to(torch.complex128)])
    C = torch.cat([2 * complex_slots(C), C[n_complex:].flatten().to(torch.complex128)])
    held = (torch.exp(dt * lam) - 1) / lam * B
    expected = torch.stack([(C * torch.exp(dt * lam * l) * held).sum().real for l in range(20)])
    torch.testing.assert_close(layer.kernel(20)[0, 0], expected, atol=1e-12, rtol=1e-9)


def test_dplr_layers_are_sampled_by_the_bilinear_rule():
    torch.manual_seed(0)
    layer = ws.WaveSSM(1, 16, family="legs", dt_min=0.01).double()
    dt = float(layer.log_dt.detach().exp())
    operator = ws.make_operator("legs", n=16)
    step = ws.bilinear(operator.system, dt)
    # the readout in the frame's coordinates, from which C was drawn
    form = operator.to_dplr()
    kept, weight = form.one_of_each_pair
    C = torch.view_as_complex(layer.C.detach())[0, 0].numpy()
    readout = (weight * C @ form.V[:, kept].conj().T).real
    expected = [readout @ np.linalg.matrix_power(step.A, l) @ step.B for l in range(30)]
    np.testing.assert_allclose(layer.kernel(30)[0, 0].detach().numpy(), expected, atol=1e-6 * np.abs(expected).max())


@pytest.mark.parametrize("kind", KINDS)
@given(cuts=st.lists(st.integers(1, 80), min_size=1, max_size=5))
def test_any_split_gives_outputs_and_gradients_of_the_whole(kind, cuts):
    layer, x = make(kind, d_state=9), signal(2, sum(cuts), 3).requires_grad_()
    whole, last = layer(x, return_state=True)
    state, pieces, start = layer.initial_state(2), [], 0
    for size in cuts:
        if size == 1:
            y, state = layer.step(x[:, start], state)
            y = y[:, None]
        else:
            y, state = layer(x[:, start : start + size], state=state, return_state=True)
        pieces.append(y)
        start += size
    split = torch.cat(pieces, 1)
    torch.testing.assert_close(split, whole, atol=1e-8, rtol=1e-8)
    torch.testing.assert_close(state, last, atol=1e-8, rtol=1e-8)
    seed = signal(*whole.shape, seed=2)
    parameters = [x, *layer.parameters()]
    for a, b in zip(
        torch.autograd.grad(split, parameters, seed), torch.autograd.grad(whole, parameters, seed), strict=True
    ):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("kind", ["morlet", "legs"])
def test_padding_changes_nothing_in_either_direction(kind, bidirectional):
    layer, x = make(kind, bidirectional=bidirectional), signal(3, 90, 3)
    lengths = torch.tensor([90, 1, 37])
    padded = x.clone()
    for row, length in enumerate(lengths):
        padded[row, length:] = 7.0
    y = layer(padded, lengths=lengths)
    for row, length in enumerate(lengths):
        torch.testing.assert_close(y[row : row + 1, :length], layer(x[row : row + 1, :length]))
        assert torch.all(y[row, length:] == 0)


def test_bidirectional_adds_the_reversed_reading_with_its_own_readout():
    layer, x = make(bidirectional=True), signal(2, 50, 3)
    K = layer.kernel(50)
    assert K.shape == (2, 3, 50)
    size = 100
    ahead = torch.fft.irfft(torch.fft.rfft(x.transpose(1, 2), n=size) * torch.fft.rfft(K[0], n=size), n=size)[..., :50]
    u = x.transpose(1, 2).flip(-1)
    behind = torch.fft.irfft(torch.fft.rfft(u, n=size) * torch.fft.rfft(K[1], n=size), n=size)[..., :50].flip(-1)
    torch.testing.assert_close(layer(x), (ahead + behind).transpose(1, 2) + layer.D * x, atol=1e-9, rtol=1e-9)


def test_rate_hears_the_same_signal_at_another_sampling():
    """A held signal sampled twice as slowly, at rate 2, ends in the same state."""
    layer, x = make(), signal(1, 60, 3)
    slow = layer(x, return_state=True, rate=2.0)[0]
    fast = layer(x.repeat_interleave(2, dim=1))
    torch.testing.assert_close(slow - layer.D * x, (fast - layer.D * x.repeat_interleave(2, dim=1))[:, 1::2])


def test_broken_input_breaks_nothing_before_it():
    layer, x = make(), signal(1, 100, 3)
    clean = layer(x)
    for value in (float("nan"), float("inf")):
        broken = x.clone()
        broken[0, 70, 1] = value
        y, state = layer(broken, return_state=True)
        torch.testing.assert_close(y[:, :70], clean[:, :70])
        assert not torch.isfinite(y[0, 70:, 1]).any()
        torch.testing.assert_close(y[:, :, [0, 2]], clean[:, :, [0, 2]])
        assert not torch.isfinite(state[0, 1]).any()


@pytest.mark.parametrize("kind", KINDS)
def test_modes_cannot_start_to_grow(kind):
    layer = make(kind)
    for _ in range(20):
        with torch.no_grad():
            for name, parameter in layer.named_parameters():
                if name in SSM_PARAMETERS and name != "log_dt":
                    parameter.add_(torch.randn_like(parameter) * parameter.abs().mean().clamp(min=1))
    if layer.structure == "diagonal":
        log_lam, _, n_complex = sample(layer.system(), 1.0)
        assert log_lam[..., 0].max() < 0
        assert n_complex == log_lam.shape[1] or log_lam[:, n_complex:].max() < 0
    else:
        assert torch.linalg.eigvals(sample(layer.system(), 1.0).A).abs().max() < 1 + 1e-12


def test_copies_are_shared_over_channels():
    layer = make(d_model=6, n_ssm=2)
    assert layer.B.shape[0] == 2
    with torch.no_grad():
        before = layer.kernel(10)
        layer.frequency[1] += 1.0
        moved = (layer.kernel(10) - before).abs().amax((0, 2)) > 1e-9
    assert moved.tolist() == [False] * 3 + [True] * 3


@pytest.mark.parametrize("kind", ["morlet", "legs"])
def test_autocast_keeps_the_arithmetic_accurate(kind):
    layer = make(kind).float()
    x = signal(2, 200, 3).float()
    exact = layer(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = layer(x.bfloat16())
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.float(), layer(x.bfloat16().float()), atol=0.05, rtol=0.02)
    torch.testing.assert_close(y.float(), exact, atol=0.1, rtol=0.05)


@pytest.mark.parametrize("kind", ["morlet", "dpss DPLR rank 2"])
def test_copying_pickling_and_state_dicts(kind):
    layer, x = make(kind), signal(1, 40, 3)
    y = layer(x)
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        torch.testing.assert_close(twin(x), y)
    other = make(kind)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    layer(signal(1, 999, 3))
    assert all(value.numel() < 999 for value in layer.state_dict().values()), "nothing as long as a sequence is kept"
    other.load_state_dict(layer.state_dict())
    torch.testing.assert_close(other(x), y)


def test_forward_mutates_nothing():
    layer, x = make(), signal(1, 70, 3)
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    kept = x.clone()
    first = layer(x)
    layer(signal(1, 300, 3))
    assert torch.equal(layer(x), first)
    assert torch.equal(x, kept)
    for name, value in layer.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_parameters_are_real_tensors():
    assert not any(torch.is_complex(value) for value in make("legs").state_dict().values())


def test_batch_norm_under_a_mask_is_batch_norm_of_what_is_heard():
    torch.manual_seed(0)
    norm = torch.nn.BatchNorm1d(4).double()
    with torch.no_grad():
        norm.weight.uniform_(0.5, 2)
        norm.bias.normal_()
    twin = copy.deepcopy(norm)
    x, lengths = signal(3, 20, 4).requires_grad_(), torch.tensor([20, 1, 7])
    mask = time_mask(lengths, 20)
    for _ in range(2):
        ours, heard = masked_batch_norm(x, mask, norm), twin(x[mask[..., 0]])
    torch.testing.assert_close(ours[mask[..., 0]], heard)
    assert torch.all(ours[~mask[..., 0]] == 0)
    for a, b in zip(norm.buffers(), twin.buffers(), strict=True):
        torch.testing.assert_close(a, b)
    seed = signal(*heard.shape, seed=2)
    gradients = [torch.autograd.grad(y, x, seed)[0] for y in (ours[mask[..., 0]], heard)]
    torch.testing.assert_close(*gradients)


def test_tied_dropout_keeps_its_mask_over_time():
    drop = TiedDropout(0.5)
    y = drop(torch.ones(64, 20, 32))
    assert set(y.unique().tolist()) == {0.0, 2.0}
    assert torch.equal(y[:, :1].expand_as(y), y)
    assert torch.equal(drop.eval()(y), y)


def test_a_layer_learns_to_recall():
    """Echo a smooth input of twelve samples ago: training moves what it must."""
    torch.manual_seed(0)
    layer = ws.WaveSSM(1, 32, family="morlet", measure="translated", dt_min=0.04, dt_max=0.04)
    x = torch.nn.functional.avg_pool1d(torch.randn(16, 1, 125), 6, stride=1).transpose(1, 2)
    x = x / x.std()
    target = torch.nn.functional.pad(x, (0, 0, 12, 0))[:, :120]
    optimiser = torch.optim.AdamW(ws.param_groups(layer, lr=0.05, weight_decay=0.0))
    losses = []
    for _ in range(200):
        loss = (layer(x) - target)[:, 12:].square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[0] > 1
    assert losses[-1] < 0.5, "predicting nothing scores 1"


BAD = {
    "rank": (lambda: make()(signal(5, 3)), ws.ShapeError, r"\(batch, length, d_model\)"),
    "width": (lambda: make()(signal(1, 5, 4)), ws.ShapeError, r"d_model\) = \(≥ 1, ≥ 1, 3\)"),
    "no samples": (lambda: make()(signal(1, 0, 3)), ws.ShapeError, "≥ 1"),
    "no sequences": (lambda: make()(signal(0, 5, 3)), ws.ShapeError, "≥ 1"),
    "a list": (lambda: make()([[1.0]]), ws.ShapeError, "x is a list"),
    "d_state of halves": (lambda: ws.WaveSSM(3, 8.0), ws.OptionError, "d_state is 8.0"),
    "a family that is a list": (lambda: ws.WaveSSM(3, 8, family=["morlet"]), ws.OptionError, "family is a list"),
    "measure of a closed form": (
        lambda: ws.WaveSSM(3, 8, family="legs", measure="scald"), ws.UnknownNameError, "did you mean 'scaled'",
    ),
    "a batch below zero": (lambda: ws.sampled(make()).initial_state(-1), ws.OptionError, "batch is -1"),
    "precision": (lambda: ws.WaveSSM(3, 8, precision="fp8"), ws.UnknownNameError, "precision 'fp8'"),
    "integers": (lambda: make()(torch.ones(1, 5, 3, dtype=torch.long)), ws.OptionError, "x.float"),
    "state": (lambda: make()(signal(2, 5, 3), state=torch.zeros(2, 3)), ws.ShapeError, r"initial_state\(batch=2\)"),
    "step": (lambda: make().step(signal(2, 4), None), ws.ShapeError, "WaveSSM.step"),
    "a state of text": (lambda: make()(signal(1, 5, 3), state="a"), ws.ShapeError, "state is a str, expected"),
    "rate": (lambda: make()(signal(1, 5, 3), rate=0.0), ws.OptionError, "rate is 0.0"),
    "lengths": (lambda: make()(signal(1, 5, 3), lengths=torch.tensor([6])), ws.ShapeError, "from 1 to 5"),
    "lengths and state": (
        lambda: make()(signal(1, 5, 3), lengths=torch.tensor([5]), return_state=True), ws.OptionError, "whole seq",
    ),
    "bidirectional state": (
        lambda: make(bidirectional=True)(signal(1, 5, 3), return_state=True), ws.OptionError, "reads the future",
    ),
    "d_state": (lambda: ws.WaveSSM(2, 1), ws.OptionError, "d_state is 1"),
    "family": (lambda: ws.WaveSSM(2, 8, family="leggs"), ws.UnknownNameError, "family"),
    "structure": (lambda: ws.WaveSSM(2, 8, structure="diag"), ws.UnknownNameError, "did you mean 'diagonal'"),
    "legs diagonal": (lambda: ws.WaveSSM(2, 64, family="legs", structure="diagonal"), ws.ConditionError, "to_dplr"),
    "s4d dplr": (lambda: ws.WaveSSM(2, 8, family="s4d-lin", structure="dplr"), ws.OptionError, "diagonal modes"),
    "n_ssm": (lambda: ws.WaveSSM(4, 8, n_ssm=3), ws.OptionError, "divisor of d_model"),
    "large d_state": (lambda: ws.WaveSSM(4, 100_000), ws.OptionError, "at most 4,096"),
    "dt": (lambda: ws.WaveSSM(4, 8, dt_min=1.0), ws.OptionError, "dt_min"),
    "endless dt": (lambda: ws.WaveSSM(4, 8, dt_max=float("inf")), ws.OptionError, "dt_max is inf"),
    "backend": (lambda: ws.WaveSSM(4, 8, backend="cuda"), ws.UnknownNameError, "backend"),
    "kernel": (lambda: make().kernel(0), ws.OptionError, "at least 1"),
    "norm": (lambda: ws.ResidualBlock(make(), norm="bacth"), ws.UnknownNameError, "did you mean 'batch'"),
    "training step": (
        lambda: ws.ResidualBlock(make(), "batch").step(signal(1, 3), make().initial_state(1)), ws.OptionError, "eval",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input_gets_one_clear_line(case):
    check_refused(*BAD[case])


@pytest.mark.parametrize("kind", ["morlet", "legs"])
def test_compiles_without_graph_breaks(kind):
    layer, x = make(kind).float(), signal(2, 130, 3).float()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    y = compiled(x)
    torch.testing.assert_close(y, layer(x))
    gradients = torch.autograd.grad(y.sum(), layer.C)[0], torch.autograd.grad(layer(x).sum(), layer.C)[0]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("measure", ["scaled", "translated"])
@pytest.mark.parametrize("family", ["morlet", "gauss", "mexhat", "dpss", "db6"])
def test_white_noise_moves_every_mode_alike(family, measure):
    layer = ws.WaveSSM(1, 32, family=family, measure=measure, structure="diagonal")
    decay = layer.log_decay[0].exp()
    n_complex = layer.frequency.shape[1]
    real = layer.B[0, n_complex:].flatten()[: len(decay) - n_complex]
    variance = torch.cat([layer.B[0, :n_complex].square().sum(-1), real.square()]) / (2 * decay)
    driven = variance > 0.1  # translated frames can have a mode that no input reaches
    assert driven.sum() >= len(decay) - 1
    torch.testing.assert_close(variance[driven], torch.full_like(variance[driven], 0.5))


def test_slow_modes_can_have_larger_input_weights():
    layer = ws.WaveSSM(1, 32, family="db6", b_init="slow-modes")
    size = layer.B[0].square().sum(-1).sqrt()[: layer.frequency.shape[1]]
    torch.testing.assert_close(size, size[:1].expand_as(size))
    assert not torch.allclose(layer.B, ws.WaveSSM(1, 32, family="db6").B)
    with pytest.raises(ws.UnknownNameError, match="equal"):
        ws.WaveSSM(1, 32, b_init="eqal")


def test_the_tail_of_a_block_is_the_end_of_all_of_it():
    block, x = ws.ResidualBlock(ws.WaveSSM(4, 8)), torch.randn(2, 20, 4)
    torch.testing.assert_close(block(x, tail=3), block(x)[:, -3:])


def test_a_wavelet_with_parameters_in_its_name_starts_a_layer():
    y = ws.WaveSSM(3, 8, family="cmor1.5-1.0")(torch.randn(1, 9, 3))
    assert y.shape == (1, 9, 3)


# -- no option is swallowed -----------------------------------------------------------------------------------------

OTHER_VALUES = {
    "d_model": 6, "d_state": 8, "family": "gauss", "measure": ("scaled", "translated"),
    "structure": ("diagonal", "dplr"), "bidirectional": True, "dt_min": 0.02, "dt_max": 0.2, "n_ssm": 2,
    "backend": ("torch", "reference"), "precision": ("tf32", "bf16"), "b_init": ("equal", "slow-modes"),
}  # fmt: skip


def contents(options):
    torch.manual_seed(0)
    layer = ws.WaveSSM(**options)
    return layer.engine, {name: value.tolist() for name, value in layer.state_dict().items()}


def effect(base, option, value):
    """Whether an option changes a layer: "refused", True or False."""
    try:
        return contents(base | {option: value}) != contents(base)
    except ws.WaveSSMError:
        return "refused"


def test_other_values_name_every_option():
    assert list(OTHER_VALUES) == list(inspect.signature(ws.WaveSSM.__init__).parameters)[1:]


@pytest.mark.parametrize("option", OTHER_VALUES)
@pytest.mark.parametrize("kind", [*KINDS, "torch"])
def test_every_option_changes_a_layer_or_is_refused(kind, option):
    base = {"d_model": 4, "d_state": 6} | KINDS.get(kind, {"backend": "torch"})
    values = OTHER_VALUES[option] if isinstance(OTHER_VALUES[option], tuple) else (OTHER_VALUES[option],)
    effects = {value: effect(base, option, value) for value in values if value != base.get(option)}
    own = "translated" if kind in ("legt", "fout") else "scaled"
    stated = {"measure": own, "structure": ws.WaveSSM(**base).structure, "b_init": "equal"}
    assert all(changed or value == stated.get(option) for value, changed in effects.items()), effects


@pytest.mark.parametrize("kind", KINDS)
def test_input_weights_are_those_of_diagonal_frames(kind):
    base = {"d_model": 4, "d_state": 16} | KINDS[kind]
    for value in ("equal", "slow-modes"):
        if "s4d" in kind or ws.WaveSSM(**base).structure == "dplr":
            assert effect(base, "b_init", value) == "refused"
        else:
            assert effect(base, "b_init", value) is (value == "slow-modes")

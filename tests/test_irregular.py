"""Irregular times and missing samples, in the layer and in the model."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import wavessm as ws
from test_layer import KINDS, make, signal
from wavessm.ops import Engine

DIAGONAL = {kind: options for kind, options in KINDS.items() if make(kind).structure == "diagonal"}
CLOSE = {"atol": 1e-9, "rtol": 1e-9}


def times_of(batch, length, seed=3, start=7.0):
    """Gaps from 0.02 to 20 steps."""
    gaps = torch.exp(signal(batch, length, seed=seed).clamp(-2, 1.5) * 2)
    return start + gaps.cumsum(1)


def slow(layer):
    """The same layer on the loop of the reference."""
    twin = copy.deepcopy(layer)
    twin.engine = Engine("reference")
    return twin


def test_some_families_are_diagonal_and_some_are_not():
    assert {"morlet", "gauss translated", "s4d-lin"} <= set(DIAGONAL)
    assert "legs" not in DIAGONAL


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("kind", DIAGONAL)
@given(spacing=st.floats(0.05, 20), length=st.integers(2, 70), start=st.floats(-1e3, 1e3))
@settings(max_examples=10)
def test_equal_times_are_a_rate(kind, bidirectional, spacing, length, start):
    layer, x = make(kind, d_state=7, bidirectional=bidirectional), signal(2, length, 3)
    times = (start + spacing * torch.arange(length, dtype=torch.float64)).expand(2, -1)
    torch.testing.assert_close(layer(x, times=times), layer(x, rate=spacing), atol=1e-8, rtol=1e-8)
    torch.testing.assert_close(layer(x, times=times / spacing, rate=spacing), layer(x, rate=spacing), **CLOSE)


@pytest.mark.parametrize("kind", DIAGONAL)
@pytest.mark.parametrize("length", [1, 2, 63, 300])
def test_outputs_and_states_are_those_of_the_reference(kind, length):
    for d_state in (2, 9, 16):
        layer, x, times = make(kind, d_state=d_state), signal(2, length, 3), times_of(2, length)
        y, state = layer(x, times=times, return_state=True)
        expected, last = slow(layer)(x, times=times, return_state=True)
        torch.testing.assert_close(y, expected, **CLOSE)
        torch.testing.assert_close(state.values, last.values, **CLOSE)
        both = make(kind, d_state=d_state, bidirectional=True)
        torch.testing.assert_close(both(x, times=times), slow(both)(x, times=times), **CLOSE)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_kernels_are_those_of_the_reference(bidirectional):
    """Two blocks of states, a sample that is missing, and all gradients; in Triton's interpreter without a GPU."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    layer = ws.WaveSSM(2, 5, bidirectional=bidirectional, backend="triton").to(device)
    x, times = signal(2, 70, 2).float().to(device), times_of(2, 70).to(device)
    x[0, 40, 1] = torch.nan
    results = []
    for run in (layer, slow(layer)):
        leaf = x.clone().requires_grad_()
        y = run(leaf, times=times)
        results.append((y, *torch.autograd.grad(y.square().sum(), [leaf, *run.parameters()])))
    for ours, exact in zip(*results, strict=True):
        assert (ours - exact).norm() < 2e-5 * exact.norm()
    if not bidirectional:
        _, state = layer(x[:, :30], times=times[:, :30], return_state=True)
        y = layer(x[:, 30:], times=times[:, 30:], state=state)
        torch.testing.assert_close(y, layer(x, times=times)[:, 30:], atol=1e-5, rtol=1e-5)


def test_single_precision_is_near_the_reference_over_long_gaps():
    layer, x = make("morlet", d_state=32), signal(2, 500, 3)
    times = times_of(2, 500, start=1.7e9)  # seconds since 1970
    exact = layer(x, times=times)
    y = layer.float()(x.float(), times=times)
    assert y.dtype == torch.float32
    assert (y - exact).abs().max() < 1e-5 * exact.abs().max()


def test_low_precision_is_computed_in_single():
    layer, times = make("morlet").bfloat16(), times_of(1, 40)
    x = signal(1, 40, 3).bfloat16()
    state = layer.initial_state(1, time=0.0)
    y, state = layer(x, state=state, times=times, return_state=True)
    assert (y.dtype, state.values.dtype) == (torch.bfloat16, torch.float32)
    exact = copy.deepcopy(layer).double()(x.double(), state=layer.double().initial_state(1, time=0.0), times=times)
    assert (y - exact).abs().max() < 0.01 * exact.abs().max()


def test_infinity_breaks_nothing_before_it():
    layer, x, times = make(), signal(1, 40, 3), times_of(1, 40)
    broken = x.clone()
    broken[0, 30, 1] = torch.inf
    y, clean = layer(broken, times=times), layer(x, times=times)
    torch.testing.assert_close(y[:, :30], clean[:, :30])
    torch.testing.assert_close(y[..., [0, 2]], clean[..., [0, 2]])
    assert not torch.isfinite(y[0, 30, 1])


def test_a_step_over_a_gap_is_its_decay_and_a_step_at_that_rate():
    layer, x = make(), signal(2, 40, 3)
    _, state = layer(x, return_state=True)
    x_t, timed = signal(2, 3, seed=5), layer.initial_state(2, time=3.0)._replace(values=state)
    y, _ = layer.step(x_t, timed, times=torch.full((2,), 9.5))
    decayed = layer.step(torch.full_like(x_t, torch.nan), timed, times=torch.full((2,), 9.5))[0]
    fresh = layer.step(x_t, torch.zeros_like(state), rate=6.5)[0]
    torch.testing.assert_close(y, decayed + fresh, **CLOSE)


@pytest.mark.parametrize("kind", DIAGONAL)
@given(cuts=st.lists(st.integers(1, 40), min_size=1, max_size=5), missing=st.booleans())
@settings(max_examples=8)
def test_any_split_gives_outputs_and_gradients_of_the_whole(kind, cuts, missing):
    layer, x, times = make(kind, d_state=9), signal(2, sum(cuts), 3), times_of(2, sum(cuts))
    if missing:
        x = x.masked_fill(signal(*x.shape, seed=8) > 0.3, torch.nan)
    x.requires_grad_()
    whole, last = layer(x, state=layer.initial_state(2, time=5.0), times=times, return_state=True)
    state, pieces, start = layer.initial_state(2, time=5.0), [], 0
    for size in cuts:
        t = times[:, start : start + size]
        if size == 1:
            y, state = layer.step(x[:, start], state, times=t[:, 0])
            y = y[:, None]
        else:
            y, state = layer(x[:, start : start + size], state=state, times=t, return_state=True)
        pieces.append(y)
        start += size
    split = torch.cat(pieces, 1)
    torch.testing.assert_close(split, whole, **CLOSE)
    for a, b in zip(state, last, strict=True):
        torch.testing.assert_close(a, b, **CLOSE)
    seed, parameters = signal(*whole.shape, seed=2), [x, *layer.parameters()]
    pairs = (torch.autograd.grad(y, parameters, seed) for y in (split, whole))
    for a, b in zip(*pairs, strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-6)


def test_blocks_of_bounded_memory_change_nothing(monkeypatch):
    layer, x, times = make(d_state=9, bidirectional=True), signal(2, 100, 3).requires_grad_(), times_of(2, 100)
    results = []
    for size in (2**20, 1):
        monkeypatch.setattr("wavessm.ops.irregular.BLOCK", size)
        y = layer(x, times=times)
        results.append([y, *torch.autograd.grad(y.square().sum(), [x, *layer.parameters()])])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, **CLOSE)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_gradients_are_those_of_differences(bidirectional):
    layer = make(d_model=2, d_state=5, bidirectional=bidirectional)
    x, times = signal(2, 19, 2), times_of(2, 19)
    x[0, 4, 1] = torch.nan
    names = [name for name, _ in layer.named_parameters()]
    moved = [value.detach().clone().requires_grad_() for value in layer.parameters()]

    def run(t, *values):
        return torch.func.functional_call(layer, dict(zip(names, values, strict=True)), (x,), {"times": t})

    assert torch.autograd.gradcheck(run, (times.requires_grad_(), *moved), atol=1e-6)
    x = x.nan_to_num(0.3).requires_grad_()
    assert torch.autograd.gradcheck(lambda u: layer(u, times=times), (x,), atol=1e-6)


@pytest.mark.parametrize("bidirectional", [False, True])
@given(lost=st.sets(st.integers(2, 27), max_size=20))
@settings(max_examples=15)
def test_a_missing_sample_is_a_longer_gap(bidirectional, lost):
    """Each channel by itself: as if its missing samples, not the two at an end, had never been in the sequence."""
    layer, x, times = make(d_state=8, bidirectional=bidirectional), signal(1, 30, 3), times_of(1, 30)
    x[0, list(lost), 1] = torch.nan
    kept = [k for k in range(30) if k not in lost]
    y, shorter = layer(x, times=times), layer(x[:, kept], times=times[:, kept])
    torch.testing.assert_close(y[:, kept][..., 1], shorter[..., 1], **CLOSE)
    full = layer(x.nan_to_num(0), times=times)
    torch.testing.assert_close(y[..., [0, 2]], full[..., [0, 2]], **CLOSE)


def test_over_a_missing_sample_the_state_decays():
    layer, x, times = make(d_state=8), signal(1, 10, 3), times_of(1, 10)
    x[0, 6:] = torch.nan
    y = layer(x, times=times)
    silent, seen = x.clone(), times.clone()
    silent[0, 6:] = 0.0  # zeros are held, but add nothing
    torch.testing.assert_close(y, layer(silent, times=seen), **CLOSE)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_padding_changes_nothing_in_either_direction(bidirectional):
    layer, x, times = make(bidirectional=bidirectional), signal(3, 50, 3), times_of(3, 50)
    lengths = torch.tensor([50, 1, 23])
    padded, wrong = x.clone(), times.clone()
    for row, length in enumerate(lengths):
        padded[row, length:], wrong[row, length:] = 7.0, -1.0
    y = layer(padded, times=wrong, lengths=lengths)
    for row, length in enumerate(lengths):
        alone = layer(x[row : row + 1, :length], times=times[row : row + 1, :length])
        torch.testing.assert_close(y[row : row + 1, :length], alone, **CLOSE)
        assert torch.all(y[row, length:] == 0)


BAD = {
    "DPLR": (lambda: make("legs")(signal(1, 5, 3), times=times_of(1, 5)), ws.OptionError, "structure='diagonal'"),
    "falling": (lambda: make()(signal(1, 5, 3), times=-times_of(1, 5)), ws.OptionError, "increase"),
    "twice": (lambda: make()(signal(1, 2, 3), times=torch.ones(1, 2)), ws.OptionError, "increase"),
    "NaN": (lambda: make()(signal(1, 2, 3), times=torch.tensor([[1.0, torch.nan]])), ws.OptionError, "finite"),
    "shape": (lambda: make()(signal(1, 5, 3), times=torch.arange(5)), ws.ShapeError, r"\(5,\), expected a tensor"),
    "list": (lambda: make()(signal(1, 5, 3), times=[1, 2, 3, 4, 5]), ws.ShapeError, "times is a list"),
    "before the state": (
        lambda: make()(signal(1, 2, 3), state=make().initial_state(1, time=9.0), times=torch.tensor([[8.0, 10]])),
        ws.OptionError, "after the state",
    ),
    "no times": (
        lambda: make()(signal(1, 2, 3), state=make().initial_state(1, time=9.0)), ws.OptionError, "state has a time",
    ),
    "triton": (
        lambda: make(backend="triton")(signal(1, 2, 3), times=times_of(1, 2).requires_grad_()), ws.OptionError,
        "no gradients of times",
    ),
    "sampled": (lambda: ws.sampled(make())(signal(1, 5, 3), lengths=torch.tensor([5])), ws.OptionError, "got lengths"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_times_get_one_clear_line(case):
    call, error, words = BAD[case]
    with pytest.raises(error, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)


# -- models ---------------------------------------------------------------------------------------------------------

HEADS = {
    "pool": {},
    "last, both directions": {"head": "last", "bidirectional": True},
    "sequence": {"head": "sequence"},
    "forecast": {"head": "forecast", "horizon": 4},
    "forecast with a level": {"head": "forecast", "horizon": 4, "instance_norm": "mean_std"},
    "calendar": {"head": "forecast", "horizon": 4, "encoder": "calendar", "mark_width": 2, "horizon_mask": True},
}


def model_of(head="pool", **fields):
    torch.manual_seed(0)
    size = {"d_input": 3, "d_output": 2, "d_model": 8, "n_layers": 2, "d_state": 6, "dt_min": 0.01}
    config = ws.ModelConfig(head="auto", **size).replace(**{"head": "pool"} | HEADS[head] | fields)
    return ws.SequenceModel(config).double().eval()


def call(model, x, times=None, lengths=None):
    """The model on signals, with marks and times of the horizon where it has one."""
    steps = x.shape[1] + (model.config.horizon or 0)
    marks = signal(1, 99, 2, seed=6)[:, :steps].expand(len(x), -1, -1) if model.config.mark_width else None
    return model(x, lengths, marks=marks, times=times)


def holes(batch=2, length=25, seed=4):
    """Signals in which single numbers and, in the middle, whole samples are missing."""
    x = signal(batch, length, 3).masked_fill(signal(batch, length, 3, seed=seed) > 0.8, torch.nan)
    x[:, 0], x[:, 1] = 0.5, -0.5
    x[0, 9:13], x[-1, 20] = torch.nan, torch.nan
    return x


@pytest.mark.parametrize("head", HEADS)
def test_equal_times_of_a_model_are_a_rate(head):
    model, x = model_of(head), signal(2, 30, 3)
    horizon = model.config.horizon or 0
    marks = signal(1, 30 + horizon, 2, seed=6).expand(2, -1, -1) if model.config.mark_width else None
    times = (3 + 1.7 * torch.arange(30 + horizon, dtype=torch.float64)).expand(2, -1)
    torch.testing.assert_close(model(x, marks=marks, times=times), model(x, marks=marks, rate=1.7))


@pytest.mark.parametrize("bidirectional", [False, True])
def test_a_sample_without_any_number_is_a_gap_of_the_model(bidirectional):
    model, x = model_of("sequence", missing="gap", bidirectional=bidirectional), holes(batch=1)
    kept = [k for k in range(25) if not x[0, k].isnan().all()]
    assert len(kept) == 20
    y, shorter = model(x), model(x[:, kept], times=torch.tensor([kept]))
    torch.testing.assert_close(y[:, kept], shorter)
    moved = model(x, times=times_of(1, 25))
    torch.testing.assert_close(moved[:, kept], model(x[:, kept], times=times_of(1, 25)[:, kept]))
    assert not torch.allclose(moved, y)


def test_held_values_are_those_of_pandas_and_the_encoder_reads_which_were_there():
    import pandas as pd

    x, model = holes(), model_of(missing="hold")
    filled = torch.stack([torch.tensor(pd.DataFrame(case.numpy()).ffill().to_numpy()) for case in x])
    h = model.encoder.linear(torch.cat([filled, (~x.isnan()).double()], dim=-1))
    torch.testing.assert_close(model(x), model.head(model.backbone(h)))


@pytest.mark.parametrize("missing", ["hold", "gap"])
@pytest.mark.parametrize("head", HEADS)
def test_outputs_and_gradients_are_finite_and_padding_changes_nothing(head, missing):
    model, x = model_of(head, missing=missing), holes()
    padded = x.clone()
    padded[1, 18:] = torch.nan
    y = call(model, padded, lengths=torch.tensor([25, 18]))
    alone = call(model, x[1:, :18])
    torch.testing.assert_close(y[1:, :18] if head == "sequence" else y[1:], alone)
    for gradient in torch.autograd.grad(y.square().sum(), list(model.parameters()), allow_unused=True):
        assert gradient is None or torch.isfinite(gradient).all()


@pytest.mark.parametrize("missing", ["hold", "gap"])
def test_a_forecast_follows_the_level_of_the_numbers_that_are_there(missing):
    model, x = model_of("forecast with a level", missing=missing), holes()
    torch.testing.assert_close(model(10 + 3 * x), 10 + 3 * model(x), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("timed", [False, True])
@pytest.mark.parametrize("missing", ["error", "hold", "gap"])
@pytest.mark.parametrize("head", ["pool", "sequence"])
def test_streams_with_gaps_equal_the_whole(head, missing, timed):
    model, x = model_of(head, missing=missing), holes()
    x = x.nan_to_num(0) if missing == "error" else x
    state, start, parts = model.initial_state(2), 0, []
    times = times_of(2, 25) if timed else None
    for end in (7, 8, 11, 12, 25):
        y, state = model.stream(x[:, start:end], state, times=None if times is None else times[:, start:end])
        parts, start = [*parts, y], end
        wanted = model(x[:, :end], times=None if times is None else times[:, :end])
        torch.testing.assert_close(torch.cat(parts, 1) if head == "sequence" else y, wanted)


@pytest.mark.parametrize("rate", [1.0, 2.0])
@pytest.mark.parametrize("timed", [False, True])
@pytest.mark.parametrize("missing", ["error", "hold", "gap"])
def test_a_sampled_model_streams_gaps_and_times_as_the_model(missing, timed, rate):
    model, x = model_of(missing=missing), holes()
    x, times = x.nan_to_num(0) if missing == "error" else x, times_of(2, 25) if timed else None
    stream = ws.sampled(model, rate)
    state, start = stream.initial_state(2), 0
    for end in (7, 8, 11, 25):
        y, state = stream.stream(x[:, start:end], state, times=None if times is None else times[:, start:end])
        start = end
    torch.testing.assert_close(y, model(x, rate=rate, times=times))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    again, _ = stream.stream(x, stream.initial_state(2), times=times)
    torch.testing.assert_close(again, y, msg="a copy does not follow later training")


def test_a_model_with_gaps_learns_and_is_kept(tmp_path):
    model, x = model_of(missing="gap").train(), holes()
    before = model(x).square().mean()
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(10):
        optimiser.zero_grad()
        model(x).square().mean().backward()
        optimiser.step()
    assert model(x).square().mean() < before
    loaded = ws.SequenceModel.from_pretrained(model.float().save_pretrained(tmp_path))
    torch.testing.assert_close(loaded(x.float()), model.eval()(x.float()))


BAD_MODELS = {
    "NaN": (lambda: model_of()(holes()), ws.NotFiniteError, "missing='hold' or 'gap'"),
    "NaN in a stream": (
        lambda: model_of().stream(holes(), model_of().initial_state(2)), ws.NotFiniteError, "x has NaN",
    ),
    "gap of S4": (lambda: model_of(missing="gap", family="legs"), ws.OptionError, "use missing='hold'"),
    "tokens": (
        lambda: ws.ModelConfig(encoder="embedding", vocabulary=3, missing="hold"), ws.OptionError, "missing goes with",
    ),
    "times of S4": (lambda: model_of(family="legs")(signal(2, 25, 3), times=times_of(2, 25)), ws.OptionError, "DPLR"),
    "times without the horizon": (
        lambda: model_of("forecast")(signal(2, 25, 3), times=times_of(2, 25)), ws.ShapeError, r"\(2, 29\)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_MODELS)
def test_what_a_model_cannot_do_gets_one_clear_line(case):
    bad, error, words = BAD_MODELS[case]
    with pytest.raises(error, match=words) as caught:
        bad()
    assert "\n" not in str(caught.value)

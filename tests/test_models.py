"""Models: every encoder, backbone and head together, whole and as streams, and what they refuse."""

import copy
import dataclasses
import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

import wavessm as ws
from contracts import check_refused

HEADS = {
    "pool": {},
    "last": {"head": "last"},
    "sequence": {"head": "sequence"},
    "forecast": {"head": "forecast", "horizon": 4, "d_output": 2},
    "forecast last": {"head": "forecast", "horizon": 4, "d_output": 2, "instance_norm": "last"},
    "forecast mean_std": {"head": "forecast", "horizon": 4, "d_output": 2, "instance_norm": "mean_std"},
    "calendar": {
        "head": "forecast", "horizon": 4, "encoder": "calendar", "mark_sizes": (5, 3), "horizon_mask": True,
        "instance_norm": "mean",
    },
    "direct": {
        "head": "forecast", "horizon": 4, "encoder": "calendar", "mark_width": 2, "d_output": 2, "direct": True,
        "context": 7, "instance_norm": "last",
    },
    "real marks": {"head": "forecast", "horizon": 4, "encoder": "calendar", "mark_width": 2},
    "marked classes": {"encoder": "calendar", "mark_width": 2},
    "pair": {"head": "pair"},
    "token pair": {"head": "pair", "encoder": "embedding", "vocabulary": 7},
    "tokens": {"encoder": "embedding", "vocabulary": 7},
}  # fmt: skip
STREAMED = ["pool", "last", "sequence", "tokens"]
NORMS = [("layer", True), ("layer", False), ("batch", True), ("batch", False), ("none", True)]
SMALL = {"d_input": 3, "d_output": 3, "d_model": 8, "n_layers": 2, "d_state": 6, "dt_min": 0.01}


def small(**fields):
    """A small config; of `SMALL`, only what the fields leave an effect."""
    return ws.ModelConfig(head="auto", **SMALL).replace(**{"head": "pool"} | fields)


def make(kind="pool", seed=0, **fields):
    torch.manual_seed(seed)
    model = ws.SequenceModel(small(**HEADS[kind] | fields)).double()
    for weight in [] if model.direct is None else model.direct.parameters():
        torch.nn.init.normal_(weight)  # it begins at zero, where it could do no wrong
    return model


def inputs(model, batch=3, length=20, seed=1):
    """x and marks, marks of the horizon included."""
    config, draw = model.config, torch.Generator().manual_seed(seed)
    shape = (batch, 2, length) if config.head == "pair" else (batch, length)
    if config.encoder == "embedding":
        return torch.randint(config.vocabulary, shape, generator=draw), None
    x = torch.randn(*shape, config.d_input, generator=draw, dtype=torch.float64)
    if config.encoder != "calendar":
        return x, None
    steps = (batch, length + (config.horizon or 0))
    if config.mark_sizes:
        return x, torch.stack([torch.randint(size, steps, generator=draw) for size in config.mark_sizes], dim=-1)
    return x, torch.rand(*steps, config.mark_width, generator=draw, dtype=torch.float64)


def gather_statistics(model):
    """Batch norm with statistics that are not those of the start."""
    model.train()
    x, marks = inputs(model, batch=6, seed=9)
    for _ in range(3):
        model(x * 3 + 1 if x.is_floating_point() else x, marks=marks)
    return model.eval()


# -- what a model computes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prenorm", [True, False])
def test_a_model_is_its_parts_one_after_another(prenorm):
    model = make("sequence", prenorm=prenorm)
    x, _ = inputs(model)
    h = F.linear(x, model.encoder.linear.weight, model.encoder.linear.bias)
    for block in model.backbone.blocks:
        h = block(h)
    if prenorm:
        h = F.layer_norm(h, (8,), model.backbone.norm.norm.weight, model.backbone.norm.norm.bias)
    expected = h @ model.head.decoder.weight.T + model.head.decoder.bias
    torch.testing.assert_close(model(x), expected)
    for kind, features in (("pool", h.mean(1)), ("last", h[:, -1])):
        other = make(kind, prenorm=prenorm)
        other.load_state_dict(model.state_dict())
        torch.testing.assert_close(other(x), features @ model.head.decoder.weight.T + model.head.decoder.bias)


def test_a_forecast_reads_zeros_over_the_horizon_and_the_calendar():
    model = make("calendar", instance_norm="none")
    x, marks = inputs(model)
    encoder = model.encoder
    known = torch.cat([marks[:, :20], torch.zeros(3, 4, 2, dtype=torch.long)], dim=1)
    for given_marks, used in ((marks, marks), (marks[:, :20], known)):
        h = encoder.linear(F.pad(x, (0, 0, 0, 4)))
        h = h + encoder.tables[0].weight[used[..., 0]] + encoder.tables[1].weight[used[..., 1]]
        h = h + torch.cat([encoder.horizon.weight[:1].expand(20, 8), encoder.horizon.weight[1:].expand(4, 8)])
        expected = model.head.decoder(model.backbone(h)[:, 20:])
        torch.testing.assert_close(model(x, marks=given_marks), expected)


def test_a_pair_is_compared_by_both_their_difference_and_their_product():
    model = make("pair")
    x, _ = inputs(model)
    a, b = (model.backbone(model.encoder.linear(x[:, i])).mean(1) for i in range(2))
    expected = model.head.decoder(F.gelu(model.head.compare(torch.cat([a, b, a - b, a * b], dim=1))))
    torch.testing.assert_close(model(x), expected)


@pytest.mark.parametrize("kind", ["none", "last", "mean", "mean_std"])
def test_instance_norm_moves_and_scales_with_the_series(kind):
    """A forecast of the shifted (and scaled) series is the shifted (and scaled) forecast."""
    model = make("forecast", d_output=2, instance_norm=kind)
    x, _ = inputs(model)
    y, shift, factor = model(x), torch.tensor([10.0, -20.0, 30.0]), torch.tensor([2.0, 5.0, 0.5])
    follows = torch.allclose(model(x + shift), y + shift[1:], atol=1e-6)
    scales = torch.allclose(model(x * factor), y * factor[1:], atol=1e-6)
    assert (follows, scales) == (kind != "none", kind == "mean_std"), "the targets are the last columns"


@pytest.mark.parametrize("kind", ["pool", "forecast mean_std"])
def test_inputs_of_double_precision_are_read_at_the_models_own(kind):
    model = make(kind).float()
    x, _ = inputs(model)
    y = model(x)
    assert y.dtype == torch.float32
    assert torch.equal(y, model(x.float()))


def test_instance_norm_takes_a_constant_series_and_divides_by_the_population_deviation():
    model = make("forecast", instance_norm="mean_std")
    constant = torch.full((1, 9, 3), 5.0, dtype=torch.float64, requires_grad=True)
    y = model(constant)
    y.sum().backward()
    assert torch.isfinite(y).all()
    assert (y - 5).abs().max() < 1e-3, "of the order of the floor, 1e-5"
    assert torch.isfinite(constant.grad).all()
    scaled, centre, scale = model.scale(torch.tensor([[[1.0], [5.0]]]))
    assert scaled.flatten().tolist() == [-1.0, 1.0]
    assert (centre.item(), scale.item()) == (3.0, 2.0)


def test_causal_models_do_not_see_the_future_and_bidirectional_ones_do():
    for bidirectional in (False, True):
        model = make("sequence", bidirectional=bidirectional).eval()
        x, _ = inputs(model)
        changed = x.clone()
        changed[:, 12] += 1.0
        moved = (model(x) - model(changed)).abs().amax((0, 2)) > 1e-12
        assert moved[12:].all()
        assert bool(moved[:12].all()) == bidirectional
        assert bool(moved[:12].any()) == bidirectional


def test_rate_hears_the_same_signal_at_another_sampling():
    model = make("pool")
    with torch.no_grad():
        for block in model.backbone.blocks:  # the direct path and the projection know no rate
            block.layer.D.zero_()
    x, _ = inputs(model, length=200)
    smooth = F.avg_pool1d(x.transpose(1, 2), 40, stride=1).transpose(1, 2)
    full, half = model(smooth), model(smooth[:, ::2], rate=2.0)
    assert (half - full).abs().max() < 0.2 * (model(smooth[:, ::2]) - full).abs().max()


# -- padding --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("kind", HEADS)
def test_padding_changes_nothing(kind, bidirectional):
    """In evaluation: as if each sequence came alone."""
    model = gather_statistics(make(kind, bidirectional=bidirectional, norm="batch"))
    x, marks = inputs(model)
    pair = model.config.head == "pair"
    lengths = torch.tensor([[20, 4], [1, 13], [20, 20]] if pair else [20, 1, 13])
    beyond = torch.arange(20) >= lengths[..., None]
    padded = x.masked_fill(beyond if x.dim() == lengths.dim() + 1 else beyond[..., None], 5)
    with torch.no_grad():
        y = model(padded, lengths=lengths, marks=marks)
        for row, length in enumerate(lengths.tolist()):
            if pair:
                a, b = (model.encoder(x[row, i, :n][None], None, None) for i, n in enumerate(length))
                a, b = (model.backbone(h).mean(1) for h in (a, b))
                alone = model.head(torch.stack([a, b], dim=1).flatten(0, 1)[:, None])
            else:
                seen = None if marks is None else marks[row : row + 1, : length + (model.config.horizon or 0)]
                alone = model(x[row : row + 1, :length], marks=seen)
            ours = y[row : row + 1, :length] if model.config.head == "sequence" else y[row : row + 1]
            torch.testing.assert_close(ours, alone)
            if model.config.head == "sequence":
                assert torch.all(y[row, length:] == 0)


def test_marks_that_end_with_the_context_are_zero_over_every_horizon():
    model = make("calendar").eval()
    x, marks = inputs(model)
    lengths = torch.tensor([20, 7, 12])
    y = model(x, lengths=lengths, marks=marks[:, :20])
    for row, length in enumerate(lengths.tolist()):
        alone = model(x[row : row + 1, :length], marks=marks[row : row + 1, :length])
        torch.testing.assert_close(y[row : row + 1], alone)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("kind", ["pool", "last", "sequence", "forecast mean_std", "pair"])
def test_training_never_sees_padding(kind, bidirectional):
    """Outputs, gradients and running statistics, whatever stands in the padding and however much there is of it."""
    model = make(kind, bidirectional=bidirectional, norm="batch")
    x, _ = inputs(model)
    lengths = torch.tensor([[20, 4], [2, 13], [20, 20]] if kind == "pair" else [20, 2, 13])
    junk = F.pad(x, (0, 0, 0, 11)).masked_fill((torch.arange(31) >= lengths[..., None])[..., None], torch.nan)
    twin = copy.deepcopy(model)
    y, same = model(x, lengths=lengths), twin(junk, lengths=lengths)
    torch.testing.assert_close(same[:, :20] if kind == "sequence" else same, y)
    y.square().sum().backward()
    same.square().sum().backward()
    for (name, a), b in zip(model.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, msg=lambda text, name=name: f"{name}: {text}")
    for a, b in zip(model.buffers(), twin.buffers(), strict=True):
        torch.testing.assert_close(a, b)


# -- streams --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("norm", "prenorm"), NORMS)
@pytest.mark.parametrize("kind", STREAMED)
def test_chunks_and_steps_equal_the_whole(kind, norm, prenorm):
    model = gather_statistics(make(kind, norm=norm, prenorm=prenorm, dropout=0.3))
    x, _ = inputs(model, batch=2)
    state, start, sequence = model.initial_state(2), 0, []
    with torch.no_grad():
        for end in (9, 10, 11, 17, 18, 20):
            if end - start == 1:
                y, state = model.step(x[:, start], state)
                y = y[:, None] if kind == "sequence" else y
            else:
                y, state = model.stream(x[:, start:end], state)
            sequence.append(y)
            if kind != "sequence":
                torch.testing.assert_close(y, model(x[:, :end]))
            start = end
        if kind == "sequence":
            torch.testing.assert_close(torch.cat(sequence, 1), model(x))


@pytest.mark.parametrize("family", ["morlet", "legs"])
@given(cuts=st.lists(st.integers(1, 70), min_size=1, max_size=4))
def test_any_split_gives_outputs_and_gradients_of_the_whole(family, cuts):
    model = make("pool", family=family)
    x, _ = inputs(model, batch=2, length=sum(cuts))
    state = model.initial_state(2)
    for chunk in x.split(cuts, dim=1):
        y, state = model.stream(chunk, state, rate=1.5)
    whole, parameters = model(x, rate=1.5), list(model.parameters())
    torch.testing.assert_close(y, whole)
    for a, b in zip(
        torch.autograd.grad(y.square().sum(), parameters),
        torch.autograd.grad(whole.square().sum(), parameters),
        strict=True,
    ):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-6)


# -- configs, presets, saving ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ws.presets())
def test_every_preset_trains_a_step(name):
    torch.manual_seed(0)
    model = ws.create_model(name, d_model=8, n_layers=2, dropout=0.0, d_state=8).double()
    x, marks = inputs(model)
    y = model(x, marks=marks)
    shape = {"forecast": (3, 24, 1)}.get(model.config.head, (3, model.config.d_output))
    assert y.shape == shape
    target = inputs(make(d_input=y.shape[-1]), length=24)[0].reshape(-1)[: y.numel()].reshape(shape)
    (y - target).square().mean().backward()
    for parameter, value in model.named_parameters():
        assert value.grad is not None, parameter
        assert torch.isfinite(value.grad).all(), parameter
        assert value.grad.any(), f"{parameter}: the gradient is zero"


def test_presets_follow_the_papers_table():
    def row(name):
        c = ws.preset_config(name)
        return c.n_layers, c.d_model, c.d_state, c.norm, c.prenorm, c.dropout, c.dt_min, c.dt_max, c.bidirectional

    assert row("wavessm-listops") == (6, 256, 64, "batch", False, 0.0, 1e-3, 0.1, True)
    assert row("wavessm-text") == row("wavessm-retrieval") == (6, 256, 64, "batch", True, 0.0, 1e-3, 0.1, True)
    assert row("wavessm-image") == (6, 512, 64, "layer", False, 0.1, 1e-3, 0.1, True)
    assert row("wavessm-pathfinder") == row("wavessm-pathx") == (6, 256, 128, "batch", True, 0.0, 1e-3, 0.1, True)
    assert row("wavessm-speech") == (6, 128, 64, "batch", True, 0.0, 1e-3, 0.1, True)
    assert row("wavessm-forecast") == (2, 128, 64, "layer", True, 0.25, 1e-3, 0.1, False)
    assert row("wavessm-ptbxl") == (6, 256, 64, "batch", True, 0.1, 1e-3, 0.1, True)
    assert row("wavessm-window-copy")[:3] == (2, 128, 64)


def test_the_same_model_is_the_s4_baseline_by_family():
    ours, legs = (ws.create_model("wavessm-small", family=family) for family in ("morlet", "legs"))
    assert legs.backbone.blocks[0].layer.structure == "dplr"
    modes = (".P", ".B", ".C", ".frequency", ".log_decay", "layer.weight")
    a, b = (
        {name: value.shape for name, value in model.state_dict().items() if not name.endswith(modes)}
        for model in (ours, legs)
    )
    assert a == b, "apart from the modes nothing differs"
    assert len(a) > 10
    x = inputs(ours)[0].float()
    assert ours(x).shape == legs(x).shape


@pytest.mark.parametrize("kind", HEADS)
def test_configs_go_to_json_and_back(kind):
    config = make(kind).config
    assert ws.ModelConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert len({config, dataclasses.replace(config)}) == 1, "equal configs hash alike"


def test_one_seed_gives_one_model():
    a, b = make(dropout=0.2), make(dropout=0.2)
    x, _ = inputs(a)
    outputs = []
    for model in (a, b):
        torch.manual_seed(3)
        outputs.append(model(x))
    assert torch.equal(*outputs)
    first, second = (block.state_dict() for block in a.backbone.blocks)
    weights = [name for name in first if first[name].dim() > 1 and not name.endswith((".B", ".frequency", "_decay"))]
    assert weights
    assert not any(torch.equal(first[name], second[name]) for name in weights), "layers start differently"


# -- what training needs of a model ---------------------------------------------------------------------------------


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("kind", HEADS)
def test_forward_looks_at_no_value_off_the_cpu(kind, padded, monkeypatch):
    """The meta device has shapes and no values: any look at one raises, as it would stall a GPU.

    `WaveSSM` does not run on that device and is left out.
    """
    model = make(kind, bidirectional=True)
    x, marks = inputs(model)
    shape = model(x, marks=marks).shape
    monkeypatch.setattr(ws.WaveSSM, "forward", lambda self, x, **options: x)
    model = model.to("meta")
    lengths = torch.full(x.shape[: 2 if model.config.head == "pair" else 1], 5, device="meta") if padded else None
    y = model(x.to("meta"), lengths=lengths, marks=None if marks is None else marks.to("meta"))
    assert y.shape == shape


def test_compiles_without_graph_breaks():
    model = make("calendar")  # whose tables look up tokens too
    x, marks = inputs(model)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, marks=marks), model(x, marks=marks))


# -- bad input ------------------------------------------------------------------------------------------------------


def call(kind="pool", batch=2, **fields):
    """A model called on inputs of which some are replaced."""
    replaced = {name: fields.pop(name) for name in ("x", "marks", "lengths", "rate") if name in fields}
    model = make(kind, **fields)
    x, marks = inputs(model, batch=batch)
    return model(**({"x": x, "marks": marks} | replaced))


def stream(kind="pool", **fields):
    model = make(kind, **fields)
    return model.stream(inputs(model)[0], None)


BAD = {
    "rank": (lambda: call(x=torch.zeros(4, 3)), ws.ShapeError, r"\(batch, length, d_input\) = \(≥ 1, ≥ 1, 3\)"),
    "width": (lambda: call(x=torch.zeros(2, 4, 5)), ws.ShapeError, r"\(2, 4, 5\), expected"),
    "no samples": (lambda: call(x=torch.zeros(2, 0, 3)), ws.ShapeError, "≥ 1"),
    "a list": (lambda: call(x=[[1.0]]), ws.ShapeError, "x is a list"),
    "counts as a signal": (lambda: call(x=torch.ones(2, 4, 3).long()), ws.OptionError, r"x\.float\(\)"),
    "token rank": (lambda: call("tokens", x=torch.ones(2, 4, 1).long()), ws.ShapeError, "expected tokens"),
    "token type": (lambda: call("tokens", x=torch.ones(2, 4)), ws.OptionError, "tokens are torch.float32"),
    "token too large": (lambda: call("tokens", x=torch.tensor([[1, 7]])), ws.OptionError, "1 to 7, expected 0 to 6"),
    "token below zero": (lambda: call("tokens", x=torch.tensor([[1, -1]])), ws.OptionError, "run from -1"),
    "no marks": (lambda: call("calendar", marks=None), ws.ShapeError, "marks is a NoneType"),
    "mark width": (lambda: call("calendar", marks=torch.ones(2, 24, 3).long()), ws.ShapeError, r"\(2, 20 or 24, 2\)"),
    "mark length": (lambda: call("calendar", marks=torch.ones(2, 23, 2).long()), ws.ShapeError, r"\(2, 20 or 24, 2\)"),
    "mark range": (lambda: call("calendar", marks=torch.full((2, 24, 2), 3)), ws.OptionError, "column 1 run from 3"),
    "mark type": (lambda: call("calendar", marks=torch.ones(2, 24, 2)), ws.OptionError, "expected whole numbers"),
    "length zero": (lambda: call(lengths=torch.tensor([0, 5])), ws.ShapeError, "from 0 to 5, expected 2 whole"),
    "length too long": (lambda: call("forecast", lengths=torch.tensor([3, 22])), ws.ShapeError, "to 22, .* to 20"),
    "lengths shape": (lambda: call(lengths=torch.tensor([5])), ws.ShapeError, r"shape \(1,\)"),
    "lengths type": (lambda: call(lengths=torch.ones(2)), ws.ShapeError, "torch.float32"),
    "true lengths": (lambda: call(lengths=torch.tensor([True, True])), ws.ShapeError, "torch.bool"),
    "complex lengths": (lambda: call(lengths=torch.tensor([1j, 2])), ws.ShapeError, "torch.complex64"),
    "a stream in training": (lambda: stream(norm="batch"), ws.OptionError, r"stream: batch norm .* model.eval\(\)"),
    "lengths as a list": (lambda: call(lengths=[5, 5]), ws.ShapeError, "lengths is a list"),
    "lengths of a pair": (lambda: call("pair", lengths=torch.tensor([5, 5])), ws.ShapeError, r"expected \(batch, 2\)"),
    "no pair": (lambda: call("pair", x=torch.zeros(2, 4, 3)), ws.ShapeError, r"\(batch, 2, length, d_input\)"),
    "bad rate": (lambda: call(rate=-1.0), ws.OptionError, "rate is -1.0"),
    "preset": (lambda: ws.create_model("wavesm-ptbxl"), ws.UnknownNameError, "did you mean 'wavessm-ptbxl'"),
    "override": (lambda: ws.create_model("wavessm-small", d_sate=8), ws.UnknownNameError, "did you mean 'd_state'"),
    "field": (lambda: ws.ModelConfig.from_dict({"familly": 1}), ws.UnknownNameError, "did you mean 'family'"),
    "no config": (lambda: ws.SequenceModel({"d_input": 1}), ws.OptionError, "config is a dict"),
    "family": (lambda: make(family="morlt"), ws.UnknownNameError, "did you mean 'morlet'"),
    "head": (lambda: make(head="pol"), ws.UnknownNameError, "did you mean 'pool'"),
    "d_model": (lambda: make(d_model=0), ws.OptionError, "d_model is 0"),
    "layers": (lambda: make(n_layers=2.5), ws.OptionError, "n_layers is 2.5"),
    "switch": (lambda: make(bidirectional="yes"), ws.OptionError, "bidirectional is 'yes'"),
    "dropout": (lambda: make(dropout=1.0), ws.OptionError, "dropout is 1.0"),
    "steps": (lambda: make(dt_min="small"), ws.OptionError, "dt_min is 'small'"),
    "horizon": (lambda: make(head="forecast"), ws.OptionError, "needs horizon"),
    "needless horizon": (lambda: make(horizon=3), ws.OptionError, "goes with head='forecast'"),
    "vocabulary": (lambda: make(encoder="embedding"), ws.OptionError, "vocabulary is None"),
    "needless vocabulary": (lambda: make(vocabulary=3), ws.OptionError, "goes with encoder='embedding'"),
    "no mark sizes": (lambda: make(encoder="calendar"), ws.OptionError, "give one of them"),
    "mark sizes": (lambda: make("calendar", mark_sizes=7), ws.OptionError, "mark_sizes is 7"),
    "horizon mask": (lambda: make(horizon_mask=True), ws.OptionError, "horizon_mask goes with"),
    "forecast of tokens": (lambda: make("tokens", head="forecast", horizon=2), ws.OptionError, "predicts numbers"),
    "marked pair": (lambda: make("marked classes", head="pair"), ws.OptionError, "takes no marks"),
    "instance norm": (lambda: make(instance_norm="last"), ws.OptionError, "goes with head='forecast'"),
    "too many outputs": (lambda: make("forecast last", d_output=4), ws.OptionError, "last d_output columns"),
    "streamed both ways": (lambda: stream(bidirectional=True), ws.OptionError, "stream: a bidirectional model"),
    "streamed pair": (lambda: make("pair").initial_state(1), ws.OptionError, "initial_state: head='pair' with"),
    "streamed forecast": (lambda: stream("forecast"), ws.OptionError, "stream: head='forecast' with .* whole"),
    "no state": (lambda: stream(), ws.ShapeError, r"state has 0 streams.* model.initial_state\(batch=3\)"),
    "state of others": (
        lambda: make().step(torch.zeros(2, 3), make().initial_state(1)), ws.ShapeError, "state has 1 streams",
    ),
    "infinity in a stream": (
        lambda: make().stream(torch.full((1, 2, 3), -torch.inf), make().initial_state(1)), ws.NotFiniteError,
        "has infinity",
    ),
    "no streams": (lambda: make().initial_state(0), ws.OptionError, "batch is 0"),
    "training step": (
        lambda: make(norm="batch").step(torch.zeros(1, 3), make().initial_state(1)), ws.OptionError, "eval",
    ),
    "a number as a step": (lambda: make().step(1.0, make().initial_state(1)), ws.ShapeError, "x is a float"),
    "step width": (lambda: make().step(torch.zeros(1, 4), make().initial_state(1)), ws.ShapeError, "d_input"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input_gets_one_clear_line(case):
    check_refused(*BAD[case])


@pytest.mark.parametrize("horizon_mask", [True, False])
@pytest.mark.parametrize("marks", [{"mark_sizes": (5, 3)}, {"mark_width": 2}])
def test_a_calendar_is_the_sum_of_what_its_parts_say(marks, horizon_mask):
    fields = {"head": "forecast", "horizon": 4, "encoder": "calendar", "d_input": 2, "horizon_mask": horizon_mask}
    encoder = ws.SequenceModel(small(**fields | marks)).encoder
    torch.manual_seed(0)
    x, ahead = torch.randn(3, 7, 2), torch.arange(7)[None, :, None] >= 5
    if "mark_sizes" in marks:
        when = torch.stack([torch.randint(size, (3, 7)) for size in marks["mark_sizes"]], -1)
        said = sum(table(when[..., column]) for column, table in enumerate(encoder.tables))
    else:
        when = torch.randn(3, 7, 2)
        said = encoder.marks(when)
    horizon = encoder.horizon((ahead & horizon_mask).long()[..., 0])
    torch.testing.assert_close(encoder(x, when, ahead), encoder.linear(x) + said + horizon)


@pytest.mark.parametrize(("norm", "prenorm"), NORMS)
@pytest.mark.parametrize("kind", ["last", "forecast", "calendar"])
def test_steps_that_nobody_reads_are_left_out_unnoticed(kind, norm, prenorm, monkeypatch):
    model = make(kind, norm=norm, prenorm=prenorm)
    x, marks = inputs(model)
    results = []
    whole = type(model.backbone).forward
    for forward in (whole, lambda self, h, lengths=None, rate=1.0, *_: whole(self, h, lengths, rate)):
        monkeypatch.setattr(type(model.backbone), "forward", forward)
        y = model(x, marks=marks)
        results.append([y, *torch.autograd.grad(y.square().sum(), list(model.parameters()), allow_unused=True)])
    for a, b in zip(*results, strict=True):
        assert (a is None and b is None) or torch.allclose(a, b, atol=1e-10)


def test_a_stream_in_low_precision_counts_on():
    model = ws.SequenceModel(ws.ModelConfig(d_model=4, n_layers=1, d_state=4)).bfloat16().eval()
    x = torch.randn(1, 600, 1).bfloat16()
    state = model.initial_state(1)
    with torch.no_grad():
        for chunk in x.split(2, dim=1):
            y, state = model.stream(chunk, state)
        assert float(state.pooled.steps) == 600
        torch.testing.assert_close(y, model(x), atol=0.01, rtol=0.01)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int32])
def test_lengths_of_any_type_reach_beyond_their_range(dtype):
    """A context of 100 and a horizon of 60 end at 160, which int8 has not."""
    model = ws.SequenceModel(ws.ModelConfig(d_model=4, n_layers=1, d_state=4, head="forecast", horizon=60)).eval()
    x = torch.randn(2, 100, 1)
    torch.testing.assert_close(model(x, torch.tensor([40, 100], dtype=dtype)), model(x, torch.tensor([40, 100])))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.uint16, torch.int32])
def test_tokens_may_be_whole_numbers_of_any_type(dtype):
    model = ws.SequenceModel(
        ws.ModelConfig(encoder="embedding", vocabulary=200, d_model=4, n_layers=1, d_state=4)
    ).eval()
    tokens = torch.tensor([[3, 199, 7]])
    torch.testing.assert_close(model(tokens.to(dtype)), model(tokens))
    with pytest.raises(ws.OptionError, match="run from 3 to 201"):
        model(torch.tensor([[3, 201]]).to(dtype))


def test_numbers_of_numpy_become_plain_ones():
    fields = {"d_state": np.int64(4), "n_ssm": np.int32(2), "d_model": np.int64(4), "dropout": np.float32(0.5)}
    fields |= {"dt_min": np.float32(0.5), "dt_max": np.float64(1.0), "dt_min_first": np.float32(0.25)}
    configs = [
        ws.ModelConfig(encoder="embedding", vocabulary=np.int64(6), **fields),
        ws.ModelConfig(head="forecast", horizon=np.int64(3), direct=True, context=np.int64(5), **fields),
        ws.ModelConfig(encoder="calendar", mark_width=np.int64(2), **fields),
    ]
    for config in configs:
        assert ws.ModelConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
        assert not any(isinstance(value, np.generic) for value in config.to_dict().values())
    assert (configs[0].dropout, configs[0].dt_min, configs[0].dt_min_first) == (0.5, 0.5, 0.25)


# -- no option is swallowed -----------------------------------------------------------------------------------------

OTHER_VALUES = {
    "d_input": 2, "d_output": 2, "d_model": 6, "n_layers": 3, "d_state": 8, "family": "db6", "measure": "translated",
    "structure": "dplr", "bidirectional": True, "norm": "none", "prenorm": False, "dropout": 0.2,
    "missing": "hold", "encoder": "calendar", "vocabulary": 9, "mark_sizes": (3,), "mark_width": 3,
    "horizon_mask": True, "head": "last",
    "horizon": 5, "instance_norm": "last", "direct": True, "context": 5,
    "dt_min": 0.02, "dt_max": 0.2, "dt_min_first": 0.03, "dt_max_first": 0.3, "n_ssm": 2, "b_init": "slow-modes",
    "backend": "torch", "precision": "bf16",
}  # fmt: skip
BASES = {
    "signals": {},
    "tokens": {"encoder": "embedding", "vocabulary": 7, "d_input": 1},
    "legs": {"family": "legs"},
    "s4d": {"family": "s4d-lin"},
    "no norm": {"norm": "none"},
    "torch": {"backend": "torch"},
    "forecast": {"head": "forecast", "horizon": 4},
    "calendar": {"head": "forecast", "horizon": 4, "encoder": "calendar", "mark_width": 2},
    "tables": {"head": "forecast", "horizon": 4, "encoder": "calendar", "mark_sizes": (5, 3)},
    "direct": {"head": "forecast", "horizon": 4, "direct": True, "context": 7},
}


def contents(config):
    """All that a config decides about a model: weights, outputs in training, backends."""
    torch.manual_seed(0)
    model = ws.SequenceModel(config).train()
    x, marks = inputs(model, batch=2, length=9)
    engines = [str(module.engine) for module in model.modules() if hasattr(module, "engine")]
    outputs = model(x if config.encoder == "embedding" else x.float(), marks=marks)
    return engines, outputs.tolist(), {name: value.tolist() for name, value in model.state_dict().items()}


def test_other_values_name_every_field():
    assert list(OTHER_VALUES) == [field.name for field in dataclasses.fields(ws.ModelConfig)]


@pytest.mark.parametrize("base", BASES)
def test_every_field_changes_a_model_or_is_refused(base):
    config = small(**{"d_output": 1} | BASES[base])
    before = contents(config)
    for name, value in OTHER_VALUES.items():
        try:
            changed = dataclasses.replace(config, **{name: value})
            after = contents(changed)
        except ws.WaveSSMError:
            continue
        stated = value == getattr(config, name) or (base, name) == ("legs", "structure")  # DPLR it is
        assert stated or after != before, f"{name}={value!r} has no effect"


def test_fields_without_effect_are_dropped_from_what_is_inherited_and_refused_where_given():
    with pytest.raises(ws.OptionError, match=r"b_init goes with structure='diagonal' of a frame and has no effect"):
        ws.create_model("wavessm-small", family="legs", b_init="slow-modes")
    assert small(b_init="slow-modes").replace(family="legs").b_init is None
    assert small(measure="translated").replace(family="s4d-lin").measure is None


def test_configs_of_older_files_lose_what_had_no_effect():
    """Revision 50cf3e6 wrote every field, swallowed or not; `drive` marks its files."""
    old = ws.ModelConfig().to_dict() | {"drive": "even"}
    del old["b_init"]
    old |= {"backbone": "wavessm", "n_heads": 4}
    with pytest.raises(ws.OptionError, match="'lstm' is no longer part"):
        ws.ModelConfig.from_dict(old | {"backbone": "lstm"})
    legs = ws.ModelConfig.from_dict(old | {"family": "legs", "measure": "translated", "drive": "slow"})
    assert legs == ws.ModelConfig(family="legs")
    with pytest.raises(ws.OptionError, match="measure goes with"):
        ws.ModelConfig.from_dict({"family": "legs", "measure": "translated"})


def test_the_config_knows_the_measures_of_closed_forms():
    from wavessm.nn.config import _OWN_MEASURE
    from wavessm.operators import CLOSED_FORMS

    assert {name: measure for name, (_, measure, _) in CLOSED_FORMS.items()} == _OWN_MEASURE

"""Layers sampled once: equal to the layer they came from, in chunks and steps of any size, for as long as one likes."""

import functools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import wavessm as ws
from contracts import check_refused
from test_layer import KINDS, make, signal
from wavessm.features.bank import FeatureConfig
from wavessm.features.model import FeatureModel


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("d_state", [9, 16])
def test_chunks_and_steps_equal_the_layer(kind, d_state):
    layer, x = make(kind, d_state=d_state), signal(2, 130, 3)
    stream = ws.sampled(layer)
    whole, last = layer(x, return_state=True)
    state, pieces, start = stream.initial_state(2), [], 0
    for size in (1, 7, 64, 33, 25):
        y, state = stream(x[:, start : start + size], state=state, return_state=True)
        pieces.append(y)
        start += size
    torch.testing.assert_close(torch.cat(pieces, 1), whole, atol=1e-9, rtol=1e-9)
    torch.testing.assert_close(state, last, atol=1e-9, rtol=1e-9)
    state = stream.initial_state(2)
    steps = []
    for x_t in x.unbind(1):
        y_t, state = stream.step(x_t, state)
        steps.append(y_t)
    torch.testing.assert_close(torch.stack(steps, 1), whole, atol=1e-9, rtol=1e-9)
    torch.testing.assert_close(state, last, atol=1e-9, rtol=1e-9)


@given(st.floats(0.3, 3.0))
def test_a_rate_is_chosen_once(rate):
    layer, x = make(), signal(1, 40, 3)
    torch.testing.assert_close(ws.sampled(layer, rate)(x), layer(x, rate=rate), atol=1e-9, rtol=1e-9)


def test_blocks_keep_everything_but_their_layers():
    torch.manual_seed(0)
    model = torch.nn.Sequential(ws.ResidualBlock(make(d_model=4), norm="batch"), ws.ResidualBlock(make(d_model=4)))
    model = model.double()
    model(signal(3, 20, 4))
    x = signal(2, 90, 4)
    frozen = ws.sampled(model)
    assert isinstance(frozen[0].layer, ws.SampledLayer)
    assert isinstance(model[0].layer, ws.WaveSSM)
    assert not any(parameter.requires_grad for parameter in frozen.parameters())
    torch.testing.assert_close(frozen(x), model.eval()(x), atol=1e-9, rtol=1e-9)
    with torch.no_grad():
        model[0].layer.C.mul_(2)
    assert not torch.allclose(frozen(x), model(x)), "a copy does not follow later training"


@pytest.mark.parametrize("kind", ["morlet", "legs"])
def test_no_drift_over_a_million_samples(kind):
    torch.manual_seed(0)
    layer = ws.WaveSSM(2, 16, **KINDS[kind])
    x = torch.randn(1, 1_000_000, 2, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        exact = layer.double()(x.double())
    stream = ws.sampled(layer.float())
    state, pieces = stream.initial_state(1), []
    for chunk in x.split(4000, dim=1):
        y, state = stream(chunk, state=state, return_state=True)
        pieces.append(y)
    error = (torch.cat(pieces, 1) - exact).abs() / exact.abs().max()
    assert error.max() < 1e-5
    assert error[:, -4000:].max() < 2 * error[:, :40_000].max(), "the error does not grow"


def test_what_a_stream_cannot_do_is_refused():
    with pytest.raises(ws.OptionError, match="reads the future"):
        ws.sampled(make(bidirectional=True))
    with pytest.raises(ws.OptionError, match=r"sampled at rate 1\.0"):
        ws.sampled(make())(signal(1, 5, 3), rate=2.0)
    stream, state = ws.sampled(make(), 2.0), make().initial_state(1)
    for call in (lambda: stream(signal(1, 5, 3), rate=1.5), lambda: stream.step(signal(1, 3), state, rate=3.0)):
        with pytest.raises(ws.OptionError, match=r"sampled at rate 2\.0, got rate"):
            call()
    assert ws.sampled(ws.ResidualBlock(make()), 2.0)(signal(1, 5, 3).float()).shape == (1, 5, 3)
    for call, error, words in (  # signals are checked as by the layer: test_layer.py has all cases
        (lambda: stream(signal(2, 5, 3), state=torch.zeros(2, 3)), ws.ShapeError, r"initial_state\(batch=2\)"),
        (lambda: stream.step(signal(1, 4), state), ws.ShapeError, "WaveSSM.step"),
        (lambda: ws.sampled("layer"), ws.OptionError, "model is a str"),
    ):
        check_refused(call, error, words)


def test_broken_input_breaks_nothing_before_it():
    stream, x = ws.sampled(make()), signal(1, 100, 3)
    clean = stream(x)
    broken = x.clone()
    broken[0, 70, 1] = float("nan")
    y, state = stream(broken, return_state=True)
    torch.testing.assert_close(y[:, :70], clean[:, :70])
    torch.testing.assert_close(y[:, :, [0, 2]], clean[:, :, [0, 2]])
    assert not torch.isfinite(y[0, 70:, 1]).any()
    assert not torch.isfinite(state[0, 1]).any()


def test_a_pooled_stream_counts_beyond_the_whole_numbers_of_float32():
    model = ws.SequenceModel(ws.ModelConfig(d_model=4, n_layers=1, d_state=4)).eval()
    state, h = model.initial_state(1), torch.ones(1, 1, 4)
    pooled = state.pooled._replace(mean=state.pooled.mean + 1, steps=state.pooled.steps + 2**24)
    for _ in range(3):
        _, pooled = model.head.stream(2 * h, pooled)
    assert float(pooled.steps) == 2**24 + 3
    assert float(pooled.mean[0, 0]) == pytest.approx(1 + 3 / (2**24 + 3), rel=1e-15)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["morlet", "legs"])
@torch.no_grad()
def test_layers_of_low_precision_keep_their_memory(kind, dtype):
    """A decay close to one is one in bfloat16, so tables and states are float32; outputs are as the inputs."""
    torch.manual_seed(0)
    layer = ws.WaveSSM(2, 8, **KINDS[kind], dt_min=1e-3, dt_max=1e-3).to(dtype)
    x = (torch.randn(1, 700, 2) + 0.5).to(dtype)
    want, stream = layer(x), ws.sampled(layer)
    state, steps = stream.initial_state(1), []
    for x_t in x.unbind(1):
        y_t, state = stream.step(x_t, state)
        steps.append(y_t)
    assert (state.dtype, y_t.dtype) == (torch.float32, dtype)
    close = {"atol": 0.01 * float(want.abs().max()), "rtol": 0}
    torch.testing.assert_close(torch.stack(steps, 1), want, **close)
    first, state = stream(x[:, :333], return_state=True)
    rest, state = stream(x[:, 333:], state=state, return_state=True)
    assert (state.dtype, rest.dtype) == (torch.float32, dtype)
    torch.testing.assert_close(torch.cat([first, rest], 1), want, **close)


def test_a_stream_compiled_for_packets_takes_others_too(monkeypatch):
    """In the graph that a compiler is given; one kind of packet is compiled, once."""
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=backend, fullgraph=True))
    torch.manual_seed(0)
    options = {"d_input": 2, "d_output": 3, "d_model": 4, "n_layers": 2, "d_state": 6}
    for family in ("morlet", "legs"):
        model = ws.SequenceModel(ws.ModelConfig(**options, family=family)).eval()
        stream, x = ws.sampled(model, packet=40), torch.randn(2, 130, 2)
        state = stream.initial_state(batch=2)
        graphs.clear()
        torch._dynamo.reset()
        for packet in x.split(40, dim=1):
            y, state = stream.stream(packet, state)
        torch.testing.assert_close(y, model(x), atol=1e-5, rtol=1e-5)
        assert len(graphs) == 1
        with pytest.raises(ws.NotFiniteError):
            stream.stream(x[:, :40] * torch.nan, state)


def test_a_stream_of_state_features_takes_arrays_and_refuses_what_would_break_or_poison_it():
    x, y = torch.randn(40, 60, 2, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 2
    config = FeatureConfig(n_features=480, n_scales=3, stretches=False)
    model = FeatureModel.fit(x + y[:, None, None], y, "multiclass", config=config)
    stream, new = model.initial_state(2), x[:2]
    stream.step(new[:, :30].double().numpy())
    endless = new.clone()
    endless[1, 40] = -torch.inf
    shape = r"expected \(batch, length, channels\) = \(2, any length, 2\)"
    for wrong, error, words in (
        (new[0], ws.ShapeError, rf"has shape \(60, 2\), {shape}"),
        (torch.zeros(2, 5, 3), ws.ShapeError, shape),
        (new[:1].numpy(), ws.ShapeError, shape),
        ("samples", ws.ShapeError, "expected an array of real numbers"),
        (endless, ws.NotFiniteError, "infinity"),
        (np.full((2, 5, 2), 1e39), ws.NotFiniteError, "infinity in float32"),
    ):
        check_refused(lambda wrong=wrong: stream.step(wrong), error, words)
    torch.testing.assert_close(stream.step(new[:, 30:]), model(new), atol=1e-4, rtol=1e-4, msg="the state is as before")
    check_refused(lambda: model.initial_state(0), ws.OptionError, "batch is 0")

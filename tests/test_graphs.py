"""Captured steps, with graphs of CUDA played on the CPU; test_graphs_cuda.py has real ones."""

import contextlib

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

import wavessm as ws
from wavessm.data import Batch, Ragged, Windows
from wavessm.training import graphs
from wavessm.training.batches import TrainBatches, order
from wavessm.training.graphs import Capture, CapturedStep


class FakeGraph:
    """Runs the step again at every replay. `recording` while it captures: a real graph then runs nothing."""

    recording = False
    pools = ()  # that captures were given

    def pool(self):
        return (0, id(self))

    def replay(self):
        self.capture.result.copy_(self.capture.again(self.capture.buffers))


@contextlib.contextmanager
def record(graph, pool=None):
    FakeGraph.recording, FakeGraph.pools = True, (*FakeGraph.pools, pool)
    yield
    FakeGraph.recording = False


@pytest.fixture
def fake_cuda(monkeypatch):
    """Streams and graphs of CUDA that run on the CPU."""

    class Watched(Capture):
        def __init__(self, step, batch, pool):
            super().__init__(step, batch, pool)
            self.graph.capture, self.again = self, step

    class Stream:
        def wait_stream(self, other):
            pass

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "CUDAGraph", FakeGraph)
    monkeypatch.setattr(torch.cuda, "graph", record)
    monkeypatch.setattr(FakeGraph, "pools", ())
    monkeypatch.setattr(graphs, "Capture", Watched)


def test_a_captured_step_sees_every_batch_through_fixed_buffers(fake_cuda):
    seen = []

    def step(batch):
        seen.append(batch)
        return batch.x.sum()

    captured = CapturedStep(step)
    for value in range(1, 7):
        batch = Batch(torch.full((2, 3, 1), float(value)), torch.zeros(2))
        assert float(captured(batch)) == 6 * value
    assert len({id(batch) for batch in seen[:3]}) == 3, "the first steps are real ones"
    (capture,) = captured.captures.values()
    assert all(batch is capture.buffers for batch in seen[3:])


def test_every_shape_has_a_capture_of_its_own_in_memory_they_share(fake_cuda):
    captured = CapturedStep(lambda batch: batch.x.sum() + (0 if batch.lengths is None else batch.lengths.sum()))
    short, long = Batch(torch.ones(2, 3), torch.zeros(2)), Batch(torch.ones(2, 5), torch.zeros(2))
    told = Batch(torch.ones(2, 3), torch.zeros(2), torch.tensor([1, 2]))
    for _ in range(5):
        assert [float(captured(batch)) for batch in (short, long, told)] == [6, 10, 9]
    assert len(captured.captures) == 3
    first = next(iter(captured.captures.values())).graph
    assert FakeGraph.pools == (None, first.pool(), first.pool())


def test_shapes_beyond_the_limit_run_as_usual(fake_cuda, monkeypatch):
    monkeypatch.setattr(graphs, "MOST", 2)
    captured = CapturedStep(lambda batch: batch.x.sum())
    for _ in range(5):
        for width in (3, 4, 5):
            assert float(captured(Batch(torch.ones(2, width), torch.zeros(2)))) == 2 * width
    assert len(captured.captures) == 2


def sentences(cases, pairs=False, most=39):
    """Tokens of 3 to `most` symbols with two labels."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(3, most + 1, (cases, 2) if pairs else (cases,), generator=generator)
    flat = torch.randint(3, 12, (int(lengths.sum()),), generator=generator)
    starts = (lengths.flatten().cumsum(0) - lengths.flatten()).view_as(lengths)
    return Ragged(flat, starts, lengths, torch.arange(cases) % 2)


def test_tokens_filled_up_to_the_longest_are_the_same_tokens():
    source = sentences(40)
    wide = source.in_buckets(1)
    longest = int(source.lengths.max())
    for index in torch.arange(40).split(8):
        short, long = source.take(index), wide.take(index)
        assert long.x.shape == (8, longest)
        assert torch.equal(long.x[:, : short.x.shape[1]], short.x)
        assert not long.x[:, short.x.shape[1] :].any()
        assert torch.equal(long.lengths, short.lengths)
    assert source.take(torch.tensor([0])).x.shape[1] == int(source.lengths[0]), "the source itself is as it was"


@given(cases=st.integers(1, 60), batch_size=st.integers(1, 9), buckets=st.integers(1, 5), epoch=st.integers(0, 3))
def test_buckets_hold_every_case_once_an_epoch_in_few_widths(cases, batch_size, buckets, epoch):
    source = sentences(cases, most=400)
    sorted_ = source.in_buckets(buckets)
    assert len(sorted_.widths) <= buckets
    assert sorted_.widths[-1] == int(source.lengths.max())
    arranged = sorted_.arrange(order(cases, 0, epoch), batch_size)
    assert arranged.sort().values.tolist() == list(range(cases))
    for index in arranged.split(batch_size):
        batch, alone = sorted_.take(index), source.take(index)
        assert batch.x.shape[1] in sorted_.widths
        assert torch.equal(batch.x[:, : alone.x.shape[1]], alone.x)
        assert torch.equal(batch.y, alone.y)


def test_buckets_leave_little_to_fill_up():
    source = sentences(4000, most=4000)
    steps = -(-4000 // 16)

    def widths_of(buckets, seed):
        return [batch.x.shape[1] for batch in TrainBatches(source.in_buckets(buckets), 16, seed, 0, steps)]

    tokens = [16 * sum(widths_of(buckets, 0)) for buckets in (1, 8)]
    assert tokens[0] == steps * 16 * int(source.lengths.max())
    assert tokens[1] < 1.2 * int(source.lengths.sum())
    widths = [widths_of(8, seed) for seed in (0, 0, 1)]
    assert widths[0] == widths[1] != widths[2], "a function of the seed"
    assert sorted(widths[0]) != widths[0] != sorted(widths[0])[::-1], "batches of all widths come in turn"


def token_loss(model, batch):
    return F.cross_entropy(model(batch.x, lengths=batch.lengths), batch.y)


def window_loss(model, batch):
    return F.mse_loss(model(batch.x, marks=batch.marks), batch.y)


def trained(config, batches, loss_of, captured):
    """Losses of a fresh model over the batches, step by step or through a capture."""
    torch.manual_seed(0)
    model = ws.SequenceModel(config)
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.01)

    def step(batch):
        if FakeGraph.recording:
            return torch.zeros(())
        loss = loss_of(model, batch)
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        return loss.detach()

    if captured:
        step = CapturedStep(step)
    return [float(step(batch)) for batch in batches]


@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("norm", ["layer", "batch"])
def test_a_captured_step_on_tokens_trains_as_a_plain_one_does(fake_cuda, norm, pairs):
    source = sentences(20, pairs)
    config = ws.ModelConfig(1, 2, d_model=6, n_layers=2, d_state=8, encoder="embedding", vocabulary=12, norm=norm,
                            head="pair" if pairs else "pool", bidirectional=True)  # fmt: skip
    curves, shapes = [], []
    for captured in (False, True):
        batches = list(TrainBatches(source.in_buckets(1) if captured else source, 5, 0, 0, 9))
        shapes.append({batch.x.shape for batch in batches})
        curves.append(trained(config, batches, token_loss, captured))
    assert len(shapes[0]) > 1, "batches of this test must differ in length"
    assert len(shapes[1]) == 1
    assert curves[1] == pytest.approx(curves[0], rel=1e-4)
    assert abs(curves[0][-1] - curves[0][0]) > 0.01, "something was learnt"


def test_a_captured_step_on_windows_trains_as_a_plain_one_does(fake_cuda):
    """Forecasts: every batch has one shape, the last of an epoch too, and marks go through a buffer of their own."""
    series = torch.sin(torch.arange(60.0) / 3)[:, None]
    marks = torch.rand(60, 2, generator=torch.Generator().manual_seed(0))
    source = Windows(series, marks, 12, 4, torch.arange(60 - 16 + 1), future_calendar=True)
    assert len(source) % 7 > 0, "the last batch of an epoch must be a part of one"
    config = ws.ModelConfig(d_model=6, n_layers=2, d_state=8, encoder="calendar", mark_width=2, horizon_mask=True,
                            head="forecast", horizon=4, direct=True, context=12, instance_norm="last")  # fmt: skip
    batches = list(TrainBatches(source, 7, 0, 0, 15))
    curves = [trained(config, batches, window_loss, captured) for captured in (False, True)]
    assert curves[1] == pytest.approx(curves[0], rel=1e-4)
    assert curves[0][-1] < 0.8 * curves[0][0], "something was learnt"

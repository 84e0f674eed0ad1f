"""Sources gather what a slow loop would; window copying is the task it says it is."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from wavessm.data import Arrays, Batch, DataInfo, DataSet, Generated, Ragged, Source, Windows
from wavessm.data.crops import Crops
from wavessm.errors import OptionError
from wavessm.training import TrainConfig
from wavessm.training.batches import EvalBatches, TrainBatches, as_trained
from wavessm_lab.tasks.window_copy import WindowCopy


def test_arrays_take_any_order_and_undo_integers():
    x = torch.arange(24, dtype=torch.int16).view(4, 3, 2)
    source = Arrays(x, torch.arange(4), torch.tensor([3, 1, 2, 3]), affine=(0.5, -1.0))
    batch = source.take(torch.tensor([2, 0, 2]))
    torch.testing.assert_close(batch.x, x[[2, 0, 2]].float() * 0.5 - 1.0)
    assert batch.x.dtype == torch.float32
    assert batch.y.tolist() == [2, 0, 2]
    assert batch.lengths.tolist() == [2, 3, 2]
    assert batch.marks is None
    assert x.dtype == source.x.dtype == torch.int16  # the data stay as they were


def test_arrays_of_tokens_stay_whole():
    batch = Arrays(torch.arange(6).view(2, 3), torch.tensor([0, 1])).take(torch.tensor([1]))
    assert batch.x.tolist() == [[3, 4, 5]]
    assert batch.x.dtype == torch.int64


@pytest.mark.parametrize("future_calendar", [False, True])
def test_windows_are_slices_of_the_series(future_calendar):
    series, marks = torch.randn(50, 3), torch.randint(1, 9, (50, 4))
    source = Windows(series, marks, 7, 5, torch.arange(3, 39), future_calendar)
    index = torch.tensor([0, 35, 11])
    batch = source.take(index)
    assert len(source) == 36
    for row, start in enumerate([3, 38, 14]):
        torch.testing.assert_close(batch.x[row], series[start : start + 7])
        torch.testing.assert_close(batch.y[row], series[start + 7 : start + 12])
        assert batch.marks[row, :7].equal(marks[start : start + 7])
        future = marks[start + 7 : start + 12]
        assert batch.marks[row, 7:].equal(future if future_calendar else torch.zeros_like(future))
    assert int(marks.min()) == 1  # zeroing the future did not reach the marks themselves


def test_sources_keep_the_protocol_and_move():
    data = WindowCopy(length=64, windows=1, cases=4, cases_per_epoch=10).load(0)
    assert all(isinstance(part, Source) for part in (data.train, data.val))
    windows = Windows(torch.zeros(12, 1), None, 4, 3, torch.arange(3))
    assert isinstance(windows, Source)
    moved = DataSet("x", data.val, data.val, data.val, data.info).to("meta")
    assert moved.test.take(torch.arange(2)).x.device.type == "meta"
    assert windows.to("meta").device.type == "meta"
    assert data.train.to("cpu") is data.train  # its draws go on


def test_info_goes_through_json_and_back():
    info = DataInfo(
        "forecast", 2, 2, 48, horizon=24, columns=("a", "b"), scale=((1.5, 0.1), (2.0, 1 / 3)),
        target_scale=((1.5, 0.1), (2.0, 1 / 3)), mark_sizes=(13, 32), sampling_rate=None, step=900.0,
    )  # fmt: skip
    assert DataInfo.from_dict(json.loads(json.dumps(info.to_dict()))) == info
    old = {**info.to_dict(), "rate": 250.0}  # of revision 50cf3e6
    del old["sampling_rate"]
    assert DataInfo.from_dict(old).sampling_rate == 250.0
    x = torch.randn(5, 7, 2, dtype=torch.float64)
    torch.testing.assert_close(info.restore(info.standardise(x)), x)
    torch.testing.assert_close(info.standardise(x)[..., 1], (x[..., 1] - 0.1) * 3)
    with pytest.raises(OptionError, match="unknown field 'colour'"):
        DataInfo.from_dict({**info.to_dict(), "colour": 1})


# --- window copying


def decode(x, task):
    """Starts and ends of the windows of one case, read from its markers by a loop."""
    marker = x[:, 1].tolist()
    starts = [i for i, value in enumerate(marker) if value == 1.0]
    ends = [i for i, value in enumerate(marker) if value == -1.0]
    assert set(marker) == {-1.0, 0.0, 1.0}
    assert len(starts) == len(ends) == task.windows
    return list(zip(starts, ends, strict=True))


@pytest.mark.parametrize(
    "task",
    [WindowCopy(256, 2, 8, 8), WindowCopy(101, 3, 2, 9), WindowCopy(400, 20, 4, 13), WindowCopy(96, 8, 8, 8)],
    ids=str,
)
def test_targets_are_the_sums_of_the_marked_windows(task):
    batch = task.draw(200, torch.Generator().manual_seed(3))
    delays, durations = [], []
    for x, y in zip(batch.x, batch.y, strict=True):
        expected = torch.zeros(task.d_max)
        before = -2
        for start, end in decode(x, task):
            assert start >= before + 2  # a free sample between windows
            before = end
            durations.append(end - start + 1)
            expected[: end - start + 1] += x[start : end + 1, 0]
        torch.testing.assert_close(y, expected)
        delays.append(task.length - 1 - before)
    assert {min(durations), max(durations)} == {task.d_min, task.d_max}
    assert min(delays) >= task.length // 8


def test_windows_reach_both_ends_of_their_room():
    """Where two windows of 2 have 6 or 7 of 8 steps, every place they may take is taken."""
    task = WindowCopy(8, 2, 2, 2)
    seen = {tuple(decode(x, task)) for x in task.draw(500, torch.Generator().manual_seed(0)).x}
    assert seen == {((0, 1), (s, s + 1)) for s in (3, 4, 5)} | {((1, 2), (s, s + 1)) for s in (4, 5)} | {
        ((2, 3), (5, 6))
    }


def test_delays_take_every_length_they_may():
    """At length 8 the delay is 1 or 2; only after a delay of 1 can the last window end at step 6, 5 times in 9."""
    task = WindowCopy(8, 2, 2, 2)
    marker = task.draw(4000, torch.Generator().manual_seed(0)).x[..., 1]
    assert float((marker[:, 6] == -1).float().mean()) == pytest.approx(5 / 18, abs=0.03)


def test_noise_and_target_have_the_variance_stated():
    task = WindowCopy(300, 5, 4, 16)
    batch = task.draw(4000, torch.Generator().manual_seed(1))
    assert task.target_variance == 5 * 10 / 16
    assert float(batch.y.square().mean()) == pytest.approx(task.target_variance, rel=0.03)
    assert float(batch.x[..., 0].var()) == pytest.approx(1.0, rel=0.01)


def test_generated_draws_go_on_from_a_saved_state_and_ignore_the_index():
    source = WindowCopy(length=64, windows=1, cases=2).load(5).train
    source.take(torch.arange(3))
    state = source.get_state()
    first, second = source.take(torch.tensor([9, 9])), source.take(torch.tensor([0, 1]))
    assert not first.x.equal(second.x)
    other = WindowCopy(length=64, windows=1, cases=2).load(77).train
    other.set_state(state)
    assert other.take(torch.tensor([1, 2])).x.equal(first.x)
    assert other.take(torch.tensor([1, 2])).y.equal(second.y)


def test_evaluation_cases_are_fixed_while_training_follows_the_seed():
    one, two = (WindowCopy(length=64, windows=1, cases=8).load(seed) for seed in (0, 1))
    everything = torch.arange(8)
    assert one.val.take(everything).x.equal(two.val.take(everything).x)
    assert one.test.take(everything).y.equal(two.test.take(everything).y)
    assert not one.val.take(everything).x.equal(one.test.take(everything).x)
    assert not one.train.take(everything).x.equal(two.train.take(everything).x)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"d_min": 1}, "d_min is 1"),
        ({"d_min": 9}, "d_min is 9, more than d_max 8"),
        ({"length": 32, "windows": 3}, "3 windows of up to 8 samples need 26 steps, but length 32 leaves 24"),
        ({"windows": 0}, "windows is 0"),
        ({"cases_per_epoch": 0}, "cases_per_epoch is 0"),
    ],
)
def test_window_copying_refuses_what_does_not_fit(options, message):
    with pytest.raises(OptionError, match=message):
        WindowCopy(**{"length": 128, "windows": 2, **options})


def test_crops_are_stretches_of_their_own_recording_and_others_each_time():
    x = torch.arange(4.0)[:, None] * 100 + torch.arange(20.0)
    whole = Arrays(x[..., None], torch.arange(4))
    source = Crops(whole, length=5, seed=0)
    assert len(source) == 4
    index = torch.tensor([2, 0, 3])
    seen = [source.take(index) for _ in range(200)]
    for batch in seen:
        assert batch.x.shape == (3, 5, 1)
        assert batch.y.tolist() == [2, 0, 3]
        assert (batch.x.diff(dim=1) == 1).all()
        assert (batch.x[:, 0, 0] // 100).tolist() == [2, 0, 3]
    assert {int(batch.x[1, 0, 0]) for batch in seen} == set(range(16)), "every place of a recording comes up"
    state = source.get_state()
    once = source.take(index).x
    source.set_state(state)
    assert torch.equal(source.take(index).x, once)


def test_crops_of_recordings_that_differ_in_length_hold_no_padding():
    lengths = torch.tensor([20, 3, 8])
    x = (torch.arange(20.0) + 1).expand(3, 20) * (torch.arange(20) < lengths[:, None])
    source = Crops(Arrays(x[..., None], torch.arange(3), lengths), length=5, seed=0)
    seen = [source.take(torch.arange(3)) for _ in range(200)]
    for batch in seen:
        assert batch.lengths.tolist() == [5, 3, 5]
        assert all((row[:n] > 0).all() for row, n in zip(batch.x[..., 0], (5, 3, 5), strict=True))
    firsts = torch.stack([batch.x[:, 0, 0] for batch in seen])
    assert [set(column.int().tolist()) for column in firsts.T] == [set(range(1, 17)), {1}, {1, 2, 3, 4}]


@pytest.mark.parametrize("length", [0, 21])
def test_crops_refuse_what_does_not_fit(length):
    with pytest.raises(OptionError, match=f"crop: {length} samples, but recordings have 20"):
        Crops(Arrays(torch.zeros(2, 20, 1), torch.zeros(2)), length, seed=0)


def test_generated_takes_any_drawing_function():
    def draw(count, generator):
        return Batch(torch.rand(count, 4, 1, generator=generator), torch.zeros(count))

    source = Generated(draw, epoch=6, seed=0)
    assert len(source) == 6
    assert source.take(torch.arange(5)).x.shape == (5, 4, 1)


def test_import_of_wavessm_needs_no_extra():
    """pandas, wfdb and soundfile are imported by the loaders that need them, not by the packages."""
    code = (
        "import sys, wavessm, wavessm.data; "
        "print([name for name in ('pandas', 'wfdb', 'soundfile', 'lightning') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def signals(seed, cases, channels=2, longest=40):
    """A ragged source and its cases one by one."""
    rng = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, longest + 1, (cases,), generator=rng)
    parts = [torch.randn(int(n), channels, generator=rng) for n in lengths]
    return Ragged(torch.cat(parts), lengths.cumsum(0) - lengths, lengths, torch.arange(cases)), parts


def test_signals_are_filled_up_with_zeros_to_the_longest_of_their_own_batch():
    source, parts = signals(0, 23)
    for index in (torch.tensor([3, 17, 3]), torch.tensor([22])):
        batch = source.take(index)
        expected = torch.nn.utils.rnn.pad_sequence([parts[i] for i in index], batch_first=True)
        assert torch.equal(batch.x, expected)
        assert batch.lengths.tolist() == [len(parts[i]) for i in index]
        assert torch.equal(batch.y, index)


@given(cases=st.integers(1, 50), batch_size=st.integers(1, 9), seed=st.integers(0, 20))
def test_evaluation_has_every_case_in_order_and_no_batch_much_larger_than_the_mean(cases, batch_size, seed):
    source, parts = signals(seed, cases)
    batches = list(EvalBatches(source, batch_size))
    assert torch.cat([batch.y for batch in batches]).tolist() == list(range(cases))
    mean = sum(map(len, parts)) / cases
    for batch in batches:
        assert len(batch.y) <= batch_size
        assert len(batch.y) == 1 or batch.x.shape[0] * batch.x.shape[1] <= batch_size * mean


def test_buckets_of_signals_have_like_lengths_and_are_filled_up_only_for_captured_steps():
    source, _ = signals(1, 200, longest=1000)
    config = TrainConfig(buckets=4, batch_size=10)
    data = DataSet("x", source, source, source, DataInfo("multiclass", 2, 200, 1000))
    plain, sorted_ = (as_trained(data, replace(config, buckets=n)).train for n in (1, 4))
    widths = {n: [b.x.shape[1] for b in TrainBatches(s, 10, 0, 0, 20)] for n, s in ((1, plain), (4, sorted_))}
    assert sum(widths[4]) < 0.8 * sum(widths[1])
    captured = as_trained(data, replace(config, cuda_graphs=True)).train
    assert {b.x.shape[1] for b in TrainBatches(captured, 10, 0, 0, 20)} <= {*captured.widths}


def test_crops_of_signals_lie_inside_their_recordings():
    lengths = torch.tensor([3, 9, 30])
    flat = torch.cat([100.0 * k + torch.arange(int(n)) for k, n in enumerate(lengths)])[:, None]
    source = Crops(Ragged(flat, lengths.cumsum(0) - lengths, lengths, torch.arange(3)), length=5, seed=0)
    for index in (torch.arange(3), torch.tensor([0])):
        batch = source.take(index)
        for x, n, case in zip(batch.x[..., 0], batch.lengths, index, strict=True):
            assert n == min(5, lengths[case])
            assert ((x[:n] >= 100 * case) & (x[:n] < 100 * case + lengths[case])).all()
            assert (x[:n].diff() == 1).all()

"""Window copying with many numbers of windows: cases, stages of length, captured steps, scores by number, report."""

import contextlib
import csv
import dataclasses
import itertools
import json
import math

import pytest
import torch

import wavessm as ws
from miniatures import interrupt
from test_graphs import FakeGraph, fake_cuda  # noqa: F401
from test_report import row, written
from wavessm.cli import main
from wavessm.training import Interrupted, Run, TrainConfig, Trainer, evaluate_run, make_trainer, resume, train
from wavessm.training.batches import TrainBatches
from wavessm.training.graphs import CapturedStep
from wavessm.training.optimiser import stretch_timescales
from wavessm_lab.report.tables import write_report
from wavessm_lab.sweep import results
from wavessm_lab.tasks.window_copy import WindowCopy

TASK = WindowCopy(96, windows=2, d_min=3, d_max=5, windows_max=6, cases=2)
STAGED = {"length": 48, "windows": 1, "windows_max": 3, "d_min": 2, "d_max": 3, "cases": 8, "cases_per_epoch": 20,
          "stages": "16:0.3,24:0.25"}  # fmt: skip
MODEL = ws.ModelConfig(d_model=6, n_layers=2, d_state=8, norm="batch")
TINY = TrainConfig(batch_size=4, steps=13, device="cpu",
              save_seconds=0)  # fmt: skip


def windows_of(x):
    """First and last samples of the windows in one case (length, 2), from its markers alone."""
    starts, stops = ((x[:, 1] == mark).nonzero().flatten().tolist() for mark in (1, -1))
    return list(zip(starts, stops, strict=True))


def test_every_case_has_its_own_number_of_windows_and_their_sum():
    batch = TASK.draw(600, torch.Generator().manual_seed(0))
    assert set(batch.x[..., 1].unique().tolist()) == {-1.0, 0.0, 1.0}
    counts, first = torch.zeros(7), []
    for x, y in zip(batch.x, batch.y, strict=True):
        found = windows_of(x)
        counts[len(found)] += 1
        first.append(found[0][0])
        expected = torch.zeros(5)
        for start, stop in found:
            assert 3 <= stop - start + 1 <= 5
            expected[: stop - start + 1] += x[start : stop + 1, 0]
        torch.testing.assert_close(y, expected, atol=1e-6, rtol=0)
        assert all(after[0] - before[1] >= 2 for before, after in itertools.pairwise(found))
        assert found[-1][1] < 96 - 96 // 8
    assert counts[:2].sum() == 0
    assert (counts[2:] - 120).abs().max() < 50, f"numbers from 2 to 6 are equally likely, got {counts.tolist()}"
    assert float(batch.y.var()) == pytest.approx(TASK.target_variance, rel=0.1)
    # absent windows must not crowd those that are there: two windows in 84 - 8 free steps begin after a third of them
    two = [at for at, x in zip(first, batch.x, strict=True) if len(windows_of(x)) == 2]
    assert 18 < sum(two) / len(two) < 30


def test_one_number_of_windows_draws_as_it_always_did():
    one, two = (WindowCopy(64, 3, 2, 4, most).draw(5, torch.Generator().manual_seed(1)) for most in (None, 3))
    assert torch.equal(one.x, two.x)
    assert torch.equal(one.y, two.y)
    assert WindowCopy(64, 2, cases=4).load(0).info.parts == ()


def test_the_test_split_has_every_second_number_and_is_the_same_for_every_seed():
    one, two = (dataclasses.replace(TASK, cases=5).load(seed) for seed in (0, 1))
    assert one.info.parts == ("2", "4", "6")
    assert [len(windows_of(x)) for x in one.test.x] == [2] * 5 + [4] * 5 + [6] * 5
    assert torch.equal(one.test.x, two.test.x)
    assert not torch.equal(*(data.train.take(torch.arange(2)).x for data in (one, two)))


def test_stages_change_the_length_at_their_share_of_the_steps():
    data = dataclasses.replace(TASK, stages="24:0.3,48:0.5").load(0)
    lengths = [batch.x.shape[1] for batch in TrainBatches(data.train, 4, 0, 0, 10, total=10)]
    assert lengths == [24] * 3 + [48] * 5 + [96] * 2
    assert [batch.x.shape[1] for batch in TrainBatches(data.train, 4, 0, 7, 9, total=10)] == [48, 96]
    assert [batch.x.shape[1] for batch in TrainBatches(data.train, 4, 0, 0, 2)] == [96, 96], (
        "without a run: the longest"
    )
    short = next(iter(TrainBatches(data.train, 200, 0, 0, 1, total=10)))
    assert {len(windows_of(x)) for x in short.x} == {2, 3}, "as many as fit into 24 samples"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"windows_max": 1}, "windows_max is 1, less than windows 2"),
        ({"length": 32, "windows_max": 9}, "9 windows of up to 8 samples need 80 steps"),
        ({"stages": "16"}, "stages is '16', expected lengths and shares"),
        ({"stages": "64:0.6,96:0.4"}, "leave some steps for the full length"),
        ({"stages": "64:-1"}, "positive shares"),
        ({"stages": "16:0.5"}, "2 windows of up to 8 samples need 17 steps, but length 16"),
    ],
)
def test_impossible_tasks_get_one_line(options, words):
    from wavessm.data import get_task

    with pytest.raises(ws.OptionError, match=words):
        get_task("window-copy").with_options({"length": 128, "cases": 2, **options}).load(0)


def test_a_run_broken_in_every_stage_goes_on_bit_for_bit(tmp_path, monkeypatch):
    whole = train("window-copy", STAGED, MODEL, TINY, tmp_path / "whole", show=False)
    lengths, work = [], Trainer.work
    monkeypatch.setattr(Trainer, "work", lambda self, batch: lengths.append(batch.x.shape[1]) or work(self, batch))
    interrupt(monkeypatch, 2, 3, 4, 9)
    folder, starts = tmp_path / "broken", 0
    while not (folder / "result.json").exists():
        with contextlib.suppress(KeyboardInterrupt, Interrupted, SystemExit):
            resume(folder, show=False) if starts else train("window-copy", STAGED, MODEL, TINY, folder, show=False)
        starts += 1
    assert starts == 5
    assert lengths == [16] * 4 + [24] * 4 + [48] * 5
    assert (folder / "result.json").read_text() == (whole.folder / "result.json").read_text()
    scores = json.loads((folder / "result.json").read_text())["parts"]
    assert list(scores) == ["1", "3"]
    assert scores["1"]["relative_mse"] != scores["3"]["relative_mse"]


def test_layers_slow_down_as_sequences_grow_wherever_the_run_was_broken(tmp_path, monkeypatch):
    """Rates of 0 leave what the stages do: 16 → 24 → 48 samples, at steps 4 and 8."""
    still = dataclasses.replace(TINY, lr=1e-30, lr_ssm=0.0, stretch_timescales=True)
    monkeypatch.setattr("wavessm.training.loop.stretch_timescales", lambda model, factor: None)
    plain = train("window-copy", STAGED, MODEL, still, tmp_path / "plain", show=False).load_model("last")
    monkeypatch.undo()
    interrupt(monkeypatch, 4, 8)  # after the layers were slowed down, before it was saved
    folder = tmp_path / "broken"
    for attempt in range(3):
        with contextlib.suppress(KeyboardInterrupt, Interrupted, SystemExit):
            resume(folder, show=False) if attempt else train("window-copy", STAGED, MODEL, still, folder, show=False)
    slowed = Run.read(folder).load_model("last")
    (one, two), (same, slow) = ([block.layer for block in m.backbone.blocks] for m in (plain, slowed))
    assert torch.equal(one.log_dt, same.log_dt)
    torch.testing.assert_close(slow.log_dt, two.log_dt - math.log(3))
    torch.testing.assert_close(slow.B, 3 * two.B)


def test_a_stretched_layer_has_its_kernel_at_half_the_speed():
    layers = torch.nn.ModuleList(ws.WaveSSM(1, 8, dt_max=1e-3) for _ in range(2))
    with torch.no_grad():
        one, two = (layer.kernel(100)[0, 0] for layer in layers)
        stretch_timescales(layers, 2)
        same, slow = (layer.kernel(100)[0, 0] for layer in layers)
    assert torch.equal(same, one), "the first layer keeps its steps"
    assert (slow[::2] - two[:50]).abs().max() < 0.05 * two.abs().max()


def test_every_stage_is_captured_anew(fake_cuda):  # noqa: F811
    data = dataclasses.replace(TASK, stages="24:0.5").load(0)
    torch.manual_seed(0)
    model = ws.SequenceModel(ws.ModelConfig(2, 5, d_model=6, n_layers=1, d_state=8, head="last"))
    trainer = make_trainer(model, data, TINY)

    def step(batch):
        return torch.zeros(()) if FakeGraph.recording else trainer.work(batch)

    trainer.captured = CapturedStep(step)
    losses = [float(trainer.advance(batch)) for batch in TrainBatches(data.train, 4, 0, 0, 12, total=12)]
    assert [capture.buffers.x.shape[1] for capture in trainer.captured.captures.values()] == [24, 96]
    assert all(loss > 0 for loss in losses)


def test_the_table_of_runs_has_rows_for_each_number_once(tmp_path, capsys):
    run = train("window-copy", STAGED, MODEL, TINY, tmp_path / "run", "best", show=False)
    table, rows = tmp_path / "runs.csv", results.rows_of_run(run, "wavessm train window-copy")
    assert [results.append(table, part) for part in (rows[:2], rows, rows)] == [2, 3, 0], "as after a kill"
    with table.open(newline="") as file:
        found = [(r["task"], r["horizon"], r["metric"], r["split"], r["status"]) for r in csv.DictReader(file)]
    assert found == [
        ("window-copy", number, metric, "test", "ok")
        for number, metric in [("", "relative_mse"), *((n, m) for n in "13" for m in ("relative_mse", "mse"))]
    ]
    assert all(row["ci_low"] <= row["value"] <= row["ci_high"] for row in rows)
    evaluated = evaluate_run(run)
    assert [evaluated.parts[n][m] for n in "13" for m in ("relative_mse", "mse")] == pytest.approx(
        [row["value"] for row in rows[1:]]
    )
    assert main(["evaluate", str(run.folder), "--device", "cpu"]) == 0
    assert "\n     3: relative mse " in capsys.readouterr().out


def test_the_report_sets_baselines_against_the_mean_of_the_frames(tmp_path):
    def runs(number, value, **variant):
        return [row(task="window-copy", horizon=number, metric="relative_mse", seed=s, value=value * (1 + s), **variant)
                for s in (0, 1)]  # fmt: skip

    rows = [
        line
        for number in (2, 10)
        for line in (
            *runs(number, 0.001 * number, model="WaveSSM", family="morlet", measure="scaled"),
            *runs(number, 0.1 * number, model="WaveSSM", family="db6", measure="scaled"),
            *runs(number, 0.3 * number, model="S4-LegS", measure="scaled"),
            *runs(number, 9.0, model="WaveSSM", family="morlet", measure="translated"),
        )
    ]
    paths = write_report(written(tmp_path / "runs.csv", rows), tmp_path / "report")
    assert paths[-1].name == "window-copy-windows.png"
    assert paths[-1].stat().st_size > 10_000
    text = (tmp_path / "report" / "report.md").read_text()
    assert "| variant (best) | seeds | 2 windows | 10 windows |" in text, "the recipe that all share"
    assert "| WaveSSM morlet scaled | 2 | 3.00e-03 ± 1.4e-03 | 1.50e-02 ± 7.1e-03 |" in text
    assert "| mean of the scaled frames |  | 3.00e-02 | 1.50e-01 |" in text
    assert "| S4-LegS scaled, over that mean |  | 30.0× | 30.0× |" in text


def test_the_first_layer_may_have_steps_of_its_own():
    config = ws.ModelConfig(
        d_model=32, n_layers=3, d_state=8, dt_min=1e-4, dt_max=1e-3, dt_min_first=0.02, dt_max_first=0.2
    )
    first, *others = [block.layer.log_dt.detach().exp() for block in ws.SequenceModel(config).backbone.blocks]
    assert 0.02 <= float(first.min()) < 0.05 < 0.1 < float(first.max()) <= 0.2
    for steps in others:
        assert 1e-4 <= float(steps.min()) < float(steps.max()) <= 1.001e-3
    assert ws.ModelConfig.from_dict(config.to_dict()) == config
    with pytest.raises(ws.OptionError, match="dt_min_first is -1"):
        dataclasses.replace(config, dt_min_first=-1)


def test_without_norm_signals_pass_as_they_are():
    model = ws.SequenceModel(ws.ModelConfig(d_model=8, n_layers=2, d_state=8, norm="none"))
    assert not any("norm" in name for name in model.state_dict())
    x = 100 * torch.randn(2, 5, 8)
    assert torch.equal(model.backbone.norm(x), x)
    assert torch.equal(model.backbone.blocks[0].norm(x, torch.ones(2, 5, 1, dtype=torch.bool)), x)

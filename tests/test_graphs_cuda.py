"""Captured steps on a real GPU: they train as plain steps do, padded batches included, and wait for nothing."""

import dataclasses
import warnings

import pytest
import torch

import wavessm as ws
from wavessm.data import Arrays, DataInfo, DataSet, Ragged, Windows
from wavessm.training import TrainConfig, make_trainer, model_config, read_rows, train
from wavessm.training.batches import TrainBatches
from wavessm_lab.generate.listops import Grammar, generate_listops
from wavessm_lab.tasks.window_copy import WindowCopy

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
STEPS = 12
TOLERANCE = 2e-3  # relative, of losses after a dozen steps: sums on a GPU have no fixed order


def sentences(cases, pairs):
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(40, 300, (cases, 2) if pairs else (cases,), generator=generator)
    flat = torch.randint(3, 12, (int(lengths.sum()),), generator=generator)
    starts = (lengths.flatten().cumsum(0) - lengths.flatten()).view_as(lengths)
    return Ragged(flat, starts, lengths, torch.arange(cases) % 2)


def data_of(kind):
    info = DataInfo("multiclass", 1, 2, 300, classes=("a", "b"), symbols=tuple("<>=abcdefghi"))
    if kind in ("tokens", "pairs"):
        source = sentences(256, kind == "pairs")
    else:
        generator = torch.Generator().manual_seed(0)
        lengths = torch.randint(40, 301, (256,), generator=generator)
        signal = torch.randn(256, 300, 1, generator=generator)
        source = Arrays(signal, torch.arange(256) % 2, lengths if kind == "padded signals" else None)
        info = DataInfo("multiclass", 1, 2, 300, classes=("a", "b"))
    return DataSet(kind, source, source, source, info).to("cuda")


def curve(model, data, recipe, steps):
    """Losses of the first steps of a training."""
    trainer = make_trainer(model, data, recipe)
    batches = TrainBatches(trainer.objective.source, recipe.batch_size, recipe.seed, 0, steps)
    return torch.stack([trainer.advance(batch) for batch in batches]).cpu()


def losses(kind, graphs, norm="batch", precision="fp32", buckets=1):
    data = data_of(kind)
    embedded = {"encoder": "embedding", "vocabulary": 12} if data.info.symbols else {}
    config = ws.ModelConfig(1, 2, d_model=32, n_layers=2, d_state=32, norm=norm, bidirectional=True,
                            head="pair" if kind == "pairs" else "pool", **embedded)  # fmt: skip
    torch.manual_seed(0)
    recipe = TrainConfig(lr=0.005, batch_size=16, steps=200, device="cuda", cuda_graphs=graphs, precision=precision)
    recipe = dataclasses.replace(recipe, buckets=buckets)
    return curve(ws.SequenceModel(config).cuda(), data, recipe, STEPS * buckets)


@pytest.mark.parametrize("kind", ["tokens", "pairs", "padded signals", "signals"])
@pytest.mark.parametrize("norm", ["batch", "layer"])
def test_captured_steps_have_the_losses_of_plain_steps(kind, norm):
    plain, captured = losses(kind, False, norm), losses(kind, True, norm)
    assert plain.isfinite().all()
    torch.testing.assert_close(captured, plain, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("kind", ["tokens", "pairs"])
def test_captured_steps_in_buckets_have_the_losses_of_plain_steps(kind):
    """Several captures that share memory, in turn."""
    plain, captured = losses(kind, False, buckets=3), losses(kind, True, buckets=3)
    assert plain.isfinite().all()
    torch.testing.assert_close(captured, plain, rtol=3 * TOLERANCE, atol=3 * TOLERANCE)


def test_captured_steps_on_windows_have_the_losses_of_plain_steps():
    """Forecasts with a calendar and a direct path; the last batch of an epoch is filled up."""
    series = torch.sin(torch.arange(400.0) / 5)[:, None]
    marks = torch.rand(400, 3, generator=torch.Generator().manual_seed(0))
    source = Windows(series, marks, 60, 24, torch.arange(100), future_calendar=True)
    info = DataInfo("forecast", 1, 1, 60, horizon=24, mark_width=3)
    data = DataSet("windows", source, source, source, info).to("cuda")
    curves = []
    for graphs in (False, True):
        torch.manual_seed(0)
        options = ws.ModelConfig(
            head="auto", d_model=32, n_layers=2, d_state=32, direct=True, instance_norm="last", horizon_mask=True
        )
        recipe = TrainConfig(lr=0.005, batch_size=16, steps=200, device="cuda", cuda_graphs=graphs)
        model = ws.SequenceModel(model_config("forecast", options, info, "fp32")).cuda()
        curves.append(curve(model, data, recipe, STEPS))
    assert curves[0].isfinite().all()
    torch.testing.assert_close(curves[1], curves[0], rtol=TOLERANCE, atol=TOLERANCE)


def staged_losses(graphs, device="cuda"):
    """Losses of a curriculum over two lengths, eight steps each."""
    data = WindowCopy(96, windows=2, windows_max=4, stages="48:0.5", cases=4).load(0).to(device)
    torch.manual_seed(0)
    config = ws.ModelConfig(2, 8, d_model=32, n_layers=2, d_state=32, norm="batch", head="last")
    recipe = TrainConfig(lr=0.005, batch_size=16, steps=16, device=device, cuda_graphs=graphs, stretch_timescales=True)
    trainer = make_trainer(ws.SequenceModel(config).to(device), data, recipe)
    batches = TrainBatches(trainer.objective.source, 16, 0, 0, 16, total=16)
    return torch.stack([trainer.advance(batch).clone() for batch in batches]).cpu()


def test_a_curriculum_is_captured_stage_by_stage():
    plain, captured = staged_losses(False), staged_losses(True)
    assert len(plain) == 16
    torch.testing.assert_close(captured, plain, rtol=TOLERANCE, atol=TOLERANCE)


def test_captured_steps_in_bf16():
    plain, captured = (losses("tokens", graphs, precision="bf16") for graphs in (False, True))
    torch.testing.assert_close(captured, plain, rtol=3e-2, atol=3e-2)


def test_a_captured_step_on_tokens_waits_for_nothing():
    data = data_of("tokens")
    config = ws.ModelConfig(1, 2, d_model=32, n_layers=2, d_state=32, encoder="embedding", vocabulary=12)
    recipe = TrainConfig(batch_size=16, steps=200, device="cuda", cuda_graphs=True)
    trainer = make_trainer(ws.SequenceModel(config).cuda(), data, recipe)
    source = trainer.objective.source
    index = [torch.arange(16 * i, 16 * i + 16, device="cuda") for i in range(16)]
    for rows in index[:5]:  # three real steps, the capture, a replay
        trainer.advance(source.take(rows))
    before = torch.cuda.get_sync_debug_mode()
    try:
        with warnings.catch_warnings(action="ignore"):  # that the mode is a prototype
            torch.cuda.set_sync_debug_mode("error")
        for rows in index[5:]:
            loss = trainer.advance(source.take(rows))
    finally:
        torch.cuda.set_sync_debug_mode(before)
    assert bool(loss.isfinite())


def test_whole_runs_by_graph_are_the_runs_step_by_step(tmp_path):
    generate_listops(tmp_path, sizes=(64, 16, 16), workers=1, grammar=Grammar(min_length=20, max_length=120))
    copying = {"length": 64, "d_min": 2, "d_max": 3, "cases": 32}
    for task, options in (("window-copy", copying), ("listops", {"root": str(tmp_path)})):
        losses = []
        for graphs in (False, True):
            model = ws.ModelConfig(d_model=16, n_layers=2, d_state=16)
            recipe = TrainConfig(lr=0.01, batch_size=8, steps=20, device="cuda", cuda_graphs=graphs)
            run = train(task, options, model, recipe, tmp_path / f"{task}-{graphs}", show=False)
            losses.append([row["train_loss"] for row in read_rows(run.folder / "metrics.csv", 20)])
        assert losses[1] == pytest.approx(losses[0], rel=5e-3), task

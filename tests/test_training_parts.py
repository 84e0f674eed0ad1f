"""The parts of training alone: recipes, schedule, loader, scores, checkpoints."""

import dataclasses
import errno
import math
import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn import metrics as sklearn_metrics

import wavessm as ws
from contracts import check_refused
from wavessm import ModelConfig
from wavessm.data import Arrays, DataInfo, get_task, tasks
from wavessm.training import (
    Objective,
    RunError,
    TrainConfig,
    Trainer,
    checkpoint,
    loop,
    metrics,
    model_config,
    resolve,
)
from wavessm.training.batches import EvalBatches, TrainBatches, order
from wavessm.training.optimiser import lr_factor
from wavessm_lab.tasks.window_copy import WindowCopy

# -- recipes --------------------------------------------------------------------------------------------------


def test_paper_recipes_hold_the_papers_table():
    """Layers, H, N, norm, prenorm, dropout, lr, batch, epochs, weight decay; steps of the diagonal tasks."""
    table = {
        "ptbxl-diag": (6, 256, 64, "batch", True, 0.1, 0.01, 16, 100, 0.05),
        "forecast": (2, 128, 64, "layer", True, 0.25, 0.01, 50, 10, 0.0),
    }
    for group, row in table.items():
        m, r = resolve(group, "paper")
        got = (m.n_layers, m.d_model, m.d_state, m.norm, m.prenorm, m.dropout, r.lr, r.batch_size, r.epochs,
               r.weight_decay)  # fmt: skip
        assert got == row, group
        assert (m.dt_min, m.dt_max, r.lr_ssm, m.instance_norm) == (0.001, 0.1, 0.001, "none")
    assert resolve("ptbxl-diag", "paper")[0].bidirectional
    model, config = resolve("forecast", "paper")
    assert not model.bidirectional
    assert (config.schedule, config.val_per_epoch) == ("constant", 5)
    # 107 thousand steps on the diagnostic tasks, five validations in an epoch of 7,897 windows
    assert resolve("ptbxl-diag", "paper")[1].plan(17_084).total_steps == 106_800
    assert config.plan(7897).validate_every == 32
    assert resolve("window-copy", "paper")[1].plan(16_384).total_steps == 8000


def test_best_recipes_say_in_what_they_differ():
    for group in tasks():
        named = get_task(group).recipes
        if "paper" in named and named["best"] != named["paper"]:
            assert named["best"].note, group


def test_every_task_has_recipes_and_a_model_for_its_data():
    for name in tasks():
        model, config = resolve(name)
        assert model.head == "auto"
        assert config.plan(100).total_steps > 0


def test_model_of_a_forecast_reads_the_calendar():
    info = DataInfo("forecast", 7, 7, 48, horizon=24, mark_sizes=(13, 32, 7, 24))
    config = model_config("forecast", resolve("forecast")[0], info, "tf32")
    assert (config.encoder, config.head, config.horizon, config.instance_norm) == ("calendar", "forecast", 24, "last")
    assert config.precision == "tf32"
    assert model_config("window-copy", ModelConfig(), DataInfo("regression", 2, 8, 64), "fp32").head == "last"


def test_recipe_goes_to_json_and_back_and_refuses_what_it_does_not_know():
    config = dataclasses.replace(resolve("ptbxl-diag")[1], lr=0.25)
    assert TrainConfig.from_dict(config.to_dict()) == config
    with pytest.raises(ws.UnknownNameError, match="did you mean 'batch_size'"):
        TrainConfig.from_dict({"batchsize": 3})
    with pytest.raises(ws.OptionError, match="lr is -1"):
        TrainConfig.from_dict({"lr": -1.0})
    assert TrainConfig.from_dict({"slow_down": True, "note": "x"}) == TrainConfig(stretch_timescales=True)
    with pytest.raises(ws.UnknownNameError, match="did you mean 'horizon'"):
        get_task("forecast").with_options({"horizn": 3})


# -- the loop in memory -----------------------------------------------------------------------------------------


def in_memory(validate, config, weight=1.0):
    """A linear model trained without a folder; its history."""
    torch.manual_seed(0)
    x = torch.randn(37, 1, 3)
    source = Arrays(x, x.sum(2))
    model = torch.nn.Linear(3, 1)

    def loss(network, batch):
        return weight * (network(batch.x[:, 0]) - batch.y).square().mean()

    def score():
        return {"loss": (model(source.x[:, 0]) - source.y).square().mean().item()}

    history = Trainer(model, Objective(source, loss, score if validate else None), config).fit()
    return model, history, score()["loss"]


def test_the_loop_trains_in_memory_and_keeps_the_best_weights():
    config = TrainConfig(lr=1.0, batch_size=8, epochs=12, schedule="constant", patience=1)
    model, history, score = in_memory(True, config)
    assert score == pytest.approx(min(history.validation))
    assert history.best == min(history.validation)
    assert history.rows[history.validation.index(history.best)]["step"] == history.best_step
    assert len(history.loss) == len(history.validation) < 12, "a rate of 1 must stop it early"
    assert not model.training
    _, plain, _ = in_memory(False, TrainConfig(lr=0.05, batch_size=8, epochs=12))
    assert (len(plain.loss), plain.validation, plain.best_step) == (12, [], 60)
    assert plain.loss[-1] < 0.5 * plain.loss[0]


def test_a_limited_time_shortens_the_schedule(monkeypatch):
    steps = []  # a clock by which each step takes three seconds
    monkeypatch.setattr(loop.time, "monotonic", lambda: 3.0 * len(steps))
    monkeypatch.setattr(Trainer, "work", lambda self, batch: steps.append(batch) or torch.zeros(()))
    config = TrainConfig(batch_size=8, steps=100, max_minutes=1, warmup=0.2)
    _, history, _ = in_memory(True, config)
    assert len(steps) == 20
    rates = [row["lr"] / config.lr for row in history.rows]
    assert max(rates) > 0.9
    assert rates[-1] == pytest.approx(lr_factor(95, 100, "cosine", 0.2)), "the schedule was not at its end"
    steps.clear()
    in_memory(True, dataclasses.replace(config, max_minutes=60))
    assert len(steps) == 100


def test_autocast_is_for_the_forward_pass_alone(monkeypatch):
    """Under it PyTorch would also run the products of a backward pass of float32 in bfloat16."""
    backward, seen = torch.Tensor.backward, []

    def note(self, *args, **kw):
        seen.append(torch.is_autocast_enabled("cpu"))
        return backward(self, *args, **kw)

    monkeypatch.setattr(torch.Tensor, "backward", note)
    in_memory(False, TrainConfig(batch_size=37, epochs=2, precision="bf16"))
    assert seen == [False, False]


def test_a_loss_that_is_not_finite_stops_the_loop_in_memory():
    with pytest.raises(ws.NotFiniteError, match="step 1: the loss is not finite; use a smaller learning_rate"):
        in_memory(True, TrainConfig(batch_size=8), weight=math.nan)


# -- schedule ---------------------------------------------------------------------------------------------------


def test_cosine_rises_to_one_and_falls_to_nothing():
    values = [lr_factor(step, 100, "cosine", 0.1) for step in range(100)]
    assert values[:10] == pytest.approx(np.arange(1, 11) / 10)
    assert values[55] == pytest.approx(0.5)
    assert 0 < values[-1] < 1e-3
    assert lr_factor(4, 100, "cosine", 20) == pytest.approx(0.25), "a warm-up of 1 or more counts steps"


def test_one_cycle_is_pytorchs():
    weight = torch.nn.Parameter(torch.zeros(1))
    optimiser = torch.optim.SGD([weight], lr=1.0)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimiser, 1.0, 1001, pct_start=0.3, final_div_factor=1e9)
    for step in range(0, 1000):
        # PyTorch peaks one step before 30 % of the steps and ends on the last one; ours at 30 % of them and after it
        assert lr_factor(step, 1000, "one-cycle", 0.3) == pytest.approx(optimiser.param_groups[0]["lr"], abs=3e-3), step
        optimiser.step()
        scheduler.step()


def test_constant_is_constant():
    assert {lr_factor(step, 10, "constant", 0) for step in range(10)} == {1.0}


# -- loader -----------------------------------------------------------------------------------------------------


def numbered(cases):
    return Arrays(torch.arange(cases, dtype=torch.float32)[:, None, None], torch.zeros(cases))


def seen(source, start, stop, batch_size=4, seed=3):
    return [batch.x.flatten().tolist() for batch in TrainBatches(source, batch_size, seed, start, stop)]


def test_an_epoch_holds_every_case_and_batches_of_one_size():
    batches = seen(numbered(10), 0, 3)
    assert [len(batch) for batch in batches] == [4, 4, 4]
    flat = [case for batch in batches for case in batch]
    assert sorted(flat[:10]) == list(range(10))
    assert flat[10:] == flat[:2], "the last batch is filled up from the beginning of the epoch"
    assert [len(batch) for batch in seen(numbered(2), 0, 2, batch_size=5)] == [5, 5]


@pytest.mark.parametrize("at", [1, 3, 4, 7])
def test_order_does_not_depend_on_where_a_run_goes_on(at):
    source = numbered(10)
    assert seen(source, 0, 9) == seen(source, 0, at) + seen(source, at, 9)


def test_epochs_and_seeds_have_their_own_order():
    orders = {tuple(order(20, seed, epoch).tolist()) for seed in (0, 1) for epoch in (0, 1)}
    assert len(orders) == 4


def test_whole_split_once_in_order():
    assert [batch.x.flatten().tolist() for batch in EvalBatches(numbered(5), 2)] == [[0, 1], [2, 3], [4]]


# -- scores -----------------------------------------------------------------------------------------------------


def table(kind, output, target):
    """Rows by batches of different sizes, which must not matter."""
    parts = zip(output.split([3, len(output) - 3]), target.split([3, len(target) - 3]), strict=True)
    return torch.cat([metrics.rows(kind, o, t) for o, t in parts]).numpy()


def test_auroc_is_scikit_learns_with_ties():
    generator = torch.Generator().manual_seed(0)
    output = torch.randn(200, 5, generator=generator).round(decimals=1)  # ties
    target = (torch.rand(200, 5, generator=generator) < 0.2).float()
    ours = metrics.summarise("multilabel", table("multilabel", output, target))["auroc"]
    assert ours == pytest.approx(sklearn_metrics.roc_auc_score(target, output, average="macro"), abs=1e-12)


def test_auroc_leaves_out_classes_with_one_label_only():
    output, target = torch.randn(30, 3), torch.zeros(30, 3)
    target[:7, 0] = 1
    target[:, 2] = 1
    ours = metrics.summarise("multilabel", table("multilabel", output, target))["auroc"]
    assert ours == pytest.approx(sklearn_metrics.roc_auc_score(target[:, 0], output[:, 0]))
    assert math.isnan(metrics.summarise("multilabel", table("multilabel", output, torch.zeros(30, 3)))["auroc"])


def test_accuracy_is_scikit_learns():
    output, target = torch.randn(50, 4), torch.randint(4, (50,))
    ours = metrics.summarise("multiclass", table("multiclass", output, target))["accuracy"]
    assert ours == pytest.approx(sklearn_metrics.accuracy_score(target, output.argmax(1)))


@pytest.mark.parametrize("kind", ["forecast", "regression"])
def test_errors_are_scikit_learns(kind):
    output, target = torch.randn(50, 6, 2) + 1, torch.randn(50, 6, 2) * 3 + 2
    ours = metrics.summarise(kind, table(kind, output, target))
    y, p = target.flatten().double(), output.flatten().double()
    assert ours["mse"] == pytest.approx(sklearn_metrics.mean_squared_error(y, p))
    assert ours["mae"] == pytest.approx(sklearn_metrics.mean_absolute_error(y, p))
    if kind == "regression":
        assert ours["relative_mse"] == pytest.approx(1 - sklearn_metrics.r2_score(y, p))


def test_bootstrap_interval_of_accuracy_is_binomial():
    right = np.random.default_rng(0).random(2000) < 0.8
    low, high = metrics.bootstrap("multiclass", np.stack([right, np.ones(2000)], axis=1))["accuracy"]
    spread = 1.645 * math.sqrt(0.8 * 0.2 / 2000)  # 5 % and 95 % of a normal
    assert low == pytest.approx(right.mean() - spread, abs=0.006)
    assert high == pytest.approx(right.mean() + spread, abs=0.006)


def test_bootstrap_draws_again_until_every_class_has_a_positive():
    labels = np.zeros((40, 2))
    labels[:20, 0] = 1
    labels[0, 1] = 1  # absent from a third of all resamples
    rows = np.concatenate([np.random.default_rng(1).normal(size=(40, 2)), labels], axis=1)
    counted = []
    original = metrics.summarise

    def summarise(kind, sample):
        counted.append(sample[:, 2:].any(axis=0).all())
        return original(kind, sample)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metrics, "summarise", summarise)
        low, high = metrics.bootstrap("multilabel", rows)["auroc"]
    assert len(counted) == 1 + 100  # the split and its resamples
    assert all(counted)
    assert low < original("multilabel", rows)["auroc"] < high


def test_bootstrap_leaves_out_resamples_without_variance():
    rows = np.array([[0.1, 0.1, 1.0, 1.0], [0.2, 0.2, 0.3, 0.09], [0.3, 0.3, 0.3, 0.09]])
    spans = metrics.bootstrap("regression", rows)
    assert np.isfinite(list(spans.values())).all()
    assert spans["relative_mse"][1] < 100  # rounding is no variance
    assert list(metrics.bootstrap("regression", rows[1:])) == ["mse", "mae"]


def test_bootstrap_gives_up_soon_where_labels_are_too_rare(monkeypatch):
    rows = np.concatenate([np.zeros((60, 45)), np.eye(60, 45)], axis=1)
    random, draws = np.random.default_rng(0), []
    counting = SimpleNamespace(integers=lambda *args, **kw: draws.append(0) or random.integers(*args, **kw))
    monkeypatch.setattr(np.random, "default_rng", lambda seed: counting)
    assert metrics.bootstrap("multilabel", rows) == {}
    assert len(draws) == metrics.MAX_FAILED_DRAWS


def test_selection_prefers_the_right_direction_and_never_nan():
    auroc, mse = metrics.SELECTION["multilabel"], metrics.SELECTION["forecast"]
    assert auroc.better(0.9, 0.8)
    assert not mse.better(0.9, 0.8)
    assert mse.better(0.9, None)
    assert not mse.better(math.nan, None)


# -- checkpoints ------------------------------------------------------------------------------------------------


def full(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_leaves_the_old_checkpoint(tmp_path, monkeypatch):
    path = tmp_path / "last.ckpt"
    checkpoint.save(path, {"step": 1})
    monkeypatch.setattr(checkpoint.os, "fsync", full)
    with pytest.raises(RunError, match=r"last\.ckpt: could not be written .*; the previous one is kept\. Free"):
        checkpoint.save(path, {"step": 2})
    monkeypatch.undo()
    assert checkpoint.load(path)["step"] == 1
    assert [p.name for p in tmp_path.iterdir()] == ["last.ckpt"], "nothing half written is left"


def test_a_file_that_cannot_be_written_says_why(tmp_path, monkeypatch):
    place = "Give a file in a folder that is there and can be written to"
    for path, words in ((tmp_path, "Is a directory"), (tmp_path / "no" / "a.json", "No such file or directory")):
        with pytest.raises(RunError, match=rf"could not be written \({words}\)\. {place}"):
            checkpoint.write_json(path, {})
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RunError, match=place):
        checkpoint.write_json(Path(), {})
    with pytest.raises(RunError, match=rf"No such file or directory\)\. {place}"):
        checkpoint.save(tmp_path / "no" / "last.ckpt", {})
    monkeypatch.setattr(checkpoint.os, "fsync", full)
    with pytest.raises(RunError, match=r"No space left on device\)\. Free some space"):
        checkpoint.write_json(tmp_path / "a.json", {})


class Evil:
    def __reduce__(self):
        return os.system, ("echo taken over",)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"not a checkpoint", "not a checkpoint of wavessm"),
        (b"", "not a checkpoint of wavessm"),
        (b"abc" * 100, "not a checkpoint of wavessm"),
        ({"state_dict": {}}, "not written by wavessm"),
        ([1, 2], "not written by wavessm"),
        ({"format": "wavessm-run", "version": 999}, "another version of wavessm"),
        ({"format": "wavessm-run", "version": 1, "model": Evil()}, "not a checkpoint of wavessm"),
    ],
)
def test_a_checkpoint_that_is_not_ours_is_refused_in_one_line(tmp_path, capfd, content, words):
    path = tmp_path / "best.ckpt"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        torch.save(content, path)
    check_refused(lambda: checkpoint.load(path), RunError, words)
    assert "taken over" not in capfd.readouterr().out


def test_generated_training_cases_go_on_where_they_stopped():
    source = WindowCopy(length=32, d_min=2, d_max=2, cases=2).load(0).train
    next(iter(TrainBatches(source, 3, 0, 0, 1)))
    state = source.get_state()
    first = next(iter(TrainBatches(source, 3, 0, 1, 2))).x
    assert not torch.equal(next(iter(TrainBatches(source, 3, 0, 2, 3))).x, first)
    source.set_state(state)
    assert torch.equal(next(iter(TrainBatches(source, 3, 0, 1, 2))).x, first)

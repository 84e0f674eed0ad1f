"""Whole runs: what is in their folder, how they end, how they go on, what their scores are."""

import dataclasses
import errno
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

import miniatures
import wavessm as ws
from contracts import check_refused
from miniatures import interrupt
from wavessm import ModelConfig
from wavessm.training import (
    Interrupted,
    Run,
    RunError,
    TrainConfig,
    Trainer,
    checkpoint,
    evaluate_run,
    metrics,
    pick_device,
    predict_files,
    predict_stream,
    read_rows,
    resume,
    train,
)
from wavessm.training.run import held, new_folder

MODEL = ws.ModelConfig(d_model=8, n_layers=1, d_state=8, dropout=0.2)
COPY = {"length": 32, "d_min": 2, "d_max": 3, "cases": 16, "cases_per_epoch": 40}
TINY = TrainConfig(lr=0.01, batch_size=4, steps=23, device="cpu", save_seconds=0, val_per_epoch=1)


def weights(folder, which="last"):
    return checkpoint.load(folder / f"{which}.ckpt")["model"]


def assert_same_run(left, right):
    """Bit for bit: last and best weights, optimiser, scores."""
    for which in ("last", "best"):
        a, b = weights(left, which), weights(right, which)
        assert a.keys() == b.keys()
        for name in a:
            assert torch.equal(a[name], b[name]), f"{which}: {name}"
    a, b = (checkpoint.load(folder / "last.ckpt") for folder in (left, right))
    assert (a["step"], a["best"], a["best_step"], a["waited"]) == (b["step"], b["best"], b["best_step"], b["waited"])
    assert torch.equal(a["random"]["cpu"], b["random"]["cpu"])
    for i, state in a["optimiser"]["state"].items():
        assert torch.equal(state["exp_avg_sq"], b["optimiser"]["state"][i]["exp_avg_sq"])
    assert (left / "result.json").read_text() == (right / "result.json").read_text()
    rows = [[{k: v for k, v in r.items() if k != "seconds"} for r in read_rows(f / "metrics.csv", 10**9)]
            for f in (left, right)]  # fmt: skip
    assert rows[0] == rows[1]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    return train("window-copy", COPY, MODEL, TINY, tmp_path_factory.mktemp("runs") / "unbroken", show=False)


def test_run_folder_holds_what_it_promises(unbroken):
    folder = unbroken.folder
    written = json.loads((folder / "run.json").read_text())
    assert written["train"] == {**TINY.to_dict(), "method": "gradient"}
    assert ModelConfig.from_dict(written["model"]) == unbroken.model
    assert written["environment"]["torch"] == torch.__version__
    assert {"wavessm", "numpy", "python", "revision", "command"} <= set(written["environment"])
    assert Run.read(folder) == unbroken
    rows = read_rows(folder / "metrics.csv", 10**9)
    assert [row["step"] for row in rows] == [10, 20, 23], "every epoch, and at the end"
    assert all(math.isfinite(value) for row in rows for value in row.values())
    assert (folder / "curves.png").stat().st_size > 5000
    best = min(rows, key=lambda row: row["val_relative_mse"])
    assert checkpoint.load(folder / "best.ckpt")["step"] == best["step"]


def test_scores_of_the_run_are_those_of_its_best_model(unbroken):
    result = json.loads((unbroken.folder / "result.json").read_text())
    data = unbroken.options.load(0)
    batch = data.test.take(torch.arange(16))
    with torch.no_grad():
        output = unbroken.load_model()(batch.x)
    mse = (output - batch.y).square().mean()
    assert result["test_mse"] == pytest.approx(mse.item(), rel=1e-6)
    assert result["test_relative_mse"] == pytest.approx((mse / batch.y.var(correction=0)).item(), rel=1e-5)
    evaluated = evaluate_run(unbroken)
    assert evaluated.scores["mse"] == pytest.approx(result["test_mse"])
    low, high = evaluated.intervals["mse"]
    assert low < result["test_mse"] < high


def test_training_learns_the_frequency_of_own_arrays(tmp_path):
    model = ws.ModelConfig(d_model=32, n_layers=1, d_state=32)
    config = TrainConfig(lr=0.02, batch_size=14, epochs=8, device="cpu")
    folder = miniatures.arrays(tmp_path / "own", cases=120)
    run = train("arrays", {"folder": str(folder)}, model, config, tmp_path / "run", show=False)
    rows = read_rows(run.folder / "metrics.csv", 10**9)
    assert rows[-1]["train_loss"] < 0.2 * rows[0]["train_loss"]
    assert evaluate_run(run).scores["accuracy"] > 0.8
    true = run.options.load(0).val.y
    by_class = sum(rows[0][f"val_recall {k}"] * int((true == k).sum()) for k in range(3)) / len(true)
    assert rows[0]["val_accuracy"] == pytest.approx(by_class)


# -- going on -----------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """Stands for kill -9: nothing of ours handles it."""


def test_a_run_broken_anywhere_goes_on_bit_for_bit(unbroken, tmp_path, monkeypatch):
    interrupt(monkeypatch, 0, 7, 10, 22, validations=(10, 23), error=Killed)  # before the first step … after the last
    folder = tmp_path / "broken"
    with pytest.raises(Killed):
        train("window-copy", COPY, MODEL, TINY, folder, show=False)
    for _ in range(5):
        with pytest.raises(Killed):
            resume(folder, show=False)
    resume(folder, show=False)
    assert_same_run(unbroken.folder, folder)


def test_kill_minus_nine_and_resume_end_with_the_same_weights(unbroken, tmp_path):
    """A process killed by the system, at a moment of its own."""
    folder = tmp_path / "killed"
    script = (
        "import json, sys, time\nfrom pathlib import Path\n"
        "from wavessm.training.loop import Trainer\n"
        "from wavessm import ModelConfig\nfrom wavessm.training import TrainConfig, train\n"
        "work = Trainer.work\n"
        "def slow(self, *a):\n    time.sleep(0.02)\n    return work(self, *a)\n"
        "Trainer.work = slow\n"
        "copy, model, config, folder = json.loads(sys.argv[1])\n"
        "model, config = ModelConfig.from_dict(model), TrainConfig.from_dict(config)\n"
        "train('window-copy', copy, model, config, Path(folder), show=False)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, json.dumps([COPY, MODEL.to_dict(), TINY.to_dict(), str(folder)])]
    )
    try:
        deadline = time.monotonic() + 120
        while not (folder / "metrics.csv").exists():
            assert process.poll() is None, "it must be killed before it ends"
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == -signal.SIGKILL
    assert not (folder / "result.json").exists()
    resume(folder, show=False)
    assert_same_run(unbroken.folder, folder)


@pytest.mark.parametrize("task", ["arrays", "csv"])
def test_own_data_with_batch_norm_and_early_stopping_go_on_bit_for_bit(tmp_path, monkeypatch, task):
    if task == "arrays":
        options = {"folder": str(miniatures.arrays(tmp_path / "own"))}
        model = dataclasses.replace(MODEL, norm="batch", bidirectional=True)
        recipe = dataclasses.replace(TINY, steps=0, epochs=4)
    else:
        model, options = (
            MODEL,
            {"path": str(miniatures.csv(tmp_path / "own.csv", rows=200)), "context": 12, "horizon": 4},
        )
        recipe = dataclasses.replace(TINY, steps=0, epochs=3, val_per_epoch=4, patience=2, lr=0.3, schedule="constant")
    recipe = dataclasses.replace(recipe, batch_size=8)
    whole = train(task, options, model, recipe, tmp_path / "whole", show=False)
    last = checkpoint.load(whole.folder / "last.ckpt")["step"]
    if task == "csv":
        assert last < recipe.plan(len(whole.options.load(0).train)).total_steps, "it must stop early"
    interrupt(monkeypatch, 3, last - 1, error=Killed)
    with pytest.raises(Killed):
        train(task, options, model, recipe, tmp_path / "broken", show=False)
    with pytest.raises(Killed):
        resume(tmp_path / "broken", show=False)
    resume(tmp_path / "broken", show=False)
    assert_same_run(whole.folder, tmp_path / "broken")
    resume(tmp_path / "broken", show=False)  # of a finished run: nothing happens
    assert_same_run(whole.folder, tmp_path / "broken")


@pytest.mark.parametrize("at", [7, 10])
def test_ctrl_c_saves_and_the_run_goes_on(unbroken, tmp_path, monkeypatch, at):
    """In the middle of a stretch, and in the step before a validation, which is finished first."""
    handler = signal.getsignal(signal.SIGINT)
    original = Trainer.work

    def work(self, batch):
        if self.step == at - 1 and not asked:
            asked.append(at)
            os.kill(os.getpid(), signal.SIGINT)
        return original(self, batch)

    asked: list[int] = []
    monkeypatch.setattr(Trainer, "work", work)
    with pytest.raises(Interrupted) as caught:
        train("window-copy", COPY, MODEL, dataclasses.replace(TINY, save_seconds=1e9), tmp_path / "run", show=False)
    assert caught.value.args == (tmp_path / "run", at)
    assert checkpoint.load(tmp_path / "run" / "last.ckpt")["step"] == at
    assert signal.getsignal(signal.SIGINT) is handler, "the handler is given back"
    resume(tmp_path / "run", show=False)
    assert miniatures.same_weights(unbroken.folder, tmp_path / "run")


def test_crops_and_augmentation_are_drawn_as_if_the_run_had_never_stopped(tmp_path, monkeypatch):
    folder = miniatures.ptbxl(tmp_path / "ptbxl", records=40, seconds=2)
    changes = {"amplitude": 0.3, "jitter": 0.1, "time_warp": 0.2, "channel_dropout": 0.2, "mixup": 0.5}
    options, recipe = {"root": str(folder)}, dataclasses.replace(TINY, steps=9, crop=0.5, **changes)
    whole = train("ptbxl-super-diag", options, MODEL, recipe, tmp_path / "whole", show=False)
    assert whole.info.length == 200, "validation, test and prediction hear whole records"
    with monkeypatch.context() as broken:
        interrupt(broken, 5, error=Killed)
        with pytest.raises(Killed):
            train("ptbxl-super-diag", options, MODEL, recipe, tmp_path / "broken", show=False)
    resume(tmp_path / "broken", show=False)
    assert miniatures.same_weights(tmp_path / "whole", tmp_path / "broken")


def test_a_stretch_that_does_not_fit_leaves_no_folder(tmp_path):
    folder = miniatures.ptbxl(tmp_path / "ptbxl", records=40, seconds=2)
    long = dataclasses.replace(TINY, crop=3)
    for task, options in (("ptbxl-form", {"root": str(folder)}), ("window-copy", COPY)):
        with pytest.raises(ws.OptionError, match="crop: "):
            train(task, options, MODEL, long, tmp_path / "run", show=False)
        assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """A run on own arrays with given parts."""
    folder = miniatures.arrays(tmp_path_factory.mktemp("own") / "data")
    for part in ("val", "test"):
        for name in ("X", "y"):
            np.save(folder / f"{name}_{part}.npy", np.load(folder / f"{name}.npy")[:12])
    return train(
        "arrays", {"folder": str(folder)}, MODEL, dataclasses.replace(TINY, steps=4), folder / "run", show=False
    )


@pytest.mark.parametrize(
    ("file", "change", "what"),
    [
        ("X", lambda X: X * 2, "scale"),
        ("y*", lambda y: y + 7, "classes"),
        ("X*", lambda X: X[:, ::2], "length"),
        ("y", lambda y: y[::-1], "checksum"),
        ("X_val", lambda X: X + 1, "checksum"),
    ],
)
def test_changed_data_are_neither_gone_on_with_nor_evaluated(own, file, change, what):
    files = {path: np.load(path) for path in own.folder.parent.glob(f"{file}.npy")}
    for path, values in files.items():
        np.save(path, change(values))
    for call in (lambda: resume(own.folder, show=False), lambda: evaluate_run(own)):
        with pytest.raises(
            RunError, match=rf"the data have changed since the run was started \(not the {what} of run\.json\)"
        ):
            call()
    for path, values in files.items():
        np.save(path, values)
    assert evaluate_run(own).cases == 12


def test_runs_without_a_checksum_and_scales_of_another_machine_are_read(own, tmp_path):
    (mean, std) = own.info.scale
    near = dataclasses.replace(own.info, scale=(tuple(m + 1e-8 for m in mean), std))
    old = dataclasses.replace(own, info=near, checksum="")
    assert evaluate_run(old).scores == evaluate_run(own).scores
    content = json.loads((own.folder / "run.json").read_text())
    assert content.pop("checksum") == own.checksum
    (tmp_path / "run.json").write_text(json.dumps(content))
    assert Run.read(tmp_path) == dataclasses.replace(own, folder=tmp_path, checksum="")


def test_a_run_does_not_begin_again_without_its_checkpoint(unbroken, tmp_path):
    for name in ("run.json", "metrics.csv"):
        (tmp_path / name).write_bytes((unbroken.folder / name).read_bytes())
    with pytest.raises(RunError, match=r"last\.ckpt: is missing, but there is metrics\.csv: cannot resume"):
        resume(tmp_path, show=False)


def test_a_run_does_not_go_on_from_what_is_not_its_checkpoint(unbroken, tmp_path):
    (tmp_path / "run.json").write_bytes((unbroken.folder / "run.json").read_bytes())
    change(tmp_path, model=unbroken.model.to_dict() | {"d_model": 16}, id="")  # as the first runs
    (tmp_path / "last.ckpt").write_bytes((unbroken.folder / "last.ckpt").read_bytes())
    words = "do not fit the model of run.json; is it of another run, or an earlier version"
    check_refused(lambda: resume(tmp_path, show=False), RunError, words)


# -- what goes wrong --------------------------------------------------------------------------------------------


def spoil(monkeypatch, at, value):
    """The loss of step `at` becomes `value` times itself."""
    original, calls = metrics.loss, []

    def loss(kind, output, target, *weights):
        calls.append(1)
        return original(kind, output, target, *weights) * (value if len(calls) == at else 1.0)

    monkeypatch.setattr(metrics, "loss", loss)


@pytest.mark.parametrize(
    ("value", "words"), [(math.nan, "the loss is not finite"), (1e6, r"the loss is .*e\+06, .* at first")]
)
def test_divergence_stops_with_the_step_and_keeps_the_last_good_checkpoint(tmp_path, monkeypatch, value, words):
    spoil(monkeypatch, 13, value)
    with pytest.raises(RunError, match=rf"step 13: {words}.*last\.ckpt \(step 12\)"):
        train("window-copy", COPY, MODEL, TINY, tmp_path / "run", show=False)
    kept = checkpoint.load(tmp_path / "run" / "last.ckpt")
    assert kept["step"] == 12
    assert all(bool(torch.isfinite(value).all()) for value in kept["model"].values())


def test_weights_that_are_not_finite_are_not_saved(tmp_path, monkeypatch):
    original = Trainer.work

    def work(self, batch):
        loss = original(self, batch)
        if self.step == 4:
            next(self.model.parameters()).data.fill_(math.inf)
        return loss

    monkeypatch.setattr(Trainer, "work", work)
    with pytest.raises(RunError, match=r"step 5: \S+ holds NaN or infinity.*\(step 4\)"):
        train("window-copy", COPY, MODEL, TINY, tmp_path / "run", show=False)
    assert checkpoint.load(tmp_path / "run" / "last.ckpt")["step"] == 4


def test_a_validation_that_chooses_no_model_stops_the_run_with_its_reason(tmp_path):
    X = np.random.default_rng(0).standard_normal((6, 5, 1))
    miniatures.save(tmp_path, X=X, X_val=X, y=np.eye(6, 2, dtype=int), y_val=np.ones((6, 2)))
    words = r"auroc of the validation is not a number \(are its targets all equal"
    options = {"folder": str(tmp_path)}
    check_refused(lambda: train("arrays", options, MODEL, TINY, tmp_path / "run", show=False), RunError, words)


def test_a_full_disk_stops_the_run_and_it_goes_on_later(unbroken, tmp_path, monkeypatch):
    original, saves = os.fsync, []

    def fsync(number):
        saves.append(number)
        if len(saves) > 12:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        original(number)

    monkeypatch.setattr(checkpoint.os, "fsync", fsync)
    with pytest.raises(RunError, match="No space left on device"):
        train("window-copy", COPY, MODEL, TINY, tmp_path / "run", show=False)
    monkeypatch.undo()
    assert 0 < checkpoint.load(tmp_path / "run" / "last.ckpt")["step"] < 23
    resume(tmp_path / "run", show=False)
    assert_same_run(unbroken.folder, tmp_path / "run")


def change(folder, **fields):
    content = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(content | fields))


def test_other_folders_are_refused_in_one_line(unbroken, tmp_path):
    def refused(words):
        check_refused(lambda: Run.read(tmp_path), RunError, words)

    refused("not a run folder")
    (tmp_path / "run.json").write_text("{")
    refused("cannot be read")
    (tmp_path / "run.json").write_text("[]")
    refused("not written by wavessm")
    (tmp_path / "run.json").write_text((unbroken.folder / "run.json").read_text())
    assert Run.read(tmp_path).task == "window-copy"
    with pytest.raises(RunError, match="there is none; resume the run with"):
        Run.read(tmp_path).load_model()
    (tmp_path / "best.ckpt").write_bytes((unbroken.folder / "best.ckpt").read_bytes())
    change(tmp_path, model=unbroken.model.to_dict() | {"d_model": 16})
    with pytest.raises(RunError, match="have changed since the start of the run"):
        Run.read(tmp_path).load_model()
    change(tmp_path, train=[])
    refused("cannot be used by wavessm")
    change(tmp_path, train=TINY.to_dict() | {"momentum": 1}, id="")
    refused("unknown field of TrainConfig 'momentum'")
    change(tmp_path, version=2)
    refused(r"another version of wavessm \(format 2, this one reads 1\)")


def rewrite(path, **fields):
    """A checkpoint of ours with other fields; None takes one out."""
    content = checkpoint.load(path) | fields
    torch.save({name: value for name, value in content.items() if value is not None}, path)


def copy_run(run, folder):
    shutil.copytree(run.folder, folder)
    return folder


def started(folder):
    """The run before its last steps: it has something left to train."""
    rewrite(folder / "last.ckpt", step=20, rows=checkpoint.load(folder / "last.ckpt")["rows"][:2])


def test_damaged_weights_are_refused(unbroken, tmp_path):
    folder = copy_run(unbroken, tmp_path / "run")
    for name, use in (("best", lambda: evaluate_run(Run.read(folder))), ("last", lambda: resume(folder, show=False))):
        path = folder / f"{name}.ckpt"
        content = bytearray(path.read_bytes())
        weight = next(iter(weights(folder, name).values())).numpy().tobytes()
        content[content.index(weight) + 2] ^= 4
        path.write_bytes(content)
        with pytest.raises(RunError, match=rf"{name}\.ckpt: damaged \(.* does not have its checksum\)"):
            use()
        path.write_bytes((unbroken.folder / path.name).read_bytes())


def test_a_checkpoint_of_another_run_is_refused(unbroken, tmp_path):
    other = train("window-copy", COPY, MODEL, dataclasses.replace(TINY, steps=1), tmp_path / "other", show=False)
    for name, use in (("best", other.load_model), ("last", lambda: resume(other.folder, show=False))):
        shutil.copy(unbroken.folder / f"{name}.ckpt", other.folder)
        with pytest.raises(RunError, match=rf"{name}\.ckpt: belongs to another run"):
            use()
    rewrite(other.folder / "best.ckpt", run=None)
    assert other.load_model() is not None, "the first runs had no id"


@pytest.mark.parametrize("damage", [b"\xff\x00\xfe", b"step,epoch\n1,2,3,4\n", b"step,epoch\n10\n", b"", None])
def test_a_damaged_table_of_metrics_is_written_again_from_the_checkpoint(unbroken, tmp_path, damage):
    folder = copy_run(unbroken, tmp_path / "run")
    started(folder)
    (folder / "metrics.csv").unlink() if damage is None else (folder / "metrics.csv").write_bytes(damage)
    resume(folder, show=False)
    assert [row["step"] for row in read_rows(folder / "metrics.csv")] == [10, 20, 23]


@pytest.mark.parametrize("name", ["model", "optimiser", "random", "source", "waited", "first_loss", "seconds"])
def test_a_checkpoint_without_a_field_is_refused(unbroken, tmp_path, name):
    folder = copy_run(unbroken, tmp_path / "run")
    content = checkpoint.load(folder / "last.ckpt")
    del content[name]
    torch.save(content, folder / "last.ckpt")
    with pytest.raises(RunError, match=rf"last\.ckpt: lacks '{name}', so it cannot be resumed from"):
        resume(folder, show=False)


@pytest.mark.parametrize(
    ("part", "name", "value"), [("model", "prenorm", False), ("train", "lr", 0.5), ("info", "scale", [[0.1], [2.0]])]
)
def test_a_run_whose_description_has_changed_is_refused_but_its_device_may(unbroken, tmp_path, part, name, value):
    folder = copy_run(unbroken, tmp_path / "run")
    content = json.loads((folder / "run.json").read_text())
    change(folder, train=content["train"] | {"device": "auto", "eval_batch_size": 3})
    assert Run.read(folder).load_model().config == unbroken.model
    assert content[part][name] != value
    change(folder, **{part: content[part] | {name: value}})
    with pytest.raises(RunError, match="have changed since the start of the run"):
        Run.read(folder)


def test_seeds_and_states_that_no_machine_holds_are_refused():
    with pytest.raises(ws.OptionError, match="seed is 9223372036854775808, expected 0 to"):
        TrainConfig(seed=2**63)
    with pytest.raises(ws.OptionError, match="d_state is 100000, expected 1 to 4,096"):
        ws.ModelConfig(d_state=100_000)


def test_a_file_in_the_place_of_a_run_folder_is_not_offered_to_resume(tmp_path):
    (tmp_path / "notes.txt").write_text("x")
    for out, words in ((tmp_path / "notes.txt", "File exists"), (tmp_path, "choose another --out.")):
        with pytest.raises(RunError, match=words) as caught:
            train("window-copy", COPY, MODEL, TINY, out, show=False)
        assert "--resume" not in str(caught.value)


def test_a_full_disk_names_the_file(unbroken, tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    folder = copy_run(unbroken, tmp_path / "run")
    (folder / "test.npy").unlink()
    monkeypatch.setattr(np, "save", full)
    with pytest.raises(RunError, match=r"test\.npy: could not be written \(No space left on device\)"):
        resume(folder, show=False)


def test_a_gap_in_the_context_is_named_as_in_training(tmp_path, caplog):
    table = miniatures.csv(tmp_path / "own.csv", rows=200)
    options = {"path": str(table), "context": 12, "horizon": 4}
    run = train("csv", options, MODEL, dataclasses.replace(TINY, steps=1), tmp_path / "run", show=False)
    header, *lines = table.read_text().splitlines()
    (tmp_path / "now.csv").write_text("\n".join([header, *lines[:-5], *lines[-4:]]) + "\n")
    with pytest.raises(ws.WaveSSMError, match=r"now.csv: its index has gaps or no regular step"):
        predict_files(run, [tmp_path / "now.csv"])
    next(predict_stream(run, [header, *lines[:5], *lines[6:20]]))
    assert "the stream: rows are not evenly spaced in time" in caplog.text
    with pytest.raises(ws.WaveSSMError, match="the stream: its rows are 2:00:00 apart"):
        predict_stream(run, [header, *lines[:40:2]])


def test_options_that_this_machine_cannot_serve():
    with pytest.raises(ws.OptionError, match="cuda_graphs needs a GPU"):
        pick_device(TrainConfig(cuda_graphs=True, device="cpu"))
    with pytest.raises(ws.OptionError, match="expected auto, cpu"):
        pick_device(TrainConfig(device="gpu0"))
    if not torch.cuda.is_available():
        with pytest.raises(ws.OptionError, match="sees no GPU"):
            pick_device(TrainConfig(device="cuda"))


def test_rare_labels_are_evaluated_without_an_interval(tmp_path):
    X, y = np.random.default_rng(0).standard_normal((30, 8)), np.eye(30, 25, dtype=int)
    folder = miniatures.save(tmp_path / "own", X=X, y=y, X_val=X, y_val=y, X_test=X, y_test=y)
    recipe = dataclasses.replace(TINY, steps=1)
    found = evaluate_run(train("arrays", {"folder": str(folder)}, MODEL, recipe, tmp_path / "run", show=False))
    assert list(found.scores) == ["auroc"]
    assert found.intervals == {}


def test_a_run_that_is_running_is_not_gone_on_with(unbroken, monkeypatch):
    with held(unbroken.folder), pytest.raises(RunError, match="this run is still running"):
        resume(unbroken.folder, show=False)
    asked = []
    monkeypatch.setattr("wavessm.training.fit._fit", lambda run, *_: asked.append(run))
    resume(unbroken.folder, show=False)
    assert len(asked) == 1


def test_runs_that_begin_together_have_a_folder_each(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with ThreadPoolExecutor(8) as pool:
        folders = list(pool.map(lambda _: new_folder(None, "t"), range(64)))
    assert sorted(folder.name for folder in folders) == [f"t-{number:03}" for number in range(1, 65)]


# -- ways to compute ----------------------------------------------------------------------------------------------


def test_bf16_autocast_trains_to_nearly_the_same_loss(unbroken, tmp_path):
    recipe = dataclasses.replace(TINY, precision="bf16")
    run = train("window-copy", COPY, MODEL, recipe, tmp_path / "run", show=False)
    ours, full = (
        json.loads((folder / "result.json").read_text())["test_mse"] for folder in (run.folder, unbroken.folder)
    )
    assert run.model.precision == "bf16"
    assert ours != full
    assert ours == pytest.approx(full, rel=0.05)
    assert all(value.dtype == torch.float32 for value in weights(run.folder).values() if value.is_floating_point())


@pytest.mark.parametrize("family", ["morlet", "s4d-lin", "legs"])
def test_the_backward_pass_of_a_layer_may_run_under_autocast(family):
    torch.manual_seed(0)
    layer = ws.WaveSSM(4, 8, family=family)
    x = torch.randn(2, 1000, 4)

    def gradients(inside):
        layer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = layer(x).float().square().mean()
            if inside:
                loss.backward()
        if not inside:
            loss.backward()
        return {name: weight.grad for name, weight in layer.named_parameters() if weight.grad is not None}

    for (name, a), b in zip(gradients(True).items(), gradients(False).values(), strict=True):
        assert (a - b).norm() <= 0.01 * b.norm(), name  # products of bfloat16 have a relative error of 0.004


def test_compiled_model_is_asked_for_and_weights_keep_their_names(unbroken, tmp_path, monkeypatch):
    asked = []

    def compile(model):
        asked.append(model)
        return model

    monkeypatch.setattr(torch, "compile", compile)
    run = train("window-copy", COPY, MODEL, dataclasses.replace(TINY, compile=True), tmp_path / "run", show=False)
    assert len(asked) == 1
    assert weights(run.folder).keys() == weights(unbroken.folder).keys()


# -- folders of earlier versions ----------------------------------------------------------------------------------

OLD = Path(__file__).parent / "data" / "revision_50cf3e6"


def test_a_run_of_revision_50cf3e6_is_evaluated_and_resumed_with_the_same_numbers(tmp_path):
    expected = json.loads((OLD / "expected.json").read_text())
    shutil.copytree(OLD / "run", tmp_path / "run")
    run = Run.read(tmp_path / "run")
    assert (run.model.b_init, run.config.max_loss_ratio, run.config.val_per_epoch) == ("slow-modes", 50.0, 2.0)
    assert evaluate_run(run).scores == pytest.approx(expected["interrupted_test"], rel=1e-6)
    resume(run.folder, show=False)
    rows = read_rows(run.folder / "metrics.csv", 10**9)
    assert len(rows) == 3
    for row, was in zip(rows, expected["metrics"], strict=True):
        for name, value in was.items():
            # the encoder's bias before a batch norm has a gradient of rounding alone, which AdamW scales up: it moves
            # validations, which read running means, and no training loss
            assert row[name] == pytest.approx(value, rel=2e-3 if name.startswith("val_") else 1e-6), name
    result = json.loads((run.folder / "result.json").read_text())
    assert result["best_step"] == expected["result"]["best_step"]
    assert result["test_mse"] == pytest.approx(expected["result"]["test_mse"], rel=1e-6)


def test_a_model_of_revision_50cf3e6_gives_the_same_output():
    model = ws.SequenceModel.from_pretrained(OLD / "model").eval()
    output = model(torch.linspace(-1, 1, 24).reshape(1, 12, 2))
    expected = json.loads((OLD / "expected.json").read_text())["model_output"]
    torch.testing.assert_close(output, torch.tensor(expected), rtol=1e-5, atol=1e-6)


# -- another sampling rate ------------------------------------------------------------------------------------------


def test_every_second_sample_is_heard_with_twice_the_step(tmp_path):
    recipe = dataclasses.replace(TINY, steps=4)
    folder = miniatures.arrays(tmp_path / "own")
    run = train("arrays", {"folder": str(folder)}, MODEL, recipe, tmp_path / "run", show=False)
    data = run.options.load(0)
    batch = data.test.take(torch.arange(len(data.test)))
    with torch.no_grad():
        output = run.load_model()(batch.x[:, ::2], rate=2.0)
    expected = (output.argmax(1) == batch.y).float().mean().item()
    evaluated = evaluate_run(run, rate=2)
    assert (evaluated.rate, evaluated.scores["accuracy"]) == (2.0, pytest.approx(expected))
    with pytest.raises(ws.OptionError, match="not known"):
        evaluate_run(run, sampling_rate=50)
    for hz in (0, -1, math.nan):
        with pytest.raises(ws.OptionError, match=f"evaluate: sampling_rate is {hz}, expected a positive finite number"):
            evaluate_run(run, sampling_rate=hz)


def test_ptbxl_is_heard_at_500_hz_from_its_own_records(tmp_path):
    folder = miniatures.ptbxl(tmp_path / "ptbxl", records=40, rates=(100, 500))
    recipe = dataclasses.replace(TINY, steps=3, batch_size=8)
    run = train("ptbxl-super-diag", {"root": str(folder)}, MODEL, recipe, tmp_path / "run", show=False)
    evaluated = evaluate_run(run, sampling_rate=500)
    assert evaluated.rate == pytest.approx(0.2)
    assert 0 <= evaluated.scores["auroc"] <= 1
    assert evaluate_run(run, sampling_rate=50).rate == 2.0
    by_class = evaluate_run(run)
    assert tuple(by_class.classes) == run.info.classes
    seen = [own["score"] for own in by_class.classes.values() if not math.isnan(own["score"])]
    assert by_class.scores["auroc"] == pytest.approx(sum(seen) / len(seen)), "macro: the mean over classes"
    labels = run.options.load(0).test.y
    assert [own["cases"] for own in by_class.classes.values()] == labels.sum(0).int().tolist()


def test_a_published_forecast_trains_end_to_end(tmp_path):
    options = {"root": str(miniatures.forecast(tmp_path / "data").parent), "context": 24, "horizon": 6}
    config = dataclasses.replace(TINY, steps=3, eval_batch_size=1024)
    run = train("forecast", options, MODEL, config, tmp_path / "run", show=False)
    result = json.loads((run.folder / "result.json").read_text())
    assert all(math.isfinite(value) for name, value in result.items() if name.startswith("test_"))


@pytest.mark.parametrize("hidden", [("fcntl", "resource", "pwd"), ("lightning", "rich", "matplotlib")])
def test_training_needs_no_modules_of_unix_and_no_extras(tmp_path, hidden):
    words = ["train", "window-copy", "--length", "32", "--d-min", "2", "--d-max", "2", "--cases", "4", "--d-model", "4",
             "--n-layers", "1", "--d-state", "8", "--steps", "4", "--batch-size", "2", "--device", "cpu"]  # fmt: skip
    code = f"""import sys
for name in {hidden}:
    sys.modules[name] = None
from wavessm.cli import main
sys.exit(main({[*words, "--out", str(tmp_path / "run")]}))"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "result.json").exists()

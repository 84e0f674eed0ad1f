"""Several processes of one run: the same batches, the same scores, one writer, and an end that says its reason."""

import contextlib
import dataclasses
import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import miniatures
import wavessm as ws
from wavessm.data import Arrays
from wavessm.training import (
    Interrupted,
    RunError,
    TrainConfig,
    Trainer,
    checkpoint,
    pick_device,
    read_rows,
    resume,
    train,
)
from wavessm.training.batches import EvalBatches, TrainBatches
from wavessm.training.distributed import DistInfo, dist_info, launch
from wavessm_lab.tasks.window_copy import window_copying

MODEL = ws.ModelConfig(d_model=8, n_layers=1, d_state=8)
# 5 cases in a batch and 17 in a split: neither falls in two equal parts. A validation after every step.
COPY = {"length": 32, "d_min": 2, "d_max": 3, "cases": 17, "cases_per_epoch": 40}
TINY = TrainConfig(
    lr=0.01, batch_size=5, steps=20, device="cpu", save_seconds=0, val_per_epoch=8, grad_clip=0.5, weight_decay=0.1
)
PAIR = dataclasses.replace(TINY, devices=2)


def curve(folder):
    rows = read_rows(folder / "metrics.csv", 10**9)
    return np.array([[row[name] for name in row if name not in ("seconds",)] for row in rows])


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return train("window-copy", COPY, MODEL, TINY, tmp_path_factory.mktemp("runs") / "alone", show=False)


# -- parts ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_parts_of_a_batch_are_the_batch(size):
    def batches(dist, source):
        return list(TrainBatches(source, 5, seed=1, start=3, stop=9, dist=dist))

    def sources():
        return (
            Arrays(torch.arange(23.0)[:, None, None], torch.arange(23)),
            window_copying(32, 2, 2, 3, seed=4, cases_per_epoch=40, cases=2).train,
        )

    for at in range(2):
        whole = batches(DistInfo(), sources()[at])
        parts = [batches(DistInfo(rank, size), sources()[at]) for rank in range(size)]
        for step, batch in enumerate(whole):
            assert torch.equal(torch.cat([part[step].x for part in parts]), batch.x)
            assert torch.equal(torch.cat([part[step].y for part in parts]), batch.y)
    assert sum(DistInfo(rank, size).share(5) for rank in range(size)) == pytest.approx(1)


@pytest.mark.parametrize("cases", [1, 2, 5, 17])
def test_parts_of_a_split_hold_every_case_once_and_no_process_is_idle(cases):
    source = Arrays(torch.arange(cases)[:, None, None], torch.arange(cases))
    seen = []
    for rank in range(3):
        loader = EvalBatches(source, 4, DistInfo(rank, 3))
        batches = list(loader)
        assert len(batches) == len(loader) >= 1
        seen += torch.cat([batch.y for batch in batches])[: loader.cases].tolist()
    assert seen == list(range(cases))


# -- two processes ----------------------------------------------------------------------------------------------------


def test_two_processes_have_the_loss_curve_of_one(alone, tmp_path):
    run = train("window-copy", COPY, MODEL, PAIR, tmp_path / "two", show=False)
    one, two = curve(alone.folder), curve(run.folder)
    assert one.shape == two.shape
    assert len(one) == 20
    np.testing.assert_allclose(two, one, rtol=1e-5, atol=1e-6)
    assert (run.folder / "result.json").exists()
    a, b = (checkpoint.load(folder / "last.ckpt")["model"] for folder in (alone.folder, run.folder))
    for name in a:
        torch.testing.assert_close(b[name], a[name], rtol=1e-4, atol=1e-5)


def test_scores_of_uneven_parts_are_those_of_the_split(tmp_path):
    """Accuracy is no mean of the parts' accuracies unless they are weighed."""
    options = {"folder": str(miniatures.arrays(tmp_path / "own", cases=59))}
    recipe = dataclasses.replace(TINY, steps=6, val_per_epoch=3, batch_size=8)
    one = train("arrays", options, MODEL, recipe, tmp_path / "one", show=False)
    two = train("arrays", options, MODEL, dataclasses.replace(recipe, devices=2), tmp_path / "two", show=False)
    assert len(one.options.load(0).val) % 2 == 1
    np.testing.assert_allclose(curve(two.folder), curve(one.folder), rtol=1e-5, atol=1e-6)


def _log_writers(log, *arguments):
    """Train, and note which rank puts a file in place."""
    replacing = checkpoint.replacing

    @contextlib.contextmanager
    def noting(path):
        with Path(log).open("a") as file:
            file.write(f"{os.environ['RANK']} {path.name}\n")
        with replacing(path) as file:
            yield file

    checkpoint.replacing = noting
    train(*arguments)


def test_only_rank_0_writes(tmp_path):
    log, folder = tmp_path / "log", tmp_path / "run"
    folder.mkdir()
    recipe = dataclasses.replace(PAIR, steps=3)
    launch(_log_writers, (log, "window-copy", COPY, MODEL, recipe, folder, "custom", False), folder, 2)
    lines = {tuple(line.split()) for line in log.read_text().splitlines()}
    assert {name for _, name in lines} == {"run.json", "last.ckpt", "best.ckpt", "metrics.csv", "result.json"}
    assert {rank for rank, _ in lines} == {"0"}


def _command_line(arguments):
    """The command as torchrun would run it in every process."""
    from wavessm.cli import main

    if main(arguments) != 0:
        raise RunError(f"rank {os.environ['RANK']} did not end well.")


def test_the_command_line_under_torchrun_ends_well_in_every_process(tmp_path):
    folder = tmp_path / "run"
    arguments = ["train", "window-copy", "--length", "32", "--cases", "4", "--cases-per-epoch", "8", "--d-model", "4",
                 "--n-layers", "1", "--d-state", "8", "--steps", "2", "--device", "cpu"]  # fmt: skip
    arguments += ["--quiet", "--out", str(folder)]
    launch(_command_line, ([*arguments, "--devices", "2"],), folder, 2)
    assert (folder / "result.json").exists()
    launch(_command_line, (["train", "--resume", str(folder)],), folder, 2)  # finished: nothing happens
    with pytest.raises(RunError, match="did not end well"):
        launch(_command_line, ([*arguments, "--devices", "3"],), folder, 2)


def _break(how, rank, at, *arguments):
    """Train, and let one rank end badly in a step."""
    work = Trainer.work

    def breaking(self, batch):
        if os.environ["RANK"] == rank and self.step == at:
            if how == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            raise RunError("the reason of one rank.")
        return work(self, batch)

    Trainer.work = breaking
    train(*arguments)


@pytest.mark.parametrize(
    ("how", "rank", "words"),
    [("killed", "1", r"rank 1 was killed \(SIGKILL\)"), ("raised", "0", "rank 0 failed: the reason of one rank")],
)
def test_a_rank_that_dies_ends_the_run_with_its_reason_and_it_goes_on(alone, tmp_path, how, rank, words):
    folder = tmp_path / "run"
    folder.mkdir()
    began = time.monotonic()
    with pytest.raises(RunError, match=rf"{words}; saved at step 7, resume: wavessm train --resume") as caught:
        launch(_break, (how, rank, 7, "window-copy", COPY, MODEL, PAIR, folder, "custom", False), folder, 2)
    assert "\n" not in str(caught.value)
    assert time.monotonic() - began < 60
    assert not (folder / "result.json").exists()
    if how == "killed":
        resume(folder, show=False)
    else:  # with another number of processes
        resume(folder, show=False, devices=1)
    np.testing.assert_allclose(curve(folder), curve(alone.folder), rtol=1e-5, atol=1e-6)


def test_ctrl_c_stops_all_processes_at_one_step_and_saves(tmp_path):
    folder = tmp_path / "run"
    recipe = dataclasses.replace(PAIR, steps=100_000, val_per_epoch=0.1, save_seconds=1e9)

    def press():
        deadline = time.monotonic() + 60
        while not (folder / "metrics.csv").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    presser = threading.Thread(target=press)
    presser.start()
    with pytest.raises(Interrupted) as caught:
        train("window-copy", COPY, MODEL, recipe, folder, show=False)
    presser.join()
    assert caught.value.args == (folder, checkpoint.load(folder / "last.ckpt")["step"])
    assert caught.value.args[1] >= 80


# -- what is refused --------------------------------------------------------------------------------------------------


def test_graphs_and_several_processes_exclude_each_other():
    with pytest.raises(ws.OptionError, match="cuda_graphs captures one process; use it with devices"):
        TrainConfig(cuda_graphs=True, devices=2, device="cuda")


def test_processes_that_cannot_be_started_are_refused_before_anything_is_written(tmp_path, monkeypatch):
    def refused(words, **fields):
        with pytest.raises(ws.OptionError, match=words):
            train("window-copy", COPY, MODEL, dataclasses.replace(TINY, **fields), tmp_path / "run", show=False)
        assert not (tmp_path / "run").exists()

    refused("torchrun --nnodes 2 --nproc-per-node 2", devices=2, nodes=2)
    refused("batch_size is 1, fewer than the 2 processes", devices=2, batch_size=1)
    refused("devices is 0", devices=0)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "4"), ("LOCAL_RANK", "0")):
        monkeypatch.setenv(name, value)
    refused("4 processes were started, but the options ask for devices = 2", devices=2)


def test_slurm_says_which_process_this_is(monkeypatch):
    for name, value in (("SLURM_STEP_ID", "0"), ("SLURM_NTASKS", "4"), ("SLURM_PROCID", "3"), ("SLURM_LOCALID", "1")):
        monkeypatch.setenv(name, value)
    assert dist_info(dataclasses.replace(TINY, devices=2, nodes=2)) == DistInfo(3, 4, 1)
    monkeypatch.delenv("SLURM_STEP_ID")  # a batch script, outside srun
    assert dist_info(TINY) == DistInfo()


def test_each_process_has_its_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert pick_device(TrainConfig(devices=2), DistInfo(3, 4, 1)) == torch.device("cuda:1")
    with pytest.raises(ws.OptionError, match="PyTorch sees 2 GPUs"):
        pick_device(TrainConfig(devices=3), DistInfo(0, 3, 0))
    with pytest.raises(ws.OptionError, match="use --device cuda"):
        pick_device(TrainConfig(devices=2, device="cuda:1"), DistInfo(0, 2, 0))

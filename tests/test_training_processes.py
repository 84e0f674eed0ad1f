"""Several processes of one run, started by torchrun: the same batches, the same scores, one writer."""

import dataclasses
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

import miniatures
import wavessm as ws
from wavessm.data import Arrays
from wavessm.training import TrainConfig, checkpoint, pick_device, read_rows, resume, train
from wavessm.training.batches import EvalBatches, TrainBatches
from wavessm.training.distributed import DistInfo, dist_info
from wavessm_lab.tasks.window_copy import WindowCopy

MODEL = ws.ModelConfig(d_model=8, n_layers=1, d_state=8)
# 5 cases in a batch and 17 in a split: neither falls in two equal parts. A validation after every step.
COPY = {"length": 32, "d_min": 2, "d_max": 3, "cases": 17, "cases_per_epoch": 40}
TINY = TrainConfig(
    lr=0.01, batch_size=5, steps=20, device="cpu", save_seconds=0, val_per_epoch=8, grad_clip=0.5, weight_decay=0.1
)


def curve(folder):
    rows = read_rows(folder / "metrics.csv", 10**9)
    return np.array([[row[name] for name in row if name not in ("seconds",)] for row in rows])


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return train("window-copy", COPY, MODEL, TINY, tmp_path_factory.mktemp("runs") / "alone", show=False)


def torchrun(code):
    """Two processes that run `code` after these imports."""
    code = f"""import os
from pathlib import Path
from wavessm import ModelConfig
from wavessm.training import TrainConfig, Trainer, checkpoint, train
{code}"""
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--no-python"]
    words += [sys.executable, "-c", code]
    return subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def call(task, options, config, folder):
    """The code of a training."""
    return f"train({task!r}, {options!r}, {MODEL!r}, {config!r}, Path({str(folder)!r}), show=False)\n"


# -- parts ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_parts_of_a_batch_are_the_batch(size):
    def batches(dist, source):
        return list(TrainBatches(source, 5, seed=1, start=3, stop=9, dist=dist))

    def sources():
        return (
            Arrays(torch.arange(23.0)[:, None, None], torch.arange(23)),
            WindowCopy(32, 2, 2, 3, cases_per_epoch=40, cases=2).load(4).train,
        )

    for at in range(2):
        whole = batches(DistInfo(), sources()[at])
        parts = [batches(DistInfo(rank, size), sources()[at]) for rank in range(size)]
        for step, batch in enumerate(whole):
            assert torch.equal(torch.cat([part[step].x for part in parts]), batch.x)
            assert torch.equal(torch.cat([part[step].y for part in parts]), batch.y)


@pytest.mark.parametrize("cases", [1, 2, 5, 17])
def test_parts_of_a_split_hold_every_case_once_and_no_process_is_idle(cases):
    source = Arrays(torch.arange(cases)[:, None, None], torch.arange(cases))
    seen = []
    for rank in range(3):
        loader = EvalBatches(source, 4, DistInfo(rank, 3))
        batches = list(loader)
        assert len(batches) >= 1
        seen += torch.cat([batch.y for batch in batches])[: loader.cases].tolist()
    assert seen == list(range(cases))


# -- two processes ----------------------------------------------------------------------------------------------------


def test_two_processes_have_the_curve_of_one_and_the_first_writes(alone, tmp_path):
    """Parts are uneven: accuracy is no mean of the parts' accuracies unless they are weighed."""
    options = {"folder": str(miniatures.arrays(tmp_path / "own", cases=59))}
    short = dataclasses.replace(TINY, steps=6, val_per_epoch=3, batch_size=8)
    log = f"""
replacing = checkpoint.replacing
def noting(path):
    with open({str(tmp_path / "log")!r}, "a") as file:
        file.write(os.environ["RANK"] + " " + path.name + "\\n")
    return replacing(path)
checkpoint.replacing = noting
"""
    for task, given, config, name in (("window-copy", COPY, TINY, "two"), ("arrays", options, short, "split")):
        process = torchrun(log + call(task, given, config, tmp_path / name))
        said, _ = process.communicate(timeout=120)
        assert process.returncode == 0, said
    one = train("arrays", options, MODEL, short, tmp_path / "one", show=False)
    assert len(one.options.load(0).val) % 2 == 1
    for ours, theirs in ((alone.folder, tmp_path / "two"), (one.folder, tmp_path / "split")):
        assert curve(ours).shape == curve(theirs).shape
        np.testing.assert_allclose(curve(theirs), curve(ours), rtol=1e-5, atol=1e-6)
        a, b = (checkpoint.load(folder / "last.ckpt")["model"] for folder in (ours, theirs))
        for name in a:
            torch.testing.assert_close(b[name], a[name], rtol=1e-4, atol=1e-5)
    lines = {tuple(line.split()) for line in (tmp_path / "log").read_text().splitlines()}
    assert {name for _, name in lines} >= {"last.ckpt", "best.ckpt"}
    assert {rank for rank, _ in lines} == {"0"}


def test_a_run_whose_process_was_killed_is_resumed_by_one_with_the_same_curve(alone, tmp_path):
    kill = """
work = Trainer.work
def killed(self, batch):
    if os.environ["RANK"] == "1" and self.step == 7:
        os.kill(os.getpid(), 9)
    return work(self, batch)
Trainer.work = killed
"""
    process = torchrun(kill + call("window-copy", COPY, TINY, tmp_path / "run"))
    said, _ = process.communicate(timeout=120)
    assert process.returncode != 0
    assert "SIGKILL" in said or "exitcode  : -9" in said, said
    assert checkpoint.load(tmp_path / "run" / "last.ckpt")["step"] == 7
    resume(tmp_path / "run", show=False)
    np.testing.assert_allclose(curve(tmp_path / "run"), curve(alone.folder), rtol=1e-5, atol=1e-6)


def test_a_signal_stops_all_processes_at_one_step_and_saves(tmp_path):
    long = dataclasses.replace(TINY, steps=100_000, val_per_epoch=0.1, save_seconds=1e9)
    process = torchrun(call("window-copy", COPY, long, tmp_path / "run"))
    deadline = time.monotonic() + 120
    while not (tmp_path / "run" / "metrics.csv").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(0.5)
    os.kill(process.pid, signal.SIGTERM)
    said, _ = process.communicate(timeout=120)
    assert said.count("wavessm.training.checkpoint.Interrupted: (") == 2, said
    step = checkpoint.load(tmp_path / "run" / "last.ckpt")["step"]
    assert step > 80
    assert said.count(f", {step})") == 2, "both at the step that is saved"


# -- what is refused --------------------------------------------------------------------------------------------------


def test_what_several_processes_cannot_do_is_refused(monkeypatch):
    assert dist_info(TINY) == DistInfo()
    for name, value in {"TORCHELASTIC_RUN_ID": "x", "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    assert dist_info(TINY) == DistInfo(3, 4, 1)
    with pytest.raises(ws.OptionError, match="batch_size is 3, fewer than the 4 processes"):
        dist_info(dataclasses.replace(TINY, batch_size=3))
    with pytest.raises(ws.OptionError, match="cuda_graphs captures one process"):
        dist_info(dataclasses.replace(TINY, cuda_graphs=True))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert pick_device(TrainConfig(), DistInfo(3, 4, 1)) == torch.device("cuda:1")
    with pytest.raises(ws.OptionError, match="PyTorch sees 2 GPUs"):
        pick_device(TrainConfig(), DistInfo(2, 3, 2))

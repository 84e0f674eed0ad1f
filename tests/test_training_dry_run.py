"""What a run will take, said before it: held against what runs then took, also at the lengths of Path-X and beyond."""

import dataclasses
import multiprocessing
import resource
from pathlib import Path

import pytest

import wavessm as ws
from wavessm.cli import main
from wavessm.training import TrainConfig, estimate_run, read_rows, train
from wavessm.training.distributed import prepare_server
from wavessm_lab.tasks.window_copy import WindowCopyOptions

SMALL = ws.ModelConfig(d_model=16, n_layers=1, d_state=16)
LONG = TrainConfig(batch_size=4, steps=2, device="cpu", eval_batch_size=4, save_seconds=1e9)
ARGUMENTS = ["--length", "64", "--d-model", "8", "--n-layers", "1", "--d-state", "8", "--device", "cpu"]


def long_copy(length):
    return {"length": length, "cases": 4, "cases_per_epoch": 16}


def estimate(length, recipe, folder, answers):
    answers.put(estimate_run("window-copy", long_copy(length), SMALL, recipe))


def measure(length, recipe, folder, answers):
    """What a real run adds to its process at the highest, and the seconds of its steps."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    train("window-copy", long_copy(length), SMALL, recipe, folder, show=False)
    answers.put(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - pages * resource.getpagesize())


def fresh(work, *arguments):
    """The answer of a process of its own, forked where everything is imported."""
    prepare_server()
    context = multiprocessing.get_context("forkserver")
    answers = context.SimpleQueue()
    process = context.Process(target=work, args=(*arguments, answers))
    process.start()
    answer = answers.get()
    process.join()
    assert process.exitcode == 0
    return answer


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads the memory of a process from Linux's /proc")
def test_long_sequences_stay_within_the_memory_that_was_said(tmp_path):
    said, took = {}, {}
    for length in (16_384, 65_536):
        said[length] = fresh(estimate, length, LONG, None).memory
        took[length] = fresh(measure, length, LONG, tmp_path / str(length))
        ratio = said[length] / took[length]
        assert 0.75 < ratio < 1.35, f"length {length}: {said[length] / 2**20:.0f} MiB said, {took[length] / 2**20:.0f}"
    assert took[65_536] < 4.2 * took[16_384], "memory grows no faster than the length"
    assert took[65_536] < 800 * 2**20, "measured: 570 MiB"


def test_time_parameters_and_steps_are_those_of_the_run(tmp_path, monkeypatch):
    def timed(work, device):  # every step and every batch takes half a second: a real clock would measure the machine
        work()
        return 0.5

    monkeypatch.setattr("wavessm.training.dry_run._timed", timed)
    recipe = TrainConfig(batch_size=4, epochs=30, val_per_epoch=0.1, device="cpu", eval_batch_size=8)
    options = {"length": 256, "cases": 16, "cases_per_epoch": 40}
    said = estimate_run("window-copy", options, SMALL, recipe)
    run = train("window-copy", options, SMALL, recipe, tmp_path / "run", show=False)
    rows = read_rows(run.folder / "metrics.csv", 10**9)
    assert (said.steps, said.validations, said.cases) == (300, len(rows), 40)
    assert said.parameters == sum(p.numel() for p in run.load_model().parameters())
    assert said.seconds == 300 * 0.5 + len(rows) * 2 * 0.5 + 2 * 0.5, "steps, validations and test of two batches each"


def test_several_processes_share_the_batch():
    recipe = dataclasses.replace(LONG, batch_size=5, devices=2)
    assert estimate_run("window-copy", long_copy(64), SMALL, recipe).batch_size == 3


def test_steps_of_a_curriculum_count_by_their_length():
    plain, staged = (
        WindowCopyOptions(length=128, windows=1, d_min=2, d_max=2, stages=stages, cases=4).load(0).train
        for stages in ("", "16:0.5,64:0.25")
    )
    assert plain.mean_length() == 1
    assert staged.mean_length() == pytest.approx(0.5 * 16 / 128 + 0.25 * 64 / 128 + 0.25)


def test_dry_run_writes_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "window-copy", *ARGUMENTS, "--cases", "8", "--steps", "7", "--dry-run"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in said] == ["parameters", "memory", "steps", "time"]
    assert "7 in 1 validations" in said[2]
    assert list(tmp_path.iterdir()) == []


def test_dry_run_refuses_what_a_run_would_refuse():
    with pytest.raises(ws.OptionError, match="batch_size"):
        estimate_run("window-copy", {}, SMALL, dataclasses.replace(LONG, batch_size=0))

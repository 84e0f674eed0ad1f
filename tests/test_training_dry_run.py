"""What a run will take, printed before it."""

import json

import pytest

import wavessm as ws
from wavessm.cli import main
from wavessm.training import TrainConfig, estimate_run, train
from wavessm_lab.tasks.window_copy import WindowCopyOptions

SMALL = ws.ModelConfig(d_model=16, n_layers=1, d_state=16)
ARGUMENTS = ["--length", "64", "--d-model", "8", "--n-layers", "1", "--d-state", "8", "--device", "cpu"]


def test_parameters_and_steps_are_those_of_the_run(tmp_path):
    config = TrainConfig(batch_size=4, epochs=3, val_per_epoch=0.1, device="cpu", eval_batch_size=8)
    options = {"length": 256, "cases": 16, "cases_per_epoch": 40}
    estimate = estimate_run("window-copy", options, SMALL, config)
    run = train("window-copy", options, SMALL, config, tmp_path / "run", show=False)
    assert estimate.steps == 30
    assert estimate.parameters == json.loads((run.folder / "result.json").read_text())["parameters"]
    assert 0 < estimate.step_seconds < 10
    assert estimate.memory > 50 * 2**20, "torch alone is more"


def test_steps_of_a_curriculum_count_by_their_length():
    plain, staged = (
        WindowCopyOptions(length=128, windows=1, d_min=2, d_max=2, stages=stages, cases=4).load(0).train
        for stages in ("", "16:0.5,64:0.25")
    )
    assert plain.mean_length(8) == 1
    assert staged.mean_length(8) == pytest.approx(0.5 * 16 / 128 + 0.25 * 64 / 128 + 0.25)


def test_dry_run_prints_a_line_and_writes_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "window-copy", *ARGUMENTS, "--cases", "8", "--steps", "7", "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert "parameters, 7 steps of " in printed
    assert printed.count("\n") == 1
    assert list(tmp_path.iterdir()) == []

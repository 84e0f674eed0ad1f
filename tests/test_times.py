"""Samples at uneven times: times.npy, files and streams with a time column, tables to forecast."""

import io
import json
import sys
from functools import partial

import numpy as np
import pytest
import torch

from contracts import check_mistake, check_refused
from miniatures import save
from miniatures import table as rows_of
from wavessm.cli import main
from wavessm.data import load
from wavessm.errors import DataError
from wavessm.training import Run
from wavessm.training.evaluate import evaluate_run

SMALL = ["--d-model", "8", "--n-layers", "1", "--d-state", "8", "--dropout", "0", "--quiet", "--device", "cpu"]


def sines(cases=20, length=24, seed=0, step=0.5):
    """Slow or fast sines (cases, length) at times with gaps from a quarter to twice a step, times, and which."""
    rng, y = np.random.default_rng(seed), np.arange(cases) % 2
    times = 100 + step * rng.uniform(0.25, 2.0, (cases, length)).cumsum(1)
    return np.sin(times / step * np.where(y, 0.9, 0.2)[:, None] + rng.uniform(0, 6, (cases, 1))), times, y


def fit(folder, out, *options):
    assert main(["train", "arrays", str(folder), "--out", str(out), "--steps", "6", *SMALL, *options]) == 0
    return Run.read(out)


def losses(run):
    return [float(row["train_loss"]) for row in rows_of((run.folder / "metrics.csv").read_text())]


def test_equal_times_train_as_none(tmp_path):
    X, _, y = sines()
    lengths = np.repeat([24, 17], 10)
    plain = fit(save(tmp_path / "plain", X=X, y=y, lengths=lengths), tmp_path / "a")
    times = 7 + 0.5 * np.broadcast_to(np.arange(24), X.shape)
    timed = fit(
        save(tmp_path / "timed", X=X, y=y, lengths=lengths, times=times), tmp_path / "b", "--method", "gradient"
    )
    assert (plain.info.timed, timed.info.timed, timed.info.step) == (False, True, 0.5)
    np.testing.assert_allclose(losses(timed), losses(plain), rtol=1e-4)
    one, two = (json.loads((run.folder / "result.json").read_text())["test_accuracy"] for run in (plain, timed))
    assert one == two


def test_a_batch_has_the_times_of_its_samples_in_median_steps(tmp_path):
    _, times, y = sines()
    lengths = np.repeat([24, 17], 10)
    data = load("arrays", save(tmp_path, X=times, y=y, lengths=lengths, times=times))
    for part in (data.train, data.val, data.test):
        batch = part.take(torch.arange(len(part)))
        raw = batch.x[..., 0].double() * data.info.scale[1][0] + data.info.scale[0][0]  # the signal is its time
        inside = torch.arange(batch.x.shape[1]) < batch.lengths[:, None]
        torch.testing.assert_close(
            (batch.times * data.info.step)[inside], (raw - raw[:, :1])[inside], atol=1e-4, rtol=0
        )
    gaps = [np.diff(row[:n]) for row, n in zip(times, lengths, strict=True)]
    assert np.quantile(np.concatenate(gaps), 0.4) < data.info.step < np.quantile(np.concatenate(gaps), 0.6)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("times")
    X, times, y = sines()
    return fit(save(folder / "own", X=X, y=y, times=times), folder / "run")  # needs no --method


def test_training_and_evaluation_read_the_times(trained, tmp_path):
    X, _, y = sines()
    plain = fit(save(tmp_path / "plain", X=X, y=y), tmp_path / "run")
    assert abs(losses(trained)[0] - losses(plain)[0]) > 1e-4
    test = trained.load_data().test.take(torch.arange(3))
    outputs, targets, _ = evaluate_run(trained).outputs
    np.testing.assert_allclose(outputs, trained.load_model()(test.x, times=test.times).detach(), atol=1e-5)
    assert targets.tolist() == test.y.tolist()


def test_files_and_streams_with_a_time_column_are_the_model_with_times(trained, tmp_path, capsys, monkeypatch):
    assert trained.method == "gradient"
    X, times, _ = sines(1, 30, seed=4)
    table = np.stack([times[0], X[0]], axis=1)
    np.save(tmp_path / "new.npy", table)
    lines = "time,signal\n" + "\n".join(f"{a!r},{b!r}" for a, b in table.tolist())
    (tmp_path / "new.csv").write_text(lines)
    x = trained.info.standardise(torch.tensor(X[0][:, None], dtype=torch.float32))[None]
    wanted = trained.load_model()(x, times=torch.from_numpy(times / trained.info.step)).softmax(1)[0, 1].item()
    for name in ("new.npy", "new.csv"):
        assert main(["predict", str(trained.folder), str(tmp_path / name), "--times"]) == 0
        assert float(rows_of(capsys.readouterr().out)[0]["1"]) == pytest.approx(wanted, abs=2e-5)
    for text in (lines, lines.partition("\n")[2]):
        monkeypatch.setattr(sys, "stdin", io.StringIO(text))
        assert main(["predict", str(trained.folder), "-", "--times", "--chunk", "10"]) == 0
        found = rows_of(capsys.readouterr().out)
        assert [row["samples"] for row in found] == ["10", "20", "30"]
        assert float(found[-1]["1"]) == pytest.approx(wanted, abs=2e-5)


def test_times_that_cannot_be_used_are_one_line(trained, tmp_path, capsys, monkeypatch):
    X, times, y = sines()
    back = times.copy()
    back[3, 5] = back[3, 4]
    for words, given in {
        r"times\.npy, case 3: times do not increase, .* at step 5 comes after .*; sort them": {"times": back},
        r"times\.npy: shape \(20, 23\) of float64, expected numbers \(20, 24\), one for each sample": {
            "times": times[:, 1:]
        },
    }.items():
        folder = save(tmp_path / "bad", X=X, y=y, **given)
        check_refused(partial(load, "arrays", folder), DataError, words)
    own = str(save(tmp_path / "own", X=X, y=y, times=times))
    np.save(tmp_path / "new.npy", np.stack([back[3], X[3]], axis=1))
    run, other = str(trained.folder), ["--out", str(tmp_path / "no"), *SMALL]
    for words, line in {
        "'features', which reads no times": ["train", "arrays", own, "--method", "features", "--out", other[1]],
        "need diagonal layers; 'legs' is DPLR": ["train", "arrays", own, "--family", "legs", *other],
        "pretraining reads no times": ["pretrain", "arrays", own, "--steps", "1", *other],
        "times do not increase": ["predict", run, str(tmp_path / "new.npy"), "--times"],
        "leave --events and --rate out": ["predict", run, str(tmp_path / "new.npy"), "--times", "--events"],
        "before line 4: times do not increase": ["predict", run, "-", "--times"],
    }.items():
        monkeypatch.setattr(sys, "stdin", io.StringIO("1,5\n2,5\n2,5\n"))
        check_mistake(line, words, capsys)
    assert not (tmp_path / "no").exists()

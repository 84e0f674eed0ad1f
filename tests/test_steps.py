"""A label for each step: loss and scores over true lengths, events, the command line, streams, annotated records."""

import io
import json
import sys
from functools import partial

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, balanced_accuracy_score, f1_score

import wavessm as ws
from contracts import check_mistake, check_refused
from miniatures import save
from miniatures import table as rows_of
from wavessm.cli import main
from wavessm.data import load
from wavessm.data.source import IGNORED
from wavessm.errors import DataError, OptionError, WaveSSMError
from wavessm.training import Run, metrics
from wavessm.training.evaluate import evaluate_run

SMALL = ["--d-model", "8", "--n-layers", "1", "--d-state", "8", "--dropout", "0", "--quiet", "--device", "cpu"]


def marked(cases=20, length=30, seed=0):
    """Noise with stretches that are two higher, X (cases, length), and which steps are in one (cases, length)."""
    rng = np.random.default_rng(seed)
    y = (np.sin(np.arange(length) * 0.4 + rng.uniform(0, 6, (cases, 1))) > 0.3).astype(int)
    return 2.0 * y + 0.3 * rng.standard_normal((cases, length)), y


def runs(labels):
    """Runs as (class, first, end), the slow way."""
    found = []
    for at, label in enumerate(labels):
        if found and found[-1][0] == label and found[-1][2] == at:
            found[-1] = (label, found[-1][1], at + 1)
        else:
            found.append((label, at, at + 1))
    return found


def test_scores_of_steps_are_those_of_scikit_learn_and_events_match_by_half_of_their_union():
    rng = np.random.default_rng(3)
    lengths = [31, 7, 1, 20]
    true = [np.repeat(rng.integers(0, 3, n), rng.integers(1, 6, n))[:n] for n in lengths]
    guess = [np.where(rng.random(len(t)) < 0.15, (t + 1) % 3, t) for t in true]
    y = torch.full((4, 31), IGNORED)
    output = torch.randn(4, 31, 3)
    for case, n in enumerate(map(len, true)):
        y[case, :n] = torch.from_numpy(true[case])
        output[case, :n] = torch.eye(3)[guess[case]] * 9
    scores = metrics.summarise("steps", metrics.rows("steps", output, y).numpy())
    t, g = np.concatenate(true), np.concatenate(guess)
    assert scores["accuracy"] == pytest.approx(accuracy_score(t, g))
    assert scores["balanced_accuracy"] == pytest.approx(balanced_accuracy_score(t, g))
    assert scores["macro_f1"] == pytest.approx(f1_score(t, g, average="macro"))
    hits = found = events = 0
    for a, b in zip(map(runs, guess), map(runs, true), strict=True):
        for label, start, end in a:
            for other, first, last in b:
                shared = max(0, min(end, last) - max(start, first))
                union = (end - start) + (last - first) - shared
                hits += label == other and shared >= 0.5 * union
        found, events = found + len(a), events + len(b)
    assert 0 < hits < events
    assert scores["event_precision"] == pytest.approx(hits / found)
    assert scores["event_recall"] == pytest.approx(hits / events)
    assert scores["event_f1"] == pytest.approx(2 * hits / (found + events))


def test_the_loss_is_that_of_the_true_steps_of_each_case():
    output, y = torch.randn(2, 5, 3), torch.tensor([[0, 1, 2, 1, 0], [2, 2, IGNORED, IGNORED, IGNORED]])
    weight, by_class = torch.tensor([0.5, 1.5]), torch.tensor([1.0, 2.0, 3.0])
    log = output.log_softmax(2)
    whole = -torch.stack([sum(by_class[k] * log[0, t, k] for t, k in enumerate([0, 1, 2, 1, 0])) / 5,
                          3 * (log[1, 0, 2] + log[1, 1, 2]) / 2])  # fmt: skip
    torch.testing.assert_close(metrics.loss("steps", output, y, weight, by_class), (whole * weight).mean())


def test_a_part_of_unequal_cases_keeps_labels_beside_their_samples(tmp_path):
    X, y = marked()
    lengths = np.arange(11, 31)
    y = np.where(np.arange(30) < lengths[:, None], np.array(["rest", "beat"])[y], "nothing")
    data = load("arrays", save(tmp_path, X=X, y=y, lengths=lengths))
    assert data.info.kind == "steps"
    assert data.info.classes == ("beat", "rest")
    for part in (data.train, data.val, data.test):
        batch = part.take(torch.arange(len(part)))
        high = batch.x[..., 0] * data.info.scale[1][0] + data.info.scale[0][0] > 1
        inside = torch.arange(batch.x.shape[1]) < batch.lengths[:, None]
        assert batch.y[~inside].eq(IGNORED).all()
        assert (high == (batch.y == 0))[inside].float().mean() > 0.99


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of the command line that labels steps; y says so without an option."""
    folder = tmp_path_factory.mktemp("steps")
    X, y = marked()
    save(folder / "own", X=X, y=np.array(["rest", "beat"])[y], lengths=np.repeat([30, 24], 10))
    out = str(folder / "run")
    assert main(["train", "arrays", str(folder / "own"), "--out", out, "--steps", "60", "--lr", "0.02", *SMALL]) == 0
    return Run.read(out)


def test_the_command_line_trains_evaluates_and_predicts_steps(trained, tmp_path, capsys):
    assert trained.model.head == "sequence"
    assert trained.info.kind == "steps"
    result = json.loads((trained.folder / "result.json").read_text())
    assert result["test_accuracy"] > 0.9 > result["baselines"]["most frequent class"]["accuracy"]
    assert main(["evaluate", str(trained.folder), "--by-class", "--plot", str(tmp_path / "a.png")]) == 0
    text = capsys.readouterr().out
    assert "event f1" in text
    assert (tmp_path / "a.csv").read_text().startswith("true,beat,rest")

    X, y = marked(1, seed=5)
    np.save(tmp_path / "new.npy", X[0])
    assert main(["predict", str(trained.folder), str(tmp_path / "new.npy")]) == 0
    steps = rows_of(capsys.readouterr().out)
    assert [row["step"] for row in steps] == [str(k) for k in range(30)]
    said = np.array([row["prediction"] == "beat" for row in steps])
    assert (said == y[0]).mean() > 0.9
    assert main(["predict", str(trained.folder), str(tmp_path / "new.npy"), "--events"]) == 0
    events = rows_of(capsys.readouterr().out)
    names = [(row["prediction"] == "beat", float(row["start"]), float(row["end"])) for row in events]
    assert names == [(bool(label), first, end) for label, first, end in runs(said.tolist())]


def test_a_stream_of_steps_is_the_recording(trained, tmp_path, capsys, monkeypatch):
    X, _ = marked(1, seed=6)
    np.save(tmp_path / "new.npy", X[0])
    main(["predict", str(trained.folder), str(tmp_path / "new.npy")])
    whole = rows_of(capsys.readouterr().out)
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(str(value) for value in X[0].astype(np.float32))))
    assert main(["predict", str(trained.folder), "-", "--chunk", "7"]) == 0
    stream = rows_of(capsys.readouterr().out)
    assert [row["step"] for row in stream] == [row["step"] for row in whole]
    there, here = ([float(row["beat"]) for row in rows] for rows in (whole, stream))
    np.testing.assert_allclose(here, there, atol=2e-5)


def test_what_cannot_be_done_with_steps_is_one_line(trained, tmp_path, capsys):
    X, y = marked()
    text = y.astype(str)
    lines = {
        r"y\.npy: shape \(20, 29\), expected \(20, 30\) for a label of each step": {"y": text[:, :29]},
        r"every training case has the label 0": {"y": np.zeros_like(y)},
        r"X\.npy, case 1: its target is nan": {"y": np.where(np.arange(20)[:, None] == 1, np.nan, y), "kind": "steps"},
    }
    for words, given in lines.items():
        kind = {"kind": given.pop("kind")} if "kind" in given else {}
        check_refused(partial(load, "arrays", save(tmp_path / "bad", X=X, **given), **kind), DataError, words)
    own = save(tmp_path / "own", X=X, y=y)
    words = "'features', which classifies signals or gives numbers; this is a label for each step"
    check_mistake(["train", "arrays", str(own), "--method", "features", "--out", str(tmp_path / "no")], words, capsys)
    with pytest.raises(OptionError, match="labels of steps"):
        evaluate_run(trained, rate=2)
    with pytest.raises(WaveSSMError, match="label for each step"):
        ws.WaveSSMClassifier(max_epochs=1).fit(X, y + np.arange(30) % 2)

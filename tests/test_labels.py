"""Signals as they come: groups stay together, weights weigh, rare classes are told, NaN is a missing sample."""

import dataclasses
import json
import logging
import math

import numpy as np
import pandas as pd
import pytest
import soundfile
import torch
from sklearn import metrics as sk

import wavessm as ws
from contracts import check_mistake, check_refused
from miniatures import load_arrays, load_wav_folder, load_wfdb, save, table, wfdb_folder
from wavessm.cli import main
from wavessm.data.cases import split_groups
from wavessm.errors import DataError, OptionError
from wavessm.export import export_onnx
from wavessm.training import Run, metrics, resolve, train
from wavessm.training.evaluate import evaluate_run
from wavessm.training.scores import (
    average_precision,
    best_thresholds,
    by_group,
    by_target,
    confusion,
    details,
    label_table,
)  # fmt: skip
from wavessm.training.stream import predict_stream

TINY = {"d_model": 8, "n_layers": 1, "d_state": 8, "dropout": 0.0}


def waves(cases=60, length=40, seed=0):
    """Slow sines below zero and fast ones above, with noise, (cases, length, 1), and their class."""
    rng, y = np.random.default_rng(seed), np.arange(cases) % 2
    t = np.arange(length)
    X = np.sin(t * np.where(y, 0.7, 0.2)[:, None]) + 0.2 * rng.standard_normal((cases, length)) + 2 * y[:, None] - 1
    return X[..., None], y


def fit(folder, out, steps=30, model=None, **training):
    start_model, start = resolve("arrays")
    config = dataclasses.replace(start, steps=steps, batch_size=16, device="cpu", **training)
    return train(
        "arrays", {"folder": str(folder)}, start_model.replace(**TINY | (model or {})), config, out, show=False
    )


# --- groups


@pytest.mark.parametrize("seed", range(8))
def test_no_group_is_in_two_parts_and_parts_have_their_share_of_each_class(seed):
    rng = np.random.default_rng(seed)
    groups = rng.integers(0, 40, 600)
    keys = rng.choice(3, 600, p=[0.6, 0.3, 0.1])
    parts = split_groups(keys, groups, [0.15, 0.15], rng, "x")
    assert sorted(np.concatenate(parts)) == list(range(600))
    for part, fraction in zip(parts, (0.7, 0.15, 0.15), strict=True):
        others = np.setdiff1d(np.arange(600), part)
        assert not np.intersect1d(groups[part], groups[others]).size
        share = np.bincount(keys[part], minlength=3) / np.bincount(keys)
        np.testing.assert_allclose(share, fraction, atol=0.1)


def test_few_groups_fill_every_part_and_fewer_are_refused():
    groups = np.repeat(["ann", "bob", "cy"], 10)
    parts = split_groups(np.arange(30) % 2, groups, [0.15, 0.15], np.random.default_rng(0), "x")
    assert [len(part) for part in parts] == [10, 10, 10]
    with pytest.raises(DataError, match="x: 2 groups are too few to draw 2 parts"):
        split_groups(np.arange(20) % 2, groups[:20], [0.15, 0.15], np.random.default_rng(0), "x")


def test_arrays_with_groups_keep_each_in_one_part(tmp_path):
    X, y = waves(90)
    groups = np.arange(90) // 6
    data = load_arrays(save(tmp_path, X=X, y=y, groups=groups))
    found = [set(part.groups) for part in (data.train, data.val, data.test)]
    assert set.union(*found) == {str(group) for group in range(15)}
    assert sum(map(len, found)) == 15
    assert all(found)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"groups": np.arange(5)}, r"groups\.npy: shape \(5,\) of int64, expected 60 whole numbers or text"),
        ({"groups": np.arange(60.0)}, r"groups\.npy: shape \(60,\) of float64, expected 60 whole numbers or text"),
        ({"sample_weight": np.ones(4)}, r"sample_weight\.npy: shape \(4,\) of float64, expected 60 numbers"),
        ({"sample_weight": np.linspace(-1, 1, 60)}, r"X\.npy, case 0: its weight is -1, expected a number"),
        ({"sample_weight": np.zeros(60)}, "all training cases have weight 0"),
        ({"groups": np.arange(60), "X_test": waves()[0], "y_test": waves()[1], "groups_test": np.arange(60)},
         r"group 0 is in train and in test \(60 such groups\)"),
    ],
)  # fmt: skip
def test_bad_groups_and_weights_are_refused_in_one_line(tmp_path, arrays, message):
    X, y = waves()
    check_refused(lambda: load_arrays(save(tmp_path, X=X, y=y, **arrays)), DataError, message)


def test_a_folder_of_recordings_reads_groups_csv(tmp_path):
    rng, lines = np.random.default_rng(0), ["file,group"]
    for label in ("yes", "no"):
        (tmp_path / label).mkdir()
        for number in range(20):
            soundfile.write(tmp_path / label / f"{number}.wav", rng.uniform(-0.5, 0.5, 50), 1000)
            lines.append(f"{label}/{number}.wav,speaker{number // 2}")
    (tmp_path / "groups.csv").write_text("\n".join(lines))
    data = load_wav_folder(tmp_path)
    assert sum(len(set(part.groups)) for part in (data.train, data.val, data.test)) == 10
    (tmp_path / "groups.csv").write_text("\n".join(lines[:-1]))
    with pytest.raises(DataError, match=r"groups\.csv: no group for no/19\.wav"):
        load_wav_folder(tmp_path)


def test_a_column_group_of_the_labels_keeps_a_patient_in_one_part(tmp_path):
    folder = wfdb_folder(tmp_path / "ecg")
    labels = pd.read_csv(folder / "labels.csv")
    labels["group"] = [f"p{i // 3}" for i in range(len(labels))]
    labels.to_csv(folder / "labels.csv", index=False)
    data = load_wfdb(folder)
    found = [set(part.groups) for part in (data.train, data.val, data.test)]
    assert all(found)
    assert sum(map(len, found)) == len(set.union(*found)) == 10
    assert data.info.classes == ("normal", "paced"), "the column is no label"


# --- weights


@pytest.mark.parametrize("kind", ["multiclass", "multilabel", "regression"])
def test_a_weight_of_two_is_a_case_twice(kind):
    torch.manual_seed(0)
    output = torch.randn(5, 3)
    target = {"multiclass": torch.tensor([0, 1, 2, 1, 0]), "multilabel": (torch.rand(5, 3) > 0.5).float()}.get(
        kind, torch.randn(5, 3)
    )
    weight, twice = torch.tensor([2.0, 1, 1, 1, 0]), torch.tensor([0, 0, 1, 2, 3])
    got = metrics.loss(kind, output, target, weight)
    torch.testing.assert_close(got, metrics.loss(kind, output[twice], target[twice]))


def test_balanced_weights_are_those_of_scikit_learn():
    from sklearn.utils.class_weight import compute_class_weight

    y = np.array([0] * 50 + [1] * 7 + [2] * 3)
    ours = metrics.class_weights("multiclass", torch.from_numpy(y), 3)
    np.testing.assert_allclose(ours, compute_class_weight("balanced", classes=np.arange(3), y=y), rtol=1e-6)
    labels = torch.tensor([[1.0, 0], [0, 0], [0, 0], [1, 0]])
    assert metrics.class_weights("multilabel", labels, 2).tolist() == [1.0, 1.0]
    output = torch.randn(60, 3)
    balanced = metrics.loss("multiclass", output, torch.from_numpy(y), class_weight=ours)
    torch.testing.assert_close(balanced, torch.nn.functional.cross_entropy(output, torch.from_numpy(y), ours))


def test_sample_weights_reach_the_loss_and_decide_what_is_learned(tmp_path):
    """Half of the labels are wrong, and weigh nothing: the model learns the right ones."""
    X, y = waves(200)
    wrong = np.arange(200) % 4 < 2
    right = save(tmp_path / "a", X=X, y=np.where(wrong, 1 - y, y), sample_weight=np.where(wrong, 0.0, 3.0),
                 X_test=X[:40], y_test=y[:40], X_val=X[:40], y_val=y[:40])  # fmt: skip
    run = fit(right, tmp_path / "run", steps=40, lr=0.02)
    assert evaluate_run(run).scores["accuracy"] > 0.95
    assert float(load_arrays(right).train.weight.mean()) == pytest.approx(1.0)


def test_class_weight_is_an_option_of_training_with_classes(tmp_path):
    X, y = waves()
    folder = save(tmp_path / "a", X=X, y=y)
    assert main(["train", "arrays", str(folder), "--class-weight", "balanced", "--steps", "2", "--d-model", "8",
                 "--n-layers", "1", "--d-state", "8", "--quiet", "--out", str(tmp_path / "run")]) == 0  # fmt: skip
    assert Run.read(tmp_path / "run").config.class_weight == "balanced"
    labels = save(tmp_path / "labels", X=X, y=np.stack([y, 1 - y, np.arange(len(y)) % 4 == 0], axis=1).astype(int))
    assert main(["train", "arrays", str(labels), "--class-weight", "balanced", "--n-features", "300", "--quiet",
                 "--out", str(tmp_path / "closed")]) == 0  # fmt: skip
    assert Run.read(tmp_path / "closed").method == "features"
    folder = save(tmp_path / "b", X=X, y=y + 0.5 * X[:, 3, 0])
    with pytest.raises(OptionError, match="class_weight is 'balanced', but these data have no classes"):
        fit(folder, tmp_path / "other", class_weight="balanced")


# --- scores


def test_scores_of_classes_are_those_of_scikit_learn():
    from wavessm.data import DataInfo

    rng = np.random.default_rng(0)
    outputs, y = rng.standard_normal((80, 4)), rng.choice(4, 80, p=[0.7, 0.2, 0.1, 0])
    info = DataInfo("multiclass", 1, 4, 9, ("a", "b", "c", "d"))
    got, found = details(info, outputs, y, np.full(4, 0.5)), outputs.argmax(1)
    assert got["balanced_accuracy"] == pytest.approx(np.mean([(found[y == k] == k).mean() for k in range(3)]))
    assert got["macro_f1"] == pytest.approx(sk.f1_score(y, found, average="macro"))
    shares = torch.softmax(torch.from_numpy(outputs), 1).numpy()
    precision = [sk.average_precision_score(y == k, shares[:, k]) for k in range(3)]
    assert got["average_precision"] == pytest.approx(np.mean(precision))
    np.testing.assert_array_equal(confusion(found, y, 4), sk.confusion_matrix(y, found, labels=range(4)))


def test_a_split_of_one_class_has_no_score_of_one():
    from wavessm.data import DataInfo

    info = DataInfo("multiclass", 1, 2, 9, ("a", "b"))
    got = details(info, np.array([[2.0, 0.0]] * 5), np.zeros(5, int), np.full(2, 0.5))
    assert all(math.isnan(value) for value in got.values())


def test_scores_of_labels_are_those_of_scikit_learn_and_ties_are_shared():
    rng = np.random.default_rng(1)
    outputs, labels = rng.standard_normal((90, 3)).round(1), (rng.random((90, 3)) < [0.5, 0.1, 0]).astype(float)
    ours = average_precision(outputs, labels)
    np.testing.assert_allclose(ours[:2], [sk.average_precision_score(labels[:, k], outputs[:, k]) for k in range(2)])
    assert math.isnan(ours[2])
    thresholds = np.array([0.5, 0.3, 0.5])
    predicted = 1 / (1 + np.exp(-outputs)) >= thresholds
    ours = label_table(predicted, labels > 0.5)
    for k in range(2):
        expected = sk.precision_recall_fscore_support(labels[:, k], predicted[:, k], average="binary")[:3]
        np.testing.assert_allclose([ours[name][k] for name in ("precision", "recall", "f1")], expected)


def test_thresholds_have_the_best_f1_of_all():
    rng = np.random.default_rng(2)
    labels = (rng.random((70, 3)) < [0.4, 0.1, 0]).astype(float)
    outputs = rng.standard_normal((70, 3)) + labels - 1
    chosen = best_thresholds(np.concatenate([outputs, labels], axis=1))
    assert chosen[2] == 0.5, "a label without a positive"
    shares = 1 / (1 + np.exp(-outputs))
    for k in range(2):
        reached = sk.f1_score(labels[:, k], shares[:, k] >= chosen[k])
        assert reached == pytest.approx(max(sk.f1_score(labels[:, k], shares[:, k] >= t) for t in shares[:, k]))


def test_a_class_without_a_test_case_is_told(tmp_path, caplog):
    X, _ = waves(60)
    y = np.array([0] * 40 + [1] * 18 + [2] * 2)
    with caplog.at_level(logging.WARNING, logger="wavessm"):
        load_arrays(save(tmp_path, X=X, y=y, X_test=X[:9], y_test=y[:9], X_val=X[:50], y_val=y[:50]))
    assert "the val part has no case of 2; its scores say nothing about it" in caplog.text
    assert "the test part has no case of 1, 2; its scores say nothing about them" in caplog.text


# --- from the command line


def test_evaluate_shows_rare_classes_and_groups_and_writes_a_confusion_matrix(tmp_path, capsys):
    X, y = waves(120)
    y = np.where(np.arange(120) % 10 == 0, 2, y)
    run = fit(save(tmp_path / "a", X=X, y=y, groups=np.arange(120) // 6), tmp_path / "run")
    figure, out = tmp_path / "matrix.png", tmp_path / "scores.json"
    assert main(["evaluate", str(run.folder), "--by-group", "--plot", str(figure), "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    for word in ("balanced accuracy", "macro f1", "average precision", "accuracy by group: mean"):
        assert word in printed
    rows = table(figure.with_suffix(".csv").read_text())
    data = load_arrays(tmp_path / "a")
    assert [sum(int(row[name]) for name in ("0", "1", "2")) for row in rows] == data.test.y.bincount(
        minlength=3
    ).tolist()
    assert figure.stat().st_size > 5000
    written = json.loads(out.read_text())
    assert sum(own["cases"] for own in written["groups"].values()) == written["cases"]
    hits = sum(own["cases"] * own["accuracy"] for own in written["groups"].values())
    assert hits / written["cases"] == pytest.approx(written["scores"]["accuracy"])


def test_by_group_without_groups_is_refused(tmp_path, capsys):
    X, y = waves()
    run = fit(save(tmp_path / "a", X=X, y=y), tmp_path / "run", steps=2)
    check_mistake(["evaluate", str(run.folder), "--by-group"], "these data have no groups; add groups.npy", capsys)


def test_group_scores_are_scores_of_the_rows_of_a_group():
    rows = np.array([[0, 0], [1, 1], [1, 0], [0, 0]], float)
    got = by_group("multiclass", rows, np.array(["b", "a", "b", "b"]))
    assert got == {"a": {"cases": 1, "accuracy": 1.0}, "b": {"cases": 3, "accuracy": pytest.approx(2 / 3)}}


def test_thresholds_of_labels_are_chosen_on_validation_and_used_by_predict(tmp_path, capsys):
    X, y = waves(160)
    rare = (np.arange(160) % 8 == 1).astype(int)
    folder = save(tmp_path / "a", X=X + 2 * rare[:, None, None], y=np.stack([y, rare], 1))
    run = fit(folder, tmp_path / "run", steps=20)
    result = run.folder / "result.json"
    content = json.loads(result.read_text())
    assert set(content["thresholds"]) == {"0", "1"}
    data = load_arrays(folder)
    with torch.no_grad():
        outputs = run.load_model()(data.val.x).double()
    expected = best_thresholds(np.concatenate([outputs, data.val.y], axis=1))
    np.testing.assert_allclose(list(content["thresholds"].values()), expected, atol=1e-6)

    def predicted():
        assert main(["predict", str(run.folder), str(folder / "X.npy")]) == 0
        return [row["prediction"] for row in table(capsys.readouterr().out)]

    for threshold, wanted in ((0.0, "0;1"), (1.0, "")):
        result.write_text(json.dumps(content | {"thresholds": {"0": threshold, "1": threshold}}))
        assert set(predicted()) == {wanted}
    result.write_text(json.dumps(content | {"thresholds": {"0": "high"}}))
    check_mistake(["predict", str(run.folder), str(folder / "X.npy")], "result.json: cannot be read", capsys)


def test_regression_of_several_targets_is_scored_in_units_of_the_data(tmp_path, capsys):
    X, _ = waves(120)
    y = np.stack([100 + 5 * X.mean((1, 2)), X.std((1, 2)) * 1e-3], axis=1)
    run = fit(save(tmp_path / "a", X=X, y=y), tmp_path / "run")
    result = evaluate_run(run)
    both = result.outputs.targets, result.outputs.outputs
    true, predicted = (run.info.restore(torch.from_numpy(part)).numpy() for part in both)
    for at, name in enumerate(("y0", "y1")):
        assert result.targets[name]["r2"] == pytest.approx(sk.r2_score(true[:, at], predicted[:, at]))
        assert result.targets[name]["mae"] == pytest.approx(sk.mean_absolute_error(true[:, at], predicted[:, at]))
        assert result.targets[name]["mse"] == pytest.approx(sk.mean_squared_error(true[:, at], predicted[:, at]))
    assert result.details["r2"] == pytest.approx(sk.r2_score(true, predicted))
    assert by_target(run.info, *result.outputs[:2]) == result.targets
    assert main(["evaluate", str(run.folder), "--plot", str(tmp_path / "residuals.png")]) == 0
    assert "y1: r2" in capsys.readouterr().out
    rows = table((tmp_path / "residuals.csv").read_text())
    np.testing.assert_allclose([float(row["predicted_y0"]) for row in rows], predicted[:, 0], rtol=1e-5)


# --- missing samples


def test_nan_trains_as_a_gap_and_is_predicted(tmp_path, capsys, caplog):
    X, y = waves(100)
    X[np.random.default_rng(3).random(X.shape) < 0.2] = np.nan
    with caplog.at_level(logging.WARNING, logger="wavessm"):
        run = fit(save(tmp_path / "a", X=X, y=y), tmp_path / "run", steps=40, lr=0.02)
    assert run.model.missing == "gap"
    assert "% of the samples are NaN: missing, --missing gap" in caplog.text
    assert run.info.missing == pytest.approx(np.isnan(X).mean())
    np.testing.assert_allclose(run.info.scale[0][0], np.nanmean(X), atol=0.1)
    assert evaluate_run(run).scores["accuracy"] > 0.85
    assert main(["predict", str(run.folder), str(tmp_path / "a" / "X.npy")]) == 0
    found = [row["prediction"] for row in table(capsys.readouterr().out)]
    assert np.mean(np.array(found) == y.astype(str)) > 0.85
    lines = [" ".join("nan" if np.isnan(v) else str(v) for v in np.atleast_1d(row)) for row in X[3]]
    last = list(predict_stream(run, lines, chunk=7))[-1][0]
    assert (last["samples"], last["prediction"]) == (len(lines), found[3]), "a stream reads the gaps as a file does"
    with pytest.raises(OptionError, match="missing='gap' has no ONNX form; fill NaN, train"):
        export_onnx(run.load_model(), tmp_path / "m.onnx", info=run.info, stream=True)


def test_layers_that_read_no_gaps_hold_and_error_refuses(tmp_path):
    X, y = waves(60)
    X[:, 5:9] = np.nan
    folder = save(tmp_path / "a", X=X, y=y)
    assert fit(folder, tmp_path / "dplr", steps=2, model={"family": "legs"}).model.missing == "hold"
    assert fit(folder, tmp_path / "hold", steps=2, model={"missing": "hold"}).model.missing == "hold"
    with pytest.raises(DataError, match="10 % of the samples are NaN, but missing is 'error'"):
        fit(folder, tmp_path / "error", model={"missing": "error"})
    whole = save(tmp_path / "b", X=np.nan_to_num(X), y=y)
    assert fit(whole, tmp_path / "whole", steps=2).model.missing == "error", "the same model as before without NaN"


@pytest.mark.parametrize("missing", ["auto", "gap"])
def test_state_features_take_weights_and_missing_samples_from_the_command_line(tmp_path, capsys, missing):
    """As with gradients: wrong labels that weigh nothing, a tenth of the samples missing."""
    X, y = waves(200)
    wrong = np.arange(200) % 4 < 2
    clean = X.copy()
    X[np.random.default_rng(3).random(X.shape) < 0.1] = np.nan
    folder = save(tmp_path / "a", X=X, y=np.where(wrong, 1 - y, y), sample_weight=np.where(wrong, 0.0, 3.0),
                  X_test=clean[:40], y_test=y[:40], X_val=X[:40], y_val=y[:40])  # fmt: skip
    options = ["--n-features", "500", "--class-weight", "balanced", "--missing", missing]
    assert main(["train", "arrays", str(folder), *options, "--quiet", "--out", str(tmp_path / "run")]) == 0
    run = Run.read(tmp_path / "run")
    assert (run.method, run.model.missing) == ("features", "hold" if missing == "auto" else "gap")
    assert evaluate_run(run).scores["accuracy"] > 0.95
    capsys.readouterr()
    assert main(["predict", str(run.folder), str(folder / "X_val.npy")]) == 0
    assert np.mean([row["prediction"] == str(label) for row, label in zip(table(capsys.readouterr().out), y)]) > 0.95  # noqa: B905


# --- estimators


def test_early_stopping_of_the_classifier_sets_whole_groups_aside(monkeypatch):
    from wavessm.estimators import classifier

    X, y = waves(60)
    groups, drawn = np.repeat(np.arange(12), 5), []

    def spy(*arguments):
        drawn.append(split_groups(*arguments))
        return drawn[-1]

    monkeypatch.setattr(classifier, "split_groups", spy)
    model = classifier.WaveSSMClassifier(early_stopping=True, max_epochs=1, d_model=8, random_state=0)
    model.fit(X[..., 0], y, groups=groups)
    kept, held = drawn[0]
    assert not np.intersect1d(groups[kept], groups[held]).size
    assert len(held) in (5, 10)
    with pytest.raises(ValueError, match=r"groups has shape \(3,\), expected \(60,\)"):
        model.fit(X[..., 0], y, groups=groups[:3])
    with pytest.raises(OptionError, match="groups are for early_stopping=True"):
        classifier.WaveSSMClassifier().fit(X[..., 0], y, groups=groups)


def test_class_weight_balanced_finds_rare_cases_more_often():
    from wavessm.estimators import WaveSSMClassifier

    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 50))
    y = (np.arange(300) % 10 == 0).astype(int)
    X[y == 1] += 0.25
    found = {w: WaveSSMClassifier(class_weight=w, random_state=0).fit(X[:200], y[:200]).predict(X[200:]).mean()
             for w in (None, "balanced")}  # fmt: skip
    assert found["balanced"] > found[None]
    labels = np.stack([y, np.arange(300) % 2], axis=1)
    several = {w: WaveSSMClassifier(class_weight=w, random_state=0).fit(X[:200], labels[:200]).predict(X[200:]).mean(0)
               for w in (None, "balanced")}  # fmt: skip
    assert several["balanced"][0] > several[None][0]
    with pytest.raises(OptionError, match="class_weight with several labels needs all cases at once"):
        WaveSSMClassifier(class_weight="balanced").partial_fit(X, labels)


def test_the_only_case_of_a_class_does_not_decide_under_balanced_weights():
    """Its score without itself knows nothing of its class; weighed 50-fold it once flattened all probabilities."""
    random = np.random.default_rng(0)
    y = np.array(["a"] * 60 + ["b"] * 39 + ["c"])
    X = np.sin(np.arange(50) * np.array([{"a": 0.2, "b": 0.5, "c": 1.1}[label] for label in y])[:, None])
    X += 0.1 * random.standard_normal(X.shape)
    model = ws.WaveSSMClassifier(class_weight="balanced", random_state=0).fit(X, y)
    assert model.score(X, y) > 0.95
    assert model.predict_proba(X).max(axis=1).mean() > 0.8

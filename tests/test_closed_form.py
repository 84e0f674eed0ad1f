"""Runs that are fitted in closed form: state features for signals, a linear map for forecasts."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch

import miniatures
from wavessm.cli import main
from wavessm.cli.train import read
from wavessm.data import DataInfo
from wavessm.export import export_onnx
from wavessm.features import FeatureConfig, FeatureModel
from wavessm.inspection import feature_groups, feature_shares, sample_contributions
from wavessm.training import Run, RunError, evaluate_run, predict_files, predict_stream, read_rows

FAST = ["--n-features", "600"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run of state features, one that can stream, a linear forecast, and their data."""
    folder = tmp_path_factory.mktemp("closed")
    miniatures.arrays(folder / "arrays")
    miniatures.csv(folder / "series.csv", rows=500)
    for name, words in {"a": ["arrays", *FAST], "s": ["arrays", *FAST, "--no-stretches"]}.items():
        assert main(["train", words[0], str(folder / "arrays"), "--out", str(folder / name), *words[1:]]) == 0
    assert main(["train", "csv", str(folder / "series.csv"), "--out", str(folder / "c"), "--horizon", "12"]) == 0
    return folder


@pytest.mark.parametrize(
    ("words", "method"),
    [
        ("arrays X", "features"),
        ("arrays X --seed 3 --device cpu --kind multiclass", "features"),
        ("wav X --no-stretches", "features"),
        ("arrays X --epochs 30", "gradient"),
        ("arrays X --no-bidirectional", "gradient"),
        ("arrays X --d-model=64", "gradient"),
        ("arrays X --method gradient", "gradient"),
        ("csv X", "linear"),
        ("csv X --horizon 8 --context 40", "linear"),
        ("csv X --lr 0.01", "gradient"),
        ("ptbxl-form", "gradient"),
        ("ptbxl-form --method features", "features"),
        ("forecast", "gradient"),
    ],
)
def test_auto_is_the_closed_form_of_own_data_unless_training_is_asked_for(words, method):
    command = read(words.split())
    assert command.config.method == method
    assert command.recipe_name.startswith("best" if method == "gradient" else method), command.recipe_name


MISTAKES = """
train arrays {0}/arrays --method features --lr 0.1 => --lr is an option of gradient training
train arrays {0}/arrays --epochs 3 --no-stretches => --no-stretches is an option of --method features
train arrays {0}/arrays --method linear => method is 'linear', which forecasts tables; this is a multiclass
train csv {0}/series.csv --method features => method is 'features', which classifies signals
train csv {0}/series.csv --n-features 9 --method linear => --n-features is an option of --method features
train arrays {0}/arrays --n-features 0 => n_features is 0
evaluate {0}/a --rate 2 => sampling rate of training
evaluate {0}/a --checkpoint last => no such checkpoint
predict {0}/a - => cannot stream; fit it with stretches=False (--no-stretches)
inspect {0}/c => fitted by method linear, which has no layers
export {0}/c --format pretrained => method linear, which has no form
export {0}/c --format step-onnx => a linear forecast reads its context
export {0}/c => this forecast reads memories or a calendar; fit it with --no-memory and --calendar none
predict {0}/c {0}/arrays/X.npy => not a readable CSV table
export {0}/a --format step-onnx => cannot stream; fit it with stretches=False (--no-stretches)
export {0}/a --rate 2 => rate and chunk go with gradient training
"""


@pytest.mark.parametrize("line", MISTAKES.strip().splitlines())
def test_mistakes_are_one_line(folder, line, capsys):
    words, _, expected = line.format(folder).partition(" => ")
    assert main([*words.split(), *(["--out", str(folder / "bad")] if words.startswith("train") else [])]) == 2
    said = capsys.readouterr().err.strip()
    assert len(said.splitlines()) == 1, said
    assert expected in said


def test_a_run_folder_has_the_files_of_every_run(folder):
    written = json.loads((folder / "a/run.json").read_text())
    assert written["train"]["method"] == "features"
    assert written["train"]["n_features"] == 600
    (row,) = read_rows(folder / "a/metrics.csv")
    assert row["val_accuracy"] == 1.0
    result = json.loads((folder / "a/result.json").read_text())
    assert result["method"] == result["family"] == "features"
    assert result["test_accuracy"] == 1.0
    assert set(result["intervals"]) == {"accuracy"}
    assert len(np.load(folder / "a/test.npy")) == 9
    content = torch.load(folder / "a/best.ckpt", weights_only=True)  # tensors and plain values: no code runs
    assert {type(value) for value in content["model"].values()} == {torch.Tensor}
    assert not (folder / "a/last.ckpt").exists()


def test_a_loaded_model_is_the_fitted_one(folder):
    run = Run.read(folder / "a")
    data = run.load_data()
    train, test = (part.take(torch.arange(len(part))) for part in (data.train, data.test))
    fitted = FeatureModel.fit(train.x, train.y, "multiclass", config=FeatureConfig(n_features=600), seed=0)
    torch.testing.assert_close(run.load_model()(test.x), fitted(test.x), rtol=1e-4, atol=1e-4)
    assert evaluate_run(run, "train").scores["accuracy"] == 1.0


def test_lengths_labels_and_numbers_have_runs_too(tmp_path):
    miniatures.arrays(tmp_path / "data")
    X, y = (np.load(tmp_path / f"data/{name}.npy") for name in "Xy")
    lengths = np.random.default_rng(0).integers(20, 65, len(X))
    np.save(tmp_path / "data/lengths.npy", lengths)
    for kind, targets in {"labels": np.eye(3)[y], "numbers": 5.0 + y}.items():
        np.save(tmp_path / "data/y.npy", targets)
        assert main(["train", "arrays", str(tmp_path / "data"), "--out", str(tmp_path / kind), *FAST]) == 0
    assert json.loads((tmp_path / "labels/result.json").read_text())["test_auroc"] > 0.9
    assert json.loads((tmp_path / "numbers/result.json").read_text())["test_relative_mse"] < 0.2
    np.save(tmp_path / "new.npy", X[:3])
    rows = predict_files(Run.read(tmp_path / "numbers"), [tmp_path / "new.npy"])
    assert np.allclose([row["y0"] for row in rows], 5.0 + y[:3], atol=0.7), "in the units of the data"


def test_a_stream_ends_where_the_whole_signal_does(folder):
    X, run = np.load(folder / "arrays/X.npy"), Run.read(folder / "s")
    np.save(folder / "one.npy", X[:1])
    (whole,) = predict_files(run, [folder / "one.npy"])
    lines = [",".join(f"{value:.9g}" for value in sample) + "\n" for sample in X[0]]
    for chunk in (1, 7, 64):
        rows = [row for group in predict_stream(run, lines, chunk) for row in group]
        assert len(rows) == -(-len(lines) // chunk)
        for name in ("0", "1", "2"):
            assert rows[-1][name] == pytest.approx(whole[name], abs=1e-5), chunk
    X[0, 3:9, 1], X[0, 5] = np.nan, np.nan
    np.save(folder / "one.npy", X[:1])
    (whole,) = predict_files(run, [folder / "one.npy"])
    lines = [",".join("" if np.isnan(value) else f"{value:.9g}" for value in sample) + "\n" for sample in X[0]]
    *_, (row,) = predict_stream(run, lines, 7)
    assert row["0"] == pytest.approx(whole["0"], abs=1e-5), "nothing between two commas is a missing sample"


def test_a_linear_forecast_is_better_than_its_baselines_and_predicts_files_and_streams(folder, capsys):
    result = json.loads((folder / "c/result.json").read_text())
    assert result["test_mse"] < min(found["mse"] for found in result["baselines"].values())
    assert set(result["baselines"]) >= {"last value", "seasonal day"}
    run = Run.read(folder / "c")
    assert run.info.length == 169, "half of 350 training rows without the horizon"
    assert evaluate_run(run).scores["mse"] == pytest.approx(result["test_mse"])
    ahead = predict_files(run, [folder / "series.csv"])
    assert [row["step"] for row in ahead] == list(range(1, 13))
    text = (folder / "series.csv").read_text().splitlines(keepends=True)
    rows = [row for group in predict_stream(run, text, 499) for row in group]
    assert len(rows) == 2 * 12, "a forecast after 499 rows, one a row later"
    for name, near in (("load", 1e-9), ("load 0.1", 1e-3), ("wind 0.9", 1e-3)):  # one row has moved the quantiles
        assert [row[name] for row in rows[12:]] == pytest.approx([row[name] for row in ahead], rel=near)
    assert [row["date"] for row in rows[12:]] == [row["date"] for row in ahead]


def test_a_line_continues_what_a_line_can(tmp_path):
    """A sum of two waves follows an exact recurrence, so the map has no error to speak of."""
    t = np.arange(400)
    values = np.sin(2 * np.pi * t / 12) + 0.5 * np.sin(2 * np.pi * t / 7.3) + 100
    (tmp_path / "waves.csv").write_text("y\n" + "\n".join(f"{value:.9f}" for value in values) + "\n")
    words = ["train", "csv", str(tmp_path / "waves.csv"), "--horizon", "6", "--out", str(tmp_path / "run"), "--quiet"]
    assert main(words) == 0
    ahead = predict_files(Run.read(tmp_path / "run"), [tmp_path / "waves.csv"])
    t = 400 + np.arange(6)
    truth = np.sin(2 * np.pi * t / 12) + 0.5 * np.sin(2 * np.pi * t / 7.3) + 100
    np.testing.assert_allclose([row["y"] for row in ahead], truth, atol=0.05)


def test_resume_fits_again_and_damage_is_one_line(folder, tmp_path):
    result = (folder / "a/result.json").read_text()
    assert main(["train", "--resume", str(folder / "a")]) == 0
    assert (folder / "a/result.json").read_text() == result
    for name in ("run.json", "best.ckpt"):
        (tmp_path / name).write_bytes((folder / "a" / name).read_bytes())
    run, content = Run.read(tmp_path), torch.load(tmp_path / "best.ckpt", weights_only=True)
    for change, expected in (
        (lambda c: c["model"].pop("ridge.coef"), "do not fit the model"),
        (lambda c: c["model"].update({"ridge.coef": torch.zeros(3)}), "do not fit the model"),
        (lambda c: c.pop("closed"), "holds no features model that this version reads"),
        (lambda c: c["closed"]["bank"].update(readouts="many"), "holds no features model that this version reads"),
    ):
        damaged = {**content, "model": {k: v.clone() for k, v in content["model"].items()}}
        damaged["closed"] = {**content["closed"], "bank": dict(content["closed"]["bank"])}
        change(damaged)
        torch.save(damaged, tmp_path / "best.ckpt")
        with pytest.raises(RunError, match=expected):
            run.load_model()


# -- explanations ---------------------------------------------------------------------------------------------------


def random_head(stretches=True):
    """A model whose every feature counts, so that every pool, stretch and value is in the sum."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(12, 150, 2, generator=generator), torch.arange(12) % 3
    model = FeatureModel.fit(x, y, "multiclass", config=FeatureConfig(n_features=2000, stretches=stretches))
    model.ridge.coef = torch.randn(model.ridge.coef.shape, generator=generator)
    model.ridge.scale = model.ridge.scale.clamp(1e-2, 1e6)
    return model, x


@pytest.mark.parametrize("length", [150, 143, 37, 5])
def test_samples_and_constant_add_up_to_the_logit(length):
    model, x = random_head()
    found, constant = sample_contributions(model, x[0, :length], 1)
    ridge = model.ridge
    expected = ridge.intercept[1] - (ridge.mean / ridge.scale * ridge.coef[:, 1]).sum()
    assert len(found) == length
    assert constant == pytest.approx(float(expected), abs=2e-3 * float(found.abs().sum())), "the same for every signal"


@pytest.mark.parametrize("pool", ["share", "wins", "margin", "values"])
def test_a_sample_gets_what_it_adds_to_the_sum_of_a_feature(pool):
    """A pool is a mean over time, or its root: features of all beginnings of a signal say what each sample added."""
    model, x = random_head(stretches=False)
    bank, signal = model.features.bank, x[0, :96]
    beginnings = model.features(signal.expand(96, -1, -1), torch.arange(1, 97)).double()
    columns, done = bank.blocks[pool], 0
    strides = [1] if pool == "values" else [group.stride for group in bank.groups]
    for k, stride in enumerate(strides):
        column = columns.start + done + 3
        done += 0 if pool == "values" else bank.groups[k].bias.numel()
        mean = beginnings[stride - 1 :: stride, column] ** (2 if pool in ("wins", "margin") else 1)
        added = torch.diff(mean * torch.arange(1, len(mean) + 1), prepend=torch.zeros(1))
        model.ridge.coef = torch.zeros_like(model.ridge.coef)
        model.ridge.coef[column, 1] = 1.0
        found, _ = sample_contributions(model, signal, 1)
        assert found.count_nonzero() == found[stride - 1 :: stride].count_nonzero()
        total = beginnings[-1, column] / model.ridge.scale[column]
        expected = total * added / added.sum() if added.any() else torch.zeros(len(added))
        torch.testing.assert_close(found[stride - 1 :: stride], expected.double(), rtol=1e-3, atol=1e-5)


def test_a_feature_of_a_stretch_contributes_inside_of_it_what_its_readout_does():
    model, x = random_head()
    bank, group = model.features.bank, model.features.bank.groups[0]
    chunks = -(-(150 // group.stride) // group.positions)
    for readout in range(12):
        parts = []
        for block in ("share", "stretch"):
            model.ridge.coef = torch.zeros_like(model.ridge.coef)
            model.ridge.coef[bank.blocks[block].start + readout, 0] = 1.0
            parts.append(sample_contributions(model, x[0], 0)[0][group.stride - 1 :: group.stride])
        a, b = group.stretch[:, readout // bank.readouts, readout % bank.readouts].tolist()
        inside = torch.zeros(len(parts[0]), dtype=torch.bool)
        inside[int(a * chunks) * group.positions : int(np.ceil(b * chunks)) * group.positions] = True
        assert torch.equal(parts[1] != 0, inside & (parts[0] != 0)), (a, b)


def test_a_change_of_the_end_leaves_the_contributions_of_the_beginning():
    model, x = random_head(stretches=False)
    model.ridge.coef[model.features.bank.blocks["share"].stop :] = 0  # shares: each position counts by itself
    changed = x[0].clone()
    changed[100:] += 3.0
    before, after = (sample_contributions(model, signal, 0)[0] for signal in (x[0], changed))
    torch.testing.assert_close(before[:100], after[:100], rtol=1e-5, atol=1e-5)
    assert not torch.allclose(before[100:], after[100:])


def test_shares_of_groups_add_up_and_have_the_names_of_the_bank():
    model, x = random_head()
    bank = model.features.bank
    groups, names = feature_groups(bank, ("left", "right")), bank.names(("left", "right"))
    assert {len(labels) for labels in groups.values()} == {len(names)}
    for name, family, window, channel in zip(names, groups["family"], groups["window"], groups["channel"], strict=True):
        assert channel in name
        assert family == "samples" or name.startswith(f"{family}, window {window}, ")
    assert feature_shares(model, x, 2).sum() == pytest.approx(1.0)


def test_inspect_writes_figures_and_tables(folder, capsys):
    assert main(["inspect", str(folder / "a"), "--cases", "2"]) == 0
    out = folder / "a/inspect"
    rows = list(csv.DictReader(io.StringIO((out / "contributions.csv").read_text())))
    for kind in ("family", "window", "channel", "pool", "stretch"):
        total = sum(float(row["share"]) for row in rows if row["group"] == kind and row["output"] == "1")
        assert total == pytest.approx(1.0, abs=1e-3), kind
    rows = list(csv.DictReader(io.StringIO((out / "samples.csv").read_text())))
    assert len(rows) == 2 * 64
    assert all((out / f"{name}.png").stat().st_size > 5000 for name in ("contributions", "samples"))
    signals = folder / "some.npy"
    np.save(signals, np.load(folder / "arrays/X.npy")[:3])
    assert main(["inspect", str(folder / "a"), "--signals", str(signals), "--out", str(folder / "other")]) == 0
    assert Path(folder / "other/samples.csv").exists()


# -- ONNX -------------------------------------------------------------------------------------------------------------


def session_of(path):
    return pytest.importorskip("onnxruntime").InferenceSession(path, providers=["CPUExecutionProvider"])


def test_an_exported_forecast_answers_as_predict_does(folder):
    words = ["train", "csv", str(folder / "series.csv"), "--out", str(folder / "e"), "--horizon", "12"]
    assert main([*words, "--no-memory", "--calendar", "none"]) == 0
    assert main(["export", str(folder / "e"), "--out", str(folder / "c.onnx")]) == 0
    run = Run.read(folder / "e")
    table = list(csv.DictReader(io.StringIO((folder / "series.csv").read_text())))[-run.info.length :]
    x = np.array([[[float(row[name]) for name in run.info.channels] for row in table]], np.float32)
    (y,) = session_of(folder / "c.onnx").run(None, {"x": x})
    ahead = predict_files(run, [folder / "series.csv"])
    np.testing.assert_allclose(y[0], [[row["load"], row["wind"]] for row in ahead], rtol=1e-4)


@pytest.mark.parametrize("name", ["a", "s"])
def test_exported_features_answer_as_predict_does(folder, name):
    assert main(["export", str(folder / name), "--out", str(folder / f"{name}.onnx")]) == 0
    X = np.load(folder / "arrays/X.npy")[:12]
    np.save(folder / "twelve.npy", X)
    (logits,) = session_of(folder / f"{name}.onnx").run(None, {"x": X})
    found = torch.from_numpy(logits).softmax(1).numpy()
    rows = predict_files(Run.read(folder / name), [folder / "twelve.npy"])
    wanted = np.array([[row[label] for label in "012"] for row in rows])
    assert np.median(np.abs(found - wanted)) < 1e-5
    np.testing.assert_allclose(found, wanted, atol=0.02)


def test_an_exported_stream_answers_as_the_stream_of_a_run(folder):
    assert main(["export", str(folder / "s"), "--format", "step-onnx", "--out", str(folder / "step.onnx")]) == 0
    session, run = session_of(folder / "step.onnx"), Run.read(folder / "s")
    chunk = json.loads(session.get_modelmeta().custom_metadata_map["chunk"])
    x = np.tile(np.load(folder / "arrays/X.npy")[0], (4, 1))[: 4 * chunk]
    lines = [",".join(f"{value:.9g}" for value in sample) + "\n" for sample in x]
    rows = [row for group in predict_stream(run, lines, chunk) for row in group]
    state = {one.name: np.zeros([1, *one.shape[1:]], np.float32) for one in session.get_inputs() if one.name != "x"}
    for part, row in zip(x.reshape(-1, chunk, 2), rows, strict=True):
        logits, *after = session.run(None, {"x": part[None], **state})
        state = dict(zip(state, after, strict=True))
        found = torch.from_numpy(logits)[0].softmax(0).tolist()
        assert found == pytest.approx([row[label] for label in "012"], abs=0.02), row["samples"]


def test_every_pool_stretch_and_value_has_its_onnx_form(tmp_path):
    model, x = random_head()
    info = DataInfo("multiclass", 2, 3, 150, classes=("a", "b", "c"))
    model.ridge.coef /= 100
    report = export_onnx(model, tmp_path / "all.onnx", info=info)
    assert report.error < 0.05
    for length in (150, 143, 37, 5):
        (y,) = session_of(tmp_path / "all.onnx").run(None, {"x": x[:, :length].numpy()})
        wanted = model(x[:, :length]).numpy()
        assert np.median(np.abs(y - wanted)) < 1e-3 * np.abs(wanted).max(), length

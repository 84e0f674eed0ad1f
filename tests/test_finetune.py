"""Pretrained models: what is kept when they are adapted to other data, and how they are trained on from there."""

import hashlib
import json
import logging

import numpy as np
import pytest
import torch

import miniatures
import wavessm as ws
from contracts import check_mistake, check_refused
from miniatures import interrupt, same_weights, save
from wavessm.cli import main
from wavessm.data import load
from wavessm.data.info import DataInfo
from wavessm.data.source import Arrays
from wavessm.errors import DataError
from wavessm.nn import pretrained as folders
from wavessm.nn.layer import param_groups
from wavessm.training import Objective, Run, RunError, TrainConfig, Trainer, checkpoint, resume, train
from wavessm.training.finetune import match_channels, transfer
from wavessm.training.pretrain import ANCHORS, Pretrainer, linear_probe

LEADS = ("I", "II", "III", "AVR")
INFO = DataInfo(
    "multilabel", 4, 3, 100, classes=("A", "B", "C"), channels=LEADS, units=("mV",) * 4, scale=((0.0,), (0.25,)),
    sampling_rate=100.0,
)  # fmt: skip
CONFIG = ws.ModelConfig(d_input=4, d_output=3, d_model=8, n_layers=3, d_state=8, norm="batch", dropout=0.1)


@pytest.fixture
def model():
    torch.manual_seed(0)
    model = ws.SequenceModel(CONFIG)
    model(torch.randn(6, 50, 4))  # statistics of the batch norms
    return model.eval()


@pytest.fixture
def folder(model, tmp_path):
    extra = {"info": INFO.to_dict(), "about": "a toy", "task": "ptbxl", "thresholds": {"A": 0.2, "B": 0.5, "C": 0.9}}
    return folders.save_model(model, tmp_path / "model", extra=extra)


def adapted(model, **changes):
    info = DataInfo.from_dict(INFO.to_dict() | changes)
    config = model.config.replace(d_input=info.d_input, d_output=info.d_output)
    return transfer(model, INFO, config, info)


# -- adapting ---------------------------------------------------------------------------------------------------------


def test_the_same_data_give_the_same_model(model):
    copy, note = adapted(model)
    x = torch.randn(3, 41, 4)
    assert torch.equal(copy.eval()(x), model(x))
    assert copy.fresh == ()
    assert "head is kept" in note


def test_other_classes_get_a_new_head_and_the_same_features(model, folder):
    new = ws.adapt(folder, classes=["x", "y"], channels=LEADS, sampling_rate=100).eval()
    x = torch.randn(3, 41, 4)
    assert new(x).shape == (3, 2)
    assert new.fresh == ("head",)
    assert torch.equal(new.features(x)[1], model.features(x)[1])


def test_another_sampling_rate_is_folded_into_the_steps(model):
    fast, note = adapted(model, sampling_rate=360.0)
    x = torch.randn(2, 123, 4)
    torch.testing.assert_close(fast.eval()(x), model(x, rate=100 / 360), rtol=1e-5, atol=1e-6)
    assert not torch.allclose(fast(x), model(x), atol=1e-3)
    assert "360 Hz instead of 100" in note


def test_channels_are_found_by_name_in_any_order(model):
    picked, note = adapted(model, d_input=2, channels=["lead iii", "MLII"], units=["mV", "mV"], classes=[], d_output=3)
    x = torch.randn(3, 41, 2)
    whole = torch.zeros(3, 41, 4)
    whole[..., 2], whole[..., 1] = x[..., 0], x[..., 1]
    torch.testing.assert_close(picked.eval().features(x)[1], model.features(whole)[1])
    assert picked.fresh == ("head",)
    assert "lead iii, MLII by name" in note


def test_unknown_channels_begin_as_a_mean_and_are_always_trained(folder, caplog):
    with caplog.at_level(logging.INFO, "wavessm.training"):
        new = ws.adapt(folder, classes=2, channels=3, train_blocks=0)
    assert len(caplog.records) == 1
    assert "3 channels to 4 by a learned map" in caplog.text
    assert new.encoder.linear.weight.requires_grad
    old = folders.load_model(folder)
    x = torch.randn(2, 30, 3)
    mean = x.mean(-1, keepdim=True).expand(-1, -1, 4)
    torch.testing.assert_close(new.eval().features(x)[1], old.features(mean)[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("old", "new", "words"), [(("I", "II"), (), "in their order"), ((), ("a", "b"), "in their")])
def test_without_names_on_both_sides_as_many_channels_keep_their_order(old, new, words):
    place, note = match_channels(2, old, 2, new)
    assert torch.equal(place, torch.eye(2))
    assert words in note


def test_bands_of_another_sampling_rate_are_found_by_frequency():
    """A spectrum that both banks see gives nearly the same sum of weights that are smooth in frequency."""
    old, new = (
        DataInfo("multiclass", 1, 2, 9000, sampling_rate=rate, front_end="energies").input_names
        for rate in (16000.0, 8000.0)
    )
    place, note = match_channels(40, old, 40, new)
    assert note == "bands by frequency"
    there, here = (np.array([float(name.split()[0]) for name in names]) for names in (old, new))

    def smooth(f):
        return np.exp(-(((f - 1500) / 700) ** 2))

    weights = place.numpy().T @ smooth(there)  # of the new bands
    np.testing.assert_allclose(weights, smooth(here) * np.gradient(np.interp(here, there, np.arange(40))), atol=0.02)
    assert weights @ smooth(here) == pytest.approx(smooth(there) @ smooth(there), rel=0.03)
    assert (match_channels(40, new, 40, old)[0].numpy()[:, there > 3800] == 0).all(), "not read before"


def test_a_millivolt_stays_a_millivolt_in_other_units_and_scales(model):
    """The new set is in microvolts, with standard deviations of its own."""
    std = [100.0, 200.0, 300.0, 50.0]
    new, _ = adapted(model, units=["uV"] * 4, scale=[[0.0] * 4, std])
    millivolts = torch.randn(2, 41, 4)
    ours = new.eval()(millivolts * 1000 / torch.tensor(std))
    torch.testing.assert_close(ours, model(millivolts / 0.25), rtol=1e-4, atol=1e-5)


def test_of_unknown_units_channels_keep_their_relation(model):
    std = [1.0, 2.0, 3.0, 4.0]
    new, _ = adapted(model, units=[], scale=[[0.0] * 4, std])
    raw = torch.randn(2, 41, 4) * torch.tensor(std)
    common = float(np.sqrt(np.mean(np.square(std))))
    torch.testing.assert_close(new.eval()(raw / torch.tensor(std)), model(raw / common), rtol=1e-4, atol=1e-5)


def test_missing_samples_are_marked_by_columns_that_begin_at_zero(model):
    new, _ = transfer(model, INFO, model.config.replace(missing="hold"), INFO)
    x = torch.randn(2, 41, 4)
    torch.testing.assert_close(new.eval()(x), model(x))
    assert new(x.masked_fill(torch.rand_like(x) < 0.2, torch.nan)).isfinite().all()


# -- what is trained, and how fast ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("blocks", "trained"), [(0, ()), (2, (1, 2)), (None, (0, 1, 2))])
def test_the_last_blocks_are_trained_and_the_others_stay_bit_for_bit(folder, blocks, trained):
    new = ws.adapt(folder, classes=2, train_blocks=blocks)
    before = {name: value.clone() for name, value in new.state_dict().items()}
    X, y = torch.randn(8, 30, 4), torch.arange(8) % 2
    config = TrainConfig(lr=0.01, batch_size=4, steps=6, device="cpu", weight_decay=0.1)
    loss = torch.nn.functional.cross_entropy
    Trainer(new, Objective(Arrays(X, y), lambda network, b: loss(network(b.x), b.y)), config).fit()
    changed = {name for name, value in new.state_dict().items() if not torch.equal(value, before[name])}
    moved = {int(name.split(".")[2]) for name in changed if name.startswith("backbone.blocks")}
    assert moved == set(trained), "running statistics and dropout of frozen blocks included"
    assert "head.decoder.weight" in changed
    assert any(name.startswith("encoder") for name in changed) == (blocks is None)


def test_more_blocks_than_there_are_is_refused(folder):
    with pytest.raises(ws.OptionError, match="train_blocks is 4, but the model has 3 blocks"):
        ws.adapt(folder, classes=2, train_blocks=4)


def test_learning_rates_fall_from_block_to_block(folder):
    new = ws.adapt(folder, classes=2)
    groups = param_groups(new, lr=0.1, weight_decay=0.01, lr_ssm=0.01, layer_decay=0.5)
    rate = {id(p): group["lr"] for group in groups for p in group["params"]}
    assert len(rate) == sum(len(group["params"]) for group in groups) == len(list(new.parameters()))
    blocks = new.backbone.blocks
    assert rate[id(new.head.decoder.weight)] == 0.1
    assert [rate[id(block.project.weight)] for block in blocks] == pytest.approx([0.1 / 8, 0.1 / 4, 0.1 / 2])
    assert [rate[id(block.layer.log_dt)] for block in blocks] == pytest.approx([0.01 / 8, 0.01 / 4, 0.01 / 2])
    assert rate[id(new.encoder.linear.weight)] == pytest.approx(0.1 / 16)
    assert groups[-1]["lr"] == 0.1, "metrics.csv shows the last one"
    mapped = ws.adapt(folder, classes=2, channels=9)
    rate = {id(p): g["lr"] for g in param_groups(mapped, 0.1, 0.01, layer_decay=0.5) for p in g["params"]}
    assert rate[id(mapped.encoder.linear.weight)] == 0.1, "a map that is new is learned at the full rate"


# -- folders, names, checksums ----------------------------------------------------------------------------------------


def test_names_of_the_zoo_work_without_a_path_or_a_network(model, tmp_path, monkeypatch):
    monkeypatch.setattr(folders, "ZOO", tmp_path / "zoo")
    folders.save_model(model, tmp_path / "zoo/toy-ecg", extra={"about": "a toy", "info": INFO.to_dict()}, half=True)
    assert ws.pretrained() == {"toy-ecg": "a toy"}
    x = torch.randn(2, 31, 4)
    loaded = ws.SequenceModel.from_pretrained("toy-ecg")
    assert {p.dtype for p in loaded.parameters()} == {torch.float32}
    torch.testing.assert_close(loaded(x), model(x), rtol=2e-2, atol=5e-3)
    assert ws.adapt("toy-ecg", classes=5)(x).shape == (2, 5)
    with pytest.raises(DataError, match=r"toy-eeg: no such folder, and no model of ws.pretrained\(\) \(toy-ecg\)"):
        ws.SequenceModel.from_pretrained("toy-eeg")


def test_every_model_of_the_zoo_is_whole_small_and_described():
    for name, line in ws.pretrained().items():
        folder = folders.ZOO / name
        run = Run.read(name, unlabelled=True)
        assert run.load_model().config == run.model
        assert sum(file.stat().st_size for file in folder.iterdir()) <= 4 * 2**20
        assert line
        assert run.info.sampling_rate
        assert run.info.scale or run.info.scaling == "recording"
        card = (folder / "README.md").read_text()
        assert all(word in card for word in ("license:", "**Data.**", "**Recipe.**", "**Metrics.**", "**Limits.**"))


@pytest.mark.parametrize(("name", "leads"), [("ecg-12lead", ("MLII", "V5")), ("ecg-1lead", ("any",))])
def test_the_ecg_models_read_few_leads_at_another_rate_alike(name, leads):
    """Ten seconds of drawn beats, sampled at 100 and at 360 Hz, get nearly the same logits."""
    answers = []
    for rate in (100, 360):
        t = np.arange(10 * rate)[:, None] / rate
        since = (t - 0.4) % 0.8
        shape = ((0.15, 0.2, 0.03), (1.0, 0.4, 0.012), (-0.25, 0.43, 0.012), (0.3, 0.65, 0.05))  # P, R, S, T
        beats = sum(height * np.exp(-0.5 * ((since - at) / width) ** 2) for height, at, width in shape)
        row = ws.predict(name, np.tile(beats, len(leads)), sampling_rate=rate, channels=leads)[0]
        answers.append([row[label] for label in Run.read(name).info.classes])
    assert len(answers[0]) == 71
    logits = np.log(np.divide(answers, np.subtract(1, answers)))
    assert np.corrcoef(logits)[0, 1] > 0.97
    assert np.max(answers[0]) > 0.3, "it is sure of nothing"


def test_half_precision_halves_the_file_and_leaves_the_dynamics_exact(model, tmp_path):
    sizes = []
    for half in (False, True):
        path = folders.save_model(model, tmp_path / str(half), half=half)
        sizes.append((path / "model.safetensors").stat().st_size)
        loaded = folders.load_model(path)
        for own, other in zip(model.backbone.blocks, loaded.backbone.blocks, strict=True):
            assert torch.equal(own.layer.log_dt, other.layer.log_dt)
            assert torch.equal(own.layer.frequency, other.layer.frequency)
    assert sizes[1] < sizes[0]


def test_one_changed_bit_of_the_weights_is_noticed(folder):
    path = folder / "model.safetensors"
    assert json.loads((folder / "config.json").read_text())["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    data = bytearray(path.read_bytes())
    data[-1] ^= 1  # the lowest bits of a number: finite, of the same shape
    path.write_bytes(data)
    check_refused(lambda: folders.load_model(folder), DataError, "does not have the SHA-256")


# -- predicting from a folder -----------------------------------------------------------------------------------------


def test_raw_arrays_are_scaled_decoded_and_read_at_their_own_rate(model, folder):
    raw = 0.3 * np.random.default_rng(0).standard_normal((2, 60, 4))
    rows = ws.predict(folder, raw, sampling_rate=250)
    x = torch.from_numpy(raw / 0.25).float()
    expected = torch.sigmoid(model(x, rate=100 / 250)).tolist()
    for row, values in zip(rows, expected, strict=True):
        assert [row[name] for name in "ABC"] == pytest.approx(values, abs=1e-5)
        chosen = [name for name, value, at in zip("ABC", values, (0.2, 0.5, 0.9), strict=True) if value >= at]
        assert row["prediction"] == ";".join(chosen), "by the thresholds that travel with the model"


def test_a_model_trained_with_leads_left_out_reads_those_there_are(model, folder, tmp_path):
    two = 0.25 * np.random.default_rng(0).standard_normal((80, 2)).astype(np.float32)
    with pytest.raises(DataError, match="no lead 'I'"):
        ws.predict(folder, two, channels=["MLII", "aVR"])
    extra = {"info": INFO.to_dict() | {"some_channels": True}}
    folder = folders.save_model(model, tmp_path / "some", extra=extra)
    whole = np.zeros((80, 4), np.float32)
    whole[:, [1, 3]] = two
    assert ws.predict(folder, two, channels=["MLII", "aVR"]) == ws.predict(folder, whole)
    with pytest.raises(DataError, match="none of which"):
        ws.predict(folder, two, channels=["resp", "V9"])
    with pytest.raises(ws.OptionError, match="have 2"):
        ws.predict(folder, two, channels=["II"])


def test_a_model_of_any_one_lead_takes_the_mean_over_those_there_are(tmp_path):
    torch.manual_seed(0)
    model = ws.SequenceModel(CONFIG.replace(d_input=1))
    known = {"d_input": 1, "channels": [], "units": [], "scaling": "recording", "some_channels": True}
    folder = folders.save_model(model, tmp_path / "any", extra={"info": INFO.to_dict() | known})
    record = np.random.default_rng(0).standard_normal((80, 2)).astype(np.float32)
    both, *single = (ws.predict(folder, x)[0] for x in (record, record[:, :1], 100 * record[:, 1:] + 7))
    logits = [np.log(row["B"] / (1 - row["B"])) for row in (both, *single)]
    assert logits[0] == pytest.approx((logits[1] + logits[2]) / 2, abs=1e-4)


def test_the_command_line_predicts_with_a_model_folder(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    np.save("record.npy", np.zeros((60, 4), np.float32))
    assert main(["predict", "model", "record.npy", "--sampling-rate", "300"]) == 0
    assert capsys.readouterr().out.startswith("file,case,prediction,A,B,C\nrecord.npy,0,")
    check_mistake(["evaluate", "model"], "a model without its data", capsys)
    assert main(["inspect", "model"]) == 0
    assert "saliency left out" in capsys.readouterr().out


def test_a_folder_without_a_description_cannot_predict_but_can_be_adapted(model, tmp_path):
    path = model.save_pretrained(tmp_path / "bare")
    with pytest.raises(RunError, match="says nothing about its data; fine-tune it"):
        ws.predict(path, np.zeros((10, 4)))
    assert ws.adapt(path, classes=2, sampling_rate=500)(torch.zeros(1, 10, 4)).shape == (1, 2)


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ([1], "has no attribute 'get'"),
        ({"info": {"kind": "multiclass", "d_input": 1, "d_output": 3, "length": 9}}, "other channels or outputs"),
        ({"info": {"d_input": "x"}}, "d_input is 'x'"),
        ({"info": {"scale": [[0.0], [0.0]]}}, "positive standard deviations"),
    ],
)
def test_a_damaged_description_of_the_data_is_refused_in_one_line(folder, extra, words):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"extra": extra}))
    check_refused(lambda: Run.read(folder), RunError, words)


# -- estimators -------------------------------------------------------------------------------------------------------


def signals(cases=24, channels=2, length=60, seed=0):
    random = np.random.default_rng(seed)
    y = np.arange(cases) % 2
    X = np.sin(np.arange(length) * np.where(y, 0.2, 0.6)[:, None])[:, None] + 0.2 * random.standard_normal(
        (cases, channels, length)
    )
    return X, y


def test_a_classifier_fine_tunes_and_its_frozen_blocks_stay(model, folder, capsys):
    X, y = signals()
    estimator = ws.WaveSSMClassifier(
        pretrained=str(folder), channel_names=["II", "V9"], sampling_rate=200, train_blocks=0, max_epochs=2,
        random_state=0, verbose=1,
    )  # fmt: skip
    assert estimator.fit(X, y).method_ == "gradient"
    assert "channels II by name, V9 by a learned map" in capsys.readouterr().out
    assert estimator.predict_proba(X).shape == (24, 2)
    for own, other in zip(model.backbone.blocks, estimator.model_.backbone.blocks, strict=True):
        assert torch.equal(own.project.weight, other.project.weight)
        assert torch.equal(own.norm.norm.running_var, other.norm.norm.running_var)
        assert torch.allclose(own.layer.log_dt + np.log(0.5), other.layer.log_dt)
    again = ws.WaveSSMClassifier(**estimator.get_params()).fit(X, y)
    assert np.array_equal(again.predict_proba(X), estimator.predict_proba(X))


def test_a_regressor_fine_tunes_all_of_a_model(folder):
    X, y = signals(channels=4)
    fitted = ws.WaveSSMRegressor(pretrained=folder, max_epochs=60, learning_rate=0.02, random_state=0).fit(
        X, y.astype(float)
    )
    assert fitted.score(X, y) > 0.8
    assert fitted.model_.config.d_model == 8


@pytest.mark.parametrize(
    ("options", "words"),
    [({"d_model": 16}, "d_model is decided by the pretrained"), ({"channel_names": ["I"]}, "but X has 2 channels")],
)
def test_options_that_contradict_the_model_are_refused(folder, options, words):
    with pytest.raises(ws.WaveSSMError, match=words):
        ws.WaveSSMClassifier(pretrained=folder, **options).fit(*signals())
    with pytest.raises(ws.OptionError, match="sampling_rate goes with pretrained"):
        ws.WaveSSMClassifier(sampling_rate=100).fit(*signals())


# -- the command line -------------------------------------------------------------------------------------------------


@pytest.fixture
def arrays(tmp_path):
    X, y = signals(40, 2)
    return save(tmp_path / "data", X=X.transpose(0, 2, 1).astype(np.float32), y=y)


TINY = ["--steps", "6", "--batch-size", "8", "--device", "cpu", "--quiet", "--save-seconds", "0"]


def test_train_from_a_model_and_resume_bit_for_bit(folder, arrays, tmp_path, capsys):
    options = ["--from", str(folder), "--train-blocks", "1", "--lr", "0.01", *TINY]
    assert main(["train", "arrays", str(arrays), *options, "--out", str(tmp_path / "run")]) == 0
    run = Run.read(tmp_path / "run")
    assert run.config.method == "gradient"
    assert (run.model.d_model, run.model.dropout, run.model.d_input) == (8, 0.1, 2)
    assert run.fresh == ("head", "encoder")
    first = checkpoint.load(run.folder / "last.ckpt")
    kept = folders.load_model(folder).state_dict()
    assert torch.equal(first["model"]["backbone.blocks.0.layer.C"], kept["backbone.blocks.0.layer.C"])
    assert not torch.equal(first["model"]["backbone.blocks.2.layer.C"], kept["backbone.blocks.2.layer.C"])

    with pytest.MonkeyPatch.context() as patch:
        interrupt(patch, 3)
        assert main(["train", "arrays", str(arrays), *options, "--out", str(tmp_path / "cut")]) == 130
    for file in folder.iterdir():
        file.unlink()  # what to start from is no longer needed
    resume(tmp_path / "cut", show=False)
    assert same_weights(run.folder, tmp_path / "cut")
    assert main(["evaluate", str(tmp_path / "run")]) == 0


def test_arrays_say_their_rate_and_names_on_the_command_line(folder, arrays, tmp_path, capsys):
    words = ["train", "arrays", str(arrays), "--from", str(folder), *TINY[:-3], "--save-seconds", "0"]
    named = ["--sampling-rate", "250", "--channels", "V9,aVR"]
    assert main([*words, *named, "--out", str(tmp_path / "named")]) == 0
    assert "250 Hz instead of 100" in (said := capsys.readouterr().err)
    assert "channels aVR by name, V9 by a learned map" in said
    steps = Run.read(tmp_path / "named").load_model().backbone.blocks[0].layer.log_dt
    old = folders.load_model(folder).backbone.blocks[0].layer.log_dt
    assert torch.allclose(steps, old + np.log(100 / 250), atol=0.05), "but for six steps of training"
    assert main([*words, "--out", str(tmp_path / "bare")]) == 0
    assert "sampling rate unknown, taken as 100 Hz" in capsys.readouterr().err
    check_mistake(
        [*words, "--channels", "I", "--out", str(tmp_path / "odd")], "2 channels, but --channels names 1", capsys
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--d-model", "9"], "--d-model is decided by the model of --from"),
        (["--from", "no-such-model"], "no model of ws.pretrained()"),
        (["--method", "features"], "--from is an option of gradient training"),
    ],
)
def test_what_the_model_decides_is_refused_beside_it(folder, arrays, capsys, options, words):
    check_mistake(["train", "arrays", str(arrays), "--from", str(folder), *options], words, capsys)


# -- pretraining ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("objective", ["cpc", "masked"])
def test_pretrain_then_fine_tune(objective, arrays, tmp_path, capsys):
    sizes = ["--d-model", "8", "--d-state", "8", "--n-layers", "2", "--patch", "6", "--ahead", "3"]
    words = ["pretrain", "arrays", str(arrays), "--objective", objective, *sizes, *TINY]
    assert main([*words, "--out", str(tmp_path / "pre")]) == 0
    assert "probe accuracy" in capsys.readouterr().out
    run = Run.read(tmp_path / "pre", unlabelled=True)
    assert not run.model.bidirectional
    rows = (run.folder / "metrics.csv").read_text().splitlines()
    assert "val_loss,val_probe_accuracy" in rows[0]
    whole = checkpoint.load(run.folder / "last.ckpt")
    head = ws.SequenceModel(run.model).head.state_dict()
    assert all(f"model.head.{name}" in whole["model"] for name in head)

    for command in (["predict", str(run.folder), "x.npy"], ["evaluate", str(run.folder)]):
        check_mistake(command, "pretrained without labels", capsys)
    assert main(["export", str(run.folder), "--format", "pretrained", "--out", str(tmp_path / "folder")]) == 0
    for source in (run.folder, tmp_path / "folder"):
        out = tmp_path / f"tuned-{source.name}"
        assert main(["train", "arrays", str(arrays), "--from", str(source), *TINY, "--out", str(out)]) == 0
        tuned = Run.read(out)
        assert tuned.fresh == ("head",), "the head of pretraining was never trained"


@pytest.mark.parametrize(
    ("task", "make", "options"),
    [
        ("wav", lambda path: miniatures.wav_folder(path, samples=4000), []),
        ("csv", lambda path: miniatures.csv(path / "load.csv", rows=300), ["--horizon", "6"]),
        ("text", miniatures.aclimdb, ["--max-length", "100", "--hold-out", "6"]),
        ("retrieval", miniatures.aan, ["--max-length", "100"]),
    ],
)
def test_every_kind_of_source_pretrains_and_fine_tunes(task, make, options, tmp_path, capsys):
    """Unequal lengths, windows with a calendar, tokens, pairs of them."""
    where = [*([str(p)] if (p := make(tmp_path / "data")).suffix or task == "wav" else ["--root", str(p)]), *options]
    sizes = ["--d-model", "8", "--d-state", "8", "--n-layers", "1", "--patch", "4", "--ahead", "2"]
    run = ["--steps", "2", "--batch-size", "4", "--device", "cpu", "--quiet"]
    assert main(["pretrain", task, *where, *sizes, *run, "--out", str(tmp_path / "pre")]) == 0, capsys.readouterr().err
    tuned = ["train", task, *where, "--from", str(tmp_path / "pre"), *run, "--out", str(tmp_path / "tuned")]
    assert main(tuned) == 0, capsys.readouterr().err
    one, two = (Run.read(tmp_path / name, unlabelled=True).load_model() for name in ("pre", "tuned"))
    near = {"rtol": 0, "atol": 0.02}  # two steps of AdamW
    torch.testing.assert_close(one.backbone.blocks[0].layer.C, two.backbone.blocks[0].layer.C, **near)
    for name, value in one.encoder.state_dict().items():
        torch.testing.assert_close(two.encoder.state_dict()[name], value, **near)


def test_pretraining_resumes_bit_for_bit(arrays, tmp_path):
    model = ws.ModelConfig(d_model=8, n_layers=1, d_state=8, head="auto", missing="auto", dropout=0.2)
    config = TrainConfig(objective="cpc", steps=6, batch_size=8, device="cpu", save_seconds=0, patch=6, ahead=2)
    whole = train("arrays", {"folder": str(arrays)}, model, config, tmp_path / "whole", show=False)

    with pytest.MonkeyPatch.context() as patch:
        interrupt(patch, 4)
        with pytest.raises(KeyboardInterrupt):
            train("arrays", {"folder": str(arrays)}, model, config, tmp_path / "cut", show=False)
    resume(tmp_path / "cut", show=False)
    assert same_weights(whole.folder, tmp_path / "cut")


def test_cpc_refuses_a_model_that_reads_the_future_and_masked_refuses_tokens(arrays, capsys):
    check_mistake(
        ["pretrain", "arrays", str(arrays), "--bidirectional", *TINY],
        "--no-bidirectional, or --objective masked",
        capsys,
    )
    with pytest.raises(ws.OptionError, match="these are tokens"):
        Pretrainer(ws.SequenceModel(ws.ModelConfig(encoder="embedding", vocabulary=5)), TrainConfig(objective="masked"))


def test_the_loss_of_cpc_falls_where_the_future_can_be_told_and_not_in_noise():
    """Oscillations of random frequency and phase: what comes follows from what was."""
    torch.manual_seed(0)
    t = torch.arange(128.0)

    def batch(predictable):
        wave = torch.sin(t * (0.1 + 0.5 * torch.rand(16, 1)) + 6.3 * torch.rand(16, 1))
        return (wave if predictable else torch.randn(16, 128))[..., None]

    losses = {}
    for predictable in (True, False):
        model = ws.SequenceModel(ws.ModelConfig(d_model=16, n_layers=2, d_state=16))
        network = Pretrainer(model, TrainConfig(objective="cpc", patch=8, ahead=2))
        optimiser = torch.optim.AdamW(param_groups(network, 0.01, 0.0))
        for _ in range(60):
            network(batch(predictable)).backward()
            optimiser.step()
            optimiser.zero_grad()
        losses[predictable] = network(batch(predictable)).item()
    chance = np.log(ANCHORS)
    assert losses[True] < chance - 0.7
    assert abs(losses[False] - chance) < 0.1


def test_masked_patches_are_scored_alone_and_never_shown():
    torch.manual_seed(0)
    network = Pretrainer(ws.SequenceModel(ws.ModelConfig(d_model=8, n_layers=1, d_state=8)), TrainConfig(
        objective="masked", patch=4, mask_share=0.5))  # fmt: skip
    x = torch.randn(3, 31, 1)
    seen = []
    features = network.model.features
    network.model.features = lambda given, *rest: seen.append(given) or features(given, *rest)
    torch.manual_seed(1)
    loss = network(x, torch.tensor([31, 20, 9]))
    hidden = (seen[0] == 0) & (x != 0)
    assert 0.2 < hidden.float().mean() < 0.8
    inside = torch.arange(31)[:, None] < torch.tensor([31, 20, 9])[:, None, None]
    predicted = network.reconstruct(features(seen[0], torch.tensor([31, 20, 9]))[1])
    expected = (predicted - x).square()[hidden & inside].mean()
    torch.testing.assert_close(loss, expected)


def test_the_linear_probe_is_a_ridge_on_pooled_outputs(tmp_path):
    X, y = signals(120, 2, seed=1)
    data = load("arrays", str(save(tmp_path, X=X.transpose(0, 2, 1), y=y)))
    torch.manual_seed(0)
    model = ws.SequenceModel(ws.ModelConfig(d_input=2, d_output=2, d_model=32, n_layers=1, d_state=16)).eval()
    ours = linear_probe(model, data, data.val, 7)["probe_accuracy"]
    from sklearn.linear_model import RidgeClassifierCV
    from sklearn.preprocessing import StandardScaler

    def pooled(source):
        batch = source.take(torch.arange(len(source)))
        with torch.no_grad():
            return model.features(batch.x)[1].mean(1).numpy(), batch.y.numpy()

    (X, y), (Xv, yv) = pooled(data.train), pooled(data.val)
    scale = StandardScaler().fit(X)
    theirs = RidgeClassifierCV(np.logspace(-4, 4, 17)).fit(scale.transform(X), y).score(scale.transform(Xv), yv)
    assert ours == pytest.approx(theirs, abs=0.1)
    assert ours > 0.8

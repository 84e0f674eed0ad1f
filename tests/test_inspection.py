"""What is said about trained models: against closed forms and against planted patterns."""

import numpy as np
import pytest
import torch

import miniatures
import wavessm as ws
from contracts import check_mistake, check_refused
from miniatures import table
from wavessm import inspection
from wavessm.cli import main
from wavessm.errors import DataError, OptionError, ShapeError

SMALL = {"d_model": 8, "d_state": 8, "n_layers": 1, "random_state": 0}


def test_time_scales_of_a_single_decaying_mode_are_the_closed_ones():
    layer = ws.WaveSSM(3, 2, family="s4d-lin", dt_min=0.01, dt_max=0.01)  # one mode, −½, that does not turn
    with torch.no_grad():
        layer.C[..., 0] = 1.0
    scales = inspection.time_scales(layer, 5000)
    np.testing.assert_allclose(scales.window, 100, rtol=1e-5)
    np.testing.assert_allclose(scales.lag, 1 / (np.exp(0.01) - 1), rtol=1e-4)  # of a geometric series e^−Δ
    np.testing.assert_array_equal(scales.reach, np.ceil(np.log(10) / 0.01))
    np.testing.assert_allclose(inspection.time_scales(layer, 5000, rate=2.0).lag, 1 / (np.exp(0.02) - 1), rtol=1e-4)


# -- saliency -----------------------------------------------------------------------------------------------------


def bursts(cases=40, length=80, seed=0):
    """Noise (cases, 1, length) with a slow or a fast burst of 16 samples somewhere; names, first samples"""
    random = np.random.default_rng(seed)
    y = np.array(["fast", "slow"])[np.arange(cases) % 2]
    X = 0.2 * random.standard_normal((cases, 1, length))
    first = random.integers(5, length - 21, cases)
    for row, name, at in zip(X, y, first, strict=True):
        row[0, at : at + 16] += 2 * np.sin(np.arange(16) * (0.4 if name == "slow" else 1.2))
    return 10 + 3 * X, y, first


def explain(source, signals, **options):
    """Saliency of raw signals"""
    inspected = source if isinstance(source, inspection.InspectedModel) else inspection.load(source)
    return inspection.saliency(inspected.model, *inspected.standardise(signals), **options)


@pytest.fixture(scope="module")
def trained():
    X, y, _ = bursts()
    model = ws.WaveSSMClassifier(max_epochs=20, learning_rate=0.03, **(SMALL | {"d_model": 16})).fit(X, y)
    assert model.score(X, y) > 0.95
    return model


def test_the_planted_burst_is_found(trained):
    X, _, first = bursts(cases=12, seed=1)
    shares = explain(trained, X)
    positive = shares.values.sum(2).clamp(min=0).numpy()
    inside = [row[at - 4 : at + 20].sum() / row.sum() for row, at in zip(positive, first, strict=True)]
    assert np.mean(inside) > 0.7, "a burst and four samples around it are 0.3 of the signal"


def test_integrated_gradients_add_up_to_the_score(trained):
    X, _, _ = bursts(cases=6, seed=2)
    shares = explain(trained, X, target=1)
    assert shares.target.tolist() == [1] * 6
    difference = (shares.score - shares.baseline).abs()
    assert (shares.gap < 1e-3 * difference.clamp(min=1)).all()
    logits = trained.model_(torch.from_numpy((X - trained.mean_[0]) / trained.scale_[0]).float().transpose(1, 2))
    np.testing.assert_allclose(shares.score, logits[:, 1].detach(), atol=1e-5)
    coarse = explain(trained, X, target=1, steps=1)
    assert coarse.gap.max() > 10 * shares.gap.max(), "one point of the path is not the path"


def test_padding_has_no_share_and_changes_none(trained):
    X, _, _ = bursts(cases=2, seed=4)
    ragged = [X[0], X[1, :, :50]]
    shares = explain(trained, ragged)
    assert shares.lengths.tolist() == [80, 50]
    assert not shares.values[1, 50:].any()
    alone = explain(trained, ragged[1:])
    np.testing.assert_allclose(shares.values[1, :50], alone.values[0], atol=1e-5)
    np.testing.assert_allclose(shares.score[1], alone.score[0], atol=1e-5)


def test_the_model_is_left_as_it_was(trained):
    model = trained.model_.train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    inspection.saliency(model, torch.randn(2, 30, 1))
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    model.head.eval()  # a part that is frozen while the others train
    inspection.saliency(model, torch.randn(2, 30, 1))
    assert (model.training, model.encoder.training, model.head.training) == (True, True, False)
    model.eval()


def test_lengths_as_a_list_get_one_line(trained):
    with pytest.raises(ws.ShapeError, match="saliency: lengths is a list, expected a tensor of 2 whole numbers"):
        inspection.saliency(trained.model_, torch.randn(2, 30, 1), [10, 30])


# -- where models live --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inspect")
    miniatures.arrays(folder / "arrays")
    size = ["--d-model", "8", "--n-layers", "2", "--d-state", "8", "--device", "cpu", "--quiet", "--steps", "3"]
    assert main(["train", "arrays", str(folder / "arrays"), "--out", str(folder / "run"), *size]) == 0
    assert main(["export", str(folder / "run"), "--format", "pretrained", "--out", str(folder / "hub")]) == 0
    return folder


def test_models_are_opened_from_everywhere_they_live(trained, run):
    subject = inspection.load(trained, sampling_rate=50)
    assert (subject.length, subject.classes, subject.unit) == (80, ("fast", "slow"), "s")
    from_run, from_hub = inspection.load(run / "run"), inspection.load(str(run / "hub"))
    assert from_run.classes == from_hub.classes != ()
    assert from_run.length == from_hub.length
    X = np.random.default_rng(0).standard_normal((2, from_run.model.config.d_input, from_run.length))
    first, second = (explain(source, X) for source in (from_run, from_hub))
    np.testing.assert_allclose(first.values, second.values, atol=1e-6)


def test_the_command_draws_everything_with_its_numbers(run, capsys):
    assert main(["inspect", str(run / "run"), "--out", str(run / "out"), "--cases", "2", "--sampling-rate", "50"]) == 0
    said = capsys.readouterr().out
    for name in ("scales", "kernels", "saliency"):
        assert f"{name}.png: " in said
        assert (run / "out" / f"{name}.png").stat().st_size > 5000
    rows = table((run / "out/scales.csv").read_text())
    assert len(rows) == 16
    subject = inspection.load(run / "run")
    scales = inspection.time_scales(inspection.layers_of(subject.model)[1], subject.length)
    assert float(rows[8 + 5]["window_s"]) == pytest.approx(scales.window[5] / 50, rel=1e-4)
    shares = table((run / "out/saliency.csv").read_text())
    assert {row["case"] for row in shares} == {"0", "1"}
    assert len({row["output"] for row in shares} & set(subject.classes)) >= 1
    assert "## kernels" in (run / "out/README.md").read_text()
    np.save(run / "new.npy", np.zeros((1, 30, subject.model.config.d_input), np.float32))
    assert main(["inspect", str(run / "hub"), "--signals", str(run / "new.npy")]) == 0
    assert (run / "hub/inspect/saliency.png").exists()


def test_without_its_data_a_run_is_still_drawn(run, capsys, monkeypatch):
    def gone(*_):
        raise DataError("the folder is gone.")

    monkeypatch.setattr("wavessm.cli.inspect.cases_of_run", gone)
    assert main(["inspect", str(run / "run"), "--out", str(run / "bare")]) == 0
    assert "saliency left out, give --signals FILE: the folder is gone." in capsys.readouterr().out
    assert (run / "bare/kernels.png").exists()
    assert not (run / "bare/saliency.png").exists()


MISTAKES = """
{0}/arrays => neither a run folder
{0}/run --length 1 => length is 1
{0}/run --sampling-rate 0 => sampling_rate is 0
{0}/run --signals {0}/none.npy => none.npy
{0}/run --cases -1 => cases is -1
{0}/run --out {0}/arrays/X.npy => is a file
"""


@pytest.mark.parametrize("line", MISTAKES.strip().splitlines())
def test_a_mistake_in_the_command_is_one_line(run, capsys, line):
    typed, words = line.format(run).split(" => ")
    check_mistake(["inspect", *typed.split()], words, capsys)


def test_what_cannot_be_inspected_is_refused_in_one_line(trained):
    forecast = ws.SequenceModel(ws.ModelConfig(d_model=8, n_layers=1, d_state=8, head="forecast", horizon=2))
    for call, error, words in (
        (lambda: inspection.load(3), OptionError, "got a int"),
        (lambda: inspection.load(ws.WaveSSMClassifier()), OptionError, "expected a SequenceModel"),
        (lambda: inspection.saliency(forecast, torch.zeros(1, 9, 1)), OptionError, "head 'forecast'"),
        (lambda: explain(trained, np.zeros((2, 3, 9))), ShapeError, r"\(3, 9\)"),
        (lambda: explain(trained, np.full((1, 1, 9), np.nan)), ShapeError, "finite"),
        (lambda: explain(trained, np.zeros((1, 1, 9)), target=7), OptionError, "target is 7"),
        (lambda: explain(trained, np.zeros((1, 1, 9)), steps=0), OptionError, "steps is 0"),
    ):
        check_refused(call, error, words)

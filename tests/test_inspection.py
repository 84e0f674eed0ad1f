"""What is said about trained models: against closed forms, against the kernels and against planted patterns."""

import csv

import numpy as np
import pandas as pd
import pytest
import torch

import miniatures
import wavessm as ws
from contracts import check_mistake
from wavessm import inspection
from wavessm.cli import main
from wavessm.errors import DataError, OptionError, ShapeError, UnknownNameError
from wavessm.nn.initial import initial_modes
from wavessm.operators import make_operator

SMALL = {"d_model": 8, "d_state": 8, "n_layers": 1, "random_state": 0}

LAYERS = {
    "diagonal": {"family": "morlet"},
    "a copy for each channel": {"family": "db6", "n_ssm": 4, "bidirectional": True},
    "an odd number of modes": {"family": "dpss", "d_state": 7},
    "dense": {"family": "legs"},
    "dense, odd": {"family": "legt", "d_state": 7},
    "both structures": {"family": "gauss", "structure": "dplr"},
    "no frame": {"family": "s4d-lin"},
}


def read(path):
    return list(csv.DictReader(path.read_text().splitlines()))


def layer_of(name, moved=0.1):
    """A layer that has left its start"""
    torch.manual_seed(0)
    layer = ws.WaveSSM(**({"d_model": 4, "d_state": 8, "dt_min": 0.02, "dt_max": 0.1} | LAYERS[name]))
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(moved * torch.randn_like(parameter))
    return layer


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("channel", [0, 3])
def test_the_jacobian_read_out_is_the_kernel(name, channel):
    layer = layer_of(name)
    start = initial_modes(layer.family, layer.measure, layer.d_state, layer.structure)
    c = np.random.default_rng(0).standard_normal(start.readout.shape[1])
    J = inspection.jacobian(layer, 50, channel, rate=1.5)
    with torch.no_grad():
        layer.C[:] = torch.from_numpy(start.slots(start.readout @ c))
    kernel = layer.kernel(50, rate=1.5)[0, channel].detach().numpy()
    np.testing.assert_allclose((c @ J)[::-1], kernel, rtol=1e-5, atol=1e-6 * np.abs(kernel).max())


@pytest.mark.parametrize(("family", "rule"), [("morlet", ws.zoh), ("legs", ws.bilinear)])
def test_at_the_start_the_jacobian_is_that_of_the_frame(family, rule):
    layer = ws.WaveSSM(2, 8, family=family, dt_min=0.05, dt_max=0.05)
    step = rule(
        make_operator(family, None if family == "legs" else "scaled", 8).system, float(layer.log_dt[0].detach().exp())
    )
    state, columns = step.B, []
    for _ in range(30):
        columns.append(state)
        state = step.apply(state)
    np.testing.assert_allclose(inspection.jacobian(layer, 30)[:, ::-1], np.stack(columns, 1), atol=1e-5)


def test_time_scales_of_a_single_decaying_mode_are_the_closed_ones():
    layer = ws.WaveSSM(3, 2, family="s4d-lin", dt_min=0.01, dt_max=0.01)  # one mode, −½, that does not turn
    with torch.no_grad():
        layer.C[..., 0] = 1.0
    scales = inspection.time_scales(layer, 5000)
    np.testing.assert_allclose(scales.window, 100, rtol=1e-5)
    np.testing.assert_allclose(scales.slowest, 200, rtol=1e-5)
    np.testing.assert_allclose(scales.lag, 1 / (np.exp(0.01) - 1), rtol=1e-4)  # of a geometric series e^−Δ
    np.testing.assert_array_equal(scales.reach, np.ceil(np.log(10) / 0.01))
    assert np.isinf(scales.shortest_period).all()
    np.testing.assert_allclose(inspection.time_scales(layer, 5000, rate=2.0).lag, 1 / (np.exp(0.02) - 1), rtol=1e-4)


def test_modes_of_a_dense_state_are_those_of_the_diagonal_one_where_steps_are_short():
    size = {"d_model": 2, "d_state": 9, "family": "morlet", "dt_min": 1e-3, "dt_max": 1e-3}
    diagonal, dense = (inspection.mode_times(ws.WaveSSM(**size, structure=kind)) for kind in ("diagonal", "dplr"))
    assert dense.decay.shape == (2, 9)
    once = np.isfinite(diagonal.period[0])
    both = np.sort(np.concatenate([diagonal.decay[0], diagonal.decay[0][once]]))
    np.testing.assert_allclose(np.sort(dense.decay[0]), both, rtol=1e-2)
    turns = np.sort(np.repeat(diagonal.period[0][once], 2))
    np.testing.assert_allclose(np.sort(dense.period[0])[: len(turns)], turns, rtol=1e-2)


def test_a_mode_falls_to_one_over_e_in_its_decay():
    layer = layer_of("diagonal", moved=0)
    decay, _ = inspection.mode_times(layer)
    system = layer.discrete()
    per_sample = torch.exp(system.log_lam[..., 0]).detach().numpy()  # |λ̄| of slots that turn
    np.testing.assert_allclose(per_sample[1, 0] ** decay[1, 0], np.exp(-1), rtol=1e-6)


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


@pytest.fixture(scope="module")
def trained():
    X, y, _ = bursts()
    model = ws.WaveSSMClassifier(max_epochs=20, learning_rate=0.03, **(SMALL | {"d_model": 16})).fit(X, y)
    assert model.score(X, y) > 0.95
    return model


def test_the_planted_burst_is_found(trained):
    X, _, first = bursts(cases=12, seed=1)
    shares = inspection.saliency(trained, X)
    positive = shares.values.sum(2).clamp(min=0).numpy()
    inside = [row[at - 4 : at + 20].sum() / row.sum() for row, at in zip(positive, first, strict=True)]
    assert np.mean(inside) > 0.7, "a burst and four samples around it are 0.3 of the signal"


def test_integrated_gradients_add_up_to_the_score(trained):
    X, _, _ = bursts(cases=6, seed=2)
    shares = inspection.saliency(trained, X, target="slow")
    assert shares.target.tolist() == [1] * 6
    difference = (shares.score - shares.baseline).abs()
    assert (shares.gap < 1e-3 * difference.clamp(min=1)).all()
    logits = trained.model_(torch.from_numpy((X - trained.mean_[0]) / trained.scale_[0]).float().transpose(1, 2))
    np.testing.assert_allclose(shares.score, logits[:, 1].detach(), atol=1e-5)
    coarse = inspection.saliency(trained, X, target=1, steps=1)
    assert coarse.gap.max() > 10 * shares.gap.max(), "one point of the path is not the path"


def test_padding_has_no_share_and_changes_none(trained):
    X, _, _ = bursts(cases=2, seed=4)
    ragged = [X[0], X[1, :, :50]]
    shares = inspection.saliency(trained, ragged)
    assert shares.lengths.tolist() == [80, 50]
    assert not shares.values[1, 50:].any()
    alone = inspection.saliency(trained, ragged[1:])
    np.testing.assert_allclose(shares.values[1, :50], alone.values[0], atol=1e-5)
    np.testing.assert_allclose(shares.score[1], alone.score[0], atol=1e-5)


def test_the_model_is_left_as_it_was(trained):
    model = trained.model_.train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    inspection.attribute(model, torch.randn(2, 30, 1))
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    model.head.eval()  # a part that is frozen while the others train
    inspection.attribute(model, torch.randn(2, 30, 1))
    assert (model.training, model.encoder.training, model.head.training) == (True, True, False)
    model.eval()


def test_lengths_as_a_list_get_one_line(trained):
    with pytest.raises(ws.ShapeError, match="saliency: lengths is a list, expected a tensor of 2 whole numbers"):
        inspection.attribute(trained.model_, torch.randn(2, 30, 1), [10, 30])


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
    index = pd.date_range("2024", periods=80, freq="h")
    series = pd.Series(np.sin(np.arange(80.0)), index=index)
    options = {"horizon": 3, "context": 10, "max_epochs": 1, "method": "gradient", **SMALL}
    forecaster = ws.WaveSSMForecaster(**options).fit(series)
    subject = inspection.load(forecaster)
    assert (subject.length, subject.classes) == (13, ())
    assert subject.seconds(2) == pytest.approx(7200)
    subject = inspection.load(trained, sampling_rate=50)
    assert (subject.length, subject.classes, subject.unit) == (80, ("fast", "slow"), "s")
    from_run, from_hub = inspection.load(run / "run"), inspection.load(str(run / "hub"))
    assert from_run.classes == from_hub.classes != ()
    assert from_run.length == from_hub.length
    X = np.random.default_rng(0).standard_normal((2, from_run.model.config.d_input, from_run.length))
    first, second = (inspection.saliency(source, X) for source in (from_run, from_hub))
    np.testing.assert_allclose(first.values, second.values, atol=1e-6)


def test_the_command_draws_everything_with_its_numbers(run, capsys):
    assert main(["inspect", str(run / "run"), "--out", str(run / "out"), "--cases", "2", "--sampling-rate", "50"]) == 0
    said = capsys.readouterr().out
    for name in ("scales", "kernels", "past", "saliency"):
        assert f"{name}.png: " in said
        assert (run / "out" / f"{name}.png").stat().st_size > 5000
    rows = read(run / "out/scales.csv")
    assert len(rows) == 16
    subject = inspection.load(run / "run")
    scales = inspection.time_scales(inspection.layers_of(subject.model)[1], subject.length)
    assert float(rows[8 + 5]["window_seconds"]) == pytest.approx(scales.window[5] / 50, rel=1e-4)
    shares = read(run / "out/saliency.csv")
    assert {row["case"] for row in shares} == {"0", "1"}
    assert len({row["output"] for row in shares} & set(subject.classes)) >= 1
    assert "## past" in (run / "out/README.md").read_text()
    np.save(run / "new.npy", np.zeros((1, 30, subject.model.config.d_input), np.float32))
    assert main(["inspect", str(run / "hub"), "--signals", str(run / "new.npy")]) == 0
    assert (run / "hub/inspect/saliency.png").exists()


def test_without_its_data_a_run_is_still_drawn(run, capsys, monkeypatch):
    def gone(*_):
        raise DataError("the folder is gone.")

    monkeypatch.setattr("wavessm.cli.inspect.cases_of_run", gone)
    assert main(["inspect", str(run / "run"), "--out", str(run / "bare")]) == 0
    assert "saliency left out, give --signals FILE: the folder is gone." in capsys.readouterr().out
    assert (run / "bare/past.png").exists()
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
    lstm = ws.SequenceModel(ws.ModelConfig(d_model=8, n_layers=1, backbone="lstm"))
    forecast = ws.SequenceModel(ws.ModelConfig(d_model=8, n_layers=1, d_state=8, head="forecast", horizon=2))
    layer = layer_of("diagonal")
    for call, error, words in (
        (lambda: inspection.load(lstm), OptionError, "the backbone is 'lstm'"),
        (lambda: inspection.load(3), OptionError, "got a int"),
        (lambda: inspection.load(ws.WaveSSMClassifier()), OptionError, "expected a SequenceModel"),
        (lambda: inspection.attribute(forecast, torch.zeros(1, 9, 1)), OptionError, "the head is 'forecast'"),
        (lambda: inspection.saliency(trained, np.zeros((2, 3, 9))), ShapeError, r"\(3, 9\)"),
        (lambda: inspection.saliency(trained, np.full((1, 1, 9), np.nan)), ShapeError, "finite"),
        (lambda: inspection.saliency(trained, np.zeros((1, 1, 9)), target="slwo"), UnknownNameError, "'slow'"),
        (lambda: inspection.saliency(trained, np.zeros((1, 1, 9)), target=7), OptionError, "target is 7"),
        (lambda: inspection.saliency(trained, np.zeros((1, 1, 9)), steps=0), OptionError, "steps is 0"),
        (lambda: inspection.load(trained, checkpoint="last"), OptionError, "goes with a run folder"),
        (lambda: inspection.jacobian(layer, 10, channel=4), OptionError, "channel is 4"),
        (lambda: inspection.layers_of(torch.nn.Linear(1, 1)), OptionError, "no WaveSSM layer"),
    ):
        with pytest.raises(error, match=words) as raised:
            call()
        assert "\n" not in str(raised.value)

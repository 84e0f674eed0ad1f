"""The direct path of forecasts: what it computes, where it starts, what it refuses; and the settings of `best`."""

import dataclasses
import json
import shlex
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

import miniatures
import wavessm as ws
from miniatures import load_forecast
from wavessm.cli import main
from wavessm.cli import train as train_command
from wavessm.data.datasets.forecast import SETS, ForecastOptions
from wavessm.data.windows import make_marks
from wavessm.nn.heads import DirectPath
from wavessm.training import Run, TrainConfig, Trainer, checkpoint, model_config, resolve, start_at_ridge, train
from wavessm.training.direct import PENALTIES
from wavessm.training.optimiser import optimiser_groups
from wavessm_lab.sweep.grid import Grid, expand
from wavessm_lab.tasks import forecast_settings as settings

SIZE = {"d_model": 8, "n_layers": 1, "d_state": 8}
TINY = ["--d-model", "8", "--n-layers", "1", "--d-state", "8", "--device", "cpu", "--precision", "fp32", "--steps", "2",
        "--quiet"]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("forecasting")
    miniatures.forecast(folder, "ETTh1")
    return folder


def forecaster(norm="none", marks=0, **fields):
    torch.manual_seed(0)
    calendar = {"encoder": "calendar", "mark_width": marks} if marks else {}
    config = ws.ModelConfig(3, 2, head="forecast", horizon=4, direct=True, context=5, instance_norm=norm,
                            **{**SIZE, **calendar, **fields})  # fmt: skip
    model = ws.SequenceModel(config).double().eval()
    for weight in model.direct.parameters():
        torch.nn.init.normal_(weight)
    return model


# -- what it computes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [3, 5, 9])
@pytest.mark.parametrize("norm", ["none", "last", "mean_std"])
def test_a_direct_path_adds_a_matrix_product_per_column(norm, length):
    model = forecaster(norm, marks=2)
    x, marks = torch.randn(2, length, 3).double(), torch.randn(2, length + 4, 2).double()
    plain = ws.SequenceModel(dataclasses.replace(model.config, direct=False, context=None)).double().eval()
    plain.load_state_dict({k: v for k, v in model.state_dict().items() if not k.startswith("direct.")})
    centre = {"none": torch.zeros(2, 1, 3), "last": x[:, -1:], "mean_std": x.mean(1, keepdim=True)}[norm]
    scale = x.std(1, correction=0, keepdim=True) if norm == "mean_std" else torch.ones(2, 1, 3)
    W, U = model.direct.W / 5**0.5, model.direct.U
    expected = plain(x, marks=marks)
    for case in range(2):
        for column in range(2):
            seen = ((x - centre) / scale)[case, -5:, 1 + column]
            added = sum(seen[-lag] * W[5 - lag] for lag in range(1, len(seen) + 1))
            added = added + sum(marks[case, length - 1, k] * U[k, :, column] for k in range(2))
            expected[case, :, column] += added * scale[case, 0, 1 + column]
    torch.testing.assert_close(model(x, marks=marks), expected)


def test_a_direct_path_begins_as_nothing_and_leaves_old_weights_and_configs_as_they_were():
    config = ws.ModelConfig(3, 2, head="forecast", horizon=4, **SIZE)
    torch.manual_seed(0)
    before = ws.SequenceModel(config)
    torch.manual_seed(0)
    after = ws.SequenceModel(dataclasses.replace(config, direct=True, context=5))
    x = torch.randn(2, 9, 3)
    torch.testing.assert_close(after(x), before(x))
    assert set(after.state_dict()) - set(before.state_dict()) == {"direct.W"}
    old = {k: v for k, v in config.to_dict().items() if k not in ("direct", "context")}  # as written before it existed
    again = ws.SequenceModel(ws.ModelConfig.from_dict(json.loads(json.dumps(old))))
    again.load_state_dict(before.state_dict())
    torch.testing.assert_close(again(x), before(x))
    assert ws.ModelConfig.from_dict(json.loads(json.dumps(after.config.to_dict()))) == after.config


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"direct": True, "context": 4}, "direct goes with head='forecast'"),
        ({"direct": True, "head": "forecast", "horizon": 3}, "needs context, the number of steps it reads"),
        ({"context": 4, "head": "forecast", "horizon": 3}, "context goes with direct=True"),
        ({"direct": True, "context": 4, "head": "forecast", "horizon": 3, "d_output": 2}, "last d_output columns"),
        ({"direct": "yes"}, "direct is 'yes'"),
    ],
)
def test_configs_that_make_no_sense_are_refused_in_one_line(fields, words):
    with pytest.raises(ws.OptionError, match=words) as raised:
        ws.ModelConfig(**fields)
    assert "\n" not in str(raised.value)


# -- the ridge start ----------------------------------------------------------------------------------------------


def cell(folder, norm, calendar="table", multi=False, **fields):
    data = load_forecast(folder, "ETTh1", 12, multi, context=30, calendar=calendar, future_calendar=True)
    config = model_config(
        "forecast", ws.ModelConfig(head="auto", **SIZE, direct=True, instance_norm=norm, **fields), data.info, "fp32"
    )
    return ws.SequenceModel(config), data


def flat_windows(source):
    """Context and horizon minus the last value of the context, a row for each window and column, in float64."""
    batch = source.take(torch.arange(len(source)))
    last = batch.x[:, -1:]
    return [(part - last).double().mT.flatten(0, 1) for part in (batch.x, batch.y)]


def ridge_error(W, source):
    X, Y = flat_windows(source)
    return float((X @ torch.from_numpy(W).double() - Y).square().mean())


@pytest.mark.parametrize("multi", [False, True])
def test_the_ridge_start_is_the_linear_baseline(folder, multi):
    """Without marks it is scikit-learn's ridge regression of the windows minus their last value, without intercept."""
    model, data = cell(folder, "last", multi=multi)
    fit = start_at_ridge(model, data)
    X, Y = (part.numpy() for part in flat_windows(data.train))
    maps = {p: Ridge(p * len(X), fit_intercept=False).fit(X, Y).coef_.T for p in PENALTIES}
    errors = {p: ridge_error(W, data.val) for p, W in maps.items()}
    best = min(errors, key=errors.get)
    assert fit.penalties[0] == best
    np.testing.assert_allclose(fit.W, maps[best], rtol=1e-4, atol=1e-6)
    assert fit.error == pytest.approx(errors[best], rel=1e-4)
    batch = data.val.take(torch.arange(9))
    last = batch.x[:, -1:]
    wanted = torch.einsum("bsc,sh->bhc", batch.x - last, torch.from_numpy(maps[best]).float()) + last
    torch.testing.assert_close(model.eval()(batch.x, marks=batch.marks), wanted, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("norm", "multi"), [("none", True), ("mean_std", False)])
def test_the_ridge_start_with_marks_is_least_squares(folder, monkeypatch, norm, multi):
    monkeypatch.setattr("wavessm.training.direct.PENALTIES", (0.3,))
    monkeypatch.setattr("wavessm.training.direct.MARK_PENALTIES", (0.2,))
    model, data = cell(folder, norm, calendar="waves-year", multi=multi)
    fit = start_at_ridge(model, data)
    W, U = fit.W.clone().requires_grad_(), fit.U.clone().requires_grad_()
    batch = data.train.take(torch.arange(len(data.train)))
    x, centre, scale = model.scale(batch.x.double())
    y = batch.y.double() if centre is None else (batch.y.double() - centre)
    y = y if scale is None else y / scale
    said = torch.einsum("bsc,sh->bhc", x, W) + torch.einsum("bk,khc->bhc", batch.marks[:, 29].double(), U)
    columns = y.shape[2]
    loss = (said - y).square().sum() / len(y) / columns + 0.3 * W.square().sum() + 0.2 * U.square().sum() / columns
    loss.backward()
    assert W.grad.abs().max() < 1e-6, "the gradient of the penalised squares is zero there"
    assert U.grad.abs().max() < 1e-6
    torch.testing.assert_close(model.direct.W.double(), fit.W * 30**0.5, rtol=1e-5, atol=1e-6)


def test_a_run_begins_at_the_ridge_and_may_leave_the_test_out(folder, tmp_path):
    line = ["train", "forecast", str(folder), "--dataset", "ETTh1", "--horizon", "12", "--context", "30", *TINY,
            "--direct", "--direct-start", "ridge", "--no-test", "--lr-direct", "0"]  # fmt: skip
    assert main([*line, "--out", str(tmp_path / "a")]) == 0
    run = Run.read(tmp_path / "a")
    model, data = cell(folder, "last")
    start_at_ridge(model, data)
    torch.testing.assert_close(run.load_model("last").direct.W, model.direct.W, rtol=1e-4, atol=1e-5)
    assert run.load_model("last").head.decoder.weight.any(), "the rest has learnt"
    result = json.loads((tmp_path / "a" / "result.json").read_text())
    assert not any(name.startswith("test_") for name in result)
    assert not (tmp_path / "a" / "test.npy").exists()


def test_a_direct_path_has_a_rate_of_its_own_and_the_global_one_comes_last(folder):
    model, _ = cell(folder, "last")
    groups = optimiser_groups(model, TrainConfig(lr=0.1, lr_direct=0.02, weight_decay=0.3))
    assert [(group["name"], group["lr"]) for group in groups] == [
        ("direct", 0.02), ("ssm", 0.001), ("no decay", 0.1), ("decay", 0.1),
    ]  # fmt: skip
    assert {id(p) for p in groups[0]["params"]} == {id(p) for p in model.direct.parameters()}
    assert sum(len(group["params"]) for group in groups) == len(list(model.parameters())), "each once"


def test_dropout_is_on_after_the_start_was_scored(folder, tmp_path, monkeypatch):
    modes, work = [], Trainer.work

    def watched(module, batch):
        modes.append(module.model.training)
        return work(module, batch)

    monkeypatch.setattr(Trainer, "work", watched)
    options = {"root": str(folder), "horizon": 12, "context": 30}
    model = ws.ModelConfig(head="auto", **SIZE, direct=True)
    config = TrainConfig(direct_start="ridge", steps=3, val_per_epoch=3000, device="cpu")
    train("forecast", options, model, config, tmp_path / "a", show=False)
    assert modes == [True, True, True]


def test_training_that_only_harms_leaves_the_ridge_as_the_best_model(folder, tmp_path):
    line = ["train", "forecast", str(folder), "--dataset", "ETTh1", "--horizon", "12", "--context", "30", *TINY]
    rates = ["--lr", "0.03", "--lr-direct", "0.03", "--schedule", "constant", "--warmup", "0"]
    assert main([*line, "--direct", "--direct-start", "ridge", *rates, "--out", str(tmp_path / "a")]) == 0
    model, data = cell(folder, "last")
    fit = start_at_ridge(model, data)
    assert checkpoint.load(tmp_path / "a" / "last.ckpt")["best"] == pytest.approx(fit.error, rel=1e-4)
    result = json.loads((tmp_path / "a" / "result.json").read_text())
    assert result["best_step"] == 0
    assert result["test_mse"] == pytest.approx(ridge_error(fit.W.numpy(), data.test), rel=1e-4)


def test_a_ridge_start_without_a_path_is_refused(tmp_path):
    with pytest.raises(ws.OptionError, match="no direct path; add --direct"):
        train("forecast", {}, ws.ModelConfig(), TrainConfig(direct_start="ridge"), tmp_path)


# -- waves of the calendar ----------------------------------------------------------------------------------------


def test_a_mean_for_every_hour_weekday_and_season_is_linear_in_the_waves():
    hours = np.arange(0, 2 * 8766) * 3600 + 1_500_000_000 // 3600 * 3600
    season = np.cos(2 * np.pi * (hours / 86_400 - 20) / 365.2425)
    day = np.sin(2 * np.pi * hours / 86_400 + 1) + 0.3 * np.cos(8 * np.pi * hours / 86_400)
    target = day * (1 + 0.5 * season) + 2 * season + 0.2 * np.sin(4 * np.pi * hours / 604_800)
    for calendar, width, exact in (("waves", 14, False), ("waves-year", 24, True)):
        marks, sizes = make_marks(hours, calendar, minutes=False)
        assert (marks.shape[1], sizes, marks.dtype) == (width, (), torch.float32)
        weights = np.linalg.lstsq(marks.double().numpy(), target, rcond=None)[0]
        left = np.var(marks.double().numpy() @ weights - target) / np.var(target)
        assert (left < 0.01) == exact, f"{calendar} leaves {left:.3f} of the variance"


# -- the settings of `best` ---------------------------------------------------------------------------------------


@pytest.fixture
def chosen(monkeypatch):
    uni, multi = {("WTH", 720): "raw-year", ("ETTh1", 24): "level"}, {("WTH", 720): "mean-long"}
    monkeypatch.setattr(settings, "CHOSEN", {"uni": uni, "multi": multi})


def read(*words):
    """Model, training and data options of a command."""
    given = train_command.read(["forecast", *words])
    return SimpleNamespace(model=given.model, training=given.config, data=ForecastOptions(**given.data))


def test_best_takes_the_setting_of_its_data_set_and_horizon(chosen):
    given = read("--dataset", "WTH", "--horizon", "720", "--recipe", "best")
    model = given.model
    assert (model.instance_norm, model.direct, given.data.calendar, given.data.future_calendar) == (
        "none",
        True,
        "waves-year",
        True,
    )
    assert read().data.calendar == "waves", "the task's own data set and horizon count too"
    typed = read("--dataset", "WTH", "--horizon", "720", "--instance-norm", "mean", "--calendar", "table")
    assert (typed.model.instance_norm, typed.data.calendar) == ("mean", "table"), "what is typed wins"
    assert typed.model.direct
    paper, multi = ["--recipe", "paper"], ["--variables", "multi"]
    for words in (paper, [*paper, *multi], ["--horizon", "48"], [*multi, "--horizon", "24"]):
        other = read("--dataset", "WTH", "--horizon", "720", *words)
        model, training = resolve("forecast", "paper" if "paper" in words else "best")
        assert (other.model, other.training) == (model, dataclasses.replace(training, method="gradient"))
        assert dataclasses.replace(other.data, dataset="ETTh1", horizon=24, variables="uni") == ForecastOptions()


def test_best_has_other_settings_for_all_columns_at_once(chosen):
    given = read("--dataset", "WTH", "--horizon", "720", "--variables", "multi")
    assert (given.model.instance_norm, given.data.context, given.data.calendar) == ("mean", 720, "waves")
    assert given.data.variables == "multi"


def test_jobs_of_a_sweep_have_the_settings_of_their_commands(chosen):
    grid = Grid(("forecast:WTH", "forecast:ETTh1"), ("morlet", "legs"), (24, 720), (0,), ("best", "paper"),
                ("uni", "multi"))  # fmt: skip
    jobs = expand(grid)
    assert len(jobs) == 32
    for job in jobs:
        given = read(*shlex.split(job.command)[3:])
        assert (given.model, given.training) == (job.model, job.config)
        assert given.data == ForecastOptions(**job.data)
    chosen = [job.data for job in jobs if job.model.direct]
    direct = {(options["dataset"], options["horizon"], options["variables"]) for options in chosen}
    assert direct == {("WTH", 720, "uni"), ("ETTh1", 24, "uni"), ("WTH", 720, "multi")}


def test_every_option_of_a_setting_reaches_the_data_the_model_or_the_training():
    for setting in settings.SETTINGS.values():
        whole = {**settings.COMMON, **setting}
        data, model, config = settings.apply(ForecastOptions(), *resolve("forecast"), whole)
        reached = {**vars(model), **vars(config), **vars(data)}
        assert {name: reached[name] for name in whole} == whole
        assert model.context == resolve("forecast")[0].context, "an option of the data, not of the model"
    assert {name for table in settings.CHOSEN.values() for name in table.values()} <= set(settings.SETTINGS)
    places = {(name, horizon) for name, known in SETS.items() for horizon in known.lengths}
    assert places == set(settings.CHOSEN["uni"])
    assert {place for place in places if place[0] != "ECL"} == set(settings.CHOSEN["multi"])


def test_the_path_of_a_run_predicts_with_waves(folder, tmp_path, capsys):
    line = ["train", "forecast", str(folder), "--horizon", "12", "--context", "30", *TINY, "--calendar", "waves-year"]
    assert main([*line, "--direct", "--future-calendar", "--no-test", "--out", str(tmp_path / "a")]) == 0
    assert "test: left out" in capsys.readouterr().out
    assert isinstance(Run.read(tmp_path / "a").load_model().direct, DirectPath)
    assert main(["predict", str(tmp_path / "a"), str(folder / "ETTh1.csv")]) == 0
    assert len(capsys.readouterr().out.splitlines()) >= 12

"""Quantiles of numbers: they cover what they say, never cross, and are the same from the command line."""

import json

import numpy as np
import pytest
import torch

import wavessm as ws
from miniatures import save
from miniatures import table as rows_of
from wavessm.cli import main
from wavessm.features.ridge import Ridge, with_quantiles
from wavessm.training import metrics

LEVELS = (0.1, 0.5, 0.9)


def signals(cases, seed=0):
    """Frequencies as two noisy numbers, and their signals."""
    random = np.random.default_rng(seed)
    y = random.uniform(0.1, 0.5, cases)
    X = np.sin(np.arange(60) * y[:, None]) + 0.1 * random.standard_normal((cases, 60))
    return X, np.stack([y + 0.03 * random.standard_normal(cases), 50 - 20 * y + random.standard_normal(cases)], axis=1)


@pytest.mark.parametrize("n", [9, 39, 200])
def test_conformal_offsets_are_the_order_statistics_of_residuals_left_out(n):
    residual = torch.randn(n, 2, generator=torch.Generator().manual_seed(n))
    zero, one = torch.zeros(3, 2), torch.ones(3)
    ridge = Ridge(zero[:, 0], one, zero, torch.zeros(2), 1.0, {}, 0.0, torch.zeros(n, 2), torch.arange(n))
    found = with_quantiles(ridge, residual, LEVELS)(torch.zeros(1, 3)).view(2, 3)
    for own, row in zip(residual.T.sort().values, found, strict=True):
        ranks = int(0.1 * (n + 1) + 1e-9), -int(-0.5 * (n + 1) // 1), min(n, -int(-(0.9 * (n + 1) - 1e-9) // 1))
        assert row.tolist() == [float(own[max(rank, 1) - 1]) for rank in ranks]
    weights = torch.where(residual[:, 0] > 0, 1.0, 1e-6)  # negative residuals hardly count
    weighted = with_quantiles(ridge, residual, (0.2, 0.8), weights)(torch.zeros(1, 3))
    assert weighted[0, 0] >= residual[residual[:, 0] <= 0, 0].max()


def test_pinball_loss_is_least_at_the_empirical_quantiles():
    y = torch.randn(2001, 1, generator=torch.Generator().manual_seed(0)).double()
    places = torch.linspace(-2, 2, 801).double()
    for level in LEVELS:
        losses = [float(metrics.pinball(place.expand(2001, 1, 1), y, (level,)).mean()) for place in places]
        assert float(places[int(np.argmin(losses))]) == pytest.approx(float(y.quantile(level)), abs=0.006)


@pytest.mark.parametrize("options", [{}, {"method": "gradient", "max_epochs": 60, "d_model": 16, "n_layers": 1}])
def test_regressor_covers_new_cases_and_never_crosses(options):
    (X, y), (new, true) = signals(100), signals(200, seed=1)
    model = ws.WaveSSMRegressor(quantiles=(0.9, 0.1, 0.5), random_state=0, **options).fit(X, y)
    found = model.predict(new)
    assert found.shape == (200, 2, 3)
    assert (np.diff(found, axis=2) >= 0).all()
    inside = ((found[..., 0] <= true) & (true <= found[..., 2])).mean(axis=0)
    assert (np.abs(inside - 0.8) < (0.1 if not options else 0.25)).all(), inside
    assert model.score(new, true) > 0.7
    single = ws.WaveSSMRegressor(quantiles=(0.5,), random_state=0).fit(X, y[:, 0])
    assert single.predict(new).shape == (200, 1)


@pytest.mark.parametrize("extra", [[], ["--epochs", "20", "--d-model", "8", "--n-layers", "1"]])
def test_command_line_trains_evaluates_and_predicts_quantiles(tmp_path, extra, capsys):
    X, y = signals(120)
    save(tmp_path, X=X[..., None], y=y)
    run, table = tmp_path / "run", tmp_path / "residuals.csv"
    words = ["train", "arrays", str(tmp_path), "--out", str(run), "--quantiles", "0.1,0.5,0.9", "--quiet", *extra]
    assert main(words) == 0
    figure = str(table.with_suffix(".png"))
    assert main(["evaluate", str(run), "--plot", figure, "--out", str(tmp_path / "scores.json")]) == 0
    scores = json.loads((tmp_path / "scores.json").read_text())
    assert {"mae", "pinball", "coverage"} <= {*scores["scores"]}
    assert {"r2", "mae", "pinball", "coverage"} <= {*scores["targets"]["y1"]}
    rows = rows_of(table.read_text())
    assert all(float(row["y1_q0.1"]) <= float(row["predicted_y1"]) <= float(row["y1_q0.9"]) for row in rows)
    capsys.readouterr()
    assert main(["predict", str(run), str(tmp_path / "X.npy")]) == 0
    found = rows_of(capsys.readouterr().out)
    assert [name for name in found[0] if " q" in name] == [f"y{i} q{q}" for i in (0, 1) for q in LEVELS]
    assert 30 < float(found[0]["y1 q0.5"]) < 60


def test_wrong_levels_are_one_line(tmp_path):
    X, y = signals(30)
    for given in ((0.1, 1.5), (0.5, 0.5), "few"):
        with pytest.raises(ws.OptionError, match="expected different numbers between 0 and 1"):
            ws.WaveSSMRegressor(quantiles=given).fit(X, y)
    save(tmp_path, X=X, y=y[:, 0] > 0.3)
    assert main(["train", "arrays", str(tmp_path), "--quantiles", "0.5", "--out", str(tmp_path / "run")]) == 2

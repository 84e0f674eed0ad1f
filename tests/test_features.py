"""State features: exact states, pools, streams, and a ridge whose leave-one-out is what leaving out gives."""

from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.linalg import expm
from sklearn.base import clone

import wavessm as ws
from wavessm.features import (
    FeatureConfig,
    FeatureModel,
    FeatureSums,
    Ridge,
    RidgeSums,
    SignalFeatures,
    StateBank,
    calibrate,
    fit_ridge,
)

SMALL = FeatureConfig(n_features=480, n_scales=4, readouts=6)


def signals(cases, length, channels=1, seed=0):
    return torch.randn(cases, length, channels, generator=torch.Generator().manual_seed(seed)).cumsum(1) / 4


def two_classes(cases=40, length=90, seed=0):
    x, y = signals(cases, length, seed=seed), torch.arange(cases) % 2
    x = x + y[:, None, None] * torch.sin(0.7 * torch.arange(length))[None, :, None]
    return x, y


def slow_outputs(bank, x):
    """Every output of a bank by a float64 recurrence, one sample at a time: {(stride, N): (cells, positions, N)}."""
    u = bank.sources(x).double().numpy()
    states = {}
    for cell in bank.cells:
        operator = ws.make_operator(ws.make_frame(cell.family, n=cell.n).tighten(), "translated")
        n = len(operator.B)
        values, vectors = np.linalg.eig(-operator.A)
        damped = (vectors * (np.minimum(values.real, -1.0) + 1j * values.imag)) @ np.linalg.inv(vectors)
        block = np.zeros((n + 1, n + 1))
        block[:n, :n], block[:n, n] = damped.real / cell.window, operator.B / cell.window
        step, h, kept = expm(block), np.zeros((n, x.shape[0])), []
        for t in range(u.shape[1]):
            h = step[:n, :n] @ h + np.outer(step[:n, n], u[cell.source, t])
            if (t + 1) % cell.stride == 0:
                kept.append(h)
        states.setdefault((cell.stride, cell.n), []).append(np.stack(kept))
    return states


def outputs_of(group, u):
    """All outputs (cells, positions, R, cases) of a group."""
    z, _ = group.columns(u)
    y = torch.bmm(group.weight, z.flatten(2)).unflatten(1, (group.positions, -1)).unflatten(3, (-1, u.shape[2]))
    return y.permute(0, 3, 1, 2, 4).flatten(1, 2)[:, : u.shape[1] // group.stride]


@pytest.mark.parametrize("length", [63, 200])
def test_outputs_are_readouts_of_the_exact_states(length):
    bank = StateBank(SMALL, channels=2, length=length, seed=1)
    x = signals(3, length, 2)
    wanted = slow_outputs(bank, x)
    for group in bank.groups:
        N = group.decay.shape[1]
        y = outputs_of(group, bank.sources(x))
        states = torch.from_numpy(np.stack(wanted[group.stride, N]))  # (cells, positions, N, cases)
        assert y.shape[1] == length // group.stride == states.shape[1]
        for cell in range(len(y)):  # one matrix C (R, N) explains all outputs of a cell
            design = states[cell].permute(0, 2, 1).reshape(-1, N).numpy()
            outputs = y[cell].permute(0, 2, 1).reshape(-1, y.shape[2]).double().numpy()
            C, *_ = np.linalg.lstsq(design, outputs, rcond=1e-10)
            assert np.abs(design @ C - outputs).max() < 1e-4


def test_readouts_do_not_respond_to_a_constant():
    bank = StateBank(SMALL, channels=1, length=100, seed=0)
    held = torch.ones(2, 20_000, 1)
    for group in bank.groups:
        y = outputs_of(group, held)
        assert float(y[:, -10:].abs().max()) < 1e-4


@given(
    cuts=st.lists(st.integers(1, 60), min_size=1, max_size=6), seed=st.integers(0, 100), slow=st.sampled_from([1, 4])
)
def test_a_stream_gives_what_the_signal_so_far_gives(cuts, seed, slow):
    x, y = two_classes()
    model = FeatureModel.fit(
        x, y, "multiclass", config=FeatureConfig(n_features=360, n_scales=4, readouts=6, stretches=False)
    )
    new = signals(2, sum(cuts), seed=seed)
    with mock.patch("wavessm.features.model.SLOW", slow):
        stream, at = model.initial_state(2), 0
    for cut in cuts:
        got = stream.step(new[:, at : at + cut])
        at += cut
        torch.testing.assert_close(got, model(new[:, :at]), rtol=1e-4, atol=1e-4)


@given(
    cuts=st.lists(st.integers(1, 40), min_size=1, max_size=6), seed=st.integers(0, 99), gap=st.booleans(),
    slow=st.sampled_from([1, 8]),
)  # fmt: skip
def test_a_stream_with_missing_samples_gives_what_the_signal_so_far_gives(cuts, seed, gap, slow):
    config = FeatureConfig(n_features=480, n_scales=3, readouts=4, stretches=False, missing="gap" if gap else "hold")
    y = torch.arange(20) % 2
    model = FeatureModel.fit(signals(20, 90, 2) + y[:, None, None], y, "multiclass", config=config)
    model.ridge = torch.nn.Identity()  # shows the features
    new = signals(3, sum(cuts), 2, seed=seed)
    random = torch.Generator().manual_seed(seed)
    new[torch.rand(new.shape, generator=random) < 0.3] = torch.nan
    for start in torch.randint(sum(cuts), (3,), generator=random).tolist():  # whole stretches, of one case and of all
        new[start % 3, start : start + 9], new[:, start : start + 3] = torch.nan, torch.nan
    new[0, : seed % 25, 1], new[1, : seed % 7] = torch.nan, torch.nan
    with mock.patch("wavessm.features.model.SLOW", slow):
        stream, at = model.initial_state(3), 0
    for cut in cuts:
        got = stream.step(new[:, at : at + cut])
        at += cut
        assert got.isfinite().all()
        there = ~new[:, :at].isnan().flatten(1).all(1)
        if there.any():
            differs = (got[there] - model(new[there, :at])).abs() > 2e-3
            wins = differs[:, model.features.bank.blocks["wins"]]  # rounding decides who wins while a value is held
            assert wins.sum() <= 0.03 * wins.numel()
            assert differs.sum() - wins.sum() <= 1  # and, rarely, which side of its bias an output is on


def test_weights_by_label_are_those_of_a_ridge_for_each():
    x, y = two_classes(40)
    labels, config = torch.stack([y, (torch.arange(40) % 7 == 0).long()], dim=1), FeatureConfig(**vars(SMALL))
    weights = torch.where(labels > 0, torch.tensor([1.0, 6.0]), 1.0)
    weights[3] = 0
    got = FeatureModel.fit(x, labels, "multilabel", weights=weights, config=config)
    for k in range(2):
        alone = FeatureModel.fit(x, labels[:, k : k + 1], "multilabel", weights=weights[:, k], config=config)
        torch.testing.assert_close(got(x)[:, k : k + 1], alone(x), rtol=1e-3, atol=1e-3)


def test_features_do_not_depend_on_blocks_or_company(monkeypatch):
    x, y = two_classes(30)
    model = FeatureModel.fit(x, y, "multiclass", config=SMALL)
    whole = model.features(x)
    monkeypatch.setattr("wavessm.features.pools.BLOCK_BYTES", {"cpu": 1})
    monkeypatch.setattr("wavessm.features.model.CASE_BYTES", {"cpu": 1})
    for got, wanted in ((model.features(x), whole), (model.features(x[3:4]), whole[3:4])):
        assert ((got - wanted).abs() > 2e-3).float().mean() < 3e-3  # rounding may carry an output over its bias


def test_padding_is_not_read():
    x, y = two_classes(30)
    lengths = torch.randint(40, 91, (30,), generator=torch.Generator().manual_seed(0))
    padded = x.clone()
    padded[torch.arange(90) >= lengths[:, None]] = 1e6
    model = FeatureModel.fit(padded, y, "multiclass", lengths=lengths, config=SMALL)
    torch.testing.assert_close(model.features(padded, lengths)[4], model.features(x[4:5, : lengths[4]])[0])


def test_the_seed_decides_everything():
    x, y = two_classes()
    first, again, other = (FeatureModel.fit(x, y, "multiclass", config=SMALL, seed=seed)(x) for seed in (5, 5, 6))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def brute_force_left_out(Z, Y, penalty, weights):
    """Weighted ridge with an unpenalised intercept, fitted anew without each case."""
    out = torch.empty_like(Y)
    for i in range(len(Z)):
        keep = torch.arange(len(Z)) != i
        w, z, y = weights[keep], Z[keep], Y[keep]
        A = torch.cat([z, torch.ones(len(z), 1, dtype=z.dtype)], dim=1)
        P = penalty * torch.eye(A.shape[1], dtype=z.dtype)
        P[-1, -1] = 0
        coef = torch.linalg.solve(A.T @ (w[:, None] * A) + P, A.T @ (w[:, None] * y))
        out[i] = torch.cat([Z[i], torch.ones(1, dtype=z.dtype)]) @ coef
    return out


@pytest.mark.parametrize("weighted", [False, True])
def test_left_out_predictions_are_those_of_a_fit_without_the_case(weighted):
    generator = torch.Generator().manual_seed(0)
    F = torch.randn(25, 12, generator=generator)
    Y = torch.randn(25, 2, generator=generator)
    weights = torch.rand(25, generator=generator) + 0.5 if weighted else None
    fit = fit_ridge(F, Y, weights=weights)
    w = torch.ones(25) if weights is None else weights / weights.mean()
    Z = ((F - fit.mean) / fit.scale).double()
    wanted = brute_force_left_out(Z * (fit.weights["all"] / 12) ** 0.5, Y.double(), fit.penalty, w.double())
    torch.testing.assert_close(fit.left_out.double(), wanted, rtol=1e-3, atol=1e-3)


def test_more_cases_than_are_left_out_exactly_and_more_than_features(monkeypatch):
    x, y = two_classes(60)
    exact = FeatureModel.fit(x, y, "multiclass", config=SMALL)
    monkeypatch.setattr("wavessm.features.ridge.EXACT", 30)
    sampled = FeatureModel.fit(x, y, "multiclass", config=SMALL)
    assert (sampled(x).argmax(1) == exact(x).argmax(1)).float().mean() > 0.95
    narrow = FeatureModel.fit(x, y, "multiclass", config=FeatureConfig(n_features=24, n_scales=2, readouts=2))
    assert (narrow(x).argmax(1) == y).float().mean() > 0.9


def test_a_useless_block_has_little_weight_and_a_minor_one_is_found():
    generator = torch.Generator().manual_seed(1)
    Y = torch.randn(80, 1, generator=generator)
    good, noise = Y + 0.1 * torch.randn(80, 10, generator=generator), torch.randn(80, 400, generator=generator)
    blocks = {"good": slice(0, 10), "noise": slice(10, 410)}
    for minor in ((), ("good",), ("noise",)):
        fit = fit_ridge(torch.cat([good, noise], 1), Y, blocks, minor)
        assert fit.weights["good"] > 2 * fit.weights["noise"]
        assert fit.error < 1.25 * fit_ridge(good, Y).error


@pytest.mark.parametrize(("cases", "seed"), [(60, 0), (130, 3)])
def test_the_error_of_an_easy_problem_is_that_of_new_cases(cases, seed):
    """Without noise the penalty falls; were it to reach rounding, leave-one-out would promise what no case gets."""
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(cases, 3 + seed // 3, generator=generator)
    width = 2000 if cases == 60 else 4000
    mixing = torch.randn(hidden.shape[1], width, generator=generator), torch.randn(width, generator=generator)
    new = torch.randn(400, hidden.shape[1], generator=generator)
    x, more = ((each @ mixing[0] + mixing[1]).relu() for each in (hidden, new))
    ridge = fit_ridge(x, hidden[:, :1].sin(), {"a": slice(0, width // 2), "b": slice(width // 2, width)})
    assert ridge.error > 0.2 * float((ridge(more) - new[:, :1].sin()).square().mean())


@pytest.mark.parametrize("seed", [0, 1])
def test_the_error_of_two_classes_far_apart_is_that_of_new_cases(seed):
    """With more cases than choose the weights of the blocks the penalty is searched once more: it fell to 1e-15."""
    generator = torch.Generator().manual_seed(seed)
    y = 2.0 * (torch.arange(1000) % 2)[:, None] - 1
    hidden = torch.cat([y, torch.randn(1000, 2, generator=generator)], 1)
    hidden += 0.3 * torch.randn(1000, 3, generator=generator)
    x = hidden @ torch.randn(3, 2000, generator=generator) + torch.randn(2000, generator=generator)
    x = (x > 0).float()
    ridge = fit_ridge(x[:600], y[:600])
    assert ridge.error > 0.2 * float((ridge(x[600:]) - y[600:]).square().mean())


@pytest.mark.parametrize("blocks_of_cases", [False, True])
def test_a_feature_that_hardly_varied_in_training_does_not_carry_a_case_away(blocks_of_cases):
    generator = torch.Generator().manual_seed(0)
    y = torch.randn(300, 1, generator=generator)
    x = y + 0.5 * torch.randn(300, 400, generator=generator)
    x[:, 7] = 1e-4 * (torch.arange(300) == 11)
    new = x[:1].clone()
    new[0, 7] = 1.0
    blocks = {"a": slice(0, 400)}
    if blocks_of_cases:
        sums = RidgeSums.empty(x[:100], 1)
        for rows in torch.arange(300).split(100):
            sums.add(x[rows], y[rows], rows=rows)
        ridge = sums.solve(blocks)
    else:
        ridge = fit_ridge(x, y, blocks)
    assert float((ridge(new) - ridge(x[:1])).abs()) < 1.0  # some thousands where it counts like the others


@pytest.mark.parametrize("seed", [4, 9, 10])
def test_rounding_in_the_direction_of_the_mean_is_no_error(seed):
    generator = torch.Generator().manual_seed(seed)
    hidden, mixing = torch.randn(18, 2, generator=generator), torch.randn(2, 6000, generator=generator)
    x = (hidden @ mixing + torch.randn(6000, generator=generator)).relu()
    assert fit_ridge(x, (0.3 * hidden[:, :1]).sin()).error < 1e-2  # 0.6 to 1.9 with a kernel that is centred in float32


def test_close_frequencies_are_told_apart():
    """Five tones 0.02 radians a sample apart, of random phase, in noise: 0.8 with states of 8 atoms alone."""
    random = np.random.default_rng(0)
    y = np.arange(150) % 5
    tones = np.sin((0.5 + 0.02 * y[:, None]) * np.arange(400) + random.uniform(0, 2 * np.pi, (150, 1)))
    X = tones + 0.5 * random.standard_normal(tones.shape)
    model = ws.WaveSSMClassifier(features=ws.StateFeatures(n_features=6000), random_state=0)
    assert model.fit(X[:100], y[:100]).score(X[100:], y[100:]) > 0.9


@pytest.mark.parametrize("kind", ["rotation", "lead"])
def test_the_order_of_channels_in_time_is_seen(kind):
    """Circles in either direction from any start; noise that one of two channels has three samples before the other."""
    random = np.random.default_rng(0)
    y = random.integers(0, 2, 100)
    if kind == "rotation":
        turns = random.uniform(0.8, 2.2, (100, 1)) * np.linspace(0, 1, 100) * (2 * y[:, None] - 1)
        phase = 2 * np.pi * (turns + random.uniform(0, 1, (100, 1)))
        X = np.stack([np.cos(phase), np.sin(phase)], axis=1)
    else:
        noise = random.standard_normal((100, 103))
        X = np.stack([noise[:, 3:], noise[:, :-3]], axis=1)
        X = np.where(y[:, None, None] == 1, X, X[:, ::-1])
    X += 0.1 * random.standard_normal(X.shape)
    model = ws.WaveSSMClassifier(features=ws.StateFeatures(n_features=3000), random_state=0)
    assert model.fit(X[:60], y[:60]).score(X[60:], y[60:]) > 0.9


def test_calibrated_probabilities_beat_a_plain_softmax_in_log_loss():
    x, y = two_classes(60, seed=1)
    new, truth = two_classes(200, seed=2)
    model = FeatureModel.fit(x, y, "multiclass", config=SMALL)
    targets = 2.0 * torch.nn.functional.one_hot(y) - 1.0
    raw = fit_ridge(model.features(x), targets, model.features.bank.blocks)
    plain = torch.nn.functional.cross_entropy(raw(model.features(new)), truth)
    assert torch.nn.functional.cross_entropy(model(new), truth) < plain
    zeros, targets = torch.zeros(4, 3), 2.0 * torch.nn.functional.one_hot(torch.arange(30) % 3) - 1.0
    flat = Ridge(zeros[:, 0], 1 + zeros[:, 0], zeros, zeros[0], 1.0, {}, 1.0, torch.zeros(30, 3), torch.arange(30))
    found = calibrate(flat, "multiclass", targets)(torch.ones(1, 4)).softmax(1)
    torch.testing.assert_close(found, torch.full((1, 3), 1 / 3))


@pytest.mark.parametrize("kind", ["multilabel", "regression"])
def test_labels_and_numbers(kind):
    x, y = two_classes(60)
    targets = torch.stack([y, 1 - y], 1).float() if kind == "multilabel" else y[:, None] * 3.0 + 10.0
    model = FeatureModel.fit(x, targets, kind, config=SMALL)
    got = model(x)
    assert (
        ((got > 0).float() == targets).float().mean() > 0.9 if kind == "multilabel" else (got - targets).abs().max() < 2
    )


def test_streams_and_constant_signals_that_cannot_be_are_refused():
    x, y = two_classes(40)
    config = FeatureConfig(n_features=480, n_scales=4, readouts=6)
    model = FeatureModel.fit(x, y, "multiclass", config=config)
    with pytest.raises(ws.OptionError, match="stretches=False"):
        model.initial_state()
    with pytest.raises(ws.WaveSSMError, match="constant"):
        FeatureModel.fit(torch.ones(4, 20, 1), torch.arange(4) % 2, "multiclass", config=config)


def test_a_gap_is_passed_by_the_last_value_and_is_not_pooled():
    """Against outputs of the filled signal, averaged by hand over observed samples."""
    config = FeatureConfig(
        n_features=240, d_state=8, n_scales=3, readouts=5, pools=("share",), stretches=False, values=False,
        missing="gap",
    )  # fmt: skip
    x = signals(6, 40)
    features = SignalFeatures(x, None, config, 0, "cpu")
    gone = torch.rand(x.shape, generator=torch.Generator().manual_seed(1)) < 0.4
    gone[:, -1] = False
    holed = torch.where(gone, torch.nan, x)
    filled = holed.clone()
    for t in range(40):
        before = filled[:, t - 1 : t] if t else holed[:, :1]
        filled[:, t : t + 1] = torch.where(filled[:, t : t + 1].isnan(), before, filled[:, t : t + 1])
    for case in range(6):  # before the first observed sample: that sample
        first = int((~filled[case, :, 0].isnan()).nonzero()[0])
        filled[case, :first] = filled[case, first]
    (group,) = [g for g in features.bank.groups if g.stride == 1]
    u = features.bank.sources((filled - features.mean) / features.scale)
    above = (outputs_of(group, u) > group.bias[:, None, :, None]).float()  # (cells, time, R, cases)
    seen = (~gone)[..., 0].T[None, :, None]
    wanted = ((above * seen).sum(1) / seen.sum(1)).flatten(0, 1).T
    torch.testing.assert_close(features(holed)[:, : wanted.shape[1]], wanted, rtol=0, atol=1e-5)
    held = SignalFeatures(x, None, FeatureConfig(**{**vars(config), "missing": "hold"}), 0, "cpu")
    torch.testing.assert_close(held(holed), held(filled))


def test_nan_at_the_end_is_a_shorter_case_and_a_case_of_nan_is_refused():
    x, y = two_classes(20)
    model = FeatureModel.fit(x, y, "multiclass", config=SMALL)
    cut = x.clone()
    cut[3, 60:] = torch.nan
    torch.testing.assert_close(model.features(cut)[3], model.features(x[3:4, :60])[0])
    cut[3] = torch.nan
    with pytest.raises(ws.WaveSSMError, match="case 3 of X has no observed sample"):
        model.features(cut)


@pytest.mark.parametrize("kind", ["multiclass", "regression"])
def test_many_cases_are_fitted_in_blocks(kind, monkeypatch):
    x, y = two_classes(400)
    y = y if kind == "multiclass" else y[:, None] * 2.0 + 1
    lengths = torch.arange(400) % 7 + 30
    narrow = FeatureConfig(n_features=120, n_scales=2, readouts=4)  # fewer features than cases
    whole = FeatureModel.fit(x, y, kind, lengths, config=narrow)
    monkeypatch.setattr("wavessm.features.model.AT_ONCE", 0)
    monkeypatch.setattr("wavessm.features.model.BLOCK", 123)
    monkeypatch.setattr("wavessm.features.ridge.PANEL", 50)
    blocks = FeatureModel.fit(x, y, kind, lengths, config=narrow)
    assert blocks.features.bank.n_features < 400
    assert not torch.equal(blocks.ridge.sample, whole.ridge.sample)  # another order: it was fitted in blocks
    read = torch.nn.functional.softmax if kind == "multiclass" else lambda output, dim: output
    torch.testing.assert_close(read(blocks(x, lengths), dim=1), read(whole(x, lengths), dim=1), rtol=0, atol=2e-2)
    targets = 2.0 * y[:, None] - 1 if kind == "multiclass" else y
    error = (targets[blocks.ridge.sample] - blocks.ridge.left_out[:, -1:]).square().mean()
    assert error == pytest.approx(blocks.ridge.error, rel=1e-3)  # the sample is where it says among all cases


@pytest.mark.parametrize("kind", ["multiclass", "regression"])
def test_blocks_of_cases_on_two_machines_give_the_fit_of_all(kind):
    x, y = two_classes(60)
    y = y if kind == "multiclass" else y[:, None] * 2.0 + 1
    weights = torch.rand(60, generator=torch.Generator().manual_seed(3)) + 0.5
    whole = FeatureModel.fit(x, y, kind, weights=weights, config=SMALL)
    one = FeatureSums(whole.features, kind, 2 if kind == "multiclass" else 1)
    one.add(x[:20], y[:20], weights=weights[:20])
    other = one.empty()
    other.add(x[20:45], y[20:45], weights=weights[20:45])
    one.add(x[45:], y[45:], weights=weights[45:])
    model = (one + other).solve()
    assert model.ridge.weights == pytest.approx(whole.ridge.weights, rel=0.05)
    if kind == "regression":
        torch.testing.assert_close(model(x), whole(x), rtol=0, atol=2e-2)
    if kind == "multiclass":
        torch.testing.assert_close(model(x).softmax(1), whole(x).softmax(1), rtol=0, atol=2e-2)


def test_contributions_of_features_sum_to_the_logit():
    x, y = two_classes(30)
    model = FeatureModel.fit(x, y, "multiclass", config=SMALL)
    rest = model(x)[:, 1] - model.contributions(x, 1).sum(1)
    torch.testing.assert_close(rest, rest[:1].expand(30), rtol=0, atol=1e-4)
    assert len(model.features.bank.names()) == model.contributions(x, 1).shape[1] == model.features.bank.n_features


def test_a_case_of_weight_zero_is_left_out():
    x, y = two_classes(40)
    wrong = y.clone()
    wrong[:10] = 1 - wrong[:10]
    weights = (torch.arange(40) >= 10).float()
    model = FeatureModel.fit(x, wrong, "multiclass", weights=weights, config=SMALL)
    torch.testing.assert_close(model(x), FeatureModel.fit(x[10:], y[10:], "multiclass", config=SMALL)(x))


def test_classes_of_one_case_each_can_be_told_apart():
    generator = torch.Generator().manual_seed(0)
    rate = torch.linspace(0.1, 1.0, 12)[:, None]
    x = torch.sin(rate * torch.arange(200) + 6 * torch.rand(24, 1, generator=generator).view(2, 12, 1))[..., None]
    model = FeatureModel.fit(x[0], torch.arange(12), "multiclass", config=FeatureConfig(n_features=2000))
    assert (model(x[1]).argmax(1) == torch.arange(12)).float().mean() > 0.7


SMALLER = ws.StateFeatures(n_features=480, n_scales=4, readouts=6, random_state=0)


def numpy_cases(cases=40, length=90, seed=0):
    x, y = two_classes(cases, length, seed)
    return x[..., 0].double().numpy(), np.array(["down", "up"])[y.numpy()]


def test_a_list_lengths_and_nan_at_the_end_are_the_same_cases():
    X, _ = numpy_cases(12)
    lengths = np.random.default_rng(0).integers(30, 91, 12)
    padded = X.copy()
    padded[np.arange(90) >= lengths[:, None]] = np.nan
    listed = clone(SMALLER).fit_transform([row[:n] for row, n in zip(X, lengths, strict=True)])
    assert listed.dtype == np.float32
    np.testing.assert_allclose(clone(SMALLER).fit_transform(padded), listed, atol=1e-5)
    given = clone(SMALLER).fit(X, lengths=lengths)
    np.testing.assert_allclose(given.transform(X, lengths=lengths), listed, atol=1e-5)


def test_names_tell_features_apart_and_carry_channels():
    import pandas as pd

    rng = np.random.default_rng(0)
    X = [pd.DataFrame(rng.standard_normal((50, 2)), columns=["left", "right"]) for _ in range(8)]
    names = clone(SMALLER).fit(X).get_feature_names_out()
    assert len(set(names)) == len(names) == clone(SMALLER).fit_transform(X).shape[1]
    assert any("difference of channel left" in name and "wins" in name for name in names)
    assert any(name.split(", ")[2] == "mixture 0" and " to " in name.split(", ")[-1] for name in names)


def test_partial_fit_and_merge_agree_with_fit():
    X, y = numpy_cases(60)
    new, truth = numpy_cases(80, seed=5)
    model = ws.WaveSSMClassifier(features=SMALLER, random_state=0).partial_fit(X[:30], y[:30], classes=["up", "down"])
    other = model.empty_copy().partial_fit(X[30:], y[30:])
    assert model.merge(other).score(new, truth) > 0.9
    whole = ws.WaveSSMClassifier(features=SMALLER, random_state=0).fit(X, y)
    assert np.mean(model.predict(new) == whole.predict(new)) > 0.95
    numbers = (y == "up") * 2.0 + 5
    regressor = ws.WaveSSMRegressor(features=SMALLER, random_state=0).partial_fit(X[:30], numbers[:30])
    assert regressor.partial_fit(X[30:], numbers[30:]).score(new, (truth == "up") * 2.0 + 5) > 0.5


def test_missing_samples_are_classified_as_complete_ones():
    X, y = numpy_cases(80)
    holed = X.copy()
    holed[np.random.default_rng(0).random(X.shape) < 0.3] = np.nan
    for missing in ("gap", "hold"):
        model = ws.WaveSSMClassifier(features=SMALLER, missing=missing, random_state=0).fit(holed[:50], y[:50])
        assert model.score(holed[50:], y[50:]) > 0.8
    with pytest.raises(ws.WaveSSMError, match="case 0 of X has NaN"):
        ws.WaveSSMClassifier(missing="error").fit(holed, y)
    with pytest.raises(ws.WaveSSMError, match="channel 0 is NaN in all training cases"):
        ws.WaveSSMClassifier().fit(np.stack([np.nan * X, X], axis=1), y)


def _infinite(X, y):
    X[2, 3] = np.inf
    return ws.WaveSSMClassifier().fit(X, y)


def _stacked(X):
    import pandas as pd

    return pd.concat({at: pd.DataFrame(row) for at, row in enumerate(X)}, names=["case", "time"])


BAD = {
    "case 2 of X has infinity": _infinite,
    "becomes a list by [table for _,": lambda X, y: ws.WaveSSMClassifier().fit(_stacked(X), y),
    "constant in float32 in all training cases; subtract": lambda X, y: ws.WaveSSMClassifier().fit(1e9 + X, y),
    "one class": lambda X, y: ws.WaveSSMClassifier().fit(X, np.full(len(y), "up")),
    "X has 2 channels, expected the 1 of fit": lambda X, y: (
        ws.WaveSSMClassifier(features=SMALLER).fit(X, y).predict(np.stack([X, X], 1))
    ),
    "first call of partial_fit needs classes": lambda X, y: ws.WaveSSMClassifier().partial_fit(X, y),
    "label 'down', which is not": lambda X, y: ws.WaveSSMClassifier().partial_fit(X, y, classes=["up", "left"]),
    "features is 3, expected a StateFeatures": lambda X, y: ws.WaveSSMClassifier(features=3).fit(X, y),
    "call partial_fit first": lambda X, y: ws.WaveSSMClassifier(features=SMALLER).fit(X, y).empty_copy(),
    "unknown missing": lambda X, y: ws.StateFeatures(missing="drop").fit(X),
    "lengths are": lambda X, y: ws.StateFeatures().fit(X, lengths=[100] * len(X)),
    "unknown pool": lambda X, y: ws.StateFeatures(pools=("mean",)).fit(X),
    "n_mixtures is -1, expected": lambda X, y: ws.StateFeatures(n_mixtures=-1).fit(X),
    "stretches is 'no', expected": lambda X, y: ws.StateFeatures(stretches="no").fit(X),
    "X has 1 axes": lambda X, y: ws.WaveSSMClassifier().fit(X[0], y),
}


@pytest.mark.parametrize("message", BAD)
def test_bad_input_is_named_in_one_line(message):
    X, y = numpy_cases(20)
    with pytest.raises(ws.WaveSSMError) as told:
        BAD[message](X, y)
    assert message in str(told.value)
    assert "\n" not in str(told.value)


SUSPECT = {
    "swap the last two axes": lambda X, y: (X[:, :, None], y),
    "case 3 of X has 4 samples": lambda X, y: ([x[:4] if at == 3 else x for at, x in enumerate(X)], y),
    "y has 20 classes in 20 cases": lambda X, y: (X, np.arange(20)),
}


@pytest.mark.parametrize("message", SUSPECT)
def test_what_is_probably_a_mistake_is_told_in_one_line(message):
    with pytest.warns(UserWarning, match=message):
        ws.WaveSSMClassifier(features=SMALLER).fit(*SUSPECT[message](*numpy_cases(20)))


@pytest.mark.parametrize("channels", [1, 12, 150])
def test_the_number_of_features_stays_near_what_was_asked(channels):
    bank = StateBank(FeatureConfig(n_features=3000), channels, 90, seed=0)
    assert 1500 <= bank.n_features <= 9000
    assert len(bank.names()) == bank.n_features
    windows = {cell.window for cell in bank.cells}
    assert len(windows) == bank.config.n_scales  # every time scale is there, whatever the number of channels

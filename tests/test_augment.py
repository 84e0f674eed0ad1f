"""Augmentation changes batches as it says, and nothing else."""

import dataclasses

import numpy as np
import pytest
import torch

import wavessm as ws
from wavessm.data.source import Batch, DataInfo
from wavessm.training import TrainConfig, metrics
from wavessm.training.augment import augment, check_augmentation, mixed_loss


def batch(cases=5, length=12, channels=3, seed=0):
    """Signals with a missing sample and padding after their lengths."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(cases, length, channels, generator=generator)
    lengths = torch.randint(4, length + 1, (cases,), generator=generator)
    x[0, 1, 2] = torch.nan
    x[torch.arange(length) >= lengths[:, None]] = 0
    return Batch(x, torch.arange(cases) % 2, lengths)


def test_no_option_leaves_the_batch_as_it_is():
    given = batch()
    assert augment(given, TrainConfig(), 3) is given


def test_amplitude_is_one_factor_for_each_case_within_its_bounds():
    given = batch()
    ratio = augment(given, TrainConfig(amplitude=0.5), 3).x / given.x
    for case, length in zip(ratio, given.lengths, strict=True):
        seen = case[:length][~case[:length].isnan()]
        assert torch.allclose(seen, seen[0].expand(len(seen)), rtol=1e-5)
        assert 1 / 1.5 <= seen[0] <= 1.5
    assert len({round(float(case[0, 0]), 6) for case in ratio}) == 5


def test_jitter_has_its_size_and_leaves_padding_and_gaps():
    given = batch(cases=400)
    found = augment(given, TrainConfig(jitter=0.25), 0)
    true = torch.arange(12) < given.lengths[:, None]
    assert (found.x[~true] == 0).all()
    assert found.x[0, 1, 2].isnan()
    noise = (found.x - given.x)[true].nan_to_num()
    assert float(noise.std()) == pytest.approx(0.25, rel=0.02)


def test_channel_dropout_zeroes_whole_channels_by_its_probability_and_never_all():
    given = Batch(torch.ones(4000, 6, 3), torch.zeros(4000))
    kept = augment(given, TrainConfig(channel_dropout=0.4), 0).x
    assert torch.equal(kept, kept[:, :1].expand_as(kept))
    assert kept[:, 0].amax(1).min() == 1
    assert float((kept == 0).float().mean()) == pytest.approx(0.4 - 0.4**3 / 3, abs=0.02)


def test_time_warp_is_the_rate_of_the_model():
    torch.manual_seed(0)
    model = ws.SequenceModel(ws.ModelConfig(d_input=3, d_output=2, d_model=8, n_layers=1, d_state=8)).eval()
    given = batch()._replace(x=batch().x.nan_to_num())
    rates = set()
    for step in range(60):
        warped = augment(given, TrainConfig(time_warp=0.25), step)
        rates.add(warped.rate)
        assert torch.equal(model(warped.x, **warped.inputs()), model(given.x, lengths=given.lengths, rate=warped.rate))
    assert min(rates) == pytest.approx(0.8)
    assert max(rates) == pytest.approx(1.25)
    assert len(rates) == 9


def test_mixup_mixes_signals_lengths_and_the_loss_of_soft_targets():
    given = batch()
    found = augment(given, TrainConfig(mixup=1.0), 2)
    share, other = found.share, found.partner
    expected = share * given.x + (1 - share) * given.x[other]
    assert torch.allclose(found.x, expected, atol=1e-6, equal_nan=True)
    assert torch.equal(found.lengths, torch.maximum(given.lengths, given.lengths[other]))
    output, balance = torch.randn(5, 2), torch.tensor([0.5, 2.0])
    soft = torch.nn.functional.one_hot(given.y, 2).float()
    soft = share * soft + (1 - share) * soft[other]
    by_hand = -(balance * soft * output.log_softmax(1)).sum(1).mean()
    loss = mixed_loss(lambda *pair: metrics.loss("multiclass", *pair, balance), output, found)
    assert float(loss) == pytest.approx(float(by_hand), rel=1e-5)


def test_changes_depend_on_seed_step_and_process_alone():
    given, all_of_them = batch(), TrainConfig(amplitude=0.3, jitter=0.1, time_warp=0.2, channel_dropout=0.2, mixup=0.4)
    a, b = augment(given, all_of_them, 7), augment(given, all_of_them, 7)
    assert torch.equal(a.x.nan_to_num(), b.x.nan_to_num())
    assert a.rate == b.rate
    for other in (augment(given, all_of_them, 8), augment(given, all_of_them, 7, rank=1),
                  augment(given, dataclasses.replace(all_of_them, seed=1), 7)):  # fmt: skip
        assert not torch.equal(a.x.nan_to_num(), other.x.nan_to_num())


@pytest.mark.parametrize(
    ("option", "kind", "more", "words"),
    [
        ("jitter", "multiclass", {"symbols": ("a",)}, "--jitter does not fit tokens"),
        ("time_warp", "forecast", {}, "--time-warp does not fit forecasts"),
        ("mixup", "multiclass", {"timed": True}, "--mixup does not fit samples with times"),
    ],
)
def test_changes_that_data_do_not_survive_are_refused(option, kind, more, words):
    with pytest.raises(ws.OptionError, match=words):
        check_augmentation(TrainConfig(**{option: 0.1}), DataInfo(kind, 1, 2, 10, **more))
    with pytest.raises(ws.OptionError, match="expected 0 ≤ channel_dropout < 1"):
        TrainConfig(channel_dropout=1.0)


@pytest.mark.parametrize("estimator", [ws.WaveSSMClassifier, ws.WaveSSMRegressor])
def test_estimators_have_the_same_options(estimator):
    random = np.random.default_rng(0)
    y = random.uniform(0.1, 0.5, 40)
    X = np.sin(np.arange(60) * y[:, None])
    y = (y > 0.3).astype(int) if estimator is ws.WaveSSMClassifier else y
    options = {"amplitude": 0.2, "jitter": 0.1, "time_warp": 0.1, "channel_dropout": 0.1, "mixup": 0.2}
    plain, first, second = (estimator(max_epochs=3, d_model=8, random_state=0, **each).fit(X, y).predict(X)
                            for each in ({}, options, options))  # fmt: skip
    assert (first == second).all()
    assert estimator is ws.WaveSSMClassifier or not (plain == first).all()

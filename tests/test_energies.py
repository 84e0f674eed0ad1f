"""The front end for sound: frames of a stream equal those of a recording, and bands are where they say."""

import io

import numpy as np
import onnxruntime
import pandas as pd
import pytest
import soundfile
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.signal import resample_poly
from sklearn.base import clone
from sklearn.pipeline import make_pipeline

import miniatures
import wavessm as ws
from contracts import check_mistake
from wavessm.cli import main
from wavessm.features import EnergyBank
from wavessm.training import Run


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=6), st.integers(1, 3), st.sampled_from([4000.0, 8000.0, 11025.0])
)
def test_chunks_of_a_stream_give_the_frames_of_the_recording(chunks, channels, rate):
    bank = EnergyBank(rate, n_bands=7)
    frames = sum(chunks) or 1
    x = torch.randn(2, frames * bank.hop, channels, generator=torch.Generator().manual_seed(0))
    state, found = bank.initial_state(2, channels), []
    for part in x.split([n * bank.hop for n in (chunks if sum(chunks) else [1])], dim=1):
        frame, state = bank.stream(part, state)
        found.append(frame)
    assert bank(x).shape == (2, frames, channels * 7)
    torch.testing.assert_close(torch.cat(found, 1), bank(x), atol=1e-5, rtol=1e-5)


def test_frames_equal_a_float64_inner_product_with_each_filter():
    bank, x = EnergyBank(8000.0, n_bands=5), torch.randn(1, 1000, 1, dtype=torch.float64)
    taps = bank.filters.shape[-1]
    padded = np.concatenate([np.zeros(taps - bank.stride), x[0, :, 0].numpy()])
    atoms = bank.filters[:5, 0].double().numpy() + 1j * bank.filters[5:, 0].double().numpy()
    frame = 6
    places = [(4 * frame + k) * bank.stride for k in range(4)]
    power = np.mean([np.abs(atoms @ padded[at : at + taps]) ** 2 for at in places], axis=0)
    np.testing.assert_allclose(bank(x.float())[0, frame], np.log(power + 1e-4), atol=1e-4)


@pytest.mark.parametrize("band", [3, 17, 36])
def test_a_tone_is_loudest_in_its_band(band):
    bank = EnergyBank(16_000.0)
    tone = torch.sin(2 * torch.pi * bank.frequencies[band] * torch.arange(8000) / 16_000).float()[None, :, None]
    assert bank(tone)[0, 10:].mean(0).argmax() == band


def test_white_noise_has_energy_one_in_every_band():
    x = torch.randn(1, 160_000, 1, generator=torch.Generator().manual_seed(1))
    assert (bank := EnergyBank(16_000.0))(x).exp().mean(1).sub(1).abs().max() < 0.15
    assert bank.filters.square().sum(-1).view(2, -1).sum(0).sub(1).abs().max() < 1e-5


def test_loudness_does_not_matter_and_lengths_do_not_leak():
    random = np.random.default_rng(0)
    X = [random.standard_normal(n) for n in (900, 1500, 1210)]
    front = ws.LogEnergies(8000).fit(X)
    found = front.transform([3 * x + 1 for x in X])
    assert [each.shape for each in found] == [(40, 11), (40, 18), (40, 15)]
    for one, x in zip(found, X, strict=True):
        np.testing.assert_allclose(one, front.transform([x])[0], atol=1e-3)
    assert not np.allclose(
        ws.LogEnergies(8000, scaling="none").fit(X).transform([3 * x for x in X])[0], found[0], atol=0.1
    )


def test_a_pipeline_tells_rising_from_falling_tones():
    t = np.arange(4000) / 8000
    up, down = (np.sin(2 * np.pi * np.cumsum(f) / 8000) for f in (300 + 1200 * t, 900 - 1200 * t))
    random = np.random.default_rng(0)
    X = np.stack([each * random.uniform(0.1, 3) + 0.05 * random.standard_normal(4000) for each in [up, down] * 15])
    y = np.array(["up", "down"] * 15)
    model = make_pipeline(clone(ws.LogEnergies(8000)), ws.WaveSSMClassifier(random_state=0)).fit(X[:20], y[:20])
    assert model.score(X[20:], y[20:]) == 1
    assert model[0].get_feature_names_out()[0] == "60 Hz"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scaling": "loud"}, "scaling"),
        ({"hop": 1e-4}, "larger hop"),
        ({"n_bands": 1}, "n_bands"),
        ({"sampling_rate": -1}, "sampling_rate"),
    ],
)
def test_options_that_make_no_sense_get_one_line(options, message):
    with pytest.raises(ws.WaveSSMError, match=message):
        ws.LogEnergies(**options).fit_transform(np.ones((2, 4000)))


def test_chunks_that_are_no_whole_frames_are_refused():
    bank = EnergyBank(8000.0)
    with pytest.raises(ws.OptionError, match="multiple of a frame, 80"):
        bank.stream(torch.zeros(1, 81, 1), bank.initial_state(1, 1))


@pytest.fixture(scope="module")
def sounds(tmp_path_factory):
    """Rising and falling tones of any loudness at 8 kHz, as WAV files."""
    folder, random = tmp_path_factory.mktemp("sounds"), np.random.default_rng(0)
    for k in range(40):
        slope = (1 - 2 * (k % 2)) * 1500
        f = 900 + slope * (np.arange(2400 + 40 * k) / 8000 - 0.2)
        signal = random.uniform(0.05, 0.5) * np.sin(2 * np.pi * np.cumsum(f) / 8000)
        path = folder / ("up", "down")[k % 2] / f"{k:02}.wav"
        path.parent.mkdir(exist_ok=True)
        miniatures.write_wav(path, signal + 0.01 * random.standard_normal(len(f)), 8000)
    return folder


@pytest.mark.parametrize("method", [["--no-stretches"], ["--epochs", "6", "--d-model", "16", "--d-state", "8"]])
def test_wav_runs_read_energies_in_files_other_rates_streams_and_onnx(sounds, tmp_path, method, capsys, monkeypatch):
    run = tmp_path / "run"
    assert main(["train", "wav", str(sounds), "--out", str(run), "--scaling", "global", "--quiet", *method]) == 0
    assert Run.read(run).info.front_end == "energies"
    source = sorted(sounds.rglob("*.wav"))[3]
    values, rate = soundfile.read(source)
    soundfile.write(tmp_path / "double.wav", resample_poly(values, 2, 1), 2 * rate, subtype="FLOAT")
    capsys.readouterr()
    found = []
    for line in (["predict", run, source], ["predict", run, tmp_path / "double.wav"],
                 ["predict", run, "-", "--chunk", "130"]):  # fmt: skip
        with open(source, encoding="utf-8") as stdin:
            monkeypatch.setattr("sys.stdin", stdin)
            assert main([*map(str, line)]) == 0
        found.append(pd.read_csv(io.StringIO(capsys.readouterr().out)).iloc[-1])
    assert {row["prediction"] for row in found} == {source.parent.name}
    assert abs(found[0]["up"] - found[1]["up"]) < 0.05
    assert abs(found[0]["up"] - found[2]["up"]) < 1e-3
    assert main(["export", str(run), "--out", str(tmp_path / "m.onnx")]) == 0
    session = onnxruntime.InferenceSession(str(tmp_path / "m.onnx"))
    logits = session.run(None, {"x": values.astype(np.float32)[None, :, None]})[0][0]
    assert abs(np.exp(logits[1]) / np.exp(logits).sum() - found[0]["up"]) < 1e-3
    assert main(["export", str(run), "--format", "step-onnx", "--out", str(tmp_path / "s.onnx")]) == 2
    assert main(["inspect", str(run), "--out", str(tmp_path / "figures")]) == 0
    soundfile.write(tmp_path / "half.wav", values[::2], rate // 2, subtype="FLOAT")
    check_mistake(["predict", str(run), str(tmp_path / "half.wav")], "trained at 8000 Hz", capsys)

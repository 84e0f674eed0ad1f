"""The examples run, on generated data, and do what they say."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from wavessm.data import DataInfo
from wavessm.estimators import WaveSSMClassifier
from wavessm.export import export_onnx

EXAMPLES = Path(__file__).parent.parent / "examples"


def load(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_ecg_from_arrays(capsys):
    assert load("classify_ecg").main() > 0.85
    assert "irregular" in capsys.readouterr().out


def test_forecast_of_a_csv(tmp_path, capsys):
    example = load("forecast_csv")
    example.write_example(tmp_path / "load.csv", hours=24 * 25)
    assert example.main(tmp_path / "load.csv") < 3, "the noise alone makes 1.6, the day alone 13"
    assert "2024-01-26 00:00:00" in capsys.readouterr().out


def test_keywords_from_files_and_then_live(tmp_path, capsys):
    example = load("keywords")
    example.write_example(tmp_path, count=24)
    assert example.main(tmp_path) > 0.85
    said = capsys.readouterr().out.splitlines()
    assert said[-1] == "after 500 samples: high"


def test_fine_tuning_on_twenty_recordings(capsys):
    scores = load("fine_tune").main()
    assert scores["fine-tuned"] > 0.85, "a half would be chance"
    assert "fine-tuned" in capsys.readouterr().out


def test_own_wavelet():
    assert load("own_wavelet").main() > 0.7


def test_own_lightning_module_in_two_processes():
    command = [sys.executable, "-W", "ignore", str(EXAMPLES / "own_lightning.py"), "--processes", "2"]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout
    assert "on 2 process(es)" in said
    assert float(said.split()[-1]) < 0.1, "the input has a variance near 1"


@pytest.mark.parametrize("chunk", [20])
def test_a_stream_with_numpy_and_onnxruntime_alone(tmp_path, chunk, capsys):
    import numpy as np
    import torch

    random = np.random.default_rng(0)
    X, y = random.standard_normal((12, 2, 40)), np.arange(12) % 3
    model = WaveSSMClassifier(bidirectional=False, max_epochs=1, d_model=8, d_state=8, random_state=0).fit(X, y).model_
    info = DataInfo("multiclass", 2, 3, 40, ("a", "b", "c"))
    export_onnx(model, tmp_path / "step.onnx", chunk=chunk, info=info, stream=True)
    example = load("stream_onnx")
    logits = example.main(str(tmp_path / "step.onnx"))
    whole = torch.from_numpy(np.concatenate(list(example.live(2, chunk)), axis=1))
    with torch.no_grad():
        np.testing.assert_allclose(logits, model(whole).numpy(), atol=1e-4)
    assert capsys.readouterr().out.count("\n") == 10
    text = (EXAMPLES / "stream_onnx.py").read_text()
    assert "import torch" not in text
    assert "import wavessm" not in text
    assert "from wavessm" not in text

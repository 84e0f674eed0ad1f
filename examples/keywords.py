"""Spot keywords in WAV files, then live: train on files, export the stream, read a recording in chunks.

    python examples/keywords.py [FOLDER]

FOLDER has a folder of WAV files for each word; without one, two made-up words are written: a low and a high tone.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
import onnxruntime
import soundfile

from wavessm.data import DataInfo
from wavessm.estimators import WaveSSMClassifier
from wavessm.export import export_onnx

CHUNK = 100


def write_example(folder: Path, count: int = 40, rate: int = 1000) -> None:
    """Half a second of a low or a high tone, in noise."""
    random = np.random.default_rng(0)
    t = np.arange(rate // 2) / rate
    for word, pitch in (("low", 60.0), ("high", 180.0)):
        (folder / word).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            tone = np.sin(2 * np.pi * random.normal(pitch, 15) * t + random.uniform(0, 6))
            sound = 0.5 * tone + 0.05 * random.standard_normal(len(t))
            soundfile.write(folder / word / f"{number:03}.wav", sound.clip(-1, 1), rate)


def read(folder: Path) -> tuple[list[np.ndarray], np.ndarray]:
    """Signals (1, samples) and the names of their folders."""
    paths = sorted(folder.glob("*/*.wav"))
    return [soundfile.read(path, dtype="float32")[0][None] for path in paths], np.array([p.parent.name for p in paths])


def main(folder: Path, epochs: int = 15) -> float:
    X, y = read(folder)
    model = WaveSSMClassifier(bidirectional=False, max_epochs=epochs, learning_rate=0.01, random_state=0)
    model.fit(X[::2], y[::2])
    accuracy = model.score(X[1::2], y[1::2])
    print(f"accuracy on the other half: {accuracy:.2f}")
    path = folder / "words.onnx"
    scale = tuple(model.mean_.tolist()), tuple(model.scale_.tolist())
    info = DataInfo("multiclass", 1, len(model.classes_), X[0].shape[1], tuple(model.classes_.tolist()), scale=scale)
    print(export_onnx(model.model_, path, chunk=CHUNK, info=info, stream=True))
    stream = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [entry.name for entry in stream.get_inputs() if entry.name != "x"]
    types = {"tensor(float)": np.float32, "tensor(double)": np.float64}
    state = {e.name: np.zeros([1, *e.shape[1:]], types[e.type]) for e in stream.get_inputs() if e.name != "x"}
    for begin in range(0, X[1].shape[1] - CHUNK + 1, CHUNK):  # as a microphone would deliver it
        logits, *after = stream.run(None, {"x": X[1][:, begin : begin + CHUNK].T[None], **state})
        state = dict(zip(names, after, strict=True))
        print(f"after {begin + CHUNK} samples: {model.classes_[logits[0].argmax()]}")
    return accuracy


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as made_up:
            write_example(Path(made_up))
            main(Path(made_up))

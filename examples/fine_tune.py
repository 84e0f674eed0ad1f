"""Twenty recordings and a label: fine-tune a model that has seen many others.

    python examples/fine_tune.py                 # makes a small pretrained model first, a minute
    python examples/fine_tune.py ecg-12lead      # a name of ws.pretrained(), a model folder or a run folder

Replace `labelled` by your own recordings: arrays (cases, channels, time) and a label for each. Here they differ in
everything from those of pretraining: other classes, one lead of two, twice the sampling rate, another length.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np

import wavessm as ws
from wavessm.data.info import DataInfo
from wavessm.nn.pretrained import Card, save_model

LEADS = ("I", "II")
SHAPES = ("narrow", "wide", "double", "inverted")


def beats(cases: int, seconds: float, rate: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Noisy trains of beats (cases, 2, time) at `rate` hertz, and their shape (cases,) as a number."""
    random = np.random.default_rng(seed)
    shape, t, X = random.integers(4, size=cases), np.arange(round(seconds * rate)) / rate, []
    for k in shape:
        at = t[:, None] - np.cumsum(random.normal(0.8, 0.1, 30).clip(0.4)) + random.uniform(0, 0.8)
        width = 0.08 if k == 1 else 0.03
        wave = np.exp(-0.5 * (at / width) ** 2) + (k == 2) * 0.7 * np.exp(-0.5 * ((at - 0.15) / width) ** 2)
        wave = wave.sum(1) * (-1 if k == 3 else 1)
        X.append(np.stack([0.6 * wave, wave]) + 1.1 * random.standard_normal((2, len(t))))
    return np.array(X), shape


def pretrain(folder: Path) -> str:
    """Train a model of shapes on many recordings at 50 Hz, and save it with what others need to know about it."""
    X, shape = beats(400, 6, 50, seed=1)
    model = ws.WaveSSMClassifier(d_model=32, n_layers=3, d_state=32, max_epochs=6, batch_size=16, random_state=0)
    model.fit(X, np.array(SHAPES)[shape])
    info = DataInfo(
        "multiclass", 2, 4, X.shape[2], classes=tuple(model.classes_.tolist()), channels=LEADS, sampling_rate=50.0,
        scale=(tuple(model.mean_.tolist()), tuple(model.scale_.tolist())),
    )  # fmt: skip
    extra = {"about": "toy beats, two leads, 50 Hz", "info": info.to_dict()}
    return str(save_model(model.model_.cpu(), folder, Card("shapes of drawn beats", "generated"), extra))


def labelled(cases: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The new task: lead II alone, 100 Hz; wide and double beats are one class, all others another."""
    X, shape = beats(cases, 8, 100, seed)
    return X[:, 1:], np.where((shape == 1) | (shape == 2), "late", "on time")


def main(source: str = "") -> dict[str, float]:
    """Scores of three models that were fitted to the same twenty recordings."""
    (X, y), (X_test, y_test) = labelled(20, seed=2), labelled(300, seed=3)
    with tempfile.TemporaryDirectory() as folder:
        source = source or pretrain(Path(folder))
        tuned = ws.WaveSSMClassifier(
            pretrained=source, sampling_rate=100, channel_names=["II"], train_blocks=1, max_epochs=30, random_state=0
        )
        models = {
            "fine-tuned": tuned,
            "from scratch": ws.WaveSSMClassifier(d_model=32, n_layers=3, d_state=32, max_epochs=60, random_state=0),
            "features": ws.WaveSSMClassifier(random_state=0),
        }
        scores = {name: model.fit(X, y).score(X_test, y_test) for name, model in models.items()}
    for name, score in scores.items():
        print(f"{name:<14}{score:.3f} of 300 new recordings")
    return scores


if __name__ == "__main__":
    main(*sys.argv[1:])

"""A wavelet of your own as the frame of a model's state, from its formula to a trained classifier.

python examples/own_wavelet.py
"""

from __future__ import annotations

import numpy as np

import wavessm as ws
from wavessm.estimators import WaveSSMClassifier


def riser(t: np.ndarray) -> np.ndarray:
    """A tone that rises under a bell."""
    return np.exp(-(t**2) / 2) * np.cos(4 * t + 1.5 * t**2)


def main(epochs: int = 20) -> float:
    if "riser" not in ws.families():
        ws.register_family("riser", ws.Wavelet(riser))
    frame = ws.make_frame("riser", n=32)
    print(f"riser: rank {frame.rank()} of 32, condition number {frame.condition_number():.3g}")
    random = np.random.default_rng(0)
    y = np.array(["rising", "falling"])[np.arange(80) % 2]
    t = np.linspace(0, 1, 120)
    bend = np.where(y == "rising", 15.0, -15.0)[:, None]
    X = np.sin(2 * np.pi * (20 * t + bend * t**2 / 2) + random.uniform(0, 6, (80, 1)))
    X += 0.3 * random.standard_normal(X.shape)
    scores = {}
    for family in ("riser", "morlet"):
        model = WaveSSMClassifier(family=family, d_state=32, max_epochs=epochs, random_state=0)
        scores[family] = model.fit(X[:50], y[:50]).score(X[50:], y[50:])
    print("  ".join(f"{family}: {score:.2f}" for family, score in scores.items()))
    return scores["riser"]


if __name__ == "__main__":
    main()

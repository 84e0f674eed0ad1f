"""Classify ECG-like recordings held as arrays: two leads, unequal lengths, a rhythm to tell apart.

    python examples/classify_ecg.py

Replace `recordings` by your own: a list of arrays (leads, samples) and a label for each.
"""

from __future__ import annotations

import numpy as np
from sklearn.metrics import classification_report
from sklearn.model_selection import train_test_split

from wavessm.estimators import WaveSSMClassifier


def recordings(count: int, seed: int = 0) -> tuple[list[np.ndarray], np.ndarray]:
    """Trains of spikes on two leads; the irregular ones have beats at odd intervals."""
    random = np.random.default_rng(seed)
    signals, labels = [], np.array(["regular", "irregular"])[np.arange(count) % 2]
    for label in labels:
        length = int(random.integers(150, 220))
        gaps = random.normal(20, 1 if label == "regular" else 7, 30).clip(6)
        beats = np.cumsum(gaps)
        t = np.arange(length)[:, None]
        spikes = np.exp(-0.5 * ((t - beats) / 1.5) ** 2).sum(axis=1)
        leads = np.stack([spikes, -0.5 * np.roll(spikes, 2)])
        signals.append(leads + 0.1 * random.standard_normal(leads.shape))
    return signals, labels


def main() -> float:
    X, y = recordings(160)
    X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.25, random_state=0, stratify=y)
    model = WaveSSMClassifier(max_epochs=20, random_state=0, verbose=1).fit(X_train, y_train)
    print(classification_report(y_test, model.predict(X_test)))
    print("chances of the first three:", model.predict_proba(X_test[:3]).round(2).tolist())
    return model.score(X_test, y_test)


if __name__ == "__main__":
    main()

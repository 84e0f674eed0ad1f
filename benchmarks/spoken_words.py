"""Spoken words of speakers that training has not had: the front end for sound beside MFCC and a support-vector machine.

    python benchmarks/spoken_words.py FOLDER --takes 5 --out results/speech/digits.csv
    python benchmarks/spoken_words.py speech_commands_v0.01 --takes 100 --out results/speech/words.csv

FOLDER holds LABEL_SPEAKER_N.wav, as the free spoken digit data do (github.com/Jakobovski/free-spoken-digit-dataset,
folder recordings, CC BY-SA 4.0: six speakers, 8 kHz): each speaker is left out once. Of Speech Commands, `--takes`
clips of each word are drawn from the training part and 30 from testing_list.txt, whose speakers are others. Every
recording is divided by its RMS, except in the row "as recorded". Seconds are CPU seconds of fit and prediction,
on one thread. Settings are defaults, with eight time scales and no mixtures of the 40 bands for Speech Commands.
"""

import argparse
import csv
import time
from pathlib import Path

import numpy as np
from scipy.fft import dct
from scipy.signal import stft
from sklearn.dummy import DummyClassifier
from sklearn.linear_model import RidgeClassifierCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.svm import SVC

import wavessm as ws
from wavessm.data import read_wav


def load(folder: Path, takes: int) -> tuple[list[np.ndarray], np.ndarray, np.ndarray, float]:
    """Recordings (length,), labels and speakers of the first takes, and the sampling rate."""
    signals, labels, speakers, rate = [], [], [], 0.0
    for path in sorted(folder.glob("*.wav")):
        label, speaker, number = path.stem.split("_")
        if int(number) < takes:
            signal = read_wav(path)
            signals.append(signal.values[:, 0])
            labels.append(label)
            speakers.append(speaker)
            rate = signal.sampling_rate or 0.0
    return signals, np.array(labels), np.array(speakers), rate


def load_words(folder: Path, takes: int) -> tuple[list[np.ndarray], np.ndarray, np.ndarray, float]:
    """As `load`, of Speech Commands; speakers are "train" and "test"."""
    kept = {*(folder / "testing_list.txt").read_text().split(), *(folder / "validation_list.txt").read_text().split()}
    tested = {*(folder / "testing_list.txt").read_text().split()}
    signals, labels, parts = [], [], []
    for word in sorted(path.name for path in folder.iterdir() if path.is_dir() and path.name[0] != "_"):
        files = sorted(f"{word}/{path.name}" for path in (folder / word).glob("*.wav"))
        rng = np.random.default_rng(0)
        train = rng.permutation([name for name in files if name not in kept])[:takes]
        for name in (*train, *rng.permutation([name for name in files if name in tested])[:30]):
            signals.append(read_wav(folder / name).values[:, 0])
            labels.append(word)
            parts.append("test" if name in tested else "train")
    return signals, np.array(labels), np.array(parts), 16_000.0


def level(signal: np.ndarray) -> np.ndarray:
    """A recording without its mean, divided by its RMS."""
    signal = signal - signal.mean()
    return signal / max(1e-5, float(np.sqrt((signal**2).mean())))


def mfcc(signal: np.ndarray, rate: float, bands: int = 40, kept: int = 20) -> np.ndarray:
    """Means and deviations of mel cepstra and their differences over 4 equal stretches of a recording."""
    width = round(0.025 * rate)
    frequencies, _, spectrum = stft(signal, rate, nperseg=width, noverlap=width - round(0.01 * rate), nfft=512)
    edges = 700 * (10 ** (np.linspace(0, np.log10(1 + rate / 2 / 700), bands + 2)) - 1)
    low, mid, high = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    filters = np.clip(np.minimum((frequencies - low) / (mid - low), (high - frequencies) / (high - mid)), 0, None)
    cepstra = dct(np.log(filters @ np.abs(spectrum) ** 2 + 1e-10), axis=0, norm="ortho")[:kept]
    both = np.concatenate([cepstra, np.gradient(cepstra, axis=1)])
    parts = np.array_split(both, 4, axis=1)
    return np.concatenate([f(part, axis=1) for part in parts for f in (np.mean, np.std)])


def models(rate: float, waveforms: bool, features: ws.StateFeatures | None) -> dict[str, object]:
    """What is compared; models of raw waveforms take ten times as long."""

    def cepstra(signals: list[np.ndarray]) -> np.ndarray:
        return np.stack([mfcc(level(signal), rate) for signal in signals])

    def levelled(signals: list[np.ndarray]) -> list[np.ndarray]:
        return [level(signal) for signal in signals]

    front = ws.LogEnergies(rate)
    made = {
        "most frequent word": DummyClassifier(),
        "MFCC + ridge": make_pipeline(
            FunctionTransformer(cepstra), StandardScaler(), RidgeClassifierCV(np.logspace(-1, 4, 6))
        ),
        "MFCC + SVM": make_pipeline(FunctionTransformer(cepstra), StandardScaler(), SVC(C=10)),
        "log energies + state features": make_pipeline(front, ws.WaveSSMClassifier(features=features, random_state=0)),
    }
    if waveforms:
        made["state features, as recorded"] = ws.WaveSSMClassifier(random_state=0)
        made["state features"] = make_pipeline(FunctionTransformer(levelled), ws.WaveSSMClassifier(random_state=0))
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--takes", type=int, default=50, help="recordings of each digit and speaker")
    parser.add_argument("--waveforms", action="store_true", help="also models of raw waveforms")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    words = (given.folder / "testing_list.txt").exists()
    signals, labels, speakers, rate = (load_words if words else load)(given.folder, given.takes)
    features = ws.StateFeatures(n_mixtures=0, n_scales=8) if words else None
    rows = []
    for speaker in ["test"] if words else np.unique(speakers):
        train, test = np.flatnonzero(speakers != speaker), np.flatnonzero(speakers == speaker)
        for name, model in models(rate, given.waveforms, features).items():
            began = time.process_time()
            model.fit([signals[i] for i in train], labels[train])
            score = float(np.mean(model.predict([signals[i] for i in test]) == labels[test]))
            rows.append([name, speaker, given.takes, score, time.process_time() - began])
            print(f"{name:<32}{speaker:<10}{score:.3f}  {rows[-1][-1]:.1f} s", flush=True)
    for name in dict.fromkeys(row[0] for row in rows):
        print(f"{name:<32}mean {np.mean([row[3] for row in rows if row[0] == name]):.3f}")
    if given.out:
        with given.out.open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["model", "speaker", "takes", "accuracy", "seconds"])
            writer.writerows([*row[:3], f"{row[3]:.4f}", f"{row[4]:.1f}"] for row in rows)


if __name__ == "__main__":
    main()

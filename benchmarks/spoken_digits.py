"""Digits of a speaker that training has not had: state features beside MFCC and a support-vector machine.

    python benchmarks/spoken_digits.py FOLDER --takes 10 --out results/speech/digits.csv

FOLDER holds LABEL_SPEAKER_N.wav, as the free spoken digit data do (github.com/Jakobovski/free-spoken-digit-dataset,
folder recordings, CC BY-SA 4.0: six speakers, 8 kHz). Each speaker is left out once; penalties and blocks are chosen on
the others. Every recording is divided by its RMS, except in the row "as recorded". "log energies" is a trial of
DESIGN's pool for sound: log mean squares of 96 Morlet readouts over 1, 4 and 8 equal stretches, and the same ridge.
"""

import argparse
import csv
import time
from pathlib import Path

import numpy as np
import torch
from scipy.fft import dct
from scipy.signal import stft
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from wavessm.data import read_wav
from wavessm.features import Blocks, FeatureConfig, FeatureModel, StateBank, fit_ridge
from wavessm.features.pools import pooled

CHOICES = {
    "state features, as recorded": (FeatureConfig(), False),
    "state features": (FeatureConfig(), True),
    "state features, with energy": (FeatureConfig(pools=("share", "wins", "margin", "energy")), True),
}


PARTS = [(k / size, (k + 1) / size) for size in (1, 4, 8) for k in range(size)]
ENERGIES = FeatureConfig(
    n_features=96, families=("morlet",), d_state=16, n_scales=24, readouts=2, pools=("energy",), stretches=False,
    values=False,
)  # fmt: skip


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


def padded(signals: list[np.ndarray]) -> tuple[torch.Tensor, torch.Tensor]:
    """Signals (cases, length, 1) and their lengths."""
    tensors = [torch.from_numpy(signal.astype(np.float32)) for signal in signals]
    return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True)[..., None], torch.tensor(list(map(len, tensors)))


def log_energies(x: torch.Tensor, lengths: torch.Tensor, rate: float) -> torch.Tensor:
    """Log mean squares (cases, features) of readouts with windows of up to 50 ms, over the stretches `PARTS`."""
    bank = StateBank(ENERGIES, 1, round(0.05 * rate), seed=0)
    made: dict[int, torch.Tensor] = {}
    for rows in lengths.argsort().split(32):
        longest, found = int(lengths[rows].max()), []
        seen = bank.observed((torch.arange(longest) < lengths[rows][:, None])[..., None])
        u = bank.sources(x[rows, :longest])
        for group in bank.groups:
            z, _ = group.columns(group.padded(u), group.start(len(rows)))
            valid = group.seen(seen)
            count = valid.sum(2)[0]  # (chunks, cases)
            k = torch.arange(len(count))[:, None]
            chunks = ((k + 1) * (count > 0)).amax(0)
            for _, sums in pooled(group, z, valid, ["energy"]):
                for first, end in PARTS:
                    start = (first * chunks).floor()
                    inside = ((k >= start) & (k < torch.maximum((end * chunks).ceil(), start + 1))).float()
                    mean = (sums["energy"] * inside).sum(2) / (inside * count).sum(0).clamp_min(1)
                    found.append((mean + 1e-6).log().flatten(0, 1).T)
        made |= dict(zip(rows.tolist(), torch.cat(found, 1), strict=True))
    return torch.stack([made[case] for case in range(len(x))])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--takes", type=int, default=50, help="recordings of each digit and speaker")
    parser.add_argument("--quick", action="store_true", help="only MFCC and log energies")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    signals, labels, speakers, rate = load(given.folder, given.takes)
    y = np.unique(labels, return_inverse=True)[1]
    levelled = [level(signal) for signal in signals]
    cepstra = np.stack([mfcc(signal, rate) for signal in levelled])
    x, lengths = padded(levelled)
    began = time.perf_counter()
    energies, rows = log_energies(x, lengths, rate), []
    spent, targets = time.perf_counter() - began, 2 * torch.nn.functional.one_hot(torch.from_numpy(y)).float() - 1
    choices = {} if given.quick else CHOICES
    for speaker in np.unique(speakers):
        test = speakers == speaker
        began = time.perf_counter()
        machine = make_pipeline(StandardScaler(), SVC(C=10)).fit(cepstra[~test], y[~test])
        score = machine.score(cepstra[test], y[test])
        rows.append(["MFCC + SVM", speaker, score, time.perf_counter() - began, ""])
        train, held, began = torch.from_numpy(~test), torch.from_numpy(test), time.perf_counter()
        ridge = fit_ridge(energies[train], targets[train], Blocks({"e": slice(0, energies.shape[1])}, ("e",)))
        score = float((ridge.predict(energies[held]).argmax(1).numpy() == y[test]).mean())
        rows.append(["log energies", speaker, score, spent + time.perf_counter() - began, ""])
        for name, (config, divided) in choices.items():
            x, lengths = padded(levelled if divided else signals)
            began = time.perf_counter()
            model = FeatureModel.fit(x[train], torch.from_numpy(y)[train], "multiclass", lengths[train], config=config)
            found = model.logits(x[held], lengths[held]).argmax(1).numpy()
            score, seconds = float((found == y[test]).mean()), time.perf_counter() - began
            rows.append([name, speaker, score, seconds, " ".join(model.ridge.chosen)])
        for row in rows[-2 - len(choices) :]:
            print(f"{row[0]:<32}{row[1]:<10}{row[2]:.3f}  {row[3]:.1f} s  {row[4]}", flush=True)
    for name in dict.fromkeys(row[0] for row in rows):
        print(f"{name:<32}mean {np.mean([row[2] for row in rows if row[0] == name]):.3f}")
    if given.out:
        with given.out.open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["model", "speaker", "accuracy", "seconds", "blocks"])
            writer.writerows([name, speaker, f"{a:.4f}", f"{s:.1f}", blocks] for name, speaker, a, s, blocks in rows)


if __name__ == "__main__":
    main()

"""What augmentation is worth: small models on a tenth of PTB-XL and on ten spoken words, trained with and without it.

    OMP_NUM_THREADS=1 python benchmarks/augmentation.py --data-root FOLDER --out results/augmentation

FOLDER holds ptbxl and speech_commands_v0.01 as published. PTB-XL: super-diagnostic labels, every tenth record of folds
1 to 8 (leads II and V5, every second sample), tested on fold 10. Speech: `WORDS`, 60 clips of each from the training
list, frames of log energies, tested on 60 clips of each from the testing list (other speakers). The same number of
steps with each change, last weights, three seeds; nothing is chosen on test data. Writes augmentation.csv, a row per
run as it ends (runs that are there are not made again), and prints means and spread.
"""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

import numpy as np
import pandas as pd
import torch

import wavessm as ws
from common import arguments
from wavessm.data import load, read_wav
from wavessm.data.source import Arrays, DataInfo, DataSet
from wavessm.features.energies import EnergyBank, level
from wavessm.training import TrainConfig, make_trainer, metrics
from wavessm.training.evaluate import evaluate_split
from wavessm.training.record import provenance, write_csv

CHANGES: dict[str, dict[str, float]] = {
    "none": {}, "amplitude": {"amplitude": 0.3}, "jitter": {"jitter": 0.2}, "time_warp": {"time_warp": 0.15},
    "channel_dropout": {"channel_dropout": 0.2}, "mixup": {"mixup": 0.3}, "crop": {"crop": 0.25},
}  # fmt: skip
CHANGES["all but crop"] = {k: v for each in list(CHANGES.values())[:-1] for k, v in each.items()}
WORDS = ("yes", "no", "up", "down", "left", "right", "on", "off", "stop", "go")
CLIPS = 60


def ptbxl(root: Path) -> DataSet:
    """A tenth of the training records, leads II and V5 at 50 Hz."""
    data = load("ptbxl-super-diag", root, leads="II,V5")
    parts = {}
    for name, step in (("train", 10), ("val", 10), ("test", 1)):
        part = getattr(data, name)
        parts[name] = Arrays(part.x[::step, ::2], part.y[::step], affine=part.affine)
    return dataclasses.replace(data, info=dataclasses.replace(data.info, length=500, sampling_rate=50.0), **parts)


def speech(root: Path) -> DataSet:
    """Frames of log energies of some clips of ten words."""
    folder = root / "speech_commands_v0.01"
    tested = set((folder / "testing_list.txt").read_text().split())
    aside = tested | set((folder / "validation_list.txt").read_text().split())
    bank, parts = EnergyBank(16_000), {}
    for part in ("train", "test"):
        clips, labels = [], []
        for number, word in enumerate(WORDS):
            names = sorted(f"{word}/{path.name}" for path in (folder / word).glob("*.wav"))
            names = [name for name in names if (name in tested if part == "test" else name not in aside)]
            for name in [names[i] for i in np.random.default_rng(0).permutation(len(names))[:CLIPS]]:
                values = read_wav(folder / name).values
                clips.append(np.pad(values, ((0, 16_000 - len(values)), (0, 0))))
                labels.append(number)
        x = torch.from_numpy(np.stack(clips)).float()
        with torch.no_grad():
            frames = torch.cat([bank(level(some)) for some in x.split(50)])
        parts[part] = Arrays(frames, torch.tensor(labels))
    centre, spread = (f(parts["train"].x.flatten(0, 1), 0) for f in (torch.mean, torch.std))
    for each in parts.values():
        each.x = (each.x - centre) / spread
    length, width = parts["train"].x.shape[1:]
    info = DataInfo("multiclass", width, len(WORDS), length, WORDS, sampling_rate=100.0)
    return DataSet("speech", parts["train"], parts["test"], parts["test"], info)


def run(data: DataSet, change: dict[str, float], steps: int, seed: int) -> dict[str, float]:
    """Test scores of a small model after so many steps."""
    torch.manual_seed(seed)
    model = ws.SequenceModel(ws.ModelConfig(d_input=data.info.d_input, d_output=data.info.d_output, d_model=32,
                                            n_layers=2, d_state=16, bidirectional=True, dropout=0.1))  # fmt: skip
    change = dict(change)
    if "crop" in change:  # as a share of a recording
        change["crop"] *= data.info.length / (data.info.sampling_rate or 1.0)
    config = TrainConfig(lr=0.004, weight_decay=0.05, batch_size=16, steps=steps, device="cpu", seed=seed, **change)
    trainer = make_trainer(model, data, config)
    trainer.objective = dataclasses.replace(trainer.objective, validate=None)
    trainer.fit()
    return evaluate_split(model, data.test, data.info, 256)[0]


def main() -> None:
    parser = arguments(__doc__, "results/augmentation")
    parser.add_argument("--data-root", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--sets", nargs="*", default=["speech", "ptbxl"])
    parser.add_argument("--changes", nargs="*", default=list(CHANGES))
    given = parser.parse_args()
    torch.set_num_threads(1)
    path = given.out / "augmentation.csv"
    rows = pd.read_csv(path).to_dict("records") if path.is_file() else []
    for name in given.sets:
        data = {"speech": speech, "ptbxl": ptbxl}[name](given.data_root)
        score = metrics.SELECTION[data.info.kind].name
        for seed in given.seeds:
            for change, values in ((one, CHANGES[one]) for one in given.changes):
                if any((row["set"], row["change"], row["seed"]) == (name, change, seed) for row in rows):
                    continue
                began = time.process_time()
                found = run(data, values, given.steps, seed)[score]
                rows.append({"set": name, "change": change, "seed": seed, "score": score, "value": found,
                             "train_cases": len(data.train), "test_cases": len(data.test), "steps": given.steps,
                             "cpu_seconds": time.process_time() - began})  # fmt: skip
                print(rows[-1], flush=True)
                write_csv(path, rows)
    print(f"{table(rows)}\n\nMade by {provenance('python benchmarks/augmentation.py')}.")


def table(rows: list[dict]) -> str:
    """Mean and range over seeds, a row for each change."""
    sets = list(dict.fromkeys(row["set"] for row in rows))
    lines = [f"| change | {' | '.join(sets)} |", "|---" * (len(sets) + 1) + "|"]
    for change, values in CHANGES.items():
        cells = []
        for name in sets:
            found = [row["value"] for row in rows if (row["set"], row["change"]) == (name, change)]
            cells.append(f"{np.mean(found):.3f} ({min(found):.3f} to {max(found):.3f})" if found else "")
        size = ", ".join(f"{value:g}" for value in values.values()) if len(values) == 1 else ""
        lines.append(f"| {change} {size} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()

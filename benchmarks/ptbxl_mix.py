"""PTB-XL: models of all 71 labels and state features together, by ranks; teams and weights are chosen on fold 9.

    python benchmarks/ptbxl_mix.py pack RUNS WORK --out results/ptbxl
    python benchmarks/ptbxl_mix.py score results/ptbxl --data-root FOLDER
    python benchmarks/ptbxl_mix.py own results/ptbxl --data-root FOLDER

`pack` gathers outputs for folds 9 and 10 in half precision: logits of the runs in RUNS, which `ptbxl_label_sets.py
outputs` writes (logits_71.npz), and of the ridges that fold 9 chose, from WORK, the folder of `ptbxl_features.py`, by
its table features.csv (features_71.npz). `score` averages the models of each kind, and all of them, adds the features
with one of WEIGHTS, and writes mixed.csv: for each label set all teams, the one that is best on fold 9 marked. `own`
adds models of one label set, of which only outputs for fold 10 are kept (predictions*.npz), with shares that fold 9
chose for other models of one label set (README.md), and prints the scores.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import rankdata

from ptbxl_label_sets import FOLD, INPUTS, Labels, combined, write
from wavessm.data.datasets import ptbxl

WEIGHTS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
OWN = {"super-diag": ("predictions", 0.5), "form": ("predictions_form", 0.75), "rhythm": ("predictions_rhythm", 0.75)}
"""Where the outputs of models of one label set are, and their share beside the columns of the 71-label models."""


def pack(runs: Path, work: Path, out: Path) -> None:
    """Write logits_71.npz and features_71.npz."""
    found = {
        f"{p.parent.name} {name}": each for p in sorted(runs.glob("*/logits.npz")) for name, each in np.load(p).items()
    }
    np.savez_compressed(out / "logits_71.npz", **{name: each.astype(np.float16) for name, each in found.items()})
    table, chosen, at = pd.read_csv(out / "features.csv").query("head == 'any kernel'").set_index("labels"), {}, 0
    for labels in ptbxl.LABELS:
        row, width = (
            table.loc[labels],
            {"super-diag": 5, "sub-diag": 23, "diag": 44, "all": 71, "form": 19, "rhythm": 12},
        )
        made = np.load(work / f"{row.kernel}3, {row.records}, {row.penalty:g}.npy")
        chosen[labels], at = made[:, at : at + width[labels]].astype(np.float16), at + width[labels]
    np.savez_compressed(out / "features_71.npz", **chosen)


class Outputs:
    """Outputs of models and features for one label set, on its records of both folds."""

    def __init__(self, labels: Labels, name: str, runs: dict[str, dict[str, np.ndarray]], features: np.ndarray) -> None:
        self.labels, self.name = labels, name
        n_val = len(labels.truth["all"]["val"])
        self.features = dict(zip(FOLD, np.split(features.astype(float), [n_val]), strict=True))
        self.features = {s: rankdata(each[labels.rows[name, s]], axis=0) for s, each in self.features.items()}
        ways = [(how, read) for how in INPUTS for read in ("max", "or")[: 1 + (name in ("sub-diag", "super-diag"))]]
        if not all("val_stretches" in run for run in runs.values()):
            ways = [way for way in ways if way[0] == "whole"]
        tried = [{n: self.read(run, *way) for n, run in runs.items()} for way in ways]
        best = int(np.argmax([np.mean([self.score("val", made["val"]) for made in each.values()]) for each in tried]))
        self.way, self.runs = ways[best], tried[best]

    def read(self, run: dict[str, np.ndarray], how: str, read: str) -> dict[str, np.ndarray]:
        whole = {name: each for name, each in run.items() if how != "whole" or "stretches" not in name}
        return {split: self.labels.read(self.name, split, combined(whole, split, how), read) for split in FOLD}

    def score(self, split: str, outputs: np.ndarray) -> float:
        return self.labels.score(self.name, split, outputs)

    def row(self, team: str, members: list[str]) -> dict[str, Any]:
        """Scores of a team, alone and with the features at the weight that is best on fold 9."""
        alone = {split: np.mean([self.runs[n][split] for n in members], axis=0) for split in FOLD}
        ranks = {split: rankdata(each, axis=0) for split, each in alone.items()}
        mixes = [{s: (1 - w) * ranks[s] + w * self.features[s] for s in FOLD} for w in WEIGHTS]
        at = int(np.argmax([self.score("val", mix["val"]) for mix in mixes]))
        each = [self.score("test", self.runs[n]["test"]) for n in members]
        low, high = self.labels.span(self.name, [mixes[at]["test"]])
        return {
            "labels": self.name, "team": team, "models": len(members), "input": self.way[0], "read": self.way[1],
            "mean_test": np.mean(each), "sd_test": np.std(each, ddof=1), "val_alone": self.score("val", alone["val"]),
            "test_alone": self.score("test", alone["test"]), "weight": WEIGHTS[at],
            "val": self.score("val", mixes[at]["val"]), "test": self.score("test", mixes[at]["test"]),
            "test_low": low, "test_high": high,
        }  # fmt: skip


def unpack(folder: Path) -> tuple[dict[str, dict[str, np.ndarray]], Any]:
    """Outputs of the runs of logits_71.npz by run and part, and features_71.npz."""
    runs: dict[str, dict[str, np.ndarray]] = {}
    for key, each in np.load(folder / "logits_71.npz").items():
        name, part = key.split(" ")
        runs.setdefault(name, {})[part] = each
    return runs, np.load(folder / "features_71.npz")


def score(folder: Path, data_root: Path) -> None:
    """Write mixed.csv and print the chosen teams."""
    labels, rows = Labels(data_root), []
    runs, features = unpack(folder)
    kinds = dict.fromkeys(name.split("-")[1] for name in runs)
    teams = {kind: [n for n in runs if n.split("-")[1] == kind] for kind in kinds} | {"all": list(runs)}
    for name in ptbxl.LABELS:
        made = [
            Outputs(labels, name, {n: runs[n] for n in members}, features[name]).row(team, members)
            for team, members in teams.items()
        ]
        best = max(made, key=lambda row: row["val"])
        rows += [{**row, "chosen": row is best} for row in made]
    write(folder / "mixed.csv", rows)
    with (folder / "mixed.csv").open() as file:
        for row in csv.DictReader(file):
            print(*row.values())


def own(folder: Path, data_root: Path) -> None:
    """Print scores of the diagonal wavelets' own models, beside the chosen team and with the features."""
    labels, chosen = Labels(data_root), pd.read_csv(folder / "mixed.csv").query("chosen").set_index("labels")
    runs, features = unpack(folder)
    for name, (file, share) in OWN.items():
        outputs, row = np.load(folder / f"{file}.npz"), chosen.loc[name]
        members = [
            key for key in outputs if not key.startswith(("labels", "legs", "fout", "s4d")) and "dplr" not in key
        ]
        mean = np.mean([outputs[key].astype(float) for key in members], axis=0)
        team = Outputs(labels, name, runs, features[name])
        columns = np.mean([each["test"] for n, each in team.runs.items() if row.team in n.split("-")], axis=0)
        models = share * rankdata(mean, axis=0) + (1 - share) * rankdata(columns, axis=0)
        mixed = (1 - row.weight) * models + row.weight * team.features["test"]
        scores = [labels.score(name, "test", each) for each in (mean, models, mixed)]
        print(name, len(members), row.team, row.weight, *np.round(scores, 4), *labels.span(name, [mixed]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    steps = parser.add_subparsers(dest="step", required=True)
    packing, scoring, adding = (steps.add_parser(name) for name in ("pack", "score", "own"))
    packing.add_argument("runs", type=Path)
    packing.add_argument("work", type=Path)
    packing.add_argument("--out", type=Path, required=True)
    for step in (scoring, adding):
        step.add_argument("folder", type=Path)
        step.add_argument("--data-root", type=Path, required=True)
    given = parser.parse_args()
    if given.step == "pack":
        pack(given.runs, given.work, given.out)
    else:
        {"score": score, "own": own}[given.step](given.folder, given.data_root)


if __name__ == "__main__":
    main()

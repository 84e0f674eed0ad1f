"""PTB-XL by label set: columns of models of all 71 labels, scored on the records of each label set, alone and averaged.

    python benchmarks/ptbxl_label_sets.py outputs RUN…
    python benchmarks/ptbxl_label_sets.py scores RUNS --data-root FOLDER --out results/ptbxl

`outputs` writes the logits of each run on folds 9 and 10 into its folder (logits.npz): of whole records and, for models
trained on stretches, the mean over stretches that overlap by half. `scores` reads all run folders in RUNS. A sub- or
superclass is the largest of its codes' outputs ("max") or the chance that one of them holds ("or"). Which of the two,
which input, and the weight of a label set's own models beside those of all labels, is chosen on fold 9.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas

from wavessm.data.datasets import ptbxl
from wavessm.training import auroc

FOLD = {"val": 9, "test": 10}
INPUTS = {"whole": (1.0, 0.0), "stretches": (0.0, 1.0), "both": (0.5, 0.5)}
WEIGHTS = (0.0, 0.25, 0.5, 0.75, 1.0)


class Labels:
    """Labels of every set on both folds, and how sub- and superclasses are made of codes."""

    def __init__(self, root: Path) -> None:
        folder = ptbxl.PtbxlOptions(root=str(root)).files()[0].parent
        table = ptbxl.read_database(folder)
        fold = table["strat_fold"].to_numpy()
        statements = pandas.read_csv(folder / "scp_statements.csv", index_col=0)
        statements = statements[statements["diagnostic"] == 1]
        self.truth, self.classes = {}, {}
        for name in ptbxl.LABELS:
            truth, self.classes[name] = ptbxl.read_labels(folder, table, name)
            self.truth[name] = {split: truth[fold == k] for split, k in FOLD.items()}
        self.rows = {(n, split): y.any(axis=1) for n, both in self.truth.items() for split, y in both.items()}
        code = {c: i for i, c in enumerate(self.classes["all"])}
        titles = {"sub-diag": "diagnostic_subclass", "super-diag": "diagnostic_class"}
        groups = {n: [statements.index[statements[t] == c] for c in self.classes[n]] for n, t in titles.items()}
        self.columns = {n: [[code[c] for c in g if c in code] for g in all_] for n, all_ in groups.items()}
        self.columns |= {n: [[code[c]] for c in self.classes[n]] for n in ("all", "diag", "form", "rhythm")}

    def read(self, name: str, split: str, logits: np.ndarray, how: str) -> np.ndarray:
        """Outputs of a model of all labels for the classes of a set, on the records of that set."""
        logits = logits[self.rows[name, split]]
        if how == "max":
            return np.stack([logits[:, c].max(axis=1) for c in self.columns[name]], axis=1)
        none = -np.logaddexp(0, logits)  # log of the chance that a code does not hold
        total = np.stack([none[:, c].sum(axis=1) for c in self.columns[name]], axis=1)
        return np.log(-np.expm1(np.minimum(total, -1e-12))) - total

    def score(self, name: str, split: str, scores: np.ndarray, index: np.ndarray | None = None) -> float:
        truth = self.truth[name][split][self.rows[name, split]]
        return float(np.nanmean(auroc(scores, truth) if index is None else auroc(scores[index], truth[index])))

    def span(self, name: str, tables: list[np.ndarray], resamples: int = 100) -> tuple[float, float]:
        """90 % of the score over resampled test cases (and, of several tables, over resampled seeds)."""
        random, truth = np.random.default_rng(0), self.truth[name]["test"][self.rows[name, "test"]]
        drawn: list[float] = []
        while len(drawn) < resamples:
            index = random.integers(len(truth), size=len(truth))
            if truth[index].any(axis=0).all():
                seeds = random.integers(len(tables), size=len(tables))
                each = {s: self.score(name, "test", tables[s], index) for s in set(seeds.tolist())}
                drawn.append(float(np.mean([each[s] for s in seeds.tolist()])))
        return tuple(np.quantile(drawn, (0.05, 0.95)).tolist())  # type: ignore[return-value]


def combined(run: dict[str, np.ndarray], split: str, how: str) -> np.ndarray:
    whole, cuts = run[f"{split}_logits"].astype(float), run.get(f"{split}_stretches")
    return whole if cuts is None else INPUTS[how][0] * whole + INPUTS[how][1] * cuts.astype(float)


class Models:
    """Runs with their logits: those of all labels, those of one label set, and how each label set is read."""

    def __init__(self, folder: Path, labels: Labels, leave_out: list[str]) -> None:
        folders = sorted(path.parent for path in folder.glob("*/logits.npz"))
        self.labels = labels
        self.runs = {
            f.name: (json.loads((f / "run.json").read_text()), dict(np.load(f / "logits.npz"))) for f in folders
        }
        self.full = {n: r for n, (about, r) in self.runs.items() if about["task"] == "ptbxl-all"}
        self.own = {
            s: {n: r for n, (a, r) in self.runs.items() if a["task"] == f"ptbxl-{s}" and n not in leave_out}
            for s in ptbxl.LABELS
        }
        self.choice = {name: self.choose(name) for name in ptbxl.LABELS}

    def choose(self, name: str) -> tuple[str, str]:
        """Input and reading of a label set, by the mean score of all models of all labels on fold 9."""
        ways = list(itertools.product(INPUTS, ("max", "or") if name in ("sub-diag", "super-diag") else ("max",)))
        mean = []
        for how, way in ways:
            outputs = [self.labels.read(name, "val", combined(run, "val", how), way) for run in self.full.values()]
            mean.append(float(np.mean([self.labels.score(name, "val", each) for each in outputs])))
        best = ways[int(np.argmax(mean))]
        print(name, {" ".join(way): round(m, 4) for way, m in zip(ways, mean, strict=True)}, "→", best)
        return best

    def outputs(self, name: str, split: str, run: dict[str, np.ndarray]) -> np.ndarray:
        """Outputs of a model of all labels for a label set."""
        how, way = self.choice[name]
        return self.labels.read(name, split, combined(run, split, how), way)


def seed_row(models: Models, folder: Path, name: str) -> dict[str, Any]:
    """One run: what it was, and its score for every label set that it has."""
    about, run = models.runs[name]
    with (folder / name / "metrics.csv").open() as file:
        last = list(csv.DictReader(file))[-1]
    env, task = about["environment"], about["task"].removeprefix("ptbxl-")
    row = {
        "run": name, "command": env["command"], "seed": (about.get("train") or about["recipe"])["seed"],
        "revision": env["revision"], "versions": ", ".join(f"{k} {env[k]}" for k in ("wavessm", "torch", "python")),
        "gpu": "NVIDIA H200", "epochs": round(float(last["epoch"])), "train_seconds": round(float(last["seconds"])),
    }  # fmt: skip
    for split, label in itertools.product(FOLD, ptbxl.LABELS):
        found = run[f"{split}_logits"] if task == label else None
        found = models.outputs(label, split, run) if name in models.full else found
        row[f"{split}_{label}"] = "" if found is None else models.labels.score(label, split, found)
    return row


def ensemble_rows(models: Models, ensemble: str, members: list[str], label: str, spread: bool) -> list[dict[str, Any]]:
    """The mean of some models of all labels, alone and with the models of the label set itself."""
    labels = models.labels
    each = {s: [models.outputs(label, s, models.full[n]) for n in members] for s in FOLD}
    together = {s: np.mean(each[s], axis=0) for s in FOLD}
    tests = [labels.score(label, "test", t) for t in each["test"]]
    how, way = models.choice[label]
    low, high = labels.span(label, each["test"]) if spread else ("", "")
    row = {"ensemble": ensemble, "models": len(members), "labels": label, "input": how, "read": way,
           "mean": np.mean(tests), "sd": np.std(tests, ddof=1), "mean_low": low, "mean_high": high}  # fmt: skip
    mixes, own = [("", 0.0, together)], models.own[label]
    if label != "all" and own:
        alone = {s: np.mean([r[f"{s}_logits"] for r in own.values()], axis=0) for s in FOLD}
        many = [{s: (1 - w) * together[s] + w * alone[s] for s in FOLD} for w in WEIGHTS]
        at = int(np.argmax([labels.score(label, "val", m["val"]) for m in many]))
        mixes.append((" ".join(own), WEIGHTS[at], many[at]))
    rows = []
    for added, weight, mix in mixes:
        scores = {s: labels.score(label, s, mix[s]) for s in FOLD}
        low, high = labels.span(label, [mix["test"]])
        rows.append({**row, "own_models": added, "own_weight": weight, **scores, "test_low": low, "test_high": high})
    return rows


def score(runs_folder: Path, data_root: Path, out: Path, leave_out: list[str]) -> None:
    """Write all_seeds.csv and ensembles.csv."""
    out.mkdir(parents=True, exist_ok=True)
    models = Models(runs_folder, Labels(data_root), leave_out)
    write(out / "all_seeds.csv", [seed_row(models, runs_folder, name) for name in models.runs])
    kinds = dict.fromkeys(name.rsplit("-", 1)[0] for name in models.full)
    ensembles = {kind: [n for n in models.full if n.rsplit("-", 1)[0] == kind] for kind in kinds}
    wavelets = [n for n in models.full if "fout" not in n and "legs" not in n]
    ensembles |= {"wavelets": wavelets, "all of 71 labels": list(models.full)}
    rows = []
    for (name, members), label in itertools.product(ensembles.items(), ptbxl.LABELS):
        rows += ensemble_rows(models, name, members, label, spread=name in kinds)
    write(out / "ensembles.csv", rows)


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    """A CSV of rows."""
    with path.open("w", newline="") as file:
        (writer := csv.DictWriter(file, list(rows[0]), lineterminator="\n")).writeheader()
        writer.writerows({k: f"{v:.5f}" if isinstance(v, float) else v for k, v in row.items()} for row in rows)


def write_outputs(folder: Path) -> None:
    """logits.npz of a run: outputs of its best model on validation and test."""
    import torch

    from wavessm.training import Run
    from wavessm.training.batches import EvalBatches

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    run, found = Run.read(folder), {}
    data, model = run.load_data(), run.load_model("best").to(device)
    step = round(run.config.crop * (run.info.sampling_rate or 0))
    with torch.no_grad():
        for split, x in ((s, b.x) for s in FOLD for b in EvalBatches(getattr(data, s).to(device), 256)):
            found.setdefault(f"{split}_logits", []).append(model(x).float().cpu())
            if step:
                cuts = [model(x[:, at : at + step]) for at in range(0, x.shape[1] - step + 1, step // 2)]
                found.setdefault(f"{split}_stretches", []).append(torch.stack(cuts).mean(0).float().cpu())
    np.savez_compressed(folder / "logits.npz", **{name: torch.cat(parts).numpy() for name, parts in found.items()})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("outputs", "scores"))
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--leave-out", nargs="*", default=[], help="own models that are not averaged")
    given = parser.parse_args()
    if given.what == "outputs":
        for folder in given.runs:
            write_outputs(folder)
    else:
        score(given.runs[0], given.data_root, given.out, given.leave_out)


if __name__ == "__main__":
    main()

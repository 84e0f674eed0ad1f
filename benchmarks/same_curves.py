"""Loss curves of one tiny model per kind of task, at fixed seeds on one CPU thread: the same before and after a change.

    python benchmarks/same_curves.py results/house/curves_after.csv

It also runs against revision 50cf3e6 (PYTHONPATH=…/src); `cmp` then shows whether training is the same.
"""

import argparse
import csv
import tempfile
from pathlib import Path

import numpy as np
import torch

try:
    from wavessm import ModelConfig
    from wavessm.training import TrainConfig, train

    def run(task: str, options: dict, model: dict, config: dict, out: Path) -> None:
        train(task, options, ModelConfig.from_dict(model), TrainConfig.from_dict(config), out, show=False)
except ImportError:  # revision 50cf3e6
    from wavessm.training.recipes import Recipe

    from wavessm.training import train as old_train

    def run(task: str, options: dict, model: dict, config: dict, out: Path) -> None:
        recipe = Recipe.from_dict(config | {"model": {name: value for name, value in model.items() if name != "head"}})
        old_train(task, options, recipe, out, show=False)


SIZE = {"d_model": 8, "n_layers": 2, "d_state": 8, "head": "auto"}
BATCH_NORM = SIZE | {"norm": "batch", "dropout": 0.2, "bidirectional": True}
TRAIN = {"lr": 0.01, "batch_size": 8, "steps": 30, "device": "cpu", "weight_decay": 0.05, "validations": 2.0}
COPY = {"length": 64, "d_min": 2, "d_max": 3, "cases": 16, "windows_max": 4}
OFTEN = {"validations": 400.0, "schedule": "one-cycle"}
WIDE = {"direct": True, "instance_norm": "last"}


def write_data(folder: Path) -> None:
    """Arrays with three kinds of targets, a table of a daily cycle, and ListOps expressions."""
    rng = np.random.default_rng(0)
    X, classes = rng.standard_normal((60, 20, 2)), np.arange(60) % 3
    targets = {"multiclass": classes, "multilabel": rng.integers(0, 2, (60, 3)), "regression": X.mean(1)}
    for name, y in targets.items():
        (folder / name).mkdir()
        np.save(folder / name / "X.npy", X + classes[:, None, None])
        np.save(folder / name / "y.npy", y)
    values = np.sin(np.arange(300) / 4) + 0.1 * rng.standard_normal(300)
    (folder / "series.csv").write_text("a\n" + "\n".join(map(str, values)) + "\n")
    for part in ("train", "val", "test"):
        digits = [rng.integers(0, 10, rng.integers(2, 90)) for _ in range(40)]
        lines = [f"[MAX {' '.join(map(str, row))} ]\t{row.max()}" for row in digits]
        (folder / f"basic_{part}.tsv").write_text("\n".join(["Source\tTarget", *lines]) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    out = parser.parse_args().out
    torch.set_num_threads(1)
    rows = [["run", "step", "train_loss", "score", "value", "lr"]]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_data(folder)
        runs = {
            "window-copy": ("window-copy", COPY, SIZE | {"drive": "slow", "dropout": 0.1}, OFTEN),
            "curriculum": ("window-copy", COPY | {"stages": "32:0.5"}, SIZE,
                           OFTEN | {"slow_down": True, "grad_clip": 0.5}),
            **{kind: ("arrays", {"folder": str(folder / kind)}, BATCH_NORM, {"c_rate": "ssm"})
               for kind in ("multiclass", "multilabel", "regression")},
            "forecast": ("csv", {"path": str(folder / "series.csv"), "context": 24, "horizon": 6}, SIZE | WIDE,
                         {"direct_start": "ridge", "schedule": "constant", "patience": 4}),
            "tokens": ("listops", {"root": str(folder)}, BATCH_NORM, {"buckets": 3, "dt_rate": "global"}),
        }  # fmt: skip
        for label, (task, options, model, config) in runs.items():
            run(task, options, model, TRAIN | config, folder / f"run-{label}")
            with (folder / f"run-{label}" / "metrics.csv").open() as file:
                for row in csv.DictReader(file):
                    score = next(name for name in row if name.startswith("val_"))
                    rows.append([label, row["step"], row["train_loss"], score, row[score], row["lr"]])
    out.write_text("".join(",".join(row) + "\n" for row in rows))

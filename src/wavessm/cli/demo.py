"""`wavessm demo`: a wavelet and a polynomial state space of one size learn to find marked windows in noise.

Both get the same model around them, the same cases, the same steps and several seeds; nothing is downloaded. The
result is a table and the learning curves.
"""

from __future__ import annotations

import itertools
import json
import shutil
import time
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

from wavessm.cli.parse import parse
from wavessm.errors import OptionError

if TYPE_CHECKING:
    import pandas as pd

FAMILIES = {"morlet": "WaveSSM (Morlet)", "legs": "S4 (LegS)"}
_NEXT = """Predicting zero has a relative MSE of 1. This is a small setting on a short budget: it shows how soon a model
learns here, not where it would end, and seeds differ.

One run of this table; vary it with --family db6, --structure dplr, --steps 4000, --seed 7:
  wavessm train demo --family legs
Your own signals, X.npy (cases, length, channels) and y.npy in a folder:
  wavessm train arrays FOLDER
"""


@dataclass(frozen=True)
class DemoCommandOptions:
    """Train a wavelet state space and S4-LegS of the same size to find windows in noise."""

    out: Path = Path("runs/demo")
    """Folder for runs and figure."""
    seeds: int = 3
    """Runs of each model."""
    steps: int = 1000
    """Steps of a run."""


def main(arguments: list[str]) -> int:
    """Run `wavessm demo`; returns the exit status."""
    given = parse(DemoCommandOptions, arguments, "wavessm demo")
    if min(given.seeds, given.steps) < 1:
        raise OptionError(f"seeds is {given.seeds} and steps is {given.steps}, expected at least 1.")
    began = time.monotonic()
    print(f"Finding 2 marked windows of 8 in 64 samples of noise: {len(FAMILIES)} models of one size, {given.seeds} "
          f"seed{'s' * (given.seeds > 1)}, {given.steps} steps each.\n")  # fmt: skip
    runs, figure = _train_all(_empty(given.out / "runs"), given.seeds, given.steps), given.out / "curves.png"
    _draw(runs, figure)
    print(f"{_table(runs).to_string()}\n\n{_NEXT}")
    print(f"runs: {given.out / 'runs'}   figure: {figure}   ({time.monotonic() - began:.0f} s in all)")
    return 0


def _empty(folder: Path) -> Path:
    """An empty folder; runs of an earlier demonstration are deleted, anything else is refused."""
    if folder.exists():
        if any(not (path / "run.json").exists() for path in folder.iterdir()):
            raise OptionError(f"{folder}: holds something that is not a run of the demo; choose another --out.")
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    return folder


def _train_one(folder: Path, family: str, seed: int, steps: int) -> pd.DataFrame:
    """One run on one core, in a process of its own: a row for each validation, with the test error."""
    import pandas as pd
    import torch

    from wavessm.training import resolve, train

    torch.set_num_threads(1)
    model, config = resolve("demo")
    config = replace(config, steps=steps, seed=seed, device="cpu")
    run = train("demo", {}, model.replace(family=family), config, folder, "demo", show=False)
    result = json.loads((run.folder / "result.json").read_text())
    found = {"error": result["test_relative_mse"], "parameters": result["parameters"]}
    return pd.read_csv(run.folder / "metrics.csv").assign(family=family, seed=seed, **found)


def _train_all(folder: Path, seeds: int, steps: int) -> pd.DataFrame:
    """All runs, two at a time, those of the slower family first."""
    import pandas as pd

    from wavessm.training import Progress

    jobs = list(itertools.product(reversed(FAMILIES), range(seeds)))
    pool = ProcessPoolExecutor(2, get_context("spawn"))
    with Progress("training", total=len(jobs)) as progress:
        futures = [pool.submit(_train_one, folder / f"{family}-{seed}", family, seed, steps) for family, seed in jobs]
        try:
            for done, _ in enumerate(map(Future.result, as_completed(futures)), start=1):
                progress.update(done, f"{done} of {len(jobs)} runs", line=True)
        finally:  # after Ctrl-C or a failed run, start no other
            pool.shutdown(cancel_futures=True)
    return pd.concat(map(Future.result, futures))


def _table(runs: pd.DataFrame) -> pd.DataFrame:
    """One row per family: relative MSE (mean and standard deviation over seeds), parameters, seconds."""
    last = runs.groupby(["family", "seed"]).last().groupby("family")
    table = last[["error", "parameters", "seconds"]].mean().round({"error": 3, "parameters": 0, "seconds": 0})
    table.insert(1, "± over seeds", last.error.std().round(3))
    table.insert(2, "seeds", last.size())
    return table.loc[list(FAMILIES)].rename(index=FAMILIES, columns={"error": "relative MSE"}).rename_axis(None)


def _draw(runs: pd.DataFrame, path: Path) -> None:
    """Relative error over steps: every seed thin, their mean thick."""
    from wavessm.training.record import pyplot, save_figure

    figure, axes = pyplot().subplots(figsize=(8, 4.5))
    for colour, (family, name) in zip(("C0", "C1"), FAMILIES.items(), strict=True):
        curves = runs[runs.family == family].pivot(index="step", columns="seed", values="val_relative_mse")
        axes.plot(curves, color=colour, alpha=0.35, linewidth=1)
        axes.plot(curves.mean(axis=1), color=colour, linewidth=2.5, label=name)
    axes.axhline(1, color="0.6", linestyle="--", linewidth=1)
    axes.set(xlabel="training steps", ylabel="relative MSE on unseen cases", ylim=(0, 1.15))
    axes.legend()
    axes.grid(alpha=0.3)
    save_figure(figure, path)

"""`wavessm demo`: a wavelet and a polynomial state space of one size learn to find marked windows in noise.

Both get the same model around them, the same cases, the same steps and several seeds, one run per core; nothing is
downloaded. The result is a table, the learning curves, and a page about what was seen and what to try next.
"""

from __future__ import annotations

import base64
import html
import json
import os
import shutil
import statistics
import string
import time
from concurrent.futures import FIRST_EXCEPTION, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

from wavessm.cli.parse import parse
from wavessm.errors import OptionError

if TYPE_CHECKING:
    import pandas as pd

FAMILIES = {"morlet": "WaveSSM (Morlet)", "legs": "S4 (LegS)"}


@dataclass(frozen=True)
class DemoCommandOptions:
    """Train a wavelet state space and S4-LegS of the same size to find windows in noise."""

    out: Path = Path("runs/demo")
    """Folder for runs, figure and report."""
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
    runs = _train_all(_empty(given.out / "runs"), given.seeds, given.steps)
    seconds = f"{time.monotonic() - began:.0f}"
    table, verdict = _table(runs), _verdict(runs)
    figure, page = given.out / "curves.png", given.out / "report.html"
    _draw(runs, figure)
    page.write_text(_page(given, table, verdict, figure, seconds), encoding="utf-8")
    print(f"{table.to_string()}\n\n{verdict} The report says what this shows and what it does not.\n")
    print(f"figure: {figure}\nreport: {page}   ({seconds} s in all)")
    return 0


def _empty(folder: Path) -> Path:
    """An empty folder; runs of an earlier demonstration are deleted, anything else is refused."""
    if folder.exists():
        if any(not (path / "run.json").exists() for path in folder.iterdir()):
            raise OptionError(
                f"{folder}: holds something that is not a run of the demonstration; choose another --out."
            )
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    return folder


def _train_one(folder: Path, family: str, seed: int, steps: int) -> None:
    """One run in a process of its own, on one core."""
    import torch

    from wavessm.training import resolve, train

    torch.set_num_threads(1)
    model, config = resolve("demo")
    config = replace(config, steps=steps, seed=seed, device="cpu")
    train("demo", {}, model.replace(family=family), config, folder, "demo", show=False)


def _train_all(folder: Path, seeds: int, steps: int) -> pd.DataFrame:
    """All runs, one per core, the slower family first: a row for each validation, with the test error of its run."""
    import pandas as pd

    jobs = [(folder / f"{family}-{seed}", family, seed) for seed in range(seeds) for family in reversed(FAMILIES)]
    workers = max(1, min(len(jobs), os.cpu_count() or 1, 2 if seeds < 4 else 8))
    one_core = ("OMP_NUM_THREADS", "1")  # set before a worker imports torch
    with ProcessPoolExecutor(workers, get_context("spawn"), initializer=os.putenv, initargs=one_core) as pool:
        futures = [pool.submit(_train_one, *job, steps) for job in jobs]
        try:
            _watch(futures, [run for run, *_ in jobs], steps)
        except BaseException:  # Ctrl-C or a failed run: start no other
            pool.shutdown(cancel_futures=True)
            raise
    tables = []
    for run, family, seed in jobs:
        result = json.loads((run / "result.json").read_text())
        tables.append(pd.read_csv(run / "metrics.csv").assign(
            family=family, seed=seed, error=result["test_relative_mse"], parameters=result["parameters"],
        ))  # fmt: skip
    return pd.concat(tables)


def _watch(futures: list[Future[None]], folders: list[Path], steps: int) -> None:
    """Show the progress of all runs, from the metrics that they write, until all are finished or one has failed."""
    from wavessm.training import Progress, read_rows

    with Progress("training", total=steps * len(folders)) as progress:
        running = set(futures)
        while running:
            finished, running = wait(futures, timeout=0.5, return_when=FIRST_EXCEPTION)
            for future in finished:
                future.result()
            latest = {folder: rows[-1] for folder in folders if (rows := read_rows(folder / "metrics.csv"))}
            texts = []
            for family in FAMILIES:
                errors = [row["val_relative_mse"] for folder, row in latest.items() if folder.name.startswith(family)]
                texts += [f"{family} {statistics.mean(errors):.3f}"] if errors else []
            progress.update(int(sum(row["step"] for row in latest.values())), ", ".join(texts))


def _table(runs: pd.DataFrame) -> pd.DataFrame:
    """One row per family: relative MSE (mean ± standard deviation), seeds, parameters, seconds."""
    import pandas as pd

    rows = {}
    for family, name in FAMILIES.items():
        own = runs[runs.family == family].groupby("seed").last()
        spread = f" ± {own.error.std():.3f}" if len(own) > 1 else ""
        error = f"{own.error.mean():.3f}{spread}"
        rows[name] = [error, str(len(own)), str(own.parameters.iloc[0]), f"{own.seconds.mean():.0f}"]
    rows["predicting zero"] = ["1.000", "", "0", ""]
    columns = ["relative MSE", "seeds", "parameters", "seconds per run"]
    return pd.DataFrame.from_dict(rows, orient="index", columns=columns)


def _verdict(runs: pd.DataFrame) -> str:
    """One sentence that claims no more than the numbers do."""
    ours, theirs = (runs[runs.family == family].groupby("seed").error.last().tolist() for family in FAMILIES)
    gap = f"{statistics.mean(ours):.3f} against {statistics.mean(theirs):.3f}"
    if len(ours) == 1:
        return f"One seed: the Morlet state ends at a relative error of {gap} for LegS. Other seeds may differ."
    if min(*ours, *theirs) > 0.9:
        return f"Neither model has learnt much yet ({gap}); give them more steps."
    if max(ours) < min(theirs):
        return f"With every seed the Morlet state ends at a lower error than any LegS run ({gap} on average)."
    if statistics.mean(ours) < statistics.mean(theirs):
        return f"On average the Morlet state ends at a lower error ({gap}), but the seeds overlap."
    return f"This time the Morlet state does not end at a lower error ({gap})."


def _draw(runs: pd.DataFrame, path: Path) -> None:
    """Relative error over steps: every seed thin, their mean thick."""
    from wavessm.training.record import pyplot

    plt = pyplot()
    figure, axes = plt.subplots(figsize=(8, 4.5), layout="tight")
    for colour, (family, name) in zip(("C0", "C1"), FAMILIES.items(), strict=True):
        curves = runs[runs.family == family].pivot(index="step", columns="seed", values="val_relative_mse")
        axes.plot(curves, color=colour, alpha=0.35, linewidth=1)
        axes.plot(curves.mean(axis=1), color=colour, linewidth=2.5, label=name)
    axes.axhline(1, color="0.6", linestyle="--", linewidth=1)
    axes.set(xlabel="training steps", ylabel="relative MSE on unseen cases", ylim=(0, 1.15))
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _page(given: DemoCommandOptions, table: pd.DataFrame, verdict: str, figure: Path, seconds: str) -> str:
    """The report as one HTML file, figure included."""
    from wavessm.training.record import provenance

    texts = {
        "steps": str(given.steps), "verdict": verdict, "runs": str(given.out / "runs"), "figure": str(figure),
        "seconds": seconds, "made": provenance("wavessm demo", []),
    }  # fmt: skip
    page = string.Template(Path(__file__).with_suffix(".html").read_text(encoding="utf-8"))
    image = base64.b64encode(figure.read_bytes()).decode()
    return page.substitute({k: html.escape(v) for k, v in texts.items()}, table=table.to_html(border=0), image=image)

"""The demonstration: a wavelet and a polynomial state space of one size learn to find marked windows in noise.

    wavessm demo            (make demo)

Both get the same model around them, the same cases, the same steps and several seeds; nothing is downloaded. A core
takes a run at a time. At the end: a table, the learning curves and a page that says what was seen and what to try next.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from wavessm.errors import OptionError
from wavessm.nn.config import ModelConfig
from wavessm.training.checkpoint import read_rows
from wavessm.training.config import TrainConfig, resolve
from wavessm.training.record import pyplot

FAMILIES = {"morlet": "WaveSSM (Morlet)", "legs": "S4 (LegS)"}
POLL_SECONDS = 0.5


@dataclass(frozen=True)
class Setting:
    """The task and the model: window copying, small enough for two cores and five minutes."""

    length: int = 64
    windows: int = 2
    duration: int = 8
    d_model: int = 64
    d_state: int = 32
    steps: int = 1000
    batch_size: int = 32
    lr: float = 0.01
    validate_every: int = 50
    cases: int = 1024

    def options(self) -> dict[str, Any]:
        """Of the task's data."""
        return {
            "length": self.length,
            "windows": self.windows,
            "d_min": self.duration,
            "d_max": self.duration,
            "cases_per_epoch": self.validate_every * self.batch_size,
            "cases": self.cases,
        }

    def configs(self, family: str, seed: int) -> tuple[ModelConfig, TrainConfig]:
        """The same for every family: the recipe `best` of the task, its second layer as fast as the length wants."""
        model, config = resolve("window-copy")
        model = model.replace(family=family, d_model=self.d_model, d_state=self.d_state)
        return replace(model, dt_min=0.25 / self.length, dt_max=2.5 / self.length), replace(
            config,
            lr=self.lr,
            batch_size=self.batch_size,
            steps=self.steps,
            val_per_epoch=1,
            precision="fp32",
            device="cpu",
            seed=seed,
        )


@dataclass(frozen=True)
class Outcome:
    """One finished run."""

    family: str
    seed: int
    relative_mse: float
    parameters: int
    seconds: float
    rows: list[dict[str, float]]


def run_demo(out: Path, seeds: int = 3, setting: Setting | None = None) -> list[Outcome]:
    """Train, print the table, write figure and report; the outcomes."""
    if seeds < 1:
        raise OptionError(f"demo: seeds is {seeds}, expected at least 1.")
    setting = setting or Setting()
    began = time.monotonic()
    runs = _fresh(out / "runs")
    print(
        f"Finding {setting.windows} marked windows of {setting.duration} in {setting.length} samples of noise: "
        f"{len(FAMILIES)} models of one size, {seeds} seed{'s' * (seeds > 1)}, {setting.steps} steps each."
    )
    folders = train_all(runs, seeds, setting)
    outcomes = [collect(family, seed, folder) for (family, seed), folder in folders.items()]
    seconds = time.monotonic() - began
    table = table_rows(outcomes)
    width = max(len(cell) for row in table for cell in row[:1]) + 2
    print()
    for row in table:
        print(f"{row[0]:<{width}}" + "".join(f"{cell:>18}" for cell in row[1:]))
    figure = out / "curves.png"
    draw(outcomes, figure)
    from wavessm.cli.demo_page import write_page

    page = out / "report.html"
    write_page(page, table, verdict(outcomes), setting, figure, seconds)
    print(f"\n{verdict(outcomes)} The report says what this shows and what it does not.\n")
    print(f"figure: {figure}\nreport: {page}   ({seconds:.0f} s in all)")
    return outcomes


def _fresh(folder: Path) -> Path:
    """An empty folder; runs of an earlier demonstration make way, anything else stays."""
    if folder.exists():
        if any(not (path / "run.json").exists() for path in folder.iterdir()):
            raise OptionError(
                f"{folder}: holds something that is not a run of the demonstration; choose another --out."
            )
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    return folder


# -- training ---------------------------------------------------------------------------------------------------


def train_one(folder: str, family: str, seed: int, setting: Setting) -> float:
    """One run in a process of its own, on one core; its seconds."""
    import torch

    from wavessm.training.run import train

    torch.set_num_threads(1)
    began = time.monotonic()
    train("window-copy", setting.options(), *setting.configs(family, seed), Path(folder), "demo", show=False)
    return time.monotonic() - began


def train_all(runs: Path, seeds: int, setting: Setting) -> dict[tuple[str, int], Path]:
    """All runs, one a core, slower family first, with a live bar for each family."""
    jobs = [(family, seed) for seed in range(seeds) for family in reversed(FAMILIES)]
    folders = {(family, seed): runs / f"{family}-{seed}" for family, seed in jobs}
    workers = max(1, min(len(jobs), os.cpu_count() or 1, 2 if seeds < 4 else 8))
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"  # two runs that each take both cores would be in each other's way
    try:
        with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
            futures = [pool.submit(train_one, str(folders[job]), *job, setting) for job in jobs]
            try:
                _watch(futures, folders, setting.steps)
                for future in futures:
                    future.result()
            except BaseException:  # Ctrl-C or a failed run: start no other
                pool.shutdown(cancel_futures=True)
                raise
    finally:
        if before is None:
            del os.environ["OMP_NUM_THREADS"]
        else:
            os.environ["OMP_NUM_THREADS"] = before
    return {job: folders[job] for job in sorted(folders, key=lambda job: (list(FAMILIES).index(job[0]), job[1]))}


def _watch(futures: list[Future[float]], folders: dict[tuple[str, int], Path], steps: int) -> None:
    """Show how far every family is, from the metrics that the runs write, until all are done or one fails."""
    with _bars(steps * len(folders) // len(FAMILIES)) as show:
        while not all(future.done() for future in futures):
            if any(future.done() and future.exception() for future in futures):
                for future in futures:
                    future.cancel()
                return
            for family in FAMILIES:
                rows = [
                    read_rows(folder / "metrics.csv", sys.maxsize)
                    for (name, _), folder in folders.items()
                    if name == family
                ]
                done = sum(int(r[-1]["step"]) for r in rows if r)
                latest = [r[-1]["val_relative_mse"] for r in rows if r]
                show(family, done, f"relative MSE {statistics.mean(latest):.3f}" if latest else "starting")
            time.sleep(POLL_SECONDS)


@contextmanager
def _bars(total: int) -> Iterator[Any]:
    """A function (family, steps done, text) that draws bars on a terminal and prints now and then elsewhere."""
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        with Progress(
            TextColumn("{task.description:<18}"),
            BarColumn(bar_width=18),
            MofNCompleteColumn(),
            TextColumn("{task.fields[text]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        ) as bar:
            tasks = {family: bar.add_task(name, total=total, text="") for family, name in FAMILIES.items()}
            yield lambda family, done, text: bar.update(tasks[family], completed=done, text=text)
            for task in tasks.values():
                bar.update(task, completed=total)
        return
    said: dict[str, float] = {}

    def show(family: str, done: int, text: str) -> None:
        if done >= said.get(family, 0) + total / 5:
            said[family] = done
            print(f"{FAMILIES[family]:<18}{done:>6}/{total} steps  {text}", file=sys.stderr, flush=True)

    yield show


def collect(family: str, seed: int, folder: Path) -> Outcome:
    """What a finished run says."""
    result = json.loads((folder / "result.json").read_text())
    rows = read_rows(folder / "metrics.csv", sys.maxsize)
    return Outcome(family, seed, result["test_relative_mse"], result["parameters"], rows[-1]["seconds"], rows)


# -- what it shows ------------------------------------------------------------------------------------------------


def _of(outcomes: list[Outcome], family: str) -> list[Outcome]:
    return [outcome for outcome in outcomes if outcome.family == family]


def table_rows(outcomes: list[Outcome]) -> list[list[str]]:
    """Header and one row a family: relative MSE (mean ± standard deviation), seeds, parameters, seconds."""
    rows = [["model", "relative MSE", "seeds", "parameters", "seconds a run"]]
    for family, name in FAMILIES.items():
        own = _of(outcomes, family)
        errors = [outcome.relative_mse for outcome in own]
        spread = f" ± {statistics.stdev(errors):.3f}" if len(errors) > 1 else ""
        seconds = statistics.mean(outcome.seconds for outcome in own)
        rows.append(
            [name, f"{statistics.mean(errors):.3f}{spread}", str(len(own)), str(own[0].parameters), f"{seconds:.0f}"]
        )
    rows.append(["predicting zero", "1.000", "", "0", ""])
    return rows


def verdict(outcomes: list[Outcome]) -> str:
    """One sentence that claims no more than the numbers do."""
    ours, theirs = ([o.relative_mse for o in _of(outcomes, family)] for family in FAMILIES)
    gap = f"{statistics.mean(ours):.3f} against {statistics.mean(theirs):.3f}"
    if len(ours) == 1:
        return f"One seed: the Morlet state ends at a relative error of {gap} for LegS. More seeds may say otherwise."
    if min(*ours, *theirs) > 0.9:
        return f"Neither model has learnt much yet ({gap}); give them more steps."
    if max(ours) < min(theirs):
        return f"With every seed the Morlet state ends at a lower error than any LegS run ({gap} on average)."
    if statistics.mean(ours) < statistics.mean(theirs):
        return f"On average the Morlet state ends at a lower error ({gap}), but the seeds overlap."
    return f"This time the Morlet state does not end at a lower error ({gap})."


def draw(outcomes: list[Outcome], path: Path) -> None:
    """Relative error over steps: every seed thin, their mean thick."""
    plt = pyplot()
    figure, axes = plt.subplots(figsize=(8, 4.5))
    for index, (family, name) in enumerate(FAMILIES.items()):
        own = _of(outcomes, family)
        steps = [row["step"] for row in own[0].rows]
        curves = [[row["val_relative_mse"] for row in outcome.rows] for outcome in own]
        for curve in curves:
            axes.plot(steps, curve, color=f"C{index}", alpha=0.35, linewidth=1)
        axes.plot(
            steps,
            [statistics.mean(at) for at in zip(*curves, strict=True)],
            color=f"C{index}",
            linewidth=2.5,
            label=name,
        )
    axes.axhline(1, color="0.6", linestyle="--", linewidth=1)
    axes.set(xlabel="training steps", ylabel="relative MSE on unseen cases", ylim=(0, 1.15))
    axes.legend()
    axes.grid(alpha=0.3)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)

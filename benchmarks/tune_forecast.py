"""Which setting of the `best` recipe suits which forecast, by validation error; the test split is not read.

    python benchmarks/tune_forecast.py --data-root FOLDER --out runs/tune --jobs 8
    python benchmarks/tune_forecast.py --data-root FOLDER --sets ETTh2,WTH --horizons 168,720 --candidates my.toml

Candidates are settings of wavessm_lab.tasks.forecast_settings by name (WTH:raw for one data set only), or a TOML file
with a table of options for each; without a word, blocks and all settings that are chosen somewhere. All runs go side by
side through the engine of `wavessm sweep`. The same line again goes on with what is left. OUT/tune.csv has a row for
every run, failed ones too. Options of `wavessm train` for every run follow --, as in -- --variables multi.
"""

from __future__ import annotations

import argparse
import csv
import json
import shlex
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from wavessm.data.datasets.forecast import SETS, find_series
from wavessm.errors import OptionError, WaveSSMError
from wavessm.training import checkpoint, results
from wavessm_lab.sweep.board import Screen, summary
from wavessm_lab.sweep.grid import Job, variant_fields
from wavessm_lab.sweep.job import SweepPaths
from wavessm_lab.sweep.run import Local, SweepState
from wavessm_lab.tasks import forecast_settings as settings

COLUMNS = ("dataset", "horizon", "candidate", "variant", "seed", "val_mse", "best_step", "epochs", "seconds",
           "command", "status")  # fmt: skip


@dataclass(frozen=True)
class Trial:
    """One run: where, what and how."""

    dataset: str
    horizon: int
    candidate: str
    variant: str
    seed: int
    job: Job


def read_candidates(given: str) -> list[tuple[str, str, dict[str, Any]]]:
    """Named settings: those in use, some by name, or those of a TOML file; each with every option a setting may change.

    → the data set it is for (none: all of them), its name, its options
    """
    if given.endswith(".toml"):
        try:
            known: dict[str, Any] = tomllib.loads(Path(given).read_text())
        except (OSError, ValueError) as reason:
            raise OptionError(f"{given}: cannot be read as TOML ({reason}).") from None
        names = list(known)
        for name in names:
            if not isinstance(known[name], dict):
                raise OptionError(f"{given}: {name} is {known[name]!r}, expected a table of options, [{name}].")
    else:
        known = settings.SETTINGS
        chosen = {name for table in settings.CHOSEN.values() for name in table.values()}
        names = given.split(",") if given else ["blocks", *sorted(chosen)]
    found = []
    for entry in names:
        dataset, _, name = entry.rpartition(":")
        found.append((dataset, name, settings.complete(entry if entry in known else name, known)))
    return found


def plan(given: argparse.Namespace, extra: list[str]) -> list[Trial]:
    """Every run; short horizons last, since the long ones take longest."""
    from wavessm.cli.train import fields_of_data, read

    trials = []
    candidates = read_candidates(given.candidates)
    for dataset in given.sets.split(","):
        if dataset not in SETS:
            raise OptionError(f"--sets has {dataset!r}, expected some of {', '.join(SETS)}.")
        horizons = [h for h in SETS[dataset].lengths if not given.horizons or str(h) in given.horizons.split(",")]
        for horizon in horizons:
            for name, setting in [(n, s) for only, n, s in candidates if only in ("", dataset)]:
                for variant in given.variants.split(","):
                    for seed in map(int, given.seeds.split(",")):
                        place = {"root": given.data_root, "dataset": dataset, "horizon": horizon}
                        words = settings.arguments({**setting, "test": False, **place, **variant_fields(variant)})
                        words = ["forecast", "--recipe", "best", *words, *extra, "--seed", str(seed)]
                        _, typed = read(words)
                        command = shlex.join(["wavessm", "train", *words])
                        job = Job("forecast", fields_of_data(typed.data), "best", typed.training.check(), command)
                        trials.append(Trial(dataset, horizon, name, variant, seed, job))
    return sorted(trials, key=lambda trial: -trial.horizon)


class Table:
    """OUT/tune.csv, written anew whenever a run has ended."""

    def __init__(self, trials: list[Trial], desk: SweepPaths, quiet: bool) -> None:
        self.trials, self.desk, self.path = trials, desk, desk.folder / "tune.csv"
        self.screen, self.ended = Screen(quiet), -1

    def __call__(self, board: SweepState) -> None:
        self.screen(board)
        if (ended := len(board.done) + len(board.failed)) != self.ended:
            self.ended = ended
            self.write()

    def write(self) -> list[dict[str, Any]]:
        """The rows of all runs that have ended."""
        found = {row["command"]: row for row in results.read(self.desk.csv)}
        rows = []
        for trial in self.trials:
            row = found.get(trial.job.command)
            if row is not None:
                named = {name: getattr(trial, name) for name in COLUMNS[:5]}
                score = {"val_mse": row["value"], "epochs": row["epochs"], "seconds": row["train_seconds"]}
                rows.append(
                    named
                    | score
                    | {
                        "best_step": self._best_step(trial, row["status"]),
                        "command": trial.job.command,
                        "status": row["status"],
                    }
                )
        self._save(rows)
        return rows

    def _best_step(self, trial: Trial, status: str) -> int | str:
        """Of a finished run; 0 is where it started."""
        if status != "ok":
            return ""
        return json.loads((self.desk.run(trial.job) / "result.json").read_text())["best_step"]

    def _save(self, rows: list[dict[str, Any]]) -> None:
        with checkpoint.replacing(self.path) as file:
            lines: list[str] = []
            writer = csv.DictWriter(_Lines(lines), COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
            file.write("".join(lines).encode())


class _Lines:
    def __init__(self, lines: list[str]) -> None:
        self.write = lines.append


def ranked(rows: list[dict[str, Any]]) -> dict[tuple[str, int], list[tuple[float, str]]]:
    """Data set and horizon → mean validation error over seeds and variants and name of every candidate, best first.

    A candidate with fewer finished runs than another is left out: its mean would be one of other runs.
    """
    errors: dict[tuple[str, int], dict[str, list[float]]] = {}
    for row in rows:
        if row["status"] == "ok":
            cell = errors.setdefault((row["dataset"], row["horizon"]), {})
            cell.setdefault(row["candidate"], []).append(float(row["val_mse"]))
    most = {cell: max(map(len, named.values())) for cell, named in errors.items()}
    return {
        cell: sorted((mean(found), name) for name, found in named.items() if len(found) == most[cell])
        for cell, named in sorted(errors.items())
    }


def parsed(arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    at = arguments.index("--") if "--" in arguments else len(arguments)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", required=True, help="folder of the CSV files, or one that holds forecasting/")
    parser.add_argument("--out", type=Path, default=Path("runs/tune"), help="folder of the runs and of tune.csv")
    parser.add_argument("--sets", default=",".join(SETS), help="data sets, by comma")
    parser.add_argument("--horizons", default="", help="horizons, by comma; default all of a set")
    parser.add_argument("--candidates", default="", help="settings by comma, or a TOML file; default those in use")
    parser.add_argument("--variants", default="morlet:scaled:diagonal", help="family:measure:structure, by comma")
    parser.add_argument("--seeds", default="0", help="seeds, by comma")
    parser.add_argument("--jobs", type=int, default=8, help="runs side by side")
    parser.add_argument("--retry-failed", action="store_true", help="begin failed runs once more")
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    return parser.parse_args(arguments[:at]), arguments[at + 1 :]


def run(arguments: list[str]) -> int:
    given, extra = parsed(arguments)
    trials = plan(given, extra)
    if not trials:
        raise OptionError("no run: none of the sets has such a horizon and a candidate; see --horizons, --candidates.")
    for name in given.sets.split(","):
        find_series(given.data_root, name, multivariate=False)  # says in one line what is missing
    given.out.mkdir(parents=True, exist_ok=True)
    desk = SweepPaths(given.out, given.out / "runs.csv")
    board = SweepState.of([trial.job for trial in trials], desk, given.retry_failed)
    table = Table(trials, desk, given.quiet)
    try:
        Local(board, given.jobs, None).run(table)
    finally:
        table.screen.close()
    for (dataset, horizon), found in ranked(table.write()).items():
        others = "  ".join(f"{name} {error:.4f}" for error, name in found)
        print(f'    ("{dataset}", {horizon}): "{found[0][1]}",  # {others}')
    for name, reason in board.failed.items():
        print(f"failed: {name}: {reason}")
    print(f"{summary(board)}; table: {table.path}")
    return 130 if board.stopped else 1 if board.failed else 0


def main() -> None:
    try:
        status = run(sys.argv[1:])
    except WaveSSMError as reason:
        print(f"tune_forecast: {reason}", file=sys.stderr)
        status = 2
    sys.exit(status)


if __name__ == "__main__":
    main()

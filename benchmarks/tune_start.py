"""Which setting gives the `best` recipe of a forecast the best start: validation errors of the ridge regression alone.

    python benchmarks/tune_start.py --data-root FOLDER --variables multi --out results/forecast/multi_settings.csv
    python benchmarks/tune_start.py --data-root FOLDER --variables uni --out runs/uni_settings.csv --stride 5

No model is trained and the test split is not read. Settings are the STARTS of wavessm_lab.tasks.forecast_settings, all
or some by name. With --stride 5 every fifth window is used, of training and of validation; a stride with a factor in
common with the day sees only some of its hours. The same line again goes on with what is left; at the
end it says which setting has the least error.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import shlex
import sys
import time
from pathlib import Path
from typing import Any, cast

import torch

from wavessm.data.datasets.forecast import SETS
from wavessm.data.source import DataSet, Windows
from wavessm.errors import OptionError, WaveSSMError
from wavessm.nn.model import SequenceModel
from wavessm.tasks import ForecastOptions, model_config
from wavessm.training.config import Recipe
from wavessm.training.direct import Fit, start_at_ridge
from wavessm.training.folder import environment
from wavessm.training.record import processor
from wavessm.training.results import versions
from wavessm.training.task_recipes import recipe
from wavessm_lab.tasks import forecast_settings as settings

SMALL = {"d_model": 2, "n_layers": 1, "d_state": 2, "family": "s4d-lin"}  # its blocks say nothing


def start(options: ForecastOptions, chosen: Recipe, stride: int = 1) -> tuple[SequenceModel, DataSet, Fit]:
    """A model at the ridge regression of the training windows, with small blocks and zeros behind them."""
    data = options.load(0)
    data = dataclasses.replace(data, train=_thin(data.train, stride), val=_thin(data.val, stride))
    small = dataclasses.replace(chosen.model, **SMALL)
    model = SequenceModel(model_config("forecast", small, data.info, "fp32"))
    return model, data, start_at_ridge(model, data)


def _thin(source: Any, stride: int) -> Windows:
    s = cast(Windows, source)
    return Windows(s.series, s.marks, s.seq_len, s.horizon, s.columns, s.starts[::stride], s.eval_stamp)


def cells(given: argparse.Namespace) -> list[tuple[str, int, str]]:
    """Data set, horizon and setting of every row; a context that is Informer's anyway is left out."""
    names = given.settings.split(",") if given.settings else list(settings.STARTS)
    found = []
    for dataset in given.sets.split(","):
        if dataset not in SETS:
            raise OptionError(f"--sets has {dataset!r}, expected some of {', '.join(SETS)}.")
        for horizon, lengths in SETS[dataset].lengths.items():
            usual = lengths[given.variables == "multi"]
            if not given.horizons or str(horizon) in given.horizons.split(","):
                found += [(dataset, horizon, name) for name in names
                          if settings.complete(name, settings.STARTS)["seq_len"] != usual]  # fmt: skip
    return found


def measured(given: argparse.Namespace, dataset: str, horizon: int, name: str) -> dict[str, Any]:
    """One row."""
    began = time.perf_counter()
    place = ForecastOptions(given.data_root, dataset, horizon, given.variables)
    _, data, fit = start(*settings.settle(place, recipe("forecast"), settings.complete(name)), given.stride)
    command = ["python", "benchmarks/tune_start.py", "--variables", given.variables, "--stride", str(given.stride),
               "--sets", dataset, "--horizons", str(horizon), "--settings", name]  # fmt: skip
    return {
        "dataset": dataset,
        "horizon": horizon,
        "variables": given.variables,
        "setting": name,
        "context": data.info.length,
        "stride": given.stride,
        "val_mse": f"{fit.error:.6f}",
        "penalty": fit.penalties[0],
        "mark_penalty": fit.penalties[1],
        "seconds": round(time.perf_counter() - began, 2),
        "command": shlex.join(command),
    }


def best(rows: list[dict[str, Any]]) -> dict[tuple[str, int], list[tuple[float, str]]]:
    """Data set and horizon → validation error and name of every setting, best first."""
    found: dict[tuple[str, int], list[tuple[float, str]]] = {}
    for row in rows:
        found.setdefault((row["dataset"], int(row["horizon"])), []).append((float(row["val_mse"]), row["setting"]))
    return {place: sorted(errors) for place, errors in found.items()}


def run(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", required=True, help="folder of the CSV files, or one that holds forecasting/")
    parser.add_argument("--out", type=Path, default=Path("runs/settings.csv"), help="table of the errors")
    parser.add_argument("--variables", choices=("uni", "multi"), default="multi")
    parser.add_argument("--sets", default="ETTh1,ETTh2,ETTm1,WTH", help="data sets, by comma")
    parser.add_argument("--horizons", default="", help="horizons, by comma; default all of a set")
    parser.add_argument("--settings", default="", help="settings, by comma; default all with a ridge start")
    parser.add_argument("--stride", type=int, default=1, help="windows from one used to the next")
    given = parser.parse_args(arguments)
    if given.stride < 1:
        raise OptionError(f"--stride is {given.stride}, expected at least 1.")
    rows: list[dict[str, Any]] = []
    if given.out.exists():
        with given.out.open(newline="") as file:
            rows = list(csv.DictReader(file))
    done = {(row["dataset"], int(row["horizon"]), row["setting"], row["variables"], row["stride"]) for row in rows}
    machine = {"machine": f"{processor()}, {torch.get_num_threads()} threads; {versions(environment())}"}
    given.out.parent.mkdir(parents=True, exist_ok=True)
    for cell in cells(given):
        if (*cell, given.variables, str(given.stride)) in done:
            continue
        rows.append(measured(given, *cell) | machine)
        with given.out.open("a", newline="") as file:
            writer = csv.DictWriter(file, list(rows[-1]), lineterminator="\n")
            if len(rows) == 1:
                writer.writeheader()
            writer.writerow(rows[-1])
    for (dataset, horizon), found in best([row for row in rows if row["variables"] == given.variables]).items():
        others = "  ".join(f"{name} {error:.4f}" for error, name in found[:4])
        print(f'    ("{dataset}", {horizon}): "{found[0][1]}",  # {others}')


if __name__ == "__main__":
    try:
        run(sys.argv[1:])
    except WaveSSMError as reason:
        sys.exit(f"tune_start: {reason}")

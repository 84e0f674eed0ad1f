"""How long the runs of each table take, step by step alone on one machine, beside official S4 blocks on the same steps.

    python benchmarks/table_time.py --s4 PATH [--runs results/runs.csv] [--out results/engine]
    python benchmarks/table_time.py --times results/engine/step_times.csv     count the runs again, time nothing
    python benchmarks/table_time.py --times results/engine/step_times.csv --groups speech --s4 PATH   time one anew

The table of runs says how many steps were done at which length. A step of the model of each group of tasks, forward to
optimiser, is timed at some lengths, ours as it trains (a CUDA graph on a GPU) and the same stack of official S4 blocks
with its CUDA extension if it was built in the checkout; between those lengths times are interpolated. Loading and
validation are not counted, on either side. Texts count with the mean width of a batch sorted by length, for S4 as well,
which has no such batches, and without what it costs to leave padding out.
"""

from __future__ import annotations

import argparse
import csv
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from common import report
from ptbxl import milliseconds
from s4_model import Size, s4_step
from wavessm.cli.train import read
from wavessm.data.datasets.forecast import SETS
from wavessm.data.source import Arrays, DataInfo, DataSet
from wavessm.nn.model import SequenceModel
from wavessm.tasks import model_config
from wavessm.training.config import Recipe
from wavessm.training.stepper import stepper
from wavessm.training.task_recipes import recipe
from wavessm_lab.tasks.window_copy import read_stages


class Group(NamedTuple):
    """Tasks that share a model: its size, the lengths to time it at, and the group of its recipe."""

    size: Size
    lengths: tuple[int, ...]
    recipes: str


GROUPS = {
    "ptbxl": Group(Size(), (250, 1000), "ptbxl"),
    "forecast": Group(Size(50, 128, 2, 64, False, "layer", 1, 1, last=24), (72, 768, 1680), "forecast"),
    "window-copy": Group(Size(64, 128, 2, 64, False, "none", 2, 8, last=1), (128, 1000, 4000), "window-copy"),
    "text": Group(Size(16, d_input=1, d_output=2), (1024, 4096), "text"),
    "listops": Group(Size(50, d_input=1, d_output=10), (512, 2000), "listops"),
    "image": Group(Size(50, 512, norm="layer", d_input=1, d_output=10), (1024,), "image"),
    "speech": Group(Size(16, 128, d_input=1, d_output=30), (16_000,), "speech"),
}
TRAINED = {"ETTh1": 8640, "ETTh2": 8640, "ETTm1": 34_560, "WTH": 24_544, "ECL": 18_412}
"""Rows of the training part."""
RECORDS = {"all": 17_418, "form": 7197, "rhythm": 16_832}
"""Training records of PTB-XL's tasks; 17,084 for the diagnostic ones."""
CASES = {"text": (22_500, 1544), "listops": (96_000, 1133), "image": (45_000, 1024), "speech": (51_088, 16_000)}
"""Training cases (speech: of 30 words), and their length; of tokens the mean width of a batch in eight buckets."""


class Work(NamedTuple):
    """Steps of a run at one length."""

    table: str
    group: str
    length: int
    steps: float


def work_of(row: dict[str, str]) -> Iterator[Work]:
    """What a row of the table of runs says was done."""
    task, given = read(_trained(row).split()[2:])
    data, chosen, epochs = given.data, given.training, float(row["epochs"])
    if task.name.startswith("ptbxl"):
        steps = epochs * math.ceil(RECORDS.get(task.name.removeprefix("ptbxl-"), 17_084) / chosen.batch_size)
        yield Work(task.name, "ptbxl", round(chosen.crop * 100) or 1000, steps)
    elif task.name == "forecast":
        several = data.variables == "multi"
        context = data.seq_len or SETS[data.dataset].lengths[data.horizon][several]
        windows = TRAINED[data.dataset] - context - data.horizon + 1
        steps = epochs * math.ceil(windows / chosen.batch_size)
        yield Work(f"forecast {data.variables} {row['recipe']}", "forecast", context + data.horizon, steps)
    elif task.name == "window-copy":
        steps = epochs * math.ceil(data.epoch / chosen.batch_size)
        stages = read_stages(data.stages)
        for length, share in (*stages, (data.length, 1 - sum(share for _, share in stages))):
            yield Work(task.name, "window-copy", length, share * steps)
    elif task.name in CASES:
        cases, width = CASES[task.name]
        yield Work(task.name, task.name, width, epochs * math.ceil(cases / chosen.batch_size))


def _trained(row: dict[str, str]) -> str:
    """The command of the training, without an evaluation behind it."""
    return row["command"].partition(";")[0]


def our_step(group: Group, family: str, length: int, device: torch.device) -> Callable[[], Any]:
    """A training step of our model under the `best` recipe of its group."""
    size, chosen = group.size, recipe(group.recipes, "best")
    shape = {"d_model": size.d_model, "n_layers": size.n_layers, "d_state": size.d_state}
    options = replace(chosen.model, family=family, direct=False, instance_norm="none", **shape)
    chosen = replace(chosen, model=options, batch_size=size.batch, direct_start="zero", slow_down=False)
    chosen = replace(chosen, cuda_graphs=device.type == "cuda", device=device.type).check()
    torch.manual_seed(0)
    return stepper(*_model_and_data(group, chosen, length, device), chosen)


def _model_and_data(group: Group, chosen: Recipe, length: int, device: torch.device) -> tuple[SequenceModel, DataSet]:
    """Random cases of the right shape; a forecast counts as a regression from the last step, which costs as much."""
    size = group.size
    kind = "regression" if size.last else "multilabel"
    x, y = torch.randn(2 * size.batch, length, size.d_input), torch.rand(2 * size.batch, size.d_output).round()
    source = Arrays(x, y).to(device)
    named = tuple(map(str, range(size.d_output)))
    info = DataInfo(kind, size.d_input, size.d_output, length, classes=named, columns=named)
    task = "window-copy" if size.last else "arrays"
    model = SequenceModel(model_config(task, chosen.model, info, chosen.precision)).to(device)
    return model, DataSet("random", source, source, source, info)


def time_steps(groups: dict[str, Group], s4: Path | None, device: torch.device, steps: int) -> Iterator[dict[str, Any]]:
    """Milliseconds of a step of each group's model, by structure and length."""
    contenders: dict[str, Callable[[Group, int], Callable[[], Any]]] = {
        "diagonal": lambda group, length: our_step(group, "morlet", length, device),
        "dplr": lambda group, length: our_step(group, "legs", length, device),
    }
    if s4 is not None:
        contenders["s4"] = lambda group, length: s4_step(s4, group.size, length, device)
    machine = torch.cuda.get_device_name() if device.type == "cuda" else "cpu"
    for name, group in groups.items():
        for length in group.lengths:
            for who, make in contenders.items():
                if device.type == "cuda":
                    torch.cuda.empty_cache()
                torch.set_float32_matmul_precision("high")
                spent = milliseconds(make(group, length), device, steps)
                yield {"group": name, "length": length, "who": who, "milliseconds": spent,
                       "machine": machine, "torch": torch.__version__}  # fmt: skip


def add_up(done: list[Work], times: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Minutes of each table."""
    for table in sorted({work.table for work in done}):
        own = [work for work in done if work.table == table]
        row: dict[str, Any] = {"table": table, "steps": round(sum(work.steps for work in own))}
        for who in dict.fromkeys(time["who"] for time in times):
            spent = 0.0
            for work in own:
                measured = [t for t in times if (t["group"], t["who"]) == (work.group, who)]
                lengths, milli = ([float(t[key]) for t in measured] for key in ("length", "milliseconds"))
                spent += work.steps * float(np.interp(work.length, lengths, milli))
            row[f"{who}_minutes"] = spent / 6e4
        yield {**row, "machine": times[0]["machine"], "torch": times[0]["torch"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=Path, default=Path("results/runs.csv"))
    parser.add_argument("--out", type=Path, default=Path("results/engine"))
    parser.add_argument("--s4", type=Path, help="a checkout of state-spaces/s4")
    parser.add_argument("--times", type=Path, help="step_times.csv of an earlier call")
    parser.add_argument("--groups", default="", help="time these anew, by comma; the others are taken from --times")
    parser.add_argument("--tiny", action="store_true", help="small models, to try the script on a CPU")
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    chosen = options.groups.split(",") if options.groups else [] if options.times else list(GROUPS)
    if unknown := [name for name in chosen if name not in GROUPS]:
        sys.exit(f"table_time: no group {unknown[0]!r}; known: {', '.join(GROUPS)}.")
    groups = {name: GROUPS[name] for name in chosen}
    if options.tiny:
        tiny = {"batch": 2, "d_model": 8, "n_layers": 1, "d_state": 8}
        groups = {name: Group(replace(g.size, **tiny), g.lengths[:2], g.recipes) for name, g in groups.items()}
    s4_file = None if options.s4 is None else options.s4 / "models" / "s4" / "s4.py"
    for path in (options.runs, s4_file, options.times):
        if path is not None and not path.is_file():
            sys.exit(f"table_time: {path}: no such file; see --runs, --s4 and --times.")
    with options.runs.open(newline="") as file:
        finished = {_trained(row): row for row in csv.DictReader(file) if row["status"] == "ok" and row["epochs"]}
    done = [work for row in finished.values() if row["gpu"] not in ("", "cpu") for work in work_of(row)]
    if not done:
        sys.exit(f"table_time: {options.runs} has no finished run of a GPU; give another with --runs.")
    times = []
    if options.times is not None:
        with options.times.open(newline="") as file:
            times = [time for time in csv.DictReader(file) if time.get("group") not in groups]
    if groups:
        times += time_steps(groups, options.s4, device, 2 if options.tiny else 20)
        report(times, options.out / "step_times.csv", "table_time.py")
    if missing := {work.group for work in done} - {time.get("group") for time in times}:
        missed = ",".join(sorted(missing))
        sys.exit(f"table_time: {options.times} has no step times of {missed}; time them with --groups {missed}.")
    rows = list(add_up(done, times))
    report(rows, options.out / "table_time.csv", "table_time.py")


if __name__ == "__main__":
    main()

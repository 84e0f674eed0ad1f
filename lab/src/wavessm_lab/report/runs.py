"""Results as a CSV: one row for each finished or failed run, what is made of the rows with the same variant, and what
that says beside the paper's number: better, within noise, or worse.

The columns and their vocabulary are a contract with scripts outside:

    task      ptbxl-all|diag|sub-diag|super-diag|form|rhythm, forecast, window-copy, listops, text, retrieval, image,
              pathfinder, pathx, speech
    dataset   of a forecast: ETTh1, ETTh2, ETTm1, Weather, ECL        variables  uni | multi
    family    as in `families()`; empty for baselines, which `model` names
    metric    auroc | mse | mae | accuracy | relative_mse             split  val | test
    status    ok | failed: reason
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from statistics import fmean, stdev
from typing import NamedTuple

from wavessm.errors import DataError
from wavessm_lab.sweep.results import COLUMNS

NAMED = ("forecast", "speech")
"""Tasks with several data sets."""
WITHIN = "within noise"
NO_SPREAD = "one seed"
BASELINES = {"s4-legs": "legs", "s4-fout": "fout"}
"""Models of the table of runs that have no family, and the paper's name for theirs."""
HIGHER_IS_BETTER = {"auroc": True, "accuracy": True, "mse": False, "mae": False, "relative_mse": False}


class Cell(NamedTuple):
    """One number of a table: which quantity it is."""

    task: str
    dataset: str
    horizon: str
    variables: str
    metric: str


class Variant(NamedTuple):
    """One row of a table: what was trained."""

    model: str
    family: str
    measure: str
    structure: str
    recipe: str

    def __str__(self) -> str:
        parts = [self.model, self.family, self.measure, self.structure, self.recipe and f"({self.recipe})"]
        return " ".join(part for part in parts if part)


@dataclass(frozen=True)
class Result:
    """A variant's values over its seeds, and half the interval that the choice of test cases leaves, if it is known."""

    values: tuple[float, ...]
    by_cases: float = 0.0

    @property
    def mean(self) -> float:
        """Mean over the seeds."""
        return fmean(self.values)

    @property
    def spread(self) -> float:
        """Standard deviation over seeds; NaN for one."""
        return stdev(self.values) if len(self.values) > 1 else math.nan


Results = dict[Cell, dict[Variant, Result]]
Published = dict[Cell, dict[Variant, float]]


def read_runs(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV of runs, or `DataError` that names what is wrong with it."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            head, rows = tuple(reader.fieldnames or ()), list(reader)
    except OSError as reason:
        raise DataError(f"{path}: {reason.strerror}; give the CSV that runs were written to.") from None
    except (UnicodeDecodeError, csv.Error):
        raise DataError(f"{path}: not a text in UTF-8; give the CSV that runs were written to.") from None
    if head != COLUMNS:
        raise DataError(f"{path}: its columns are not {','.join(COLUMNS)}; give the CSV that runs were written to.")
    for number, row in enumerate(rows, start=2):
        if problem := _problem(row):
            raise DataError(f"{path}, line {number}: {problem}.")
    return rows


def _problem(row: dict[str, str]) -> str:
    """What is wrong with a row, or ""."""
    if None in row or None in row.values():
        return f"has not {len(COLUMNS)} fields; was it cut short?"
    if not (row["horizon"] or "0").isdecimal():
        return f"horizon is {row['horizon']!r}, expected a whole number or none"
    if row["status"] != "ok":
        failed = row["status"].startswith("failed: ")
        return "" if failed else f"status is {row['status']!r}, expected 'ok' or 'failed: reason'"
    if row["metric"] not in HIGHER_IS_BETTER:
        return f"metric is {row['metric']!r}, expected one of {', '.join(HIGHER_IS_BETTER)}"
    for name in ("value", "ci_low", "ci_high"):
        try:
            fine = math.isfinite(float(row[name])) if row[name] or name == "value" else True
        except ValueError:
            fine = False
        if not fine:
            return f"{name} is {row[name]!r}, expected a number"
    return ""


def collect(rows: Iterable[dict[str, str]], split: str = "test") -> Results:
    """Values of the runs that ended well, by quantity and variant: one a seed, the mean where one ran several times.

    Quantities come by task, data set and score, short horizons before long ones.
    """
    found: dict[Cell, dict[Variant, dict[str, list[dict[str, str]]]]] = {}
    for row in rows:
        if row["status"] == "ok" and row["split"] == split:
            cell = Cell(*(row[name] for name in Cell._fields))
            variant = Variant(*(row[name] for name in Variant._fields))
            found.setdefault(cell, {}).setdefault(variant, {}).setdefault(row["seed"], []).append(row)
    return {
        cell: {variant: _result(list(seeds.values())) for variant, seeds in made.items()}
        for cell, made in sorted(
            found.items(), key=lambda item: (item[0]._replace(horizon=""), int(item[0].horizon or 0))
        )
    }


def _result(seeds: list[list[dict[str, str]]]) -> Result:
    values = tuple(fmean(float(row["value"]) for row in rows) for rows in seeds)
    halves = [
        (float(row["ci_high"]) - float(row["ci_low"])) / 2
        for rows in seeds
        for row in rows
        if row["ci_low"] and row["ci_high"]
    ]
    return Result(values, fmean(halves) if halves else 0.0)


def same_quantity(ours: Cell, theirs: Cell) -> bool:
    """Whether a number of ours and one of the paper's are of the same thing.

    Forecasts and Speech Commands name their data sets as the paper does; other tasks have one each, without a name.

    >>> same_quantity(Cell("image", "", "", "", "accuracy"), Cell("image", "sCIFAR", "", "", "accuracy"))
    True
    """
    nameless = not ours.dataset and ours.task not in NAMED
    return theirs == (ours._replace(dataset=theirs.dataset) if nameless else ours)


def numbers_for(cell: Cell, published: Published) -> dict[Variant, float]:
    """All the paper's numbers for a quantity."""
    return {v: value for theirs, rows in published.items() if same_quantity(cell, theirs) for v, value in rows.items()}


def unmet(results: Iterable[Cell], published: Iterable[Cell]) -> list[Cell]:
    """Quantities of the paper that no run has, in its order; tasks with one data set do not name it.

    >>> unmet([Cell("image", "", "", "", "accuracy")], [Cell("image", "sCIFAR", "", "", "accuracy")])
    []
    """
    ours = list(results)
    missing = (theirs for theirs in published if not any(same_quantity(cell, theirs) for cell in ours))
    return list(dict.fromkeys(cell if cell.task in NAMED else cell._replace(dataset="") for cell in missing))


def paper() -> Published:
    """The paper's tables. Its S4 is LegS; measures are those of its S and T suffixes.

    >>> cell = Cell("ptbxl-super-diag", "PTB-XL", "", "", "auroc")
    >>> paper()[cell][Variant("s4", "legs", "", "", "")]
    0.931
    """
    found: Published = {}
    for row in csv.DictReader(resources.files("wavessm_lab.report").joinpath("paper.csv").read_text().splitlines()):
        cell = Cell(*(row[name] for name in Cell._fields))
        variant = Variant(row["model"], row["family"], row["measure"], "", "")
        found.setdefault(cell, {})[variant] = float(row["value"])
    return found


def best_published(cell: Cell) -> tuple[str, str] | None:
    """The best figure of any paper and its model, of those trained on the task's data alone; None if none is known.

    >>> best_published(Cell("pathx", "", "", "", "accuracy"))
    ('0.986', 'S5')
    """
    text = resources.files("wavessm_lab.report").joinpath("best_published.csv").read_text()
    for row in csv.DictReader(text.splitlines()):
        if same_quantity(cell, Cell(row["task"], row["dataset"], "", "", row["metric"])):
            return row["value"], row["model"]
    return None


def partner(cell: Cell, variant: Variant, published: Published) -> tuple[Variant, float] | None:
    """The paper's variant with its number for the same quantity, family and measure, or None.

    Its S4 rows stand for every LegS or FouT.
    """
    baseline = BASELINES.get(variant.model.lower(), variant.family)
    wanted = ("wavessm", variant.family, variant.measure or "scaled")
    for row, value in numbers_for(cell, published).items():
        if baseline in BASELINES.values():
            same = (row.model, row.family) == ("s4", baseline)
        else:
            same = bool(variant.family) and (row.model, row.family, row.measure) == wanted
        if same:
            return row, value
    return None


def verdict(metric: str, result: Result, number: float) -> str:
    """better, worse or within noise: two standard errors of the seeds' mean or, where it is wider, the interval by test
    cases, and half a unit of the paper's last digit.

    >>> verdict("auroc", Result((0.93, 0.934, 0.932)), 0.9)
    'better'
    >>> verdict("mse", Result((0.5, 0.1)), 0.2)
    'within noise'
    >>> verdict("mse", Result((0.5,)), 0.2)
    'worse (one seed)'
    >>> verdict("auroc", Result((0.93, 0.932), by_cases=0.006), 0.936)
    'within noise'
    """
    gain = (result.mean - number) * (1 if HIGHER_IS_BETTER[metric] else -1)
    one = len(result.values) == 1
    by_seeds = 0.0 if one else 2 * result.spread / math.sqrt(len(result.values))
    noise = 5e-4 + max(by_seeds, result.by_cases)
    word = WITHIN if abs(gain) <= noise else "better" if gain > 0 else "worse"
    return f"{word} ({NO_SPREAD})" if one else word

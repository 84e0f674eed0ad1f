"""Results as a CSV: one row for each finished or failed run, and what is made of the rows with the same variant.

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
        missing = [name for name in COLUMNS if name not in head]
        what = f"has no column {missing[0]!r}" if missing else "has its columns in another order"
        raise DataError(f"{path}: {what}; expected {','.join(COLUMNS)}.")
    for number, row in enumerate(rows, start=2):
        if None in row or None in row.values():
            raise DataError(f"{path}, line {number}: has not {len(COLUMNS)} fields; was it cut short?")
        if row["status"] == "ok":
            for name in ("value", *(bound for bound in ("ci_low", "ci_high") if row[bound])):
                _number(row[name], f"{path}, line {number}: {name}")
            if row["metric"] not in HIGHER_IS_BETTER:
                known = ", ".join(HIGHER_IS_BETTER)
                raise DataError(f"{path}, line {number}: metric is {row['metric']!r}, expected one of {known}.")
        elif not row["status"].startswith("failed: "):
            raise DataError(f"{path}, line {number}: status is {row['status']!r}, expected 'ok' or 'failed: reason'.")
        if not (row["horizon"] or "0").isdecimal():
            raise DataError(f"{path}, line {number}: horizon is {row['horizon']!r}, expected a whole number or none.")
    return rows


def _number(text: str, where: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise DataError(f"{where} is {text!r}, expected a number.")
    return number


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

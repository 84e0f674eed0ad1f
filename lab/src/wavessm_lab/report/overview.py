"""The report's first pages: one table for tasks that belong together, a column for each, our variants beside the
paper's best.

Columns are the horizons of a forecast, or the label sets of PTB-XL. A mark says how a number of ours compares with the
paper's for the same variant, see `LEGEND` and `runs.verdict`. Scores have a last column, the mean over the columns
that the paper has too; its best there is the best mean of one of its variants.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from statistics import fmean
from typing import NamedTuple

from wavessm_lab.report.runs import (
    HIGHER_IS_BETTER,
    Cell,
    Published,
    Results,
    Variant,
    best_published,
    numbers_for,
    partner,
    verdict,
)

MARKS = {"better": "+", "within": "=", "worse": "-"}
LEGEND = (
    "± is the standard deviation over seeds. + better, = within noise, - worse than the paper's number for the same "
    "variant, by more than half a unit of its last digit and the wider of two standard errors over seeds and the 90 % "
    "interval over test cases; in brackets with one seed. Empty cells were not run, or are not in the paper."
)


class Group(NamedTuple):
    """Quantities that share a table."""

    name: str
    metric: str


def group(cell: Cell) -> Group:
    """The table of a quantity, by its title.

    >>> group(Cell("forecast", "ETTh1", "24", "uni", "mse")).name
    'forecast, ETTh1, univariate'
    >>> group(Cell("ptbxl-form", "", "", "", "auroc"))
    Group(name='ptbxl', metric='auroc')
    """
    task = "ptbxl" if cell.task.startswith("ptbxl-") else cell.task
    parts = (task, cell.dataset if cell.horizon else "", f"{cell.variables}variate" if cell.variables else "")
    return Group(", ".join(part for part in parts if part), cell.metric)


def column(cell: Cell) -> str:
    """Return the heading of a cell's column: horizon, data set or task."""
    return cell.horizon or cell.dataset or cell.task.removeprefix("ptbxl-")


def overview(results: Results, published: Published) -> list[tuple[str, list[str], list[list[str]]]]:
    """Title, head and lines of every group of two quantities and more."""
    groups: dict[Group, list[Cell]] = {}
    for cell in results:
        groups.setdefault(group(cell), []).append(cell)
    pages = []
    for key, cells in sorted(groups.items()):
        if len(cells) > 1:
            ordered = sorted(cells, key=lambda cell: (int(cell.horizon or 0), cell.task))
            head = [
                "variant",
                *(column(cell) for cell in ordered),
                *(["mean"] if _shared(ordered, results, published) else []),
            ]
            pages.append((f"{key.name}: {key.metric}", head, _lines(ordered, results, published)))
    return pages


def _lines(cells: list[Cell], results: Results, published: Published) -> list[list[str]]:
    variants = dict.fromkeys(variant for cell in cells for variant in results[cell])
    shared = _shared(cells, results, published)
    counted = shared or [cell for cell in cells if results[cell]]
    best_first = sorted(variants, key=lambda variant: _rank(variant, counted, results))
    lines = [[str(variant), *(_entry(variant, cell, results, published) for cell in cells)] for variant in best_first]
    numbers = [numbers_for(cell, published) for cell in cells]
    if any(numbers):
        pick = max if HIGHER_IS_BETTER[cells[0].metric] else min
        lines.append(["the paper's best", *(f"{pick(found.values()):g}" if found else "" for found in numbers)])
    if shared:
        for line, variant in zip(lines, best_first, strict=False):
            line.append(_mean([{v: r.mean for v, r in results[cell].items()} for cell in shared], [variant]))
        theirs = [numbers_for(cell, published) for cell in shared]
        lines[-1].append(_mean(theirs, theirs[0]))
    best = [best_published(cell) for cell in cells]
    if any(best):
        lines.append(["best published", *(" ".join(one) if one else "" for one in best), *([""] if shared else [])])
    return lines


def _shared(cells: list[Cell], results: Results, published: Published) -> list[Cell]:
    """The quantities of a table that both we and the paper have, if they are several scores."""
    shared = [cell for cell in cells if results[cell] and numbers_for(cell, published)]
    return shared if len(shared) > 1 and HIGHER_IS_BETTER[cells[0].metric] else []


def _mean(numbers: list[dict[Variant, float]], variants: Iterable[Variant]) -> str:
    """The best mean over columns among the variants that have all of them; empty if none has."""
    means = [fmean(found[v] for found in numbers) for v in variants if all(v in found for found in numbers)]
    return f"{max(means):.4f}" if means else ""


def _rank(variant: Variant, cells: Iterable[Cell], results: Results) -> tuple[int, float]:
    """Variants with most cells first, then by the geometric mean of their errors (1 − x for scores)."""
    values = [results[cell][variant].mean for cell in cells if variant in results[cell]]
    higher = HIGHER_IS_BETTER[next(iter(cells)).metric]
    errors = [max(1 - value if higher else value, 1e-12) for value in values]
    return -len(errors), fmean(map(math.log, errors)) if errors else 0.0


def _entry(variant: Variant, cell: Cell, results: Results, published: Published) -> str:
    result = results[cell].get(variant)
    if result is None:
        return ""
    theirs = partner(cell, variant, published)
    mark = "" if theirs is None else MARKS[verdict(cell.metric, result, theirs[1]).split(" ")[0]]
    mark = f"({mark})" if mark and len(result.values) == 1 else mark
    digits = 4 if HIGHER_IS_BETTER[cell.metric] else 3
    spread = "" if math.isnan(result.spread) else f" ± {result.spread:.{digits}f}"
    return f"{result.mean:.{digits}f}{spread} {mark}".rstrip()

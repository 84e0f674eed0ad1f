"""What a result says beside the paper's number: better, within noise, or worse."""

from __future__ import annotations

import math

from wavessm_lab.report.runs import HIGHER_IS_BETTER, Cell, Published, Result, Variant, numbers_for

WITHIN = "within noise"
NO_SPREAD = "one seed"
BASELINES = {"s4-legs": "legs", "s4-fout": "fout"}
"""Models of the table of runs that have no family, and the paper's name for theirs."""


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

"""Window copying in the report: relative error against the number of windows, which the table of runs has as horizon.

The paper shows a figure and no numbers: WaveSSM as the mean over the five scaled frames with its confidence interval,
beside S4. Errors span orders of magnitude, so means over frames and their intervals are taken of logarithms.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from wavessm.training.record import pyplot
from wavessm_lab.report.runs import Cell, Result, Results, Variant

TASK, METRIC = "window-copy", "relative_mse"
FRAMES = ("morlet", "gauss", "mexhat", "dpss", "db6")
Curve = dict[int, Result]


def has_windows(cell: Cell) -> bool:
    """Whether a number is the error at one number of windows."""
    return cell.task == TASK and cell.horizon.isdigit()


def curves(results: Results) -> dict[Variant, Curve]:
    """Relative error of every variant by the number of windows, wavelets first."""
    found: dict[Variant, Curve] = {}
    for cell, made in sorted(results.items(), key=lambda item: int(item[0].horizon)):
        if cell.metric == METRIC:
            for variant, result in made.items():
                found.setdefault(variant, {})[int(cell.horizon)] = result
    return dict(sorted(found.items(), key=lambda item: (not item[0].family, item[0])))


def frames(found: dict[Variant, Curve]) -> dict[int, tuple[float, float, float]]:
    """Geometric mean over the paper's scaled frames and its 95 % interval (Student's t), where there are several.

    >>> one, two = (Variant("WaveSSM", family, "scaled", "diagonal", "best") for family in ("morlet", "db6"))
    >>> mean, low, high = frames({one: {2: Result((0.1,))}, two: {2: Result((0.001,))}})[2]
    >>> round(mean, 6), low < 0.001 < 0.1 < high
    (0.01, True)
    """
    from scipy import stats

    own = [curve for variant, curve in found.items() if variant.family in FRAMES and variant.measure == "scaled"]
    made = {}
    for number in sorted(set.intersection(*(set(curve) for curve in own))) if len(own) > 1 else []:
        logs = np.log([curve[number].mean for curve in own])
        half = float(stats.t.ppf(0.975, len(logs) - 1) * logs.std(ddof=1) / math.sqrt(len(logs)))
        made[number] = (math.exp(logs.mean()), math.exp(logs.mean() - half), math.exp(logs.mean() + half))
    return made


def window_table(results: Results) -> tuple[list[str], list[list[str]]]:
    """Head and lines: every variant over its seeds, the mean of the frames, each baseline's error over that mean."""
    found = curves(results)
    numbers = sorted({number for curve in found.values() for number in curve})
    names, recipe = named(found)
    lines = []
    for variant, curve in found.items():
        seeds = max(len(result.values) for result in curve.values())
        lines.append([names[variant], str(seeds), *(_cell(curve.get(number)) for number in numbers)])
    lines.append(["predicting the mean, by definition", "", *("1" for _ in numbers)])
    mean = frames(found)
    if mean:
        lines.append(["mean of the scaled frames", "", *(f"{mean[n][0]:.2e}" if n in mean else "" for n in numbers)])
        for variant, curve in found.items():
            if not variant.family:
                ratios = (f"{curve[n].mean / mean[n][0]:.1f}×" if n in mean and n in curve else "" for n in numbers)
                lines.append([f"{names[variant]}, over that mean", "", *ratios])
    return [f"variant {recipe and f'({recipe})'}".strip(), "seeds", *(f"{number} windows" for number in numbers)], lines


def named(variants: Iterable[Variant]) -> tuple[dict[Variant, str], str]:
    """Names of the variants, and the recipe if they share one; it is left out of the names then."""
    every = list(variants)
    recipes = {variant.recipe for variant in every}
    shared = recipes.pop() if len(recipes) == 1 else ""
    return {variant: str(variant._replace(recipe="") if shared else variant) for variant in every}, shared


def _cell(result: Result | None) -> str:
    if result is None:
        return ""
    return f"{result.mean:.2e}" + ("" if math.isnan(result.spread) else f" ± {result.spread:.1e}")


def plot_windows(results: Results, path: Path) -> Path:
    """Every variant with the range of its seeds, the mean of the frames with its interval, on a logarithmic scale."""
    plt = pyplot()
    figure, axes = plt.subplots(figsize=(7.5, 4.8), layout="constrained")
    found = curves(results)
    names, _ = named(found)
    for index, (variant, curve) in enumerate(found.items()):
        numbers, color = list(curve), f"C{index % 10}"
        style = {"linewidth": 1, "linestyle": "--"} if variant.family else {"linewidth": 2, "marker": "s"}
        axes.plot(numbers, [result.mean for result in curve.values()], color=color, label=names[variant], **style)
        low, high = ([pick(result.values) for result in curve.values()] for pick in (min, max))
        axes.fill_between(numbers, low, high, color=color, alpha=0.12, linewidth=0)
    if mean := frames(found):
        middle, lower, upper = zip(*mean.values(), strict=True)
        axes.plot(list(mean), middle, color="black", linewidth=2.5, marker="o", label="mean of the scaled frames")
        axes.fill_between(list(mean), lower, upper, color="black", alpha=0.15, linewidth=0)
    axes.axhline(1, color="0.6", linestyle=":", linewidth=1)
    axes.set(xlabel="windows to find and add", ylabel="relative MSE", yscale="log")
    axes.set_xticks(sorted({number for curve in found.values() for number in curve}))
    axes.set_title("shaded: range over seeds; black: 95 % interval over frames; 1 = nothing learnt", fontsize=9)
    axes.grid(alpha=0.3, which="both")
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return path

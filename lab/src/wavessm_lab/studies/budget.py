"""Figures of `steps.py`: error against N for both targets, and every method's reconstructions beside Legendre's."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from wavessm.inspection.drawing import Drawing, canvas
from wavessm_lab.studies import COLOURS, fitted_slope, table_rows
from wavessm_lab.studies.steps import BUDGETS, GRIDS, METHODS, TARGETS, approximations, grid_error

FLOOR = 1e-4
"""Axes and slopes leave out smaller errors: db6 is exact once N exceeds its non-zero coefficients."""

LOOK = {
    "legendre": (COLOURS["legendre"], "-", "o"),
    "legendre, quadrature": (COLOURS["legendre"], ":", "x"),
    "db6": (COLOURS["db6"], "-", "s"),
    "gaus2": (COLOURS["gauss"], "-", "^"),
    "gaus3": ("#a65300", "-", "v"),
    "mexh": (COLOURS["mexhat"], "-", "D"),
    "morl": (COLOURS["morlet"], "-", "P"),
    "morl + constant": (COLOURS["morlet"], "--", "P"),
}


def slope(errors: dict[int, float]) -> float:
    """The fitted exponent of e_N ∝ N^p over the budgets whose error is above the floor."""
    usable = {n: error for n, error in errors.items() if error > FLOOR}
    return fitted_slope(list(usable), list(usable.values())) if len(usable) > 1 else float("nan")


def errors_of(method: str, target: str, length: int) -> dict[int, float]:
    """e_N for every budget."""
    f = TARGETS[target].values(np.linspace(0, 1, length))
    return {budget: grid_error(f, g) for budget, g in approximations(method, target, length).items()}


def error_curves(grids: tuple[int, ...] = GRIDS, shown: int = 2048, methods: tuple[str, ...] = METHODS) -> Drawing:
    """e_N of every method on log-log axes, with fitted slopes; the table has all grids."""
    table: dict[tuple[str, str, int], dict[int, float]] = {}
    for length in grids:  # dictionaries outermost, so that both targets share one
        for method in methods:
            for target in TARGETS:
                table[target, method, length] = errors_of(method, target, length)
    rows: list[dict[str, Any]] = [
        {"target": target, "method": method, "grid": length, "n": n, "error": error, "slope": slope(errors)}
        for (target, method, length), errors in table.items()
        for n, error in errors.items()
    ]
    with canvas() as plt:
        figure, axes = plt.subplots(1, 2, figsize=(10.4, 4.6), sharey=True)
        for axis, target in zip(axes, TARGETS, strict=True):
            for method in methods:
                errors = table[target, method, shown]
                colour, line, marker = LOOK[method]
                label = f"{method}  ({slope(errors):+.2f})"
                kept = [error if error > FLOOR / 2 else np.nan for error in errors.values()]
                axis.plot(list(errors), kept, line, marker=marker, ms=4.5, color=colour, label=label)
            guide = np.array(BUDGETS, float)
            axis.plot(guide, 0.075 * (guide / 32) ** -0.5, color="0.75", linewidth=3, zorder=0)
            axis.text(150, 0.041, "$N^{-1/2}$", color="0.55", fontsize=8)
            axis.set(xscale="log", yscale="log", xlabel="budget N", title=f"{target} step{'s' * (target == 'two')}")
            axis.set_xticks(BUDGETS, [str(n) for n in BUDGETS])
            axis.xaxis.minorticks_off()
            axis.set_ylim(FLOOR / 2, 1)
            axis.legend(title="method (slope)", loc="lower left", fontsize=7)
        axes[0].set_ylabel("error e_N")
    legendre = slope(table["one", "legendre", shown])
    best = min((errors[256], method) for (t, method, g), errors in table.items() if (t, g) == ("two", shown))
    caption = (
        f"Error of N-term approximations of one and two steps, grid {shown}: Legendre falls like N^{legendre:.2f} on "
        f"one jump; on two {best[1]} is best at N = 256 ({best[0]:.0e}) and leaves the axes where it is exact; morl "
        "has no atom with a mean and is shown with a constant added as well (dashed)."
    )
    return Drawing(figure, rows, caption)


def reconstructions(target: str, method: str, length: int = 2048) -> Drawing:
    """One target by one method and by Legendre, at the four budgets."""
    t = np.linspace(0, 1, length)
    f = TARGETS[target].values(t)
    ours, legendre = approximations(method, target, length), approximations("legendre", target, length)
    colour = LOOK[method][0]
    with canvas() as plt:
        figure, axes = plt.subplots(2, 2, figsize=(8.4, 5), sharex=True, sharey=True)
        for axis, n in zip(axes.flat, BUDGETS, strict=True):
            axis.plot(t, f, color="0.75", linewidth=3, label="target")
            axis.plot(t, legendre[n], color=COLOURS["legendre"], linewidth=0.8, label="Legendre")
            axis.plot(t, ours[n], color=colour, linewidth=1.1, label=method)
            e_ours, e_legendre = grid_error(f, ours[n]), grid_error(f, legendre[n])
            axis.set_title(f"N = {n}:  {method} {e_ours:.2g},  Legendre {e_legendre:.2g}")
            axis.set_xlim(0, 1)
        for axis in axes[1]:
            axis.set_xlabel("t")
        axes[0, 0].set_ylim(min(-0.25, *(1.05 * values.min() for values in ours.values())), 1.3)
        axes[0, 0].legend(loc="upper left")
    final, other = grid_error(f, ours[64]), grid_error(f, legendre[64])
    caption = (
        f"{target.capitalize()} step{'s' * (target == 'two')} from N terms of {method} and of Legendre; at N = 64 the "
        f"errors are {final:.2g} and {other:.2g}."
    )
    terms = {f"{name}_{n}": made[n] for name, made in ((method, ours), ("legendre", legendre)) for n in BUDGETS}
    return Drawing(figure, table_rows({"t": t, "target": f, **terms}), caption)


RECONSTRUCTIONS = {
    f"steps-{target}-{method}": partial(reconstructions, target, method)
    for method in ("db6", "gaus2", "gaus3", "mexh", "morl")
    for target in TARGETS
}
"""The ten figures of reconstructions by name, both targets of a method together."""

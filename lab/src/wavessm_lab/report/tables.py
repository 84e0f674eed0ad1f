"""Markdown tables of runs beside the paper's numbers, and a plot for each task; empty cells stay empty."""

from __future__ import annotations

import math
from pathlib import Path

from wavessm.errors import DataError
from wavessm.training.record import pyplot
from wavessm_lab.report.overview import LEGEND, overview
from wavessm_lab.report.runs import (
    HIGHER_IS_BETTER,
    Cell,
    Published,
    Result,
    Results,
    Variant,
    best_published,
    collect,
    numbers_for,
    paper,
    partner,
    read_runs,
    unmet,
    verdict,
)
from wavessm_lab.report.windows import has_windows, plot_windows, window_table

Table = list[list[str]]
Page = tuple[str, list[str], Table]
"""Title, head and lines."""
HEAD = ["variant", "seeds", "ours", "paper", "verdict"]


def write_report(source: Path, out: Path) -> list[Path]:
    """`report.md` and one PNG a task under `out`, from a CSV of runs."""
    rows = read_runs(source)
    results = collect(rows)
    if not results:
        raise DataError(f"{source}: no finished run with a test score; nothing to report yet.")
    out.mkdir(parents=True, exist_ok=True)
    published = paper()
    windows = {cell: made for cell, made in results.items() if has_windows(cell)}
    results = {cell: made for cell, made in results.items() if cell not in windows}
    everything = results | {cell: {} for cell in unmet(results, published)}
    pages: list[Page] = overview(everything, published)
    pages += [(title(cell), HEAD, table(cell, made, published)) for cell, made in everything.items()]
    if windows:
        pages.append(("window-copy, relative_mse by the number of windows", *window_table(windows)))
    failed = sum(row["status"] != "ok" for row in rows)
    remark = f"{len(rows)} rows of {source.name}, {failed} of them failed runs. {LEGEND}"
    written = [out / "report.md"]
    written[0].write_text(_markdown(pages, remark))
    for task in dict.fromkeys(cell.task for cell in results):
        written.append(plot({c: m for c, m in results.items() if c.task == task}, published, out / f"{task}.png"))
    if windows:
        written.append(plot_windows(windows, out / "window-copy-windows.png"))
    return written


def title(cell: Cell) -> str:
    """Words for one quantity."""
    ahead = f"{cell.horizon} steps ahead, {cell.variables}variate" if cell.horizon else ""
    return ", ".join(part for part in (cell.task, cell.dataset, ahead, cell.metric) if part)


def table(cell: Cell, made: dict[Variant, Result], published: Published) -> Table:
    """Our variants from best to worst, then the paper's that no run of ours has met, then the best of any paper."""
    sign = -1 if HIGHER_IS_BETTER[cell.metric] else 1
    lines, met = [], set()
    for variant, result in sorted(made.items(), key=lambda item: sign * item[1].mean):
        found = partner(cell, variant, published)
        ours = f"{result.mean:.4f}" + ("" if math.isnan(result.spread) else f" ± {result.spread:.4f}")
        theirs, word = ("", "") if found is None else (f"{found[1]:g}", verdict(cell.metric, result, found[1]))
        met.add(None if found is None else found[0])
        lines.append([str(variant), str(len(result.values)), ours, theirs, word])
    left = {variant: value for variant, value in numbers_for(cell, published).items() if variant not in met}
    lines += [[str(variant), "", "", f"{value:g}", ""] for variant, value in left.items()]
    if best := best_published(cell):
        lines.append([f"best published: {best[1]}", "", "", best[0], ""])
    return lines


def _markdown(pages: list[Page], remark: str) -> str:
    parts = ["# Results beside the paper's", "", remark, ""]
    for name, head, lines in pages:
        parts += [f"## {name}", "", "| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
        parts += ["| " + " | ".join(line) + " |" for line in lines] + [""]
    return "\n".join(parts)


def plot(results: Results, published: Published, path: Path) -> Path:
    """Every variant's mean with its seeds, and the paper's number as a cross, one panel a quantity.

    Where there are squared errors, absolute ones have no panel.
    """
    plt = pyplot()
    squared = {cell._replace(metric="mae") for cell in results if cell.metric == "mse"}
    results = {cell: made for cell, made in results.items() if cell not in squared}
    longest = max(len(str(variant)) for made in results.values() for variant in made)
    height = sum(0.6 + 0.28 * len(made) for made in results.values()) + 0.6
    figure, panels = plt.subplots(
        len(results), 1, figsize=(max(7, 3.5 + 0.07 * longest), height),
        squeeze=False, layout="constrained", height_ratios=[1 + len(made) for made in results.values()],
    )  # fmt: skip
    for axes, (cell, made) in zip(panels[:, 0], results.items(), strict=True):
        seeds = [(value, at) for at, result in enumerate(made.values()) for value in result.values]
        means = [(result.mean, at) for at, result in enumerate(made.values())]
        theirs = [(found[1], at) for at, variant in enumerate(made) if (found := partner(cell, variant, published))]
        for points, mark in ((seeds, {"color": "0.6", "markersize": 3}), (means, {"color": "C0"})):
            axes.plot(*zip(*points, strict=True), "o", **mark)
        if theirs:
            axes.plot(*zip(*theirs, strict=True), "x", color="C3")
        axes.set_yticks(range(len(made)), [str(variant) for variant in made], fontsize=8)
        axes.set_title(title(cell) + " (o ours, × paper)", fontsize=9)
        axes.grid(axis="x", alpha=0.3)
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return path

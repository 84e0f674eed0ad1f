"""Stage 8p: predictions as a figure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from wavessm.data.source import DataInfo
from wavessm.training.predict import names_of
from wavessm.training.record import pyplot

Row = dict[str, Any]


def draw_predictions(info: DataInfo, rows: list[Row], path: Path, context: np.ndarray | None = None) -> None:
    """Forecasts after their context, probabilities over a stream, or probabilities of every case as a map."""
    plt = pyplot()
    figure, axes = plt.subplots(figsize=(9, 4))
    if info.kind == "forecast":
        _draw_forecast(axes, info, rows, context)
    elif "samples" in rows[0]:
        for name in names_of(info):
            axes.plot([row["samples"] for row in rows], [row[name] for row in rows], label=name)
        axes.set(xlabel="samples heard", ylabel="probability" if info.classes else "prediction")
        axes.legend(fontsize=8)
    else:
        names = names_of(info)
        image = axes.imshow(np.array([[row[name] for name in names] for row in rows]), aspect="auto", cmap="viridis")
        axes.set_xticks(range(len(names)), names, rotation=45, ha="right")
        axes.set(ylabel="case")
        figure.colorbar(image, label="probability" if info.classes else "prediction")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _draw_forecast(axes: Any, info: DataInfo, rows: list[Row], context: np.ndarray | None) -> None:
    last = rows[-info.horizon :]  # of a stream: the latest forecast
    steps = [row["step"] for row in last]
    for index, name in enumerate(names_of(info)[:8]):
        axes.plot(steps, [row[name] for row in last], color=f"C{index}", label=f"{name}, forecast")
        if context is not None:
            axes.plot(np.arange(1 - len(context), 1), context[:, index], color=f"C{index}", alpha=0.5)
    axes.axvline(0.5, color="0.7", linewidth=0.8)
    axes.set(xlabel="steps from now", ylabel="value")
    axes.legend(fontsize=8)

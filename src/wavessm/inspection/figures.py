"""A trained model as figures, each with the numbers it shows: time scales, kernels, memory and saliency."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from wavessm.inspection.drawing import STYLE, Drawing, canvas
from wavessm.inspection.layers import jacobian, layers_of, memory, time_scales
from wavessm.inspection.model import InspectedModel
from wavessm.inspection.saliency import Saliency
from wavessm.training.record import provenance, pyplot, write_csv

DPI = 120
MAX_LAYERS = 6
"""Layers drawn; a deeper model is shown by the first, the last and some between."""
MAX_LAGS = 200
"""Weights of a kernel in its table; of longer kernels every k-th."""


def draw_all(
    inspected: InspectedModel, shares: Saliency | None = None, signals: np.ndarray | None = None
) -> dict[str, Drawing]:
    """Every figure by name; with `shares` also the saliency, under its signals (cases, length, channels)."""
    drawings = {"scales": _draw_scales(inspected), "kernels": _draw_kernels(inspected), "past": _draw_past(inspected)}
    return drawings if shares is None else drawings | {"saliency": _draw_saliency(inspected, shares, signals)}


def write_figures(
    inspected: InspectedModel, folder: str | Path, shares: Saliency | None = None, signals: np.ndarray | None = None
) -> dict[str, str]:
    """Write NAME.png and NAME.csv of every figure of `draw_all` and README.md; returns the captions by name."""
    return write_drawings(inspected.name, draw_all(inspected, shares, signals), folder)


def write_drawings(title: str, drawings: dict[str, Drawing], folder: str | Path) -> dict[str, str]:
    """Write NAME.png and NAME.csv of every drawing and README.md; returns the captions by name."""
    folder, plt = Path(folder), pyplot()
    folder.mkdir(parents=True, exist_ok=True)
    captions = {}
    for name, drawing in drawings.items():
        with plt.rc_context(STYLE):
            drawing.figure.savefig(folder / f"{name}.png", dpi=DPI, metadata={"Software": None})
        plt.close(drawing.figure)
        write_csv(folder / f"{name}.csv", drawing.rows)
        captions[name] = drawing.caption
    parts = [f"## {name}\n\n{caption}\n\n![{name}]({name}.png)\n" for name, caption in captions.items()]
    made = f"Numbers: the CSV of the same name. Made by {provenance('wavessm inspect')}.\n"
    (folder / "README.md").write_text("\n".join([f"# {title}\n", *parts, made]), encoding="utf-8")
    return captions


def _shown(count: int) -> list[int]:
    """Numbers of the layers to draw.

    >>> _shown(3), _shown(12)
    ([0, 1, 2], [0, 2, 4, 7, 9, 11])
    """
    return sorted({round(at) for at in np.linspace(0, count - 1, min(count, MAX_LAYERS))})


def _times(inspected: InspectedModel, **samples: float) -> dict[str, float]:
    """Columns in samples, and in seconds where the sampling rate is known."""
    row = {f"{name}_samples": float(value) for name, value in samples.items()}
    if inspected.sampling_rate is not None:
        row |= {f"{name}_seconds": float(inspected.seconds(value)) for name, value in samples.items()}
    return row


def _draw_scales(inspected: InspectedModel) -> Drawing:
    """1/Δ of every channel of every layer, and the reach of its kernel."""
    layers, rows = layers_of(inspected.model), []
    with canvas() as plt:
        figure, axis = plt.subplots(figsize=(1.6 + 1.3 * len(layers), 3.6))
        for number, layer in enumerate(layers):
            scales = time_scales(layer, inspected.length)
            for channel, (dt, *values) in enumerate(zip(*scales, strict=True)):
                times = _times(inspected, **dict(zip(scales._fields[1:], values, strict=True)))
                rows.append({"layer": number, "channel": channel, "dt": float(dt), **times})
            spot = number + np.linspace(-0.3, 0.3, layer.d_model)[np.argsort(np.argsort(scales.window))]
            labels = (None, None) if number else ("1/Δ", "90 % of the kernel's energy")
            axis.scatter(spot, inspected.seconds(scales.window), s=14, color="#1f6fb4", label=labels[0])
            style = {"s": 12, "marker": "x", "linewidth": 1, "color": "#e07b00", "label": labels[1]}
            axis.scatter(spot, inspected.seconds(scales.reach), **style)
        axis.axhline(inspected.seconds(inspected.length), color="0.7", linestyle="--", linewidth=0.9)
        axis.set(yscale="log", xlabel="layer (channels by 1/Δ)", ylabel=f"back in time ({inspected.unit})")
        axis.set_xticks(range(len(layers)))
        axis.legend(loc="upper center", bbox_to_anchor=(0.5, 1.16), ncols=2)
    low, middle, high = inspected.seconds(np.quantile([row["reach_samples"] for row in rows], [0.1, 0.5, 0.9]))
    caption = (
        f"Learned time scales of {len(rows)} channels in {len(layers)} layers: half of the kernels have 90 % of their "
        f"energy within {middle:.3g} {inspected.unit} (a tenth within {low:.3g}, nine tenths within {high:.3g}); the "
        f"dashed line is a signal's length, {inspected.seconds(inspected.length):.4g} {inspected.unit}."
    )
    return Drawing(figure, rows, caption)


def _panels(plt: Any, count: int, rows: int = 1, **options: Any) -> tuple[Any, Any]:
    """A figure with a panel per layer, (rows, count) axes."""
    return plt.subplots(rows, count, figsize=(1 + 2.6 * count, 0.6 + 2.5 * rows), squeeze=False, **options)


def _draw_kernels(inspected: InspectedModel) -> Drawing:
    """Kernels of every channel as a map, sorted by reach."""
    layers, rows, length = layers_of(inspected.model), [], inspected.length
    chosen, step = _shown(len(layers)), -(-length // MAX_LAGS)
    with canvas() as plt:
        figure, axes = _panels(plt, len(chosen))
        for axis, number in zip(axes[0], chosen, strict=True):
            K = layers[number].kernel(length).detach().numpy()
            order = np.argsort(time_scales(layers[number], length).reach)
            image = K[0][order] / np.abs(K[0][order]).max(axis=1, keepdims=True)
            extent = (0, inspected.seconds(length), len(order), 0)
            axis.imshow(image, aspect="auto", cmap="RdBu_r", vmin=-1, vmax=1, extent=extent)
            axis.set(xlabel=f"lag ({inspected.unit})", title=f"layer {number}")
            for direction, channel in np.ndindex(K.shape[:2]):
                weights = {f"lag{at}": float(K[direction, channel, at]) for at in range(0, length, step)}
                rows.append({"layer": number, "direction": direction, "channel": channel, **weights})
        axes[0, 0].set_ylabel("channel, by reach")
        figure.colorbar(axes[0, 0].images[0], ax=axes, shrink=0.8, label="weight / largest of the channel")
    caption = (
        f"Kernels of {'the forward direction of ' if len(K) == 2 else ''}layers {', '.join(map(str, chosen))}: the "
        "weight of each sample of the past in a channel's output, channels with the shortest reach on top."
    )
    return Drawing(figure, rows, caption)


def _draw_past(inspected: InspectedModel) -> Drawing:
    """∂h_T/∂x_t of one channel per layer, the one with the median Δ, and where in the past its coordinates look."""
    layers, rows = layers_of(inspected.model), []
    chosen, start = _shown(len(layers)), -inspected.seconds(inspected.length)
    with canvas() as plt:
        figure, axes = _panels(plt, len(chosen), rows=2, sharex=True)
        for (top, bottom), number in zip(axes.T, chosen, strict=True):
            layer = layers[number]
            channel = int(np.argsort(layer.log_dt.detach().numpy())[layer.d_model // 2])
            J = jacobian(layer, inspected.length, channel)
            lag, spread = memory(J)
            order = np.argsort(-lag)
            share = np.abs(J[order]) / np.maximum(np.abs(J[order]).max(axis=1, keepdims=True), 1e-300)
            top.imshow(share, aspect="auto", cmap="magma", vmin=0, vmax=1, extent=(start, 0, len(J), 0))
            top.set_title(f"layer {number}, channel {channel}")
            x, xerr = -inspected.seconds(lag[order]), inspected.seconds(spread[order])
            bottom.errorbar(x, np.arange(len(J)) + 0.5, xerr=xerr, fmt=".", ms=4, linewidth=0.7, color="#1f6fb4")
            bottom.set(xlabel=f"time before now ({inspected.unit})", ylim=(len(J), 0), xlim=(start, 0))
            for k in range(len(J)):
                times = _times(inspected, lag=lag[k], spread=spread[k])
                rows.append({"layer": number, "channel": channel, "coordinate": k, **times})
        axes[0, 0].set_ylabel("coordinate, oldest first")
        axes[1, 0].set_ylabel("middle ± spread")
    middle = inspected.seconds(float(np.median([row["spread_samples"] for row in rows])))
    caption = (
        f"Which part of the past each coordinate of the state holds: |∂h_T/∂x_t| of the channel with the median Δ, row "
        f"by row in units of its largest entry, and its energy-weighted middle and spread (median spread {middle:.3g} "
        f"{inspected.unit}). Coordinates are those of the frame the layers started with, `{layers[0].family}`."
    )
    return Drawing(figure, rows, caption)


def _draw_saliency(inspected: InspectedModel, shares: Saliency, signals: np.ndarray | None) -> Drawing:
    """The shares of every sample, summed over channels, under the signal they belong to."""
    count, rows = len(shares.values), []
    with canvas() as plt:
        figure, axes = plt.subplots(count, 1, figsize=(8, 0.8 + 1.7 * count), squeeze=False, sharex=True)
        for case, axis in enumerate(axes[:, 0]):
            length = int(shares.lengths[case])
            t, total = inspected.seconds(np.arange(length)), shares.values[case, :length].sum(1).numpy()
            if signals is not None:
                axis.plot(t, signals[case, :length], color="0.35", linewidth=0.9)
            low, high = axis.get_ylim() if signals is not None else (-1, 1)
            limit, extent = max(float(np.abs(total).max()), 1e-12), (0, float(inspected.seconds(length)), low, high)
            style = {"cmap": "RdBu_r", "vmin": -limit, "vmax": limit, "alpha": 0.75, "zorder": 0}
            axis.imshow(total[None], aspect="auto", extent=extent, **style)
            target = int(shares.target[case])
            name = inspected.classes[target] if inspected.classes else f"output {target}"
            axis.set(title=f"case {case}: {name}, score {float(shares.score[case]):.2f}", yticks=[])
            for at, share in enumerate(total.tolist()):
                rows.append({"case": case, "output": name, "sample": at, "time": float(t[at]), "share": share})
        axes[-1, 0].set_xlabel(f"time ({inspected.unit})")
    caption = (
        "What each sample adds to the score of the named class (red for it, blue against it), summed over channels. "
        f"The sum of the shares differs from the score by {float(shares.gap.max()):.2g} at most."
    )
    return Drawing(figure, rows, caption)

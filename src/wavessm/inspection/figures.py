"""A trained model as figures, each with the numbers it shows: time scales, kernels and saliency."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from torch import nn

from wavessm.inspection.drawing import Drawing, canvas
from wavessm.inspection.model import InspectedModel, Saliency
from wavessm.nn.layer import WaveSSM

MAX_LAYERS = 6
"""Layers drawn; a deeper model is shown by the first, the last and some between."""
MAX_LAGS = 200
"""Weights of a kernel in its table; of longer kernels every k-th."""
REACH = 0.9
"""Fraction of a kernel's energy that its reach holds."""


class TimeScales(NamedTuple):
    """Time scales of every channel of a layer, in samples except Δ. All (channels,)."""

    dt: np.ndarray  # the learned step Δ
    window: np.ndarray  # 1/Δ, about how far back the channel can look
    lag: np.ndarray  # energy-weighted mean lag of its kernel
    reach: np.ndarray  # samples that hold 90 % of its kernel's energy


def layers_of(model: nn.Module) -> list[WaveSSM]:
    """Every `WaveSSM` of a model, from input to output."""
    return [module for module in model.modules() if isinstance(module, WaveSSM)]


def time_scales(layer: WaveSSM, length: int, rate: float = 1.0) -> TimeScales:
    """Steps and kernels of the channels in samples, from the first `length` weights of the kernels.

    >>> scales = time_scales(WaveSSM(d_model=2, d_state=8, dt_min=0.02, dt_max=0.02), length=200)
    >>> scales.window.round().tolist()
    [50.0, 50.0]
    """
    dt = layer.log_dt.detach().double().exp().cpu().numpy() * rate
    energy = np.square(layer.kernel(length, rate).detach().cpu().numpy()).sum(0)  # both directions
    energy /= energy.sum(1, keepdims=True)
    reach = np.minimum(1 + (np.cumsum(energy, axis=1) < REACH).sum(1), length).astype(float)
    return TimeScales(dt, 1 / dt, energy @ np.arange(length), reach)


def draw_all(
    inspected: InspectedModel, shares: Saliency | None = None, signals: np.ndarray | None = None
) -> dict[str, Drawing]:
    """Every figure by name; with `shares` also the saliency, under its signals (cases, length, channels)."""
    drawings = {"scales": _draw_scales(inspected), "kernels": _draw_kernels(inspected)}
    return drawings if shares is None else drawings | {"saliency": _draw_saliency(inspected, shares, signals)}


def _draw_scales(inspected: InspectedModel) -> Drawing:
    """1/Δ of every channel of every layer, and the reach of its kernel."""
    layers, rows = layers_of(inspected.model), []
    with canvas() as plt:
        figure, axis = plt.subplots(figsize=(1.6 + 1.3 * len(layers), 3.6))
        for number, layer in enumerate(layers):
            scales = time_scales(layer, inspected.length)
            names = ("dt", *(f"{name}_{inspected.unit}" for name in scales._fields[1:]))
            columns = (scales.dt, *map(inspected.seconds, scales[1:]))
            for channel, values in enumerate(zip(*columns, strict=True)):
                rows.append({"layer": number, "channel": channel, **dict(zip(names, map(float, values), strict=True))})
            spot = number + np.linspace(-0.3, 0.3, layer.d_model)[np.argsort(np.argsort(scales.window))]
            labels = (None, None) if number else ("1/Δ", "90 % of the kernel's energy")
            axis.scatter(spot, inspected.seconds(scales.window), s=14, color="#1f6fb4", label=labels[0])
            style = {"s": 12, "marker": "x", "linewidth": 1, "color": "#e07b00", "label": labels[1]}
            axis.scatter(spot, inspected.seconds(scales.reach), **style)
        axis.axhline(inspected.seconds(inspected.length), color="0.7", linestyle="--", linewidth=0.9)
        axis.set(yscale="log", xlabel="layer (channels by 1/Δ)", ylabel=f"back in time ({inspected.unit})")
        axis.set_xticks(range(len(layers)))
        axis.legend(loc="upper center", bbox_to_anchor=(0.5, 1.16), ncols=2)
    low, middle, high = np.quantile([row[f"reach_{inspected.unit}"] for row in rows], [0.1, 0.5, 0.9])
    caption = (
        f"Learned time scales of {len(rows)} channels in {len(layers)} layers: half of the kernels have 90 % of their "
        f"energy within {middle:.3g} {inspected.unit} (a tenth within {low:.3g}, nine tenths within {high:.3g}); the "
        f"dashed line is a signal's length, {inspected.seconds(inspected.length):.4g} {inspected.unit}."
    )
    return Drawing(figure, rows, caption)


def _draw_kernels(inspected: InspectedModel) -> Drawing:
    """Kernels of every channel as a map, sorted by reach."""
    layers, rows, length = layers_of(inspected.model), [], inspected.length
    chosen = sorted({round(at) for at in np.linspace(0, len(layers) - 1, min(len(layers), MAX_LAYERS))})
    step = -(-length // MAX_LAGS)
    with canvas() as plt:
        figure, axes = plt.subplots(1, len(chosen), figsize=(1 + 2.6 * len(chosen), 3.1), squeeze=False)
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

"""A trained model as figures, each with the numbers it shows: kernels, modes, time scales, past and saliency."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from wavessm.inspection.drawing import STYLE, Drawing, canvas
from wavessm.inspection.layers import kernels, layers_of, mode_times, time_scales
from wavessm.inspection.load import InspectedModel
from wavessm.inspection.past import jacobian, stretches
from wavessm.inspection.saliency import Saliency
from wavessm.training.record import provenance, pyplot, write_csv

DPI = 120
MOST_LAYERS = 6
"""Layers drawn; a deeper model is shown by the first, the last and some between."""


def draw_all(
    subject: InspectedModel, shares: Saliency | None = None, signals: np.ndarray | None = None
) -> dict[str, Drawing]:
    """Every figure by name; saliency where shares are given, over the signals (cases, length, d) if these are too."""
    drawings: dict[str, Callable[[InspectedModel], Drawing]] = {
        "scales": draw_scales, "modes": draw_modes, "kernels": draw_kernels, "past": draw_past,
    }  # fmt: skip
    drawn = {name: draw(subject) for name, draw in drawings.items()}
    if shares is not None:
        drawn["saliency"] = draw_saliency(subject, shares, signals)
    return drawn


def write_figures(
    subject: InspectedModel, folder: str | Path, shares: Saliency | None = None, signals: np.ndarray | None = None
) -> dict[str, str]:
    """NAME.png and NAME.csv of every figure, and README.md with one line about each. → the lines by name"""
    folder, plt = Path(folder), pyplot()
    folder.mkdir(parents=True, exist_ok=True)
    captions = {}
    for name, drawing in draw_all(subject, shares, signals).items():
        with plt.rc_context(STYLE):
            drawing.figure.savefig(folder / f"{name}.png", dpi=DPI, metadata={"Software": None})
        plt.close(drawing.figure)
        write_csv(folder / f"{name}.csv", drawing.rows)
        captions[name] = drawing.caption
    parts = [f"## {name}\n\n{caption}\n\n![{name}]({name}.png)\n" for name, caption in captions.items()]
    made = f"Numbers: the CSV of the same name. Made by {provenance('wavessm inspect')}.\n"
    (folder / "README.md").write_text("\n".join([f"# {subject.name}\n", *parts, made]), encoding="utf-8")
    return captions


def shown(count: int) -> list[int]:
    """Numbers of the layers to draw.

    >>> shown(3), shown(12)
    ([0, 1, 2], [0, 2, 4, 7, 9, 11])
    """
    return sorted({round(at) for at in np.linspace(0, count - 1, min(count, MOST_LAYERS))})


def draw_scales(subject: InspectedModel) -> Drawing:
    """What every channel of every layer can hear back, and what its kernel reaches back for."""
    layers, rows = layers_of(subject.model), []
    with canvas() as plt:
        figure, axis = plt.subplots(figsize=(1.6 + 1.3 * len(layers), 3.6))
        for number, layer in enumerate(layers):
            scales = time_scales(layer, subject.length)
            for channel in range(layer.d_model):
                row: dict[str, float] = {"layer": number, "channel": channel, "dt": float(scales.dt[channel])}
                for name, values in scales._asdict().items():
                    if name != "dt":
                        row[f"{name}_samples"] = float(values[channel])
                        if subject.hz is not None:
                            row[f"{name}_seconds"] = float(values[channel] / subject.hz)
                rows.append(row)
            spot = number + np.linspace(-0.3, 0.3, layer.d_model)[np.argsort(np.argsort(scales.window))]
            axis.scatter(spot, subject.seconds(scales.window), s=14, color="#1f6fb4", label=None if number else "1/Δ")
            axis.scatter(
                spot, subject.seconds(scales.reach), s=12, marker="x", linewidth=1, color="#e07b00",
                label=None if number else "90 % of the kernel's energy",
            )  # fmt: skip
        axis.axhline(subject.seconds(subject.length), color="0.7", linestyle="--", linewidth=0.9)
        axis.set(yscale="log", xlabel="layer (channels by 1/Δ)", ylabel=f"back in time ({subject.unit})")
        axis.set_xticks(range(len(layers)))
        axis.legend(loc="upper center", bbox_to_anchor=(0.5, 1.16), ncols=2)
    reach = [row["reach_samples"] for row in rows]
    low, middle, high = subject.seconds(np.quantile(reach, [0.1, 0.5, 0.9]))
    caption = (
        f"Learned time scales of {len(rows)} channels in {len(layers)} layers: half of the kernels have 90 % of their "
        f"energy within {middle:.3g} {subject.unit} (a tenth within {low:.3g}, nine tenths within {high:.3g}); the "
        f"dashed line is a signal's length, {subject.seconds(subject.length):.4g} {subject.unit}."
    )
    return Drawing(figure, rows, caption)


def draw_modes(subject: InspectedModel) -> Drawing:
    """Decay and period of every mode of every channel, layer by layer."""
    layers, rows = layers_of(subject.model), []
    chosen = shown(len(layers))
    with canvas() as plt:
        figure, axes = plt.subplots(1, len(chosen), figsize=(1 + 2.5 * len(chosen), 3.2), sharey=True, squeeze=False)
        for axis, number in zip(axes[0], chosen, strict=True):
            decay, period = mode_times(layers[number])
            dt = np.repeat(layers[number].log_dt.detach().exp().numpy()[:, None], decay.shape[1], axis=1)
            turning = np.isfinite(period)
            axis.scatter(
                subject.seconds(period[turning]), subject.seconds(decay[turning]), s=3, c=np.log10(dt[turning]),
                cmap="viridis", linewidth=0,
            )  # fmt: skip
            axis.axvline(subject.seconds(2), color="0.8", linewidth=0.8, zorder=0)
            axis.set(xscale="log", yscale="log", xlabel=f"period ({subject.unit})", title=f"layer {number}")
            rows += [
                {"layer": number, "channel": channel, "mode": mode, "decay_samples": float(decay[channel, mode]),
                 "period_samples": float(period[channel, mode])}
                for channel in range(decay.shape[0]) for mode in range(decay.shape[1])
            ]  # fmt: skip
        axes[0, 0].set_ylabel(f"falls to 1/e in ({subject.unit})")
    slow = subject.seconds(max(row["decay_samples"] for row in rows))
    caption = (
        f"Modes as they run, one point for each mode of each channel, coloured by the channel's Δ (bright: fast); the "
        f"line is two samples a turn. The slowest mode falls to 1/e in {slow:.3g} {subject.unit}."
    )
    return Drawing(figure, rows, caption)


def draw_kernels(subject: InspectedModel) -> Drawing:
    """Kernels of every channel as a map, sorted by reach."""
    layers, rows = layers_of(subject.model), []
    chosen = shown(len(layers))
    with canvas() as plt:
        figure, axes = plt.subplots(1, len(chosen), figsize=(1 + 2.6 * len(chosen), 3.2), squeeze=False)
        for axis, number in zip(axes[0], chosen, strict=True):
            K = kernels(layers[number], subject.length)
            order = np.argsort(time_scales(layers[number], subject.length).reach)
            picture = K[0][order] / np.abs(K[0][order]).max(axis=1, keepdims=True)
            end = subject.seconds(subject.length)
            axis.imshow(picture, aspect="auto", cmap="RdBu_r", vmin=-1, vmax=1, extent=(0, end, len(order), 0))
            axis.set(xlabel=f"lag ({subject.unit})", title=f"layer {number}")
            for direction, channels in enumerate(K):
                for channel, values in enumerate(channels):
                    rows.append({"layer": number, "direction": direction, "channel": channel} | _thinned(values))
        axes[0, 0].set_ylabel("channel, by reach")
        figure.colorbar(axes[0, 0].images[0], ax=axes, shrink=0.8, label="weight / largest of the channel")
    caption = (
        f"Kernels of {'the forward direction of ' if len(K) == 2 else ''}layers {', '.join(map(str, chosen))}: the "
        "weight of each sample of the past in a channel's output, channels with the shortest reach on top."
    )
    return Drawing(figure, rows, caption)


def _thinned(values: np.ndarray, most: int = 200) -> dict[str, float]:
    """Columns lag0, lag1, …; every k-th only where there are more than `most`."""
    step = -(-len(values) // most)
    return {f"lag{at}": float(values[at]) for at in range(0, len(values), step)}


def draw_past(subject: InspectedModel) -> Drawing:
    """∂h_T/∂x_t of one channel a layer, the one with the median Δ, and where in the past each coordinate listens."""
    layers, rows = layers_of(subject.model), []
    chosen = shown(len(layers))
    with canvas() as plt:
        figure, axes = plt.subplots(2, len(chosen), figsize=(1 + 2.6 * len(chosen), 5.4), sharex=True, squeeze=False)
        for (top, bottom), number in zip(axes.T, chosen, strict=True):
            layer = layers[number]
            channel = int(np.argsort(layer.log_dt.detach().numpy())[layer.d_model // 2])
            J = jacobian(layer, subject.length, channel)
            lag, spread = stretches(J)
            order = np.argsort(-lag)
            share = np.abs(J[order]) / np.maximum(np.abs(J[order]).max(axis=1, keepdims=True), 1e-300)
            begin = -subject.seconds(subject.length)
            top.imshow(share, aspect="auto", cmap="magma", vmin=0, vmax=1, extent=(begin, 0, len(J), 0))
            top.set_title(f"layer {number}, channel {channel}")
            bottom.errorbar(
                -subject.seconds(lag[order]), np.arange(len(J)) + 0.5, xerr=subject.seconds(spread[order]), fmt=".",
                ms=4, linewidth=0.7, color="#1f6fb4",
            )  # fmt: skip
            bottom.set(xlabel=f"time before now ({subject.unit})", ylim=(len(J), 0), xlim=(begin, 0))
            for k in range(len(J)):
                row: dict[str, float] = {"layer": number, "channel": channel, "coordinate": k}
                row |= {"lag_samples": float(lag[k]), "spread_samples": float(spread[k])}
                if subject.hz is not None:
                    row |= {"lag_seconds": float(lag[k] / subject.hz), "spread_seconds": float(spread[k] / subject.hz)}
                rows.append(row)
        axes[0, 0].set_ylabel("coordinate, oldest first")
        axes[1, 0].set_ylabel("middle ± spread")
    middle = subject.seconds(float(np.median([row["spread_samples"] for row in rows])))
    caption = (
        f"Which stretch of the past each coordinate of the state holds: |∂h_T/∂x_t| of the channel with the median Δ, "
        f"row by row in units of its largest entry, and its energy-weighted middle and spread (median spread "
        f"{middle:.3g} {subject.unit}). Coordinates are those of the frame the layers began with, `{layers[0].family}`."
    )
    return Drawing(figure, rows, caption)


def draw_saliency(subject: InspectedModel, shares: Saliency, signals: np.ndarray | None = None) -> Drawing:
    """The shares of every sample, summed over channels, under the signal they belong to."""
    count, rows = len(shares.values), []
    values = shares.values.numpy()
    with canvas() as plt:
        figure, axes = plt.subplots(count, 1, figsize=(8, 0.8 + 1.7 * count), squeeze=False, sharex=True)
        for case, axis in enumerate(axes[:, 0]):
            length = int(shares.lengths[case])
            t, total = subject.seconds(np.arange(length)), values[case, :length].sum(1)
            scale = max(float(np.abs(total).max()), 1e-12)
            if signals is not None:
                axis.plot(t, signals[case, :length], color="0.35", linewidth=0.9)
            low, high = axis.get_ylim() if signals is not None else (-1, 1)
            axis.imshow(
                total[None], aspect="auto", cmap="RdBu_r", vmin=-scale, vmax=scale, alpha=0.75, zorder=0,
                extent=(0, float(subject.seconds(length)), low, high),
            )  # fmt: skip
            target = int(shares.target[case])
            name = subject.classes[target] if subject.classes else f"output {target}"
            axis.set(title=f"case {case}: {name}, score {float(shares.score[case]):.2f}", yticks=[])
            rows += [
                {"case": case, "output": name, "sample": at, "time": float(t[at]), "share": float(total[at])}
                for at in range(length)
            ]
        axes[-1, 0].set_xlabel(f"time ({subject.unit})")
    caption = (
        "What each sample adds to the score of the named class (red speaks for it, blue against), summed over channels."
        f" Shares and score differ by {float(shares.gap.max()):.2g} at most from adding up."
    )
    return Drawing(figure, rows, caption)

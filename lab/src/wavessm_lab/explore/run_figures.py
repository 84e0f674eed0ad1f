"""Pictures of a run."""

from __future__ import annotations

import numpy as np

from wavessm_lab.explore.figures import COLOURS, GREY, HEAT, Figure, axis, bar, empty, figure, packed
from wavessm_lab.explore.runs import Opened, Predictions, damage

BLUE, ORANGE = COLOURS["left"], COLOURS["right"]
INSIDE = {"x": 0.01, "y": 0.99, "bgcolor": "rgba(255,255,255,.7)"}


def loss(opened: Opened) -> Figure:
    """Training loss over steps."""
    return _curve(opened, "train_loss", "training loss", BLUE)


def score(opened: Opened) -> Figure:
    """The validation score that selects, over steps, with the best one marked."""
    drawn = _curve(opened, f"val_{opened.score}", f"validation {opened.score.replace('_', ' ')}", ORANGE)
    best = opened.result.get("best_step")
    if best is not None and drawn["data"]:
        line = {"type": "line", "x0": best, "x1": best, "y0": 0, "y1": 1, "yref": "paper",
                "line": {"color": GREY, "width": 1, "dash": "dot"}}  # fmt: skip
        note = {"x": best, "y": 1, "yref": "paper", "text": "best", "showarrow": False, "yanchor": "bottom",
                "font": {"color": GREY}}  # fmt: skip
        drawn["layout"] |= {"shapes": [line], "annotations": [note], "margin": {**drawn["layout"]["margin"], "t": 22}}
    return drawn


def _curve(opened: Opened, name: str, title: str, colour: str) -> Figure:
    rows = [row for row in opened.metrics if name in row and "step" in row]
    if not rows:
        return empty("no validation yet")
    line = {"x": packed([row["step"] for row in rows]), "y": packed([row[name] for row in rows]),
            "mode": "lines+markers", "marker": {"size": 5}, "line": {"color": colour, "width": 2},
            "hovertemplate": "step %{x}<br>%{y:.4g}<extra></extra>"}  # fmt: skip
    return figure([line], axis("step"), axis(title))


def scales(opened: Opened) -> Figure:
    """Per layer: the window 1/Δ of each channel, and how long its modes remember; the band is where Δ started."""
    if not opened.scales:
        return empty("no state-space layers in this run")
    rate = opened.run.info.sampling_rate
    unit, factor = ("samples", 1.0) if rate is None else ("seconds", 1 / rate)
    steps, modes = "1/Δ, a dot a channel", "1/(Δ·decay) of the modes"
    traces: list[Figure] = []
    for layer in opened.scales:
        some = layer.memory[:: len(layer.memory) // 2000 + 1]
        dots = {"boxpoints": "all", "jitter": 0.6, "pointpos": 0, "line": {"width": 0}, "fillcolor": "rgba(0,0,0,0)"}
        for name, values, colour, style in ((steps, 1 / layer.dt, BLUE, dots), (modes, some, ORANGE, {})):
            traces.append({"type": "box", "x": [layer.layer] * len(values), "y": packed(values * factor), "name": name,
                           "offsetgroup": name, "hoverinfo": "y",
                           "marker": {"color": colour, "size": 4, "opacity": 0.6}, "boxpoints": False,
                           **style})  # fmt: skip
    config = opened.run.model
    band = {"type": "rect", "xref": "paper", "x0": 0, "x1": 1, "y0": factor / config.dt_max,
            "y1": factor / config.dt_min, "fillcolor": "rgba(31,111,180,.07)", "line": {"width": 0},
            "layer": "below"}  # fmt: skip
    every = np.concatenate([part for layer in opened.scales for part in (1 / layer.dt, layer.memory)])
    ends = factor * np.array([min(every.min(), 1 / config.dt_max), max(every.max(), 1 / config.dt_min)])
    span = [float(np.log10(ends[0])) - 0.2, float(np.log10(ends[1])) + 0.2]
    y = axis(f"time scale ({unit})", type="log", exponentformat="power", dtick=1, range=span)
    return figure(traces, axis("", type="category"), y, shapes=[band], boxmode="group")


def predictions(found: Predictions) -> Figure:
    """A forecast after its context, numbers against the truth, or chances case by case."""
    if found.kind == "forecast":
        return _forecast(found)
    if found.kind == "regression":
        return _regression(found)
    heat = {"type": "heatmap", "z": packed(found.predicted), "x": list(found.names), "zmin": 0, "zmax": 1,
            "colorscale": HEAT, "colorbar": bar("probability"),
            "hovertemplate": "case %{y}<br>%{x}: %{z:.2f}<extra></extra>"}  # fmt: skip
    case, label = np.nonzero(found.true)
    true = {"x": [found.names[k] for k in label], "y": case.tolist(), "mode": "markers", "name": "true",
            "marker": {"symbol": "circle-open", "size": 9, "color": ORANGE, "line": {"width": 2}},
            "hoverinfo": "skip"}  # fmt: skip
    y = axis("case", autorange="reversed", showgrid=False, dtick=max(1, len(found.predicted) // 12))
    return figure([heat, true], axis("class", type="category", showgrid=False), y)


def _forecast(found: Predictions) -> Figure:
    steps = np.arange(1, len(found.predicted) + 1)
    traces = []
    for k, name in enumerate(found.names[:3]):
        line = {"mode": "lines", "hoverinfo": "skip", "showlegend": False}
        if found.context is not None:
            past = found.context[-4 * len(steps) :, k]
            traces.append({"x": packed(np.arange(1 - len(past), 1)), "y": packed(past), **line,
                           "line": {"color": "#b6c0ca", "width": 1.3}})  # fmt: skip
        traces.append({"x": packed(steps), "y": packed(found.true[:, k]), **line,
                       "line": {"color": GREY, "width": 1.6}})  # fmt: skip
        traces.append({"x": packed(steps), "y": packed(found.predicted[:, k]), **line, "name": name,
                       "showlegend": True,
                       "line": {"color": (BLUE, ORANGE, "#2a7d4f")[k], "width": 2}})  # fmt: skip
    return figure(traces, axis("steps from now"), axis("value"), showlegend=True, legend=INSIDE)


def _regression(found: Predictions) -> Figure:
    traces = []
    for k, name in enumerate(found.names[:6]):
        traces.append({"x": packed(found.true[:, k]), "y": packed(found.predicted[:, k]), "mode": "markers",
                       "name": name, "marker": {"size": 7, "opacity": 0.75}})  # fmt: skip
    low, high = float(found.true.min()), float(found.true.max())
    equal = {"type": "line", "x0": low, "y0": low, "x1": high, "y1": high, "line": {"color": GREY, "dash": "dot"}}
    return figure(traces, axis("true"), axis("predicted"), shapes=[equal], showlegend=len(found.names) > 1,
                  legend=INSIDE)  # fmt: skip


def numbers(opened: Opened) -> list[tuple[str, str]]:
    """What the run was and what came out."""
    run, result = opened.run, opened.result
    scores = []
    with damage(run.folder / "result.json"):
        for name, value in result.items():
            if name.startswith("test_") and isinstance(value, float):
                low, high = result.get("intervals", {}).get(name.removeprefix("test_"), (None, None))
                about = "" if low is None else f" [{low:.3g}, {high:.3g}]"
                scores.append((name.replace("_", " "), f"{value:.4g}{about}"))
        parameters = f"{result['parameters']:,}" if "parameters" in result else "…"
    return [
        ("task", run.task),
        ("model", f"{run.model.family}, {run.model.n_layers} × {run.model.d_model}, N = {run.model.d_state}"),
        ("parameters", parameters),
        *scores[:4],
    ]

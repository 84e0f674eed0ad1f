"""Pictures of a frame, its operator and a signal in its memory, as plain dictionaries in Plotly's format.

Arrays travel as packed float32, so that a picture is made and sent in a few milliseconds.
"""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import numpy.typing as npt

from wavessm.structure import MAX_CONDITION
from wavessm_lab.explore.stream import POINTS, Stream
from wavessm_lab.explore.study import Study

Figure = dict[str, Any]

COLOURS = {"left": "#1f6fb4", "right": "#c2410c"}
"""Of the two sides of the page."""
INK, GREY, LINE = "#1f2933", "#8593a1", "#e4e9ee"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
HEAT = [[0, "#ffffff"], [0.15, "#dbe9f5"], [0.4, "#8fbcdf"], [0.7, "#2f7ab8"], [1, "#0b2f57"]]
HOVER = "coordinate %{customdata}<br>place %{x:.2f}<br>%{text} cycles<extra></extra>"
MASKED = "#111827"
SIGNED = [[0, "#0b4f8a"], [0.25, "#7db3dc"], [0.5, "#ffffff"], [0.75, "#f0a27c"], [1, "#a8320a"]]


def packed(values: npt.ArrayLike) -> dict[str, str]:
    """An array as Plotly reads it fastest: float32, base64."""
    array = np.ascontiguousarray(values, dtype="<f4")
    shape = {} if array.ndim == 1 else {"shape": ", ".join(str(size) for size in array.shape)}
    return {"dtype": "f4", "bdata": base64.b64encode(array.tobytes()).decode(), **shape}


def axis(title: str, **more: Any) -> Figure:
    """An axis with its title and a quiet grid."""
    return {"title": {"text": title, "standoff": 6, "font": {"size": 12}}, "gridcolor": LINE, "zerolinecolor": LINE,
            "linecolor": LINE, "ticks": "outside", "tickcolor": LINE, **more}  # fmt: skip


def octaves(low: float, high: float) -> Figure:
    """An axis of frequency in octaves: what is drawn on it is log₂ of cycles per window, evenly spaced and so fast."""
    powers = range(int(np.ceil(np.log2(low))), int(np.floor(np.log2(high))) + 1)
    ticks = list(powers)[:: 1 if len(powers) <= 9 else 2]
    names = [{-2: "¼", -1: "½"}.get(power, f"{2.0**power:g}") for power in ticks]
    return axis("frequency (cycles per window)", range=[float(np.log2(low)), float(np.log2(high))], tickvals=ticks,
                ticktext=names)  # fmt: skip


def stacked(x: npt.ArrayLike, rows: npt.ArrayLike, size: float) -> Figure:
    """Curves (rows, points) below each other as one line with gaps, each as high as `size` at its largest."""
    values = np.asarray(rows, float)
    peaks = np.abs(values).max(axis=1, keepdims=True)
    lifted = size * values / np.where(peaks > 0, peaks, 1.0) - np.arange(len(values))[:, None]
    gap = np.full((len(values), 1), np.nan)
    times = np.concatenate([np.broadcast_to(x, values.shape), gap], axis=1)
    return {"x": packed(times.ravel()), "y": packed(np.concatenate([lifted, gap], axis=1).ravel()), "mode": "lines",
            "hoverinfo": "skip"}  # fmt: skip


def figure(data: list[Figure], x: Figure, y: Figure, **layout: Any) -> Figure:
    """Traces on two axes in the style of the page; room for a colour bar is left where there is one.

    Margins are fixed: were Plotly to find them, it would draw everything twice.
    """
    bars = any("colorbar" in trace or "colorbar" in trace.get("marker", {}) for trace in data)
    usual = {
        "font": {"family": FONT, "size": 12, "color": INK},
        "margin": {"l": 58, "r": 88 if bars else 14, "t": 10, "b": 42, "autoexpand": False},
        "plot_bgcolor": "#fff",
        "paper_bgcolor": "#fff",
        "hoverlabel": {"font": {"family": FONT, "size": 12}},
        "showlegend": False,
        "uirevision": "same",
        "xaxis": x,
        "yaxis": y,
    }
    return {"data": data, "layout": {**usual, **layout}}


def empty(text: str = "") -> Figure:
    """Return a figure without data and the reason as text."""
    note = {"text": text, "showarrow": False, "font": {"color": GREY}, "xref": "paper", "yref": "paper"}
    return figure([], {"visible": False}, {"visible": False}, annotations=[{**note, "x": 0.5, "y": 0.5}])


def bar(title: str, **more: Any) -> Figure:
    """A colour bar."""
    text = {"text": title, "side": "right", "font": {"size": 12}}
    return {"title": text, "thickness": 10, "outlinewidth": 0, "len": 0.9, **more}


# -- the frame ------------------------------------------------------------------------------------------------


def atoms(study: Study, colour: str) -> Figure:
    """A few atoms, slow ones on top, before and after tightening."""
    s = np.linspace(0, 1, 400)
    traces = [
        {**stacked(s, study.frame.evaluate(s)[study.shown], 0.42), "line": {"color": "#b6c0ca", "width": 1.2}},
        {**stacked(s, study.tight.evaluate(s)[study.shown], 0.42), "line": {"color": colour, "width": 1.8}},
    ]
    names = [f"{study.pitch[k]:.1f}" for k in study.shown]
    ticks = {"tickvals": [-row for row in range(len(names))], "ticktext": names, "range": [0.6 - len(names), 0.95]}
    return figure(traces, axis("place in the window (0 oldest, 1 now)", range=[0, 1]),
                  axis("frequency (cycles per window)", **ticks, zeroline=False))  # fmt: skip


def coverage(study: Study, colour: str) -> Figure:
    """Which times and frequencies the atoms hold, with a dot for each of them."""
    s, f, held = study.coverage
    heat = {"type": "heatmap", "x": packed(s), "y": packed(np.log2(f)), "z": packed(held), "zmin": 0, "zmax": 1.5,
            "colorscale": HEAT, "zsmooth": "fast", "colorbar": bar("numbers per detail", tickvals=[0, 0.5, 1, 1.5]),
            "hoverinfo": "skip"}  # fmt: skip
    dots = {"x": packed(study.tight.centres), "y": packed(np.log2(study.pitch)), "mode": "markers",
            "marker": {"size": 6, "color": "#fff", "line": {"color": colour, "width": 1.2}},
            "customdata": list(range(study.frame.n)), "text": [f"{f:.1f}" for f in study.pitch],
            "hovertemplate": HOVER}  # fmt: skip
    return figure([heat, dots], axis("place in the window (0 oldest, 1 now)", range=[0, 1]), octaves(f[0], f[-1]))


# -- the operator ---------------------------------------------------------------------------------------------


def matrix(study: Study, colour: str) -> Figure:
    """A, coloured by sign and the root of the size."""
    A = study.operator.A
    peak = float(np.abs(A).max())
    heat = {"type": "heatmap", "z": packed(np.sign(A) * np.sqrt(np.abs(A) / peak)), "zmin": -1, "zmax": 1,
            "colorscale": SIGNED, "hovertemplate": "row %{y}, column %{x}<extra></extra>",
            "colorbar": bar(f"entry / {peak:.3g}", tickvals=[-1, -0.5, 0, 0.5, 1],
                            ticktext=["−1", "−¼", "0", "¼", "1"])}  # fmt: skip
    y = axis("coordinate", autorange="reversed", scaleanchor="x", constrain="domain", showgrid=False)
    return figure([heat], axis("coordinate", constrain="domain", showgrid=False), y)


def eigenvalues(study: Study, colour: str) -> Figure:
    """The modes of −A in the complex plane."""
    lam = study.modes.lam
    dots = {"x": packed(lam.real), "y": packed(lam.imag / (2 * np.pi)), "mode": "markers",
            "marker": {"size": 7, "color": colour, "opacity": 0.75, "line": {"color": "#fff", "width": 0.8}},
            "hovertemplate": "decay %{x:.3g}<br>%{y:.3g} cycles<extra></extra>"}  # fmt: skip
    edge = {"type": "line", "x0": 0, "x1": 0, "y0": 0, "y1": 1, "yref": "paper", "line": {"color": GREY, "width": 1}}
    condition = study.modes.condition_number
    text = f"κ of the eigenvectors is {condition:.0e}:<br>these dots are mostly rounding, use the DPLR form"
    warning = {"text": text, "showarrow": False, "xref": "paper", "yref": "paper", "x": 0.02, "y": 0.98,
               "xanchor": "left", "yanchor": "top", "align": "left", "font": {"color": "#8a2d06"},
               "bgcolor": "rgba(255,255,255,.8)", "visible": condition > MAX_CONDITION}  # fmt: skip
    return figure([dots], axis("Re λ (decay per unit of time)"), axis("Im λ / 2π (cycles per unit of time)"),
                  shapes=[edge], annotations=[warning])  # fmt: skip


def kernel(study: Study, colour: str) -> Figure:
    """The response of a few coordinates to one impulse."""
    lags, responses = study.kernel
    traces = [{**stacked(lags, responses[study.shown], 0.45), "line": {"color": colour, "width": 1.6}}]
    names = [str(k) for k in study.shown]
    ticks = {"tickvals": [-row for row in range(len(names))], "ticktext": names, "range": [0.5 - len(names), 0.6]}
    unit = "Δ·lag" if study.choice.measure == "scaled" else "windows"
    return figure(traces, axis(f"time since the impulse ({unit})"), axis("coordinate", **ticks, zeroline=False))


def jacobian(study: Study, colour: str) -> Figure:
    """Weight of the past in each coordinate, row by row in units of its largest entry."""
    J = study.jacobian[study.order]
    share = np.abs(J) / np.maximum(np.abs(J).max(axis=1, keepdims=True), 1e-300)
    heat = {"type": "heatmap", "z": packed(share), "x": packed((np.arange(J.shape[1]) + 0.5) / J.shape[1]),
            "zmin": 0, "zmax": 1, "colorscale": HEAT, "colorbar": bar("|∂h/∂x| / largest of the row"),
            "hovertemplate": "place %{x:.2f}<extra></extra>"}  # fmt: skip
    y = axis("coordinate, in order of place", autorange="reversed", showgrid=False)
    return figure([heat], axis("place in the past (0 oldest, 1 now)", range=[0, 1], showgrid=False), y)


# -- a signal in its memory: made once for all moments, between which `assets/page.js` moves by itself -----------------


def unit_of(stream: Stream) -> tuple[float, str]:
    """What one value of the signal takes on the axis of time, and the axis's title."""
    seconds, block = stream.signal.seconds, stream.signal.block
    return (seconds, "time (seconds)") if seconds is not None else (float(block), "time (samples)")


def signal_and_memory(stream: Stream, masked: npt.NDArray[np.bool_], colour: str) -> Figure:
    """The signal, what the memory holds of it, and what is left of that without the masked coordinates."""
    step, title = unit_of(stream)
    values = stream.signal.values
    low, high = float(values.min()), float(values.max())
    room = 0.12 * (high - low) or 1.0
    line = {"mode": "lines", "hoverinfo": "skip"}
    traces: list[Figure] = [
        {"x": packed((np.arange(len(values)) + 0.5) * step), "y": packed(values), "name": "signal", **line,
         "line": {"color": "#b6c0ca", "width": 1.2}},
        {"x": [], "y": [], "name": "held by the memory", **line, "line": {"color": colour, "width": 2}},
        {"x": [], "y": [], "name": "without the masked", **line, "visible": bool(masked.any()),
         "line": {"color": MASKED, "width": 1.5, "dash": "dot"}},
        {"x": [], "y": [], "name": "share lost", "yaxis": "y2", **line, "visible": bool(masked.any()),
         "fill": "tozeroy", "fillcolor": "rgba(17,24,39,.13)", "line": {"width": 0}},
    ]  # fmt: skip
    return figure(traces, axis(title, range=[0, len(values) * step]), axis("signal", range=[low - room, high + room]),
                  yaxis2={"overlaying": "y", "range": [0, 1], "visible": False})  # fmt: skip


def lights(stream: Stream, masked: npt.NDArray[np.bool_]) -> Figure:
    """A dot for every coordinate at its place and frequency; page.js makes it grow with what it holds."""
    tight, pitch = stream.study.tight, stream.study.pitch
    dots = {"x": packed(tight.centres), "y": packed(np.log2(pitch)), "mode": "markers",
            "customdata": list(range(len(masked))), "text": [f"{f:.1f}" for f in pitch],
            "marker": {"size": [], "color": [], "colorscale": [[0, "#dbe3ea"], *HEAT[2:]], "cmin": 0,
                       "cmax": 1, "symbol": ["x-thin-open" if gone else "circle" for gone in masked.tolist()],
                       "line": {"color": [MASKED if gone else "#fff" for gone in masked.tolist()], "width": 1},
                       "colorbar": bar("|h| / largest")},
            "hovertemplate": HOVER}  # fmt: skip
    low, high = 0.8 * float(pitch.min()), 1.3 * float(pitch.max())
    return figure([dots], axis("place in the window (0 oldest, 1 now)", range=[-0.02, 1.02]), octaves(low, high))


def history(stream: Stream) -> Figure:
    """The size of every coordinate over time, in the order of their places."""
    step, title = unit_of(stream)
    size = np.sqrt(np.abs(stream.states[:, stream.study.order].T))
    heat = {"type": "heatmap", "x": packed(stream.counts * step), "z": packed(size / (size.max() or 1.0)),
            "zmin": 0, "zmax": 1, "colorscale": HEAT, "colorbar": bar("√(|h| / largest)"),
            "hovertemplate": "after %{x:.4g}<extra></extra>"}  # fmt: skip
    y = axis("coordinate, in order of place", autorange="reversed", showgrid=False)
    return figure([heat], axis(title, range=[0, len(stream.signal.values) * step], showgrid=False), y)


def moving(stream: Stream, masked: npt.NDArray[np.bool_], colour: str) -> dict[str, Any]:
    """All that page.js needs to show any moment."""
    step, _ = unit_of(stream)
    size = np.abs(stream.states)
    left = stream.without(masked) if masked.any() else None
    return {
        "figures": {
            "held": signal_and_memory(stream, masked, colour),
            "lights": lights(stream, masked),
            "history": history(stream),
        },
        "points": POINTS,
        "n": len(masked),
        "moments": [int(count) for count in stream.counts],
        "block": stream.signal.block,
        "end": (stream.counts * step).tolist(),
        "begin": (stream.begin * step).tolist(),
        "recalled": packed(stream.recalled)["bdata"],
        "without": None if left is None else packed(left)["bdata"],
        "lost": None if left is None else stream.lost(masked).round(4).tolist(),
        "size": packed(size / (size.max() or 1.0))["bdata"],
        "errors": stream.errors(stream.recalled).round(4).tolist(),
        "errors_without": None if left is None else stream.errors(left).round(4).tolist(),
        "ink": INK,
        "grey": GREY,
    }


# -- numbers -------------------------------------------------------------------------------------------------


def numbers(study: Study, view: str) -> list[tuple[str, str]]:
    """Return numbers for the cards of a view: (name, value) pairs."""
    frame, tight = study.frame, study.tight
    lower, upper = frame.bounds()
    if view == "frame":
        return [
            ("κ before tightening", f"{frame.condition_number():.3g}"),
            ("κ after", f"{np.linalg.cond(tight.gram()):.4f}"),
            ("frame bounds", f"{lower:.2g} to {upper:.2g}"),
            ("rank", f"{frame.rank()} of {frame.n}"),
            ("frequencies", f"{study.pitch.min():.1f} to {study.pitch.max():.1f} cycles"),
        ]
    if view == "memory":
        return [
            ("numbers that hold the past", str(frame.n)),
            ("κ before tightening", f"{frame.condition_number():.3g}"),
            ("median width of a coordinate", f"{np.median(tight.spreads):.3f} of the window (uniform 0.29)"),
        ]
    condition = study.modes.condition_number
    return [
        ("κ of the eigenvectors", f"{condition:.2g}"),
        ("form of a layer", "diagonal" if condition <= MAX_CONDITION else "DPLR"),
        ("identity residual", f"{study.operator.identity_residual():.0e}"),
        ("slowest decay", f"{-study.modes.lam.real.max():.2g}"),
        ("median spread", f"{study.spread:.3f} (uniform 0.29)"),
    ]

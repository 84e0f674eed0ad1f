"""Pictures of a signal in its memory.

The server makes them once for all moments, with the numbers of every moment beside them; `assets/page.js` moves from
moment to moment by itself, so that dragging through time needs no request.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from wavessm_lab.explore.figures import GREY, HEAT, HOVER, INK, Figure, axis, bar, figure, octaves, packed
from wavessm_lab.explore.stream import POINTS, Stream

MASKED = "#111827"


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

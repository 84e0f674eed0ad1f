"""The page: controls on the left, pictures on the right, one or two families beside each other."""

from __future__ import annotations

from typing import Any

from dash import dcc, html

from wavessm.frames import BASES, PAPER_FAMILIES, families
from wavessm_lab.explore.allowed import AllowedFiles
from wavessm_lab.explore.signals import BUILT_IN
from wavessm_lab.explore.state import FILE, VIEWS, State

SIDES = ("left", "right")
SOURCES = ("link", "left", "right", "runs")
"""Where messages come from, each with a line of its own."""
PANELS: dict[str, dict[str, tuple[str, str]]] = {
    "frame": {
        "atoms": (
            "Atoms",
            "A few of the N waveforms, slow ones on top. Grey: as they were placed. Colour: after tightening, when no "
            "two of them overlap in energy. Wavelets keep to their place; polynomials reach over the whole window.",
        ),
        "coverage": (
            "Coverage of time and frequency",
            "Where the frame can hold detail: about 1 where every detail has a number of its own, white where nothing "
            "can be remembered. A dot is a coordinate.",
        ),
    },
    "operator": {
        "matrix": (
            "State matrix A",
            "How coordinates feed each other as time moves on; red adds, blue takes away. Neighbours in time and scale "
            "couple.",
        ),
        "eigenvalues": (
            "Eigenvalues of −A",
            "Each dot is a mode: further left it fades faster, further up it turns faster. None lies to the right of "
            "the line, so nothing grows.",
        ),
        "kernel": (
            "Kernels",
            "What a few coordinates do after a single impulse, each in units of its peak: when it passes their place, "
            "they answer.",
        ),
        "jacobian": (
            "Jacobian ∂h/∂x",
            "Weight of the past in each coordinate. A narrow diagonal: every coordinate has its own part of it. A full "
            "square: everything is mixed into everything.",
        ),
    },
    "memory": {
        "held": (
            "The signal and what the memory holds of it",
            "Grey is the signal, the coloured line what N numbers give back of it: drag the time or press Play. Mask "
            "coordinates: the dotted line is what is left, the shade the share of each moment that is lost.",
        ),
        "lights": (
            "Coordinates that light up",
            "Every dot is a number of the state, at the place and frequency of its atom; it grows with what it holds.",
        ),
        "history": (
            "All coordinates over time",
            "Rows are coordinates in order of place; an event enters at the bottom (now) and wanders up as it ages.",
        ),
    },
}
RUN_PANELS = {
    "loss": ("Training loss", "Mean loss since the last validation."),
    "score": ("Validation", "The score that selects the model; the dotted line is the step that was kept."),
    "scales": (
        "Learned time scales",
        "A blue dot is the window 1/Δ of a channel, a box how long modes remember, 1/(Δ·decay). The band is where Δ "
        "started: what left it was learned.",
    ),
    "predicted": (
        "Predictions",
        "Cases of the test split. Of a forecast, grey is what was and came, colour what was predicted; of classes, "
        "dark is likely and circles are true.",
    ),
}
CONTROLS = ("view", "family", "other", "n", "measure", "signal", "channel", "window", "mask", "also", "run", "predict")
"""Controls whose value goes into the state as it is."""
LOWEST, HIGHEST = -2.0, 8.0
"""The range of frequencies as powers of two."""


def family_options(allowed: AllowedFiles, *chosen: str) -> list[dict[str, str]]:
    """Names to choose from: the paper's, the bases, PyWavelets', then files that may hold atoms."""
    names = [*PAPER_FAMILIES, *BASES, *(name for name in families() if name not in (*PAPER_FAMILIES, *BASES))]
    return [*_options(names), *_files(allowed.files(".npy", ".csv"), chosen)]


def signal_options(allowed: AllowedFiles, *chosen: str) -> list[dict[str, str]]:
    """The built-in signals, then files that may hold one."""
    return [*_options(BUILT_IN), *_files(allowed.files(".csv", ".wav", ".npy"), chosen)]


def _files(found: list[str], chosen: tuple[str, ...]) -> list[dict[str, str]]:
    """Files to choose from, those of a link included."""
    values = dict.fromkeys([*(FILE + path for path in found), *(name for name in chosen if name.startswith(FILE))])
    return [{"label": value.removeprefix(FILE)[-60:], "value": value} for value in values]


def _options(names: Any) -> list[dict[str, str]]:
    return [{"label": name, "value": name} for name in names]


def layout(allowed: AllowedFiles) -> html.Div:
    """The whole page with the default state; the link is read by a callback."""
    usual = State()
    return html.Div(
        [
            dcc.Location(id="url", refresh=False),
            dcc.Store(id="link", data=""),
            dcc.Store(id="no-link"),
            dcc.Store(id="asked"),
            dcc.Interval(id="tick", interval=120, disabled=True),
            html.Header(
                [
                    html.H1("wavessm explore"),
                    dcc.RadioItems(id="view", className="tabs", value=usual.view, inline=True,
                                   options=[{"label": label, "value": name} for name, label in VIEWS.items()]),
                    html.Div(
                        [dcc.Clipboard(id="copy-link", content="", className="button", children="Copy link",
                                       copied_children="Copied"),
                         html.Button("Python", id="lines-button", className="button", n_clicks=0)],
                        className="actions",
                    ),
                ]
            ),
            *(html.Div(id=f"message-{source}", className="message", role="status") for source in SOURCES),
            html.Div(
                [html.Div("These lines compute what you see.", className="hint"),
                 dcc.Clipboard(target_id="lines", className="copy", title="copy"), html.Pre(id="lines")],
                id="lines-box", className="lines hidden",
            ),
            html.Main([_controls(allowed, usual), _stage()], id="main", className="view-frame one scaled"),
        ],
        id="page",
    )  # fmt: skip


def _only(*views: str) -> str:
    """The class of what is seen in these views alone."""
    return " ".join(["only", *(f"in-{view}" for view in views)])


def _field(label: str, control: Any, *views: str, hint: str = "", extra: str = "") -> html.Div:
    below = [html.Div(hint, className="hint")] if hint else []
    name = getattr(control, "id", "")
    return html.Div([html.Label(label, htmlFor=name), control, *below], className=f"field {_only(*views)} {extra}")


def _slider(name: str, span: tuple[float, float], step: float, value: float, marks: Any, drag: bool = False) -> Any:
    return dcc.Slider(id=name, min=span[0], max=span[1], step=step, value=value, marks=marks, allow_direct_input=False,
                      updatemode="drag" if drag else "mouseup",
                      tooltip={"placement": "bottom", "always_visible": False})  # fmt: skip


def _controls(allowed: AllowedFiles, usual: State) -> html.Details:
    three = ("frame", "operator", "memory")
    octaves = {k: _cycles(k) for k in range(int(LOWEST), int(HIGHEST) + 1, 2)}
    runs = _options(allowed.runs())
    return html.Details(
        [
            html.Summary("Choose"),
            _field("Family", dcc.Dropdown(id="family", options=family_options(allowed), value=usual.family,
                                          clearable=False), *three),
            _field("Compare with", dcc.Dropdown(id="other", options=family_options(allowed), value=None,
                                                placeholder="nothing"), *three),
            _field("Coordinates N", _slider("n", (8, 256), 8, usual.n, {k: str(k) for k in (8, 64, 128, 192, 256)}),
                   *three),
            _field("Measure", dcc.RadioItems(id="measure", value=usual.measure, className="choice", options=[
                {"label": "scaled: the whole past", "value": "scaled"},
                {"label": "translated: a sliding window", "value": "translated"}]), *three),
            _field("Range of frequencies (cycles per window)", html.Div([
                dcc.Checklist(id="auto", options=[{"label": "chosen by the library", "value": "auto"}],
                              value=["auto"], className="choice"),
                dcc.RangeSlider(id="range", min=LOWEST, max=HIGHEST, step=0.25, value=[-1, 4], marks=octaves,
                                allow_direct_input=False, disabled=True)]), *three),
            _field("Run", dcc.Dropdown(id="run", options=runs, value=None,
                                       placeholder=f"{len(runs)} found" if runs else "none found"), "runs",
                   hint="" if runs else "start the command with a folder that holds runs"),
            _field("Predict", dcc.RadioItems(id="predict", value="", className="choice", options=[
                {"label": "nothing", "value": ""}, {"label": "cases of the test split", "value": "test"}]), "runs"),
            html.Hr(className=_only("memory")),
            _field("Signal", dcc.Dropdown(id="signal", options=signal_options(allowed), value=usual.signal,
                                          clearable=False), "memory"),
            _field("Channel", dcc.Dropdown(id="channel", options=[0], value=0, clearable=False), "memory"),
            _field("Window, share of the signal", _slider("window", (0.05, 1), 0.05, usual.window,
                                                          {0.05: "0.05", 0.5: "0.5", 1: "1"}), "memory",
                   extra="translated"),
            _field("Mask coordinates, in order of place (%)", dcc.RangeSlider(
                id="mask", min=0, max=100, step=1, value=list(usual.mask), allow_direct_input=False, updatemode="drag",
                marks={0: "old", 50: "50", 100: "new"}), "memory"),
            _field("and these", dcc.Input(id="also", value="", debounce=True, placeholder="3, 17-20"), "memory",
                   hint="or click a dot"),
        ],
        open=True, className="aside",
    )  # fmt: skip


def _cycles(power: float) -> str:
    return {-2: "¼", -1: "½"}.get(int(power), f"{2**power:g}")


def _stage() -> html.Section:
    time = html.Div(
        [html.Button("Play", id="play", className="button", n_clicks=0),
         _slider("time", (0, 1), 1 / 63, 1.0, {0: "start", 1: "end"}, drag=True)],
        className=f"time {_only('memory')}",
    )  # fmt: skip
    runs = html.Div(
        [html.Div(id="run-numbers", className="numbers"),
         html.Div([_panel(f"run-{name}", *text, "runs") for name, text in RUN_PANELS.items()], className="panels")],
        className=_only("runs"),
    )  # fmt: skip
    return html.Section(
        [
            time,
            html.Div([_side(side) for side in SIDES], className=f"sides {_only('frame', 'operator', 'memory')}"),
            runs,
        ]
    )


def _side(side: str) -> html.Div:
    panels = [
        _panel(f"{name}-{side}", *text, view) for view, members in PANELS.items() for name, text in members.items()
    ]
    return html.Div(
        [html.H2(id=f"title-{side}"), html.Div(id=f"numbers-{side}", className="numbers"),
         html.Div(id=f"moment-{side}", className=f"moment {_only('memory')}"), dcc.Store(id=f"moving-{side}"),
         html.Div(panels, className="panels")],
        id=f"side-{side}", className="side",
    )  # fmt: skip


def _panel(name: str, title: str, caption: str, *views: str) -> html.Div:
    graph = dcc.Graph(id=name, responsive=True, style={"height": "100%"},
                      config={"displaylogo": False, "displayModeBar": False, "doubleClick": "reset"})  # fmt: skip
    return html.Div(
        [html.H3(title), html.Div(graph, className="graph"), html.P(caption)],
        className=f"panel {name.split('-')[0]} {_only(*views)}",
    )

"""The callbacks of the page, and the application that serves it on this machine alone.

Every change of a control sends the values of all controls; they become a `State`, and each side answers with the
pictures of the view in front. A mistake is one line above the pictures.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from dash import Dash, Input, Output, html, no_update
from dash import State as DashState
from dash.exceptions import DependencyException
from flask import Response, abort, request
from werkzeug.exceptions import HTTPException

from wavessm.errors import WaveSSMError
from wavessm_lab.explore import figures, page, run_figures, runs
from wavessm_lab.explore.allowed import AllowedFiles
from wavessm_lab.explore.lines import lines_of
from wavessm_lab.explore.signals import signal_of
from wavessm_lab.explore.state import USUAL_SPAN, State, read_value
from wavessm_lab.explore.stream import mask_of, stream_of
from wavessm_lab.explore.study import choice_of, study

DRAW: dict[str, dict[str, Callable]] = {
    "frame": {"atoms": figures.atoms, "coverage": figures.coverage},
    "operator": {
        "matrix": figures.matrix,
        "eigenvalues": figures.eigenvalues,
        "kernel": figures.kernel,
        "jacobian": figures.jacobian,
    },
}
"""Pictures that the server makes for each view; those of the memory are moved by page.js."""
EXPECTED = (WaveSSMError, OSError, MemoryError, np.linalg.LinAlgError)
POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; frame-ancestors 'none'"
)
HOSTS = ("127.0.0.1", "localhost")
MOST_BYTES = 2**20
"""Of a request."""
NAMES = tuple(name for members in DRAW.values() for name in members)


def state_of(values: Mapping[str, Any]) -> State:
    """The state that the controls stand for; `auto` and `range` become f_min and f_max."""
    given = {name: values[name] for name in page.CONTROLS}
    given["other"], given["run"] = given["other"] or "", given["run"] or ""
    if not values["auto"]:
        powers = np.clip(read_value("range", values["range"], (0.0, 0.0)), page.LOWEST, page.HIGHEST)
        given["low"], given["high"] = (float(f"{2.0**power:.6g}") for power in powers)
    return State.from_values(given)


def values_of(state: State) -> dict[str, Any]:
    """The controls that stand for a state."""
    given = {name: getattr(state, name) for name in page.CONTROLS}
    given |= {"other": state.other or None, "run": state.run or None, "mask": list(state.mask), "time": state.time}
    span = [state.low or USUAL_SPAN[0], state.high or USUAL_SPAN[1]]
    given["auto"] = ["auto"] if state.low is None else []
    given["range"] = [float(np.clip(np.log2(f), page.LOWEST, page.HIGHEST)) for f in span]
    return given


def one_line(reason: BaseException) -> str:
    """What went wrong, in one line."""
    if isinstance(reason, OSError) and not isinstance(reason, WaveSSMError):
        return f"{reason.filename or 'file'}: {reason.strerror or reason}."
    return " ".join(str(reason).split()) or type(reason).__name__


# -- what the callbacks answer ------------------------------------------------------------------------------------


def draw_side(allowed: AllowedFiles, side: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Pictures, numbers and message of one side; what belongs to another view stays as it is."""
    answer: dict[str, Any] = dict.fromkeys((*NAMES, "moving", "numbers", "title", "message", "link"), no_update)
    try:
        state = state_of(values)
        if side == "left":
            answer["link"] = State.to_link(state)
        family = state.family if side == "left" else state.other
        if not family or state.view == "runs":
            return {**answer, "message": ""}
        found = study(choice_of(state, family, allowed))
        colour = figures.COLOURS[side]
        with found.lock:
            for name, draw in DRAW.get(state.view, {}).items():
                answer[name] = draw(found, colour)
            if state.view == "memory":
                stream = stream_of(found.choice, signal_of(allowed, state.signal, state.channel), state.window)
                answer["moving"] = figures.moving(stream, mask_of(state, found), colour)
            answer["numbers"] = cards(figures.numbers(found, state.view))
        return {**answer, "title": f"{found.label}, N = {found.frame.n}, {state.measure}", "message": ""}
    except EXPECTED as reason:
        nothing = figures.empty("nothing to show: see the message above")
        return {
            **answer,
            **dict.fromkeys((*NAMES, "moving"), nothing),
            "numbers": [],
            "title": "",
            "message": one_line(reason),
        }


def show_lines(allowed: AllowedFiles, link: str) -> str:
    """The lines behind a link, or a comment that says why there are none."""
    try:
        return lines_of(State.from_link(link)[0], allowed)
    except EXPECTED as reason:
        return f"# {one_line(reason)}"


def cards(numbers: list[tuple[str, str]]) -> list[html.Div]:
    """Numbers with their names."""
    return [html.Div([html.Span(name), html.B(value)], className="number") for name, value in numbers]


def draw_run(allowed: AllowedFiles, values: Mapping[str, Any]) -> dict[str, Any]:
    """Pictures of the chosen run."""
    names = ("loss", "score", "scales", "predicted")
    answer: dict[str, Any] = {**dict.fromkeys(names, figures.empty()), "numbers": [], "message": ""}
    try:
        state = state_of(values)
        if state.view != "runs":
            return {**dict.fromkeys((*names, "numbers"), no_update), "message": ""}
        if not state.run:
            return {**answer, **dict.fromkeys(names, figures.empty("choose a run"))}
        opened = runs.open_run(allowed, state.run)
        numbers = cards(run_figures.numbers(opened))
        answer |= {name: getattr(run_figures, name)(opened) for name in names[:3]}
        answer |= {"numbers": numbers, "predicted": figures.empty("nothing asked for")}
        if state.predict:
            answer["predicted"] = run_figures.predictions(runs.predict(allowed, opened))
        return answer
    except EXPECTED as reason:  # what was drawn before it stays
        return {**answer, "message": one_line(reason)}


def restore(allowed: AllowedFiles, search: str | None) -> dict[str, Any]:
    """All controls, the names to choose from and a message, from the link of the page."""
    state, complaint = State.from_link(search)
    runs_found = allowed.runs()
    listed = list(dict.fromkeys([*runs_found, *([state.run] if state.run else [])]))
    return {
        **values_of(state),
        "families": page.family_options(allowed, state.family, state.other),
        "signals": page.signal_options(allowed, state.signal),
        "channels": channels(allowed, state.signal, state.channel),
        "runs": [{"label": path, "value": path} for path in listed],
        "message": complaint,
    }


def channels(allowed: AllowedFiles, signal: str, chosen: int) -> list[dict[str, Any]]:
    """The channels of a signal to choose from."""
    try:
        names = signal_of(allowed, signal).channels or ("0",)
    except EXPECTED:
        names = ("0",)
    listed = [{"label": name, "value": place} for place, name in enumerate(names[:200])]
    return listed if chosen < len(listed) else [*listed, {"label": str(chosen), "value": chosen}]


# -- the application ----------------------------------------------------------------------------------------------


def make_app(allowed: AllowedFiles) -> Dash:
    """Return the application. It serves everything it needs itself."""
    app = Dash(
        "wavessm.explore",
        assets_folder=str(Path(__file__).parent / "assets"),
        serve_locally=True,
        title="wavessm explore",
        update_title="",
        add_log_handler=False,
    )
    app.layout = lambda: page.layout(allowed)
    _guard(app)
    _connect(app, allowed)
    _connect_browser(app)
    return app


def _guard(app: Dash) -> None:
    """Answer only well-formed requests of bounded size to this machine's own name, and load nothing from elsewhere."""
    app.server.config["MAX_CONTENT_LENGTH"] = MOST_BYTES

    @app.server.before_request
    def check() -> None:
        if request.host.rpartition(":")[0] not in HOSTS and request.host not in HOSTS:
            abort(403)
        if request.method == "POST" and request.content_length is None:
            abort(411, "a request says how long it is.")

    @app.server.after_request
    def policy(response: Response) -> Response:
        response.headers["Content-Security-Policy"] = POLICY
        response.headers["X-Content-Type-Options"] = "nosniff"
        return response

    @app.server.errorhandler(Exception)  # callbacks answer mistakes themselves, so what Dash cannot read is left
    def refuse(reason: Exception) -> Any:
        code, text = 400, "Bad Request: not a request of this page."
        if isinstance(reason, DependencyException):
            code, text = 404, "Not Found: no such file of the page."
        elif isinstance(reason, HTTPException):
            large = f"the request is too large; expected at most {MOST_BYTES // 2**20} MiB."
            code, text = reason.code or 500, f"{reason.name}: {large if reason.code == 413 else reason.description}"
        else:
            logging.getLogger(__name__).warning("a request that cannot be read", exc_info=reason)
        return Response(f"{code} {text}\n", code, mimetype="text/plain")


def _inputs() -> dict[str, Input]:
    return {name: Input(name, "value") for name in (*page.CONTROLS, "auto", "range")}


def _connect(app: Dash, allowed: AllowedFiles) -> None:
    def connect(side: str) -> None:
        outputs = {name: Output(f"{name}-{side}", "figure") for name in NAMES}
        outputs |= {"moving": Output(f"moving-{side}", "data")}
        outputs |= {name: Output(f"{name}-{side}", "children") for name in ("numbers", "title", "message")}
        outputs["link"] = Output("link", "data") if side == "left" else Output("no-link", "data")

        @app.callback(output=outputs, inputs={"values": _inputs()})
        def draw(values: dict[str, Any]) -> dict[str, Any]:
            return draw_side(allowed, side, values)

    for side in page.SIDES:
        connect(side)

    outputs = {name: Output(f"run-{name}", "figure") for name in page.RUN_PANELS}
    outputs |= {"numbers": Output("run-numbers", "children"), "message": Output("message-runs", "children")}

    mine = ("view", "run", "predict")  # a run has nothing to do with the other controls
    others = {name: DashState(name, "value") for name in _inputs() if name not in mine}

    @app.callback(output=outputs, inputs={"values": {name: _inputs()[name] for name in mine}}, state={"others": others})
    def run(values: dict[str, Any], others: dict[str, Any]) -> dict[str, Any]:
        return draw_run(allowed, {**others, **values})

    @app.callback(Output("lines", "children"), Input("asked", "data"), prevent_initial_call=True)
    def lines(link: Any) -> str:
        return show_lines(allowed, link)

    controls = {name: Output(name, "value") for name in (*page.CONTROLS, "auto", "range", "time")}
    lists = {"families": Output("family", "options"), "signals": Output("signal", "options"),
             "channels": Output("channel", "options"), "runs": Output("run", "options")}  # fmt: skip

    @app.callback(output={**controls, **lists, "others": Output("other", "options"),
                          "message": Output("message-link", "children")},
                  inputs={"search": Input("url", "search")})  # fmt: skip
    def bring_back(search: str | None) -> dict[str, Any]:
        answer = restore(allowed, search)
        return {**answer, "others": answer["families"]}


def _connect_browser(app: Dash) -> None:
    """What assets/page.js does by itself."""

    def browser(name: str, *parts: Any, **more: Any) -> None:
        app.clientside_callback(f"function() {{ return dash_clientside.explore.{name}.apply(null, arguments); }}",
                                *parts, **more)  # fmt: skip

    for side in page.SIDES:
        graphs = [Output(f"{name}-{side}", "figure") for name in page.PANELS["memory"]]
        browser("show", *graphs, Output(f"moment-{side}", "children"), Input(f"moving-{side}", "data"),
                Input("time", "value"))  # fmt: skip
    browser("play", Output("tick", "disabled"), Output("play", "children"),
            Output("time", "value", allow_duplicate=True), Input("play", "n_clicks"), Input("tick", "n_intervals"),
            DashState("time", "value"), DashState("tick", "disabled"), prevent_initial_call=True)  # fmt: skip
    browser("link", Output("copy-link", "content"), Input("link", "data"), Input("time", "value"))
    browser("ask", Output("asked", "data"), Output("lines-box", "className"), Input("lines-button", "n_clicks"),
            Input("link", "data"), Input("time", "value"))  # fmt: skip
    for side in page.SIDES:
        browser("toggle", Output("also", "value", allow_duplicate=True), Input(f"lights-{side}", "clickData"),
                DashState("also", "value"), prevent_initial_call=True)  # fmt: skip
    browser("arrange", Output("main", "className"), Output("range", "disabled"), Input("view", "value"),
            Input("other", "value"), Input("measure", "value"), Input("auto", "value"))  # fmt: skip

"""The Python lines that compute what the page shows. They use public names only, and tests run them."""

from __future__ import annotations

from pathlib import Path

from wavessm_lab.explore.allowed import AllowedFiles
from wavessm_lab.explore.signals import BUILT_IN, LONGEST, signal_of
from wavessm_lab.explore.state import FILE, State
from wavessm_lab.explore.stream import POINTS, mask_of, moment_at, moments
from wavessm_lab.explore.study import CELLS, HORIZON, LAGS, LENGTH, choice_of, is_tiled, study


def lines_of(state: State, allowed: AllowedFiles) -> str:
    """Return the lines of the view that is shown."""
    make = {"frame": _frame, "operator": _operator, "memory": _memory, "runs": _run}[state.view]
    return make(state, allowed).strip() + "\n"


def sides(state: State) -> list[str]:
    """Return the one or two families of a state."""
    return [family for family in (state.family, state.other) if family]


def _head(state: State) -> str:
    """Imports and the frames."""
    frames = "\n".join(f"    {_name(family)!r}: {_make(state, family)}," for family in sides(state))
    return f"import numpy as np\nimport wavessm as ws\n\nframes = {{\n{frames}\n}}\nfor name, frame in frames.items():"


def _name(family: str) -> str:
    return Path(family).name if family.startswith(FILE) else family


def _make(state: State, family: str) -> str:
    if family.startswith(FILE):
        path = Path(family.removeprefix(FILE))
        comma = "" if path.suffix.lower() == ".npy" else ', delimiter=","'
        return f"ws.Frame(np.{'loadtxt' if comma else 'load'}({str(path)!r}{comma}))"
    given = [f"{family!r}", f"n={state.n}"]
    if is_tiled(family):
        given += [f"{name}={value!r}" for name, value in (("f_min", state.low), ("f_max", state.high)) if value]
    return f"ws.make_frame({', '.join(given)})"


def _frame(state: State, allowed: AllowedFiles) -> str:
    times, count = CELLS
    return f"""{_head(state)}
    tight = frame.tighten()
    print(name, "κ before and after tightening:", frame.condition_number(), tight.condition_number())
    s = (np.arange({times}) + 0.5) / {times}
    top = min(max(4.0, 1.6 * tight.frequencies.max()), len(tight.grid) / 4)
    f = np.geomspace(0.25, top, {count})
    waves = np.exp(-2j * np.pi * np.outer(tight.grid, f))
    power = np.abs((tight.atoms * tight.weights) @ waves) ** 2          # (atoms, frequencies)
    coverage = power.T @ tight.evaluate(s) ** 2                         # (frequencies, times)
"""


def _operator(state: State, allowed: AllowedFiles) -> str:
    window = "" if state.measure == "scaled" else f", window={LENGTH}"
    horizon = HORIZON[state.measure]
    return f"""{_head(state)}
    tight = frame.tighten()
    op = ws.make_operator(tight, measure={state.measure!r})
    modes = op.to_diagonal(max_condition=float("inf"))                  # eigenvalues of −A
    step = ws.zoh(op.system, {horizon / LAGS!r})
    h, kernel = step.B, []
    for _ in range({LAGS}):
        kernel.append(h)
        h = step.apply(h)
    kernel = np.stack(kernel, axis=1) / {horizon / LAGS!r}              # (coordinates, lags)
    J = ws.OnlineMemory(op{window}).jacobian({LENGTH}).numpy()          # (coordinates, samples)
    print(name, "κ of the eigenvectors:", modes.condition_number, "identity residual:", op.identity_residual())
"""


def _memory(state: State, allowed: AllowedFiles) -> str:
    length = len(signal_of(allowed, state.signal, state.channel).values)
    count = int(moments(length)[moment_at(state.time, length)])
    masked = {}
    for family in sides(state):
        found = study(choice_of(state, family, allowed))
        masked[_name(family)] = [int(k) for k in mask_of(state, found).nonzero()[0]]
    window = "" if state.measure == "scaled" else f", window={state.window!r} * len(x)"
    head = _head(state).replace("frames = {", f"{_signal(state)}\nmasked = {masked!r}\nframes = {{", 1)
    return f"""{head}
    memory = ws.OnlineMemory(ws.make_operator(frame.tighten(), measure={state.measure!r}){window})
    memory.push(x[:{count}])
    h = memory.state.numpy()
    recalled = memory.reconstruct(h, grid={POINTS}).numpy()
    left = h.copy()
    left[masked[name]] = 0
    without = memory.reconstruct(left, grid={POINTS}).numpy()
    span = {count} if memory.window is None else memory.window
    t = {count} - span + span * (np.arange({POINTS}) + 0.5) / {POINTS}
"""


def _signal(state: State) -> str:
    if state.signal in BUILT_IN:
        if state.signal == "ecg":
            return "from wavessm_lab.studies.signals import ecg\n\nx = ecg().values"
        found = f"next(s.values for s in classical({LONGEST}) if s.name == {state.signal!r})"
        return f"from wavessm_lab.studies.signals import classical\n\nx = {found}"
    return f"""from wavessm.data import read_signal

x = read_signal({state.signal.removeprefix(FILE)!r}).values[:, {state.channel}].astype(float)
block = -(-len(x) // {LONGEST})
x = x[: len(x) // block * block].reshape(-1, block).mean(axis=1)"""


def _run(state: State, allowed: AllowedFiles) -> str:
    if not state.run:
        return "# choose a run first"
    return f"""from pathlib import Path

import pandas as pd
from wavessm.inspection import layers_of
from wavessm.training import Run

run = Run.read(Path({state.run!r}))
metrics = pd.read_csv(run.folder / "metrics.csv")
model = run.load_model()
steps = [layer.log_dt.exp() for layer in layers_of(model)]              # Δ of every channel"""

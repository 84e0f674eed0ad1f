"""The Python lines that make what the page shows. They use public names only, and tests run them."""

from __future__ import annotations

from pathlib import Path

from wavessm_lab.explore.allowed import AllowedFiles
from wavessm_lab.explore.signals import BUILT_IN, LONGEST, signal_of
from wavessm_lab.explore.state import FILE, State
from wavessm_lab.explore.stream import POINTS, mask_of, moment_at, moments
from wavessm_lab.explore.study import LENGTH, choice_of, is_tiled, study


def lines_of(state: State, allowed: AllowedFiles) -> str:
    """Return the lines of a state: its run, or the frame and operator of each side with what the view shows of them."""
    if state.view == "runs":
        return _run(state)
    families = [family for family in (state.family, state.other) if family]
    signal, shown = _memory(state, families, allowed) if state.view == "memory" else ("", "")
    if state.view == "operator":
        window = "" if state.measure == "scaled" else f", window={LENGTH}"
        shown = f"""
    modes = op.to_diagonal(max_condition=float("inf"))                  # eigenvalues of −A
    J = ws.OnlineMemory(op{window}).jacobian({LENGTH}).numpy()          # (coordinates, samples)
    print(name, "κ of the eigenvectors:", modes.condition_number, "identity residual:", op.identity_residual())"""
    made = "\n".join(f"    {Path(family).name!r}: {_frame(state, family)}," for family in families)
    return f"""import numpy as np
import wavessm as ws
{signal}
frames = {{
{made}
}}
for name, frame in frames.items():
    tight = frame.tighten()
    op = ws.make_operator(tight, measure={state.measure!r})
    print(name, "κ before and after tightening:", frame.condition_number(), tight.condition_number()){shown}
"""


def _frame(state: State, family: str) -> str:
    if family.startswith(FILE):
        path = Path(family.removeprefix(FILE))
        comma = "" if path.suffix.lower() == ".npy" else ', delimiter=","'
        return f"ws.Frame(np.{'loadtxt' if comma else 'load'}({str(path)!r}{comma}))"
    span = {"f_min": state.low, "f_max": state.high} if is_tiled(family) else {}
    given = [f"{family!r}", f"n={state.n}", *(f"{name}={value!r}" for name, value in span.items() if value)]
    return f"ws.make_frame({', '.join(given)})"


def _memory(state: State, families: list[str], allowed: AllowedFiles) -> tuple[str, str]:
    """Lines that read the signal, and those that show a memory of it."""
    length = len(signal_of(allowed, state.signal, state.channel).values)
    count = int(moments(length)[moment_at(state.time, length)])
    masks = (mask_of(state, study(choice_of(state, family, allowed))) for family in families)
    masked = {Path(f).name: mask.nonzero()[0].tolist() for f, mask in zip(families, masks, strict=True)}
    if state.signal == "ecg":
        read = "from wavessm_lab.studies.signals import ecg\n\nx = ecg().values"
    elif state.signal in BUILT_IN:
        read = f"""from wavessm_lab.studies.signals import classical

x = next(s.values for s in classical({LONGEST}) if s.name == {state.signal!r})"""
    else:
        read = f"""from wavessm.data import read_signal

x = read_signal({state.signal.removeprefix(FILE)!r}).values[:, {state.channel}].astype(float)
block = -(-len(x) // {LONGEST})
x = x[: len(x) // block * block].reshape(-1, block).mean(axis=1)"""
    window = "" if state.measure == "scaled" else f", window={state.window!r} * len(x)"
    return (
        f"{read}\nmasked = {masked!r}",
        f"""
    memory = ws.OnlineMemory(op{window})
    memory.push(x[:{count}])
    h = memory.state.numpy()
    recalled = memory.reconstruct(h, grid={POINTS}).numpy()
    left = h.copy()
    left[masked[name]] = 0
    without = memory.reconstruct(left, grid={POINTS}).numpy()
    span = {count} if memory.window is None else memory.window
    t = {count} - span + span * (np.arange({POINTS}) + 0.5) / {POINTS}""",
    )


def _run(state: State) -> str:
    if not state.run:
        return "# choose a run first\n"
    return f"""from pathlib import Path

import pandas as pd
from wavessm.inspection import layers_of
from wavessm.training import Run

run = Run.read(Path({state.run!r}))
metrics = pd.read_csv(run.folder / "metrics.csv")
model = run.load_model()
steps = [layer.log_dt.exp() for layer in layers_of(model)]              # Δ of every channel
"""

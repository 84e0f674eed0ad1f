"""Models that were fitted in closed form as ONNX graphs of real matrix products, batch and length free.

`feature_graph` follows `features/bank.py` and `pools.py`, whose letters these are, for whole signals and for streams of
whole chunks of the slowest group.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from wavessm.data.source import DataInfo
from wavessm.errors import OptionError
from wavessm.export.graph import Graph, Values
from wavessm.export.model_graph import restore_output, scale_input
from wavessm.features import POOLS, FeatureModel
from wavessm.features.bank import CellGroup, StateBank
from wavessm.training.line_model import LineModel


def line_graph(model: LineModel, info: DataInfo) -> Any:
    """The linear forecast: x (batch, context, columns) → y (batch, horizon, columns), both in the units of the data."""
    line = model.line_
    if line.features.memories or line.B is not None:
        raise OptionError("export: this forecast reads memories or a calendar; fit it with --no-memory and "
                          "--calendar none.")  # fmt: skip
    g, W = Graph(), line.W if line.W.ndim == 3 else line.W[None]
    x = scale_input(g, info, stream=False)
    last = g.slice(x, -1)
    rest = g.add("Transpose", g.add("Sub", x, last), perm=[2, 0, 1])  # (columns, batch, context)
    ahead = g.add("Add", g.add("Transpose", g.add("MatMul", rest, g.constant(W)), perm=[1, 2, 0]), last)
    inputs: Values = {"x": (np.float32, ["batch", info.length, info.d_input])}
    outputs: Values = {"y": (np.float32, ["batch", info.horizon, info.d_output])}
    return g.close("wavessm", inputs, outputs, [restore_output(g, ahead, info)])


def chunk_of(model: FeatureModel) -> int:
    """Samples of which the chunks of a stream are multiples: a chunk of the slowest group."""
    return max(group.chunk for group in model.features.bank.groups)


def stream_inputs(model: FeatureModel) -> Values:
    """The states of a stream, all zero at its start: sums, states of the groups, first and last sample, and samples."""
    bank, chosen = model.features.bank, {*model.features.bank.blocks}
    states: Values = {"samples": (np.float32, ["batch", 1])}
    states |= {name: (np.float32, ["batch", 1, bank.channels]) for name in ("first", "last")}
    for k, group in enumerate(bank.groups):
        states[f"state_{k}"] = np.float32, ["batch", len(group.source), group.decay.shape[1]]
        width = group.bias.shape[1]
        states |= {f"{name}_{k}": (np.float32, ["batch", len(group.source), width]) for name in chosen & {*POOLS}}
    if "values" in chosen:
        states["values"] = np.float32, ["batch", bank.values.levels.numel()]
    return dict(sorted(states.items()))


def feature_graph(model: FeatureModel, info: DataInfo, stream: bool) -> Any:
    """The graph of state features with their ridge; in a stream, `stream_inputs` return as outputs next_…"""
    g, features, ridge = Graph(), model.features, model.ridge
    bank, chosen = features.bank, {*features.bank.blocks}
    states = stream_inputs(model) if stream else {}
    mean, scale = g.constant(features.mean), g.constant(features.scale)
    x = g.add("Div", g.add("Sub", scale_input(g, info, stream), mean), scale)
    after, first, last = {}, g.slice(x, 0, 1), g.slice(x, 0, 1)
    length = g.add("Cast", g.size(x, 1), to=g.type(np.float32))  # (1,)
    total = g.add("Expand", length, g.shape(g.size(x, 0), 1))  # (batch, 1), samples so far
    if stream:
        new = g.add("Unsqueeze", g.add("Equal", "samples", g.constant(0.0)), g.ints(2))
        first, last = g.add("Where", new, first, "first"), g.add("Where", new, last, "last")
        total = g.add("Add", "samples", total)
        after = {"samples": total, "first": first, "last": g.slice(x, -1)}
    pooled: dict[str, list[str]] = {name: [] for name in bank.blocks}
    u = _sources(g, bank, x, first, last)
    for k, group in enumerate(bank.groups):
        for name, value in _group(g, group, u, total, chosen, k if stream else None, after).items():
            pooled[name].append(g.add("Reshape", value, g.ints(0, -1)))
    if "values" in chosen:
        pooled["values"] = [_values(g, bank, x, last, total, after if stream else None)]
    if "profile" in chosen:
        pooled["profile"] = [_profile(g, bank, x, last)]
    row = g.add("Concat", *(part for parts in pooled.values() for part in parts), axis=1)
    weight = (ridge.coef / ridge.scale[:, None]).double()
    constant = ridge.intercept.double() - ridge.mean.double() @ weight
    y = g.add("Add", g.add("MatMul", row, g.constant(weight)), g.constant(constant))
    inputs: Values = {"x": (np.float32, ["batch", "length", info.d_input])}
    outputs: Values = {"y": (np.float32, ["batch", info.d_output])}
    outputs |= {f"next_{name}": value for name, value in states.items()}
    return g.close("wavessm", inputs | states, outputs, [restore_output(g, y, info), *(after[name] for name in states)])


def _sources(g: Graph, bank: StateBank, x: str, first: str, last: str) -> str:
    """Channels, mixtures and differences (batch, length, sources), as `StateBank.sources`."""
    x, before = (g.add("Sub", each, first) for each in (x, last))
    rows = _with_differences(g, x, before) if bank.config.difference else x
    return g.add("MatMul", rows, g.constant(bank.mixing.T))


def _with_differences(g: Graph, x: str, last: str) -> str:
    """Columns and their first differences (batch, length, 2 · columns); `last` is the sample before x."""
    before = g.add("Concat", last, g.slice(x, 0, -1), axis=1)
    return g.add("Concat", x, g.add("Sub", x, before), axis=2)


def _group(
    g: Graph, group: CellGroup, u: str, total: str, chosen: set[str], stream: int | None, after: dict[str, str]
) -> dict[str, str]:
    """Pools (batch, cells, R) of the signal so far, by block; states of a stream go to `after`."""
    M, P, R = group.chunk, group.positions, group.bias.shape[1]
    cells, N = group.decay.shape[:2]
    missing = g.add("Mod", g.add("Neg", g.size(u, 1)), g.ints(M))
    rows = g.add("Pad", u, g.shape(0, 0, 0, 0, missing, 0))
    rows = g.add("Gather", rows, g.constant(group.source, np.int64), axis=2)
    rows = g.add("Reshape", rows, g.ints(0, -1, M, cells))  # (batch, K, M, cells)
    rows = g.add("Transpose", rows, perm=[3, 0, 1, 2])  # (cells, batch, K, M)
    entering = g.add("MatMul", rows, g.constant(group.into.transpose(1, 2)[:, None]))  # (cells, batch, K, N)
    start = g.zeros(cells, g.size(u, 0), N) if stream is None else g.add("Transpose", f"state_{stream}", perm=[1, 0, 2])
    decay = g.constant(group.decay.transpose(1, 2))
    before, end = g.scan(entering, start, lambda body, state: body.add("MatMul", state, decay))
    z = g.add("Concat", rows, before, axis=3)
    y = g.add("MatMul", z, g.constant(group.weight.transpose(1, 2)[:, None]))  # (cells, batch, K, P·R)
    y = g.add("Reshape", y, g.ints(0, 0, -1, R))  # (cells, batch, positions, R)
    here = g.add("Div", g.size(u, 1), g.ints(group.stride))  # positions that end inside the signal
    y = g.slice(y, 0, here, axis=2)
    sums = _pools(g, y, group, chosen | ({"share"} if "stretch" in chosen else set()))
    count = g.add("Max", g.add("Floor", g.add("Div", total, g.constant(float(group.stride)))), g.constant(1.0))
    count = g.add("Unsqueeze", count, g.ints(2))  # (batch, 1, 1)
    found = {}
    for name in sorted(chosen & {*POOLS}):
        value = g.add("Transpose", g.add("ReduceSum", sums[name], g.ints(2), keepdims=0), perm=[1, 0, 2])
        if stream is not None:
            value = after[f"{name}_{stream}"] = g.add("Add", value, f"{name}_{stream}")
        value = g.add("Div", value, count)
        value = g.add("Log", g.add("Add", value, g.constant(1e-6))) if name == "energy" else value
        found[name] = value if name in ("share", "energy") else g.add("Sqrt", value)
    if stream is not None:
        after[f"state_{stream}"] = g.add("Transpose", end, perm=[1, 0, 2])
    if "stretch" in chosen:
        found["stretch"] = _stretches(g, sums["share"], group, P)
    return found


def _pools(g: Graph, y: str, group: CellGroup, names: set[str]) -> dict[str, str]:
    """What each pool sums at every position, like y (cells, batch, positions, R)."""
    found = {}
    if "share" in names:
        found["share"] = g.cast(g.add("Greater", y, g.constant(group.bias[:, None, None])), np.float32)
    if names & {"wins", "margin"}:
        top = g.add("ReduceMax", y, axes=[3], keepdims=1)
        found["wins"] = g.cast(g.add("Equal", y, top), np.float32)
        found["margin"] = g.add("Mul", found["wins"], g.add("Relu", top))
    if "energy" in names:
        found["energy"] = g.add("Mul", y, y)
    return found


def _stretches(g: Graph, share: str, group: CellGroup, P: int) -> str:
    """The pool "share" over a part of the chunks of whole signals, as `read_stretch`. (batch, cells, R)"""
    n = g.size(share, 2)
    steps = g.add("Range", g.constant(0, np.int64), g.add("Squeeze", n, g.ints(0)), g.constant(1, np.int64))
    chunk = g.cast(g.add("Div", steps, g.ints(P)), np.float32)  # (positions,)
    chunk = g.add("Reshape", chunk, g.ints(1, -1, 1))
    chunks = g.add("Ceil", g.add("Div", g.cast(n, np.float32), g.constant(float(P))))
    first, end = (g.add("Mul", g.constant(edge[:, None]), chunks) for edge in group.stretch)  # (cells, 1, R)
    first = g.add("Floor", first)
    end = g.add("Max", g.add("Ceil", end), g.add("Add", first, g.constant(1.0)))
    inside = g.add("And", g.add("GreaterOrEqual", chunk, first), g.add("Less", chunk, end))  # (cells, positions, R)
    inside = g.add("Unsqueeze", g.cast(inside, np.float32), g.ints(1))
    held = g.add("ReduceSum", g.add("Mul", share, inside), g.ints(2), keepdims=0)  # (cells, batch, R)
    count = g.add("ReduceSum", inside, g.ints(2), keepdims=0)
    whole = g.add("Div", g.add("ReduceSum", share, g.ints(2), keepdims=0),
                  g.add("Max", g.cast(n, np.float32), g.constant(1.0)))  # fmt: skip
    part = g.add("Div", held, g.add("Max", count, g.constant(1.0)))
    return g.add("Transpose", g.add("Where", g.add("Greater", count, g.constant(0.0)), part, whole), perm=[1, 0, 2])


def _values(g: Graph, bank: StateBank, x: str, last: str, total: str, after: dict[str, str] | None) -> str:
    """Shares of samples above levels (batch, features), by eighths where there are stretches, as `Values`."""
    values = bank.values
    v = g.add("Unsqueeze", _with_differences(g, x, last) if values.difference else x, g.ints(3))
    above = g.cast(g.add("Greater", v, g.constant(values.levels)), np.float32)  # (batch, length, sources, levels)
    above = g.add("Reshape", above, g.ints(0, 0, -1))
    if len(values.parts) == 1:
        counts = g.sum(above)
        if after is not None:
            counts = after["values"] = g.add("Add", counts, "values")
        return g.add("Div", counts, total)
    steps, length = g.steps(x), g.size(x, 1)
    leaf = g.add("Div", g.add("Mul", steps, g.ints(8)), length)  # (length,)
    edges = g.constant(np.array(values.parts)[:, :, None], np.int64)  # (parts, 2, 1)
    first, end = (g.add("Squeeze", g.slice(edges, k, k + 1), g.ints(1)) for k in range(2))  # (parts, 1)
    shares, n = _means(g, above, leaf, first, end)
    shares = g.add("Where", g.add("Greater", n, g.constant(0.0)), shares, g.slice(shares, 0, 1))
    return g.add("Reshape", shares, g.ints(0, -1))


def _means(g: Graph, v: str, place: str, first: str, end: str) -> tuple[str, str]:
    """Means (batch, parts, columns) of v (batch, length, columns) where first ≤ place < end, and how many those are.

    place: (length,); first and end: (parts, 1).
    """
    inside = g.add("And", g.add("GreaterOrEqual", place, first), g.add("Less", place, end))
    inside = g.cast(inside, np.float32)  # (parts, length)
    n = g.add("ReduceSum", inside, g.ints(1), keepdims=1)
    return g.add("MatMul", g.add("Div", inside, g.add("Max", n, g.constant(1.0))), v), n


def _profile(g: Graph, bank: StateBank, x: str, last: str) -> str:
    """Means over equal parts of a signal (batch, features), as `Values.profile`."""
    v, bins = x, bank.values.bins
    if bank.values.difference:
        v = _with_differences(g, x, last)
        sizes = g.add("Abs", g.slice(v, bank.channels, 2 * bank.channels, axis=2))
        v = g.add("Concat", v, sizes, axis=2)
    part, length = np.arange(bins)[:, None], g.size(x, 1)
    first = g.add("Div", g.add("Mul", g.constant(part, np.int64), length), g.ints(bins))
    end = g.add("Mul", g.constant(part + 1, np.int64), length)
    end = g.add("Div", g.add("Add", end, g.ints(bins - 1)), g.ints(bins))
    return g.add("Reshape", _means(g, v, g.steps(x), first, end)[0], g.ints(0, -1))

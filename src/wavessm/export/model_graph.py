"""A `SequenceModel` as an ONNX graph of real matrix products, for whole sequences or for chunks of a stream.

A layer is the chunked scan of `ops/scan.py` with its tables as constants: rows of M samples u, the state s before each,

    v = u E        s' = D s + v  (a Scan over rows)        y = u T + s C

Both directions and dense states use the same products; the graph has no FFT and no complex number, and batch and length
stay free. A whole sequence is padded to full rows; a stream takes whole rows and returns its state.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import nn

from wavessm.data.info import SILENCE, DataInfo
from wavessm.export.graph import Graph, Values
from wavessm.nn.backbones import ResidualBlock, Stack
from wavessm.nn.encoders import CalendarEncoder, EmbeddingEncoder, InstanceNorm, LinearEncoder
from wavessm.nn.heads import DirectPath
from wavessm.nn.layer import WaveSSM
from wavessm.nn.model import SequenceModel
from wavessm.nn.streaming import pair_factors
from wavessm.ops.modes import flags
from wavessm.ops.scan import ScanTables, scan_tables


class Scan(NamedTuple):
    """How layers run: rows of `chunk` samples, steps Δ times `rate`; padded to full rows, or whole rows of a stream."""

    chunk: int
    rate: float
    stream: bool


def model_graph(model: SequenceModel, info: DataInfo, scan: Scan, lengths: bool = False) -> Any:
    """The graph of a model.

    With `scan.stream`, the inputs of `state_inputs` return as outputs next_…; with `lengths`, a second input has the
    true lengths of padded sequences.
    """
    g, config, inputs = Graph(), model.config, _inputs(model)
    states = state_inputs(model) if scan.stream else {}
    x, marks = scale_input(g, info, scan.stream), "marks" if "marks" in inputs else None
    if config.head == "forecast":
        y, after = _forecast(g, x, marks, model, scan, list(states))
    else:
        valid = _valid(g, x) if lengths else None  # whether a sample belongs to its sequence
        x = x if valid is None or config.encoder == "embedding" else g.where(valid, x)
        h = _encode(g, x, marks, model.encoder, None)
        h, after = _stack(g, h, cast(Stack, model.backbone), scan, list(states), valid)
        y, pooled = _head(g, h, model, valid, scan.stream)
        after += pooled
    y = restore_output(g, y, info)
    inputs |= {"lengths": (np.int64, ["batch"])} if lengths else states
    steps: dict[str, list] = {"sequence": ["length"], "forecast": [config.horizon]}
    outputs: Values = {"y": (np.float32, ["batch", *steps.get(config.head, []), config.d_output])}
    outputs |= {f"next_{name}": value for name, value in states.items()}
    return g.close("wavessm", inputs, outputs, [y, *after[: len(states)]])


def _inputs(model: SequenceModel) -> Values:
    config = model.config
    if config.encoder == "embedding":
        return {"x": (np.int64, ["batch", "length"])}
    inputs: Values = {"x": (np.float32, ["batch", "length", config.d_input])}
    if config.encoder == "calendar":
        width = len(config.mark_sizes) or config.mark_width
        inputs["marks"] = np.int64 if config.mark_sizes else np.float32, ["batch", "marks_length", width]
    return inputs


def state_inputs(model: SequenceModel) -> Values:
    """The states of a stream: one per layer, and the running mean and count of a pooled head."""
    layers = [cast(WaveSSM, block.layer) for block in cast(Stack, model.backbone).blocks]
    states: Values = {
        f"state_{number}": (np.float32, ["batch", layer.d_model, layer.n_slots, 2])
        for number, layer in enumerate(layers)
    }
    if model.config.head == "pool":  # float64: in float32 neither would change after 2²⁴ samples
        states |= {"pooled_mean": (np.float64, ["batch", model.config.d_model])}
        states |= {"pooled_steps": (np.float64, ["batch", 1])}
    return states


def _layer(g: Graph, x: str, layer: WaveSSM, scan: Scan, state: str | None) -> tuple[str, str]:
    """x (batch, length, d_model) → y like x, and the state after it (batch, d_model, slots, 2)."""
    d, M = layer.d_model, scan.chunk
    with torch.no_grad():
        tables = scan_tables(layer.discrete(scan.rate), M, layer.D.double())
    R = tables.decay.shape[1]
    batch, length = g.size(x, 0), g.size(x, 1)
    u = g.add("Transpose", x, perm=[2, 0, 1])
    if not scan.stream:
        missing = g.add("Mod", g.add("Neg", length), g.ints(M))
        u = g.add("Pad", u, g.shape(0, 0, 0, 0, 0, missing))
    rows = g.add("Reshape", u, g.ints(0, 0, -1, M))  # (d, batch, rows, M)
    if state is None:
        s = g.zeros(d, batch, R)
    else:
        s = g.add("Transpose", g.add("Reshape", state, g.ints(0, 0, R)), perm=[1, 0, 2])
    v = g.add("MatMul", rows, g.constant(tables.into[:, None]))  # (d, batch, rows, directions · R)
    before, after = _scan(g, g.slice(v, 0, R, axis=3), s, tables, back=False)
    parts = [rows, before]
    if tables.into.shape[-1] == 2 * R:
        behind, _ = _scan(g, g.slice(v, R, 2 * R, axis=3), g.zeros(d, batch, R), tables, back=True)
        parts.append(behind)
    y = g.add("MatMul", g.add("Concat", *parts, axis=3), g.constant(tables.out[:, None]))
    y = g.add("Reshape", y, g.ints(0, 0, -1))
    if not scan.stream:
        y = g.slice(y, 0, length, axis=2)
    y = g.add("Add", g.add("Transpose", y, perm=[1, 2, 0]), g.add("Mul", x, g.constant(layer.D)))
    return y, g.add("Reshape", g.add("Transpose", after, perm=[1, 0, 2]), g.ints(0, 0, R // 2, 2))


def _scan(g: Graph, v: str, s: str, tables: ScanTables, back: bool) -> tuple[str, str]:
    """States before each row (d, batch, rows, R) and after the last (d, batch, R); backwards, Dᵀ for D."""
    inner, decay = g.nested(), tables.decay
    state, row = f"{inner.prefix}s", f"{inner.prefix}v"
    if decay.dim() == 2:  # pairs: D s = same · s + across · (s with each pair swapped)
        slots = decay.unflatten(1, (-1, 2))
        factors = pair_factors(slots, flags(tables.n_complex, slots.shape[1], decay))
        same, across = (factor.flatten(1)[:, None] for factor in factors)
        across = -across if back else across
        swap = g.constant(torch.arange(same.shape[-1]) ^ 1, np.int64)
        swapped = inner.add("Mul", inner.add("Gather", state, swap, axis=2), g.constant(across))
        moved = inner.add("Add", inner.add("Mul", state, g.constant(same)), swapped)
    else:
        moved = inner.add("MatMul", state, g.constant(decay if back else decay.transpose(1, 2)))
    ends = ((state, row), (f"{inner.prefix}next", f"{inner.prefix}here"))
    inputs, outputs = ({name: (np.float32, None) for name in names} for names in ends)
    body = inner.close(inner.prefix, inputs, outputs, [inner.add("Add", moved, row), state])
    names = [f"{inner.prefix}after", f"{inner.prefix}before"]
    options = {"scan_input_axes": [2], "scan_output_axes": [2],
               "scan_input_directions": [int(back)], "scan_output_directions": [int(back)]}  # fmt: skip
    g.nodes.append(g.onnx.helper.make_node("Scan", [s, v], names, body=body, num_scan_inputs=1, **options))
    return names[1], names[0]


def _stack(
    g: Graph,
    h: str,  # (batch, length, d_model)
    stack: Stack,
    scan: Scan,
    states: list[str],  # before the blocks; none where they start from zero
    valid: str | None = None,  # (batch, length, 1)
) -> tuple[str, list[str]]:
    """Residual blocks and the last norm; the states after them."""
    after = []
    for number, module in enumerate(stack.blocks):
        block = cast(ResidualBlock, module)
        z = g.norm(h, block.norm) if block.prenorm else h
        z = z if valid is None else g.where(valid, z)
        z, state = _layer(g, z, block.layer, scan, states[number] if states else None)
        after.append(state)
        z = g.linear(g.gelu(z), block.project)
        d = block.layer.d_model
        gate = g.add("Sigmoid", g.slice(z, d, 2 * d, axis=2))
        h = g.add("Add", h, g.add("Mul", g.slice(z, 0, d, axis=2), gate))
        h = h if block.prenorm else g.norm(h, block.norm)
    return (h if stack.norm is None else g.norm(h, stack.norm)), after


def scale_input(g: Graph, info: DataInfo, stream: bool) -> str:
    """The input as `DataInfo.standardise` gives it."""
    x = "x"
    if info.scaling == "recording" and not stream:
        x = g.add("Sub", x, g.add("ReduceMean", x, axes=[1], keepdims=1))
        power = g.add("ReduceMean", g.add("Mul", x, x), axes=[1, 2], keepdims=1)
        return g.add("Div", x, g.add("Max", g.add("Sqrt", power), g.constant(SILENCE)))
    if info.step_scale is not None:
        x = g.slice(x, 0, len(info.step_scale[0]), axis=1)
        constants = [g.constant(np.array(values)[:, None]) for values in info.step_scale]
        mean, std = (g.slice(values, 0, g.size(x, 1), axis=0) for values in constants)
    elif info.scale is not None:
        mean, std = map(g.constant, info.scale)
    else:
        return x
    return g.add("Div", g.add("Sub", x, mean), std)


def restore_output(g: Graph, y: str, info: DataInfo) -> str:
    """The output in the units of the data, as `DataInfo.restore` gives it."""
    if info.target_scale is None:
        return y
    mean, std = map(g.constant, info.target_scale)
    return g.add("Add", g.add("Mul", y, std), mean)


def _encode(g: Graph, x: str, marks: str | None, encoder: nn.Module, row: int | None) -> str:
    """x → (batch, length, d_model); `row` is the calendar's row of context (0) or horizon (1), or None."""
    if isinstance(encoder, EmbeddingEncoder):
        return g.add("Gather", g.constant(encoder.table.weight), x)
    h = g.linear(x, cast(LinearEncoder, encoder).linear)
    if not isinstance(encoder, CalendarEncoder):
        return h
    assert marks is not None
    if hasattr(encoder, "tables"):
        for column, table in enumerate(encoder.tables):
            index = g.add("Gather", marks, g.constant(column, np.int64), axis=2)
            h = g.add("Add", h, g.add("Gather", g.constant(cast(nn.Embedding, table).weight), index))
    else:
        h = g.add("Add", h, g.linear(marks, encoder.marks))
    if row is None or not hasattr(encoder, "horizon"):
        return h
    return g.add("Add", h, g.constant(encoder.horizon.weight[row if encoder.horizon_mask else 0]))


def _valid(g: Graph, x: str) -> str:
    """Whether a sample comes before the end of its sequence, from the input `lengths`. → (batch, length, 1)"""
    inside = g.add("Less", g.steps(x), g.add("Unsqueeze", "lengths", g.ints(1)))
    return g.add("Unsqueeze", inside, g.ints(2))


def _head(g: Graph, h: str, model: SequenceModel, valid: str | None, stream: bool) -> tuple[str, list[str]]:
    """The heads `pool`, `last`, `sequence`; the next mean and count of a pooled stream. `valid` as in `_stack`."""
    decoder, kind, pooled = cast(Any, model.head).decoder, model.config.head, []
    if kind == "sequence":
        y = g.linear(h, decoder)
        return (y if valid is None else g.where(valid, y)), []
    ends = None if valid is None else g.add("Unsqueeze", "lengths", g.ints(1))  # (batch, 1)
    if kind == "pool" and stream:
        new = g.cast(g.size(h, 1), np.float64)
        steps = g.add("Add", "pooled_steps", new)
        difference = g.add("Sub", g.cast(g.mean(h, keepdims=False), np.float64), "pooled_mean")
        mean = g.add("Add", "pooled_mean", g.add("Mul", difference, g.add("Div", new, steps)))
        h, pooled = g.cast(mean, np.float32), [mean, steps]
    elif kind == "pool":
        h = (
            g.mean(h, keepdims=False)
            if ends is None
            else g.add("Div", g.sum(g.where(cast(str, valid), h)), g.cast(ends, np.float32))
        )
    elif ends is None:
        h = g.add("Gather", h, g.constant(-1, np.int64), axis=1)
    else:
        at_end = g.add("Equal", g.steps(h), g.add("Sub", ends, g.ints(1)))
        h = g.sum(g.where(g.add("Unsqueeze", at_end, g.ints(2)), h))
    return g.linear(h, decoder), pooled


def _forecast(
    g: Graph, x: str, marks: str | None, model: SequenceModel, scan: Scan, states: list[str]
) -> tuple[str, list[str]]:
    """The forecast after a context or a chunk, and the states after it; marks may end with it or with the horizon."""
    horizon, stack = cast(int, model.config.horizon), cast(Stack, model.backbone)
    length, early, late = g.size(x, 1), None, None
    x, centre, scale = _instance_norm(g, x, model.scale)
    if marks is not None:  # where they end with the context, those of the horizon are zero
        early, padded = g.slice(marks, 0, length), g.add("Pad", marks, g.ints(0, 0, 0, 0, horizon, 0))
        late = g.slice(padded, length, g.add("Add", length, g.ints(horizon)))
    past = _encode(g, x, early, model.encoder, 0)
    future = _encode(g, g.zeros(g.size(x, 0), horizon, model.config.d_input), late, model.encoder, 1)
    if scan.stream:
        _, states = _stack(g, past, stack, scan, states)
        h, _ = _stack(g, future, stack, scan._replace(stream=False), states)
    else:
        h, _ = _stack(g, g.add("Concat", past, future, axis=1), stack, scan, [])
        h = g.slice(h, -horizon)
    y = g.linear(h, cast(Any, model.head).decoder)
    if model.direct is not None:
        y = g.add("Add", y, _direct(g, x, early, model.direct))
    for name, kind in ((scale, "Mul"), (centre, "Add")):
        if name is not None:
            y = g.add(kind, y, g.slice(name, -model.config.d_output, axis=2))
    return y, states


def _direct(g: Graph, x: str, marks: str | None, path: DirectPath) -> str:
    """The forecast straight from the context (batch, length, d_input) and its marks."""
    x = g.slice(x, -path.d_output, axis=2)
    early = g.zeros(g.size(x, 0), path.context, path.d_output)
    recent = g.slice(g.add("Concat", early, x, axis=1), -path.context)
    y = g.add("MatMul", g.constant(path.W.T / math.sqrt(path.context)), recent)
    if path.U is None or marks is None:
        return y
    now = g.add("MatMul", g.slice(marks, -1), g.constant(path.U.flatten(1)))  # (batch, 1, horizon · d)
    return g.add("Add", y, g.add("Reshape", now, g.shape(0, path.W.shape[1], path.d_output)))


def _instance_norm(g: Graph, x: str, norm: InstanceNorm) -> tuple[str, str | None, str | None]:
    if norm.kind == "none":
        return x, None, None
    centre = g.slice(x, -1) if norm.kind == "last" else g.mean(x, keepdims=True)
    x = g.add("Sub", x, centre)
    if norm.kind != "mean_std":
        return x, centre, None
    power = g.mean(g.add("Mul", x, x), keepdims=True)
    scale = g.add("Sqrt", g.add("Max", power, g.constant(norm.FLOOR**2)))
    return g.add("Div", x, scale), centre, scale

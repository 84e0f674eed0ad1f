"""Stage 9l: a `SequenceModel` written as an ONNX graph of real matrix products.

A layer is the chunked scan of `ops/scan.py` with its tables as constants: rows of M samples u, the state s before each,

    heard = u E        s' = D s + heard  (a Scan over rows)        y = u T + s C

Both directions and dense states go the same way. No FFT and no complex number is in the graph; batch and length stay
free. A whole sequence is padded to full rows; a stream takes whole rows and hands its state on.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import nn

from wavessm.export.onnx_graph import END, Graph, onnx_package
from wavessm.nn.backbones import Stack
from wavessm.nn.block import ResidualBlock
from wavessm.nn.encoders import CalendarEncoder, EmbeddingEncoder, InstanceNorm, LinearEncoder
from wavessm.nn.heads import DirectPath
from wavessm.nn.layer import WaveSSM
from wavessm.nn.model import SequenceModel
from wavessm.ops.modes import flags
from wavessm.ops.scan import Prepared, prepare

if TYPE_CHECKING:
    from wavessm.export.checks import Units


class Run(NamedTuple):
    """How layers are run: rows of `chunk` samples, Δ times `rate`; padded to full rows, or handing their state on."""

    chunk: int
    rate: float
    pad: bool


def put_layer(g: Graph, x: str, layer: WaveSSM, run: Run, state: str | None) -> tuple[str, str]:
    """x (batch, length, d_model) → y like x, and the state after it (batch, d_model, slots, 2)."""
    d, M = layer.d_model, run.chunk
    with torch.no_grad():
        tables = prepare(layer.discrete(run.rate), M, torch.float64)
    R = tables.decay.shape[1]
    batch, length = g.size(x, 0), g.size(x, 1)
    u = g.turn(x, [2, 0, 1])
    if run.pad:
        short = g.add("Mod", g.add("Neg", length), g.constant([M], whole=True))
        u = g.add("Pad", u, g.shape(0, 0, 0, 0, 0, short))
    rows = g.add("Reshape", u, g.constant([0, 0, -1, M], whole=True))  # (d, batch, rows, M)
    if state is None:
        s = g.zeros(d, batch, R)
    else:
        s = g.turn(g.add("Reshape", state, g.constant([0, 0, R], whole=True)), [1, 0, 2])
    heard = g.add("MatMul", rows, g.constant(tables.into[:, None]))  # (d, batch, rows, directions · R)
    before, after = _put_scan(g, g.cut(heard, 0, R, axis=3), s, tables, back=False)
    parts = [rows, before]
    if tables.into.shape[-1] == 2 * R:
        behind, _ = _put_scan(g, g.cut(heard, R, 2 * R, axis=3), g.zeros(d, batch, R), tables, back=True)
        parts.append(behind)
    y = g.add("MatMul", g.add("Concat", *parts, options={"axis": 3}), g.constant(tables.out[:, None]))
    y = g.add("Reshape", y, g.constant([0, 0, -1], whole=True))
    if run.pad:
        y = g.cut(y, 0, length, axis=2)
    y = g.add("Add", g.turn(y, [1, 2, 0]), g.add("Mul", x, g.constant(layer.D)))
    last = g.add("Reshape", g.turn(after, [1, 0, 2]), g.constant([0, 0, R // 2, 2], whole=True))
    return y, last


def _put_scan(g: Graph, heard: str, s: str, tables: Prepared, back: bool) -> tuple[str, str]:
    """States before each row (d, batch, rows, R) and after the last (d, batch, R); backwards, Dᵀ for D."""
    helper, kind = g.helper, onnx_package().TensorProto.FLOAT
    inner = Graph()
    inner.constants, inner._known = g.constants, g._known  # a body reads the constants of the graph around it
    decay = tables.decay
    if decay.dim() == 2:  # pairs: D s = kept · s + crossed · (s with each pair swapped)
        first, second = decay.unflatten(1, (-1, 2)).unbind(-1)
        c = flags(tables.n_complex, first.shape[1], decay)
        cross = c * second * (-1 if back else 1)
        kept, crossed = (torch.stack(pair, -1).flatten(1)[:, None] for pair in (
            (first, c * first + (1 - c) * second), (-cross, cross)
        ))  # fmt: skip
        swap = torch.arange(kept.shape[-1]) ^ 1
        swapped = inner.add("Gather", "s", g.constant(swap, whole=True), options={"axis": 2})
        moved = inner.add("Mul", swapped, g.constant(crossed))
        moved = inner.add("Add", inner.add("Mul", "s", g.constant(kept)), moved)
    else:
        moved = inner.add("MatMul", "s", g.constant(decay if back else decay.transpose(1, 2)))
    inner.nodes.append(helper.make_node("Add", [moved, "h"], ["s_next"]))
    inner.nodes.append(helper.make_node("Identity", ["s"], ["s_before"]))
    values = {name: helper.make_tensor_value_info(name, kind, None) for name in ("s", "h", "s_next", "s_before")}
    mark = f"scan_{len(g.nodes)}"
    for node in inner.nodes:  # names of a body must differ from those around it and of other bodies
        node.input[:] = [_inside(name, mark) for name in node.input]
        node.output[:] = [_inside(name, mark) for name in node.output]
    for name, value in values.items():
        value.name = _inside(name, mark)
    body = helper.make_graph(inner.nodes, mark, [values["s"], values["h"]], [values["s_next"], values["s_before"]])
    outputs = [f"{mark}_after", f"{mark}_before"]
    g.nodes.append(
        helper.make_node(
            "Scan",
            [s, heard],
            outputs,
            body=body,
            num_scan_inputs=1,
            scan_input_axes=[2],
            scan_output_axes=[2],
            scan_input_directions=[int(back)],
            scan_output_directions=[int(back)],
        )
    )
    return outputs[1], outputs[0]


def _inside(name: str, mark: str) -> str:
    return name if name.startswith("constant_") else f"{mark}_{name}"


def put_stack(
    g: Graph,
    h: str,  # (batch, length, d_model)
    stack: Stack,
    run: Run,
    states: list[str] | None = None,
    heard: str | None = None,  # (batch, length, 1) whether a sample belongs to its sequence
) -> tuple[str, list[str]]:
    """Residual blocks and the last norm; the states after them."""
    after = []
    for number, module in enumerate(stack.blocks):
        block = cast(ResidualBlock, module)
        z = g.norm(h, block.norm) if block.prenorm else h
        z = z if heard is None else g.where(heard, z)
        z, state = put_layer(g, z, block.layer, run, None if states is None else states[number])
        after.append(state)
        z = g.linear(g.gelu(z), block.project)
        d = block.layer.d_model
        gate = g.add("Sigmoid", g.cut(z, d, 2 * d, axis=2))
        h = g.add("Add", h, g.add("Mul", g.cut(z, 0, d, axis=2), gate))
        h = h if block.prenorm else g.norm(h, block.norm)
    return (h if stack.norm is None else g.norm(h, stack.norm)), after


def put_encoder(g: Graph, x: str, marks: str | None, encoder: nn.Module, row: int | None) -> str:
    """x → (batch, length, d_model); `row` is the calendar's row of context (0) or horizon (1), or None."""
    if isinstance(encoder, EmbeddingEncoder):
        return g.add("Gather", g.constant(encoder.table.weight), x)
    h = g.linear(x, cast(LinearEncoder, encoder).linear)
    if not isinstance(encoder, CalendarEncoder):
        return h
    assert marks is not None
    if hasattr(encoder, "tables"):
        for column, table in enumerate(encoder.tables):
            which = g.add("Gather", marks, g.constant(column, whole=True), options={"axis": 2})
            h = g.add("Add", h, g.add("Gather", g.constant(cast(nn.Embedding, table).weight), which))
    else:
        h = g.add("Add", h, g.linear(marks, encoder.marks))
    if row is None or not hasattr(encoder, "horizon"):
        return h
    return g.add("Add", h, g.constant(encoder.horizon.weight[row if encoder.horizon_mask else 0]))


def cut_marks(g: Graph, marks: str, length: str, horizon: int) -> tuple[str, str]:
    """Marks of the context and of the horizon, which are zero where marks end with the context."""
    padded = g.add("Pad", marks, g.constant([0, 0, 0, 0, horizon, 0], whole=True))
    total = g.add("Add", length, g.constant([horizon], whole=True))
    return g.cut(marks, 0, length, axis=1), g.cut(padded, length, total, axis=1)


def put_forecast(g: Graph, x: str, marks: str | None, model: SequenceModel, run: Run) -> str:
    """The forecast after a whole context; marks cover it, and the horizon or not."""
    horizon = cast(int, model.config.horizon)
    length = g.size(x, 1)
    x, centre, scale = _put_instance_norm(g, x, model.scale)
    early = late = None
    if marks is not None:
        early, late = cut_marks(g, marks, length, horizon)
    zeros = g.zeros(g.size(x, 0), horizon, model.config.d_input)
    past = put_encoder(g, x, early, model.encoder, 0)
    future = put_encoder(g, zeros, late, model.encoder, 1)
    h = g.add("Concat", past, future, options={"axis": 1})
    h, _ = put_stack(g, h, cast(Stack, model.backbone), run)
    y = g.linear(g.cut(h, -horizon, END, axis=1), cast(Any, model.head).decoder)
    d = model.config.d_output
    if model.direct is not None:
        y = g.add("Add", y, _put_direct(g, x, early, model.direct))
    for name, kind in ((scale, "Mul"), (centre, "Add")):
        if name is not None:
            y = g.add(kind, y, g.cut(name, -d, END, axis=2))
    return y


def _put_direct(g: Graph, x: str, marks: str | None, path: DirectPath) -> str:
    """The forecast straight from context (batch, length, d_input) and its marks."""
    x = g.cut(x, -path.d_output, END, axis=2)
    early = g.zeros(g.size(x, 0), path.context, path.d_output)
    recent = g.cut(g.add("Concat", early, x, options={"axis": 1}), -path.context, END, axis=1)
    y = g.add("MatMul", g.constant(path.W.T / math.sqrt(path.context)), recent)
    if path.U is None or marks is None:
        return y
    now = g.add("MatMul", g.cut(marks, -1, END, axis=1), g.constant(path.U.flatten(1)))  # (batch, 1, horizon · d)
    return g.add("Add", y, g.add("Reshape", now, g.shape(0, path.W.shape[1], path.d_output)))


def _put_instance_norm(g: Graph, x: str, norm: InstanceNorm) -> tuple[str, str | None, str | None]:
    if norm.kind == "none":
        return x, None, None
    centre = g.cut(x, -1, END, axis=1) if norm.kind == "last" else g.mean(x, keep=True)
    x = g.add("Sub", x, centre)
    if norm.kind != "mean_std":
        return x, centre, None
    power = g.mean(g.add("Mul", x, x), keep=True)
    scale = g.add("Sqrt", g.add("Max", power, g.constant(norm.FLOOR**2)))
    return g.add("Div", x, scale), centre, scale


# -- what stands around the backbone ------------------------------------------------------------------------------


def put_input(g: Graph, model: SequenceModel, units: Units) -> str:
    if model.config.encoder == "embedding" or not units.change_input:
        return "x"
    return g.add("Div", g.add("Sub", "x", g.constant(units.mean)), g.constant(units.scale))


def put_output(g: Graph, y: str, units: Units) -> None:
    if units.change_output:
        y = g.add("Add", g.add("Mul", y, g.constant(units.output_scale)), g.constant(units.output_mean))
    g.rename(y, "y")


def put_head(g: Graph, h: str, model: SequenceModel, heard: str | None = None) -> str:
    """What the heads `pool`, `last` and `sequence` say; `heard` as in `put_stack`."""
    decoder, kind = cast(Any, model.head).decoder, model.config.head
    if kind == "sequence":
        y = g.linear(h, decoder)
        return y if heard is None else g.where(heard, y)
    if heard is None:
        if kind == "pool":
            return g.linear(g.mean(h, keep=False), decoder)
        return g.linear(g.add("Gather", h, g.constant(-1, whole=True), options={"axis": 1}), decoder)
    ends = g.add("Unsqueeze", "lengths", g.constant([1], whole=True))  # (batch, 1)
    if kind == "pool":
        count = g.add("Cast", ends, options={"to": onnx_package().TensorProto.FLOAT})
        return g.linear(g.add("Div", g.total(g.where(heard, h)), count), decoder)
    at_end = g.add("Equal", g.clock(h), g.add("Sub", ends, g.constant([1], whole=True)))
    return g.linear(g.total(g.where(g.add("Unsqueeze", at_end, g.constant([2], whole=True)), h)), decoder)


def put_mask(g: Graph, x: str) -> str:
    """Whether a sample comes before the end of its sequence, from the input `lengths`. → (batch, length, 1)"""
    inside = g.add("Less", g.clock(x), g.add("Unsqueeze", "lengths", g.constant([1], whole=True)))
    return g.add("Unsqueeze", inside, g.constant([2], whole=True))


def put_pool_stream(g: Graph, h: str, model: SequenceModel) -> tuple[str, list[str]]:
    """The mean of all that was heard through the decoder; mean and steps to hand on."""
    new = g.add("Cast", g.size(h, 1), options={"to": onnx_package().TensorProto.FLOAT})
    steps = g.add("Add", "heard_steps", new)
    apart = g.add("Sub", g.mean(h, keep=False), "heard_mean")
    mean = g.add("Add", "heard_mean", g.add("Mul", apart, g.add("Div", new, steps)))
    return g.linear(mean, cast(Any, model.head).decoder), [mean, steps]

"""A `SequenceModel` as an ONNX graph of real matrix products, for whole sequences or for chunks of a stream.

A layer is the chunked scan of `ops/scan.py` with its tables as constants: rows of M samples u, the state s before each,

    v = u E        s' = D s + v  (a Scan over rows)        y = u T + s C

Both directions and dense states use the same products; the graph has no FFT and no complex number, and batch and length
stay free. A whole sequence is padded to full rows; a stream takes whole rows and returns its state.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import numpy as np
import torch

from wavessm.data.info import DataInfo
from wavessm.export.graph import Graph, Values
from wavessm.features.energies import FLOOR, PARTS, SILENCE
from wavessm.nn.backbones import ResidualBlock, Stack
from wavessm.nn.encoders import EmbeddingEncoder, LinearEncoder
from wavessm.nn.layer import WaveSSM
from wavessm.nn.model import SequenceModel
from wavessm.ops.scan import ScanTables, scan_tables


class Scan(NamedTuple):
    """How layers run: rows of `chunk` samples, steps Δ times `rate`; padded to full rows, or whole rows of a stream."""

    chunk: int
    rate: float
    stream: bool


def model_graph(model: SequenceModel, info: DataInfo, scan: Scan) -> Any:
    """The graph of a model; with `scan.stream`, the inputs of `_states` return as outputs next_…"""
    g, config = Graph(), model.config
    states = _states(model) if scan.stream else {}
    x = scale_input(g, info, scan.stream)
    inputs: Values = {"x": (np.float32, ["batch", "length", info.d_input])}
    if isinstance(model.encoder, EmbeddingEncoder):
        inputs = {"x": (np.int64, ["batch", "length"])}
        h = g.add("Gather", g.constant(model.encoder.table.weight), x)
    else:
        h = g.linear(x, cast(LinearEncoder, model.encoder).linear)
    h, after = _stack(g, h, model.backbone, scan, list(states))
    y, pooled = _head(g, h, model, scan.stream)
    steps = ["length"] if config.head == "sequence" else []
    outputs: Values = {"y": (np.float32, ["batch", *steps, config.d_output])}
    outputs |= {f"next_{name}": value for name, value in states.items()}
    values = [restore_output(g, y, info), *after, *pooled]
    return g.close("wavessm", inputs | states, outputs, values[: len(outputs)])


def _states(model: SequenceModel) -> Values:
    """The states of a stream: one per layer, and the running mean and count of a pooled head."""
    layers = [cast(WaveSSM, block.layer) for block in model.backbone.blocks]
    states: Values = {
        f"state_{k}": (np.float32, ["batch", layer.d_model, layer.n_slots, 2]) for k, layer in enumerate(layers)
    }
    if model.config.head == "pool":  # float64: in float32 neither would change after 2²⁴ samples
        states |= {"pooled_mean": (np.float64, ["batch", model.config.d_model])}
        states |= {"pooled_steps": (np.float64, ["batch", 1])}
    return states


def _layer(g: Graph, x: str, layer: WaveSSM, scan: Scan, state: str | None) -> tuple[str, str]:
    """x (batch, length, d_model) → y like x, and the state after it (batch, d_model, slots, 2)."""
    d, M = layer.d_model, scan.chunk
    with torch.no_grad():
        tables = scan_tables(layer.discrete(scan.rate), layer.D, M, torch.float64)
    R, dense = tables.decay.shape[-1], tables.decay.dim() == 3
    batch, length = g.size(x, 0), g.size(x, 1)
    u = g.add("Transpose", x, perm=[2, 0, 1])
    if not scan.stream:
        missing = g.add("Mod", g.add("Neg", length), g.ints(M))
        u = g.add("Pad", u, g.shape(0, 0, 0, 0, 0, missing))
    rows = g.add("Reshape", u, g.ints(0, 0, -1, M))  # (d, batch, rows, M)
    if state is None:
        s = g.zeros(d, batch, R)
    else:
        s = g.add("Transpose", state, perm=[1, 0, 2, 3] if dense else [1, 0, 3, 2])
        s = g.add("Reshape", s, g.ints(0, 0, R))
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
    after = g.add("Reshape", after, g.ints(0, 0, *((R // 2, 2) if dense else (2, R // 2))))
    after = g.add("Transpose", after, perm=[1, 0, 2, 3] if dense else [1, 0, 3, 2])
    return g.add("Transpose", y, perm=[1, 2, 0]), after


def _scan(g: Graph, v: str, s: str, tables: ScanTables, back: bool) -> tuple[str, str]:
    """States before each row (d, batch, rows, R) and after the last (d, batch, R); backwards, Dᵀ for D."""
    decay = tables.decay
    if decay.dim() == 3:
        D = g.constant(decay if back else decay.mT)
        return g.scan(v, s, lambda body, state: body.add("MatMul", state, D), back)
    same, across = decay
    stay, turn = g.constant(same), g.constant(-across if back else across)
    swap = g.constant(torch.arange(same.shape[-1]).roll(same.shape[-1] // 2), np.int64)

    def step(body: Graph, state: str) -> str:
        swapped = body.add("Mul", body.add("Gather", state, swap, axis=2), turn)
        return body.add("Add", body.add("Mul", state, stay), swapped)

    return g.scan(v, s, step, back)


def _stack(
    g: Graph,
    h: str,  # (batch, length, d_model)
    stack: Stack,
    scan: Scan,
    states: list[str],  # before the blocks; none where they start from zero
) -> tuple[str, list[str]]:
    """Residual blocks and the last norm; the states after them."""
    after = []
    for number, module in enumerate(stack.blocks):
        block = cast(ResidualBlock, module)
        z = g.norm(h, block.norm) if block.prenorm else h
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
        x = g.add("Div", x, g.add("Max", g.add("Sqrt", power), g.constant(SILENCE)))
    elif info.scale is not None:
        mean, std = map(g.constant, info.scale)
        x = g.add("Div", g.add("Sub", x, mean), std)
    return x if info.front_end == "none" else _frames(g, x, info)


def _frames(g: Graph, x: str, info: DataInfo) -> str:
    """The frames of `EnergyBank.forward` for samples x (batch, length, channels), standardised."""
    bank = info.energy_bank()
    filters, stride = bank.filters, bank.stride
    one = g.ints(1)
    count = g.add("Max", g.add("Div", g.size(x, 1), g.ints(bank.hop)), one)
    x = g.add("Reshape", g.add("Transpose", x, perm=[0, 2, 1]), g.shape(-1, 1, g.size(x, 1)))
    pads = [filters.shape[-1] - stride, bank.hop]
    y = g.add("Conv", x, g.constant(filters), strides=[stride], pads=pads)
    y = g.slice(g.add("Mul", y, y), 0, g.add("Mul", count, g.ints(PARTS)), axis=2)
    y = g.add("ReduceSum", g.add("Reshape", y, g.shape(-1, 2, bank.n_bands, count, PARTS)), one, keepdims=0)
    y = g.add("Log", g.add("Add", g.add("ReduceMean", y, axes=[3], keepdims=0), g.constant(FLOOR)))
    y = g.add("Transpose", g.add("Reshape", y, g.shape(-1, info.width, count)), perm=[0, 2, 1])
    mean, std = map(g.constant, info.frame_scale or ((0.0,), (1.0,)))
    return g.add("Div", g.add("Sub", y, mean), std)


def restore_output(g: Graph, y: str, info: DataInfo) -> str:
    """The output in the units of the data, as `DataInfo.restore` gives it."""
    if info.target_scale is None:
        return y
    mean, std = map(g.constant, info.target_scale)
    return g.add("Add", g.add("Mul", y, std), mean)


def _head(g: Graph, h: str, model: SequenceModel, stream: bool) -> tuple[str, list[str]]:
    """The heads `pool`, `last`, `sequence`; the next mean and count of a pooled stream."""
    kind, pooled = model.config.head, []
    if kind == "pool" and stream:
        new = g.cast(g.size(h, 1), np.float64)
        steps = g.add("Add", "pooled_steps", new)
        difference = g.add("Sub", g.cast(g.mean(h), np.float64), "pooled_mean")
        mean = g.add("Add", "pooled_mean", g.add("Mul", difference, g.add("Div", new, steps)))
        h, pooled = g.cast(mean, np.float32), [mean, steps]
    elif kind == "pool":
        h = g.mean(h)
    elif kind == "last":
        h = g.add("Gather", h, g.constant(-1, np.int64), axis=1)
    return g.linear(h, model.head.decoder), pooled

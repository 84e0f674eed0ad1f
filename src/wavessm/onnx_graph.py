"""Stage 9k: a `SequenceModel` written as an ONNX graph of real matrix products.

A layer is the chunked scan of `ops/scan.py` with its tables as constants: rows of M samples u, the state s before each,

    heard = u E        s' = D s + heard  (a Scan over rows)        y = u T + s C

Both directions and dense states go the same way. No FFT and no complex number is in the graph; batch and length stay
free. A whole sequence is padded to full rows; a stream takes whole rows and hands its state on.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from wavessm.backbones import Stack
from wavessm.blocks import ResidualBlock, SequenceNorm
from wavessm.encoders import CalendarEncoder, EmbeddingEncoder, InstanceNorm, LinearEncoder
from wavessm.errors import MissingExtraError
from wavessm.layer import WaveSSM
from wavessm.models import SequenceModel
from wavessm.ops.modes import flags
from wavessm.ops.tables import Dense, Tables, dense_tables, diagonal_tables, toeplitz


def onnx_package() -> Any:
    try:
        import onnx
    except ImportError as reason:
        raise MissingExtraError("ONNX files need onnx: pip install 'wavessm[export]'.") from reason
    return onnx


class Graph:
    """Nodes and constants, named as they come."""

    def __init__(self) -> None:
        self.helper = onnx_package().helper
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self._known: dict[bytes, str] = {}

    def add(self, kind: str, *inputs: str, options: dict[str, Any] | None = None) -> str:
        """A node with one output. → its name"""
        name = f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(self.helper.make_node(kind, list(inputs), [name], **(options or {})))
        return name

    def constant(self, values: Any, whole: bool = False) -> str:
        """A constant, float32 or int64; equal ones are kept once. → its name"""
        array = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
        array = np.asarray(array, dtype=np.int64 if whole else np.float32, order="C")
        key = f"{array.dtype}{array.shape}".encode() + array.tobytes()
        if key not in self._known:
            name = f"constant_{len(self.constants)}"
            self.constants.append(onnx_package().numpy_helper.from_array(array, name))
            self._known[key] = name
        return self._known[key]

    def rename(self, name: str, to: str) -> None:
        """Give a result its public name."""
        self.nodes.append(self.helper.make_node("Identity", [name], [to]))

    # -- small pieces -------------------------------------------------------------------------------------------

    def size(self, x: str, axis: int) -> str:
        """One entry of a shape. → (1,)"""
        return self.add("Shape", x, options={"start": axis, "end": axis + 1})

    def shape(self, *parts: str | int) -> str:
        """A shape of numbers and of results of `size`."""
        names = [part if isinstance(part, str) else self.constant([part], whole=True) for part in parts]
        return self.add("Concat", *names, options={"axis": 0})

    def zeros(self, *parts: str | int) -> str:
        return self.add("Expand", self.constant(0.0), self.shape(*parts))

    def turn(self, x: str, order: list[int]) -> str:
        return self.add("Transpose", x, options={"perm": order})

    def cut(self, x: str, begin: str | int, end: str | int, axis: int) -> str:
        """x[begin:end] along an axis."""
        ends = [part if isinstance(part, str) else self.constant([part], whole=True) for part in (begin, end)]
        return self.add("Slice", x, *ends, self.constant([axis], whole=True))

    def linear(self, x: str, layer: nn.Linear) -> str:
        y = self.add("MatMul", x, self.constant(layer.weight.T))
        return y if layer.bias is None else self.add("Add", y, self.constant(layer.bias))

    def gelu(self, x: str) -> str:
        bell = self.add("Erf", self.add("Mul", x, self.constant(0.5**0.5)))
        return self.add("Mul", x, self.add("Mul", self.add("Add", bell, self.constant(1.0)), self.constant(0.5)))

    def mean(self, x: str, keep: bool) -> str:
        """Over axis 1."""
        return self.add("ReduceMean", x, options={"axes": [1], "keepdims": int(keep)})

    def norm(self, x: str, norm: SequenceNorm) -> str:
        inner = norm.norm
        if isinstance(inner, nn.LayerNorm):
            options = {"axis": -1, "epsilon": inner.eps}
            return self.add(
                "LayerNormalization", x, self.constant(inner.weight), self.constant(inner.bias), options=options
            )
        batch = cast(nn.BatchNorm1d, inner)
        scale = batch.weight / torch.sqrt(cast(Tensor, batch.running_var) + batch.eps)
        shift = batch.bias - cast(Tensor, batch.running_mean) * scale
        return self.add("Add", self.add("Mul", x, self.constant(scale)), self.constant(shift))


class Run(NamedTuple):
    """How layers are run: rows of `chunk` samples, Δ times `rate`; padded to full rows, or handing their state on."""

    chunk: int
    rate: float
    pad: bool


def put_layer(g: Graph, x: str, layer: WaveSSM, run: Run, state: str | None) -> tuple[str, str]:
    """x (batch, length, d_model) → y like x, and the state after it (batch, d_model, slots, 2)."""
    d, M = layer.d_model, run.chunk
    tables = _tables(layer, run)
    R = tables.E.shape[-1]
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
    heard = g.add("MatMul", rows, g.constant(tables.E[:, None]))
    before, after = _put_scan(g, heard, s, tables.decay, back=False)
    T = toeplitz(tables.K[0])
    if len(tables.K) == 2:
        T = T + toeplitz(tables.K[1]).transpose(1, 2)
    y = g.add("Add", g.add("MatMul", rows, g.constant(T[:, None])), _times(g, before, tables.C[0]))
    if len(tables.K) == 2:
        heard = g.add("MatMul", rows, g.constant(tables.C[1].transpose(1, 2)[:, None]))
        behind, _ = _put_scan(g, heard, g.zeros(d, batch, R), tables.decay, back=True)
        y = g.add("Add", y, _times(g, behind, tables.E.transpose(1, 2)))
    y = g.add("Reshape", y, g.constant([0, 0, -1], whole=True))
    if run.pad:
        y = g.cut(y, 0, length, axis=2)
    y = g.add("Add", g.turn(y, [1, 2, 0]), g.add("Mul", x, g.constant(layer.D)))
    last = g.add("Reshape", g.turn(after, [1, 0, 2]), g.constant([0, 0, R // 2, 2], whole=True))
    return y, last


def _times(g: Graph, s: str, matrix: Tensor) -> str:
    return g.add("MatMul", s, g.constant(matrix[:, None]))


def _tables(layer: WaveSSM, run: Run) -> Tables:
    """The layer's tables in float64, the decay of slots as matrices (d, slots, 2, 2); constants are cast to float32."""
    with torch.no_grad():
        system = layer.discrete(run.rate)
        if isinstance(system, Dense):
            return dense_tables(system, run.chunk)
        tables = diagonal_tables(system, run.chunk)
        c, (first, second) = flags(system.turning, tables.decay.shape[1], tables.decay), tables.decay.unbind(-1)
        matrices = torch.stack([first, -c * second, c * second, c * first + (1 - c) * second], -1)
        return tables._replace(decay=matrices.unflatten(-1, (2, 2)))


def _put_scan(g: Graph, heard: str, s: str, decay: Tensor, back: bool) -> tuple[str, str]:
    """States before each row (d, batch, rows, R) and after the last (d, batch, R); backwards, Dᵀ for D."""
    helper, kind = g.helper, onnx_package().TensorProto.FLOAT
    inner = Graph()
    inner.constants, inner._known = g.constants, g._known  # a body reads the constants of the graph around it
    if decay.dim() == 4:  # pairs: D s = kept · s + crossed · (s with each pair swapped)
        kept = torch.diagonal(decay, dim1=2, dim2=3).flatten(1)[:, None]
        crossed = torch.stack(
            [decay[..., 1, 0], decay[..., 0, 1]] if back else [decay[..., 0, 1], decay[..., 1, 0]], -1
        )
        swap = torch.arange(kept.shape[-1]) ^ 1
        swapped = inner.add("Gather", "s", g.constant(swap, whole=True), options={"axis": 2})
        moved = inner.add("Mul", swapped, g.constant(crossed.flatten(1)[:, None]))
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
    g: Graph, h: str, stack: Stack, run: Run, states: list[str] | None
) -> tuple[str, list[str]]:  # (batch, length, d_model)
    """Residual blocks and the last norm; the states after them."""
    after = []
    for number, module in enumerate(stack.blocks):
        block = cast(ResidualBlock, module)
        z = g.norm(h, block.norm) if block.prenorm else h
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


def put_forecast(g: Graph, x: str, marks: str | None, model: SequenceModel, run: Run) -> str:
    """The forecast after a whole context; marks cover context and horizon."""
    horizon = cast(int, model.config.horizon)
    length = g.size(x, 1)
    x, centre, scale = _put_instance_norm(g, x, model.scale)
    early = late = None
    if marks is not None:
        total = g.add("Add", length, g.constant([horizon], whole=True))
        early, late = g.cut(marks, 0, length, axis=1), g.cut(marks, length, total, axis=1)
    zeros = g.zeros(g.size(x, 0), horizon, model.config.d_input)
    past = put_encoder(g, x, early, model.encoder, 0)
    future = put_encoder(g, zeros, late, model.encoder, 1)
    h = g.add("Concat", past, future, options={"axis": 1})
    h, _ = put_stack(g, h, cast(Stack, model.backbone), run, None)
    y = g.linear(g.cut(h, -horizon, np.iinfo(np.int64).max, axis=1), cast(Any, model.head).decoder)
    d = model.config.d_output
    for name, kind in ((scale, "Mul"), (centre, "Add")):
        if name is not None:
            y = g.add(kind, y, g.cut(name, -d, np.iinfo(np.int64).max, axis=2))
    return y


def _put_instance_norm(g: Graph, x: str, norm: InstanceNorm) -> tuple[str, str | None, str | None]:
    if norm.kind == "none":
        return x, None, None
    last = np.iinfo(np.int64).max
    centre = g.cut(x, -1, last, axis=1) if norm.kind == "last" else g.mean(x, keep=True)
    x = g.add("Sub", x, centre)
    if norm.kind != "mean_std":
        return x, centre, None
    power = g.mean(g.add("Mul", x, x), keep=True)
    scale = g.add("Sqrt", g.add("Max", power, g.constant(norm.FLOOR**2)))
    return g.add("Div", x, scale), centre, scale

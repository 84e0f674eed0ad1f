"""An ONNX graph under construction: nodes, constants and the small pieces that models are made of.

Every method takes and returns names of values. Next: `model_graph.py`, which builds a model of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from wavessm.errors import import_extra
from wavessm.nn.backbones import SequenceNorm

END = np.iinfo(np.int64).max
"""An index beyond any end."""
Values = dict[str, tuple[Any, Any]]
"""Name → NumPy type and shape (numbers and names of free sizes, or None)."""


class Graph:
    """Nodes and constants; equal constants are stored once. Names of values start with `prefix`, so that those of a
    nested graph differ from those around it."""

    def __init__(self, prefix: str = "") -> None:
        self.onnx, self.prefix = import_extra("onnx", "ONNX files", "export"), prefix
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self._names: dict[bytes, str] = {}

    def close(self, name: str, inputs: Values, outputs: Values, values: Sequence[str]) -> Any:
        """The finished graph; `values` become its outputs."""
        helper = self.onnx.helper
        self.nodes += [helper.make_node("Identity", [v], [out]) for v, out in zip(values, outputs, strict=True)]
        ends = [
            [helper.make_tensor_value_info(n, self.type(dtype), shape) for n, (dtype, shape) in part.items()]
            for part in (inputs, outputs)
        ]
        return helper.make_graph(self.nodes, name, *ends, [] if self.prefix else self.constants)

    def type(self, dtype: Any) -> int:
        """ONNX's number for a NumPy type."""
        return self.onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))

    def add(self, kind: str, *inputs: str, **options: Any) -> str:
        """Add a node with one output."""
        name = f"{self.prefix}{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(self.onnx.helper.make_node(kind, list(inputs), [name], **options))
        return name

    def constant(self, values: Any, dtype: Any = np.float32) -> str:
        """A constant array."""
        array = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
        array = np.asarray(array, dtype=dtype, order="C")
        key = f"{array.dtype}{array.shape}".encode() + array.tobytes()
        if key not in self._names:
            self._names[key] = f"constant_{len(self.constants)}"
            self.constants.append(self.onnx.numpy_helper.from_array(array, self._names[key]))
        return self._names[key]

    def ints(self, *values: int) -> str:
        """Whole numbers in one axis."""
        return self.constant(values, np.int64)

    def cast(self, x: str, dtype: Any) -> str:
        """x as another type."""
        return self.add("Cast", x, to=self.type(dtype))

    def size(self, x: str, axis: int) -> str:
        """One entry of a shape, (1,)."""
        return self.add("Shape", x, start=axis, end=axis + 1)

    def shape(self, *parts: str | int) -> str:
        """A shape of numbers and of results of `size`."""
        names = [part if isinstance(part, str) else self.ints(part) for part in parts]
        return self.add("Concat", *names, axis=0)

    def zeros(self, *parts: str | int) -> str:
        """Zeros of a shape."""
        return self.add("Expand", self.constant(0.0), self.shape(*parts))

    def slice(self, x: str, start: str | int, end: str | int = END, axis: int = 1) -> str:
        """x[start:end] along an axis."""
        ends = [part if isinstance(part, str) else self.ints(part) for part in (start, end)]
        return self.add("Slice", x, *ends, self.ints(axis))

    def scan(self, v: str, s: str, step: Callable[[Graph, str], str], back: bool = False) -> tuple[str, str]:
        """Run s ← step(s) + v over rows v (d, batch, rows, R) from s (d, batch, R), backwards if asked.

        Returns the states before each row (d, batch, rows, R) and after the last (d, batch, R). `step` adds its nodes
        to the graph of the body that it is given.
        """
        body = Graph(f"{self.prefix}body{len(self.nodes)}_")
        body.constants, body._names = self.constants, self._names
        state, row, after, here = (f"{body.prefix}{name}" for name in ("s", "v", "next", "here"))
        values = [body.add("Add", step(body, state), row), state]
        inputs, outputs = ({name: (np.float32, None) for name in names} for names in ((state, row), (after, here)))
        names = [f"{body.prefix}after", f"{body.prefix}before"]
        axes = {f"scan_{end}_axes": [2] for end in ("input", "output")}
        directions = {f"scan_{end}_directions": [int(back)] for end in ("input", "output")}
        graph = body.close(body.prefix, inputs, outputs, values)
        make = self.onnx.helper.make_node
        self.nodes.append(make("Scan", [s, v], names, body=graph, num_scan_inputs=1, **axes, **directions))
        return names[1], names[0]

    def linear(self, x: str, layer: nn.Linear) -> str:
        """A Linear layer."""
        y = self.add("MatMul", x, self.constant(layer.weight.T))
        return y if layer.bias is None else self.add("Add", y, self.constant(layer.bias))

    def gelu(self, x: str) -> str:
        """GELU by the error function."""
        bell = self.add("Erf", self.add("Mul", x, self.constant(0.5**0.5)))
        return self.add("Mul", x, self.add("Mul", self.add("Add", bell, self.constant(1.0)), self.constant(0.5)))

    def mean(self, x: str) -> str:
        """Mean over axis 1, which is removed."""
        return self.add("ReduceMean", x, axes=[1], keepdims=0)

    def sum(self, x: str) -> str:
        """Sum over axis 1, which is removed."""
        return self.add("ReduceSum", x, self.ints(1), keepdims=0)

    def steps(self, x: str) -> str:
        """0, 1, … along axis 1 of x, (length,)."""
        length = self.add("Squeeze", self.size(x, 1), self.ints(0))
        return self.add("Range", self.constant(0, np.int64), length, self.constant(1, np.int64))

    def norm(self, x: str, norm: SequenceNorm) -> str:
        """Layer norm, batch norm with the statistics of training, or none."""
        inner = norm.norm
        if isinstance(inner, nn.LayerNorm):
            weights = self.constant(inner.weight), self.constant(inner.bias)
            return self.add("LayerNormalization", x, *weights, axis=-1, epsilon=inner.eps)
        if isinstance(inner, nn.Identity):
            return x
        batch = cast(nn.BatchNorm1d, inner)
        scale = batch.weight / torch.sqrt(cast(Tensor, batch.running_var) + batch.eps)
        shift = batch.bias - cast(Tensor, batch.running_mean) * scale
        return self.add("Add", self.add("Mul", x, self.constant(scale)), self.constant(shift))

"""Stage 9k: an ONNX graph under construction: nodes and constants, and the small pieces that models are made of.

What is made of them is in `onnx_model.py`; files are written and checked by `export.py`.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from wavessm.errors import MissingExtraError
from wavessm.nn.block import SequenceNorm

END = np.iinfo(np.int64).max
"""An index behind any end."""


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

    def total(self, x: str) -> str:
        """Sum over axis 1, which goes."""
        return self.add("ReduceSum", x, self.constant([1], whole=True), options={"keepdims": 0})

    def where(self, condition: str, x: str) -> str:
        """x, and zero where the condition does not hold, whatever x has there."""
        return self.add("Where", condition, x, self.constant(0.0))

    def clock(self, x: str) -> str:
        """0, 1, … along axis 1 of x. → (length,) whole numbers"""
        scalar = self.add("Squeeze", self.size(x, 1), self.constant([0], whole=True))
        return self.add("Range", self.constant(0, whole=True), scalar, self.constant(1, whole=True))

    def norm(self, x: str, norm: SequenceNorm) -> str:
        inner = norm.norm
        if isinstance(inner, nn.LayerNorm):
            options = {"axis": -1, "epsilon": inner.eps}
            return self.add(
                "LayerNormalization", x, self.constant(inner.weight), self.constant(inner.bias), options=options
            )
        if isinstance(inner, nn.Identity):
            return x
        batch = cast(nn.BatchNorm1d, inner)
        scale = batch.weight / torch.sqrt(cast(Tensor, batch.running_var) + batch.eps)
        shift = batch.bias - cast(Tensor, batch.running_mean) * scale
        return self.add("Add", self.add("Mul", x, self.constant(scale)), self.constant(shift))

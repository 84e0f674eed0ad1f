"""Stage 9n: trained models for other runtimes: ONNX for whole sequences and for streams, and `torch.export`.

    export_onnx(model, path)        x (batch, length, d_input) → y; batch and length are free
    export_step_onnx(model, path)   x and a state → y and the next state, for chunks of a stream
    export_torch(model, path)       a program for torch.export.load, free in batch and in length up to a largest one

Each file is checked against the model before it takes its place; what it was trained on and how to read its output is
in the metadata of the file. Sequences of a batch have one length, unless a file is asked to take their lengths too.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

import wavessm
from wavessm.errors import DataError, OptionError, check_int, check_positive
from wavessm.export.checks import (
    Report,
    Units,
    check_stream,
    check_whole,
    distance,
    example,
    heard_names,
    keep,
    state_shapes,
    whole_output,
)
from wavessm.export.onnx_graph import Graph, onnx_package
from wavessm.export.onnx_model import (
    Run,
    cut_marks,
    put_encoder,
    put_forecast,
    put_head,
    put_input,
    put_mask,
    put_output,
    put_pool_stream,
    put_stack,
)
from wavessm.nn.backbones import Stack
from wavessm.nn.layer import WaveSSM
from wavessm.nn.model import SequenceModel
from wavessm.nn.streaming import SampledLayer
from wavessm.ops.convolution import convolve

OPSET = 17
IR_VERSION = 8
CHUNK = 64

__all__ = ["CHUNK", "Report", "Units", "export_onnx", "export_step_onnx", "export_torch"]


def export_onnx(
    model: SequenceModel,
    path: str | Path,
    rate: float = 1.0,
    chunk: int = CHUNK,
    units: Units | None = None,
    notes: dict[str, Any] | None = None,
    lengths: bool = False,
) -> Report:
    """The model of whole sequences as an ONNX file, checked at several batch sizes and lengths.

    chunk    samples in a row of the scan inside; changes speed and size, not the result
    notes    JSON values for the file's metadata, beside the config
    lengths  a second input (batch,) of whole numbers: the true lengths of padded sequences
    """
    model = _ready(model, "onnx")
    if lengths and model.config.head == "forecast":
        raise OptionError(
            "export: lengths go with the heads 'pool', 'last' and 'sequence', got 'forecast'; leave them out."
        )
    units = _fitting(units, model)
    g, helper = Graph(), onnx_package().helper
    x = put_input(g, model, units)
    run = Run(check_int(chunk, "chunk", least=1), check_positive(rate, "rate"), pad=True)
    marks = "marks" if model.config.encoder == "calendar" else None
    if model.config.head == "forecast":
        y = put_forecast(g, x, marks, model, run)
    else:
        heard = put_mask(g, x) if lengths else None
        x = x if heard is None or model.config.encoder == "embedding" else g.where(heard, x)
        h = put_encoder(g, x, marks, model.encoder, None)
        h, _ = put_stack(g, h, cast(Stack, model.backbone), run, heard=heard)
        y = put_head(g, h, model, heard)
    put_output(g, y, units)
    inputs = [_value("x", _x_shape(model), model.config.encoder == "embedding")]
    if marks is not None:
        inputs.append(_value("marks", ["batch", "marks_length", _width(model)], bool(model.config.mark_sizes)))
    if lengths:
        inputs.append(_value("lengths", ["batch"], whole_numbers=True))
    graph = helper.make_graph(g.nodes, "wavessm", inputs, [_value("y", _y_shape(model))], g.constants)
    part = _write(graph, Path(path), _notes(model, "onnx", run, notes))
    return keep(part, Path(path), *check_whole(part, model, units, run.rate, lengths))


def export_step_onnx(
    model: SequenceModel,
    path: str | Path,
    rate: float = 1.0,
    chunk: int = CHUNK,
    units: Units | None = None,
    notes: dict[str, Any] | None = None,
) -> Report:
    """The streaming model as an ONNX file: its state goes in and comes out. Checked over many chunks.

    x         (batch, length, d_input), the length a multiple of `chunk` (1 takes any)
    state_0 … (batch, d_model, slots, 2), one a layer; for head="pool" also heard_mean (batch, d_model) and heard_steps
              (batch, 1). All are zero at the start, and each comes back as next_….
    """
    model = _ready(model, "step-onnx")
    model._check_streams("export")
    units = _fitting(units, model)
    g, helper = Graph(), onnx_package().helper
    run = Run(check_int(chunk, "chunk", least=1), check_positive(rate, "rate"), pad=False)
    x = put_input(g, model, units)
    forecast, calendar = model.config.head == "forecast", model.config.encoder == "calendar"
    names = [f"state_{number}" for number in range(model.config.n_layers)]
    early = late = None
    if calendar:
        length = g.size("x", 1)
        if forecast:
            early, late = cut_marks(g, "marks", length, cast(int, model.config.horizon))
        else:
            early = g.cut("marks", 0, length, axis=1)
    h = put_encoder(g, x, early, model.encoder, 0 if forecast else None)
    h, after = put_stack(g, h, cast(Stack, model.backbone), run, names)
    heard: list[str] = []
    if forecast:
        zeros = g.zeros(g.size("x", 0), cast(int, model.config.horizon), model.config.d_input)
        ahead = put_encoder(g, zeros, late, model.encoder, 1)
        ahead, _ = put_stack(g, ahead, cast(Stack, model.backbone), run._replace(pad=True), after)
        y = g.linear(ahead, cast(Any, model.head).decoder)
    elif model.config.head == "pool":
        y, heard = put_pool_stream(g, h, model)
    else:
        y = put_head(g, h, model)
    put_output(g, y, units)
    for name, value in zip([*names, *heard_names(model)], [*after, *heard], strict=True):
        g.rename(value, f"next_{name}")
    shapes = state_shapes(model)
    inputs = [_value("x", _x_shape(model), model.config.encoder == "embedding")]
    if calendar:
        inputs.append(_value("marks", ["batch", "marks_length", _width(model)], bool(model.config.mark_sizes)))
    inputs += [_value(name, shape) for name, shape in shapes.items()]
    outputs = [_value("y", _y_shape(model)), *(_value(f"next_{name}", shape) for name, shape in shapes.items())]
    graph = helper.make_graph(g.nodes, "wavessm-stream", inputs, outputs, g.constants)
    part = _write(graph, Path(path), _notes(model, "step-onnx", run, notes))
    return keep(part, Path(path), *check_stream(part, model, units, run))


def export_torch(
    model: SequenceModel, path: str | Path, max_length: int = 16384, rate: float = 1.0, units: Units | None = None
) -> Report:
    """A `torch.export` program for whole sequences up to `max_length`, at least 3; checked after reloading."""
    model = _ready(model, "torch-export")
    max_length, units = check_int(max_length, "max_length", least=3), _fitting(units, model)
    _refuse_folder(Path(path))
    wrapped = _Fixed(model, check_positive(rate, "rate"), max_length, units).eval()
    batch, length = torch.export.Dim("batch", min=1), torch.export.Dim("length", min=2, max=max_length)
    shapes: dict[str, Any] = {"x": {0: batch, (2 if model.config.head == "pair" else 1): length}}
    x, marks = example(model, 3, min(70, max_length), 0)
    if marks is not None:
        shapes["marks"] = {0: batch, 1: length + model.config.horizon if model.config.horizon else length}
    arguments = (x,) if marks is None else (x, marks)
    with torch.no_grad():
        program = torch.export.export(wrapped, arguments, dynamic_shapes=tuple(shapes.values()))
    part = Path(path).with_name(Path(path).name + ".part.pt2")
    part.parent.mkdir(parents=True, exist_ok=True)
    torch.export.save(program, part)
    loaded = torch.export.load(part).module()
    worst, calls = 0.0, 0
    for cases, steps in ((1, 2), (2, 63), (3, 700)):
        x, marks = example(model, cases, min(steps, max_length), steps)
        got = loaded(x) if marks is None else loaded(x, marks)
        wanted = whole_output(model, units, x, marks, rate)
        worst, calls = max(worst, distance(got.detach().numpy(), wanted)), calls + 1
    return keep(part, Path(path), worst, calls)


class _Kernel(nn.Module):
    """A `WaveSSM` whose kernel is a constant: whole sequences only, any length up to the kernel's."""

    def __init__(self, layer: WaveSSM, rate: float, max_length: int) -> None:
        super().__init__()
        self.register_buffer("K", layer.kernel(max_length, rate).float().detach().clone())
        self.register_buffer("D", layer.D.detach().clone())
        self.engine, self.d_model = layer.engine._replace(backend="torch"), layer.d_model

    def forward(
        self,
        x: Tensor,  # (batch, length, d_model)
        state: None = None,
        return_state: bool = False,
        rate: float = 1.0,
        lengths: None = None,
    ) -> Tensor:
        y = convolve(x.transpose(1, 2), cast(Tensor, self.K)[..., : x.shape[1]])
        return y.transpose(1, 2) + x * cast(Tensor, self.D)


class _Fixed(nn.Module):
    """A model with constant kernels and its units inside."""

    def __init__(self, model: SequenceModel, rate: float, max_length: int, units: Units) -> None:
        super().__init__()
        self.model, self.units = copy.deepcopy(model), units
        horizon = model.config.horizon or 0
        for block in cast(Stack, self.model.backbone).blocks:  # one sample more than is heard: no length is special
            cast(Any, block).layer = _Kernel(cast(WaveSSM, block.layer), rate, max_length + horizon + 1)

    def forward(self, x: Tensor, marks: Tensor | None = None) -> Tensor:
        return self.units.after(self.model(self.units.before(x), marks=marks))


# -- pieces -----------------------------------------------------------------------------------------------------


def _ready(model: SequenceModel, form: str) -> SequenceModel:
    """The model on the CPU in evaluation mode, if this format can hold it."""
    if not isinstance(model, SequenceModel):
        raise OptionError(f"export: got a {type(model).__name__}, expected a SequenceModel.")
    if model.config.backbone != "wavessm":
        raise OptionError(
            f"export: the backbone is {model.config.backbone!r}, expected 'wavessm', the one with kernels."
        )
    if model.config.head == "pair" and form != "torch-export":
        raise OptionError("export: head='pair' has no ONNX form here; use torch-export.")
    if any(isinstance(module, SampledLayer) for module in model.modules()):
        raise OptionError("export: this model was sampled for streams; export the one it came from.")
    return copy.deepcopy(model).cpu().float().eval()


def _x_shape(model: SequenceModel) -> list[str | int]:
    return ["batch", "length"] if model.config.encoder == "embedding" else ["batch", "length", model.config.d_input]


def _y_shape(model: SequenceModel) -> list[str | int]:
    middle: dict[str, list[str | int]] = {"sequence": ["length"], "forecast": [model.config.horizon or 0]}
    return ["batch", *middle.get(model.config.head, []), model.config.d_output]


def _width(model: SequenceModel) -> int:
    return len(model.config.mark_sizes) or model.config.mark_width


def _value(name: str, shape: Sequence[str | int], whole_numbers: bool = False) -> Any:
    proto = onnx_package().TensorProto
    return onnx_package().helper.make_tensor_value_info(name, proto.INT64 if whole_numbers else proto.FLOAT, shape)


def _notes(model: SequenceModel, form: str, run: Run, notes: dict[str, Any] | None) -> dict[str, Any]:
    return {
        "format": f"wavessm-{form}", "wavessm": wavessm.__version__, "model": model.config.to_dict(),
        "chunk": run.chunk, "rate": run.rate, **(notes or {}),
    }  # fmt: skip


def _fitting(units: Units | None, model: SequenceModel) -> Units:
    """The units, with one number for all channels or one for each."""
    units, config = units or Units(), model.config
    sizes = {"output_mean": config.d_output, "output_scale": config.d_output}
    if config.encoder != "embedding":
        sizes |= {"mean": config.d_input, "scale": config.d_input}
    for name, channels in sizes.items():
        if (count := len(getattr(units, name))) not in (1, channels):
            raise OptionError(f"export: units.{name} has {count} numbers, expected 1 or {channels}, one a channel.")
    return units


def _refuse_folder(path: Path) -> None:
    if path.is_dir():
        raise DataError(f"{path}: is a folder; give the name of a file.")


def _write(graph: Any, path: Path, notes: dict[str, Any]) -> Path:
    """The checked graph, beside its place."""
    onnx = onnx_package()
    proto = onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", OPSET)], ir_version=IR_VERSION, producer_name="wavessm"
    )
    onnx.helper.set_model_props(proto, {name: json.dumps(value) for name, value in notes.items()})
    onnx.checker.check_model(proto)
    _refuse_folder(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_bytes(proto.SerializeToString())
    return part

"""Stage 9j: trained models for other runtimes: ONNX for whole sequences and for streams, and `torch.export`.

    export_onnx(model, path)        x (batch, length, d_input) → y; batch and length are free
    export_step_onnx(model, path)   x and a state → y and the next state, for chunks of a stream
    export_torch(model, path)       a program for torch.export.load, free in batch and in length up to a largest one

Each file is checked against the model before it takes its place; what it was trained on and how to read its output is
in the metadata of the file. Samples of one batch have one length.
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

import wavessm
from wavessm.backbones import Stack
from wavessm.checks import positive, whole
from wavessm.errors import DataError, MissingExtraError, OptionError
from wavessm.layer import WaveSSM
from wavessm.models import SequenceModel
from wavessm.onnx_graph import Graph, Run, onnx_package, put_encoder, put_forecast, put_stack
from wavessm.ops.convolution import convolve

OPSET = 17
IR_VERSION = 8
TOLERANCE = 1e-4
"""Largest difference from PyTorch, relative to the largest output, that a written file may show."""

CHUNK = 64


@dataclass(frozen=True)
class Units:
    """What a file does to numbers before the model, (x − mean) / scale, and after it, y · scale + mean."""

    mean: Sequence[float] = (0.0,)
    scale: Sequence[float] = (1.0,)
    output_mean: Sequence[float] = (0.0,)
    output_scale: Sequence[float] = (1.0,)

    def before(self, x: Tensor) -> Tensor:
        return (x - x.new_tensor(self.mean)) / x.new_tensor(self.scale) if x.is_floating_point() else x

    def after(self, y: Tensor) -> Tensor:
        return y * y.new_tensor(self.output_scale) + y.new_tensor(self.output_mean)


@dataclass(frozen=True)
class Report:
    """A written file and how far it is from PyTorch."""

    path: Path
    megabytes: float
    error: float  # largest |difference| / max(1, largest |output|)
    calls: int  # sequences or chunks compared


def export_onnx(
    model: SequenceModel,
    path: str | Path,
    rate: float = 1.0,
    chunk: int = CHUNK,
    units: Units | None = None,
    notes: dict[str, Any] | None = None,
) -> Report:
    """The model of whole sequences as an ONNX file, checked at several batch sizes and lengths.

    chunk  samples in a row of the scan inside; changes speed and size, not the result
    notes  JSON values for the file's metadata, beside the config
    """
    model = _ready(model, "onnx")
    units = units or Units()
    g, helper = Graph(), onnx_package().helper
    x = _put_input(g, model, units)
    run = Run(whole(chunk, "chunk", least=1), positive(rate, "rate"), pad=True)
    marks = "marks" if model.config.encoder == "calendar" else None
    if model.config.head == "forecast":
        y = put_forecast(g, x, marks, model, run)
    else:
        h, _ = put_stack(g, put_encoder(g, x, marks, model.encoder, None), cast(Stack, model.backbone), run, None)
        y = _put_head(g, h, model)
    _put_output(g, y, units)
    inputs = [_value("x", _x_shape(model), model.config.encoder == "embedding")]
    if marks is not None:
        inputs.append(_value("marks", ["batch", "marks_length", _width(model)], bool(model.config.mark_sizes)))
    graph = helper.make_graph(g.nodes, "wavessm", inputs, [_value("y", _y_shape(model))], g.constants)
    part = _write(graph, Path(path), _notes(model, "onnx", run, notes))
    return _keep(part, Path(path), *_check_whole(part, model, units, run.rate))


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
    units = units or Units()
    g, helper = Graph(), onnx_package().helper
    run = Run(whole(chunk, "chunk", least=1), positive(rate, "rate"), pad=False)
    x = _put_input(g, model, units)
    forecast, calendar = model.config.head == "forecast", model.config.encoder == "calendar"
    names = [f"state_{number}" for number in range(model.config.n_layers)]
    early = late = None
    if calendar:
        length = g.size("x", 1)
        early = g.cut("marks", 0, length, axis=1)
        late = g.cut("marks", length, np.iinfo(np.int64).max, axis=1) if forecast else None
    h = put_encoder(g, x, early, model.encoder, 0 if forecast else None)
    h, after = put_stack(g, h, cast(Stack, model.backbone), run, names)
    heard: list[str] = []
    if forecast:
        zeros = g.zeros(g.size("x", 0), cast(int, model.config.horizon), model.config.d_input)
        ahead = put_encoder(g, zeros, late, model.encoder, 1)
        ahead, _ = put_stack(g, ahead, cast(Stack, model.backbone), run._replace(pad=True), after)
        y = g.linear(ahead, cast(Any, model.head).decoder)
    elif model.config.head == "pool":
        y, heard = _put_pool_stream(g, h, model)
    else:
        y = _put_head(g, h, model)
    _put_output(g, y, units)
    for name, value in zip([*names, *_heard_names(model)], [*after, *heard], strict=True):
        g.rename(value, f"next_{name}")
    shapes = _state_shapes(model)
    inputs = [_value("x", _x_shape(model), model.config.encoder == "embedding")]
    if calendar:
        inputs.append(_value("marks", ["batch", "marks_length", _width(model)], bool(model.config.mark_sizes)))
    inputs += [_value(name, shape) for name, shape in shapes.items()]
    outputs = [_value("y", _y_shape(model)), *(_value(f"next_{name}", shape) for name, shape in shapes.items())]
    graph = helper.make_graph(g.nodes, "wavessm-stream", inputs, outputs, g.constants)
    part = _write(graph, Path(path), _notes(model, "step-onnx", run, notes))
    return _keep(part, Path(path), *_check_stream(part, model, units, run))


def export_torch(
    model: SequenceModel, path: str | Path, max_length: int = 16384, rate: float = 1.0, units: Units | None = None
) -> Report:
    """A `torch.export` program for whole sequences up to `max_length`; checked after reloading."""
    model = _ready(model, "torch-export")
    whole(max_length, "max_length", least=2)
    wrapped = _Fixed(model, positive(rate, "rate"), max_length, units or Units()).eval()
    batch, length = torch.export.Dim("batch", min=1), torch.export.Dim("length", min=2, max=max_length)
    shapes: dict[str, Any] = {"x": {0: batch, (2 if model.config.head == "pair" else 1): length}}
    x, marks = _example(model, 3, min(70, max_length), 0)
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
        x, marks = _example(model, cases, min(steps, max_length), steps)
        got = loaded(x) if marks is None else loaded(x, marks)
        wanted = _whole(model, units or Units(), x, marks, rate)
        worst, calls = max(worst, _distance(got.detach().numpy(), wanted)), calls + 1
    return _keep(part, Path(path), worst, calls)


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
    return copy.deepcopy(model).cpu().float().eval()


def _put_input(g: Graph, model: SequenceModel, units: Units) -> str:
    if model.config.encoder == "embedding" or (units.mean, units.scale) == (Units().mean, Units().scale):
        return "x"
    return g.add("Div", g.add("Sub", "x", g.constant(units.mean)), g.constant(units.scale))


def _put_output(g: Graph, y: str, units: Units) -> None:
    if (units.output_mean, units.output_scale) != (Units().output_mean, Units().output_scale):
        y = g.add("Add", g.add("Mul", y, g.constant(units.output_scale)), g.constant(units.output_mean))
    g.rename(y, "y")


def _put_head(g: Graph, h: str, model: SequenceModel) -> str:
    decoder = cast(Any, model.head).decoder
    if model.config.head == "pool":
        h = g.mean(h, keep=False)
    elif model.config.head == "last":
        h = g.add("Gather", h, g.constant(-1, whole=True), options={"axis": 1})
    return g.linear(h, decoder)


def _put_pool_stream(g: Graph, h: str, model: SequenceModel) -> tuple[str, list[str]]:
    """The mean of all that was heard through the decoder; mean and steps to hand on."""
    new = g.add("Cast", g.size(h, 1), options={"to": onnx_package().TensorProto.FLOAT})
    steps = g.add("Add", "heard_steps", new)
    apart = g.add("Sub", g.mean(h, keep=False), "heard_mean")
    mean = g.add("Add", "heard_mean", g.add("Mul", apart, g.add("Div", new, steps)))
    return g.linear(mean, cast(Any, model.head).decoder), [mean, steps]


def _heard_names(model: SequenceModel) -> list[str]:
    return ["heard_mean", "heard_steps"] if model.config.head == "pool" else []


def _state_shapes(model: SequenceModel) -> dict[str, list[str | int]]:
    shapes: dict[str, list[str | int]] = {}
    for number, block in enumerate(cast(Stack, model.backbone).blocks):
        layer = cast(WaveSSM, block.layer)
        shapes[f"state_{number}"] = ["batch", layer.d_model, layer.n_slots, 2]
    if _heard_names(model):
        shapes |= {"heard_mean": ["batch", model.config.d_model], "heard_steps": ["batch", 1]}
    return shapes


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


def _write(graph: Any, path: Path, notes: dict[str, Any]) -> Path:
    """The checked graph, beside its place."""
    onnx = onnx_package()
    proto = onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", OPSET)], ir_version=IR_VERSION, producer_name="wavessm"
    )
    onnx.helper.set_model_props(proto, {name: json.dumps(value) for name, value in notes.items()})
    onnx.checker.check_model(proto)
    if path.is_dir():
        raise DataError(f"{path}: is a folder; give the name of a file.")
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_bytes(proto.SerializeToString())
    return part


def _keep(part: Path, path: Path, error: float, calls: int) -> Report:
    """Move a file to its place if it says what the model says."""
    if not error <= TOLERANCE:
        part.unlink()
        raise DataError(f"{path}: differs from PyTorch by {error:.2g}, more than {TOLERANCE}; not written.")
    os.replace(part, path)
    return Report(path, path.stat().st_size / 1e6, error, calls)


# -- checks -----------------------------------------------------------------------------------------------------


def _session(path: Path) -> Any:
    try:
        import onnxruntime
    except ImportError as reason:
        raise MissingExtraError("checking ONNX files needs onnxruntime: pip install 'wavessm[export]'.") from reason
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(path.read_bytes(), options, providers=["CPUExecutionProvider"])


def _example(model: SequenceModel, batch: int, length: int, seed: int) -> tuple[Tensor, Tensor | None]:
    """Random input, and marks over context and horizon where the encoder reads them."""
    config, generator = model.config, torch.Generator().manual_seed(seed)
    if config.encoder == "embedding":
        return torch.randint(cast(int, config.vocabulary), (batch, length), generator=generator), None
    shape = (batch, 2, length, config.d_input) if config.head == "pair" else (batch, length, config.d_input)
    x = torch.randn(shape, generator=generator)
    if config.encoder != "calendar":
        return x, None
    total = length + (config.horizon or 0)
    if config.mark_sizes:
        columns = [torch.randint(size, (batch, total), generator=generator) for size in config.mark_sizes]
        return x, torch.stack(columns, dim=-1)
    return x, torch.randn(batch, total, config.mark_width, generator=generator)


@torch.no_grad()
def _whole(model: SequenceModel, units: Units, x: Tensor, marks: Tensor | None, rate: float) -> np.ndarray:
    return units.after(model(units.before(x), rate=rate, marks=marks)).numpy()


def _feed(x: Tensor, marks: Tensor | None) -> dict[str, np.ndarray]:
    return {"x": x.numpy()} | ({} if marks is None else {"marks": marks.numpy()})


def _distance(got: np.ndarray, wanted: np.ndarray) -> float:
    if got.shape != wanted.shape or not np.isfinite(got).all():
        return float("inf")
    return float(np.abs(got - wanted).max() / max(1.0, np.abs(wanted).max()))


def _check_whole(path: Path, model: SequenceModel, units: Units, rate: float) -> tuple[float, int]:
    session = _session(path)
    worst, sizes = 0.0, ((1, 1), (2, 63), (3, 64), (1, 1000))
    for batch, length in sizes:
        x, marks = _example(model, batch, length, length)
        (got,) = session.run(["y"], _feed(x, marks))
        worst = max(worst, _distance(got, _whole(model, units, x, marks, rate)))
    return worst, len(sizes)


@torch.no_grad()
def _check_stream(path: Path, model: SequenceModel, units: Units, run: Run, chunks: int = 40) -> tuple[float, int]:
    """Chunk after chunk in ONNX Runtime, its own state handed on, against PyTorch's stream."""
    session = _session(path)
    worst, batch = 0.0, 2
    state = model.initial_state(batch)
    carried = {
        name: np.zeros([batch, *cast(list[int], shape[1:])], np.float32) for name, shape in _state_shapes(model).items()
    }
    for number in range(chunks):
        x, marks = _example(model, batch, run.chunk * (1 + number % 3), number)
        wanted, state = model.stream(units.before(x), state, rate=run.rate, marks=marks)
        got, *after = session.run(None, _feed(x, marks) | carried)
        worst = max(worst, _distance(got, units.after(wanted).numpy()))
        carried = dict(zip(carried, after, strict=True))
    return worst, chunks

"""Trained models for other runtimes: ONNX for whole sequences and for streams, and `torch.export`.

    export_onnx(model, path)                x (batch, length, d_input) → y; batch and length are free
    export_onnx(model, path, stream=True)   x and a state → y and the next state, for chunks of a stream
    export_closed(model, path, info)        models that were fitted in closed form, whole signals or streams
    export_torch(model, path)               a program for torch.export.load, free in batch and in length up to a largest

With the `DataInfo` of a run, files take raw numbers and return the units of the data. Each file is compared with what
`predict` computes, and written only if they agree. Next: `model_graph.py`.
"""

from __future__ import annotations

import copy
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from wavessm.data.source import DataInfo
from wavessm.errors import DataError, OptionError, check_int, check_positive, import_extra
from wavessm.export.feature_graph import chunk_of, feature_graph, line_graph
from wavessm.export.model_graph import Scan, model_graph, state_inputs
from wavessm.nn.backbones import Stack
from wavessm.nn.layer import WaveSSM
from wavessm.nn.model import SequenceModel
from wavessm.nn.streaming import SampledLayer
from wavessm.ops.convolution import convolve
from wavessm.training.closed_form import ClosedForm, FeatureNet, LineModel

OPSET, IR_VERSION = 17, 8
CHUNK = 64
TOLERANCE = 1e-4
"""Largest difference from PyTorch, relative to the largest output, that a written file may show."""
FLIPPED = 0.05
"""The same where outputs are counted above a level, as in state features."""


@dataclass(frozen=True)
class ExportReport:
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
    info: DataInfo | None = None,
    notes: dict[str, Any] | None = None,
    lengths: bool = False,
    stream: bool = False,
) -> ExportReport:
    """Write a model as an ONNX file for whole sequences or for streams, checked at several sizes or over many chunks.

    The inputs of a stream are x (batch, length, d_input), the length a multiple of `chunk`; state_0 … (batch, d_model,
    slots, 2) in float32, one per layer; and for head="pool" pooled_mean (batch, d_model) and pooled_steps (batch, 1) in
    float64. All states are zero at the start, and each returns as next_…

    Args:
        model: Any model with the backbone "wavessm", except head "pair"; for a stream a causal one.
        path: File to write.
        rate: Sampling rate of training divided by that of the input.
        chunk: Samples per row of the scan inside; changes speed and size, not the result.
        info: What is known about the data; its scaling becomes part of the file, which then takes raw numbers.
        notes: JSON values for the file's metadata, beside the config and the info.
        lengths: Add a second input (batch,) with the true lengths of padded sequences.
        stream: Take states and return the next ones.
    """
    model, data = _prepared(model, path, info)
    scan = Scan(check_int(chunk, "chunk", minimum=1), check_positive(rate, "rate"), stream)
    if model.config.head == "pair":
        raise OptionError("export: head='pair' has no ONNX form here; use torch-export.")
    if lengths and (stream or model.config.head == "forecast" or data.scaling == "recording"):
        raise OptionError("export: lengths go with whole sequences, the heads 'pool', 'last' and 'sequence', and "
                          "scaling 'global'; leave them out.")  # fmt: skip
    if stream:
        model._check_streams("export")
        if data.step_scale is not None:
            raise OptionError("export: this model scales every step by itself and cannot read a stream.")
    described = {
        "format": "wavessm-step-onnx" if stream else "wavessm-onnx", "wavessm": metadata.version("wavessm"),
        "model": model.config.to_dict(), "chunk": scan.chunk, "rate": scan.rate,
        **({} if info is None else {"info": info.to_dict()}), **(notes or {}),
    }  # fmt: skip
    content, session = _session(model_graph(model, data, scan, lengths), described)

    def run(x: Tensor, marks: Tensor | None, ends: Tensor | None) -> np.ndarray:
        return session.run(["y"], _feed(x=x, marks=marks, lengths=ends))[0]

    if stream:
        return _write(content, path, _stream_errors(session, model, data, scan))
    return _write(content, path, _errors(run, model, data, rate, ((1, 1), (2, 63), (3, 64), (1, 1000)), lengths))


def _session(graph: Any, described: dict[str, Any]) -> tuple[bytes, Any]:
    """The content of a file with a graph and its description, checked, and a session that runs it."""
    onnx = import_extra("onnx", "ONNX files", "export")
    opsets = [onnx.helper.make_opsetid("", OPSET)]
    proto = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="wavessm")
    onnx.helper.set_model_props(proto, {name: json.dumps(value) for name, value in described.items()})
    onnx.checker.check_model(proto)
    content = proto.SerializeToString()
    runtime = import_extra("onnxruntime", "checked ONNX files", "export")
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    return content, runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def export_closed(
    model: ClosedForm, path: str | Path, info: DataInfo, notes: dict[str, Any] | None = None, stream: bool = False
) -> ExportReport:
    """Write a model that was fitted in closed form as an ONNX file, checked as `export_onnx` does.

    State features count outputs above a level, so one that lies on its level may fall to the other side in other
    arithmetic: half of the checked outputs must agree within `TOLERANCE`, all of them within `FLIPPED`.

    Args:
        model: The model of a run of method "features" or "linear".
        path: File to write.
        info: What is known about the data; the file takes raw numbers.
        notes: JSON values for the file's metadata.
        stream: For state features without stretches: take the states of `stream_inputs`, all zero at the start, and
            return them as next_…; chunks are multiples of the "chunk" of the metadata.
    """
    if Path(path).is_dir():
        raise DataError(f"{path}: is a folder; give the name of a file.")
    model = copy.deepcopy(model).to("cpu")
    linear = isinstance(model, LineModel)
    if linear and stream:
        raise OptionError("export: a linear forecast reads its context, which has no stream; use --format onnx.")
    chunk = 1 if isinstance(model, LineModel) or not stream else chunk_of(model)
    state = model.initial_state(2) if isinstance(model, FeatureNet) and stream else None
    graph = line_graph(model, info) if isinstance(model, LineModel) else feature_graph(model, info, stream)
    described = {
        "format": "wavessm-step-onnx" if stream else "wavessm-onnx", "wavessm": metadata.version("wavessm"),
        "method": "linear" if linear else "features", "chunk": chunk, "info": info.to_dict(), **(notes or {}),
    }  # fmt: skip
    content, session = _session(graph, described)
    carried = {} if state is None else {node.name: np.zeros([2, *node.shape[1:]], np.float32)
                                        for node in session.get_inputs() if node.name != "x"}  # fmt: skip
    mean, std = map(torch.tensor, info.scale or ((0.0,), (1.0,)))
    errors = []
    for k, steps in enumerate((1, 2, 1, 3, 1) if stream else (1, 2, 63, 64, 257, info.length, info.length)):
        shape = 2, info.length if linear else chunk * steps, info.d_input
        x = torch.randn(*shape, generator=torch.Generator().manual_seed(k)) * std + mean
        got, *after = session.run(None, _feed(x=x) | carried)
        carried = dict(zip(carried, after, strict=True))
        with torch.no_grad():
            wanted = model(info.standardise(x)) if state is None else state.step(info.standardise(x))
        errors.append(_distance(got, info.restore(wanted)))
    if not np.median(errors) <= TOLERANCE:
        raise DataError(f"{path}: differs from PyTorch by {np.median(errors):.2g}; not written.")
    return _write(content, path, errors, FLIPPED)


def export_torch(
    model: SequenceModel, path: str | Path, max_length: int = 16384, rate: float = 1.0, info: DataInfo | None = None
) -> ExportReport:
    """Write a `torch.export` program for whole sequences up to `max_length` (at least 3), checked after reloading.

    Other arguments and the report are those of `export_onnx`; every head has this form.
    """
    model, data = _prepared(model, path, info)
    longest = check_int(max_length, "max_length", minimum=3)
    if data.step_scale is not None:
        raise OptionError("export: this model scales every step by itself, which torch-export has not; use onnx.")
    wrapped = _ConstantKernels(model, check_positive(rate, "rate"), longest, data).eval()
    batch, length = torch.export.Dim("batch", min=1), torch.export.Dim("length", min=2, max=longest)
    shapes: dict[str, Any] = {"x": {0: batch, (2 if model.config.head == "pair" else 1): length}}
    x, marks = _example(model, data, 3, min(70, longest), seed=0)
    if marks is not None:
        shapes["marks"] = {0: batch, 1: length + model.config.horizon if model.config.horizon else length}
    arguments = (x,) if marks is None else (x, marks)
    with torch.no_grad():
        program = torch.export.export(wrapped, arguments, dynamic_shapes=tuple(shapes.values()))
    content = io.BytesIO()
    torch.export.save(program, content)
    loaded = torch.export.load(io.BytesIO(content.getvalue())).module()

    def run(x: Tensor, marks: Tensor | None, ends: None) -> np.ndarray:
        return (loaded(x) if marks is None else loaded(x, marks)).detach().numpy()

    sizes = [(cases, min(steps, longest)) for cases, steps in ((1, 2), (2, 63), (3, 700))]
    return _write(content.getvalue(), path, _errors(run, model, data, rate, sizes))


class _ConstantKernel(nn.Module):
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
        times: None = None,
    ) -> Tensor:
        y = convolve(x.transpose(1, 2), cast(Tensor, self.K)[..., : x.shape[1]])
        return y.transpose(1, 2) + x * cast(Tensor, self.D)


class _ConstantKernels(nn.Module):
    """A model with constant kernels and the scaling of its data inside."""

    def __init__(self, model: SequenceModel, rate: float, max_length: int, info: DataInfo) -> None:
        super().__init__()
        self.model, self.info = copy.deepcopy(model), info
        longest = max_length + (model.config.horizon or 0) + 1
        for block in cast(Stack, self.model.backbone).blocks:
            cast(Any, block).layer = _ConstantKernel(cast(WaveSSM, block.layer), rate, longest)

    def forward(self, x: Tensor, marks: Tensor | None = None) -> Tensor:
        return self.info.restore(self.model(self.info.standardise(x), marks=marks)).float()


def _prepared(model: SequenceModel, path: str | Path, info: DataInfo | None) -> tuple[SequenceModel, DataInfo]:
    """A copy of the model on the CPU in evaluation mode, if it can be exported to that place, and its scaling."""
    if not isinstance(model, SequenceModel):
        raise OptionError(f"export: got a {type(model).__name__}, expected a SequenceModel.")
    config = model.config
    if config.backbone != "wavessm":
        raise OptionError(f"export: the backbone is {config.backbone!r}, expected 'wavessm', the one with kernels.")
    if config.missing != "error":
        raise OptionError(f"export: missing={config.missing!r} has no exported form; export a model with 'error'.")
    if any(isinstance(module, SampledLayer) for module in model.modules()):
        raise OptionError("export: this model was sampled for streams; export the one it came from.")
    info = info or DataInfo("regression", config.d_input, config.d_output, length=1)
    if (info.d_input, info.d_output) != (config.d_input, config.d_output):
        raise OptionError(f"export: info has {info.d_input} channels and {info.d_output} outputs, expected "
                          f"{config.d_input} and {config.d_output} as the model.")  # fmt: skip
    if Path(path).is_dir():
        raise DataError(f"{path}: is a folder; give the name of a file.")
    return copy.deepcopy(model).cpu().float().eval(), info


def _write(content: bytes, path: str | Path, errors: list[float], tolerance: float | None = None) -> ExportReport:
    """Write a file if it agrees with the model, by default within `TOLERANCE`."""
    tolerance = tolerance or TOLERANCE
    if not max(errors) <= tolerance:
        raise DataError(f"{path}: differs from PyTorch by {max(errors):.2g}, more than {tolerance}; not written.")
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return ExportReport(path, len(content) / 1e6, max(errors), len(errors))


def _errors(
    run: Callable[..., np.ndarray],
    model: SequenceModel,
    info: DataInfo,
    rate: float,
    sizes: Sequence[tuple[int, int]],
    lengths: bool = False,
) -> list[float]:
    """Distances between a file and what `predict` computes, for whole sequences of several (batch, length)."""
    errors = []
    for batch, length in sizes:
        x, marks = _example(model, info, batch, length, seed=length)
        ends = torch.linspace(1, x.shape[1], batch).long() if lengths else None
        with torch.no_grad():
            wanted = info.restore(model(info.standardise(x), ends, rate, marks))
        errors.append(_distance(run(x, marks, ends), wanted))
    return errors


def _stream_errors(session: Any, model: SequenceModel, info: DataInfo, scan: Scan) -> list[float]:
    """Distances between a file and the model, chunk after chunk of a stream, each with its own state."""
    state, errors = model.initial_state(2), []
    carried = {n: np.zeros([2, *cast(list[int], shape[1:])], t) for n, (t, shape) in state_inputs(model).items()}
    for number in range(40):
        x, marks = _example(model, info, 2, scan.chunk * (1 + number % 3), seed=number)
        with torch.no_grad():
            wanted, state = model.stream(info.standardise(x, stream=True), state, rate=scan.rate, marks=marks)
        got, *after = session.run(None, _feed(x=x, marks=marks) | carried)
        errors.append(_distance(got, info.restore(wanted)))
        carried = dict(zip(carried, after, strict=True))
    return errors


def _distance(got: np.ndarray, wanted: Tensor) -> float:
    expected = wanted.numpy()
    if got.shape != expected.shape or not np.isfinite(got).all():
        return float("inf")
    return float(np.abs(got - expected).max() / max(1.0, np.abs(expected).max()))


def _feed(**tensors: Tensor | None) -> dict[str, np.ndarray]:
    return {name: tensor.numpy() for name, tensor in tensors.items() if tensor is not None}


def _example(model: SequenceModel, info: DataInfo, batch: int, length: int, seed: int) -> tuple[Tensor, Tensor | None]:
    """Random input, and marks over context and horizon where the encoder reads them."""
    config, generator = model.config, torch.Generator().manual_seed(seed)
    length = length if info.step_scale is None else min(length, len(info.step_scale[0]))
    shape = (batch, 2, length) if config.head == "pair" else (batch, length)
    if config.encoder == "embedding":
        return torch.randint(cast(int, config.vocabulary), shape, generator=generator), None
    x = torch.randn(*shape, config.d_input, generator=generator)
    if config.encoder != "calendar":
        return x, None
    shape = batch, length + (config.horizon or 0)
    if config.mark_sizes:
        return x, torch.stack([torch.randint(size, shape, generator=generator) for size in config.mark_sizes], dim=-1)
    return x, torch.randn(*shape, config.mark_width, generator=generator)

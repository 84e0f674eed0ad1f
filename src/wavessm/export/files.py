"""Trained models as ONNX files.

    export_onnx(model, path)                x (batch, length, d_input) → y; batch and length are free
    export_onnx(model, path, stream=True)   x and states → y and the next states, for chunks of a stream

With the `DataInfo` of a run, files take raw numbers and return the units of the data. Each file is compared with what
`predict` computes, and written only if they agree. Next: `model_graph.py`, `feature_graph.py`.
"""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from wavessm.data.source import DataInfo
from wavessm.errors import DataError, OptionError, check_int, check_positive, import_extra
from wavessm.export.feature_graph import chunk_of, feature_graph, line_graph
from wavessm.export.model_graph import Scan, model_graph
from wavessm.features import FeatureModel
from wavessm.nn.model import SequenceModel
from wavessm.nn.streaming import SampledLayer
from wavessm.training.line_model import LineModel

OPSET, IR_VERSION = 17, 8
CHUNK = 64
TOLERANCE = 1e-4
"""Largest difference from PyTorch, relative to the largest output, that a written file may show."""
FLIPPED = 0.05
"""The same of state features, which count outputs above a level: one that lies on its level may fall to the other side
in other arithmetic. The median of the differences is held to `TOLERANCE`."""
_TYPES = {"tensor(float)": np.float32, "tensor(double)": np.float64}


@dataclass(frozen=True)
class ExportReport:
    """A written file and how far it is from PyTorch."""

    path: Path
    megabytes: float
    error: float  # largest |difference| / max(1, largest |output|)
    calls: int  # batches or chunks compared


def export_onnx(
    model: SequenceModel | FeatureModel | LineModel,
    path: str | Path,
    rate: float = 1.0,
    chunk: int = CHUNK,
    info: DataInfo | None = None,
    stream: bool = False,
) -> ExportReport:
    """Write a model as an ONNX file for whole sequences or for streams, checked at several sizes or over many chunks.

    The inputs of a stream are x (batch, length, d_input), the length a multiple of the "chunk" of the metadata, and
    states, all zero at the start, that return as next_…: state_0 … (batch, d_model, slots, 2) in float32, one per
    layer, and for head="pool" pooled_mean (batch, d_model) and pooled_steps (batch, 1) in float64; of state features
    those of `feature_graph.stream_inputs`.

    Args:
        model: A `SequenceModel` with the head "pool", "last" or "sequence", for a stream a causal one; or the model of
            a run that was fitted in closed form, for a stream state features without stretches.
        path: File to write.
        rate: Sampling rate of training divided by that of the input.
        chunk: Samples per row of the scan inside; changes speed and size, not the result.
        info: What is known about the data; its scaling becomes part of the file, which then takes raw numbers.
        stream: Take states and return the next ones.
    """
    model, info = _prepared(model, path, info)
    rate, chunk = check_positive(rate, "rate"), check_int(chunk, "chunk", minimum=1)
    if not isinstance(model, SequenceModel) and (rate, chunk) != (1.0, CHUNK):
        raise OptionError("export: rate and chunk go with gradient training; this model was fitted in closed form.")
    if info.front_end != "none" and stream:
        raise OptionError("export: log energies have no form for streams; use --format onnx, or --front-end none.")
    if isinstance(model, LineModel) and stream:
        raise OptionError("export: a linear forecast reads its context, which has no stream; use --format onnx.")
    state = cast(Any, model).initial_state(2) if stream else None
    about: dict[str, Any]
    if isinstance(model, SequenceModel):
        graph, about = model_graph(model, info, Scan(chunk, rate, stream)), {"model": model.config.to_dict()}
    elif isinstance(model, LineModel):
        graph, about = line_graph(model, info), {"method": "linear"}
    else:
        graph, about = feature_graph(model, info, stream), {"method": "features"}
        chunk = chunk_of(model)
    about |= {"format": "wavessm-step-onnx" if stream else "wavessm-onnx", "wavessm": metadata.version("wavessm"),
              "chunk": chunk, "rate": rate, "info": info.to_dict()}  # fmt: skip
    content, session = _session(graph, about)
    sizes = [(1, 1), (2, 63), (3, 64), (2, info.length), (1, 1000)]
    if stream:
        sizes = [(2, chunk * (1 + k % 3)) for k in range(12)]
    elif isinstance(model, LineModel):
        sizes = [(1, info.length), (2, info.length)]
    errors = _errors(session, model, info, rate, sizes, state)
    worst = float(np.median(errors)) if isinstance(model, FeatureModel) else max(errors)
    if not worst <= TOLERANCE or not max(errors) <= FLIPPED:
        raise DataError(f"{path}: differs from PyTorch by {worst:.2g}, more than {TOLERANCE}; not written.")
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return ExportReport(path, len(content) / 1e6, max(errors), len(errors))


def _prepared(model: Any, path: str | Path, info: DataInfo | None) -> tuple[Any, DataInfo]:
    """A copy of the model on the CPU in evaluation mode, if it can be exported to that place, and its scaling."""
    if Path(path).is_dir():
        raise DataError(f"{path}: is a folder; give the name of a file.")
    if isinstance(model, FeatureModel | LineModel) and info is not None:
        return copy.deepcopy(model).to("cpu"), info
    if not isinstance(model, SequenceModel):
        raise OptionError(f"export: got a {type(model).__name__}, expected a SequenceModel, or a closed form and info.")
    config = model.config
    info = info or DataInfo("regression", config.d_input, config.d_output, length=1)
    problems = {
        "head='pair' has no ONNX form": config.head == "pair",
        "forecasts trained by gradient have no ONNX form; those of --method linear do": config.head == "forecast",
        "encoder='calendar' has no ONNX form": config.encoder == "calendar",
        f"missing={config.missing!r} has no ONNX form; fill NaN, train with 'error'": config.missing != "error",
        "this model was sampled for streams; export the one it came from": any(
            isinstance(module, SampledLayer) for module in model.modules()
        ),
        f"info has {info.width} channels and {info.d_output} outputs, expected {config.d_input} and "
        f"{config.d_output} as the model": (info.width, info.d_output) != (config.d_input, config.d_output),
    }
    for problem, applies in problems.items():
        if applies:
            raise OptionError(f"export: {problem}.")
    return copy.deepcopy(model).cpu().float().eval(), info


def _session(graph: Any, about: dict[str, Any]) -> tuple[bytes, Any]:
    """The content of a file with a graph and its metadata, checked, and a session that runs it."""
    onnx = import_extra("onnx", "ONNX files", "export")
    opsets = [onnx.helper.make_opsetid("", OPSET)]
    proto = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="wavessm")
    onnx.helper.set_model_props(proto, {name: json.dumps(value) for name, value in about.items()})
    onnx.checker.check_model(proto)
    content = proto.SerializeToString()
    runtime = import_extra("onnxruntime", "checked ONNX files", "export")
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    return content, runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


@torch.no_grad()
def _errors(
    session: Any, model: Any, info: DataInfo, rate: float, sizes: list[tuple[int, int]], state: Any
) -> list[float]:
    """Distances between a file and the model for batches of (cases, length); with a state, chunks of one stream."""
    errors = []
    inputs = [node for node in session.get_inputs() if node.name != "x"]
    carried = {node.name: np.zeros([2, *node.shape[1:]], _TYPES[node.type]) for node in inputs}
    mean, std = map(torch.tensor, info.scale or ((0.0,), (1.0,)))
    for seed, (batch, length) in enumerate(sizes):
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(batch, length, info.d_input, generator=generator) * std + mean
        if isinstance(model, SequenceModel) and model.config.vocabulary is not None:
            x = torch.randint(model.config.vocabulary, (batch, length), generator=generator)
        if state is None:
            wanted = model(info.standardise(x), rate=rate)
        else:
            wanted, state = model.stream(info.standardise(x, stream=True), state, rate=rate)
        got, *after = session.run(None, {"x": x.numpy(), **carried})
        carried = dict(zip(carried, after, strict=True))
        expected = info.restore(wanted).numpy()
        distance = np.abs(got - expected).max() / max(1.0, np.abs(expected).max())
        errors.append(float(distance) if np.isfinite(distance) else np.inf)
    return errors

"""Stage 9m: an exported file against the model it came from: it takes its place only if it says the same."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from wavessm.errors import DataError, MissingExtraError
from wavessm.export.onnx_model import Run
from wavessm.nn.backbones import Stack
from wavessm.nn.layer import WaveSSM
from wavessm.nn.model import SequenceModel

TOLERANCE = 1e-4
"""Largest difference from PyTorch, relative to the largest output, that a written file may show."""


@dataclass(frozen=True)
class Units:
    """What a file does to numbers before the model, (x − mean) / scale, and after it, y · scale + mean."""

    mean: Sequence[float] = (0.0,)
    scale: Sequence[float] = (1.0,)
    output_mean: Sequence[float] = (0.0,)
    output_scale: Sequence[float] = (1.0,)

    @property
    def change_input(self) -> bool:
        return (tuple(self.mean), tuple(self.scale)) != ((0.0,), (1.0,))

    @property
    def change_output(self) -> bool:
        return (tuple(self.output_mean), tuple(self.output_scale)) != ((0.0,), (1.0,))

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


def heard_names(model: SequenceModel) -> list[str]:
    return ["heard_mean", "heard_steps"] if model.config.head == "pool" else []


def state_shapes(model: SequenceModel) -> dict[str, list[str | int]]:
    shapes: dict[str, list[str | int]] = {}
    for number, block in enumerate(cast(Stack, model.backbone).blocks):
        layer = cast(WaveSSM, block.layer)
        shapes[f"state_{number}"] = ["batch", layer.d_model, layer.n_slots, 2]
    if heard_names(model):
        shapes |= {"heard_mean": ["batch", model.config.d_model], "heard_steps": ["batch", 1]}
    return shapes


def keep(part: Path, path: Path, error: float, calls: int) -> Report:
    """Move a file to its place if it says what the model says."""
    if not error <= TOLERANCE:
        part.unlink()
        raise DataError(f"{path}: differs from PyTorch by {error:.2g}, more than {TOLERANCE}; not written.")
    os.replace(part, path)
    return Report(path, path.stat().st_size / 1e6, error, calls)


def _session(path: Path) -> Any:
    try:
        import onnxruntime
    except ImportError as reason:
        raise MissingExtraError("checking ONNX files needs onnxruntime: pip install 'wavessm[export]'.") from reason
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(path.read_bytes(), options, providers=["CPUExecutionProvider"])


def example(model: SequenceModel, batch: int, length: int, seed: int) -> tuple[Tensor, Tensor | None]:
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
def whole_output(model: SequenceModel, units: Units, x: Tensor, marks: Tensor | None, rate: float) -> np.ndarray:
    return units.after(model(units.before(x), rate=rate, marks=marks)).numpy()


def _feed(x: Tensor, marks: Tensor | None) -> dict[str, np.ndarray]:
    return {"x": x.numpy()} | ({} if marks is None else {"marks": marks.numpy()})


def distance(got: np.ndarray, wanted: np.ndarray) -> float:
    if got.shape != wanted.shape or not np.isfinite(got).all():
        return float("inf")
    return float(np.abs(got - wanted).max() / max(1.0, np.abs(wanted).max()))


@torch.no_grad()
def check_whole(
    path: Path, model: SequenceModel, units: Units, rate: float, lengths: bool = False
) -> tuple[float, int]:
    """Whole sequences in ONNX Runtime, of several lengths in one batch if the file takes them. → worst, calls"""
    session = _session(path)
    worst, sizes = 0.0, ((1, 1), (2, 63), (3, 64), (1, 1000))
    for batch, length in sizes:
        x, marks = example(model, batch, length, length)
        ends = torch.linspace(1, length, batch).long() if lengths else None
        (got,) = session.run(["y"], _feed(x, marks) | ({} if ends is None else {"lengths": ends.numpy()}))
        wanted = units.after(model(units.before(x), ends, rate, marks))
        worst = max(worst, distance(got, wanted.numpy()))
    return worst, len(sizes)


@torch.no_grad()
def check_stream(path: Path, model: SequenceModel, units: Units, run: Run, chunks: int = 40) -> tuple[float, int]:
    """Chunk after chunk in ONNX Runtime, its own state handed on, against PyTorch's stream."""
    session = _session(path)
    worst, batch = 0.0, 2
    state = model.initial_state(batch)
    carried = {
        name: np.zeros([batch, *cast(list[int], shape[1:])], np.float32) for name, shape in state_shapes(model).items()
    }
    for number in range(chunks):
        x, marks = example(model, batch, run.chunk * (1 + number % 3), number)
        wanted, state = model.stream(units.before(x), state, rate=run.rate, marks=marks)
        got, *after = session.run(None, _feed(x, marks) | carried)
        worst = max(worst, distance(got, units.after(wanted).numpy()))
        carried = dict(zip(carried, after, strict=True))
    return worst, chunks

"""`wavessm export RUN --format …`: a trained model for other runtimes, checked against PyTorch."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tyro.conf import Positional

from wavessm.cli.parse import parse
from wavessm.errors import OptionError

if TYPE_CHECKING:
    from wavessm.nn.pretrained import Card
    from wavessm.training import Run

_SUFFIX = {"onnx": "onnx", "step-onnx": "step.onnx", "torch-export": "pt2", "pretrained": "pretrained"}
_FORMATS = {
    "rate": ("onnx", "step-onnx", "torch-export"),
    "chunk": ("onnx", "step-onnx"),
    "lengths": ("onnx",),
    "max_length": ("torch-export",),
}
"""Formats that an option goes with; the others go with all."""


@dataclasses.dataclass(frozen=True)
class ExportOptions:
    """Write a trained model for other runtimes. Its files take raw numbers, in the units of the data."""

    run: Positional[Path]
    """Run folder of `wavessm train`."""
    format: Literal["onnx", "step-onnx", "torch-export", "pretrained"] = "onnx"
    """Whole sequences (onnx, torch-export), chunks of a stream (step-onnx), or a folder to publish (pretrained)."""
    out: Path | None = None
    """File to write, or folder; inside the run folder if not given."""
    rate: float = 1.0
    """The model's rate: K if its input will be every K-th sample of what it was trained on."""
    chunk: int = 64
    """ONNX: samples in a row of the scan; a stream's chunks are multiples of it, 1 allows any."""
    lengths: bool = False
    """onnx: a second input (batch,) takes the true lengths of padded sequences."""
    max_length: int = 16384
    """torch-export: longest sequence."""
    checkpoint: Literal["best", "last"] = "best"
    """Which model."""


def main(arguments: list[str]) -> int:
    """Run `wavessm export`; returns the exit status."""
    given = parse(ExportOptions, arguments, "wavessm export")
    from wavessm.export import export_closed, export_onnx, export_torch
    from wavessm.nn.pretrained import save_model
    from wavessm.training import Run

    for field in dataclasses.fields(given):
        formats = _FORMATS.get(field.name, (given.format,))
        if getattr(given, field.name) != field.default and given.format not in formats:
            option = f"--{field.name.replace('_', '-')}"
            raise OptionError(f"{option} goes with --format {' or '.join(formats)}, got {given.format}; leave it out.")
    run = Run.read(given.run)
    if run.method != "gradient":
        _check_closed(given, run.method)
    model = run.load_model(given.checkpoint)
    out = given.out or given.run / f"model.{_SUFFIX[given.format]}"
    if given.format == "pretrained":
        print(save_model(model, out, _card(run), {"info": run.info.to_dict()}))
        return 0
    stream, notes = given.format == "step-onnx", {"task": run.task}
    if given.format == "torch-export":
        report = export_torch(model, out, given.max_length, given.rate, run.info)
    elif run.method != "gradient":
        report = export_closed(model, out, run.info, notes, stream)
    else:
        report = export_onnx(model, out, given.rate, given.chunk, run.info, notes, given.lengths, stream)
    compared = "chunks of a stream" if stream else "batches"
    print(f"{report.path}: {report.megabytes:.2f} MB; differs from PyTorch by {report.error:.1e} at most "
          f"over {report.calls} {compared}")  # fmt: skip
    if run.task == "wav":
        any_level = run.info.scaling == "recording" and not stream
        print("its input is float32, " + ("of any level: int16 samples as they are, or [-1, 1]" if any_level else
              "in [-1, 1]: divide int16 samples by 32768"))  # fmt: skip
    return 0


def _check_closed(given: ExportOptions, method: str) -> None:
    """Refuse what a model that was fitted in closed form cannot be written as."""
    if given.format not in ("onnx", "step-onnx"):
        raise OptionError(f"{given.run} was fitted by method {method}, which has no form {given.format}; use onnx.")
    if (given.rate, given.chunk, given.lengths) != (1.0, 64, False):
        raise OptionError(f"--rate, --chunk and --lengths go with gradient training, the method is {method}.")


def _card(run: Run) -> Card:
    """The card of a run: its task, its data, its test scores."""
    from wavessm.nn.pretrained import Card

    info, result = run.info, run.folder / "result.json"
    content = json.loads(result.read_text()) if result.is_file() else {}
    names = f"Classes: {', '.join(info.classes)}." if info.classes else ""
    if info.scaling == "recording":
        scaled = "Scale each recording first: subtract its mean, divide by its RMS."
    else:
        scaled = f"Scale it first: (x − {list(info.scale[0])}) / {list(info.scale[1])}." if info.scale else ""
    return Card(
        task=f"{info.kind}: `{run.task}`. {names}".strip(),
        data=f"`{run.task}`, {info.d_input} channel(s), {info.length} samples; recipe `{run.recipe_name}`.",
        metrics={name.replace("_", " "): value for name, value in content.items() if name.startswith("test_")},
        use=f"Input is (batch, length, channels). {scaled}".strip(),
    )

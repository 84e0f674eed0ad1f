"""`wavessm export RUN --format …`: a trained model for other runtimes, checked against PyTorch."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Literal

from wavessm.cli.parse import parse, run_first
from wavessm.errors import OptionError
from wavessm.export import CHUNK, export_onnx, export_torch
from wavessm.nn.pretrained import Card, save_model
from wavessm.training.run import Run

SUFFIX = {"onnx": "onnx", "step-onnx": "step.onnx", "torch-export": "pt2", "pretrained": "pretrained"}


@dataclasses.dataclass(frozen=True)
class Options:
    run: Path
    """Run folder."""
    format: Literal["onnx", "step-onnx", "torch-export", "pretrained"] = "onnx"
    """Whole sequences (onnx, torch-export), chunks of a stream (step-onnx), or a folder to publish (pretrained)."""
    out: Path | None = None
    """File to write, or folder; inside the run folder if not given."""
    every: float = 1.0
    """The model's rate: it hears every K-th sample of what it was trained on."""
    chunk: int = CHUNK
    """ONNX: samples in a row of the scan; a stream's chunks are multiples of it, 1 takes any."""
    lengths: bool = False
    """onnx: a second input (batch,) takes the true lengths of padded sequences."""
    max_length: int = 16384
    """torch-export: longest sequence."""
    checkpoint: Literal["best", "last"] = "best"
    """Which model."""


def main(arguments: list[str]) -> int:
    about = "Write a trained model for other runtimes. Files take raw numbers, in the units of the data."
    given = parse(Options, None, run_first(arguments, "export"), "wavessm export RUN", about)
    run = Run.read(given.run)
    model = run.load_model(given.checkpoint)
    out = given.out or given.run / f"model.{SUFFIX[given.format]}"
    if given.format == "pretrained":
        if given.every != 1:
            raise OptionError("--every goes with the other formats; a folder's model takes its rate when it is called.")
        print(save_model(model, out, card_of(run), {"info": run.info.to_dict()}))
        return 0
    notes = {"task": run.task}
    if given.lengths and given.format != "onnx":
        raise OptionError(f"--lengths goes with --format onnx, got {given.format}; leave it out.")
    if given.format == "torch-export":
        report = export_torch(model, out, given.max_length, given.every, run.info)
    else:
        stream = given.format == "step-onnx"
        report = export_onnx(model, out, given.every, given.chunk, run.info, notes, given.lengths, stream)
    compared = "chunks of a stream" if given.format == "step-onnx" else "batches"
    print(f"{report.path}: {report.megabytes:.2f} MB; differs from PyTorch by {report.error:.1e} at most "
          f"over {report.calls} {compared}")  # fmt: skip
    return 0


def card_of(run: Run) -> Card:
    """The card of a run: its task, its data, its test scores."""
    info, result = run.info, run.folder / "result.json"
    content = json.loads(result.read_text()) if result.is_file() else {}
    scores = {name.replace("_", " "): value for name, value in content.items() if name.startswith("test_")}
    names = f"Classes: {', '.join(info.classes)}." if info.classes else ""
    scaled = f"Scale it first: (x − {list(info.scale[0])}) / {list(info.scale[1])}." if info.scale else ""
    return Card(
        task=f"{info.kind}: `{run.task}`. {names}".strip(),
        data=f"`{run.task}`, {info.d_input} channel(s), {info.length} samples; recipe `{run.recipe_name}`.",
        metrics=scores,
        use=f"Input is (batch, length, channels). {scaled}".strip(),
    )

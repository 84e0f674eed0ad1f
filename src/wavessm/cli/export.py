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
    from wavessm.training import Run


@dataclasses.dataclass(frozen=True)
class ExportOptions:
    """Write a trained model for other runtimes. Its files take raw numbers, in the units of the data."""

    run: Positional[Path]
    """Run folder of `wavessm train`."""
    format: Literal["onnx", "step-onnx", "pretrained"] = "onnx"
    """Whole sequences (onnx), chunks of a stream (step-onnx), or a folder to publish (pretrained)."""
    out: Path | None = None
    """File to write, or folder; inside the run folder if not given."""
    rate: float = 1.0
    """The model's rate: K if its input will be every K-th sample of what it was trained on."""
    chunk: int = 64
    """ONNX: samples in a row of the scan; a stream's chunks are multiples of it, 1 allows any."""
    half: bool = False
    """pretrained: store matrices as float16, which halves the file."""


def main(arguments: list[str]) -> int:
    """Run `wavessm export`; returns the exit status."""
    given = parse(ExportOptions, arguments, "wavessm export")
    from wavessm.export import export_onnx
    from wavessm.training import Run

    run = Run.read(given.run, unlabelled=given.format == "pretrained")
    out, stream = given.out or given.run / f"model.{given.format.replace('-', '.')}", given.format == "step-onnx"
    if given.format == "pretrained":
        if run.method != "gradient":
            raise OptionError(f"{given.run} was fitted by method {run.method}, which has no form pretrained; use onnx.")
        if (given.rate, given.chunk) != (1.0, 64):
            raise OptionError("--rate and --chunk go with --format onnx or step-onnx, got pretrained; leave them out.")
        print(_save(run, out, given.half))
        return 0
    if given.half:
        raise OptionError(f"--half goes with --format pretrained, got {given.format}; leave it out.")
    report = export_onnx(run.load_model(), out, given.rate, given.chunk, run.info, stream)
    compared = "chunks of a stream" if stream else "batches"
    print(f"{report.path}: {report.megabytes:.2f} MB; differs from PyTorch by {report.error:.1e} at most "
          f"over {report.calls} {compared}")  # fmt: skip
    if run.task == "wav":
        any_level = run.info.scaling == "recording" and not stream
        print("its input is float32, " + ("of any level: int16 samples as they are, or [-1, 1]" if any_level else
              "in [-1, 1]: divide int16 samples by 32768"))  # fmt: skip
    return 0


def _save(run: Run, out: Path, half: bool) -> Path:
    """Write a model folder with all that prediction and fine-tuning need, and a card of task, data and scores."""
    from wavessm.nn.pretrained import Card, save_model

    result, info = run.folder / "result.json", run.info
    content = json.loads(result.read_text()) if result.is_file() else {}
    names = f"Classes: {', '.join(info.classes)}." if info.classes else ""
    if info.scaling == "recording":
        scaled = "Scale each recording first: subtract its mean, divide by its RMS."
    else:
        scaled = f"Scale it first: (x − {list(info.scale[0])}) / {list(info.scale[1])}." if info.scale else ""
    card = Card(
        task=f"{info.kind}: `{run.task}`. {names}".strip(),
        data=f"`{run.task}`, {info.d_input} channel(s), {info.length} samples; recipe `{run.recipe_name}`.",
        metrics={name.replace("_", " "): value for name, value in content.items() if name.startswith("test_")},
        use=f"Input is (batch, length, channels). {scaled}".strip(),
    )
    extra = {"task": run.task, "objective": run.config.objective, "info": info.to_dict()}
    extra |= {name: content[name] for name in ("thresholds",) if name in content}
    return save_model(run.load_model(), out, card, extra, half)

"""Size, parity and latency of exported models beside PyTorch with tables kept (`ws.sampled`), on one thread.

    python benchmarks/export.py --out results/export

Every file is compared with PyTorch before it is timed; a file that differs is not written, and has no row.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch

import wavessm as ws
from common import Row, arguments, median_ms, report
from wavessm.export import export_onnx

MODELS = {
    "wavessm-small": ("wavessm-small", {}),
    "wavessm-small, legs": ("wavessm-small", {"family": "legs"}),
    "wavessm-speech, one direction": ("wavessm-speech", {"bidirectional": False}),
}
LENGTH, CHUNK, CPU = 1000, 64, torch.device("cpu")


def session(path: Path) -> onnxruntime.InferenceSession:
    """ONNX Runtime on one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def measure(name: str, folder: Path) -> list[Row]:
    """A row for the file of whole sequences and one for the file of chunks."""
    preset, changes = MODELS[name]
    torch.manual_seed(0)
    model = ws.create_model(preset, **changes).eval()
    d, size = model.config.d_input, sum(p.numel() for p in model.parameters())
    kept: Any = ws.sampled(model)
    rows = []
    for form, length in (("onnx", LENGTH), ("step-onnx", CHUNK)):
        written = export_onnx(model, folder / f"{form}.onnx", chunk=CHUNK, stream=form == "step-onnx")
        run, x = session(written.path), torch.randn(1, length, d)
        types = {"tensor(float)": np.float32, "tensor(double)": np.float64}
        feed = {e.name: np.zeros([1, *e.shape[1:]], types[e.type]) for e in run.get_inputs() if e.name != "x"}
        feed["x"] = x.numpy()
        state = model.initial_state(1)
        with torch.no_grad():
            plain = (lambda: kept(x)) if form == "onnx" else (lambda: kept.stream(x, state))  # noqa: B023
            torch_ms = median_ms(plain, CPU, repeats=15)
        rows.append({
            "model": name, "format": form, "samples": length, "parameters": size, "megabytes": written.megabytes,
            "largest_difference": written.error, "compared": written.calls,
            "onnxruntime_ms": median_ms(lambda: run.run(None, feed), CPU, repeats=15),  # noqa: B023
            "torch_sampled_ms": torch_ms,
        })  # fmt: skip
    return rows


def main() -> None:
    given = arguments(__doc__, "results/export").parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        rows = [row for name in MODELS for row in measure(name, Path(folder))]
    report(rows, given.out / "latency.csv", "export.py")


if __name__ == "__main__":
    main()

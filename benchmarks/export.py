"""Size, parity and latency of exported models beside PyTorch with tables kept (`ws.sampled`), on one thread.

    python benchmarks/export.py --out results/export

Every file is compared with PyTorch before it is timed; a file that differs is not written, and has no row.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch

import wavessm as ws
from wavessm.export import export_onnx, export_step_onnx
from wavessm.training.record import provenance, write_csv

MODELS = {
    "wavessm-small": ("wavessm-small", {}),
    "wavessm-small, legs": ("wavessm-small", {"family": "legs"}),
    "wavessm-speech, one direction": ("wavessm-speech", {"bidirectional": False}),
}
LENGTH, CHUNK, REPEATS = 1000, 64, 15


def median_ms(call: Callable[[], object]) -> float:
    """Median of repeated calls after two to warm up."""
    times = []
    for _ in range(REPEATS + 2):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return 1e3 * float(np.median(times[2:]))


def session(path: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def measure(name: str, folder: Path) -> list[dict[str, object]]:
    preset, changes = MODELS[name]
    torch.manual_seed(0)
    model = ws.create_model(preset, **changes).eval()
    d, size = model.config.d_input, sum(p.numel() for p in model.parameters())
    kept: Any = ws.sampled(model)
    rows = []
    for form, write, length in (("onnx", export_onnx, LENGTH), ("step-onnx", export_step_onnx, CHUNK)):
        report = write(model, folder / f"{form}.onnx", chunk=CHUNK)
        run, x = session(report.path), torch.randn(1, length, d)
        feed = {e.name: np.zeros([1, *e.shape[1:]], np.float32) for e in run.get_inputs() if e.name != "x"}
        feed["x"] = x.numpy()
        state = model.initial_state(1)
        with torch.no_grad():
            plain = (lambda: kept(x)) if form == "onnx" else (lambda: kept.stream(x, state))  # noqa: B023
            torch_ms = median_ms(plain)
        rows.append({
            "model": name, "format": form, "samples": length, "parameters": size, "megabytes": report.megabytes,
            "largest_difference": report.error, "compared": report.calls,
            "onnxruntime_ms": median_ms(lambda: run.run(None, feed)), "torch_sampled_ms": torch_ms,  # noqa: B023
        })  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/export"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        rows = [row for name in MODELS for row in measure(name, Path(folder))]
    write_csv(given.out / "latency.csv", rows)
    (given.out / "PROVENANCE.md").write_text(f"latency.csv: {provenance('python benchmarks/export.py')}.\n")
    for row in rows:
        print(row)


if __name__ == "__main__":
    main()

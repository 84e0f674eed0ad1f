"""Run an exported streaming model on a live signal with NumPy and ONNX Runtime alone; no PyTorch, no wavessm.

    wavessm export runs/mine --format step-onnx --chunk 20
    python examples/stream_onnx.py runs/mine/model.step.onnx

Any source of samples will do: here noise with a tone arrives in chunks, as a sound card would deliver it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

import numpy as np
import onnxruntime


def live(channels: int, chunk: int, chunks: int = 10) -> Iterator[np.ndarray]:
    """Chunks (1, chunk, channels) as they come in."""
    random, t = np.random.default_rng(0), np.arange(chunk)
    for number in range(chunks):
        tone = np.sin(2 * np.pi * 0.08 * (t + number * chunk))[:, None] * (number >= 3)
        yield (tone + 0.2 * random.standard_normal((chunk, channels)))[None].astype(np.float32)


def main(path: str) -> np.ndarray:
    model = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    notes = {name: json.loads(text) for name, text in model.get_modelmeta().custom_metadata_map.items()}
    names = [entry.name for entry in model.get_inputs() if entry.name != "x"]
    types = {"tensor(float)": np.float32, "tensor(double)": np.float64}
    state = {e.name: np.zeros([1, *e.shape[1:]], types[e.type]) for e in model.get_inputs() if e.name != "x"}
    classes = notes.get("info", {}).get("classes") or range(notes["model"]["d_output"])
    logits = np.zeros((1, len(classes)), np.float32)
    for chunk in live(notes["model"]["d_input"], notes["chunk"]):
        logits, *after = model.run(None, {"x": chunk, **state})
        state = dict(zip(names, after, strict=True))
        chances = np.exp(logits[0] - logits[0].max())
        print("  ".join(f"{name} {p:.2f}" for name, p in zip(classes, chances / chances.sum(), strict=True)))
    return logits


if __name__ == "__main__":
    main(sys.argv[1])

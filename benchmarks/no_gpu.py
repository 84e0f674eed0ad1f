"""A GPU that does nothing: kernels are compiled for Hopper and launched as ever, but nothing runs them.

    PYTHONPATH=FOLDER/src python benchmarks/no_gpu.py --out registers.csv [--shapes listops pathx]

writes what each kernel of a scan and its gradients takes at the shapes of `engine.py`, for the `wavessm` in FOLDER
(another revision, for instance): registers, shared memory, instructions, those that move spilled registers, and both
again for its longest loop, read from the machine code by the tools in Triton's package.
"""

from __future__ import annotations

import argparse
import csv
import re
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver

INSTRUCTION = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(.*?);")
SPILLED = re.compile(r"\b(?:LDL|STL)\b")
SETTINGS = ("M", "N", "R", "P", "Q", "REVERSE", "DIRECTION", "DIRECTIONS", "ADD")
Launch = tuple[str, tuple[int, ...], tuple]  # kernel, grid, arguments


class NoGPU:
    """The driver that Triton asks for its launches. `launched` is told of each."""

    def __init__(self, launched: Callable[[Launch], None]) -> None:
        self.launched, self.utils = launched, self

    def launcher_cls(self, source: Any, metadata: Any) -> Callable:
        """What calls a compiled kernel."""

        def launch(x: int, y: int, z: int, stream: int, function: int, *others: Any) -> None:
            self.launched((metadata.name, (x, y, z), others[4:]))  # after metadata and hooks

        return launch

    def load_binary(self, name: str, binary: bytes, shared: int, device: int) -> tuple[int, ...]:
        """A module, a function, its registers and spills, and the threads it may have."""
        return 1, 1, 32, 0, 1024

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": 232_448, "multiprocessor_count": 132, "warpSize": 32}

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int | None = None) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def unload_module(self, module: int) -> None:
        pass


def pretend(launched: Callable[[Launch], None]) -> None:
    """Let the kernels of `wavessm` take tensors of the CPU and launch to nothing, until the process ends."""
    from wavessm.ops.triton import scan

    driver.set_active(NoGPU(launched))
    scan.unavailable = lambda u, layer=None: None


class Inspector(NoGPU):
    """Notes in `seen` what each kernel takes that is launched."""

    def __init__(self) -> None:
        super().__init__(lambda launch: None)
        self.loaded: list[dict[str, int]] = []
        self.seen: dict[int, dict[str, Any]] = {}

    def launcher_cls(self, source: Any, metadata: Any) -> Callable:
        names = source.fn.arg_names
        given = {key if isinstance(key, str) else names[key[0]]: value for key, value in source.constants.items()}
        row = {
            "kernel": metadata.name,
            "settings": " ".join(f"{name}={int(given[name])}" for name in SETTINGS if name in given),
            "warps": metadata.num_warps, "stages": metadata.num_stages, "shared": metadata.shared,
        }  # fmt: skip

        def launch(x: int, y: int, z: int, stream: int, function: int, *others: Any) -> None:
            self.seen[function] = row | self.loaded[function]

        return launch

    def load_binary(self, name: str, binary: bytes, shared: int, device: int) -> tuple[int, ...]:
        self.loaded.append(resources(binary))
        return 1, len(self.loaded) - 1, 32, 0, 1024


def resources(binary: bytes) -> dict[str, int]:
    """What the machine code of one kernel takes, and its longest loop."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
        used, code = (
            subprocess.run([tool, option, file.name], capture_output=True, text=True, check=True).stdout
            for option in ("-res-usage", "-sass")
        )
    lines = [(int(place, 16), text) for place, text in INSTRUCTION.findall(code)]
    jumps = [(int(to[1], 16), place) for place, text in lines if (to := re.search(r"\bBRA\b.*(0x[0-9a-f]+)", text))]
    first, last = max(jumps, key=lambda jump: jump[1] - jump[0], default=(0, -1))
    loop = [text for place, text in lines if first <= place <= last]
    return {
        "registers": int(re.findall(r"REG:(\d+)", used)[0]),
        "instructions": len(lines), "spills": sum(bool(SPILLED.search(text)) for _, text in lines),
        "loop": len(loop), "loop_spills": sum(bool(SPILLED.search(text)) for text in loop),
    }  # fmt: skip


def inspect(gpu: Inspector, task: str, structure: str, precision: str) -> list[dict[str, Any]]:
    """A row for each kernel of a scan and its gradients, or for the one that does not fit a multiprocessor."""
    import wavessm as ws
    from common import SHAPES
    from wavessm.ops.triton import scan

    shape, scan.unavailable = SHAPES[task], lambda u, layer=None: None
    family = {"diagonal": "morlet", "dplr": "legs"}[structure]
    layer = ws.WaveSSM(shape.d_model, shape.d_state, family=family, bidirectional=shape.bidirectional)
    u = torch.empty(shape.batch, shape.d_model, shape.length, requires_grad=True)
    u = u.bfloat16() if precision == "bf16" else u
    gpu.seen.clear()
    try:
        y, _ = scan.run_layer(u, layer.system(), layer.D, 1.0, precision=precision)
        y.backward(torch.empty_like(y))
    except triton.runtime.errors.OutOfResources as reason:
        gpu.seen[-1] = {"kernel": str(reason).partition(". ")[0]}
    labels = {"triton": triton.__version__, "task": task, "structure": structure, "precision": precision}
    return [labels | row for row in gpu.seen.values()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the table")
    parser.add_argument("--shapes", nargs="+", default=["listops", "text", "image", "sc35", "pathx", "ptbxl", "64k"])
    options = parser.parse_args()
    gpu, rows = Inspector(), []
    driver.set_active(gpu)
    for task in options.shapes:
        for precision in ("fp32", "tf32", "bf16"):
            rows += inspect(gpu, task, "diagonal", precision)
            rows += inspect(gpu, task, "dplr", precision) if precision != "bf16" else []
    with options.out.open("w", newline="") as file:
        writer = csv.DictWriter(file, max(rows, key=len))
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()

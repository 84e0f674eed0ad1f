"""A GPU that does nothing: kernels are compiled for Hopper and launched as ever, but nothing runs them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver

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

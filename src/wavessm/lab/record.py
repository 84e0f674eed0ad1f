"""Writing results down: a CSV, and beside it the command and versions that made it."""

from __future__ import annotations

import csv
import platform
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import wavessm
from wavessm.errors import MissingExtraError


def write_csv(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Rows with the same keys, floats to five significant digits."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        for row in rows:
            writer.writerow({k: f"{v:.5g}" if isinstance(v, float) else v for k, v in row.items()})


def provenance(module: str) -> str:
    """One line: the command as typed, the versions and the machine."""
    installed = [f"{name} {metadata.version(name)}" for name in ("torch", "numpy", "scipy", "PyWavelets")]
    versions = ", ".join([f"wavessm {wavessm.__version__}", *installed])
    machine = f"Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    return f"`{' '.join([module, *sys.argv[1:]])}` with {versions}; {machine}"


def pyplot() -> Any:
    """Matplotlib without a screen, or an error that says how to get it."""
    try:
        import matplotlib
    except ImportError as reason:
        raise MissingExtraError("figures need matplotlib: pip install 'wavessm[plot]'.") from reason
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt

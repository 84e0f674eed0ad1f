"""Writing results down: tables, figures without a screen, and the command and versions that made them."""

from __future__ import annotations

import csv
import io
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from wavessm.errors import import_extra
from wavessm.training.checkpoint import replacing

_PACKAGES = ("wavessm", "torch", "numpy", "scipy", "PyWavelets")


def write_csv(path: Path, rows: Sequence[dict[str, Any]], digits: int = 5) -> None:
    """Write rows, floats to some significant digits; what a row lacks is left empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(dict.fromkeys(name for row in rows for name in row)))
    writer.writeheader()
    writer.writerows({k: f"{v:.{digits}g}" if isinstance(v, float) else v for k, v in row.items()} for row in rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        file.write(text.getvalue().encode())


def environment() -> dict[str, Any]:
    """Return versions, revision, machine, command and time."""
    return {
        **{name: metadata.version(name) for name in _PACKAGES},
        "python": platform.python_version(),
        "revision": revision(),
        "machine": f"{platform.system()} {platform.machine()}, {processor()}",
        "command": shlex.join(["wavessm", *sys.argv[1:]]),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def provenance(command: str, arguments: Sequence[str] | None = None) -> str:
    """One line: the command with its arguments (those of this process if not given), versions, revision, machine."""
    made = environment()
    typed = " ".join([command, *(sys.argv[1:] if arguments is None else arguments)])
    versions = ", ".join(f"{name} {made[name]}" for name in _PACKAGES)
    machine = f"Python {made['python']}, {made['machine']}, {os.cpu_count()} cores"
    return f"`{typed}` at revision {made['revision']} with {versions}; {machine}"


def revision() -> str:
    """The commit of the source tree, with a + if files changed since."""
    git = ["git", "-C", str(Path(__file__).parent)]
    try:
        head = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
        changed = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", "."], capture_output=True).returncode
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head.stdout.strip() + ("+" if changed else "")


def processor() -> str:
    """Return the name of the processor."""
    info = Path("/proc/cpuinfo")
    names = [line for line in info.read_text().splitlines() if line.startswith("model name")] if info.exists() else []
    return names[0].partition(":")[2].strip() if names else platform.processor() or "unknown processor"


def pyplot() -> Any:
    """Matplotlib without a screen, or an error that says how to get it."""
    import_extra("matplotlib", "figures", "plot").use("Agg")
    return import_extra("matplotlib.pyplot", "figures", "plot")


def draw_curves(rows: Sequence[dict[str, float]], score: str, path: Path) -> None:
    """Draw the training loss and the column `score` of metrics.csv over steps, with the scores of single classes."""
    figure, axes = pyplot().subplots(1, 2, figsize=(10, 3.6))
    for axis, column, name in zip(axes, ("train_loss", score), ("training loss", score.replace("_", " ")), strict=True):
        axis.plot([row["step"] for row in rows], [row[column] for row in rows], marker=".")
        axis.set(xlabel="step", ylabel=name)
        axis.grid(alpha=0.3)
    classes = [name for name in rows[-1] if name.startswith(("val_auroc ", "val_recall "))]
    for name in classes:
        values = [row.get(name, float("nan")) for row in rows]
        axes[1].plot([row["step"] for row in rows], values, lw=0.8, label=name.removeprefix("val_"))
    if classes:
        axes[1].legend(fontsize=7)
    save_figure(figure, path)


def save_figure(figure: Any, path: Path) -> None:
    """Write a figure in the format that its name ends in, and close it."""
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        figure.savefig(file, dpi=110, format=path.suffix[1:].lower())
    pyplot().close(figure)

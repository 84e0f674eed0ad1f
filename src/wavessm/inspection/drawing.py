"""What all figures share, here and in the lab: the type of a finished figure, its style, and files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wavessm.training.record import provenance, pyplot, write_csv

STYLE = {
    "font.size": 9, "axes.titlesize": 9.5, "axes.labelsize": 9, "legend.fontsize": 8, "legend.frameon": False,
    "axes.spines.top": False, "axes.spines.right": False, "figure.constrained_layout.use": True,
    "lines.linewidth": 1.3, "image.interpolation": "nearest", "pdf.fonttype": 42,
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Drawing:
    """A figure, the numbers it shows (one dictionary per row) and a caption."""

    figure: Any
    rows: list[dict[str, Any]]
    caption: str


@contextmanager
def canvas() -> Iterator[Any]:
    """Matplotlib's pyplot in the style of the figures."""
    plt = pyplot()
    with plt.rc_context(STYLE):
        yield plt


def write_drawings(title: str, drawings: dict[str, Drawing], folder: str | Path) -> dict[str, str]:
    """Write NAME.png and NAME.csv of every drawing and README.md; returns the captions by name."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    text = [f"# {title}\n"]
    for name, drawing in drawings.items():
        with canvas() as plt:
            drawing.figure.savefig(folder / f"{name}.png", dpi=120, metadata={"Software": None})
            plt.close(drawing.figure)
        write_csv(folder / f"{name}.csv", drawing.rows)
        text.append(f"## {name}\n\n{drawing.caption}\n\n![{name}]({name}.png)\n")
    text.append(f"Numbers: the CSV of the same name. Made by {provenance('wavessm inspect')}.\n")
    (folder / "README.md").write_text("\n".join(text), encoding="utf-8")
    return {name: drawing.caption for name, drawing in drawings.items()}

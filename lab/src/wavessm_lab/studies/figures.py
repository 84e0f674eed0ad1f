"""Every figure and study of the paper from our own code, by name: `wavessm figures`.

Each figure NAME becomes NAME.png, NAME.pdf, NAME.csv (the numbers it shows) and NAME.txt (one line of caption).
Nothing depends on chance or the date, so the same versions write the same bytes. A new figure is a function that
returns a `Drawing`, a line in FIGURES and its place in SECTIONS.
"""

from __future__ import annotations

import fnmatch
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from wavessm.errors import unknown_name
from wavessm.inspection.drawing import Drawing, canvas
from wavessm.training.record import provenance, write_csv
from wavessm_lab.studies import atoms, budget, concepts, frame_bounds, jacobian, memory, windows

DPI, GALLERY_DPI = 150, 80

Study = Callable[[], Drawing]

FIGURES: dict[str, Study] = {
    "legendre-morlet": atoms.legendre_against_morlet,
    "atoms": atoms.atoms_at_three_scales,
    "matrices": concepts.transition_matrices,
    "measures": concepts.two_measures,
    "memory": concepts.streamed_memory,
    "modes": concepts.modes_of_operators,
    "conditioning": frame_bounds.condition_numbers,
    "lemma": frame_bounds.lemma_on_norms,
    "reconstruction": memory.reconstruction_errors,
    "jacobian": jacobian.jacobian_of_morlet,
    "jacobian-families": jacobian.jacobian_of_families,
    "localisation": jacobian.localisation_of_coordinates,
    "overlap": jacobian.overlap_of_windows,
    "windows": windows.window_probes,
    "steps-errors": budget.error_curves,
    **budget.RECONSTRUCTIONS,
}
SECTIONS = {
    "Atoms and operators": ("legendre-morlet", "atoms", "matrices", "measures", "memory", "modes"),
    "Conditioning and what is remembered": ("conditioning", "lemma", "reconstruction"),
    "What each coordinate represents": ("jacobian", "jacobian-families", "localisation", "overlap", "windows"),
    "Step functions on a budget": ("steps-errors", *budget.RECONSTRUCTIONS),
}
"""The order of the gallery."""


def select(names: Sequence[str]) -> list[str]:
    """Figures by name or shell pattern, in the registry's order; all of them if none is named.

    >>> select(["overlap", "steps-one-m*"])
    ['overlap', 'steps-one-mexh', 'steps-one-morl']
    """
    wanted: set[str] = set()
    for name in names:
        found = fnmatch.filter(FIGURES, name)
        if not found:
            raise unknown_name("figure", name, FIGURES)
        wanted.update(found)
    return [name for name in FIGURES if name in wanted or not names]


def make(name: str, folder: Path, small: Path | None = None) -> str:
    """Draw one figure and write it with its data; its caption. `small` is the folder of the gallery's pictures."""
    drawing = FIGURES[name]()
    for place in filter(None, (folder, small)):
        place.mkdir(parents=True, exist_ok=True)
    with canvas() as plt:  # type 42 fonts are chosen when saving
        drawing.figure.savefig(folder / f"{name}.png", dpi=DPI, metadata={"Software": None})
        drawing.figure.savefig(folder / f"{name}.pdf", metadata={"CreationDate": None})
        if small is not None:
            drawing.figure.savefig(small / f"{name}.png", dpi=GALLERY_DPI, metadata={"Software": None})
        plt.close(drawing.figure)
    write_csv(folder / f"{name}.csv", drawing.rows)
    (folder / f"{name}.txt").write_text(drawing.caption + "\n", encoding="utf-8")
    return drawing.caption


def gallery_page(captions: dict[str, str]) -> str:
    """The gallery as Markdown; pictures are taken from the folder `figures` beside it.

    >>> print(gallery_page({name: "…" for name in FIGURES}).splitlines()[0])
    # Gallery
    """
    page = """# Gallery

The figures and studies of the paper and a few of our own, made by this library. Made anew, with PDFs and the
numbers as CSV, by

```
wavessm figures --out runs/figures --gallery docs
```
"""
    for section, names in SECTIONS.items():
        page += f"\n## {section}\n"
        for name in names:
            page += f"\n### `{name}`\n\n![{name}](figures/{name}.png)\n\n{captions[name]}\n"
    return page


def make_all(names: Sequence[str], folder: Path, gallery: Path | None, arguments: Sequence[str]) -> None:
    """Draw and save figures, with a line for each.

    Args:
        names: Figures, as of `select`.
        folder: Where they go.
        gallery: Folder for gallery.md and its pictures, or None.
        arguments: Of the command, for PROVENANCE.md.
    """
    captions = {}
    for name in names:
        start = time.perf_counter()
        captions[name] = make(name, folder, None if gallery is None else gallery / "figures")
        print(f"{name} ({time.perf_counter() - start:.1f} s): {captions[name]}", flush=True)
    made = provenance("wavessm figures", list(arguments))
    (folder / "PROVENANCE.md").write_text(f"Made by {made}.\n", encoding="utf-8")
    if gallery is not None:
        (gallery / "gallery.md").write_text(gallery_page(captions), encoding="utf-8")

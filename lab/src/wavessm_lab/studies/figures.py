"""Every figure and study of the paper from our own code, by name.

    python -m wavessm_lab.studies.figures --out runs/figures                     all of them
    python -m wavessm_lab.studies.figures jacobian 'steps-*' --out runs/figures  some, by name or pattern
    python -m wavessm_lab.studies.figures --list                                 their names
    python -m wavessm_lab.studies.figures --out runs/figures --gallery docs      all of them, and the gallery page

Each figure NAME becomes NAME.png, NAME.pdf, NAME.csv (the numbers it shows) and NAME.txt (one line of caption).
Nothing involves chance or the date, so the same versions write the same bytes. A new figure is a function that
returns a `Drawing`, a line in _STUDIES and its place in SECTIONS.
"""

from __future__ import annotations

import argparse
import fnmatch
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from wavessm.errors import OptionError, Registry, WaveSSMError
from wavessm.inspection.drawing import STYLE, Drawing
from wavessm.training.record import provenance, pyplot, write_csv
from wavessm_lab.studies import atoms, budget, concepts, frame_bounds, jacobian, matrices, windows

DPI, GALLERY_DPI = 150, 80

Study = Callable[[], Drawing]

_STUDIES: dict[str, Study] = {
    "legendre-morlet": atoms.legendre_against_morlet,
    "atoms": atoms.atoms_at_three_scales,
    "matrices": matrices.transition_matrices,
    "measures": concepts.two_measures,
    "memory": concepts.streamed_memory,
    "modes": concepts.modes_of_operators,
    "conditioning": frame_bounds.condition_numbers,
    "lemma": frame_bounds.lemma_on_norms,
    "jacobian": jacobian.jacobian_of_morlet,
    "jacobian-families": jacobian.jacobian_of_families,
    "localisation": jacobian.localisation_of_coordinates,
    "overlap": jacobian.overlap_of_windows,
    "windows": windows.window_probes,
    "steps-errors": budget.error_curves,
    **budget.RECONSTRUCTIONS,
}
FIGURES: Registry[Study] = Registry("figure")
for _name, _study in _STUDIES.items():
    FIGURES.register(_name, _study)

SECTIONS = {
    "Atoms and operators": ("legendre-morlet", "atoms", "matrices", "measures", "memory", "modes"),
    "Conditioning": ("conditioning", "lemma"),
    "What each coordinate hears": ("jacobian", "jacobian-families", "localisation", "overlap", "windows"),
    "Step functions on a budget": ("steps-errors", *budget.RECONSTRUCTIONS),
}
"""The order of the gallery."""


def select(names: Sequence[str]) -> list[str]:
    """Figures by name or shell pattern, in the registry's order; all of them if none is named.

    >>> select(["overlap", "steps-one-m*"])
    ['overlap', 'steps-one-mexh', 'steps-one-morl']
    """
    known = FIGURES.names()
    wanted: set[str] = set()
    for name in names:
        found = fnmatch.filter(known, name)
        if not found:
            FIGURES[name]  # raises the error that offers the closest name
        wanted.update(found)
    return [name for name in known if name in wanted or not names]


def save(name: str, drawing: Drawing, folder: Path, small: Path | None = None) -> None:
    """Write one figure with its data and caption; `small` is the folder of the gallery's pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    with pyplot().rc_context(STYLE):  # type 42 fonts are chosen when saving
        drawing.figure.savefig(folder / f"{name}.png", dpi=DPI, metadata={"Software": None})
        drawing.figure.savefig(folder / f"{name}.pdf", metadata={"CreationDate": None})
        if small is not None:
            small.mkdir(parents=True, exist_ok=True)
            drawing.figure.savefig(small / f"{name}.png", dpi=GALLERY_DPI, metadata={"Software": None})
    write_csv(folder / f"{name}.csv", drawing.rows)
    (folder / f"{name}.txt").write_text(drawing.caption + "\n", encoding="utf-8")


def make(name: str, folder: Path, small: Path | None = None) -> str:
    """Draw and save one figure; its caption."""
    drawing = FIGURES[name]()
    try:
        save(name, drawing, folder, small)
    finally:
        pyplot().close(drawing.figure)
    return drawing.caption


def gallery_page(captions: dict[str, str]) -> str:
    """The gallery as Markdown; pictures are taken from the folder `figures` beside it.

    >>> print(gallery_page({name: "…" for name in FIGURES.names()}).splitlines()[0])
    # Gallery
    """
    lines = [
        "# Gallery",
        "",
        "The figures and studies of the paper and a few of our own, made by this library. Made anew, with PDFs and the",
        "numbers as CSV, by",
        "",
        "```",
        "python -m wavessm_lab.studies.figures --out runs/figures --gallery docs",
        "```",
    ]
    for section, names in SECTIONS.items():
        lines += ["", f"## {section}"]
        for name in names:
            lines += ["", f"### `{name}`", "", f"![{name}](figures/{name}.png)", "", captions[name]]
    return "\n".join(lines) + "\n"


class _Parser(argparse.ArgumentParser):
    """One whose mistakes are one line."""

    def error(self, message: str) -> NoReturn:
        raise OptionError(f"{message}; see --help.")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="wavessm figures", description="Every figure of the paper from our own code.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="figures by name or pattern; all if none is given")
    parser.add_argument("--out", type=Path, default=Path("runs/figures"), metavar="DIR", help="folder for the files")
    parser.add_argument("--gallery", type=Path, metavar="DOCS", help="also write DOCS/gallery.md and its pictures")
    parser.add_argument("--list", action="store_true", help="only list the names")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """The command `wavessm figures`; 0, or 2 where an argument is wrong."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        options = _parser().parse_args(arguments)
        names = select(options.names)
        if options.gallery is not None and len(names) < len(FIGURES.names()):
            raise OptionError("--gallery shows the whole set; leave out the names.")
        if options.list:
            print("\n".join(names))
            return 0
        captions = {}
        for name in names:
            start = time.perf_counter()
            captions[name] = make(name, options.out, None if options.gallery is None else options.gallery / "figures")
            print(f"{name} ({time.perf_counter() - start:.1f} s): {captions[name]}", flush=True)
    except WaveSSMError as error:
        print(f"wavessm figures: {error}", file=sys.stderr)
        return 2
    made = provenance("python -m wavessm_lab.studies.figures", arguments)
    (options.out / "PROVENANCE.md").write_text(f"Made by {made}.\n", encoding="utf-8")
    if options.gallery is not None:
        (options.gallery / "gallery.md").write_text(gallery_page(captions), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

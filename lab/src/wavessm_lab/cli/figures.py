"""`wavessm figures [NAMES…]`: the figures and studies of the paper from our own code."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional

from wavessm.cli.parse import parse
from wavessm.errors import OptionError


@dataclass(frozen=True)
class FiguresOptions:
    """Draw the figures of the paper, each with its numbers as CSV."""

    names: Positional[tuple[str, ...]] = ()
    """Figures by name or pattern; default all."""
    out: Path = Path("runs/figures")
    """Folder for the files."""
    gallery: Path | None = None
    """Folder of the documentation: also write its gallery.md and the pictures of it."""
    list: bool = False
    """Only list the names."""


def main(arguments: list[str]) -> int:
    """Run `wavessm figures`; returns the exit status."""
    given = parse(FiguresOptions, arguments, "wavessm figures")
    from wavessm_lab.studies import figures

    names = figures.select(given.names)
    if given.gallery is not None and given.names:
        raise OptionError("--gallery shows the whole set; leave out the names.")
    if given.list:
        print("\n".join(names))
        return 0
    figures.make_all(names, given.out, given.gallery, arguments)
    return 0

"""The commands of `wavessm` with their help, as the command line itself prints it."""

from __future__ import annotations

import contextlib
import io
import os
from typing import TYPE_CHECKING

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

if TYPE_CHECKING:
    from sphinx.application import Sphinx


def help_of(command: str) -> str:
    """Return what `wavessm COMMAND --help` prints.

    >>> help_of("report").splitlines()[0].startswith("usage: wavessm report")
    True
    """
    from wavessm.cli import main

    printed, width = io.StringIO(), os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "88"
    try:
        with contextlib.redirect_stdout(printed):
            main([*command.split(), "--help"])
    finally:
        os.environ.pop("COLUMNS") if width is None else os.environ.update(COLUMNS=width)
    return printed.getvalue().strip()


class Commands(SphinxDirective):
    def run(self) -> list[nodes.Node]:
        from wavessm.cli import all_commands

        made: list[nodes.Node] = []
        for name, (_, about) in all_commands().items():
            slug = f"wavessm-{name.replace(' ', '-')}"
            section = nodes.section(ids=[slug], names=[slug])
            section += nodes.title("", f"wavessm {name}")
            section += nodes.paragraph("", f"{about[0].upper()}{about[1:]}.")
            text = help_of(name)
            section += nodes.literal_block(text, text, language="text")
            made.append(section)
        return made


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("commands", Commands)
    return {"parallel_read_safe": True}

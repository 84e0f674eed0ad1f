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
    """What `wavessm COMMAND --help` prints.

    >>> help_of("report").splitlines()[0].startswith("usage: wavessm report")
    True
    """
    from wavessm.cli import main

    said, width = io.StringIO(), os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "88"
    try:
        with contextlib.redirect_stdout(said):
            main([command, "--help"])
    finally:
        os.environ.pop("COLUMNS") if width is None else os.environ.update(COLUMNS=width)
    return said.getvalue().strip()


class Commands(SphinxDirective):
    def run(self) -> list[nodes.Node]:
        from wavessm.cli import COMMANDS

        made: list[nodes.Node] = []
        for name, about in COMMANDS.items():
            section = nodes.section(ids=[f"wavessm-{name}"], names=[f"wavessm-{name}"])
            section += nodes.title("", f"wavessm {name}")
            section += nodes.paragraph("", f"{about[0].upper()}{about[1:]}.")
            text = help_of(name)
            section += nodes.literal_block(text, text, language="text")
            made.append(section)
        return made


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("commands", Commands)
    return {"parallel_read_safe": True}

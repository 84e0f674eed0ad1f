"""The commands of `wavessm` as a list, from the table that the command line itself prints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

if TYPE_CHECKING:
    from sphinx.application import Sphinx


class Commands(SphinxDirective):
    def run(self) -> list[nodes.Node]:
        from wavessm.cli import COMMANDS

        entries = nodes.definition_list()
        for name, about in COMMANDS.items():
            term = nodes.term("", "", nodes.literal("", f"wavessm {name}"))
            words = nodes.paragraph("", f"{about[0].upper()}{about[1:]}.")
            entries += nodes.definition_list_item("", term, nodes.definition("", words))
        return [entries]


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("commands", Commands)
    return {"parallel_read_safe": True}

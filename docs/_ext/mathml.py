"""Formulas as MathML, made when the site is built: browsers draw them without a script, a font or a network."""

from __future__ import annotations

from typing import TYPE_CHECKING

from docutils import nodes

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.writers.html5 import HTML5Translator


def to_mathml(latex: str, display: bool = False) -> str:
    """LaTeX as a `math` element. What the converter does not know, such as an environment, is an error.

    >>> to_mathml("x^2").startswith('<math')
    True
    >>> 'display="block"' in to_mathml("x", display=True)
    True
    """
    from latex2mathml.converter import convert

    known = latex.strip().replace("{aligned}", "{align*}")  # GitHub knows the first, the converter the second
    made = convert(known, display="block" if display else "inline")
    if "<mi>&</mi>" in made or "<mtext>\\" in made or "<mi>\\" in made:
        raise ValueError(f"no MathML for {latex!r}: write it in commands that latex2mathml knows")
    return made


def visit_inline(self: HTML5Translator, node: nodes.math) -> None:
    self.body.append(to_mathml(node.astext()))
    raise nodes.SkipNode


def visit_block(self: HTML5Translator, node: nodes.math_block) -> None:
    self.body.append(self.starttag(node, "div", CLASS="formula", ids=node["ids"]))
    self.body.append(to_mathml(node.astext(), display=True) + "</div>\n")
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_html_math_renderer("mathml", (visit_inline, None), (visit_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}

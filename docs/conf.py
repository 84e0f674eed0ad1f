"""How the site is built: `make docs`. Nothing here needs a network, and warnings are errors."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "_ext"), str(HERE.parent / "src")]

from docutils import nodes  # noqa: E402
from sphinx.application import Sphinx  # noqa: E402

import wavessm  # noqa: E402

project = "wavessm"
author = copyright = "the authors of wavessm"
version = release = wavessm.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "commands",
    "docstrings",
    "mathml",
    "measured",
]
exclude_patterns = ["_ext", "_static", "figures"]

highlight_language = "text"  # of fences without a name

# Markdown: headings can be linked to, formulas stand between dollars or in ```math as on GitHub.
myst_enable_extensions = ["dollarmath"]
myst_fence_as_directive = ["math"]
myst_heading_anchors = 3
myst_update_mathjax = False  # formulas are MathML

napoleon_use_ivar = True  # attributes in a list, without targets of their own

# The reference: docstrings in the order of the source, names as short as they are unambiguous.
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_default_options = {
    "members": True,
    "exclude-members": "set_score_request, set_fit_request, set_predict_request, set_partial_fit_request, "
    "set_transform_request, extra_repr",
}
autodoc_class_signature = "mixed"
autodoc_preserve_defaults = True
autodoc_inherit_docstrings = False
python_maximum_signature_line_length = 100
python_use_unqualified_type_names = True
add_module_names = False

# With -n every dotted name in a signature has to lead somewhere. Other libraries' names cannot, without their
# inventories; `word` in a docstring is a link where it can be one.
OTHERS = r"(torch|numpy|np|npt|nn|collections|pathlib|typing|sklearn|pandas|lightning|tyro|argparse|types|scipy)\..*"
nitpick_ignore_regex = [("py:obj", ".*"), ("py:(class|data|exc|attr)", OTHERS), ("py:(class|data|exc)", r"\w+"),
                        ("py:class", r"wavessm(_lab)?\..*|dict\[str")]  # fmt: skip
suppress_warnings = ["ref.python"]  # letters of formulas that several classes have

smartquotes = False  # names in quotes and options with two hyphens stay as they are typed

html_theme = "furo"
html_title = "wavessm"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_math_renderer = "mathml"
html_copy_source = False
html_show_sourcelink = False
html_show_copyright = False
html_show_sphinx = False
pygments_style = "friendly"
pygments_dark_style = "native"
copybutton_exclude = ".linenos, .gp, .go"


def strip_blocks(app: Sphinx, doctree: nodes.document) -> None:
    """Snippets end with an empty line for doctest's sake; the page does not show it."""
    for block in doctree.findall(nodes.literal_block):
        block.rawsource = block.astext().rstrip()
        block[:] = [nodes.Text(block.rawsource)]


def setup(app: Sphinx) -> None:
    app.connect("doctree-read", strip_blocks)

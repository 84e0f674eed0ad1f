"""The house's docstrings as reStructuredText, which Sphinx reads. They are plain text with four habits:

    `word`                names, linked where they are documented
    name    what it is    lines in two columns are a legend and become a list of definitions
    indented lines        formulas and tables, kept as they are
    examples              after prompts, kept as they are

Signs that reStructuredText would take for markup are escaped, so a docstring never has to think of it.
"""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx

LEGEND = re.compile(r"^((?:\S+, )*\S+) {2,}(\S.*)$")
SIGN = re.compile(r"\*\w[^*]*\w\*|[\\*|`]|(?<=\w)_(?!\w)")  # *emphasis* stays
ARRAY_LIKE = re.compile(r"[~\w.]*_Buffer \| .*?complex \| bytes \| str\]")
NUMPY_ARRAY = re.compile(r"[~\w.]*ndarray\[.*?dtype\[([^\]]+)\]\]")
NAME = re.compile(r"^[A-Za-z_][\w.]*(\(\))?$")


def paragraphs(lines: list[str]) -> list[list[str]]:
    """Runs of lines without a blank one."""
    found: list[list[str]] = [[]]
    for line in lines:
        if line.strip():
            found[-1].append(line)
        elif found[-1]:
            found.append([])
    return [part for part in found if part]


def inline(text: str) -> str:
    """One line of prose with its names marked and everything else escaped.

    >>> inline("`fit` sets classes_ and |x|; see `ws.families()` or `a + b`.")
    ':py:obj:`fit` sets classes\\\\_ and \\\\|x\\\\|; see :py:obj:`ws.families` or ``a + b``.'
    """
    parts = re.split(r"`+([^`]+)`+", text)
    for at, part in enumerate(parts):
        if at % 2 == 0:
            parts[at] = SIGN.sub(lambda sign: sign[0] if len(sign[0]) > 1 else "\\" + sign[0], part)
        elif NAME.match(part):
            parts[at] = f":py:obj:`{part.removesuffix('()')}`"
        else:
            parts[at] = f"``{part}``"
    # inline markup has to end at a space or a mark: a zero-width escape makes room where a letter follows
    return re.sub(r"(:py:obj:`[^`]+`|``[^`]+``)(?=[\w])", r"\1\\ ", "".join(parts))


def definitions(part: list[str]) -> list[str] | None:
    """A legend as a list of definitions, or None if the lines are not one. Its first line says where words begin.

    >>> definitions(["atoms    (N, L) samples", "a, b, c  points,", "         evenly spaced"])
    ['.. rst-class:: legend', '', '``atoms``', '   (N, L) samples', '', '``a, b, c``', '   points,', '   evenly...', '']
    >>> definitions(["No legend at all."])
    """
    first = LEGEND.match(part[0])
    if not first:
        return None
    column, before = first.start(2), ""
    made = [".. rst-class:: legend", ""]
    for line in part:
        entry = LEGEND.match(line)
        name, words = (entry[1], entry[2]) if entry else (line[: column - 1].strip(), line[column:])
        if not entry and line[column - 1 : column] != " ":
            if not line.endswith(","):
                return None
            before += line + " "  # names that fill a line and go on in the next
            continue
        if name:
            made += [""] * (made[-1] != "") + [f"``{before}{name.strip('`')}``"]
            before = ""
        made.append("   " + inline(words.strip()))
    return [*made, ""]


def to_rst(lines: list[str]) -> list[str]:
    """The whole docstring.

    >>> to_rst(["Stage 1: a frame.", "", "    S  (N, N)", "", ">>> 1 + 1", "2"])
    ['Stage 1: a frame.', '', '::', '', '    S  (N, N)', '', '>>> 1 + 1', '2', '']
    """
    made: list[str] = []
    kept = False  # as it is, under a double colon
    for part in paragraphs(lines):
        was_kept, kept = kept, part[0].startswith(" ")
        if kept:
            made += ([] if was_kept else ["::", ""]) + [*part, ""]
        elif part[0].startswith(">>>"):
            made += [*part, ""]
        else:
            made += definitions(part) or [*map(inline, part), ""]
    return made


def process(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    text = inspect.cleandoc("\n".join(lines)) if lines else ""
    if what == "class" and re.match(r"\w+\(.*\)$", text):  # what a dataclass says of itself for want of words
        text = ""
    lines[:] = to_rst(text.splitlines())


def keep_colons(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Napoleon takes words before a colon for the type of an attribute; ours are sentences."""
    if what in ("attribute", "data", "property") and lines:
        lines[:] = [line.replace(":", " –") if ": " in line else line.replace(":", "∶") for line in lines]


def shorten(app: Sphinx, what: str, name: str, obj: Any, options: Any, signature: str, returns: str) -> Any:
    """NumPy spells its aliases out when a signature is evaluated; their names say more."""
    return tuple(
        part and NUMPY_ARRAY.sub(r"NDArray[\1]", ARRAY_LIKE.sub("ArrayLike", part)) for part in (signature, returns)
    )


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", keep_colons, priority=400)  # before napoleon
    app.connect("autodoc-process-docstring", process)
    app.connect("autodoc-process-signature", shorten)
    return {"parallel_read_safe": True}

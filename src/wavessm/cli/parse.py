"""Options of a command from a dataclass, by tyro; what tyro refuses becomes one line."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import re
import typing
from collections.abc import Sequence
from typing import Any, TypeVar

import tyro
from tyro import conf

from wavessm.data.task import RENAMED as DATA_NAMES
from wavessm.errors import OptionError
from wavessm.training.config import RENAMED as TRAIN_NAMES

T = TypeVar("T")

_CONFIG = (conf.HelptextFromCommentsOff, conf.OmitArgPrefixes, conf.PositionalMetavarFromFieldName, conf.SuppressFixed)
_KINDER = (
    (r"Unrecognized options: (--[^\s,]+)(,.*)?", r"unknown option \1"),
    (r"Unrecognized options: ([^\s,]+)(,.*)?", r"did not expect \1"),
    (r"Missing value for argument '(--\S+)'.*", r"\1 needs a value"),
    (r"Missing from .*?: (\S+) .*", r"\1 is missing"),
    (r"Error parsing (\S+): invalid literal for int\(\) with base 10: (.+)", r"\1 is \2, expected a whole number"),
    (r"Error parsing (\S+): could not convert string to float: (.+)", r"\1 is \2, expected a number"),
    (r"Error parsing (\S+): Could not find valid parse for arguments: (.+)", r"\1 does not take \2"),
    (r"invalid choice (.+) for argument '(\S+)'\. Expected one of \((.+)\)\.", r"\2 is \1, expected one of \3"),
)
"""What tyro prints, and the same in the words of our other messages."""
_RENAMED = {**DATA_NAMES, **TRAIN_NAMES, "data_root": "root", "drive": "b_init", "every": "rate"}
"""Options before version 0.1 and what they are called now; to be deleted with version 0.2."""


def parse(
    kind: type[T], arguments: Sequence[str], prog: str, default: Any = tyro.MISSING_NONPROP, about: str | None = None
) -> T:
    """Read the arguments of a command. Prints help and exits for --help.

    Args:
        kind: Dataclass of the options; fields annotated with `tyro.conf.Positional` need no option name.
        arguments: Words after the command.
        prog: The command, for the usage line.
        default: Values of options that are not given; default those of the class.
        about: What the command does; default the docstring of the class.

    Raises:
        OptionError: In one line, what is unknown, missing or of the wrong kind.
    """
    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed):
            return tyro.cli(kind, default=default, args=list(arguments), prog=prog, description=about, config=_CONFIG)
    except SystemExit as end:
        if end.code in (0, None):
            raise
        raise OptionError(f"{_one_line(printed.getvalue())} See {prog} --help.") from None


def without(default: Any, fixed: Sequence[str] = ()) -> type:
    """Return the class of `default` with its `fixed` fields hidden from the command line.

    The result checks nothing when it is built, so that a refusal comes from the class itself, in its own words.
    """
    kind = type(default)
    hints = typing.get_type_hints(kind, include_extras=True)
    mark: Any = conf.Fixed
    fields = [(name, mark[hints[name]], dataclasses.field(default=getattr(default, name))) for name in fixed]
    unchecked = {"__post_init__": lambda self: None}
    return dataclasses.make_dataclass(kind.__name__, fields, bases=(kind,), frozen=True, namespace=unchecked)


def _one_line(printed: str) -> str:
    """The first paragraph inside tyro's box, and the option that it offers instead.

    >>> _one_line("╭─ Value error ─╮\\n│ Missing value for argument '--lr' │\\n│ ── │\\n│ … │\\n")
    '--lr needs a value.'
    """
    rows = (line.strip("│ \t") for line in printed.splitlines()[1:])
    lines = "\n".join("" if set(row) <= set("╭╮╰╯─-") else row for row in rows)  # rules between paragraphs are blank
    paragraphs = [" ".join(part.split()) for part in re.split(r"\n\n+", lines.strip())]
    text = paragraphs[0]
    for theirs, ours in _KINDER:
        text = re.sub(f"^{theirs}$", ours, text)
    old = re.match(r"unknown option --(?:no-)?([\w-]+)", text)
    if old and (new := _RENAMED.get(old[1].replace("-", "_"))):
        return f"--{old[1]} is now called --{new.replace('_', '-')}."
    meant = next((part.split()[3] for part in paragraphs if part.startswith("Perhaps you meant:")), None)
    return text.rstrip(".") + (f": did you mean {meant.rstrip(',')}?" if meant else ".")

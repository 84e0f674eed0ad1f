"""Options of a command from a dataclass, by tyro; what tyro refuses becomes one line."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import io
import itertools
import re
import typing
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import tyro

from wavessm.data.task import CALENDARS
from wavessm.data.task import RENAMED as DATA_RENAMED
from wavessm.errors import OptionError

T = TypeVar("T")

RENAMED = {old.replace("_", "-"): new.replace("_", "-") for old, new in DATA_RENAMED.items()} | {
    "data-root": "root",
    "divergence": "max-loss-ratio",
    "drive": "b-init",
    "every": "rate",
    "slow-down": "stretch-timescales",
    "validations": "val-per-epoch",
}
"""Options of version 0.1 and what they are called now; to be deleted with version 0.3."""
_NEW_VALUES = {
    "drive": "even is now equal, slow is now slow-modes",
    "timeenc": ", ".join(f"{number} is now {name}" for number, name in enumerate(CALENDARS)),
}
_CONFIG = (
    tyro.conf.HelptextFromCommentsOff,
    tyro.conf.OmitArgPrefixes,
    tyro.conf.PositionalMetavarFromFieldName,
    tyro.conf.SuppressFixed,
)


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

    Returns:
        An object of this class.

    Raises:
        OptionError: In one line, what is unknown, missing or of the wrong kind.
    """
    _check_names(arguments, list(options_of(kind)), prog)
    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed):
            return tyro.cli(
                kind,
                default=default,
                args=list(arguments),
                prog=prog,
                description=about,
                config=_CONFIG,
            )
    except SystemExit as end:
        if end.code in (0, None):
            raise
        raise OptionError(_one_line(printed.getvalue(), prog)) from None


def options_of(kind: Any) -> Iterator[str]:
    """Names of all options of a dataclass and the dataclasses in it, as typed after the two dashes."""
    hints = typing.get_type_hints(kind, include_extras=True)
    for field in dataclasses.fields(kind):
        hint, name = hints[field.name], field.name.replace("_", "-")
        marks = getattr(hint, "__metadata__", ())
        if dataclasses.is_dataclass(hint):
            yield from options_of(hint)
        elif tyro.conf.Positional not in marks and tyro.conf.Fixed not in marks:
            yield from (name, f"no-{name}") if hint is bool else (name,)


def without(default: Any, fixed: Sequence[str] = ()) -> type:
    """Return the class of `default` with its `fixed` fields hidden from the command line.

    The result checks nothing when it is built, so that a refusal comes from the class itself, in its own words.
    """
    kind = type(default)
    hints = typing.get_type_hints(kind, include_extras=True)
    mark: Any = tyro.conf.Fixed
    fields = [(name, mark[hints[name]], dataclasses.field(default=getattr(default, name))) for name in fixed]
    unchecked = {"__post_init__": lambda self: None}
    return dataclasses.make_dataclass(kind.__name__, fields, bases=(kind,), frozen=True, namespace=unchecked)


def _check_names(arguments: Sequence[str], known: Sequence[str], prog: str) -> None:
    """Refuse an option that there is not, with its new name or the closest match."""
    for word in itertools.takewhile(lambda word: word != "--", arguments):
        name = word[2:].partition("=")[0].replace("_", "-")
        if not word.startswith("--") or name in (*known, "help"):
            continue
        no, old = ("no-", name[3:]) if name.startswith("no-") else ("", name)
        if RENAMED.get(old) in known:
            values = f" ({_NEW_VALUES[old]})" if old in _NEW_VALUES else ""
            raise OptionError(f"--{name} is now called --{no}{RENAMED[old]}{values}.")
        close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        hint = f"did you mean --{close[0]}?" if close else f"see {prog} --help."
        raise OptionError(f"unknown option --{name}: {hint}")


_KINDER = (
    (r"Unrecognized options: (\S+?)(,.*)?", r"did not expect \1; see {prog} --help"),
    (r"Missing value for argument '(--\S+)'.*", r"\1 needs a value"),
    (r"Error parsing (\S+): invalid literal for int\(\) with base 10: (.+)", r"\1 is \2, expected a whole number"),
    (r"Error parsing (\S+): could not convert string to float: (.+)", r"\1 is \2, expected a number"),
    (r"invalid choice (.+) for argument '(\S+)'\. Expected one of \((.+)\)", r"\2 is \1, expected one of \3"),
    (r"Missing from .*?: (\S+) .*", r"\1 is missing; see {prog} --help"),
)
"""What tyro prints, and how we put it."""


def _one_line(printed: str, prog: str) -> str:
    """The first paragraph inside tyro's box, in our words.

    >>> _one_line("╭─ Value error ─╮\\n│ Missing value for argument '--lr' │\\n│ ── │\\n│ … │\\n", "wavessm train")
    '--lr needs a value.'
    """
    words: list[str] = []
    for line in printed.splitlines()[1:]:
        text = line.strip("│╭╮╰╯ \t")
        if text.strip("─-"):
            words.append(text)
        elif words:  # a rule below the paragraph; terminals that know no ─ get one of - above it too
            break
    text = re.sub(r"\s+", " ", " ".join(words)).strip().rstrip(".")
    for theirs, ours in _KINDER:
        text = re.sub(f"^{theirs}$", ours.format(prog=prog), text)
    return (text or f"the options could not be understood; see {prog} --help") + "."

"""Options of a command from a dataclass, by tyro; what tyro refuses becomes one line."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import io
import re
import typing
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, TypeVar

from wavessm.errors import MissingExtraError, OptionError

T = TypeVar("T")


def parse(
    kind: type[T], default: T | None, arguments: Sequence[str], prog: str, about: str, hidden: Sequence[str] = ()
) -> T:
    """The dataclass that the arguments describe. Prints help and exits for --help.

    hidden: names of fields that are no options here.
    """
    tyro = _tyro()
    known = [option for option in options_of(kind) if option.removeprefix("no-").replace("-", "_") not in hidden]
    _refuse_unknown(arguments, known)
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(
                tyro.conf.configure(tyro.conf.OmitArgPrefixes)(kind),
                default=default,
                args=list(arguments),
                prog=prog,
                description=about,
            )
    except SystemExit as end:
        if end.code in (0, None):
            raise
        raise OptionError(_one_line(said.getvalue())) from None


def explained(kind: Any, text: str) -> Any:
    """A type with a line of help, for options that no class body can carry."""
    return Annotated[kind, _tyro().conf.arg(help=text)]


def _tyro() -> Any:
    try:
        import tyro
    except ImportError as reason:
        raise MissingExtraError("the command line needs tyro: pip install 'wavessm[train]'.") from reason
    return tyro


def options_of(kind: Any) -> Iterator[str]:
    """Names of all options of a dataclass and the dataclasses in it, as typed after the two dashes."""
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        if dataclasses.is_dataclass(hints[field.name]):
            yield from options_of(hints[field.name])
        else:
            yield field.name.replace("_", "-")
            if hints[field.name] is bool:
                yield "no-" + field.name.replace("_", "-")


def _refuse_unknown(arguments: Sequence[str], known: Sequence[str]) -> None:
    for argument in arguments:
        if argument == "--":
            return
        name = argument[2:].partition("=")[0].replace("_", "-")
        if argument.startswith("--") and name not in known and name != "help":
            close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            hint = f"did you mean --{close[0]}?" if close else "see --help."
            raise OptionError(f"unknown option --{name}: {hint}")


def _one_line(said: str) -> str:
    """The first paragraph inside tyro's box.

    >>> _one_line("╭─ Value error ─╮\\n│ Error parsing --lr: abc  │\\n│ ────── │\\n│ more │\\n")
    'Error parsing --lr: abc.'
    """
    words = []
    for line in said.splitlines()[1:]:
        text = line.strip("│╭╮╰╯ \t")
        if not text.strip("─"):
            break
        words.append(text)
    text = re.sub(r"\s+", " ", " ".join(words)).strip()
    return (text or "the options could not be understood; see --help").rstrip(".") + "."

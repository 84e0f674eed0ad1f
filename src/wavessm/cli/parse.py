"""Options of a command from a dataclass, by tyro; what tyro refuses becomes one line."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import functools
import io
import re
import typing
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, TypeVar

from wavessm.errors import MissingExtraError, OptionError
from wavessm.nn.config import DATA_FIELDS, ModelConfig

T = TypeVar("T")
_ROOT = re.compile(r"^--data[-_]root(?==|$)")  # the same folder by its longer name


def parse(
    kind: type[T], default: T | None, arguments: Sequence[str], prog: str, about: str, hidden: Sequence[str] = ()
) -> T:
    """The dataclass that the arguments describe. Prints help and exits for --help.

    hidden: names of fields that are no options here.
    """
    tyro = _tyro()
    arguments = [_ROOT.sub("--root", argument) for argument in arguments]
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


def shown_model(model: ModelConfig) -> ModelConfig:
    """Return the model as an instance of a class whose fields that the data decide are not options."""
    return _shown_kind()(**vars(model))


@functools.cache
def _shown_kind() -> Any:
    conf, hints = _tyro().conf, typing.get_type_hints(ModelConfig)
    fields: list[Any] = [
        (name, Annotated[hints[name], conf.Fixed, conf.Suppress], getattr(ModelConfig, name)) for name in DATA_FIELDS
    ]
    return dataclasses.make_dataclass("ModelConfig", fields, bases=(ModelConfig,), frozen=True)


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


_KINDER = (
    (r"Unrecognized options: (.+)", r"did not expect \1; see --help"),
    (r"Missing value for argument '(--\S+)'.*", r"\1 needs a value"),
    (r"Error parsing (--\S+): invalid literal for int\(\) with base 10: (.+)", r"\1 is \2, expected a whole number"),
    (r"Error parsing (--\S+): could not convert string to float: (.+)", r"\1 is \2, expected a number"),
    (r"invalid choice (.+) for argument '(--\S+)'\. Expected one of \((.+)\)", r"\2 is \1, expected one of \3"),
    (r"Missing from .*?: (--\S+) .*", r"\1 is missing; see --help"),
)
"""What tyro says, and how we say it."""


def _one_line(said: str) -> str:
    """The first paragraph inside tyro's box, in our words.

    >>> _one_line("╭─ Value error ─╮\\n│ Missing value for argument '--lr' │\\n│ ── │\\n│ … │\\n")
    '--lr needs a value.'
    """
    words = []
    for line in said.splitlines()[1:]:
        text = line.strip("│╭╮╰╯ \t")
        if text.strip("─-"):
            words.append(text)
        elif words:  # a rule below the paragraph; terminals that know no ─ get one of - above it too
            break
    text = re.sub(r"\s+", " ", " ".join(words)).strip().rstrip(".")
    for theirs, ours in _KINDER:
        text = re.sub(f"^{theirs}$", ours, text)
    return (text or "the options could not be understood; see --help") + "."


def first(arguments: Sequence[str], name: str) -> list[str]:
    """Let the first argument be the value of an option without the option's name before it.

    >>> first(["runs/a", "--split", "val"], "run")
    ['--run', 'runs/a', '--split', 'val']
    """
    return [f"--{name}", *arguments] if arguments and not arguments[0].startswith("-") else list(arguments)


def run_first(arguments: Sequence[str], command: str) -> list[str]:
    """The same for the folder of a run, which must be there."""
    named = first(arguments, "run")
    if not any(word in ("-h", "--help") or word.partition("=")[0] == "--run" for word in named):
        raise OptionError(f"which run? Give its folder first: wavessm {command} RUN; `wavessm train` writes it.")
    return named

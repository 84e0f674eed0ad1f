"""The command line. `wavessm COMMAND --help` explains each command; `parse.py` reads its options.

A mistake in what was typed or in the data is one line on standard error and exit status 2; Ctrl-C is 130.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib import metadata

from wavessm.errors import MissingExtraError, WaveSSMError, unknown_name

COMMANDS = {
    "demo": ("wavessm.cli.demo:main", "train a wavelet and a polynomial state space, five minutes, no download"),
    "train": ("wavessm.cli.train:main", "train a model on one of the tasks, or on your own data"),
    "pretrain": ("wavessm.cli.train:pretrain", "train a model without labels, to fine-tune with train --from"),
    "evaluate": ("wavessm.cli.evaluate:main", "score a trained model, with confidence intervals"),
    "predict": ("wavessm.cli.predict:main", "predict new files or a stream, as CSV and as a figure"),
    "inspect": ("wavessm.cli.inspect:main", "draw what a model has learned: time scales, kernels, saliency"),
    "export": ("wavessm.cli.export:main", "write a trained model as ONNX or a folder to publish"),
    "data list": ("wavessm.cli.data:list_all", "list the published data sets: sizes, licences, sources"),
    "data check": ("wavessm.cli.data:check", "check that a data set is complete: files, counts, checksums"),
    "data fetch": ("wavessm.cli.data:fetch", "download a data set from its official source"),
    "bench": ("wavessm.cli.bench:main", "measure the training speed of a model on this machine"),
}
"""Name → ("module:function", line of help); other packages add some through the entry-point group wavessm.commands."""

_OF_THE_LAB = ("sweep", "figures", "explore", "report", "data generate")
_REMEDIES = {
    FileNotFoundError: "; check its name",
    IsADirectoryError: "; give the name of a file",
    NotADirectoryError: "; give the name of a folder",
    PermissionError: "; choose another place, or change its permissions",
}
_START = """Start with one of these:

  wavessm demo                      no data needed
  wavessm train arrays FOLDER       your own signals: X.npy and y.npy in a folder
  wavessm train csv FILE            forecast your own table

wavessm COMMAND --help explains each command; wavessm --version prints the version."""


def all_commands() -> dict[str, tuple[str, str]]:
    """Return every command, those of other packages included, in the form of `COMMANDS`."""
    added = [entry.load() for entry in metadata.entry_points(group="wavessm.commands")]
    return {name: command for commands in (COMMANDS, *added) for name, command in commands.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: Words after `wavessm`; default those of this process.

    Returns:
        Exit status.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["--version"]:
        from wavessm import __version__

        print(f"wavessm {__version__}")
        return 0
    known = all_commands()
    name = next((name for name in (" ".join(words[:2]), *words[:1]) if name in known), None)
    if name is None:
        return _overview_or_refusal(words, known)
    module, _, function = known[name][0].partition(":")
    try:
        return getattr(importlib.import_module(module), function)(words[len(name.split()) :])
    except SystemExit as end:  # help was asked for and printed
        return end.code if isinstance(end.code, int) else 0
    except (WaveSSMError, OSError, KeyboardInterrupt, ModuleNotFoundError) as reason:
        return _refusal(f"wavessm {name}", reason)


def _overview_or_refusal(words: list[str], known: dict[str, tuple[str, str]]) -> int:
    """Print the commands, or those of a group such as `data`, or refuse a command that there is not."""
    group = words[0] if words and words[0] not in ("-h", "--help") else ""
    there = {name: about for name, (_, about) in known.items() if name.startswith(f"{group} " if group else "")}
    asked = words[1:] if group else words
    if not there or (asked and asked[0] not in ("-h", "--help")):
        name = " ".join(words[: 2 if there else 1])
        lab = MissingExtraError(f"{name} is a command of wavessm-lab: pip install wavessm-lab.")
        return _refusal("wavessm", lab if name in _OF_THE_LAB else unknown_name("command", name, there or known))
    width = max(len(name) for name in there) + 2
    lines = [f"  {name:<{width}}{about}" for name, about in there.items()]
    usage = " ".join(["usage: wavessm", *([group] if group else []), "COMMAND [options]"])
    print("\n".join([usage, "", *lines, *([] if group else ["", _START])]))
    return 0 if asked else 2


def _refusal(prog: str, reason: BaseException) -> int:
    """Say in one line why a command ended; its exit status."""
    if isinstance(reason, BrokenPipeError):  # the reader of our output has closed it
        sys.stderr.close()
        return 0
    if isinstance(reason, KeyboardInterrupt):
        print(f"{prog}: stopped.", file=sys.stderr)
        return 130
    text = str(reason)
    if isinstance(reason, OSError):
        remedy = next((words for kind, words in _REMEDIES.items() if isinstance(reason, kind)), "")
        text = (f"{reason.filename}: " if reason.filename else "") + f"{reason.strerror or reason}{remedy}."
    elif isinstance(reason, ModuleNotFoundError) and not isinstance(reason, WaveSSMError):
        if reason.name != "tyro":
            raise reason
        text = "the command line needs tyro: pip install 'wavessm[train]'."
    print(f"{prog}: {text}", file=sys.stderr)
    return 2

"""Stage 12: the command line. `wavessm COMMAND --help` explains each command.

A mistake in what was typed or in the data is one line on standard error and exit status 2; Ctrl-C is 130.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib import metadata
from typing import Any

from wavessm.errors import WaveSSMError, unknown_name

COMMANDS = {
    "demo": "train a wavelet and a polynomial state space side by side, five minutes, no download",
    "train": "train a model on one of the tasks, or on your own data",
    "evaluate": "scores of a trained model, with confidence intervals",
    "predict": "predictions for new files or a stream, as CSV and as a figure",
    "inspect": "what a trained model has learned: time scales, modes, kernels, its past, saliency, as figures",
    "export": "a trained model as ONNX, for streams too, as torch.export or as a folder to publish",
    "data": "the published data sets: list, check, fetch and generate them",
    "bench": "training speed of a model on this machine",
}

BEGIN = """Begin with one of these:

  wavessm demo                      no data needed
  wavessm train arrays FOLDER       your own signals: X.npy and y.npy in a folder
  wavessm train csv FILE            forecast your own table

wavessm COMMAND --help explains each; wavessm --version says which version this is."""


def plugin(group: str, name: str) -> Any:
    """What another installed package adds to `group` under `name`, or None."""
    found = metadata.entry_points(group=group, name=name)
    return next(iter(found)).load() if found else None


def added_commands() -> dict[str, tuple[str, str]]:
    """Commands of other packages: name → (module with a function `main`, line of help)."""
    return {
        name: command
        for entry in metadata.entry_points(group="wavessm.commands")
        for name, command in entry.load().items()
    }


def all_commands() -> dict[str, tuple[str, str]]:
    """Every command: name → (module with a function `main`, line of help)."""
    own = {name: (f"wavessm.cli.{name}", about) for name, about in COMMANDS.items()}
    return own | {name: command for name, command in added_commands().items() if " " not in name}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or given[0] in ("-h", "--help"):
        print(overview())
        return 0 if given else 2
    if given[0] == "--version":
        import wavessm

        print(f"wavessm {wavessm.__version__}")
        return 0
    name = given[0]
    try:
        known = all_commands()
        if name not in known:
            raise unknown_name("command", name, known)
        return importlib.import_module(known[name][0]).main(given[1:])
    except SystemExit as end:  # help was asked for and printed
        return end.code if isinstance(end.code, int) else 0
    except WaveSSMError as reason:
        print(f"wavessm {name}: {reason}" if name in all_commands() else f"wavessm: {reason}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"wavessm {name}: stopped.", file=sys.stderr)
        return 130
    except BrokenPipeError:  # whoever read our output has had enough
        sys.stderr.close()
        return 0
    except OSError as reason:
        where = f"{reason.filename}: " if reason.filename else ""
        print(f"wavessm {name}: {where}{reason.strerror or reason}.", file=sys.stderr)
        return 2


def overview() -> str:
    """All commands, a line each."""
    lines = [f"  {name:<10}{about}" for name, (_, about) in all_commands().items()]
    return "\n".join(["usage: wavessm COMMAND [options]", "", *lines, "", BEGIN])

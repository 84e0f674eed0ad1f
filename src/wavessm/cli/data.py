"""`wavessm data list | check | fetch | generate`: published sets, which are there, are they whole, get or make them."""

from __future__ import annotations

import dataclasses
import importlib
import os
import sys
from pathlib import Path
from typing import TypeVar

from wavessm.cli import added_commands
from wavessm.cli.bar import Bar, megabytes
from wavessm.cli.parse import parse
from wavessm.data.task import ROOT_VARIABLE, data_root
from wavessm.errors import MissingExtraError, OptionError, unknown_name

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class ListOptions:
    root: str = ""
    """Folder that holds the sets; default $WAVESSM_DATA."""


@dataclasses.dataclass(frozen=True)
class CheckOptions:
    name: str = ""
    """Name of a set, as listed; it may stand first without --name."""
    root: str = ""
    """Folder that holds the sets; default $WAVESSM_DATA."""


@dataclasses.dataclass(frozen=True)
class FetchOptions:
    name: str = ""
    """Name of a set, as listed; it may stand first without --name."""
    root: str = ""
    """Folder that holds the sets; default $WAVESSM_DATA."""
    timeout: float = 30.0
    """Seconds without a byte after which a download fails."""
    tries: int = 6
    """Downloads to try."""
    keep: bool = False
    """Keep the archive in .downloads, for another set of the same release."""


USAGE = """usage: wavessm data VERB [NAME] [--root FOLDER] [options]

  list              names, sizes, licences and sources of the published sets; which of them lie in FOLDER
  check NAME        whether a set is whole: files, counts, checksums
  fetch NAME        bring a set from its official source
  generate NAME     draw listops, pathfinder or pathx by their published rules; resumes after a stop

FOLDER holds all sets; without --root (or --data-root) it is $WAVESSM_DATA. `wavessm data VERB --help` lists options."""
VERBS = ("list", "check", "fetch", "generate")


def main(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE)
        return 0 if arguments else 2
    verb, rest = arguments[0], arguments[1:]
    if verb not in VERBS:
        raise unknown_name("verb of data", verb, VERBS)
    if verb == "generate":
        added = added_commands().get("data generate")
        if added is None:
            raise MissingExtraError("data generate is a command of wavessm-lab: pip install wavessm-lab.")
        return importlib.import_module(added[0]).main(rest)
    return {"list": _list, "check": _check, "fetch": _fetch}[verb](rest)


def _named(kind: type[T], verb: str, rest: list[str], about: str) -> T:
    """Options whose first argument may be the name of a set."""
    if rest and not rest[0].startswith("-"):
        rest = ["--name", *rest]
    if not any(word.startswith("--name") or word in ("-h", "--help") for word in rest):
        raise OptionError(f"{verb} needs the name of a set: `wavessm data list` shows them.")
    return parse(kind, None, rest, f"wavessm data {verb} NAME", about)


def _list(rest: list[str]) -> int:
    from wavessm.data import list_sets

    given = parse(ListOptions, None, rest, "wavessm data list", "Every set the loaders know.")
    known = bool(given.root or os.environ.get(ROOT_VARIABLE))
    root = data_root(given.root) if known else Path(os.devnull)  # where nothing lies
    if known and not root.is_dir():
        raise OptionError(f"{root}: no such folder; give the one that holds the sets with --root.")
    for row in list_sets(root):
        there = f"{row.size / 2**20:8.1f} MiB" if row.present else "      absent"
        print(f"{row.name:<14}{there if known else '':12}  {row.licence:<34}  {row.published}")
    if not known:
        print(f"which of them are there? Give the folder with --root, or set {ROOT_VARIABLE}.", file=sys.stderr)
    return 0


def _check(rest: list[str]) -> int:
    from wavessm.data.published import check_set, get_published

    chosen = _named(CheckOptions, "check", rest, "Files, counts and checksums of a set.")
    get_published(chosen.name)
    findings = check_set(data_root(chosen.root), chosen.name)
    for finding in findings:
        print(f"{finding.level:<8}{finding.text}")
    return 1 if any(finding.level == "problem" for finding in findings) else 0


def _fetch(rest: list[str]) -> int:
    from wavessm.data.fetch import fetch_set
    from wavessm.data.published import get_published

    given = _named(FetchOptions, "fetch", rest, "A set from its official source.")
    official, root = get_published(given.name), data_root(given.root)
    print(f"{given.name}: published at {official.homepage}\nlicence: {official.licence}")
    if official.url:
        print(f"source:  {official.url}" + (f"\nnote:    {official.remark}" if official.remark else ""))
    bar = Bar(given.name, megabytes)
    fetched = fetch_set(root, given.name, given.timeout, given.tries, given.keep, bar)
    if fetched.sha256 is None:
        print(f"{fetched.path} is there already; `wavessm data check {given.name}` looks into it.")
        return 0
    print(f"SHA-256: {fetched.sha256} ({'as published' if official.sha256 else 'none is published to compare with'})")
    print(f"ready:   {fetched.path}")
    return 0

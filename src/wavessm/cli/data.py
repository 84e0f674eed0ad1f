"""`wavessm data list | check | fetch | generate`: published sets, which are there, are they whole, get or make them."""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path
from typing import TypeVar

from wavessm.cli.bar import Bar, megabytes
from wavessm.cli.parse import parse
from wavessm.errors import OptionError
from wavessm.registry import unknown_name
from wavessm.tasks import ROOT_VARIABLE, data_root

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
    """Seconds without a byte after which the connection is opened again."""
    tries: int = 6
    """Connections in a row that bring nothing before giving up."""
    keep: bool = False
    """Keep the archive in .downloads, for another set of the same release."""


@dataclasses.dataclass(frozen=True)
class GenerateOptions:
    name: str = ""
    """listops, pathfinder or pathx; it may stand first without --name."""
    root: str = ""
    """Folder that holds the sets; default $WAVESSM_DATA."""
    count: int = 0
    """Examples in all; 0 takes the published number."""
    seed: int = 0
    """Seed; the set does not depend on the number of workers."""
    workers: int = 0
    """Processes; 0 takes one a core."""
    as_published: bool = False
    """Pictures: let paths touch, as the published program does."""


USAGE = """usage: wavessm data VERB [NAME] [--root FOLDER] [options]

  list              names, sizes, licences and sources of the published sets; which of them lie in FOLDER
  check NAME        whether a set is whole: files, counts, checksums
  fetch NAME        bring a set from its official source; goes on after a cut connection
  generate NAME     draw listops, pathfinder or pathx by their published rules; goes on after a stop

FOLDER holds all sets; without --root (or --data-root) it is $WAVESSM_DATA. `wavessm data VERB --help` lists options."""
VERBS = ("list", "check", "fetch", "generate")
GENERATED = ("listops", "pathfinder", "pathx")


def main(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE)
        return 0 if arguments else 2
    verb, rest = arguments[0], arguments[1:]
    if verb not in VERBS:
        raise unknown_name("verb of data", verb, VERBS)
    return {"list": _list, "check": _check, "fetch": _fetch, "generate": _generate}[verb](rest)


def _named(kind: type[T], verb: str, rest: list[str], about: str) -> T:
    """Options whose first argument may be the name of a set."""
    if rest and not rest[0].startswith("-"):
        rest = ["--name", *rest]
    if not any(word.startswith("--name") or word in ("-h", "--help") for word in rest):
        which = ", ".join(GENERATED) if verb == "generate" else "`wavessm data list` shows them"
        raise OptionError(f"{verb} needs the name of a set: {which}.")
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
    from wavessm.data import check_set
    from wavessm.data.catalogue import ENTRIES

    chosen = _named(CheckOptions, "check", rest, "Files, counts and checksums of a set.")
    if chosen.name not in ENTRIES:
        raise unknown_name("data set", chosen.name, ENTRIES)
    findings = check_set(data_root(chosen.root), chosen.name)
    for finding in findings:
        print(f"{finding.level:<8}{finding.text}")
    return 1 if any(finding.level == "problem" for finding in findings) else 0


def _fetch(rest: list[str]) -> int:
    from wavessm.data.download import Patience
    from wavessm.data.fetch import OFFICIAL, fetch_set

    given = _named(FetchOptions, "fetch", rest, "A set from its official source; goes on after a cut connection.")
    if given.name not in OFFICIAL:
        raise unknown_name("data set", given.name, OFFICIAL)
    root, official = data_root(given.root), OFFICIAL[given.name]
    print(f"{given.name}: published at {official.page}\nlicence: {official.licence}")
    if official.url:
        print(f"source:  {official.url}" + (f"\nnote:    {official.remark}" if official.remark else ""))
    patience = Patience(given.timeout, given.tries)
    fetched = fetch_set(root, given.name, patience, given.keep, Bar(given.name, megabytes))
    if fetched.sha256 is None:
        print(f"{fetched.path} is there already; `wavessm data check {given.name}` looks into it.")
        return 0
    print(f"SHA-256: {fetched.sha256} ({'as published' if official.sha256 else 'none is published to compare with'})")
    print(f"ready:   {fetched.path}")
    return 0


def _generate(rest: list[str]) -> int:
    from wavessm.data import generate_listops, generate_pathfinder
    from wavessm.data.listops import Sizes
    from wavessm.data.pathfinder import COUNT

    given = _named(GenerateOptions, "generate", rest, "A set drawn to its published rules; pictures go on if stopped.")
    if given.name not in GENERATED:
        raise unknown_name("generated set", given.name, GENERATED)
    if given.count < 0:
        raise OptionError(f"generate: count is {given.count}, expected 0 (as published) or more.")
    if given.workers < 0:
        raise OptionError(f"generate: workers is {given.workers}, expected 0 (one a core) or more.")
    root, bar = data_root(given.root), Bar(given.name, "{:,}".format)
    Path(root).mkdir(parents=True, exist_ok=True)
    if given.name == "listops":
        held = max(1, round(0.02 * given.count))
        sizes = Sizes(max(1, given.count - 2 * held), held, held) if given.count else Sizes()
        lines = generate_listops(root, given.seed, sizes, given.workers, show=bar).lines()
    else:
        count = given.count or COUNT
        lines = generate_pathfinder(root, given.name, count, given.seed, given.workers, bar, given.as_published).lines()
    print("\n".join(lines))
    return 0

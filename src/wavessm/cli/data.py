"""`wavessm data list | check`: which published sets are there, and whether they are whole."""

from __future__ import annotations

import dataclasses

from wavessm.cli.parse import parse
from wavessm.errors import OptionError
from wavessm.registry import unknown_name
from wavessm.tasks import data_root


@dataclasses.dataclass(frozen=True)
class ListOptions:
    root: str = ""
    """Folder that holds the sets; default $WAVESSM_DATA."""


@dataclasses.dataclass(frozen=True)
class CheckOptions:
    name: str
    """Name of a set, as listed."""
    root: str = ""
    """Folder that holds the sets; default $WAVESSM_DATA."""


VERBS = ("list", "check")


def main(arguments: list[str]) -> int:
    from wavessm.data import check_set, list_sets

    if not arguments or arguments[0] in ("-h", "--help"):
        print("usage: wavessm data list [--root FOLDER]\n       wavessm data check NAME [--root FOLDER]")
        return 0 if arguments else 2
    verb, rest = arguments[0], arguments[1:]
    if verb not in VERBS:
        raise unknown_name("verb of data", verb, VERBS)
    if verb == "list":
        given = parse(ListOptions, None, rest, "wavessm data list", "Every set the loaders know.")
        for row in list_sets(data_root(given.root)):
            there = f"{row.size / 2**20:8.1f} MiB" if row.present else "      absent"
            print(f"{row.name:<14}{there}  {row.licence:<14}  {row.published}")
        return 0
    if rest and not rest[0].startswith("-"):
        rest = ["--name", *rest]
    if "--name" not in rest and "-h" not in rest and "--help" not in rest:
        raise OptionError("check needs the name of a set; `wavessm data list` shows them.")
    chosen = parse(CheckOptions, None, rest, "wavessm data check", "Files, counts and checksums of a set.")
    findings = check_set(data_root(chosen.root), chosen.name)
    for finding in findings:
        print(f"{finding.level:<8}{finding.text}")
    return 1 if any(finding.level == "problem" for finding in findings) else 0

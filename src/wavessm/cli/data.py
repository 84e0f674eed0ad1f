"""`wavessm data list | check | fetch`: the published data sets. wavessm-lab adds `wavessm data generate`."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional

from wavessm.cli.parse import parse
from wavessm.data.task import ROOT_VARIABLE, data_root
from wavessm.errors import OptionError


@dataclass(frozen=True, kw_only=True)
class ListOptions:
    """List every published data set: size here, licence, source."""

    root: str = ""
    """Folder that holds the sets; default $WAVESSM_DATA."""


@dataclass(frozen=True, kw_only=True)
class SetOptions(ListOptions):
    """Options of commands about one data set."""

    name: Positional[str]
    """Name of a set, as listed."""


def list_all(arguments: list[str]) -> int:
    """Run `wavessm data list`; returns the exit status."""
    given = parse(ListOptions, arguments, "wavessm data list")
    from wavessm.data.published import list_sets, published

    known = bool(given.root or os.environ.get(ROOT_VARIABLE))
    root = data_root(given.root) if known else Path(os.devnull)  # where nothing lies
    if known and not root.is_dir():
        raise OptionError(f"{root}: no such folder; give the one that holds the sets with --root.")
    sizes = list_sets(root)
    for name, about in published().items():
        size = sizes[name]
        there = "      absent" if size is None else f"{size / 2**20:8.1f} MiB"
        print(f"{name:<14}{there if known else '':12}  {about.licence:<34}  {about.homepage}")
    if not known:
        print(f"To see which of them you have, give their folder with --root, or set {ROOT_VARIABLE}.", file=sys.stderr)
    return 0


def check(arguments: list[str]) -> int:
    """Run `wavessm data check`; returns the exit status."""
    about = "Check that a data set is complete: files, counts and checksums."
    given = parse(SetOptions, arguments, "wavessm data check", about=about)
    from wavessm.data.published import check_set, get_published

    get_published(given.name)  # an unknown name is refused before the folder is looked for
    findings = check_set(data_root(given.root), given.name)
    for finding in findings:
        print(f"{finding.level:<8}{finding.text}")
    return 1 if any(finding.level == "problem" for finding in findings) else 0


def fetch(arguments: list[str]) -> int:
    """Run `wavessm data fetch`; returns the exit status."""
    about = "Download a data set from its official source. A connection that fails is tried again."
    given = parse(SetOptions, arguments, "wavessm data fetch", about=about)
    from wavessm.data.published import fetch_set, get_published
    from wavessm.training import Progress

    official, root = get_published(given.name), data_root(given.root)
    print(f"{given.name}: published at {official.homepage}\nlicence: {official.licence}")
    if official.url:
        print(f"source:  {official.url}" + (f"\nnote:    {official.remark}" if official.remark else ""))
    with Progress(given.name) as progress:

        def show(done: int, total: int) -> None:
            progress.update(done, f"{done / 1e6:,.1f} MB of {total / 1e6:,.1f} MB", total)

        path, sha256 = fetch_set(root, given.name, show)
    if sha256 is None:
        print(f"{path} is there already; check it with: wavessm data check {given.name}")
        return 0
    print(f"SHA-256: {sha256} ({'as published' if official.sha256 else 'none is published to compare with'})")
    print(f"ready:   {path}")
    return 0

"""`wavessm data generate NAME`: ListOps, Pathfinder and Path-X drawn by their published rules."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from wavessm.cli.bar import Bar
from wavessm.cli.parse import first, parse
from wavessm.data.task import data_root
from wavessm.errors import OptionError, unknown_name

GENERATED = ("listops", "pathfinder", "pathx")


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


def main(rest: list[str]) -> int:
    from wavessm.data.datasets.pathfinder import COUNT
    from wavessm_lab.generate.listops import Sizes, generate_listops
    from wavessm_lab.generate.pathfinder import generate_pathfinder

    rest = first(rest, "name")
    if not any(word.startswith("--name") or word in ("-h", "--help") for word in rest):
        raise OptionError(f"generate needs the name of a set: {', '.join(GENERATED)}.")
    about = "Draw a set by its published rules; a stopped generator resumes."
    given = parse(GenerateOptions, None, rest, "wavessm data generate NAME", about)
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

"""`wavessm data generate NAME`: ListOps, Pathfinder and Path-X drawn by their published rules."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tyro.conf import Positional

from wavessm.cli.parse import parse
from wavessm.errors import check_int


@dataclass(frozen=True)
class GenerateOptions:
    """Generate a set by its published rules. An interrupted generator is resumed by the same command."""

    name: Positional[Literal["listops", "pathfinder", "pathx"]]
    """The set to generate."""
    root: str = ""
    """Folder that holds the sets; default $WAVESSM_DATA."""
    count: int = 0
    """Number of examples; 0 for the published number."""
    seed: int = 0
    """Seed; the set does not depend on the number of workers."""
    workers: int = 0
    """Processes; 0 for one per core."""
    as_published: bool = False
    """Pictures: let paths touch, as the published program does."""


def main(arguments: list[str]) -> int:
    """Run `wavessm data generate`; returns the exit status."""
    given = parse(GenerateOptions, arguments, "wavessm data generate")
    from wavessm.data import data_root
    from wavessm.training import Progress
    from wavessm_lab.generate.listops import SIZES, generate_listops
    from wavessm_lab.generate.pathfinder import generate_pathfinder
    from wavessm_lab.tasks.pathfinder import COUNT

    check_int(given.count, "count", minimum=0)
    check_int(given.workers, "workers", minimum=0)
    root = data_root(given.root)
    Path(root).mkdir(parents=True, exist_ok=True)
    with Progress(given.name) as progress:

        def show(done: int, total: int) -> None:
            progress.update(done, f"{done:,} of {total:,}", total)

        if given.name == "listops":
            held = max(1, round(0.02 * given.count))
            own = max(1, given.count - 2 * held), held, held
            numbers = generate_listops(root, given.seed, own if given.count else SIZES, given.workers, show=show)
        else:
            numbers = generate_pathfinder(
                root, given.name, given.count or COUNT, given.seed, given.workers, show, given.as_published
            )
    for name, value in numbers.items():
        print(f"{name}: {value:.6g}")
    return 0

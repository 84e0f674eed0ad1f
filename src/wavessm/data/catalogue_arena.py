"""Speech Commands and the Long Range Arena for `catalogue`: where each set lies, and what it should hold."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from wavessm.data.datasets import arena, pathfinder, speech
from wavessm.data.datasets import image as cifar
from wavessm.data.source import DataSet

Loader = Callable[[Path], DataSet]


class Known(NamedTuple):
    """A set: its files, its loader, cases of the three parts and number of symbols as published (0: pixels, sound)."""

    find: Callable[[Path], list[Path]]
    load: Loader
    sizes: tuple[int, int, int]
    symbols: int = 0


def _speech(words: int, sizes: tuple[int, int, int]) -> Known:
    return Known(
        lambda root: [speech.find_speech(root, words)],
        lambda root: speech.load_speech(root, words, skip_bad=True),
        sizes,
    )


def _pictures(name: str) -> Known:
    return Known(
        lambda root: [pathfinder.find_pathfinder(root, name)],
        lambda root: pathfinder.load_pathfinder(root, name, skip_bad=True),
        (160_000, 20_000, 20_000),
    )


KNOWN = {
    "speech": _speech(35, (84_843, 9_981, 11_005)),
    "speech-30": _speech(30, (51_088, 6_798, 6_835)),
    "listops": Known(lambda root: [arena.find_listops(root)], arena.load_listops, (96_000, 2_000, 2_000), 18),
    "text": Known(
        lambda root: [arena.find_text(root) / part for part in ("train", "test")],
        arena.load_text,
        (22_500, 2_500, 25_000),
        134,
    ),
    "retrieval": Known(
        lambda root: [arena.find_retrieval(root) / name for name in arena.PAIRS.values()],
        arena.load_retrieval,
        (147_086, 18_090, 17_437),
        98,
    ),
    "image": Known(cifar.find_image, cifar.load_image, (45_000, 5_000, 10_000)),
    "pathfinder": _pictures("pathfinder"),
    "pathx": _pictures("pathx"),
}

"""Stage 7c: data options of Speech Commands and of the six tasks of the Long Range Arena; `tasks.py` registers them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from wavessm.data.source import DataSet


def _root(given: str) -> str:
    from wavessm.tasks import data_root  # tasks.py imports this file

    return str(data_root(given))


@dataclass(frozen=True)
class ListopsOptions:
    root: str = ""
    """Folder that holds listops-1000/, generated or released; default $WAVESSM_DATA."""
    max_length: int = 2048
    """Tokens of the longest sequence, its end included."""

    def load(self, seed: int) -> DataSet:
        from wavessm.data import load_listops

        return load_listops(_root(self.root), self.max_length)


@dataclass(frozen=True)
class TextOptions:
    root: str = ""
    """Folder that holds aclImdb/; default $WAVESSM_DATA."""
    max_length: int = 4096
    """Characters of the longest review, its end included."""
    hold_out: int = 2500
    """Training reviews that validate; 0 trains on all: then report the last epoch."""
    least: int = 15
    """Characters rarer than this in training are unknown."""

    def load(self, seed: int) -> DataSet:
        from wavessm.data import load_text

        return load_text(_root(self.root), self.max_length, self.hold_out, self.least)


@dataclass(frozen=True)
class RetrievalOptions:
    root: str = ""
    """Folder that holds tsv_data/new_aan_pairs.*.tsv; default $WAVESSM_DATA."""
    max_length: int = 4000
    """Characters of the longest text, its end included."""

    def load(self, seed: int) -> DataSet:
        from wavessm.data import load_retrieval

        return load_retrieval(_root(self.root), self.max_length)


@dataclass(frozen=True)
class ImageOptions:
    root: str = ""
    """Folder that holds cifar-10-batches-py/ or cifar-10-batches-bin/; default $WAVESSM_DATA."""

    def load(self, seed: int) -> DataSet:
        from wavessm.data import load_image

        return load_image(_root(self.root))


@dataclass(frozen=True)
class PathfinderOptions:
    root: str = ""
    """Folder that holds pathfinder32/ (pathfinder128/ for Path-X), generated or released; default $WAVESSM_DATA."""
    name: str = "pathfinder"
    """pathfinder or pathx."""
    center: bool = False
    """Pixels in [-1, 1] instead of [0, 1]."""
    skip_bad: bool = False
    """Leave out pictures that cannot be read, and list them."""

    def load(self, seed: int) -> DataSet:
        from wavessm.data import load_pathfinder

        return load_pathfinder(_root(self.root), self.name, self.center, self.skip_bad)


@dataclass(frozen=True)
class SpeechOptions:
    root: str = ""
    """Folder that holds speech_commands_v0.02/ (v0.01 for 30 words); default $WAVESSM_DATA."""
    words: Literal[35, 30] = 35
    """35 words are version 0.02, 30 words 0.01."""
    scaling: Literal["global", "s4-compat"] = "global"
    """One mean and deviation for all, or state-spaces/s4's of every step."""
    skip_bad: bool = False
    """Leave out clips that cannot be read, and list them."""

    def load(self, seed: int) -> DataSet:
        from wavessm.data import load_speech

        return load_speech(_root(self.root), self.words, self.scaling, self.skip_bad)

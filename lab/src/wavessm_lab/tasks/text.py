"""Text of the Long Range Arena: IMDb reviews by character.

    aclImdb/{train,test}/{pos,neg}/<id>_<rating>.txt  a review each

A text is cut to one less than the longest length, and an end token follows. The vocabulary comes from the cut training
texts. `tokens.py` has what texts have in common.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from wavessm.data.info import DataSet
from wavessm.data.published import Published
from wavessm.data.task import Task
from wavessm.errors import DataError, OptionError
from wavessm_lab.tasks.tokens import TokenOptions, Tokens, recipes

HOMEPAGE = "https://ai.stanford.edu/~amaas/data/sentiment/"


@dataclass(frozen=True)
class TextOptions(TokenOptions):
    """x (batch, longest) of characters, y 1 for a good review."""

    max_length: int = 4096
    """Characters of the longest review, its end included."""
    hold_out: int = 2500
    """Training reviews (seed 42) that validate; 0 trains on all and shows 2,500 of them: then report the last epoch."""
    min_count: int = 15
    """Characters rarer than this in training are unknown."""

    checks: ClassVar[dict[str, Any]] = {"hold_out": (lambda value: value >= 0, "at least 0")}
    name, classes = "text", ("neg", "pos")

    def parts(self) -> dict[str, Path]:
        source = f"get it with `wavessm data fetch text`, or from {HOMEPAGE}."
        folder = self.find(["aclImdb", ""], ["train/pos"], "Text: no aclImdb/train/pos", source)
        return {"train": folder / "train", "test": folder / "test"}

    def read(self, path: Path) -> Iterator[tuple[str, int]]:
        for label, name in enumerate(self.classes):
            paths = sorted((path / name).glob("*.txt"))
            if not paths:
                raise DataError(f"{path / name}: no review in it; unpack the archive again (it is at {HOMEPAGE}).")
            for review in paths:
                try:
                    yield review.read_text(encoding="utf-8"), label
                except UnicodeDecodeError as reason:
                    raise DataError(f"{review}: not UTF-8 text at byte {reason.start}.") from reason

    def encode(self, parts: dict[str, Path], min_count: int = 1) -> tuple[dict[str, Tokens], Sequence[str]]:
        return super().encode(parts, self.min_count)

    def load(self, seed: int) -> DataSet:
        import torch

        data = super().load(seed)  # the two published parts; validation is drawn from training here
        count = len(data.train)
        if self.hold_out >= count:
            raise OptionError(f"text: hold_out is {self.hold_out}, expected 0 to {count - 1}.")
        order = torch.randperm(count, generator=torch.Generator().manual_seed(42))
        shown = order[count - (self.hold_out or min(2500, max(1, count // 10))) :]
        train, val = (data.train.rows(rows.sort().values) for rows in (order[: count - self.hold_out], shown))  # type: ignore[attr-defined]
        return dataclasses.replace(data, train=train, val=val)


TASKS = (Task("text", TextOptions(), recipes(16, 32), "root"),)
PUBLISHED = {
    "text": Published(
        "none stated; cite Maas et al. 2011", HOMEPAGE, TextOptions(), (22_500, 2_500, 25_000), 134,
        url=f"{HOMEPAGE}aclImdb_v1.tar.gz", place="aclImdb", inside="aclImdb",
        sha256="c40f74a18d3b61f90feba1e17730e0d38e8b97c05fde7008942e91923d1658fe",
    )
}  # fmt: skip

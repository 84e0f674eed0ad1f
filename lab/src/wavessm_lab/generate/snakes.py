"""Pathfinder pictures: two long dashed paths among short ones, two discs; do the discs mark one path?

Drawn step by step as the published program does (Linsley et al. 2018, with the Long Range Arena's settings), from
tables: the picture of a paddle depends on its direction only, and there are few directions. `pathfinder` makes sets of
these pictures.

    tail, head   ends of a paddle (row, column)         pivot   the point a paddle turns about, `margin` before its tail
    mask         1 where a paddle and its margin are, grey at their rims; borders are 1

The published rules let paths cross, in gaps between paddles and where the other path has just grown: in two of five
pictures of 32 × 32 (one of ten of 128 × 128) the two long paths touch, and which ends belong together is then a matter
of good continuation. Ours, unless `as_published`: a pair of long paths that touch, and a short path that touches a long
one, is drawn again.
"""

from __future__ import annotations

import math
import random
from typing import NamedTuple

import numpy as np

from wavessm_lab.generate.strokes import (
    CONTOUR_LENGTH,
    DISTRACTOR_LENGTH,
    DISTRACTOR_TRIALS,
    FREE,
    PADDLE_TRIALS,
    STYLES,
    Point,
    Tables,
    free_starts,
    move,
    opposite,
    tables,
)  # fmt: skip

_CROSSING = 1.8  # two masks that add up to this have met
_TOUCH = 0.5  # paths nearer than this, in pixels, touch
_LEAST_FREE = 0.01  # share of free pixels below which no further path is started


class Paddle(NamedTuple):
    """One drawn stroke, from the end nearer the start of its path; one of its ends may lie between pixels."""

    tail: tuple[float, float]
    head: tuple[float, float]


class Picture(NamedTuple):
    """A picture and how it came about."""

    pixels: np.ndarray  # (size, size) uint8
    label: int
    margin: int
    markers: tuple[Point, Point]
    paths: tuple[list[Paddle], list[Paddle]]  # the two long ones
    distractors: list[list[Paddle]]
    attempts: int  # pairs of long paths tried


class _Path:
    """A path that grows. `newest` is the mask of its last paddle, which the next one may touch."""

    def __init__(self, drawer: _Drawer, tail: Point, direction: float, contrast: float) -> None:
        table, style = drawer.tables, drawer.tables.style
        self.drawer, self.direction, self.contrast = drawer, direction, contrast
        self.start = self.end = tail
        head = move(tail, direction, style.paddle_length)
        self.pivot = move(head, opposite(direction), style.paddle_length + table.margin)
        self.ends: list[tuple[Point, int]] = []  # heads after the first paddle, and which candidate each was
        stroke = table.stroke(direction)
        at = table.index(tail) + table.patch
        self.newest = (at, stroke.mask)
        self.strokes = [(at, stroke)]
        self.first = Paddle(tail, table.far_end(tail, direction))

    @property
    def paddles(self) -> list[Paddle]:
        table = self.drawer.tables
        return [
            self.first,
            *(Paddle(table.far_end(head, opposite(table.directions[pick])), head) for head, pick in self.ends),
        ]

    def corners(self) -> np.ndarray:
        """The path as a line through all ends of paddles, (points, 2)."""
        return np.array([point for paddle in self.paddles for point in paddle], float)

    def grow(self) -> bool:
        """One more paddle; False where none fits."""
        drawer, table = self.drawer, self.drawer.tables
        pivot = move(self.pivot, self.direction, table.style.paddle_length + 2 * table.margin)
        at = table.index(pivot)
        chances = 1 - drawer.mask[table.around + at].max(axis=1)
        chances *= table.weigh(self.direction)
        chances *= table.inside[table.head_index + at]
        below = chances.cumsum()
        if below[-1] < 1e-4:
            return False
        for _ in range(PADDLE_TRIALS):
            pick = int(below.searchsorted(drawer.uniform() * below[-1], side="right"))
            stroke = table.back(pick)
            patch = table.patches[pick] + at
            if (drawer.mask[patch] + stroke.mask).max() < _CROSSING:
                drawer.take(self.newest)
                self.newest = (patch, stroke.mask)
                self.strokes.append((patch, stroke))
                self.pivot, self.direction = pivot, table.directions[pick]
                self.end = (pivot[0] + table.heads[pick][0], pivot[1] + table.heads[pick][1])
                self.ends.append((self.end, pick))
                return True
        return False


class _Drawer:
    """One picture in the making."""

    def __init__(self, table: Tables, rng: random.Random, as_published: bool) -> None:
        self.tables, self.uniform, self.as_published = table, rng.random, as_published
        self.mask = table.blank.copy()  # flat canvas
        self.long: list[np.ndarray] = []  # corners of the long paths, for paths that must not touch them

    def take(self, stroke: tuple[np.ndarray, np.ndarray]) -> None:
        """Mark the mask of a stroke as taken."""
        at, mask = stroke
        self.mask[at] = np.maximum(self.mask[at], mask)

    def direction(self) -> float:
        return math.radians(int(self.uniform() * 360) - 180)

    def long_paths(self) -> tuple[_Path, _Path] | None:
        """Two paths of full length, grown by turns; None where one gets stuck."""
        style = self.tables.style
        self.mask = self.tables.blank.copy()
        direction = self.direction()
        starts = self.tables.first_starts(direction)
        tail = self.tables.point(int(starts[int(self.uniform() * starts.size)])) if starts.size else None
        second = None if tail is None else self._second_start(tail)
        if tail is None or second is None:
            return None
        first = _Path(self, tail, direction, style.contrast)
        other = _Path(self, second[0], second[1], style.contrast)
        for _ in range(CONTOUR_LENGTH - 1):
            if not first.grow() or not other.grow():
                return None
        if not self.as_published:
            self.long = [first.corners(), other.corners()]
            if distance(*self.long) < _TOUCH:
                return None
        self.take(other.newest)  # the published program forgets the first path's last paddle here
        return first, other

    def _second_start(self, tail: Point) -> tuple[Point, float] | None:
        """At the seed distance from the first start, in any direction, pointing anywhere."""
        style = self.tables.style
        for _ in range(PADDLE_TRIALS):
            direction, bearing = self.direction(), math.radians(int(self.uniform() * 360))
            there = (
                round(tail[0] + style.seed_distance * math.sin(bearing)),
                round(tail[1] + style.seed_distance * math.cos(bearing)),
            )
            if self._fits(there, direction):
                return there, direction
        return None

    def _fits(self, tail: Point, direction: float) -> bool:
        """Whether head and pivot of a first paddle lie in the picture."""
        style = self.tables.style
        head = move(tail, direction, style.paddle_length)
        pivot = move(head, opposite(direction), style.paddle_length + self.tables.margin)
        return all(0 <= value < style.size for value in (*head, *pivot))

    def _find_start(self, taken: np.ndarray, direction: float) -> Point | None:
        """A pixel, uniform among those where a first paddle in this direction is free; None where there is none."""
        table, offsets = self.tables, self.tables.stroke(direction).start
        for _ in range(30):  # by trial, which is fast where much is free
            pixel = table.pixels[int(self.uniform() * table.pixels.size)]
            if taken[pixel + offsets].max(initial=0) <= FREE:
                return table.point(int(pixel))
        free = free_starts(taken, table.pixels, offsets)
        return table.point(int(free[int(self.uniform() * free.size)])) if free.size else None

    def short_path(self) -> _Path | None:
        """One distractor, or None where it gets stuck; the mask is then as before."""
        table, style, before = self.tables, self.tables.style, self.mask.copy()
        if (self.mask[table.pixels] <= FREE).mean() < _LEAST_FREE:
            return None
        direction = self.direction()
        tail = self._find_start(np.maximum(self.mask, table.edge), direction)
        if tail is None or not self._fits(tail, direction):
            return None
        path = _Path(self, tail, direction, style.distractor_contrast)
        for _ in range(DISTRACTOR_LENGTH - 1):
            if not path.grow():
                self.mask = before
                return None
        if any(distance(path.corners(), corners) < _TOUCH for corners in self.long):
            self.mask = before
            return None
        self.take(path.newest)
        return path


def distance(one: np.ndarray, other: np.ndarray) -> float:
    """Smallest distance of two lines through the points (n, 2) and (m, 2); 0 where they cross.

    >>> cross = np.array([[0.0, 0], [2, 2]]), np.array([[0.0, 2], [2, 0]])
    >>> distance(*cross), distance(cross[0], np.array([[0.0, 3], [2, 3]]))
    (0.0, 1.0)
    """
    a, b = one[:-1, None], one[1:, None]  # (n − 1, 1, 2)
    c, d = other[None, :-1], other[None, 1:]

    def side(p: np.ndarray, q: np.ndarray, r: np.ndarray) -> np.ndarray:
        return (q[..., 0] - p[..., 0]) * (r[..., 1] - p[..., 1]) - (q[..., 1] - p[..., 1]) * (r[..., 0] - p[..., 0])

    if ((side(a, b, c) * side(a, b, d) < 0) & (side(c, d, a) * side(c, d, b) < 0)).any():
        return 0.0

    def gap(p: np.ndarray, q: np.ndarray, r: np.ndarray) -> float:
        along = q - p
        t = ((r - p) * along).sum(-1) / np.maximum((along**2).sum(-1), 1e-12)
        return float(np.sqrt(((p + np.clip(t, 0, 1)[..., None] * along - r) ** 2).sum(-1)).min())

    return min(gap(a, b, other[None]), gap(c, d, one[:, None]))


def draw_picture(size: int, rng: random.Random, as_published: bool = False) -> Picture:
    """A picture of the set of this size (32 or 128). as_published: paths may touch.

    >>> picture = draw_picture(32, random.Random(0))
    >>> picture.pixels.shape, len(picture.paths[0]), picture.pixels.max()
    ((32, 32), 14, np.uint8(255))
    """
    style = STYLES[size]
    label = int(rng.random() * 2)
    table = tables(size, style.margins[int(rng.random() * len(style.margins))])
    drawer, attempts, pair = _Drawer(table, rng, as_published), 0, None
    while pair is None:
        attempts += 1
        pair = drawer.long_paths()
    short: list[_Path] = []
    for _ in range(style.distractors):
        for _ in range(DISTRACTOR_TRIALS):
            path = drawer.short_path()
            if path is not None:
                short.append(path)
                break
    first = int(rng.random() * 2)
    last = first if label else 1 - first
    markers = (pair[first].start, pair[last].end)
    pixels = _paint(table, [*pair, *short], markers)
    paths = (pair[0].paddles, pair[1].paddles)
    return Picture(pixels, label, table.margin, markers, paths, [path.paddles for path in short], attempts)


def _paint(table: Tables, paths: list[_Path], markers: tuple[Point, Point]) -> np.ndarray:
    """Strokes and discs, the brighter on top, stretched to 0 … 255."""
    canvas = np.zeros_like(table.blank)
    for path in paths:
        for at, stroke in path.strokes:
            canvas[at] = np.maximum(canvas[at], path.contrast * stroke.line)
    disc, at = table.disc
    for marker in markers:
        index = table.index(marker) + at
        canvas[index] = np.maximum(canvas[index], disc)
    picture = canvas[table.pixels].reshape(table.style.size, -1)
    low, high = picture.min(), picture.max()
    return ((picture - low) * (255 / (high - low)) + 0.5).astype(np.uint8)

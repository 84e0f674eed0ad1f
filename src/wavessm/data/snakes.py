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

import dataclasses
import functools
import math
import random
from typing import Any, NamedTuple

import numpy as np

from wavessm.errors import MissingExtraError

Point = tuple[int, int]
_CROSSING = 1.8  # two masks that add up to this have met
_FREE = 0.3  # a pixel of the mask up to here is free for the start of a path
_TOUCH = 0.5  # paths nearer than this, in pixels, touch
_LEAST_FREE = 0.01  # share of free pixels below which no further path is begun


@dataclasses.dataclass(frozen=True)
class Style:
    """Settings of one set; lengths in pixels, `contour_length` and `distractor_length` in paddles."""

    size: int
    seed_distance: int
    marker_radius: float
    paddle_length: int
    thickness: float
    margins: tuple[int, ...]
    continuity: float
    distractors: int
    contrast: float  # of paddles of the two long paths
    distractor_contrast: float
    contour_length: int = 14
    distractor_length: int = 4
    padding: int = 1
    antialias: int = 2
    paddle_trials: int = 3
    distractor_trials: int = 5


STYLES = {
    32: Style(32, 7, 1.5, 2, 0.5, (1,), 1.0, 5, contrast=1.5, distractor_contrast=2.0),
    128: Style(128, 20, 3.0, 5, 1.5, (2, 3), 1.8, 8, contrast=0.9, distractor_contrast=0.9),
}


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
    attempts: int  # pairs of long paths begun


class _Stroke(NamedTuple):
    """Square patches around the end a paddle is drawn from, (2·radius + 1)² each, flat."""

    line: np.ndarray  # 0 … 1
    mask: np.ndarray
    start: np.ndarray  # offsets of pixels that must be free for a path to begin here


class Tables:
    """All that does not depend on the picture: candidate heads around a pivot, strokes, turning weights.

    The canvas has a border of `radius` pixels around the picture, so that no patch is ever cut; index = row · width +
    column of the canvas.
    """

    def __init__(self, style: Style, margin: int) -> None:
        self.style, self.margin = style, margin
        self.radius = style.paddle_length + math.ceil(style.thickness) + margin
        self.border = self.radius + style.paddle_length + 2 * margin + 1
        self.width = style.size + 2 * self.border
        reach = np.arange(-self.radius, self.radius + 1)
        self.patch = (reach[:, None] * self.width + reach).ravel()
        inside = np.zeros((self.width, self.width))
        inside[self.border : -self.border, self.border : -self.border] = 1
        self.inside = inside.ravel()
        self.pixels = np.flatnonzero(self.inside)
        self.blank = self._frame(style.padding)
        self.blank_start = self._frame(2 * style.seed_distance)
        self.edge = self._frame(1)
        self._candidates()
        self.strokes: dict[float, _Stroke] = {}
        self.weights: dict[float, np.ndarray] = {}

    def _frame(self, wide: int) -> np.ndarray:
        """1 along the borders of the picture, flat canvas."""
        frame = np.zeros((self.style.size, self.style.size))
        frame[:wide] = frame[-wide:] = frame[:, :wide] = frame[:, -wide:] = 1
        return np.pad(frame, self.border).ravel()

    def _candidates(self) -> None:
        """Pixels on the circle on which the head of the next paddle lies, and the margin around each."""
        step = self.style.paddle_length + self.margin
        angles = np.arange(0, 2 * np.pi, 1 / step)
        ring = np.stack([np.floor(step * np.sin(angles)), np.floor(step * np.cos(angles))], axis=1)
        ring = np.unique(ring.astype(int), axis=0)
        self.heads: list[Point] = [(int(dy), int(dx)) for dy, dx in ring]
        self.turns = np.arctan2(ring[:, 0], ring[:, 1])
        self.head_index = ring @ (self.width, 1)
        y, x = np.mgrid[-self.margin : self.margin + 1, -self.margin : self.margin + 1]
        disc = (y * self.width + x)[y**2 + x**2 <= self.margin**2]
        self.around = self.head_index[:, None] + disc  # (heads, pixels of the disc)

    def index(self, point: Point) -> int:
        return (point[0] + self.border) * self.width + point[1] + self.border

    def far_end(self, point: Point, direction: float) -> tuple[float, float]:
        """Where a stroke drawn from a point ends in the large picture, in pixels of the small one."""
        scale = self.style.antialias
        dy, dx = move((0, 0), direction, self.style.paddle_length * scale)
        return point[0] + dy / scale, point[1] + dx / scale

    def point(self, index: int) -> Point:
        return index // self.width - self.border, index % self.width - self.border

    @functools.cached_property
    def disc(self) -> tuple[np.ndarray, np.ndarray]:
        """A marker, drawn large and made small: values and offsets on the canvas, flat."""
        Image, _ = pillow()
        half, scale = math.ceil(self.style.marker_radius) + 3, self.style.antialias
        y, x = np.ogrid[-half * scale : half * scale, -half * scale : half * scale]
        large = Image.fromarray(np.where(x**2 + y**2 <= (self.style.marker_radius * scale) ** 2, 255, 0).astype("u1"))
        small = np.asarray(large.resize((2 * half, 2 * half), Image.Resampling.LANCZOS)) / 255.0
        reach = np.arange(-half, half)
        return small.ravel(), (reach[:, None] * self.width + reach).ravel()

    def weigh(self, direction: float) -> np.ndarray:
        """cos² of the turn towards each candidate head, (heads,)."""
        if direction not in self.weights:
            turn = np.abs(self.turns - direction)
            turn = np.minimum(np.minimum(turn, 2 * np.pi - turn) * self.style.continuity, np.pi / 2)
            self.weights[direction] = np.cos(turn) ** 2
        return self.weights[direction]

    def stroke(self, direction: float) -> _Stroke:
        if direction not in self.strokes:
            self.strokes[direction] = self._draw(direction)
        return self.strokes[direction]

    def _draw(self, direction: float) -> _Stroke:
        """A line drawn large, with a margin around it, and made small: the rims are grey."""
        Image, ImageDraw = pillow()
        style, scale, side = self.style, self.style.antialias, 2 * self.radius + 1
        centre = self.radius * scale
        large = Image.new("L", (2 * centre + 1, 2 * centre + 1), 0)
        end = move((centre, centre), direction, style.paddle_length * scale)
        ends = [(centre, centre), (end[1], end[0])]
        ImageDraw.Draw(large).line(ends, fill=255, width=round(style.thickness * scale))
        wide = Image.fromarray(_dilate(np.asarray(large), self.margin * scale))
        line, mask = (np.asarray(im.resize((side, side), Image.Resampling.LANCZOS)) / 255.0 for im in (large, wide))
        # The published program looks a pixel aside and cuts the window off; here the stroke is looked for where it is.
        full = np.argwhere((mask == 1) | (np.indices(mask.shape) == self.radius).all(axis=0)) - self.radius
        return _Stroke(line.ravel(), mask.ravel(), full @ (self.width, 1))


@functools.cache
def tables(size: int, margin: int) -> Tables:
    """The tables of a set, made once in a process."""
    return Tables(STYLES[size], margin)


def pillow() -> tuple[Any, Any]:
    """Pillow's Image and ImageDraw, or one line on how to get them."""
    try:
        from PIL import Image, ImageDraw
    except ImportError as reason:
        raise MissingExtraError("pictures need Pillow: pip install 'wavessm[train]'.") from reason
    return Image, ImageDraw


def _dilate(image: np.ndarray, radius: int) -> np.ndarray:
    """Largest value within a disc."""
    from scipy import ndimage

    y, x = np.ogrid[-radius : radius + 1, -radius : radius + 1]
    return ndimage.grey_dilation(image, footprint=x**2 + y**2 <= radius**2, mode="constant", cval=0)


def move(point: Point, direction: float, distance: float) -> Point:
    """Rounded up, as in the published program."""
    return (
        math.ceil(point[0] + distance * math.sin(direction)),
        math.ceil(point[1] + distance * math.cos(direction)),
    )


def opposite(direction: float) -> float:
    return direction + math.pi if direction < 0 else direction - math.pi


class _Path:
    """A path that grows. `newest` is the mask of its last paddle, which the next one may touch."""

    def __init__(self, drawer: _Drawer, tail: Point, direction: float, contrast: float) -> None:
        table, style = drawer.tables, drawer.tables.style
        self.drawer, self.direction, self.contrast = drawer, direction, contrast
        self.start = self.end = tail
        head = move(tail, direction, style.paddle_length)
        self.pivot = move(head, opposite(direction), style.paddle_length + table.margin)
        self.paddles = [Paddle(tail, table.far_end(tail, direction))]
        stroke = table.stroke(direction)
        at = table.index(tail) + table.patch
        self.newest = (at, stroke.mask)
        self.lines = [(at, contrast * stroke.line)]

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
        for _ in range(table.style.paddle_trials):
            pick = int(below.searchsorted(drawer.uniform() * below[-1], side="right"))
            direction = float(table.turns[pick])
            head = (pivot[0] + table.heads[pick][0], pivot[1] + table.heads[pick][1])
            stroke = table.stroke(opposite(direction))
            patch = table.index(head) + table.patch
            if (drawer.mask[patch] + stroke.mask).max() < _CROSSING:
                drawer.take(self.newest)
                self.newest = (patch, stroke.mask)
                self.lines.append((patch, self.contrast * stroke.line))
                self.paddles.append(Paddle(table.far_end(head, opposite(direction)), head))
                self.pivot, self.direction, self.end = pivot, direction, head
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
        tail = self._find_start(np.maximum(self.mask, self.tables.blank_start), direction)
        second = None if tail is None else self._second_start(tail)
        if tail is None or second is None:
            return None
        first = _Path(self, tail, direction, style.contrast)
        other = _Path(self, second[0], second[1], style.contrast)
        for _ in range(style.contour_length - 1):
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
        for _ in range(style.paddle_trials):
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
            if taken[pixel + offsets].max(initial=0) <= _FREE:
                return table.point(int(pixel))
        free = table.pixels[taken[table.pixels] <= _FREE]
        for offset in offsets:
            free = free[taken[free + offset] <= _FREE]
        return table.point(int(free[int(self.uniform() * free.size)])) if free.size else None

    def short_path(self) -> _Path | None:
        """One distractor, or None where it gets stuck; the mask is then as before."""
        table, style, before = self.tables, self.tables.style, self.mask.copy()
        if (self.mask[table.pixels] <= _FREE).mean() < _LEAST_FREE:
            return None
        direction = self.direction()
        tail = self._find_start(np.maximum(self.mask, table.edge), direction)
        if tail is None or not self._fits(tail, direction):
            return None
        path = _Path(self, tail, direction, style.distractor_contrast)
        for _ in range(style.distractor_length - 1):
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
    >>> distance(*cross), distance(cross[0], np.array([[0.0, 1], [0, 3]])) ** 2
    (0.0, 0.5)
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
        for _ in range(style.distractor_trials):
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
        for at, line in path.lines:
            canvas[at] = np.maximum(canvas[at], line)
    disc, at = table.disc
    for marker in markers:
        index = table.index(marker) + at
        canvas[index] = np.maximum(canvas[index], disc)
    picture = canvas[table.pixels].reshape(table.style.size, -1)
    low, high = picture.min(), picture.max()
    return ((picture - low) * (255 / (high - low)) + 0.5).astype(np.uint8)

"""Pathfinder's strokes: settings of the two sets and all that can be tabulated, since a paddle has few directions.

Place in the pipeline: `snakes` grows paths out of these strokes; `pathfinder` makes sets of the pictures.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import NamedTuple

import numpy as np

from wavessm_lab.tasks.pathfinder import pillow

Point = tuple[int, int]
CONTOUR_LENGTH, DISTRACTOR_LENGTH = 14, 4  # paddles
PADDLE_TRIALS, DISTRACTOR_TRIALS = 3, 5
PADDING, ANTIALIAS = 1, 2
FREE = 0.3  # a pixel of the mask up to here is free for the start of a path


@dataclasses.dataclass(frozen=True)
class Style:
    """Settings of one set; lengths in pixels."""

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


STYLES = {
    32: Style(32, 7, 1.5, 2, 0.5, (1,), 1.0, 5, contrast=1.5, distractor_contrast=2.0),
    128: Style(128, 20, 3.0, 5, 1.5, (2, 3), 1.8, 8, contrast=0.9, distractor_contrast=0.9),
}


class Stroke(NamedTuple):
    """Square patches around the end a paddle is drawn from, (2·radius + 1)² each, flat."""

    line: np.ndarray  # 0 … 1
    mask: np.ndarray
    start: np.ndarray  # offsets of pixels that must be free for a path to begin here


class Tables:
    """All that does not depend on the picture: candidate heads around a pivot, strokes, weights of turns.

    stroke(direction)        the stroke in a direction; back(pick) that of a paddle drawn from its head to the pivot
    weigh(direction)         weights of the candidate heads
    first_starts(direction)  pixels where the first long path may begin

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
        self.blank = self._frame(PADDING)
        self.blank_start = self._frame(2 * style.seed_distance)
        self.edge = self._frame(1)
        self._candidates()
        self.stroke = functools.cache(self._draw)
        self.weigh = functools.cache(self._weigh)
        self.first_starts = functools.cache(self._first_starts)
        self.back = functools.cache(lambda pick: self.stroke(opposite(self.directions[pick])))

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
        self.directions = [float(turn) for turn in self.turns]
        self.head_index = ring @ (self.width, 1)
        self.patches = self.head_index[:, None] + self.patch  # (heads, pixels of a patch)
        y, x = np.mgrid[-self.margin : self.margin + 1, -self.margin : self.margin + 1]
        disc = (y * self.width + x)[y**2 + x**2 <= self.margin**2]
        self.around = self.head_index[:, None] + disc  # (heads, pixels of the disc)

    def index(self, point: Point) -> int:
        """Place of a point on the flat canvas."""
        return (point[0] + self.border) * self.width + point[1] + self.border

    def far_end(self, point: Point, direction: float) -> tuple[float, float]:
        """Where a stroke drawn from a point ends in the large picture, in pixels of the small one."""
        scale = ANTIALIAS
        dy, dx = move((0, 0), direction, self.style.paddle_length * scale)
        return point[0] + dy / scale, point[1] + dx / scale

    def point(self, index: int) -> Point:
        """The point at a place of the flat canvas."""
        return index // self.width - self.border, index % self.width - self.border

    @functools.cached_property
    def disc(self) -> tuple[np.ndarray, np.ndarray]:
        """A marker, drawn large and made small: values and offsets on the canvas, flat."""
        Image = pillow()
        half, scale = math.ceil(self.style.marker_radius) + 3, ANTIALIAS
        y, x = np.ogrid[-half * scale : half * scale, -half * scale : half * scale]
        large = Image.fromarray(np.where(x**2 + y**2 <= (self.style.marker_radius * scale) ** 2, 255, 0).astype("u1"))
        small = np.asarray(large.resize((2 * half, 2 * half), Image.Resampling.LANCZOS)) / 255.0
        reach = np.arange(-half, half)
        return small.ravel(), (reach[:, None] * self.width + reach).ravel()

    def _weigh(self, direction: float) -> np.ndarray:
        """cos² of the turn towards each candidate head, (heads,)."""
        turn = np.abs(self.turns - direction)
        turn = np.minimum(np.minimum(turn, 2 * np.pi - turn) * self.style.continuity, np.pi / 2)
        return np.cos(turn) ** 2

    def _first_starts(self, direction: float) -> np.ndarray:
        """The first paddle keeps twice the seed distance from every border."""
        return free_starts(self.blank_start, self.pixels, self.stroke(direction).start)

    def _draw(self, direction: float) -> Stroke:
        """A line drawn large, with a margin around it, and made small: the rims are grey."""
        Image = pillow()
        from PIL import ImageDraw

        style, scale, side = self.style, ANTIALIAS, 2 * self.radius + 1
        centre = self.radius * scale
        large = Image.new("L", (2 * centre + 1, 2 * centre + 1), 0)
        end = move((centre, centre), direction, style.paddle_length * scale)
        ends = [(centre, centre), (end[1], end[0])]
        ImageDraw.Draw(large).line(ends, fill=255, width=round(style.thickness * scale))
        wide = Image.fromarray(_dilate(np.asarray(large), self.margin * scale))
        line, mask = (np.asarray(im.resize((side, side), Image.Resampling.LANCZOS)) / 255.0 for im in (large, wide))
        # The published program looks a pixel aside and cuts the window off; here the stroke is looked for where it is.
        full = np.argwhere((mask == 1) | (np.indices(mask.shape) == self.radius).all(axis=0)) - self.radius
        return Stroke(line.ravel(), mask.ravel(), full @ (self.width, 1))


@functools.cache
def tables(size: int, margin: int) -> Tables:
    """The tables of a set, made once in a process."""
    return Tables(STYLES[size], margin)


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
    """The direction backwards."""
    return direction + math.pi if direction < 0 else direction - math.pi


def free_starts(taken: np.ndarray, pixels: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Pixels around which all offsets are free."""
    for offset in offsets:
        pixels = pixels[taken[pixels + offset] <= FREE]
    return pixels

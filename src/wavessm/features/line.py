"""The closed-form forecast: a linear map from the past to the horizon, fitted and chosen in seconds.

What the map reads of a column before an origin, all minus the last value, which is added back to the forecast:

    the last `context` values;
    memories: running means of the values whole seasons apart, over about `span` seasons, for every place in a season.

A memory is a state space whose every state is a place in the season: it reaches back months at the cost of one update
per sample. With r these features and y the next values, both minus the last one, and means over all windows,

    G = ⟨r rᵀ⟩   R = ⟨r yᵀ⟩   W = (G + p K⁻¹)⁻¹ R

K is the diagonal of prior variances of the weights: (1 + lag / season)⁻² for the values, so the far past needs more
evidence than the near one, and `weight` for the memories. Windows overlap, so G is a table of lag products: one row is
a correlation and the others follow from it, and an error over other windows is a quadratic form in their table. So any
number of maps is scored without forecasting once, and memory does not grow with the series.

Four members, the context alone and with memories of 7, 30 and 60 seasons, are averaged: which is best changes from one
quarter of a year to the next more than can be learnt, and an average of maps is a map. The penalty p of each has the
least error over up to three cuts, each fitted on the past alone. The map is shared by all columns; each may add a
difference of its own, with a penalty that the same cuts choose.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

import numpy as np
import scipy.linalg

PENALTIES = tuple(10.0 ** (k / 2) for k in range(-6, 4))
COLUMN_PENALTIES = (1.0, 10.0, 100.0, np.inf)
MOST_COLUMNS = 16  # series of more columns share one map
LONGEST_SEASON = 384  # seasons of more steps have no memory: their features would outnumber the windows
STEPS = 48  # steps of a horizon that choose penalties, at least
SEASONS = ((60, 60), (3600, 24), (86400, 7), (604800, 52), (2419200, 12), (7776000, 4), (15552000, 2), (31536000, 1))
"""Shortest step of a scale in seconds, and the steps in its season."""
SHORTEST_CONTEXT, LONGEST_CONTEXT = 24, 720
BLOCK = 256  # windows that are forecast at once
MOST_WINDOWS = 60_000  # of a series with gaps, times its columns
FEW = 64  # windows that are multiplied out instead of following the table of lag products


class Memory(NamedTuple):
    """Running mean of the values whole periods apart: of all at first, then with weight 1/span for the newest.

    >>> Memory(2, 2)(np.array([[1.0], [5.0], [3.0], [5.0], [4.0]]))[:, 0].tolist()
    [1.0, 5.0, 2.0, 5.0, 3.0]
    """

    period: int
    span: float

    def __call__(self, values: np.ndarray) -> np.ndarray:  # (time, columns) → the same
        rows = -(-len(values) // self.period)
        padded = np.concatenate([values, np.zeros((rows * self.period - len(values), values.shape[1]))])
        table = padded.reshape(rows, self.period, -1)
        mean = table[0]
        for k in range(1, rows):
            mean = mean + (table[k] - mean) * max(1 / (k + 1), 1 / self.span)
            table[k] = mean
        return table.reshape(len(padded), -1)[: len(values)]


class Features(NamedTuple):
    """What a map reads: a context and memories, whose weights have a prior variance; several maps read their union."""

    context: int
    memories: tuple[Memory, ...] = ()
    weight: float = 1.0

    def prior(self, season: int) -> np.ndarray:
        """Prior variances of the weights. (features,)"""
        scale = season if season > 1 else self.context / 4
        values = (1 + np.arange(self.context, 0, -1) / scale) ** -2.0
        return np.concatenate([values, *(np.full(one.period, self.weight) for one in self.memories)])

    @property
    def widths(self) -> list[int]:
        """Numbers of features: of the values, then of each memory."""
        return [self.context, *(memory.period for memory in self.memories)]

    @property
    def reach(self) -> int:
        """Rows that stand before the first of a series, all with its value."""
        return max(self.widths)

    def channels(self, values: np.ndarray) -> list[np.ndarray]:
        """Values and memories (reach + time, columns)."""
        each = [values, *(memory(values) for memory in self.memories)]
        return [np.concatenate([np.repeat(one[:1], self.reach, axis=0), one]) for one in each]

    def at(self, channels: list[np.ndarray], origins: np.ndarray) -> np.ndarray:
        """Features before each origin, minus the last value. (n,) → (n, features, columns)"""
        rows = origins[:, None] + self.reach
        parts = [one[rows - w + np.arange(w)] for one, w in zip(channels, self.widths, strict=True)]
        return np.concatenate(parts, axis=1) - channels[0][rows - 1]

    def select(self, member: Features) -> np.ndarray:
        """Places of the features of a member of this union."""
        starts = np.cumsum([0, *self.widths])
        picked = [np.arange(self.context - member.context, self.context)]
        picked += [starts[1 + self.memories.index(one)] + np.arange(one.period) for one in member.memories]
        return np.concatenate(picked)


# -- tables of lag products -----------------------------------------------------------------------------------------


def _products(u: np.ndarray, v: np.ndarray, n: int) -> np.ndarray:
    """Sum over n windows and all columns of (window of u)(window of v)ᵀ. (n + a - 1, c), (n + b - 1, c) → (a, b)"""
    a, b = len(u) - n + 1, len(v) - n + 1
    if n < FEW:
        view = np.lib.stride_tricks.sliding_window_view
        windows = [view(one, n, axis=0).reshape(-1, n * one.shape[1]) for one in (u, v)]
        return windows[0] @ windows[1].T
    table = np.empty((a, b))
    table[0] = sum(np.correlate(v[:, k], u[:n, k], "valid") for k in range(u.shape[1]))
    table[:, 0] = sum(np.correlate(u[:, k], v[:n, k], "valid") for k in range(u.shape[1]))
    change = u[n:] @ v[n:].T - u[: a - 1] @ v[: b - 1].T
    for i in range(a - 1):
        table[i + 1, 1:] = table[i, :-1] + change[i]
    return table


class Part(NamedTuple):
    """One scaled series and the rows whose windows count."""

    values: np.ndarray  # (time, columns)
    gaps: np.ndarray | None  # (time, columns) bool: values that were not observed
    begin: int
    end: int

    def origins(self, horizon: int) -> np.ndarray:
        """Origins whose horizons lie in [begin, end) and have an observed value. (n,)"""
        found = np.arange(self.begin, max(self.begin, self.end - horizon + 1))
        if self.gaps is None:
            return found
        seen = np.concatenate([[0], np.cumsum(~self.gaps.all(axis=1))])
        return found[seen[found + horizon] > seen[found]]

    def sums(self, features: Features, horizon: int, column: int | None) -> list[Any]:
        """Sums over windows of the products in `Moments`, and in how many each step of G and of R and yy is counted."""
        columns = slice(None) if column is None else [column]
        values, origins = self.values[:, columns], self.origins(horizon)
        if self.gaps is not None:
            return _observed_sums(self._replace(values=values, gaps=self.gaps[:, columns]), features, horizon)
        if not len(origins):
            return [0.0] * 5
        first, n, last, size = int(origins[0]), len(origins), features.context - 1, sum(features.widths)
        channels = zip(features.channels(values), features.widths, strict=True)
        pieces = [one[first + features.reach - w : first + features.reach + n - 1] for one, w in channels]
        pieces.append(values[first : first + n + horizon - 1])
        table = np.block([[_products(u, v, n) for v in pieces] for u in pieces[:-1]])
        squares = np.concatenate([[0.0], np.cumsum(np.square(pieces[-1]).sum(axis=1))])
        yy = squares[n:] - squares[:-n] - 2 * table[last, size:] + table[last, last]
        table = table - table[last] - table[:, [last]] + table[last, last]
        count = n * values.shape[1]
        return [table[:, :size], table[:, size:], yy, count, count]


def _observed_sums(part: Part, features: Features, horizon: int) -> list[Any]:
    """`Part.sums` where there are gaps: a value that was not observed has no part in R and yy. Of many windows some."""
    channels, steps, total = features.channels(part.values), np.arange(horizon), [0.0] * 5
    origins = np.random.default_rng(0).permutation(part.origins(horizon))[: MOST_WINDOWS // part.values.shape[1] + 1]
    for some in np.split(origins, range(BLOCK, len(origins), BLOCK)):
        seen = ~cast(np.ndarray, part.gaps)[some[:, None] + steps]
        y = np.where(seen, part.values[some[:, None] + steps] - part.values[some - 1][:, None], 0.0)
        r, y = (np.moveaxis(one, 1, 0).reshape(one.shape[1], -1) for one in (features.at(channels, some), y))
        new = [r @ r.T, r @ y.T, np.square(y).sum(axis=1), r.shape[1], seen.sum(axis=(0, 2))]
        total = [a + b for a, b in zip(total, new, strict=True)]
    return total


@dataclass(frozen=True, eq=False)
class Moments:
    """Means over windows (and columns) of products of features and of the values to forecast."""

    G: np.ndarray  # (features, features)
    R: np.ndarray  # (features, horizon)
    yy: np.ndarray  # (horizon,)

    @classmethod
    def of(cls, parts: Sequence[Part], features: Features, horizon: int, column: int | None = None) -> Moments:
        """Of all windows of the parts, of all columns or one."""
        size = sum(features.widths)
        total: list[Any] = [np.zeros((size, size)), np.zeros((size, horizon)), np.zeros(horizon), 0, 0]
        for part in parts:
            total = [a + b for a, b in zip(total, part.sums(features, horizon, column), strict=True)]
        G, R, yy, windows, seen = total
        return cls(G / max(windows, 1), R / np.maximum(seen, 1), yy / np.maximum(seen, 1))

    def only(self, places: np.ndarray) -> Moments:
        """Of some features."""
        return replace(self, G=self.G[np.ix_(places, places)], R=self.R[places])

    def thin(self) -> Moments:
        """Of at most 2 `STEPS` of the steps, evenly spaced: enough to choose a penalty by."""
        some = slice(None, None, max(1, len(self.yy) // STEPS))
        return replace(self, R=self.R[:, some], yy=self.yy[some])

    def error(self, W: np.ndarray) -> np.ndarray:  # (features, horizon) → (horizon,)
        """Mean squared error of a map at each step."""
        return self.yy - 2 * (W * self.R).sum(0) + ((self.G @ W) * W).sum(0)


# -- fitting and choosing -------------------------------------------------------------------------------------------


def ridge_maps(moments: Moments, prior: np.ndarray, penalties: Sequence[float]) -> list[np.ndarray]:
    """The ridge map (features, horizon) of each penalty, from one eigendecomposition; prior: (features,)."""
    root = np.sqrt(prior)[:, None]
    roots, U = np.linalg.eigh(root * moments.G * root.T)
    basis = root * U
    target = basis.T @ moments.R
    return [basis @ (target / (np.maximum(roots, 0) + penalty)[:, None]) for penalty in penalties]


@dataclass(frozen=True, eq=False)
class Line:
    """A linear forecast: what it reads, its map, and how it was chosen."""

    features: Features
    W: np.ndarray  # (features, horizon), or a map for each column (columns, features, horizon)
    members: tuple[tuple[Features, float], ...]  # averaged maps with their penalties
    column_penalty: float = np.inf  # of what the map of a column adds to the shared one
    B: np.ndarray | None = None  # (marks, columns): what the marks of a row add to its values

    @property
    def horizon(self) -> int:
        """Steps that are forecast."""
        return self.W.shape[-1]

    def apply(self, r: np.ndarray) -> np.ndarray:  # (…, features, columns) → (…, horizon, columns)
        """The map of features that have the last value taken off."""
        if self.W.ndim == 2:
            return np.matmul(self.W.T, r)
        return np.stack([r[..., k] @ W for k, W in enumerate(self.W)], axis=-1)

    def forecast(self, values: np.ndarray, origins: np.ndarray, marks: np.ndarray | None = None) -> np.ndarray:
        """Forecasts (n, horizon, columns) from scaled values (time, columns) and marks (time + horizon, k)."""
        known = None if self.B is None or marks is None else marks @ self.B
        values = values if known is None else values - known[: len(values)]
        channels = self.features.channels(values)
        blocks = np.array_split(origins, max(1, len(origins) // BLOCK))  # features of all windows would not fit
        ahead = np.concatenate([self.apply(self.features.at(channels, some)) for some in blocks])
        ahead += values[origins - 1][:, None]
        if known is None:
            return ahead
        rows = np.minimum(origins[:, None] + np.arange(self.horizon), len(known) - 1)
        return ahead + known[rows]


def season_steps(seconds: float | None) -> int:
    """Steps in the season that a step of so long suggests: a day of minutes or hours, a week of 8 hours or days, a year
    of longer.

    >>> [season_steps(seconds) for seconds in (900.0, 3600.0, 7200.0, 28800.0, 86400.0, None)]
    [96, 24, 12, 21, 7, 1]
    """
    if seconds is None:
        return 1
    for cycle in (86400, 604800) if 300 <= seconds < 86400 else ():
        if cycle % seconds == 0 and 4 <= cycle / seconds <= 288:
            return int(cycle / seconds)
    return next((season for shortest, season in reversed(SEASONS) if seconds >= 0.99 * shortest), 60)


def context_for(horizon: int, season: int, shortest: int) -> int:
    """Steps of context, where none are given: two horizons or 14 seasons, if half the training part allows.

    >>> context_for(96, 24, 8640), context_for(12, 1, 60)
    (336, 24)
    """
    wanted = max(2 * horizon, 14 * season if season > 1 else 0, SHORTEST_CONTEXT)
    return max(1, min(wanted, LONGEST_CONTEXT, (shortest - horizon) // 2))


def default_members(context: int, season: int, memory: bool = True) -> tuple[Features, ...]:
    """The maps that are averaged: the context alone, and with memories of 7, 30 and 60 seasons."""
    spans = ((7, 1.0), (30, 10.0), (60, 10.0)) if memory and 1 < season <= LONGEST_SEASON else ()
    return (Features(context), *(Features(context, (Memory(season, span),), weight) for span, weight in spans))


Cut = tuple[list[Part], list[Part]]  # windows to fit, windows to score


def parts_of(series: Sequence[Any], values: Sequence[np.ndarray], begin: Any, end: Any) -> list[Part]:
    """Rows [begin, end) of each series, which says its gaps, as windows to fit or to score."""
    rows = zip(*(np.broadcast_to(one, len(series)) for one in (begin, end)), strict=True)
    return [Part(v, one.gaps, int(a), int(b)) for one, v, (a, b) in zip(series, values, rows, strict=True)]


def whole_parts(series: Sequence[Any], values: Sequence[np.ndarray], context: int, ends: Any) -> list[Part]:
    """All rows up to `ends` as windows to fit; a context longer than a quarter starts with the first value repeated."""
    return parts_of(series, values, np.maximum(1, np.minimum(context, np.asarray(ends) // 4)), ends)


def make_cuts(
    series: Sequence[Any], values: Sequence[np.ndarray], train_end: np.ndarray, stop_end: np.ndarray, context: int,
    horizon: int,
) -> tuple[list[Cut], list[Part]]:  # fmt: skip
    """The cuts that `fit_line` chooses by, and the windows of the training part. A cut needs windows on both sides."""
    whole = whole_parts(series, values, context, train_end)
    first = np.array([one.begin for one in whole])
    halves = itertools.pairwise([train_end // 2, train_end * 3 // 4, train_end])
    cuts = [(parts_of(series, values, first, a), parts_of(series, values, a, b)) for a, b in halves]
    cuts.append((whole, parts_of(series, values, train_end, stop_end)))
    return [cut for cut in cuts if all(any(len(one.origins(horizon)) for one in part) for part in cut)], whole


def fit_line(cuts: Sequence[Cut], whole: list[Part], members: Sequence[Features], season: int, horizon: int) -> Line:
    """Choose penalties by the cuts, without any 1, then fit the average of all members to the windows `whole`."""
    memories = tuple(dict.fromkeys(one for member in members for one in member.memories))
    features = Features(max(member.context for member in members), memories)
    tables = [tuple(Moments.of(parts, features, horizon).thin() for parts in cut) for cut in cuts]
    chosen = [(one, _choose_penalty(tables, features.select(one), one.prior(season))) for one in members]
    line = Line(features, np.empty((0, horizon)), tuple(chosen))
    if cuts and 1 < whole[0].values.shape[1] <= MOST_COLUMNS:
        line = replace(line, column_penalty=_choose_column_penalty(cuts, line, season))
    return refit(line, whole, season)


def _choose_penalty(tables: Sequence[tuple[Moments, ...]], places: np.ndarray, prior: np.ndarray) -> float:
    """The penalty with the least error over the cuts, relative to repeating the last value; 1 without cuts. A cut that
    fits constant rows says nothing."""
    if not tables:
        return 1.0
    total = np.zeros(len(PENALTIES))
    for fit, held in (cut for cut in tables if cut[0].yy.mean() > 1e-9):
        some = held.only(places)
        errors = [some.error(W).mean() for W in ridge_maps(fit.only(places), prior, PENALTIES)]
        total += np.array(errors) / max(held.yy.mean(), 1e-12)
    return PENALTIES[_least(total)]


def _least(errors: np.ndarray) -> int:  # (penalties,)
    """The last of the least errors within rounding: where penalties tie, the largest."""
    return int(np.flatnonzero(errors <= errors.min() + 1e-6 * abs(errors.min()))[-1])


def refit(line: Line, whole: list[Part], season: int) -> Line:
    """The same choice fitted on these windows."""
    W = _fit(Moments.of(whole, line.features, line.horizon), line, season)
    if np.isfinite(line.column_penalty):
        columns = [Moments.of(whole, line.features, line.horizon, k) for k in range(whole[0].values.shape[1])]
        prior = line.features.prior(season)
        W = np.stack([W + _difference(one, W, prior, line.column_penalty) for one in columns])
    return replace(line, W=W)


def _difference(moments: Moments, W: np.ndarray, prior: np.ndarray, penalty: float) -> np.ndarray:
    """What the map of a column adds to the shared one: ridge regression of what that leaves."""
    return scipy.linalg.solve(moments.G + penalty * np.diag(1 / prior), moments.R - moments.G @ W, assume_a="pos")


def _choose_column_penalty(cuts: Sequence[Cut], line: Line, season: int) -> float:
    """The penalty of the columns' own maps with the least error over the cuts; infinite where the shared map has it."""
    prior, features, horizon = line.features.prior(season), line.features, line.horizon
    shared = [_fit(Moments.of(fit, features, horizon).thin(), line, season) for fit, _ in cuts]
    errors, naive = np.zeros((len(COLUMN_PENALTIES), len(cuts))), np.zeros(len(cuts))
    for column in range(cuts[0][0][0].values.shape[1]):
        for k, (cut, W) in enumerate(zip(cuts, shared, strict=True)):
            fit, held = (Moments.of(parts, features, horizon, column).thin() for parts in cut)
            naive[k] += held.yy.mean()
            for j, penalty in enumerate(COLUMN_PENALTIES):
                own = W + _difference(fit, W, prior, penalty) if np.isfinite(penalty) else W
                errors[j, k] += held.error(own).mean()
    return COLUMN_PENALTIES[_least((errors / np.maximum(naive, 1e-12)).mean(1))]


def _fit(moments: Moments, line: Line, season: int) -> np.ndarray:
    """The average of the members' maps. (features, horizon)"""
    total = np.zeros_like(moments.R)
    for member, penalty in line.members:
        places = line.features.select(member)
        total[places] += ridge_maps(moments.only(places), member.prior(season), [penalty])[0] / len(line.members)
    return total

"""Cold start: what static features of a series (a table by unique_id) say of its level, spread and season.

Ridge regression over the series of fit, from their features to the logarithm of the deviation, the mean in deviations,
and the mean of each place in the season. A series that fit has not seen starts with the history that these predict.
Its deviation and its mean move to its own as rows come, each by the error of the prediction (of series left out)
against that of what its rows say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from wavessm.data.series import TimeSeries, pd
from wavessm.data.tables import Scale
from wavessm.errors import DataError

PENALTIES = tuple(10.0**k for k in range(-3, 5))


def read_static(table: Any, keys: Sequence[Any]) -> Any:
    """The rows of these series: a DataFrame of numbers and words whose index, or column unique_id, are their keys."""
    if not isinstance(table, pd.DataFrame):
        raise DataError(f"static is a {type(table).__name__}, expected a DataFrame by unique_id.")
    table = table.set_index("unique_id") if "unique_id" in table.columns else table
    if missing := [key for key in keys if key not in table.index]:
        raise DataError(f"static has no row for the series {missing[0]!r}; give one for each.")
    table = table.loc[list(keys)]
    if len(table) != len(keys) or table.isna().any(axis=None):
        raise DataError("static has several rows for a series, or empty fields; give one row for each, filled.")
    return pd.get_dummies(table, dtype=float)


def place_in_season(one: TimeSeries, first: int, rows: int, season: int) -> np.ndarray:
    """Place in the season, by dates if there are any, of `rows` rows from row `first` on, which may be negative."""
    start = 0 if one.clock is None or not one.step else round(one.clock[0] / one.step)
    return (start + first + np.arange(rows)) % season


@dataclass(frozen=True, eq=False)
class StaticPrior:
    """The regression, and how much a row of its own counts for the level of a series."""

    columns: Any  # names of the features, words as one for each value
    scale: Scale  # of the features
    coef: np.ndarray  # (1 + features, targets): log deviation, mean, and the season, of each column
    spread: np.ndarray  # (2, columns) mean squared error of log deviation and mean, of series left out
    noise: np.ndarray  # (columns,) mean square of what the season leaves of the scaled rows
    season: int

    @classmethod
    def fit(cls, table: Any, series: Sequence[TimeSeries], ends: np.ndarray, season: int) -> StaticPrior:
        """From features (series, k) and the training rows of the series; leave-one-out chooses the penalty."""
        targets, noise = [], []
        for one, end in zip(series, ends, strict=True):
            scaled, place = one.scaled()[:end], place_in_season(one, 0, end, season)
            profile = np.stack(
                [scaled[place == k].mean(0) if (place == k).any() else 0 * scaled[0] for k in range(season)]
            )
            noise.append(np.square(scaled - profile[place]).mean(0))
            mean = one.scale.mean / one.scale.deviation
            targets.append(np.concatenate([np.log(one.scale.deviation), mean, profile.ravel()]))
        Y, scale = np.array(targets), Scale.of(table.to_numpy())
        X = np.column_stack([np.ones(len(Y)), scale.apply(table.to_numpy())])
        best = (np.inf, np.zeros((X.shape[1], Y.shape[1])), np.zeros(Y.shape[1]))
        for penalty in PENALTIES:
            ridge = penalty * np.eye(X.shape[1])
            ridge[0, 0] = 1e-9
            inverse = np.linalg.solve(X.T @ X + ridge, X.T)
            left_out = (Y - X @ (inverse @ Y)) / (1 - np.einsum("nk,kn->n", X, inverse))[:, None].clip(1e-6)
            spread = np.square(left_out).mean(0)
            score = float((spread / Y.var(0).clip(1e-12)).mean())
            best = min(best, (score, inverse @ Y, spread), key=lambda one: one[0])
        width = series[0].values.shape[1]
        spread = best[2][: 2 * width].reshape(2, width).clip(1e-6)
        return cls(list(table.columns), scale, best[1], spread, np.mean(noise, axis=0).clip(1e-6), season)

    def start(self, features: Any, one: TimeSeries, rows: int) -> TimeSeries:
        """A series after `rows` rows of a history as its features predict it, with its scale."""
        x = self.scale.apply(features.reindex(self.columns, fill_value=0.0).to_numpy(dtype=float))
        width, n = one.values.shape[1], len(one.values)
        found = np.concatenate([[1.0], x]) @ self.coef
        deviation, ratio, profile = np.exp(found[:width]), found[width : 2 * width], found[2 * width :]
        profile = profile.reshape(self.season, width)
        season = profile[place_in_season(one, 0, n, self.season)]
        shape = ratio + season  # the rows over their deviation
        size = np.square(shape).sum(0).clip(1e-9)
        own = ((one.values * shape).sum(0) / size / deviation).clip(1e-3)
        deviation = deviation * own ** (self.spread[0] / (self.spread[0] + self.noise / size))
        rows_worth = self.noise / self.spread[1]
        mean = (n * (one.values - deviation * season).mean(0) + rows_worth * ratio * deviation) / (n + rows_worth)
        history = mean + deviation * profile[place_in_season(one, -rows, rows, self.season)]
        gaps = np.zeros(n, dtype=bool) if one.gaps is None else one.gaps
        return replace(
            one,
            values=np.concatenate([history, one.values]),
            index=one.past(rows).append(one.index),
            gaps=np.concatenate([np.ones(rows, dtype=bool), gaps]),
            scale=Scale(mean, deviation, deviation == 0),
        )

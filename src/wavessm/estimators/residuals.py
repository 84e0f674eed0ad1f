"""What a line leaves, as windows to train a state space on, and the test that decides whether it is kept."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from wavessm.data.source import Batch, Windows
from wavessm.estimators.series import TimeSeries
from wavessm.features.line import Line

MOST_NUMBERS = 50_000_000
"""Targets that are held in memory; windows are thinned out beyond that."""


class Residuals(Windows):
    """Windows whose contexts have their last value taken off, and whose targets are what a line leaves of the truth."""

    targets: Tensor  # (windows, horizon, columns)
    stride: int  # rows between windows

    @classmethod
    def of(
        cls, line: Line, series: Sequence[TimeSeries], context: int, begin: np.ndarray, end: np.ndarray, most: int
    ) -> Residuals:
        """Up to `most` windows whose horizons lie in [begin, end) of their series and have no gap."""
        horizon, values = line.horizon, [one.scaled() for one in series]
        origins = [np.arange(max(context, int(a)), int(b) - horizon + 1) for a, b in zip(begin, end, strict=True)]
        for at, one in enumerate(series):
            if one.gaps is not None:
                bad = np.concatenate([[0], np.cumsum(one.gaps)])
                origins[at] = origins[at][bad[origins[at] + horizon] == bad[origins[at]]]
        most = min(most, MOST_NUMBERS // (horizon * values[0].shape[1]))
        stride = max(1, -(-sum(map(len, origins)) // most))
        origins = [one[::stride] for one in origins]
        rest = [
            v[o[:, None] + np.arange(horizon)] - line.forecast(v, o, one.marks)
            for v, o, one in zip(values, origins, series, strict=True)
        ]
        offsets = np.cumsum([0, *map(len, values)])
        starts = np.concatenate([o - context + offset for o, offset in zip(origins, offsets, strict=False)])
        each = [one.marks for one in series if one.marks is not None]
        marks = torch.from_numpy(np.concatenate(each)).float() if each else None
        table = torch.from_numpy(np.concatenate(values)).float()
        source = cls(table, marks, context, horizon, tuple(range(table.shape[1])), torch.from_numpy(starts), True)
        source.targets = torch.from_numpy(np.concatenate(rest)).float()
        source.stride = stride
        return source

    def take(self, index: Tensor) -> Batch:
        batch = super().take(index)
        return batch._replace(x=batch.x - batch.x[:, -1:], y=self.targets[index.to(self.device)])


def improves(gain: np.ndarray, block: int, draws: int = 2000) -> bool:
    """Whether a mean gain over consecutive windows is beyond their noise.

    Neighbouring windows share most of their values, so circular blocks of `block` windows are drawn: the mean must be
    positive in 97.5 % of the draws. Fewer than four blocks prove nothing.

    >>> random = np.random.default_rng(0)
    >>> improves(random.standard_normal(400), 20), improves(0.5 + random.standard_normal(400), 20)
    (False, True)
    """
    n = len(gain)
    if n < 4 * block:
        return False
    sums = np.cumsum(np.concatenate([[0.0], gain, gain[:block]]))
    means = (sums[block : block + n] - sums[:n]) / block  # of the block that starts at each window
    starts = np.random.default_rng(0).integers(0, n, (draws, -(-n // block)))
    return bool(np.quantile(means[starts].mean(axis=1), 0.025) > 0)

"""Test signals with abrupt places: the classical ones of Donoho and Johnstone, and a real ECG."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pywt

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class StudySignal:
    """values (length,) and abrupt (length,), true near the places where the signal moves fastest."""

    name: str
    values: Array
    abrupt: npt.NDArray[np.bool_]


def near_jumps(values: Array, reach: float = 0.01) -> npt.NDArray[np.bool_]:
    """Samples within `reach` of the length of a step larger than a third of the largest step."""
    steps = np.abs(np.diff(values))
    jumps = np.flatnonzero(steps > steps.max() / 3)
    width = max(1, round(reach * len(values)))
    where = np.arange(len(values))
    return (np.abs(where[:, None] - jumps) <= width).any(axis=1)


def _spikes(length: int) -> Array:
    values = np.zeros(length)
    for place, height in ((0.07, 4), (0.22, -3), (0.41, 5), (0.63, -4), (0.66, 3), (0.9, 4)):
        values[round(place * length)] = height
    return values + np.sin(2 * np.pi * np.arange(length) / length)


def classical(length: int = 2048) -> list[StudySignal]:
    """Blocks, bumps, heavisine, doppler, a piecewise polynomial and isolated spikes on a sine."""
    named = {
        "blocks": pywt.data.demo_signal("Blocks", length),
        "bumps": pywt.data.demo_signal("Bumps", length),
        "heavisine": pywt.data.demo_signal("HeaviSine", length),
        "doppler": pywt.data.demo_signal("Doppler", length),
        "piecewise": pywt.data.demo_signal("Piece-Polynomial", length),
        "spikes": _spikes(length),
    }
    return [StudySignal(name, values, near_jumps(values)) for name, values in named.items()]


def ecg() -> StudySignal:
    """The electrocardiogram that PyWavelets ships, 1,024 samples, centred and in units of its standard deviation."""
    values = pywt.data.ecg().astype(float)
    values = (values - values.mean()) / values.std()
    return StudySignal("ecg", values, near_jumps(values))

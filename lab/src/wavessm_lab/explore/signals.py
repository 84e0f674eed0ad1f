"""The signals and atoms of the page: built in, or from a given file or folder.

A memory of N numbers holds a few hundred features at most, so a signal longer than `LONGEST` is averaged over blocks
first; the page shows this, and the lines it prints do the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from wavessm.data.files import read_npy, read_signal
from wavessm.errors import DataError, NotFiniteError, ShapeError, unknown_name
from wavessm.frames import Array, Frame
from wavessm_lab.explore.allowed import AllowedFiles
from wavessm_lab.explore.state import FILE, MOST_ATOMS
from wavessm_lab.studies.signals import classical, ecg

LONGEST = 1024
SHORTEST = 16
BUILT_IN = ("ecg", "blocks", "bumps", "heavisine", "doppler", "piecewise", "spikes")
MOST_POINTS = 1 << 14


@dataclass(frozen=True, eq=False)
class InputSignal:
    """A signal as the memory gets it: values (length,), each the mean of `block` samples, `seconds` apart if known."""

    name: str
    values: Array
    block: int = 1
    seconds: float | None = None
    channels: tuple[str, ...] = ()


def signal_of(allowed: AllowedFiles, name: str, channel: int = 0) -> InputSignal:
    """Return a signal by its name in the state."""
    if name.startswith(FILE):
        path = allowed.file(name.removeprefix(FILE))
        return _from_file(path, channel, path.stat().st_mtime_ns)
    if name not in BUILT_IN:
        raise unknown_name("signal", name, BUILT_IN)
    return _built_in(name)


@lru_cache(maxsize=16)
def _built_in(name: str) -> InputSignal:
    """The electrocardiogram of PyWavelets, or a classical test signal: 1,024 samples."""
    return InputSignal(
        name, ecg().values if name == "ecg" else next(s.values for s in classical(LONGEST) if s.name == name)
    )


@lru_cache(maxsize=16)
def _from_file(path: Path, channel: int, time: int) -> InputSignal:
    values, rate, names = read_file(path)
    if channel >= values.shape[1]:
        raise DataError(f"{path}: channel is {channel}, expected 0 to {values.shape[1] - 1}.")
    block = -(-len(values) // LONGEST)
    kept = values[: len(values) // block * block, channel].reshape(-1, block).mean(axis=1)
    return InputSignal(path.name, kept, block, None if rate is None else block / rate, names)


def read_file(path: Path) -> tuple[Array, float | None, tuple[str, ...]]:
    """A recording (length, channels), its rate and the names of its channels; finite and long enough."""
    recording, rate, names, *_ = read_signal(path)
    values = recording.astype(np.float64)
    if len(values) < SHORTEST or not values.shape[1]:
        raise ShapeError(f"{path}: {len(values)} samples of {values.shape[1]} channels, expected at least {SHORTEST}.")
    broken = np.argwhere(~np.isfinite(values))
    if len(broken):
        raise NotFiniteError(f"{path}: NaN or infinity at sample {broken[0][0]} ({len(broken)} in all); fill the gap.")
    return values, rate, names or tuple(str(k) for k in range(values.shape[1]))


def read_atoms(path: Path) -> Frame:
    """A frame from .npy or .csv: one atom a row, sampled evenly over [0, 1] with 1 as now."""
    try:
        atoms = read_npy(path) if path.suffix.lower() == ".npy" else np.loadtxt(path, delimiter=",", ndmin=2)
        if atoms.ndim == 2 and (len(atoms) > MOST_ATOMS or atoms.shape[1] > MOST_POINTS):
            raise ShapeError(f"shape {atoms.shape}, expected at most {MOST_ATOMS} atoms of {MOST_POINTS} points.")
        frame = Frame(atoms, name=path.name)
        frame.require_full_rank()
    except (ValueError, UnicodeDecodeError) as reason:
        raise DataError(f"{path}: no atoms, one a row in .npy or .csv ({' '.join(str(reason).split())}).") from reason
    return frame

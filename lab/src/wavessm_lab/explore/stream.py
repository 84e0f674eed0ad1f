"""A signal in its memory: the state and the reconstruction at several moments, with coordinates masked.

F  moments, P  points of a reconstruction, N  coordinates
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt
import torch

from wavessm.frames import Array
from wavessm.memory import DenseFlow, OnlineMemory
from wavessm_lab.explore.signals import InputSignal
from wavessm_lab.explore.state import State, coordinates
from wavessm_lab.explore.study import Choice, Study, study

MOMENTS, POINTS = 64, 256


def moments(length: int) -> npt.NDArray[np.intp]:
    """(F,) numbers of processed samples, evenly from a few to all of them."""
    return np.unique(np.rint(np.linspace(length / MOMENTS, length, MOMENTS)).astype(int).clip(2))


def moment_at(time: float, length: int) -> int:
    """Return the index of the moment at a share `time` of the signal."""
    return int(np.floor(time * (len(moments(length)) - 1) + 0.5))


def states_at(memory: OnlineMemory, x: Array, counts: npt.NDArray[np.intp]) -> Array:
    """Return the state after each of `counts` samples of x. (F, N)

    As `memory.project(x)[counts − 1]`, without the states in between where those are expensive: a scaled memory that
    runs by matrices advances from moment to moment; the samples since the last one enter through the step response.
    """
    if memory.window is not None or not isinstance(memory.flow, DenseFlow):
        return memory.project(x)[counts - 1].numpy()
    flow, signal = memory.flow, torch.from_numpy(x)
    # sample k is held over [log k, log(k + 1)): seen from the next moment T, from age log(T / k) to log(T / (k + 1))
    stretches = list(zip([0, *counts[:-1]], counts, strict=True))
    with np.errstate(divide="ignore"):
        ages = np.concatenate([np.log(stop / np.arange(start, stop + 1)) for start, stop in stretches])
    responses = flow.response(ages).split([stop - start + 1 for start, stop in stretches])
    state, silence, out = flow.zero(()), torch.zeros(1, dtype=torch.float64), []
    for (start, stop), response in zip(stretches, responses, strict=True):
        if start:
            state = flow.states(state, np.array([0.0, np.log(stop / start)]), silence)[0]
        state = state - signal[start:stop] @ response.diff(dim=0)
        out.append(state)
    return torch.stack(out).numpy()


@dataclass(frozen=True, eq=False)
class Stream:
    """counts (F,) processed samples; states (F, N); atoms (N, P) of the reconstruction, which starts at begin (F,)."""

    study: Study
    signal: InputSignal
    counts: npt.NDArray[np.intp]
    states: Array
    atoms: Array
    begin: Array

    @cached_property
    def recalled(self) -> Array:
        """The reconstruction at every moment. (F, P)"""
        return self.states @ self.atoms

    @cached_property
    def true(self) -> Array:
        """The signal itself at the same places. (F, P)"""
        places = self.begin[:, None] + (self.counts - self.begin)[:, None] * (np.arange(POINTS) + 0.5) / POINTS
        padded = np.concatenate([[0.0], self.signal.values])  # before its first sample a signal is zero
        return padded[np.clip(np.floor(places).astype(int) + 1, 0, len(self.signal.values))]

    def without(self, masked: npt.NDArray[np.bool_]) -> Array:
        """The reconstruction with coordinates set to zero. (F, P)"""
        return (self.states * ~masked) @ self.atoms

    def errors(self, recalled: Array) -> Array:
        """Root mean square error of reconstructions, over that of the signal so far. (F, P) → (F,)"""
        size = np.sqrt(np.mean(self.true**2, axis=1))
        return np.sqrt(np.mean((recalled - self.true) ** 2, axis=1)) / np.where(size > 0, size, 1.0)

    def lost(self, masked: npt.NDArray[np.bool_]) -> Array:
        """Share of what is held about each place of the window that masked coordinates hold, 0 to 1. (P,)"""
        held = np.sum(self.atoms**2, axis=0)
        return np.sum(self.atoms[masked] ** 2, axis=0) / np.where(held > 0, held, 1.0)


def stream_of(choice: Choice, signal: InputSignal, window: float) -> Stream:
    """Stream a signal through the memory of a choice; `window` is a share of the signal."""
    return _stream(choice, signal, 1.0 if choice.measure == "scaled" else window)


@lru_cache(maxsize=16)
def _stream(choice: Choice, signal: InputSignal, window: float) -> Stream:
    found = study(choice)
    length = len(signal.values)
    counts = moments(length)
    with found.lock:
        memory = found.memory(window * length)
        states = states_at(memory, signal.values, counts)
        atoms = memory.reconstruct(np.eye(found.operator.n), grid=POINTS).numpy()
    begin = (counts - (counts if memory.window is None else memory.window)).astype(float)
    return Stream(found, signal, counts, states, atoms, begin)


def mask_of(state: State, found: Study) -> npt.NDArray[np.bool_]:
    """Return which coordinates are masked. (N,)"""
    n = found.frame.n
    first, last = (round(share / 100 * n) for share in state.mask)
    masked = np.zeros(n, bool)
    masked[found.order[first:last]] = True
    masked[[index for index in coordinates(state.also) if index < n]] = True
    return masked

"""The online memory: a signal streamed into N numbers under the true measures, and reconstructed from them.

Both measures are autonomous on a clock of their own, dh/dτ = −A h + B u:

    scaled      τ = log t      the whole past, mapped to the window
    translated  τ = t / θ      the last θ samples

With u constant over each sample [k, k+1), the state after T samples is exactly

    h_T = Σ_k w(τ_T − τ_{k+1}, τ_{k+1} − τ_k) u_k,    w(age, step) = e^{−A·age} ∫₀^step e^{−Aσ} B dσ,

and w is the Jacobian ∂h_T/∂u_k. `flows.py` evaluates these exponentials, by modes where A diagonalises (O(N) a
sample) and by matrices where it does not (Legendre). `recurrence` is the slow reference.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from wavessm.discretize import bilinear, zoh
from wavessm.errors import (
    NotFiniteError,
    OptionError,
    check_int,
    check_positive,
    is_int,
    real_array,
    shape_error,
    unknown_name,
)
from wavessm.frames import Array
from wavessm.memory.flows import make_flow
from wavessm.operators import Operator

_CHUNK_NUMBERS = 1 << 17  # numbers of state computed at once: few enough to stay in the cache of a processor


class OnlineMemory:
    """N numbers that represent the past of a signal.

    `push` and `step` stream into the memory's own `state`; `project` is a pure function of a whole signal. Signals may
    have leading batch axes, (..., length).

    Args:
        operator: The operator of any frame; see `make_operator`.
        window: Length of the sliding window in samples; for a translated operator only.
        dtype: float32 or float64, of states and reconstructions; clocks and exponentials are always float64.
        device: Where states are.

    Raises:
        OptionError: No window for a translated operator, one for a scaled operator, or another dtype.

    Example:
        >>> import torch
        >>> from wavessm.operators import make_operator
        >>> memory = OnlineMemory(make_operator("morlet", n=32))
        >>> x = torch.sin(torch.linspace(0, 12, 500, dtype=torch.float64))
        >>> states = memory.project(x)
        >>> states.shape
        torch.Size([500, 32])
        >>> for x_t in x:
        ...     state = memory.step(x_t)
        >>> bool(torch.allclose(state, states[-1]))
        True
        >>> bool((memory.reconstruct(state, grid=500) - x).abs().max() < 0.2)
        True
    """

    def __init__(
        self,
        operator: Operator,
        window: float | None = None,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
    ) -> None:
        if not isinstance(operator, Operator):
            raise OptionError(f"OnlineMemory: got {type(operator).__name__}, expected an Operator; see make_operator.")
        if dtype not in (torch.float32, torch.float64):
            raise OptionError(f"OnlineMemory: dtype is {dtype}, expected torch.float32 or torch.float64.")
        self.operator, self.dtype, self.device = operator, dtype, torch.device(device)
        self.window = window = _check_window(operator, window)
        self.flow = make_flow(operator, dtype, self.device, step=None if window is None else 1 / window)
        self.reset()

    def reset(self) -> None:
        """Empty the memory."""
        self.samples = 0
        self._state: Tensor | None = None

    @property
    def state(self) -> Tensor:
        """The state in the frame's coordinates, shape (..., N)."""
        return self.flow.to_frame(self.flow.zero(()) if self._state is None else self._state).clone()

    def step(self, x_t: Tensor | npt.ArrayLike) -> Tensor:
        """Add one sample, (...) → state (..., N). `push` alone is O(N); reading the state is O(N²)."""
        self.push(self._real(x_t, "step")[..., None])
        return self.state

    def push(self, x: Tensor | npt.ArrayLike) -> None:
        """Add samples (..., length); any split of a signal gives the same state."""
        signal = self._signal(x, "push")
        if self._state is not None and self._state.shape[:-1] != signal.shape[:-1]:
            expected = f"{(*self._state.shape[:-1], 'length')}; call reset() before another batch"
            raise shape_error("OnlineMemory: signal", signal, expected)
        for _, states in self._chunks(signal, self._state, self.samples):
            self._state = states[..., -1, :]
        self.samples += signal.shape[-1]

    def project(self, x: Tensor | npt.ArrayLike) -> Tensor:
        """Return the state after every sample of a signal, from an empty memory, (..., length) → (..., length, N)."""
        signal = self._signal(x, "project")
        out = torch.empty(*signal.shape, self.operator.n, dtype=self.dtype, device=self.device)
        for start, states in self._chunks(signal, None, 0):
            out[..., start : start + states.shape[-2], :] = self.flow.to_frame(states)
        return out

    def reconstruct(self, state: Tensor | npt.ArrayLike, grid: int | npt.ArrayLike | None = None) -> Tensor:
        """Return the signal that a state represents: the whole past (scaled) or the window (translated).

        Args:
            state: States, shape (..., N).
            grid: None for the frame's own points; an integer n for the midpoints of n equal samples; an array of P
                positions in [0, 1], where 0 is the oldest and 1 is now.

        Returns:
            The signal at those P points, shape (..., P).
        """
        h = self._real(state, "reconstruct")
        if h.dim() == 0 or h.shape[-1] != self.operator.n:
            raise shape_error("reconstruct: state", h, f"(..., {self.operator.n})")
        frame = self.operator.frame
        dual = frame if frame.is_tight else frame.dual()
        if is_int(grid):
            count = check_int(grid, "reconstruct: grid", minimum=1)
            grid = (np.arange(count) + 0.5) / count
        atoms = dual.atoms if grid is None else dual.evaluate(grid)
        return h @ torch.tensor(atoms, dtype=self.dtype, device=self.device)

    def jacobian(self, length: int) -> Tensor:
        """Return ∂h/∂x_t after `length` samples, computed in float64, shape (N, length)."""
        length = check_int(length, "jacobian: length", minimum=1)
        with np.errstate(divide="ignore"):
            age = -self._clock(length, np.arange(-length, 1))
        return -self.flow.response(age).diff(dim=0).T.to(self.dtype)

    def _clock(self, start: int, steps: npt.NDArray[np.int_]) -> Array:
        """Readings of the measure's clock from sample `start` to `steps` samples later."""
        return steps / self.window if self.window is not None else np.log1p(steps / start)

    def _real(self, x: Tensor | npt.ArrayLike, call: str) -> Tensor:
        if not isinstance(x, Tensor):
            x = torch.tensor(real_array(x, f"OnlineMemory.{call}"))  # a copy: torch shares neither reversed nor locked
        elif x.is_complex():
            raise OptionError(f"OnlineMemory.{call}: got complex numbers; pass real and imaginary parts separately.")
        return x.to(self.device, self.dtype)

    def _signal(self, x: Tensor | npt.ArrayLike, call: str) -> Tensor:
        signal = self._real(x, call)
        if signal.dim() == 0 or signal.shape[-1] == 0:
            raise shape_error(f"OnlineMemory.{call}: signal", signal, "(..., length ≥ 1)")
        broken = int((~torch.isfinite(signal)).sum())
        if broken:
            raise NotFiniteError(
                f"OnlineMemory.{call}: {broken} of {signal.numel()} samples are NaN or infinite; fill or drop them."
            )
        return signal

    def _chunks(self, signal: Tensor, x: Tensor | None, first: int):  # type: ignore[no-untyped-def]
        """Yield (start, states in the flow's coordinates) over a signal that starts at sample `first`."""
        length, batch = signal.shape[-1], signal.shape[:-1]
        limit = max(8, _CHUNK_NUMBERS // (self.operator.n * max(1, batch.numel())))
        start = 0
        if x is None:
            x = self.flow.zero(tuple(batch))
            if self.window is None:  # log 0: before the first sample ends, all of the past is that sample
                x = self.flow.rest(signal[..., 0])
                yield 0, x[..., None, :]
                start = 1
        while start < length:
            stop = min(length, start + limit)
            clock = self._clock(first + start, np.arange(stop - start + 1))
            count = self.flow.reach(clock)
            states = self.flow.states(x, clock[: count + 1], signal[..., start : start + count])
            x = states[..., -1, :]
            yield start, states
            start += count


def _check_window(operator: Operator, window: float | None) -> float | None:
    if operator.measure == "translated":
        return check_positive(window, "OnlineMemory: for a translated operator the window in samples")
    if window is not None:
        raise OptionError(
            f"OnlineMemory: window is {window}, but a scaled operator represents the whole past; leave window out "
            "or build the operator with measure='translated'."
        )
    return None


def recurrence(operator: Operator, x: npt.ArrayLike, window: float | None = None, method: str = "zoh") -> Array:
    """Return the state after every sample of one signal by a plain float64 loop, slow on purpose, (length,) →
    (length, N): "zoh" is exact for a constant input over each sample, "bilinear" is the rule of HiPPO and SaFARi, with
    1/t constant over the step. The window in samples goes with a translated operator.
    """
    window, system, signal = _check_window(operator, window), operator.system, np.asarray(x, float)
    if method not in ("zoh", "bilinear"):
        raise unknown_name("method of recurrence", method, ("zoh", "bilinear"))
    sample = zoh if method == "zoh" else bilinear
    same = None if window is None else sample(system, 1 / window)
    h, states = np.zeros(operator.n), np.empty((len(signal), operator.n))
    for k, u in enumerate(signal):
        if k == 0 and window is None and method == "zoh":  # since log 0 all of the past is this sample
            h = np.linalg.solve(operator.A, operator.B) * u
        else:
            step = same or sample(system, 1 / (k + 1) if method == "bilinear" else np.log((k + 1) / k))
            h = step.apply(h) + step.B * u
        states[k] = h
    return states

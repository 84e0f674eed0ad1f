"""The online memory: a signal streamed into N numbers under the true measures, and read back.

Both measures are autonomous on a clock of their own, dh/dτ = −A h + B u:

    scaled      τ = log t      the whole past, stretched over the window
    translated  τ = t / θ      the last θ samples

With u constant over each sample [k, k+1), the state after T samples is exactly

    h_T = Σ_k w(τ_T − τ_{k+1}, τ_{k+1} − τ_k) u_k,    w(age, step) = e^{−A·age} ∫₀^step e^{−Aσ} B dσ,

and w is the Jacobian ∂h_T/∂u_k. `flows.py` evaluates these exponentials, by modes where A diagonalises (O(N) a
sample) and by matrices where it does not (Legendre).

`recurrence` is the slow loop in float64, bilinear as HiPPO and SaFARi step it, or zero-order hold.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from wavessm.discretize import bilinear, zoh
from wavessm.errors import NotFiniteError, OptionError, ShapeError, check_int, check_positive, is_int, real_array
from wavessm.frames import Array
from wavessm.memory.flows import make_flow
from wavessm.operators import Operator

CHUNK_NUMBERS = 1 << 17
"""How many numbers of state `project` and `push` have in flight: few enough to stay in a processor's cache."""


class OnlineMemory:
    """N numbers that hold a signal's past.

    operator  of any frame; see `make_operator`
    window    length of the sliding window in samples, for a translated operator only
    dtype     of states and reconstructions; clocks and exponentials are always float64

    `push` and `step` stream into the memory's own `state`; `project` is a pure function of a whole signal. Signals
    may have leading batch axes, (..., length).

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
        if operator.measure == "translated":
            window = check_positive(window, "OnlineMemory: for a translated operator the window in samples")
        elif window is not None:
            raise OptionError(
                f"OnlineMemory: window is {window}, but a scaled operator holds the whole past; leave window out "
                "or build the operator with measure='translated'."
            )
        if dtype not in (torch.float32, torch.float64):
            raise OptionError(f"OnlineMemory: dtype is {dtype}, expected torch.float32 or torch.float64.")
        self.operator, self.window, self.dtype = operator, window, dtype
        self.device = torch.device(device)
        self.flow = make_flow(operator, dtype, self.device, step=None if window is None else 1 / window)
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self.samples = 0
        self._state: Tensor | None = None

    @property
    def state(self) -> Tensor:
        """The state in the frame's coordinates. (..., N)"""
        return self.flow.to_frame(self.flow.zero(()) if self._state is None else self._state).clone()

    def step(self, x_t: Tensor | npt.ArrayLike) -> Tensor:
        """Take one sample (...) and return the state (..., N). `push` alone is O(N); reading the state is O(N²)."""
        sample = self._signal(x_t, "step")
        self.push(sample[..., None])
        return self.state

    def push(self, x: Tensor | npt.ArrayLike) -> None:
        """Take a stretch of samples (..., length) in any split; equal to stepping through it."""
        signal = self._signal(x, "push")
        batch = signal.shape[:-1]
        if self._state is not None and self._state.shape[:-1] != batch:
            raise ShapeError(
                f"OnlineMemory: this memory holds signals of batch shape {tuple(self._state.shape[:-1])}, "
                f"got {tuple(batch)}; call reset() before another batch."
            )
        for _, states in self._chunks(signal, self._state, self.samples):
            self._state = states[..., -1, :]
        self.samples += signal.shape[-1]

    def project(self, x: Tensor | npt.ArrayLike) -> Tensor:
        """The state after every sample of a signal, from an empty memory. (..., length) → (..., length, N)"""
        signal = self._signal(x, "project")
        out = torch.empty(*signal.shape, self.operator.n, dtype=self.dtype, device=self.device)
        for start, states in self._chunks(signal, None, 0):
            out[..., start : start + states.shape[-2], :] = self.flow.to_frame(states)
        return out

    def reconstruct(self, state: Tensor | npt.ArrayLike, grid: int | npt.ArrayLike | None = None) -> Tensor:
        """The signal that a state (..., N) stands for: the whole past (scaled) or the window (translated).

        grid  None: the frame's own points; an integer: the midpoints of so many equal samples; an array: positions
              in [0, 1] with 0 the oldest and 1 now.
        """
        h = self._real(state, "reconstruct")
        if h.dim() == 0 or h.shape[-1] != self.operator.n:
            raise ShapeError(f"reconstruct: state has shape {tuple(h.shape)}, expected (..., {self.operator.n}).")
        frame = self.operator.frame
        dual = frame if frame.is_tight else frame.dual()
        if grid is None:
            atoms = dual.atoms
        elif is_int(grid):
            count = check_int(grid, "reconstruct: grid", least=1)
            atoms = dual.evaluate((np.arange(count) + 0.5) / count)
        else:
            atoms = dual.evaluate(grid)
        return h @ torch.tensor(atoms, dtype=self.dtype, device=self.device)

    def jacobian(self, length: int) -> Tensor:
        """∂h/∂x_t after `length` samples, computed in float64. (N, length)"""
        length = check_int(length, "jacobian: length", least=1)
        with np.errstate(divide="ignore"):
            age = -self._clock(length, np.arange(-length, 1))
        return -self.flow.response(age).diff(dim=0).T.to(self.dtype)

    def _clock(self, start: int, steps: npt.NDArray[np.int_]) -> Array:
        """The measure's time from sample `start` to so many samples later."""
        return steps / self.window if self.window is not None else np.log1p(steps / start)

    def _real(self, x: Tensor | npt.ArrayLike, call: str) -> Tensor:
        """Numbers as this memory holds them; complex ones are refused."""
        if not isinstance(x, Tensor):
            x = torch.tensor(real_array(x, f"OnlineMemory.{call}"))  # a copy: torch shares neither reversed nor locked
        elif x.is_complex():
            raise OptionError(f"OnlineMemory.{call}: got complex numbers; give real and imaginary parts as two.")
        return x.to(self.device, self.dtype)

    def _signal(self, x: Tensor | npt.ArrayLike, call: str) -> Tensor:
        signal = self._real(x, call)
        if call != "step" and (signal.dim() == 0 or signal.shape[-1] == 0):
            raise ShapeError(f"OnlineMemory.{call}: got shape {tuple(signal.shape)}, expected (..., length ≥ 1).")
        broken = int((~torch.isfinite(signal)).sum())
        if broken:
            raise NotFiniteError(
                f"OnlineMemory.{call}: {broken} of {signal.numel()} samples are NaN or infinite; fill or drop them."
            )
        return signal

    def _chunks(self, signal: Tensor, x: Tensor | None, first: int):  # type: ignore[no-untyped-def]
        """Yield (start, states in the flow's coordinates) over a signal that begins at sample `first`."""
        length, batch = signal.shape[-1], signal.shape[:-1]
        most = max(8, CHUNK_NUMBERS // (self.operator.n * max(1, batch.numel())))
        start = 0
        if x is None:
            x = self.flow.zero(tuple(batch))
            if self.window is None:  # log 0: before the first sample ends, all of the past is that sample
                x = self.flow.rest(signal[..., 0])
                yield 0, x[..., None, :]
                start = 1
        while start < length:
            stop = min(length, start + most)
            clock = self._clock(first + start, np.arange(stop - start + 1))
            count = self.flow.reach(clock)
            states = self.flow.states(x, clock[: count + 1], signal[..., start : start + count])
            x = states[..., -1, :]
            yield start, states
            start += count


def recurrence(operator: Operator, x: npt.ArrayLike, window: float | None = None, method: str = "zoh") -> Array:
    """The states of one signal by a plain float64 loop: the reference, slow on purpose. (length,) → (length, N)

    method  "zoh": exact for a held input; "bilinear": as HiPPO and SaFARi step, with 1/t frozen over the step
    """
    if method not in ("zoh", "bilinear"):
        raise OptionError(f"recurrence: method is {method!r}, expected 'zoh' or 'bilinear'.")
    A, B, signal = operator.A, operator.B, np.asarray(x, float)
    identity = np.eye(len(B))
    same = zoh(operator.system, 1 / window) if window and method == "zoh" else None
    if window and method == "bilinear":
        same = bilinear(operator.system, 1 / window)
    h, states = np.zeros(len(B)), np.empty((len(signal), len(B)))
    for k, u in enumerate(signal):
        if same is not None:
            h = same.apply(h) + same.B * u
        elif method == "bilinear":
            dt = 1 / (k + 1)
            h = np.linalg.solve(identity + dt / 2 * A, h - dt / 2 * (A @ h) + dt * B * u)
        elif k == 0:
            h = np.linalg.solve(A, B) * u
        else:
            step = zoh(operator.system, np.log((k + 1) / k))
            h = step.apply(h) + step.B * u
        states[k] = h
    return states

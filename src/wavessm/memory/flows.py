"""Exact solutions of dx/dτ = −A x + B u for an input that is constant between the readings of a clock τ.

`ModalFlow` works by modes, for operators that diagonalise; `DenseFlow` works by matrices, for all others, such as
Legendre. Neither loops over samples in Python: a chunk of samples is a few matrix products. `online.py` owns the clock.

    λ      modes of A, Re λ ≥ 0                (K,), one of each conjugate pair
    clock  readings from 0, increasing          (M + 1,)
    x      states in the flow's coordinates     (..., K) complex, or (..., N) real
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from wavessm.discretize import zoh
from wavessm.errors import ConditionError
from wavessm.frames import Array
from wavessm.operators import Operator

MODAL_CONDITION = 1e5
"""Largest condition number of the eigenvectors for a memory by modes: its states then keep eleven digits."""


def _taylor_powers(time: Tensor, terms: int) -> Tensor:
    """timeʲ / j! for j = 0 … terms, (...) → (..., terms + 1)."""
    ratios = time[..., None] / torch.arange(1, terms + 1, device=time.device)
    return torch.cat([torch.ones_like(ratios[..., :1]), torch.cumprod(ratios, dim=-1)], dim=-1)


class ModalFlow:
    """By modes: one complex number for each conjugate pair.

    A state is carried as e^{λτ} x relative to a point of the chunk, where the recurrence is a plain running sum. Its
    terms grow with time, so the sum never cancels; a chunk ends before they overflow. Where many samples fit into a
    time that is short for every mode (|λ|·time ≤ 4), the exponentials are one product with a Taylor table.

    `step` is that of the clock if all steps are equal; an operator that does not diagonalise raises `ConditionError`.
    """

    TERMS = 24
    TABLE_FROM = 256  # samples in a short time from which the Taylor table is faster

    def __init__(self, operator: Operator, dtype: torch.dtype, device: torch.device, step: float | None) -> None:
        form = operator.to_diagonal(MODAL_CONDITION)
        kept, weight = form.one_of_each_pair
        self.dtype, self.device, self.step = dtype, device, step
        self.complex = torch.complex64 if dtype == torch.float32 else torch.complex128
        self.lam = torch.from_numpy(-form.lam[kept]).to(device)  # modes of A: Re ≥ 0
        self.B = torch.from_numpy(form.B[kept]).to(device)
        V = form.V[:, kept] * weight
        # Re(V x) as one real product with [Re x, Im x] interleaved
        self.exact_V = torch.from_numpy(np.stack([V.real, -V.imag], -1).reshape(operator.n, -1)).to(device)
        self.real_V = self.exact_V.to(dtype)
        # λʲ B and (−λ)ʲ, by which the Taylor tables are multiplied: (TERMS, 2K) real
        powers = self.lam ** torch.arange(self.TERMS, device=device)[:, None]
        signs = (1.0 - 2.0 * (torch.arange(self.TERMS, device=device) % 2))[:, None]
        self.input_series = torch.view_as_real(powers * self.B).flatten(1)
        self.decay_series = torch.view_as_real(powers * signs).flatten(1)
        self.fastest = max(float(self.lam.abs().max()), 1e-12)
        self.short = 4.0 / self.fastest
        self.longest = (30.0 if dtype == torch.float32 else 200.0) / max(float(self.lam.real.max()), 1e-12)
        self._tables: tuple[Array, tuple[Tensor, ...]] = (np.empty(0), ())

    def zero(self, batch: tuple[int, ...]) -> Tensor:
        """Return the empty state, (*batch, K)."""
        return torch.zeros(*batch, len(self.lam), dtype=self.complex, device=self.device)

    def rest(self, u: Tensor) -> Tensor:
        """Return the state after a constant input u of infinite length, A⁻¹B u, (...) → (..., K)."""
        return u[..., None] * (self.B / self.lam).to(self.complex)

    def reach(self, clock: Array) -> int:
        """Return how many steps of a clock (M + 1,) that starts at 0 one call of `states` can take."""
        short = int(np.searchsorted(clock, self.short, side="right")) - 1
        if self.step is None and short >= min(self.TABLE_FROM, len(clock) - 1):
            return short
        return max(1, int(np.searchsorted(clock, self.longest, side="right")) - 1)

    def states(self, x: Tensor, clock: Array, u: Tensor) -> Tensor:
        """Return the states after each of M inputs from state x (..., K); clock (M + 1,), u (..., M) → (..., M, K)."""
        start, held, decay = self._tables_of(clock)
        running = torch.cumsum(u[..., None] * held, dim=-2)
        return running.add_((x * start)[..., None, :]).mul_(decay)

    def _tables_of(self, clock: Array) -> tuple[Tensor, ...]:
        """Tables of a chunk, cached for the next call: equal steps make equal chunks."""
        known, tables = self._tables
        if np.array_equal(clock, known):
            return tables
        with torch.inference_mode(False):  # a later call may need gradients through them
            make = self._series if len(clock) > 2 and clock[-1] <= self.short else self._exponentials
            tables = tuple(table.to(self.complex) for table in make(clock))
        self._tables = clock, tables
        return tables

    def _exponentials(self, clock: Array) -> tuple[Tensor, ...]:
        """Weights of the state before (K,), of each input and of each state after (M, K), relative to the chunk's end:
        a single step may be longer than the growing form could hold."""
        time = torch.from_numpy(clock - clock[-1]).to(self.device)[:, None]
        growth = torch.exp(self.lam * time)
        return growth[0], self._held(time.diff(dim=0)) * growth[1:], 1 / growth[1:]

    def _series(self, clock: Array) -> tuple[Tensor, ...]:
        """The same by Taylor series around the chunk's middle, with as many terms as reach rounding."""
        time = torch.from_numpy(clock - clock[-1] / 2).to(self.device)
        sizes = np.cumprod(clock[-1] / 2 * self.fastest / np.arange(1, self.TERMS + 1))
        terms = min(self.TERMS, 1 + int((sizes > 1e-17).sum()))
        powers = _taylor_powers(time, terms)
        pair = (-1, len(self.lam), 2)
        held = torch.view_as_complex((powers[:, 1:].diff(dim=0) @ self.input_series[:terms]).view(pair))
        decay = torch.view_as_complex((powers[1:, :-1] @ self.decay_series[:terms]).view(pair))
        return torch.exp(self.lam * time[0]), held, decay

    def _held(self, step: Tensor) -> Tensor:
        """∫₀^step e^{−λσ} dσ B = B (1 − e^{−λ step}) / λ, without cancellation."""
        decay, half = torch.expm1(-self.lam.real * step), -self.lam.imag * step / 2
        real = decay - 2 * torch.sin(half) ** 2 * (1 + decay)
        still = self.lam == 0
        ratio = -torch.complex(real, torch.sin(2 * half) * (1 + decay)) / torch.where(still, 1, self.lam)
        return torch.where(still, step.to(ratio.dtype), ratio) * self.B

    def response(self, sigma: Array) -> Tensor:
        """Return ∫₀^σ e^{−As} B ds in the frame's coordinates, in float64, (M,) → (M, N)."""
        clock = torch.from_numpy(sigma).to(self.device)[:, None]
        finite = self._held(torch.where(clock.isinf(), 0, clock))
        modes = torch.where(clock.isinf(), self.B / self.lam, finite)
        return torch.view_as_real(modes).flatten(-2) @ self.exact_V.T

    def to_frame(self, x: Tensor) -> Tensor:
        """Return states in the frame's coordinates, (..., K) → (..., N)."""
        return torch.view_as_real(x).flatten(-2) @ self.real_V.T


class DenseFlow:
    """By matrices, for operators that do not diagonalise.

    Over a short time (‖A‖·time ≤ 4) a state is a Taylor series in Aʲ x and its inputs one in Aʲ B, with the inputs'
    iterated integrals as coefficients. A long time is a product of squared propagators, which contract because
    A + Aᵀ ≥ 0 on a tight frame. A clock of equal steps needs only the powers of one propagator.
    """

    TERMS = 40
    BLOCK = 64

    def __init__(self, operator: Operator, dtype: torch.dtype, device: torch.device, step: float | None) -> None:
        self.dtype, self.device, self.step = dtype, device, step
        self.A = torch.tensor(operator.A, device=device)
        self.B = torch.tensor(operator.B, device=device)
        self.short = 4.0 / max(float(torch.linalg.matrix_norm(self.A, 2)), 1e-12)
        self.propagators: tuple[tuple[Tensor, Tensor], ...] = (self._propagator(operator, self.short),)
        self.input_series = self._krylov(self.B)
        # lower-triangular index m − q of the product of two series, and where it is not negative
        lag = torch.arange(self.TERMS, device=device)
        lag = lag[:, None] - lag
        self.lag, self.causal = lag.clamp(min=0), (lag >= 0).double()
        if step is not None:  # R¹ … R^BLOCK as one (BLOCK · N, N) matrix, and R⁰w … as rows
            R, w = self._propagator(operator, step)
            decays, impulses = [R], [w]
            for _ in range(self.BLOCK - 1):
                decays.append(R @ decays[-1])
                impulses.append(R @ impulses[-1])
            self.decays, self.impulses = torch.cat(decays), torch.stack(impulses)

    def _propagator(self, operator: Operator, time: float) -> tuple[Tensor, Tensor]:
        exact = zoh(operator.system, time)
        return torch.tensor(exact.to_dense(), device=self.device), torch.tensor(exact.B, device=self.device)

    def _krylov(self, v: Tensor) -> Tensor:
        """Aʲ v for j < TERMS. (..., N) → (..., TERMS, N)"""
        rows = [v]
        for _ in range(self.TERMS - 1):
            rows.append(rows[-1] @ self.A.T)
        return torch.stack(rows, dim=-2)

    def zero(self, batch: tuple[int, ...]) -> Tensor:
        """Return the empty state, (*batch, K)."""
        return torch.zeros(*batch, len(self.B), dtype=torch.float64, device=self.device)

    def rest(self, u: Tensor) -> Tensor:
        """As `ModalFlow.rest`."""
        return u[..., None].double() * torch.linalg.solve(self.A, self.B)

    def reach(self, clock: Array) -> int:
        """As `ModalFlow.reach`."""
        if self.step is not None:
            steps = len(clock) - 1
            return steps if steps < self.BLOCK else steps - steps % self.BLOCK
        return max(1, int(np.searchsorted(clock, self.short, side="right")) - 1)

    def states(self, x: Tensor, clock: Array, u: Tensor) -> Tensor:
        """As `ModalFlow.states`."""
        u = u.double()
        if self.step is not None:
            return self._equal_steps(x, u)
        time = torch.from_numpy(clock).to(self.device)
        if clock[-1] > self.short:
            return self._advance(x, time[1], u[..., 0])[..., None, :]
        return self._short_steps(x, time, u)

    def _equal_steps(self, x: Tensor, u: Tensor) -> Tensor:
        """Blocks of equal size: first the state before each, one after the other, then all inside at once."""
        size = min(self.BLOCK, u.shape[-1])
        rows = u.unflatten(-1, (-1, size))  # (..., blocks, M)
        inputs = rows @ self.impulses[:size].flip(0)
        over = self.decays[(size - 1) * len(self.B) : size * len(self.B)].T
        before = [x]
        for block in inputs.unbind(-2)[:-1]:
            before.append(before[-1] @ over + block)
        decayed = torch.stack(before, dim=-2) @ self.decays[: size * len(self.B)].T
        padded = torch.cat([torch.zeros_like(rows[..., 1:]), rows], dim=-1)
        toeplitz = padded.unfold(-1, size, 1).flip(-1)  # (..., blocks, M, M): row j holds u_j, u_{j−1}, …
        return (decayed.unflatten(-1, (size, -1)) + toeplitz @ self.impulses[:size]).flatten(-3, -2)

    def _short_steps(self, x: Tensor, time: Tensor, u: Tensor) -> Tensor:
        forward, back = _taylor_powers(time, self.TERMS), _taylor_powers(-time[1:], self.TERMS)
        decayed = back[:, :-1] @ self._krylov(x)
        # inputs: e^{−At} Σ_q A^q B ∫ σ^q/q! u dσ = Σ_m Aᵐ B Σ_{q ≤ m} (−t)^{m−q}/(m−q)! ∫ σ^q/q! u dσ
        running = torch.cumsum(u[..., None] * forward[:, 1:].diff(dim=0), dim=-2)  # (..., M, TERMS)
        shift = back[:, self.lag] * self.causal  # (M, TERMS, TERMS)
        return decayed + torch.einsum("jmq,...jq->...jm", shift, running) @ self.input_series

    def _advance(self, x: Tensor | None, time: Tensor, u: Tensor) -> Tensor:
        """The state after holding u for `time`, however long. x (..., N), None for zero; time and u (...)"""
        count = torch.floor(time / self.short).long()
        back = _taylor_powers(count.double() * self.short - time, self.TERMS)
        state = -u[..., None] * (back[..., 1:] @ self.input_series)
        if x is not None:
            state = state + (back[..., None, :-1] @ self._krylov(x))[..., 0, :]
        bit = 0
        while bool((count >> bit).any()):
            R, w = self._squared(bit)
            on = ((count >> bit) & 1)[..., None].bool()
            state = torch.where(on, state @ R.T + u[..., None] * w, state)
            bit += 1
        return state

    def _squared(self, times: int) -> tuple[Tensor, Tensor]:
        """The propagator over `short`, squared `times` times; all up to it are cached."""
        known = self.propagators
        with torch.inference_mode(False):
            while len(known) <= times:
                R, w = known[-1]
                known = (*known, (R @ R, R @ w + w))
        self.propagators = known
        return known[times]

    def response(self, sigma: Array) -> Tensor:
        """As `ModalFlow.response`."""
        time = torch.from_numpy(sigma).to(self.device)
        ones, infinite = torch.ones_like(time), time.isinf()
        finite = self._advance(None, torch.where(infinite, 0, time), ones)
        return torch.where(infinite[:, None], self.rest(ones), finite) if bool(infinite.any()) else finite

    def to_frame(self, x: Tensor) -> Tensor:
        """As `ModalFlow.to_frame`."""
        return x.to(self.dtype)


Flow = ModalFlow | DenseFlow


def make_flow(
    operator: Operator, dtype: torch.dtype, device: torch.device, step: float | None
) -> ModalFlow | DenseFlow:
    """Return a `ModalFlow` if the operator diagonalises well, a `DenseFlow` if not."""
    with torch.inference_mode(False):  # its tables may be used by calls with gradients
        try:
            return ModalFlow(operator, dtype, device, step)
        except ConditionError:
            return DenseFlow(operator, dtype, device, step)

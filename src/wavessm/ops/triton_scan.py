"""The chunked scan on a GPU: what `scan` computes, by the kernels of `triton_kernels` and `triton_tables`.

One program takes a channel and a tile of *rows*, keeps the state in registers and walks over the chunks of those rows.
A row is a signal of the batch or, where there are too few of them to fill the chip, one segment of it: then a first
walk finds what each segment adds to the state, a small kernel chains the segments, and the full walk starts each row
from its true state. The direction that reads backwards is the adjoint of a forward walk, so it walks back with the
same tables and nothing is flipped.

For the backward only u and the states before each chunk are kept. The adjoint walk forms the gradient of u; from the
states of both walks a kernel of its own makes the sums that the gradients of the tables consist of.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from wavessm.errors import OptionError
from wavessm.ops import triton_tables
from wavessm.ops.modes import Modes, sample
from wavessm.ops.scan import scan, tables_of
from wavessm.ops.tables import Dense, dense_tables
from wavessm.ops.triton_kernels import chain_kernel, missing, sum_kernel, walk_kernel
from wavessm.ops.triton_settings import Settings, default_settings, power_of_two
from wavessm.ops.triton_turn import heard, spoil, turn

# What tl.dot is told. Three TF32 products carry float32's accuracy; "bf16" rounds the factors, never the sums.
_ARITHMETIC = {"fp32": "tf32x3", "tf32": "tf32", "bf16": "bf16"}

MOST_SLOTS, MOST_DENSE = 128, 128
"""Sizes of a state beyond which the tables leave a multiprocessor's memory."""


def available(u: Tensor, dense: int = 0, slots: int = 0) -> str | None:
    """None if the Triton scan can serve this input and a state of so many reals or slots, else the reason in a line."""
    if missing is not None:
        return f"triton is not installed ({missing}); pip install triton"
    if u.dtype not in (torch.float32, torch.bfloat16):
        return f"input is {u.dtype}, the kernels take float32 and bfloat16"
    if not u.is_cuda and os.environ.get("TRITON_INTERPRET") != "1":
        return f"input is on {u.device}, not on a CUDA device (and TRITON_INTERPRET=1 is not set)"
    if slots > MOST_SLOTS or dense > MOST_DENSE:
        return f"d_state is {dense or 2 * slots}, the kernels hold up to {MOST_DENSE if dense else 2 * MOST_SLOTS}"
    return None


class Tables(NamedTuple):
    """As the kernels read them: see `triton_kernels`."""

    K: Tensor  # (directions, channels, M)
    E: Tensor  # (channels, planes, M, N)
    C: Tensor  # (directions, channels, planes, N, M)
    decay: Tensor  # (channels, 3, N) or (channels, N, N)

    def of(self, direction: int) -> tuple[Tensor | None, ...]:
        """What one walk reads: the first of two takes what a chunk says to itself in both, the second nothing of it."""
        K = (None, None) if direction else (self.K[0], self.K[1] if len(self.K) == 2 else None)
        return *K, self.E, self.C[direction], self.decay


def run_modes(
    u: Tensor,  # (batch, channels, length), float32 or bfloat16, any strides
    modes: Modes,
    D: Tensor,  # (channels,)
    rate: float = 1.0,
    state: Tensor | None = None,  # (batch, channels, slots, 2)
    want_state: bool = False,
    precision: str = "fp32",
    settings: Settings | None = None,
) -> tuple[Tensor, Tensor | None]:
    """As `ops.run_modes`: y in u's dtype, and the state in float32."""
    batch, channels, length = u.shape
    slots, arithmetic = modes.C.shape[2], _arithmetic(u, precision)
    cut = settings or default_settings(batch, channels, slots, length, precision, dense=False)
    whole = length - length % cut.chunk if want_state else length
    pieces, planes = [], None if state is None else state.float().transpose(-1, -2)
    if whole:
        y, last = _Diagonal.apply(u[..., :whole], *modes, D, planes, rate, arithmetic, cut)
        state = last.transpose(-1, -2) if want_state else None
        pieces.append(y)
    if whole < length:  # what a chunk leaves over needs tables of its own
        flat = None if state is None else state.flatten(2)
        tail = u[..., whole:].float()
        y, last = scan(tail, tables_of(sample(modes, rate), tail.dtype), flat, want_state=True)
        pieces.append((y + D[:, None] * tail).to(u.dtype))
        state = last.unflatten(-1, (-1, 2))  # type: ignore[union-attr]
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, -1), state


def run_dense(
    u: Tensor,  # (batch, channels, length), float32 or bfloat16, any strides
    system: Dense,
    D: Tensor,  # (channels,)
    state: Tensor | None = None,  # (batch, channels, R)
    want_state: bool = False,
    precision: str = "fp32",
    settings: Settings | None = None,
) -> tuple[Tensor, Tensor | None]:
    """As `ops.run_dense`; see `run_modes`."""
    batch, channels, length = u.shape
    arithmetic = _arithmetic(u, precision)
    cut = settings or default_settings(batch, channels, system.B.shape[-1], length, precision, dense=True)
    whole = length - length % cut.chunk if want_state else length
    pieces = []
    if whole:
        first = None if state is None else state.float()[:, :, None]
        y, last = _Dense.apply(u[..., :whole], *dense_tables(system, cut.chunk), D, first, arithmetic, cut)
        state = last[:, :, 0] if want_state else None
        pieces.append(y)
    if whole < length:
        tail = u[..., whole:].float()
        y, state = scan(tail, tables_of(system, tail.dtype), state, want_state=True)
        pieces.append((y + D[:, None] * tail).to(u.dtype))
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, -1), state


def _arithmetic(u: Tensor, precision: str) -> str:
    if precision not in _ARITHMETIC:
        raise OptionError(f"precision is {precision!r}, expected one of {', '.join(_ARITHMETIC)}")
    return _ARITHMETIC[precision] if u.is_cuda or precision != "bf16" else "rounded"


@dataclass(frozen=True)
class _Plan:
    """Sizes shared by the launches of one call."""

    batch: int
    channels: int
    length: int
    width: int  # slots, or reals of a dense state
    planes: int
    cut: Settings
    arithmetic: str

    @classmethod
    def of(cls, u: Tensor, tables: Tables, cut: Settings, arithmetic: str) -> _Plan:
        _, planes, _, width = tables.E.shape
        return _plan(*u.shape, width, planes, cut, arithmetic)

    @cached_property
    def chunks(self) -> int:
        return -(-self.length // self.cut.chunk)

    @cached_property
    def steps(self) -> int:
        """Chunks in a row."""
        return -(-self.chunks // self.cut.segments)

    @cached_property
    def segments(self) -> int:
        """Rows that hold at least one chunk; all but the last of a signal are full."""
        return -(-self.chunks // self.steps)

    @cached_property
    def rows(self) -> int:
        return self.batch * self.segments

    @cached_property
    def grid(self) -> tuple[int, int]:
        return self.channels, -(-self.rows // self.cut.tile)

    @cached_property
    def edge_shape(self) -> tuple[int, ...]:
        """Of the states at one end of all rows."""
        return self.batch, self.segments, self.channels, self.planes, self.width

    @cached_property
    def splits(self) -> tuple[int, int]:
        """Partial sums that the tables' gradients come in, and blocks of chunks in each."""
        blocks = -(-self.rows * self.steps // self.cut.block)
        per_split = -(-blocks // max(1, min(blocks, self.cut.programs // self.channels)))
        return -(-blocks // per_split), per_split

    @cached_property
    def sums_shape(self) -> tuple[int, ...]:
        """Of these partial sums: dT, dE, dCᵀ and the decay's."""
        M, N = self.cut.chunk, self.width
        return self.splits[0], self.channels, M * M + 2 * self.planes * M * N + N * (N if self.planes == 1 else 3)

    def sizes(self, *signals: Tensor) -> tuple[list[int], dict[str, Any]]:
        """Strides of the signals, in units that divide them and the length; and the arguments every walk takes."""
        strides = [stride for x in signals for stride in x.stride()[:2]]
        even = math.gcd(16, self.length, *strides)
        return [stride // even for stride in strides], {**self._sizes, "length": self.length // even, "EVEN": even}

    @cached_property
    def _sizes(self) -> dict[str, Any]:
        return {
            "channels": self.channels,
            "modes": self.width,
            "rows": self.rows,
            "segments": self.segments,
            "steps": self.steps,
            "M": self.cut.chunk,
            "N": power_of_two(self.width),
            "PRECISION": self.arithmetic,
            "DENSE": self.planes == 1,
        }

    def states(self, like: Tensor) -> Tensor:
        """Room for the states before each chunk."""
        kept = torch.bfloat16 if self.arithmetic in ("bf16", "rounded") else torch.float32
        shape = self.channels, self.rows, self.steps, self.planes, self.width
        return torch.empty(shape, dtype=kept, device=like.device)

    def begin(self, edge: Tensor | None, x: Tensor, tables: Tables, direction: int, reverse: bool) -> Tensor | None:
        """The state each row starts from, given the first one's: a walk without outputs, then a chain."""
        at = self.segments - 1 if reverse else 0
        if self.segments == 1 and edge is None:
            return None
        begin = torch.zeros(self.edge_shape, device=x.device)
        if edge is not None:
            begin[:, at] = edge
        if self.segments > 1:
            ends = torch.empty_like(begin)
            self.walk(x, tables.of(direction), begin, None, None, ends, reverse, add=False)
            if self.planes == 1:
                self._chain_dense(begin, ends, tables.decay, reverse)
            else:
                chain_kernel[(self.channels, self.batch)](
                    begin, ends, tables.decay, self.channels, self.width, self.segments, self.steps,
                    N=power_of_two(self.width), REVERSE=reverse,
                )  # fmt: skip
        return begin

    def _chain_dense(self, begin: Tensor, ends: Tensor, decay: Tensor, reverse: bool) -> None:
        over = torch.linalg.matrix_power(decay.double(), self.steps).float()  # (channels, R, R)
        over = over if reverse else over.transpose(1, 2)
        s = torch.zeros_like(ends[:, 0, :, 0]).transpose(0, 1)  # (channels, batch, R)
        order = list(range(self.segments - 1, -1, -1) if reverse else range(self.segments))
        for source, target in pairwise(order):
            s = ends[:, source, :, 0].transpose(0, 1) + s @ over
            begin[:, target, :, 0] = s.transpose(0, 1)

    def walk(
        self,
        x: Tensor,
        tables: tuple[Tensor | None, ...],
        begin: Tensor | None,
        y: Tensor | None,
        states: Tensor | None,
        ends: Tensor,
        reverse: bool,
        add: bool,
    ) -> None:
        strides, sizes = self.sizes(x)
        walk_kernel[self.grid](
            x, *tables, begin, y, states, ends, *strides, **sizes, R=self.cut.tile,
            REVERSE=reverse, ADD=add, num_warps=self.cut.warps, num_stages=self.cut.stages,
        )  # fmt: skip

    def sum(self, u: Tensor, dy: Tensor, kept: list[Tensor], met: list[Tensor], sums: Tensor) -> None:
        """The sums of all directions, from the states of their walks and of the adjoints."""
        if len(kept) == 2 and self.planes == 2 and self.width <= 32:  # registers hold those of both
            self._sum(u, dy, (kept[0], met[0], met[1], kept[1]), sums)
        else:
            self._sum(u, dy, (kept[0], met[0], None, None), sums[0])
            if len(kept) == 2:
                self._sum(dy, u, (met[1], kept[1], None, None), sums[1])

    def _sum(self, u: Tensor, g: Tensor, states: tuple[Tensor | None, ...], sums: Tensor) -> None:
        cut = self.cut
        strides, sizes = self.sizes(u, g)
        sum_kernel[(self.channels * (cut.chunk // cut.part), self.splits[0])](
            u, g, *states, sums, *strides, self.splits[1], **sizes, P=cut.part, Q=cut.block,
            num_warps=cut.warps_back, num_stages=cut.stages_back,
        )  # fmt: skip


_plan = lru_cache(maxsize=256)(_Plan)  # what follows from the sizes is worked out once


def _forward(plan: _Plan, u: Tensor, tables: Tables, first: Tensor | None, save: bool) -> tuple[Tensor, Tensor, list]:
    """y, the state after the last chunk, and the states on the way of each direction."""
    y, kept = torch.empty(u.shape, dtype=u.dtype, device=u.device), []
    for direction in range(len(tables.K)):
        reverse = direction == 1
        states = plan.states(u) if save else None
        ends = torch.empty(plan.edge_shape, device=u.device)
        begin = plan.begin(None if reverse else first, u, tables, direction, reverse)
        plan.walk(u, tables.of(direction), begin, y, states, ends, reverse, add=reverse)
        if direction == 0:
            last = ends[:, -1]
        kept.append(states)
    return y, last, kept


def _backward(
    plan: _Plan, u: Tensor, dy: Tensor, tables: Tables, kept: list, dlast: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """du, the gradient of the first state, and the sums (directions, splits, channels, …)."""
    du = torch.empty(u.shape, dtype=u.dtype, device=u.device)
    sums = torch.empty(len(kept), *plan.sums_shape, device=u.device)
    met = []
    for direction in range(len(kept)):
        reverse = direction == 0
        begin = plan.begin(dlast if reverse else None, dy, tables, direction, reverse)
        met.append(plan.states(u))
        ends = torch.empty(plan.edge_shape, device=u.device)
        plan.walk(dy, tables.of(direction), begin, du, met[-1], ends, reverse, add=not reverse)
        if direction == 0:
            dfirst = ends[:, 0]
    plan.sum(u, dy, kept, met, sums)
    return du, dfirst, sums


def _rows(x: Tensor) -> Tensor:
    """A channel's samples must lie side by side."""
    if x.stride(-1) == 1:
        return x
    return turn(x.transpose(1, 2)) if _channels_last(x) else x.contiguous()


def _channels_last(x: Tensor) -> bool:
    return x.transpose(1, 2).is_contiguous()


class _Diagonal(torch.autograd.Function):
    """y and the last state from u, a layer's parameters and the first state: tables and walks as one node."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
        *parameters, first, rate, arithmetic, cut = arguments
        *modal, D = parameters
        modes, ctx.channels_last = Modes(*modal), _channels_last(u)
        u, broken = heard(u) if len(modes.C) == 1 else (_rows(u), None)
        *made, sampled = triton_tables.make_tables(modes, D, rate, cut.chunk)
        tables = Tables(*made)
        plan = _Plan.of(u, tables, cut, arithmetic)
        y, last, kept = _forward(plan, u, tables, first, save=any(ctx.needs_input_grad))
        if broken is not None:
            spoil(y, last, broken)
        ctx.save_for_backward(u, sampled, *tables, *modes, *kept)
        ctx.plan, ctx.has_first = plan, first is not None
        ctx.set_materialize_grads(False)
        return y, last

    @staticmethod
    def backward(ctx: Any, dy: Tensor | None, dlast: Tensor | None) -> tuple[Tensor | None, ...]:
        u, sampled, *saved = ctx.saved_tensors
        tables, modes, kept = Tables(*saved[:4]), Modes(*saved[4:9]), saved[9:]
        dy = torch.zeros_like(u) if dy is None else _rows(dy)
        du, dfirst, sums = _backward(ctx.plan, u, dy, tables, kept, dlast)
        dparameters = triton_tables.gradients(modes, sampled, sums, ctx.plan.cut.chunk)
        du = turn(du).transpose(1, 2) if ctx.channels_last else du
        return du, *dparameters, dfirst if ctx.has_first else None, None, None, None


class _Dense(torch.autograd.Function):
    """The same from the tables of a dense system."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
        K, E, C, decay, D, first, arithmetic, cut = arguments
        ctx.channels_last = _channels_last(u)
        u, broken = heard(u) if len(K) == 1 else (_rows(u), None)
        exact = K.to(torch.float32, memory_format=torch.contiguous_format, copy=True)
        exact[0, :, 0] += D
        tables = Tables(exact, E.float()[:, None], C.float().contiguous()[:, :, None], decay.float())
        plan = _Plan.of(u, tables, cut, arithmetic)
        y, last, kept = _forward(plan, u, tables, first, save=any(ctx.needs_input_grad))
        if broken is not None:
            spoil(y, last, broken)
        ctx.save_for_backward(u, *tables, *kept)
        ctx.plan, ctx.has_first, ctx.dtype = plan, first is not None, K.dtype
        ctx.set_materialize_grads(False)
        return y, last

    @staticmethod
    def backward(ctx: Any, dy: Tensor | None, dlast: Tensor | None) -> tuple[Tensor | None, ...]:
        u, *saved = ctx.saved_tensors
        tables, kept, plan = Tables(*saved[:4]), saved[4:], ctx.plan
        dy = torch.zeros_like(u) if dy is None else _rows(dy)
        du, dfirst, sums = _backward(plan, u, dy, tables, kept, dlast)
        M, N = plan.cut.chunk, plan.width
        dT, dE, dC, ddecay = sums.sum(1, dtype=ctx.dtype).split((M * M, M * N, M * N, N * N), dim=-1)
        dK = dT.unflatten(-1, (M, M)).sum(2)  # the kernel stores the diagonals of dT as columns
        dtables = (
            dK,
            dE.sum(0).unflatten(-1, (M, N)),
            dC.unflatten(-1, (M, N)).transpose(-1, -2),
            ddecay.sum(0).unflatten(-1, (N, N)),
        )
        du = turn(du).transpose(1, 2) if ctx.channels_last else du
        return du, *dtables, dK[0, :, 0].float(), dfirst if ctx.has_first else None, None, None

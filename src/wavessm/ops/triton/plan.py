"""The launches of one scan on a GPU: how rows, chunks and segments are cut, and which kernels run in which order.

One program takes a channel and a tile of *rows*, keeps the state in registers and walks over the chunks of those rows.
A row is a signal of the batch or, where there are too few of them to fill the chip, one segment of it: then a first
walk finds what each segment adds to the state, a small kernel chains the segments, and the full walk starts each row
from its true state. The direction that reads backwards is the adjoint of a forward walk, so it walks back with the
same tables and nothing is flipped.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from wavessm.ops.triton.settings import Settings, power_of_two
from wavessm.ops.triton.table_sums import sum_kernel
from wavessm.ops.triton.walk import bridge_kernel, walk_kernel


class Tables(NamedTuple):
    """As the kernels read them: see `triton_walk`."""

    K: Tensor  # (directions, channels, M)
    E: Tensor  # (channels, planes, M, N)
    C: Tensor  # (directions, channels, planes, N, M)
    decay: Tensor  # (channels, 3, N) or (channels, N, N)

    def of(self, direction: int) -> tuple[Tensor | None, ...]:
        """What one walk reads: the first of two takes what a chunk says to itself in both, the second nothing of it."""
        K = (None, None) if direction else (self.K[0], self.K[1] if len(self.K) == 2 else None)
        return *K, self.E, self.C[direction], self.decay


@dataclass(frozen=True)
class Plan:
    """Sizes shared by the launches of one call."""

    batch: int
    channels: int
    length: int
    width: int  # slots, or reals of a dense state
    planes: int
    cut: Settings
    arithmetic: str

    @classmethod
    def of(cls, u: Tensor, tables: Tables, cut: Settings, arithmetic: str) -> Plan:
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
                bridge_kernel[(self.channels, self.batch)](
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


_plan = lru_cache(maxsize=256)(Plan)  # what follows from the sizes is worked out once


def forward(plan: Plan, u: Tensor, tables: Tables, first: Tensor | None, save: bool) -> tuple[Tensor, Tensor, list]:
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


def backward(
    plan: Plan, u: Tensor, dy: Tensor, tables: Tables, kept: list, dlast: Tensor | None
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

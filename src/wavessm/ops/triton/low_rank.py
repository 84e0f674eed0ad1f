"""From a DPLR layer's parameters to the tables of `walk`, and their gradients back: the kernels of `chains` and
`chain_gradients`, and one dense product each way.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from wavessm.ops.derivatives import first_only
from wavessm.ops.dplr import LowRank
from wavessm.ops.tables import ChunkTables
from wavessm.ops.triton.chain_gradients import chain_gradient_kernel, resolve_gradient_kernel
from wavessm.ops.triton.chains import chain_kernel, decay_kernel, resolve_kernel
from wavessm.ops.triton.language import cdiv, power_of_two
from wavessm.ops.triton.tables import sizes_of

ROWS = 16
"""Rows of Ā^M that a program computes."""


def low_rank_tables(layer: LowRank, rate: float, chunk: int) -> ChunkTables:
    """The result of `tables.dense_tables` for the sampled layer, in float32 and differentiable."""
    return ChunkTables(*_LowRankTables.apply(*layer, rate, chunk))


class _LowRankTables(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, ...]:
        *parameters, rate, M = arguments
        layer = LowRank(*(parameter.contiguous() for parameter in parameters))
        log_dt, log_decay, frequency, B, C, P = layer
        (directions, channels, slots, _), rank = C.shape, P.shape[1]
        sizes, R = sizes_of(layer), 2 * slots
        options = {"RANK": rank, "N": power_of_two(slots), "num_warps": 1}
        empty = partial(torch.empty, device=C.device)
        system = empty(channels, 2 + 2 * rank, R, dtype=torch.float64)  # a, B̄, 2U, V
        resolve_kernel[(channels,)](log_dt, log_decay, frequency, B, P, system, rate, *sizes, **options)
        K, E, out = empty(directions, channels, M), empty(channels, M, R), empty(directions, channels, R, M)
        count = 1 + directions + 2 * rank
        chains = empty(channels, count, M, R, dtype=torch.float64)  # x, c, q, p; p the last first
        chain_kernel[(channels, count)](system, C, K, E, out, chains, *sizes, DIRECTIONS=directions, M=M, **options)
        q, p = _low(chains, directions, rank)
        over = torch.bmm(p.transpose(1, 2), q)
        decay = empty(channels, R, R)
        decay_kernel[(channels, cdiv(R, ROWS))](
            system, over, decay, *sizes, RANK=rank, W=2 * options["N"], ROWS=ROWS, BITS=M.bit_length() - 1
        )
        ctx.save_for_backward(*layer, system, chains)
        ctx.rate, ctx.options = rate, options
        return K, E, out, decay

    @staticmethod
    @first_only
    def backward(ctx: Any, dK: Tensor, dE: Tensor, dout: Tensor, ddecay: Tensor) -> tuple[Tensor | None, ...]:
        *parameters, system, chains = ctx.saved_tensors
        layer, options = LowRank(*parameters), ctx.options
        log_dt, log_decay, frequency, B, C, P = layer
        (directions, channels, slots, _), rank = C.shape, P.shape[1]
        copies, count = log_decay.shape
        M, n_complex, sizes = dK.shape[-1], frequency.shape[1], sizes_of(layer)
        q, p = _low(chains, directions, rank)
        ddecay = ddecay.contiguous()
        over = ddecay.double()
        dq, dp = torch.bmm(p, over), torch.bmm(q, over.transpose(1, 2))  # both come with a minus
        empty = partial(torch.empty, device=C.device)
        parts = empty(*chains.shape[:2], 3 + 2 * rank, 2 * slots, dtype=torch.float64)
        chain_gradient_kernel[chains.shape[:2]](
            system, chains, dK.contiguous(), dE.contiguous(), dout.transpose(-1, -2).contiguous(), dq, dp, ddecay,
            parts, *sizes, DIRECTIONS=directions, M=M, BITS=M.bit_length() - 1, **options,
        )  # fmt: skip
        rows = empty(channels, count + n_complex + 2 * slots * (1 + rank))
        ddt, dC = empty(channels), empty(C.shape)
        resolve_gradient_kernel[(channels,)](
            log_dt, log_decay, frequency, B, P, system, parts, ddt, rows, dC, ctx.rate, *sizes,
            DIRECTIONS=directions, **options,
        )  # fmt: skip
        widths = (count, n_complex, 2 * slots, 2 * slots * rank)
        ddecay, dfrequency, dB, dP = rows.view(copies, -1, rows.shape[1]).sum(1).split(widths, dim=1)
        gradients = (ddt, ddecay, dfrequency, dB.view_as(B), dC, dP.reshape(P.shape))
        return *(g.to(parameter.dtype) for g, parameter in zip(gradients, layer, strict=True)), None, None


def _low(chains: Tensor, directions: int, rank: int) -> tuple[Tensor, Tensor]:
    """q and p of all ranks, (channels, rank · M, R) each."""
    first = 1 + directions
    return chains[:, first : first + rank].flatten(1, 2), chains[:, first + rank :].flatten(1, 2)

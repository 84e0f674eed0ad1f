"""From a DPLR layer's parameters to the tables of `walk`, and their gradients back: the kernels of `chains` and
`chain_gradients`, and one dense product each way.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from wavessm.ops.dplr import LowRank
from wavessm.ops.triton.chain_gradients import chain_gradient_kernel, resolve_gradient_kernel
from wavessm.ops.triton.chains import chain_kernel, decay_kernel, resolve_kernel
from wavessm.ops.triton.language import cdiv, power_of_two
from wavessm.ops.triton.tables import KernelTables, sizes_of

ROWS = 16
"""Rows of Ā^M that a program computes."""


def low_rank_tables(layer: LowRank, D: Tensor, rate: float, M: int) -> tuple[KernelTables, list[Tensor]]:
    """As `tables.diagonal_tables`, for the dense state of a DPLR layer."""
    log_dt, log_decay, frequency, B, C, P = (parameter.contiguous() for parameter in layer)
    (directions, channels, slots, _), rank = C.shape, P.shape[1]
    sizes, R, options = sizes_of(layer), 2 * slots, _options(layer)
    empty = partial(torch.empty, device=C.device)
    system = empty(channels, 2 + 2 * rank, R, dtype=torch.float64)  # a, B̄, 2U, V
    resolve_kernel[(channels,)](log_dt, log_decay, frequency, B, P, system, rate, *sizes, **options)
    K, E, out = empty(directions, channels, M), empty(channels, M, R), empty(directions, channels, R, M)
    count = 1 + directions + 2 * rank
    chains = empty(channels, count, M, R, dtype=torch.float64)  # x, c, q, p; p the last first
    chain_kernel[(channels, count)](system, C, K, E, out, chains, *sizes, DIRECTIONS=directions, M=M, **options)
    q, p = _low(chains, directions, rank)
    over, decay = torch.bmm(p.transpose(1, 2), q), empty(channels, R, R)
    decay_kernel[(channels, cdiv(R, ROWS))](
        system, over, decay, *sizes, RANK=rank, W=2 * options["N"], ROWS=ROWS, BITS=M.bit_length() - 1
    )
    K[0, :, 0] += D
    return KernelTables(K, E[:, None], out[:, :, None], decay), [system, chains]


def low_rank_gradients(layer: LowRank, made: list[Tensor], sums: Tensor, rate: float, M: int) -> tuple[Tensor, ...]:
    """As `tables.diagonal_gradients`."""
    log_dt, log_decay, frequency, B, C, P = (parameter.contiguous() for parameter in layer)
    (directions, channels, slots, _), rank, (copies, count) = C.shape, P.shape[1], log_decay.shape
    (system, chains), R, n_complex, sizes = made, 2 * slots, frequency.shape[1], sizes_of(layer)
    dT, dE, dout, ddecay = sums.sum(1).split((M * M, M * R, M * R, R * R), dim=-1)
    dK = dT.unflatten(-1, (M, M)).sum(2)  # the kernel stores the diagonals of dT as columns
    dE, ddecay = dE.sum(0), ddecay.sum(0)
    q, p = _low(chains, directions, rank)
    over = ddecay.view(channels, R, R).double()
    dq, dp = torch.bmm(p, over), torch.bmm(q, over.transpose(1, 2))  # both come with a minus
    empty, options = partial(torch.empty, device=C.device), {"DIRECTIONS": directions, **_options(layer)}
    parts = empty(*chains.shape[:2], 3 + 2 * rank, R, dtype=torch.float64)
    chain_gradient_kernel[chains.shape[:2]](
        system, chains, dK, dE, dout.contiguous(), dq, dp, ddecay, parts, *sizes,
        M=M, BITS=M.bit_length() - 1, **options,
    )  # fmt: skip
    rows, ddt, dC = empty(channels, count + n_complex + R * (1 + rank)), empty(channels), empty(C.shape)
    resolve_gradient_kernel[(channels,)](
        log_dt, log_decay, frequency, B, P, system, parts, ddt, rows, dC, rate, *sizes, **options
    )
    widths = (count, n_complex, R, R * rank)
    ddecay, dfrequency, dB, dP = rows.view(copies, -1, rows.shape[1]).sum(1).split(widths, dim=1)
    return ddt, ddecay, dfrequency, dB.view_as(B), dC, dP.reshape(P.shape), dK[0, :, 0]


def _options(layer: LowRank) -> dict[str, int]:
    return {"RANK": layer.P.shape[1], "N": power_of_two(layer.C.shape[2]), "num_warps": 1}


def _low(chains: Tensor, directions: int, rank: int) -> tuple[Tensor, Tensor]:
    """q and p of all ranks, (channels, rank · M, R) each."""
    first = 1 + directions
    return chains[:, first : first + rank].flatten(1, 2), chains[:, first + rank :].flatten(1, 2)

"""Stage 5: `WaveSSM`, a sequence layer whose channels are state spaces started from a frame.

Each channel h has a step Δ_h and a readout C_h of its own, and shares modes λ, input weights B (and P) with the other
channels of its copy. Diagonal layers are sampled by zero-order hold, DPLR layers by the bilinear rule as S4's are. One
layer runs in three equal ways: the whole sequence, chunks with a state in between, single steps.

    x (batch, length, d_model)   state (batch, d_model, slots, 2): N real numbers in pairs
"""

from __future__ import annotations

import math
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from wavessm.errors import OptionError, ShapeError, can_sync, check_int, check_positive
from wavessm.nn.initial import Initial, initial_modes
from wavessm.ops import DenseSystem, DiagonalSystem, Engine, dplr, modes, run_layer, use_triton
from wavessm.ops.tables import dense_kernel, diagonal_kernel


class WaveSSM(nn.Module):
    """A layer of state spaces, one a channel, started from a frame of waveforms.

    d_model        channels
    d_state        N, the number of atoms
    family         a name of `ws.families()`; "legs", "legt", "fout" (S4); "s4d-legs", "s4d-lin", "s4d-inv" (S4D)
    measure        "scaled" or "translated"; closed forms have their own
    structure      "diagonal", "dplr", or None: diagonal where the operator diagonalises, else DPLR
    bidirectional  also read the sequence backwards, with a readout of its own, and add
    dt_min, dt_max range of the initial steps, log-uniform over channels
    b_init         diagonal frames: "equal" variance of all modes (default), or larger input weights of "slow-modes"
    n_ssm          independent copies of (λ, B, P), shared over d_model / n_ssm channels each
    backend        "auto", "torch", "triton" or "reference"
    precision      arithmetic inside the triton backend: "fp32", "tf32" or "bf16"

    >>> layer = WaveSSM(d_model=4, d_state=16)
    >>> x = torch.randn(2, 100, 4)
    >>> y = layer(x)
    >>> first, state = layer(x[:, :60], return_state=True)      # chunks: any split equals the whole
    >>> rest = layer(x[:, 60:], state=state)
    >>> torch.allclose(torch.cat([first, rest], 1), y, atol=1e-5)
    True
    """

    def __init__(
        self,
        d_model: int,
        d_state: int = 64,
        family: str = "morlet",
        measure: str | None = None,
        structure: str | None = None,
        bidirectional: bool = False,
        dt_min: float = 1e-3,
        dt_max: float = 1e-1,
        n_ssm: int = 1,
        backend: str = "auto",
        precision: str = "fp32",
        b_init: str | None = None,
    ) -> None:
        super().__init__()
        self.backend, self.precision = Engine(backend, precision).check()
        d_model, n_ssm = check_int(d_model, "WaveSSM: d_model", least=1), check_int(n_ssm, "WaveSSM: n_ssm", least=1)
        if d_model % n_ssm:
            raise OptionError(f"WaveSSM: n_ssm is {n_ssm}, expected a divisor of d_model = {d_model}.")
        dt_min, dt_max = check_positive(dt_min, "WaveSSM: dt_min"), check_positive(dt_max, "WaveSSM: dt_max")
        if dt_min > dt_max:
            raise OptionError(f"WaveSSM: dt_min is {dt_min}, dt_max is {dt_max}; expected 0 < dt_min ≤ dt_max.")
        if not isinstance(bidirectional, bool):
            raise OptionError(f"WaveSSM: bidirectional is {bidirectional!r}, expected True or False.")
        d_state = check_int(d_state, "WaveSSM: d_state", least=2)
        start = initial_modes(family, measure, d_state, structure, b_init)
        self.d_model, self.d_state, self.family, self.measure, self.b_init = d_model, d_state, family, measure, b_init
        self.structure, self.bidirectional, self.n_ssm = start.structure, bidirectional, n_ssm
        span = torch.rand(d_model) * (math.log(dt_max) - math.log(dt_min)) + math.log(dt_min)
        self.log_dt = nn.Parameter(span)
        self._start_from(start)
        directions = 2 if bidirectional else 1
        C = torch.randn(directions, d_model, self.n_slots, 2) / math.sqrt(2)  # a unit complex normal
        self.C = nn.Parameter(C)
        self.D = nn.Parameter(torch.randn(d_model))

    def _start_from(self, start: Initial) -> None:
        """Parameters of the dynamics, in `n_ssm` copies; slots as in `ops.modes`."""

        def copies(values: np.ndarray) -> nn.Parameter:
            tensor = torch.from_numpy(values.astype(np.float32))
            return nn.Parameter(tensor.expand(self.n_ssm, *tensor.shape).clone())

        self.log_decay = copies(np.log(-start.lam.real))
        self.frequency = copies(start.lam.imag[: start.n_complex])
        self.B = copies(start.slots(start.B))
        self.n_slots = self.B.shape[1]
        if start.structure == "dplr":
            self.P = copies(start.slots(start.P))  # (n_ssm, rank, slots, 2)

    def extra_repr(self) -> str:
        return (
            f"d_model={self.d_model}, d_state={self.d_state}, family={self.family!r}, structure={self.structure!r}, "
            f"bidirectional={self.bidirectional}"
        )

    @property
    def engine(self) -> Engine:
        """The backend and the arithmetic inside it."""
        return Engine(self.backend, self.precision)

    # -- the sampled system ---------------------------------------------------------------------------------

    def _modes(self) -> modes.Modes:
        return modes.Modes(self.log_dt, self.log_decay, self.frequency, self.B, self.C)

    def _low_rank(self) -> dplr.LowRank:
        return dplr.LowRank(*self._modes(), self.P)

    def _system(self) -> modes.Modes | dplr.LowRank:
        return self._modes() if self.structure == "diagonal" else self._low_rank()

    def discrete(self, rate: float = 1.0) -> DiagonalSystem | DenseSystem:
        """The layer in discrete time, without D, in float64."""
        if self.structure == "diagonal":
            return modes.sample(self._modes(), _rate(rate))
        return dplr.sample(self._low_rank(), _rate(rate))

    def kernel(self, length: int, rate: float = 1.0) -> Tensor:
        """The convolution kernels, without D. (directions, d_model, length) float64"""
        length, system = check_int(length, "WaveSSM.kernel: length", least=1), self.discrete(rate)
        return dense_kernel(system, length) if isinstance(system, DenseSystem) else diagonal_kernel(system, length)

    # -- three equal ways to run ----------------------------------------------------------------------------

    def forward(
        self,
        x: Tensor,  # (batch, length, d_model)
        state: Tensor | None = None,  # (batch, d_model, slots, 2)
        return_state: bool = False,
        rate: float = 1.0,
        lengths: Tensor | None = None,  # (batch,)
    ) -> Tensor | tuple[Tensor, Tensor]:
        """y like x, and the state after the last sample if asked for."""
        self._check_input(x, state, return_state, lengths)
        mask = None if lengths is None else time_mask(whole_lengths(lengths, x, "WaveSSM"), x.shape[1])
        u = x if mask is None else x.masked_fill(~mask, 0)
        u = u.transpose(1, 2)  # (batch, d_model, length)
        work = u if self._takes(u) else u.to(torch.promote_types(u.dtype, torch.float32))
        with torch.autocast(x.device.type, enabled=False):
            y, last = self._run(work, state, return_state, _rate(rate))
        y = y.transpose(1, 2).to(x.dtype)
        if mask is not None:
            y = y.masked_fill(~mask, 0)
        return (y, cast(Tensor, last)) if return_state else y

    def _takes(self, u: Tensor) -> bool:
        """Whether the scan reads u as it is: bfloat16, where its own arithmetic is no finer."""
        return u.dtype == torch.bfloat16 and self.precision == "bf16" and use_triton(u, self.engine, self._system())

    def _run(self, u: Tensor, state: Tensor | None, want_state: bool, rate: float) -> tuple[Tensor, Tensor | None]:
        return run_layer(u, self._system(), self.D, rate, state, want_state, self.engine)

    def step(self, x_t: Tensor, state: Tensor, rate: float = 1.0) -> tuple[Tensor, Tensor]:
        """One sample (batch, d_model) from a state; y (batch, d_model) and the next state."""
        check_sample(x_t, self.d_model)
        y, state = self.forward(x_t[:, None], state=state, return_state=True, rate=rate)
        return y[:, 0], state

    def initial_state(self, batch: int) -> Tensor:
        """The state of a layer that has heard nothing. (batch, d_model, slots, 2)"""
        batch = check_int(batch, "WaveSSM.initial_state: batch", least=1)
        return self.D.new_zeros(batch, self.d_model, self.n_slots, 2)

    def _check_input(self, x: Tensor, state: Tensor | None, return_state: bool, lengths: Tensor | None) -> None:
        check_signals(x, state, self.d_model, self.n_slots)
        if self.bidirectional and (state is not None or return_state):
            raise OptionError(
                "WaveSSM: a bidirectional layer reads the future and has no state; use bidirectional=False."
            )
        if lengths is not None and (state is not None or return_state):
            raise OptionError("WaveSSM: lengths go with whole sequences; run sequences of one length with a state.")


def check_signals(x: Tensor, state: Tensor | None, d_model: int, n_slots: int) -> None:
    """Raise what is wrong with signals (batch, length, d_model) or a state (batch, d_model, slots, 2), in one line."""
    if not isinstance(x, Tensor):
        raise ShapeError(f"WaveSSM: x is a {type(x).__name__}, expected a tensor (batch, length, d_model).")
    if x.dim() != 3 or x.shape[2] != d_model or 0 in x.shape:
        raise ShapeError(
            f"WaveSSM: x has shape {tuple(x.shape)}, expected (batch, length, d_model) = (≥ 1, ≥ 1, {d_model})."
        )
    if not x.dtype.is_floating_point:
        raise OptionError(f"WaveSSM: x has dtype {x.dtype}, expected a floating-point type; convert with x.float().")
    expected = (x.shape[0], d_model, n_slots, 2)
    if state is not None and (not isinstance(state, Tensor) or tuple(state.shape) != expected):
        came = f"has shape {tuple(state.shape)}" if isinstance(state, Tensor) else f"is a {type(state).__name__}"
        raise ShapeError(
            f"WaveSSM: state {came}, expected (batch, d_model, slots, 2) = {expected}. "
            f"Call layer.initial_state(batch={x.shape[0]})."
        )


def check_sample(x_t: Tensor, d_model: int) -> None:
    """The same for one sample (batch, d_model)."""
    if not isinstance(x_t, Tensor) or x_t.dim() != 2 or x_t.shape[1] != d_model:
        came = f"shape {tuple(x_t.shape)}" if isinstance(x_t, Tensor) else f"a {type(x_t).__name__}"
        raise ShapeError(f"WaveSSM.step: got {came}, expected (batch, d_model) = (…, {d_model}).")


def whole_lengths(lengths: Tensor, x: Tensor, caller: str) -> Tensor:
    """True lengths of padded sequences x (batch, length, ...) as int64 (batch,) on x's device, or `ShapeError`.

    Values are looked at on the CPU only: a GPU is not waited for, a compiled graph not broken.
    """
    expected = f"{x.shape[0]} whole numbers from 1 to {x.shape[1]}"
    if not isinstance(lengths, Tensor):
        raise ShapeError(f"{caller}: lengths is a {type(lengths).__name__}, expected a tensor of {expected}.")
    counts = not (lengths.is_floating_point() or lengths.is_complex() or lengths.dtype == torch.bool)
    if lengths.shape != x.shape[:1] or not counts:
        raise ShapeError(
            f"{caller}: lengths have shape {tuple(lengths.shape)} and {lengths.dtype}, expected {expected}."
        )
    lengths = lengths.long()
    if can_sync(lengths) and lengths.numel():
        least, most = int(lengths.min()), int(lengths.max())
        if least < 1 or most > x.shape[1]:
            raise ShapeError(f"{caller}: lengths run from {least} to {most}, expected {expected}.")
    return lengths.to(x.device)


def time_mask(lengths: Tensor, length: int) -> Tensor:
    """True at samples that belong to the sequence. (batch,) → (batch, length, 1)"""
    return (torch.arange(length, device=lengths.device) < lengths[:, None])[..., None]


def _rate(rate: float) -> float:
    if not isinstance(rate, int | float | np.number) or not (rate > 0 and math.isfinite(rate)):
        raise OptionError(f"WaveSSM: rate is {rate!r}, expected a positive number; 2.0 hears every second sample.")
    return rate


SSM_PARAMETERS = ("log_dt", "log_decay", "frequency", "B", "P")
"""What S4 trains at a rate of its own and without weight decay: the dynamics, not the readout."""


def param_groups(model: nn.Module, lr: float, weight_decay: float, lr_ssm: float | None = None) -> list[dict]:
    """Optimiser groups: dynamics of every `WaveSSM` at min(lr, 1e-3) or lr_ssm without decay, biases, norms and
    embeddings without decay, everything else with it.

    >>> groups = param_groups(WaveSSM(4, 8), lr=0.01, weight_decay=0.05)
    >>> [(group["name"], group["lr"], group["weight_decay"], len(group["params"])) for group in groups]
    [('ssm', 0.001, 0.0, 4), ('no decay', 0.01, 0.0, 1), ('decay', 0.01, 0.05, 1)]
    """
    if not lr > 0 or weight_decay < 0:
        raise OptionError(
            f"param_groups: lr is {lr}, weight_decay is {weight_decay}; expected lr > 0, weight_decay ≥ 0."
        )
    dynamics = {
        id(p)
        for module in model.modules()
        if isinstance(module, WaveSSM)
        for name, p in module.named_parameters(recurse=False)
        if name in SSM_PARAMETERS
    }
    trained = [p for p in model.parameters() if p.requires_grad]
    ssm = [p for p in trained if id(p) in dynamics]
    tables = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    others = [p for p in trained if id(p) not in dynamics]
    plain = [p for p in others if p.dim() < 2 or id(p) in tables]
    heavy = [p for p in others if p.dim() >= 2 and id(p) not in tables]
    groups = [
        {"name": "ssm", "params": ssm, "lr": min(lr, 1e-3) if lr_ssm is None else lr_ssm, "weight_decay": 0.0},
        {"name": "no decay", "params": plain, "lr": lr, "weight_decay": 0.0},
        {"name": "decay", "params": heavy, "lr": lr, "weight_decay": weight_decay},
    ]
    return [group for group in groups if group["params"]]

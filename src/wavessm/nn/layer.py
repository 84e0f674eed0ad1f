"""`WaveSSM`, a sequence layer whose channels are state spaces initialised from a frame.

    λ (modes,)  modes, exp(Δλ) per sample      B (modes,)  input weights     P (rank, modes)  low-rank factor of DPLR
    Δ (d_model,)  step of each channel         C (directions, d_model, modes)  readout     D (d_model,)  direct term

Each channel has a step Δ and a readout C of its own, and shares λ, B and P with the other channels of its copy.
Diagonal layers are sampled by zero-order hold, DPLR layers by the bilinear rule as those of S4. One layer runs in three
equivalent ways: the whole sequence, chunks with a state in between, single steps. Read next: `backbones.py`.
"""

from __future__ import annotations

import math
from typing import NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from wavessm.errors import OptionError, ShapeError, can_sync, check_int, check_positive, shape_error
from wavessm.nn.initial import initial_modes
from wavessm.ops import DenseSystem, DiagonalSystem, Engine, Modes, run_layer, triton_for
from wavessm.ops.convolution import kernel
from wavessm.ops.derivatives import without_autocast
from wavessm.ops.irregular import gaps, run_irregular
from wavessm.ops.modes import float64_device, sample


class TimedState(NamedTuple):
    """The state after samples with times, which the next chunk continues from."""

    values: Tensor  # (batch, d_model, slots, 2), the state at `time`
    time: Tensor  # (batch,) of the last sample
    since: Tensor  # (batch, d_model or 1) of the last sample that was not NaN


State = Tensor | TimedState


class WaveSSM(nn.Module):
    """A layer of state spaces, one per channel, initialised from a frame of waveforms.

    Args:
        d_model: Channels.
        d_state: State size N, the number of atoms.
        family: A name of `ws.families()`; "legs", "legt", "fout" (S4); "s4d-legs", "s4d-lin", "s4d-inv" (S4D).
        measure: "scaled" (default) or "translated", for families of frames; closed forms have their own.
        structure: "diagonal", "dplr", or None: diagonal where the operator diagonalises, else DPLR.
        bidirectional: Also process the sequence backwards, with another readout, and add both.
        dt_min: Smallest initial step; steps are log-uniform over channels.
        dt_max: Largest initial step.
        n_ssm: Independent copies of (λ, B, P), each shared by d_model / n_ssm channels.
        backend: "auto", "torch", "triton" or "reference".
        precision: Arithmetic of the triton kernels: "fp32", "tf32" or "bf16".
        b_init: Input weights of diagonal frames: "equal" variance of all modes (default), or larger weights of
            "slow-modes", for tasks that are all memory.

    Raises:
        UnknownNameError: A name that is not known; offers the closest one.
        OptionError: A value out of range, or an option that has no effect beside the others.
        ConditionError: structure="diagonal" where the operator does not diagonalise.

    Example:
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
        self.engine = Engine(backend, precision).check()
        if precision != "fp32" and backend in ("torch", "reference"):
            raise OptionError(f"WaveSSM: precision goes with the triton kernels, the backend is {backend!r}.")
        d_model, n_ssm = check_int(d_model, "WaveSSM: d_model", 1), check_int(n_ssm, "WaveSSM: n_ssm", 1)
        if d_model % n_ssm:
            raise OptionError(f"WaveSSM: n_ssm is {n_ssm}, expected a divisor of d_model = {d_model}.")
        dt_min, dt_max = check_positive(dt_min, "WaveSSM: dt_min"), check_positive(dt_max, "WaveSSM: dt_max")
        if dt_min > dt_max:
            raise OptionError(f"WaveSSM: dt_min is {dt_min}, dt_max is {dt_max}; expected 0 < dt_min ≤ dt_max.")
        start = initial_modes(family, measure, d_state, structure, b_init)
        self.d_model, self.d_state, self.family, self.measure, self.b_init = d_model, d_state, family, measure, b_init
        self.structure, self.bidirectional, self.n_ssm = start.structure, bidirectional, n_ssm

        def copies(values: np.ndarray) -> nn.Parameter:
            tensor = torch.from_numpy(values.astype(np.float32))
            return nn.Parameter(tensor.expand(n_ssm, *tensor.shape).clone())

        self.log_dt = nn.Parameter(torch.rand(d_model) * (math.log(dt_max) - math.log(dt_min)) + math.log(dt_min))
        self.log_decay = copies(np.log(-start.lam.real))
        self.frequency = copies(start.lam.imag[: start.n_complex])
        self.B = copies(start.slots(start.B))  # (n_ssm, slots, 2), slots as in `ops.modes`
        self.n_slots = self.B.shape[1]
        if start.structure == "dplr":
            self.P = copies(start.slots(start.P))  # (n_ssm, rank, slots, 2)
        C = torch.randn(2 if bidirectional else 1, d_model, self.n_slots, 2)
        self.C = nn.Parameter(C / math.sqrt(2))  # a unit complex normal
        self.D = nn.Parameter(torch.randn(d_model))

    def extra_repr(self) -> str:
        names = ("d_model", "d_state", "family", "structure", "bidirectional")
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in names)

    def system(self) -> Modes:
        """Return the parameters of the state space in continuous time."""
        P = None if self.structure == "diagonal" else self.P
        return Modes(self.log_dt, self.log_decay, self.frequency, self.B, self.C, P)

    def discrete(self, rate: float = 1.0) -> DiagonalSystem | DenseSystem:
        """Return the layer in discrete time, without D, in float64."""
        return sample(self.system(), check_positive(rate, "WaveSSM: rate"))

    def kernel(self, length: int, rate: float = 1.0) -> Tensor:
        """Return the convolution kernels without D, shape (directions, d_model, length), float64."""
        return kernel(self.discrete(rate), check_int(length, "WaveSSM.kernel: length", minimum=1))

    def forward(
        self,
        x: Tensor,  # (batch, length, d_model)
        state: State | None = None,  # (batch, d_model, slots, 2)
        return_state: bool = False,
        rate: float = 1.0,
        lengths: Tensor | None = None,  # (batch,)
        times: Tensor | None = None,  # (batch, length)
    ) -> Tensor | tuple[Tensor, State]:
        """Process a sequence, or a chunk of one.

        With `times`, sample k is held over the gap *before* it, from times[k − 1] to times[k], and its output is that
        at times[k]: times with a spacing of r give what rate=r gives. The first gap begins at the time of the state;
        where there is none, it is as long as the second, and one unit for a single sample. A sample that is NaN is
        skipped, channel by channel: the next one is held since the last that was not, and until then the output is
        that of the decaying state. Backwards, gaps are those behind the samples.

        Args:
            x: Input, shape (batch, length, d_model), floating point.
            state: State after the previous chunk, shape (batch, d_model, slots, 2); zero by default.
            return_state: Whether to return the state after the last sample as well.
            rate: Factor on every step Δ: 2.0 processes every second sample of a signal as the layer would all of them.
            lengths: True lengths of padded sequences, shape (batch,); outputs beyond them are zero.
            times: When the samples were taken, in steps of the layer times 1 / rate, increasing, shape (batch, length);
                for diagonal layers. The state is then a `TimedState`, and `initial_state(batch, time)` starts one.

        Returns:
            y with the shape of x, and the state if `return_state`.

        Raises:
            ShapeError: Input, state, lengths or times of another shape.
            OptionError: A state of a bidirectional layer, lengths beside a state, a rate that is not positive, times
                that do not increase or of a DPLR layer.
        """
        values = state.values if isinstance(state, TimedState) else state
        check_signals(x, values, self.d_model, self.n_slots)
        rate = check_positive(rate, "WaveSSM: rate")
        if self.bidirectional and (state is not None or return_state):
            raise OptionError("WaveSSM: a bidirectional layer reads the future, has no state; use bidirectional=False.")
        if lengths is not None and (state is not None or return_state):
            raise OptionError("WaveSSM: lengths go with whole sequences; run sequences of one length with a state.")
        lengths = None if lengths is None else whole_lengths(lengths, x, "WaveSSM")
        mask = None if lengths is None else time_mask(lengths, x.shape[1])
        low = x.dtype == torch.bfloat16 and self.engine.precision == "bf16"
        u, system = zero_padding(x, mask).transpose(1, 2), self.system()
        if times is None and isinstance(state, TimedState):
            raise OptionError("WaveSSM: the state has a time, but there are no times; give them, or state.values.")
        # The kernel reads bfloat16 as it is where its own arithmetic is no finer.
        if not low or times is not None or triton_for(u, self.engine, system) is None:
            u = u.to(torch.promote_types(u.dtype, torch.float32))
        last: State | None
        with without_autocast(x.device.type):
            if times is None:
                y, last = run_layer(u, system, self.D, rate, values, return_state, self.engine)
            else:
                y, last = self._run_at(u, whole_times(times, x, lengths), rate, state)
        y = zero_padding(y.transpose(1, 2).to(x.dtype), mask)
        return (y, cast(Tensor, last)) if return_state else y

    def _run_at(self, u: Tensor, times: Tensor, rate: float, state: State | None) -> tuple[Tensor, TimedState]:
        """u (batch, d_model, length) with times (batch, length) float64 → y like u, and the state after it.

        Where the device of u has no float64, times are on the CPU, and all of it happens there.
        """
        system, device = self.system(), u.device
        u = u.to(times.device)
        if system.P is not None:
            raise OptionError(f"WaveSSM: times go with structure='diagonal'; this '{self.family}' layer is DPLR.")
        observed = ~u.isnan()
        u = u.masked_fill(~observed, 0)
        observed = observed[:, :1] if can_sync(u) and bool(observed.all()) else observed
        values: Tensor | None
        if isinstance(state, TimedState):
            values, start, since = state.values, state.time.to(times), state.since.to(times)
            if can_sync(times) and not bool((times[:, 0] > start).all()):
                raise OptionError("WaveSSM: times begin before the state's time; expected times after the state.")
        else:
            values, start = state, times[:, 0] - first_gap(times)
            since = start[:, None]
        ahead, since = gaps(times, observed, start, since)
        directions = [ahead]
        if self.bidirectional:
            back = -times.flip(1)
            start = back[:, 0] - first_gap(back)
            directions.append(gaps(back, observed.flip(-1), start, start[:, None])[0])
        y, last = run_irregular(u, system, self.D, rate, directions, values, self.engine)
        return y.to(device), TimedState(last.to(device), times[:, -1], since)

    def step(self, x_t: Tensor, state: State, rate: float = 1.0, times: Tensor | None = None) -> tuple[Tensor, State]:
        """Process one sample (batch, d_model), taken at `times` (batch,) if given; returns y like it and the state."""
        check_sample(x_t, self.d_model)
        times = times[:, None] if isinstance(times, Tensor) and times.dim() == 1 else times
        y, state = self.forward(x_t[:, None], state=state, return_state=True, rate=rate, times=times)
        return y[:, 0], state

    def initial_state(self, batch: int, time: float | None = None) -> State:
        """Return the zero state, shape (batch, d_model, slots, 2); with `time` the `TimedState` at that time."""
        batch = check_int(batch, "WaveSSM.initial_state: batch", minimum=1)
        zero = self.D.new_zeros(batch, self.d_model, self.n_slots, 2)
        if time is None:
            return zero
        start = torch.full((batch, 1), time, dtype=torch.float64, device=float64_device(zero))
        return TimedState(zero, start[:, 0], start)


def check_signals(x: Tensor, state: Tensor | None, d_model: int, n_slots: int) -> None:
    """Raise for an input that is not (batch, length, d_model) or a state that is not (batch, d_model, slots, 2)."""
    if not isinstance(x, Tensor) or x.dim() != 3 or x.shape[2] != d_model or 0 in x.shape:
        raise shape_error("WaveSSM: x", x, f"a tensor (batch, length, d_model) = (≥ 1, ≥ 1, {d_model})")
    if not x.dtype.is_floating_point:
        raise OptionError(f"WaveSSM: x has dtype {x.dtype}, expected a floating-point type; convert with x.float().")
    expected = (x.shape[0], d_model, n_slots, 2)
    if state is not None and (not isinstance(state, Tensor) or tuple(state.shape) != expected):
        advice = f"call layer.initial_state(batch={x.shape[0]})"
        raise shape_error("WaveSSM: state", state, f"(batch, d_model, slots, 2) = {expected}; {advice}")


def check_sample(x_t: Tensor, d_model: int) -> None:
    """Raise for a sample that is not (batch, d_model)."""
    if not isinstance(x_t, Tensor) or x_t.dim() != 2 or x_t.shape[1] != d_model:
        raise shape_error("WaveSSM.step: x_t", x_t, f"a tensor (batch, d_model) = (…, {d_model})")


def whole_lengths(lengths: Tensor, x: Tensor, caller: str) -> Tensor:
    """Return lengths (batch,) of padded sequences x (batch, length, ...) as int64 on x's device, or raise `ShapeError`.

    Values are checked on the CPU only, to neither wait for a GPU nor break a compiled graph.
    """
    expected = f"{x.shape[0]} whole numbers from 1 to {x.shape[1]}"
    if not isinstance(lengths, Tensor) or lengths.shape != x.shape[:1] or lengths.dtype not in _INTEGERS:
        dtype = f" of {lengths.dtype}" if isinstance(lengths, Tensor) else ""
        raise shape_error(f"{caller}: lengths{dtype}", lengths, f"a tensor of {expected}")
    lengths = lengths.long()
    if can_sync(lengths) and lengths.numel():
        low, high = int(lengths.min()), int(lengths.max())
        if low < 1 or high > x.shape[1]:
            raise ShapeError(f"{caller}: lengths run from {low} to {high}, expected {expected}.")
    return lengths.to(x.device)


def whole_times(times: Tensor, x: Tensor, lengths: Tensor | None) -> Tensor:
    """Return times (batch, length) of samples x (batch, length, ...) as float64 on x's device or the CPU, or raise.

    Beyond the lengths they continue with the last gap. Values are checked on the CPU only.
    """
    if not isinstance(times, Tensor) or times.shape != x.shape[:2] or times.is_complex() or times.dtype == torch.bool:
        raise shape_error("WaveSSM: times", times, f"a tensor (batch, length) = {tuple(x.shape[:2])} of real numbers")
    times = times.to(float64_device(x), torch.float64)
    if lengths is not None:
        last = lengths[:, None].to(times.device) - 1
        end = times.gather(1, last)
        step = torch.where(last > 0, end - times.gather(1, (last - 1).clamp(min=0)), 1.0)
        beyond = torch.arange(x.shape[1], device=times.device) - last
        times = torch.where(beyond > 0, end + beyond * step, times)
    if can_sync(times) and not bool((times.diff(dim=1) > 0).all() and times.isfinite().all()):
        raise OptionError("WaveSSM: times must be finite and increase from sample to sample; sort them, drop doubles.")
    return times


def first_gap(times: Tensor) -> Tensor:
    """Return the gap before the first sample, that before the second or 1, (batch, length) → (batch,)."""
    return times[:, 1] - times[:, 0] if times.shape[1] > 1 else torch.ones_like(times[:, 0])


_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def time_mask(lengths: Tensor, length: int) -> Tensor:
    """Return True at samples that belong to the sequence, (batch,) → (batch, length, 1)."""
    return (torch.arange(length, device=lengths.device) < lengths[:, None])[..., None]


def zero_padding(x: Tensor, mask: Tensor | None) -> Tensor:
    """Return x (batch, length, d_model), zero outside the mask (batch, length, 1); masked_fill moves channels last."""
    return x if mask is None else torch.where(mask, x, 0)


SSM_PARAMETERS = ("log_dt", "log_decay", "frequency", "B", "P")
"""Parameters of the dynamics, which S4 trains with another learning rate and without weight decay."""


def param_groups(
    model: nn.Module, lr: float, weight_decay: float, lr_ssm: float | None = None, layer_decay: float = 1.0
) -> list[dict]:
    """Return optimiser groups; embeddings, biases, norms and dynamics have no weight decay.

    Args:
        model: Any module; the dynamics of every `WaveSSM` in it form a group of their own.
        lr: Learning rate.
        weight_decay: Weight decay of everything else.
        lr_ssm: Learning rate of the dynamics; min(lr, 1e-3) by default.
        layer_decay: For fine-tuning a `SequenceModel`: factor on the rates of each block, counted from the head.

    Returns:
        Groups with "name", "params", "lr" and "weight_decay", for `torch.optim`.

    Example:
        >>> groups = param_groups(WaveSSM(4, 8), lr=0.01, weight_decay=0.05)
        >>> [(group["name"], group["lr"], group["weight_decay"], len(group["params"])) for group in groups]
        [('ssm', 0.001, 0.0, 4), ('no decay', 0.01, 0.0, 1), ('decay', 0.01, 0.05, 1)]
    """
    layers = [module for module in model.modules() if isinstance(module, WaveSSM)]
    dynamics = {id(p) for layer in layers for name, p in layer.named_parameters() if name in SSM_PARAMETERS}
    tables = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    kinds: dict[str, list[nn.Parameter]] = {"ssm": [], "no decay": [], "decay": []}
    for p in model.parameters():
        kind = "ssm" if id(p) in dynamics else "no decay" if p.dim() < 2 or id(p) in tables else "decay"
        kinds[kind] += [p] if p.requires_grad else []
    rates = {"ssm": min(lr, 1e-3) if lr_ssm is None else lr_ssm}
    groups = [
        {"name": kind, "params": params, "lr": rates.get(kind, lr), "weight_decay": weight_decay * (kind == "decay")}
        for kind, params in kinds.items()
        if params
    ]
    return groups if layer_decay == 1 else decay_by_depth(groups, model, layer_decay)


def decay_by_depth(groups: list[dict], model: nn.Module, layer_decay: float) -> list[dict]:
    """Divide optimiser groups by block: rates fall by `layer_decay` from the head, which comes last, to the encoder."""
    blocks = getattr(getattr(model, "backbone", None), "blocks", ())
    parts = [model.encoder, *blocks] if blocks and "encoder" not in getattr(model, "fresh", ()) else list(blocks)
    depth = {id(p): len(parts) - at for at, part in enumerate(parts) for p in part.parameters()}
    return [
        group | {"params": params, "lr": group["lr"] * layer_decay**at}
        for at in range(len(parts), -1, -1)
        for group in groups
        if (params := [p for p in group["params"] if depth.get(id(p), 0) == at])
    ]

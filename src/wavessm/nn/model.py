"""`SequenceModel`: encoder → backbone → head, on whole sequences or streams.

The forward pass never waits for a GPU: shapes are checked everywhere, values on the CPU only.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from wavessm.errors import NotFiniteError, OptionError, ShapeError, can_sync, check_int, shape_error
from wavessm.nn.backbones import Stack, States
from wavessm.nn.config import ModelConfig
from wavessm.nn.encoders import CalendarEncoder, EmbeddingEncoder, InstanceNorm, LinearEncoder, hold
from wavessm.nn.heads import DirectPath, Head, PooledState
from wavessm.nn.layer import TimedState, time_mask, whole_lengths
from wavessm.ops import modes

if TYPE_CHECKING:
    from wavessm.nn.pretrained import Card


ENCODERS = {"linear": LinearEncoder, "embedding": EmbeddingEncoder, "calendar": CalendarEncoder}


class ModelState(NamedTuple):
    """What a stream needs to continue.

    Attributes:
        layers: One state per layer.
        pooled: Running mean of the pooled head.
        last: Last value of each input channel, where NaN may be missing.
    """

    layers: States
    pooled: PooledState
    last: Tensor | None = None  # (batch, d_input)


class _Samples(NamedTuple):
    """The samples of a call: NaN filled, which of them are there, and when they were taken."""

    x: Tensor  # (batch, length, d_input), or tokens
    seen: Tensor | None  # like x
    times: Tensor | None  # (batch, length [+ horizon])
    observed: Tensor | None  # (batch, length [+ horizon]): False at samples that the layers skip


class SequenceModel(nn.Module):
    """A model of sequences: encoder, backbone and head as a config describes them.

    Args:
        config: A `ModelConfig`.

    Example:
        >>> model = SequenceModel(ModelConfig(d_input=3, d_output=5, d_model=16, n_layers=2, d_state=16)).eval()
        >>> x = torch.randn(2, 100, 3)
        >>> y = model(x)                                      # pooled: one row per sequence
        >>> state = model.initial_state(batch=2)
        >>> _, state = model.stream(x[:, :70], state)         # chunks of any size
        >>> now, state = model.stream(x[:, 70:], state)       # the output for the whole stream so far
        >>> torch.allclose(now, y, atol=1e-5)
        True
    """

    fresh: tuple[str, ...] = ()
    """Parts that a fine-tuned model does not have from the pretrained one: "head", "encoder"."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        if not isinstance(config, ModelConfig):
            raise OptionError(f"SequenceModel: config is a {type(config).__name__}, expected a ModelConfig.")
        self.config = config
        self.encoder = ENCODERS[config.encoder](config)
        self.scale = InstanceNorm(config.instance_norm)
        self.backbone = Stack(config)
        self.head = Head(config)
        self.direct = DirectPath(config) if config.direct else None

    def forward(
        self,
        x: Tensor,
        lengths: Tensor | None = None,
        rate: float = 1.0,
        marks: Tensor | None = None,
        times: Tensor | None = None,
    ) -> Tensor:
        """Return logits or predictions for whole sequences.

        Args:
            x: Signals (batch, length, d_input) or tokens (batch, length); pairs have (batch, 2, …).
            lengths: True lengths of padded sequences, shape (batch,), of pairs (batch, 2).
            rate: Factor on every step Δ, for signals of another sampling rate.
            marks: Calendar marks, shape (batch, length [+ horizon], k); encoder="calendar" only.
            times: When the samples were taken, as in `WaveSSM.forward`, shape (batch, length), of a forecast (batch,
                length + horizon); diagonal layers only.

        Returns:
            (batch, d_output), (batch, length, d_output) or (batch, horizon, d_output), by the head; see `heads.py`.

        Raises:
            ShapeError, OptionError: Input that does not fit the config.
            NotFiniteError: NaN on the CPU where the config says missing="error".
        """
        if self.config.head == "pair":
            x, lengths = self._unpair(x, lengths)
        self._check_input(x, marks, times)
        lengths = None if lengths is None else whole_lengths(lengths, x, "SequenceModel")
        samples = self._prepare(x, lengths, times)
        if self.config.head == "forecast":
            return self._forecast(samples, lengths, rate, marks)
        tail = 1 if self.config.head == "last" else None
        return self.head(self._run(samples, lengths, rate, marks, tail)[1], lengths)

    def features(self, x: Tensor, lengths: Tensor | None = None, marks: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the outputs of the encoder and of the backbone, both (batch, length, d_model).

        Arguments are those of `forward`, without a horizon and without pairs.
        """
        self._check_input(x, marks, None)
        return self._run(self._prepare(x, lengths, None), lengths, 1.0, marks, None)

    def _prepare(self, x: Tensor, lengths: Tensor | None, times: Tensor | None) -> _Samples:
        """The samples of whole sequences, zero beyond their lengths."""
        if lengths is None:
            return self._samples(x, times)
        mask = time_mask(lengths, x.shape[1])
        x = x.masked_fill(~mask, 0) if x.is_floating_point() else x  # NaN there would reach the gradients
        samples = self._samples(x, times)
        return samples if samples.seen is None else samples._replace(seen=samples.seen & mask)

    def _run(
        self, samples: _Samples, lengths: Tensor | None, rate: float, marks: Tensor | None, tail: int | None
    ) -> tuple[Tensor, Tensor]:
        h = self.encoder(self._columns(samples.x, samples.seen), marks, None)
        return h, self.backbone(h, lengths, rate, tail, samples.times, samples.observed)

    def _samples(self, x: Tensor, times: Tensor | None, state: ModelState | None = None) -> _Samples:
        """Fill NaN, or refuse it; with missing="gap", samples without any number are skipped by the layers."""
        horizon = self.config.horizon or 0
        if self.config.missing == "error":
            if can_sync(x) and x.is_floating_point() and bool(x.isnan().any()):
                raise NotFiniteError("SequenceModel: x has NaN; fill it, or set missing='hold' or 'gap' in the config.")
            return _Samples(x, None, times, None)
        x, seen = hold(x, None if state is None else state.last)
        if self.config.missing == "hold":
            return _Samples(x, seen, times, None)
        if times is None:
            before = None if state is None else state.layers[0]
            start = before.time[:, None] + 1 if isinstance(before, TimedState) else 0.0
            steps = torch.arange(x.shape[1] + horizon, device=modes.float64_device(x), dtype=torch.float64)
            times = (start + steps).expand(len(x), -1)
        return _Samples(x, seen, times, F.pad(seen.any(-1), (0, horizon), value=True))

    def _columns(self, x: Tensor, seen: Tensor | None) -> Tensor:
        """What the encoder reads: values, and beside them which are there; those of a gap are zero."""
        if seen is None:
            return x
        return torch.cat([x.masked_fill(~seen, 0) if self.config.missing == "gap" else x, seen.to(x.dtype)], dim=-1)

    def _forecast(self, samples: _Samples, lengths: Tensor | None, rate: float, marks: Tensor | None) -> Tensor:
        """Forecast from the context followed by `horizon` zeros; padding comes after both."""
        horizon = cast(int, self.config.horizon)
        x, centre, scale = self.scale(samples.x.to(next(self.parameters()).dtype), lengths)
        t = torch.arange(x.shape[1] + horizon, device=x.device)[None, :, None]
        ahead = t >= (x.shape[1] if lengths is None else lengths[:, None, None])
        h = self.encoder(F.pad(self._columns(x, samples.seen), (0, 0, 0, horizon)), marks, ahead)
        ends = None if lengths is None else lengths + horizon
        h = self.backbone(h, ends, rate, horizon, samples.times, samples.observed)
        y = self.head(h, lengths)
        return self.scale.undo(y if self.direct is None else y + self.direct(x, marks, lengths), centre, scale)

    def initial_state(self, batch: int) -> ModelState:
        """Return the state before the first sample of `batch` streams."""
        self._check_streams("initial_state")
        batch = check_int(batch, "SequenceModel.initial_state: batch", minimum=1)
        weight = next(self.head.parameters())
        dtype = torch.float64 if weight.device.type in modes.HAVE_FLOAT64 else torch.float32
        mean, steps = (weight.new_zeros(batch, width, dtype=dtype) for width in (self.config.d_model, 1))
        return ModelState(self.backbone.initial_state(batch), PooledState(mean, steps))

    def stream(
        self, x: Tensor, state: ModelState, rate: float = 1.0, times: Tensor | None = None
    ) -> tuple[Tensor, ModelState]:
        """Process a chunk of a stream; arguments as in `forward`.

        Returns:
            The output of `forward` for the whole stream so far (for head="sequence", that of the new steps), and the
            state after the chunk.
        """
        self._check_streams("stream")
        if self.training and self.config.norm == "batch":
            raise OptionError("SequenceModel.stream: batch norm in training needs whole sequences; call model.eval().")
        self._check_input(x, None, times)
        streams = len(state.pooled.steps) if isinstance(state, ModelState) else 0
        if streams != len(x):
            advice = f"call model.initial_state(batch={len(x)})"
            raise ShapeError(f"SequenceModel: state has {streams} streams, the input has {len(x)}; {advice}.")
        if can_sync(x) and x.is_floating_point() and bool(x.isinf().any()):
            raise NotFiniteError("SequenceModel.stream: x has infinity, which would stay in the state; drop it.")
        x, seen, times, observed = self._samples(x, times, state)
        h = self.encoder(self._columns(x, seen), None, None)
        h, layers = self.backbone.stream(h, state.layers, rate, times, observed)
        y, pooled = self.head.stream(h, state.pooled)
        return y, ModelState(layers, pooled, None if seen is None else x[:, -1])

    def step(
        self, x_t: Tensor, state: ModelState, rate: float = 1.0, times: Tensor | None = None
    ) -> tuple[Tensor, ModelState]:
        """Process one sample (batch, d_input) or token (batch,); as `stream`, without the axis of time of x."""
        y, state = self.stream(x_t[:, None] if isinstance(x_t, Tensor) else x_t, state, rate, times)
        return (y[:, 0] if self.config.head == "sequence" else y), state

    def save_pretrained(self, folder: str | Path, card: Card | None = None) -> Path:
        """Write config, weights (safetensors) and a model card to a folder; see `pretrained.py`."""
        from wavessm.nn.pretrained import save_model

        return save_model(self, folder, card)

    @classmethod
    def from_pretrained(
        cls, source: str | Path, revision: str | None = None, local_files_only: bool = False
    ) -> SequenceModel:
        """Return the model of such a folder, of a name of `ws.pretrained()`, or of a repository "owner/name" of a hub.

        It is in evaluation mode; `ws.adapt` changes it for other classes, channels or sampling rates.

        Args:
            source: Folder, name or repository; a folder comes first where both exist.
            revision: Branch, tag or commit of a repository.
            local_files_only: Use the local copy of a repository and no network.
        """
        from wavessm.nn.pretrained import find_folder, load_model

        return load_model(find_folder(source, revision, local_files_only))

    def _unpair(self, x: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return pairs as a batch of twice the size, partners next to each other."""
        rank = 3 if self.config.encoder == "embedding" else 4
        if not isinstance(x, Tensor) or x.dim() != rank or x.shape[1] != 2:
            raise shape_error("SequenceModel: x", x, f"pairs (batch, 2, length{', d_input' * (rank == 4)})")
        if isinstance(lengths, Tensor) and lengths.shape == x.shape[:2]:
            lengths = lengths.flatten()
        elif lengths is not None:
            raise shape_error("SequenceModel: lengths", lengths, "(batch, 2)")
        return x.flatten(0, 1), lengths

    def _check_input(self, x: Tensor, marks: Tensor | None, times: Tensor | None) -> None:
        cast(LinearEncoder, self.encoder).check(x)
        if isinstance(self.encoder, CalendarEncoder):
            self.encoder.check_marks(marks, x.shape[0], x.shape[1], self.config.horizon or 0)
        elif marks is not None:
            raise OptionError(f"SequenceModel: marks go with encoder='calendar', this one is {self.config.encoder!r}.")
        if times is None:
            return
        if self.config.head == "pair":
            raise OptionError("SequenceModel: times do not go with pairs; leave them out.")
        expected = x.shape[0], x.shape[1] + (self.config.horizon or 0)
        if not isinstance(times, Tensor) or times.shape != expected:
            raise shape_error("SequenceModel: times", times, f"a tensor (batch, length [+ horizon]) = {expected}")

    def _check_streams(self, call: str) -> None:
        config = self.config
        if config.bidirectional:
            raise OptionError(f"SequenceModel.{call}: a bidirectional model reads the future; use bidirectional=False.")
        if config.head in ("pair", "forecast") or config.encoder == "calendar":
            raise OptionError(f"SequenceModel.{call}: head={config.head!r} with encoder={config.encoder!r} needs whole "
                              "sequences; call the model itself.")  # fmt: skip

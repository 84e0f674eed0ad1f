"""Stage 6b: `ModelConfig`, everything that decides the shape of a model, as plain values that go to JSON and back.

Read `encoders.py`, `backbones.py`, `heads.py` for what the fields do, `models.py` for how they meet.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal

from wavessm.errors import OptionError, check_int, check_positive, unknown_name

NORMS = ("layer", "batch", "none")
ENCODERS = ("linear", "embedding", "calendar")
HEADS = ("pool", "last", "sequence", "forecast", "pair")
B_INITS = ("equal", "slow-modes")
BACKBONES = ("wavessm", "lstm", "transformer")
INSTANCE_NORMS = ("none", "last", "mean", "mean_std")

_CHOICES = {
    "norm": NORMS, "encoder": ENCODERS, "head": HEADS, "backbone": BACKBONES, "instance_norm": INSTANCE_NORMS,
}  # fmt: skip
_SWITCHES = ("bidirectional", "prenorm", "horizon_mask", "direct")
_COUNTS = ("d_input", "d_output", "d_model", "n_layers", "n_heads", "d_state")


_OLD_FIELDS = {"drive": "b_init"}
_OLD_B_INITS = {"even": None, "slow": "slow-modes"}  # even was the default and its effect is that of None


@dataclass(frozen=True)
class ModelConfig:
    """The shape of a `SequenceModel`.

    d_input, d_output  channels in (tokens have none: leave 1); classes, target columns or numbers out
    d_model, n_layers  width and depth of the backbone
    encoder            "linear", "embedding" (tokens below `vocabulary`), "calendar" (values and marks)
    mark_sizes         calendar: table sizes of whole-number marks; or
    mark_width         calendar: how many real-valued marks
    horizon_mask       calendar, forecasting: tell steps of the horizon from steps of the context
    head               "pool", "last", "sequence", "forecast" (the `horizon` steps after the context), "pair"
    instance_norm      forecasting: take off "last" or "mean" of each context, "mean_std" also scales; undone after
    direct             forecasting: a linear map beside the backbone, from the last `context` steps to the horizon
    backbone           "wavessm", "lstm", "transformer" (with `n_heads`)
    d_state … precision  as in `WaveSSM`; n_ssm None gives every channel its own copy
    dt_min_first, dt_max_first  steps of the first layer where they differ from the others'

    >>> config = ModelConfig(d_input=12, d_output=5, family="db6", bidirectional=True)
    >>> ModelConfig.from_dict(config.to_dict()) == config
    True
    """

    d_input: int = 1
    d_output: int = 1
    d_model: int = 128
    n_layers: int = 4
    d_state: int = 64
    family: str = "morlet"
    measure: str | None = None
    structure: str | None = None
    bidirectional: bool = False
    norm: str = "layer"
    prenorm: bool = True
    dropout: float = 0.0
    encoder: str = "linear"
    vocabulary: int | None = None
    mark_sizes: tuple[int, ...] = ()
    mark_width: int = 0
    horizon_mask: bool = False
    head: str = "pool"
    horizon: int | None = None
    instance_norm: str = "none"
    direct: bool = False
    context: int | None = None
    backbone: str = "wavessm"
    n_heads: int = 4
    dt_min: float = 1e-3
    dt_max: float = 1e-1
    dt_min_first: float | None = None
    dt_max_first: float | None = None
    n_ssm: int | None = 1
    b_init: Literal["equal", "slow-modes"] | None = None
    backend: str = "auto"
    precision: str = "fp32"

    def __post_init__(self) -> None:
        for name, known in _CHOICES.items():
            if getattr(self, name) not in known:
                raise unknown_name(name, getattr(self, name), known)
        for name in _SWITCHES:
            if not isinstance(getattr(self, name), bool):
                raise OptionError(f"ModelConfig: {name} is {getattr(self, name)!r}, expected True or False.")
        for name in _COUNTS:
            self._count(name)
        if not isinstance(self.dropout, Real) or not 0 <= self.dropout < 1:
            raise OptionError(f"ModelConfig: dropout is {self.dropout!r}, expected 0 ≤ dropout < 1.")
        object.__setattr__(self, "dropout", float(self.dropout))
        for name in ("dt_min", "dt_max", "dt_min_first", "dt_max_first"):
            if (value := getattr(self, name)) is not None or not name.endswith("first"):
                object.__setattr__(self, name, check_positive(value, f"ModelConfig: {name}"))
        self._check_encoder()
        self._check_head()
        self._check_backbone()

    def _count(self, name: str, called: str = "", least: int = 1) -> None:
        """Keep a field as a Python int, whatever kind of whole number it came as."""
        object.__setattr__(self, name, check_int(getattr(self, name), f"ModelConfig: {called or name}", least))

    def _check_encoder(self) -> None:
        if isinstance(self.mark_sizes, str) or not isinstance(self.mark_sizes, Sequence):
            raise OptionError(f"ModelConfig: mark_sizes is {self.mark_sizes!r}, expected several table sizes.")
        sizes = tuple(check_int(size, "ModelConfig: a size in mark_sizes", least=1) for size in self.mark_sizes)
        object.__setattr__(self, "mark_sizes", sizes)
        self._count("mark_width", least=0)
        if self.encoder == "embedding":
            self._count("vocabulary", "encoder='embedding': vocabulary")
        elif self.vocabulary is not None:
            raise OptionError(
                f"ModelConfig: vocabulary goes with encoder='embedding', the encoder is {self.encoder!r}."
            )
        if self.encoder == "calendar" and bool(sizes) == bool(self.mark_width):
            raise OptionError(
                f"ModelConfig: encoder='calendar' has mark_sizes = {sizes} and mark_width = {self.mark_width}; "
                "give one of them: table sizes of whole-number marks, or the number of real-valued ones."
            )
        if self.horizon_mask and (self.encoder, self.head) != ("calendar", "forecast"):
            raise OptionError("ModelConfig: horizon_mask goes with encoder='calendar' and head='forecast'.")

    def _check_head(self) -> None:
        if self.head == "forecast":
            if self.horizon is None:
                raise OptionError("ModelConfig: head='forecast' needs horizon, the number of steps to predict.")
            self._count("horizon")
            if self.encoder == "embedding":
                raise OptionError("ModelConfig: head='forecast' predicts numbers; use encoder='linear' or 'calendar'.")
        elif self.horizon is not None:
            raise OptionError(f"ModelConfig: horizon goes with head='forecast', the head is {self.head!r}.")
        if self.head == "pair" and self.encoder == "calendar":
            raise OptionError("ModelConfig: head='pair' takes no marks; use encoder='linear' or 'embedding'.")
        if self.instance_norm != "none":
            self._check_columns("instance_norm is undone on", "use instance_norm='none' or fewer outputs")
        if self.direct:
            self._check_columns("direct reads", "use direct=False or fewer outputs")
            self._count("context", "direct=True: context, the steps it reads,")
        elif self.context is not None:
            raise OptionError("ModelConfig: context goes with direct=True; models without it take any length.")

    def _check_columns(self, what: str, advice: str) -> None:
        """What works column by column needs the targets among the inputs."""
        if self.head != "forecast":
            raise OptionError(f"ModelConfig: {what.split()[0]} goes with head='forecast', the head is {self.head!r}.")
        if self.d_output > self.d_input:
            raise OptionError(
                f"ModelConfig: {what} the last d_output columns of the input; d_output is {self.d_output}, d_input "
                f"{self.d_input}; {advice}."
            )

    def _check_backbone(self) -> None:
        if self.n_ssm is not None:
            self._count("n_ssm")
        if self.backbone == "lstm" and self.bidirectional and self.d_model % 2:
            raise OptionError(f"ModelConfig: d_model is {self.d_model}; a bidirectional LSTM needs an even one.")
        if self.backbone == "transformer":
            if self.norm != "layer":
                raise OptionError("ModelConfig: PyTorch's Transformer has layer norm only; use norm='layer'.")
            if self.d_model % self.n_heads:
                raise OptionError(
                    f"ModelConfig: n_heads is {self.n_heads}, expected a divisor of d_model = {self.d_model}."
                )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        values = dataclasses.asdict(self)
        return values | {"mark_sizes": list(self.mark_sizes)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ModelConfig:
        """The config of `to_dict`; fields left out keep their defaults, unknown ones are refused.

        >>> ModelConfig.from_dict({"d_modle": 8})
        Traceback (most recent call last):
        wavessm.errors.UnknownNameError: unknown field of ModelConfig 'd_modle': did you mean 'd_model'? Known: ...
        """
        values = rename_fields(values)
        check_fields(values)
        return cls(**values)


def rename_fields(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of `values` with fields and values of older files under their present names.

    >>> rename_fields({"d_model": 8, "drive": "slow"})
    {'d_model': 8, 'b_init': 'slow-modes'}
    """
    renamed = {_OLD_FIELDS.get(name, name): value for name, value in values.items()}
    if "drive" in values:
        renamed["b_init"] = _OLD_B_INITS.get(values["drive"], values["drive"])
    return renamed


def check_fields(values: Mapping[str, Any]) -> None:
    """Refuse names that are no fields of `ModelConfig`, offering the closest."""
    known = [field.name for field in dataclasses.fields(ModelConfig)]
    for name in values:
        if name not in known:
            raise unknown_name("field of ModelConfig", name, known)

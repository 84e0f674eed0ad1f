"""`ModelConfig`, the one description of a model, as plain values that go to JSON and back. Imports no torch.

Read `encoders.py`, `backbones.py` and `heads.py` for what the fields do, `model.py` for how they are combined.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Literal

from wavessm.errors import OptionError, check_int, unknown_name

Check = tuple[Callable[[Any], bool], str]

NORMS = ("layer", "batch", "none")
B_INITS = ("equal", "slow-modes")
DATA_FIELDS = (
    "d_input", "d_output", "encoder", "vocabulary", "mark_sizes", "mark_width", "head", "horizon", "context",
    "precision",
)  # fmt: skip
"""Fields that `wavessm.training` fills in from the data and the training options."""

POLYNOMIAL = ("legs", "legt", "legendre", "chebyshev")
"""Families whose layers are DPLR at every size unless asked otherwise; small ones would still diagonalise."""
_OWN_MEASURE = {"legs": "scaled", "legt": "translated", "fout": "translated"}

MAX_STATE = 4096
"""Largest state of a channel: operators are made of matrices of this size, in float64."""
_CHECKS: dict[str, Check] = {
    "d_state": (lambda value: 1 <= value <= MAX_STATE, f"1 to {MAX_STATE:,}"),
    "dropout": (lambda value: 0 <= value < 1, "0 ≤ dropout < 1"),
    "mark_width": (lambda value: value >= 0, "at least 0"),
}


@dataclass(frozen=True)
class ModelConfig:
    """The architecture of a `SequenceModel`.

    Raises:
        OptionError: a value out of range, or options that do not go together; names the field.
        UnknownNameError: a name that is not known; offers the closest one.

    >>> config = ModelConfig(d_input=12, d_output=5, family="db6", bidirectional=True)
    >>> ModelConfig.from_dict(config.to_dict()) == config
    True
    """

    d_input: int = 1
    """Channels of the input; leave 1 for tokens."""
    d_output: int = 1
    """Classes, target columns or numbers of the output."""
    d_model: int = 128
    """Channels of the backbone."""
    n_layers: int = 4
    """Blocks."""
    d_state: int = 64
    """State size of each channel."""
    family: str = "morlet"
    """Frame of the state: a name of ws.families(), or legs, legt, fout, s4d-legs, s4d-lin, s4d-inv."""
    measure: str | None = None
    """scaled or translated; None takes the default of the family."""
    structure: str | None = None
    """diagonal or dplr; None takes diagonal where the operator diagonalises."""
    bidirectional: bool = False
    """Also read backwards; better for whole recordings, impossible on streams."""
    norm: Literal["layer", "batch", "none"] = "layer"
    """Kind of normalisation."""
    prenorm: bool = True
    """Normalise before the layer, not after the addition."""
    dropout: float = 0.0
    """Probability of the tied dropout."""
    missing: Literal["error", "hold", "gap", "auto"] = "error"
    """NaN in the input: refused; the last value of the channel is held; or a gap, over which the state decays where all
    channels are missing. With hold and gap the encoder also reads which channels are there. auto, when training: gap
    where the data have NaN and the layers are diagonal, hold for other layers, error for data without NaN."""
    encoder: Literal["linear", "embedding", "calendar"] = "linear"
    """linear for signals, embedding for tokens below vocabulary, calendar for values with calendar marks."""
    vocabulary: int | None = None
    """Encoder embedding: number of tokens."""
    mark_sizes: tuple[int, ...] = ()
    """Encoder calendar: table sizes of integer marks."""
    mark_width: int = 0
    """Encoder calendar: number of real-valued marks, instead of mark_sizes."""
    horizon_mask: bool = False
    """Forecasting with a calendar: mark the steps of the horizon."""
    head: Literal["pool", "last", "sequence", "forecast", "pair", "auto"] = "pool"
    """What is predicted from: the mean, the last step, every step, the horizon after the context, a pair of inputs;
    auto leaves it to the data when training."""
    horizon: int | None = None
    """Head forecast: steps to predict."""
    instance_norm: Literal["none", "last", "mean", "mean_std"] = "none"
    """Forecasting: what is subtracted from the context and added to the forecast; mean_std also scales."""
    direct: bool = False
    """Forecasting: a linear map from context to horizon, the same for all columns, beside the blocks."""
    context: int | None = None
    """Steps that the direct map reads."""
    dt_min: float = 1e-3
    """Smallest initial step."""
    dt_max: float = 1e-1
    """Largest initial step."""
    dt_min_first: float | None = None
    """Smallest initial step of the first layer; None takes dt_min."""
    dt_max_first: float | None = None
    """Largest initial step of the first layer; None takes dt_max."""
    n_ssm: int | None = 1
    """Independent copies of the dynamics, shared over the channels; None gives every channel its own."""
    b_init: Literal["equal", "slow-modes"] | None = None
    """Input weights of diagonal frames: equal variance of all modes (default), or larger for slow modes."""
    backend: str = "auto"
    """Engine: auto, torch, triton or reference."""
    precision: Literal["fp32", "tf32", "bf16"] = "fp32"
    """Arithmetic of the layers: fp32, TF32 matrix products, or bf16."""

    def __post_init__(self) -> None:
        if isinstance(self.mark_sizes, str) or not isinstance(self.mark_sizes, Sequence):
            raise OptionError(f"ModelConfig: mark_sizes is {self.mark_sizes!r}, expected several table sizes.")
        sizes = tuple(check_int(size, "ModelConfig: a size in mark_sizes", 1) for size in self.mark_sizes)
        object.__setattr__(self, "mark_sizes", sizes)
        check_fields(self, _CHECKS)
        if self.head != "auto":  # otherwise the data decide what goes together
            for problem in self._problems():
                raise OptionError(f"ModelConfig: {problem}.")

    def _problems(self) -> Iterator[str]:
        """Options that do not go together."""
        for name, goes_with in unused_fields(vars(self)).items():
            if getattr(self, name) != getattr(ModelConfig, name):
                yield f"{name} goes with {goes_with} and has no effect here; leave it out"
        forecast, calendar = self.head == "forecast", self.encoder == "calendar"
        by_column = "instance_norm" if self.instance_norm != "none" else "direct" if self.direct else ""
        if self.encoder == "embedding" and self.vocabulary is None:
            yield "encoder='embedding': vocabulary is None, expected the number of tokens"
        if calendar and bool(self.mark_sizes) == bool(self.mark_width):
            yield f"encoder='calendar': mark_sizes is {self.mark_sizes}, mark_width {self.mark_width}; give one of them"
        if forecast and self.horizon is None:
            yield "head='forecast' needs horizon, the number of steps to predict"
        if forecast and self.encoder == "embedding":
            yield "head='forecast' predicts numbers; use encoder='linear' or 'calendar'"
        if self.head == "pair" and calendar:
            yield "head='pair' takes no marks; use encoder='linear' or 'embedding'"
        if by_column and self.d_output > self.d_input:
            yield (f"{by_column} works on the last d_output columns of the input; d_output is {self.d_output}, d_input "
                   f"{self.d_input}")  # fmt: skip
        if self.missing == "auto":
            yield "missing='auto' is for training, where the data decide; use 'gap', 'hold' or 'error'"
        if self.missing == "gap" and not self.reads_gaps:
            yield "missing='gap' goes with diagonal layers; use missing='hold'"
        if self.direct and self.context is None:
            yield "direct=True needs context, the number of steps it reads"

    @property
    def reads_gaps(self) -> bool:
        """Whether missing="gap" goes with the layers."""
        return not _is_dplr(self.family, self.structure)

    def replace(self, **changes: Any) -> ModelConfig:
        """Return a copy with some fields changed; others that have no effect beside them go back to their defaults.

        Raises:
            OptionError, UnknownNameError: a change that is out of range or has no effect.

        >>> ModelConfig(measure="translated", b_init="slow-modes", d_model=32).replace(family="s4d-lin")
        ModelConfig(..., d_model=32, ..., family='s4d-lin', measure=None, ..., b_init=None, ...)
        """
        check_names(ModelConfig, changes)
        values = vars(self) | changes
        return ModelConfig(**values | _defaults(name for name in unused_fields(values) if name not in changes))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return dataclasses.asdict(self) | {"mark_sizes": list(self.mark_sizes)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ModelConfig:
        """Return the config of `to_dict`; missing fields keep their defaults, those of older files are translated.

        >>> ModelConfig.from_dict({"drive": "slow"}).b_init
        'slow-modes'
        >>> ModelConfig.from_dict({"d_modle": 8})
        Traceback (most recent call last):
        wavessm.errors.UnknownNameError: unknown field of ModelConfig 'd_modle': did you mean 'd_model'? Known: ...
        """
        if (kind := values.get("backbone", "wavessm")) != "wavessm":
            raise OptionError(f"ModelConfig: backbone={kind!r} is no longer part of wavessm.")
        old = ("backbone", "n_heads", "drive")
        fields = vars(cls()) | {name: value for name, value in values.items() if name not in old}
        check_names(cls, fields)
        if "drive" in values:  # files of that time hold every field, also those without effect
            fields["b_init"] = "slow-modes" if values["drive"] == "slow" else None
            fields |= _defaults(unused_fields(fields))
            fields["d_state"] -= fields["d_state"] % 2 if fields["family"].startswith("s4d-") else 0
        return cls(**fields)


def unused_fields(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the fields of a model that have no effect beside the others, with what they go with."""
    auto = values["head"] == "auto"  # encoder and head are not known yet
    forecast, calendar = auto or values["head"] == "forecast", auto or values["encoder"] == "calendar"
    family, structure = values["family"], values["structure"]
    unused = {}

    def only(goes_with: str, applies: bool, *names: str) -> None:
        unused.update(dict.fromkeys(() if applies else names, goes_with))

    s4d = str(family).startswith("s4d-")
    only("structure='diagonal' of a frame", not (_is_dplr(family, structure) or s4d), "b_init")
    only("families of frames", not s4d, "measure")
    only("families of frames", not (s4d and structure == "dplr"), "structure")
    own = _OWN_MEASURE.get(family)
    only(f"families of frames ({family} is {own})", values["measure"] == own or own is None, "measure")
    only("backend='auto' or 'triton'", values["backend"] in ("auto", "triton"), "precision")
    only("norm='layer' or 'batch'", values["norm"] != "none", "prenorm")
    only("encoder='linear' or 'calendar'", values["encoder"] != "embedding", "d_input", "missing")
    only("encoder='embedding'", auto or values["encoder"] == "embedding", "vocabulary")
    only("encoder='calendar'", calendar, "mark_sizes", "mark_width")
    only("direct=True", values["direct"], "context")
    only("encoder='calendar' and head='forecast'", calendar and forecast, "horizon_mask")
    only("head='forecast'", forecast, "horizon", "instance_norm", "direct", "context")
    return unused


def _is_dplr(family: str, structure: str | None) -> bool:
    return structure == "dplr" or (structure is None and family in POLYNOMIAL)


def _defaults(names: Iterable[str]) -> dict[str, Any]:
    return {name: getattr(ModelConfig, name) for name in names}


def check_names(kind: type, values: Mapping[str, Any]) -> None:
    """Refuse names that are not fields of a config dataclass, offering the closest one."""
    known = [field.name for field in dataclasses.fields(kind)]
    for name in values:
        if name not in known:
            raise unknown_name(f"field of {kind.__name__}", name, known)


_COUNT: Check = (lambda value: value >= 1, "at least 1")
_POSITIVE: Check = (lambda value: 0 < value < math.inf, "a positive number")


_hints = functools.cache(typing.get_type_hints)


def check_fields(config: Any, checks: Mapping[str, Check]) -> None:
    """Check every field of a config by its annotation, store numbers as Python numbers.

    Integers must be at least 1 and floats positive and finite, unless `checks` has another condition for the field.
    """
    title, hints = type(config).__name__, _hints(config.__class__)
    for field in dataclasses.fields(config):
        value, hint = getattr(config, field.name), hints[field.name]
        if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
            if value is None:
                continue
            hint = next(part for part in typing.get_args(hint) if part is not types.NoneType)
        if typing.get_origin(hint) is Literal:
            if value not in typing.get_args(hint):
                raise unknown_name(field.name, value, [str(choice) for choice in typing.get_args(hint)])
        elif hint in (int, float):
            kind = Integral if hint is int else Real
            ok, expected = checks.get(field.name, _COUNT if hint is int else _POSITIVE)
            if isinstance(value, bool) or not isinstance(value, kind) or not ok(value):
                whole = "a whole number, " if hint is int and not isinstance(value, Integral) else ""
                raise OptionError(f"{title}: {field.name} is {value!r}, expected {whole}{expected}.")
            object.__setattr__(config, field.name, hint(value))
        elif hint in (bool, str) and not isinstance(value, hint):
            expected = "True or False" if hint is bool else "text"
            raise OptionError(f"{title}: {field.name} is {value!r}, expected {expected}.")

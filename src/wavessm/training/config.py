"""Stage 8a: recipes, all choices of a training run as typed records; `task_recipes.py` has those of the tasks.

A recipe names nothing that the data decide (widths of input and output, the head): `tasks.py` adds those.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any, Literal

from wavessm.errors import OptionError, unknown_name
from wavessm.nn.config import rename_fields


@dataclass(frozen=True)
class ModelOptions:
    """What a recipe chooses about the model; the rest of a `ModelConfig` follows from the data."""

    family: str = "morlet"
    """Frame of the state: a name of ws.families(), or legs, legt, fout, s4d-legs, s4d-lin, s4d-inv."""
    measure: str | None = None
    """scaled or translated; None takes the family's own."""
    structure: str | None = None
    """diagonal or dplr; None takes diagonal where the operator diagonalises."""
    backbone: Literal["wavessm", "lstm", "transformer"] = "wavessm"
    """What the blocks are made of."""
    d_model: int = 128
    """Channels."""
    n_layers: int = 4
    """Blocks."""
    d_state: int = 64
    """Size of the state of a channel."""
    bidirectional: bool = False
    """Also read backwards; better for whole recordings, impossible on streams."""
    norm: Literal["layer", "batch", "none"] = "layer"
    """Kind of normalisation."""
    prenorm: bool = True
    """Normalise before the layer, not after the addition."""
    dropout: float = 0.0
    """Probability of the tied dropout."""
    instance_norm: Literal["none", "last", "mean", "mean_std"] = "none"
    """Forecasting: what is taken off the context and put back on the forecast."""
    direct: bool = False
    """Forecasting: a linear map from context to horizon, the same for all columns, beside the blocks."""
    dt_min: float = 1e-3
    """Smallest initial step."""
    dt_max: float = 1e-1
    """Largest initial step."""
    dt_min_first: float | None = None
    """Smallest initial step of the first layer; None: as the others."""
    dt_max_first: float | None = None
    """Largest initial step of the first layer; None: as the others."""
    n_ssm: int | None = 1
    """Independent copies of the dynamics, shared over the channels; None gives every channel its own."""
    b_init: Literal["equal", "slow-modes"] | None = None
    """Input weights of diagonal frames: equal variance of all modes (default), or larger for slow modes."""
    n_heads: int = 4
    """Heads of a Transformer."""
    horizon_mask: bool = False
    """Forecasting with a calendar: tell steps of the horizon from steps of the context."""
    backend: str = "auto"
    """Engine: auto, torch, triton or reference."""


@dataclass(frozen=True)
class Recipe:
    """One training run, apart from its data."""

    model: ModelOptions = field(default_factory=ModelOptions)
    lr: float = 1e-3
    """Highest learning rate."""
    lr_ssm: float = 1e-3
    """Highest learning rate of the dynamics (steps, modes, B, P)."""
    dt_rate: Literal["ssm", "global"] = "ssm"
    """Rate of the steps: that of the dynamics, or the global one."""
    lr_direct: float = 1e-3
    """Highest learning rate of a direct path; 0 leaves it where it starts."""
    direct_start: Literal["zero", "ridge"] = "zero"
    """Where a direct path starts: at zero, or at the ridge regression of the training windows."""
    c_rate: Literal["global", "ssm"] = "global"
    """Rate of C: the global one, or that of the dynamics."""
    weight_decay: float = 0.0
    """Decay of AdamW; biases, norms, embeddings and dynamics are exempt."""
    batch_size: int = 32
    """Cases in a step."""
    buckets: int = 1
    """Widths that batches of tokens are sorted into, so that less of them is padding; 1 mixes all lengths."""
    crop: float = 0.0
    """Train on stretches of so many seconds of a recording, others each time; 0 on whole ones. Scores hear all."""
    epochs: float = 10
    """Passes over the training split."""
    steps: int = 0
    """Steps in all; 0 takes them from epochs."""
    schedule: Literal["cosine", "one-cycle", "constant"] = "cosine"
    """Warm-up and half a cosine, one cycle from lr/25 up and down to nothing, or constant after the warm-up."""
    warmup: float = 0.1
    """Steps of linear warm-up, or a fraction of all steps if below 1; of one-cycle, the rising part."""
    slow_down: bool = False
    """At a longer stage of a curriculum, slow all layers but the first down as much as sequences grew."""
    grad_clip: float = 0.0
    """Largest gradient norm; 0 clips nothing."""
    validations: float = 1.0
    """Validations in an epoch."""
    patience: int = 0
    """Stop after so many validations without a better score; 0 never stops."""
    eval_batch_size: int = 256
    """Cases at a time outside training."""
    precision: Literal["fp32", "tf32", "bf16"] = "fp32"
    """Arithmetic: fp32, TF32 matrix products, or bf16 autocast with fp32 weights."""
    compile: bool = False
    """Compile the model with torch.compile."""
    cuda_graphs: bool = False
    """Capture the whole step, forward to optimiser, as one CUDA graph (GPU only); tokens are padded to their bucket."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:1."""
    devices: int = 1
    """Processes on a machine, one a GPU; they share each batch."""
    nodes: int = 1
    """Machines; more than one are started by torchrun or srun, with this command on each."""
    seed: int = 0
    """Seed of weights, order, dropout and generated data."""
    save_seconds: float = 60.0
    """At most so many seconds of work are lost when a run is killed; 0 saves after every step."""
    divergence: float = 100.0
    """Stop when the loss exceeds its first value so many times."""
    test: bool = True
    """Score the best model on the test split at the end; leave it out while choosing between settings."""
    note: str = ""
    """In what this recipe differs from the paper's."""

    def check(self) -> Recipe:
        """The recipe itself, or an `OptionError` that names the field."""
        for name, ok, wanted in (
            ("lr", self.lr > 0 and math.isfinite(self.lr), "a positive number"),
            ("lr_ssm", self.lr_ssm >= 0 and math.isfinite(self.lr_ssm), "a number of at least 0"),
            ("lr_direct", self.lr_direct >= 0 and math.isfinite(self.lr_direct), "a number of at least 0"),
            ("weight_decay", self.weight_decay >= 0, "a number of at least 0"),
            ("batch_size", self.batch_size >= 1, "at least 1"),
            ("buckets", self.buckets >= 1, "at least 1"),
            ("crop", 0 <= self.crop < math.inf, "a number of seconds, or 0 for whole recordings"),
            ("eval_batch_size", self.eval_batch_size >= 1, "at least 1"),
            ("epochs", self.epochs > 0 and math.isfinite(self.epochs), "a positive number"),
            ("steps", self.steps >= 0, "at least 0"),
            ("warmup", self.warmup >= 0, "at least 0"),
            ("grad_clip", self.grad_clip >= 0, "at least 0"),
            ("validations", self.validations > 0, "a positive number"),
            ("patience", self.patience >= 0, "at least 0"),
            ("save_seconds", self.save_seconds >= 0, "at least 0"),
            ("divergence", self.divergence > 1, "above 1"),
            ("devices", self.devices >= 1, "at least 1"),
            ("nodes", self.nodes >= 1, "at least 1"),
        ):
            if not ok:
                raise OptionError(f"recipe: {name} is {getattr(self, name)}, expected {wanted}.")
        if self.direct_start == "ridge" and not self.model.direct:
            raise OptionError("recipe: direct_start is 'ridge', but the model has no direct path; add --direct.")
        if self.cuda_graphs and self.devices * self.nodes > 1:
            raise OptionError("recipe: cuda_graphs captures one process; leave it out, or use devices = nodes = 1.")
        return self

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Recipe:
        """The recipe of such values; an unknown field is refused with the closest match.

        >>> Recipe.from_dict({"lr": 0.01, "model": {"family": "db6"}}).model.family
        'db6'
        """
        for name in values:
            if name not in fields_of(cls):
                raise unknown_name("field of a recipe", name, fields_of(cls))
        model = rename_fields(values.get("model", {}))
        for name in model:
            if name not in fields_of(ModelOptions):
                raise unknown_name("field of a model", name, fields_of(ModelOptions))
        return cls(**{**values, "model": ModelOptions(**model)}).check()

    def plan(self, cases: int) -> Plan:
        """How many steps a run over `cases` training cases takes, and between which it validates."""
        in_epoch = max(1, math.ceil(cases / self.batch_size))
        total = self.steps or max(1, round(self.epochs * in_epoch))
        return Plan(in_epoch, total, max(1, min(total, round(in_epoch / self.validations))))


@dataclass(frozen=True)
class Plan:
    """Steps of one epoch, of the run, and from one validation to the next."""

    steps_per_epoch: int
    total_steps: int
    validate_every: int

    def stretch(self, step: int) -> int:
        """Steps from here to the next validation or the end.

        >>> Plan(10, 25, 10).stretch(7), Plan(10, 25, 10).stretch(20)
        (3, 5)
        """
        return min(self.validate_every - step % self.validate_every, self.total_steps - step)


def fields_of(kind: type) -> list[str]:
    return [f.name for f in dataclasses.fields(kind)]


_HOW = {
    "backend", "compile", "cuda_graphs", "device", "devices", "divergence", "eval_batch_size", "nodes", "note",
    "precision", "save_seconds", "skip_bad", "test",
}  # fmt: skip
"""Options that say how a run is done, not what is trained."""
_TOLD = {
    "backbone", "dataset", "family", "folder", "horizon", "measure", "path", "root", "seed", "structure", "variables",
    "words",
}  # fmt: skip
"""Options that a row tells elsewhere."""


def changed_name(name: str, own: tuple[dict[str, Any], Recipe], given: tuple[dict[str, Any], Recipe]) -> str:
    """A recipe's name with the options that make it another, so that tables keep their runs apart.

    >>> changed_name("best", ({}, Recipe(lr=0.1)), ({}, Recipe(lr=0.2, epochs=3.0, device="cpu")))
    'best+lr=0.2+epochs=3'
    """
    before, after = ({**data, **vars(recipe), **vars(recipe.model)} for data, recipe in (own, given))
    changed = [k for k in after if after[k] != before[k] and k not in {*_HOW, *_TOLD, "model"}]
    return "+".join(
        [name, *(f"{k}={after[k]:g}" if isinstance(after[k], float) else f"{k}={after[k]}" for k in changed)]
    )

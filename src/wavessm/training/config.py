"""`TrainConfig`, the one description of a training, and the model and training that a task's recipe asks for.

Imports no torch. Read `fit.py` next for what `train` does with them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from wavessm.data.task import get_task
from wavessm.errors import DataError, OptionError
from wavessm.nn.config import Check, ModelConfig, check_fields, check_names, unused_fields

_CHECKS: dict[str, Check] = {
    **dict.fromkeys(
        ("lr_ssm", "lr_direct", "weight_decay", "crop", "steps", "warmup", "grad_clip", "patience", "save_seconds",
         "max_minutes", "amplitude", "jitter", "time_warp", "mixup", "train_blocks"),
        (lambda value: value >= 0, "at least 0"),
    ),
    "seed": (lambda value: 0 <= value < 2**63, "0 to 2**63 - 1"),
    "max_loss_ratio": (lambda value: value > 1, "above 1"),
    "layer_decay": (lambda value: 0 < value <= 1, "0 < layer_decay ≤ 1"),
    "mask_share": (lambda value: 0 < value < 1, "0 < mask_share < 1"),
    "channel_dropout": (lambda value: 0 <= value < 1, "0 ≤ channel_dropout < 1"),
}  # fmt: skip
RENAMED = {"slow_down": "stretch_timescales", "validations": "val_per_epoch", "divergence": "max_loss_ratio"}
FEATURE_FIELDS = ("n_features", "stretches")
"""Fields of the method "features"."""
SHARED_FIELDS = ("method", "device", "seed", "eval_batch_size", "test", "class_weight")
"""Fields of all methods; all others belong to gradient training."""
AUGMENTATIONS = ("amplitude", "jitter", "time_warp", "channel_dropout", "mixup")
"""Fields of `augment.py`; 0 is off."""
_OLD_FIELDS = ("model", "note", "devices", "nodes")


@dataclass(frozen=True)
class TrainConfig:
    """Everything about a training run except its data and its model.

    Raises:
        OptionError: a value out of range; names the field.
        UnknownNameError: a choice that is not known; offers the closest one.
    """

    method: Literal["auto", "gradient", "features", "linear"] = "auto"
    """Gradient training, or a fit in closed form, in seconds: state features with a ridge for signals, a linear map for
    forecasts. auto: the closed form for your own data unless an option of gradient training is given, else gradient."""
    n_features: int | None = None
    """features: numbers for a case, about; None takes 12,500, and 25,000 for 1,000 to 5,000 cases."""
    stretches: bool = True
    """features: also pool over stretches of a signal; --no-stretches gives a model that can stream."""
    lr: float = 1e-3
    """Highest learning rate."""
    lr_ssm: float = 1e-3
    """Highest learning rate of the dynamics (steps, modes, B, P)."""
    dt_rate: Literal["ssm", "global"] = "ssm"
    """Learning rate of the steps: that of the dynamics, or the global one."""
    lr_direct: float = 1e-3
    """Highest learning rate of a direct path; 0 leaves it where it starts."""
    direct_start: Literal["zero", "ridge"] = "zero"
    """Where a direct path starts: at zero, or at the ridge regression of the training windows."""
    c_rate: Literal["global", "ssm"] = "global"
    """Learning rate of C: the global one, or that of the dynamics."""
    weight_decay: float = 0.0
    """Decay of AdamW; biases, norms, embeddings and dynamics are exempt."""
    class_weight: Literal["none", "balanced"] = "none"
    """balanced: cases of a class (or positives of a label) weigh more in the loss, the rarer it is."""
    batch_size: int = 32
    """Cases per step."""
    buckets: int = 1
    """Number of widths that cases of unequal length are sorted into, to reduce padding; 1 mixes all lengths."""
    crop: float = 0.0
    """Train on random crops of this many seconds; 0 uses whole recordings. Validation and test use whole ones."""
    amplitude: float = 0.0
    """Augmentation: multiply each training case by a factor between 1 / (1 + amplitude) and 1 + amplitude."""
    jitter: float = 0.0
    """Augmentation: add noise of this many standard deviations of the data."""
    time_warp: float = 0.0
    """Augmentation: run each batch as if it were recorded faster or slower, by a factor of up to 1 + time_warp."""
    channel_dropout: float = 0.0
    """Augmentation: probability that a channel of a case is zero; one of them always stays."""
    mixup: float = 0.0
    """Augmentation: mix pairs of cases and their targets, by shares from Beta(mixup, mixup); 0.2 mixes little."""
    epochs: float = 10
    """Passes over the training split."""
    steps: int = 0
    """Total steps; 0 takes them from epochs."""
    max_minutes: float = 0.0
    """Finish within this time: the schedule follows the clock where steps are too slow for it; 0 has no limit."""
    schedule: Literal["cosine", "one-cycle", "constant"] = "cosine"
    """Warm-up and half a cosine, one cycle from lr/25 up and down to 0, or constant after the warm-up."""
    warmup: float = 0.1
    """Steps of linear warm-up, or a fraction of all steps if below 1; for one-cycle, the rising part."""
    stretch_timescales: bool = False
    """At a longer stage of a curriculum, slow all layers but the first down by the ratio of the lengths."""
    grad_clip: float = 0.0
    """Largest gradient norm; 0 does not clip."""
    val_per_epoch: float = 1.0
    """Validations per epoch."""
    patience: int = 0
    """Stop after this many validations without a better score; 0 never stops early."""
    eval_batch_size: int = 256
    """Cases per batch in validation and test."""
    precision: Literal["fp32", "tf32", "bf16"] = "fp32"
    """Arithmetic: fp32, TF32 matrix products, or bf16 autocast with fp32 weights."""
    compile: bool = False
    """Compile the model with torch.compile."""
    cuda_graphs: bool = False
    """Capture the whole step, forward to optimiser, as one CUDA graph (GPU only); tokens are padded to their bucket."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:1."""
    seed: int = 0
    """Seed of weights, order, dropout and generated data."""
    save_seconds: float = 60.0
    """Seconds between checkpoints; 0 saves after every step."""
    max_loss_ratio: float = 100.0
    """Stop when the loss exceeds this many times its first value."""
    test: bool = True
    """Score the best model on the test split at the end."""
    pretrained: str = ""
    """Start from this model: a folder, a run, a name of ws.pretrained(), or owner/name of a hub."""
    train_blocks: int | None = None
    """Fine-tuning: train the last blocks and the head only; 0 trains the head alone, None everything."""
    layer_decay: float = 0.7
    """Fine-tuning: factor on the learning rates of each block, counted from the head; 1 gives all the same."""
    objective: Literal["labels", "cpc", "masked"] = "labels"
    """Labels, or pretraining without them. cpc: the output of a causal model at t tells what comes from what does not.
    masked: spans of the signal are zero, and predicted."""
    patch: int = 8
    """Pretraining: samples that are told apart or hidden together."""
    ahead: int = 8
    """cpc: patches ahead that are predicted, from the next one on."""
    mask_share: float = 0.4
    """masked: share of the patches that is hidden."""

    def __post_init__(self) -> None:
        check_fields(self, _CHECKS)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TrainConfig:
        """Return the config of `to_dict`; missing fields keep their defaults, names of older files are translated.

        >>> TrainConfig.from_dict({"lr": 0.01, "validations": 2}).val_per_epoch
        2.0
        """
        own = {RENAMED.get(name, name): value for name, value in values.items() if name not in _OLD_FIELDS}
        check_names(cls, own)
        return cls(**own)

    def plan(self, cases: int) -> Plan:
        """Return the steps of a run over `cases` training cases."""
        in_epoch = max(1, math.ceil(cases / self.batch_size))
        total = self.steps or max(1, round(self.epochs * in_epoch))
        return Plan(in_epoch, total, max(1, min(total, round(in_epoch / self.val_per_epoch))))

    def schedule_step(self, step: int, total: int, seconds: float) -> float:
        """Return where the schedule is after `step` of `total` steps, or further if `max_minutes` runs out before."""
        return max(step, total * seconds / (60 * self.max_minutes)) if self.max_minutes else step


@dataclass(frozen=True)
class Plan:
    """Steps of one epoch, of the run, and between validations."""

    steps_per_epoch: int
    total_steps: int
    validate_every: int


def resolve(task: str, recipe: str = "best") -> tuple[ModelConfig, TrainConfig]:
    """Return the model and the training of a task's recipe; the head is "auto" until the data are known.

    Raises:
        UnknownNameError: an unknown task or recipe; offers the closest name.
    """
    chosen = get_task(task).recipe(recipe)
    model = ModelConfig.from_dict({"head": "auto", "missing": "auto"} | chosen.model)
    return model, TrainConfig.from_dict(chosen.train)


def model_config(task: str, model: ModelConfig, info: Any, precision: str) -> ModelConfig:
    """Return the model with the fields that the data decide filled in.

    Args:
        task: name of the task, which decides the head of models that do not forecast.
        model: the choices of a recipe or a user.
        info: `wavessm.data.DataInfo` of the data.
        precision: arithmetic of the training, "fp32", "tf32" or "bf16".
    """
    decided: dict[str, Any] = {"d_input": info.width, "d_output": info.d_output, "precision": precision}
    if info.kind == "forecast":
        encoder = "calendar" if info.mark_sizes or info.mark_width else "linear"
        decided |= {"head": "forecast", "horizon": info.horizon, "context": info.length if model.direct else None}
        decided |= {"encoder": encoder, "mark_sizes": info.mark_sizes, "mark_width": info.mark_width}
    else:
        decided["head"] = "sequence" if info.kind == "steps" else get_task(task).head
    if info.timed and not model.reads_gaps:
        raise OptionError(
            f"times need diagonal layers; {model.family!r} is DPLR: use --structure diagonal or another family."
        )
    if model.missing == "auto":
        decided["missing"] = "error" if not info.missing else "gap" if model.reads_gaps else "hold"
    elif model.missing == "error" and info.missing:
        raise DataError(f"{100 * info.missing:.3g} % of the samples are NaN, but missing is 'error'; fill them, or use "
                        "--missing gap or hold.")  # fmt: skip
    if info.symbols:
        decided |= {"encoder": "embedding", "vocabulary": len(info.symbols)}
    if "precision" in unused_fields(vars(model)):
        del decided["precision"]
    return dataclasses.replace(model, **decided)


_NOT_IN_NAMES = {
    # how a run is computed
    "backend", "compile", "cuda_graphs", "device", "max_loss_ratio", "method", "eval_batch_size", "precision",
    "save_seconds", "skip_bad", "test",
    # what tables show in columns of their own
    "dataset", "family", "folder", "horizon", "measure", "path", "root", "seed", "structure", "variables",
    "words",
}  # fmt: skip

Choice = tuple[Mapping[str, Any], ModelConfig, TrainConfig]
"""Data options, model and training of a run."""


def changed_name(name: str, own: Choice, given: Choice) -> str:
    """Return a recipe's name with the options that differ from it, so that tables keep the runs apart.

    >>> before, after = TrainConfig(lr=0.1), TrainConfig(lr=0.2, epochs=3.0, device="cpu")
    >>> changed_name("best", ({}, ModelConfig(), before), ({}, ModelConfig(), after))
    'best+lr=0.2+epochs=3'
    """
    before, after = ({**data, **vars(config), **vars(model)} for data, model, config in (own, given))
    hidden = _NOT_IN_NAMES | set(unused_fields(vars(given[1])))
    changed = {k: value for k, value in after.items() if value != before[k] and k not in hidden}
    return "+".join([name, *(f"{k}={v:g}" if isinstance(v, float) else f"{k}={v}" for k, v in changed.items())])

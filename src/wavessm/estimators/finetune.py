"""The option `pretrained` of classifier and regressor: fine-tuning a model instead of training a new one."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from wavessm.data.info import DataInfo
from wavessm.errors import OptionError, ShapeError, check_positive
from wavessm.estimators.base import MODEL_OPTIONS, WaveSSMEstimator, borrowed_generator
from wavessm.nn.config import ModelConfig
from wavessm.nn.model import SequenceModel
from wavessm.training import TrainConfig
from wavessm.training.finetune import start_from
from wavessm.training.optimiser import set_trainable
from wavessm.training.run import open_model


@dataclass(kw_only=True, eq=False, repr=False)
class FineTuning(WaveSSMEstimator):
    """Options of fine-tuning, documented in `WaveSSMClassifier`."""

    pretrained: str | None = None
    sampling_rate: float | None = None
    channel_names: Sequence[str] | None = None
    train_blocks: int | None = None
    layer_decay: float = TrainConfig.layer_decay

    def _model_config(self, sizes: dict[str, Any], **decided: Any) -> ModelConfig:
        given = [f.name for f in dataclasses.fields(self) if getattr(self, f.name) != f.default]
        alone = ("sampling_rate", "channel_names", "train_blocks", "layer_decay")
        decides = {*MODEL_OPTIONS, "bidirectional"} - {"dropout"}
        if clash := [name for name in given if name in (alone if self.pretrained is None else decides)]:
            what = "goes with pretrained" if self.pretrained is None else "is decided by the pretrained model"
            raise OptionError(f"{clash[0]} {what}; leave it out.")
        if self.pretrained is None:
            return super()._model_config(sizes, **decided)
        if self._continues:
            return self.model_.config
        dropout = {"dropout": self.dropout} if self.dropout else {}
        base = open_model(self.pretrained).model.replace(head="pool")
        missing = decided["missing"] if base.missing == "error" else base.missing
        return base.replace(d_input=decided["d_input"], d_output=decided["d_output"], missing=missing, **dropout)

    def _train_config(self, cases: int, seed: int, steps_per_epoch: int | None = None) -> TrainConfig:
        config = super()._train_config(cases, seed, steps_per_epoch)
        return dataclasses.replace(
            config, pretrained=str(self.pretrained or ""), train_blocks=self.train_blocks, layer_decay=self.layer_decay
        )

    def _new_model(self, config: ModelConfig, seed: int) -> SequenceModel:
        if self.pretrained is None:
            return super()._new_model(config, seed)
        with borrowed_generator(seed):
            model, note = start_from(self.pretrained, config, self._info())
        if self.verbose:
            print(f"{type(self).__name__}: {note}")
        set_trainable(model, self.train_blocks)
        return model

    def _info(self) -> DataInfo:
        """What X is, as far as it is known; its units are not."""
        given: Any = self.channel_names if self.channel_names is not None else self.channel_names_
        names = () if given is None else tuple(map(str, given))
        if names and len(names) != self.n_channels_:
            raise ShapeError(f"channel_names are {', '.join(names)}, but X has {self.n_channels_} channels.")
        rate = None if self.sampling_rate is None else check_positive(self.sampling_rate, "sampling_rate")
        classes = tuple(map(str, getattr(self, "classes_", ())))
        found = vars(self)
        kind = "regression" if not classes else "multilabel" if found["multilabel_"] else "multiclass"
        scale = tuple(found["mean_"].tolist()), tuple(found["scale_"].tolist())
        sizes = self.n_channels_, len(classes) or 1, self.length_
        return DataInfo(kind, *sizes, classes, channels=names, scale=scale, sampling_rate=rate)

"""Fine-tuning: a pretrained model for other classes, channels, units, sampling rates and lengths.

What changes is folded into weights, so that an adapted model is called like any other: another sampling rate into the
steps Δ of the layers, other channels and scales into the encoder. Of a model that was pretrained without labels, or on
other classes, the head starts anew. `fit.py` and the estimators use it.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from wavessm.data.files import VOLTS, unit_name
from wavessm.data.info import DataInfo
from wavessm.errors import OptionError, check_int, check_positive
from wavessm.nn.config import ModelConfig
from wavessm.nn.encoders import CalendarEncoder, LinearEncoder
from wavessm.nn.layer import WaveSSM
from wavessm.nn.model import SequenceModel
from wavessm.nn.pretrained import differing
from wavessm.training.optimiser import set_trainable
from wavessm.training.run import open_model

log = logging.getLogger("wavessm.training")


def adapt(
    source: str | Path,
    classes: int | Sequence[str],
    channels: int | Sequence[str] | None = None,
    sampling_rate: float | None = None,
    train_blocks: int | None = None,
) -> SequenceModel:
    """Return a pretrained model, ready to be trained on another task; one line of the log says what became of it.

    Args:
        source: A model folder, a run folder, a name of `ws.pretrained()`, or a repository "owner/name" of a hub.
        classes: The new outputs, names or a number. The head stays where the names are those it was trained on.
        channels: The new input, names or a number. Channels with a name that the model knows keep their weights; others
            start with a map that is learned. None: the channels of the model.
        sampling_rate: Of the new signals in hertz: the steps of the layers are rescaled. None: that of the model.
        train_blocks: Train the last blocks and the head only; 0 trains the head alone, None everything.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = SequenceModel(ModelConfig(d_input=12, d_model=8, n_layers=2, d_state=8)).save_pretrained(folder)
        ...     model = adapt(folder, classes=["normal", "other"], channels=2, train_blocks=1)
        >>> model(torch.randn(4, 300, 2)).shape, model.fresh
        (torch.Size([4, 2]), ('head', 'encoder'))
    """
    run = open_model(source)
    names = () if isinstance(classes, int) else tuple(classes)
    leads = run.info.channels if channels is None else () if isinstance(channels, int) else tuple(channels)
    width = run.info.d_input if channels is None else channels if isinstance(channels, int) else len(leads)
    count = check_int(len(names) or classes, "classes", 1)
    rate = run.info.sampling_rate if sampling_rate is None else check_positive(sampling_rate, "sampling_rate")
    info = dataclasses.replace(
        run.info, d_input=check_int(width, "channels", 1), d_output=count, classes=names, channels=leads, units=(),
        scale=None, sampling_rate=rate,
    )  # fmt: skip
    model, _ = start_from(source, run.model.replace(d_input=info.width, d_output=count), info)
    set_trainable(model, train_blocks)
    return model


def start_from(source: str | Path, config: ModelConfig, info: DataInfo) -> tuple[SequenceModel, str]:
    """Return a model of `config` for the data `info` that starts from a pretrained one, and the line that is logged."""
    run = open_model(source)
    model, note = transfer(run.load_model(), run.info, config, info, not run.unlabelled)
    log.info("from %s: %s", source, note)
    return model, f"from {source}: {note}"


def transfer(
    source: SequenceModel, old: DataInfo, config: ModelConfig, info: DataInfo, keep_head: bool = True
) -> tuple[SequenceModel, str]:
    """Return a model of `config` for the data `info` with the weights of `source`, which was trained on the data `old`.

    The second value is one line that says what was kept. With `keep_head` the head is, where the classes are the same.
    """
    model = SequenceModel(config)
    if what := differing(source.backbone.state_dict(), model.backbone.state_dict()):
        raise OptionError(f"fine-tuning: the blocks of the two models differ ({what}); leave options of the model out.")
    model.backbone.load_state_dict(source.backbone.state_dict())
    notes, fresh = [], ["head"]
    alike = old.front_end == info.front_end
    rate = old.step_rate / info.step_rate if alike and old.step_rate and info.step_rate else 1.0
    if abs(rate - 1) > 0.01:  # frames of 10 ms are whole samples
        with torch.no_grad():
            for layer in (module for module in model.modules() if isinstance(module, WaveSSM)):
                layer.log_dt.add_(math.log(rate))  # what the argument `rate` of a call does
        notes.append(f"{info.sampling_rate:g} Hz instead of {old.sampling_rate:g}, steps times {rate:.4g}")
    elif old.sampling_rate and not info.sampling_rate:
        notes.append(f"sampling rate unknown, taken as {old.sampling_rate:g} Hz")
    if keep_head and info.classes and (info.classes, info.kind) == (old.classes, old.kind):
        model.head.load_state_dict(source.head.state_dict())
        fresh = []
    notes.append(f"a new head of {config.d_output}" if fresh else "the same classes, the head is kept")
    notes.append(_transfer_encoder(source, model, old, info))
    model.fresh = (*fresh, *(["encoder"] if "learned" in notes[-1] else []))
    return model, "; ".join(notes)


def _transfer_encoder(source: SequenceModel, model: SequenceModel, old: DataInfo, info: DataInfo) -> str:
    """Fill the encoder from that of `source`, channel by channel; says in words how."""
    here, there = source.encoder, model.encoder
    if not isinstance(here, LinearEncoder) or not isinstance(there, LinearEncoder):
        if what := differing(here.state_dict(), there.state_dict()):
            raise OptionError(f"fine-tuning: the encoders differ ({what}); are the tokens the same?")
        there.load_state_dict(here.state_dict())
        return "the same tokens"
    wanted = there.state_dict()
    tables = {name: value for name, value in here.state_dict().items() if not name.startswith("linear.")}
    same = {name: value for name, value in tables.items() if name in wanted and wanted[name].shape == value.shape}
    there.load_state_dict(same, strict=False)  # of a calendar
    if isinstance(there, CalendarEncoder) and "horizon.weight" in wanted and "horizon.weight" not in same:
        nn.init.zeros_(there.horizon.weight)  # it would shift what the blocks know
    d_old, d_new = source.config.d_input, model.config.d_input
    if old.front_end != info.front_end and d_old != d_new:
        raise OptionError(f"fine-tuning: the model has front end {old.front_end!r}, the new data {info.front_end!r}; "
                          "read them with that of the model.")  # fmt: skip
    place, note = match_channels(d_old, old.input_names, d_new, info.input_names)
    gain = _gain(old, info, place)
    with torch.no_grad():
        there.linear.bias.copy_(here.linear.bias)
        there.linear.weight.zero_()  # columns that say which samples are missing may be new
        for k in range(min(here.linear.in_features // d_old, there.linear.in_features // d_new)):
            mapped = here.linear.weight[:, k * d_old : (k + 1) * d_old] @ place
            there.linear.weight[:, k * d_new : (k + 1) * d_new] = mapped * gain if k == 0 else mapped
    return note


def match_channels(d_old: int, old: Sequence[str], d_new: int, new: Sequence[str]) -> tuple[Tensor, str]:
    """Return which old channels the new ones stand for, (d_old, d_new), and the same in words.

    By name where both have names; a channel without a known name starts at zero beside known ones. In order where there
    are no names and as many channels. Else every old channel starts as the mean of the new ones: a map that is learned.

    >>> place, words = match_channels(3, ("I", "II", "V1"), 2, ("MLII", "resp"))
    >>> place.tolist(), words
    ([[0.0, 0.0], [1.0, 0.0], [0.0, 0.0]], 'channels MLII by name, resp by a learned map')
    """
    if old and new and tuple(old) != tuple(new) and all(name.endswith(" Hz") for name in (*old, *new)):
        return _match_bands(old, new), "bands by frequency"
    keys = {channel_key(name): at for at, name in enumerate(old)}
    known = {at: keys[channel_key(name)] for at, name in enumerate(new) if channel_key(name) in keys}
    place = torch.zeros(d_old, d_new)
    if known:
        place[list(known.values()), list(known)] = 1.0
        others = [name for at, name in enumerate(new) if at not in known]
        note = f"channels {', '.join(new[at] for at in known)} by name"
        return place, note + (f", {', '.join(others)} by a learned map" if others else "")
    if d_old == d_new and not (old and new):
        return torch.eye(d_old), "channels in their order"
    return place + 1 / d_new, f"{d_new} channels to {d_old} by a learned map"


def _match_bands(old: Sequence[str], new: Sequence[str]) -> Tensor:
    """Old bands that the new ones stand for, (old, new): the two beside each frequency, times their density."""
    there, here = (np.array([float(name.removesuffix(" Hz")) for name in names]) for names in (old, new))
    at = np.interp(here, there, np.arange(len(old)))
    near = np.clip(1 - np.abs(np.arange(len(old))[:, None] - at), 0, None) * np.gradient(at)
    return torch.from_numpy(np.where((here > there[-1]) | (here < there[0]), 0.0, near)).float()


def channel_key(name: str) -> str:
    """A name of a channel as it is compared: "Lead ii", "MLII" and "II" are one lead.

    >>> channel_key("Lead ii"), channel_key("ECG V1"), channel_key("MLII"), channel_key("ECG")
    ('II', 'V1', 'II', 'ECG')
    """
    return re.sub(r"^(LEAD|ECG|EEG|ML(?=I))(?=.)", "", re.sub(r"[^A-Z0-9.]", "", name.upper()))


def _gain(old: DataInfo, info: DataInfo, place: Tensor) -> Tensor:
    """Factors (channels,) that bring the new data, scaled by themselves, to the scale of the pretrained model.

    Where both units are known, a millivolt stays one. Else channels with one scale in common keep their relation.
    """
    framed = "energies" in (old.front_end, info.front_end)
    if framed or old.scale is None or info.scale is None or "recording" in (old.scaling, info.scaling):
        return torch.ones(place.shape[1])
    new = np.broadcast_to(np.array(info.scale[1]), (info.d_input,))
    was = np.broadcast_to(np.array(old.scale[1]), (len(place),))
    if (place == 1).any(0).all() and len(info.units) == info.d_input and len(old.units) == len(place):
        rows = place.argmax(0).tolist()
        pairs = [(unit_name(a), unit_name(old.units[row])) for a, row in zip(info.units, rows, strict=True)]
        if all(a == b or {a, b} <= VOLTS.keys() for a, b in pairs):
            factor = [1.0 if a == b else VOLTS[a] / VOLTS[b] for a, b in pairs]
            return torch.from_numpy(factor * new / was[rows]).float()
    return torch.from_numpy(new / (np.sqrt((new**2).mean()) if len(old.scale[1]) == 1 else new)).float()

"""Trained models as folders, to keep, to send and to publish on a hub.

    config.json         format and version, the `ModelConfig`, SHA-256 of the weights, what else a caller needs (names
                        of classes and channels, sampling rate, scaling)
    model.safetensors   the weights, as float32 or in part as float16
    README.md           the model card: task, data, metrics, use, limits

A folder needs no network; `hf upload owner/name FOLDER` publishes it. `zoo/` holds those that come with the library,
which `pretrained` lists. Weights are read from safetensors alone: nothing is ever unpickled. `training/finetune.py`
adapts a model to other data.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from wavessm.errors import DataError, OptionError, WaveSSMError, import_extra
from wavessm.nn.config import ModelConfig
from wavessm.nn.layer import SSM_PARAMETERS
from wavessm.nn.model import SequenceModel
from wavessm.nn.streaming import SampledLayer

FORMAT, VERSION = "wavessm-model", 1
CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"
SIGNATURE = "Written by wavessm"
ZOO = Path(__file__).parent / "zoo"
"""One folder for each model that comes with the library."""


def pretrained() -> dict[str, str]:
    """Return the models that come with the library, name → one line; `SequenceModel.from_pretrained` loads one."""
    folders = sorted(path.parent for path in ZOO.glob(f"*/{CONFIG}"))
    return {folder.name: str((_read(folder).get("extra") or {}).get("about", "")) for folder in folders}


@dataclass(frozen=True)
class Card:
    """What a reader of a model should know."""

    task: str = ""
    data: str = ""
    metrics: Mapping[str, float | str] = field(default_factory=dict)
    use: str = ""
    license: str = ""
    recipe: str = ""
    limits: str = ""


def save_model(
    model: SequenceModel, folder: str | Path, card: Card | None = None, extra: Any = None, half: bool = False
) -> Path:
    """Write a model as a folder and return it; an earlier save is replaced, a model by another program refused.

    Args:
        model: The model.
        folder: Where to write; made if it is not there.
        card: Text for README.md, which is left alone where somebody else wrote one.
        extra: Any JSON value that should travel with the model.
        half: Store matrices as float16, which halves the file; the dynamics of the layers stay float32.
    """
    if any(isinstance(module, SampledLayer) for module in model.modules()):
        raise OptionError("save: this model was sampled for streams and has no weights; save the one it came from.")
    folder, safetensors = Path(folder), import_extra("safetensors.torch", "model folders", "hub")
    if folder.exists() and not folder.is_dir():
        raise DataError(f"{folder}: is a file; give the name of a folder.")
    if found := next((folder / name for name in (CONFIG, WEIGHTS) if (folder / name).exists()), None):
        try:
            _read(folder)
        except DataError:
            raise DataError(f"{found}: is there already and not by wavessm; give a new folder.") from None
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()}
    if half:
        exact = (*SSM_PARAMETERS, "running_mean", "running_var")
        small = [name for name, value in weights.items() if value.dim() > 1 and name.split(".")[-1] not in exact]
        weights |= {name: weights[name].half() for name in small}
    data = safetensors.save(weights, {"format": "pt", "config": _digest(model.config.to_dict())})
    content = {"format": FORMAT, "version": VERSION, "wavessm": metadata.version("wavessm")}
    content |= {"model": model.config.to_dict(), "extra": extra, "sha256": hashlib.sha256(data).hexdigest()}
    (folder / CONFIG).write_text(json.dumps(content, indent=2) + "\n")  # first: it says whose the others are
    (folder / WEIGHTS).write_bytes(data)
    readme = folder / CARD
    if readme.exists() and SIGNATURE not in readme.read_text(errors="replace"):
        warnings.warn(f"{readme}: is not by wavessm and stays as it is; the model card is not written.", stacklevel=3)
    else:
        readme.write_text(_card_text(folder.name, model, card or Card()))
    return folder


def load_model(folder: str | Path) -> SequenceModel:
    """The model of a folder, in evaluation mode.

    Raises:
        DataError: The folder is none of ours, damaged, of another version, or its weights are not finite.
    """
    content, path = _read(Path(folder)), Path(folder) / WEIGHTS
    model = SequenceModel(read_config(folder))
    safetensors = import_extra("safetensors", "model folders", "hub")
    if not path.is_file():
        raise DataError(f"{folder}: there is no {WEIGHTS}, and pickled weights are never loaded; use save_pretrained.")
    try:
        with safetensors.safe_open(path, "pt") as file:
            about, names = file.metadata() or {}, file.keys()
            weights = {name: file.get_tensor(name) for name in names}
    except Exception as reason:  # safetensors has its own error type, reached only through its compiled module
        raise DataError(f"{path}: not a whole safetensors file ({str(reason).splitlines()[0]}).") from reason
    if broken := next((name for name, value in weights.items() if not value.isfinite().all()), None):
        raise DataError(f"{path}: {broken} has numbers that are not finite; the file is damaged, or training diverged.")
    misfit = f"{path}: its weights do not fit {CONFIG}; was it copied from another model?"
    if what := differing(weights, model.state_dict()):
        raise DataError(f"{misfit} ({what})")
    if about.get("config", own := _digest(content["model"])) != own:
        raise DataError(misfit)
    if content.get("sha256", found := hashlib.sha256(path.read_bytes()).hexdigest()) != found:
        raise DataError(f"{path}: does not have the SHA-256 that {CONFIG} names; bring the right file back.")
    model.load_state_dict(weights)
    return model.eval()


def differing(found: Mapping[str, Any], expected: Mapping[str, Any]) -> str:
    """Say in which tensor two sets of weights differ first, by name or by shape; "" where they agree."""
    for name in sorted(found.keys() ^ expected.keys()):
        return f"{name} is {'missing' if name in expected else 'unknown'}"
    pairs = ((name, tuple(found[name].shape), tuple(expected[name].shape)) for name in expected)
    return next((f"{name} has shape {one}, expected {other}" for name, one, other in pairs if one != other), "")


def _digest(config: Mapping[str, Any]) -> str:
    """A checksum of a config, which the weights keep: with another one they may fit and mean something else."""
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:16]


def read_config(folder: str | Path) -> ModelConfig:
    """The config of the model in a folder."""
    content = _read(Path(folder))
    try:
        return ModelConfig.from_dict(content["model"])
    except (KeyError, TypeError, AttributeError, WaveSSMError) as reason:
        raise DataError(
            f"{Path(folder) / CONFIG}: written by wavessm {content.get('wavessm')}, cannot be used by "
            f"{metadata.version('wavessm')} ({reason})"
        ) from reason


def read_extra(folder: str | Path) -> Any:
    """What `save_model` was given as `extra`."""
    return _read(Path(folder)).get("extra")


def _read(folder: Path) -> dict[str, Any]:
    """config.json, if it is one of ours."""
    if not (path := folder / CONFIG).is_file():
        raise DataError(f"{folder}: not a model folder (no {CONFIG}); give one written by save_pretrained.")
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as reason:
        raise DataError(f"{path}: cannot be read ({str(reason).splitlines()[0]}).") from reason
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise DataError(f"{path}: not a model of wavessm; give a folder written by save_pretrained.")
    if content.get("version") != VERSION:
        found = f"format version {content.get('version')} by wavessm {content.get('wavessm')}"
        raise DataError(f"{path}: has {found}, expected {VERSION}; load it with that version.")
    return content


def _card_text(name: str, model: SequenceModel, card: Card) -> str:
    """The model card: Hugging Face's header, then task, data, metrics and use."""
    config, size = model.config, sum(parameter.numel() for parameter in model.parameters())
    metrics = [f"| {name} | {v if isinstance(v, str) else f'{v:.4g}'} |" for name, v in card.metrics.items()]
    lines = [
        "---", "library_name: wavessm", "tags: [wavessm, state-space-model, time-series]",
        *([f"license: {card.license}"] if card.license else []), "---", "", f"# {name}", "",
        f"**Task.** {card.task or 'Not stated.'}", "",
        f"**Data.** {card.data or 'Not stated.'}", "",
        *([f"**Recipe.** {card.recipe}", ""] if card.recipe else []),
        *(["**Metrics.**", "", "| metric | value |", "|---|---|", *metrics] if metrics else ["**Metrics.** Unknown."]),
        "",
        f"**Model.** Frame `{config.family}`: {config.n_layers} blocks of {config.d_model} channels, {config.d_state} "
        f"states each, {size} parameters. Input: {config.d_input} channel(s); output: {config.d_output}, head "
        f"`{config.head}`.", "",
        f"**Use.** {card.use or 'Input is (batch, length, channels), prepared as in training.'}", "",
        *([f"**Limits.** {card.limits}", ""] if card.limits else []),
        "```python", "import wavessm as ws", "",
        f'model = ws.SequenceModel.from_pretrained("{name}")  # or its folder, or its repository',
        "y = model(x)  # x: (batch, length, channels)", "```", "", f"{SIGNATURE} {metadata.version('wavessm')}.", "",
    ]  # fmt: skip
    return "\n".join(lines)


def find_folder(source: str | Path, revision: str | None = None, local_files_only: bool = False) -> Path:
    """The folder of a model, its repository downloaded where needed; see `SequenceModel.from_pretrained`."""
    owner, _, name = str(source).partition("/")
    if Path(source).exists() or not owner or not name or "/" in name or owner[0] in ".~":
        if revision is not None:
            raise OptionError(f"{source}: revision goes with a repository of a hub, not with a folder; leave it out.")
        if Path(source).exists() or name:
            return Path(source)
        if (ZOO / owner / CONFIG).is_file():
            return ZOO / owner
        known = ", ".join(pretrained()) or "none"
        raise DataError(f"{source}: no such folder, and no model of ws.pretrained() ({known}).")
    hub = import_extra("huggingface_hub", "repositories", "hub")
    try:
        given = {"revision": revision, "local_files_only": local_files_only}
        return Path(hub.snapshot_download(str(source), allow_patterns=[CONFIG, WEIGHTS, CARD], **given))
    except Exception as reason:
        line = (str(reason).strip().splitlines() or [type(reason).__name__])[0]
        raise DataError(f"{source}: no such folder, and no repository could be loaded ({line}).") from reason

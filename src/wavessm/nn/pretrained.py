"""Stage 9j: trained models as folders, to keep, to send and to publish.

    config.json         format and version, the `ModelConfig`, what else a caller needs (names of classes, scaling)
    model.safetensors   the weights
    README.md           the model card: task, data, metrics, use

A folder is all that is needed, with no network. Where huggingface_hub is installed, `hub_class()` is a `SequenceModel`
with its mixin, for repositories on a hub. Weights are read from safetensors alone: nothing is ever unpickled.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import wavessm
from wavessm.errors import DataError, MissingExtraError, OptionError, WaveSSMError
from wavessm.nn.config import ModelConfig
from wavessm.nn.model import SequenceModel
from wavessm.nn.streaming import SampledLayer

FORMAT = "wavessm-model"
VERSION = 1
READS = (1,)
"""Format versions that this library loads; the others are refused."""

CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"
SIGNATURE = "Written by wavessm"
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")


@dataclass(frozen=True)
class Card:
    """What a reader of a model should know."""

    task: str = ""
    data: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)
    use: str = ""
    license: str = ""


def save_model(model: SequenceModel, folder: str | Path, card: Card | None = None, extra: Any = None) -> Path:
    """Write a model as a folder; `extra` is any JSON value that should travel with it. → the folder

    What an earlier save wrote is replaced. Another program's model is refused, a README.md of someone's own stays.
    """
    _refuse_sampled(model)
    _refuse_foreign(Path(folder))
    return _write(model, Path(folder), card, extra)


def _refuse_sampled(model: SequenceModel) -> None:
    """One line about a model whose layers have no weights any more, only what was computed of them."""
    if any(isinstance(module, SampledLayer) for module in model.modules()):
        raise OptionError("save: this model was sampled for streams and has no weights; save the one it came from.")


def _refuse_foreign(folder: Path) -> None:
    """One line about what stands where a model should go and is none of ours."""
    if folder.exists() and not folder.is_dir():
        raise DataError(f"{folder}: is a file; give the name of a folder.")
    found = next((folder / name for name in (CONFIG, WEIGHTS) if (folder / name).exists()), None)
    if found is not None and not _is_ours(folder / CONFIG):
        raise DataError(f"{found}: is there already and not by wavessm; give a new folder, or move it away.")


def _is_ours(config: Path) -> bool:
    try:
        content = json.loads(config.read_text())
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and content.get("format") == FORMAT


def _write(model: SequenceModel, folder: Path, card: Card | None, extra: Any) -> Path:
    torch_files = _safetensors()
    folder.mkdir(parents=True, exist_ok=True)
    content = {
        "format": FORMAT,
        "version": VERSION,
        "wavessm": wavessm.__version__,
        "model": model.config.to_dict(),
        "extra": extra,
    }
    weights = {name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()}
    (folder / CONFIG).write_text(json.dumps(content, indent=2) + "\n")  # first: it says whose the others are
    torch_files.save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})
    readme = folder / CARD
    if readme.exists() and SIGNATURE not in readme.read_text(errors="replace"):
        warnings.warn(f"{readme}: is not by wavessm and stays as it is; the model card is not written.", stacklevel=4)
    else:
        readme.write_text(card_text(model, card or Card()))
    return folder


def load_model(folder: str | Path) -> SequenceModel:
    """The model of a folder, in evaluation mode."""
    model = SequenceModel(read_config(folder))
    _load_weights(model, Path(folder))
    return model.eval()


def read_config(folder: str | Path) -> ModelConfig:
    """The config of a folder, or one line about why it cannot be used."""
    content = _content(Path(folder))
    try:
        return ModelConfig.from_dict(content["model"])
    except (KeyError, TypeError, WaveSSMError) as reason:
        raise DataError(
            f"{Path(folder) / CONFIG}: written by wavessm {content.get('wavessm')}, cannot be used by "
            f"{wavessm.__version__} ({reason})"
        ) from reason


def read_extra(folder: str | Path) -> Any:
    """What `save_model` was given as `extra`."""
    return _content(Path(folder)).get("extra")


def _content(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG
    if not path.is_file():
        raise DataError(f"{folder}: not a model folder (no {CONFIG}); give one written by save_pretrained.")
    try:
        content = json.loads(path.read_text())
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as reason:
        raise DataError(f"{path}: cannot be read ({str(reason).splitlines()[0]}).") from reason
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise DataError(f"{path}: not a model of wavessm; give a folder written by save_pretrained.")
    version = content.get("version")
    if version not in READS:
        newer = isinstance(version, int) and version > max(READS)
        advice = "upgrade wavessm" if newer else "load it with the version that wrote it and save it again"
        raise DataError(
            f"{path}: has format version {version} (by wavessm {content.get('wavessm')}), this one reads "
            f"{', '.join(map(str, READS))}; {advice}."
        )
    return content


def _load_weights(model: SequenceModel, folder: Path) -> None:
    torch_files = _safetensors()
    path = folder / WEIGHTS
    if not path.is_file():
        pickled = sorted(file.name for file in folder.iterdir() if file.suffix in PICKLES)
        found = f" and {pickled[0]} is pickled, which could run code and is never loaded" if pickled else ""
        raise DataError(f"{folder}: there is no {WEIGHTS}{found}; save the model again with save_pretrained.")
    try:
        model.load_state_dict(torch_files.load_file(path))
    except RuntimeError as reason:
        raise DataError(f"{path}: its weights do not fit {CONFIG}; was it copied from another model?") from reason
    except Exception as reason:  # safetensors has its own error type, reached only through its compiled module
        raise DataError(f"{path}: not a whole safetensors file ({str(reason).splitlines()[0]}).") from reason


def card_text(model: SequenceModel, card: Card) -> str:
    """The model card: Hugging Face's header, then what, from what, how good and how to use it."""
    config = model.config
    size = sum(parameter.numel() for parameter in model.parameters())
    head = ["---", "library_name: wavessm", "tags: [wavessm, state-space-model, time-series]"]
    head += [f"license: {card.license}"] if card.license else []
    shape = f"{config.n_layers} blocks of {config.d_model} channels, {config.d_state} states each, {size} parameters"
    state = f"`{config.family}`" if config.backbone == "wavessm" else f"{config.backbone} backbone"
    metrics = [f"| {name} | {value:.4g} |" for name, value in card.metrics.items()]
    lines = [
        *head, "---", "", "# A wavessm model", "",
        f"**Task.** {card.task or 'Not stated.'}", "",
        f"**Data.** {card.data or 'Not stated.'}", "",
        *(["**Metrics.**", "", "| metric | value |", "|---|---|", *metrics] if metrics else ["**Metrics.** Unknown."]),
        "",
        f"**Model.** Frame {state}: {shape}. Input: {config.d_input} channel(s); "
        f"output: {config.d_output}, head `{config.head}`.", "",
        f"**Use.** {card.use or 'Input is (batch, length, channels), prepared as in training.'}", "",
        "```python", "import wavessm as ws", "",
        'model = ws.SequenceModel.from_pretrained("THIS_FOLDER_OR_REPOSITORY")',
        "y = model(x)  # x: (batch, length, channels)", "```", "", f"{SIGNATURE} {wavessm.__version__}.", "",
    ]  # fmt: skip
    return "\n".join(lines)


# -- hubs -------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def hub_class() -> Any:
    """`SequenceModel` with huggingface_hub's mixin: `push_to_hub`, and `from_pretrained` of repositories."""
    hub = _hub()

    class HubSequenceModel(hub.ModelHubMixin, SequenceModel, library_name="wavessm"):  # type: ignore[call-arg, name-defined]
        card: Card | None = None
        extra: Any = None

        def save_pretrained(self, save_directory: str | Path, **options: Any) -> Any:  # type: ignore[override]
            _refuse_sampled(self)
            _refuse_foreign(Path(save_directory))  # the mixin begins by removing config.json
            return super().save_pretrained(save_directory, **options)

        def _save_pretrained(self, save_directory: Path) -> None:
            _write(self, save_directory, self.card, self.extra)

        @classmethod
        def _from_pretrained(
            cls,
            *,
            model_id: str,
            revision: str | None,
            cache_dir: str | Path | None,
            force_download: bool,
            local_files_only: bool,
            token: str | bool | None,
            **_: Any,  # the mixin's contract: what it read from config.json comes here too
        ) -> SequenceModel:
            folder = Path(model_id)
            if not folder.is_dir():
                options = {
                    "revision": revision, "cache_dir": cache_dir, "force_download": force_download,
                    "local_files_only": local_files_only, "token": token,
                }  # fmt: skip
                folder = Path(hub.snapshot_download(model_id, allow_patterns=[CONFIG, WEIGHTS, CARD], **options))
            model = cls(read_config(folder))
            _load_weights(model, folder)
            return model.eval()

    return HubSequenceModel


def from_pretrained(source: str | Path, revision: str | None = None, local_files_only: bool = False) -> SequenceModel:
    """A model from a folder, or from a repository "owner/name" of a hub."""
    if Path(source).exists() or not _is_repository(str(source)):
        return load_model(source)
    try:
        return hub_class().from_pretrained(str(source), revision=revision, local_files_only=local_files_only)
    except WaveSSMError:
        raise
    except Exception as reason:
        line = str(reason).strip().splitlines()[0] if str(reason).strip() else type(reason).__name__
        raise DataError(f"{source}: no such folder, and no repository could be loaded ({line}).") from reason


def push_to_hub(model: SequenceModel, repository: str, card: Card | None = None, private: bool = False) -> str:
    """Publish a model as the repository "owner/name". → the address of the commit"""
    _refuse_sampled(model)
    copy = hub_class()(model.config)
    copy.load_state_dict(model.state_dict())
    copy.card = card
    return str(copy.push_to_hub(repository, private=private))


def _is_repository(name: str) -> bool:
    parts = name.split("/")
    return len(parts) == 2 and all(parts) and not name.startswith((".", "~"))


def _safetensors() -> Any:
    try:
        import safetensors.torch
    except ImportError as reason:
        raise MissingExtraError("model folders need safetensors: pip install 'wavessm[hub]'.") from reason
    return safetensors.torch


def _hub() -> Any:
    try:
        import huggingface_hub
    except ImportError as reason:
        raise MissingExtraError("repositories need huggingface_hub: pip install 'wavessm[hub]'.") from reason
    return huggingface_hub

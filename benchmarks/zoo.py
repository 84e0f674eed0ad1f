"""Trains the models that come with the library and packs them into src/wavessm/nn/zoo.

    python benchmarks/zoo.py train ecg-12lead --data-root DATA --out runs/ecg-12lead --steps 3000
    python benchmarks/zoo.py pack ecg-12lead --data-root DATA --out runs/ecg-12lead      # scores, card, folder

Recordings of other devices differ in level, offset, drift, noise, bandwidth and leads; training cases are changed at
random in all of these. A training that was stopped continues when it is started again.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.signal import resample_poly
from torch import Tensor
from torch.nn import functional as F

from wavessm.data.crops import RandomSource
from wavessm.data.datasets.ptbxl import LEADS, PtbxlOptions
from wavessm.data.datasets.speech import SpeechOptions
from wavessm.data.files import wav_samples
from wavessm.data.info import DataInfo, DataSet
from wavessm.data.source import Arrays, Batch, Source
from wavessm.features.energies import FLOOR, level
from wavessm.nn.config import ModelConfig
from wavessm.nn.model import SequenceModel
from wavessm.nn.pretrained import ZOO, Card, save_model
from wavessm.training import checkpoint, metrics
from wavessm.training.config import TrainConfig
from wavessm.training.evaluate import evaluate_split
from wavessm.training.finetune import start_from
from wavessm.training.fit import make_trainer
from wavessm.training.progress import Progress
from wavessm.training.scores import best_thresholds

CROP = 250  # samples of a training case: 2.5 s
STEPS = {"ecg-12lead": 3000, "ecg-1lead": 1500, "keywords": 6000}
LR = {"ecg-12lead": 5e-3, "ecg-1lead": 3e-3, "keywords": 4e-3}
Change = Callable[[Tensor, torch.Generator], Tensor]


class Changed(RandomSource):
    """Cases of a source, changed at random each time they are taken."""

    def __init__(self, source: Arrays, change: Change, seed: int) -> None:
        super().__init__(seed)
        self.source, self.change = source, change

    def __len__(self) -> int:
        return len(self.source)

    def take(self, index: Tensor) -> Batch:
        batch = self.source.take(index)
        return batch._replace(x=self.change(batch.x, self.generator))


def sometimes(n: int, chance: float, draw: torch.Generator) -> Tensor:
    """1 with a chance, else 0, for each case: (n, 1, 1)."""
    return (torch.rand(n, 1, 1, generator=draw) < chance).float()


def drift_and_noise(x: Tensor, draw: torch.Generator) -> Tensor:
    """ECG (cases, length, leads) in units of 0.235 mV with baseline wander, offsets and noise."""
    n, length, leads = x.shape
    t = torch.arange(length)[None, :, None] / 100.0
    frequency = 0.05 + 0.45 * torch.rand(n, 1, 1, generator=draw)
    phase = 2 * math.pi * torch.rand(n, 1, 1, generator=draw)
    wander = torch.sin(2 * math.pi * frequency * t + phase) * torch.randn(n, 1, leads, generator=draw)
    x = x + 0.8 * sometimes(n, 0.3, draw) * wander
    x = x + 0.5 * sometimes(n, 0.3, draw) * torch.randn(n, 1, leads, generator=draw)
    loud = 0.2 * torch.rand(n, 1, 1, generator=draw) * sometimes(n, 0.3, draw)
    return x + loud * torch.randn(x.shape, generator=draw)


def stretched_crop(x: Tensor, length: int, widest: float, draw: torch.Generator) -> Tensor:
    """Crops (cases, length, channels), played faster or slower by a factor of up to exp(widest)."""
    n, whole, channels = x.shape
    speed = torch.exp(widest * (2 * torch.rand(n, 1, generator=draw) - 1) * sometimes(n, 0.5, draw)[..., 0])
    room = (whole - 1 - speed * (length - 1)).clamp(min=0)
    at = (torch.rand(n, 1, generator=draw) * room + speed * torch.arange(length)).clamp(max=whole - 1.001)
    left = at.long()
    part = (at - left)[..., None]
    index = left[..., None].expand(-1, -1, channels)
    return x.gather(1, index) * (1 - part) + x.gather(1, index + 1) * part


def change_12lead(x: Tensor, draw: torch.Generator) -> Tensor:
    """2.5 s, drift and noise, gain; half of the cases keep 1, 2, 3 or 6 of the leads, the others are zero."""
    n = len(x)
    x = drift_and_noise(stretched_crop(x, CROP, 0.1, draw), draw)
    x = x * torch.exp(0.25 * torch.randn(n, 1, 1, generator=draw) * sometimes(n, 0.5, draw))
    count = torch.tensor([1, 2, 3, 6])[torch.randint(4, (n,), generator=draw)]
    rank = torch.rand(n, x.shape[2], generator=draw).argsort(1).argsort(1)
    kept = (rank < count[:, None]).float()[:, None]
    return x * torch.maximum(kept, sometimes(n, 0.5, draw))


def change_1lead(x: Tensor, draw: torch.Generator) -> Tensor:
    """One lead of twelve, drift and noise, its own level, a polarity, 2.5 s."""
    n = len(x)
    lead = torch.randint(x.shape[2], (n, 1, 1), generator=draw)
    x = level(drift_and_noise(x.gather(2, lead.expand(-1, x.shape[1], -1)), draw))
    x = x * torch.exp(0.2 * torch.randn(n, 1, 1, generator=draw)) * (1 - 2 * sometimes(n, 0.15, draw))
    return stretched_crop(x, CROP, 0.1, draw)


def load_ecg(name: str, root: str) -> DataSet:
    """PTB-XL with 71 labels, its training cases changed; a single-lead model is scored on the twelve leads in turn."""
    data = PtbxlOptions(root=root, labels="all").load(0)
    assert isinstance(data.train, Arrays)
    if name == "ecg-12lead":
        info = dataclasses.replace(data.info, some_channels=True)
        return dataclasses.replace(data, train=Changed(data.train, change_12lead, 0), info=info)
    info = dataclasses.replace(data.info, d_input=1, channels=(), units=(), scaling="recording", some_channels=True)
    parts = {part: one_lead(getattr(data, part)) for part in ("val", "test")}
    return dataclasses.replace(data, train=Changed(data.train, change_1lead, 0), info=info, **parts)


def one_lead(source: Arrays, lead: int | None = None) -> Arrays:
    """One lead of each record at its own level, the same for all or the twelve in turn."""
    x = torch.cat([source.take(rows).x for rows in torch.arange(len(source)).split(512)])
    turn = torch.arange(len(x)) % len(LEADS) if lead is None else torch.full((len(x),), lead)
    return Arrays(level(x.gather(2, turn[:, None, None].expand(-1, x.shape[1], -1))), source.y)


def change_frames(info: DataInfo) -> Change:
    """What is done to frames of log energies (cases, versions, frames, bands): level, speed, microphone, masks."""
    assert info.frame_scale is not None
    mean, std = (torch.tensor(row) for row in info.frame_scale)

    def change(x: Tensor, draw: torch.Generator) -> Tensor:
        n, versions, length, bands = x.shape
        x = x[torch.arange(n), torch.randint(versions, (n,), generator=draw)].float()
        gain = torch.exp(0.7 * torch.randn(n, 1, 1, generator=draw))
        x = ((x.exp() - FLOOR).clamp(min=0) * gain + FLOOR).log()
        x = (x - mean) / std
        x = stretched_crop(F.pad(x, (0, 0, 10, 10), mode="replicate"), length, 0.2, draw)
        x = stretched_crop(x.mT, bands, 0.1, draw).mT  # longer and shorter vocal tracts
        curve = F.interpolate(torch.randn(n, 1, 5, generator=draw), bands, mode="linear", align_corners=True)
        x = x + 0.5 * sometimes(n, 0.7, draw) * curve  # a microphone
        for axis, size, widest in ((1, length, 20), (2, bands, 8)):
            place = torch.arange(size)
            start = torch.rand(n, 1, generator=draw) * size
            width = torch.rand(n, 1, generator=draw) * widest
            masked = (place >= start) & (place < start + width)
            x = x.masked_fill(masked[:, :, None] if axis == 1 else masked[:, None], 0.0)
        highest = bands * (0.6 + 0.4 * torch.rand(n, 1, generator=draw))
        cut = (torch.arange(bands) >= highest) & (torch.rand(n, 1, generator=draw) < 0.2)
        return x.masked_fill(cut[:, None], 0.0)  # narrow-band sound

    return change


def damaged(x: Tensor, noise: Tensor, draw: torch.Generator) -> Tensor:
    """Clips (cases, 16000, 1) shifted by up to 0.1 s, some in a room, with noise at 0 to 25 dB."""
    n, length, _ = x.shape
    shift = torch.randint(-1600, 1601, (n, 1), generator=draw)
    at = torch.arange(length) - shift
    x = x[..., 0].gather(1, at.clamp(0, length - 1)) * ((at >= 0) & (at < length))
    t = torch.arange(4000) / 16000
    decay = 0.02 + 0.08 * torch.rand(n, 1, generator=draw)
    room = torch.randn(n, 4000, generator=draw) * torch.exp(-t / decay) * 0.1
    room[:, 0] = 1.0
    size = length + 4000
    wet = torch.fft.irfft(torch.fft.rfft(x, size) * torch.fft.rfft(room, size), size)[:, :length]
    x = torch.where(sometimes(n, 0.3, draw)[..., 0] > 0, wet, x)
    start = torch.randint(len(noise) - length, (n, 1), generator=draw)
    behind = noise[start + torch.arange(length)]
    rms = [part.square().mean(1, keepdim=True).sqrt().clamp(min=1e-6) for part in (x, behind)]
    quiet = 10 ** (-25 * torch.rand(n, 1, generator=draw) / 20)
    return (x + behind * (rms[0] / rms[1] * quiet * (torch.rand(n, 1, generator=draw) < 0.8)))[..., None]


def load_noise(root: str) -> Tensor:
    """Six recordings of noise, one after another."""
    folder = SpeechOptions(root=root, words=30).files()[0].parent / "_background_noise_"
    clips = [wav_samples(path, "float32")[0][:, 0] for path in sorted(folder.glob("*.wav"))]
    return torch.from_numpy(np.concatenate(clips))


def word_names(root: str) -> tuple[str, ...]:
    """The 30 words."""
    return tuple(path.name for path in SpeechOptions(root=root, words=30).files()[:30])


def load_words(root: str, out: Path, words: tuple[str, ...], versions: int = 3) -> DataSet:
    """Frames of the clips of some of the 30 words; of the training clips, several versions, the first as it is."""
    data = SpeechOptions(root=root, words=30).load(0)
    noise = load_noise(root)
    info = dataclasses.replace(data.info, scaling="recording", front_end="energies", length=100)
    kept = [data.info.classes.index(word) for word in words]
    made: dict[str, tuple[Tensor, Tensor]] = {}
    for part in ("train", "val", "test"):
        source, path = getattr(data, part), out / f"{part}.npy"
        if not path.exists():
            many = versions if part == "train" else 1
            frames = np.lib.format.open_memmap(path, "w+", np.float16, (len(source), many, 100, 40))
            draw = torch.Generator().manual_seed(1)
            for rows in torch.arange(len(source)).split(256):
                x = source.take(rows).x
                for version in range(many):
                    clip = level(damaged(x, noise, draw) if version else x)
                    frames[rows.numpy(), version] = info.energy_bank()(clip).half().numpy()
            frames.flush()
        mine = torch.isin(source.y, torch.tensor(kept))
        label = torch.searchsorted(torch.tensor(kept), source.y[mine])
        made[part] = torch.from_numpy(np.load(path)[mine.numpy()]), label
    clean = made["train"][0][:, 0].float()
    mean, std = clean.mean((0, 1)), clean.flatten(0, 1).std(0)
    info = dataclasses.replace(
        info, frame_scale=(tuple(mean.tolist()), tuple(std.tolist())), classes=words, d_output=len(words)
    )
    parts = {part: Arrays(info.scale_frames(made[part][0][:, 0].float()), made[part][1]) for part in ("val", "test")}
    train = Changed(Arrays(*made["train"]), change_frames(info), 0)
    return DataSet("speech", train, parts["val"], parts["test"], info)


def make_model(info: DataInfo, causal: bool, d_model: int = 96) -> SequenceModel:
    torch.manual_seed(0)
    return SequenceModel(ModelConfig(
        d_input=info.width, d_output=info.d_output, d_model=d_model, n_layers=4, d_state=16, family="db6",
        measure="translated", bidirectional=not causal, norm="batch", dropout=0.1, head="pool",
    ))  # fmt: skip


def train(model: SequenceModel, data: DataSet, config: TrainConfig, out: Path) -> None:
    """Train in a folder, from its last checkpoint where there is one."""
    out.mkdir(parents=True, exist_ok=True)
    start = checkpoint.load(out / "last.ckpt") if (out / "last.ckpt").exists() else None
    if start is not None:
        model.load_state_dict(start["model"])
    (out / "info.json").write_text(json.dumps({"info": data.info.to_dict(), "model": model.config.to_dict()}))
    trainer = make_trainer(model, data, config, folder=out, start=start)
    trainer.fit(Progress("", trainer.plan.total_steps, trainer.step, show=True))


class Resampled(Source):
    """Records of 100 Hz at another sampling rate."""

    def __init__(self, source: Source, rate: int) -> None:
        self.source, self.factors = source, Fraction(rate, 100).as_integer_ratio()

    def __len__(self) -> int:
        return len(self.source)

    def take(self, index: Tensor) -> Batch:
        batch = self.source.take(index)
        x = resample_poly(batch.x.numpy(), *self.factors, axis=1)
        return batch._replace(x=torch.from_numpy(x.astype(np.float32)))


def only(source: Arrays, leads: tuple[str, ...]) -> Changed:
    """Records whose other leads are zero."""
    mask = torch.tensor([float(name in leads) for name in LEADS])
    return Changed(source, lambda x, _: x * mask, 0)


def score(
    model: Any, source: Source, info: DataInfo, rate: float = 1.0, interval: bool = True
) -> tuple[str, np.ndarray]:
    """The score in words, with its interval where cases are enough for one, and the rows it comes from."""
    adapted = model if rate == 1 else lambda x, **options: model(x, **{**options, "rate": rate})
    if rate != 1:
        adapted.eval = model.eval
    scores, table = evaluate_split(adapted, source, info, 64)
    name = metrics.SELECTION[info.kind].name
    span = metrics.bootstrap(info.kind, table).get(name) if interval else None
    return f"{scores[name]:.4f}" + (f" ({span[0]:.4f} to {span[1]:.4f})" if span else ""), table


def ecg_scores(name: str, model: SequenceModel, data: DataSet, root: str) -> dict[str, str]:
    """Test scores with all leads and few, at another rate and gain."""
    found = {}
    info = data.info
    whole: Any = PtbxlOptions(root=root, labels="all").load(0).test
    assert isinstance(data.test, Arrays)
    found["macro AUROC, 71 labels"], table = score(model, data.test, info)
    if name == "ecg-12lead":
        for leads in (("II", "V5"),):
            found[f"with {' and '.join(leads)} alone"], _ = score(model, only(whole, leads), info)
    else:
        for lead in ("I", "II", "V1", "V5"):
            found[f"lead {lead}"], _ = score(model, one_lead(whole, LEADS.index(lead)), info)
    some: Any = Arrays(data.test.x[::8], data.test.y[::8], affine=data.test.affine)
    found["every eighth record"], _ = score(model, some, info)
    found["the same at 360 Hz"], _ = score(model, Resampled(some, 360), info, 100 / 360)
    areas = dict(zip(info.classes, metrics.auroc(*np.split(table, 2, axis=1)), strict=True))
    for label in ("NORM", "AFIB", "STACH", "SBRAD", "PVC", "CLBBB", "CRBBB", "LVH", "AMI", "IMI"):
        found[f"AUROC of {label}"] = f"{areas[label]:.3f}"
    return found


def word_scores(model: SequenceModel, data: DataSet, root: str) -> dict[str, str]:
    """Test scores of clips as they are, in noise, and at another level, as in a stream."""
    found = {}
    found["accuracy, 30 words"], _ = score(model, data.test, data.info)
    louder = data.info.frame_scale
    assert louder is not None
    mean, std = (torch.tensor(row) for row in louder)
    for factor in (0.25, 4.0):

        def change(x: Tensor, _: torch.Generator, factor: float = factor) -> Tensor:
            power = (x * std + mean).exp() - FLOOR
            return ((power.clamp(min=0) * factor**2 + FLOOR).log() - mean) / std

        found[f"at {factor:g} times the level, as a stream may have"], _ = score(
            model, Changed(data.test, change, 0), data.info
        )
    source = SpeechOptions(root=root, words=30).load(0).test
    draw, noise, frames = torch.Generator().manual_seed(2), load_noise(root), []
    for rows in torch.arange(len(source)).split(256):
        frames.append(data.info.energy_bank()(level(damaged(source.take(rows).x, noise, draw))))
    noisy = Arrays(data.info.scale_frames(torch.cat(frames)), data.test.y)
    found["shifted, some in a room, with noise at 0 to 25 dB"], _ = score(model, noisy, data.info)
    return found


def pack(name: str, data: DataSet, given: argparse.Namespace) -> None:
    """Write the folder of a model: weights of best.ckpt, scores on the test split, card."""
    content = checkpoint.load(given.out / "best.ckpt")
    kept = json.loads((given.out / "info.json").read_text())
    info = dataclasses.replace(DataInfo.from_dict(kept["info"]), some_channels=name != "keywords")
    model = SequenceModel(ModelConfig.from_dict(kept["model"]))
    model.load_state_dict(content["model"])
    model.eval()
    data = dataclasses.replace(data, info=info)
    texts = json.loads(Path(__file__).with_suffix(".json").read_text())[name]
    extra = {
        "about": texts.pop("about"),
        "task": "speech" if name == "keywords" else "ptbxl-all",
        "info": info.to_dict(),
    }
    if name == "keywords":
        scores = word_scores(model, data, given.data_root)
    else:
        scores = ecg_scores(name, model, data, given.data_root)
        chosen = best_thresholds(evaluate_split(model, data.val, info, 64)[1])
        rare = (data.val.take(torch.arange(len(data.val))).y.sum(0) < 20).numpy()  # too few to choose a low one
        chosen = np.where(rare, np.maximum(chosen, 0.5), chosen)
        extra["thresholds"] = dict(zip(info.classes, chosen.round(4).tolist(), strict=True))
    for what, value in scores.items():
        print(f"{what:<50}{value}", flush=True)
    recipe = texts.pop("recipe").format(steps=content["step"])
    save_model(model, given.zoo / name, Card(metrics=scores, recipe=recipe, **texts), extra, half=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["train", "pack"])
    parser.add_argument("name", choices=[*STEPS])
    parser.add_argument("--data-root", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--from", dest="source", default="", help="a model to start from")
    parser.add_argument("--frames", type=Path, help="keywords: where the frames are kept, if not in --out")
    parser.add_argument("--zoo", type=Path, default=ZOO, help="where packed models go")
    parser.add_argument("--words", type=int, default=30, help="keywords: the first n of the 30 words")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    speech = given.name == "keywords"
    data = (
        load_words(given.data_root, given.out, word_names(given.data_root)[: given.words])
        if speech
        else load_ecg(given.name, given.data_root)
    )
    steps = given.steps or STEPS[given.name]
    config = TrainConfig(
        lr=LR[given.name], weight_decay=0.05, batch_size=64, steps=steps, schedule="one-cycle", warmup=0.3,
        precision="bf16", grad_clip=1.0, val_per_epoch=1.0 if speech else 0.5, device="cpu",
    )  # fmt: skip
    if given.what == "pack":
        return pack(given.name, data, given)
    model = make_model(data.info, causal=speech)
    if given.source:
        model, note = start_from(given.source, model.config, data.info)
        print(note)
    train(model, data, config, given.out)


if __name__ == "__main__":
    main()

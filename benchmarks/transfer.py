"""What pretraining is worth with few labels: PTB-XL after CPC without labels, and words that were held out.

    wavessm pretrain ptbxl-super-diag DATA --family db6 --measure translated --d-model 64 --n-layers 4 --d-state 16 \\
        --crop 2.5 --batch-size 64 --epochs 8 --lr 3e-3 --schedule one-cycle --warmup 0.3 --grad-clip 1 --patch 10 \\
        --ahead 6 --precision bf16 --val-per-epoch 0.25 --out runs/cpc
    python benchmarks/transfer.py ecg runs/cpc --data-root DATA --shares 0.01 0.1 --out results/pretrained/ecg.csv
    python benchmarks/zoo.py train keywords --words 20 --data-root DATA --out runs/words20
    python benchmarks/transfer.py words runs/words20 --data-root DATA --shots 1 5 20 --out results/pretrained/words.csv
    python benchmarks/transfer.py lead ecg-1lead --data-root DATA --out results/pretrained/lead.csv

Nothing is chosen on the labels that are left out: all models train for a fixed number of steps and are scored once.
The probe is a ridge on pooled outputs of the frozen model. Seconds are CPU seconds of one fit, on one thread.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import wavessm as ws
from wavessm.data.crops import Crops
from wavessm.data.datasets.ptbxl import LEADS, PtbxlOptions
from wavessm.data.info import DataInfo
from wavessm.data.source import Arrays, Source
from wavessm.nn.config import ModelConfig
from wavessm.nn.model import SequenceModel
from wavessm.training import checkpoint, metrics
from wavessm.training.config import TrainConfig
from wavessm.training.evaluate import evaluate_split
from wavessm.training.finetune import transfer
from wavessm.training.loop import Objective, Trainer
from wavessm.training.optimiser import set_trainable
from wavessm.training.pretrain import linear_probe
from wavessm.training.record import provenance, write_csv
from wavessm.training.run import open_model
from zoo import load_words, one_lead, only, word_names

Row = dict[str, Any]
Start = tuple[SequenceModel, DataInfo] | None
"""A pretrained model and what it was trained on; None is a model from scratch."""


def fit(start: Start, config: ModelConfig, info: DataInfo, train: Source, options: TrainConfig) -> SequenceModel:
    """Train for a fixed number of steps, from a pretrained model or from scratch."""
    torch.manual_seed(options.seed)
    model = SequenceModel(config) if start is None else transfer(start[0], start[1], config, info, keep_head=False)[0]
    set_trainable(model, options.train_blocks)

    def loss(network: Any, batch: Any) -> torch.Tensor:
        return metrics.loss(info.kind, network(batch.x), batch.y)

    Trainer(model, Objective(train, loss), options).fit()
    return model


def timed(work: Callable[[], float]) -> tuple[float, float]:
    began = time.process_time()
    return work(), time.process_time() - began


def signals(source: Arrays, rows: torch.Tensor | None = None) -> np.ndarray:
    """Cases as the estimators take them, (cases, channels, time)."""
    return source.take(torch.arange(len(source)) if rows is None else rows).x.transpose(1, 2).numpy()


def ecg_rows(given: argparse.Namespace) -> Iterator[Row]:
    """Five superclasses of PTB-XL with a share of the training labels."""
    run = open_model(given.model)
    data = PtbxlOptions(root=given.data_root, labels="super-diag").load(0)
    assert isinstance(data.train, Arrays)
    assert isinstance(data.test, Arrays)
    info, start = data.info, (run.load_model(), run.info)
    config = run.model.replace(d_output=info.d_output, dropout=0.1)
    truth = data.test.y.numpy()

    def auroc(model: Any) -> float:
        return evaluate_split(model, data.test, info, 128)[0]["auroc"]

    for share in given.shares:
        for seed in range(given.seeds if share < 0.05 else given.more_seeds):
            count = round(share * len(data.train))
            rows = torch.randperm(len(data.train), generator=torch.Generator().manual_seed(seed))[:count]
            few = Arrays(data.train.x[rows], data.train.y[rows], affine=data.train.affine)
            crops, steps = Crops(few, 250, seed), 400 if share < 0.05 else 1000 if share < 0.5 else 3000
            options = TrainConfig(lr=3e-3, weight_decay=0.05, batch_size=32, steps=steps, schedule="one-cycle",
                                  warmup=0.3, grad_clip=1.0, seed=seed, precision="bf16", device="cpu")  # fmt: skip
            tuned = dataclasses.replace(options, pretrained="cpc", layer_decay=0.8)

            def features(few: Arrays = few, seed: int = seed) -> float:
                model = ws.WaveSSMClassifier(random_state=seed).fit(signals(few), few.y.numpy().astype(int))
                parts = [model.decision_function(signals(data.test, part))
                         for part in torch.arange(len(truth)).split(256)]  # fmt: skip
                return float(np.nanmean(metrics.auroc(np.concatenate(parts), truth)))

            works: dict[str, Callable[[], float]] = {
                "fine-tuned": lambda o=tuned, c=crops: auroc(fit(start, config, info, c, o)),
                "linear probe": lambda f=few: linear_probe(
                    start[0], dataclasses.replace(data, train=f), data.test, 128
                )["probe_auroc"],
                "from scratch": lambda o=options, c=crops: auroc(fit(None, config, info, c, o)),
                "state features": features,
            }
            for method in [name for name in works if name in (given.methods or works)]:
                score, seconds = timed(works[method])
                yield {"share": share, "records": count, "seed": seed, "method": method, "macro_auroc": score,
                       "seconds": seconds}  # fmt: skip


def word_rows(given: argparse.Namespace) -> Iterator[Row]:
    """The last ten of the 30 words, which the model has not been trained on, from 1, 5 or 20 clips of each."""
    kept = json.loads((given.model / "info.json").read_text())
    old, config = DataInfo.from_dict(kept["info"]), ModelConfig.from_dict(kept["model"])
    source = SequenceModel(config)
    source.load_state_dict(checkpoint.load(given.model / "best.ckpt")["model"])
    words = tuple(word for word in word_names(given.data_root) if word not in old.classes)
    data = load_words(given.data_root, given.frames or given.model, words)
    info = dataclasses.replace(data.info, frame_scale=old.frame_scale)  # what belongs to the words is not known before
    stored: Any = data.train
    clips, labels = stored.source.x[:, 0], stored.source.y
    raw = data.info.frame_scale
    assert raw is not None
    assert isinstance(data.test, Arrays)
    test = Arrays(info.scale_frames(data.test.x * torch.tensor(raw[1]) + torch.tensor(raw[0])), data.test.y)
    config = config.replace(d_output=len(words))

    def accuracy(model: Any) -> float:
        return evaluate_split(model, test, info, 256)[0]["accuracy"]

    for shots in given.shots:
        for seed in range(given.seeds):
            order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
            rows = torch.cat([order[labels[order] == k][:shots] for k in range(len(words))])
            few = Arrays(info.scale_frames(clips[rows].float()), labels[rows])
            options = TrainConfig(lr=3e-3, weight_decay=0.05, batch_size=min(32, len(rows)), steps=200,
                                  schedule="one-cycle", warmup=0.3, grad_clip=1.0, seed=seed, device="cpu")  # fmt: skip
            tuned = dataclasses.replace(options, pretrained="words", layer_decay=0.8)
            head = dataclasses.replace(tuned, train_blocks=0, lr=1e-2)

            def features(few: Arrays = few, seed: int = seed) -> float:
                model = ws.WaveSSMClassifier(random_state=seed).fit(signals(few), few.y.numpy())
                return float((model.predict(signals(test)) == test.y.numpy()).mean())

            works: dict[str, Callable[[], float]] = {
                "fine-tuned": lambda o=tuned, f=few: accuracy(fit((source, old), config, info, f, o)),
                "head alone": lambda o=head, f=few: accuracy(fit((source, old), config, info, f, o)),
                "from scratch": lambda o=options, f=few: accuracy(fit(None, config, info, f, o)),
                "state features of log energies": features,
            }
            for method in [name for name in works if name in (given.methods or works)]:
                score, seconds = timed(works[method])
                yield {"shots": shots, "seed": seed, "method": method, "accuracy": score, "seconds": seconds}


def lead_rows(given: argparse.Namespace) -> Iterator[Row]:
    """One lead: the single-lead model, the 12-lead model with that lead alone, and state features of that lead."""
    data = PtbxlOptions(root=given.data_root, labels="all").load(0)
    assert isinstance(data.train, Arrays)
    assert isinstance(data.test, Arrays)
    truth = data.test.y.numpy()
    one, twelve = (open_model(name) for name in (str(given.model), "ecg-12lead"))
    for lead in given.leads:
        at = LEADS.index(lead)

        def features(at: int = at) -> float:
            rows = torch.arange(0, len(data.train), max(1, len(data.train) // given.cases))
            x = [signals(data.train, part)[:, at : at + 1] for part in rows.split(512)]
            model = ws.WaveSSMClassifier(random_state=0)
            model.fit(np.concatenate(x), data.train.y[rows].numpy().astype(int))
            parts = [model.decision_function(signals(data.test, part)[:, at : at + 1])
                     for part in torch.arange(len(truth)).split(256)]  # fmt: skip
            return float(np.nanmean(metrics.auroc(np.concatenate(parts), truth)))

        def score(run: Any, source: Source) -> float:
            return evaluate_split(run.load_model(), source, run.info, 64)[0]["auroc"]

        works: dict[str, Callable[[], float]] = {
            "ecg-1lead": lambda at=at: score(one, one_lead(data.test, at)),
            "ecg-12lead, others zero": lambda lead=lead: score(twelve, only(data.test, (lead,))),
            f"state features of {given.cases} records": features,
        }
        for method in [name for name in works if name in (given.methods or works)]:
            found, seconds = timed(works[method])
            yield {"lead": lead, "method": method, "macro_auroc": found, "seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["ecg", "words", "lead"])
    parser.add_argument("model", type=Path)
    parser.add_argument("--data-root", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--shares", type=float, nargs="+", default=[0.01, 0.1])
    parser.add_argument("--shots", type=int, nargs="+", default=[1, 5, 20])
    parser.add_argument("--leads", nargs="+", default=["I", "II", "V1", "V5"])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--more-seeds", type=int, default=2, help="ecg: seeds at shares of 5 % and more")
    parser.add_argument("--methods", nargs="+", help="some of them; default all")
    parser.add_argument("--cases", type=int, default=4000, help="lead: records that features are fitted to")
    parser.add_argument("--frames", type=Path, help="words: folder with the frames of zoo.py, if not that of the model")
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[Row] = []
    for row in {"ecg": ecg_rows, "words": word_rows, "lead": lead_rows}[given.what](given):
        rows.append(row)
        print(*(f"{value:.4f}" if isinstance(value, float) else value for value in row.values()), flush=True)
        write_csv(given.out, rows)
    given.out.with_suffix(".md").write_text(f"Made by {provenance('python benchmarks/transfer.py')}.\n")


if __name__ == "__main__":
    main()

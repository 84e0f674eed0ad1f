"""`wavessm inspect RUN --out DIR`: what a trained model has learned, as figures with their numbers."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from wavessm.cli.bar import Bar
from wavessm.cli.parse import parse, run_first
from wavessm.errors import DataError, OptionError, WaveSSMError, check_int
from wavessm.inspection import InspectedModel, Saliency, attribute, load, write_figures


@dataclasses.dataclass(frozen=True)
class Options:
    run: Path
    """Run folder of `wavessm train`, or model folder of `wavessm export --format pretrained`."""
    out: Path | None = None
    """Folder for the figures; `inspect` inside that folder if not given."""
    signals: Path | None = None
    """Signals to explain, a .npy file (cases, length, channels) in the data's units; else test cases of the run."""
    cases: int = 4
    """How many test cases to explain, of different classes as far as they go; 0 explains none."""
    method: Literal["integrated", "gradient", "occlusion"] = "integrated"
    """How the score is shared among samples."""
    hz: float | None = None
    """Samples a second, for time in seconds; known for most runs."""
    length: int | None = None
    """Samples to look back; a signal's length if not given."""
    checkpoint: Literal["best", "last"] = "best"
    """Which model of a run."""


ABOUT = "Learned time scales, modes, kernels, what each coordinate holds of the past, and for a classifier saliency."


def main(arguments: list[str]) -> int:
    given = parse(Options, None, run_first(arguments, "inspect"), "wavessm inspect RUN", ABOUT)
    check_int(given.cases, "cases", least=0)
    out = given.out or given.run / "inspect"
    if out.exists() and not out.is_dir():
        raise DataError(f"{out}: is a file; give the name of a folder.")
    subject = load(given.run, given.hz, given.length, given.checkpoint)
    shares, signals = explained(subject, given)
    for name, caption in write_figures(subject, out, shares, signals).items():
        print(f"{out / name}.png: {caption}")
    return 0


def explained(subject: InspectedModel, given: Options) -> tuple[Saliency | None, np.ndarray | None]:
    """Shares of some signals and the signals as the model hears them; None where there is nothing to explain."""
    if given.signals is None and (not given.cases or not subject.classes):
        return None, None
    x: Tensor
    lengths: Tensor | None
    if given.signals is not None:
        if not subject.classes:
            raise OptionError("--signals explains a classifier; this model has no classes.")
        from wavessm.data.files import read_npy

        values = read_npy(given.signals)
        if values.ndim != 3:
            raise DataError(f"{given.signals}: has shape {values.shape}, expected (cases, length, channels).")
        x, lengths = subject.standardise(values.transpose(0, 2, 1))
    else:
        try:
            x, lengths = cases_of_run(given.run, given.cases)
        except WaveSSMError as reason:
            print(f"saliency left out, give --signals FILE: {reason}")
            return None, None
    return case_by_case(subject, x, lengths, given.method), x.numpy()


def case_by_case(subject: InspectedModel, x: Tensor, lengths: Tensor | None, method: str) -> Saliency:
    """The shares of all cases, with a bar: long signals take a while."""
    bar, parts = Bar("explaining", "{} cases".format), []
    bar(0, len(x))
    for at in range(len(x)):
        end = None if lengths is None else lengths[at : at + 1]
        parts.append(attribute(subject.model, x[at : at + 1], end, None, method))
        bar(at + 1, len(x))
    return Saliency(*(torch.cat(values) for values in zip(*parts, strict=True)))


def cases_of_run(folder: Path, count: int) -> tuple[Tensor, Tensor | None]:
    """Cases of a run's test split, of different classes first."""
    from wavessm.training.run import Run

    run = Run.read(folder)
    if run.info.symbols:
        raise OptionError("tokens cannot be made smaller bit by bit.")
    source = run.options.load(run.config.seed).test
    batch = source.take(torch.arange(min(len(source), 50 * count)))
    label = batch.y if batch.y.dim() == 1 else batch.y.argmax(1)
    first = [int((label == value).nonzero()[0, 0]) for value in label.unique()]
    order = torch.tensor([*sorted(first), *sorted(set(range(len(label))) - set(first))][:count])
    lengths = None if batch.lengths is None else batch.lengths[order]
    return batch.x[order], lengths

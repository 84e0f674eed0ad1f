"""`wavessm inspect RUN --out DIR`: what a trained model has learned, as figures with their numbers."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from tyro.conf import Positional

from wavessm.cli.parse import parse
from wavessm.errors import DataError, OptionError, WaveSSMError, check_int

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from wavessm.inspection import InspectedModel, Saliency

TEST_CASES = 100
"""Test cases whose outputs a run of state features is explained by."""


@dataclasses.dataclass(frozen=True)
class InspectOptions:
    """Draw learned time scales and kernels, and for a classifier saliency."""

    run: Positional[Path]
    """Run folder of `wavessm train`, or model folder of `wavessm export --format pretrained`."""
    out: Path | None = None
    """Folder for the figures; `inspect` inside that folder if not given."""
    signals: Path | None = None
    """Signals to explain, a .npy file (cases, length, channels) in the data's units; else test cases of the run."""
    cases: int = 4
    """Number of test cases to explain, of different classes first; 0 explains none."""
    sampling_rate: float | None = None
    """Samples per second, for time in seconds; known for most runs."""
    length: int | None = None
    """Samples of the past to show; default the length of a signal."""


def main(arguments: list[str]) -> int:
    """Run `wavessm inspect`; returns the exit status."""
    given = parse(InspectOptions, arguments, "wavessm inspect")
    from wavessm.inspection import draw_all, draw_features, load, write_drawings
    from wavessm.training import Run

    check_int(given.cases, "cases", minimum=0)
    out = given.out or given.run / "inspect"
    if out.exists() and not out.is_dir():
        raise DataError(f"{out}: is a file; give the name of a folder.")
    run = Run.read(given.run) if (given.run / "run.json").is_file() else None
    if run is not None and run.method == "features":
        if given.length is not None:
            raise OptionError("--length goes with gradient training; leave it out for state features.")
        if given.signals is None:
            x, lengths = cases_of_run(given.run, TEST_CASES)
        else:
            x, lengths = run.info.standardise(_read_cases(given.signals, run.info.d_input)), None
        drawings = draw_features(run, x, lengths, min(given.cases, len(x)), given.sampling_rate)
    else:
        subject = load(given.run, given.sampling_rate, given.length)
        drawings = draw_all(subject, *_explained(subject, given))
    for name, caption in write_drawings(given.run.name, drawings, out).items():
        print(f"{out / name}.png: {caption}")
    return 0


def _explained(subject: InspectedModel, given: InspectOptions) -> tuple[Saliency | None, np.ndarray | None]:
    """Saliency of some signals and the signals as model input; None where there is nothing to explain."""
    if given.signals is None and (not given.cases or not subject.classes):
        return None, None
    if not subject.classes:
        raise OptionError("--signals explains a classifier; this model has no classes.")
    import torch

    from wavessm.inspection import Saliency, saliency
    from wavessm.training import Progress

    lengths: Tensor | None
    if given.signals is not None:
        raw = _read_cases(given.signals, subject.model.config.d_input)
        x, lengths = subject.standardise(raw.numpy().transpose(0, 2, 1))
    else:
        try:
            x, lengths = cases_of_run(given.run, given.cases)
        except WaveSSMError as reason:
            print(f"saliency left out, give --signals FILE: {reason}")
            return None, None
    parts, ends = [], [None] * len(x) if lengths is None else lengths.split(1)
    with Progress("explaining", total=len(x)) as progress:  # long signals take a while
        for case, end in zip(x.split(1), ends, strict=True):
            parts.append(saliency(subject.model, case, end))
            progress.update(len(parts), f"{len(parts)} cases")
    return Saliency(*(torch.cat(values) for values in zip(*parts, strict=True))), x.numpy()


def _read_cases(path: Path, channels: int) -> Tensor:
    """Raw signals (cases, length, channels) of a file."""
    import torch

    from wavessm.data import read_npy
    from wavessm.data.files import to_float32

    values = read_npy(path)
    if values.ndim != 3 or values.shape[2] != channels or not values.size:
        raise DataError(f"{path}: has shape {values.shape}, expected (cases, length, channels = {channels}).")
    return torch.from_numpy(to_float32(values, path))


def cases_of_run(folder: Path, count: int) -> tuple[Tensor, Tensor | None]:
    """Cases of a run's test split as model input, of different classes first, with their lengths."""
    import torch

    from wavessm.training import Run

    run = Run.read(folder)
    if run.info.symbols:
        raise OptionError("tokens cannot be made smaller bit by bit.")
    source = run.options.load(run.config.seed).test
    batch = source.take(torch.arange(min(len(source), 50 * count)))
    label = batch.y if batch.y.dim() == 1 else batch.y.argmax(1)
    repeated = [bool((label[:at] == value).any()) for at, value in enumerate(label)]
    order = torch.tensor(sorted(range(len(label)), key=repeated.__getitem__)[:count])
    return batch.x[order], None if batch.lengths is None else batch.lengths[order]

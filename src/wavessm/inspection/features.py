"""What a model of state features has learned: a linear head over named features explains itself, exactly.

feature_shares(model, x, output)           how much of an output each feature decides
sample_contributions(model, x, output)     how much each sample of a signal adds to an output
draw_features(run, x, lengths)             both, drawn, with the numbers beside
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from wavessm.features import FeatureModel, StateBank
from wavessm.inspection.drawing import Drawing, canvas
from wavessm.training.predict import output_names
from wavessm.training.run import Run

GROUPS = ("family", "window", "channel", "pool", "stretch")
MAX_OUTPUTS = 12
"""Outputs drawn; the table has all."""


def feature_groups(bank: StateBank, channels: tuple[str, ...] = ()) -> dict[str, np.ndarray]:
    """Where each feature comes from: `GROUPS`, each (features,) of text, in the order of `bank.names()`."""
    family, window, channel, _, pool, stretch = np.array(bank.origins(channels)).T
    return dict(zip(GROUPS, (family, window, channel, pool, stretch), strict=True))


def feature_shares(model: FeatureModel, x: Tensor, output: int, lengths: Tensor | None = None) -> np.ndarray:
    """Share of each feature in the variance of an output over cases x (cases, length, channels). (features,)

    An output is a sum of contributions, so its variance is the sum of their covariances with it: the shares add up to 1
    (to 0 where the output does not vary). A share below 0 belongs to a feature that others correct.
    """
    added = model.contributions(x, output, lengths).double()
    added = added - added.mean(0)
    total = added.sum(1)
    return ((added.T @ total) / max(float(total.square().sum()), 1e-30)).cpu().numpy()


@torch.no_grad()
def sample_contributions(model: FeatureModel, x: Tensor, output: int) -> tuple[Tensor, float]:
    """What each sample of a signal x (length, channels) adds to a logit or number, and the constant. (length,)

    A feature pools terms over time, one for each position at which its readout is read; its contribution is divided
    among the positions in proportion to their terms, and a position is the newest sample of its window. All samples and
    the constant add up to the output.
    """
    features, ridge = model.features, model.ridge
    bank = features.bank
    values = features.prepared(x[None], torch.tensor([len(x)]))[0]
    added = bank.features(values)[0] / ridge.scale * ridge.coef[:, output]
    found = torch.zeros(len(x), dtype=torch.float64)
    for columns, terms, stride in _terms(bank, values):  # (features of a block), (features, positions)
        terms = terms.double()
        total = terms.sum(1, keepdim=True)
        parts = torch.where(total.abs() > 1e-12, terms / total, 1 / terms.shape[1])
        found[stride - 1 :: stride][: terms.shape[1]] += (added[columns].double() @ parts).cpu()
    return found, float(model(x[None])[0, output]) - float(found.sum())


def _terms(bank: StateBank, x: Tensor) -> Iterator[tuple[slice, Tensor, int]]:
    """Columns of features, what they pool at each position (features, positions), and samples from one to the next."""
    u, blocks, done = bank.sources(x), bank.blocks, 0
    for group in bank.groups:
        z, _ = group.columns(u)
        y = torch.bmm(group.weight, z.flatten(2)).unflatten(1, (group.positions, -1))  # (cells, P, R, K)
        y = y.permute(0, 2, 3, 1).flatten(2)[..., : x.shape[1] // group.stride]  # (cells, R, positions)
        width, stride = group.bias.numel(), group.stride
        if not y.shape[2]:  # too short for a position: what such features are goes to all samples alike
            y, stride = y.new_zeros(*y.shape[:2], x.shape[1]), 1
        top = y.amax(1, keepdim=True)
        wins, share = (y == top).float(), (y > group.bias[..., None]).float()
        terms = {"share": share, "wins": wins, "margin": wins * top.clamp_min(0), "energy": y.square()}
        if bank.config.stretches:
            chunk = torch.arange(y.shape[2], device=y.device) // group.positions
            edges = group.stretch[..., None] * (int(chunk[-1]) + 1)
            end = torch.maximum(edges[1].ceil(), edges[0].floor() + 1)
            terms["stretch"] = share * (chunk >= edges[0].floor()) * (chunk < end)
        for name in blocks.keys() - {"values", "profile"}:
            start = blocks[name].start + done
            yield slice(start, start + width), terms[name].flatten(0, 1), stride
        done += width
    if bank.config.values:
        time, v = torch.arange(length := x.shape[1], device=x.device), bank.values.samples(x)[0].T  # (sources, length)
        above, leaf = (v[:, None] > bank.values.levels[..., None]).float().flatten(0, 1), time * 8 // length
        for k, (a, b) in enumerate(bank.values.parts):
            start = blocks["values"].start + k * len(above)
            yield slice(start, start + len(above)), above * ((leaf >= a) & (leaf < b)), 1
    if "profile" in blocks:
        curves, bins = torch.cat([v, v[bank.channels :].abs()]), bank.values.bins
        for part in range(bins):
            inside = (time >= part * length // bins) & (time < -(-(part + 1) * length // bins))
            start = blocks["profile"].start + part * len(curves)
            yield slice(start, start + len(curves)), curves * inside, 1


def draw_features(
    run: Run, x: Tensor, lengths: Tensor | None = None, explained: int = 4, sampling_rate: float | None = None
) -> dict[str, Drawing]:
    """The figures of a run of method "features".

    Args:
        run: the run.
        x: (cases, length, channels) as the model reads them; the shares are those of their outputs.
        lengths: (cases,), or None.
        explained: cases whose samples are shown, the first ones.
        sampling_rate: hertz, where the run does not know it.
    """
    model, names = run.load_model(), output_names(run.info)
    drawings = {"contributions": _draw_shares(run, model, names, x, lengths)}
    if not explained:
        return drawings
    rate = sampling_rate or run.info.step_rate
    return drawings | {"samples": _draw_samples(model, names, x[:explained], lengths, rate)}


def _draw_shares(run: Run, model: FeatureModel, names: list[str], x: Tensor, lengths: Tensor | None) -> Drawing:
    groups, rows = feature_groups(model.features.bank, run.info.input_names), []
    tables: dict[str, dict[str, list[float]]] = {kind: {} for kind in GROUPS}
    for output, name in enumerate(names):
        shares = feature_shares(model, x, output, lengths)
        for kind, labels in groups.items():
            for label in dict.fromkeys(labels):
                share = float(shares[labels == label].sum())
                tables[kind].setdefault(label, []).append(share)
                rows.append({"output": name, "group": kind, "name": label, "share": share})
    with canvas() as plt:
        tall = max(len(table) for table in tables.values())
        figure, axes = plt.subplots(1, len(GROUPS), figsize=(14, 1.5 + 0.22 * min(tall, 30)))
        for axis, (kind, table) in zip(axes, tables.items(), strict=True):
            shown = [label for label in table if any(table[label])]
            shown = shown if kind == "window" else sorted(shown, key=lambda label: -max(table[label]))[:30]
            for output, name in enumerate(names[:MAX_OUTPUTS]):
                height = 0.8 / min(len(names), MAX_OUTPUTS)
                spots = np.arange(len(shown)) + height * output
                axis.barh(spots, [table[label][output] for label in shown], height, label=name)
            axis.set_yticks(np.arange(len(shown)) + 0.4, shown, fontsize=7)
            axis.invert_yaxis()
            axis.set(title=kind, xlabel="share")
        axes[0].legend(fontsize=7)
    caption = (
        f"Where the outputs come from, over {len(x)} cases: shares in the variance of each output by family, window in "
        "samples, channel, pool and stretch of the signal. They add up to 1 in each panel."
    )
    return Drawing(figure, rows, caption)


def _draw_samples(
    model: FeatureModel, names: list[str], x: Tensor, lengths: Tensor | None, rate: float | None
) -> Drawing:
    rows: list[dict[str, Any]] = []
    with canvas() as plt:
        figure, axes = plt.subplots(len(x), 1, figsize=(9, 2 * len(x)), squeeze=False)
        for case, axis in enumerate(axes[:, 0]):
            signal = x[case] if lengths is None else x[case, : int(lengths[case])]
            output = int(model(signal[None])[0].argmax())
            added, constant = sample_contributions(model, signal, output)
            time = np.arange(len(signal)) / (rate or 1)
            axis.plot(time, signal.numpy(), color="0.6", linewidth=0.8)
            axis.set(ylabel="signal (scaled)", title=f"case {case}: {names[output]}, constant {constant:.3g}")
            other = axis.twinx()
            other.bar(time, added.numpy(), width=time[-1] / max(len(time) - 1, 1), color="#e07b00", alpha=0.6)
            other.set(ylabel="contribution")
            rows += [{"case": case, "output": names[output], "sample": at, "time": float(time[at]),
                      "contribution": float(value)} for at, value in enumerate(added)]  # fmt: skip
        axes[-1, 0].set(xlabel="samples" if rate is None else "seconds")
    caption = (
        "What each sample adds to the largest output of a case (bars), and the signal. Samples and constant add up to "
        "the logit; what a window contributes is shown at its newest sample."
    )
    return Drawing(figure, rows, caption)

"""What a trained model has learned, as numbers and as figures.

    inspected = load(model)                    a SequenceModel, a fitted estimator, a run folder or a model folder
    time_scales(layer, length)                 steps, decays and reach of every channel, in samples
    mode_times(layer)                          decay and period of every mode
    jacobian(layer, length, channel)           which part of the past each coordinate of the state holds
    saliency(inspected, signals)               which samples contribute to a class
    draw_all(inspected), write_figures(inspected, folder)   all of it drawn, with the numbers beside

`wavessm inspect RUN --out DIR` does the last, for a run of state features what `features.py` has. Read `model.py`,
`layers.py`, `saliency.py`, `figures.py`, `features.py`.
"""

from wavessm.inspection.features import draw_features, feature_groups, feature_shares, sample_contributions
from wavessm.inspection.figures import draw_all, write_drawings, write_figures
from wavessm.inspection.layers import (
    ModeTimes,
    TimeScales,
    jacobian,
    layers_of,
    localisation,
    memory,
    mode_times,
    time_scales,
)
from wavessm.inspection.model import InspectedModel, load
from wavessm.inspection.saliency import Saliency, attribute, saliency

__all__ = [
    "InspectedModel", "ModeTimes", "Saliency", "TimeScales", "attribute", "draw_all", "draw_features", "feature_groups",
    "feature_shares", "jacobian", "layers_of", "load", "localisation", "memory", "mode_times", "saliency",
    "sample_contributions", "time_scales", "write_drawings", "write_figures",
]  # fmt: skip

"""What a trained model has learned, as numbers and as figures.

    inspected = load(model)                              a SequenceModel, a fitted classifier, a run or model folder
    time_scales(layer, length)                           steps and reach of every channel, in samples
    saliency(model, *inspected.standardise(signals))     which samples contribute to a class
    draw_all(inspected), write_drawings(title, drawings, folder)   all of it drawn, with the numbers beside

`wavessm inspect RUN --out DIR` does the last, for a run of state features what `features.py` has. Read `model.py`,
`figures.py`, `features.py`.
"""

from wavessm.inspection.drawing import write_drawings
from wavessm.inspection.features import draw_features, feature_groups, feature_shares, sample_contributions
from wavessm.inspection.figures import TimeScales, draw_all, layers_of, time_scales
from wavessm.inspection.model import InspectedModel, Saliency, load, saliency

__all__ = [
    "InspectedModel", "Saliency", "TimeScales", "draw_all", "draw_features", "feature_groups", "feature_shares",
    "layers_of", "load", "saliency", "sample_contributions", "time_scales", "write_drawings",
]  # fmt: skip

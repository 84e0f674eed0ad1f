"""Stage 9o: what a trained model has learned, as numbers and as figures.

    subject = open_subject(model)              a SequenceModel, a fitted estimator, a run folder or a model folder
    time_scales(layer, length)                 steps, decays and reach of every channel, in samples
    mode_times(layer), kernels(layer, length)  decay and period of every mode; the kernels themselves
    jacobian(layer, length, channel)           which stretch of the past each coordinate of the state holds
    saliency(subject, signals)                 which samples speak for a class
    draw_all(subject), write_figures(subject, folder)   all of it drawn, with the numbers beside

`wavessm inspect RUN --out DIR` does the last. Read `subject.py`, `layers.py`, `past.py`, `saliency.py`, `figures.py`.
"""

from wavessm.inspection.figures import draw_all, write_figures
from wavessm.inspection.layers import ModeTimes, TimeScales, kernels, layers_of, mode_times, time_scales
from wavessm.inspection.load import InspectedModel, load_inspected
from wavessm.inspection.past import Stretches, jacobian, stretches
from wavessm.inspection.saliency import Saliency, attribute, saliency

__all__ = [
    "InspectedModel",
    "ModeTimes",
    "Saliency",
    "Stretches",
    "TimeScales",
    "attribute",
    "draw_all",
    "jacobian",
    "kernels",
    "layers_of",
    "load_inspected",
    "mode_times",
    "saliency",
    "stretches",
    "time_scales",
    "write_figures",
]

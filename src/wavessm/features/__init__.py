"""State features: fixed wavelet state spaces with random readouts, and a head in closed form; fitted in seconds."""

from wavessm.features.bank import Cell, FeatureConfig, StateBank
from wavessm.features.calibration import Calibration, calibrate
from wavessm.features.model import FeatureModel, FeatureStream, SignalFeatures
from wavessm.features.ridge import Ridge, fit_ridge

__all__ = [
    "Calibration",
    "Cell",
    "FeatureConfig",
    "FeatureModel",
    "FeatureStream",
    "Ridge",
    "SignalFeatures",
    "StateBank",
    "calibrate",
    "fit_ridge",
]

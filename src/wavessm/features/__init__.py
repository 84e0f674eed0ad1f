"""State features: fixed wavelet state spaces with random readouts, and a head in closed form; fitted in seconds."""

from wavessm.features.bank import FeatureConfig, StateBank, StateCell
from wavessm.features.calibration import Calibration, calibrate
from wavessm.features.model import FeatureModel, FeatureStream, SignalFeatures
from wavessm.features.ridge import Ridge, fit_ridge

__all__ = [
    "Calibration",
    "FeatureConfig",
    "FeatureModel",
    "FeatureStream",
    "Ridge",
    "SignalFeatures",
    "StateBank",
    "StateCell",
    "calibrate",
    "fit_ridge",
]

"""State features: fixed wavelet state spaces with random readouts, and a head in closed form; fitted in seconds."""

from wavessm.features.bank import FeatureConfig, StateBank, StateCell
from wavessm.features.calibration import Calibration, calibrate
from wavessm.features.model import FeatureModel, FeatureStream, FeatureSums, SignalFeatures
from wavessm.features.pools import POOLS
from wavessm.features.ridge import Blocks, Ridge, RidgeSums, fit_ridge

__all__ = [
    "POOLS",
    "Blocks",
    "Calibration",
    "FeatureConfig",
    "FeatureModel",
    "FeatureStream",
    "FeatureSums",
    "Ridge",
    "RidgeSums",
    "SignalFeatures",
    "StateBank",
    "StateCell",
    "calibrate",
    "fit_ridge",
]

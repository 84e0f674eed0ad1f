"""State features: fixed wavelet state spaces with random readouts, and a head in closed form; fitted in seconds."""

from wavessm.features.bank import FeatureConfig, StateBank
from wavessm.features.energies import EnergyBank
from wavessm.features.model import FeatureModel, FeatureSums, SignalFeatures
from wavessm.features.pools import POOLS
from wavessm.features.ridge import Ridge, RidgeSums, calibrate, fit_ridge

__all__ = [
    "POOLS",
    "EnergyBank",
    "FeatureConfig",
    "FeatureModel",
    "FeatureSums",
    "Ridge",
    "RidgeSums",
    "SignalFeatures",
    "StateBank",
    "calibrate",
    "fit_ridge",
]

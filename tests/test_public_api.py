"""The names that scripts outside rely on."""

import subprocess
import sys

import pytest

import wavessm as ws

PUBLIC = {
    "DPLR", "Dense", "Diagonal", "Frame", "OnlineMemory", "Operator", "PAPER_FAMILIES", "Quadrature", "Wavelet",
    "bilinear", "families", "generalised_bilinear", "make_frame", "make_operator", "register_family", "zoh",
    "ConditionError", "MissingExtraError", "NotFiniteError", "OptionError", "RankError", "ShapeError",
    "UnknownNameError", "WaveSSMError", "ResidualBlock", "SampledLayer", "WaveSSM", "param_groups", "sampled",
    "ModelConfig", "ModelState", "SequenceModel", "create_model", "preset_config", "presets",
    "LogEnergies", "StateFeatures", "WaveSSMClassifier", "WaveSSMForecaster", "WaveSSMRegressor",
    "TrainConfig", "train", "adapt", "predict", "pretrained",
}  # fmt: skip


def test_the_list_of_public_names():
    assert set(ws.__all__) == PUBLIC
    for name in PUBLIC:
        assert hasattr(ws, name)


def test_families_begin_with_the_papers_and_hold_every_wavelet():
    names = ws.families()
    assert names[:5] == ["morlet", "gauss", "mexhat", "dpss", "db6"]
    assert {"legendre", "fourier", "chebyshev", "db4", "sym8", "coif3"} <= set(names)
    assert {"cmor", "cgau1", "shan", "fbsp", "morl", "gaus2"} <= set(names)
    assert len(names) == len(set(names))


def test_import_is_lazy_and_sets_no_global():
    code = (
        "import sys, wavessm\n"
        "assert not {'torch', 'numpy', 'scipy', 'pandas'} & set(sys.modules)\n"
        "import torch; before = torch.get_num_threads(), torch.get_default_dtype()\n"
        "for name in set(wavessm.__all__) - set(wavessm._HOME['estimators'].split()): getattr(wavessm, name)\n"
        "assert before == (torch.get_num_threads(), torch.get_default_dtype())\n"
        "assert not {'matplotlib', 'lightning', 'sklearn', 'onnx', 'huggingface_hub', 'tyro'} & set(sys.modules)\n"
        "assert wavessm.frames.Frame is wavessm.Frame\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_unknown_name_is_refused():
    with pytest.raises(AttributeError, match="module 'wavessm' has no attribute 'Morlet'"):
        _ = ws.Morlet

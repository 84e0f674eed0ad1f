"""The real files, where $WAVESSM_DATA names a folder that holds them: counts, scales and errors that are published or
were measured once by other code."""

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from miniatures import load_forecast, load_image, load_ptbxl, load_speech, load_text
from wavessm.data import baseline_scores, check_set, read_record
from wavessm.data.datasets.forecast import SETS
from wavessm.errors import import_extra

ROOT = Path(os.environ.get("WAVESSM_DATA", "/nowhere"))

needs_ptbxl = pytest.mark.skipif(
    not (ROOT / "ptbxl" / "records100").is_dir(), reason="WAVESSM_DATA names no folder with ptbxl/records100"
)


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WAVESSM_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


# classes, records of the three parts, standard deviation in mV
PTBXL = {
    "all": (71, 17418, 2183, 2198, 0.2351),
    "diag": (44, 17084, 2146, 2158, 0.2322),
    "sub-diag": (23, 17084, 2146, 2158, 0.2322),
    "super-diag": (5, 17084, 2146, 2158, 0.2322),
    "form": (19, 7197, 901, 880, 0.2329),
    "rhythm": (12, 16832, 2100, 2098, 0.2345),
}


@needs_ptbxl
@pytest.mark.parametrize("task", PTBXL)
def test_ptbxl_has_the_classes_records_and_scale_of_version_1_0_3(task):
    data = load_ptbxl(ROOT, task)
    classes, *sizes, std = PTBXL[task]
    assert [len(data.train), len(data.val), len(data.test)] == sizes
    assert len(data.info.classes) == data.info.d_output == classes
    assert data.info.scale[0][0] == pytest.approx(-0.0008, abs=5e-5)
    assert data.info.scale[1][0] == pytest.approx(std, abs=5e-5)
    assert data.train.take(torch.arange(3)).x.shape == (3, 1000, 12)
    for part in (data.train, data.val, data.test):
        assert part.y.any(dim=0).all()  # every class occurs in every part
    if task == "super-diag":
        totals = sum(part.y.sum(dim=0) for part in (data.train, data.val, data.test))
        counted = dict(zip(data.info.classes, totals.int().tolist(), strict=True))
        assert counted == {"NORM": 9514, "MI": 5469, "STTC": 5235, "CD": 4898, "HYP": 2649}


@needs_ptbxl
def test_real_records_read_as_wfdb_reads_them():
    wfdb = import_extra("wfdb", "tests")
    names = pd.read_csv(ROOT / "ptbxl" / "ptbxl_database.csv")["filename_lr"]
    for name in names[[0, 1, 777, 12_345, 21_798]]:
        expected = wfdb.rdrecord(str(ROOT / "ptbxl" / name))
        record = read_record(ROOT / "ptbxl" / name)
        np.testing.assert_allclose(record.values, expected.p_signal, atol=1e-6)
        assert record.channels == tuple(expected.sig_name)


COUNTS = {  # windows of validation and test, by horizon in order
    "ETTh1": ((2857, 2833, 2713, 2545, 2161), (2857, 2833, 2713, 2545, 2161)),
    "ETTh2": ((2857, 2833, 2713, 2545, 2161), (2857, 2833, 2713, 2545, 2161)),
    "ETTm1": ((11497, 11473, 11425, 11233, 10849), (11497, 11473, 11425, 11233, 10849)),
    "WTH": ((3485, 3461, 3341, 3173, 2789), (6989, 6965, 6845, 6677, 6293)),
    "ECL": ((2585, 2465, 2297, 1913, 1673), (5213, 5093, 4925, 4541, 4301)),
}
TRAIN = {  # first and last horizon
    ("ETTh1", False): (7897, 7201),
    ("ETTh1", True): (8569, 7585),
    ("ETTm1", False): (34441, 33505),
    ("WTH", False): (23801, 23105),
}
# test MSE of last value / seasonal day (ECL: week) / linear, by horizon in order
ERRORS = {
    "ETTh1 uni": ".034/.046 .050/.058 .087/.087 .113/.111 .129/.125",
    "ETTh2 uni": ".229/.095 .259/.123 .329/.189 .390/.261 .437/.302",
    "ETTm1 uni": ".012/.046 .022/.046 .033/.046 .061/.066 .087/.087",
    "WTH uni": ".174/.155 .231/.206 .358/.306 .427/.368 .510/.448",
    "ECL uni": "1.47/.323 1.66/.328 1.74/.371 1.82/.418 1.91/.476",
    "ETTh1 multi": "1.22/.424 1.27/.465 1.32/.571 1.33/.650 1.34/.655",
    "ETTh2 multi": ".271/.266 .344/.322 .510/.461 .597/.532 .594/.525",
    "ETTm1 multi": ".720/.422 1.17/.422 1.21/.423",  # longer horizons: 1.28/.483 1.32/.568
    "WTH multi": ".620/.599 .739/.698 .948/.848",  # longer horizons: 1.03/.908 1.09/.960
}
CASES = [
    pytest.param(row.split()[0], horizon, row.endswith("multi"), figures, id=f"{row} {horizon}")
    for row, line in ERRORS.items()
    for horizon, figures in zip(SETS[row.split()[0]].lengths, line.split(), strict=False)
]


def need_series(name):
    files = [ROOT / "forecasting" / file for file in (f"{name}.csv", f"{name}_univariate.csv")]
    if not any(file.is_file() for file in files):
        pytest.skip(f"WAVESSM_DATA names no folder with forecasting/{name}.csv")


@pytest.mark.parametrize(("name", "horizon", "multivariate", "figures"), CASES)
def test_windows_and_errors_without_training_are_the_measured_ones(name, horizon, multivariate, figures):
    need_series(name)
    data = load_forecast(ROOT, name, horizon, multivariate)
    place = list(SETS[name].lengths).index(horizon)
    assert (len(data.val), len(data.test)) == (COUNTS[name][0][place], COUNTS[name][1][place])
    if (name, multivariate) in TRAIN and place in (0, 4):
        assert len(data.train) == TRAIN[name, multivariate][place == 4]
    scores = baseline_scores(data)
    season = "seasonal week" if name == "ECL" else "seasonal day"
    for method, figure in zip(("last value", season), figures.split("/"), strict=True):
        half = 0.5 * 10.0 ** -len(figure.split(".")[1])  # the table is rounded
        assert scores[method].mse == pytest.approx(float(figure), abs=1.01 * half), method


@pytest.mark.parametrize("name", ["ETTh1", "ETTh2", "ETTm1", "WTH", "ECL"])
def test_the_real_series_pass_their_check(name):
    need_series(name)
    assert [finding.text for finding in check_set(ROOT, name) if finding.level == "problem"] == []


# -- Speech Commands and the Long Range Arena -----------------------------------------------------------------------


def need(path):
    if not (ROOT / path).exists():
        pytest.skip(f"WAVESSM_DATA names no folder with {path}")


def test_imdb_has_the_characters_and_lengths_measured_elsewhere():
    need("aclImdb/train/pos")
    data = load_text(ROOT)
    assert [len(data.train), len(data.val), len(data.test)] == [22_500, 2_500, 25_000]
    assert len(data.info.symbols) == 134
    cut = torch.cat([data.train.lengths, data.val.lengths]) == 4096
    assert cut.float().mean() == pytest.approx(0.029, abs=5e-4)
    assert data.test.y.float().mean() == 0.5


def test_cifar_in_grey_has_the_measured_mean_and_deviation():
    need("cifar-10-batches-py")
    data = load_image(ROOT)
    assert [len(data.train), len(data.val), len(data.test)] == [45_000, 5_000, 10_000]
    grey = torch.cat([data.train.x, data.val.x]).double()
    assert float(grey.mean()) == pytest.approx(122.62, abs=0.005)
    assert float(grey.std()) == pytest.approx(60.99, abs=0.005)
    assert torch.bincount(data.test.y).tolist() == [1000] * 10


def test_speech_commands_of_thirty_words_have_the_measured_parts_and_scale():
    need("speech_commands_v0.01/validation_list.txt")
    data = load_speech(ROOT, words=30)
    assert [len(data.train), len(data.val), len(data.test)] == [51_088, 6_798, 6_835]
    assert data.info.scale[0][0] == pytest.approx(-8.8e-5, abs=1e-6)
    assert data.info.scale[1][0] == pytest.approx(0.0816, abs=5e-5)

"""WFDB records against the wfdb package, and PTB-XL against a slow reading of its tables."""

import ast
import logging

import numpy as np
import pandas as pd
import pytest
import torch

import miniatures
from contracts import check_refused
from miniatures import load_ptbxl
from wavessm.data import read_record
from wavessm.data.datasets.ptbxl import LABELS
from wavessm.data.datasets.ptbxl import _read as read_ptbxl
from wavessm.data.files import Signal, resample
from wavessm.errors import DataError, UnknownNameError, import_extra

wfdb = import_extra("wfdb", "tests")


@pytest.fixture(autouse=True)
def own_cache(monkeypatch):
    monkeypatch.delenv("WAVESSM_CACHE", raising=False)


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    return miniatures.ptbxl(tmp_path_factory.mktemp("ptbxl"), records=80, rates=(100, 500), seconds=2)


# --- records


@pytest.mark.filterwarnings("ignore:The inplace keyword")  # wfdb under a new pandas
@pytest.mark.parametrize("fmt", ["16", "212", "80"])
def test_records_that_wfdb_writes_are_read_with_gain_and_baseline(tmp_path, fmt):
    signal = np.random.default_rng(1).standard_normal((101, 2)) * 0.05 + [0.3, -2.0]
    wfdb.wrsamp(
        "b",
        fs=128,
        units=["mV", "uV"],
        sig_name=["one", "two"],
        p_signal=signal,
        fmt=[fmt] * 2,
        write_dir=str(tmp_path),
    )
    record = read_record(tmp_path / "b")
    expected = wfdb.rdrecord(str(tmp_path / "b"))
    np.testing.assert_allclose(record.values, expected.p_signal, atol=1e-5)
    np.testing.assert_allclose(record.values, signal, atol=0.01)
    assert record.units == ("mV", "uV")
    assert record.sampling_rate == 128


def damage(path, kind):
    """Break a record of `write_record` in one way."""
    data, head = path.with_suffix(".dat"), path.with_suffix(".hea")
    values = np.fromfile(data, "<i2")
    if kind in ("no data", "no header"):
        (data if kind == "no data" else head).unlink()
    elif kind in ("header", "not a header"):
        head.write_text("\n".join(head.read_text().splitlines()[:5]) if kind == "header" else "hello")
    elif kind in ("truncated", "empty"):
        data.write_bytes(data.read_bytes()[:-7] if kind == "truncated" else b"")
    else:  # a changed sample, or a first one whose sum stays, so that only the first value can tell
        values[[500] if kind == "sample" else [0, 12]] += np.array([1, -1], "<i2")[: 1 if kind == "sample" else 2]
        values.tofile(data)


DAMAGES = {
    "truncated": r"r: wfdb cannot read it, truncated or damaged",
    "empty": r"r: wfdb cannot read it, truncated or damaged",
    "no data": r"r\.dat: the signal file is missing",
    "no header": r"r\.hea: the header is missing",
    "header": r"r\.hea: not a WFDB header of one segment with a line for each signal",
    "not a header": r"r\.hea: not a WFDB header",
    "sample": r"r: lead V3 has the checksum -?\d+, its header says \d+: damaged",
    "first": r"r: lead I has the first value -?\d+, its header says -?\d+: damaged",
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_damaged_records_are_named_with_what_is_wrong(tmp_path, kind):
    values = np.random.default_rng(0).integers(-300, 300, (100, 12))
    miniatures.write_record(tmp_path / "r", values, 100)
    np.testing.assert_allclose(read_record(tmp_path / "r").values * 1000, read_ptbxl(tmp_path, "r", 100), atol=1e-3)
    damage(tmp_path / "r", kind)
    check_refused(lambda: read_record(tmp_path / "r"), DataError, DAMAGES[kind])


@pytest.mark.filterwarnings("ignore:The inplace keyword")
def test_altered_samples_of_other_formats_are_found_too(tmp_path):
    signal = np.random.default_rng(1).standard_normal((101, 2))
    wfdb.wrsamp("c", 128, ["mV"] * 2, ["one", "two"], p_signal=signal, fmt=["212"] * 2, write_dir=str(tmp_path))
    data = bytearray((tmp_path / "c.dat").read_bytes())
    data[30] ^= 1
    (tmp_path / "c.dat").write_bytes(data)
    with pytest.raises(DataError, match=r"c: lead one has the checksum -?\d+, its header says \d+: damaged"):
        read_record(tmp_path / "c")


def test_missing_samples_are_nan(tmp_path):
    integers = np.random.default_rng(0).integers(-300, 300, (100, 12))
    integers[2, 1] = -32768  # "no sample" in format 16
    miniatures.write_record(tmp_path / "r", integers, 100)
    read = read_record(tmp_path / "r").values
    assert np.argwhere(np.isnan(read)).tolist() == [[2, 1]]
    twice = resample(Signal(read, 100.0), 200.0).values
    assert np.argwhere(np.isnan(twice)).tolist() == [[4, 1], [5, 1]], "and nowhere else, though a filter was there"
    with pytest.raises(DataError, match=r"r: NaN in lead II, sample 2 \(1 in all\)"):  # published without
        read_ptbxl(tmp_path, "r", 100)
    values = np.array([0, 5, -128, -5])  # -128 is "no sample" in format 80
    total = int(values.sum()) % 65536
    (tmp_path / "d.hea").write_text(f"d 1 100 4\nd.dat 80 200 8 0 0 {total} 0 I\n")
    (tmp_path / "d.dat").write_bytes((values + 128).astype(np.uint8).tobytes())
    np.testing.assert_array_equal(read_record(tmp_path / "d").values[:, 0], np.float32([0, 0.025, np.nan, -0.025]))


# --- PTB-XL


def slow_labels(folder, task):
    """Label sets by record name, in plain Python from the two tables."""
    statements = pd.read_csv(folder / "scp_statements.csv", index_col=0)
    flag = {"all": None, "form": "form", "rhythm": "rhythm"}.get(task, "diagnostic")
    column = {"super-diag": "diagnostic_class", "sub-diag": "diagnostic_subclass"}.get(task)
    result = {}
    for row in pd.read_csv(folder / "ptbxl_database.csv").itertuples():
        names = set()
        for code in ast.literal_eval(row.scp_codes):
            if flag is None or statements[flag][code] == 1:
                names.add(statements[column][code] if column else code)
        result[row.filename_lr, row.filename_hr, row.strat_fold] = names
    return result


@pytest.mark.parametrize("rate", [100, 500])
@pytest.mark.parametrize("task", LABELS)
def test_tasks_hold_the_records_and_labels_of_the_tables(release, task, rate):
    data = load_ptbxl(release, task, rate)
    labels = slow_labels(release, task)
    assert data.info.classes == tuple(sorted(set().union(*labels.values())))
    raw = []
    for part, folds in {"train": range(1, 9), "val": [9], "test": [10]}.items():
        wanted = [(key, names) for key, names in labels.items() if key[2] in folds and names]
        batch = getattr(data, part).take(torch.arange(len(wanted)))
        assert len(getattr(data, part)) == len(wanted) > 0
        for x, y, (key, names) in zip(batch.x, batch.y, wanted, strict=True):
            assert {data.info.classes[i] for i in torch.nonzero(y).flatten()} == names
            signal = wfdb.rdrecord(str(release / key[rate == 500])).p_signal
            expected = (signal - data.info.scale[0][0]) / data.info.scale[1][0]
            np.testing.assert_allclose(x, expected, atol=1e-5)
            raw.extend([signal] if part == "train" else [])
    assert data.info.scale[0][0] == pytest.approx(np.mean(raw), abs=1e-9)
    assert data.info.scale[1][0] == pytest.approx(np.std(raw), rel=1e-9)
    assert (data.info.d_input, data.info.sampling_rate, data.info.length) == (12, rate, 2 * rate)
    assert data.info.kind == "multilabel"
    assert batch.x.dtype == batch.y.dtype == torch.float32


def test_the_data_folder_and_the_unzipped_release_are_found(tmp_path):
    name = "ptb-xl-a-large-publicly-available-electrocardiography-dataset-1.0.3"
    miniatures.ptbxl(tmp_path / "one" / "ptbxl", records=60, seconds=1)
    miniatures.ptbxl(tmp_path / "two" / name, records=60, seconds=1)
    assert len(load_ptbxl(tmp_path / "one", "rhythm").train) == len(load_ptbxl(tmp_path / "two", "rhythm").train) == 48


def test_damaged_records_stop_the_loader_or_are_left_out_and_listed(tmp_path, caplog):
    folder = miniatures.ptbxl(tmp_path, records=60, seconds=1)
    whole = load_ptbxl(folder, "all")
    names = pd.read_csv(folder / "ptbxl_database.csv")["filename_lr"]
    damage(folder / names[3], "truncated")
    damage(folder / names[18], "no header")
    with pytest.raises(DataError, match=r"_lr\.dat: 99 samples, expected 100 .* truncated.*1 more are bad.*skip_bad"):
        load_ptbxl(folder, "all")
    with caplog.at_level(logging.WARNING, "wavessm.data"):
        rest = load_ptbxl(folder, "all", skip_bad=True)
    assert rest.info.skipped == (names[3], names[18])
    assert "2 bad files left out" in caplog.text
    assert (len(rest.train), len(rest.val), len(rest.test)) == (47, 5, 6)
    kept = [i for i in range(48) if i != 3]  # record 3 is the fourth of the training part, 18 is in validation
    everything = whole.train.take(torch.tensor(kept))
    assert rest.train.take(torch.arange(47)).y.equal(everything.y)
    mean, std = (rest.info.scale[i][0] for i in (0, 1))
    undone = rest.train.take(torch.arange(47)).x * std + mean
    torch.testing.assert_close(undone, everything.x * whole.info.scale[1][0] + whole.info.scale[0][0])


def test_missing_pieces_are_named_with_where_they_are_published(tmp_path):
    with pytest.raises(
        DataError, match=r"no folder with ptbxl_database.csv, .* in .* published at https://physionet.org"
    ):
        load_ptbxl(tmp_path)
    folder = miniatures.ptbxl(tmp_path, records=60, seconds=1)
    with pytest.raises(DataError, match=r"no folder with .*, records500 in .*; it is published at"):
        load_ptbxl(folder, sampling_rate=500)
    (folder / "scp_statements.csv").unlink()
    with pytest.raises(DataError, match=r"no folder with .*scp_statements.csv.*; it is published at"):
        load_ptbxl(folder)


def test_bad_tables_and_options_say_what_is_wrong(tmp_path):
    folder = miniatures.ptbxl(tmp_path, records=60, seconds=1)
    with pytest.raises(UnknownNameError, match="did you mean 'ptbxl-super-diag'"):
        load_ptbxl(folder, "superdiag")
    with pytest.raises(UnknownNameError, match="unknown sampling_rate 250"):
        load_ptbxl(folder, sampling_rate=250)
    table = pd.read_csv(folder / "ptbxl_database.csv")

    def rewritten(**columns):
        table.assign(**columns).to_csv(folder / "ptbxl_database.csv", index=False)

    rewritten(strat_fold=[fold % 9 + 1 for fold in table.strat_fold])
    with pytest.raises(DataError, match=r"no record in the test part"):
        load_ptbxl(folder)
    rewritten(scp_codes=["{'NORM': 1", *table.scp_codes[1:]])
    with pytest.raises(DataError, match=r"scp_codes in line 2 is \"\{'NORM': 1\", expected a dict"):
        load_ptbxl(folder)
    table.drop(columns="strat_fold").to_csv(folder / "ptbxl_database.csv", index=False)
    with pytest.raises(DataError, match=r"column 'strat_fold' is missing; the file has ecg_id"):
        load_ptbxl(folder)


def test_records_of_another_kind_are_bad_records(tmp_path):
    folder = miniatures.ptbxl(tmp_path, records=60, seconds=1)
    names = pd.read_csv(folder / "ptbxl_database.csv")["filename_lr"]
    values = np.zeros((100, 12))
    miniatures.write_record(folder / names[5], values, 250)
    with pytest.raises(DataError, match="not 12 leads at 100 Hz"):
        load_ptbxl(folder)
    miniatures.write_record(folder / names[5], values, 100, miniatures.LEADS[::-1])
    with pytest.raises(DataError, match="not 12 leads at 100 Hz"):
        load_ptbxl(folder)
    miniatures.write_record(folder / names[5], values[:90], 100)
    with pytest.raises(DataError, match=r"shape \(90, 12\), the files before it have \(100, 12\)"):
        load_ptbxl(folder)
    head = folder / (names[5] + ".hea")
    miniatures.write_record(folder / names[5], values, 100)
    head.write_text(head.read_text().replace("1000.0(0)", "500.0(0)"))
    with pytest.raises(DataError, match="not 12 leads at 100 Hz in WFDB format 16 with 1000/mV"):
        load_ptbxl(folder)


def test_leads_are_picked_by_name_or_each_is_a_case(release):
    whole, two, each = (load_ptbxl(release, "rhythm", leads=leads) for leads in ("", "V5, ii", "each"))
    rows = torch.arange(5)
    x = whole.test.take(rows).x
    assert two.info.channels == ("V5", "II")
    assert torch.equal(two.test.take(rows).x, x[..., [10, 1]])
    assert each.info.channels == ()
    assert torch.equal(each.test.take(rows).x, x[..., :1])
    assert len(each.train) == 12 * len(whole.train)
    record, lead = 3, 7
    case = each.train.take(torch.tensor([12 * record + lead]))
    first = whole.train.take(torch.tensor([record]))
    assert torch.equal(case.x[0, :, 0], first.x[0, :, lead])
    assert torch.equal(case.y, first.y)
    with pytest.raises(UnknownNameError, match="unknown lead 'V7'"):
        load_ptbxl(release, leads="V7")

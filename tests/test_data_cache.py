"""The cache is used where it is whole and up to date; the catalogue finds what is wrong."""

import logging
import os

import numpy as np
import pandas as pd
import pytest
import torch

import miniatures
from miniatures import load_forecast, load_ptbxl
from wavessm.data import check_set, list_sets
from wavessm.data.cache import Prepared, cached, fingerprint
from wavessm.errors import UnknownNameError


class Builder:
    """Counts how often it is asked."""

    def __init__(self):
        self.calls = 0
        self.arrays = {
            "wide": np.arange(3000, dtype=np.int16).reshape(10, 30, 10),
            "real": np.linspace(0, 1, 7),
            "flags": np.array([True, False]),
        }

    def __call__(self):
        self.calls += 1
        return Prepared(self.arrays, {"bad": {"x": "why"}, "n": 3})


def entry(folder, build, **options):
    return cached("set", folder, [], options, build)


def same(prepared, builder):
    assert prepared.notes == {"bad": {"x": "why"}, "n": 3}
    assert list(prepared.arrays) == list(builder.arrays)
    for name, array in prepared.arrays.items():
        np.testing.assert_array_equal(array, builder.arrays[name])
        assert array.dtype == builder.arrays[name].dtype


def test_a_cache_gives_back_what_was_built(tmp_path):
    build = Builder()
    for _ in range(3):
        same(entry(tmp_path, build, rate=1), build)
    assert build.calls == 1
    (path,) = (tmp_path / ".wavessm-cache").iterdir()
    assert path.suffix == ""  # nothing half-written is left


def test_other_options_have_another_cache(tmp_path):
    build = Builder()
    for rate in (1, 2, 1):
        entry(tmp_path, build, rate=rate)
    assert build.calls == 2


def test_writing_to_cached_arrays_does_not_reach_the_disk(tmp_path):
    build = Builder()
    entry(tmp_path, build)
    first = entry(tmp_path, build)
    first.arrays["wide"][:] = -1
    torch.from_numpy(first.arrays["real"]).zero_()  # no warning about read-only memory either
    same(entry(tmp_path, build), build)
    assert build.calls == 1


@pytest.mark.parametrize("kind", ["cut", "empty", "gone", "text"])
def test_a_damaged_cache_is_built_again_with_a_log_line(tmp_path, caplog, kind):
    build = Builder()
    entry(tmp_path, build, rate=1)
    (place,) = (tmp_path / ".wavessm-cache").iterdir()
    path = place / "wide.npy"
    if kind == "cut":
        path.write_bytes(path.read_bytes()[:-64])
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "gone":
        path.unlink()
    elif kind == "text":
        (place / "notes.json").write_text("something else altogether")
    with caplog.at_level(logging.WARNING, "wavessm.data"):
        same(entry(tmp_path, build, rate=1), build)
    assert build.calls == 2
    assert len(caplog.records) == 1
    assert "is damaged" in caplog.text
    assert "building it again" in caplog.text
    same(entry(tmp_path, build, rate=1), build)
    assert build.calls == 2


def test_a_disk_that_takes_nothing_costs_the_cache_only(tmp_path, caplog, monkeypatch):
    build = Builder()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "save", full)
    with caplog.at_level(logging.WARNING, "wavessm.data"):
        same(entry(tmp_path, build), build)
    assert "No space left on device" in caplog.text
    assert list((tmp_path / ".wavessm-cache").iterdir()) == []
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / ".wavessm-cache").write_text("a file where the folder should be")
    same(entry(tmp_path / "other", build), build)


def test_fingerprints_follow_names_sizes_and_times(tmp_path):
    (tmp_path / "sub").mkdir()
    file = tmp_path / "sub" / "a"
    file.write_text("12")
    start = fingerprint([tmp_path])
    assert fingerprint([tmp_path]) == start
    (tmp_path / ".hidden").write_text("caches do not count")
    assert fingerprint([tmp_path]) == start
    time = file.stat().st_mtime_ns
    os.utime(file, ns=(time, time + 1))
    touched = fingerprint([tmp_path])
    file.write_text("123")
    os.utime(file, ns=(time, time))
    grown = fingerprint([tmp_path])
    file.rename(tmp_path / "sub" / "b")
    assert len({start, touched, grown, fingerprint([tmp_path])}) == 4


def test_sets_that_differ_in_content_only_have_caches_of_their_own(tmp_path):
    prints = []
    for name, content in (("one", "12"), ("two", "34")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a").write_text(content)
        os.utime(tmp_path / name / "a", ns=(0, 0))
        prints.append(fingerprint([tmp_path / name]))
    assert prints[0] != prints[1]


@pytest.mark.parametrize("elsewhere", [False, True])
def test_loaders_use_the_cache_and_see_changed_files(tmp_path, monkeypatch, elsewhere):
    monkeypatch.delenv("WAVESSM_CACHE", raising=False)
    folder = tmp_path / "data"
    place = folder / ".wavessm-cache"
    if elsewhere:
        place = tmp_path / "cache"
        monkeypatch.setenv("WAVESSM_CACHE", str(place))
    miniatures.ptbxl(folder, records=60, seconds=1)
    first = load_ptbxl(folder, "rhythm")
    assert [path.name[:9] for path in place.iterdir()] == ["ptbxl-100"]
    monkeypatch.setattr("wavessm.data.datasets.ptbxl._read", lambda *_: pytest.fail("the records were read again"))
    again = load_ptbxl(folder, "rhythm")
    everything = torch.arange(len(first.train))
    assert again.train.take(everything).x.equal(first.train.take(everything).x)
    assert again.info == first.info
    load_ptbxl(folder, "super-diag")  # the tasks share the records
    monkeypatch.undo()
    if elsewhere:
        monkeypatch.setenv("WAVESSM_CACHE", str(place))
    name = pd.read_csv(folder / "ptbxl_database.csv")["filename_lr"][0]
    miniatures.write_record(folder / name, np.full((100, 12), 50), 100)
    changed = load_ptbxl(folder, "rhythm")
    mean, std = changed.info.scale[0][0], changed.info.scale[1][0]
    assert float(changed.train.take(torch.tensor([0])).x[0, 0, 0]) == pytest.approx((0.05 - mean) / std, rel=1e-4)


# --- catalogue


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.delenv("WAVESSM_CACHE", raising=False)
    miniatures.ptbxl(tmp_path / "ptbxl", records=60, seconds=1)
    miniatures.forecast(tmp_path / "forecasting", "WTH")
    return tmp_path


def test_the_list_says_what_is_there_and_its_size(root):
    sizes = list_sets(root)
    assert list(sizes)[:7] == ["ptbxl", "ptbxl-500", "ETTh1", "ETTh2", "ETTm1", "WTH", "ECL"]
    assert list(sizes)[7:] == ["speech", "speech-30", "listops", "text", "retrieval", "image", "pathfinder", "pathx"]
    assert [name for name, size in sizes.items() if size is not None] == ["ptbxl", "WTH"]
    assert sizes["WTH"] == (root / "forecasting" / "WTH.csv").stat().st_size
    records = sum(path.stat().st_size for path in (root / "ptbxl" / "records100").rglob("*") if path.is_file())
    assert sizes["ptbxl"] >= records


def problems(root, name):
    return [finding.text for finding in check_set(root, name) if finding.level == "problem"]


def test_checks_compare_with_the_published_counts(root):
    cases = "training, validation and test cases"
    assert problems(root, "WTH") == [f"{cases}: (657, 177, 377), expected (23801, 3485, 6989)"]
    assert problems(root, "ptbxl") == [f"{cases}: (48, 6, 6), expected (17418, 2183, 2198)"]
    (missing,) = problems(root, "ETTh1")
    assert "published at" in missing
    (missing,) = problems(root, "ptbxl-500")
    assert "records500 in" in missing
    with pytest.raises(UnknownNameError, match="did you mean 'ptbxl'"):
        check_set(root, "ptbx")


def test_checks_find_damaged_records_and_bad_rows(root):
    names = pd.read_csv(root / "ptbxl" / "ptbxl_database.csv")["filename_lr"]
    (root / "ptbxl" / f"{names[4]}.dat").write_bytes(b"123")
    found = problems(root, "ptbxl")
    assert f"{names[4]} cannot be read" in found
    path = root / "forecasting" / "WTH.csv"
    table = pd.read_csv(path)
    table.loc[4, "Visibility"] = np.nan
    table.to_csv(path, index=False)
    assert len(problems(root, "WTH")) == 1, "the target alone is read"
    table.loc[4, "WetBulbCelsius"] = np.nan
    table.to_csv(path, index=False)
    (found,) = problems(root, "WTH")
    assert "NaN in column 'WetBulbCelsius', line 6" in found


def test_known_checksums_are_compared(root):
    miniatures.forecast(root / "forecasting", "ETTh1")
    assert load_forecast(root, "ETTh1").info.length == 720
    found = problems(root, "ETTh1")
    assert any(text.startswith("SHA-256: ") and "expected f18de3ad269c" in text for text in found)

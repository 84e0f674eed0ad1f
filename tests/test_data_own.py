"""Own data: arrays, WAV folders, WFDB records. What comes out is what was in the files, and bad files are named."""

import contextlib
import logging
import re
import sys

import numpy as np
import pandas as pd
import pytest
import soundfile
import torch

import miniatures
from contracts import check_refused
from miniatures import load_arrays, load_wav_folder, load_wfdb, save
from wavessm.data import get_task, read_signal, read_wav
from wavessm.data.cases import Cases, split
from wavessm.data.files import align
from wavessm.errors import DataError, MissingExtraError, OptionError, UnknownNameError


@pytest.fixture(autouse=True)
def own_cache(monkeypatch):
    monkeypatch.delenv("WAVESSM_CACHE", raising=False)


def every(source):
    return source.take(torch.arange(len(source)))


def rng():
    return np.random.default_rng(0)


# --- arrays


def test_arrays_are_split_by_class_and_scaled_by_the_training_part(tmp_path):
    y = np.array(["c"] * 20 + ["a"] * 100 + ["b"] * 40)
    X = rng().standard_normal((160, 9, 2)) * [3, 0.1] + [5, -1] + np.arange(160)[:, None, None]
    data = load_arrays(save(tmp_path, X=X, y=y))
    assert data.info.classes == ("a", "b", "c")
    assert data.info.kind == "multiclass"
    batches = [every(part) for part in (data.train, data.val, data.test)]
    assert [len(batch.x) for batch in batches] == [112, 24, 24]
    seen = set()
    for batch in batches:
        raw = batch.x * torch.tensor(data.info.scale[1]) + torch.tensor(data.info.scale[0])
        for case, label in zip(raw, batch.y, strict=True):
            number = int(np.abs(X - case.numpy()).max(axis=(1, 2)).argmin())
            np.testing.assert_allclose(case, X[number], atol=1e-3)
            assert y[number] == data.info.classes[label]
            seen.add(number)
    assert seen == set(range(160))  # every case once
    for batch in batches[1:]:
        counts = np.bincount(batch.y, minlength=3)
        np.testing.assert_allclose(counts, [15, 6, 3], atol=1.01)
    train = batches[0].x
    torch.testing.assert_close(train.mean((0, 1)), torch.zeros(2), atol=1e-4, rtol=0)
    torch.testing.assert_close(train.std((0, 1), correction=0), torch.ones(2), atol=1e-4, rtol=0)


def test_the_split_is_always_the_same(tmp_path):
    folder = miniatures.arrays(tmp_path)
    one, other = (every(load_arrays(folder, seed=seed).test).x for seed in (1, 2))
    assert one.equal(other)


def test_given_parts_are_used_and_missing_ones_drawn(tmp_path):
    X, y = rng().standard_normal((60, 7, 1)), np.arange(60) % 2
    folder = save(tmp_path, X=X, y=y, X_test=X[:10] + 100, y_test=y[:10])
    data = load_arrays(folder)
    assert (len(data.train), len(data.val), len(data.test)) == (51, 9, 10)
    raw = every(data.test).x * data.info.scale[1][0] + data.info.scale[0][0]
    np.testing.assert_allclose(raw, X[:10] + 100, atol=1e-3)
    assert abs(data.info.scale[0][0]) < 1  # the test part does not reach the scale
    data = load_arrays(save(tmp_path, X_val=X[:5], y_val=y[:5]))
    assert (len(data.train), len(data.val), len(data.test)) == (60, 5, 10)


def test_padding_is_zero_and_outside_of_the_scale(tmp_path):
    X, lengths = rng().standard_normal((40, 8, 2)) + 4, np.tile([8, 3, 5, 1], 10)
    for row, length in zip(X, lengths, strict=True):
        row[length:] = np.nan
    data = load_arrays(save(tmp_path, X=X, y=np.arange(40) % 2, lengths=lengths))
    inside = []
    for part in (data.train, data.val, data.test):
        batch = every(part)
        for case, length in zip(batch.x, batch.lengths, strict=True):
            assert not case[length:].any()
            inside.extend(case[:length] if part is data.train else [])
    torch.testing.assert_close(torch.stack(inside).mean(0), torch.zeros(2), atol=1e-4, rtol=0)
    torch.testing.assert_close(torch.stack(inside).std(0, correction=0), torch.ones(2), atol=1e-4, rtol=0)


def test_kinds_of_targets(tmp_path):
    X = rng().standard_normal((50, 6))
    labels = (rng().random((50, 3)) < 0.5).astype(int)
    data = load_arrays(save(tmp_path / "labels", X=X, y=labels))
    assert (data.info.kind, data.info.classes, data.info.d_input) == ("multilabel", ("0", "1", "2"), 1)
    assert every(data.train).y.dtype == torch.float32
    values = rng().standard_normal((50, 2)) * [1, 100] + [0, 7]
    data = load_arrays(save(tmp_path / "values", X=X, y=values))
    assert (data.info.kind, data.info.d_output) == ("regression", 2)
    restored = torch.cat([data.info.restore(every(part).y) for part in (data.train, data.val, data.test)])
    np.testing.assert_allclose(np.sort(restored[:, 1]), np.sort(values[:, 1]), rtol=1e-4)
    torch.testing.assert_close(every(data.train).y.mean(0), torch.zeros(2), atol=1e-5, rtol=0)
    one = load_arrays(save(tmp_path / "one", X=X, y=values[:, 0]))
    assert every(one.train).y.shape == (34, 1)  # 8 of 50 each for validation and test
    forced = load_arrays(save(tmp_path / "forced", X=X, y=np.arange(50) % 3 * 1.0), kind="multiclass")
    assert forced.info.classes == ("0.0", "1.0", "2.0")
    with pytest.raises(UnknownNameError, match="unknown kind 'guess'"):
        load_arrays(tmp_path / "forced", kind="guess")


def test_labels_of_bytes_are_text(tmp_path):
    X, y = rng().standard_normal((30, 6)), np.array(["née", "b"])[np.arange(30) % 2]
    data = load_arrays(save(tmp_path / "bytes", X=X, y=np.char.encode(y, "utf-8")))
    assert data.info.classes == ("b", "née")


@pytest.mark.parametrize("kind", ["multiclass", "multilabel", "regression"])
def test_every_class_keeps_a_training_case_at_any_size(kind):
    for cases in (12, 13, 40, 97):
        classes = np.arange(cases) % 4
        classes[classes == 3] = np.where(np.arange((classes == 3).sum()) == 0, 3, 0)  # one case of class 3
        targets = {"multiclass": classes, "multilabel": np.eye(4)[classes], "regression": classes * 1.0}[kind]
        part = np.full(cases, "")
        rows = split(Cases([str(i) for i in range(cases)], targets, part, "x", kind, np.zeros((0, 1)), np.zeros(0)))
        together = np.concatenate(list(rows.values()))
        assert sorted(together) == list(range(cases))
        assert len(rows["val"]) == len(rows["test"]) == round(0.15 * cases)
        if kind != "regression":
            assert set(classes[rows["train"]]) == {0, 1, 2, 3}


def infinite_case():
    X = rng().standard_normal((40, 6, 2))
    X[7, 3, 1] = X[9, 0, 0] = np.inf
    return X


FLAT = np.stack([np.random.default_rng(0).standard_normal((40, 6)), np.full((40, 6), 2.5)], axis=2)
GOOD = np.random.default_rng(0).standard_normal((40, 6, 2))
TWO, THREE = np.arange(40) % 2, np.arange(40) % 3
FLAGS = np.stack([TWO, 1 - TWO], axis=1)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"X": GOOD}, r"y\.npy: no such file"),
        ({"y": TWO}, r"X\.npy: no such file"),
        ({"X": np.array([np.zeros(3), np.zeros(4)], dtype=object), "y": TWO}, r"X\.npy: ragged.*lengths\.npy"),
        ({"X": GOOD, "y": TWO[:39]}, r"y\.npy: shape \(39,\) of int64, expected numbers or text \(40,\) or \(40, k\)"),
        ({"X": GOOD[..., None], "y": TWO}, r"X\.npy: shape \(40, 6, 2, 1\).*expected numbers \(cases, length, ch"),
        ({"X": GOOD.astype(str), "y": TWO}, r"X\.npy: shape .* of <U32"),
        ({"X": infinite_case(), "y": TWO}, r"X\.npy, case 7: infinity at step 3, channel 1 \(2 in all\)"),
        ({"X": GOOD, "y": TWO, "X_test": infinite_case(), "y_test": TWO}, r"X_test\.npy, case 7: infinity"),
        ({"X": GOOD * 1e300, "y": TWO}, r"X\.npy: -?\d[\d.]*e\+\d+ at \(0, 0, 0\), expected numbers up to 3\.4e\+38"),
        ({"X": FLAT, "y": TWO}, r"channel 1 is constant \(2\.5\)"),
        ({"X": GOOD * np.array([1, np.nan]), "y": TWO}, r"channel 1 is NaN in all training cases"),
        ({"X": GOOD, "y": np.zeros(40, int)}, r"every training case has the label 0; expected two classes"),
        ({"X": GOOD, "y": np.full(40, 0.5)}, r"target 0 is constant \(0\.5\)"),
        ({"X": GOOD, "y": np.where(TWO, np.nan, 0.5)}, r"X\.npy, case 1: its target is nan, expected a finite number"),
        ({"X": GOOD, "y": TWO, "X_test": GOOD, "y_test": TWO * 3}, r"X_test\.npy, case 1: label 3 never occurs"),
        ({"X": GOOD, "y": TWO, "X_test": GOOD[:, :5], "y_test": TWO}, r"X_test\.npy: cases have shape \(5, 2\)"),
        ({"X": GOOD, "y": TWO, "X_val": GOOD}, r"y_val\.npy: no such file"),
        ({"X": GOOD, "y": np.eye(4, dtype=int)[TWO]}, r"label 2 never occurs in training"),
        ({"X": GOOD, "y": TWO, "lengths": np.full(40, 7)}, r"lengths\.npy: .*expected 40 whole numbers from 1 to 6"),
        ({"X": GOOD, "y": TWO, "lengths": np.full(40, 6.0)}, r"lengths\.npy: .*expected 40 whole numbers"),
        ({"X": GOOD[:3], "y": [0, 1, 1]}, r"3 cases in 2 classes are too few to draw 2 parts beside training"),
        ({"X": GOOD, "y": THREE[:, None]}, r"targets of shape \(40, 1\), expected \(40,\) for multiclass; save y"),
        ({"X": GOOD, "y": THREE[:, None].astype(str)}, r"targets of shape \(40, 1\), expected \(40,\)"),
        ({"X": GOOD, "y": TWO * 1j}, r"y\.npy: shape \(40,\) of complex128, expected numbers or text"),
        ({"X": GOOD, "y": FLAGS, "X_val": GOOD, "y_val": FLAGS * 2},
         r"X_val\.npy, case 0: label 1 is 2, expected 0 or 1 \(40 such\)"),
    ],
)  # fmt: skip
def test_bad_arrays_are_refused_in_one_line(tmp_path, arrays, message):
    folder = tmp_path / "own"
    folder.mkdir()
    for name, values in arrays.items():
        np.save(folder / f"{name}.npy", values, allow_pickle=True)
    check_refused(lambda: load_arrays(folder), DataError, message)


@pytest.mark.parametrize(
    ("y", "kind", "message"),
    [
        (FLAGS * 3 - 1, "multilabel", r"X\.npy, case 0: label 0 is -1, expected 0 or 1"),
        (np.where(FLAGS, 0.3, 0.0), "multilabel", r"X\.npy, case 0: label 1 is 0\.3, expected 0 or 1"),
        (np.where(FLAGS, np.nan, 0.0), "multilabel", r"X\.npy, case 0: label 1 is nan, expected 0 or 1"),
        (TWO, "multilabel", r"targets of shape \(40,\), expected \(40, k\)"),
        (FLAGS.astype(str), "multilabel", r"targets of <U21, expected numbers for multilabel"),
        (TWO.astype(str), "regression", r"targets of <U21, expected numbers for regression"),
        (
            np.where(TWO, np.nan, 1.0),
            "multiclass",
            r"X\.npy, case 1: its target is nan, expected a finite number",
        ),
        (FLAGS, "multiclass", r"targets of shape \(40, 2\), expected \(40,\)"),
    ],
)
def test_targets_that_a_kind_cannot_have_are_refused_in_one_line(tmp_path, y, kind, message):
    check_refused(lambda: load_arrays(save(tmp_path, X=GOOD, y=y), kind=kind), DataError, message)


def test_a_checksum_follows_what_is_read(tmp_path):
    """Contents of arrays, tables and headers, names and sizes of WAV files; nothing that lies beside them."""
    arrays, wav, wfdb = (str(tmp_path / name) for name in ("arrays", "wav", "wfdb"))
    miniatures.arrays(arrays)
    miniatures.wav_folder(wav)
    miniatures.wfdb_folder(wfdb)
    miniatures.csv(tmp_path / "own.csv", rows=9)
    options = {
        "arrays": get_task("arrays").with_options({"folder": arrays}),
        "csv": get_task("csv").with_options({"path": str(tmp_path / "own.csv")}),
        "wav": get_task("wav").with_options({"folder": wav}),
        "wfdb": get_task("wfdb").with_options({"folder": wfdb}),
    }
    before = {task: chosen.checksum() for task, chosen in options.items()}
    assert len(set(before.values())) == 4
    np.save(tmp_path / "arrays" / "X_new.npy", GOOD)
    for beside in ("wav/beep/._000.wav", "wfdb/other.hea"):
        (tmp_path / beside).write_text("x")
    assert {task: chosen.checksum() for task, chosen in options.items()} == before
    np.save(tmp_path / "arrays" / "y.npy", np.load(tmp_path / "arrays" / "y.npy")[::-1])
    for name in ("own.csv", "wfdb/rec003.hea"):
        (tmp_path / name).write_text((tmp_path / name).read_text().replace("1", "2"))
    (tmp_path / "wav" / "hum" / "000.wav").rename(tmp_path / "wav" / "buzz" / "new.wav")
    assert not {chosen.checksum() for chosen in options.values()} & set(before.values())
    assert get_task("window-copy").options.checksum() == ""


def test_truncated_and_foreign_array_files_are_named(tmp_path, caplog):
    folder = save(tmp_path / "a", X=GOOD, y=TWO)
    whole = (folder / "X.npy").read_bytes()
    np.savez(tmp_path / "packed.npz", X=GOOD)
    shapes = [f"{(40, 6, 2)}", f"{(2**40, 6, 2)}", f"{(2**62, 2**62, 2)}", f"{(10**30, 6, 2)}"]
    huge = [whole.replace(shapes[0].encode() + b", }" + b" " * len(each), each.encode() + b", }" + b" " * 12)
            for each in shapes[1:]]  # fmt: skip
    assert all(each != whole for each in huge)
    packed = (tmp_path / "packed.npz").read_bytes()
    odd = whole.replace(b"(40, 6, 2)", b"(40, 6, 2 ")  # a header that Python cannot tokenise
    for content in (whole[:-9], whole[:20], b"PK hello", b"", b"1,2\n3,4\n", packed, odd, *huge):
        (folder / "X.npy").write_bytes(content)
        check_refused(lambda: load_arrays(folder), DataError, r"X\.npy: not a readable \.npy file")
    with pytest.raises(DataError, match="no such folder"):
        load_arrays(tmp_path / "nowhere")
    with caplog.at_level(logging.WARNING, "wavessm.data"):
        load_arrays(save(tmp_path / "b", X=GOOD.transpose(0, 2, 1), y=TWO))
    assert "more channels than steps" in caplog.text


# --- WAV


def test_wav_folders_give_every_clip_with_its_class_and_length(tmp_path):
    folder = miniatures.wav_folder(tmp_path, per_class=10)
    data = load_wav_folder(folder, scaling="global", front_end="none")
    assert data.info.classes == ("beep", "buzz", "hum")
    assert data.info.sampling_rate == 8000
    clips = {path: soundfile.read(path, dtype="float32")[0] for path in folder.rglob("*.wav")}
    found = set()
    mean, std = data.info.scale[0][0], data.info.scale[1][0]
    for part in (data.train, data.val, data.test):
        batch = every(part)
        for x, label, length in zip(batch.x, batch.y, batch.lengths, strict=True):
            raw = x[:length, 0].numpy() * std + mean
            match = [p for p, clip in clips.items() if len(clip) == length and np.allclose(clip, raw, atol=1e-4)]
            assert [p.parent.name for p in match] == [data.info.classes[label]]
            assert not x[length:].any()
            found.update(match)
    assert found == set(clips)


def test_the_loudness_of_a_recording_does_not_matter_to_training_or_prediction(tmp_path):
    folder = miniatures.wav_folder(tmp_path / "a", per_class=4)
    rng, gains = np.random.default_rng(0), []
    for path in sorted(folder.rglob("*.wav")):
        values, rate = soundfile.read(path, dtype="float32")
        gains.append(rng.uniform(0.01, 2))
        other = tmp_path / "b" / path.relative_to(folder)
        other.parent.mkdir(parents=True, exist_ok=True)
        soundfile.write(other, gains[-1] * values + 0.05, rate, subtype="FLOAT")
    one, two = (load_wav_folder(tmp_path / name, front_end="none") for name in "ab")
    batch, same = every(one.train), every(two.train)
    torch.testing.assert_close(batch.x, same.x, atol=2e-4, rtol=0)
    for x, length in zip(batch.x, batch.lengths, strict=True):
        assert float(x[:length].mean()) == pytest.approx(0, abs=1e-5)
        assert float(x[:length].square().mean()) == pytest.approx(1, rel=1e-4)
    silent = torch.full((1, 50, 1), 0.25)
    assert float(one.info.standardise(silent).abs().max()) < 1e-2, "silence stays silent"
    stream = one.info.standardise(silent, stream=True)
    torch.testing.assert_close(stream, (silent - one.info.scale[0][0]) / one.info.scale[1][0])


def test_recordings_are_trimmed_and_cut_in_training_and_for_prediction(tmp_path, caplog):
    rng = np.random.default_rng(0)
    for k in range(8):
        quiet, loud = (size * np.sign(rng.standard_normal(100)) for size in (0.001, 0.5))
        miniatures.write_wav(tmp_path / "ab"[k % 2] / f"{k}.wav", np.concatenate([quiet, loud, quiet[: 10 * k]]))
    kept = [*range(100, 200)]
    trimmed = load_wav_folder(tmp_path, trim_silence=40)
    assert trimmed.info.length == 100, "all but the loud part is 54 dB below its peak"
    assert load_wav_folder(tmp_path, trim_silence=60).info.length == 270
    with caplog.at_level(logging.WARNING, "wavessm.data"):
        cut = load_wav_folder(tmp_path, trim_silence=40, max_length=0.005)
    assert cut.info.length == 40
    assert "recordings longer than 0.005 s are cut there" in caplog.text
    signal = read_wav(tmp_path / "b" / "7.wav")
    options = get_task("wav").with_options({"trim_silence": 40.0, "max_length": 0.005})
    assert np.array_equal(options.shorten(signal).values, signal.values[kept[:40]])
    assert get_task("wav").options.shorten(signal) == signal
    with pytest.raises(OptionError, match="trim_silence is -1"):
        get_task("wav").with_options({"trim_silence": -1.0})


def test_batches_of_recordings_are_as_wide_as_their_own_longest(tmp_path):
    folder = miniatures.wav_folder(tmp_path, per_class=8)
    miniatures.write_wav(folder / "hum" / "long.wav", 0.1 * np.ones(5000) * (-1) ** np.arange(5000))
    data = load_wav_folder(folder)
    assert data.info.length == 5000
    widths = [data.train.take(torch.tensor([i])).x.shape[1] for i in range(len(data.train))]
    assert sorted(widths)[-2] <= 200


@pytest.mark.parametrize("names", [("train", "validation", "test"), ("Training", "dev", "testing")])
def test_wav_parts_may_be_folders(tmp_path, names):
    for part, count in zip(names, (8, 3, 4), strict=True):
        miniatures.wav_folder(tmp_path / part, per_class=count, seed=count)
    data = load_wav_folder(tmp_path)
    assert (len(data.train), len(data.val), len(data.test)) == (24, 9, 12)
    miniatures.write_wav(tmp_path / names[2] / "click" / "0.wav", np.zeros(50))
    with pytest.raises(DataError, match=r"/click/0\.wav: label click never occurs in training"):
        load_wav_folder(tmp_path)


def test_a_folder_of_parts_holds_nothing_else(tmp_path):
    for part in ("train", "test", "."):
        miniatures.wav_folder(tmp_path / part, per_class=4)
    words = r"beep/000\.wav: in none of the parts train, val, test, though others are \(12 such cases"
    check_refused(lambda: load_wav_folder(tmp_path), DataError, words)


@pytest.mark.parametrize("above", ["anna", "train/hum"])
def test_folders_below_the_classes_are_refused(tmp_path, above):
    miniatures.wav_folder(tmp_path / above, per_class=4)
    with pytest.raises(DataError, match=rf"{above}/beep/000\.wav: a WAV file outside of a class folder"):
        load_wav_folder(tmp_path)


def test_a_link_to_nothing_is_a_bad_file(tmp_path):
    folder = miniatures.wav_folder(tmp_path)
    (folder / "hum" / "gone.wav").symlink_to(tmp_path / "nowhere.wav")
    (folder / "notes.txt").symlink_to(tmp_path / "nowhere.txt")
    with pytest.raises(DataError, match=r"gone\.wav: unreadable \(No such file or directory\)\..*skip_bad"):
        load_wav_folder(folder)
    assert load_wav_folder(folder, skip_bad=True).info.skipped == ("hum/gone.wav",)


def test_parts_without_training_are_refused(tmp_path):
    miniatures.wav_folder(tmp_path / "test", per_class=4)
    with pytest.raises(DataError, match="no case is left for training"):
        load_wav_folder(tmp_path)


def damage_wav(path, kind):
    whole = path.read_bytes()
    content = {"truncated": whole[:-11], "header only": whole[:30], "text": b"not sound at all", "empty": b"",
               "codec": whole[:20] + b"\x99\x99" + whole[22:]}  # fmt: skip
    other = {"silent": (np.zeros(0), 8000), "rate": (np.zeros(50), 11025), "stereo": (np.zeros((50, 2)), 8000)}
    if kind in content:
        path.write_bytes(content[kind])
    elif kind in other:
        miniatures.write_wav(path, *other[kind])
    elif kind == "nan":
        soundfile.write(path, np.array([0.0, np.nan, 0.1], np.float32), 8000, subtype="FLOAT")


WAV_DAMAGES = {
    "truncated": r"004\.wav: truncated, 389 bytes of sound, expected 400",
    "header only": r"004\.wav: truncated, it ends before its data",
    "text": r"004\.wav: not a WAV file",
    "empty": r"004\.wav: not a WAV file",
    "silent": r"004\.wav: no samples",
    "rate": r"004\.wav: 11025 Hz, 1 channels; the others have 8000 Hz, 1 channels",
    "stereo": r"004\.wav: 8000 Hz, 2 channels; the others have 8000 Hz, 1",
    "codec": r"004\.wav: not a readable WAV file",
    "nan": r"004\.wav: NaN at sample 1, channel 0",
}


@pytest.mark.parametrize("kind", WAV_DAMAGES)
def test_bad_wav_files_are_named_or_left_out_and_listed(tmp_path, caplog, kind):
    folder = miniatures.wav_folder(tmp_path)
    damage_wav(folder / "buzz" / "004.wav", kind)
    with pytest.raises(DataError, match=WAV_DAMAGES[kind]) as caught:
        load_wav_folder(folder)
    assert "skip_bad" in str(caught.value)
    assert "\n" not in str(caught.value)
    with caplog.at_level(logging.WARNING, "wavessm.data"):
        data = load_wav_folder(folder, skip_bad=True)
    assert data.info.skipped == ("buzz/004.wav",)
    assert "buzz/004.wav" in caplog.text
    assert len(data.train) + len(data.val) + len(data.test) == 35


def test_wav_folders_without_classes_or_files_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"no WAV file in it; expected nowhere/<class>/\*\.wav"):
        load_wav_folder(tmp_path / "nowhere")
    with pytest.raises(DataError, match="no WAV file in it"):
        load_wav_folder(tmp_path)
    miniatures.write_wav(tmp_path / "a.wav", np.zeros(9))
    with pytest.raises(DataError, match="a WAV file outside of a class folder"):
        load_wav_folder(tmp_path)
    (tmp_path / "a.wav").unlink()
    damage_wav(miniatures.write_wav(tmp_path / "x" / "a.wav", np.zeros(9)), "text")
    with pytest.raises(DataError, match="none of 1 files could be read"):
        load_wav_folder(tmp_path, skip_bad=True)


# --- WFDB with a table


def test_wfdb_records_come_with_the_labels_of_the_table(tmp_path):
    folder = miniatures.wfdb_folder(tmp_path)
    table = pd.read_csv(folder / "labels.csv").sample(frac=1, random_state=0)
    table.to_csv(tmp_path / "elsewhere.csv", index=False)
    data = load_wfdb(folder, tmp_path / "elsewhere.csv")
    assert data.info.classes == ("normal", "paced")
    assert data.info.channels == ("MLII", "V1")
    assert data.info.sampling_rate == 100
    mean, std = (torch.tensor(values) for values in data.info.scale)
    signals = {
        row.record: (np.fromfile(folder / f"{row.record}.dat", "<i2") / 1000, row.label) for row in table.itertuples()
    }
    total = 0
    for part in (data.train, data.val, data.test):
        batch = every(part)
        total += len(batch.x)
        for x, label in zip(batch.x * std + mean, batch.y, strict=True):
            match = [name for values, name in signals.values() if np.allclose(values, x.flatten(), atol=1e-4)]
            assert match == [data.info.classes[label]]
    assert total == 30


def test_names_and_labels_of_a_table_are_text_as_it_is_written(tmp_path):
    names = [f"{i:05}" for i in range(4015, 4035)]
    for name in names:
        miniatures.write_record(tmp_path / name, np.round(500 * rng().standard_normal((50, 2))), 100, ("I", "II"))
    for labels in (("None", "NA"), ("01", "1")):
        rows = [f"{name},{labels[i % 2]}" for i, name in enumerate(names)]
        (tmp_path / "labels.csv").write_text("\n".join(["record,label", *rows]) + "\n")
        assert load_wfdb(tmp_path).info.classes == tuple(sorted(labels))
    (tmp_path / "labels.csv").write_text("record,label\n04015,a\n,b\n")
    with pytest.raises(DataError, match="nothing in column 'record', line 3"):
        load_wfdb(tmp_path)


def test_another_table_of_the_same_folder_has_its_own_records(tmp_path):
    folder = miniatures.wfdb_folder(tmp_path / "records")
    load_wfdb(folder)
    table = pd.read_csv(folder / "labels.csv")
    table[::-1][:20].to_csv(tmp_path / "some.csv", index=False)
    data = load_wfdb(folder, tmp_path / "some.csv")
    assert len(data.train) + len(data.val) + len(data.test) == 20
    values = np.fromfile(folder / "rec029.dat", "<i2").reshape(-1, 2) / 1000
    mean, std = (torch.tensor(values) for values in data.info.scale)
    cases = torch.cat([every(part).x for part in (data.train, data.val, data.test)]) * std + mean
    assert float((cases - torch.from_numpy(values)).abs().amax(dim=(1, 2)).min()) < 1e-4


def test_wfdb_tables_may_give_the_split_and_several_labels(tmp_path):
    folder = miniatures.wfdb_folder(tmp_path)
    table = pd.read_csv(folder / "labels.csv")
    parts = ["train"] * 20 + ["val"] * 4 + ["test"] * 6
    table.assign(split=parts).to_csv(folder / "labels.csv", index=False)
    data = load_wfdb(folder)
    assert (len(data.train), len(data.val), len(data.test)) == (20, 4, 6)
    table.assign(split=parts, label=["fast", *table.label[1:-1], "slow"]).to_csv(folder / "labels.csv", index=False)
    with pytest.raises(DataError, match=r"rec029: label slow never occurs in training"):
        load_wfdb(folder)
    flags = pd.DataFrame({"record": table.record, "paced": (table.label == "paced") * 1, "odd": np.arange(30) % 3 == 0})
    flags.astype({"odd": int}).to_csv(folder / "labels.csv", index=False)
    data = load_wfdb(folder)
    assert (data.info.kind, data.info.classes) == ("multilabel", ("paced", "odd"))
    assert sum(float(every(p).y[:, 1].sum()) for p in (data.train, data.val, data.test)) == 10


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.drop(columns="record"), r"column 'record' is missing; the file has label"),
        (lambda t: t.drop(columns="label"), r"no column of labels"),
        (lambda t: t.assign(label=[None, *t.label[1:]]), r"nothing in column 'label', line 2"),
        (lambda t: t.assign(split="somewhere"), r"split is 'somewhere' in line 2, expected train, val or test"),
        (lambda t: t.assign(label=0, more=2), r"rec000: label 1 is 2, expected 0 or 1"),
        (lambda t: t.assign(label=0, more="x"), r"'x' in column 'more', line 2"),
        (lambda t: t.assign(record=["rec999", *t.record[1:]]), r"rec999\.hea: the header is missing"),
        (lambda t: t[:0], r"no rows, or no column"),
        (lambda t: t.assign(label=0, more=1), r"label label never occurs in training"),
    ],
)
def test_bad_tables_are_refused_in_one_line(tmp_path, change, message):
    folder = miniatures.wfdb_folder(tmp_path)
    change(pd.read_csv(folder / "labels.csv")).to_csv(folder / "labels.csv", index=False)
    check_refused(lambda: load_wfdb(folder), DataError, message)


def test_a_record_with_its_leads_in_another_order_is_named(tmp_path):
    folder = miniatures.wfdb_folder(tmp_path)
    header = (folder / "rec003.hea").read_text()
    (folder / "rec003.hea").write_text(header.replace("MLII", "x").replace("V1", "MLII").replace("x", "V1"))
    with pytest.raises(DataError, match=r"rec003: .*\(V1, MLII\); the others have .*\(MLII, V1\)"):
        load_wfdb(folder)


def test_a_record_in_other_volts_is_converted_and_one_in_other_units_is_named(tmp_path):
    folder = miniatures.wfdb_folder(tmp_path)
    scale = np.array(load_wfdb(folder).info.scale)
    head = folder / "rec003.hea"
    text = head.read_text()
    head.write_text(text.replace("1000.0(0)/mV", "1.0(0)/uV"))
    np.testing.assert_allclose(np.array(load_wfdb(folder).info.scale), scale, rtol=1e-6)
    head.write_text(text.replace("/mV", "/mmHg"))
    with pytest.raises(DataError, match=r"rec003: in mmhg, mmhg, expected mv, mv as in training\."):
        load_wfdb(folder)


@pytest.mark.parametrize("name", ["../secret", "{tmp}/secret", "link"])
def test_a_table_names_no_record_outside_its_folder(tmp_path, name):
    folder = miniatures.wfdb_folder(tmp_path / "records")
    miniatures.write_record(tmp_path / "secret", np.ones((200, 2)), 100, ("MLII", "V1"))
    (folder / "link").symlink_to(tmp_path)
    name = {"link": "link/secret"}.get(name, name.format(tmp=tmp_path))
    table = (folder / "labels.csv").read_text()
    (folder / "labels.csv").write_text(table.replace("rec003", name))
    check_refused(lambda: load_wfdb(folder), DataError, "secret: outside of the folders that may be read")


@pytest.mark.parametrize("link", [False, True])
def test_a_header_names_no_signal_file_elsewhere(tmp_path, link):
    folder = miniatures.wfdb_folder(tmp_path / "records")
    header, signal = folder / "rec003.hea", folder / "rec003.dat"
    signal.rename(tmp_path / "three.dat")
    if link:
        signal.symlink_to(tmp_path / "three.dat")
    else:
        header.write_text(header.read_text().replace("rec003.dat", "../three.dat"))
    with pytest.raises(DataError, match=r"(three|rec003)\.dat: outside of the folders"):
        load_wfdb(folder)


def test_the_cache_follows_every_file_that_is_read(tmp_path):
    """Also records in hidden folders, and a table elsewhere; not what lies beside them."""
    folder = tmp_path / "records"
    miniatures.wfdb_folder(folder / ".hidden")
    table = (folder / ".hidden" / "labels.csv").read_text().replace("rec0", ".hidden/rec0")
    (tmp_path / "labels.csv").write_text(table)
    first = load_wfdb(folder, tmp_path / "labels.csv").info.scale
    (folder / "beside.txt").write_text("not read")
    assert load_wfdb(folder, tmp_path / "labels.csv").info.scale == first
    assert len(list((folder / ".wavessm-cache").iterdir())) == 1
    for i in range(10):
        miniatures.write_record(folder / ".hidden" / f"rec{i:03d}", np.full((200, 2), 9000), 100, ("MLII", "V1"))
    assert load_wfdb(folder, tmp_path / "labels.csv").info.scale != first


def test_the_same_signal_in_other_units_is_the_same_input(tmp_path):
    info = load_wfdb(miniatures.wfdb_folder(tmp_path / "set")).info
    assert info.units == ("mV", "mV")
    values = np.round(500 * rng().standard_normal((50, 2)))
    inputs = {}
    for name, gain in (("mV", "200/mV"), ("uV", "0.2/uV"), ("micro", "0.2/µV"), ("V", "2e5/V"), ("other", "200/mmHg")):
        miniatures.write_record(tmp_path / name, values, 100, ("V1", "MLII"))
        header = tmp_path / f"{name}.hea"
        header.write_text(header.read_text().replace("1000.0(0)/mV", gain), encoding="latin-1")
        if name == "other":
            with pytest.raises(DataError, match="in mmhg, mmhg, expected mv, mv as in training"):
                align(read_signal(header), info.channels, info.units, header)
            continue
        inputs[name] = align(read_signal(header), info.channels, info.units, header)
        np.testing.assert_allclose(inputs[name], values[:, ::-1] / 200, rtol=1e-6)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a.hea: not a WFDB header"),
        ("# only a comment\n", "a.hea: not a WFDB header"),
        ("a one 100 4\na.dat 16 200 16 0 0 0 0 I\n", "a.hea: not a WFDB header"),
        ("a 1 0 4\na.dat 16 200 16 0 0 0 0 I\n", "a.hea: a sampling rate of 0 Hz, expected one above 0"),
        ("a 0 100 4\n", "a: wfdb cannot read it"),
        ("a 2 100 2\na.dat 16 200 16 0 0 0 0 I\na.dat 17 200 16 0 0 0 0 I\n", "a: wfdb cannot read it"),
        ("a 1 100 9000000000\na.dat 212 200 12 0 0 0 0 I\n", "a: wfdb cannot read it, truncated or damaged"),
        ("a/2 1 100 4\nb 4\n~ 4\n", "not a WFDB header of one segment"),
        ("a/1 1 100 4\na.dat 16 200 16 0 0 0 0 I\n", "not a WFDB header of one segment"),
    ],
)
def test_odd_headers_are_refused_in_one_line(tmp_path, text, message):
    (tmp_path / "a.hea").write_text(text)
    (tmp_path / "a.dat").write_bytes(bytes(8))
    check_refused(lambda: read_signal(tmp_path / "a.hea"), DataError, re.escape(message))


def test_a_record_listed_twice_is_refused(tmp_path):
    folder = miniatures.wfdb_folder(tmp_path)
    table = pd.read_csv(folder / "labels.csv")
    pd.concat([table, table[:1]]).to_csv(folder / "labels.csv", index=False)
    with pytest.raises(DataError, match="rec000 is listed twice"):
        load_wfdb(folder)


def test_bad_records_are_left_out_and_listed(tmp_path):
    folder = miniatures.wfdb_folder(tmp_path)
    (folder / "rec004.dat").write_bytes(b"\0" * 10)
    with pytest.raises(DataError, match=r"rec004: wfdb cannot read it, truncated or damaged.*skip_bad"):
        load_wfdb(folder)
    assert load_wfdb(folder, skip_bad=True).info.skipped == ("rec004",)


@pytest.mark.parametrize("package", ["pandas", "soundfile", "wfdb"])
def test_a_missing_package_names_the_extra(tmp_path, monkeypatch, package):
    miniatures.csv(tmp_path / "a.csv")
    miniatures.write_wav(tmp_path / "a.wav", np.zeros(9))
    (tmp_path / "a.hea").write_text("a 1 100 10\na.dat 212 200 12 0 0 0 0 I\n")
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=rf"{package}.*pip install 'wavessm\[train\]'"):
        read_signal(tmp_path / {"pandas": "a.csv", "soundfile": "a.wav", "wfdb": "a.hea"}[package])


# --- one file, for prediction


def test_signals_of_every_kind_are_read_alike(tmp_path):
    values = np.round(np.random.default_rng(0).standard_normal((30, 2)), 3)
    np.save(tmp_path / "a.npy", values)
    pd.DataFrame(values, columns=["p", "q"]).to_csv(tmp_path / "a.csv", index=False)
    miniatures.write_record(tmp_path / "a", np.round(values * 1000), 50, ("p", "q"))
    miniatures.write_wav(tmp_path / "a.wav", values / 10, 8000)
    for suffix, rate, names in (
        ("npy", None, ()),
        ("csv", None, ("p", "q")),
        ("hea", 50, ("p", "q")),
        ("wav", 8000, ()),
    ):
        signal = read_signal(tmp_path / f"a.{suffix}")
        np.testing.assert_allclose(signal.values * (10 if suffix == "wav" else 1), values, atol=1e-3)
        assert (signal.sampling_rate, signal.channels) == (rate, names)
        assert signal.values.dtype == np.float32
    with pytest.raises(DataError, match=r"unknown kind of file '.mp3'"):
        read_signal(tmp_path / "a.mp3")
    np.save(tmp_path / "b.npy", np.zeros((2, 3, 4)))
    with pytest.raises(DataError, match=r"b\.npy: shape \(2, 3, 4\)"):
        read_signal(tmp_path / "b.npy")
    with pytest.raises(DataError, match=r"nowhere\.wav: unreadable"):
        read_wav(tmp_path / "nowhere.wav")


def test_damaged_headers_of_arrays_and_zero_bytes_in_tables_are_one_line(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((40, 3)))
    whole = (tmp_path / "a.npy").read_bytes()
    for cut in range(10, 80):  # the header is read as Python code
        (tmp_path / "a.npy").write_bytes(whole[:cut] + whole[cut + 7 :])
        with contextlib.suppress(DataError):
            assert read_signal(tmp_path / "a.npy").values.shape == (40, 3)
    (tmp_path / "a.csv").write_bytes(b"a,b\n1.5,2\n3,4\x00.25\n")
    with pytest.raises(DataError, match=r"a\.csv: not a readable CSV table \(it holds zero bytes\)"):
        read_signal(tmp_path / "a.csv")


def test_a_wav_header_that_contradicts_itself_is_refused(tmp_path):
    for kind in ("PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE"):
        soundfile.write(tmp_path / "a.wav", np.linspace(-0.5, 0.5, 60), 8000, kind)
        assert len(read_signal(tmp_path / "a.wav").values) == 60
    soundfile.write(tmp_path / "a.wav", np.linspace(-0.5, 0.5, 60), 8000, "PCM_16")
    whole = bytearray((tmp_path / "a.wav").read_bytes())
    whole[34] = 18  # bits of a sample; libsndfile would read three bytes for each
    (tmp_path / "a.wav").write_bytes(whole)
    with pytest.raises(DataError, match=r"a\.wav: its header contradicts itself: 1 channels of 18 bits in 2 bytes"):
        read_signal(tmp_path / "a.wav")


def test_empty_fields_of_csv_are_missing_samples(tmp_path, caplog):
    (tmp_path / "one.csv").write_text("value\n1\n\n3\n\n\n6\n\n")
    np.testing.assert_array_equal(read_signal(tmp_path / "one.csv").values[:, 0], [1, np.nan, 3, np.nan, np.nan, 6])
    (tmp_path / "bare.csv").write_text("1\n\n3\n")
    np.testing.assert_array_equal(read_signal(tmp_path / "bare.csv").values[:, 0], [1, np.nan, 3])
    (tmp_path / "two.csv").write_text("time,a,b\n0,1,2\n1,,4\n2,5,\n")
    with caplog.at_level(logging.WARNING, "wavessm.data"):
        found = read_signal(tmp_path / "two.csv")
    assert "column 'time' is left out; predict --times reads it" in caplog.text
    np.testing.assert_array_equal(found.values, [[1, 2], [np.nan, 4], [5, np.nan]])
    assert read_signal(tmp_path / "two.csv", timed=True).times.tolist() == [0, 1, 2]


def test_folders_of_several_rates_and_lead_sets_are_resampled_and_chosen(tmp_path):
    t, labels = np.arange(4000) / 4000, np.array(["low", "high"] * 6)
    for k, label in enumerate(labels):
        rate, tone = (4000, 2000)[k % 3 == 0], {"low": 100, "high": 300}[label]
        sound = 0.5 * np.sin(2 * np.pi * tone * t[:: 4000 // rate])
        miniatures.write_wav(tmp_path / "wav" / label / f"{k}.wav", sound, rate)
        lead, other = np.sin(2 * np.pi * 3 * t[:: 4000 // rate]), np.cos(2 * np.pi * tone * t[:: 4000 // rate])
        names, columns = (("II", "V1"), (lead, other)) if k % 2 else (("V5", "II"), (other, lead))
        miniatures.write_record(tmp_path / "wfdb" / f"r{k}", 1000 * np.stack(columns, axis=1), rate, names)
    pd.DataFrame({"record": [f"r{k}" for k in range(12)], "label": labels}).to_csv(
        tmp_path / "wfdb/labels.csv", index=False
    )
    with pytest.raises(DataError, match=r"2000 Hz, .*; the others have 4000 Hz, .*--sampling-rate makes them one"):
        load_wav_folder(tmp_path / "wav")
    sounds = get_task("wav").with_options({"folder": str(tmp_path / "wav"), "sampling_rate": 2000}).load(0)
    assert (sounds.info.sampling_rate, sounds.info.length) == (2000, 2000)
    options = get_task("wfdb").with_options({"folder": str(tmp_path / "wfdb"), "sampling_rate": 2000, "leads": "II"})
    data = options.load(0)
    assert (data.info.channels, data.info.sampling_rate) == (("II",), 2000)
    x = data.train.x[..., 0] * data.info.scale[1][0] + data.info.scale[0][0]
    expected = torch.from_numpy(np.sin(2 * np.pi * 3 * t[::2])).float()
    assert (x[:, 100:-100] - expected[100:-100]).abs().max() < 0.01, (
        "every record's lead II, whatever its place and rate"
    )

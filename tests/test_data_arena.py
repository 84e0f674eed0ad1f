"""Text, Retrieval, Image and Speech Commands against slow readings of miniatures in the official layouts."""

import collections
import os
import pickle

import numpy as np
import pytest
import soundfile
import torch
from PIL import Image

import miniatures
from miniatures import load_image, load_retrieval, load_speech, load_text
from wavessm.data import check_set, list_sets
from wavessm.errors import DataError, OptionError
from wavessm_lab.tasks.image import grey


def everything(source):
    return source.take(torch.arange(len(source)))


def texts_of(data, source):
    batch = everything(source)
    x, lengths = batch.x.flatten(0, -2), batch.lengths.flatten()
    return [[data.info.symbols[t] for t in row[:length]] for row, length in zip(x.tolist(), lengths, strict=True)]


# -- Text -----------------------------------------------------------------------------------------------------------


def test_reviews_are_read_by_character_with_an_end(tmp_path):
    miniatures.aclimdb(tmp_path)
    data = load_text(tmp_path, hold_out=4, min_count=3)
    written = {part: {} for part in ("train", "test")}
    for part, texts in written.items():
        for path in (tmp_path / "aclImdb" / part).rglob("*.txt"):
            texts[path.read_text(encoding="utf-8")] = int(path.parent.name == "pos")
    files = (tmp_path / "aclImdb" / "train").rglob("*.txt")
    counts = collections.Counter("".join(path.read_text(encoding="utf-8") for path in files))
    assert set(data.info.symbols[3:]) == {c for c, n in counts.items() if n >= 3}
    assert [len(data.train), len(data.val), len(data.test)] == [20, 4, 24]
    for part, source in (("train", data.train), ("train", data.val), ("test", data.test)):
        for symbols, label in zip(texts_of(data, source), source.y.tolist(), strict=True):
            assert symbols[-1] == "<eos>"
            heard = [
                [c if counts.get(c, 0) >= 3 else "<unk>" for c in text]
                for text, y in written[part].items()
                if y == label
            ]
            assert symbols[:-1] in heard, "a review that was never written"


def test_held_out_reviews_do_not_train_and_the_choice_is_fixed(tmp_path):
    miniatures.aclimdb(tmp_path)
    data, again = load_text(tmp_path, hold_out=5), load_text(tmp_path, hold_out=5)
    assert not set(data.train.starts.tolist()) & set(data.val.starts.tolist())
    assert data.val.starts.tolist() == again.val.starts.tolist()
    every = load_text(tmp_path, hold_out=0)
    assert len(every.train) == 24
    assert set(every.val.starts.tolist()) <= set(every.train.starts.tolist())
    with pytest.raises(OptionError, match="expected 0 to 23"):
        load_text(tmp_path, hold_out=24)


def test_long_reviews_are_cut_and_the_vocabulary_knows_only_what_is_left(tmp_path):
    miniatures.aclimdb(tmp_path)
    for path in (tmp_path / "aclImdb").rglob("*.txt"):
        path.write_text("abcdefgh§" * 3)
    data = load_text(tmp_path, max_length=9, hold_out=2, min_count=1)
    assert texts_of(data, data.test)[0] == [*"abcdefgh", "<eos>"]
    assert "§" not in data.info.symbols


def test_text_that_is_not_utf8_is_named(tmp_path):
    miniatures.aclimdb(tmp_path)
    (tmp_path / "aclImdb" / "test" / "neg" / "3_2.txt").write_bytes(b"caf\xe9 au lait")
    with pytest.raises(DataError, match=r"3_2\.txt: not UTF-8 text at byte 3"):
        load_text(tmp_path)


# -- Retrieval ------------------------------------------------------------------------------------------------------


def test_pairs_keep_their_partners_labels_and_quotes(tmp_path):
    miniatures.aan(tmp_path)
    data = load_retrieval(tmp_path)
    for part, source in (("train", data.train), ("eval", data.val), ("test", data.test)):
        lines = (tmp_path / "tsv_data" / f"new_aan_pairs.{part}.tsv").read_text().split("\n")[:-1]
        batch = everything(source)
        assert batch.x.shape[:2] == (16, 2)
        texts = texts_of(data, source)
        for i, line in enumerate(lines):
            label, _, _, one, other = line.split("\t")
            assert texts[2 * i] == [*one, "<eos>"]
            assert texts[2 * i + 1] == [*other, "<eos>"]
            assert int(batch.y[i]) == int(float(label))
    assert '"' in data.info.symbols


def test_a_broken_line_of_pairs_is_named(tmp_path):
    miniatures.aan(tmp_path)
    path = tmp_path / "tsv_data" / "new_aan_pairs.eval.tsv"
    path.write_text(path.read_text() + "1.0\tP1\tQ1\tonly one text\n")
    with pytest.raises(DataError, match="line 17 has 4 fields"):
        load_retrieval(tmp_path)


# -- Image ----------------------------------------------------------------------------------------------------------


def test_grey_is_pillows():
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (5000, 3), dtype=np.uint8)
    theirs = np.asarray(Image.fromarray(pixels[None]).convert("L"))[0]
    np.testing.assert_array_equal(grey(pixels[:, :, None])[:, 0], theirs)


def test_pictures_of_cifar_are_those_of_its_files_in_grey(tmp_path):
    miniatures.cifar(tmp_path)
    data = load_image(tmp_path)
    assert [len(data.train), len(data.val), len(data.test)] == [54, 6, 12]
    raw = pickle.loads((miniatures.cifar(tmp_path / "other") / "cifar-10-batches-py" / "test_batch").read_bytes())
    picture = raw[b"data"][7].reshape(3, 32, 32).transpose(1, 2, 0)
    luma = np.asarray(Image.fromarray(picture).convert("L")).astype(np.float64)
    batch = data.test.take(torch.tensor([7]))
    np.testing.assert_allclose(batch.x[0, :, 0], ((luma / 255 - 122.6 / 255) / (61 / 255)).reshape(-1), atol=1e-5)
    assert int(batch.y[0]) == 7
    order = torch.randperm(60, generator=torch.Generator().manual_seed(42))
    assert data.train.y.tolist() == [int(row) % 12 % 10 for row in order[:54]]


def test_a_pickle_that_wants_to_run_something_is_refused(tmp_path):
    miniatures.cifar(tmp_path)

    class Evil:
        def __reduce__(self):
            return os.system, ("touch " + str(tmp_path / "owned"),)

    (tmp_path / "cifar-10-batches-py" / "data_batch_2").write_bytes(pickle.dumps({b"data": Evil()}))
    with pytest.raises(DataError, match=r"data_batch_2: not a file of CIFAR-10, or truncated \(it asks for"):
        load_image(tmp_path)
    assert not (tmp_path / "owned").exists()


# -- Speech Commands ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def speech35(tmp_path_factory):
    return miniatures.speech(tmp_path_factory.mktemp("speech"))


def clip(root, name):
    values, _ = soundfile.read(root / "speech_commands_v0.02" / name, dtype="int16")
    return np.pad(values, (0, 16_000 - len(values))).astype(np.float64)


def test_lists_decide_the_parts_and_short_clips_end_in_zeros(speech35):
    data = load_speech(speech35)
    assert [len(data.train), len(data.val), len(data.test)] == [35, 35, 35]
    assert data.info.classes == tuple(miniatures.WORDS[35])
    train = np.stack([clip(speech35, f"{word}/training0_nohash_0.wav") for word in miniatures.WORDS[35]]) / 32768
    test = np.stack([clip(speech35, f"{word}/testing0_nohash_0.wav") for word in miniatures.WORDS[35]]) / 32768
    np.testing.assert_allclose(everything(data.train).x[..., 0], (train - train.mean()) / train.std(), atol=1e-4)
    np.testing.assert_allclose(everything(data.test).x[..., 0], (test - train.mean()) / train.std(), atol=1e-4)
    assert data.train.y.tolist() == list(range(35))
    assert (train[0, 9_000:] == 0).all()
    assert data.info.scale[1][0] == pytest.approx(train.std())
    assert data.info.sampling_rate == 16_000


def test_thirty_words_are_version_one(tmp_path):
    miniatures.speech(tmp_path, words=30)
    assert load_speech(tmp_path, words=30).info.d_output == 30
    (tmp_path / "speech_commands_v0.01").rename(tmp_path / "speech_commands_v0.02")
    with pytest.raises(DataError, match=r"30 folders of words, expected 35; of version 0\.01 ask for 30"):
        load_speech(tmp_path)


def test_bad_and_missing_clips_are_named(tmp_path):
    root = miniatures.speech(tmp_path, words=30)
    folder = root / "speech_commands_v0.01"
    miniatures.write_wav(folder / "bed" / "fast_nohash_1.wav", np.zeros(100), 8_000)
    with pytest.raises(DataError, match=r"fast_nohash_1\.wav: 8000 Hz, 1 channels, 100 samples"):
        load_speech(root, words=30)
    assert load_speech(root, words=30, skip_bad=True).info.skipped == ("bed/fast_nohash_1.wav",)
    (folder / "cat" / "testing0_nohash_0.wav").unlink()
    with pytest.raises(DataError, match=r"cat/testing0_nohash_0\.wav is in testing_list\.txt, but not there"):
        load_speech(root, words=30, skip_bad=True)


# -- the catalogue --------------------------------------------------------------------------------------------------


def test_sets_are_listed_and_miniatures_found_too_small(tmp_path):
    for make in (miniatures.aclimdb, miniatures.aan, miniatures.cifar, miniatures.pathfinder):
        make(tmp_path)
    sizes = list_sets(tmp_path)
    assert {name for name, size in sizes.items() if size} == {"text", "retrieval", "image", "pathfinder"}
    findings = check_set(tmp_path, "image")
    assert [finding.level for finding in findings] == ["problem"]
    assert "(54, 6, 12), expected (45000, 5000, 10000)" in findings[0].text
    assert "wavessm data generate listops" in check_set(tmp_path, "listops")[0].text

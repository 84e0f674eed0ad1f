"""Beats and other events inside long records: windows, classes, split, predictions over a record, and bad input."""

import csv
import json

import numpy as np
import pytest
import torch

from contracts import check_mistake
from wavessm.cli import main
from wavessm.data import load
from wavessm.errors import DataError, OptionError, import_extra
from wavessm.training import Run, predict_events

wfdb = import_extra("wfdb", "tests")
RATE, SECONDS = 360, 20
SMALL = ["--d-model", "8", "--n-layers", "1", "--d-state", "8", "--quiet"]
MITBIH = ("100", "101", "102", "103", "114", "201", "207")
AAMI = {"N": "N", "L": "N", "V": "V", "A": "S", "/": "Q"}
pytestmark = pytest.mark.filterwarnings("ignore:The inplace keyword")  # wfdb under a new pandas


@pytest.fixture(autouse=True)
def own_cache(monkeypatch):
    monkeypatch.delenv("WAVESSM_CACHE", raising=False)


def write(folder, name, symbols="NNVNLNA", rate=RATE, fmt="212", leads=("MLII", "V1"), at=None, seconds=SECONDS):
    """A record with a beat about every 0.8 s: upright where normal, inverted and wide where ventricular."""
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(list(name.encode()))
    if at is None:
        count = int((seconds - 1.5) / 0.8)
        at = ((0.9 + 0.8 * np.arange(count) + rng.uniform(0, 0.2, count)) * rate).astype(int)
    kinds = [symbols[i % len(symbols)] for i in range(len(at))]
    time = np.arange(seconds * rate)[:, None] / rate
    signal = 0.05 * rng.standard_normal((len(time), len(leads)))
    for sample, kind in zip(at, kinds, strict=True):
        width, height = (0.08, -1.0) if kind == "V" else (0.02, 1.5)
        signal += height * np.exp(-(((time - sample / rate) / width) ** 2)) * np.linspace(1.0, 0.4, len(leads))
    units, count = ["mV"] * len(leads), len(leads)
    wfdb.wrsamp(name, rate, units, list(leads), signal, fmt=[fmt] * count, adc_gain=[200.0] * count,
                baseline=[0] * count, write_dir=str(folder))  # fmt: skip
    wfdb.wrann(name, "atr", np.array([5, *at]), ["+", *kinds], write_dir=str(folder))
    return at, kinds


@pytest.fixture
def mitbih(tmp_path):
    """Some records with the names and the layout of MIT-BIH; of 114 the leads are swapped, as there."""
    for name in MITBIH:
        write(tmp_path / "mitbih", name, leads=("V5", "MLII") if name == "114" else ("MLII", "V1"))
    return tmp_path / "mitbih"


def cases(data):
    """(part, label, samples in millivolts) of all cases."""
    mean, std = (torch.tensor(values) for values in data.info.scale)
    for part in ("train", "val", "test"):
        batch = getattr(data, part).take(torch.arange(len(getattr(data, part))))
        for k, (x, y) in enumerate(zip(batch.x, batch.y, strict=True)):
            length = len(x) if batch.lengths is None else int(batch.lengths[k])
            yield part, data.info.classes[y], (x[:length] * std + mean).numpy()


def expected(folder, name, lead, before, after):
    """(label, samples) of all beats of a record that have a whole window, by wfdb alone."""
    record, beats = wfdb.rdrecord(str(folder / name)), wfdb.rdann(str(folder / name), "atr")
    column = record.p_signal[:, record.sig_name.index(lead)]
    for sample, symbol in zip(beats.sample, beats.symbol, strict=True):
        if symbol in AAMI and sample >= before and sample + after <= len(column):
            yield AAMI[symbol], column[sample - before : sample + after]


def test_windows_classes_and_split_are_those_of_mitbih(mitbih, caplog):
    data = load("beats", mitbih)
    parts = {"train": ("101", "201"), "val": ("114", "207"), "test": ("100", "103")}  # 102 is paced
    wanted = [
        (part, label, window)
        for part, names in parts.items()
        for name in names
        for label, window in expected(mitbih, name, "MLII", 108, 180)
    ]
    found = list(cases(data))
    assert [case[:2] for case in found] == [case[:2] for case in wanted]
    for (_, _, mine), (_, _, other) in zip(found, wanted, strict=True):
        np.testing.assert_allclose(mine[:, 0], other, atol=1e-5)
    assert (data.info.classes, data.info.channels, data.info.sampling_rate) == (
        ("N", "S", "V"),
        ("MLII", "pre-RR", "post-RR"),
        360.0,
    )
    assert "left out 6 +" in caplog.text


def test_every_record_of_the_published_split_is_in_one_part():
    from wavessm.data.datasets.beats import PAPER_SPLIT

    train, val, test = (set(PAPER_SPLIT[part].split()) for part in ("train", "val", "test"))
    assert (len(train | val), len(test), len(train | val | test)) == (22, 22, 44)
    assert not {"102", "104", "107", "217"} & (train | val | test)


def units(window):
    """Samples as the record stores them, as a key."""
    return np.rint(200 * window).astype(int).tobytes()


def test_other_records_are_split_as_a_whole_and_every_class_is_in_training(tmp_path):
    for k in range(9):
        write(tmp_path, f"r{k}", symbols="NV" if k < 8 else "NVA")
    data = load("beats", tmp_path)
    place = {}
    stored = {units(window): f"r{k}" for k in range(9) for _, window in expected(tmp_path, f"r{k}", "MLII", 108, 180)}
    for part, _, window in cases(data):
        place.setdefault(stored[units(window[:, 0])], set()).add(part)
    assert {len(parts) for parts in place.values()} == {1}
    assert place["r8"] == {"train"}
    assert len(place) == 9
    assert {part for parts in place.values() for part in parts} == {"train", "val", "test"}


def test_two_leads_another_rate_and_the_distance_of_beats(tmp_path):
    beats = {name: write(tmp_path, name, fmt="16", rate=rate) for name, rate in
             (("a", 360), ("b", 360), ("c", 180), ("d", 360))}  # fmt: skip
    with pytest.raises(DataError, match=r"c: 180 Hz, .*; the others have 360 Hz, .* --sampling-rate"):
        load("beats", tmp_path)
    data = load("beats", tmp_path, leads="v1,0", sampling_rate=180.0, before=0.1, after=0.2, rr=True)
    assert data.info.channels == ("V1", "MLII", "pre-RR", "post-RR")
    found = [window for _, _, window in cases(data)]
    assert {window.shape for window in found} == {(18 + 36, 4)}
    record = wfdb.rdrecord(str(tmp_path / "c")).p_signal
    at = beats["c"][0]
    for k in (0, 3, len(at) - 1):
        own = record[at[k] - 18 : at[k] + 36, ::-1]
        mine = [window for window in found if np.abs(window[:, :2] - own).max() < 1e-4]
        assert len(mine) == 1
        gaps = np.diff(at) / np.diff(at).mean()
        np.testing.assert_allclose(mine[0][:, 2], gaps[k - 1] if k else 1.0, atol=1e-4)
        np.testing.assert_allclose(mine[0][:, 3], gaps[k] if k < len(at) - 1 else 1.0, atol=1e-4)
    slow = next(window for window in found if abs(window[18, 1] - 1.5) < 0.3)  # a resampled beat keeps its height
    assert slow[:, 1].argmax() in (17, 18, 19)


def test_a_table_of_events_gives_windows_of_their_length(tmp_path):
    rows = [("record", "start", "end", "label")]
    for name in ("a", "b", "c", "d"):
        write(tmp_path, name)
        rows += [(name, 2, 3.5, "x"), (name, 6, 6.25, "y"), (name, 0, 1, "x")]
    with (tmp_path / "events.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    data = load("beats", tmp_path, events=str(tmp_path / "events.csv"), before=0.5, after=0.5)
    found = [(label, len(window)) for _, label, window in cases(data)]
    assert sorted(found) == [("x", 900)] * 4 + [("y", 450)] * 4  # those at 0 s have no whole window
    signal = wfdb.rdrecord(str(tmp_path / "a")).p_signal[540 : 540 + 900, 0]
    assert any(len(w) == 900 and np.abs(w[:, 0] - signal).max() < 1e-5 for _, _, w in cases(data))


def test_what_cannot_be_used_is_one_line(tmp_path):
    for name in ("a", "b", "c", "d"):
        write(tmp_path, name)
    write(tmp_path, "e", leads=("V5",))
    with pytest.raises(DataError, match=r"e: no lead 'MLII'; it has V5\. .*skip_bad"):
        load("beats", tmp_path)
    assert load("beats", tmp_path, skip_bad=True).info.skipped == ("e",)
    (tmp_path / "e.atr").unlink()
    with pytest.raises(DataError, match=r"e\.atr: the annotation file is missing; .*--annotations"):
        load("beats", tmp_path, leads="0")
    write(tmp_path, "e")
    wfdb.wrann("e", "atr", np.array([400, SECONDS * RATE]), ["N", "V"], write_dir=str(tmp_path))
    with pytest.raises(DataError, match=r"e: V at 20 s lies outside of its 20 s"):
        load("beats", tmp_path)
    (tmp_path / "e.atr").write_bytes(b"\xff")
    with pytest.raises(DataError, match=r"e\.atr: wfdb cannot read it"):
        load("beats", tmp_path)
    with pytest.raises(DataError, match=r"no event is left in 4 records; found only .*4 \+"):
        load("beats", tmp_path, classes="F", leave_out="e")
    with pytest.raises(DataError, match=r"no WFDB record \(\*\.hea\) in it"):
        load("beats", tmp_path, leave_out="a,b,c,d,e")
    with pytest.raises(DataError, match="2 groups are too few to draw 2 parts"):
        load("beats", tmp_path, leave_out="c,d,e")
    write(tmp_path, "100", symbols="NF")
    write(tmp_path, "101"), write(tmp_path, "114")
    with pytest.raises(DataError, match=r"100, F at .* s: label F never occurs in training"):
        load("beats", tmp_path, leave_out="a,b,c,d,e")


def test_events_that_cannot_be_used_are_one_line(tmp_path):
    write(tmp_path, "a")
    table = tmp_path / "events.csv"
    for text, said in (
        ("record,start,end,label\na,3,2,x\n", "ends at 2 before its start 3, line 2"),
        ("record,start,end,label\na,3,2,\n", "nothing in column 'label', line 2"),
        ("record,begin,label\na,3,x\n", "column 'start' is missing"),
        ("record,start,label\na,soon,x\n", "'soon' in column 'start', line 2"),
        ("record,start,label\nz,3,x\n", "z.hea: the header is missing"),
        ("record,start,label\n../a,3,x\n", "outside of the folders that may be read"),
    ):
        table.write_text(text)
        with pytest.raises(DataError, match=said.replace(".", r"\.")):
            load("beats", tmp_path, events=str(table))


def test_the_command_line_trains_on_beats(mitbih, tmp_path, capsys):
    run = tmp_path / "run"
    assert main(["train", "beats", str(mitbih), "--leads", "MLII", "--out", str(run), "--steps", "1", *SMALL]) == 0
    labels = [label for name in ("100", "103") for label, _ in expected(mitbih, name, "MLII", 108, 180)]
    said = capsys.readouterr().out
    assert "test: accuracy" in said
    assert f"most frequent class: accuracy {labels.count('N') / len(labels):.4g}" in said
    assert json.loads((run / "run.json").read_text())["info"]["classes"] == ["N", "S", "V"]
    assert main(["evaluate", str(run)]) == 0
    assert main(["train", "beats", str(tmp_path / "nowhere"), "--steps", "1", *SMALL]) == 2
    assert capsys.readouterr().err.strip().endswith("no such folder; expected one with WFDB records.")


# -- predictions over a record ----------------------------------------------------------------------------------------


@pytest.fixture
def trained(mitbih, tmp_path):
    """A run of a few steps on windows of 0.2 s, so that its outputs differ along a record."""
    run = tmp_path / "trained"
    given = ["--before", "0.1", "--after", "0.1", "--steps", "12", "--lr", "0.05", "--batch-size", "32", "--no-rr"]
    assert main(["train", "beats", str(mitbih), "--out", str(run), *given, *SMALL]) == 0
    return Run.read(run)


def probabilities(run, windows):
    """Of windows (windows, length) in millivolts."""
    x = run.info.standardise(torch.tensor(np.asarray(windows), dtype=torch.float32)[..., None])
    with torch.no_grad():
        return torch.softmax(run.load_model()(x), dim=1).numpy()


def test_annotated_beats_have_a_row_each(mitbih, trained, tmp_path, capsys):
    out, figure = tmp_path / "beats.csv", tmp_path / "beats.png"
    command = ["predict", str(trained.folder), str(mitbih / "114.hea"), "--events", "--out", str(out)]
    assert main([*command, "--plot", str(figure)]) == 0
    rows = list(csv.DictReader(out.read_text().splitlines()))
    wanted = list(expected(mitbih, "114", "MLII", 36, 36))
    assert [row["annotated"] for row in rows] == [label for label, _ in wanted]
    found = np.array([[float(row[name]) for name in trained.info.classes] for row in rows])
    np.testing.assert_allclose(found, probabilities(trained, [window for _, window in wanted]), atol=1e-4)
    assert [row["prediction"] for row in rows] == [trained.info.classes[k] for k in found.argmax(axis=1)]
    beats = wfdb.rdann(str(mitbih / "114"), "atr").sample[1:]
    np.testing.assert_allclose([float(row["time"]) for row in rows], beats / RATE, atol=6e-4)
    assert figure.stat().st_size > 10_000
    assert main(["predict", str(trained.folder), str(mitbih / "114.hea"), "--events", "--out",
                 str(mitbih / "114.atr")]) == 2  # fmt: skip
    assert "would be overwritten" in capsys.readouterr().err


def test_overlapping_windows_are_averaged_into_a_track(mitbih, trained):
    """Against a mean over the windows of every single sample; 0.07 s does not divide the record."""
    length, step = 72, round(0.07 * RATE)
    signal = wfdb.rdrecord(str(mitbih / "100")).p_signal[:, 0]
    starts = sorted({*range(0, len(signal) - length + 1, step), len(signal) - length})
    sums, counts = np.zeros((len(signal), 3)), np.zeros(len(signal))
    for start, row in zip(starts, probabilities(trained, [signal[a : a + length] for a in starts]), strict=True):
        sums[start : start + length] += row
        counts[start : start + length] += 1
    mean = sums / counts[:, None]
    track = predict_events(trained, mitbih / "100.hea", stride=0.07)
    assert len(track) > 1, "a model that always says the same would show nothing"
    assert (track[0]["start"], track[-1]["end"]) == ("0.000", "20.000")
    for row, following in zip(track, [*track[1:], {"start": "20.000", "prediction": ""}], strict=True):
        assert row["end"] == following["start"]
        assert row["prediction"] != following["prediction"]
        a, b = (round(float(row[name]) * RATE) for name in ("start", "end"))
        assert {trained.info.classes[k] for k in mean[a:b].argmax(axis=1)} == {row["prediction"]}
        assert row["score"] == pytest.approx(mean[a:b, trained.info.classes.index(row["prediction"])].mean(), abs=1e-5)
    (mitbih / "100.atr").unlink()
    assert predict_events(trained, mitbih / "100.hea", stride=0.05) == predict_events(trained, mitbih / "100.hea")


def test_records_that_cannot_be_predicted_are_one_line(mitbih, trained, tmp_path, capsys):
    write(tmp_path, "other", leads=("V5",))
    with pytest.raises(DataError, match="no lead 'MLII'; it has V5"):
        predict_events(trained, tmp_path / "other.hea")
    with pytest.raises(DataError, match=r"20 s, windows of 0\.2 s every 9 s; expected"):
        predict_events(trained, mitbih / "100.hea", stride=9.0)
    with pytest.raises(OptionError, match="stride"):
        predict_events(trained, mitbih / "100.hea", stride=-1.0)
    for words in (["--events"], ["-", "--events"], [str(mitbih / "100.hea"), "--stride", "1"]):
        check_mistake(["predict", str(trained.folder), *words], "--events and --stride read whole records", capsys)

"""The page of `wavessm explore` without a browser: links, pictures, the lines that make them, and what it refuses."""

import base64
import http.client
import io
import itertools
import json
import os
import socket
import sys
import threading
import wave
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import miniatures
import wavessm as ws
from contracts import check_mistake
from wavessm.cli import main

pytest.importorskip("dash", reason="needs wavessm-lab and its dash")

from wavessm.errors import DataError, OptionError
from wavessm.training import SELECTION
from wavessm_lab.cli.explore import ExploreOptions, make_server
from wavessm_lab.explore import app, runs, signals, stream, study
from wavessm_lab.explore.allowed import LARGEST, AllowedFiles
from wavessm_lab.explore.lines import lines_of
from wavessm_lab.explore.state import FILE, State, coordinates

SMALL = ["--d-model", "8", "--n-layers", "2", "--d-state", "8", "--device", "cpu", "--quiet", "--steps", "3"]


@pytest.fixture
def allowed(tmp_path):
    (tmp_path / "given").mkdir()
    return AllowedFiles([tmp_path / "given"])


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with a run of each kind and its data."""
    folder = tmp_path_factory.mktemp("explore")
    miniatures.arrays(folder / "arrays")
    miniatures.csv(folder / "series.csv", rows=200)
    assert main(["train", "arrays", str(folder / "arrays"), "--out", str(folder / "multiclass"), *SMALL]) == 0
    series = ["train", "csv", str(folder / "series.csv"), "--context", "24", "--horizon", "6"]
    assert main([*series, "--out", str(folder / "forecast"), *SMALL]) == 0
    copying = ["train", "window-copy", "--length", "32", "--d-min", "2", "--d-max", "2", "--cases", "32"]
    assert main([*copying, "--out", str(folder / "regression"), *SMALL]) == 0
    return folder


def unpacked(part):
    """What a packed array holds."""
    shape = [int(size) for size in part["shape"].split(",")] if "shape" in part else [-1]
    return np.frombuffer(base64.b64decode(part["bdata"]), "<f4").reshape(shape)


def draw(allowed, state, side="left"):
    return app.draw_side(allowed, side, app.values_of(state))


def npy(array, **options):
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


def wav(samples, rate=8000):
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setparams((1, 2, rate, 0, "NONE", ""))
        out.writeframes((np.asarray(samples) * 20000).astype("<i2").tobytes())
    return file.getvalue()


def bumps(count=12, length=400):
    s = np.linspace(0, 1, length)
    return np.stack([np.exp(-(((s - c) / 0.06) ** 2)) for c in np.linspace(0, 1, count)])


# -- links --------------------------------------------------------------------------------------------------------

STATES = st.builds(
    State,
    view=st.sampled_from(["frame", "operator", "memory", "runs"]),
    family=st.sampled_from(["morlet", "db6", "legendre", "file:a b/ü&=?.npy"]),
    other=st.sampled_from(["", "fourier"]),
    n=st.integers(2, 256),
    measure=st.sampled_from(["scaled", "translated"]),
    low=st.sampled_from([0.25, 0.5946, 3.0]),
    high=st.sampled_from([16.0, 181.019, 5.5]),
    signal=st.sampled_from(["ecg", "blocks", "file:x,y.csv"]),
    channel=st.integers(0, 9),
    window=st.sampled_from([0.05, 0.5, 1.0]),
    time=st.integers(0, 1000).map(lambda k: k / 1000),
    mask=st.tuples(st.integers(0, 50), st.integers(50, 100)).map(lambda pair: (float(pair[0]), float(pair[1]))),
    also=st.sampled_from(["", "3, 17-20"]),
    run=st.sampled_from(["", "runs/mine"]),
    predict=st.sampled_from(["", "test"]),
).flatmap(lambda state: st.sampled_from([state, replace(state, low=None, high=None)]))


@given(STATES)
def test_a_link_brings_back_the_same_state(state):
    assert State.from_link(state.to_link()) == (state, "")


@given(STATES)
def test_the_controls_of_a_state_stand_for_it(state):
    assert replace(app.state_of(app.values_of(state)), time=state.time) == state
    assert app.values_of(state)["time"] == state.time


@pytest.mark.parametrize(
    ("link", "said"),
    [
        ("?n=abc", "n is 'abc', expected a number"),
        ("?n=1e400", "n is '1e400', expected a number"),
        ("?n=100000", "n is 100000, expected 2 to 256"),
        ("?n=2.5", "n is '2.5', expected a number"),
        ("?time=nan", "time is nan, expected 0 to 1"),
        ("?mask=30", "expected two numbers"),
        ("?mask=60-20", "mask is 60, expected 0 to 20"),
        ("?view=secrets", "unknown view 'secrets'"),
        ("?colour=red", "unknown part 'colour'"),
        ("?also=1-x", "'1-x' is no index"),
    ],
)
def test_a_bad_link_says_what_is_wrong_and_shows_the_rest(link, said):
    state, complaint = State.from_link(link + "&family=db6")
    assert said in complaint
    assert "\n" not in complaint
    assert state == State(family="db6")


def test_one_end_of_a_range_of_frequencies_brings_the_usual_other():
    assert State.from_link("?high=9")[0] == State(low=0.5, high=9.0)
    assert State.from_link("?low=2")[0] == State(low=2.0, high=16.0)


def test_indices_are_read_and_bounded():
    assert coordinates("3, 17-20,3") == [3, 17, 18, 19, 20]
    assert coordinates("0-99999999") == list(range(257))
    with pytest.raises(OptionError):
        coordinates("-1")


# -- pictures and the lines that compute them ---------------------------------------------------------------------


def run_lines(state, allowed):
    """What the printed lines leave behind."""
    names = {}
    exec(lines_of(state, allowed), names)
    return names


def coverage_of(tight):
    """Σ φ_n(s)² |φ̂_n(f)|² as the documentation has it, (frequencies, times)."""
    times, count = study.CELLS
    f = np.geomspace(0.25, min(max(4.0, 1.6 * tight.frequencies.max()), len(tight.grid) / 4), count)
    power = np.abs((tight.atoms * tight.weights) @ np.exp(-2j * np.pi * np.outer(tight.grid, f))) ** 2
    return power.T @ tight.evaluate((np.arange(times) + 0.5) / times) ** 2


def test_the_frame_in_pictures_numbers_and_lines(allowed):
    state = State(family="gauss", n=24, low=0.5, high=8.0)
    answer = draw(allowed, state)
    assert answer["message"] == ""
    assert answer["link"] == "?family=gauss&n=24&low=0.5&high=8"
    frame = ws.make_frame("gauss", 24, f_min=0.5, f_max=8.0)
    numbers = [card.children[1].children for card in answer["numbers"]]
    assert numbers[0] == f"{frame.condition_number():.3g}"
    assert numbers[1] == "1.0000"
    names = run_lines(state, allowed)
    z = unpacked(answer["coverage"]["data"][0]["z"])
    np.testing.assert_allclose(z, coverage_of(names["tight"]), rtol=1e-4, atol=1e-6)
    lines = answer["atoms"]["data"]
    tight = frame.tighten()
    found = study.study(study.Choice("gauss", 24, "scaled", 0.5, 8.0)).shown
    drawn = unpacked(lines[1]["y"])[:400]
    true = tight.evaluate(np.linspace(0, 1, 400))[found[0]]
    np.testing.assert_allclose(drawn / np.abs(drawn).max(), true / np.abs(true).max(), atol=1e-5)


def test_coverage_is_one_where_everything_is_held(allowed):
    held = study.study(study.Choice("fourier", 64, "scaled")).coverage
    inside = held[2][(held[1] > 2) & (held[1] < 25)]
    outside = held[2][held[1] > 45]
    assert inside.mean() == pytest.approx(1, abs=0.1)
    assert outside.mean() < 0.05


@pytest.mark.parametrize("measure", ["scaled", "translated"])
def test_the_operator_in_pictures_and_lines(allowed, measure):
    state = State(view="operator", family="legendre", other="db6", n=20, measure=measure)
    names = run_lines(state, allowed)  # the last frame of the lines is the right side
    answer = draw(allowed, state, "right")
    assert answer["message"] == ""
    op = ws.make_operator("db6", measure, 20)
    shown = unpacked(answer["matrix"]["data"][0]["z"])
    np.testing.assert_allclose(shown * np.abs(shown) * np.abs(op.A).max(), op.A, atol=1e-4 * np.abs(op.A).max())
    dots = answer["eigenvalues"]["data"][0]
    np.testing.assert_allclose(np.sort(unpacked(dots["x"])), np.sort(names["modes"].lam.real), rtol=1e-4, atol=1e-4)
    found = study.study(study.Choice("db6", 20, measure))
    np.testing.assert_allclose(found.jacobian, names["J"])
    rows = unpacked(answer["jacobian"]["data"][0]["z"])
    assert rows.shape == (20, study.LENGTH)
    np.testing.assert_allclose(rows.max(axis=1), 1, rtol=1e-6)


@pytest.mark.parametrize("measure", ["scaled", "translated"])
@pytest.mark.parametrize("family", ["morlet", "legendre"])
def test_the_memory_in_pictures_and_lines(allowed, measure, family):
    state = State(view="memory", family=family, n=20, measure=measure, window=0.3, time=0.6, mask=(20, 50), also="0",
                  signal="blocks")  # fmt: skip
    names = run_lines(state, allowed)
    moving = draw(allowed, state)["moving"]
    i = stream.moment_at(0.6, len(names["x"]))
    recalled = np.frombuffer(base64.b64decode(moving["recalled"]), "<f4").reshape(-1, moving["points"])
    without = np.frombuffer(base64.b64decode(moving["without"]), "<f4").reshape(-1, moving["points"])
    size = np.abs(names["recalled"]).max()
    np.testing.assert_allclose(recalled[i], names["recalled"], atol=1e-5 * size)
    np.testing.assert_allclose(without[i], names["without"], atol=1e-5 * size)
    assert moving["end"][i] == moving["moments"][i]
    assert names["t"][0] == pytest.approx(moving["begin"][i], abs=names["t"][1] - names["t"][0])
    assert np.abs(without[i] - recalled[i]).max() > 0.05 * size
    json.dumps(moving)


@pytest.mark.parametrize("family", ["legendre", "morlet"])
@pytest.mark.parametrize("length", [17, 1000])
def test_states_at_moments_are_those_of_the_whole_projection(family, length):
    memory = ws.OnlineMemory(ws.make_operator(family, "scaled", 33))
    x = np.random.default_rng(0).standard_normal(length)
    heard = stream.moments(length)
    assert heard[-1] == length
    whole = memory.project(x)[heard - 1].numpy()
    np.testing.assert_allclose(stream.states_at(memory, x, heard), whole, atol=1e-10)


def test_masking_takes_one_stretch_of_the_past_from_wavelets_and_a_bit_of_all_from_polynomials(allowed):
    lost = {}
    for family in ("morlet", "legendre"):
        found = study.study(study.Choice(family, 64, "scaled"))
        flow = stream.stream_of(found.choice, signals.signal_of(allowed, "blocks"), 0.5)
        masked = stream.mask_of(State(mask=(40, 60)), found)
        assert masked.sum() in (12, 13)
        lost[family] = flow.lost(masked)
    assert lost["morlet"][110:146].mean() > 0.7
    assert np.concatenate([lost["morlet"][:70], lost["morlet"][-70:]]).mean() < 0.1
    assert np.ptp(lost["legendre"][20:-20]) < 0.15


def test_errors_are_one_line_and_clear_the_pictures(allowed):
    for state, said in (
        (State(n=64, low=0.5, high=2.0), "rank"),
        (State(family="morle"), "did you mean 'morlet'"),
        (State(view="memory", signal="ecgg"), "unknown signal"),
        (State(view="memory", signal="file:/etc/passwd"), "outside of the folders"),
        (State(family="file:/etc/passwd"), "outside of the folders"),
    ):
        answer = draw(allowed, state)
        assert said in answer["message"]
        assert "\n" not in answer["message"]
        assert answer["atoms"]["data"] == []
        assert answer["moving"]["data"] == []
    values = {**app.values_of(State()), "n": "many"}
    assert "n is 'many'" in app.draw_side(allowed, "left", values)["message"]


def test_pictures_of_other_views_stay_as_they_are(allowed):
    from dash import no_update

    answer = draw(allowed, State(n=16))
    assert answer["matrix"] is no_update
    assert answer["moving"] is no_update
    assert draw(allowed, State(n=16), "right")["atoms"] is no_update


# -- files --------------------------------------------------------------------------------------------------------


def put(allowed, name, content):
    """A file in the folder of the page, by its name in the state."""
    path = allowed.folders[0] / name
    path.write_bytes(content)
    return FILE + str(path)


HUGE = npy(np.zeros(4)).replace(b"(4,)", b"(1" + b"0" * 12 + b",)")
BAD_SIGNALS = {
    "letter.csv": (b"time,value\n0,one\n1,two\n", "expected numbers"),
    "ragged.csv": (b"1,2\n3\n" * 20, "line 2 has 1 fields, expected 2"),
    "short.csv": (b"a\n1\n2\n", "2 samples"),
    "gap.csv": (b"1\n" * 20 + b"nan\n", "NaN or infinity"),
    "picture.png": (b"\x89PNG", "unknown"),
    "none.csv": (b"", "empty"),
    "binary.csv": (bytes(range(256)) * 40, "not a"),
    "noise.wav": (b"not a wave file at all, no", "no RIFF/WAVE header"),
    "cut.wav": (wav(np.zeros(4000))[:3000], "truncated"),
    "cut.npy": (npy(np.zeros(4000))[:3000], "not a readable .npy"),
    "objects.npy": (npy(np.array([{}], dtype=object), allow_pickle=True), ".npy"),
    "huge.npy": (HUGE + b" " * 13, ".npy"),
    "cube.npy": (npy(np.zeros((20, 2, 2))), "expected numbers (length, channels)"),
    "infinite.npy": (npy(np.full(50, np.inf)), "NaN or infinity"),
}
BAD_ATOMS = {
    "one.npy": (npy(np.ones(50)), "expected (n, length)"),
    "same.npy": (npy(np.ones((4, 50))), "rank"),
    "wide.npy": (npy(np.eye(300)), "at most 256 atoms"),
    "tall.npy": (npy(np.random.default_rng(0).standard_normal((40, 20))), "2 ≤ n ≤ length"),
    "nan.csv": (b"1,2,nan\n2,3,4\n", "NaN or infinity"),
    "complex.npy": (npy(np.ones((2, 9), complex)), "got complex numbers"),
    "sound.wav": (wav(np.zeros(100)), "no atoms, one a row"),
}


@pytest.mark.parametrize("kind", ["signal", "family"])
def test_bad_files_are_refused_in_one_line(allowed, kind):
    for name, (content, said) in (BAD_SIGNALS if kind == "signal" else BAD_ATOMS).items():
        state = replace(State(view="memory"), **{kind: put(allowed, name, content)})
        message = draw(allowed, state)["message"]
        assert said in message, name
        assert name in message
        assert "\n" not in message


@pytest.mark.parametrize(
    ("name", "content", "length", "seconds"),
    [
        ("bare.csv", "\n".join(f"{k},{np.sin(k / 9)}" for k in range(300)).encode(), 300, None),
        ("named.csv", ("a,b\n" + "\n".join(f"{k},{np.sin(k / 9)}" for k in range(300))).encode(), 300, None),
        ("tone.wav", wav(np.sin(np.arange(5000) / 30)), 1000, 5 / 8000),
        ("line.npy", npy(np.sin(np.arange(2050) / 30)), 683, None),
    ],
)
def test_a_signal_of_a_file_is_streamed_and_its_lines_run(allowed, name, content, length, seconds):
    found = put(allowed, name, content)
    state = State(view="memory", family="db6", n=16, signal=found, channel=1 if name.endswith("csv") else 0, time=1.0)
    heard = signals.signal_of(allowed, found, state.channel)
    assert (len(heard.values), heard.seconds) == (length, seconds)
    names = run_lines(state, allowed)
    np.testing.assert_allclose(names["x"], heard.values)
    moving = draw(allowed, state)["moving"]
    last = np.frombuffer(base64.b64decode(moving["recalled"]), "<f4").reshape(-1, moving["points"])[-1]
    np.testing.assert_allclose(last, names["recalled"], atol=1e-5 * np.abs(last).max())
    alone = AllowedFiles([Path(found.removeprefix(FILE))])  # a file of the command line, without its folder
    assert found in [option["value"] for option in app.restore(alone, "")["signals"]]
    assert draw(alone, State.from_link(state.to_link())[0])["message"] == ""


@pytest.mark.parametrize("kind", ["npy", "csv"])
def test_atoms_of_a_file_make_a_frame_and_its_lines_run(allowed, kind):
    rows = "\n".join(",".join(map(repr, row.tolist())) for row in bumps())
    found = put(allowed, f"my bumps.{kind}", npy(bumps()) if kind == "npy" else rows.encode())
    names = run_lines(State(family=found), allowed)
    assert names["frame"].n == 12
    answer = draw(allowed, State(family=found))
    np.testing.assert_allclose(
        unpacked(answer["coverage"]["data"][0]["z"]), coverage_of(names["tight"]), rtol=1e-4, atol=1e-5
    )
    assert "my bumps" in answer["title"]
    assert found in [option["value"] for option in app.restore(allowed, "")["families"]]


# -- what it refuses ----------------------------------------------------------------------------------------------


def test_nothing_outside_the_folders_is_read(allowed, tmp_path):
    secret = tmp_path / "secret"
    secret.mkdir()
    np.save(secret / "x.npy", np.zeros(100))
    given = allowed.folders[0]
    np.save(given / "fine.npy", np.zeros(100))
    (given / "link.npy").symlink_to(secret / "x.npy")
    (given / "door").symlink_to(secret)
    (given / "loop").symlink_to(given / "loop")
    assert allowed.file(given / "fine.npy")
    for path in (
        secret / "x.npy", given / ".." / "secret" / "x.npy", given / "link.npy", given / "door" / "x.npy",
        "/etc/passwd", "~/.ssh/id_rsa", "", ".", "fine.npy\0", given / "loop", tmp_path / "givenx" / "fine.npy",
    ):  # fmt: skip
        with pytest.raises(DataError, match=r"outside of the folders|no such file"):
            allowed.file(path)
        if Path(str(path).replace("\0", "")).exists():
            with pytest.raises(DataError, match="outside of the folders"):
                allowed.file(path)
    with pytest.raises(DataError, match="outside of the folders"):
        allowed.tree(given)
    assert [Path(path).name for path in allowed.files(".npy", ".csv")] == ["fine.npy", "link.npy"]


def test_what_is_no_plain_file_or_too_large_is_not_opened(allowed):
    given = allowed.folders[0]
    os.mkfifo(given / "pipe.csv")
    with pytest.raises(DataError, match="no such file"):
        allowed.file(given / "pipe.csv")
    with open(given / "large.csv", "wb") as file:
        file.truncate(LARGEST + 1)
    with pytest.raises(DataError, match=r"16\.0 MiB, expected at most 16 MiB"):
        allowed.file(given / "large.csv")


def test_a_run_reaches_outside_neither_by_link_nor_by_its_data(trained, tmp_path):
    for name in ("run.json", "metrics.csv", "best.ckpt"):
        folder = tmp_path / name.replace(".", "-")
        folder.mkdir()
        for file in runs.FILES:
            if file == name:
                (folder / file).symlink_to(trained / "multiclass" / file)
            elif (trained / "multiclass" / file).exists():
                (folder / file).write_bytes((trained / "multiclass" / file).read_bytes())
        with pytest.raises(DataError, match="outside of the folders"):
            runs.open_run(AllowedFiles([tmp_path]), str(folder))
    alone = AllowedFiles([trained / "multiclass"])
    opened = runs.open_run(alone, str(trained / "multiclass"))
    with pytest.raises(DataError, match="outside of the folders"):
        runs.predict(alone, opened)
    state = State(view="runs", run=str(trained / "multiclass" / ".." / "forecast"))
    assert "outside of the folders" in app.draw_run(alone, app.values_of(state))["message"]


# -- runs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["multiclass", "forecast", "regression"])
def test_a_run_shows_curves_time_scales_and_predictions(trained, kind):
    allowed = AllowedFiles([trained])
    state = State(view="runs", run=str(trained / kind), predict="test")
    assert {Path(path).name for path in allowed.runs()} == {"multiclass", "forecast", "regression"}
    answer = app.draw_run(allowed, app.values_of(state))
    assert answer["message"] == ""
    names = run_lines(state, allowed)
    score = f"val_{SELECTION[names['run'].info.kind].name}"
    for panel, column in (("loss", "train_loss"), ("score", score)):
        np.testing.assert_allclose(unpacked(answer[panel]["data"][0]["y"]), names["metrics"][column], rtol=1e-5)
    boxes = [part for part in answer["scales"]["data"] if part["name"].startswith("1/Δ,") and part["x"] != [None]]
    for box, steps in zip(boxes, names["steps"], strict=True):
        np.testing.assert_allclose(unpacked(box["y"]), 1 / steps.detach(), rtol=1e-5)
    said = runs.predict(allowed, runs.open_run(allowed, state.run))
    source = names["run"].options.load(names["run"].config.seed).test
    batch = source.take(torch.linspace(0, len(source) - 1, min(runs.CASES, len(source))).long())
    output = names["model"](batch.x, lengths=batch.lengths, marks=batch.marks).detach().double()
    if kind == "multiclass":
        np.testing.assert_allclose(said.predicted, output.softmax(1).numpy(), rtol=1e-5)
        np.testing.assert_array_equal(said.true.argmax(1), batch.y.numpy())
    else:
        first = names["run"].info.restore(output[0] if kind == "forecast" else output)
        np.testing.assert_allclose(said.predicted, first.numpy(), rtol=1e-5, atol=1e-6)
    json.dumps({name: answer[name] for name in ("loss", "score", "scales", "predicted")})


def test_damaged_runs_are_one_line(trained, tmp_path):
    allowed = AllowedFiles([tmp_path])
    damaged = (
        ("run.json", b"{"), ("metrics.csv", b"step,x\n1,one\n"), ("best.ckpt", b"junk"),
        ("result.json", b'{"parameters": ["many"]}'), ("result.json", b'{"test_mse": 0.5, "intervals": 3}'),
        ("result.json", b'{"test_mse": 0.5, "intervals": {"mse": ["a", 1]}}'),
    )  # fmt: skip
    for number, (name, content) in enumerate(damaged):
        folder = tmp_path / str(number)
        folder.mkdir()
        for file in runs.FILES:
            if (trained / "multiclass" / file).exists():
                (folder / file).write_bytes((trained / "multiclass" / file).read_bytes())
        (folder / name).write_bytes(content)
        message = app.draw_run(allowed, app.values_of(State(view="runs", run=str(folder))))["message"]
        assert name in message
        assert "\n" not in message
    assert "not a run folder" in app.draw_run(allowed, app.values_of(State(view="runs", run=str(tmp_path))))["message"]


# -- the server ---------------------------------------------------------------------------------------------------


def test_the_page_comes_from_this_machine_alone(allowed):
    client = app.make_app(allowed).server.test_client()
    answer = client.get("/", base_url="http://127.0.0.1:8050")
    page = answer.data.decode()
    assert answer.status_code == 200
    assert 'src="http' not in page
    assert 'href="http' not in page
    assert "//cdn" not in page
    assert "default-src 'self'" in answer.headers["Content-Security-Policy"]
    for name in ("page.css", "page.js"):
        with client.get(f"/assets/{name}", base_url="http://localhost:8050") as answer:
            assert answer.status_code == 200
    for host in ("evil.example", "127.0.0.1.evil.example", "192.168.0.7:8050"):
        assert client.get("/", base_url=f"http://{host}").status_code == 403
    for path in ("/assets/../app.py", "/assets/%2e%2e/app.py", "/assets//etc/passwd"):
        with client.get(path, base_url="http://127.0.0.1") as answer:
            assert answer.status_code != 200 or answer.data.startswith(b"<!DOCTYPE html>"), "an error, or the page"


def call(page, name, **values):
    """The body of the callback whose outputs include `name`, as the browser sends it."""
    key = next(key for key in page.callback_map if name in key)
    known = page.callback_map[key]

    def filled(parts):
        return [{**part, "value": values.get(part["id"])} for part in parts]

    outputs = [dict(zip(("id", "property"), part.rsplit(".", 1), strict=True)) for part in key.strip(".").split("...")]
    body = {"output": key, "outputs": outputs if key.startswith("..") else outputs[0]}
    return {**body, "inputs": filled(known["inputs"]), "state": filled(known["state"]), "changedPropIds": []}


def post(page, body):
    return page.server.test_client().post("/_dash-update-component", json=body, base_url="http://127.0.0.1")


def test_callbacks_answer_over_http(allowed):
    page = app.make_app(allowed)
    answer = post(page, call(page, "coverage-left", **app.values_of(State(n=16))))
    assert answer.status_code == 200
    found = json.loads(answer.data)["response"]
    assert found["title-left"]["children"] == "morlet, N = 16, scaled"
    assert len(found["coverage-left"]["figure"]["data"]) == 2
    assert found["link"]["data"] == "?n=16"


@pytest.mark.parametrize(
    ("length", "said"),
    [
        (
            "Content-Length: 629145600",
            "413 Request Entity Too Large: the request is too large; expected at most 1 MiB.",
        ),
        ("Transfer-Encoding: chunked", "411 Length Required: a request says how long it is."),
    ],
)
def test_requests_that_are_too_large_get_one_line(tmp_path, length, said):
    server = make_server(ExploreOptions((tmp_path,), port=0))
    threading.Thread(target=server.handle_request, daemon=True).start()
    lines = ["POST /_dash-update-component HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json", length]
    try:
        with socket.create_connection(("127.0.0.1", server.port), timeout=20) as client:
            client.sendall("\r\n".join([*lines, "Connection: close", "", ""]).encode())
            client.sendall(b"200001\r\n" + b"7" * (2**21 + 1) + b"\r\n0\r\n\r\n")
            answer = http.client.HTTPResponse(client)
            answer.begin()
            text = answer.read()
    finally:
        server.server_close()
    assert f"{answer.status}" == said[:3]
    assert text.decode() == said + "\n"


def test_what_is_no_request_of_the_page_gets_one_line(allowed):
    page = app.make_app(allowed)
    whole = [call(page, name, **app.values_of(State(n=8))) for name in ("run-loss.figure", "coverage-left.figure")]
    parts = itertools.product(whole, ("inputs", "state", "outputs"), (7, [{}], [[1]], "x", None))
    for body in ({}, [], 5, {"output": "x", "inputs": []}, {"output": {"a": 1}}, *({**a, b: c} for a, b, c in parts)):
        answer = post(page, body)
        assert (answer.status_code, answer.text) == (400, "400 Bad Request: not a request of this page.\n"), body


BAD_VALUES = (None, [], {}, [1], [None, 2], ["a", "b"], [1e9, 1e9], "1", 1e308, -1, True, {"a": [1]})


@pytest.mark.parametrize("name", ["range", "mask", "auto", "n", "window", "view", "channel", "signal", "family", "run"])
def test_malformed_values_of_controls_are_one_line_on_the_page(allowed, name):
    page = app.make_app(allowed)
    for value, view in itertools.product(BAD_VALUES, ("frame", "memory")):
        values = {**app.values_of(State(n=8, view=view)), "auto": [], name: value}
        answer = post(page, call(page, "coverage-left.figure", **values))
        assert answer.status_code == 200, f"{name} = {value!r}"
        message = json.loads(answer.data)["response"]["message-left"]["children"]
        assert "\n" not in message
    for name, part in (("lines.children", "asked"), ("message-link", "url"), ("channel.value", "signal")):
        for value in BAD_VALUES:
            assert post(page, call(page, name, **{part: value})).status_code == 200, f"{part} = {value!r}"


def test_unknown_files_of_the_page_are_not_found(allowed):
    client = app.make_app(allowed).server.test_client()
    for path in ("/_dash-component-suites/dash/deps/x.js", "/_dash-component-suites/nobody/x.js"):
        answer = client.get(path, base_url="http://127.0.0.1")
        assert (answer.status_code, answer.text.count("\n")) == (404, 1)


def test_it_listens_on_the_loopback_address_and_says_when_a_port_is_taken(tmp_path, capsys):
    server = make_server(ExploreOptions((tmp_path,), port=0))
    try:
        assert server.socket.getsockname()[0] == "127.0.0.1"
        with socket.create_connection(("127.0.0.1", server.port), timeout=5):
            pass
        check_mistake(["explore", str(tmp_path), "--port", str(server.port)], f"port {server.port} is in use", capsys)
    finally:
        server.server_close()
    for arguments, said in (
        (["explore", str(tmp_path / "no")], "no such file or folder"),
        (["explore", "--port", "99999"], "expected 0 to 65535"),
        (["explore", "--prot", "1"], "did you mean --port?"),
    ):
        assert main(arguments) == 2
        error = capsys.readouterr().err
        assert said in error
        assert error.count("\n") == 1


def test_without_dash_the_command_names_the_extra(monkeypatch, capsys):
    for name in [name for name in sys.modules if name.startswith("wavessm_lab.explore")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "dash", None)
    assert main(["explore"]) == 2
    assert capsys.readouterr().err == "wavessm explore: the page needs Dash: pip install 'wavessm-lab'.\n"

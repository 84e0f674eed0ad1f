"""The command line as a user meets it: the path of the README, help, and one line for every mistake."""

import dataclasses
import io
import json
import os
import re
import runpy
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import miniatures
from contracts import check_mistake
from miniatures import table as rows_of
from wavessm.cli import all_commands, main
from wavessm.data import get_task, list_sets, read_signal, tasks
from wavessm.data.series import TimeSeries
from wavessm.training import Run, Trainer, checkpoint

ROOT = Path(__file__).parent.parent
SMALL = ["--d-model", "8", "--n-layers", "1", "--d-state", "8", "--device", "cpu", "--quiet"]


# -- the README ---------------------------------------------------------------------------------------------------


def printed_commands():
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    return [line.partition("  #")[0].rstrip() for block in blocks for line in block.splitlines() if line]


def obey(line, monkeypatch):
    """Run a printed command in this process; < gives standard input."""
    line, _, source = line.partition(" < ")
    words = shlex.split(line)
    if source:
        monkeypatch.setattr("sys.stdin", io.StringIO(Path(source).read_text()))
    if words[0] == "python":
        with monkeypatch.context() as patch:
            patch.setattr("sys.argv", words[1:])
            runpy.run_path(str(ROOT / words[1]), run_name="__main__")
        return 0
    assert words[0] == "wavessm", line
    return main(words[1:])


def test_every_command_of_the_newcomers_path_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    commands = printed_commands()
    said = {}
    for line in commands:
        assert obey(line, monkeypatch) == 0, line
        said[line] = capsys.readouterr().out
    verbs = {shlex.split(line)[1] for line in commands}
    assert {"train", "evaluate", "predict"} <= verbs
    assert (tmp_path / "runs/mine/inspect/contributions.png").exists()
    evaluated = said["wavessm evaluate runs/mine"]
    accuracy, low, high = (float(value) for value in re.findall(r"0\.\d+|1\.0+", evaluated)[:3])
    assert low <= accuracy <= high
    assert accuracy > 0.8, "a third would be chance"
    table = rows_of((tmp_path / "predictions.csv").read_text())
    assert len(table) == 5
    assert {"low", "middle", "high"} <= set(table[0])
    assert (tmp_path / "predictions.png").stat().st_size > 5000
    streamed = rows_of(next(text for line, text in said.items() if " < " in line))
    assert [int(row["samples"]) for row in streamed] == [20, 40, 60, 80, 100]
    for name in ("low", "middle", "high"):  # at its end a stream has the output of the file
        assert float(streamed[-1][name]) == pytest.approx(float(table[0][name]), abs=2e-3)


def test_make_knows_the_printed_targets():
    targets = re.findall(r"^make (\w+)", (ROOT / "README.md").read_text(), flags=re.MULTILINE)
    assert targets == ["setup", "demo", "test"]
    planned = subprocess.run(
        ["make", "--dry-run", *targets], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert "wavessm demo" in planned
    assert "pytest" in planned


def test_every_command_has_help(capsys):
    assert main(["--help"]) == 0
    overview = capsys.readouterr().out
    for command in all_commands():
        assert command in overview
        assert main([*command.split(), "--help"]) == 0
        assert "usage" in capsys.readouterr().out.lower()


HEAVY = ("torch", "numpy", "scipy", "pandas", "sklearn", "matplotlib", "rich", "dash")


@pytest.mark.parametrize("kind", ["commands", "tasks"])
def test_help_imports_no_heavy_package(kind):
    """All of them in one process, each looked at after it has printed."""
    heavy = {*HEAVY} - ({"numpy"} if kind == "tasks" else set())  # readers of data sets import NumPy
    words = ["", "data", *all_commands()] if kind == "commands" else [f"train {task}" for task in tasks()]
    code = f"""import sys
from wavessm.cli import main
for words in {words!r}:
    print("@" + words)
    assert main([*words.split(), "--help"]) == 0
    if found := {heavy!r} & set(sys.modules):
        sys.exit(f"{{words}} --help imports {{found}}")"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    for said in done.stdout.split("@")[1:]:
        command, _, text = said.partition("\n")
        assert text.startswith(f"usage: wavessm {command}".rstrip())


def test_arguments_without_a_name_may_come_last(ready, capsys):
    assert main(["evaluate", "--split", "val", "--device", "cpu", str(ready / "a")]) == 0
    assert main(["data", "check", "--root", str(ready), "ETTh1"]) == 1


def test_help_of_a_task_shows_the_values_of_the_recipe(capsys):
    assert main(["train", "ptbxl-form", "--recipe", "paper", "--help"]) == 0
    text = capsys.readouterr().out
    assert re.search(r"--epochs FLOAT\s+│?\s*.*?100", text, flags=re.DOTALL)


# -- mistakes -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ready(tmp_path_factory):
    """A finished run on arrays, one on a series, and their data."""
    folder = tmp_path_factory.mktemp("cli")
    miniatures.arrays(folder / "arrays")
    miniatures.csv(folder / "series.csv", rows=200)
    miniatures.wav_folder(folder / "wav")
    assert main(["train", "arrays", str(folder / "arrays"), "--out", str(folder / "a"), "--steps", "3", *SMALL]) == 0
    series = ["train", "csv", str(folder / "series.csv"), "--context", "24", "--horizon", "6", "--steps", "3"]
    assert main([*series, "--out", str(folder / "c"), *SMALL]) == 0
    streams = ["--scaling", "global", "--front-end", "none", "--steps", "3", *SMALL]
    assert main(["train", "wav", str(folder / "wav"), "--out", str(folder / "w"), *streams]) == 0
    return folder


MISTAKES = """
bench --steps 0 => steps is 0
bench --length -1 => length is -1
trian => did you mean 'train'
train widow-copy => did you mean 'window-copy'
train window-copy --familly db6 => unknown option --familly: did you mean --family
train window-copy --d-modl 3 => did you mean --d-model
train window-copy --horizon 3 => unknown option --horizon
train ptbxl-form --labels all => unknown option --labels
train window-copy --lr abc => --lr is 'abc', expected a number.
train window-copy --buckets 1.5 => --buckets is '1.5', expected a whole number.
evaluate x --every 2 => --every is now called --rate.
evaluate x --hz=500 => --hz is now called --sampling-rate.
data list --data-root x => --data-root is now called --root.
train window-copy --no-slow-down => --slow-down is now called --stretch-timescales.
train arrays x --drive slow => --drive is now called --b-init.
train window-copy --lr => --lr needs a value.
train window-copy --lr 1 2 => did not expect 2. See wavessm train window-copy --help.
train window-copy --norm bach => --norm is 'bach', expected one of 'layer', 'batch', 'none'.
train zzzz => unknown task 'zzzz'. Known: ptbxl
train forecast --dataset ETTh9 => unknown forecasting set 'ETTh9': did you mean
train forecast => no data folder: give it with --root FOLDER, or set WAVESSM_DATA.
train window-copy --recipe papr => did you mean 'paper'
train arrays {0}/arrays --recipe paper => Known: best
train window-copy --family morlett => did you mean 'morlet'
train window-copy --family s4d-lags => did you mean 's4d-legs'
train window-copy --stages 128:nan => expected positive shares
train window-copy --lr -1 => lr is -1
train arrays => where are the data
train arrays {0}/nowhere => nowhere
train csv {0}/series.csv --target price => column 'price' is missing
train csv {0}/series.csv --context 300 --steps 1 => too few for context 300
train window-copy somewhere => did not expect somewhere
train --lr 3 => name of a task comes first
train window-copy --device cpu --cuda-graphs => cuda_graphs needs a GPU
train window-copy --out {0}/a => not an empty folder
train --resume {0}/arrays => not a run folder
evaluate {0}/arrays => not a run folder
evaluate => RUN is missing. See wavessm evaluate --help.
predict --plot x.png => RUN is missing. See wavessm predict --help.
export --format onnx => RUN is missing. See wavessm export --help.
evaluate {0}/a --csv {0} => a folder; give a file, such as {0}/runs.csv.
predict {0}/a {0}/swapped.npy => 64 channels, but the model was trained on 2. Swap
evaluate {0}/a --out {0} => (Is a directory). Give a file
evaluate {0}/a --split tset => train
evaluate {0}/c --by-class => a forecast has no classes
evaluate {0}/c --rate 2 => would change the task
predict {0}/a => no files
predict {0}/a {0}/nowhere.npy => no such file
predict {0}/a {0}/wav/beep/000.wav => 1 channels, but the model was trained on 2
predict {0}/a {0}/none.npy => none.npy: shape (0, 64, 2), which holds no samples
predict {0}/a {0}/arrays/X.npy --rate 2 => --chunk and --rate are for streams
predict {0}/a {0}/arrays/X.npy --plot x.foo => ends in .png, .pdf or .svg
predict {0}/c {0}/daily.csv => rows are 1 day, 0:00:00 apart, but the model was trained
predict {0}/c {0}/series.csv --out {0}/./series.csv => it would be overwritten
predict {0}/c {0}/short.csv => fewer than the context of 24
predict {0}/c {0}/other.csv => is missing
data lst => did you mean 'data list'
data check ETTh9 --root {0} => unknown data set 'ETTh9'
data check ETTh9 => unknown data set 'ETTh9'
data fetch ETTh9 => unknown data set 'ETTh9'
data fetch text => no data folder: give it with --root FOLDER
data generate => NAME is missing
data fetch --root {0} => NAME is missing
data generate text --root {0} => name is 'text', expected one of 'listops'
data generate listops --count -3 --root {0} => count is -3
data list --root {0}/nowhere => nowhere: no such folder
data generate pathfinder --workers -1 --root {0} => workers is -1
figures overlop => wavessm figures: unknown figure 'overlop': did you mean 'overlap'
figures --out => wavessm figures: --out needs a value.
report {0}/none.csv => none.csv: No such file
"""
"""Command => words of its message; {0} is the folder of `ready`."""


@pytest.mark.parametrize("line", MISTAKES.strip().splitlines())
def test_a_mistake_gets_one_line_and_status_two(ready, tmp_path, monkeypatch, capsys, line):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WAVESSM_DATA", raising=False)
    if not (ready / "short.csv").exists():
        lines = (ready / "series.csv").read_text().splitlines(keepends=True)
        (ready / "short.csv").write_text("".join(lines[:20]))
        daily = [f"{np.datetime64('2024-01-01') + day}{line[19:]}" for day, line in enumerate(lines[1:])]
        (ready / "daily.csv").write_text("".join([lines[0], *daily]))
        (ready / "other.csv").write_text("date,rain\n2024-01-01 00:00:00,1\n")
        np.save(ready / "none.npy", np.zeros((0, 64, 2)))
        np.save(ready / "swapped.npy", np.zeros((4, 2, 64)))
    typed, words = line.format(ready).split(" => ")
    check_mistake(shlex.split(typed), words, capsys)
    assert not any(tmp_path.iterdir()), "nothing was made"


def test_a_log_without_a_terminal_has_a_line_for_every_validation(ready, tmp_path, capsys):
    words = ["train", "arrays", str(ready / "arrays"), "--out", str(tmp_path / "run"), "--epochs", "14"]
    assert main([*words, *SMALL[:-1]]) == 0
    lines = {int(line.split("%")[0].split()[-1]): line for line in capsys.readouterr().err.splitlines() if "%" in line}
    rows = rows_of((tmp_path / "run/metrics.csv").read_text())
    assert len(rows) == 14
    for row in rows:
        percent = int(100 * float(row["step"]) // float(rows[-1]["step"]))
        assert f"val accuracy {float(row['val_accuracy']):.4g} " in lines[percent]


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_a_mistake_is_one_line_in_every_terminal(encoding):
    line = [sys.executable, "-m", "wavessm", "train", "window-copy", "--lr", "abc"]
    done = subprocess.run(line, capture_output=True, text=True, env={**os.environ, "PYTHONIOENCODING": encoding})
    assert done.returncode == 2
    assert done.stderr == "wavessm train: --lr is 'abc', expected a number. See wavessm train window-copy --help.\n"


@pytest.mark.parametrize("command", ["", "train", "sweep", "data"])
def test_a_command_alone_says_how_it_is_used(capsys, command):
    assert main(command.split()) == 2
    said = capsys.readouterr()
    assert said.out.startswith(f"usage: wavessm {command}".rstrip())
    assert said.err == ""


def test_sets_are_listed_without_a_folder(capsys, monkeypatch):
    monkeypatch.delenv("WAVESSM_DATA", raising=False)
    assert main(["data", "list"]) == 0
    said = capsys.readouterr()
    assert "absent" not in said.out
    assert [line.split()[0] for line in said.out.splitlines()] == list(list_sets(Path(os.devnull)))
    assert "--root" in said.err


STREAMS = {
    ("a", b"1,2\n1,x\n"): "line 2",
    ("a", b"1,2,3\n"): "3 fields, expected 2",
    ("a", b"1,2\nnan,1\n"): "NaN or infinity",
    ("a", b"0.1,abc\n1,2\n"): "line 1 of the stream: '0.1,abc' is not a row of numbers",
    ("a", b"0.1;0.2\n"): "the stream has columns 0.1;0.2; expected 2",
    ("a", b"p,q,r\n"): "the stream has columns p, q, r; expected 2",
    ("a", b"p,q\n1,2,3\n"): "line 2 of the stream: 3 fields, expected 2",
    ("a", b"1,2\n1,1e60\n"): "NaN or infinity in float32",
    ("a", b"1,2\n\xff,1\n"): "the stream is not text in UTF-8",
    ("a", b"p,q\n"): "the stream ended without a sample",
    ("c", b"date,load,wind\n,1,2\n"): "the stream, line 2: no date",
    ("c", b"date,load,wind\nnat,1,2\n"): "line 2: 'nat' is not a date",
    ("c", b"date,load,wind\n09/01/2024,1,2\n"): "'09/01/2024' may be day or month first",
    ("c", b"date,load,wind\n2024-01-02,1,2\n\n2024-01-01,1,2\n"): "line 4: dates do not rise, '2024-01-01'",
    ("c", b"date,load,wind\n2024-01-02,1,2,3\n"): "line 2 of the stream: 4 fields, expected 3",
    ("c", b"date,load,wind\n2024-01-02,1,2\n"): "ended after 1 rows; the model needs a context of 24",
}


@pytest.mark.parametrize("case", STREAMS)
def test_a_bad_stream_gets_one_line_and_empties_no_file(ready, tmp_path, monkeypatch, capsys, case):
    run, text = case
    kept = tmp_path / "keep.csv"
    kept.write_text("kept")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text), encoding="utf-8"))
    check_mistake(["predict", str(ready / run), "-", "--chunk", "10", "--out", str(kept)], STREAMS[case], capsys)
    assert kept.read_text() == "kept"


def test_ctrl_c_says_how_to_resume(tmp_path, monkeypatch, capsys):
    original = Trainer.work
    press = lambda self: self.step == 2 and os.kill(os.getpid(), signal.SIGINT)  # noqa: E731
    monkeypatch.setattr(Trainer, "work", lambda self, batch: press(self) or original(self, batch))
    folder = tmp_path / "my run"
    copy = ["--length", "32", "--d-min", "2", "--d-max", "2", "--cases", "8", "--steps", "5"]
    assert main(["train", "window-copy", *copy, *SMALL, "--out", str(folder)]) == 130
    error = capsys.readouterr().err
    assert f"stopped and saved at step 3; resume with: wavessm train --resume '{folder}'" in error
    monkeypatch.undo()
    assert main(shlex.split(error.partition("resume with: wavessm ")[2])) == 0
    assert checkpoint.load(folder / "last.ckpt")["step"] == 5


# -- predictions ----------------------------------------------------------------------------------------------------


def test_a_forecast_follows_the_last_row_in_the_units_of_the_file(ready, tmp_path, capsys):
    out, figure = tmp_path / "next.csv", tmp_path / "next.png"
    assert main(["predict", str(ready / "c"), str(ready / "series.csv"), "--out", str(out), "--plot", str(figure)]) == 0
    rows = rows_of(out.read_text())
    source = rows_of((ready / "series.csv").read_text())
    assert [int(row["step"]) for row in rows] == [1, 2, 3, 4, 5, 6]
    first = np.datetime64(source[-1]["date"].replace(" ", "T")) + np.timedelta64(1, "h")
    assert np.datetime64(rows[0]["date"]) == first
    values = np.array([float(row["load"]) for row in source])
    assert all(values.min() - 3 * values.std() < float(row["load"]) < values.max() + 3 * values.std() for row in rows)
    assert figure.stat().st_size > 5000


def test_a_forecast_keeps_the_clock_of_the_file(ready, tmp_path, capsys):
    text = (ready / "series.csv").read_text()
    (tmp_path / "east.csv").write_text(text.replace(":00:00,", ":00:00+05:00,"))
    assert main(["predict", str(ready / "c"), str(ready / "series.csv"), str(tmp_path / "east.csv")]) == 0
    rows = rows_of(capsys.readouterr().out)
    for here, east in zip(rows[:6], rows[6:], strict=True):
        assert east["date"] == here["date"] + "+05:00"
        assert (east["load"], east["wind"]) == (here["load"], here["wind"])


def test_a_forecast_at_a_large_level_keeps_its_digits(ready, tmp_path, capsys):
    level = 2.0**30
    run = Run.read(ready / "c")
    shutil.copytree(run.folder, tmp_path / "run")
    mean, std = run.info.scale
    scale = (tuple(one + level for one in mean), std)
    info = dataclasses.replace(run.info, scale=scale, target_scale=scale)
    changed = dataclasses.replace(run, info=info, id="")  # an id holds the info's checksum
    checkpoint.write_json(tmp_path / "run" / "run.json", changed.content())
    table = rows_of((ready / "series.csv").read_text())
    raised = [f"{row['date']},{float(row['load']) + level},{float(row['wind']) + level}" for row in table]
    (tmp_path / "raised.csv").write_text("\n".join(["date,load,wind", *raised]) + "\n")
    said = []
    for folder, file in ((run.folder, ready / "series.csv"), (tmp_path / "run", tmp_path / "raised.csv")):
        assert main(["predict", str(folder), str(file)]) == 0
        said.append([[float(row["load"]), float(row["wind"])] for row in rows_of(capsys.readouterr().out)])
    np.testing.assert_allclose(np.array(said[1]) - level, said[0], atol=1e-4 * min(std))


def test_classes_named_like_our_own_columns_keep_a_column_each(ready, tmp_path, capsys):
    X, y = (np.load(ready / "arrays" / f"{name}.npy") for name in "Xy")
    miniatures.save(tmp_path / "data", X=X, y=np.array(["case", "control"])[y % 2])
    run, plot = str(tmp_path / "run"), tmp_path / "p.png"
    assert main(["train", "arrays", str(tmp_path / "data"), "--out", run, "--steps", "1", *SMALL]) == 0
    capsys.readouterr()
    assert main(["predict", run, str(ready / "arrays" / "X.npy"), "--plot", str(plot)]) == 0
    rows = rows_of(capsys.readouterr().out)
    assert list(rows[0]) == ["file", "case", "prediction", "class case", "control"]
    assert [row["case"] for row in rows] == [str(case) for case in range(len(X))]
    assert plot.exists()


@pytest.mark.parametrize(
    ("rows", "ahead"),
    [
        (["2014-10-01", "2014-11-01", "2014-12-01"], ["2015-01-01", "2015-02-01", "2015-03-01"]),
        (["2023-10-31", "2023-11-30", "2023-12-31"], ["2024-01-31", "2024-02-29", "2024-03-31"]),
        (["2004-03-31", "2004-06-30", "2004-09-30"], ["2004-12-31", "2005-03-31", "2005-06-30"]),
        (["1997-01-01", "1998-01-01", "1999-01-01"], ["2000-01-01", "2001-01-01", "2002-01-01"]),
        (
            ["2021-02-19", "2021-02-22", *(f"2021-02-{day}" for day in range(23, 27))],
            [f"2021-03-0{d}" for d in (1, 2, 3)],
        ),
        (["2021-02-19", "2021-02-20", "2021-02-21"], ["2021-02-22", "2021-02-23", "2021-02-24"]),
        (["2024-01-05", "2024-01-12", "2024-01-19"], ["2024-01-26", "2024-02-02", "2024-02-09"]),
    ],
)
def test_forecasts_are_dated_by_the_calendar(rows, ahead):
    series = TimeSeries(np.zeros((len(rows), 1)), "frame", pd.DatetimeIndex(rows), ["load"])
    assert series.future(3).strftime("%Y-%m-%d").tolist() == ahead


def test_dates_by_another_clock_than_that_of_training_are_refused(ready, tmp_path, capsys, monkeypatch):
    lines = (ready / "series.csv").read_text().splitlines()
    for name, offset in (("east", "+05:00"), ("utc", "Z")):
        dated = [line.replace(",", f"{offset},", 1) for line in lines[1:]]
        (tmp_path / f"{name}.csv").write_text("\n".join([lines[0], *dated]) + "\n")
    run = str(tmp_path / "run")
    words = ["train", "csv", str(tmp_path / "east.csv"), "--context", "24", "--horizon", "6", "--steps", "1"]
    assert main([*words, "--out", run, *SMALL]) == 0
    assert main(["predict", run, str(tmp_path / "east.csv")]) == 0
    capsys.readouterr()
    words = "its dates are at +00:00 to UTC, but the model was trained at +05:00"
    check_mistake(["predict", run, str(tmp_path / "utc.csv")], words, capsys)
    monkeypatch.setattr("sys.stdin", io.StringIO((tmp_path / "utc.csv").read_text()))
    check_mistake(["predict", run, "-"], "the stream: its dates are at +00:00", capsys)


def test_columns_that_pandas_counted_are_names(ready, tmp_path, capsys, monkeypatch):
    rows = [",".join(f"{value:.4f}" for value in row) for row in np.random.default_rng(0).normal(size=(40, 2))]
    said = []
    for head in ("", "0,1\n", "time,a,b\n"):
        times = "time" in head  # a classifier needs no dates
        text = head + "".join(f"{f'{at},' if times else ''}{row}\n" for at, row in enumerate(rows))
        monkeypatch.setattr("sys.stdin", io.StringIO(text))
        assert main(["predict", str(ready / "a"), "-", "--chunk", "40"]) == 0
        said.append(capsys.readouterr().out)
        if not times:
            (tmp_path / "x.csv").write_text(text)
            assert main(["predict", str(ready / "a"), str(tmp_path / "x.csv")]) == 0
            said.append(",".join(capsys.readouterr().out.splitlines()[1].split(",")[2:]))
    assert said[0] == said[2] == said[4]
    assert said[1] == said[3]


def test_named_channels_are_read_in_the_order_of_training(tmp_path, capsys):
    records, run = miniatures.wfdb_folder(tmp_path / "records"), str(tmp_path / "run")
    assert main(["train", "wfdb", str(records), "--out", run, "--steps", "1", *SMALL]) == 0
    signal = read_signal(records / "rec000.hea").values
    for name, columns in (("same", (0, 1)), ("turned", (1, 0)), ("other", (0, 1))):
        header = ",".join(
            ("mlii" if column == 0 else "V1") if name != "other" else f"V{column + 2}" for column in columns
        )
        np.savetxt(tmp_path / f"{name}.csv", signal[:, columns], delimiter=",", header=header, comments="")
    capsys.readouterr()
    assert main(["predict", run, str(tmp_path / "same.csv"), str(tmp_path / "turned.csv")]) == 0
    same, turned = rows_of(capsys.readouterr().out)
    assert same | {"file": ""} == turned | {"file": ""}
    assert main(["predict", run, str(tmp_path / "other.csv")]) == 2
    assert "no lead 'MLII'; it has V2, V3." in capsys.readouterr().err
    text = (records / "rec000.hea").read_text()
    for name, gain in (("milli", "1000/mV"), ("micro", "1/uV")):  # the same signal in other units
        (records / f"{name}.hea").write_text(text.replace("1000.0(0)/mV", gain))
    assert main(["predict", run, str(records / "milli.hea"), str(records / "micro.hea")]) == 0
    milli, micro = rows_of(capsys.readouterr().out)
    assert milli | {"file": ""} == micro | {"file": ""}
    (tmp_path / "out.hea").write_text(text.replace("rec000.dat", "records/../../secret.dat"))
    assert main(["predict", run, str(tmp_path / "out.hea")]) == 2
    assert "secret.dat: outside of the folders that may be read" in capsys.readouterr().err


def test_a_streamed_forecast_is_that_of_the_file(ready, monkeypatch, capsys):
    assert main(["predict", str(ready / "c"), str(ready / "series.csv")]) == 0
    whole = rows_of(capsys.readouterr().out)
    monkeypatch.setattr("sys.stdin", io.StringIO("\ufeff" + (ready / "series.csv").read_text()))
    assert main(["predict", str(ready / "c"), "-", "--chunk", "50"]) == 0
    streamed = rows_of(capsys.readouterr().out)
    assert len(streamed) == 4 * 6
    for left, right in zip(whole, streamed[-6:], strict=True):
        assert float(left["load"]) == pytest.approx(float(right["load"]), rel=1e-4)


def test_a_wav_in_a_pipe_is_read_as_it_comes(ready, tmp_path, monkeypatch, capsys):
    source = sorted((ready / "wav").rglob("*.wav"))[0]
    content = source.read_bytes()
    assert main(["predict", str(ready / "w"), str(source)]) == 0
    whole = rows_of(capsys.readouterr().out)[0]
    endless = content[:4] + b"\xff" * 4 + content[8:40] + b"\xff" * 4 + content[44:]  # as programs that stream write it
    after = content + b"LIST" + struct.pack("<I", 14) + b"INFOIART\2\0\0\0Me"
    for sent in (endless, after):
        end, start = os.pipe()

        def write(sent=sent, start=start):
            with os.fdopen(start, "wb", buffering=0) as pipe:
                for part in range(0, len(sent), 97):  # samples are cut in the middle
                    pipe.write(sent[part : part + 97])

        writer = threading.Thread(target=write)
        writer.start()
        with open(end, encoding="utf-8") as stdin:
            monkeypatch.setattr("sys.stdin", stdin)
            assert main(["predict", str(ready / "w"), "-", "--chunk", "64"]) == 0
            writer.join()
        streamed = rows_of(capsys.readouterr().out)
        assert [int(row["samples"]) for row in streamed] == [64, 128, 192, 200]
        for name in ("beep", "buzz", "hum"):
            assert float(streamed[-1][name]) == pytest.approx(float(whole[name]), abs=2e-3)


def test_a_wav_at_half_the_rate_is_read_with_twice_the_step(ready, tmp_path, monkeypatch, capsys):
    import soundfile

    source = sorted((ready / "wav").rglob("*.wav"))[0]
    values, rate = soundfile.read(source, dtype="float32")
    soundfile.write(tmp_path / "half.wav", values[::2], rate // 2, subtype="FLOAT")
    assert main(["predict", str(ready / "w"), str(tmp_path / "half.wav")]) == 0
    said = rows_of(capsys.readouterr().out)[0]
    run = Run.read(ready / "w")
    x = run.info.standardise(torch.from_numpy(values[::2].copy())[None, :, None])
    with torch.no_grad():
        chances = run.load_model()(x, rate=2.0).softmax(1)[0]
    assert [float(said[name]) for name in run.info.classes] == pytest.approx(chances.tolist(), abs=1e-4)
    for extra, status in ([], 0), (["--rate", "4"], 2):
        with open(tmp_path / "half.wav", encoding="utf-8") as stdin:
            monkeypatch.setattr("sys.stdin", stdin)
            assert main(["predict", str(ready / "w"), "-", "--chunk", "9999", *extra]) == status
        if status == 0:
            streamed = rows_of(capsys.readouterr().out)[-1]
            assert [float(streamed[name]) for name in run.info.classes] == pytest.approx(chances.tolist(), abs=1e-4)
    assert "a WAV stream has a sampling rate of its own; leave rate and times out" in capsys.readouterr().err


# -- the others -----------------------------------------------------------------------------------------------------


def test_data_are_listed_and_checked(tmp_path, monkeypatch, capsys):
    miniatures.forecast(tmp_path / "forecasting")
    monkeypatch.setenv("WAVESSM_DATA", str(tmp_path))
    assert main(["data", "list"]) == 0
    listed = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert "MiB" in listed["ETTh1"]
    assert "absent" in listed["ptbxl"]
    assert main(["data", "check", "ETTh1"]) == 1, "a miniature is not the whole set"
    assert "problem" in capsys.readouterr().out


def test_bench_times_steps(capsys):
    sizes = ["--length", "32", "--channels", "2", "--batch-size", "2", "--steps", "2"]
    assert main(["bench", *sizes, "--d-model", "8", "--n-layers", "1", "--d-state", "8", "--device", "cpu"]) == 0
    assert re.fullmatch(r"[\d.]+ ms a step, \d+ samples/s\n", capsys.readouterr().out)


def test_the_demo_draws_the_cases_of_window_copying():
    own, general = get_task("demo").options.load(3), get_task("window-copy")
    other = general.with_options({"length": 64, "windows": 2, "d_min": 8, "d_max": 8, "cases": 1024}).load(3)
    for part in ("train", "val", "test"):
        left, right = (getattr(data, part).take(torch.arange(5)) for data in (own, other))
        assert torch.equal(left.x, right.x)
        assert torch.equal(left.y, right.y)


def test_demo_ends_with_table_and_figure(tmp_path, capsys):
    assert main(["demo", "--out", str(tmp_path / "demo"), "--seeds", "1", "--steps", "2"]) == 0
    said = capsys.readouterr().out
    for name, family in (("WaveSSM (Morlet)", "morlet"), ("S4 (LegS)", "legs")):
        result = json.loads((tmp_path / "demo" / "runs" / f"{family}-0" / "result.json").read_text())
        row = next(line for line in said.splitlines() if line.startswith(name)).removeprefix(name).split()
        assert float(row[0]) == pytest.approx(result["test_relative_mse"], abs=6e-4)
        assert (row[2], float(row[3])) == ("1", result["parameters"])
    assert (tmp_path / "demo" / "curves.png").exists()


def test_module_runs_as_a_program():
    done = subprocess.run([sys.executable, "-m", "wavessm", "--version"], capture_output=True, text=True, check=True)
    assert re.fullmatch(r"wavessm \d+\.\d+\.\d+\n", done.stdout)

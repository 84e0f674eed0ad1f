"""Random damage to run folders, checkpoints, tables, headers and model folders.

    python tests/fuzz_damage.py [--seconds 200] [--seed N]
    python tests/fuzz_damage.py --seed N --case K       # one case again, with its traceback

A case copies what is whole, damages the copy and uses it. It ends *right* (as the undamaged copy does, or as another
reader of the same format has it), *clear* (an error of ours in one line; on the command line exit status 2 and one
line), *unclear* (any other exception, or none within a minute) or *wrong* (silently another result). Any unclear or
wrong case makes the exit status 1. `make fuzz` runs it.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import dataclasses
import io
import itertools
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pytest
import torch

import miniatures
import wavessm as ws
from wavessm.cli import main as command
from wavessm.data import read_signal
from wavessm.errors import WaveSSMError
from wavessm.training import Interrupted, Run, TrainConfig, evaluate_run, predict_files, resume, train

JUNK: tuple[Any, ...] = (
    None, "", "x", "nan", "-1", [], {}, [[]], [1, "a"], {"a": {}}, -1, 0, 0.5, 1e308, -1e308, 10**30, True, False,
    float("nan"), float("inf"), "\x00", "../../x", "é" * 300,
)  # fmt: skip
CELLS = (
    "x", "--", "1.2.3", "\x00", "∞", "1e999", "", "nan", "1,5", '"', "0x10", "TRUE", "9" * 400, " ", "\t", "\ufeff1",
)  # fmt: skip
SECONDS_A_CASE = 60


class Refused(Exception):
    """The command line has answered in one clear line."""


class Case(NamedTuple):
    """What was damaged, what is done with it, and whether its outcome is right."""

    damage: str
    act: Callable[[], Any]
    right: Callable[[Any], bool]


# -- damage -----------------------------------------------------------------------------------------------------------


def damage_bytes(path: Path, rng: random.Random, end: int | None = None) -> str:
    """Flip bits, cut, remove, repeat or overwrite bytes, all before `end`."""
    data = bytearray(path.read_bytes())
    size = min(len(data), end or len(data))
    start = rng.randrange(size)
    stop = min(size, start + rng.choice((1, 2, 7, 64)))
    what = rng.choice(("flip", "flip", "cut", "remove", "repeat", "zero", "noise"))
    if what == "flip":
        for place in (start, *(rng.randrange(size) for _ in range(rng.randrange(3)))):
            data[place] ^= 1 << rng.randrange(8)
    elif what == "cut":
        del data[start:]
    elif what == "remove":
        del data[start:stop]
    elif what == "repeat":
        data[start:start] = data[start:stop]
    else:
        data[start:stop] = bytes(stop - start) if what == "zero" else rng.randbytes(stop - start)
    path.write_bytes(data)
    return f"{path.name}: {what} at {start}"


def damage_json(path: Path, rng: random.Random) -> str:
    """Remove, replace or nest one value at any depth."""
    content = json.loads(path.read_text())
    places: list[tuple[Any, Any, str]] = []

    def walk(node: Any, name: str) -> None:
        for key, value in node.items() if isinstance(node, dict) else enumerate(node):
            places.append((node, key, f"{name}/{key}"))
            if isinstance(value, dict | list):
                walk(value, f"{name}/{key}")

    walk(content, "")
    node, key, name = rng.choice(places)
    what = rng.choice(("remove", "replace", "replace", "replace", "nest", "junk"))
    if what == "remove":
        del node[key]
    elif what == "nest":
        node[key] = rng.choice(([node[key]], {"a": node[key]}))
    elif what == "junk" and isinstance(node, dict):
        node["surplus"] = rng.choice(JUNK)
    else:
        node[key] = rng.choice(JUNK)
        what = f"replace by {node[key]!r}"[:60]
    path.write_text(json.dumps(content))
    return f"{path.name}: {what} {name}"


def damage_table(path: Path, rng: random.Random) -> str:
    """Spoil one cell, line or byte of a CSV file."""
    lines = path.read_text().split("\n")
    row = rng.randrange(len(lines) - 1)
    cells = lines[row].split(",")
    column = rng.randrange(len(cells))
    what = rng.choice(("cell", "cell", "cell", "drop cell", "add cell", "empty line", "byte"))
    if what == "cell":
        cells[column] = rng.choice(CELLS)
        what = f"cell {cells[column]!r}"[:40]
    elif what == "drop cell":
        del cells[column]
    elif what == "add cell":
        cells.insert(column, rng.choice(CELLS))
    lines[row] = ",".join(cells)
    if what == "empty line":
        lines.insert(row, rng.choice(("", " ", ",", "\r")))
    data = "\n".join(lines).encode()
    if what == "byte":
        place = rng.randrange(len(data))
        data = data[:place] + rng.choice((b"\x00", b"\xff", b"\xc3", b'"', b"\r")) + data[place:]
    path.write_bytes(data)
    return f"{path.name}: {what} in line {row + 1}, column {column + 1}"


def damage_words(path: Path, rng: random.Random) -> str:
    """Replace, drop or add one word of a text."""
    lines = path.read_text().split("\n")
    row = rng.randrange(len(lines) - 1)
    words = lines[row].split(" ")
    column = rng.randrange(len(words))
    word = rng.choice((*CELLS, "0", "-5", "99999999", "1/0", "16x2", "8", "212", "../rec", "rec.dat", "#", "1e-320"))
    words[column : column + rng.randrange(2)] = rng.choice(([], [word], [word]))
    lines[row] = " ".join(words)
    path.write_text("\n".join(lines))
    return f"{path.name}: {word!r} in line {row + 1}, word {column + 1}"[:80]


# -- what is whole ----------------------------------------------------------------------------------------------------


class Whole:
    """Undamaged files below a folder, and what comes of them."""

    def __init__(self, folder: Path) -> None:
        self.folder, rng = folder, np.random.default_rng(0)
        miniatures.arrays(folder / "arrays", cases=48, length=20)
        miniatures.csv(folder / "series.csv", rows=260, columns=("a", "b"))
        model = ws.ModelConfig(d_model=6, n_layers=2, d_state=8, norm="batch")
        config = TrainConfig(batch_size=8, steps=12, device="cpu", val_per_epoch=2, lr=0.01, save_seconds=0)
        arrays = {"folder": str(folder / "arrays")}
        for name, seed in (("run", 0), ("other", 1)):
            train("arrays", arrays, model, dataclasses.replace(config, seed=seed), folder / name, show=False)
        with pytest.MonkeyPatch.context() as patch, contextlib.suppress(Interrupted, KeyboardInterrupt):
            miniatures.interrupt(patch, 7)
            train("arrays", arrays, model, config, folder / "half", show=False)
        series = {"path": str(folder / "series.csv"), "context": 24, "horizon": 6}
        train("csv", series, model, config, folder / "forecast", show=False)
        signals = folder / "signals"
        signals.mkdir()
        miniatures.write_record(signals / "rec", rng.integers(-900, 900, (50, 3)), 100, ("I", "II", "III"))
        np.save(signals / "array.npy", rng.standard_normal((40, 3)).astype(np.float32))
        rows = [",".join(f"{value:.3f}" for value in row) for row in rng.standard_normal((30, 3))]
        (signals / "table.csv").write_text("\n".join(["a,b,c", *rows]) + "\n")
        miniatures.write_wav(signals / "sound.wav", rng.uniform(-0.3, 0.3, 60))
        torch.manual_seed(0)
        sizes = {"d_model": 6, "d_input": 2, "d_output": 3, "n_layers": 2, "d_state": 8}
        made = ws.SequenceModel(ws.ModelConfig(**sizes, norm="batch", prenorm=False)).eval()
        made.save_pretrained(folder / "model")
        self.x = torch.randn(2, 15, 2)
        self.expected: dict[str, Any] = {}

    def copy(self, name: str, place: Path) -> Path:
        """A copy of a file or folder, to be damaged."""
        source, target = self.folder / name, place / name.rpartition("/")[2]
        (shutil.copytree if source.is_dir() else shutil.copy)(source, target)
        return target

    def usual(self, key: str, act: Callable[[], Any]) -> Any:
        """What an action gives on undamaged files, computed once."""
        if key not in self.expected:
            self.expected[key] = act()
        return self.expected[key]


# -- cases ------------------------------------------------------------------------------------------------------------


def evaluated(folder: Path) -> Any:
    """Scores of a run."""
    result = evaluate_run(Run.read(folder))
    return result.cases, result.scores, result.intervals


def resumed(folder: Path) -> Any:
    """Scores, curve and weights of a run that was resumed."""
    run = resume(folder, show=False)
    with (folder / "metrics.csv").open() as file:
        curve = [{name: value for name, value in row.items() if name != "seconds"} for row in csv.DictReader(file)]
    weights = {name: value.tolist() for name, value in run.load_model("last").state_dict().items()}
    result = json.loads((folder / "result.json").read_text())
    return curve, weights, result


def predicted(folder: Path, file: Path) -> Any:
    """Predictions of a run for a file."""
    return [{k: v for k, v in row.items() if k != "file"} for row in predict_files(Run.read(folder), [file])]


def typed(*words: str) -> str:
    """What a command prints, `Refused` if it ends with status 2 and one line."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = command(list(words))
    if status == 2 and err.getvalue().count("\n") == 1:
        raise Refused(err.getvalue())
    if status != 0:
        raise RuntimeError(f"exit status {status}: {err.getvalue()[-300:]}")
    return out.getvalue()


def same(whole: Whole, key: str, act: Callable[[], Any]) -> Callable[[Any], bool]:
    """Whether an outcome is that of the undamaged files."""
    expected = whole.usual(key, act)
    return lambda outcome: repr(outcome) == repr(expected)


def run_case(whole: Whole, rng: random.Random, place: Path) -> Case:
    """run.json of a finished run: evaluate, predict, or both on the command line."""
    folder = whole.copy("run", place)
    damage = damage_json(folder / "run.json", rng) if rng.random() < 0.8 else damage_bytes(folder / "run.json", rng)
    array, fine = whole.folder / "signals" / "array.npy", whole.folder / "run"
    np.save(place / "two.npy", np.load(array)[:, :2])
    actions: dict[str, Callable[[Path], Any]] = {
        "evaluate": evaluated,
        "predict": lambda at: predicted(at, place / "two.npy"),
        "wavessm evaluate": lambda at: typed("evaluate", str(at)).replace(str(at), "RUN"),
    }
    name, act = rng.choice(list(actions.items()))
    return Case(f"{name}, {damage}", lambda: act(folder), same(whole, name, lambda: act(fine)))


def forecast_case(whole: Whole, rng: random.Random, place: Path) -> Case:
    """run.json of a forecast, or the table that it continues."""
    folder, table = whole.copy("forecast", place), whole.copy("series.csv", place)
    damage = damage_json(folder / "run.json", rng) if rng.random() < 0.5 else damage_table(table, rng)
    fine = whole.folder / "forecast", whole.folder / "series.csv"
    return Case(damage, lambda: predicted(folder, table), same(whole, "forecast", lambda: predicted(*fine)))


def resume_case(whole: Whole, rng: random.Random, place: Path) -> Case:
    """Any file of a stopped run, or one of another run in its place: resume."""
    folder, name = whole.copy("half", place), rng.choice(("run.json", "metrics.csv", "last.ckpt", "best.ckpt"))
    what = rng.choice(("json",) * 3 if name == "run.json" else ("bytes", "bytes", "bytes", "foreign", "missing"))
    if what == "foreign":
        shutil.copy(whole.folder / "other" / name, folder / name)
    elif what == "missing":
        (folder / name).unlink()
    damage = f"{what} {name}"
    if what in ("bytes", "json"):
        damage = (damage_json if what == "json" else damage_bytes)(folder / name, rng)
    (whole.folder / "spare").exists() or shutil.copytree(whole.folder / "half", whole.folder / "spare")
    return Case(f"resume, {damage}", lambda: resumed(folder),
                same(whole, "resume", lambda: resumed(whole.folder / "spare")))  # fmt: skip


def checkpoint_case(whole: Whole, rng: random.Random, place: Path) -> Case:
    """best.ckpt of a finished run: evaluate."""
    folder = whole.copy("run", place)
    source = rng.choice(("", "", "", "other/best.ckpt", "half/best.ckpt", "forecast/best.ckpt", "run/run.json"))
    damage = f"best.ckpt is {source}"
    if source:
        shutil.copy(whole.folder / source, folder / "best.ckpt")
    else:
        damage = damage_bytes(folder / "best.ckpt", rng)
    return Case(damage, lambda: evaluated(folder), same(whole, "evaluate", lambda: evaluated(whole.folder / "run")))


def by_other_reader(path: Path) -> np.ndarray | None:
    """The values of a file by a reader that shares nothing with ours; None if it refuses."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if path.suffix == ".npy":
                values = np.load(path, allow_pickle=False)
            elif path.suffix == ".wav":
                from scipy.io import wavfile

                values = wavfile.read(path)[1] / 32768
            elif path.suffix == ".hea":
                import wfdb

                values = wfdb.rdrecord(str(path.with_suffix(""))).p_signal
            else:
                with path.open(newline="", encoding="utf-8-sig") as file:
                    rows = [row for row in csv.reader(file, strict=True) if any(cell.strip() for cell in row)]
                values = np.array([[float(cell or "nan") for cell in row] for row in rows[1:]])
        return np.asarray(values, np.float32).reshape(len(values), -1)
    except Exception:
        return None


def file_case(whole: Whole, rng: random.Random, place: Path) -> Case:
    """A recording: its values by our reader are the undamaged ones, or those by another reader."""
    folder = whole.copy("signals", place)
    name = rng.choice(("rec.hea", "rec.hea", "sound.wav", "array.npy", "table.csv"))
    if name == "rec.hea":
        damage = damage_words(folder / name, rng) if rng.random() < 0.7 else damage_bytes(folder / name, rng)
    elif name == "table.csv":
        damage = damage_table(folder / name, rng)
    else:
        damage = damage_bytes(folder / name, rng, end=rng.choice((44, 128, None)) if name == "array.npy" else 44)

    def right(values: np.ndarray) -> bool:
        readings = (read_signal(whole.folder / "signals" / name).values, by_other_reader(folder / name))
        return any(
            other is not None and np.shape(other) == np.shape(values) and np.allclose(other, values, 1e-5, 1e-6, True)
            for other in readings
        )

    return Case(damage, lambda: read_signal(folder / name).values, right)


def model_case(whole: Whole, rng: random.Random, place: Path) -> Case:
    """config.json of a model folder, or the header of its weights."""
    folder = whole.copy("model", place)
    weights = next(folder.glob("*.safetensors"))
    if rng.random() < 0.7:
        damage = damage_json(folder / "config.json", rng)
    else:
        damage = damage_bytes(weights, rng, end=8 + int.from_bytes(weights.read_bytes()[:8], "little"))

    def outputs(at: Path) -> list[float]:
        with torch.no_grad():
            return ws.SequenceModel.from_pretrained(at)(whole.x).flatten().tolist()

    return Case(damage, lambda: outputs(folder), same(whole, "model", lambda: outputs(whole.folder / "model")))


def training_case(whole: Whole, rng: random.Random, place: Path) -> Case:
    """Own data, damaged before a training; values that another reader finds in the files too may be learned from."""
    if arrays := rng.random() < 0.5:
        file = whole.copy("arrays", place) / rng.choice(("X.npy", "y.npy"))
        damage = damage_bytes(file, rng, end=128)
        task, options = "arrays", {"folder": str(file.parent)}
    else:
        file = whole.copy("series.csv", place)
        damage = damage_table(file, rng)
        task, options = "csv", {"path": str(file), "context": 24, "horizon": 6}
    model = ws.ModelConfig(d_model=4, n_layers=1, d_state=4)
    config = TrainConfig(batch_size=8, steps=2, device="cpu", lr=0.01)
    original = {"folder": str(whole.folder / "arrays"), "path": str(whole.folder / "series.csv")}

    def learn(options: dict[str, Any], out: Path) -> Any:
        run = train(task, options, model, config, out, show=False)
        return json.loads((run.folder / "result.json").read_text())

    undamaged = {name: original.get(name, value) for name, value in options.items()}
    usual = same(whole, task, lambda: learn(undamaged, whole.folder / f"learned-{task}"))

    def right(found: Any) -> bool:
        return usual(found) or (arrays and by_other_reader(file) is not None)

    return Case(damage, lambda: learn(options, place / "trained"), right)


KINDS: dict[str, Callable[[Whole, random.Random, Path], Case]] = {
    "run folder": run_case,
    "recording": file_case,
    "checkpoint": checkpoint_case,
    "model folder": model_case,
    "forecast": forecast_case,
    "resumed run": resume_case,
    "training": training_case,
}


# -- the loop ---------------------------------------------------------------------------------------------------------


def outcome_of(case: Case) -> tuple[str, str]:
    """right, clear, unclear or wrong, and what was said."""

    def too_long(*_: Any) -> None:
        raise TimeoutError(f"not finished after {SECONDS_A_CASE} s")

    signal.signal(signal.SIGALRM, too_long)
    signal.alarm(SECONDS_A_CASE)
    try:
        found = case.act()
    except (WaveSSMError, Refused) as reason:
        text = str(reason).strip()
        return ("clear" if "\n" not in text else "unclear"), text
    except Exception:
        return "unclear", traceback.format_exc()
    finally:
        signal.alarm(0)
    return ("right", "") if case.right(found) else ("wrong", f"{found!r}"[:300])


def run(whole: Whole, seed: int, number: int) -> tuple[str, str, str, str]:
    """Kind, damage, outcome and words of one case; it depends on seed and number alone."""
    kind = list(KINDS)[number % len(KINDS)]
    with tempfile.TemporaryDirectory(dir=whole.folder) as place, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        case = KINDS[kind](whole, random.Random(f"{seed} {number}"), Path(place))
        return kind, case.damage, *outcome_of(case)


def main() -> int:
    """Run cases until the time is over and report; 1 if any was unclear or wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=float(os.environ.get("FUZZ_SECONDS", "600")))
    parser.add_argument("--seed", type=int, default=None, help="default: a new one")
    parser.add_argument("--case", type=int, default=None, help="only this case")
    parser.add_argument("--show", type=int, default=10, help="cases that are shown")
    given = parser.parse_args()
    seed = random.SystemRandom().randrange(10**6) if given.seed is None else given.seed
    resource.setrlimit(resource.RLIMIT_AS, (12 * 2**30, resource.RLIM_INFINITY))  # a size out of a header is no harm
    torch.set_num_threads(1)
    start, counts, shown = time.monotonic(), defaultdict(Counter), []  # type: ignore[var-annotated]
    with tempfile.TemporaryDirectory() as folder, open(os.devnull, "w") as silent:
        with contextlib.redirect_stderr(silent):
            whole = Whole(Path(folder))
        for number in itertools.count() if given.case is None else [given.case]:
            if given.case is None and time.monotonic() - start > given.seconds:
                break
            with contextlib.redirect_stderr(silent):
                kind, damage, outcome, words = run(whole, seed, number)
            counts[kind][outcome] += 1
            if outcome in ("unclear", "wrong") or given.case is not None:
                shown.append(f"case {number}, {kind}, {outcome}: {damage}\n    {words.strip()[-1500:]}".rstrip())
    print(*shown[: given.show], sep="\n")
    total = sum(counts.values(), Counter())
    for kind, found in [*counts.items(), ("all", total)]:
        numbers = ", ".join(f"{name} {found[name]}" for name in ("right", "clear", "unclear", "wrong"))
        print(f"{kind}: {found.total()} cases, {numbers}")
    print(f"replay a case: python tests/fuzz_damage.py --seed {seed} --case K")
    return 1 if total["unclear"] or total["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())

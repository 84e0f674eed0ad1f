"""Exported models against PyTorch, run by ONNX Runtime, not by the exporter's own check."""

import json
import sys
from functools import partial

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

import miniatures
import wavessm as ws
from contracts import check_mistake, check_refused
from wavessm.cli import main
from wavessm.data import DataInfo
from wavessm.errors import DataError
from wavessm.export import export_onnx

export_stream = partial(export_onnx, stream=True)
TOLERANCE = 1e-4  # what the files promise; float32 and tables in another order give about 1e-6

MODELS = {
    "pool": {},
    "both directions": {"bidirectional": True, "norm": "batch", "head": "sequence"},
    "dense": {"family": "legs", "prenorm": False, "head": "last"},
    "no norm": {"norm": "none", "head": "last"},
    "dense, both directions": {"family": "legs", "bidirectional": True},
    "an odd number of real modes": {"family": "dpss", "d_state": 7, "head": "sequence"},
    "own dynamics for each channel": {"family": "db6", "n_ssm": None},
    "tokens": {"encoder": "embedding", "vocabulary": 11, "d_input": 1},
}  # fmt: skip
STREAMS = ["pool", "dense", "an odd number of real modes", "tokens"]


def make(name):
    """A model with statistics of its own in its batch norms."""
    torch.manual_seed(0)
    fields = {"d_input": 3, "d_output": 5, "d_model": 8, "n_layers": 2, "d_state": 8} | MODELS[name]
    model = ws.SequenceModel(ws.ModelConfig(**fields))
    with torch.no_grad():
        for _ in range(3):
            model(example(model, 4, 30))
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return model.eval()


def example(model, batch, length, seed=0):
    config, generator = model.config, torch.Generator().manual_seed(seed)
    if config.encoder == "embedding":
        return torch.randint(config.vocabulary, (batch, length), generator=generator)
    return 2 + 3 * torch.randn(batch, length, config.d_input, generator=generator)


def session(path):
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def info_for(model, **fields):
    scale = ((0.0, 1.0, 2.0), (2.0, 3.0, 4.0)) if model.config.d_input == 3 else None
    return DataInfo("regression", model.config.d_input, model.config.d_output, 100, scale=scale, **fields)


def close(got, wanted, what):
    wanted = wanted.detach().numpy()
    assert got.shape == wanted.shape, what
    assert np.abs(got - wanted).max() <= TOLERANCE * max(1, np.abs(wanted).max()), what


@pytest.mark.parametrize("name", MODELS)
def test_onnx_says_what_the_model_says_at_any_batch_and_length(name, tmp_path):
    model = make(name)
    info = info_for(model)
    report = export_onnx(model, tmp_path / "model.onnx", info=info, rate=1.5)
    assert report.error < TOLERANCE
    run = session(tmp_path / "model.onnx")
    for batch, length in ((1, 1), (3, 5), (2, 64), (1, 65), (2, 700)):
        x = example(model, batch, length, seed=length)
        with torch.no_grad():
            wanted = model(info.standardise(x), rate=1.5)
        close(run.run(["y"], {"x": x.numpy()})[0], wanted, (name, batch, length))


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("chunk", [1, 16])
def test_a_stream_in_onnx_stays_with_the_model_over_many_chunks(name, chunk, tmp_path):
    model = make(name)
    info = info_for(model)
    export_stream(model, tmp_path / "step.onnx", chunk=chunk, info=info)
    run = session(tmp_path / "step.onnx")
    types = {"tensor(float)": np.float32, "tensor(double)": np.float64}
    inputs = [i for i in run.get_inputs() if i.name != "x"]
    states = {i.name: np.zeros([2, *i.shape[1:]], types[i.type]) for i in inputs}
    wanted_state = model.initial_state(2)
    heard = []
    for number in range(100):
        x = example(model, 2, chunk * (1 + number % 3), seed=number)
        heard.append(x)
        with torch.no_grad():
            wanted, wanted_state = model.stream(info.standardise(x), wanted_state)
        got, *after = run.run(None, {"x": x.numpy()} | states)
        states = dict(zip(states, after, strict=True))
        close(got, wanted, (name, number))
    if model.config.head in ("pool", "last"):  # and it is what the whole sequence gives
        with torch.no_grad():
            close(got, model(info.standardise(torch.cat(heard, 1))), name)


def test_graphs_hold_no_complex_number_and_no_fourier_transform(tmp_path):
    for name in ("both directions", "dense", "pool"):
        export_onnx(make(name), tmp_path / "model.onnx")
        graph = onnx.load(tmp_path / "model.onnx").graph
        kinds = {node.op_type for node in graph.node}
        kinds |= {node.op_type for outer in graph.node for a in outer.attribute for node in a.g.node}
        assert "Scan" in kinds
        assert not kinds & {"DFT", "STFT", "FFT", "Loop"}
        bodies = [node for outer in graph.node for a in outer.attribute for node in a.g.node]
        read = {name for node in [*graph.node, *bodies] for name in node.input}
        assert {constant.name for constant in graph.initializer} <= read, "runtimes warn of constants nobody reads"
        types = {constant.data_type for constant in graph.initializer}
        assert types <= {onnx.TensorProto.FLOAT, onnx.TensorProto.INT64}


def test_outputs_come_in_the_units_of_the_data(tmp_path):
    model = make("no norm")
    level, unit = torch.arange(5.0), torch.arange(1.0, 6.0)
    info = info_for(model, target_scale=(tuple(level.tolist()), tuple(unit.tolist())))
    export_onnx(model, tmp_path / "model.onnx", info=info)
    x = example(model, 2, 40)
    with torch.no_grad():
        wanted = model((x - torch.tensor([0.0, 1, 2])) / torch.tensor([2.0, 3, 4])) * unit + level
    close(session(tmp_path / "model.onnx").run(None, {"x": x.numpy()})[0], wanted, "units")


def test_a_file_that_differs_is_not_written(tmp_path, monkeypatch):
    monkeypatch.setattr("wavessm.export.files.TOLERANCE", 1e-12)
    with pytest.raises(DataError, match="differs from PyTorch"):
        export_onnx(make("pool"), tmp_path / "model.onnx")
    assert not any(tmp_path.iterdir())


def test_what_cannot_be_exported_is_refused_in_one_line(tmp_path):
    pair = ws.SequenceModel(ws.ModelConfig(d_model=8, n_layers=1, head="pair"))
    forecast = ws.SequenceModel(ws.ModelConfig(d_model=8, n_layers=1, head="forecast", horizon=2))
    for model, write, words in (
        (pair, export_onnx, "head='pair' has no ONNX form"),
        (make("both directions"), export_stream, "reads the future"),
        (forecast, export_onnx, "forecasts trained by gradient have no ONNX form"),
        (torch.nn.Linear(1, 1), export_onnx, "got a Linear"),
    ):
        check_refused(partial(write, model, tmp_path / "model"), ws.OptionError, words)
    with pytest.raises(ws.OptionError, match="chunk is 0"):
        export_onnx(make("pool"), tmp_path / "model", chunk=0)


def test_a_missing_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ws.MissingExtraError, match=r"wavessm\[export\]"):
        export_onnx(make("pool"), tmp_path / "model.onnx")


# -- the command --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("export")
    miniatures.arrays(folder / "arrays")
    size = ["--d-model", "8", "--n-layers", "1", "--d-state", "8", "--device", "cpu", "--quiet", "--steps", "3"]
    typed = ["train", "arrays", str(folder / "arrays"), "--out", str(folder / "run"), "--no-bidirectional", *size]
    assert main(typed) == 0
    return folder


def test_the_command_exports_a_run_in_every_format(trained, capsys):
    from wavessm.training import Run

    run = Run.read(trained / "run")
    model = run.load_model()
    raw = torch.randn(2, run.info.length, run.info.d_input) * 3 + 1
    with torch.no_grad():
        wanted = model(run.info.standardise(raw))
    for form, name in (("onnx", "model.onnx"), ("step-onnx", "model.step.onnx")):
        assert main(["export", str(trained / "run"), "--format", form, "--chunk", "1"]) == 0
        assert "differs from PyTorch by" in capsys.readouterr().out
        assert (trained / "run" / name).exists()
    close(session(trained / "run/model.onnx").run(["y"], {"x": raw.numpy()})[0], wanted, "raw numbers go in")
    notes = session(trained / "run/model.onnx").get_modelmeta().custom_metadata_map
    assert json.loads(notes["info"])["classes"] == list(run.info.classes)
    assert main(["export", str(trained / "run"), "--format", "pretrained", "--out", str(trained / "hub")]) == 0
    with torch.no_grad():
        close(ws.SequenceModel.from_pretrained(trained / "hub")(run.info.standardise(raw)).numpy(), wanted, "folder")
    card = (trained / "hub/README.md").read_text()
    assert "arrays" in card
    assert "| test accuracy |" in card


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("{0}/arrays", "not a run folder"),
        ("{0}/run --format onx", "onnx"),
        ("{0}/run --chunk 0", "chunk is 0"),
        ("{0}/run --format pretrained --chunk 3", "--chunk go with --format onnx or step-onnx"),
        ("{0}/run --out {0}", "is a folder"),
        ("{0}/run --rate -1", "rate is -1"),
    ],
)
def test_a_mistake_in_the_command_is_one_line(trained, capsys, typed, words):
    check_mistake(["export", *typed.format(trained).split()], words, capsys)


def test_mistakes_in_a_call_leave_no_file(tmp_path):
    model = make("pool")
    wrong = DataInfo("multiclass", 2, 5, 100)
    for export in (export_onnx, export_stream):
        with pytest.raises(ws.OptionError, match="info has 2 channels and 5 outputs, expected"):
            export(model, tmp_path / "model", info=wrong)
        with pytest.raises(ws.OptionError, match="sampled for streams"):
            export(ws.sampled(model), tmp_path / "model")
    (tmp_path / "folder").mkdir()
    with pytest.raises(DataError, match="is a folder"):
        export_onnx(model, tmp_path / "folder")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_files_for_recordings_take_any_level_and_streams_that_of_training(tmp_path):
    torch.manual_seed(0)
    model = ws.SequenceModel(
        ws.ModelConfig(d_input=1, d_output=3, d_model=8, d_state=8, n_layers=1, head="pool")
    ).eval()
    info = DataInfo("multiclass", 1, 3, 50, ("a", "b", "c"), scale=((0.1,), (0.2,)), scaling="recording")
    export_onnx(model, tmp_path / "m.onnx", info=info)
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    sound = torch.randn(2, 63, 1).clamp(-4, 4) / 8
    one, two = (session.run(None, {"x": (sound * level).numpy()})[0] for level in (1.0, 32768.0))
    np.testing.assert_allclose(one, two, atol=1e-5)
    level = (sound - sound.mean(1, keepdim=True)).square().mean((1, 2), keepdim=True).sqrt()
    with torch.no_grad():
        close(one, model((sound - sound.mean(1, keepdim=True)) / level), "by its own level")
    report = export_onnx(model, tmp_path / "s.onnx", info=info, stream=True)
    assert report.error < 1e-4

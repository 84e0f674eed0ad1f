"""Exported models against PyTorch, run by ONNX Runtime and by torch.export, not by the exporter's own check."""

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
from contracts import check_mistake
from wavessm.cli import main
from wavessm.data import DataInfo
from wavessm.errors import DataError
from wavessm.export import export_onnx, export_torch

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
    "forecast": {"head": "forecast", "horizon": 7, "d_output": 2, "instance_norm": "mean_std"},
    "forecast with a calendar": {
        "head": "forecast", "horizon": 70, "d_output": 2, "instance_norm": "last", "encoder": "calendar",
        "mark_sizes": (4, 5), "horizon_mask": True,
    },
    "forecast with a direct path": {
        "head": "forecast", "horizon": 7, "d_output": 2, "encoder": "calendar", "mark_width": 2, "horizon_mask": True,
        "direct": True, "context": 40, "instance_norm": "mean_std",
    },
    "forecast with real marks": {
        "head": "forecast", "horizon": 7, "d_output": 2, "encoder": "calendar", "mark_width": 2, "horizon_mask": True,
    },
}  # fmt: skip
STREAMS = ["pool", "dense", "an odd number of real modes", "tokens", "forecast with real marks"]


def make(name):
    """A model with statistics of its own in its batch norms."""
    torch.manual_seed(0)
    fields = {"d_input": 3, "d_output": 5, "d_model": 8, "n_layers": 2, "d_state": 8} | MODELS[name]
    model = ws.SequenceModel(ws.ModelConfig(**fields))
    with torch.no_grad():
        for _ in range(3):
            model(*example(model, 4, 30)[:1], marks=example(model, 4, 30)[1])
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return model.eval()


def example(model, batch, length, seed=0):
    config, generator = model.config, torch.Generator().manual_seed(seed)
    if config.encoder == "embedding":
        return torch.randint(config.vocabulary, (batch, length), generator=generator), None
    x = 2 + 3 * torch.randn(batch, length, config.d_input, generator=generator)
    if config.encoder != "calendar":
        return x, None
    steps = length + (config.horizon or 0)
    if config.mark_width:
        return x, torch.randn(batch, steps, config.mark_width, generator=generator)
    return x, torch.stack([torch.randint(size, (batch, steps), generator=generator) for size in config.mark_sizes], -1)


def session(path):
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def feed(x, marks):
    return {"x": x.numpy()} | ({} if marks is None else {"marks": marks.numpy()})


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
        x, marks = example(model, batch, length, seed=length)
        with torch.no_grad():
            wanted = model(info.standardise(x), rate=1.5, marks=marks)
        close(run.run(["y"], feed(x, marks))[0], wanted, (name, batch, length))


PADDED = ["pool", "both directions", "dense", "dense, both directions", "tokens", "own dynamics for each channel"]


@pytest.mark.parametrize("name", PADDED)
def test_padded_batches_are_heard_up_to_their_lengths(name, tmp_path):
    model = make(name)
    info = info_for(model)
    report = export_onnx(model, tmp_path / "model.onnx", info=info, lengths=True)
    assert report.error < TOLERANCE
    run = session(tmp_path / "model.onnx")
    for lengths in ([1], [5, 1, 3], [64, 63], [70, 700, 65, 1]):
        x, _ = example(model, len(lengths), max(lengths), seed=len(lengths))
        ends = torch.tensor(lengths)
        with torch.no_grad():
            wanted = model(info.standardise(x), ends)
            alone = model(info.standardise(x[-1:, : lengths[-1]]))
        if x.is_floating_point():  # what stands in the padding does not matter
            x = x.masked_fill(torch.arange(max(lengths))[:, None] >= ends[:, None, None], float("nan"))
        (got,) = run.run(["y"], {"x": x.numpy(), "lengths": ends.numpy()})
        close(got, wanted, (name, lengths))
        end = lengths[-1] if model.config.head == "sequence" else None
        close(got[-1:, :end] if end else got[-1:], alone, (name, lengths, "alone"))


def test_lengths_of_a_context_are_refused_in_one_line(tmp_path):
    with pytest.raises(ws.OptionError, match="lengths go with whole sequences, the heads 'pool'"):
        export_onnx(make("forecast"), tmp_path / "model.onnx", lengths=True)


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("chunk", [1, 16])
def test_a_stream_in_onnx_stays_with_the_model_over_many_chunks(name, chunk, tmp_path):
    model = make(name)
    info = info_for(model)
    export_stream(model, tmp_path / "step.onnx", chunk=chunk, info=info)
    run = session(tmp_path / "step.onnx")
    types = {"tensor(float)": np.float32, "tensor(double)": np.float64}
    inputs = [i for i in run.get_inputs() if i.name not in ("x", "marks")]
    states = {i.name: np.zeros([2, *i.shape[1:]], types[i.type]) for i in inputs}
    wanted_state = model.initial_state(2)
    heard = []
    for number in range(100):
        x, marks = example(model, 2, chunk * (1 + number % 3), seed=number)
        heard.append(x)
        with torch.no_grad():
            wanted, wanted_state = model.stream(info.standardise(x), wanted_state, marks=marks)
        got, *after = run.run(None, feed(x, marks) | states)
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
    model = make("forecast")
    info = info_for(model, target_scale=((1.0, 2.0), (3.0, 4.0)))
    export_onnx(model, tmp_path / "model.onnx", info=info)
    x, _ = example(model, 2, 40)
    with torch.no_grad():
        wanted = model((x - torch.tensor([0.0, 1, 2])) / torch.tensor([2.0, 3, 4])) * torch.tensor([3.0, 4])
    close(session(tmp_path / "model.onnx").run(None, feed(x, None))[0], wanted + torch.tensor([1.0, 2]), "units")


def test_scaling_of_every_step_is_in_the_file(tmp_path):
    """`train speech --scaling s4-compat` has means and deviations for each sample of a clip."""
    torch.manual_seed(0)
    model = ws.SequenceModel(ws.ModelConfig(d_output=3, d_model=8, n_layers=1, d_state=8)).eval()
    scale = (tuple(np.linspace(-1, 2, 50).tolist()), tuple(np.linspace(0.5, 3, 50).tolist()))
    info = DataInfo("multiclass", 1, 3, 50, ("a", "b", "c"), step_scale=scale)
    export_onnx(model, tmp_path / "model.onnx", info=info)
    for length in (20, 50, 70):
        x = torch.randn(2, length, 1)
        mean, std = (torch.tensor(values)[:length, None] for values in scale)
        with torch.no_grad():
            wanted = model((x[:, :50] - mean) / std)
        close(session(tmp_path / "model.onnx").run(["y"], feed(x, None))[0], wanted, length)
    for export in (export_stream, export_torch):
        with pytest.raises(ws.OptionError, match="scales every step by itself"):
            export(model, tmp_path / "other", info=info)


@pytest.mark.parametrize("name", ["pool", "both directions", "forecast with a calendar"])
def test_torch_export_says_what_the_model_says(name, tmp_path):
    model = make(name)
    report = export_torch(model, tmp_path / "model.pt2", max_length=900)
    assert report.error < TOLERANCE
    program = torch.export.load(tmp_path / "model.pt2").module()
    for batch, length in ((1, 2), (4, 77), (2, 900)):
        x, marks = example(model, batch, length, seed=length)
        with torch.no_grad():
            got = program(x) if marks is None else program(x, marks)
            close(got.numpy(), model(x, marks=marks), (name, batch, length))


def test_a_file_that_differs_is_not_written(tmp_path, monkeypatch):
    monkeypatch.setattr("wavessm.export.files.TOLERANCE", 1e-12)
    with pytest.raises(DataError, match="differs from PyTorch"):
        export_onnx(make("pool"), tmp_path / "model.onnx")
    assert not any(tmp_path.iterdir())


def test_what_cannot_be_exported_is_refused_in_one_line(tmp_path):
    lstm = ws.SequenceModel(ws.ModelConfig(d_model=8, n_layers=1, backbone="lstm"))
    direct = ws.SequenceModel(ws.ModelConfig(d_model=8, n_layers=1, head="forecast", horizon=2, direct=True, context=3))
    for model, write, words in (
        (lstm, export_onnx, "expected 'wavessm'"),
        (make("both directions"), export_stream, "reads the future"),
        (make("forecast"), export_stream, "instance_norm"),
        (direct, export_stream, "direct reads the whole context"),
        (torch.nn.Linear(1, 1), export_torch, "got a Linear"),
    ):
        with pytest.raises(ws.OptionError, match=words) as raised:
            write(model, tmp_path / "model")
        assert "\n" not in str(raised.value)
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
    for form, name in (("onnx", "model.onnx"), ("step-onnx", "model.step.onnx"), ("torch-export", "model.pt2")):
        chunk = ["--chunk", "1"] if "onnx" in form else []
        assert main(["export", str(trained / "run"), "--format", form, *chunk]) == 0
        assert "differs from PyTorch by" in capsys.readouterr().out
        assert (trained / "run" / name).exists()
    close(session(trained / "run/model.onnx").run(["y"], {"x": raw.numpy()})[0], wanted, "raw numbers go in")
    assert main(["export", str(trained / "run"), "--lengths", "--out", str(trained / "padded.onnx")]) == 0
    ends = np.full(2, run.info.length)
    got = session(trained / "padded.onnx").run(["y"], {"x": raw.numpy(), "lengths": ends})[0]
    close(got, wanted, "lengths go in beside them")
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
        ("{0}/run --format step-onnx --lengths", "--lengths goes with --format onnx"),
        ("{0}/run --format torch-export --chunk 3", "--chunk goes with --format onnx or step-onnx"),
        ("{0}/run --max-length 30", "--max-length goes with --format torch-export, got onnx"),
        ("{0}/run --out {0}", "is a folder"),
        ("{0}/run --rate -1", "rate is -1"),
    ],
)
def test_a_mistake_in_the_command_is_one_line(trained, capsys, typed, words):
    check_mistake(["export", *typed.format(trained).split()], words, capsys)


@pytest.mark.parametrize("marks", [{"mark_width": 2}, {"mark_sizes": (3, 4)}])
@pytest.mark.parametrize("horizon", [1, 3])
def test_marks_that_end_with_the_context_are_zero_after_it(tmp_path, horizon, marks):
    torch.manual_seed(0)
    fields = {"d_input": 2, "d_output": 2, "d_model": 4, "n_layers": 1, "d_state": 4, "horizon_mask": True}
    fields |= {"head": "forecast", "horizon": horizon, "encoder": "calendar"} | marks
    model = ws.SequenceModel(ws.ModelConfig(**fields)).eval()
    x, given = example(model, 2, 6)
    with torch.no_grad():
        wanted = model(x, marks=given[:, :6]).numpy()
    export_onnx(model, tmp_path / "whole.onnx", chunk=4)
    (got,) = session(tmp_path / "whole.onnx").run(["y"], {"x": x.numpy(), "marks": given[:, :6].numpy()})
    np.testing.assert_allclose(got, wanted, atol=1e-5)
    export_stream(model, tmp_path / "stream.onnx", chunk=1)
    feed = {"x": x.numpy(), "marks": given[:, :6].numpy(), "state_0": model.initial_state(2).layers[0].numpy()}
    got, _ = session(tmp_path / "stream.onnx").run(None, feed)
    np.testing.assert_allclose(got, wanted, atol=1e-5)


def test_mistakes_in_a_call_leave_no_file(tmp_path):
    model = make("pool")
    wrong = DataInfo("multiclass", 2, 5, 100)
    for export in (export_onnx, export_stream, export_torch):
        with pytest.raises(ws.OptionError, match="info has 2 channels and 5 outputs, expected"):
            export(model, tmp_path / "model", info=wrong)
        with pytest.raises(ws.OptionError, match="sampled for streams"):
            export(ws.sampled(model), tmp_path / "model")
    with pytest.raises(ws.OptionError, match="max_length is 2, expected a whole number of at least 3"):
        export_torch(model, tmp_path / "model", max_length=2)
    (tmp_path / "folder").mkdir()
    with pytest.raises(DataError, match="is a folder"):
        export_torch(model, tmp_path / "folder")
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
    with pytest.raises(ws.OptionError, match=r"lengths go with .* scaling 'global'"):
        export_onnx(model, tmp_path / "l.onnx", info=info, lengths=True)

"""What PyTorch sees of the engine: registered operators, whole graphs, any length, no float64 where there is none.

Triton's kernels run in its interpreter where there is no GPU; the graphs are those of a GPU.
"""

import shutil

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.export import Dim
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import wavessm as ws
from wavessm.features import FeatureConfig, SignalFeatures, StateBank, model
from wavessm.ops import modes, run_layer
from wavessm.ops.triton import gate, irregular, norm, scan
from wavessm.training import metrics

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # of the kernels; everything else runs on the CPU
KINDS = [("morlet", False), ("db6", True), ("legs", False), ("legt", True)]


def make(family, bidirectional, length, batch=2):
    torch.manual_seed(0)
    layer = ws.WaveSSM(3, 7, family=family, bidirectional=bidirectional)
    return layer, torch.randn(batch, length, 3, requires_grad=True)


@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("decay", [(2, 2, 1, 6), (2, 6, 6)])
def test_the_walk_over_chunks_is_a_sound_operator(decay, back):
    added, first = torch.randn(2, 3, 4, 6, requires_grad=True), torch.randn(2, 3, 6, requires_grad=True)
    D = torch.randn(decay, requires_grad=True)
    for s in (first, None):
        torch.library.opcheck(torch.ops.wavessm.carry.default, (added, D, s, back))


def drawn(*shape):
    return torch.randn(*shape, device=DEVICE, requires_grad=True)


def test_kernels_are_sound_operators():
    """Schemas, shapes and strides of outputs, gradients and whole graphs, as PyTorch itself checks them."""
    x, factors = drawn(2, 5, 3), torch.rand(2, 1, 3, device=DEVICE)
    rows, options = torch.ones(2, 5, 1, dtype=torch.uint8, device=DEVICE), (1.0, "fp32", [16], True, True)
    running = torch.zeros(3, device=DEVICE), torch.ones(3, device=DEVICE)
    calls = [
        *((norm.normalize, (x, drawn(3), drawn(3), 1e-5, torch.float32, first)) for first in (False, True)),
        *((norm.standardize, (x, drawn(3), drawn(3), rows, *running, 1e-5, 0.1, first)) for first in (False, True)),
        (gate.activate, (drawn(2, 3, 5), factors, None)),
        (gate.gate, (drawn(2, 5, 6), drawn(6), factors, x)),
    ]
    layer = ws.WaveSSM(2, 4).to(DEVICE)
    calls.append((scan.chunked_scan, (drawn(1, 2, 17), drawn(1, 2, 2, 2), layer.D, *layer.system(), *options)))
    z, gaps = torch.randn(2, 3, 2).to(DEVICE, torch.float64).requires_grad_(), torch.rand(2, 1, 5).to(DEVICE).double()
    times = gaps[:, 0], gaps.expand(2, 2, 5)
    calls.append((irregular.irregular_scan, (drawn(2, 2, 5), z, drawn(2, 3, 2), drawn(2, 2, 3, 2), *times)))
    for operator, inputs in calls:
        torch.library.opcheck(getattr(torch.ops.wavessm, operator.__name__).default, inputs)


@pytest.mark.parametrize(("bidirectional", "kind"), [(True, "layer"), (False, "batch")])
def test_a_compiled_block_keeps_its_kernels(bidirectional, kind):
    torch.manual_seed(0)
    layer = ws.WaveSSM(3, 2, bidirectional=bidirectional, backend="triton")
    block, graphs = ws.ResidualBlock(layer, norm=kind).to(DEVICE), []
    torch._dynamo.reset()
    results = []
    x = drawn(2, 17, 3)
    for run in (block, torch.compile(block, fullgraph=True, backend="aot_eager")):
        y = run(x)
        results.append((y, *torch.autograd.grad(y.square().sum(), [x, *block.parameters()])))
    for eager, compiled in zip(*results, strict=True):
        assert torch.equal(eager, compiled)

    torch._dynamo.reset()
    with torch.no_grad():
        compiled = torch.compile(
            block, fullgraph=True, dynamic=True, backend=lambda g, _: graphs.append(g) or g.forward
        )
        for batch, length in ((2, 17), (5, 30)):
            x = drawn(batch, length, 3)
            torch.testing.assert_close(compiled(x), block(x), atol=1e-5, rtol=1e-5)  # chunks of another length
    assert len(graphs) == 1
    called = " ".join(str(node.target) for node in graphs[0].graph.nodes)
    assert all(f"wavessm.{name}" in called for name in ("chunked_scan", "activate", "gate"))


def test_a_compiled_block_stays_in_bfloat16():
    torch.manual_seed(0)
    layer = ws.WaveSSM(3, 2, bidirectional=True, backend="triton", precision="bf16")
    block = ws.ResidualBlock(layer, norm="batch").to(DEVICE)
    torch._dynamo.reset()
    results, x = [], drawn(2, 17, 3)
    for run in (block, torch.compile(block, fullgraph=True, backend="aot_eager")):
        with torch.autocast(DEVICE, torch.bfloat16):
            y = run(x)
        results.append((y, *torch.autograd.grad(y.float().square().sum(), [x, *block.parameters()])))
    for eager, compiled in zip(*results, strict=True):
        assert torch.equal(eager, compiled)
    assert y.dtype == torch.bfloat16


def test_an_exported_model_keeps_its_kernels():
    torch.manual_seed(0)
    options = {"d_input": 2, "d_output": 3, "d_model": 3, "d_state": 2, "n_layers": 1, "norm": "layer"}
    model = ws.SequenceModel(ws.ModelConfig(**options, bidirectional=True, backend="triton")).eval().to(DEVICE)
    free = ({0: Dim.DYNAMIC, 1: Dim.DYNAMIC},)
    program = torch.export.export(model, (torch.randn(2, 70, 2, device=DEVICE),), dynamic_shapes=free)
    called = {str(node.target) for module in program.graph_module.modules() for node in module.graph.nodes}
    assert {f"wavessm.{name}.default" for name in ("normalize", "chunked_scan", "activate", "gate")} <= called
    x = drawn(5, 80, 2)
    with torch.no_grad():
        torch.testing.assert_close(program.module()(x), model(x), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("length", [70, 513, 1000])
@pytest.mark.parametrize(("family", "bidirectional"), KINDS)
def test_a_compiled_layer_is_one_graph_and_equals_the_eager_one(family, bidirectional, length):
    layer, x = make(family, bidirectional, length)
    torch._dynamo.reset()
    results = []
    for run in (layer, torch.compile(layer, fullgraph=True, backend="aot_eager")):
        y = run(x)
        results.append((y, *torch.autograd.grad(y.square().sum(), [x, *layer.parameters()])))
    for eager, compiled in zip(*results, strict=True):
        torch.testing.assert_close(compiled, eager, rtol=1e-6, atol=1e-6 * float(eager.detach().abs().max()))


@pytest.mark.parametrize("family", ["morlet", "legs"])
def test_one_graph_with_a_dynamic_length_serves_all(family):
    layer, _ = make(family, False, 1)
    graphs = []
    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend=lambda g, _: graphs.append(g) or g.forward)
    for length in (100, 600, 1000, 130):
        x = torch.randn(2, length, 3)
        torch.testing.assert_close(compiled(x), layer(x), atol=1e-5, rtol=1e-5)
    assert len(graphs) == 1


@pytest.mark.parametrize(("family", "bidirectional"), KINDS)
def test_an_exported_layer_takes_other_batches_and_lengths(family, bidirectional):
    layer, x = make(family, bidirectional, 600)
    shapes = ({0: Dim.DYNAMIC, 1: Dim.DYNAMIC},)
    program = torch.export.export(layer.eval(), (x.detach(),), dynamic_shapes=shapes).module()
    for batch, length in ((2, 65), (5, 128), (2, 600), (3, 1777)):
        signal = torch.randn(batch, length, 3)
        torch.testing.assert_close(program(signal), layer(signal), atol=1e-5, rtol=1e-5)


@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
@pytest.mark.filterwarnings("ignore:.*treespec:FutureWarning")  # PyTorch's own
def test_a_layer_compiled_ahead_of_time_takes_other_batches_and_lengths(tmp_path):
    layer, x = make("morlet", True, 100)
    with torch.no_grad():
        program = torch.export.export(layer.eval(), (x,), dynamic_shapes=({0: Dim.DYNAMIC, 1: Dim.DYNAMIC},))
        package = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "layer.pt2"))
        run = torch._inductor.aoti_load_package(package)
        for batch, length in ((2, 100), (3, 777)):
            signal = torch.randn(batch, length, 3)
            torch.testing.assert_close(run(signal), layer(signal), atol=1e-5, rtol=1e-5)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
def test_transforms_are_refused_in_one_line():
    layer, x = make("morlet", False, 20)
    calls = {
        "vmap": lambda: torch.func.vmap(layer)(x[None]),
        "jvp": lambda: torch.func.jvp(layer, (x,), (x,)),
        "grad": lambda: torch.func.grad(lambda x: layer(x).sum())(x),
    }
    for call in calls.values():
        with pytest.raises(ws.OptionError, match="backend='reference'") as caught:
            call()
        assert "\n" not in str(caught.value)
    layer.engine = layer.engine._replace(backend="reference")
    torch.testing.assert_close(torch.func.jvp(layer, (x,), (x,))[1], layer(x))  # the layer is linear


class NoFloat64(TorchDispatchMode):
    """Raises for float64 outside the CPU, as a GPU of Apple would."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in tree_leaves((args, kwargs, result)):
            if isinstance(tensor, torch.Tensor) and tensor.dtype in (torch.float64, torch.complex128):
                assert tensor.device.type == "cpu", f"{function} has float64 on {tensor.device}"
        return result


@pytest.mark.parametrize("length", [5, 100, 600])
@pytest.mark.parametrize(("family", "bidirectional"), KINDS)
def test_float64_stays_on_the_cpu_where_a_device_has_none(family, bidirectional, length, monkeypatch):
    system = make(family, bidirectional, 1)[0].system()

    def run():
        with FakeTensorMode(), NoFloat64():
            leaves = [torch.empty(p.shape, device="meta", requires_grad=True) for p in system if p is not None]
            D, u = torch.empty(3, device="meta"), torch.empty(2, 3, length, device="meta", requires_grad=True)
            y, last = run_layer(u, type(system)(*leaves), D, want_state=not bidirectional)
            outputs = [y] if last is None else [y, last]
            assert all(tensor.device.type == "meta" for tensor in outputs)
            torch.autograd.grad([output.sum() for output in outputs], [u, *leaves])

    with pytest.raises(AssertionError, match="float64 on meta"):
        run()
    monkeypatch.setattr(modes, "HAVE_FLOAT64", ("cpu",))
    run()


class Streamed(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model.stream(x, self.model.initial_state(len(x)))[0]


@pytest.mark.parametrize("wrap", [torch.nn.Sequential, Streamed])
@pytest.mark.parametrize("options", [{"missing": "gap"}, {"family": "legs"}])
def test_models_and_streams_keep_float64_on_the_cpu(options, wrap, monkeypatch):
    model = wrap(ws.SequenceModel(ws.ModelConfig(d_model=3, d_state=4, n_layers=1, **options)))
    monkeypatch.setattr(modes, "HAVE_FLOAT64", ("cpu",))
    for module in ("nn.layer", "nn.model", "ops.irregular"):
        monkeypatch.setattr(f"wavessm.{module}.can_sync", lambda tensor: False)
    with FakeTensorMode(), NoFloat64():
        leaves = {name: torch.empty(p.shape, device="meta", requires_grad=True) for name, p in model.named_parameters()}
        y = torch.func.functional_call(model, leaves, (torch.empty(2, 20, 1, device="meta"),))
        assert y.device.type == "meta"
        torch.autograd.grad(y.sum(), list(leaves.values()))


@pytest.mark.parametrize("stretches", [True, False])
def test_state_features_keep_float64_on_the_cpu(stretches, monkeypatch):
    monkeypatch.setattr(modes, "HAVE_FLOAT64", ("cpu",))
    monkeypatch.setattr(FakeTensor, "tolist", lambda whole: [True] * len(whole))  # there are no values to read
    monkeypatch.setattr(torch, "bincount", lambda index, minlength: index.new_zeros(minlength))
    config = FeatureConfig(n_features=200, n_scales=3, stretches=stretches)
    with FakeTensorMode(), NoFloat64():
        monkeypatch.setattr(torch, "from_numpy", lambda array: torch.empty(array.shape))  # a bank without numbers
        bank = StateBank(config, channels=2, length=40, seed=0).to("meta")
        made = bank.features(torch.empty(3, 40, 2, device="meta"))
        assert (made.device.type, made.shape) == ("meta", (3, bank.n_features))


def test_closed_forms_are_fitted_on_the_cpu_where_a_device_has_no_float64(monkeypatch):
    """The bank computes where it is; the ridge takes float64."""

    class Fitted(Exception):
        pass

    def fit_ridge(features, targets, *others):
        assert (features.device.type, targets.device.type) == ("cpu", "cpu")
        raise Fitted

    x, y = torch.randn(6, 40, 1), torch.randn(6, 1)
    monkeypatch.setattr(modes, "HAVE_FLOAT64", ("cpu",))
    monkeypatch.setattr(model, "fit_ridge", fit_ridge)
    features = SignalFeatures(x, None, FeatureConfig(n_features=60, n_scales=2), 0, "cpu")
    with FakeTensorMode(allow_non_fake_inputs=True), NoFloat64():
        features.mean = torch.empty(1, device="meta")
        monkeypatch.setattr(model, "SignalFeatures", lambda *others: features)
        monkeypatch.setattr(SignalFeatures, "forward", lambda *others: torch.empty(6, 60, device="meta"))
        with pytest.raises(Fitted):
            model.FeatureModel.fit(x, y, "regression")


@pytest.mark.parametrize("kind", ["multiclass", "multilabel", "regression"])
def test_scores_keep_float64_on_the_cpu(kind, monkeypatch):
    monkeypatch.setattr(modes, "HAVE_FLOAT64", ("cpu",))
    with FakeTensorMode(), NoFloat64():
        output, target = (torch.empty(4, 3, device="meta") for _ in range(2))
        target = torch.empty(4, dtype=torch.long, device="meta") if kind == "multiclass" else target
        assert metrics.rows(kind, output, target).dtype == torch.float64

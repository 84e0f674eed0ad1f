"""The Triton scan against the float64 loop, run by Triton's interpreter on the CPU (full sizes are timed on a GPU)."""

import subprocess
import sys

import pytest
import torch

import wavessm as ws
from test_ops import MODAL, draws, modal, outputs_and_gradients, problem, two_way
from wavessm.nn.layer import time_mask
from wavessm.ops import Engine, Modes, normalize, run_layer
from wavessm.ops.dispatch import masked_batch_norm
from wavessm.ops.modes import sample
from wavessm.ops.tables import chunk_tables
from wavessm.ops.triton import gate as triton_gate
from wavessm.ops.triton import norm as triton_norm
from wavessm.ops.triton import scan as triton_scan
from wavessm.ops.triton import tables as triton_tables
from wavessm.ops.triton.low_rank import fill_low_rank
from wavessm.ops.triton.plan import Settings

# The interpreter multiplies float32 exactly whatever tl.dot is told, so TF32 shows its own error on a GPU only.
# Its bfloat16 is truncated where a GPU rounds: twice the error.
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOLERANCE = {"fp32": 1e-5, "tf32": 1e-5 if DEVICE == "cpu" else 5e-3, "bf16": 3e-2}


def on_device(tensors):
    return [tensor.float().to(DEVICE) for tensor in tensors]


def assert_close_to_reference(got, want, tolerance, names, shape):
    for name, a, b in zip(names, got, want, strict=True):
        if b.numel():
            error = float((a.double() - b.double()).norm() / b.double().norm().clamp(min=1e-6))
            assert error < tolerance, f"{name}: {error:.1e} at {shape}"


def check(shape, directions=1, precision="fp32", settings=None, tolerance=None, copies=1, view=lambda u: u):
    u, parameters, D, state = problem(*shape, directions=directions, copies=copies)
    inputs = on_device([u, *parameters, D, *([state] if directions == 1 else [])])
    inputs[0] = view(inputs[0])
    slow = outputs_and_gradients((modal if directions == 1 else two_way)("reference"), inputs)

    def fast(u, *rest):
        *rest, D = rest if directions == 2 else rest[:-1]
        first = None if directions == 2 else inputs_state
        return triton_scan.run_layer(u, Modes(*rest), D, 1.0, first, directions == 1, precision, settings)

    leaves = [a.detach().clone().requires_grad_() for a in inputs]
    leaves[0] = view(inputs[0]).detach().requires_grad_()
    inputs_state = leaves[-1] if directions == 1 else None
    outputs = [o for o in fast(*leaves) if o is not None]
    generator = torch.Generator().manual_seed(0)
    seeds = [torch.randn(o.shape, generator=generator, dtype=torch.float64).to(o) for o in outputs]
    got = [*(o.detach() for o in outputs), *torch.autograd.grad(outputs, leaves, seeds)]
    names = MODAL if directions == 1 else [name for name in MODAL if "state" not in name]
    assert_close_to_reference(got, slow, tolerance or TOLERANCE[precision], names, shape)


@pytest.mark.parametrize(
    "shape",
    [(1, 2, 1, 0, 1), (3, 1, 0, 3, 2), (2, 2, 7, 1, 63), (2, 3, 14, 3, 64), (17, 1, 5, 0, 65), (1, 2, 31, 2, 200),
     (2, 1, 64, 0, 70)],
)  # fmt: skip
def test_outputs_and_gradients_equal_the_reference(shape):
    check(shape)


@pytest.mark.parametrize("shape", [(2, 1, 3, 1, 1), (2, 2, 7, 1, 63), (1, 2, 8, 0, 128), (17, 1, 3, 2, 150)])
def test_both_directions_equal_the_reference(shape):
    check(shape, directions=2)


def test_copies_gather_the_gradients_of_their_channels():
    check((2, 4, 3, 1, 70), directions=2, copies=2)


@pytest.mark.parametrize("tile", [16, 64])
@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
def test_each_arithmetic_keeps_its_accuracy(precision, tile):
    settings = Settings(chunk=32, tile=tile, part=16, block=16)
    check((3, 2, 7, 1, 150), directions=2, precision=precision, settings=settings)


@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("length", [15, 96, 250])
@pytest.mark.parametrize("segments", [2, 5])
def test_segments_equal_the_reference(segments, length, directions):
    settings = Settings(chunk=16, tile=16, segments=segments, part=16, block=16)
    check((3, 2, 2, 1, length), directions, settings=settings)


def low_rank_inputs(batch, channels, n_complex, real, length, rank, directions, copies=1):
    """u, a DPLR layer's parameters, D, and the first state of a causal one."""
    shape = batch, channels, n_complex, real, length
    u, parameters, D, state = problem(*shape, copies=copies, directions=directions)
    P = 0.5 * draws(3)(copies, rank, *parameters[3].shape[1:])
    if real % 2:
        P[..., -1, 1] = 0
        parameters[3][:, -1, 1] = 0
    return on_device([u, *parameters, P, D, *([state] if directions == 1 else [])])


@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize(
    ("shape", "settings"),
    [
        ((1, 2, 17, 0, 32, 1), None),
        ((2, 2, 2, 1, 100, 1), Settings(chunk=16, part=16, block=16)),
        ((1, 1, 0, 4, 40, 2), Settings(chunk=16, part=16, block=16)),
        ((3, 1, 1, 2, 40, 2), Settings(chunk=16, tile=64, part=16, block=16)),
        ((3, 1, 2, 1, 80, 1), Settings(chunk=16, segments=3, part=16, block=16)),
    ],
)
def test_a_low_rank_layer_equals_the_reference(shape, settings, directions):
    inputs = low_rank_inputs(*shape, directions=directions)

    def slow(u, *rest):
        layer, D, *state = Modes(*rest[:6]), *rest[6:]
        return run_layer(u, layer, D, 1.5, *(state or [None]), directions == 1, Engine("reference"))

    def fast(u, *rest):
        layer, D, *state = Modes(*rest[:6]), *rest[6:]
        return triton_scan.run_layer(u, layer, D, 1.5, *(state or [None]), directions == 1, "fp32", settings)

    got, want = outputs_and_gradients(fast, inputs), outputs_and_gradients(slow, inputs)
    assert_close_to_reference(got, want, TOLERANCE["fp32"], range(len(got)), shape)


@pytest.mark.parametrize("copies", [1, 2])
@pytest.mark.parametrize("rank", [1, 2])
@pytest.mark.parametrize("chunk", [2, 8])
def test_chains_make_the_tables_of_the_dense_system(rank, copies, chunk):
    _, *parameters, _ = low_rank_inputs(1, 2, 2, 1, 9, rank, directions=2, copies=copies)

    layer = Modes(*parameters)
    (K, E, C, decay), _ = tables = triton_tables.empty_tables(layer, chunk)
    fill_low_rank(layer, torch.zeros_like(layer.log_dt), 0.75, *tables)
    want = chunk_tables(sample(layer, 0.75), chunk)
    for ours, exact in zip((K, E[:, 0], C[:, :, 0], decay), want, strict=True):
        assert float((ours - exact).abs().max()) < 1e-6 * max(1.0, float(exact.abs().max()))


def test_bfloat16_signals_are_rounded_on_the_way_out_only():
    u, parameters, D, state = problem(2, 2, 6, 1, 128)
    u, *parameters, D, state = on_device([u, *parameters, D, state])
    u, modes = u.bfloat16(), Modes(*parameters)
    y, after = triton_scan.run_layer(u, modes, D, 1.0, state, True)
    assert (y.dtype, after.dtype) == (torch.bfloat16, torch.float32)
    exact, last = run_layer(u.float(), modes, D, 1.0, state, True, Engine("reference"))
    assert (y.float() - exact).norm() < 8e-3 * exact.norm()  # bfloat16 keeps 8 bits; the interpreter truncates
    assert (after - last).norm() < 3e-6 * last.norm()


def test_input_of_any_strides():
    for view in (
        lambda u: u.transpose(1, 2).contiguous().transpose(1, 2),
        lambda u: torch.stack([u, torch.zeros_like(u)], dim=-1).flatten(2)[..., ::2],
        lambda u: u.transpose(0, 1).contiguous().transpose(0, 1),
    ):
        check((2, 3, 4, 0, 70), view=view)


def test_broken_input_breaks_nothing_before_it():
    u, parameters, D, _ = problem(2, 2, 5, 1, 192)
    u, *parameters, D = on_device([u, *parameters, D])
    modes = Modes(*parameters)
    for settings in (None, Settings(chunk=16, segments=3, part=16)):
        clean, _ = triton_scan.run_layer(u, modes, D, 1.0, None, True, settings=settings)
        for value in (float("nan"), float("-inf")):
            dirty = u.clone()
            dirty[0, 1, 70] = value
            y, state = triton_scan.run_layer(dirty, modes, D, 1.0, None, True, settings=settings)
            assert not torch.isfinite(y[0, 1, 70:]).any()
            assert not torch.isfinite(state[0, 1]).any()
            y[0, 1, 70:] = clean[0, 1, 70:]
            assert torch.equal(y, clean)


def test_an_outlier_hides_nothing_that_is_a_hundred_million_times_smaller():
    u, parameters, D, state = problem(2, 2, 5, 1, 128)
    u, state, seed = 1e-3 * u, 1e-3 * state, draws(7)(*u.shape)
    u[..., 100], seed[..., 100:] = 1e5, 0  # what is before it in its chunk must not notice
    inputs, results = on_device([u, *parameters, D, state]), []
    for engine in (Engine("triton"), Engine("reference")):
        leaves = [a.clone().requires_grad_() for a in inputs]
        y, _ = run_layer(leaves[0], Modes(*leaves[1:-2]), leaves[-2], 1.0, leaves[-1], engine=engine)
        gradients = torch.autograd.grad(y, leaves, seed.to(y))
        results.append([y[..., 64:100].detach(), *gradients])
    names = [name for name in MODAL if name != "state"]
    assert_close_to_reference(*results, 3e-6, names, tuple(u.shape))


def test_frozen_modes_still_pass_gradients_to_the_input():
    u, parameters, D, state = problem(2, 2, 5, 0, 80)
    u, *parameters, D, state = on_device([u, *parameters, D, state])
    u.requires_grad_()
    modes = Modes(*parameters)
    got = torch.autograd.grad(triton_scan.run_layer(u, modes, D, 1.0, state)[0].square().sum(), u)[0]
    want = torch.autograd.grad(run_layer(u, modes, D, 1.0, state, engine=Engine("reference"))[0].square().sum(), u)[0]
    assert (got - want).norm() < 3e-6 * want.norm()


def test_unsupported_calls_have_a_reason(monkeypatch):
    u, parameters, _, _ = problem(1, 1, 2, 0, 4, dtype=torch.float32)
    if DEVICE == "cuda":
        pytest.skip("the reasons are those of a machine without a GPU")
    assert triton_scan.unavailable(u) is None
    assert "torch.float64" in triton_scan.unavailable(u.double())
    wide = Modes(*parameters)._replace(B=torch.zeros(1, 300, 2))
    assert "d_state is 600" in triton_scan.unavailable(u, wide)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert "cpu" in str(triton_scan.unavailable(u))
    monkeypatch.setattr(triton_scan, "missing", "No module named 'triton'")
    assert "pip install triton" in str(triton_scan.unavailable(u))


def test_modules_import_without_triton_and_keep_the_reason():
    code = """if True:
        import sys
        sys.modules["triton"] = None
        import torch
        from wavessm.ops.triton import scan
        assert "triton is not installed" in scan.unavailable(torch.zeros(1, 1, 1))
    """
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)


@pytest.mark.parametrize(("n_complex", "real"), [(11, 0), (4, 5), (0, 2)])
def test_tables_equal_those_of_the_torch_path(n_complex, real):
    _, parameters, D, _ = problem(1, 3, n_complex, real, 5, directions=2)
    modes = Modes(*on_device(parameters))
    want = chunk_tables(sample(modes, 1.5), 32)
    (K, E, C, decay), _ = tables = triton_tables.empty_tables(modes, 32)
    triton_tables.fill_diagonal(modes, D.float().to(DEVICE), 1.5, *tables)
    direct = torch.zeros_like(want.K)
    direct[0, :, 0] = D
    (first, third), (_, second) = (factor.unflatten(2, (2, -1))[:, 0].unbind(1) for factor in want.decay)
    pairs = {
        "K": (K, want.K + direct),
        "E": (E, want.E.unflatten(2, (2, -1)).transpose(1, 2)),
        "C": (C, want.C.unflatten(2, (2, -1))),
        "decay": (decay, torch.stack([first, second, third], 1)),
    }
    for name, (a, b) in pairs.items():
        assert (a - b).abs().max() < 1e-6 * b.abs().max(), name


@pytest.mark.parametrize("whole", [True, False])
def test_the_gate_equals_torch(whole):
    generator = torch.Generator().manual_seed(0)
    shapes = (3, 61, 2 * 19), (2 * 19,), (3, 1, 19), (3, 61, 19), (3, 61, 19)
    p, bias, factors, around, seed = (torch.randn(*shape, generator=generator).to(DEVICE) for shape in shapes)
    leaves = [t.requires_grad_() for t in ((p, bias, around) if whole else (p, bias))]
    want = torch.nn.functional.glu(p + bias, dim=-1)
    want = around + factors * want if whole else want
    got = triton_gate.gate(p, bias, *((factors, around) if whole else (None, None)))
    for a, b in zip(
        (got, *torch.autograd.grad(got, leaves, seed)), (want, *torch.autograd.grad(want, leaves, seed)), strict=True
    ):
        torch.testing.assert_close(a, b, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize(("rows", "width", "dtype"), [(3, 19, "float32"), (1500, 20, "float32"), (37, 70, "bfloat16")])
def test_the_layer_norm_equals_torch(rows, width, dtype):
    generator = torch.Generator().manual_seed(0)
    shapes = (2, rows, width), (width,), (width,), (2, rows, width)
    x, weight, bias, seed = (torch.randn(*shape, generator=generator).to(DEVICE) for shape in shapes)
    x, seed = (2 * x + 3).to(getattr(torch, dtype)), seed.to(getattr(torch, dtype))
    leaves = [t.requires_grad_() for t in (x, weight, bias)]
    want = torch.nn.functional.layer_norm(x.float(), (width,), weight, bias, 1e-5).to(x.dtype)
    got = triton_norm.normalize(x, weight, bias, 1e-5, x.dtype, False)[0]
    assert got.dtype == want.dtype
    tight = {"atol": 2e-5 * rows**0.5, "rtol": 1e-5} if dtype == "float32" else {"atol": 0.1, "rtol": 0.02}
    for a, b in zip(
        (got, *torch.autograd.grad(got, leaves, seed)), (want, *torch.autograd.grad(want, leaves, seed)), strict=True
    ):
        torch.testing.assert_close(a, b, **tight)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("shape", "masked"), [((3, 50, 6), True), ((2, 700, 33), False), ((1, 1, 5), True)])
def test_the_batch_norm_equals_torch(shape, masked, dtype):
    generator = torch.Generator().manual_seed(0)
    x = (2 * torch.randn(*shape, generator=generator) + 30).to(DEVICE, getattr(torch, dtype))
    seed = torch.randn(*shape, generator=generator).to(x)
    lengths = torch.randint(1, shape[1] + 1, shape[:1], generator=generator).to(DEVICE)
    mask = time_mask(lengths, shape[1]) if masked else torch.ones(*shape[:2], 1, dtype=torch.bool, device=DEVICE)
    results = []
    for run in (lambda norm: normalize(x, norm, mask if masked else None, Engine("triton")),
                lambda norm: masked_batch_norm(x, mask, norm)):  # fmt: skip
        norm = torch.nn.BatchNorm1d(shape[-1]).to(DEVICE)
        with torch.no_grad():
            norm.weight.add_(torch.arange(shape[-1], device=DEVICE) / 5)
            norm.bias.sub_(0.5)
        leaves = [x.requires_grad_(), norm.weight, norm.bias]
        y = run(norm)
        assert y.dtype == x.dtype
        results.append((y, *torch.autograd.grad(y, leaves, seed), norm.running_mean, norm.running_var))
        assert norm.num_batches_tracked == 1
    tight = {"atol": 2e-4, "rtol": 1e-4} if dtype == "float32" else {"atol": 0.1, "rtol": 0.02}
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, **tight)
    assert not results[0][0][~mask[..., 0]].any()


def test_a_single_sample_has_no_variance_for_the_kernel_either():
    block = ws.ResidualBlock(ws.WaveSSM(4, 8, backend="triton"), norm="batch").to(DEVICE)
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        block(torch.randn(1, 1, 4, device=DEVICE))


@pytest.mark.parametrize("shape", [(1, 3), (700, 2, 9), (256, 33)])
def test_rows_are_added_up(shape):
    table = torch.randn(*shape, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    torch.testing.assert_close(triton_norm.sum_rows(table), table.sum(0), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("factors", [True, False])
def test_gelu_on_the_way_equals_torch(factors):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 37, 70, generator=generator).to(DEVICE).requires_grad_()
    shapes = (2, 1, 37), (2, 1, 37), (2, 70, 37)
    before, after, seed = (torch.rand(*shape, generator=generator).to(DEVICE) for shape in shapes)
    if not factors:
        before = after = torch.ones_like(before)
    want = after * torch.nn.functional.gelu(before * x.transpose(1, 2))
    got = triton_gate.activate(x, *((before, after) if factors else (None, None)))
    assert got.is_contiguous()
    torch.testing.assert_close(got, want, atol=1e-6, rtol=1e-5)
    gradients = [torch.autograd.grad(z, x, seed)[0] for z in (got, want)]
    torch.testing.assert_close(*gradients, atol=1e-6, rtol=1e-5)


def test_signals_are_transposed():
    x = torch.randn(2, 37, 70).to(DEVICE)
    assert torch.equal(triton_scan.rows(x.mT), x.mT)
    assert triton_scan.rows(x.mT).is_contiguous()
    assert triton_scan.rows(x) is x


@pytest.mark.parametrize(("norm", "prenorm"), [("layer", True), ("batch", False)])
def test_a_block_of_kernels_equals_one_of_torch(norm, prenorm):
    torch.manual_seed(0)
    block = ws.ResidualBlock(ws.WaveSSM(6, 8, bidirectional=True), norm, prenorm, dropout=0.3).to(DEVICE)
    x, seed = torch.randn(3, 70, 6, device=DEVICE, requires_grad=True), torch.randn(3, 70, 6, device=DEVICE)
    results = []
    for backend in ("torch", "triton"):
        block.layer.engine = block.layer.engine._replace(backend=backend)
        torch.manual_seed(1)  # the same features drop
        y = block(x)
        results.append((y, *torch.autograd.grad(y, [x, *block.parameters()], seed)))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("options", [{"bidirectional": True}, {"head": "last", "norm": "layer"}])
def test_a_model_of_kernels_equals_one_of_torch(options):
    config = {"d_input": 2, "d_output": 3, "d_model": 2, "d_state": 4, "n_layers": 1, "family": "legs", "norm": "batch"}
    x = torch.randn(3, 13, 2, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    results = []
    for backend in ("torch", "triton"):
        torch.manual_seed(0)
        model = ws.SequenceModel(ws.ModelConfig(**(config | options), backend=backend)).to(DEVICE)
        y = model(x)
        results.append((y, *torch.autograd.grad(y.square().sum(), list(model.parameters()))))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-3)


def test_bfloat16_goes_into_the_scan_as_it_is():
    torch.manual_seed(0)
    layer = ws.WaveSSM(3, 8, bidirectional=True, backend="triton", precision="bf16").to(DEVICE)
    x = torch.randn(2, 90, 3, device=DEVICE).bfloat16().requires_grad_()
    y = layer(x)
    assert y.dtype == torch.bfloat16
    layer.engine = layer.engine._replace(backend="reference")
    want = layer(x.detach().float())
    assert (y - want).norm() < 3e-2 * want.norm()
    (dx,) = torch.autograd.grad(y.float().square().sum(), x)
    assert dx.dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", [(3, 50, 6), (2, 701, 33), (5, 9, 130), (1, 2, 1)])
@pytest.mark.parametrize("kind", ["layer", "batch", "masked"])
def test_a_norm_that_writes_channels_first_equals_one_that_does_not(kind, shape, dtype):
    generator = torch.Generator().manual_seed(0)
    x = (torch.randn(*shape, generator=generator) + 3).to(DEVICE, getattr(torch, dtype))
    seed = torch.randn(*shape, generator=generator).to(x)
    lengths = torch.randint(1, shape[1] + 1, shape[:1], generator=generator).to(DEVICE)
    results = []
    for first in (False, True):
        norm = (torch.nn.LayerNorm if kind == "layer" else torch.nn.BatchNorm1d)(shape[-1]).to(DEVICE)
        with torch.no_grad():
            norm.weight.add_(torch.arange(shape[-1], device=DEVICE) / shape[-1])
            norm.bias.sub_(0.5)
        if kind == "layer":
            y = triton_norm.layer_norm(x.requires_grad_(), norm, True, first)
        else:
            mask = time_mask(lengths, shape[1]) if kind == "masked" else None
            y = triton_norm.batch_norm(x.requires_grad_(), mask, norm, first)
        assert (y.mT if first else y).is_contiguous()
        results.append((y, *torch.autograd.grad(y, [x, norm.weight, norm.bias], seed)))
    assert results[1][0].dtype == x.dtype
    tight = {"atol": 2e-5, "rtol": 2e-5} if dtype == "float32" else {"atol": 1e-2, "rtol": 1e-2}
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, **tight)


@pytest.mark.parametrize(
    "options",
    [
        {"norm": "batch", "bidirectional": True},
        {"norm": "layer", "bidirectional": True, "prenorm": False, "head": "last"},
        {"norm": "layer", "head": "sequence", "encoder": "embedding", "vocabulary": 20},
    ],
)
def test_a_model_stays_in_bfloat16_between_its_blocks(options):
    config = {"d_output": 3, "d_model": 6, "d_state": 4, "n_layers": 2, "dropout": 0.2}
    x = torch.randn(4, 37, 2, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    if "vocabulary" in options:
        x = (x[..., 0].abs() * 3).long()
    else:
        config["d_input"] = 2
    lengths, types, results = torch.tensor([37, 20, 3, 36]).to(DEVICE), [], []
    for low in (False, True):
        torch.manual_seed(0)
        engine = {"backend": "triton", "precision": "bf16"} if low else {"backend": "torch"}
        model = ws.SequenceModel(ws.ModelConfig(**(config | options), **engine)).to(DEVICE)
        for module in (module for block in model.backbone.blocks for module in (block.norm, block.layer, block)):
            module.register_forward_hook(lambda _, inputs, output: types[-1].add(output.dtype))
            module.register_full_backward_hook(lambda _, inputs, outputs: types[-1].add(outputs[0].dtype))
        types.append(set())
        torch.manual_seed(2)  # the same features drop
        with torch.autocast(DEVICE, torch.bfloat16, enabled=low):
            y = model(x, lengths)
        seed = torch.randn(y.shape, generator=torch.Generator().manual_seed(3)).to(y)
        results.append((y.detach(), torch.autograd.grad(y, list(model.parameters()), seed), list(model.buffers())))
    assert types == [{torch.float32}, {torch.bfloat16}]
    (want, slopes, running), (got, low_slopes, low_running) = results
    assert_close_to_reference([got], [want], 2e-2, ["y"], tuple(x.shape))
    # a gradient that is small beside the others is the difference of large parts, each with an error of its own
    floor = 0.1 * max(float(slope.norm()) for slope in slopes)
    for (name, _), a, b in zip(model.named_parameters(), low_slopes, slopes, strict=True):
        assert a.dtype == torch.float32
        error = float((a - b).norm() / (b.norm() + floor))
        assert error < 5e-2, f"{name}: {error:.1e}"
    for a, b in zip(low_running, running, strict=True):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a, b, atol=2e-2, rtol=1e-2)


@pytest.mark.parametrize("lengths", [None, torch.tensor([40, 7])])
@pytest.mark.parametrize("kind", ["layer", "batch"])
def test_no_kernel_copies_signals_between_norm_and_scan(kind, lengths, monkeypatch):
    block = ws.ResidualBlock(ws.WaveSSM(3, 4, bidirectional=True, backend="triton", precision="bf16"), kind).to(DEVICE)
    x = torch.randn(2, 40, 3, device=DEVICE, requires_grad=True)
    monkeypatch.setattr(triton_scan, "rows_kernel", None)
    with torch.autocast(DEVICE, torch.bfloat16):
        y = block(x, lengths=None if lengths is None else lengths.to(DEVICE))
    assert y.dtype == torch.bfloat16
    (dx,) = torch.autograd.grad(y.float().square().sum(), x)
    assert dx.dtype == torch.float32


def test_blocks_use_bfloat16_only_where_they_are_asked_to():
    torch.manual_seed(0)
    block = ws.ResidualBlock(ws.WaveSSM(3, 4, backend="triton", precision="bf16")).to(DEVICE)
    x = torch.randn(2, 20, 3, device=DEVICE)
    y = block(x)
    assert y.dtype == torch.float32
    low = block(x.bfloat16())  # weights stay float32
    assert low.dtype == torch.bfloat16
    assert (low - y).norm() < 3e-2 * y.norm()
    block.layer.engine = block.layer.engine._replace(precision="tf32")
    with torch.autocast(DEVICE, torch.bfloat16):
        assert block(x).dtype == torch.float32

"""The online memory against recurrences, closed forms and itself."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import special

import wavessm as ws
from wavessm.memory import DenseFlow, ModalFlow, recurrence
from wavessm_lab.studies.signals import classical

CASES = [
    ("morlet", "scaled", ModalFlow),
    ("morlet", "translated", ModalFlow),
    ("gauss", "translated", ModalFlow),
    ("fourier", "translated", ModalFlow),  # has modes that do not decay
    ("db6", "scaled", ModalFlow),
    ("legendre", "scaled", DenseFlow),
    ("legendre", "translated", DenseFlow),
    ("chebyshev", "scaled", DenseFlow),
]


def make(family, measure, n=33, window=77.5, **options):
    operator = ws.make_operator(family, measure, n)
    return ws.OnlineMemory(operator, None if measure == "scaled" else window, **options)


def noise(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


@pytest.mark.parametrize(("family", "measure", "flow"), CASES)
def test_project_is_the_zero_order_hold_recurrence(family, measure, flow):
    memory, x = make(family, measure), noise(300)
    assert isinstance(memory.flow, flow)
    expected = recurrence(memory.operator, x, memory.window)
    np.testing.assert_allclose(memory.project(x).numpy(), expected, atol=1e-10)


@pytest.mark.parametrize(("family", "measure", "flow"), CASES)
def test_project_is_exact_far_into_a_signal(family, measure, flow):
    """Where chunks are long: against the recurrence continued from a state inside."""
    memory, x = make(family, measure, n=16, window=5000.0), noise(60_000)
    states = memory.project(x).numpy()
    start, stop = 50_000, 50_200
    h, operator = states[start - 1], memory.operator
    for k in range(start, stop):
        dt = 1 / memory.window if memory.window else np.log1p(1 / k)
        step = ws.zoh(operator.system, dt)
        h = step.apply(h) + step.B * x[k]
    np.testing.assert_allclose(states[stop - 1], h, atol=1e-11)


def test_legendre_states_are_the_projection_itself():
    """Polynomials of degree < N are closed under s∂ₛ, so the scaled memory is exactly ∫ u φ_n."""
    n, x = 24, noise(500)
    edges = 2 * np.arange(501) / 500 - 1

    def integral(k):  # of √(2k+1) P_k(2s−1)
        if k == 0:
            return (edges + 1) / 2
        return (special.eval_legendre(k + 1, edges) - special.eval_legendre(k - 1, edges)) / (2 * np.sqrt(2 * k + 1))

    expected = np.array([np.diff(integral(k)) @ x for k in range(n)])
    np.testing.assert_allclose(make("legendre", "scaled", n).project(x)[-1].numpy(), expected, atol=1e-12)


@pytest.mark.parametrize(("family", "measure", "flow"), CASES)
def test_bilinear_stepping_approaches_the_exact_states(family, measure, flow):
    """Each sample repeated, so that steps shrink while the signal stays: the difference must fall."""
    x, n = np.sin(np.linspace(0, 9, 80)), 8
    differences = []
    for repeat in (1, 8):
        fine = np.repeat(x, repeat)
        memory = make(family, measure, n, window=40.0 * repeat)
        stepped = recurrence(memory.operator, fine, memory.window, "bilinear")
        differences.append(np.abs(stepped[-1] - memory.project(fine)[-1].numpy()).max())
    assert differences[1] < differences[0] / 4


@pytest.mark.parametrize(("family", "measure", "flow"), CASES)
@given(
    splits=st.lists(st.integers(1, 90), min_size=1, max_size=8), dtype=st.sampled_from([torch.float32, torch.float64])
)
def test_any_split_into_pieces_gives_the_same_state(family, measure, flow, splits, dtype):
    memory, x = make(family, measure, n=12, dtype=dtype), noise(sum(splits))
    start = 0
    for size in splits:
        if size == 1:
            memory.step(x[start])
        else:
            memory.push(x[start : start + size])
        start += size
    tolerance = 1e-10 if dtype == torch.float64 else 2e-3
    np.testing.assert_allclose(memory.state.numpy(), memory.project(x)[-1].numpy(), atol=tolerance)
    assert memory.samples == len(x)


@pytest.mark.parametrize(("family", "measure", "flow"), CASES)
def test_batches_are_signals_side_by_side(family, measure, flow):
    memory, x = make(family, measure, n=9), noise(2, 3, 120)
    states = memory.project(x)
    assert states.shape == (2, 3, 120, 9)
    np.testing.assert_allclose(states[1, 2].numpy(), memory.project(x[1, 2]).numpy(), atol=1e-12)
    memory.push(x[..., :50])
    memory.step(x[..., 50])
    memory.push(x[..., 51:])
    np.testing.assert_allclose(memory.state.numpy(), states[..., -1, :].numpy(), atol=1e-12)


@pytest.mark.parametrize(("family", "measure", "flow"), CASES)
def test_jacobian_is_the_response_to_single_samples(family, measure, flow):
    memory = make(family, measure, n=15)
    jacobian = memory.jacobian(90).numpy()
    assert jacobian.shape == (15, 90)
    impulses = memory.project(np.eye(90))[:, -1].numpy()
    np.testing.assert_allclose(jacobian, impulses.T, atol=1e-11)


@pytest.mark.parametrize(("family", "measure", "flow"), CASES)
def test_single_precision_follows_double(family, measure, flow):
    x = noise(3000)
    exact = make(family, measure).project(x).numpy()
    single = make(family, measure, dtype=torch.float32).project(x)
    assert single.dtype == torch.float32
    np.testing.assert_allclose(single.numpy(), exact, atol=2e-3)


@pytest.mark.parametrize("measure", ["scaled", "translated"])
def test_reconstruction_of_what_the_frame_can_hold(measure):
    """A cubic, sampled finely: Legendre holds it, exactly (scaled) or away from the forgetting end (translated)."""
    t = np.linspace(0, 1, 8000)
    x = 1 + t - 3 * t**2 + 2 * t**3
    memory = make("legendre", measure, n=16, window=4000.0)
    memory.push(x)
    last, oldest = (x, 100) if measure == "scaled" else (x[4000:], 2000)
    for grid in (len(last), (np.arange(len(last)) + 0.5) / len(last)):
        recalled = memory.reconstruct(memory.state, grid=grid).numpy()
        np.testing.assert_allclose(recalled[oldest:-100], last[oldest:-100], atol=2e-3)
    assert memory.reconstruct(memory.state).shape == memory.operator.frame.grid.shape


def test_a_raw_frame_reconstructs_through_its_dual():
    frame = ws.make_frame("mexhat", 24)
    x = noise(400)
    recalled = []
    for frame_used in (frame, frame.tighten()):
        memory = ws.OnlineMemory(ws.make_operator(frame_used))
        memory.push(x)
        recalled.append(memory.reconstruct(memory.state, grid=100).numpy())
    np.testing.assert_allclose(recalled[0], recalled[1], atol=1e-4)


def test_a_translated_memory_forgets_what_left_the_window():
    memory, x = make("legendre", "translated", n=32, window=200.0), noise(1000)
    other = x.copy()
    other[:300] = 5.0
    states, others = memory.project(x), memory.project(other)
    assert (states[299] - others[299]).abs().max() > 1
    assert (states[-1] - others[-1]).abs().max() < 1e-3


def test_reset_forgets_and_an_empty_memory_is_zero():
    memory = make("morlet", "scaled", n=8)
    assert memory.state.tolist() == [0.0] * 8
    first = memory.step(2.0)
    memory.reset()
    assert memory.samples == 0
    assert torch.equal(memory.step(2.0), first)


def test_a_mode_that_stands_still_integrates():
    """An exact zero eigenvalue: that coordinate is the running mean over the window's length."""
    frame = ws.make_frame("legendre", 2)
    operator = ws.Operator(np.diag([0.0, 1.0]), np.ones(2), np.zeros(2), "translated", frame)
    x = noise(50)
    states = ws.OnlineMemory(operator, window=10.0).project(x).numpy()
    np.testing.assert_allclose(states[:, 0], np.cumsum(x) / 10, atol=1e-12)


def test_an_integer_grid_means_the_midpoints_of_samples():
    memory, state = make("morlet", "scaled", n=8), torch.arange(8.0, dtype=torch.float64)
    torch.testing.assert_close(
        memory.reconstruct(state, grid=4), memory.reconstruct(state, [1 / 8, 3 / 8, 5 / 8, 7 / 8])
    )


@pytest.mark.parametrize("measure", ["scaled", "translated"])
@pytest.mark.parametrize("family", ws.PAPER_FAMILIES)
def test_default_frames_remember_at_every_size(family, measure):
    """Not only at powers of two: the range must leave no gaps, whatever the number of atoms."""
    x = np.stack([signal.values for signal in classical(512)])
    unit = np.sqrt(np.mean(x**2, axis=1))
    for n in range(31, 125, 11):
        memory = make(family, measure, n=n, window=512.0)
        memory.push(x)
        error = np.sqrt(np.mean((memory.reconstruct(memory.state, grid=512).numpy() - x) ** 2, axis=1)) / unit
        assert np.exp(np.mean(np.log(error))) < 0.65, f"N = {n}: {error.round(2)}"


def test_a_state_that_was_handed_out_is_the_callers():
    for family in ("morlet", "legendre"):
        memory = make(family, "scaled", n=32)
        memory.step(2.0)
        given = memory.step(3.0)
        kept = given.clone()
        given.zero_()
        torch.testing.assert_close(memory.state, kept)


def test_inputs_of_many_kinds():
    memory = make("morlet", "scaled", n=8)
    x = noise(20)
    expected = memory.project(x)
    locked = x.copy()
    locked.setflags(write=False)
    for same in (x.tolist(), locked, x[::-1][::-1], torch.from_numpy(x), torch.from_numpy(x).requires_grad_()):
        torch.testing.assert_close(memory.project(same).detach(), expected)
    torch.testing.assert_close(memory.project(np.arange(5)), memory.project(np.arange(5.0)))
    assert memory.jacobian(np.int64(4)).shape == (8, 4)
    assert memory.reconstruct(expected[-1], grid=np.int64(3)).shape == (3,)


def test_memory_in_flight_does_not_grow_with_the_batch():
    memory = make("morlet", "scaled", n=16)
    sizes = [states.numel() for _, states in memory._chunks(torch.zeros(5000, 40, dtype=torch.float64), None, 0)]
    assert max(sizes) <= 5000 * 8 * 16


@pytest.mark.parametrize(("family", "measure", "flow"), CASES)
def test_the_jacobian_is_computed_in_double_precision(family, measure, flow):
    """Each entry is a difference of two responses that are alike over a long signal."""
    exact = make(family, measure, window=1e5).jacobian(20_000)
    single = make(family, measure, window=1e5, dtype=torch.float32).jacobian(20_000)
    assert single.dtype == torch.float32
    np.testing.assert_allclose(single, exact, atol=1e-7 * float(exact.abs().max()))


def test_threads_may_share_a_memory():
    """Another thread may replace the tables between two looks at them; here one always does."""

    class Shared(ModalFlow):
        looks = 0

        @property
        def _tables(self):
            self.looks += 1
            return self._kept if self.looks % 2 else (np.array([0.0, 9.0]), self._others)

        @_tables.setter
        def _tables(self, value):
            self._kept = value

    x, memory = noise(300), make("morlet", "scaled")
    want = make("morlet", "scaled").project(x)
    memory.flow.__class__ = Shared
    memory.flow._others = tuple(torch.full((1, len(memory.flow.lam)), 7.0 + 0j, dtype=torch.complex128) for _ in "abc")
    memory.flow._kept = (np.empty(0), ())
    torch.testing.assert_close(memory.project(x), want, atol=1e-10, rtol=0)


def test_propagators_of_another_thread_change_nothing():
    flow = make("legendre", "scaled").flow
    first = flow.propagators
    want = [flow._squared(times)[0].clone() for times in range(4)]
    flow.propagators = first  # as if another thread had begun later and put back what it knew
    torch.testing.assert_close(flow._squared(3)[0], want[3])
    torch.testing.assert_close(flow._squared(2)[0], want[2])


@pytest.mark.parametrize("family", ["morlet", "legendre"])
def test_tables_made_without_gradients_serve_calls_with_them(family):
    x = torch.from_numpy(noise(60))
    with torch.inference_mode():
        memory = make(family, "scaled", n=8)
        memory.project(x)
    x.requires_grad_()
    gradient = torch.autograd.grad(memory.project(x)[-1, 3], x)[0]
    torch.testing.assert_close(gradient, memory.jacobian(60)[3], atol=1e-9, rtol=1e-9)

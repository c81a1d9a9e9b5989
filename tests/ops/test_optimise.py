import math

import numpy as np
import pytest

from minibert.arrays import to_numpy
from minibert.ops.optimise import NEWTON_SCHULZ, adamw_update, global_norm, muon_update, orthogonalise
from minibert.precision import PRECISIONS, check_precision

SETTINGS = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-6, "weight_decay": 0.01}


def adamw_of_one_number(value, gradients, rate, clip, bias_correction):
    """The algorithm for a single parameter, in plain Python, straight from the paper."""
    mean = variance = 0.0
    for t, gradient in enumerate(gradients, start=1):
        gradient *= clip
        mean = 0.9 * mean + 0.1 * gradient
        variance = 0.999 * variance + 0.001 * gradient**2
        c1, c2 = (1 - 0.9**t, 1 - 0.999**t) if bias_correction else (1.0, 1.0)
        value -= rate * (mean / c1 / (math.sqrt(variance / c2) + 1e-6) + 0.01 * value)
    return value, mean, variance


@pytest.mark.parametrize("bias_correction", [False, True])
def test_three_steps(draw, bias_correction):
    start, gradients = draw(50), [draw(50) for _ in range(3)]
    value, mean, variance = start * 1.0, start * 0.0, start * 0.0
    for t, gradient in enumerate(gradients, start=1):
        corrections = (1 - 0.9**t, 1 - 0.999**t) if bias_correction else ()
        adamw_update(value, gradient, mean, variance, 0.01, 0.5, *SETTINGS.values(), *corrections)
    for i in range(50):
        history = [float(gradient[i]) for gradient in gradients]
        expected = adamw_of_one_number(float(start[i]), history, 0.01, 0.5, bias_correction)
        actual = [float(array[i]) for array in (value, mean, variance)]
        np.testing.assert_allclose(actual, expected, rtol=1e-12)


def test_updates_slices_in_place_and_nothing_else(draw):
    value, grad, mean, variance = draw(10), draw(10), draw(10) * 0.0, draw(10) * 0.0
    before = to_numpy(value).copy(), to_numpy(grad).copy()
    here = slice(3, 7)
    adamw_update(value[here], grad[here], mean[here], variance[here], 0.1, 1.0, **SETTINGS)
    changed = to_numpy(value) != before[0]
    assert changed.tolist() == [3 <= i < 7 for i in range(10)]
    for moment in (mean, variance):
        assert (to_numpy(moment) != 0).tolist() == changed.tolist()
    np.testing.assert_array_equal(to_numpy(grad), before[1])


def test_decay_is_decoupled_from_the_gradient(draw):
    """Without a gradient a step only shrinks the parameters, by lr · λ."""
    value, zero = draw(5), draw(5) * 0.0
    before = to_numpy(value).copy()
    adamw_update(value, zero, zero * 1.0, zero * 1.0, 0.1, 1.0, **SETTINGS)
    np.testing.assert_allclose(to_numpy(value), before * (1 - 0.1 * 0.01), rtol=1e-14)


def test_zero_stays_zero(device):
    """The gaps between parameters in the flat buffer: value, gradient and moments 0."""
    arrays = [device.asarray(np.zeros(4), "float32") for _ in range(4)]
    for _ in range(3):
        adamw_update(*arrays, 0.1, 1.0, **SETTINGS)
    assert not any(to_numpy(array).any() for array in arrays)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_scalars_may_be_arrays_of_the_device(device, draw, dtype):
    """Learning rate, clip and corrections change from step to step, and may be kept on the device."""
    value, grad = draw(20, dtype=dtype), draw(20, dtype=dtype)
    scalars = {"lr": 0.01, "clip": 0.7, "mean_correction": 0.1, "variance_correction": 0.001}
    results = []
    for wrap in (float, lambda number: device.asarray(number, dtype=dtype)):
        state = [value * 1, grad, value * 0, value * 0]
        adamw_update(*state, **SETTINGS, **{name: wrap(number) for name, number in scalars.items()})
        assert {array.dtype.name for array in state} == {dtype}
        results.append(to_numpy(state[0]))
    tolerance = {"float32": 1e-6, "float64": 1e-14}[dtype]
    np.testing.assert_allclose(*results, rtol=tolerance)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_copy_gets_the_new_value(device, draw, dtype):
    check_precision(PRECISIONS[dtype], device)
    value, grad = draw(20, dtype="float32"), draw(20, dtype="float32")
    copy = device.asarray(np.zeros(20), dtype=dtype)
    adamw_update(value, grad, value * 0, value * 0, 0.01, 1.0, **SETTINGS, copy=copy)
    assert copy.dtype.name == dtype
    np.testing.assert_array_equal(to_numpy(copy), to_numpy(value).astype(dtype))


@pytest.mark.parametrize("norm", [math.inf, math.nan])
def test_without_a_finite_norm_nothing_changes(device, draw, norm):
    """The gradient is as bad as its norm, and so is what it is multiplied with."""
    arrays = [draw(6, dtype="float32") for _ in range(4)]
    value, grad, mean, variance = arrays
    variance *= variance
    grad[2] = norm
    copy = device.asarray(np.zeros(6), dtype="float16")
    before = [to_numpy(array).copy() for array in (value, mean, variance)]
    with np.errstate(invalid="ignore"):
        adamw_update(
            *arrays, 0.1, 1.0, **SETTINGS, copy=copy, norm=device.asarray(np.array(norm), dtype="float32")
        )
    for array, original in zip((value, mean, variance), before, strict=True):
        np.testing.assert_array_equal(to_numpy(array), original)
    assert not to_numpy(copy).any(), "nor is the copy written"


def test_a_finite_norm_changes_nothing_about_the_update(device, draw):
    value, grad = draw(20), draw(20)
    results = []
    for norm in (None, device.asarray(np.array(3.0))):
        state = [value * 1, grad, value * 0, value * 0]
        adamw_update(*state, 0.01, 0.7, **SETTINGS, norm=norm)
        results.append([to_numpy(array) for array in state])
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_global_norm(draw, dtype):
    grad = draw(1000, dtype=dtype)
    norm = global_norm(grad)
    assert norm.shape == () and norm.dtype == dtype
    expected = math.sqrt(math.fsum(number**2 for number in to_numpy(grad).tolist()))
    assert float(norm) == pytest.approx(expected, rel={"float32": 1e-6, "float64": 1e-14}[dtype])
    assert float(global_norm(grad * 0)) == 0.0


# -- Muon --------------------------------------------------------------------------------------------


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def with_singular_values(rng, rows, columns, values):
    """A random matrix with these singular values, and its two bases: U (m, r), Vᵀ (r, n)."""
    u = np.linalg.qr(rng.standard_normal((rows, len(values))))[0]
    vt = np.linalg.qr(rng.standard_normal((columns, len(values))))[0].T
    return (u * values) @ vt, u, vt


@pytest.mark.parametrize("shape", [(6, 6), (5, 11), (12, 4), (1, 7)])
@pytest.mark.parametrize("steps", [1, 3, 5])
def test_orthogonalising_applies_the_polynomial_to_the_singular_values(device, rng, shape, steps):
    values = rng.uniform(0.01, 3.0, min(shape))
    matrix, u, vt = with_singular_values(rng, *shape, values)
    a, b, c = NEWTON_SCHULZ
    expected = values / np.linalg.norm(values)
    for _ in range(steps):
        expected = a * expected + b * expected**3 + c * expected**5
    found = to_numpy(orthogonalise(device.asarray(matrix), steps))
    np.testing.assert_allclose(found, (u * expected) @ vt, rtol=0, atol=1e-13)


def test_five_steps_bring_singular_values_near_one(device, rng):
    """Those of 0.002 ‖M‖ and more; the singular vectors are those that an SVD finds."""
    shares = np.geomspace(0.002, 1.0, 40)
    matrix, _, _ = with_singular_values(rng, 40, 60, shares)
    matrix *= 1000.0 / np.linalg.norm(matrix)
    u, sigma, vt = np.linalg.svd(matrix, full_matrices=False)
    assert sigma[-1] / np.linalg.norm(sigma) < 0.002
    found = u.T @ to_numpy(orthogonalise(device.asarray(matrix))) @ vt.T  # diagonal
    reached = np.diagonal(found)
    np.testing.assert_allclose(found, np.diag(reached), atol=1e-11)
    big = sigma >= 0.002 * np.linalg.norm(sigma)
    assert reached[big].min() > 0.68 and reached[big].max() < 1.21
    assert reached[~big].min() > 0


@pytest.mark.parametrize("shape", [(4, 7), (7, 4)])
def test_a_stack_is_orthogonalised_matrix_by_matrix(device, rng, shape):
    stack = rng.standard_normal((3, *shape)) * np.array([0.01, 1.0, 100.0])[:, None, None]
    expected = np.stack([orthogonalise(matrix) for matrix in stack])
    np.testing.assert_allclose(to_numpy(orthogonalise(device.asarray(stack))), expected, rtol=0, atol=1e-13)


def test_a_matrix_of_zeros_stays_zero(device):
    zeros = device.xp.zeros((3, 4), dtype="float32")
    assert not to_numpy(orthogonalise(zeros)).any()


@pytest.mark.parametrize("shape", [(4, 4), (8, 3), (3, 8)])
def test_steps_of_muon_written_out(device, rng, shape):
    value, momentum = rng.standard_normal(shape), np.zeros(shape)
    arrays = device.asarray(value.copy()), device.asarray(momentum.copy())
    for lr in (0.1, 0.05):
        grad = rng.standard_normal(shape)
        muon_update(arrays[0], device.asarray(grad), arrays[1], lr, 0.5, 0.9, 0.01)
        momentum = 0.9 * momentum + 0.1 * 0.5 * grad
        ahead = 0.9 * momentum + 0.1 * 0.5 * grad
        direction = to_numpy(orthogonalise(device.asarray(ahead)))
        scale = math.sqrt(max(1.0, shape[0] / shape[1]))
        value = value - lr * (scale * direction + 0.01 * value)
    np.testing.assert_allclose(to_numpy(arrays[0]), value, rtol=1e-12)
    np.testing.assert_allclose(to_numpy(arrays[1]), momentum, rtol=1e-12)


def test_muon_leaves_everything_if_the_norm_is_not_finite(device, rng):
    arrays = [device.asarray(rng.standard_normal((3, 4)).astype("float32")) for _ in range(3)]
    copy = device.xp.zeros((3, 4), dtype="float16")
    before = [to_numpy(array).copy() for array in arrays]
    norm = device.xp.asarray(np.float32("inf"))
    muon_update(*arrays, 0.1, 1.0, 0.9, 0.01, copy=copy, norm=norm)
    for array, old in zip(arrays, before, strict=True):
        np.testing.assert_array_equal(to_numpy(array), old)
    muon_update(*arrays, 0.1, 1.0, 0.9, 0.01, copy=copy, norm=device.xp.asarray(np.float32(1.0)))
    assert (to_numpy(arrays[0]) != before[0]).all() and arrays[0].dtype == np.float32
    np.testing.assert_array_equal(to_numpy(copy), to_numpy(arrays[0]).astype("float16"))

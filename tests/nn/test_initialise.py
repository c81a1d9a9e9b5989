"""How parameters start."""

import numpy as np
import pytest
import scipy.stats

from minibert.arrays import to_numpy
from minibert.nn import LayerNorm, Linear, Module


class Model(Module):
    def __init__(self):
        super().__init__()
        self.norm = LayerNorm(300, 1e-12)
        self.first, self.second = Linear(300, 200), Linear(200, 10)


def started(device="cpu", dtype="float64", seed=0, std=0.02, truncated=True):
    model = Model()
    model.allocate(device, dtype)
    model.initialise(seed, std, truncated)
    return {name: to_numpy(parameter.value).copy() for name, parameter in model.named_parameters()}


def test_zeros_and_ones():
    values = started()
    assert (values["norm.weight"] == 1).all()
    assert not any(values[f"{name}.bias"].any() for name in ("norm", "first", "second"))


@pytest.mark.parametrize("std", [0.02, 0.5])
@pytest.mark.parametrize("truncated", [True, False])
def test_weights_are_normal(std, truncated):
    """Kolmogorov–Smirnov on 60,000 numbers; cut at 2σ the deviation is 0.8796 σ."""
    weight = started(std=std, truncated=truncated)["first.weight"].reshape(-1) / std
    law = scipy.stats.truncnorm(-2, 2) if truncated else scipy.stats.norm()
    assert scipy.stats.kstest(weight, law.cdf).pvalue > 1e-4
    assert weight.std() == pytest.approx(0.8796 if truncated else 1.0, abs=0.01)
    assert (np.abs(weight).max() <= 2) == truncated
    assert np.abs(weight).max() > 1.99


def test_the_seed_decides():
    first, again, other = started(seed=1), started(seed=1), started(seed=2)
    np.testing.assert_array_equal(first["first.weight"], again["first.weight"])
    assert (first["first.weight"] != other["first.weight"]).all()
    flat = first["first.weight"].reshape(-1)[:2000]
    assert (flat != first["second.weight"].reshape(-1)).all(), "no two weights from the same numbers"


def test_device_and_dtype_do_not_matter(device):
    reference = started()
    for dtype in ("float32", "float64"):
        for name, value in started(device, dtype).items():
            np.testing.assert_array_equal(value, reference[name].astype(dtype))


def test_what_was_there_before_does_not_matter():
    model = Model()
    model.allocate("cpu", "float64")
    model.buffers.value[...] = 7.0
    model.initialise(0, 0.02)
    for name, value in started().items():
        np.testing.assert_array_equal(dict(model.named_parameters())[name].value, value)

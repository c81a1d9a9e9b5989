"""The profile of a step: what computes an operation while it is timed, and what is told of it."""

import numpy as np

from benchmarks import operations
from minibert import ops
from minibert.ops.table import Implementation


def refuses(*arguments):
    return False


def must_not_run(*arguments):
    raise AssertionError("a kernel was used for arguments that it does not accept")


def test_a_kernel_is_not_used_for_arguments_that_it_refuses(monkeypatch):
    kernel = Implementation(must_not_run, must_not_run, refuses)
    monkeypatch.setattr(ops.TABLE["linear"], "kernels", {("numpy", "float64"): kernel})
    x, weight, bias = np.ones((2, 3)), np.ones((4, 3)), np.ones(4)

    def step(number):
        y, cache = ops.linear(x, weight, bias)
        ops.linear_backward(y, cache)

    seconds = operations.profile(step, kernels=True, steps=1)
    assert set(seconds) == {"linear", operations.REST}
    assert seconds["linear"] > 0


def test_the_table_is_as_before():
    before = {name: (entry.reference, dict(entry.kernels)) for name, entry in ops.TABLE.items()}
    operations.profile(lambda number: ops.linear(np.ones((2, 3)), np.ones((4, 3)), np.ones(4)), True, steps=1)
    assert {name: (entry.reference, entry.kernels) for name, entry in ops.TABLE.items()} == before

"""The LSTM of examples/elmo.py and its gradients equal those of ``torch.nn.LSTM``: needs torch."""

import numpy as np
import pytest

from examples.elmo import lstm, lstm_backward

torch = pytest.importorskip("torch", reason="compares with torch.nn.LSTM, and torch is not installed")


def test_states_and_gradients():
    steps, batch, width, size = 6, 3, 5, 4
    rng = np.random.default_rng(0)
    x, dout = rng.normal(size=(steps, batch, width)), rng.normal(size=(steps, batch, size))
    theirs = torch.nn.LSTM(width, size, dtype=torch.float64)
    with torch.no_grad():
        theirs.bias_hh_l0[...] = 0  # the second of two biases, which only add up
    # Their gates are in the order i, f, g, o.
    order = np.concatenate(
        [np.arange(2 * size), np.arange(3 * size, 4 * size), np.arange(2 * size, 3 * size)]
    )
    names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0")
    parameters = [getattr(theirs, name) for name in names]
    inputs = torch.tensor(x, requires_grad=True)
    expected, _ = theirs(inputs)
    expected.backward(torch.tensor(dout))
    states, cache = lstm(x, np.ones((steps, batch)), *(p.detach().numpy()[order] for p in parameters))
    dx, *gradients = lstm_backward(dout, cache)
    np.testing.assert_allclose(states, expected.detach(), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(dx, inputs.grad, rtol=1e-12, atol=1e-14)
    for ours, parameter in zip(gradients, parameters, strict=True):
        np.testing.assert_allclose(ours, parameter.grad[order], rtol=1e-12, atol=1e-14)

"""y = x w: a function with a backward, for the tests of the gradient checker."""

from minibert.devices import Device
from minibert.gradcheck import Draws


def product(x, w):
    """y = x w for a matrix product of (B, K) and (K, N)."""
    return x @ w, (x, w)


def product_backward(dout, cache):
    x, w = cache
    return dout @ w.T, x.T @ dout


def inputs(device: Device, square: bool = False) -> dict:
    draw = Draws(device, 1)
    return {"x": draw.normal(4, 4) if square else draw.normal(3, 4), "w": draw.matrix(4, 4 if square else 2)}

"""Where a value went along two paths, as it does around every residual connection."""

from minibert.arrays import Array


def add_derivative(total: Array, part: Array) -> Array:
    """total += part, in place: the derivatives of a value that went along two paths add up.

    forward: L depends on x by way of f(x) and of g(x), so dL/dx = dL/df · f′ + dL/dg · g′, the sum of what
    comes back along the two paths. total and part have one shape and dtype; returns ``total``.
    """
    total += part
    return total

"""Arrays: which library one belongs to.

The mathematics in ``ops`` is written once. It asks ``get_array_module(x)`` for the library that x
belongs to (NumPy or CuPy) and calls that library's functions, so the same lines run on a CPU and on
a GPU. Nothing else in the package needs to know which of the two it is.
"""

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from types import ModuleType
from typing import Any

import numpy as np

Array = Any  # numpy.ndarray or cupy.ndarray: the two share no base class


def get_array_module(array: Array) -> ModuleType:
    """The library that ``array`` belongs to: ``numpy``, ``cupy``, or whatever the array itself names.

    Raises TypeError for anything that is not an array (a list, a float, None).
    """
    if isinstance(array, np.ndarray | np.generic):
        return np
    if type(array).__module__.split(".")[0] == "cupy":
        import cupy

        return cupy
    if hasattr(array, "__array_namespace__"):
        return array.__array_namespace__()
    raise TypeError(f"expected a NumPy or CuPy array, got {type(array).__name__}")


def erf(x: Array) -> Array:
    """The error function 2/√π ∫₀ˣ exp(−t²) dt, elementwise; it lives beside each library, not in it."""
    xp = get_array_module(x)
    if xp is np:
        from scipy import special
    elif xp.__name__ == "cupy":
        from cupyx.scipy import special
    else:
        special = xp.special
    return special.erf(x)


def to_numpy(array: Array) -> np.ndarray:
    """A NumPy array with the same values, copied from the GPU if they are there."""
    if isinstance(array, np.ndarray | np.generic):
        return np.asarray(array)
    if hasattr(array, "get"):  # CuPy's transfer to the host, which it never does unasked
        return array.get()
    raise TypeError(f"expected a NumPy or CuPy array, got {type(array).__name__}")


def map_arrays(function: Callable[[Array], Any], tree: Any) -> Any:
    """The same tree with ``function(array)`` in the place of every array.

    A tree is an array, None, or a list or a dataclass of trees.
    """
    if isinstance(tree, list):
        return [map_arrays(function, branch) for branch in tree]
    if is_dataclass(tree) and not isinstance(tree, type):
        branches = {f.name: map_arrays(function, getattr(tree, f.name)) for f in fields(tree)}
        return replace(tree, **branches)
    return None if tree is None else function(tree)


def add_rows(table: Array, rows: Array, values: Array) -> None:
    """table[rows] += values, where a row that occurs several times gets the sum; always the same bits.

    table (V, H), rows (N,) integers in [0, V), values (N, H). CuPy's own ``add.at`` adds with atomics, in
    another order every time. So the rows are sorted there, and neighbours of one number are added up in
    steps that double in length; behind the last neighbour of each number then stands the sum of all.
    """
    xp = get_array_module(table)
    if xp is np:
        np.add.at(table, rows, values)
        return
    if not rows.size:
        return
    order = xp.argsort(rows, kind="stable")
    rows, sums = rows[order], values[order]  # (N,), (N, H)
    step = 1
    while step < rows.size:
        same = (rows[step:] == rows[:-step])[:, None]
        sums[step:] += xp.where(same, sums[:-step], 0)
        step *= 2
    numbers = xp.arange(table.shape[0], dtype=rows.dtype)
    last = xp.searchsorted(rows, numbers, side="right") - 1  # (V,): of each number, −1 before the first
    there = (rows[xp.maximum(last, 0)] == numbers)[:, None]
    table += xp.where(there, sums[xp.maximum(last, 0)], 0)

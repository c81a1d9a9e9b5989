"""Arrays, and the library (NumPy or CuPy) that each belongs to.

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


def is_array(thing: Any) -> bool:
    """Whether this is an array of such a library, and no list, and no column of a table."""
    try:
        get_array_module(thing)
    except TypeError:
        return False
    return True


def erf(x: Array) -> Array:
    """The error function 2/√π ∫₀ˣ exp(−t²) dt, elementwise, from SciPy or from its counterpart in CuPy."""
    xp = get_array_module(x)
    if xp is np:
        from scipy import special
    elif xp.__name__ == "cupy":
        from cupyx.scipy import special
    else:
        special = xp.special
    return special.erf(x)


def to_numpy(array: Array) -> np.ndarray:
    """A NumPy array with the same values, copied from the GPU if the array is there."""
    if isinstance(array, np.ndarray | np.generic):
        return np.asarray(array)
    if hasattr(array, "get"):  # CuPy's copy to the host, which it never makes implicitly
        return array.get()
    raise TypeError(f"expected a NumPy or CuPy array, got {type(array).__name__}")


def as_dtype(array: Array, dtype: Any) -> Array:
    """The array in this dtype: itself, if it has it."""
    return array.astype(dtype, copy=False)


def map_arrays(function: Callable[[Array], Any], tree: Any) -> Any:
    """The same tree with ``function(array)`` in place of every array.

    A tree is an array, None, or a list or a dataclass of trees.
    """
    if isinstance(tree, list):
        return [map_arrays(function, branch) for branch in tree]
    if is_dataclass(tree) and not isinstance(tree, type):
        branches = {f.name: map_arrays(function, getattr(tree, f.name)) for f in fields(tree)}
        return replace(tree, **branches)
    return None if tree is None else function(tree)


def add_rows(table: Array, rows: Array, values: Array) -> None:
    """table[rows] += values, in place; a row that occurs several times gets the sum, deterministically.

    table (V, H), rows (N,) integers in [0, V), values (N, H). CuPy's own ``add.at`` uses atomic additions,
    whose order changes from run to run. With CuPy we therefore sort the rows and add up the entries of equal
    row number in steps that double in length. The last entry of each number then holds the sum of all.
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
    last = xp.searchsorted(rows, numbers, side="right") - 1  # (V,): each number's last entry, or −1
    there = (rows[xp.maximum(last, 0)] == numbers)[:, None]
    table += xp.where(there, sums[xp.maximum(last, 0)], 0)

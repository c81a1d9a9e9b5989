"""Intel's oneDNN (the extra ``onednn``) through ctypes: one product in single precision, one in bfloat16.

Both are computed by the thread that calls them. A product is not computed if the arrays lie in memory in a
way that the library does not take, and then the functions here say so.
"""

import ctypes
import functools
import threading
from typing import Any

import numpy as np

from minibert.blas import KEPT, Product, by_sgemm, is_matrix, kind, open_library

# oneDNN's numbers, of its header dnnl_types.h.
CPU, DEFAULT_STREAM = 1, 1
DTYPES = {"bfloat16": 2, "float32": 3}
SOURCE, WEIGHTS, DESTINATION = 1, 33, 17
UNIMPLEMENTED = 3


@functools.cache
def load() -> ctypes.CDLL:
    """The library. Raises UserError if it is missing or of another kind."""
    needed = "dnnl_sgemm", "dnnl_matmul_primitive_desc_create", "omp_get_max_threads", "omp_set_num_threads"
    return open_library("oneDNN", "onednn-cpu-gomp", "libdnnl.so", "dnnl", needed)


class _OneThread:
    """Within this block oneDNN computes with the thread that calls it; the kernels have their own threads."""

    def __enter__(self) -> None:
        self._before = _for_short_calls().omp_get_max_threads()
        _for_short_calls().omp_set_num_threads(1)  # of this thread only

    def __exit__(self, *error: object) -> None:
        _for_short_calls().omp_set_num_threads(self._before)


@functools.cache
def _for_short_calls() -> ctypes.PyDLL:
    """The library, for calls that take less than a microsecond: they hold on to the interpreter's lock.

    To get it back, a thread may have to wait for another.
    """
    return ctypes.PyDLL(load()._name)


# -- In single precision ------------------------------------------------------------------------------


def single_precision() -> Product:
    """out = a b in float32; it says whether it could take the arrays. Raises UserError without oneDNN."""
    library = load()
    function, size, pointer = library.dnnl_sgemm, ctypes.c_int64, ctypes.c_void_p
    function.argtypes = [
        *(ctypes.c_char, ctypes.c_char, size, size, size),
        *(ctypes.c_float, pointer, size, pointer, size, ctypes.c_float, pointer, size),
    ]

    def sgemm(*arguments: Any) -> None:
        with _OneThread():
            status = function(*arguments)
        _check(status, "product of M, N, K =", *arguments[2:5])

    return by_sgemm(sgemm)


# -- In bfloat16 --------------------------------------------------------------------------------------


def bfloat16() -> Product:
    """out = a b for factors in bfloat16 and a result in float32; it says whether it could take the arrays.

    oneDNN makes code for a product of given shapes and strides (a "primitive"), which is kept. Unlike its
    function ``dnnl_gemm_bf16bf16f32``, this makes good use of AMX. Raises UserError without oneDNN.
    """
    of_thread = _Primitives(load())

    def multiply(a: np.ndarray, b: np.ndarray, out: np.ndarray) -> bool:
        with _OneThread():
            primitive = of_thread.find(kind(a), kind(b), kind(out))
            if primitive is None:
                return False
            primitive.compute(a, b, out)
            return True

    return multiply


class _Primitives(threading.local):
    """How this thread computes products. (oneDNN's working memory belongs to the thread that made one.)"""

    def __init__(self, library: ctypes.CDLL):
        engine, stream = ctypes.c_void_p(), ctypes.c_void_p()
        _call(library.dnnl_engine_create, ctypes.byref(engine), CPU, ctypes.c_size_t(0))
        _call(library.dnnl_stream_create, ctypes.byref(stream), engine, DEFAULT_STREAM)
        self.find = functools.lru_cache(KEPT)(functools.partial(_make_primitive, library, engine, stream))


class _Argument(ctypes.Structure):
    _fields_ = [("role", ctypes.c_int), ("memory", ctypes.c_void_p)]


class _Primitive:
    """Code for the product of arrays with certain shapes and strides, and where it looks for them."""

    def __init__(self, library: ctypes.CDLL, stream: ctypes.c_void_p, made: ctypes.c_void_p, memories: list):
        self._library, self._stream, self._made, self._memories = library, stream, made, memories
        roles = SOURCE, WEIGHTS, DESTINATION
        self._arguments = (_Argument * 3)(*map(_Argument, roles, (memory.value for memory in memories)))

    def compute(self, *arrays: np.ndarray) -> None:
        """Compute it for these arrays."""
        for memory, array in zip(self._memories, arrays, strict=True):
            _call(_for_short_calls().dnnl_memory_set_data_handle, memory, ctypes.c_void_p(array.ctypes.data))
        _call(self._library.dnnl_primitive_execute, self._made, self._stream, 3, self._arguments)

    def __del__(self):
        for memory in self._memories:
            self._library.dnnl_memory_destroy(memory)
        self._library.dnnl_primitive_destroy(self._made)


def _make_primitive(
    library: ctypes.CDLL, engine: ctypes.c_void_p, stream: ctypes.c_void_p, *kinds: tuple
) -> _Primitive | None:
    """The primitive for such arrays; None if they are no matrices, or if oneDNN has no code for them."""
    if not all(is_matrix(*each) for each in kinds):
        return None
    layouts = [_describe(library, *each) for each in kinds]
    try:
        description, made = ctypes.c_void_p(), ctypes.c_void_p()
        source, weights, destination = layouts
        status = library.dnnl_matmul_primitive_desc_create(
            ctypes.byref(description), engine, source, weights, None, destination, None
        )
        if status == UNIMPLEMENTED:
            return None
        _check(status, "description of a product")
        _call(library.dnnl_primitive_create, ctypes.byref(made), description)
        library.dnnl_primitive_desc_destroy(description)
        memories = [ctypes.c_void_p() for _ in layouts]
        for memory, layout in zip(memories, layouts, strict=True):
            _call(library.dnnl_memory_create, ctypes.byref(memory), layout, engine, None)
        return _Primitive(library, stream, made, memories)
    finally:
        for layout in layouts:
            library.dnnl_memory_desc_destroy(layout)


def _describe(library: ctypes.CDLL, dtype: np.dtype, shape: tuple, strides: tuple) -> ctypes.c_void_p:
    layout, sizes = ctypes.c_void_p(), ctypes.c_int64 * 12
    steps = sizes(*(stride // dtype.itemsize for stride in strides))
    create = library.dnnl_memory_desc_create_with_strides
    _call(create, ctypes.byref(layout), len(shape), sizes(*shape), DTYPES[dtype.name], steps)
    return layout


def _call(function: Any, *arguments: Any) -> None:
    _check(function(*arguments), function.__name__)


def _check(status: int, *what: object) -> None:
    if status != 0:
        raise RuntimeError(f"oneDNN: {' '.join(map(str, what))} failed with status {status}")

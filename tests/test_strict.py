"""The strict array library: it computes as NumPy does, and refuses what CuPy refuses."""

import numpy as np
import pytest
import strict
from strict import StrictArray, xp

from minibert import arrays


def a(shape=(2, 3), dtype="float64") -> StrictArray:
    return xp.asarray(np.arange(np.prod(shape), dtype=dtype).reshape(shape))


HOST = np.ones((2, 3))

REFUSED = {
    "NumPy operand": lambda: a() + HOST,
    "NumPy operand on the left": lambda: HOST * a(),
    "NumPy operand in place": lambda: a().__iadd__(HOST),
    "list operand": lambda: a() * [1.0, 2.0, 3.0],
    "tuple operand": lambda: (1.0, 2.0, 3.0) - a(),
    "None as operand": lambda: a() == None,  # noqa: E711
    "list in a ufunc": lambda: xp.exp([1.0, 2.0]),
    "NumPy array in a ufunc": lambda: xp.maximum(a(), HOST),
    "NumPy array in matmul": lambda: a() @ HOST.T,
    "list in a function": lambda: xp.sum([1.0, 2.0]),
    "NumPy array in a function": lambda: xp.mean(HOST),
    "NumPy array as a keyword": lambda: xp.tensordot(a(), b=HOST),
    "NumPy array among arrays": lambda: xp.concatenate([a(), HOST]),
    "NumPy array in einsum": lambda: xp.einsum("ij,ij->", a(), HOST),
    "NumPy array in erf": lambda: xp.special.erf(HOST),
    "becoming a NumPy array": lambda: np.asarray(a()),
    "argument of a NumPy function": lambda: np.sum(a()),
    "argument of a NumPy ufunc": lambda: np.exp(a()),
    "assigned into a NumPy array": lambda: HOST.copy().__setitem__(0, a()[0]),
    "NumPy array assigned": lambda: a().__setitem__(0, HOST[0]),
    "list as an index": lambda: a()[[0, 1]],
    "NumPy array as an index": lambda: a()[np.array([0, 1])],
    "list in an index": lambda: a()[:, [0, 1]],
    "NumPy array as an index to write": lambda: a().__setitem__(np.array([0, 1]), 0.0),
    "mask as an index": lambda: a()[a() > 1],
    "where without values": lambda: xp.where(a() > 1),
    "parameter that CuPy lacks": lambda: xp.sum(a(), initial=0.0),
    "method's parameter that CuPy lacks": lambda: a().sum(where=a() > 0),
    "ufunc's parameter that CuPy lacks": lambda: xp.add(a(), 1.0, where=True),
    "more arguments than CuPy takes": lambda: xp.sum(a(), None, None, None, False, 0.0),
    "more arguments than CuPy's method takes": lambda: a().sum(None, None, None, False, 0.0),
    "upload of another shape": lambda: a().set(np.ones(3)),
    "upload of another dtype": lambda: a().set(HOST.astype("float32")),
    "array of strict arrays": lambda: xp.array([a(), a()]),
}


@pytest.mark.parametrize("operation", REFUSED.values(), ids=REFUSED.keys())
def test_refuses(operation):
    with pytest.raises(TypeError):
        operation()


def test_refuses_the_truth_of_more_than_one_number():
    assert bool(a((1,))[0] == 0)
    for ask in (bool, float, int):
        with pytest.raises(ValueError):
            ask(a())


@pytest.mark.parametrize("name", ["nonzero", "unique", "block", "einsum_path", "fromiter", "random"])
def test_has_no_function_that_cupy_lacks_or_that_waits_for_the_gpu(name):
    with pytest.raises(AttributeError):
        getattr(xp, name)


@pytest.mark.parametrize("name", ["nonzero", "compress", "base", "tostring", "__array_interface__"])
def test_array_has_no_way_out_but_get(name):
    assert not hasattr(a(), name)


def test_refuses_to_write_through_repeated_indices():
    array, twice = xp.zeros(4), xp.asarray([1, 1])
    with pytest.raises(ValueError, match="repeated"):
        array[twice] = xp.ones(2)
    with pytest.raises(ValueError, match="repeated"):
        array[twice] += xp.ones(2)
    array[twice] = 5.0  # the same number wherever: defined
    array[xp.asarray([1, 2])] += xp.ones(2)
    assert array.get().tolist() == [0.0, 6.0, 1.0, 0.0]


def test_refuses_an_index_out_of_range():
    with pytest.raises(IndexError):
        a()[xp.asarray([2])]


def test_refuses_to_scatter_with_atomics():
    with pytest.raises(AttributeError, match="no attribute 'at'"):
        xp.add.at(a(), xp.asarray([0]), 2.0)


def test_every_operator_computes_what_numpy_computes():
    x, y = HOST * 3.0, np.arange(6.0).reshape(2, 3)
    for operate in (
        lambda p, q: p + q, lambda p, q: p - q, lambda p, q: 1.0 - q, lambda p, q: p * q, lambda p, q: q / p,
        lambda p, q: 2 / p, lambda p, q: q**2, lambda p, q: q // p, lambda p, q: q % p, lambda p, q: -p,
        lambda p, q: abs(-q), lambda p, q: p @ q.T, lambda p, q: p < q, lambda p, q: p >= q,
        lambda p, q: p == q, lambda p, q: ~(p != q), lambda p, q: (p > q) | (q > 1) & (q < 4) ^ (p > 0),
        lambda p, q: np.float64(2) * q,
    ):  # fmt: skip
        result = operate(xp.asarray(x), xp.asarray(y))
        assert isinstance(result, StrictArray)
        np.testing.assert_array_equal(result.get(), operate(x, y))


def test_in_place_operators_write_into_the_same_memory():
    array = a()
    row = array[1]
    row += 10.0
    array[0] *= 2.0
    assert array.get().tolist() == [[0.0, 2.0, 4.0], [13.0, 14.0, 15.0]]


def test_results_are_arrays_even_of_one_number():
    array = a()
    for number in (
        array.sum(),
        array[0, 1],
        xp.max(array),
        array.argmax(),
        array @ array.T @ xp.ones(2) @ xp.ones(2),
    ):
        assert isinstance(number, StrictArray)
        assert number.shape == ()
    element = array[0, 1]
    element[...] = 7.0  # a view, as in CuPy; NumPy would have made a copy
    assert float(array[0, 1]) == 7.0


def test_python_numbers_are_weak_and_numpy_numbers_are_not():
    array = a(dtype="float32")
    assert (array * 2.0 + 1).dtype == "float32"
    assert (array * np.float64(2.0)).dtype == "float64"
    assert (array + a()).dtype == "float64"


def test_transfers_copy():
    host = np.zeros(3)
    array = xp.asarray(host)
    host += 1.0
    assert array.get().sum() == 0.0
    array.get()[...] = 5.0
    assert array.get().sum() == 0.0
    array.set(host)
    assert array.get().sum() == 3.0
    assert xp.asarray(array) is not array
    assert xp.asarray([1, 2], dtype="float32").dtype == "float32"


def test_is_known_to_the_package_as_a_library_of_its_own():
    assert arrays.get_array_module(a()) is xp
    assert isinstance(a(), xp.ndarray)
    assert type(arrays.to_numpy(a())) is np.ndarray
    np.testing.assert_array_equal(arrays.erf(a()).get(), arrays.erf(a().get()))


def test_record_tells_the_dtype_of_every_result():
    x = a(dtype="float32")
    with strict.record() as made:
        x * 2.0
        x.astype("float64").sum()
        x[0]
    assert made == [
        ("multiply", np.dtype("float32")),
        ("astype", np.dtype("float64")),
        ("sum", np.dtype("float64")),
        ("getitem", np.dtype("float32")),
    ]
    x * 2.0
    assert len(made) == 4


def test_devices_are_those_asked_for(device, xp):
    array = device.asarray([[1, 2], [3, 4]], dtype="float32")
    assert isinstance(array, xp.ndarray)
    assert arrays.get_array_module(array) is xp
    assert arrays.to_numpy(array @ array).tolist() == [[7.0, 10.0], [15.0, 22.0]]

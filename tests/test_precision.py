"""In how many digits a model computes, and which device can."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from minibert.devices import Device
from minibert.errors import UserError
from minibert.precision import PRECISIONS, check_precision, choose_precision, default_precision


def test_complex_parameters_are_for_proofs_and_no_setting():
    chosen = choose_precision("complex128")
    assert (chosen.dtype, chosen.operand) == ("complex128", "complex128")
    assert "complex128" not in PRECISIONS
    with pytest.raises(UserError, match="precision float32 has parameters in float32, not complex128"):
        choose_precision("complex128", "float32")


def test_a_precision_by_its_own_name_or_by_the_dtype_of_the_parameters():
    assert choose_precision() == choose_precision("float32") == PRECISIONS["float32"]
    assert choose_precision("float64") == choose_precision("float64", "float64") == PRECISIONS["float64"]
    assert choose_precision("float32", "float64").dtype == "float64", "the dtype was only the default"
    for name in ("tf32", "bfloat16", "float16"):
        chosen = choose_precision("float32", name)
        assert (chosen.name, chosen.dtype) == (name, "float32")
        assert chosen.operand == ("float32" if name == "tf32" else name)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("int32",), "unknown dtype 'int32'; expected float32 or float64$"),
        (("bfloat16",), "unknown dtype 'bfloat16'.*did you mean precision='bfloat16'?"),
        (("float32", "half"), "unknown precision 'half'; expected one of float32, tf32, bfloat16"),
        (("float64", "bfloat16"), "bfloat16 has parameters in float32, not float64"),
    ],
)
def test_a_precision_that_does_not_exist(arguments, message):
    with pytest.raises(UserError, match=message):
        choose_precision(*arguments)


def gpu(capability):
    """A device that says that it is a GPU of this compute capability."""
    cuda = SimpleNamespace(Device=lambda number: SimpleNamespace(compute_capability=capability))
    return Device("cuda:0", SimpleNamespace(cuda=cuda))


def test_what_a_gpu_can_compute_in():
    assert [default_precision(gpu(of)) for of in ("75", "80", "90")] == ["float32", "bfloat16", "bfloat16"]
    assert default_precision(Device("cpu", np)) == "float32"
    for precision in PRECISIONS.values():
        check_precision(precision, gpu("90"))
        check_precision(precision, Device("cpu", np))
    check_precision(PRECISIONS["float16"], gpu("75"))
    for name in ("bfloat16", "tf32"):
        with pytest.raises(UserError, match=rf"cuda:0, compute capability 7.5\) has no {name}.*float16"):
            check_precision(PRECISIONS[name], gpu("75"))


def test_bfloat16_needs_its_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(UserError, match="pip install ml_dtypes"):
        check_precision(PRECISIONS["bfloat16"], Device("cpu", np))
    check_precision(PRECISIONS["float16"], Device("cpu", np))

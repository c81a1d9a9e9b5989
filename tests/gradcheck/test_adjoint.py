"""The adjoint test: ⟨v, J u⟩ = ⟨Jᵀ v, u⟩."""

import pytest
from matrix_product import inputs, product, product_backward

from minibert.devices import resolve_device
from minibert.gradcheck import check_adjoint, function_case


def test_passes_a_right_backward(device):
    on_host = function_case("it", product, product_backward, inputs(resolve_device("cpu")))
    case = function_case("it", product, product_backward, inputs(device))
    for row in (check_adjoint(case), check_adjoint(case, on_host)):
        assert row.ok
        assert row.error < 1e-15


@pytest.mark.parametrize("wrong", [0, 1], ids=["dx", "dw"])
def test_catches_an_error_of_1e_11_in_any_gradient(device, wrong):
    def backward(dout, cache):
        gradients = list(product_backward(dout, cache))
        gradients[wrong] = gradients[wrong] * (1.0 + 1e-11)
        return tuple(gradients)

    assert not check_adjoint(function_case("it", product, backward, inputs(device))).ok


def test_catches_what_is_right_for_one_dout_only(device):
    """check() has one dout for each output, and a backward that has learned it by heart would pass."""
    variables = inputs(device)
    right = function_case("it", product, product_backward, variables)
    by_heart = product_backward(device.asarray(right.douts[0]), tuple(variables.values()))
    assert not check_adjoint(function_case("it", product, lambda dout, cache: by_heart, variables)).ok

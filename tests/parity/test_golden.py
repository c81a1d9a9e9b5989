"""Ours against what transformers computed once, for the golden files that ``make_golden.py`` wrote."""

import pytest
from parity.cases import GOLDEN, GOLDEN_CASES, compact, draw_batch
from parity.ours import our_model, our_results
from safetensors.numpy import load_file

BOUNDS = {"float64": 1e-10, "float32": 1e-5}


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("name", GOLDEN_CASES)
def test_ours_computes_what_transformers_computed(name, dtype, parity):
    """The golden numbers are float64; the float32 model has the same weights, so it is held to them too."""
    case = GOLDEN_CASES[name]
    golden = load_file(GOLDEN / f"{name}.safetensors")
    found = our_results(our_model(case, dtype), draw_batch(case))
    assert {str(array.dtype) for array in found.values()} == {dtype}
    parity.compare(
        f"golden files, {dtype}",
        {what: compact(array) for what, array in found.items()},
        golden,
        BOUNDS[dtype],
    )


def test_every_file_has_its_case():
    assert {path.stem for path in GOLDEN.iterdir()} == set(GOLDEN_CASES)

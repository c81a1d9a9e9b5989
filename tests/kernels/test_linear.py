"""How the rows of a product are split into blocks."""

import pytest

from minibert.kernels.cpu.linear import row_block
from minibert.threads import get_threads


@pytest.mark.parametrize(("library", "at_most"), [("numpy", 512), ("onednn", 512), ("bfloat16", 2048)])
@pytest.mark.parametrize("rows", [1, 7, 512, 4096, 5000, 100_000])
def test_blocks_are_equal_shares_and_no_larger_than_suits_the_library(monkeypatch, rows, library, at_most):
    monkeypatch.setattr("minibert.kernels.cpu.linear.products_library", lambda: library)
    block, threads = row_block(rows), get_threads()
    blocks = -(-rows // block)
    assert block <= at_most
    assert blocks <= threads * -(-rows // (threads * at_most))  # no more than are needed
    assert block >= min(rows, 64)  # a sentence is computed by one thread

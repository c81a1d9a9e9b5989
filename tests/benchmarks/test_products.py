"""The bare products are those of a step: as many FLOPs as are counted, and the right numbers."""

import numpy as np
import pytest

from benchmarks.inputs import IGNORED, count_masked, pretraining_batch
from benchmarks.products import AttentionProducts, LinearProducts, run, step_products
from minibert import BertConfig
from minibert.tasks.info import step_cost


@pytest.mark.parametrize(("preset", "vocab_size"), [("tiny", 8192), ("mini", 1000)])
def test_flops_are_those_of_a_step(preset, vocab_size):
    config = BertConfig.preset(preset, vocab_size=vocab_size)
    products = step_products(config, batch_size=2, length=20, predicted=2 * 3)
    cost = step_cost(config, batch_size=2, length=20, predictions=3)
    assert sum(product.flops for product in products) == cost.forward_flops + cost.backward_flops


def test_linear_products():
    product = LinearProducts(np.random.default_rng(0), rows=6, inputs=4, outputs=5)
    product.forward()
    product.backward()
    np.testing.assert_allclose(product.y, product.x @ product.weight.T, rtol=1e-5)
    np.testing.assert_allclose(product.dx, product.y @ product.weight, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(product.dweight, product.y.T @ product.x, rtol=1e-4, atol=1e-5)


def test_only_linear_maps_are_computed_by_the_library_that_was_chosen(monkeypatch):
    chosen = []

    def multiply(a, b, out):
        chosen.append(a.shape)
        np.matmul(a, b, out=out)

    monkeypatch.setattr("benchmarks.products.multiply", multiply)
    monkeypatch.setattr("benchmarks.products.get_threads", lambda: 1)
    products = step_products(BertConfig.preset("tiny", vocab_size=50), batch_size=2, length=8, predicted=2)
    run(products)
    linear = [product for product in products if isinstance(product, LinearProducts)]
    assert len(chosen) == 3 * len(linear) == 36


def test_attention_has_six_products_for_every_head(monkeypatch):
    shapes = []
    monkeypatch.setattr("benchmarks.products._product", lambda a, b, out: shapes.append((a, b, out)))
    product = AttentionProducts(np.random.default_rng(0), batch_size=2, length=7, hidden=12, heads=3)
    product.forward()
    product.backward()
    for a, b, out in shapes:
        assert (a @ b).shape == out.shape
    assert len(shapes) == 6
    assert product.flops == sum(2 * out.size * a.shape[-1] for a, _, out in shapes)


def test_a_batch_has_its_share_of_masked_positions():
    batch = pretraining_batch(vocab_size=100, batch_size=4, length=50)
    assert np.sum(batch["labels"] != IGNORED) == count_masked(4, 50) == 30
    assert batch["input_ids"].shape == batch["token_type_ids"].shape == (4, 50)
    again = pretraining_batch(vocab_size=100, batch_size=4, length=50)
    assert all(np.array_equal(batch[name], again[name]) for name in batch)

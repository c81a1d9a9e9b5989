"""The matrix products of a training step and nothing else: the time below which no step can be.

Exactly those that a step has, in its order and with its shapes: for every linear map the forward, the
gradient of its input and that of its weight; for every head of the attention two forward and four
backward. Outputs are allocated beforehand and no value depends on an earlier run.
"""

import timeit
from collections.abc import Callable

import numpy as np

from minibert import BertConfig
from minibert.arrays import run_blocks


class LinearProducts:
    """y = x Wᵀ; dx = dy W, dW = dyᵀ x. x (R, K), W (N, K), y (R, N), where y also serves as dy."""

    def __init__(self, rng: np.random.Generator, rows: int, inputs: int, outputs: int):
        self.x = _normal(rng, rows, inputs)
        self.weight = _normal(rng, outputs, inputs)
        self.y = np.empty((rows, outputs), dtype=np.float32)
        self.dx, self.dweight = np.empty_like(self.x), np.empty_like(self.weight)
        self.flops = 3 * 2 * rows * inputs * outputs

    def forward(self) -> None:
        np.matmul(self.x, self.weight.T, out=self.y)

    def backward(self) -> None:
        np.matmul(self.y, self.weight, out=self.dx)
        np.matmul(self.y.T, self.x, out=self.dweight)


class AttentionProducts:
    """s = q kᵀ, y = p v; dv = pᵀ dy, dp = dy vᵀ, dq = ds k, dk = dsᵀ q, for every head of every sequence.

    q, k, v and their gradients (B, A, S, D) lie in arrays (B, S, 3H), as in a step. Each product is
    computed in the faster of two ways: BLAS with all of its threads on one small matrix after the other,
    or threads of our own, each on another sequence with BLAS on one thread.
    """

    def __init__(self, rng: np.random.Generator, batch_size: int, length: int, hidden: int, heads: int):
        shape = (batch_size, length, 3, heads, hidden // heads)
        q, k, v = _normal(rng, *shape).transpose(2, 0, 3, 1, 4)
        dq, dk, dv = np.empty(shape, dtype=np.float32).transpose(2, 0, 3, 1, 4)
        dy, y = _normal(rng, 2, *shape[:2], *shape[3:]).transpose(0, 1, 3, 2, 4)  # (B, A, S, D) in (B, S, H)
        p, s = _normal(rng, 2, batch_size, heads, length, length)
        self._forward = [_faster_way(q, k.mT, s), _faster_way(p, v, y)]
        self._backward = [
            _faster_way(p.mT, dy, dv),
            _faster_way(dy, v.mT, s),
            _faster_way(p, k, dq),
            _faster_way(p.mT, q, dk),
        ]
        self.flops = 6 * 2 * batch_size * length**2 * hidden

    def forward(self) -> None:
        for product in self._forward:
            product()

    def backward(self) -> None:
        for product in self._backward:
            product()


def step_products(
    config: BertConfig, batch_size: int, length: int, predicted: int
) -> list[LinearProducts | AttentionProducts]:
    """What a pre-training step multiplies, in the order of its forward; ``predicted`` words in all."""
    rng = np.random.default_rng(0)
    hidden, wide, rows = config.hidden_size, config.intermediate_size, batch_size * length
    products: list[LinearProducts | AttentionProducts] = []
    for _ in range(config.num_hidden_layers):
        products += [
            LinearProducts(rng, rows, hidden, 3 * hidden),
            AttentionProducts(rng, batch_size, length, hidden, config.num_attention_heads),
            LinearProducts(rng, rows, hidden, hidden),
            LinearProducts(rng, rows, hidden, wide),
            LinearProducts(rng, rows, wide, hidden),
        ]
    return [
        *products,
        LinearProducts(rng, batch_size, hidden, hidden),  # pooler
        LinearProducts(rng, batch_size, hidden, 2),
        LinearProducts(rng, predicted, hidden, hidden),  # transform
        LinearProducts(rng, predicted, hidden, config.vocab_size),
    ]


def run(products: list[LinearProducts | AttentionProducts]) -> None:
    """All of them once, forward and then backward."""
    for product in products:
        product.forward()
    for product in reversed(products):
        product.backward()


def _normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape, dtype=np.float32)


def _faster_way(a: np.ndarray, b: np.ndarray, out: np.ndarray) -> Callable[[], object]:
    """out = a @ b over the last two axes, as the faster of two functions."""

    def with_blas_threads() -> None:
        np.matmul(a, b, out=out)

    def with_our_threads() -> None:
        run_blocks(lambda rows: np.matmul(a[rows], b[rows], out=out[rows]), len(a), 1)

    return min(
        with_blas_threads, with_our_threads, key=lambda way: min(timeit.repeat(way, number=1, repeat=4))
    )

"""The matrix products of a training step and nothing else: the time below which no step can be.

Exactly those that a step has, in its order and with its shapes: for every linear map the forward, the
gradient of its input and that of its weight; for every head of the attention two forward and four
backward. The library that was chosen computes the linear maps, and NumPy the attention, as in a step. Outputs
are allocated beforehand and no value depends on an earlier run.
"""

import numpy as np

from minibert import BertConfig
from minibert.products import multiply
from minibert.threads import get_threads, run_blocks


class LinearProducts:
    """y = x Wᵀ; dx = dy W, dW = dyᵀ x. x (R, K), W (N, K), y (R, N), where y also serves as dy."""

    def __init__(self, rng: np.random.Generator, rows: int, inputs: int, outputs: int):
        self.x = _normal(rng, rows, inputs)
        self.weight = _normal(rng, outputs, inputs)
        self.y = np.empty((rows, outputs), dtype=np.float32)
        self.dx, self.dweight = np.empty_like(self.x), np.empty_like(self.weight)
        self.flops = 3 * 2 * rows * inputs * outputs

    def forward(self) -> None:
        _product(self.x, self.weight.T, self.y)

    def backward(self) -> None:
        _product(self.y, self.weight, self.dx)
        _product(self.y.T, self.x, self.dweight)


class AttentionProducts:
    """s = q kᵀ, y = p v; dv = pᵀ dy, dp = dy vᵀ, dq = ds k, dk = dsᵀ q, for every head of every sequence.

    q, k, v and their gradients (B, A, S, D) lie in arrays (B, S, 3H), as in a step.
    """

    def __init__(self, rng: np.random.Generator, batch_size: int, length: int, hidden: int, heads: int):
        shape = (batch_size, length, 3, heads, hidden // heads)
        q, k, v = _normal(rng, *shape).transpose(2, 0, 3, 1, 4)
        dq, dk, dv = np.empty(shape, dtype=np.float32).transpose(2, 0, 3, 1, 4)
        dy, y = _normal(rng, 2, *shape[:2], *shape[3:]).transpose(0, 1, 3, 2, 4)  # (B, A, S, D) in (B, S, H)
        p, s = _normal(rng, 2, batch_size, heads, length, length)
        self._forward = [(q, k.mT, s), (p, v, y)]
        self._backward = [(p.mT, dy, dv), (dy, v.mT, s), (p, k, dq), (p.mT, q, dk)]
        self.flops = 6 * 2 * batch_size * length**2 * hidden

    def forward(self) -> None:
        for arrays in self._forward:
            _product(*arrays)

    def backward(self) -> None:
        for arrays in self._backward:
            _product(*arrays)


def step_products(
    config: BertConfig, batch_size: int, length: int, predicted: int
) -> list[LinearProducts | AttentionProducts]:
    """What a pre-training step multiplies, in the order of its forward; ``predicted`` words in all."""
    rng = np.random.default_rng(0)
    hidden, wide, rows = config.hidden_size, config.intermediate_size, batch_size * length
    products: list[LinearProducts | AttentionProducts] = []
    for layer in range(1, config.num_hidden_layers + 1):
        read = rows if layer < config.num_hidden_layers else predicted + batch_size  # by a head
        products += [
            LinearProducts(rng, rows, hidden, 3 * hidden),
            AttentionProducts(rng, batch_size, length, hidden, config.num_attention_heads),
            LinearProducts(rng, read, hidden, hidden),
            LinearProducts(rng, read, hidden, wide),
            LinearProducts(rng, read, wide, hidden),
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


def _product(a: np.ndarray, b: np.ndarray, out: np.ndarray) -> None:
    """out = a @ b over the last two axes, the first axis of a and out shared among the threads.

    Each has BLAS on one thread, as in our step. For large matrices that is as fast as BLAS's own threads
    (which wait in each other's way when both kinds are used), for the small ones of attention faster.
    """
    shares = get_threads() if a.ndim == 2 else len(a)

    def share(rows: slice) -> None:
        if a.ndim == 2:
            multiply(a[rows], b, out[rows])
        else:
            np.matmul(a[rows], b[rows], out=out[rows])

    run_blocks(share, len(a), -(-len(a) // shares))

"""Rotary position embedding (Su et al., 2021, "RoFormer", section 3.2): positions as angles."""

import math

from minibert.arrays import Array, get_array_module

Cache = tuple


def rotary_embedding(qkv: Array, num_heads: int, theta: float = 10000.0) -> tuple[Array, Cache]:
    """Turn every query and key by angles that grow with its position; values stay as they are.

    The D features x of a head are D/2 points, each in a plane of its own: feature i goes with i + D/2, as in
    ModernBERT. (The paper pairs 2i with 2i + 1, which is the same in another order.) At the position
    s = 0, 1, … point i is turned by the angle φ = s · theta^(−2i/D):

        y[i]       = x[i] cos φ − x[i + D/2] sin φ
        y[i + D/2] = x[i] sin φ + x[i + D/2] cos φ        for i = 0 … D/2 − 1

    As a matrix: y = R(s) x. The transpose of a rotation turns back, and two rotations turn by the sum of
    their angles. So the product of a query at s and a key at t is (R(s) q)·(R(t) k) = q·R(t − s) k: it
    depends on the distance between them, and not on where they are. Fast angles tell near positions apart,
    slow ones far positions.

    qkv (B, S, 3H): queries, keys and values side by side, ``num_heads`` heads of even size D → y (B, S, 3H).
    """
    xp = get_array_module(qkv)
    length, half = qkv.shape[1], qkv.shape[2] // (6 * num_heads)  # D/2
    steps = xp.exp(xp.arange(half, dtype=qkv.dtype) * (-math.log(theta) / half))  # theta^(−2i/D): (D/2,)
    angles = xp.arange(length, dtype=qkv.dtype)[:, None, None, None] * steps  # (S, 1, 1, D/2)
    cos, sin = xp.cos(angles), xp.sin(angles)
    return _turn(qkv, cos, sin, num_heads), (cos, sin, num_heads)


def rotary_embedding_backward(dout: Array, cache: Cache) -> Array:
    """Derivative of :func:`rotary_embedding`: dqkv (B, S, 3H).

    forward: y = R x, so dx = Rᵀ dout. R turns by φ, and Rᵀ turns back by the same angle: its sine is −sin φ.
    """
    cos, sin, num_heads = cache
    return _turn(dout, cos, -sin, num_heads)


def _turn(qkv: Array, cos: Array, sin: Array, num_heads: int) -> Array:
    """The queries and keys in qkv (B, S, 3H) turned, the values copied. cos and sin (S, 1, 1, D/2)."""
    batch, length, _ = qkv.shape
    halves = qkv.reshape(batch, length, 3, num_heads, 2, cos.shape[-1])  # 3: q, k, v; 2: halves of D
    first, second = halves[:, :, :2, :, 0], halves[:, :, :2, :, 1]  # of q and k: (B, S, 2, A, D/2)
    turned = halves.copy()
    turned[:, :, :2, :, 0] = first * cos - second * sin
    turned[:, :, :2, :, 1] = first * sin + second * cos
    return turned.reshape(qkv.shape)

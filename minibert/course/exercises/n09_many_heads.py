"""09 Many heads: splitting, merging, backward for all heads at once; heads that share keys and values."""

import numpy as np

from minibert.arrays import Array
from minibert.course.exercise import Trial, exercise, gradient_trial
from minibert.gradcheck import MASK, Draws
from minibert.ops.attention import attention, attention_backward, attention_bias
from minibert.ops.attention import merge_heads as library_merge_heads
from minibert.ops.attention import split_heads as library_split_heads
from minibert.ops.composites import packed_attention
from minibert.ops.composites import packed_attention_backward as library_backward

HEADS = 2, 3  # A heads of D = 3 and D = 2 features; S = 4 tokens, B = 3 sequences


@exercise(
    "09",
    outputs="heads",
    trials=lambda draw: [
        Trial({"x": draw.normal(3, 4, 6), "num_heads": heads}, f"split in {heads}") for heads in HEADS
    ],
    reference=library_split_heads,
    views=True,
    level=1,
    minutes=5,
    needs="section 2: a reshape keeps the order of the numbers, a transpose changes it",
    hints=(
        "Head a gets the features a·D to (a+1)·D of every token. Which reshape cuts only the last axis?",
        "A reshape keeps the order of the numbers; only a transpose moves axes. First cut, then move.",
        "x.reshape(B, S, A, D).transpose(0, 2, 1, 3). See `split_heads` in minibert/ops/attention.py.",
    ),
)
def split_heads(x, num_heads):
    batch, length, hidden = x.shape
    return x.reshape(batch, length, num_heads, hidden // num_heads).transpose(0, 2, 1, 3)


@split_heads.mistake(
    "One reshape to (B, A, S, D) mixes tokens: it keeps the order of the numbers, so head 0 gets whole "
    "tokens from the beginning of the sequence. Cut the last axis first, then transpose."
)
def reshaped_without_a_transpose(x, num_heads):
    batch, length, hidden = x.shape
    return x.reshape(batch, num_heads, length, hidden // num_heads)


@split_heads.mistake(
    "The features are dealt out in turn: 0, A, 2A, … to the first head. Head a should get D neighbouring "
    "features: cut the last axis into (A, D), not (D, A)."
)
def features_dealt_out_in_turn(x, num_heads):
    batch, length, hidden = x.shape
    return x.reshape(batch, length, hidden // num_heads, num_heads).transpose(0, 3, 1, 2)


@split_heads.mistake(
    "The axes are (B, A, D, S). That would suit the keys in q kᵀ, but the split is the same for all three: "
    "(B, A, S, D)."
)
def tokens_last(x, num_heads):
    return split_heads.solution(x, num_heads).transpose(0, 1, 3, 2)


@split_heads.mistake("The heads come before the batch: (A, B, S, D). It should be (B, A, S, D).")
def heads_before_the_batch(x, num_heads):
    return split_heads.solution(x, num_heads).transpose(1, 0, 2, 3)


@exercise(
    "09",
    outputs="x",
    trials=lambda draw: [Trial({"heads": draw.normal(3, 2, 4, 5)})],  # sizes that all differ
    reference=library_merge_heads,
    level=1,
    minutes=5,
    needs="your split",
    hints=(
        "It undoes `split_heads`: the same two steps, in the opposite order.",
        "The features of a token have to be neighbours before a reshape can join them: (B, S, A, D).",
        "heads.transpose(0, 2, 1, 3).reshape(B, S, A·D). See `merge_heads` in minibert/ops/attention.py.",
    ),
)
def merge_heads(heads):
    batch, num_heads, length, size = heads.shape
    return heads.transpose(0, 2, 1, 3).reshape(batch, length, num_heads * size)


@merge_heads.mistake(
    "A reshape straight from (B, A, S, D) joins neighbouring tokens of one head. First bring a token's heads "
    "together: transpose(0, 2, 1, 3)."
)
def reshaped_without_a_transpose_first(heads):
    batch, num_heads, length, size = heads.shape
    return heads.reshape(batch, length, num_heads * size).copy()


@merge_heads.mistake(
    "The features of the heads are interleaved, as from (B, S, D, A). The D features of a head should stay "
    "neighbours: (B, S, A, D)."
)
def heads_interleaved(heads):
    batch, num_heads, length, size = heads.shape
    return heads.transpose(0, 2, 3, 1).reshape(batch, length, size * num_heads)


@merge_heads.mistake("The heads follow one another along the sequence. They belong side by side: (B, S, H).")
def heads_behind_each_other(heads):
    return np.concatenate(list(heads.transpose(1, 0, 2, 3)), axis=1)


@merge_heads.mistake("The heads are summed. They are put side by side: H = A·D features, not D.")
def heads_summed(heads):
    return heads.sum(axis=1)


# -- The backward pass ------------------------------------------------------------------------------


def _trials(draw: Draws) -> list[Trial]:
    bias = attention_bias(draw.device.asarray(MASK), "float64")  # (B, 1, 1, S)
    return [
        gradient_trial(
            lambda qkv, heads=heads: packed_attention(qkv, bias, heads, 0.0, None),
            {"qkv": draw.normal(3, 4, 18)},
            f"dqkv, {heads} heads",
        )
        for heads in HEADS
    ]


@exercise(
    "09",
    outputs="dqkv",
    trials=_trials,
    reference=library_backward,
    level=2,
    minutes=10,
    needs="that a number that was used once gets its gradient back unchanged",
    hints=(
        "In the forward pass, qkv is cut into three, each part is split into heads, attention runs, and the "
        "heads are merged. Now go backwards.",
        "The backward pass of merging is splitting, and the other way round. The backward pass of cutting "
        "into three is putting side by side.",
        "dq, dk, dv = attention_backward(split_heads(dout, num_heads), attention_cache); merge the heads of "
        "each; np.concatenate along the last axis. See `packed_attention_backward` in "
        "minibert/ops/composites.py.",
    ),
)
def packed_attention_backward(dout, cache):
    attention_cache, num_heads = cache
    gradients = attention_backward(library_split_heads(dout, num_heads), attention_cache)
    return np.concatenate([library_merge_heads(gradient) for gradient in gradients], axis=-1)


def _gradients(dout, cache):
    attention_cache, num_heads = cache
    return attention_backward(library_split_heads(dout, num_heads), attention_cache)


@packed_attention_backward.mistake(
    "dout is reshaped to (B, A, S, D) instead of split: each head gets the gradients of other tokens. Use "
    "`split_heads`."
)
def dout_reshaped_instead_of_split(dout, cache):
    attention_cache, num_heads = cache
    batch, length, hidden = dout.shape
    heads = dout.reshape(batch, num_heads, length, hidden // num_heads)
    gradients = attention_backward(heads, attention_cache)
    return np.concatenate([library_merge_heads(gradient) for gradient in gradients], axis=-1)


@packed_attention_backward.mistake(
    "The gradients are reshaped to (B, S, H) instead of merged: tokens are mixed. Use `merge_heads`."
)
def gradients_reshaped_instead_of_merged(dout, cache):
    return np.concatenate([gradient.reshape(dout.shape) for gradient in _gradients(dout, cache)], axis=-1)


@packed_attention_backward.mistake(
    "dq, dk and dv of each head are side by side, head after head. But in qkv all of q comes first, then all "
    "of k, then all of v: merge each of the three by itself."
)
def thirds_within_each_head(dout, cache):
    return library_merge_heads(np.concatenate(_gradients(dout, cache), axis=-1))


@packed_attention_backward.mistake("The order is q, k, v; yours is v, k, q.")
def thirds_in_the_opposite_order(dout, cache):
    merged = [library_merge_heads(gradient) for gradient in _gradients(dout, cache)]
    return np.concatenate(merged[::-1], axis=-1)


@packed_attention_backward.mistake(
    "The three are added up. They are gradients of different numbers, which are side by side: (B, S, 3H)."
)
def thirds_added_up(dout, cache):
    return sum(library_merge_heads(gradient) for gradient in _gradients(dout, cache))


# -- Keys and values for all heads together ------------------------------------------------------------


def multi_query(qkv: Array, bias: Array, num_heads: int) -> tuple[Array, tuple]:
    """Attention in which all heads have the same keys and values (Shazeer 2019).

    qkv (B, S, H + 2D), bias (B, 1, 1, S) → y (B, S, H), (attention_cache, num_heads).
    """
    size = qkv.shape[-1] // (num_heads + 2)
    q = library_split_heads(qkv[..., : -2 * size], num_heads)  # (B, A, S, D)
    k = np.broadcast_to(qkv[:, None, :, -2 * size : -size], q.shape)
    v = np.broadcast_to(qkv[:, None, :, -size:], q.shape)
    y, attention_cache = attention(q, k, v, bias, 0.0, None)
    return library_merge_heads(y), (attention_cache, num_heads)


def _multi_query_trials(draw: Draws) -> list[Trial]:
    bias = attention_bias(draw.device.asarray(MASK), "float64")  # (B, 1, 1, S)
    return [
        gradient_trial(
            lambda qkv, heads=heads: multi_query(qkv, bias, heads),
            {"qkv": draw.normal(3, 4, 6 + 2 * (6 // heads))},
            f"dqkv, {heads} heads",
        )
        for heads in HEADS
    ]


@exercise(
    "09",
    outputs="dqkv",
    trials=_multi_query_trials,
    level=3,
    minutes=20,
    needs="section 5, and one rule of [01](01_gradients.ipynb)",
    hints=(
        "The queries go back as in section 5. All heads used each key: how many gradients does it get?",
        "attention_backward returns dk and dv for each head, (B, A, S, D). What was repeated along an axis "
        "in the forward pass is summed along it in the backward pass.",
        "np.concatenate([merge_heads(dq), dk.sum(axis=1), dv.sum(axis=1)], axis=-1).",
    ),
)
def multi_query_backward(dout, cache):
    dq, dk, dv = _gradients(dout, cache)  # (B, A, S, D) each
    return np.concatenate([library_merge_heads(dq), dk.sum(axis=1), dv.sum(axis=1)], axis=-1)


@multi_query_backward.mistake(
    "dk and dv are means over the heads. Every head used the key in full, so their gradients add up."
)
def mean_over_the_heads(dout, cache):
    dq, dk, dv = _gradients(dout, cache)
    return np.concatenate([library_merge_heads(dq), dk.mean(axis=1), dv.mean(axis=1)], axis=-1)


@multi_query_backward.mistake(
    "dk and dv are those of the first head. All heads used the same keys and values: add up what they all "
    "send back."
)
def the_first_head_only(dout, cache):
    dq, dk, dv = _gradients(dout, cache)
    return np.concatenate([library_merge_heads(dq), dk[:, 0], dv[:, 0]], axis=-1)


@multi_query_backward.mistake(
    "dk and dv have a part for each head, (B, S, 3H) in all. All heads share one key: sum over the heads."
)
def a_key_for_each_head(dout, cache):
    return np.concatenate([library_merge_heads(gradient) for gradient in _gradients(dout, cache)], axis=-1)


@multi_query_backward.mistake(
    "The gradients of the keys are where those of the values belong, and the other way round."
)
def keys_and_values_exchanged(dout, cache):
    dq, dk, dv = _gradients(dout, cache)
    return np.concatenate([library_merge_heads(dq), dv.sum(axis=1), dk.sum(axis=1)], axis=-1)


@multi_query_backward.mistake("The keys and values come first. In qkv the queries come first.")
def queries_last(dout, cache):
    dq, dk, dv = _gradients(dout, cache)
    return np.concatenate([dk.sum(axis=1), dv.sum(axis=1), library_merge_heads(dq)], axis=-1)


@multi_query_backward.mistake(
    "The queries are reshaped to (B, S, H) instead of merged, which mixes tokens. Use `merge_heads`."
)
def queries_reshaped_instead_of_merged(dout, cache):
    dq, dk, dv = _gradients(dout, cache)
    return np.concatenate([dq.reshape(dout.shape), dk.sum(axis=1), dv.sum(axis=1)], axis=-1)

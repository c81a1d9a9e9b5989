"""Gradient checks of every operation of ``ops`` that has a derivative."""

from functools import partial

from minibert import ops
from minibert.devices import Device
from minibert.dropout_bits import dropout_key
from minibert.gradcheck import MASK, Case, Draws, function_case
from minibert.nn import Context
from minibert.ops.attention import attention, attention_backward
from minibert.ops.relative_positions import relative_shift, relative_shift_backward
from minibert.ops.stable_softmax import log_softmax, log_softmax_backward, softmax, softmax_backward
from minibert.proofs.models import Bends

PROBABILITY = 0.3  # of dropout in the cases
_KEY = dropout_key(seed=1, step=2, micro_batch=0, replica=0, site=3)


def operation_cases(device: Device) -> list[Case]:
    """Every operation of ``ops`` that has a derivative. B = 3, S = 4, H = 6, A = 2, V = 7."""
    return [
        *_primitive_cases(Draws(device, 1)),
        *_composite_cases(Draws(device, 2)),
        *_head_cases(Draws(device, 7)),
        *_relative_cases(Draws(device, 12)),
    ]


def _primitive_cases(draw: Draws) -> list[Case]:
    x = draw.normal
    affine = {"x": x(3, 4, 6), "weight": draw.matrix(5, 6), "bias": x(5)}
    # ε is of order one here, like everything else, so that omitting it would show.
    norm = {"x": x(3, 4, 6), "weight": x(6), "bias": x(6)}
    ids = draw.ids(7, 3, 4)
    labels, weights = draw.ids(7, 5), draw.device.asarray([1.0, 0.0, 1.0, 0.5, 1.0])
    heads = {name: x(3, 2, 4, 3) for name in ("q", "k", "v")}
    mask = draw.device.asarray(MASK)
    cases = [
        function_case("linear", ops.linear, ops.linear_backward, affine),
        function_case("softmax", softmax, softmax_backward, {"x": x(3, 4, 6)}),
        function_case("log_softmax", log_softmax, log_softmax_backward, {"x": x(3, 4, 6)}),
        function_case("layer_norm", partial(ops.layer_norm, eps=0.5), ops.layer_norm_backward, norm),
        function_case(
            "embedding",
            partial(ops.embedding, ids=ids),
            ops.embedding_backward,
            {"weight": x(7, 6)},
        ),
        function_case(
            "cross_entropy",
            partial(ops.cross_entropy, labels=labels, weights=weights, denominator=2.5),
            ops.cross_entropy_backward,
            {"logits": x(5, 7)},
        ),
    ]
    for name, (forward, backward) in ops.ACTIVATIONS.items():
        cases.append(function_case(f"activation {name}", forward, backward, {"x": x(3, 4, 6)}))
    for name, key in (("dropout", _KEY), ("dropout, off", None)):
        cases.append(
            function_case(
                name,
                partial(ops.dropout, probability=PROBABILITY, key=key),
                ops.dropout_backward,
                {"x": x(3, 4, 6)},
            )
        )
    for name, causal in (("attention", False), ("attention, left to right", True)):
        bias = ops.attention_bias(mask, "float64", causal)
        cases.append(
            function_case(
                name,
                partial(attention, bias=bias, probability=PROBABILITY, key=_KEY),
                attention_backward,
                heads,
            )
        )
    return cases


def _composite_cases(draw: Draws) -> list[Case]:
    x = draw.normal
    ids, types = draw.ids(7, 3, 4), draw.ids(2, 3, 4)
    tables = {"word_weight": x(7, 6), "position_weight": x(5, 6), "token_type_weight": x(2, 6)}
    norm = {"weight": x(6), "bias": x(6)}
    bias = ops.attention_bias(draw.device.asarray(MASK), "float64")
    starts = draw.device.asarray([0, 3, 7, 8])  # texts of three tokens, four and one
    labels, weights = draw.ids(7, 5), draw.device.asarray([1.0, 0.0, 1.0, 0.5, 1.0])
    return [
        function_case(
            "embed",
            partial(
                ops.embed,
                input_ids=ids,
                token_type_ids=types,
                eps=0.5,
                probability=PROBABILITY,
                key=_KEY,
            ),
            ops.embed_backward,
            tables | norm,
        ),
        *(
            function_case(
                f"linear_activation {name}",
                partial(ops.linear_activation, activation=name),
                ops.linear_activation_backward,
                {"x": x(3, 4, 6), "weight": draw.matrix(5, 6), "bias": x(5)},
            )
            for name in ("gelu", "tanh")
        ),
        function_case(
            "dropout_residual_norm",
            partial(ops.dropout_residual_norm, eps=0.5, probability=PROBABILITY, key=_KEY),
            ops.dropout_residual_norm_backward,
            {"x": x(3, 4, 6), "residual": x(3, 4, 6), **norm},
        ),
        function_case(
            "packed_attention",
            partial(ops.packed_attention, bias=bias, num_heads=2, probability=PROBABILITY, key=_KEY),
            ops.packed_attention_backward,
            {"qkv": x(3, 4, 18)},
        ),
        function_case(
            "unpadded_attention",
            partial(ops.unpadded_attention, starts=starts, num_heads=2, probability=PROBABILITY, key=_KEY),
            ops.unpadded_attention_backward,
            {"qkv": x(8, 18)},
        ),
        function_case(
            "masked_lm_loss",
            partial(ops.masked_lm_loss, labels=labels, label_weights=weights, denominator=2.5),
            ops.masked_lm_loss_backward,
            {"hidden": x(5, 6), "weight": draw.matrix(7, 6), "bias": x(7)},
        ),
        function_case(
            "rotary_embedding",
            partial(ops.rotary_embedding, num_heads=2, theta=50.0),
            ops.rotary_embedding_backward,
            {"qkv": x(3, 4, 36)},
        ),
    ]


def _head_cases(draw: Draws) -> list[Case]:
    """The operations of the fine-tuning heads. N = 4 pairs, K = 3 tags."""
    x, asarray = draw.normal, draw.device.asarray
    mask = asarray(MASK, dtype="float64")
    pairs = {"x": x(4, 6), "y": x(4, 6)}
    similarities, numbers = x(4), x(4, 2)
    relations = x(3, 4, 4) * mask[:, :, None]
    spans = asarray([[1, 0, 3], [2, 0, 3]]), asarray([[0.5, 0.0, 0.5], [0.25, 0.25, 0.5]])
    # Sentences of four words, three, one and none.
    words = asarray([[1, 1, 1, 1], [1, 1, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0]], dtype="float64")
    tags = asarray([[2, 0, 1, 1], [0, 2, 2, 0], [1, 0, 0, 0], [2, 2, 2, 2]])
    emissions = x(4, 4, 3) + 1e3 * (1.0 - words)[:, :, None]  # what comes after the last word must not matter
    emissions[0, 2] = 0.0  # and a word counts even if its scores are 0
    scores = {"emissions": emissions, "start": x(3), "end": x(3), "transitions": x(3, 3)}
    return [
        *(
            function_case(
                f"{name} pooling",
                partial(forward, mask=mask),
                backward,
                {"hidden": x(3, 4, 6)},
            )
            for name, (forward, backward) in ops.POOLING.items()
        ),
        # ε is between the lengths of these vectors: some are divided by it, the others by their length.
        function_case(
            "unit_length", partial(ops.unit_length, eps=2.4), ops.unit_length_backward, {"x": x(3, 4, 6)}
        ),
        function_case("cosine_similarity", ops.cosine_similarity, ops.cosine_similarity_backward, pairs),
        function_case(
            "cosine_loss",
            partial(ops.cosine_loss, targets=similarities, denominator=2.5),
            ops.cosine_loss_backward,
            pairs,
        ),
        *(
            function_case(
                name,
                partial(ops.in_batch_softmax_loss, scale=3.0, symmetric=symmetric, denominator=2.5),
                ops.in_batch_softmax_loss_backward,
                pairs,
            )
            for name, symmetric in (("in_batch_softmax_loss", False), ("  both ways", True))
        ),
        function_case(
            "squared_error",
            partial(ops.squared_error, targets=numbers, denominator=2.5),
            ops.squared_error_backward,
            {"predictions": x(4, 2)},
        ),
        function_case(
            "soft_cross_entropy",
            partial(ops.soft_cross_entropy, teacher_logits=x(5, 7), temperature=1.7, denominator=2.5),
            ops.soft_cross_entropy_backward,
            {"logits": x(5, 7)},
        ),
        function_case(
            "relation_loss",
            partial(ops.relation_loss, teacher_hidden=x(3, 4, 5), weights=relations),
            ops.relation_loss_backward,
            {"hidden": x(3, 4, 6)},
        ),
        function_case(
            "attention_loss",
            partial(ops.attention_loss, teacher_probabilities=x(3, 3, 4, 4), weights=relations),
            ops.attention_loss_backward,
            {"probabilities": x(3, 2, 4, 4)},
        ),
        function_case(
            "span_loss",
            lambda logits: ops.span_loss(logits, *spans),
            ops.span_loss_backward,
            {"logits": x(3, 4, 2)},
        ),
        function_case(
            "crf_nll",
            partial(ops.crf_nll, tags=tags, mask=words, denominator=2.5),
            ops.crf_nll_backward,
            scores,
        ),
    ]


def _relative_cases(draw: Draws) -> list[Case]:
    """Attention by distances. T = 5 queries, more than the S = 4 keys, in no order; two segments."""
    x, asarray = draw.normal, draw.device.asarray
    first = asarray([[3, 2, 1, 0, 2], [3, 2, 1, 0, 0], [0, 1, 2, 3, 3]])
    biases = {f"{name}_bias": x(2, 3) for name in ("content", "position", "segment")}
    inputs = {"q": x(3, 5, 6), "k": x(3, 4, 6), "v": x(3, 4, 6), "r": x(7, 6), **biases}
    elsewhere = asarray([[0, 1, 1, 0], [0, 0, 1, 1], [0, 0, 0, 0]], dtype="float64")[:, None, None]
    return [
        function_case("product", ops.product, ops.product_backward, {"x": x(3, 4, 6), "weight": x(6, 5)}),
        function_case(
            "relative_shift",
            partial(relative_shift, first=first, length=4),
            relative_shift_backward,
            {"x": x(3, 2, 5, 7)},
        ),
        *(
            function_case(
                name,
                partial(
                    ops.relative_attention,
                    first=first,
                    elsewhere=elsewhere,
                    bias=ops.attention_bias(asarray(MASK), "float64"),
                    probability=PROBABILITY,
                    key=_KEY,
                    observe=Context(observer=observer).observe,
                ),
                ops.relative_attention_backward,
                inputs | {"segments": x(2, 2, 3)},
            )
            for name, observer in (("relative_attention", None), ("  observed", Bends(-0.01)))
        ),
    ]

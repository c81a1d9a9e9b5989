"""What a pre-training step of an XLNet costs, where it is not what BERT's step costs (``info.step_cost``).

A sequence of S tokens with P predicted words goes through the layers as T = S + P rows: the content of all
tokens and the queries of the predicted ones. Only the content has keys and values, and attention also scores
the 2S − 1 distances between tokens.
"""

from minibert.bert import BertConfig


def products(config: BertConfig, batch_size: int, length: int, predictions: int) -> tuple[int, int]:
    """Multiply-adds of the forward pass: of the encoder, and of the scores of the predicted words.

    encoder   L · (B·(2T + 2S)·H² + (2S − 1)·H²     q and the output, k and v; distances
                   + B·T·(2S + 2S − 1 + 1)·H        attention: contents, distances, segments
                   + B·T·2·H·F)
    heads     B·P·H·V
    """
    rows, distances = length + predictions, 2 * length - 1
    hidden, wide = config.hidden_size, config.intermediate_size
    maps = batch_size * (2 * rows + 2 * length) + distances
    layer = maps * hidden**2 + batch_size * rows * 2 * hidden * wide
    layer += batch_size * rows * (2 * length + distances + 1) * hidden
    return config.num_hidden_layers * layer, batch_size * predictions * hidden * config.vocab_size


def activations(
    config: BertConfig, batch_size: int, length: int, predictions: int, kept: tuple[int, int]
) -> tuple[tuple[int, int], ...]:
    """How many numbers the caches hold for embeddings, each layer, the last layer, and heads: as in BERT.

    ``kept`` says how many arrays the activation function keeps, without and with its output. The output is
    kept by the matrix that follows, after dropout if there is any.
    """
    rows, distances = length + predictions, 2 * length - 1
    hidden, predicted = config.hidden_size, batch_size * predictions
    dropped = config.hidden_dropout_prob > 0
    wide = (kept[0] + 1 if dropped else kept[1]) * config.intermediate_size

    layer = (batch_size * (rows + 2 * length) + distances + 1) * hidden  # q, k and v, distances, e₁ − e₀
    layer += batch_size * rows * (5 * hidden + wide)  # context, two LayerNorms, feed-forward
    layer += (1 + dropped) * batch_size * config.num_attention_heads * rows * length
    shared = distances * hidden + batch_size * rows * length  # the waves, and who is in another segment
    layers = [(layer, 2 * batch_size * rows)] * 2  # the last one is like the others
    return (shared, 0), *layers, (predicted * (hidden + config.vocab_size), predicted)


def working_numbers(config: BertConfig, batch_size: int, length: int, predictions: int) -> int:
    """What the backward pass of a layer holds besides the caches, at its peak: in attention.

    The derivatives of the probabilities and of the scores, those of the distances' scores twice, the places
    that they came from (integers of twice the size, twice), and a few of width H.
    """
    rows, distances = length + predictions, 2 * length - 1
    maps = config.num_attention_heads * rows * (2 * length + 2 * distances)
    return batch_size * (maps + 4 * rows * distances + (4 * rows + 2 * length) * config.hidden_size)

"""The first values of a BERT that does not begin from nothing, but from what counting says about words."""

import numpy as np

from minibert.bert import BertForPreTraining
from minibert.data import Documents, log_frequencies, word_vectors
from minibert.nn import Linear


def start_from_counts(model: BertForPreTraining, documents: Documents, seed: int = 0) -> None:
    """Change a new model so that, before its first step, it guesses a hidden word by the words around it.

    - The word embeddings are `word_vectors` of the documents, at the size that random ones would have. The
      product of two of them is large if the words often occur together.
    - The output's bias is the log of each word's frequency. So the model need not learn frequencies, which
      takes hundreds of steps and pulls all hidden states in the same direction.
    - The matrices of values, of attention's output and of the transform before the decoder are the identity
      plus their random values. So what attention gathers reaches the decoder as it is: a mean of the
      embeddings around the hidden word, whose product with the embedding of a candidate says how well the
      candidate fits.

    The model stays a BERT of the same form; only the point where learning begins is another.

    Related: word2vec's CBOW, which the model resembles at first; Trockman and Kolter 2023, "Mimetic
    Initialization of Self-Attention Layers" (identities in value and output).
    """
    config = model.config
    vectors = word_vectors(documents, config.vocab_size, config.hidden_size, seed=seed)
    words = model.bert.embeddings.word_embeddings.weight
    words.value[...] = model.device.asarray(config.initializer_range * vectors, dtype=model.dtype)
    predictions = model.cls.predictions
    assert predictions is not None  # what begins here predicts words
    frequencies = log_frequencies(documents.token_counts(config.vocab_size))
    predictions.bias.value[...] = model.device.asarray(frequencies, dtype=model.dtype)
    _add_identity(predictions.transform.dense)
    for layer in model.bert.encoder.layer:
        _add_identity(layer.attention.self.value)
        _add_identity(layer.attention.output.dense)
    model.buffers.round_operand()


def _add_identity(linear: Linear) -> None:
    identity = np.eye(linear.weight.shape[0])
    linear.weight.value += linear.device.asarray(identity, dtype=linear.dtype)

"""First values from which a BERT learns sooner than from random numbers: counts, and heads with a place.

Both change only where learning begins; the model stays a BERT of the same form.
"""

import itertools
import math

import numpy as np
from scipy.linalg import block_diag

from minibert.arrays import to_numpy
from minibert.bert import BertForPreTraining
from minibert.bert.encoder import BertLayer
from minibert.bert.models import BertPretrainedModel
from minibert.data import Documents, log_frequencies, word_vectors
from minibert.errors import UserError
from minibert.nn import Linear
from minibert.nn.initialise import sinusoids

OFFSETS = (1, -1, 2, -2)  # how far to the left (right) of its own position a head looks
LONGEST_WAVE = 100.0  # of the slowest wave in the positions, over 2π
# How strongly the head that looks for the same word reads words, and avoids its own place. In pairs of texts,
# with word vectors from counts, 0.92 of its attention then went to the other occurrence, and 0.03 to its own.
SAME_WORD, OWN_PLACE = 3.0, 1.5
SAME_WORD_STREAM = 0x5A3E  # distinguishes this use of a seed from all others


def count_words(model: BertPretrainedModel, documents: Documents, seed: int = 0) -> None:
    """Set the parameters such that a new model guesses a hidden word by the words around it.

    - The word embeddings are `word_vectors` of the documents, at the size that random ones would have. The
      product of two of them is large if the words often occur together.
    - The output's bias is the log of each word's frequency, so that the model need not learn frequencies.
    - The matrices of values, of attention's output and of the transform before the decoder are the identity
      plus their random values. So what attention gathers reaches the decoder as it is: a mean of the
      embeddings around the hidden word, whose product with the embedding of a candidate says how well the
      candidate fits.

    With word vectors of E < H numbers the transform takes the first E back (see `pass_through`).

    Related: word2vec's CBOW, which the model resembles at first; Trockman and Kolter 2023, "Mimetic
    Initialization of Self-Attention Layers" (identities in value and output).
    """
    config = model.config
    vectors = word_vectors(documents, config.vocab_size, config.embedding_size, seed=seed)
    words = model.bert.embeddings.word_embeddings.weight
    words.value[...] = model.device.asarray(config.initializer_range * vectors, dtype=model.dtype)
    if isinstance(model, BertForPreTraining) and model.cls.predictions:
        predictions = model.cls.predictions
        frequencies = log_frequencies(documents.token_counts(config.vocab_size))
        predictions.bias.value[...] = model.device.asarray(frequencies, dtype=model.dtype)
    for linear in _maps_of_words(model):
        rows, *columns = linear.weight.shape
        _add(linear, np.eye(rows, math.prod(columns)).reshape(linear.weight.shape))
    model.buffers.round_operand()


def _maps_of_words(model: BertPretrainedModel) -> list[Linear]:
    """The linear maps on the way of a vector through attention to the decoder."""
    attentions = [layer.attention for layer in _different_layers(model)]
    maps = [linear for attention in attentions for linear in (attention.self.value, attention.output.dense)]
    if isinstance(model, BertForPreTraining) and model.cls.predictions:
        transform = model.cls.predictions.transform
        maps += [linear for _, linear in transform.children() if isinstance(linear, Linear)]  # XLNet has none
    return maps


def _different_layers(model: BertPretrainedModel) -> list[BertLayer]:
    return list(dict.fromkeys(model.bert.encoder.layer))  # ALBERT's are all the same one


def pass_through(model: BertPretrainedModel) -> None:
    """With word vectors of E ≠ H numbers: the map to H becomes the identity plus its random values.

    So numbers of an embedding are where they were, as far as there is room. The other first values need that.
    """
    if project := getattr(model.bert.embeddings, "project", None):
        _add(project, np.eye(*project.weight.shape))
        model.buffers.round_operand()


def look_at_neighbours(*models: BertPretrainedModel, same_word: bool = False, seed: int = 0) -> None:
    """Set the parameters such that half of the heads look at one neighbour each: `OFFSETS`, in turn.

    ``models`` are one, or several that share their embeddings, as ELECTRA's two do. With ``same_word``, the
    last head of the lowest layer begins with `_look_for_the_same_word`, if it is not one of that half.

    Position p becomes a point on n circles, on which it moves with the angular frequencies ω:

        (sin ω p, cos ω p)   for ω = 100^(−2i/E), i = 0, 1, …, n − 1

    A query reads these numbers from the position embedding, and a key reads them turned by the angle ω o. So
    their product is Σ cos ω (p − p′ − o), which is largest for the position p′ = p − o. Random values are
    added to both matrices, as to all others.

    These 2n numbers of a vector, a quarter of it at most, are spread over all heads. There, words and token
    types begin with 0. Otherwise a query would fit the key of the same word best, and the head would look at
    its own position. The other heads begin with random numbers, and have to find what to look at.

    Without this, every head has to find its place among all positions by learning. Its query and its key then
    learn from each other, and both begin as noise.

    Raises UserError for a model without position embeddings.
    """
    configs = [model.config for model in models]
    width = min(min(config.hidden_size, config.embedding_size) for config in configs)
    room = min(config.hidden_size // config.num_attention_heads // 2 for config in configs)  # in a head
    circles = min(room, max(width // 8, 1))
    columns = (np.arange(circles)[:, None] * (width // max(circles, 1)) + [0, 1]).reshape(-1)  # (2n,)
    frequencies = LONGEST_WAVE ** (-2 * np.arange(circles) / width)  # ω (n,)
    for model in models:
        _set_positions(model, columns, width)
        _set_queries_and_keys(model, columns, frequencies)
        if same_word and model.config.num_attention_heads > 1:
            words = np.setdiff1d(np.arange(width), columns)
            _look_for_the_same_word(model, words, columns, np.random.default_rng([SAME_WORD_STREAM, seed]))
        model.buffers.round_operand()


def _set_positions(model: BertPretrainedModel, columns: np.ndarray, width: int) -> None:
    """Waves in these columns (2n,) of the position embeddings, where all other embeddings are 0."""
    config, embeddings = model.config, model.bert.embeddings
    if not hasattr(embeddings, "position_embeddings"):
        raise UserError(
            f"models of type {config.model_type!r} have no table of positions, in which heads could look; "
            "set attention_initializer to normal"
        )
    positions = np.zeros((config.max_position_embeddings, config.embedding_size))
    positions[:, columns] = sinusoids(len(positions), width, LONGEST_WAVE)[:, : len(columns)]
    positions *= config.initializer_range
    embeddings.position_embeddings.weight.value[...] = model.device.asarray(positions, dtype=model.dtype)
    free = np.isin(np.arange(config.embedding_size), columns, invert=True)  # (E,)
    for other in ("word_embeddings", "token_type_embeddings"):
        if table := getattr(embeddings, other, None):
            table.weight.value *= model.device.asarray(free)


def _set_queries_and_keys(model: BertPretrainedModel, columns: np.ndarray, frequencies: np.ndarray) -> None:
    """Half of the heads read these columns (2n,); their keys are turned by ω times an offset, ω (n,)."""
    size, offsets = model.config.hidden_size, itertools.cycle(OFFSETS)
    for layer in _different_layers(model):
        queries, keys = np.zeros((2, size, size))
        heads = np.split(np.arange(size), model.config.num_attention_heads)
        for head in heads[: -(-len(heads) // 2)]:
            rows = head[: len(columns), None]
            queries[rows, columns] = np.eye(len(columns))
            keys[rows, columns] = _turn(next(offsets) * frequencies)
        _add(layer.attention.self.query, queries)
        _add(layer.attention.self.key, keys)


def _look_for_the_same_word(
    model: BertPretrainedModel, words: np.ndarray, places: np.ndarray, rng: np.random.Generator
) -> None:
    """Set the last head of the lowest layer such that a word looks at the same word elsewhere.

    Half of the head reads words, in the same random directions for queries and keys, so that a query fits the
    key of its own word best. They are directions in which token types are 0. The other half reads the waves
    of the position, in the query with a minus: so a key at the query's own place fits least. ``words`` and
    ``places`` (2n,) are the numbers of a vector that hold the one and the other.

    To compare two texts, a model has to see which words both have. Where topics are known from the first
    step on (`count_words`), neither hidden words nor next sentences teach it that.
    """
    config, attention = model.config, _different_layers(model)[0].attention.self
    head = np.split(np.arange(config.hidden_size), config.num_attention_heads)[-1]
    reads_words, reads_places = np.array_split(head, 2)
    types = getattr(model.bert.embeddings, "token_type_embeddings", None)
    ignored = to_numpy(types.weight.value)[:, words].T if types else np.zeros((len(words), 0))
    drawn = rng.standard_normal((len(words), len(reads_words)))
    basis, _ = np.linalg.qr(np.concatenate([ignored, drawn], axis=1))
    directions = basis[:, ignored.shape[1] :]  # (words, D/2)
    reads_words = reads_words[: directions.shape[1]]
    circles = places.reshape(-1, 2)  # from the fastest to the slowest: some of all
    some = circles[:: max(1, len(places) // max(1, len(reads_places)))].reshape(-1)[: len(reads_places)]
    for linear, sign in ((attention.query, -1.0), (attention.key, 1.0)):
        matrix = np.zeros((config.hidden_size, config.hidden_size))
        matrix[np.ix_(reads_words, words)] = SAME_WORD * directions.T
        matrix[reads_places[: len(some)], some] = sign * OWN_PLACE
        _add(linear, matrix)


def repeat_positions(*models: BertPretrainedModel, learned: int) -> None:
    """Let the embeddings of all positions after the first ``learned`` be those of the first, over and over.

    A model that has read only shorter sequences has never learned the others. They are as random as at first,
    and weight decay has made them smaller. Repeated ones are in the same place for the words nearby (Beltagy
    et al. 2020, section 5). A model without position embeddings stays as it is.
    """
    for model in models:
        config = model.config
        if table := getattr(model.bert.embeddings, "position_embeddings", None):
            first = config.max_position_embeddings - config.longest_sequence  # RoBERTa's stand for padding
            rows = table.weight.value[first:]
            rows[...] = model.device.xp.resize(rows[:learned], rows.shape)  # repeats
            model.buffers.round_operand()


def _turn(angles: np.ndarray) -> np.ndarray:
    """The matrix that turns pairs of numbers, (sin a, cos a) into (sin (a + angle), cos (a + angle)).

    angles (n,) → (2n, 2n)
    """
    cosines, sines = np.cos(angles), np.sin(angles)
    return block_diag(*np.array([[cosines, sines], [-sines, cosines]]).transpose(2, 0, 1))


def _add(linear: Linear, matrix: np.ndarray) -> None:
    """Add a matrix to a weight."""
    linear.weight.value += linear.device.asarray(matrix, dtype=linear.dtype)

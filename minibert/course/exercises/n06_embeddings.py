"""06 Embeddings: the look-up, the gradient of its table, and the mean of a word's pieces. y = weight[ids]."""

from dataclasses import replace

import numpy as np

from minibert.arrays import Array
from minibert.course.exercise import Trial, exercise, gradient_trial
from minibert.gradcheck import Draws
from minibert.ops.embedding_lookup import embedding as library_embedding
from minibert.ops.embedding_lookup import embedding_backward as library_backward

# B = 3, S = 4, V = 8: id 5 occurs three times, twice in one sequence; 0 is padding; 1, 4 and the last id, 7,
# do not occur.
IDS = np.array([[5, 2, 5, 0], [3, 6, 0, 0], [2, 5, 3, 0]])


# -- Forward ------------------------------------------------------------------------------------------


@exercise(
    "06",
    outputs="y cached_ids cached_V cached_H",
    trials=lambda draw: [
        Trial({"weight": draw.normal(8, 6), "ids": ids}, f"ids {ids.shape}")
        for ids in (IDS, np.array([4, 1, 4]))
    ],
    reference=library_embedding,
    views=True,
    level=1,
    minutes=5,
    needs="that an array can be indexed with an array of whole numbers",
    hints=(
        "Row 5 of the table is weight[5]. What can you put in the brackets besides a single number?",
        "An array of ids in the brackets gives the rows of all of them, in the shape of the ids, with the H "
        "features as a new last axis.",
        "y = weight[ids]. Return y, (ids, weight.shape). See `embedding` in "
        "minibert/ops/embedding_lookup.py.",
    ),
    hints_for={
        "cached_ids cached_V cached_H": (
            "y is right. What is wrong is the second thing that you return, the cache.",
            "The cache is a tuple of two: the ids as they came in, and the shape of the table, (V, H).",
            "The last line is: return y, (ids, weight.shape).",
        ),
    },
)
def embedding(weight, ids):
    return weight[ids], (ids, weight.shape)


@embedding.mistake("Each row is that of the id before. Ids count from 0: row 0 is the first, weight[0].")
def ids_counted_from_one(weight, ids):
    return weight[ids - 1], (ids, weight.shape)


@embedding.mistake(
    "np.take without an axis takes single numbers from the table as one long list. For whole rows, use "
    "axis=0, or simply square brackets."
)
def numbers_instead_of_rows(weight, ids):
    return np.take(weight, ids), (ids, weight.shape)


@embedding.mistake(
    "y has lost the axes of the ids: it should be (…, H), with as many leading axes as the ids have. Index "
    "with the ids as they are."
)
def axes_of_the_ids_lost(weight, ids):
    return weight[ids.reshape(-1)], (ids, weight.shape)


@embedding.mistake(
    "The rows of id 0 are set to 0. A table does not know which of its tokens is padding: row 0 is looked up "
    "like any other."
)
def padding_is_zero(weight, ids):
    return weight[ids] * (ids != 0)[..., None], (ids, weight.shape)


@embedding.mistake(
    "The ids in the cache have lost their axes. Keep them as they came in: their shape says which row of "
    "dout belongs to which id."
)
def flat_ids_in_the_cache(weight, ids):
    return weight[ids], (ids.reshape(-1), weight.shape)


@embedding.mistake(
    "The cache holds one-hot rows in the place of the ids. They say the same, but with V numbers per token."
)
def one_hot_rows_in_the_cache(weight, ids):
    return weight[ids], (np.eye(len(weight))[ids], weight.shape)


@embedding.mistake(
    "The shape in the cache is that of the rows that were looked up. The backward pass needs the shape of "
    "the table: rows that were not looked up have a gradient, too, which is 0."
)
def shape_of_the_rows_in_the_cache(weight, ids):
    return weight[ids], (ids, (ids.size, weight.shape[1]))


# -- Backward, in steps -------------------------------------------------------------------------------


def look_up_in_copies(copies: Array, ids: Array) -> tuple[Array, tuple]:
    """Every place looks its row up in a table of its own: copies (R, V, H), ids (R,) → y (R, H)."""
    return copies[np.arange(len(ids)), ids], ()


def _trials_in_steps(draw: Draws) -> list[Trial]:
    """The numeric gradients of the copies and of the one table. Id 5 three times; 1, 4, 6 and 7 never."""
    weight, ids = draw.normal(8, 6), np.array([5, 2, 5, 0, 3, 5])
    whole = gradient_trial(lambda weight: library_embedding(weight, ids), {"weight": weight})
    copies = np.repeat(weight[None], len(ids), axis=0)  # (R, V, H)
    half = gradient_trial(lambda copies: look_up_in_copies(copies, ids), {"copies": copies})
    return [replace(whole, independent=half.independent | whole.independent)]


@exercise(
    "06",
    outputs="dcopies dweight",
    trials=_trials_in_steps,
    in_order=True,
    level=1,
    minutes=10,
    needs="from [01](01_gradients.ipynb), that a number that is used several times collects a sum",
    hints=(
        "Copy r is used once, for y[r]. Which of its V rows is used? What is the derivative with respect to "
        "all the others?",
        "Row ids[r] of copy r gets dout[r] as it is; all other rows of copy r get 0. If the table moves, "
        "each copy moves just as much: what does the table get from R copies?",
        "dcopies = zeros((R, V, H)); dcopies[np.arange(R), ids] = dout; dweight = dcopies.sum(axis=0).",
    ),
    hints_for={
        "dweight": (
            "dcopies is right. How does each of the copies move if the table moves?",
            "In the same way: W was used R times, so it collects a sum over the copies.",
            "dweight = dcopies.sum(axis=0), of shape (V, H).",
        ),
    },
)
def backward_in_steps(dout, cache):
    ids, shape = cache  # (R,), (V, H)
    dcopies = np.zeros((len(ids), *shape))  # (R, V, H)
    dcopies[np.arange(len(ids)), ids] = dout
    return dcopies, dcopies.sum(axis=0)


@backward_in_steps.mistake(
    "dcopies[:, ids] selects the rows of all ids in every copy. Each place used one row of its own copy: "
    "dcopies[np.arange(R), ids]."
)
def every_copy_gets_all_places(dout, cache):
    ids, shape = cache
    dcopies = np.zeros((len(ids), *shape))
    dcopies[:, ids] = dout
    return dcopies, dcopies.sum(axis=0)


@backward_in_steps.mistake(
    "Every row of copy r has dout[r]. Only one of them was looked up, ids[r]; y[r] does not depend on the "
    "others, and their derivative is 0."
)
def every_row_of_a_copy(dout, cache):
    ids, shape = cache
    dcopies = np.zeros((len(ids), *shape)) + dout[:, None, :]
    return dcopies, dcopies.sum(axis=0)


@backward_in_steps.mistake("dout[r] is in row r of copy r. It belongs in the row that was looked up, ids[r].")
def placed_by_position(dout, cache):
    ids, shape = cache
    dcopies = np.zeros((len(ids), *shape))
    dcopies[np.arange(len(ids)), np.arange(len(ids))] = dout
    return dcopies, dcopies.sum(axis=0)


@backward_in_steps.mistake(
    "dweight is the mean of the copies. It has to be a sum, as every place used W in full. If a mean is "
    "wanted, the loss has taken it already, and its 1/R is in dout."
)
def mean_of_the_copies(dout, cache):
    dcopies, dweight = backward_in_steps.solution(dout, cache)
    return dcopies, dweight / len(dcopies)


@backward_in_steps.mistake(
    "If an id occurs several times, dweight has only its last gradient: dweight[ids] = dout (and += as well) "
    "keeps only what was written last. Add up the copies."
)
def the_last_place_only(dout, cache):
    ids, shape = cache
    dcopies, _ = backward_in_steps.solution(dout, cache)
    dweight = np.zeros(shape)
    dweight[ids] = dout
    return dcopies, dweight


@backward_in_steps.mistake(
    "dweight has the mean of the gradients of a repeated id. It has to be the sum: all its places count in "
    "full."
)
def mean_over_equal_ids(dout, cache):
    ids, shape = cache
    dcopies, dweight = backward_in_steps.solution(dout, cache)
    return dcopies, dweight / np.maximum(np.bincount(ids, minlength=shape[0]), 1)[:, None]


# -- Backward, as scatter-add -------------------------------------------------------------------------------


@exercise(
    "06",
    outputs="dweight",
    trials=lambda draw: [
        gradient_trial(
            lambda weight, ids=ids: library_embedding(weight, ids),
            {"weight": draw.normal(8, 6)},
            f"dweight, ids {ids.shape}",
        )
        for ids in (IDS, np.array([4, 1, 4]))
    ],
    reference=library_backward,
    level=2,
    minutes=10,
    needs="sections 2 and 3: where the gradients of the places have to go, and how some of them get lost",
    hints=(
        "Which rows of the table have an effect on the loss, and how often was each looked up?",
        "dweight[v] is the sum of dout over all places where id v occurs; rows that were not looked up stay "
        "0. What does dweight[ids] += dout do if an id occurs twice?",
        "np.add.at(dweight, ids, dout) adds once for every place; dweight[ids] += dout only once for every "
        "id. See `embedding_backward` in minibert/ops/embedding_lookup.py.",
    ),
)
def embedding_backward(dout, cache):
    ids, shape = cache  # (B, S), (V, H)
    dweight = np.zeros(shape, dtype=dout.dtype)
    np.add.at(dweight, ids, dout)
    return dweight


@embedding_backward.mistake(
    "An id that occurs several times keeps only one of its gradients. dweight[ids] += dout reads all rows, "
    "adds, and writes all rows: the last one wins, just as in dweight[ids] = dout. np.add.at adds every time."
)
def repeated_ids_count_once(dout, cache):
    ids, shape = cache
    dweight = np.zeros(shape, dtype=dout.dtype)
    dweight[ids] += dout
    return dweight


@embedding_backward.mistake(
    "Rows of repeated ids hold the mean of their gradients. It has to be the sum: every place that looked "
    "the row up contributes to the loss in full."
)
def mean_over_repeated_ids(dout, cache):
    ids, shape = cache
    counts = np.maximum(np.bincount(ids.reshape(-1), minlength=shape[0]), 1)
    return embedding_backward.solution(dout, cache) / counts[:, None]


@embedding_backward.mistake(
    "Only the rows that occur are there, packed together. dweight should have the table's shape, with each "
    "gradient in the row of its id, and 0 where an id does not occur."
)
def only_the_rows_that_occur(dout, cache):
    return embedding_backward.solution(dout, cache)[np.unique(cache[0])]


@embedding_backward.mistake(
    "The row of id 0 has no gradient. That is what PyTorch's padding_idx does. A table by itself does not "
    "know that 0 means padding, and if no loss looks at padding, its gradient is 0 anyway."
)
def padding_left_out(dout, cache):
    dweight = embedding_backward.solution(dout, cache)
    dweight[0] = 0
    return dweight


@embedding_backward.mistake(
    "The gradients are in the rows of their positions, not of their ids. This is how the table of positions "
    "gets its gradient."
)
def added_to_the_positions(dout, cache):
    dweight = np.zeros(cache[1], dtype=dout.dtype)
    length, hidden = dout.shape[-2:]
    dweight[:length] = dout.reshape(-1, length, hidden).sum(axis=0)
    return dweight


@embedding_backward.mistake(
    "The table ends with the largest id that occurred. Its full shape is in the cache: the rows after that "
    "belong to it, too, with a gradient of 0."
)
def cut_off_after_the_largest_id(dout, cache):
    return embedding_backward.solution(dout, cache)[: cache[0].max() + 1].copy()


# -- Open: the mean of a word's pieces ----------------------------------------------------------------------

# Which word each token belongs to, in a batch of two texts with five words; −1 is none.
WORDS = np.array([[-1, 0, 0, 1, 2, -1], [-1, 3, 4, 4, 4, -1]])


def word_means(x: Array, words: Array) -> tuple[Array, tuple]:
    """A vector for each word, the mean of its pieces: x (B, S, H) → y (words, H), (words, counts).

    words (B, S): the number of each token's word, −1 for none; counts (words,): its number of pieces.
    """
    used = words >= 0  # (B, S)
    counts = np.bincount(words[used])  # (words,)
    sums = np.zeros((len(counts), x.shape[-1]))
    np.add.at(sums, words[used], x[used])
    return sums / counts[:, None], (words, counts)


@exercise(
    "06",
    outputs="dx",
    trials=lambda draw: [gradient_trial(lambda x: word_means(x, WORDS), {"x": draw.normal(2, 6, 4)})],
    level=3,
    minutes=20,
    needs="sections 2 to 4 of this notebook",
    hints=(
        "Take one token. In which of the results was it used, and with which factor?",
        "Each token of a word is in one mean, with the factor 1/count of that word. So it looks up its "
        "gradient. And what is looked up for −1?",
        "dx = (dout / counts[:, None])[words], then dx[words < 0] = 0, because NumPy takes −1 for the last "
        "word.",
    ),
)
def word_means_backward(dout, cache):
    words, counts = cache  # (B, S), (words,)
    dx = (dout / counts[:, None])[words]  # (B, S, H)
    dx[words < 0] = 0.0
    return dx


@word_means_backward.mistake(
    "Tokens without a word have the gradient of the last word: NumPy takes the index −1 for the last row. No "
    "result depends on these tokens, so their gradient is 0."
)
def minus_one_is_the_last_word(dout, cache):
    words, counts = cache
    return (dout / counts[:, None])[words]


@word_means_backward.mistake(
    "The gradients are not divided: y is the *mean* of a word's pieces, so each piece enters it with the "
    "factor 1/count."
)
def mean_taken_for_a_sum(dout, cache):
    words, _ = cache
    return dout[words] * (words >= 0)[..., None]


@word_means_backward.mistake(
    "The gradients are multiplied by the number of pieces. A mean divides by it, in the forward and in the "
    "backward pass: the more pieces a word has, the less each of them moves the mean."
)
def multiplied_by_the_count(dout, cache):
    words, counts = cache
    return (dout * counts[:, None])[words] * (words >= 0)[..., None]


@word_means_backward.mistake(
    "Only the first piece of each word has a gradient. All of its pieces are in the mean, with equal shares."
)
def only_the_first_piece(dout, cache):
    words, _ = cache
    before = np.concatenate([np.full((len(words), 1), -1), words[:, :-1]], axis=1)
    return word_means_backward.solution(dout, cache) * (words != before)[..., None]


@word_means_backward.mistake(
    "All gradients are divided by S, the length of the text. Each word is a mean over its own pieces: divide "
    "by its own count."
)
def divided_by_the_length_of_the_text(dout, cache):
    words, _ = cache
    return dout[words] * (words >= 0)[..., None] / words.shape[1]

"""12 Pre-training data: which words are chosen, the 80/10/10 of masking, and a loss with a bug to repair."""

from unittest.mock import Mock

import numpy as np

from minibert.arrays import Array
from minibert.course.exercise import Trial, exercise
from minibert.data import masking
from minibert.gradcheck import Draws
from minibert.ops.cross_entropy_loss import cross_entropy
from minibert.ops.stable_softmax import log_softmax

IGNORED = masking.IGNORED  # −100, the label where nothing is predicted
MASK_ID, FIRST_WORD, VOCABULARY = 4, 5, 30  # ids below 5 are special

# -- Open: whole words --------------------------------------------------------------------------------------


def _instances(draw: Draws) -> list[Trial]:
    """Four instances of 16 subwords; in most of them a word does not fit while a later one does."""
    rng = np.random.default_rng(7)
    trials = []
    for wanted in (3, 5, 2, 4):
        continues = rng.random(16) < 0.55
        continues[0] = False
        order = rng.permutation(int((~continues).sum()))
        trials.append(
            Trial({"continues": continues, "order": order, "wanted": wanted}, f"{wanted} of {len(continues)}")
        )
    return trials


def _library_choose_words(continues, order, wanted):
    keys = np.ones((1, len(continues)), dtype=np.float32)
    keys[0, order] = np.arange(len(order)) / len(continues)  # the library takes words by rising keys
    rng = Mock(np.random.Generator)
    rng.random.return_value = keys
    everywhere, lengths = np.ones((1, len(continues)), dtype=bool), np.array([len(continues)])
    return masking.choose_positions(everywhere, lengths, ~continues[None], 1.0, wanted, rng)[0]


@exercise(
    "12",
    outputs="chosen",
    trials=_instances,
    reference=_library_choose_words,
    level=3,
    minutes=20,
    needs="section 4",
    hints=(
        "Which word does each position belong to? And what becomes of a word that is too long for what is "
        "left?",
        "np.cumsum(~continues) − 1 numbers the words. Go through `order` and count the positions so far.",
        "For each word of `order`: its positions are word == number. If there are no more than wanted minus "
        "those that are chosen already, choose them all; if there are more, go on to the next word.",
    ),
)
def choose_words(continues, order, wanted):
    word = np.cumsum(~continues) - 1
    chosen = np.zeros(len(continues), dtype=bool)
    for number in order:
        pieces = word == number
        if chosen.sum() + pieces.sum() <= wanted:
            chosen |= pieces
    return chosen


def _words(continues):
    return np.cumsum(~continues) - 1


@choose_words.mistake(
    "You stop at the first word that is too long. It is skipped; a shorter one may follow that still fits."
)
def stops_at_the_first_that_does_not_fit(continues, order, wanted):
    chosen = np.zeros(len(continues), dtype=bool)
    for number in order:
        pieces = _words(continues) == number
        if chosen.sum() + pieces.sum() > wanted:
            break
        chosen |= pieces
    return chosen


@choose_words.mistake(
    "The last word goes beyond `wanted`. Check that it fits before you take it: there is no room for more "
    "predictions."
)
def last_word_too_much(continues, order, wanted):
    chosen = np.zeros(len(continues), dtype=bool)
    for number in order:
        if chosen.sum() >= wanted:
            break
        chosen |= _words(continues) == number
    return chosen


@choose_words.mistake(
    "A word is cut where `wanted` is reached, and the rest of it stays visible. Then its end is guessed from "
    "its beginning, which is what whole-word masking should prevent. Skip the word."
)
def last_word_cut(continues, order, wanted):
    places = np.concatenate([np.flatnonzero(_words(continues) == number) for number in order])
    chosen = np.zeros(len(continues), dtype=bool)
    chosen[places[:wanted]] = True
    return chosen


@choose_words.mistake(
    "`order` holds the numbers of words; you take them for positions. np.cumsum(~continues) − 1 says which "
    "word a position belongs to."
)
def words_taken_for_positions(continues, order, wanted):
    chosen = np.zeros(len(continues), dtype=bool)
    chosen[order[:wanted]] = True
    return chosen


@choose_words.mistake(
    "You count words, but `wanted` counts positions: a word of three pieces takes three of them."
)
def words_counted(continues, order, wanted):
    return np.isin(_words(continues), order[:wanted])


@choose_words.mistake(
    "Only the first piece of each word is chosen. The pieces that continue it are chosen together with it."
)
def first_pieces_only(continues, order, wanted):
    return choose_words.solution(continues, order, wanted) & ~continues


@choose_words.mistake(
    "You take the words as they stand in the text. Then the beginning of a text is always asked for and its "
    "end never; `order` has the random order."
)
def in_the_order_of_the_text(continues, order, wanted):
    return choose_words.solution(continues, np.sort(order), wanted)


@choose_words.mistake(
    "You read `order[i]` as the place of word i in the order. It is the other way round: order[0] is the "
    "word that comes first."
)
def order_taken_for_ranks(continues, order, wanted):
    return choose_words.solution(continues, np.argsort(order), wanted)


# -- Masking ----------------------------------------------------------------------------------------


def _batch(draw: Draws) -> list[Trial]:
    """B = 4 sequences of S = 12. More than 15 % are chosen, so that each fate befalls some."""
    rng = np.random.default_rng(2)
    shape = (4, 12)
    arguments = {
        "input_ids": rng.integers(FIRST_WORD, VOCABULARY, shape),
        "chosen": rng.random(shape) < 0.6,
        "fate": rng.random(shape),
        "anything": rng.integers(VOCABULARY, size=shape),
        "mask_id": MASK_ID,
    }
    return [Trial(arguments)]


def _library_mask_tokens(input_ids, chosen, fate, anything, mask_id):
    rng = Mock(np.random.Generator)
    rng.random.return_value, rng.integers.return_value = fate[chosen], anything[chosen]
    return masking.mask_tokens(input_ids, chosen, mask_id, VOCABULARY, rng)


@exercise(
    "12",
    outputs="masked labels",
    trials=_batch,
    reference=_library_mask_tokens,
    level=1,
    minutes=8,
    needs="section 5, and `np.where`",
    hints=(
        "There are two arrays: what the model sees, and what it has to say. Tokens that were not chosen stay "
        "as they are in the first and do not count in the second.",
        "The labels are the tokens as they were, at all chosen places, even where the token was left as it "
        "is; elsewhere −100. For the input, `fate` cuts the chosen places at 0.8 and at 0.9.",
        "new = np.where(fate < 0.8, mask_id, np.where(fate < 0.9, input_ids, anything)); masked = "
        "np.where(chosen, new, input_ids); labels = np.where(chosen, input_ids, −100). See "
        "minibert/data/masking.py.",
    ),
    hints_for={
        "labels": (
            "The model's input is right. What does it have to say, and where?",
            "At every chosen place it has to say the token that was there, even where it was left as it is.",
            "labels = np.where(chosen, input_ids, −100).",
        ),
        "masked": (
            "The labels are right. Which of the three fates does a chosen token have?",
            "Where fate is below 0.8 it becomes [MASK], below 0.9 it stays, and from 0.9 it is `anything`.",
            "new = np.where(fate < 0.8, mask_id, np.where(fate < 0.9, input_ids, anything)); masked = "
            "np.where(chosen, new, input_ids).",
        ),
    },
)
def mask_tokens(input_ids, chosen, fate, anything, mask_id):
    new = np.where(fate < 0.8, mask_id, np.where(fate < 0.9, input_ids, anything))
    masked = np.where(chosen, new, input_ids)
    return masked, np.where(chosen, input_ids, IGNORED)


@mask_tokens.mistake(
    "Every chosen token becomes [MASK]. In fine-tuning there is no [MASK]. So a tenth is left as it is and a "
    "tenth is replaced at random, so that the model has to make something of every token."
)
def always_masked(input_ids, chosen, fate, anything, mask_id):
    _, labels = mask_tokens.solution(input_ids, chosen, fate, anything, mask_id)
    return np.where(chosen, mask_id, input_ids), labels


@mask_tokens.mistake(
    "80 % of all tokens are masked. The 80/10/10 divides the chosen ones, 15 % of all; the others are not "
    "touched."
)
def shares_of_all_tokens(input_ids, chosen, fate, anything, mask_id):
    _, labels = mask_tokens.solution(input_ids, chosen, fate, anything, mask_id)
    return mask_tokens.solution(input_ids, np.ones_like(chosen), fate, anything, mask_id)[0], labels


@mask_tokens.mistake(
    "The two tenths are in the other order. It makes no difference to the model, but here `fate` means: "
    "below 0.8 [MASK], below 0.9 as it is, else at random."
)
def the_tenths_swapped(input_ids, chosen, fate, anything, mask_id):
    _, labels = mask_tokens.solution(input_ids, chosen, fate, anything, mask_id)
    new = np.where(fate < 0.8, mask_id, np.where(fate < 0.9, anything, input_ids))
    return np.where(chosen, new, input_ids), labels


@mask_tokens.mistake(
    "Every position has a label. Only the chosen ones are predicted; the others get −100. (A model that is "
    "asked for the words it sees learns to copy.)"
)
def labels_everywhere(input_ids, chosen, fate, anything, mask_id):
    masked, _ = mask_tokens.solution(input_ids, chosen, fate, anything, mask_id)
    return masked, input_ids.copy()


@mask_tokens.mistake(
    "The labels were taken after masking: they say [MASK]. Take them from the tokens as they were."
)
def labels_of_the_masked_text(input_ids, chosen, fate, anything, mask_id):
    masked, _ = mask_tokens.solution(input_ids, chosen, fate, anything, mask_id)
    return masked, np.where(chosen, masked, IGNORED)


@mask_tokens.mistake(
    "Positions that are not predicted have the label 0 here. 0 is a token of the vocabulary ([PAD]): the "
    "loss would count it. The marker for “does not count” is −100, which is no token."
)
def ignored_by_zero(input_ids, chosen, fate, anything, mask_id):
    masked, _ = mask_tokens.solution(input_ids, chosen, fate, anything, mask_id)
    return masked, np.where(chosen, input_ids, 0)


@mask_tokens.mistake(
    "Chosen tokens that were left as they are have no label. They are predicted like the others: the model "
    "must not know whether a word that it sees is the right one."
)
def kept_tokens_not_predicted(input_ids, chosen, fate, anything, mask_id):
    masked, _ = mask_tokens.solution(input_ids, chosen, fate, anything, mask_id)
    return masked, np.where(chosen & ~((fate >= 0.8) & (fate < 0.9)), input_ids, IGNORED)


@mask_tokens.mistake(
    "Only what became [MASK] has a label. Chosen tokens that were kept or replaced at random are predicted, "
    "too: otherwise the model never has to doubt a word that it sees."
)
def only_masks_predicted(input_ids, chosen, fate, anything, mask_id):
    masked, _ = mask_tokens.solution(input_ids, chosen, fate, anything, mask_id)
    return masked, np.where(chosen & (fate < 0.8), input_ids, IGNORED)


@mask_tokens.mistake(
    "No chosen token is replaced at random: all that is not [MASK] is left as it is. Then every visible word "
    "is right, and the model learns to copy. From 0.9 on take `anything`."
)
def nothing_at_random(input_ids, chosen, fate, anything, mask_id):
    _, labels = mask_tokens.solution(input_ids, chosen, fate, anything, mask_id)
    return np.where(chosen & (fate < 0.8), mask_id, input_ids), labels


@mask_tokens.mistake(
    "No chosen token is left as it is: all that is not [MASK] is random. `fate` runs on from 0.8: below 0.9, "
    "not below 0.1, means “as it is”."
)
def nothing_kept(input_ids, chosen, fate, anything, mask_id):
    _, labels = mask_tokens.solution(input_ids, chosen, fate, anything, mask_id)
    return np.where(chosen, np.where(fate < 0.8, mask_id, anything), input_ids), labels


# -- Find the bug -----------------------------------------------------------------------------------


def _losses(draw: Draws) -> list[Trial]:
    """B = 3, S = 4, V = 7. The sequences have 1, 2 and 3 labels; one of them is 0."""
    labels = np.full((3, 4), IGNORED)
    labels[0, 1], labels[1, [0, 3]], labels[2, 1:] = 5, (0, 2), (6, 3, 3)
    return [Trial({"logits": draw.normal(3, 4, 7), "labels": labels})]


def _library_loss(logits, labels):
    rows, flat = logits.reshape(-1, logits.shape[-1]), labels.reshape(-1)
    weights = (flat != IGNORED).astype(logits.dtype)
    return cross_entropy(rows, np.where(flat == IGNORED, 0, flat), weights, weights.sum())[0]


@exercise(
    "12",
    outputs="loss",
    trials=_losses,
    reference=_library_loss,
    level=2,
    minutes=10,
    needs="section 8, and the cross-entropy of [03](03_softmax_cross_entropy.ipynb)",
    hints=(
        "Change a label from −100 to something else; then change a prediction at a place that is ignored. "
        "Which of the two moves the loss, and which should?",
        "The loss of every position has to be multiplied by the mask before anything is summed: a mean that "
        "has been taken cannot be taken apart.",
        "(nll · mask).sum() / mask.sum(), with nll (B, S) the −log p of each label and mask = labels != "
        "−100.",
    ),
)
def masked_loss(logits, labels):
    mask = labels != IGNORED
    return (_nll(logits, labels) * mask).sum() / mask.sum()


def _nll(logits: Array, labels: Array) -> Array:
    """−log p of every label (B, S); at ignored positions that of class 0."""
    log_p, _ = log_softmax(logits)
    return -np.take_along_axis(log_p, np.where(labels == IGNORED, 0, labels)[..., None], axis=-1)[..., 0]


@masked_loss.mistake(
    "This is the bug, still there: the mean over all positions is taken first, and a single number times "
    "the mask, divided by its sum, is that number again. The mask does nothing."
)
def mean_times_mask(logits, labels):
    mask = labels != IGNORED
    return (_nll(logits, labels).mean() * mask).sum() / mask.sum()


@masked_loss.mistake(
    "The sum is right, the divisor is not: ignored positions do not count there either. As it is, the loss "
    "falls when more is padded."
)
def divided_by_all_positions(logits, labels):
    return (_nll(logits, labels) * (labels != IGNORED)).sum() / labels.size


@masked_loss.mistake(
    "This is the sum over the predicted positions; the loss is their mean. A sum grows with the batch, and "
    "with it the gradient."
)
def sum_for_mean(logits, labels):
    return (_nll(logits, labels) * (labels != IGNORED)).sum()


@masked_loss.mistake(
    "This is the mean of each sequence's mean: a word of a sequence with few predictions counts for more. "
    "Sum over all, then divide once."
)
def mean_of_means(logits, labels):
    mask = labels != IGNORED
    return ((_nll(logits, labels) * mask).sum(axis=1) / mask.sum(axis=1)).mean()


@masked_loss.mistake(
    "Label 0 is ignored, too. 0 is a class like any other; what is ignored has the label −100. (With one "
    "such loss for both heads, NSP never learns its class 0.)"
)
def label_zero_ignored(logits, labels):
    mask = labels > 0
    return (_nll(logits, labels) * mask).sum() / mask.sum()


@masked_loss.mistake("The sign is wrong: log p is negative, and the loss is −log p.")
def minus_forgotten(logits, labels):
    mask = labels != IGNORED
    return -(_nll(logits, labels) * mask).sum() / mask.sum()


@masked_loss.mistake(
    "The sum is divided by the number of sequences. Divide by the number of predicted positions, or the loss "
    "grows with the length of the text."
)
def divided_by_the_sequences(logits, labels):
    return (_nll(logits, labels) * (labels != IGNORED)).sum() / len(labels)

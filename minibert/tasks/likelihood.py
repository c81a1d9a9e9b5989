"""What pre-trained heads know without fine-tuning: how likely a sentence is, and what may follow it."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from tqdm import tqdm

from minibert import ops
from minibert.arrays import Array, map_arrays, to_numpy
from minibert.bert import BertForPreTraining, BertModel
from minibert.bert.heads import BertLMPredictionHead
from minibert.data.tasks import Feature, MinimalPair, collate, ordered_batches
from minibert.errors import UserError
from minibert.folders.config import check_choice
from minibert.nn import Context
from minibert.nn.places import Places
from minibert.ops.stable_softmax import log_sum_exp
from minibert.tasks.masked_words import masked_word_head
from minibert.tasks.metrics import minimal_pair_accuracy
from minibert.tasks.shared import check_numbers, check_texts
from minibert.text import PretrainedTokenizer
from minibert.variants.permutations import hidden_tokens
from minibert.variants.xlnet import XLNetLMHeadModel

# -- Masked words ------------------------------------------------------------------------------------

# How the other pieces of a word are treated while one piece is scored. The first is the default.
SCORINGS = ("within_word_l2r", "original")


def pseudo_log_likelihoods(
    model: BertForPreTraining,
    tokenizer: PretrainedTokenizer,
    sentences: Sequence[str],
    *,
    scoring: str = SCORINGS[0],
    batch_size: int = 128,
    progress: bool = False,
) -> np.ndarray:
    """How likely a model that predicts masked words finds each of N sentences: (N,) float64, in nats.

        PLL(s) = Σₜ log p(sₜ | s with [MASK] in place of token t, and of …)

    over all tokens but [CLS] and [SEP]; 0 for a sentence without tokens. (XLNet has no need of [MASK]: its
    query of a place knows all tokens but the hidden ones.) ``scoring`` says what else is hidden
    while token t is scored. With "original" (Salazar et al. 2020) it is nothing. Then the end of a long word
    gives its beginning away ("souven" before "##ir"), and words of many pieces seem too likely. So with
    "within_word_l2r" (Kauf and Ivanova 2023) the later pieces of the same word are hidden, too: a word is
    scored piece by piece from left to right.

    The model reads a copy of the sentence for each token, ``batch_size`` copies at a time, those of the
    longest sentences first. It is put into evaluation mode. ``progress`` shows a bar on a terminal.

    Sources: Salazar et al. 2020, "Masked Language Model Scoring"; Kauf and Ivanova 2023, "A Better Way to Do
    Masked Language Model Scoring".
    Raises UserError for an unknown scoring, if the model has no such head or reads from left to right, if its
    scores are NaN, if a sentence is longer than its positions, or if the vocabulary has more tokens than the
    model.
    """
    check_choice("scoring", scoring, SCORINGS)
    tokenizer.check_size(model.config.vocab_size)
    if batch_size < 1:
        raise UserError(f"batch size must be at least 1, got {batch_size}")
    head = masked_word_head(model)
    model.eval()
    tokens, first = tokenizer.token_ids_batch(sentences), tokenizer.special_counts(1)[0]
    # Equal sentences are read once: in batches with other padding, rounding would make one of them better.
    rows_of = {ids: row for row, ids in enumerate(dict.fromkeys(map(tuple, tokens)))}
    features = [Feature(_with_words(tokenizer, list(ids)), row) for ids, row in rows_of.items()]
    sentence, position = _copies(np.array([len(ids) for ids in rows_of], int), first)
    sums = np.zeros(len(features))
    with tqdm(total=len(sentence), desc="masked words", unit="", disable=None if progress else True) as bar:
        for start in range(0, len(sentence), batch_size):
            rows = slice(start, start + batch_size)
            batch = collate([features[index] for index in sentence[rows]], tokenizer.pad_id)
            hidden = _hidden(batch.pop("words"), position[rows], scoring)
            log_p = _masked_log_probabilities(model, head, batch, position[rows], hidden, tokenizer.mask_id)
            np.add.at(sums, sentence[rows], log_p)
            bar.update(len(log_p))
    check_numbers(sums)
    return sums[[rows_of[tuple(ids)] for ids in tokens]]


def _copies(tokens: np.ndarray, first: int) -> tuple[np.ndarray, np.ndarray]:
    """Which sentence each masked copy is of, and the position of its mask; the longest sentence comes first.

    tokens (N,): how many each sentence has, special ones apart; ``first`` is the position of the first one
    → two arrays (Σ tokens,).
    """
    order = np.argsort(-tokens, kind="stable")
    counts = tokens[order]
    first_copy = np.repeat(np.cumsum(counts) - counts, counts)
    return np.repeat(order, counts), first + np.arange(len(first_copy)) - first_copy


def _with_words(tokenizer: PretrainedTokenizer, ids: list[int]) -> dict[str, np.ndarray]:
    """A sentence in its special tokens, and the number of the word that each token belongs to.

    Special tokens before the sentence, like padding, have 0; those after it are a word of their own.
    """
    row, types = tokenizer.with_special_tokens(ids)
    words, (before, after) = tokenizer.word_numbers(ids), tokenizer.special_counts(1)
    numbers = [0] * before, words, [words.max(initial=0) + 1] * after
    return {
        "input_ids": np.array(row, np.int32),
        "token_type_ids": np.array(types, np.int32),
        "words": np.concatenate(numbers).astype(np.int32),
    }


def _hidden(words: np.ndarray, positions: np.ndarray, scoring: str) -> np.ndarray:
    """Which tokens of each row are hidden while the one at its position is scored: (B, S), (B,) → (B, S)."""
    columns, position = np.arange(words.shape[1]), positions[:, None]
    if scoring == "original":
        return columns == position
    return (words == np.take_along_axis(words, position, axis=1)) & (columns >= position)


def _masked_log_probabilities(
    model: BertForPreTraining,
    head: BertLMPredictionHead,
    batch: dict[str, Any],
    positions: np.ndarray,
    hidden: np.ndarray,
    mask_id: int,
) -> np.ndarray:
    """log p of the token at one position of each row, given those not hidden: (B, S), (B,), (B, S) → (B,)."""
    input_ids, each = batch["input_ids"], np.arange(len(positions))
    hidden_words = input_ids[each, positions]
    asarray = model.device.asarray
    if isinstance(model, XLNetLMHeadModel):
        batch = batch | hidden_tokens(hidden, positions[:, None])
        outputs, _ = model.forward(**batch, context=Context(backward=False))
        logits = outputs.prediction_logits[:, 0]  # (B, V)
    else:
        input_ids[hidden] = mask_id
        states = _states_at(model.bert, batch, asarray(each * input_ids.shape[1] + positions))  # b·S + s
        logits, _ = head.forward(states[:, None], asarray(each))  # (B, V)
    return to_numpy(logits[asarray(each), asarray(hidden_words)] - log_sum_exp(logits, axis=-1))


def _states_at(bert: BertModel, batch: dict[str, Any], rows: Array) -> Array:
    """The last hidden states of some tokens, N flat positions b·S + s → (N, H).

    The last layer is computed there only. With `mini`, sentences are then scored 1.15 times as fast (median
    of seven turns; two cores of a Xeon).
    """
    inputs = map_arrays(bert.device.asarray, bert.prepare(**batch))
    places = Places(inputs.attention_mask.shape, rows)
    outputs, _ = bert.forward(inputs, context=Context(padding=True, backward=False).only_at(places))
    return places.leave_out(outputs.last_hidden_state)


def blimp_scores(
    model: BertForPreTraining,
    tokenizer: PretrainedTokenizer,
    pairs: Sequence[MinimalPair],
    **options: Any,
) -> dict[str, float]:
    """The share of minimal pairs whose good sentence has the larger pseudo-log-likelihood.

    For all pairs ("overall") and for those of each phenomenon. ``options`` are those of
    `pseudo_log_likelihoods`. Source: Warstadt et al. 2020, whose measure this is.
    """
    sentences = [pair.good for pair in pairs] + [pair.bad for pair in pairs]
    scores = pseudo_log_likelihoods(model, tokenizer, sentences, **options)
    good, bad = np.split(scores, 2)
    return minimal_pair_accuracy(good, bad, [pair.phenomenon for pair in pairs])


# -- The next sentence -------------------------------------------------------------------------------


def next_sentence_probability(
    model: BertForPreTraining, tokenizer: PretrainedTokenizer, first: str, second: str
) -> float:
    """How probable it is that the second text follows the first; see `next_sentence_probabilities`."""
    return float(next_sentence_probabilities(model, tokenizer, [first], [second])[0])


def next_sentence_probabilities(
    model: BertForPreTraining,
    tokenizer: PretrainedTokenizer,
    first: Sequence[str],
    second: Sequence[str],
    *,
    batch_size: int = 32,
) -> np.ndarray:
    """How probable it is that each second text follows its first: (N,), from the next-sentence head.

    If a pair is too long for the model, its longer text is cut at the end. The model is put into evaluation
    mode. Raises UserError if the model has no such head, if its scores are NaN, if these are not equally many
    texts, or if the vocabulary has more tokens than the model.
    """
    if model.cls.seq_relationship is None:
        raise UserError(
            f"{type(model).__name__} has no head for the next sentence; use BertForNextSentencePrediction"
        )
    for texts in (first, second):
        check_texts(texts)
    tokenizer.check_size(model.config.vocab_size)
    model.eval()
    longest = model.config.longest_sequence
    encoded = tokenizer(first, second, max_length=longest, truncation=True)
    features = [
        Feature({"input_ids": np.array(ids), "token_type_ids": np.array(types)}, index)
        for index, (ids, types) in enumerate(
            zip(encoded["input_ids"], encoded["token_type_ids"], strict=True)
        )
    ]
    probabilities = np.zeros(len(features))
    for rows, batch in ordered_batches(features, batch_size, tokenizer.pad_id):
        outputs, _ = model.forward(**batch, return_logits=False, context=Context(backward=False))
        probabilities[rows] = to_numpy(ops.softmax(outputs.seq_relationship_logits)[0])[:, 0]
    check_numbers(probabilities)
    return probabilities

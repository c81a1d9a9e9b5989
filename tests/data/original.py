"""How the original makes pre-training instances, one token at a time: what the fast code is compared with.

Plain lists and Python's own random numbers, after the description of google-research/bert
(create_pretraining_data.py); it shares nothing with minibert.data but the layout of a batch.
"""

import itertools
from collections.abc import Iterator
from random import Random

import numpy as np

PAD, _, CLS, SEP, MASK = range(5)

Document = list[list[int]]  # sentences of token ids
Pair = tuple[list[int], list[int], bool]  # A, B, and whether B is random


def pairs(documents: list[Document], index: int, room: int, short_seq_prob: float, rng: Random) -> list[Pair]:
    """The sentence pairs of one document in one pass, each of at most ``room`` tokens."""
    target = rng.randint(2, room) if rng.random() < short_seq_prob else room
    made = []
    left = documents[index]
    while left:
        size = 1
        while size < len(left) and sum(map(len, left[:size])) < target:
            size += 1
        chunk = left[:size]
        a_size = rng.randint(1, size - 1) if size > 1 else 1
        a = flat(chunk[:a_size])
        is_random = size == 1 or rng.random() < 0.5
        if is_random:
            b = random_segment(documents, index, target - len(a), rng)
            left = left[a_size:]
        else:
            b = flat(chunk[a_size:])
            left = left[size:]
        while len(a) + len(b) > room:
            longer = a if len(a) > len(b) else b
            longer.pop(0 if rng.random() < 0.5 else -1)
        made.append((a, b, is_random))
    return made


def random_segment(documents: list[Document], index: int, target: int, rng: Random) -> list[int]:
    """Sentences from somewhere in another document, until there are ``target`` tokens."""
    for _ in range(10):
        other = rng.randint(0, len(documents) - 1)
        if other != index:
            break
    segment: list[int] = []
    for sentence in documents[other][rng.randint(0, len(documents[other]) - 1) :]:
        segment += sentence
        if len(segment) >= target:
            break
    return segment


def flat(sentences: Document) -> list[int]:
    return list(itertools.chain.from_iterable(sentences))


def masked(
    row: list[int], continues_word: list[bool] | None, vocab_size: int, rng: Random
) -> tuple[list[int], dict[int, int]]:
    """A row with tokens replaced, and the tokens that stood at the predicted positions.

    ``continues_word`` (by id) asks for whole words. The original joins a "##" piece at the head of B to
    the last word of A; here, as in minibert, a word does not reach across a [SEP].
    """
    words: list[list[int]] = []
    for position, token in enumerate(row):
        if token in (CLS, SEP):
            continue
        if continues_word and continues_word[token] and words and words[-1][-1] == position - 1:
            words[-1].append(position)
        else:
            words.append([position])
    rng.shuffle(words)
    wanted = min(20, max(1, round(0.15 * len(row))))
    row, labels = list(row), {}
    for word in words:
        if len(labels) + len(word) > wanted:
            continue
        for position in word:
            labels[position] = row[position]
            if rng.random() < 0.8:
                row[position] = MASK
            elif rng.random() < 0.5:
                row[position] = rng.randint(0, vocab_size - 1)
        if len(labels) == wanted:
            break
    return row, labels


def batches(
    documents: list[Document],
    seq_length: int,
    batch_size: int,
    vocab_size: int,
    continues_word: list[bool] | None = None,
    seed: int = 0,
) -> Iterator[dict[str, np.ndarray]]:
    """Batches without end, in the layout of ``minibert.data.BatchStream``."""
    rng = Random(seed)

    def instances() -> Iterator[Pair]:
        while True:
            of_pass = [
                pair
                for index in range(len(documents))
                for pair in pairs(documents, index, seq_length - 3, 0.1, rng)
            ]
            rng.shuffle(of_pass)
            yield from of_pass

    stream = instances()
    while True:
        shape = (batch_size, seq_length)
        batch = {
            name: np.zeros(shape, np.int32) for name in ("input_ids", "token_type_ids", "attention_mask")
        }
        batch["labels"] = np.full(shape, -100, np.int32)
        batch["next_sentence_label"] = np.zeros(batch_size, np.int32)
        for i, (a, b, is_random) in enumerate(itertools.islice(stream, batch_size)):
            row, labels = masked([CLS, *a, SEP, *b, SEP], continues_word, vocab_size, rng)
            batch["input_ids"][i, : len(row)] = row
            batch["token_type_ids"][i, len(a) + 2 : len(row)] = 1
            batch["attention_mask"][i, : len(row)] = 1
            batch["labels"][i, list(labels)] = list(labels.values())
            batch["next_sentence_label"][i] = is_random
        yield batch

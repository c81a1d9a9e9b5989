"""Batches: instances written out as padded arrays, in an endless stream whose position can be saved."""

from collections.abc import Iterator
from typing import Protocol

import numpy as np

from minibert.data.instances import InstanceSettings, make_instances
from minibert.data.masking import choose_positions, mask_tokens, next_tokens
from minibert.data.permutations import factorisation_orders, last_of_an_order
from minibert.data.prepared import Documents
from minibert.data.randomness import generator, scalar_generator
from minibert.errors import UserError

# Instances are chosen in this many tokens of shuffled documents at a time, then shuffled among themselves:
# about 130,000 of 128 tokens, 5 MB, a second or two. In a smaller block, a few novels would be most of what a
# model reads for hundreds of steps.
BLOCK_TOKENS = 1 << 24
# Rows are then written for this many tokens at a time: 16 MB.
PART_TOKENS = 1 << 20

Batch = dict[str, np.ndarray]


class Vocabulary(Protocol):
    """What a tokenizer must offer here."""

    pad_id: int
    cls_id: int
    sep_id: int
    mask_id: int
    continues_word: np.ndarray  # (V,) bool: the token starts with "##"

    @property
    def vocab_size(self) -> int:
        """How many tokens there are."""


class BatchStream:
    """An endless stream of batches, the same for the same arguments.

    ``next(stream)`` gives host arrays, all of B = ``batch_size`` rows: input_ids, token_type_ids,
    attention_mask and labels (−100 where nothing is predicted), each (B, S) int32; for permuted text,
    perm_mask, target_mapping and labels of P targets, as `Orders` says; and, with next-sentence
    prediction, next_sentence_label (B,) int32: 0 if segment B follows A, else 1.

    Each pass over the documents shuffles them and goes through them in blocks of about 16 million tokens,
    whose instances are shuffled in turn, so that memory stays bounded. A block is a pure function of (seed,
    pass, block); with "fixed" masking, of the pass modulo ``dupe_factor``.

    Raises UserError if there are too few documents, or for a batch size below 1.
    """

    def __init__(
        self,
        documents: Documents,
        tokenizer: Vocabulary,
        settings: InstanceSettings,
        batch_size: int,
        seed: int = 0,
    ):
        _check_documents(documents, settings, "train on")
        _check_batch_size(batch_size)
        self.documents, self.tokenizer, self.settings = documents, tokenizer, settings
        self.batch_size, self.seed = batch_size, seed
        self._rows: Batch = {}
        self.restore({"pass": 0, "block": 0, "row": 0})

    def state(self) -> dict[str, int]:
        """The position of the stream, as JSON: the pass, the block in it, and the row in that."""
        return {"pass": self._pass, "block": self._block, "row": self._row}

    def restore(self, state: dict[str, int]) -> None:
        """Go to the position of a stream with the same arguments; the batches from there are bit-identical.

        Raises UserError if the documents have no such position.
        """
        self._pass, self._block, self._row = state["pass"], state["block"], state["row"]
        self._plan = self._plan_pass()
        if self._block < len(self._plan):
            self._instances = self._choose_instances()
        if self._block >= len(self._plan) or self._row > len(self._instances):
            raise UserError(f"the saved position {state} lies beyond these documents: the corpus has changed")
        self._write_part()

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        pieces, missing = [], self.batch_size
        while missing:
            start = self._row - self._first_row
            piece = {name: rows[start : start + missing] for name, rows in self._rows.items()}
            taken = len(piece["input_ids"])
            if taken:
                pieces.append(piece)
                self._row += taken
                missing -= taken
            else:
                if self._row == len(self._instances):
                    self._next_block()
                self._write_part()
        return {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}

    def skip(self) -> None:
        """Go on to the batch after the next, as if that had been taken."""
        self._row += self.batch_size
        while self._row > len(self._instances):
            beyond = self._row - len(self._instances)
            self._next_block()
            self._row, self._first_row = beyond, 0
            self._rows = {name: rows[:0] for name, rows in self._rows.items()}  # all written

    def _next_block(self) -> None:
        self._block, self._row = self._block + 1, 0
        if self._block == len(self._plan):
            self._pass, self._block = self._pass + 1, 0
            self._plan = self._plan_pass()
        self._instances = self._choose_instances()

    @property
    def _pass_key(self) -> int:
        return self._pass % self.settings.dupe_factor if self.settings.masking == "fixed" else self._pass

    def _plan_pass(self) -> list[np.ndarray]:
        return _plan_pass(self.documents, generator("documents", self.seed, self._pass_key))

    def _choose_instances(self) -> np.ndarray:
        key = (self.seed, self._pass_key, self._block)
        return _choose_instances(self.documents, self._plan[self._block], self.settings, "training", key)

    def _write_part(self) -> None:
        """Write out the part of the block with the next row."""
        rows = _rows_of_part(self.settings)
        self._first_row = self._row - self._row % rows
        part = self._instances[self._first_row : self._first_row + rows]
        key = (self.seed, self._pass_key, self._block * BLOCK_TOKENS + self._first_row)
        self._rows = _write_rows(part, self.documents, self.tokenizer, self.settings, "training", key)


def held_out_batches(
    documents: Documents,
    tokenizer: Vocabulary,
    settings: InstanceSettings,
    batch_size: int,
    seed: int = 0,
) -> Iterator[Batch]:
    """Batches of instances from one pass over the documents, always the same ones.

    They are like those of ``BatchStream``, except that the last one of each part may be smaller.
    Raises UserError if there are too few documents, or for a batch size below 1.
    """
    _check_batch_size(batch_size)
    _check_documents(documents, settings, "evaluate on")
    plan = _plan_pass(documents, generator("held-out documents", seed))
    size = _rows_of_part(settings)
    for block, chosen in enumerate(plan):
        instances = _choose_instances(documents, chosen, settings, "held-out", (seed, block))
        for first in range(0, len(instances), size):
            key = (seed, block * BLOCK_TOKENS + first)
            part = instances[first : first + size]
            rows = _write_rows(part, documents, tokenizer, settings, "held-out", key)
            for start in range(0, len(part), batch_size):
                yield {name: array[start : start + batch_size] for name, array in rows.items()}


def write_instances(
    instances: np.ndarray, documents: Documents, tokenizer: Vocabulary, settings: InstanceSettings
) -> Batch:
    """Instances (n, 5) as unmasked rows: [CLS] A [SEP] B [SEP], types 0 and 1, padded to S.

    Returns input_ids, token_type_ids, attention_mask, each (n, S) int32, and next_sentence_label (n,).
    """
    a_start, a_stop, b_start, b_stop, label = instances.T[:, :, None]  # each (n, 1)
    a_sep = 1 + a_stop - a_start  # the position of the first [SEP], (n, 1)
    last_sep = a_sep + (1 + b_stop - b_start if settings.next_sentence else 0)
    position = np.arange(settings.max_seq_length)  # (S,)
    in_a = (position > 0) & (position < a_sep)
    in_b = (position > a_sep) & (position < last_sep)
    source = np.where(in_a, a_start + position - 1, np.where(in_b, b_start + position - a_sep - 1, 0))
    input_ids = np.where(in_a | in_b, documents.tokens[source].astype(np.int32), np.int32(tokenizer.pad_id))
    input_ids[:, 0] = tokenizer.cls_id
    input_ids[(position == a_sep) | (position == last_sep)] = tokenizer.sep_id
    attended = position <= last_sep
    rows = {
        "input_ids": input_ids,
        "token_type_ids": ((position > a_sep) & attended).astype(np.int32),
        "attention_mask": attended.astype(np.int32),
    }
    if settings.next_sentence:
        rows["next_sentence_label"] = label[:, 0].astype(np.int32)
    return rows


def _plan_pass(documents: Documents, rng: np.random.Generator) -> list[np.ndarray]:
    """The documents (indices) in random order, cut into blocks of about BLOCK_TOKENS tokens."""
    order = rng.permutation(len(documents))
    before = np.cumsum(documents.lengths()[order]) - documents.lengths()[order]
    cuts = np.flatnonzero(np.diff(before // BLOCK_TOKENS)) + 1
    return np.split(order, cuts)


def _rows_of_part(settings: InstanceSettings) -> int:
    return max(1, PART_TOKENS // settings.max_seq_length)


def _choose_instances(
    documents: Documents, chosen: np.ndarray, settings: InstanceSettings, purpose: str, key: tuple[int, ...]
) -> np.ndarray:
    """All instances of the chosen documents in random order, (n, 5)."""
    instances = make_instances(documents, chosen, settings, scalar_generator(f"{purpose} pairs", *key))
    generator(f"{purpose} order", *key).shuffle(instances)
    return instances


def _write_rows(
    instances: np.ndarray,
    documents: Documents,
    tokenizer: Vocabulary,
    settings: InstanceSettings,
    purpose: str,
    key: tuple[int, ...],
) -> Batch:
    """Instances (n, 5) as rows with labels: masked, whole (left to right), or with an order (permuted)."""
    rows = write_instances(instances, documents, tokenizer, settings)
    if settings.objective == "left-to-right":
        return rows | {"labels": next_tokens(rows["input_ids"], rows["attention_mask"])}
    rng = generator(f"{purpose} masking", *key)
    if settings.objective == "permuted":
        return _write_orders(_cls_last(rows, tokenizer.pad_id), tokenizer, settings, rng)
    input_ids, attended = rows["input_ids"], rows["attention_mask"].astype(bool)
    candidates = attended & (input_ids != tokenizer.cls_id) & (input_ids != tokenizer.sep_id)
    word_starts = _word_starts(input_ids, candidates, tokenizer, settings)
    positions = choose_positions(
        candidates, attended.sum(1), word_starts, settings.masked_lm_prob, settings.max_predictions, rng
    )
    rows["input_ids"], rows["labels"] = mask_tokens(
        input_ids, positions, tokenizer.mask_id, tokenizer.vocab_size, rng, settings.mask_shares
    )
    return rows


def _cls_last(rows: Batch, pad_id: int) -> Batch:
    """[CLS] A [SEP] and padding, as XLNet reads it: padding A <sep> <cls>, where <cls> has the type 2."""
    length = rows["attention_mask"].sum(axis=1, keepdims=True)  # (n, 1)
    position = np.arange(rows["input_ids"].shape[1])  # (S,)
    place = position - (len(position) - length)  # in the text, (n, S); padding has negative ones
    source = np.where(place == length - 1, 0, place + 1)  # <cls> was the first
    real = place >= 0
    input_ids = np.take_along_axis(rows["input_ids"], np.where(real, source, 0), axis=1)
    return {
        "input_ids": np.where(real, input_ids, np.int32(pad_id)),
        "token_type_ids": np.where(place == length - 1, np.int32(2), np.int32(0)),
        "attention_mask": real.astype(np.int32),
    }


def _write_orders(
    rows: Batch, tokenizer: Vocabulary, settings: InstanceSettings, rng: np.random.Generator
) -> Batch:
    """An order for each row, the last tokens of which are predicted."""
    read = rows["input_ids"], rows["attention_mask"]
    special_ids, one_in = (tokenizer.cls_id, tokenizer.sep_id), 1 / settings.masked_lm_prob
    predicted = last_of_an_order(*read, rng, special_ids=special_ids, one_in=one_in)
    orders = factorisation_orders(*read, predicted, rng, targets=settings.most_predictions)
    return rows | orders._asdict()


def _word_starts(
    input_ids: np.ndarray, candidates: np.ndarray, tokenizer: Vocabulary, settings: InstanceSettings
) -> np.ndarray:
    """Where words begin, (n, S) bool. A segment's first subword begins one, even if its word was cut there.

    (The original counts such a subword at the beginning of B as part of the last word of A.)
    """
    if not settings.whole_word_masking:
        return candidates
    starts = ~tokenizer.continues_word[input_ids]
    starts[:, 1:] |= ~candidates[:, :-1]
    return starts & candidates


def _check_batch_size(batch_size: int) -> None:
    if batch_size < 1:
        raise UserError(f"the batch size must be at least 1, got {batch_size}")


def _check_documents(documents: Documents, settings: InstanceSettings, purpose: str) -> None:
    needed = 2 if settings.next_sentence else 1
    if len(documents) < needed:
        raise UserError(
            f"{len(documents)} document(s) to {purpose}, but next-sentence prediction needs {needed}: "
            "give more documents (files, or texts between blank lines), or switch it off"
            if settings.next_sentence
            else f"no document to {purpose}; give more text"
        )

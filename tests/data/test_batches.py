"""Batches and the stream of them."""

import json

import numpy as np
import pytest

from minibert.data import BatchStream, InstanceSettings, batches, held_out_batches
from minibert.errors import UserError

SETTINGS = InstanceSettings(max_seq_length=32, max_predictions=5)


def take(stream, count):
    return [next(stream) for _ in range(count)]


def assert_equal(first, second):
    assert len(first) == len(second)
    for one, other in zip(first, second, strict=True):
        assert one.keys() == other.keys()
        assert all(np.array_equal(one[name], other[name]) for name in one)


def unmasked(batch):
    """The rows (B, S) as they were before masking."""
    return np.where(batch["labels"] == -100, batch["input_ids"], batch["labels"])


def differ(first, second):
    return any(not np.array_equal(first[name], second[name]) for name in first)


@pytest.fixture
def documents(make_documents):
    rng = np.random.default_rng(0)
    return make_documents([rng.integers(1, 12, size=rng.integers(1, 20)).tolist() for _ in range(60)])


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(batches, "BLOCK_TOKENS", 500)
    monkeypatch.setattr(batches, "PART_TOKENS", 4 * 32)


@pytest.mark.parametrize("whole_word_masking", [False, True])
@pytest.mark.parametrize("next_sentence", [True, False])
def test_rows_are_laid_out_as_bert_reads_them(
    documents, numbered_vocabulary, next_sentence, whole_word_masking
):
    settings = InstanceSettings(
        max_seq_length=32, next_sentence=next_sentence, whole_word_masking=whole_word_masking
    )
    batch = next(BatchStream(documents, numbered_vocabulary, settings, 16))
    names = {"input_ids", "token_type_ids", "attention_mask", "labels"}
    assert batch.keys() == names | ({"next_sentence_label"} if next_sentence else set())
    for name, array in batch.items():
        assert array.dtype == np.int32
        assert array.shape == ((16,) if name == "next_sentence_label" else (16, 32))
    for row in range(16):
        ids, types, mask, labels = (
            batch[name][row] for name in ("input_ids", "token_type_ids", "attention_mask", "labels")
        )
        length = mask.sum()
        original = np.where(labels == -100, ids, labels)
        assert mask.tolist() == [1] * length + [0] * (32 - length)
        assert (original[length:] == 0).all()
        separators = np.flatnonzero(original == 3)
        assert (
            original[0] == 2
            and len(separators) == (2 if next_sentence else 1)
            and separators[-1] == length - 1
        )
        assert types.tolist() == [0] * (separators[0] + 1) + [1] * (length - separators[0] - 1) + [0] * (
            32 - length
        )
        segments = np.split(original[:length], separators + 1)
        for segment in (segments[0][1:-1], segments[1][:-1])[: len(separators)]:
            assert (
                len(segment) > 0 and (np.diff(segment) % 995 == 1).all()
            )  # consecutive tokens of the corpus
        assert (labels[[0, *separators]] == -100).all() and (labels[length:] == -100).all()
        assert 1 <= (labels != -100).sum() <= max(1, round(0.15 * length))


def test_a_left_to_right_model_predicts_every_next_token(documents, numbered_vocabulary):
    settings = InstanceSettings(max_seq_length=32, next_sentence=False, objective="left-to-right")
    assert settings.most_predictions == 31
    batch = next(BatchStream(documents, numbered_vocabulary, settings, 16))
    for ids, mask, labels in zip(batch["input_ids"], batch["attention_mask"], batch["labels"], strict=True):
        length = mask.sum()
        assert ids[0] == 2 and ids[length - 1] == 3 and (ids[:length] != 4).all()
        assert labels[: length - 1].tolist() == ids[1:length].tolist()
        assert (labels[length - 1 :] == -100).all()


def test_permuted_rows_are_laid_out_as_xlnet_reads_them(documents, numbered_vocabulary):
    settings = InstanceSettings(
        max_seq_length=32, next_sentence=False, objective="permuted", masked_lm_prob=0.2
    )
    assert settings.most_predictions == 6  # of 30
    batch = next(BatchStream(documents, numbered_vocabulary, settings, 16))
    plain = InstanceSettings(max_seq_length=32, next_sentence=False, mask_shares=(0, 100, 0))
    same = next(BatchStream(documents, numbered_vocabulary, plain, 16))
    assert batch["perm_mask"].shape == (16, 32, 32) and batch["target_mapping"].shape == (16, 6, 32)
    for row in range(16):
        ids, mask, types, labels = (
            batch[name][row] for name in ("input_ids", "attention_mask", "token_type_ids", "labels")
        )
        length = mask.sum()
        expected = same["input_ids"][row][same["attention_mask"][row] > 0]
        assert ids[32 - length :].tolist() == [*expected[1:], expected[0]] and expected[0] == 2
        assert (ids[: 32 - length] == 0).all() and mask.tolist() == [0] * (32 - length) + [1] * length
        assert types.tolist() == [0] * 31 + [2]
        targets = batch["target_mapping"][row].argmax(axis=1)[labels != -100]
        assert (ids[targets] == labels[labels != -100]).all()
        assert len(targets) == max(1, int((length - 2) * 0.2)) and (targets >= 32 - length).all()
        hidden = batch["perm_mask"][row][targets][:, targets]
        assert hidden.sum() == len(targets) * (len(targets) + 1) / 2  # each sees those before it, not itself
        assert not np.isin(ids[targets], [2, 3]).any()


def test_masks_have_the_shares_of_the_settings(documents, numbered_vocabulary):
    settings = InstanceSettings(max_seq_length=32, masked_lm_prob=0.5, mask_shares=(0, 100, 0))
    batch = next(BatchStream(documents, numbered_vocabulary, settings, 16))
    assert (batch["input_ids"] == unmasked(batch)).all() and (batch["labels"] != -100).sum() > 50


def test_whole_words_are_masked_whole(documents, numbered_vocabulary):
    settings = InstanceSettings(max_seq_length=32, whole_word_masking=True)
    for batch in take(BatchStream(documents, numbered_vocabulary, settings, 32), 20):
        chosen = batch["labels"] != -100
        original = unmasked(batch)
        text = (original > 4) & (batch["attention_mask"] == 1)
        continues = numbered_vocabulary.continues_word[original] & text
        continues[:, 1:] &= text[:, :-1]  # after [CLS] or [SEP] it stands alone
        assert (chosen[:, 1:] == chosen[:, :-1])[continues[:, 1:]].all()


def test_the_stream_is_a_function_of_its_seed(documents, numbered_vocabulary):
    def stream(seed):
        return take(BatchStream(documents, numbered_vocabulary, SETTINGS, 8, seed), 30)

    assert_equal(stream(1), stream(1))
    assert differ(stream(1)[0], stream(2)[0])


@pytest.mark.parametrize("masking", ["dynamic", "fixed"])
def test_a_restored_stream_goes_on_bit_for_bit(documents, numbered_vocabulary, small_blocks, masking):
    settings = InstanceSettings(max_seq_length=32, masking=masking, dupe_factor=2)
    stream = BatchStream(documents, numbered_vocabulary, settings, 7, seed=3)
    passes = set()
    for _ in range(12):
        take(stream, 5)
        state = json.loads(json.dumps(stream.state()))
        passes.add(state["pass"])
        expected = take(stream, 9)
        again = BatchStream(documents, numbered_vocabulary, settings, 7, seed=3)
        again.restore(state)
        assert_equal(take(again, 9), expected)
        assert again.state() == stream.state()
    assert len(passes) > 2


def test_a_pass_takes_every_document_once(make_documents, numbered_vocabulary, small_blocks):
    """Single sentences of one token: as many instances as sentences, and every token stands in an A."""
    documents = make_documents([[1]] * 900)
    stream = BatchStream(documents, numbered_vocabulary, SETTINGS, 90)
    for _ in range(3):
        rows = np.concatenate([unmasked(batch) for batch in take(stream, 10)])
        assert sorted(rows[:, 1].tolist()) == list(range(5, 905))
    assert stream.state()["pass"] == 2


def test_instances_are_shuffled_within_a_block(make_documents, numbered_vocabulary):
    """Otherwise the instances of a document would stand side by side, in its order."""
    documents = make_documents([[1] * 400, [1] * 400])
    stream = BatchStream(documents, numbered_vocabulary, SETTINGS, 8)
    rows = np.concatenate([unmasked(batch) for batch in take(stream, 4)])
    before, after = rows[:-1, 1], rows[1:, 1]
    assert 5 < (before > after).sum() < 26  # once or twice if they were in order


def test_rows_are_shuffled_beyond_the_part_that_is_written_at_a_time(
    make_documents, numbered_vocabulary, monkeypatch
):
    """A novel is longer than a part; parts that held only its own rows would come one after the other."""
    documents = make_documents([[word] * 400 for word in (1, 2, 3, 4)])
    whole = take(BatchStream(documents, numbered_vocabulary, SETTINGS, 8), 6)
    monkeypatch.setattr(batches, "PART_TOKENS", 4 * 32)
    parts = take(BatchStream(documents, numbered_vocabulary, SETTINGS, 8), 6)
    assert [unmasked(batch).tolist() for batch in parts] == [unmasked(batch).tolist() for batch in whole]
    hidden = [rows != -100 for batch in parts for rows in np.split(batch["labels"], 2)]
    assert len({rows.tobytes() for rows in hidden}) == 12, "each part draws its own masks"


def test_each_block_draws_its_own_instances(make_documents, numbered_vocabulary, small_blocks):
    settings = InstanceSettings(max_seq_length=32, next_sentence=False, short_seq_prob=1.0)
    documents = make_documents([[1] * 125] * 8)  # two blocks of four documents
    stream, lengths = BatchStream(documents, numbered_vocabulary, settings, 1), ([], [])
    batch = next(stream)
    while stream.state()["pass"] == 0:
        lengths[stream.state()["block"]].append(int(batch["attention_mask"].sum()))
        batch = next(stream)
    assert lengths[0] and lengths[1] and lengths[0] != lengths[1]


def test_dynamic_masking_is_drawn_anew_and_fixed_masking_repeats(documents, numbered_vocabulary):
    def passes(masking, count):
        settings = InstanceSettings(max_seq_length=32, masking=masking, dupe_factor=2)
        stream = BatchStream(documents, numbered_vocabulary, settings, 1)
        found = [[] for _ in range(count)]
        while True:
            batch = next(stream)
            if stream.state()["pass"] >= count:
                return found
            found[stream.state()["pass"]].append(batch)

    fixed = passes("fixed", 4)
    assert_equal(fixed[0], fixed[2])
    assert_equal(fixed[1], fixed[3])
    assert differ(fixed[0][0], fixed[1][0])
    dynamic = passes("dynamic", 3)
    assert differ(dynamic[0][0], dynamic[2][0])


def test_held_out_batches_are_the_same_whenever_asked(documents, numbered_vocabulary, small_blocks):
    arguments = (documents, numbered_vocabulary, SETTINGS, 8, 5)
    everything = list(held_out_batches(*arguments))
    assert_equal(everything, list(held_out_batches(*arguments)))
    assert_equal(everything[:3], take(held_out_batches(*arguments), 3))
    assert all(len(batch["labels"]) <= 8 for batch in everything)
    assert sum(len(batch["labels"]) for batch in everything) > 60
    assert differ(everything[0], next(BatchStream(documents, numbered_vocabulary, SETTINGS, 8, 5)))


def test_each_held_out_part_draws_its_own_masks(make_documents, numbered_vocabulary, small_blocks):
    settings = InstanceSettings(max_seq_length=32, next_sentence=False, short_seq_prob=0.0)
    documents = make_documents([[1] * 240] * 8)  # rows of 30 tokens and two special ones
    found = [
        batch
        for batch in held_out_batches(documents, numbered_vocabulary, settings, 4)
        if batch["attention_mask"].all() and len(batch["labels"]) == 4
    ]
    assert len(found) > 8
    assert len({(batch["labels"] != -100).tobytes() for batch in found}) == len(found)


def test_batches_are_the_callers_own(documents, numbered_vocabulary):
    stream = BatchStream(documents, numbered_vocabulary, SETTINGS, 8)
    state = stream.state()
    first = next(stream)
    kept = {name: array.copy() for name, array in first.items()}
    for array in first.values():
        array[:] = 0
    stream.restore(state)
    assert_equal([next(stream)], [kept])


def test_too_few_documents(make_documents, numbered_vocabulary):
    one = make_documents([[3, 4, 5]])
    with pytest.raises(UserError, match=r"1 document.* to train on, but next-sentence prediction needs 2"):
        BatchStream(one, numbered_vocabulary, SETTINGS, 8)
    with pytest.raises(UserError, match="to evaluate on"):
        list(held_out_batches(one, numbered_vocabulary, SETTINGS, 8))
    single = InstanceSettings(max_seq_length=32, next_sentence=False)
    assert next(BatchStream(one, numbered_vocabulary, single, 8))["input_ids"].shape == (8, 32)


def test_a_bad_batch_size_or_place(documents, numbered_vocabulary):
    with pytest.raises(UserError, match="batch size must be at least 1, got 0"):
        BatchStream(documents, numbered_vocabulary, SETTINGS, 0)
    with pytest.raises(UserError, match="batch size must be at least 1, got 0"):
        next(held_out_batches(documents, numbered_vocabulary, SETTINGS, 0))
    with pytest.raises(UserError, match="lies beyond these documents"):
        BatchStream(documents, numbered_vocabulary, SETTINGS, 8).restore({"pass": 0, "block": 99, "row": 0})
    with pytest.raises(UserError, match="lies beyond these documents"):
        BatchStream(documents, numbered_vocabulary, SETTINGS, 8).restore({"pass": 0, "block": 0, "row": 999})

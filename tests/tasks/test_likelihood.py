import numpy as np
import pytest

from minibert.bert import BertConfig, BertForMaskedLM, BertForNextSentencePrediction, BertForPreTraining
from minibert.data.tasks import MinimalPair
from minibert.errors import UserError
from minibert.tasks.likelihood import (
    SCORINGS,
    blimp_scores,
    next_sentence_probabilities,
    next_sentence_probability,
    pseudo_log_likelihoods,
)
from minibert.text import BertTokenizer

TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefg", *("##" + c for c in "abcdefg"), "."]
TOKENIZER = BertTokenizer(TOKENS)
SENTENCES = ["a b .", "", "ab a", "g", "c d efg a ab .", "b a .", "xyz [MASK] a"]


@pytest.fixture
def config():
    return BertConfig(
        vocab_size=len(TOKENS),
        hidden_size=12,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=20,
        max_position_embeddings=12,
        initializer_range=0.5,
    )


# -- Masked words ------------------------------------------------------------------------------------


def plain_loop(model, sentence, scoring):
    """Token after token, the model alone with one masked sentence; its loss is −log p."""
    ids = TOKENIZER(sentence)["input_ids"]
    total = 0.0
    for position in range(1, len(ids) - 1):
        masked, labels = list(ids), [-100] * len(ids)
        masked[position], labels[position] = TOKENIZER.mask_id, ids[position]
        later = position + 1
        while scoring == "within_word_l2r" and TOKENIZER.tokens[ids[later]].startswith("##"):
            masked[later] = TOKENIZER.mask_id
            later += 1
        total -= float(model.forward([masked], labels=[labels])[0].mlm_loss)
    return total


@pytest.mark.parametrize("scoring", SCORINGS)
@pytest.mark.parametrize("batch_size", [1, 4, 100])
def test_pseudo_log_likelihoods_are_those_of_a_plain_loop(device, config, batch_size, scoring):
    reference = BertForMaskedLM(config, dtype="float64", seed=3)
    reference.eval()
    model = BertForMaskedLM(config, device=device, dtype="float64", seed=3)
    scores = pseudo_log_likelihoods(model, TOKENIZER, SENTENCES, scoring=scoring, batch_size=batch_size)
    expected = [plain_loop(reference, sentence, scoring) for sentence in SENTENCES]
    assert scores == pytest.approx(expected, rel=1e-10)
    assert scores[1] == 0.0
    assert not model.training


@pytest.mark.parametrize(
    ("scoring", "halvings"),
    [
        # c d e ##f ##g a a ##b .   as many halvings as there are masks while each of them is scored
        ("original", [1 + 1 + (1 + 1 + 1) + 1 + (1 + 1) + 1, 1]),
        ("within_word_l2r", [1 + 1 + (3 + 2 + 1) + 1 + (2 + 1) + 1, 1]),
    ],
)
def test_the_two_scorings_by_hand(config, monkeypatch, scoring, halvings):
    """Of a model that finds every word half as likely for each mask that it sees: p = 2^−masks."""
    model = BertForMaskedLM(config, dtype="float64")

    def count_masks(bert, batch, rows):
        masks = (batch["input_ids"] == TOKENIZER.mask_id).sum(axis=1)
        return masks[rows // batch["input_ids"].shape[1], None].astype(float)

    def log_probabilities(hidden, positions):
        return -np.log(2.0) * np.repeat(hidden[:, 0, :1], len(TOKENS), axis=1), None

    monkeypatch.setattr("minibert.tasks.likelihood._states_at", count_masks)
    monkeypatch.setattr(model.cls.predictions, "forward", log_probabilities)
    monkeypatch.setattr("minibert.tasks.likelihood.log_sum_exp", lambda logits, axis: 0.0)  # log 1
    scores = pseudo_log_likelihoods(model, TOKENIZER, ["c d efg a ab .", "g"], scoring=scoring)
    assert scores / -np.log(2.0) == pytest.approx(halvings)


def test_copies_of_the_longest_sentence_come_first_and_no_copy_is_wasted(config, monkeypatch):
    """A batch that is too large for the memory shows itself at once."""
    model, shapes = BertForMaskedLM(config, seed=3), []

    def prepare(input_ids, prepare=model.bert.prepare, **more):
        shapes.append(input_ids.shape)
        return prepare(input_ids=input_ids, **more)

    monkeypatch.setattr(model.bert, "prepare", prepare)
    pseudo_log_likelihoods(model, TOKENIZER, ["a", "a b c d", "a b"], batch_size=3)
    assert shapes == [(3, 6), (3, 6), (1, 3)]  # four copies of six tokens, two of four, one of three


def test_no_sentences_have_no_scores(config):
    assert pseudo_log_likelihoods(BertForMaskedLM(config), TOKENIZER, []).shape == (0,)


def test_the_share_of_pairs_whose_good_sentence_is_likelier(config):
    model = BertForPreTraining(config, seed=1)
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(list("abcdefg"), rng.integers(2, 6))) for _ in range(40)]
    pairs = [
        MinimalPair(good, bad, "paradigm", "first" if i < 5 else "second")
        for i, (good, bad) in enumerate(zip(texts[::2], texts[1::2], strict=True))
    ]
    good, bad = (pseudo_log_likelihoods(model, TOKENIZER, texts[side::2]) for side in (0, 1))
    scores = blimp_scores(model, TOKENIZER, pairs)
    assert scores == {
        "overall": np.mean(good > bad),
        "first": np.mean((good > bad)[:5]),
        "second": np.mean((good > bad)[5:]),
    }
    assert 0 < scores["overall"] < 1


@pytest.mark.parametrize("batch_size", [3, 16, 1000])
def test_equal_sentences_score_the_same_in_any_batches(config, batch_size):
    """Written in capital letters, a sentence has the same tokens, so such a pair is a tie: no success."""
    model = BertForMaskedLM(config, seed=1)
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(list("abcdefg"), rng.integers(2, 10))) for _ in range(40)]
    pairs = [MinimalPair(text, text.upper(), "paradigm", "ties") for text in texts]
    assert blimp_scores(model, TOKENIZER, pairs, batch_size=batch_size)["overall"] == 0.0


# -- The next sentence -------------------------------------------------------------------------------


def test_next_sentence_probabilities_are_those_of_each_pair_alone(device, config):
    reference = BertForNextSentencePrediction(config, dtype="float64", seed=3)
    reference.eval()
    first, second = ["a b .", "c", "a b c d e f g . ."], ["d e f", "c d .", "a b c d e f g ."]
    expected = []
    for pair in zip(first, second, strict=True):
        batch = TOKENIZER(*([text] for text in pair), max_length=12, truncation=True)
        e = np.exp(reference.forward(**batch)[0].seq_relationship_logits[0])
        expected.append(e[0] / e.sum())
    model = BertForNextSentencePrediction(config, device=device, dtype="float64", seed=3)
    found = next_sentence_probabilities(model, TOKENIZER, first, second, batch_size=2)
    assert found == pytest.approx(expected, rel=1e-10)
    assert next_sentence_probability(model, TOKENIZER, first[1], second[1]) == pytest.approx(expected[1])
    assert not model.training


# -- Mistakes ----------------------------------------------------------------------------------------


def test_a_model_of_nan_is_refused(config):
    model = BertForPreTraining(config)
    model.buffers.value[...] = np.nan
    with pytest.raises(UserError, match="the model's scores are NaN or infinite"):
        pseudo_log_likelihoods(model, TOKENIZER, ["a b"])
    with pytest.raises(UserError, match="the model's scores are NaN or infinite"):
        next_sentence_probabilities(model, TOKENIZER, ["a"], ["b"])


def test_what_cannot_be_scored_is_refused(config):
    model = BertForPreTraining(config)
    with pytest.raises(UserError, match="the sequence is 14 tokens long but the model has only 12 positions"):
        pseudo_log_likelihoods(model, TOKENIZER, ["a", "a " * 12])
    for size in (-1, 0):
        with pytest.raises(UserError, match=f"batch size must be at least 1, got {size}"):
            pseudo_log_likelihoods(model, TOKENIZER, ["a"], batch_size=size)
    with pytest.raises(UserError, match="batch size must be at least 1, got 0"):
        blimp_scores(model, TOKENIZER, [MinimalPair("a", "b", "x", "y")], batch_size=0)
    with pytest.raises(UserError, match="expected a list of texts, got a single one"):
        pseudo_log_likelihoods(model, TOKENIZER, "a b")
    larger = BertTokenizer([*TOKENS, "more"])
    with pytest.raises(UserError, match="the vocabulary has 21 tokens but the model knows only 20"):
        pseudo_log_likelihoods(model, larger, ["a"])
    with pytest.raises(UserError, match="the vocabulary has 21 tokens but the model knows only 20"):
        next_sentence_probabilities(model, larger, ["a"], ["b"])
    with pytest.raises(UserError, match="BertForNextSentencePrediction has no head for masked words"):
        pseudo_log_likelihoods(BertForNextSentencePrediction(config), TOKENIZER, ["a"])
    with pytest.raises(UserError, match="BertForMaskedLM has no head for the next sentence"):
        next_sentence_probabilities(BertForMaskedLM(config), TOKENIZER, ["a"], ["b"])
    with pytest.raises(UserError, match="expected a list of texts, got a single one; put it in brackets"):
        next_sentence_probabilities(model, TOKENIZER, "a", "b")
    with pytest.raises(UserError, match="must have the same number of texts: got 1 and 2"):
        next_sentence_probabilities(model, TOKENIZER, ["a"], ["b", "c"])

import numpy as np
import pytest

from minibert.bert import (
    BertConfig,
    BertForMaskedLM,
    BertForNextSentencePrediction,
    BertForPreTraining,
    BertModel,
)
from minibert.errors import UserError
from minibert.tasks import fill_mask
from minibert.text import BertTokenizer

TOKENS = "[PAD] [UNK] [CLS] [SEP] [MASK] the river is long and ##s cold".split()


@pytest.fixture
def tokenizer():
    return BertTokenizer(TOKENS)


@pytest.fixture
def config():
    return BertConfig(
        vocab_size=len(TOKENS),
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=10,
        hidden_dropout_prob=0.5,
        initializer_range=1.0,
    )


@pytest.mark.parametrize("model_class", [BertForMaskedLM, BertForPreTraining])
def test_the_guesses_are_the_softmax_at_the_mask(config, tokenizer, model_class):
    model = model_class(config, dtype="float64", seed=1)
    guesses = fill_mask(model, tokenizer, "the [MASK] is [MASK]", top_k=3)
    outputs, _ = model.forward([[2, 5, 4, 7, 4, 3]])  # without dropout: fill_mask has turned it off
    for position, row in zip((2, 4), guesses, strict=True):
        logits = outputs.prediction_logits[0, position]
        p = np.exp(logits) / np.exp(logits).sum()
        best = np.argsort(p)[::-1][:3]
        assert [token for token, _ in row] == [TOKENS[i] for i in best]
        assert [probability for _, probability in row] == pytest.approx(p[best])


def test_all_guesses_together_are_certain(config, tokenizer):
    (row,) = fill_mask(BertForMaskedLM(config), tokenizer, "[MASK] river", top_k=len(TOKENS))
    assert sorted(token for token, _ in row) == sorted(TOKENS)
    assert sum(probability for _, probability in row) == pytest.approx(1.0)


def test_rows_beyond_the_vocabulary_are_no_guesses(config, tokenizer):
    model = BertForMaskedLM(config, seed=1)
    (padded,) = fill_mask(model, BertTokenizer(TOKENS[:-3]), "the [MASK]", top_k=len(TOKENS) - 3)
    (whole,) = fill_mask(model, tokenizer, "the [MASK]", top_k=len(TOKENS))
    assert padded == [guess for guess in whole if guess[0] in TOKENS[:-3]]


def test_the_guesses_are_the_same_on_every_array_library(device, config, tokenizer):
    here, reference = (
        fill_mask(BertForMaskedLM(config, device=place, dtype="float64"), tokenizer, "the [MASK]")
        for place in (device, "cpu")
    )
    assert [token for token, _ in here[0]] == [token for token, _ in reference[0]]
    assert [p for _, p in here[0]] == pytest.approx([p for _, p in reference[0]], rel=1e-10)
    assert all(type(p) is float for _, p in here[0])


def test_a_model_of_nan_is_refused(config, tokenizer):
    model = BertForMaskedLM(config)
    model.buffers.value[...] = np.nan
    with pytest.raises(UserError, match="the model's scores are NaN or infinite"):
        fill_mask(model, tokenizer, "the [MASK]")


def test_what_cannot_be_filled_is_refused(config, tokenizer):
    model = BertForMaskedLM(config)
    with pytest.raises(UserError, match=r"^no \[MASK\] in 'the river'"):
        fill_mask(model, tokenizer, "the river")
    with pytest.raises(UserError, match="the sequence is 12 tokens long but the model has only 10 positions"):
        fill_mask(model, tokenizer, "[MASK] " * 10)
    for top_k in (0, 2.5, len(TOKENS) + 1):
        with pytest.raises(UserError, match=f"^top_k must be a whole number from 1 to 12, .* got {top_k}$"):
            fill_mask(model, tokenizer, "[MASK]", top_k=top_k)
    with pytest.raises(UserError, match=r"^the vocabulary has 13 tokens but the model knows only 12"):
        fill_mask(model, BertTokenizer([*TOKENS, "more"]), "[MASK]")


def test_a_model_without_a_head_for_masked_words_is_refused(config, tokenizer):
    with pytest.raises(UserError, match="BertForNextSentencePrediction has no head for masked words"):
        fill_mask(BertForNextSentencePrediction(config), tokenizer, "the [MASK]")
    with pytest.raises(UserError, match="BertModel has no head for masked words; use BertForMaskedLM"):
        fill_mask(BertModel(config), tokenizer, "the [MASK]")

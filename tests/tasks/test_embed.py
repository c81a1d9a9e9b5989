from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from small_encoder import TOKENIZER

from minibert.arrays import to_numpy
from minibert.bert import BertForMaskedLM
from minibert.errors import UserError
from minibert.files import write_json
from minibert.heads import SentenceEncoder
from minibert.tasks.embed import TextEncoder, WordChoice
from minibert.tasks.registry import read_task
from minibert.text import BertTokenizer, RobertaTokenizer
from minibert.variants.roberta import RobertaConfig, RobertaSentenceEncoder

TEXTS = ["ann sings", "bob dances in the river", "who ?", "ann sings", "", "a bridge"]


def test_vectors_stand_in_the_order_of_the_texts_whatever_the_batches(encoder_folder):
    encoder = TextEncoder.open(encoder_folder)
    vectors = encoder.embed(TEXTS, batch_size=2)
    assert vectors.shape == (6, 8) and vectors.dtype == np.float32
    for text, vector in zip(TEXTS, vectors, strict=True):
        output, _ = encoder.model.forward(**encoder.tokenizer([text]))
        np.testing.assert_allclose(vector, to_numpy(output.embeddings)[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(vectors[0], vectors[3])
    assert np.linalg.norm(vectors[0] - vectors[1]) > 0.1


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ("abc", "expected a list of texts, got a single one; put it in brackets"),
        (["a", None], "expected texts, got others among them, of type NoneType"),
        ([("a", "b"), 3], "of type int, tuple"),
        (iter(["a"]), "expected a list of texts, got list_iterator"),
    ],
)
def test_what_is_no_list_of_texts(encoder_folder, texts, message):
    encoder = TextEncoder.open(encoder_folder)
    with pytest.raises(UserError, match=message):
        encoder.embed(texts)
    with pytest.raises(UserError, match=message):
        next(encoder.word_vectors(texts))


def test_embedding_leaves_dropout_out(encoder_folder):
    encoder = TextEncoder.open(encoder_folder, hidden_dropout_prob=0.5)
    encoder.model.train()
    np.testing.assert_array_equal(encoder.embed(TEXTS), TextEncoder.open(encoder_folder).embed(TEXTS))


@pytest.mark.parametrize("pooling", ["cls", "mean", "max"])
def test_pooling_and_normalising_may_be_chosen(encoder_folder, pooling):
    encoder = TextEncoder.open(encoder_folder, pooling=pooling, normalise=True)
    assert encoder.model.pooling == pooling
    np.testing.assert_allclose(np.linalg.norm(encoder.embed(TEXTS), axis=1), 1, rtol=1e-5)


def test_the_folder_says_where_texts_are_cut(encoder_folder):
    assert TextEncoder.open(encoder_folder).max_length == 128, "positions, if nothing is said"
    write_json(encoder_folder / "sentence_bert_config.json", {"max_seq_length": 4, "do_lower_case": False})
    encoder = TextEncoder.open(encoder_folder)
    assert encoder.max_length == 4
    first, second = encoder.embed(["ann sings", "ann sings in rome"])
    np.testing.assert_array_equal(first, second)
    assert [TextEncoder.open(encoder_folder, max_length=n).max_length for n in (3, 7, 128)] == [3, 7, 128]
    write_json(encoder_folder / "modules.json", [])
    assert read_task(encoder_folder)[2] == {"max_length": 4}, "predict and evaluate cut them there, too"
    (encoder_folder / "modules.json").unlink()
    write_json(encoder_folder / "sentence_bert_config.json", {"max_seq_length": None})
    assert TextEncoder.open(encoder_folder).max_length == 128


def test_the_tokenizer_may_say_so_too(encoder_folder):
    encoder = TextEncoder.open(encoder_folder)
    BertTokenizer(encoder.tokenizer.tokens, model_max_length=9).save_pretrained(encoder_folder)
    assert TextEncoder.open(encoder_folder).max_length == 9
    assert TextEncoder.open(encoder_folder, max_length=128).digest == encoder.digest, "texts are cut alike"
    BertTokenizer(encoder.tokenizer.tokens, model_max_length=512).save_pretrained(encoder_folder)
    assert TextEncoder.open(encoder_folder).max_length == 128, "the model has no more positions"


def test_an_encoder_knows_its_folder_wherever_it_was_opened_from(encoder_folder, monkeypatch):
    monkeypatch.chdir(encoder_folder.parent)
    assert TextEncoder.open(encoder_folder.name).folder == str(encoder_folder.resolve())


def test_any_bert_is_an_encoder(encoder_folder, tmp_path):
    config = SentenceEncoder.from_pretrained(encoder_folder).config
    BertForMaskedLM(config).save_pretrained(tmp_path / "mlm")
    BertTokenizer.from_pretrained(encoder_folder).save_pretrained(tmp_path / "mlm")
    encoder = TextEncoder.open(tmp_path / "mlm")
    assert (encoder.model.pooling, encoder.model.normalise) == ("mean", False)
    assert encoder.embed(["ann"]).shape == (1, 8)


def test_a_digest_tells_encoders_apart_and_not_their_folders(encoder_folder, tmp_path):
    encoder = TextEncoder.open(encoder_folder)
    encoder.model.save_pretrained(tmp_path / "copy")
    encoder.tokenizer.save_pretrained(tmp_path / "copy")
    assert TextEncoder.open(tmp_path / "copy", normalise=True).digest == encoder.digest
    changed = [
        TextEncoder.open(encoder_folder, pooling="max"),
        TextEncoder.open(encoder_folder, max_length=8),
        replace(encoder, tokenizer=BertTokenizer([*encoder.tokenizer.tokens[:-1], "!"])),
        replace(encoder, tokenizer=BertTokenizer(encoder.tokenizer.tokens, lowercase=False)),
    ]
    for settings in ({"num_attention_heads": 1}, {"hidden_act": "relu"}, {"is_decoder": True}):
        changed.append(TextEncoder.open(encoder_folder, **settings))
    assert TextEncoder.open(encoder_folder, num_labels=5).digest == encoder.digest  # of other heads
    other = TextEncoder.open(encoder_folder)
    dict(other.model.named_parameters())["encoder.layer.0.output.dense.weight"].value[0, 0] += 1e-3
    digests = [encoder.digest, other.digest, *(each.digest for each in changed)]
    assert len(set(digests)) == len(digests)


def test_folders_that_are_refused(encoder_folder):
    for length in (2, 129):
        with pytest.raises(
            UserError, match=f"max_length is {length}; expected 3 to 128, the model's positions"
        ):
            TextEncoder.open(encoder_folder, max_length=length)
    write_json(encoder_folder / "sentence_bert_config.json", {"max_seq_length": "long"})
    with pytest.raises(UserError, match=r"config.json: max_seq_length should be a number of tokens"):
        TextEncoder.open(encoder_folder)
    BertTokenizer([*TOKENIZER.tokens, "more"]).save_pretrained(encoder_folder)
    with pytest.raises(UserError, match="the vocabulary has 19 tokens but the model knows only 18"):
        TextEncoder.open(encoder_folder)


def test_capitals_that_the_library_would_lower_are_refused(encoder_folder):
    """Unless the tokenizer lowers them itself."""
    write_json(encoder_folder / "sentence_bert_config.json", {"max_seq_length": 8, "do_lower_case": True})
    assert TextEncoder.open(encoder_folder).tokenizer.lowercase
    BertTokenizer(TOKENIZER.tokens, lowercase=False).save_pretrained(encoder_folder)
    with pytest.raises(UserError, match="do_lower_case is not supported with a cased vocabulary"):
        TextEncoder.open(encoder_folder)


def test_a_model_may_have_more_rows_than_the_vocabulary_has_tokens(encoder_folder):
    expected = TextEncoder.open(encoder_folder).embed(["ann sings"])
    BertTokenizer(TOKENIZER.tokens[:-2]).save_pretrained(encoder_folder)
    np.testing.assert_array_equal(TextEncoder.open(encoder_folder).embed(["ann sings"]), expected)


# -- Words -------------------------------------------------------------------------------------------


def words_of(encoder, texts, batch_size=2, **choice):
    """All parts together: texts, words, spans, vectors."""
    parts = list(encoder.word_vectors(texts, WordChoice(**choice), batch_size))
    kept = [np.concatenate([getattr(part, name) for part in parts]) for name in ("texts", "spans", "vectors")]
    return kept[0], [word for part in parts for word in part.words], *kept[1:]


WRITTEN = ["Ann  sings!", "", "BOB dances in the river", "dances"]


@pytest.mark.parametrize("batch_size", [1, 3])
def test_words_have_the_hidden_states_of_their_tokens(encoder_folder, monkeypatch, batch_size):
    """Each text by itself, without batches: the mean of what the model gives, token by token."""
    monkeypatch.setattr("minibert.tasks.embed.BATCHES_HELD", 1)
    encoder = TextEncoder.open(encoder_folder, hidden_dropout_prob=0.5)
    texts, words, spans, vectors = words_of(encoder, WRITTEN, batch_size, layers=(-1, 0), combine="none")
    assert vectors.dtype == np.float32 and vectors.shape == (len(words), 2, 8)
    assert texts.tolist() == sorted(texts) and set(texts) == {0, 2, 3}
    for number, word, (start, stop) in zip(texts, words, spans, strict=True):
        assert WRITTEN[number][start:stop] == word
    for number, text in enumerate(WRITTEN):
        outputs, _ = encoder.model.forward(**encoder.tokenizer([text]), return_hidden_states=True)
        pieces = encoder.tokenizer.tokenize(text)
        begins = [i for i, piece in enumerate(pieces) if not piece.startswith("##")]
        runs = [list(range(a, b)) for a, b in pairwise([*begins, len(pieces)])]
        for k, layer in enumerate((1, 0)):
            states = to_numpy(outputs.hidden_states[layer])[0, 1:-1]
            expected = np.array([states[run].mean(axis=0) for run in runs]).reshape(-1, 8)
            np.testing.assert_allclose(vectors[texts == number, k], expected, rtol=1e-4, atol=1e-6)


def test_pieces_first_tokens_and_several_layers():
    encoder = TextEncoder.open("mini")
    texts = ["Unhappily, she left"]
    _, words, spans, apart = words_of(encoder, texts, layers=(4, 2), combine="none", pieces=True)
    assert words[:3] == ["Unhapp", "ily", ","] and spans[:2].tolist() == [[0, 6], [6, 9]]
    _, words, spans, mean = words_of(encoder, texts, layers=(4, 2))
    assert words[:2] == ["Unhappily", ","] and spans[0].tolist() == [0, 9]
    np.testing.assert_allclose(mean[0], apart[:2].mean(axis=(0, 1)), rtol=1e-4, atol=1e-6)
    _, _, _, first = words_of(encoder, texts, layers=(4, 2), combine="concat", pooling="first")
    np.testing.assert_array_equal(first[0], apart[0].ravel())
    assert WordChoice(layers=(4, 2), combine="concat").shape(256) == first.shape[1:] == (512,)


def test_blanks_are_no_words():
    """RoBERTa has tokens of spaces."""
    tokenizer = RobertaTokenizer.train(["the cat sat on the mat"] * 5, 280)
    sizes = dict(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
    config = RobertaConfig(vocab_size=len(tokenizer), **sizes, max_position_embeddings=32)
    encoder = TextEncoder(RobertaSentenceEncoder(config), tokenizer, 16)
    texts, words, spans, vectors = words_of(encoder, ["the  cat", "", "  "])
    assert words == ["the", "cat"] and texts.tolist() == [0, 0] and spans.tolist() == [[0, 3], [5, 8]]
    assert vectors.shape == (2, 8)


def test_long_texts_are_cut_and_counted(encoder_folder):
    encoder = TextEncoder.open(encoder_folder, max_length=5)
    [part] = encoder.word_vectors(["ann sings", "bob dances in the river"])
    assert part.words == ["ann", "sings", "bob", "dances", "in"] and part.cut == 1
    [part] = encoder.word_vectors(["ann in rome"])
    assert part.words == ["ann", "in", "rome"] and part.cut == 0, "it just fits"


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"layers": (0, 2)}, r"there is no layer 2; expected 0 \(the embeddings\) to 1 \(the last layer\)"),
        ({"layers": (-3,)}, "there is no layer -3; .* or -1 to -2"),
        ({"layers": ()}, "no layers; give at least one"),
        ({"layers": (1, -1)}, "of the layers 1, -1 some are the same one; give each once"),
        ({"combine": "max"}, "combine is 'max'; expected one of mean, concat, none"),
        ({"pooling": "cls"}, "pooling is 'cls'; expected one of mean, first"),
    ],
)
def test_vectors_that_there_are_not(encoder_folder, choice, message):
    with pytest.raises(UserError, match=message):
        words_of(TextEncoder.open(encoder_folder), ["ann"], **choice)

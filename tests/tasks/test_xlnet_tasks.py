"""The tasks with an XLNet: its <cls> is the last token, and its guesses are those of the query stream."""

from itertools import chain

import numpy as np
import pytest

from minibert.arrays import to_numpy
from minibert.data.tasks import Answer, Place, Question, TaggedSentence, question_windows, tagged_features
from minibert.errors import UserError
from minibert.heads import SentenceEncoder
from minibert.tasks import fill_mask
from minibert.tasks.embed import TextEncoder
from minibert.tasks.likelihood import SCORINGS, pseudo_log_likelihoods
from minibert.tasks.question_answering import WindowScores
from minibert.text import XLNetTokenizer
from minibert.variants.xlnet import XLNetConfig, XLNetLMHeadModel, XLNetModel

TEXTS = ["ann sings in rome", "lee is in a film", "ann is singing"]
TOKENIZER = XLNetTokenizer.train(TEXTS * 3, 40)
SIZES = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 12}
CONFIG = XLNetConfig(vocab_size=len(TOKENIZER), initializer_range=0.4, pad_token_id=TOKENIZER.pad_id, **SIZES)
PLACE = Place("here", 1)


def language_model(device="cpu"):
    model = XLNetLMHeadModel(CONFIG, device=device, dtype="float64", seed=3)
    model.eval()
    return model


def probabilities(model, ids, hidden, place):
    """p of every word at a place of a text, where nobody sees the hidden tokens: one query, written out."""
    length = len(ids)
    perm_mask, mapping = np.zeros((1, length, length)), np.zeros((1, 1, length))
    perm_mask[:, :, hidden], mapping[0, 0, place] = 1, 1
    types = [[0] * (length - 1) + [2]]
    outputs, _ = model.forward([ids], token_type_ids=types, perm_mask=perm_mask, target_mapping=mapping)
    scores = to_numpy(outputs.prediction_logits)[0, 0]
    return np.exp(scores) / np.exp(scores).sum()


def test_guesses_are_those_of_the_query_stream(device):
    guesses = fill_mask(language_model(device), TOKENIZER, "ann <mask> in <mask>", top_k=len(TOKENIZER))
    ids = TOKENIZER("ann <mask> in <mask>")["input_ids"]
    masks = [place for place, i in enumerate(ids) if i == TOKENIZER.mask_id]
    assert len(guesses) == len(masks) == 2
    for place, row in zip(masks, guesses, strict=True):
        p = probabilities(language_model(), ids, masks, place)
        order = np.argsort(-p)
        assert [token for token, _ in row] == [TOKENIZER.token_text(i) for i in order]
        assert [probability for _, probability in row] == pytest.approx(p[order], rel=1e-10)


def test_a_guess_does_not_depend_on_what_is_written_in_the_gap():
    model, ids = language_model(), TOKENIZER("ann <mask> in rome")["input_ids"]
    place = ids.index(TOKENIZER.mask_id)
    before = probabilities(model, ids, [place], place)
    other = [7 if i == TOKENIZER.mask_id else i for i in ids]
    np.testing.assert_array_equal(probabilities(model, other, [place], place), before)
    visible = probabilities(model, other, [], place)  # where the others see it, they tell of it
    assert np.abs(visible - before).max() > 1e-4


@pytest.mark.parametrize("scoring", SCORINGS)
def test_pseudo_log_likelihoods_are_those_of_a_plain_loop(device, scoring):
    expected, texts = [], [*TEXTS, "", "annsing romelee is"]
    for text in texts:
        ids, total = TOKENIZER(text)["input_ids"], 0.0
        for place in range(len(ids) - 2):
            hidden, later = [place], place + 1
            while scoring == "within_word_l2r" and TOKENIZER.continues_word[ids[later]]:
                hidden.append(later)
                later += 1
            total += np.log(probabilities(language_model(), ids, hidden, place)[ids[place]])
        expected.append(total)
    assert any(TOKENIZER.continues_word[i] for text in texts for i in TOKENIZER.token_ids(text))
    scores = pseudo_log_likelihoods(language_model(device), TOKENIZER, texts, scoring=scoring, batch_size=4)
    assert scores == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("pooling", ["mean", "max", "lasttoken"])
def test_vectors_of_texts_are_those_of_each_text_alone(tmp_path, pooling):
    """Whichever side the padding is on; and the last token is <cls>."""
    XLNetModel(CONFIG, seed=1).save_pretrained(tmp_path)
    TOKENIZER.save_pretrained(tmp_path)
    encoder = TextEncoder.open(tmp_path, pooling=pooling)
    vectors = encoder.embed(TEXTS)
    together, _ = encoder.model.forward(**TOKENIZER(TEXTS, padding=True))  # on the left
    np.testing.assert_allclose(to_numpy(together.embeddings), vectors, rtol=1e-4, atol=1e-5)
    for text, vector in zip(TEXTS, vectors, strict=True):
        states = to_numpy(encoder.model.forward(**TOKENIZER([text]))[0].last_hidden_state)[0]
        expected = {"mean": states.mean(axis=0), "max": states.max(axis=0), "lasttoken": states[-1]}[pooling]
        np.testing.assert_allclose(vector, expected, rtol=1e-4, atol=1e-5)
    assert isinstance(encoder.model, SentenceEncoder)
    with pytest.raises(UserError, match="XLNet's <cls> is the last: use 'lasttoken'"):
        TextEncoder.open(tmp_path, pooling="cls")


def test_windows_of_passages():
    """question <sep> passage <sep> <cls>; where there is no answer, both ends are at <cls>."""
    question = Question("1", "ann ?", TEXTS[0], "", (Answer("in rome", 10),))
    (window,) = question_windows([question], TOKENIZER, max_length=40, training=True)
    ids, (asked, read) = window.inputs["input_ids"], map(TOKENIZER.token_ids, ("ann ?", TEXTS[0]))
    assert ids.tolist() == [*asked, TOKENIZER.sep_id, *read, TOKENIZER.sep_id, TOKENIZER.cls_id]
    assert window.inputs["token_type_ids"].tolist() == [0] * (len(asked) + 1) + [1] * (len(read) + 1) + [2]
    assert (window.spans[:, 0] >= 0).tolist() == [False] * (len(asked) + 1) + [True] * len(read) + [False] * 2
    start, stop = window.inputs["start_positions"], window.inputs["end_positions"]
    assert window.answer_span(start, stop) == (10, 17)
    nothing = Question("2", "ann ?", TEXTS[0], "", ())
    (window,) = question_windows([nothing], TOKENIZER, max_length=40, training=True)
    assert window.inputs["start_positions"] == window.inputs["end_positions"] == len(ids) - 1
    scores = np.arange(len(ids), dtype=float)
    assert WindowScores(window, scores, 10 * scores).null_score == 11 * (len(ids) - 1)


def test_tagged_words():
    """words <sep> <cls>; the first word is the first token, and a row has at most max_length tokens."""
    words = ["ann", "is", "singing"]
    (feature,) = tagged_features([TaggedSentence(words, None, PLACE)], TOKENIZER, 40)
    pieces = [TOKENIZER.token_ids(word) for word in words]
    assert feature.inputs["input_ids"].tolist() == [*chain(*pieces), TOKENIZER.sep_id, TOKENIZER.cls_id]
    assert feature.inputs["token_type_ids"].tolist() == [0] * (len(feature) - 1) + [2]
    assert feature.positions.tolist() == [0, len(pieces[0]), len(pieces[0]) + len(pieces[1])]
    short = tagged_features([TaggedSentence(words, None, PLACE)], TOKENIZER, 3)
    assert [len(feature) for feature in short] == [3, 3, 3]

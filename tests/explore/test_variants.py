"""BERT's descendants on the page: an XLNet has rows besides those of the tokens, an ALBERT one layer."""

import numpy as np
import pytest

from minibert.errors import UserError
from minibert.explore.attributions import baseline, integrated_gradients
from minibert.explore.changes import Patch
from minibert.explore.look import look, words
from minibert.explore.passes import hide, run, words_in
from minibert.explore.provenance import provenance
from minibert.explore.session import Session
from minibert.explore.subjects import Words
from minibert.text import RobertaTokenizer, XLNetTokenizer
from minibert.variants.albert import AlbertConfig, AlbertForPreTraining
from minibert.variants.roberta import RobertaConfig, RobertaForMaskedLM
from minibert.variants.xlnet import XLNetConfig, XLNetLMHeadModel

SPECIAL = ["<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>"]
PIECES = [
    *((token, 0.0) for token in SPECIAL),
    *((f"▁{word}", -3.0) for word in "ann sings a fine film".split()),
]
SIZES = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 24, "initializer_range": 0.5}
TEXT = "ann sings a <mask> film"


@pytest.fixture
def xlnet(device):
    tokenizer = XLNetTokenizer(PIECES)
    config = XLNetConfig(vocab_size=len(tokenizer), num_hidden_layers=2, pad_token_id=5, **SIZES)
    return Words(XLNetLMHeadModel(config, dtype="float64", seed=2, device=device), tokenizer)


def test_an_xlnet_has_a_query_besides_its_tokens(xlnet):
    shown, found = look(xlnet, xlnet.encode(TEXT))
    length = len(shown["tokens"])
    assert shown["maps"]["shape"] == [2, 2, length + 1, length] and shown["rollout"] is None
    assert all(len(value["norms"]) in (length, length + 1) for value in shown["values"])
    last = shown["values"][-1]
    assert last["dnorms"][:length] == [0] * length and last["dnorms"][length] > 0
    assert shown["answer"] == shown["guesses"][0]["number"] == found.question.answer
    told = provenance(xlnet.model, last["name"])
    assert told.equation == told.shape == ""


def test_the_weights_of_the_query_can_be_pinned(xlnet):
    session = Session(xlnet)
    before = session.look(TEXT)["loss"]
    length = len(session._found.sentence)
    change = {"kind": "weight", "layer": 1, "head": 0, "query": length, "key": 1, "weight": 0.9}
    assert session.look(TEXT, changes=[change])["loss"] != before
    row = session._found.values["bert.encoder.layer.1.attention.self.probabilities"][0, length]
    assert row[1] == pytest.approx(0.9)
    with pytest.raises(UserError, match=f"query is {length + 1}; expected a whole number from 0 to {length}"):
        session.look(TEXT, changes=[change | {"query": length + 1}])


def test_the_integral_is_over_the_embeddings_alone(xlnet):
    """Who sees whom stays as it is on the way, though the words of the baseline are all hidden."""
    _, found = look(xlnet, xlnet.encode(TEXT))
    blank = found.sentence
    for place in words_in(blank, xlnet.tokenizer):
        blank = hide(blank, place, xlnet.tokenizer)
    name = next(iter(found.values))
    there = run(xlnet.model, blank, found.question, names=[name], backward=False).values[name]
    np.testing.assert_array_equal(baseline(xlnet.model, found, xlnet.tokenizer, name), there)
    shares = integrated_gradients(xlnet.model, found, there, name, nodes=100)

    patch = Patch(name, (), xlnet.model.device.asarray(there))
    below = run(xlnet.model, found.sentence, found.question, changes=[patch], backward=False)
    assert shares.sum() == pytest.approx(below.loss - found.loss, rel=5e-7)
    assert len(words(xlnet, found)[2]["values"]) == len(found.sentence)


def test_the_layers_of_an_albert_name_the_parameters_that_there_are(device):
    config = AlbertConfig(vocab_size=20, num_hidden_layers=3, embedding_size=8, **SIZES)
    model = AlbertForPreTraining(config, device=device)
    known = {name for name, _ in model.named_parameters()}
    for layer in range(3):
        told = provenance(model, f"bert.encoder.layer.{layer}.intermediate").parameters
        assert len(told) == 2 and set(told) <= known


def test_an_answer_is_a_words_beginning_before_it_is_an_end():
    tokenizer = RobertaTokenizer.train(
        ["a lower tower . a low town . lowlow the low owl"] * 3, vocab_size=275
    )
    names = [tokenizer.token_text(i) for i in range(len(tokenizer))]
    assert "low" in names and " low" in names
    subject = object.__new__(Words)
    subject.tokenizer, subject._names = tokenizer, names
    assert names[subject.number_of("low")] == " low"
    assert subject.number_of("Ġlow") == subject.number_of("low")


def test_a_padded_vocabulary_and_an_unknown_word(xlnet):
    tokenizer = xlnet.tokenizer
    config = XLNetConfig(vocab_size=len(tokenizer) + 8, num_hidden_layers=1, pad_token_id=5, **SIZES)
    session = Session(Words(XLNetLMHeadModel(config, dtype="float64"), tokenizer))
    shown = session.look("ann qqq a <mask>")
    assert shown["tokens"].index("<unk>") in shown["words"]
    told = session.parameter("bert.embeddings.word_embeddings.weight")
    assert {"▁ann", "21"} <= set(told["names"]) and np.isfinite(shown["loss"])


def test_a_guess_without_letters_is_called_as_the_vocabulary_writes_it():
    tokenizer = RobertaTokenizer.train(["a low tower . a low town"] * 3, vocab_size=275)
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 24, "num_hidden_layers": 1}
    subject = Words(RobertaForMaskedLM(RobertaConfig(vocab_size=len(tokenizer), **sizes)), tokenizer)
    assert all(name.strip() for name in subject.names)

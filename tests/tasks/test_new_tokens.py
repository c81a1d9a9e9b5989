"""A model gets new tokens: their rows, the score of each, and a run that begins with them."""

import json
import shutil

import numpy as np
import pytest

from minibert.arrays import to_numpy
from minibert.bert import BertForMaskedLM, BertForPreTraining
from minibert.cli import main
from minibert.errors import UserError
from minibert.heads import BertForTokenClassification
from minibert.tasks import prepare, pretrain
from minibert.tasks.new_tokens import add_rows
from minibert.tasks.pretraining_model import make_model
from minibert.text import BertTokenizer, open_tokenizer
from minibert.variants import FAMILIES, open_model
from minibert.variants.electra_training import ElectraGeneratorAndDiscriminator, generator_config

PIECES = [(7, 3), (5,), (1, 2, 2)]
SIZES = {
    "vocab_size": 11,
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "max_position_embeddings": 16,
}


def masked_lm(name: str):
    """A small model of the family in float64, with a random bias, in evaluation mode."""
    family = FAMILIES[name]
    embedding = {"embedding_size": 4} if name in ("albert", "electra") else {}
    sizes = {key: size for key, size in SIZES.items() if name != "xlnet" or key != "max_position_embeddings"}
    model = family.models[BertForMaskedLM](family.config(**sizes, **embedding), dtype="float64", seed=1)
    bias = model.cls.predictions.bias
    bias.value = np.random.default_rng(0).standard_normal(bias.shape)
    model.eval()
    return model


def scores(model):
    ids = np.array([[2, 7, 3, 9, 4], [2, 5, 5, 10, 8]])
    return to_numpy(model.forward(ids)[0].prediction_logits)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_score_of_a_new_word_is_the_mean_of_its_pieces_in_every_family(name):
    model = masked_lm(name)
    before = scores(model)
    add_rows(model, PIECES, first=11)
    after = scores(model)
    assert model.config.vocab_size == 14 and after.shape == (2, 5, 14)
    np.testing.assert_array_equal(after[..., :11], before)
    means = np.stack([before[..., list(ids)].mean(-1) for ids in PIECES], axis=-1)
    np.testing.assert_allclose(after[..., 11:], means, rtol=1e-12, atol=1e-14)
    rows = to_numpy(model.bert.embeddings.word_embeddings.weight.value)
    np.testing.assert_allclose(rows[11:], [rows[list(ids)].mean(0) for ids in PIECES], rtol=1e-14)


def test_spare_rows_are_used_first():
    model = masked_lm("bert")
    old = to_numpy(model.bert.embeddings.word_embeddings.weight.value).copy()
    add_rows(model, PIECES, first=9)  # the vocabulary has 9 tokens, the model 11 rows
    rows = to_numpy(model.bert.embeddings.word_embeddings.weight.value)
    assert rows.shape == (12, 8) and model.config.vocab_size == 12
    np.testing.assert_array_equal(rows[:9], old[:9])
    np.testing.assert_allclose(rows[9:], [old[list(ids)].mean(0) for ids in PIECES], rtol=1e-14)
    for first in (11, 9):
        add_rows(model, [(1,)], first=first)
        assert model.config.vocab_size == 12, "no row is lost"


def test_the_larger_model_learns_and_is_saved(tmp_path):
    model = masked_lm("bert")
    add_rows(model, PIECES, first=11)
    ids = np.array([[2, 13, 12, 11]])
    _, cache = model.forward(ids, labels=np.array([[-100, 13, -100, 11]]))
    model.zero_grad()
    model.backward(cache)
    assert np.abs(model.bert.embeddings.word_embeddings.weight.grad[11:]).min() > 0
    assert model.cls.predictions.bias.grad[13] < 0 < model.cls.predictions.bias.grad[12]
    model.save_pretrained(tmp_path)
    again = BertForMaskedLM.from_pretrained(tmp_path, dtype="float64")
    np.testing.assert_array_equal(scores(again), scores(model))
    assert json.loads((tmp_path / "config.json").read_text())["vocab_size"] == 14


def test_the_two_models_of_an_electra_share_the_new_rows():
    config = FAMILIES["electra"].config(**SIZES, embedding_size=4)
    model = ElectraGeneratorAndDiscriminator(config, generator_config(config, 0.5), dtype="float64")
    add_rows(model, PIECES, first=11)
    table = model.discriminator.bert.embeddings.word_embeddings.weight
    assert table is model.generator.bert.embeddings.word_embeddings.weight and table.shape == (14, 4)
    assert model.generator.cls.predictions.bias.shape == (14,)
    assert {part.config.vocab_size for part in (model, model.discriminator, model.generator)} == {14}
    ids = np.array([[2, 13, 12, 11]])
    batch = {
        "input_ids": ids,
        "labels": np.array([[-100, 13, -100, 11]]),
        "attention_mask": np.ones_like(ids),
    }
    assert np.isfinite(model.forward(**batch)[0].loss)


# -- A run -------------------------------------------------------------------------------------------

FROM_MODEL = dict.fromkeys(
    "vocab_size hidden_size num_attention_heads num_hidden_layers max_position_embeddings".split()
)


@pytest.fixture
def trained(small):
    """The folder of a small model, and a maker of settings of runs that begin from it."""
    pretrain(small(name="old", steps=2, vocab_size=60))
    folder = small(name="old").folder / "final"
    return folder, lambda **changes: small(**FROM_MODEL | {"model": str(folder), **changes})


def test_a_run_with_new_tokens_and_its_resumption(trained, tmp_path, capsys):
    folder, from_it = trained
    (tmp_path / "words.txt").write_text("Xylophone\nthe\n")
    new = dict(add_tokens=str(tmp_path / "words.txt"), learn_tokens=3)
    whole = from_it(name="whole", **new)
    pretrain(whole)
    told = capsys.readouterr().out
    assert "words.txt: 1 new tokens; 1 of them normalised (Xylophone → xylophone)" in told
    assert "new tokens: 4; tokens per word: " in told
    before, after = (
        float(number) for number in told.split("tokens per word: ")[1].split(" now")[0].split(" before, ")
    )
    assert after < before
    old, final = open_tokenizer(folder), open_tokenizer(whole.folder / "final")
    assert final.tokens[: len(old)] == old.tokens and len(final) == len(old) + 4
    assert final.tokenize("the xylophone") == ["the", "xylophone"]
    model = BertForPreTraining.from_pretrained(whole.folder / "final", complete=True)
    assert model.config.vocab_size == len(final)

    weights = (whole.folder / "final" / "model.safetensors").read_bytes()
    shutil.rmtree(whole.folder / "checkpoint-6")
    pretrain(whole.replace(resume=True))
    assert "reused from" in capsys.readouterr().out
    assert (whole.folder / "final" / "model.safetensors").read_bytes() == weights
    with pytest.raises(UserError, match="was started with learn_tokens = 3, not 2"):
        pretrain(whole.replace(learn_tokens=2, resume=True))


def test_new_tokens_of_two_models_with_one_vocabulary(trained, tmp_path):
    folder, from_it = trained
    (tmp_path / "words.txt").write_text("xylophone\n")
    other = shutil.copytree(folder, tmp_path / "other")
    options = {"strip_accents": False, "model_max_length": 16}
    BertTokenizer(open_tokenizer(folder).tokens, **options).save_pretrained(other)
    for model, expected in ((folder, (None, None)), (other, (False, 16))):
        tokenizer, _ = prepare(from_it(model=str(model), add_tokens=str(tmp_path / "words.txt")))
        assert "xylophone" in tokenizer.vocab
        assert (tokenizer.strip_accents, tokenizer.model_max_length) == expected


def test_a_model_that_was_a_tagger_is_none_afterwards(trained, tmp_path):
    folder, from_it = trained
    tags = {"id2label": {0: "O", 1: "B-x"}, "crf": True}
    BertForTokenClassification.from_pretrained(folder, **tags).save_pretrained(tmp_path / "tagger")
    open_tokenizer(folder).save_pretrained(tmp_path / "tagger")
    run = from_it(name="again", model=str(tmp_path / "tagger"), steps=1)
    pretrain(run)
    config = BertForPreTraining.from_pretrained(run.folder / "final").config
    assert (config.crf, config.id2label) == (False, None)


def test_new_tokens_are_for_a_model(small, tmp_path, capsys):
    with pytest.raises(UserError, match=r"new tokens .* are for a model with a vocabulary"):
        pretrain(small(learn_tokens=5))
    assert main(["pretrain", "--add-tokens", "words.txt"]) == 2
    assert "give --model, or leave them out" in capsys.readouterr().err


def test_a_run_begins_with_the_rows_of_the_pieces(trained):
    folder, from_it = trained
    settings = from_it(learn_tokens=2).with_sizes().replace(precision="float32")
    old = BertTokenizer.from_pretrained(folder)
    word = "xyzzy"
    larger = old.with_tokens([word])
    model = make_model(settings, open_model(BertForPreTraining, folder).device, larger, None)
    rows = model.bert.embeddings.word_embeddings.weight.value
    np.testing.assert_allclose(rows[-1], rows[list(old.pieces(word))].mean(0), rtol=1e-6)

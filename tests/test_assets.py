"""The models that come with the package: how they are called, and what is said of them."""

import re
import warnings

import pytest

from minibert import assets
from minibert.bert import BertConfig, BertForPreTraining
from minibert.errors import UserError
from minibert.folders.weights import open_weights
from minibert.tasks import export, fill_mask
from minibert.text import BertTokenizer

TOKENS = "[PAD] [UNK] [CLS] [SEP] [MASK] the river".split()


def write_model(folder, layers):
    config = BertConfig(
        vocab_size=len(TOKENS),
        hidden_size=4,
        num_hidden_layers=layers,
        num_attention_heads=2,
        intermediate_size=8,
        max_position_embeddings=8,
    )
    BertForPreTraining(config).save_pretrained(folder)
    BertTokenizer(TOKENS).save_pretrained(folder)


def test_a_name_is_a_model_of_the_package_unless_there_is_a_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(assets, "ASSETS", tmp_path / "assets")
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "assets" / "pico", layers=1)
    assert assets.model_names() == ["pico"]

    def layers():
        assert BertTokenizer.from_pretrained("pico").tokens == TOKENS
        assert BertConfig.from_pretrained("pico") == BertForPreTraining.from_pretrained("pico").config
        export("pico", tmp_path / f"copy {len(list(tmp_path.iterdir()))}")
        return BertConfig.from_pretrained("pico").num_hidden_layers

    assert layers() == 1
    write_model(tmp_path / "pico", layers=2)
    assert layers() == 2


def test_what_is_neither_is_told_what_there_is(tmp_path, monkeypatch):
    monkeypatch.setattr(assets, "ASSETS", tmp_path)
    write_model(tmp_path / "pico", layers=1)
    with pytest.raises(
        UserError, match=r"^pica: no such folder, nor a model that comes with minibert \(pico\)"
    ):
        BertForPreTraining.from_pretrained("pica")


# -- mini --------------------------------------------------------------------------------------------

MINI = assets.ASSETS / "mini"


@pytest.fixture(scope="module")
def mini():
    """The model and its vocabulary, opened without a warning."""
    with warnings.catch_warnings(action="error"):
        return BertForPreTraining.from_pretrained("mini"), BertTokenizer.from_pretrained("mini")


def test_it_is_small_and_whole(mini):
    model, tokenizer = mini
    assert sum(path.stat().st_size for path in MINI.rglob("*")) <= 12_000_000
    assert {tensor.dtype for tensor in open_weights(MINI).values()} == {"F16"}
    assert len(tokenizer) == model.config.vocab_size and tokenizer.lowercase


def test_its_card_tells_of_the_data_the_licence_and_the_results(mini):
    model, _ = mini
    card = (MINI / "README.md").read_text(encoding="utf-8")
    for told in (
        *("license: cc-by-sa-3.0", "CC BY-SA 3.0 and the GFDL", "authors named in their histories"),
        *("10,582 articles of the English Wikipedia", "90 English novels", "It must not judge people."),
        "--corpus large",
        f"| parameters | {sum(parameter.size for parameter in model.buffers.parameters):,} |",
    ):
        assert told in card, told
    for measured in ("masked words, loss", "masked words, accuracy", "sentence pairs \\(NSP\\), accuracy"):
        assert re.search(rf"\| {measured}[^|]*\| \d\.\d{{4}} \|", card), measured
    for picture in re.findall(r"!\[[^]]*\]\(([^)]*)\)", card):
        assert (MINI / picture).read_bytes().startswith(b"\x89PNG")


EASY = {
    "the [MASK] states of america": "united",
    "he was born in london [MASK] 1950 .": "in",
    "the university [MASK] california": "of",
    "he went to school in new [MASK] city .": "york",
    "he was one of the greatest writers of the nineteenth [MASK] .": "century",
    "the album was [MASK] in 2004 .": "released",
    "i do not know what to [MASK] .": "do",
    "she opened the [MASK] and went into the room .": "door",
}


def test_it_has_learned_something(mini):
    """The commonest tokens are no answer to most of these."""
    guesses = {text: [token for token, _ in fill_mask(*mini, text)[0]] for text in EASY}
    right = [word for text, word in EASY.items() if word in guesses[text]]
    assert len(right) >= 6, guesses

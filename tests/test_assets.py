"""The models that come with the package, by their names."""

import pytest

from minibert import assets
from minibert.bert import BertConfig, BertForPreTraining
from minibert.errors import UserError
from minibert.tasks import export
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

import re
import shlex
from pathlib import Path

import pytest

from minibert.bert import BertConfig, BertForMaskedLM, BertForNextSentencePrediction, BertForPreTraining
from minibert.cli import parse
from minibert.errors import UserError
from minibert.heads import (
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    SentenceEncoder,
)
from minibert.tasks.model_card import write_model_card
from minibert.text import BertTokenizer

TOKENIZER = BertTokenizer("[PAD] [UNK] [CLS] [SEP] [MASK] a text ? another".split())
SIZES = {"vocab_size": 9, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
SIZES |= {"intermediate_size": 16, "max_position_embeddings": 32}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """folder(Model, …): the model in a folder, the current one, with a vocabulary."""
    monkeypatch.chdir(tmp_path)

    def write(Model, **settings):
        Model(BertConfig(**SIZES, **settings)).save_pretrained(tmp_path)
        TOKENIZER.save_pretrained(tmp_path)
        return tmp_path

    return write


def card(folder, **told):
    write_model_card(folder, **({"name": "mine", "data": {}, "recipe": {}} | told))
    return (folder / "README.md").read_text(encoding="utf-8")


def test_a_card_has_room_for_more(folder):
    sections = {"Licence": "It is free.", "Nothing": ""}
    text = card(folder(BertForMaskedLM), licence="mit", sections=sections)
    assert text.startswith("---\nlicense: mit\npipeline_tag: fill-mask\n")
    assert "\n\n## Licence\n\nIt is free.\n\n## Use\n" in text and "Nothing" not in text
    plain = card(folder(BertForMaskedLM))
    assert plain.startswith("---\npipeline_tag: fill-mask\ntags:\n- bert\n---\n") and plain.endswith(".\n")


@pytest.mark.parametrize(
    ("Model", "asked"), [(BertForSequenceClassification, True), (BertForMaskedLM, False)]
)
def test_only_a_classifier_can_be_one_of_pairs(folder, Model, asked):
    pairs, single = card(folder(Model), pairs=True), card(folder(Model))
    assert ("to a pair of texts" in pairs) == ('--pair "another text"' in pairs) == asked
    assert "pair of texts" not in single and (pairs == single) != asked


def test_a_card_tells_what_is_known(folder):
    text = card(
        folder(BertForTokenClassification, id2label={0: "B-person", 1: "O"}, crf=True),
        name="wnut17",
        data={"train": "train.conll, 3,394 sentences", "dev": "dev.conll, 1,009 sentences"},
        recipe={"began from": "minilm", "epochs": 3, "columns": "a|b", "crf": True},
        command="minibert finetune --task tag",
        scores={"f1": [0.25, 0.5], "recall": [0.75, 0.75]},
        scored_on="dev.conll",
        best=1,
        limits=["Learned in English."],
    )
    parameters = 9 * 8 + 32 * 8 + 2 * 8 + 16  # embeddings and their norm
    parameters += 4 * (8 * 8 + 8) + 16 + (8 * 16 + 16) + (16 * 8 + 8) + 16  # the layer
    parameters += 2 * 8 + 2 + 2 * 2 + 2 + 2  # classifier, CRF
    for line in (
        "pipeline_tag: token-classification",
        "# wnut17",
        "A BERT that tags the words of a text, made with minibert.",
        "| hidden size | 8 |",
        "| on top | a linear-chain CRF (transformers opens this model without it) |",
        f"| parameters | {parameters:,} |",
        "| vocabulary | 9 tokens, lower-cased |",
        "| longest input | 32 tokens |",
        "| labels | B-person, O |",
        "| train | train.conll, 3,394 sentences |",
        "| epochs | 3 |",
        "| crf | yes |",
        r"| columns | a\|b |",
        "minibert finetune --task tag",
        "Measured on dev.conll. This model is restart 2 of 2.",
        "| f1 | 0.5000 | 0.3750 ± 0.1768 |",
        "| recall | 0.7500 | 0.7500 ± 0.0000 |",
        "- Learned in English.",
    ):
        assert line in text.splitlines(), line


def test_what_is_not_known_is_not_mentioned(folder):
    text = card(folder(BertForQuestionAnswering))
    assert re.findall("^## (.*)", text, re.MULTILINE) == ["Use", "Limits"]
    assert "labels" not in text and "CRF" not in text
    single = card(folder(BertForQuestionAnswering), scores={"f1": [0.75]})
    assert "| f1 | 0.7500 |" in single and "restart" not in single and "±" not in single


KINDS = {
    BertForSequenceClassification: "minibert predict",
    BertForTokenClassification: "minibert predict",
    BertForPreTraining: "minibert fill-mask",
    BertForMaskedLM: "minibert fill-mask",
    SentenceEncoder: "minibert embed",
}


@pytest.mark.parametrize("Model", KINDS)
def test_what_a_card_says_of_its_use_works(folder, Model, capsys):
    Path("texts.txt").write_text("a text\nanother text\n")
    text = card(folder(Model)).replace("FOLDER", str(folder(Model)))
    (command,) = re.findall(r"^```sh\n(.*?)\n```", text, re.MULTILINE | re.DOTALL)
    assert command.startswith(KINDS[Model])
    flags = parse(shlex.split(command)[1:])
    flags.run(flags)
    assert capsys.readouterr().out
    (program,) = re.findall(r"^```python\n(.*?)\n```", text, re.MULTILINE | re.DOTALL)
    *lines, last = program.splitlines()
    names = {}
    exec("\n".join(lines), names)
    assert len(eval(last, names))


def test_pairs_are_asked_as_pairs(folder):
    text = card(folder(BertForSequenceClassification), pairs=True)
    assert 'minibert predict --model FOLDER "a text" --pair "another text"' in text
    assert 'predict_texts("FOLDER", ["a text"], ["another text"])' in text
    assert "A BERT that gives a label or a number to a pair of texts" in text


def test_a_sentence_encoder_has_a_card(folder):
    assert "pipeline_tag: sentence-similarity" in card(folder(SentenceEncoder))


def test_a_model_without_a_use_of_its_own_has_none(folder):
    with pytest.raises(
        UserError, match="a model of class BertForNextSentencePrediction; there are cards for"
    ):
        card(folder(BertForNextSentencePrediction))

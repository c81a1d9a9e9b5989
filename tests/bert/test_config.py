"""Configurations: the released sizes, and every value that is refused."""

import json

import pytest

from minibert.bert import PRESETS, BertConfig
from minibert.errors import UserError

RELEASED = {  # layers, hidden size, heads, feed-forward size; google-research/bert's table
    "tiny": (2, 128, 2, 512),
    "mini": (4, 256, 4, 1024),
    "small": (4, 512, 8, 2048),
    "medium": (8, 512, 8, 2048),
    "base": (12, 768, 12, 3072),
    "large": (24, 1024, 16, 4096),
    "L2-H128": (2, 128, 2, 512),
    "L6-H768": (6, 768, 12, 3072),
    "L10-H256": (10, 256, 4, 1024),
    "L12-H512": (12, 512, 8, 2048),
}


def sizes(config):
    return (
        config.num_hidden_layers,
        config.hidden_size,
        config.num_attention_heads,
        config.intermediate_size,
    )


@pytest.mark.parametrize("name", RELEASED)
def test_released_sizes(name):
    config = BertConfig.preset(name)
    assert sizes(config) == RELEASED[name]
    assert (config.vocab_size, config.max_position_embeddings, config.type_vocab_size) == (30522, 512, 2)
    assert (config.hidden_act, config.layer_norm_eps, config.initializer_range) == ("gelu", 1e-12, 0.02)
    assert config.hidden_dropout_prob == config.attention_probs_dropout_prob == 0.1


def test_all_twenty_four_small_ones_are_there():
    grid = {f"L{layers}-H{hidden}" for layers in (2, 4, 6, 8, 10, 12) for hidden in (128, 256, 512, 768)}
    assert PRESETS.keys() == grid | {"tiny", "mini", "small", "medium", "base", "large"}
    assert all(BertConfig.preset(name) for name in PRESETS)


def test_the_default_is_base():
    assert BertConfig() == BertConfig.preset("base")


def test_overrides():
    config = BertConfig.preset("tiny", vocab_size=100, num_hidden_layers=3)
    assert (config.vocab_size, *sizes(config)) == (100, 3, 128, 2, 512)
    assert sizes(BertConfig.preset("tiny", hidden_size=192)) == (2, 192, 3, 768), "heads and F follow H"
    assert sizes(BertConfig.preset("tiny", hidden_size=8)) == (2, 8, 1, 32)
    assert sizes(BertConfig.preset("tiny", num_attention_heads=4, intermediate_size=9)) == (2, 128, 4, 9)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"vocab_size": 0}, "vocab_size must be a whole number of at least 1, got 0"),
        ({"hidden_size": -8}, "hidden_size must be a whole number of at least 1, got -8"),
        ({"num_hidden_layers": 2.0}, "num_hidden_layers must be a whole number of at least 1, got 2.0"),
        ({"num_attention_heads": True}, "num_attention_heads must be a whole number"),
        ({"intermediate_size": "20"}, "intermediate_size must be a whole number of at least 1, got '20'"),
        ({"max_position_embeddings": None}, "max_position_embeddings must be a whole number"),
        ({"hidden_size": 100}, "hidden_size 100 is not divisible by num_attention_heads 12"),
        ({"hidden_dropout_prob": 1.0}, "hidden_dropout_prob must be a number of at least 0 and below 1"),
        ({"hidden_dropout_prob": -0.1}, "hidden_dropout_prob must be .*, got -0.1"),
        ({"hidden_dropout_prob": None}, "hidden_dropout_prob must be .*, got None"),
        ({"attention_probs_dropout_prob": "0.1"}, "attention_probs_dropout_prob must be .*, got '0.1'"),
        ({"attention_probs_dropout_prob": float("nan")}, "attention_probs_dropout_prob must be .*, got nan"),
        ({"layer_norm_eps": "1e-12"}, "layer_norm_eps must be a number"),
        ({"layer_norm_eps": -1e-12}, "layer_norm_eps must be a number of at least 0"),
        ({"initializer_range": float("inf")}, "initializer_range must be .*, got inf"),
        ({"loss_denominator_epsilon": -1}, "loss_denominator_epsilon must be a number of at least 0"),
        ({"hidden_act": "swish"}, "unknown hidden_act 'swish'; expected one of gelu, gelu_new"),
        ({"hidden_act": ["gelu"]}, r"unknown hidden_act \['gelu'\]"),
        (
            {"position_initializer": "x"},
            "unknown position_initializer 'x'; expected one of normal, sinusoidal",
        ),
        ({"initializer": "zeros"}, "unknown initializer 'zeros'; expected one of truncated_normal, normal"),
        ({"pad_token_id": 30522}, "pad_token_id must be an id below 30522 or null, got 30522"),
        ({"pad_token_id": -1}, "pad_token_id must be .*, got -1"),
        ({"pad_token_id": False}, "pad_token_id must be .*, got False"),
        ({"vocab_size": 10**7 + 1}, "vocab_size must be at most 10,000,000, got 10000001"),
        ({"is_decoder": "no"}, "is_decoder must be true or false, got 'no'"),
        ({"crf": 1}, "crf must be true or false, got 1"),
        ({"classifier_pooling": "mean"}, "unknown classifier_pooling 'mean'; expected one of cls, lasttoken"),
        ({"num_labels": 0}, "num_labels must be a whole number of at least 1, got 0"),
        ({"num_labels": 10_001}, "num_labels must be at most 10,000"),
        ({"classifier_dropout": 1.0}, "classifier_dropout must be a number of at least 0 and below 1"),
        ({"problem_type": "ranking"}, "unknown problem_type 'ranking'; expected one of regression, single_"),
        ({"problem_type": "single_label_classification", "num_labels": 1}, "needs at least 2 labels"),
        ({"id2label": ["A", "B"]}, r"id2label must name the labels 0, 1, 2, …, got \['A', 'B'\]"),
        ({"id2label": {}}, "id2label must name the labels"),
        ({"id2label": {0: "A", 2: "B"}}, "id2label must name the labels 0, 1, 2, …"),
        ({"id2label": {0: "A", "0": "B"}}, "id2label must name the labels 0, 1, 2, …"),
        ({"id2label": {0: "A", 1: 5}}, "id2label must map every label to a text"),
        ({"id2label": {0: "A"}, "num_labels": 3}, "num_labels is 3, but id2label names 1 labels"),
    ],
)
def test_values_that_are_refused(values, message):
    with pytest.raises(UserError, match=message):
        BertConfig(**values)


def test_labels():
    """As transformers has them: names by number, as text in a file, and the inverse."""
    assert BertConfig(num_labels=3).labels == ["LABEL_0", "LABEL_1", "LABEL_2"]
    for names in ({0: "no", 1: "yes", 2: "?"}, {"2": "?", "0": "no", "1": "yes"}):
        config = BertConfig(id2label=names, label2id={"whatever": 7})
        assert config.num_labels == 3 and config.labels == ["no", "yes", "?"]
        assert config.id2label == {0: "no", 1: "yes", 2: "?"}
        assert config.label2id == {"no": 0, "yes": 1, "?": 2}


def test_replace():
    """New labels take the place of the old ones; the rest stays."""
    config = BertConfig(hidden_size=24, id2label={0: "a", 1: "b", 2: "c"}, crf=True)
    assert config.replace(crf=False).labels == ["a", "b", "c"]
    assert config.replace(num_labels=4).labels == ["LABEL_0", "LABEL_1", "LABEL_2", "LABEL_3"]
    assert config.replace(id2label={0: "x", 1: "y"}).labels == ["x", "y"]
    assert config.replace(num_labels=2).hidden_size == 24
    assert config.labels == ["a", "b", "c"]
    with pytest.raises(UserError, match="unknown model setting 'labels'"):
        config.replace(labels=["x"])


def test_settings_take_the_place_of_those_in_the_file(tmp_path):
    BertConfig(hidden_size=24, id2label={0: "a", 1: "b", 2: "c"}).save_pretrained(tmp_path)
    assert BertConfig.from_pretrained(tmp_path).labels == ["a", "b", "c"]
    assert BertConfig.from_pretrained(tmp_path, num_labels=5, crf=True) == BertConfig(
        hidden_size=24, num_labels=5, crf=True
    )


def test_unknown_names():
    with pytest.raises(UserError, match="unknown preset 'huge'; expected one of tiny, mini"):
        BertConfig.preset("huge")
    with pytest.raises(UserError, match=r"unknown model setting 'hiden_size'; did you mean 'hidden_size'\?"):
        BertConfig.preset("tiny", hiden_size=8)
    with pytest.raises(UserError, match=r"unknown model setting 'xyzzy'; expected one of .*hidden_size, "):
        BertConfig.from_dict({"xyzzy": 1})
    with pytest.raises(UserError, match="hidden_size must be a whole number of at least 1, got '128'"):
        BertConfig.preset("tiny", hidden_size="128")


def test_round_trip(tmp_path):
    config = BertConfig.preset("mini", vocab_size=99, hidden_act="relu", is_decoder=True, layer_norm_eps=1e-5)
    config.save_pretrained(tmp_path)
    assert BertConfig.from_pretrained(tmp_path) == config == BertConfig.from_dict(config.to_dict())
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "bert"


def write(folder, values):
    (folder / "config.json").write_text(json.dumps(values))


def test_fields_of_transformers_that_mean_nothing_here_are_left_aside(tmp_path):
    write(tmp_path, {"model_type": "bert", "hidden_size": 24, "architectures": ["BertModel"], "use_cache": 1})
    assert BertConfig.from_pretrained(tmp_path) == BertConfig(hidden_size=24)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model_type": "roberta"}, "not the configuration of a model of type 'bert'"),
        ([1, 2], "not the configuration of a model of type 'bert'"),
        ({"position_embedding_type": "relative_key"}, "only absolute position embeddings"),
        ({"hidden_size": 13}, "hidden_size 13 is not divisible by num_attention_heads 12"),
        ({"hidden_dropout_prob": None}, "hidden_dropout_prob must be a number"),
    ],
)
def test_files_that_are_refused_are_named(tmp_path, values, message):
    write(tmp_path, values)
    with pytest.raises(UserError, match=rf"config\.json: {message}"):
        BertConfig.from_pretrained(tmp_path)


def test_a_model_without_a_padding_token(tmp_path):
    write(tmp_path, {"pad_token_id": None})
    assert BertConfig.from_pretrained(tmp_path) == BertConfig(pad_token_id=None)


def test_missing_and_damaged_files(tmp_path):
    with pytest.raises(UserError, match=r"config\.json: no such model configuration"):
        BertConfig.from_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"hidden_size": 24')
    with pytest.raises(UserError, match=r"config\.json: this model configuration is not valid JSON"):
        BertConfig.from_pretrained(tmp_path)

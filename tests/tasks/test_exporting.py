import json
import warnings

import numpy as np
import pytest
from model_files import split_model
from safetensors.numpy import load_file, save_file

from minibert.arrays import to_numpy
from minibert.bert import BertConfig, BertForPreTraining, BertModel
from minibert.errors import UserError
from minibert.files import write_json
from minibert.heads import BertForSequenceClassification, BertForTokenClassification, SentenceEncoder
from minibert.tasks import export
from minibert.tasks.model_card import write_model_card
from minibert.text import BertTokenizer
from minibert.variants.electra import ElectraConfig
from minibert.variants.electra_training import (
    GENERATOR,
    ElectraGeneratorAndDiscriminator,
    generator_config,
)

TOKENS = "[PAD] [UNK] [CLS] [SEP] [MASK] the river is long".split()
CONFIG = BertConfig(
    vocab_size=len(TOKENS),
    hidden_size=8,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=16,
    max_position_embeddings=10,
)


@pytest.fixture
def folder(tmp_path):
    """A checkpoint, with all that may lie beside a model."""
    folder = tmp_path / "model"
    BertForPreTraining(CONFIG, seed=1).save_pretrained(folder)
    BertTokenizer(TOKENS).save_pretrained(folder)
    (folder / "README.md").write_text("a model card")
    (folder / "loss.png").write_bytes(b"a picture")
    (folder / "state.json").write_text("{}")
    (folder / "optimiser.safetensors").write_bytes(b"moments")
    return folder


def open_quietly(model_class, folder):
    with warnings.catch_warnings(action="error"):
        return model_class.from_pretrained(folder)


def values(model):
    return {name: parameter.value for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("positions", [4, 25])
def test_fewer_positions_are_the_first_and_more_are_the_same_again(folder, tmp_path, positions):
    export(folder, tmp_path / "resized", positions=positions)
    before, after = (values(open_quietly(BertForPreTraining, f)) for f in (folder, tmp_path / "resized"))
    table = "bert.embeddings.position_embeddings.weight"
    for name, value in after.items():
        kept = np.arange(positions) % 10 if name == table else ...
        np.testing.assert_array_equal(value, before[name][kept])
    assert BertConfig.from_pretrained(tmp_path / "resized").max_position_embeddings == positions


@pytest.mark.parametrize("positions", [4, 25])
def test_no_length_beside_the_model_is_more_than_it_can_read(folder, tmp_path, positions):
    BertTokenizer(TOKENS, model_max_length=10).save_pretrained(folder)
    write_json(folder / "task.json", {"task": "classify", "max_length": 8})
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": 10 if positions > 10 else None})
    write_model_card(folder, name="mine", data={}, recipe={})
    export(folder, tmp_path / "resized", positions=positions)
    new = {path.name: path.read_text() for path in (tmp_path / "resized").iterdir() if path.suffix == ".json"}
    assert json.loads(new["task.json"]) == {"task": "classify", "max_length": min(8, positions)}
    length = positions if positions > 10 else None  # as long as the model could read, and can now
    assert json.loads(new["sentence_bert_config.json"]) == {"max_seq_length": length}
    assert json.loads(new["tokenizer_config.json"])["model_max_length"] == positions
    card = (tmp_path / "resized/README.md").read_text()
    assert f"| longest input | {positions} tokens |" in card and "10 tokens" not in card
    stored = load_file(tmp_path / "resized" / "model.safetensors")
    assert f"| parameters | {sum(value.size for value in stored.values()):,} |" in card


def test_positions_that_cannot_be(folder, tmp_path):
    with pytest.raises(UserError, match=r"max_position_embeddings must be .*, got 0"):
        export(folder, tmp_path / "resized", positions=0)
    with pytest.raises(UserError, match=r"3 positions have no room for two words .* give at least 4"):
        export(folder, tmp_path / "resized", positions=3)
    assert not (tmp_path / "resized").exists()


def test_the_same_model_in_sixteen_bits_and_several_files(folder, tmp_path):
    export(folder, tmp_path / "small", "float16", 1000)
    names = {path.name for path in (tmp_path / "small").iterdir()}
    shards = {name for name in names if name.startswith("model-")}
    assert len(shards) > 1 and names - shards == {
        *("config.json", "model.safetensors.index.json", "README.md", "loss.png"),
        *("vocab.txt", "tokenizer_config.json", "special_tokens_map.json"),
    }
    before, after = (values(open_quietly(BertForPreTraining, f)) for f in (folder, tmp_path / "small"))
    for name, value in before.items():
        np.testing.assert_array_equal(after[name], value.astype("float16"))
    config, exported = (json.loads((f / "config.json").read_text()) for f in (folder, tmp_path / "small"))
    assert exported == config | {"dtype": "float16"}


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_the_type_stays_as_it_is_unless_said_otherwise(folder, tmp_path, dtype):
    model = BertForPreTraining.from_pretrained(folder)
    model.save_pretrained(folder, dtype=dtype)
    export(folder, tmp_path / "copy")
    assert load_file(tmp_path / "copy" / "model.safetensors")["cls.predictions.bias"].dtype == dtype
    assert json.loads((tmp_path / "copy" / "config.json").read_text())["dtype"] == dtype


def test_no_older_name_of_the_type_stays(folder, tmp_path):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"torch_dtype": "float32"}))
    export(folder, tmp_path / "half", dtype="float16")
    made = json.loads((tmp_path / "half" / "config.json").read_text())
    assert made["dtype"] == "float16" and "torch_dtype" not in made


def test_the_encoder_alone(folder, tmp_path):
    (folder / "task.json").write_text('{"task": "classify"}')
    export(folder, tmp_path / "encoder", encoder_only=True)
    assert not (tmp_path / "encoder" / "task.json").exists()
    assert not (tmp_path / "encoder" / "README.md").exists(), "which tells of the whole model"
    whole, encoder = open_quietly(BertForPreTraining, folder), open_quietly(BertModel, tmp_path / "encoder")
    assert (
        values(encoder).keys()
        == values(whole.bert).keys()
        == load_file(tmp_path / "encoder" / "model.safetensors").keys()
    )
    for name, value in values(encoder).items():
        np.testing.assert_array_equal(value, values(whole.bert)[name])
    assert json.loads((tmp_path / "encoder" / "config.json").read_text())["architectures"] == ["BertModel"]


def test_the_encoder_alone_forgets_its_task(folder, tmp_path):
    labels = {0: "O", 1: "B-X", 2: "I-X"}
    config = CONFIG.replace(id2label=labels, crf=True, feature_layers=[1], problem_type="regression")
    BertForTokenClassification(config).save_pretrained(folder)
    export(folder, tmp_path / "encoder", encoder_only=True)
    assert BertConfig.from_pretrained(tmp_path / "encoder") == CONFIG


def test_a_fine_tuned_model_keeps_its_head_and_its_task(folder, tmp_path):
    BertForSequenceClassification(CONFIG, seed=1).save_pretrained(folder)
    (folder / "task.json").write_text('{"task": "classify"}')
    export(folder, tmp_path / "copy", "bfloat16")
    assert (tmp_path / "copy" / "task.json").read_text() == '{"task": "classify"}'
    assert "classifier.weight" in values(open_quietly(BertForSequenceClassification, tmp_path / "copy"))


def test_a_sentence_encoder_keeps_how_it_pools(tmp_path):
    SentenceEncoder(CONFIG, pooling="max").save_pretrained(tmp_path / "model")
    export(tmp_path / "model", tmp_path / "copy")
    assert open_quietly(SentenceEncoder, tmp_path / "copy").pooling == "max"


def test_a_model_in_shards_of_somebody_else(folder, tmp_path):
    """Old files hold the positions 0, 1, 2, … as a tensor, which is none."""
    path = folder / "model.safetensors"
    save_file(load_file(path) | {"bert.embeddings.position_ids": np.arange(10)[None]}, path)
    split_model(folder, 3)
    export(folder, tmp_path / "copy")
    before, after = (values(open_quietly(BertForPreTraining, f)) for f in (folder, tmp_path / "copy"))
    assert all((before[name] == after[name]).all() for name in before)


def test_what_cannot_be_exported_leaves_nothing_behind(folder, tmp_path):
    def refused(message, *arguments, **options):
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises(UserError, match=message):
            export(*arguments, **options)
        assert sorted(tmp_path.rglob("*")) == before

    new = tmp_path / "new"
    refused("nowhere: no such folder", tmp_path / "nowhere", new)
    refused(r"model exists already; choose another --output", folder, folder)
    refused("allow at least", folder, new, max_shard_size=100)
    refused("expected a size like 16MiB", folder, new, max_shard_size="many")
    path = folder / "model.safetensors"
    save_file(load_file(path) | {"cls.predictions.bias": np.full(9, 1e5, "float32")}, path)
    refused("cls.predictions.bias has numbers too large for float16", folder, new, "float16")
    save_file(load_file(path) | {"cls.predictions.bias": np.arange(9)}, path)
    refused("'cls.predictions.bias' has type I64, expected F64", folder, new)
    (folder / "config.json").write_text('{"model_type": "gpt2"}')
    refused("model_type is 'gpt2'", folder, new)


def test_folders_and_dangling_links_beside_the_model_stay_behind(folder, tmp_path):
    (folder / "parts.json").mkdir()
    (folder / "gone.md").symlink_to("nowhere.md")
    export(folder, tmp_path / "new")
    assert not any((tmp_path / "new" / name).exists() for name in ("parts.json", "gone.md"))


def test_the_working_folder_cannot_be_replaced(folder, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(UserError, match="cannot write here"):
        export(folder, ".")
    assert list((tmp_path / "here").iterdir()) == []


def test_an_electra_takes_its_generator_along(tmp_path):
    config = ElectraConfig.from_dict(CONFIG.to_dict() | {"embedding_size": 6})
    both = ElectraGeneratorAndDiscriminator(config, generator_config(config, 0.5), seed=3)
    both.save_pretrained(tmp_path / "both")
    export(tmp_path / "both", tmp_path / "short", positions=8)
    one, other = (ElectraGeneratorAndDiscriminator.from_pretrained(tmp_path / n) for n in ("both", "short"))
    assert other.config.max_position_embeddings == other.generator.config.max_position_embeddings == 8
    for (name, before), (_, after) in zip(one.named_parameters(), other.named_parameters(), strict=True):
        before = to_numpy(before.value)
        np.testing.assert_array_equal(to_numpy(after.value), before[:8] if "position" in name else before)
    export(tmp_path / "both", tmp_path / "encoder", encoder_only=True)
    assert not (tmp_path / "encoder" / GENERATOR).exists()

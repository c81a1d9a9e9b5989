"""ONNX files: every head of every family with BERT's layers, in ONNX Runtime and in ONNX's own reference."""

import errno
import shutil
import sys

import numpy as np
import pytest

from minibert.arrays import erf, to_numpy
from minibert.bert import BertForMaskedLM, BertForNextSentencePrediction, BertForPreTraining, BertModel
from minibert.cli import main
from minibert.errors import UserError
from minibert.heads import (
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    SentenceEncoder,
)
from minibert.tasks import onnx_exporting, onnx_graph
from minibert.tasks.onnx_exporting import compare_with_runtime, export_onnx, open_as_trained, random_batch
from minibert.tasks.onnx_graph import inputs_of, onnx_model
from minibert.text import MODEL_TYPES, BertTokenizer
from minibert.variants import FAMILIES
from minibert.variants.electra import ElectraForPreTraining

onnx = pytest.importorskip("onnx", reason="the package onnx is not installed")
SIZES = {
    "vocab_size": 23,
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 20,
    "max_position_embeddings": 40,
}
TOKENIZER = BertTokenizer(
    "[PAD] [UNK] [CLS] [SEP] [MASK] the river is long and wide a b c d e f g h i j k l".split()
)
KINDS = [(name, kind) for name in onnx_graph.FAMILIES for kind in FAMILIES[name].models]


def make(name, kind, dtype="float64", pooling=None, **changes):
    """A small model with random biases and norms, in evaluation mode."""
    family = FAMILIES[name]
    sizes = SIZES | ({"embedding_size": 8} if name in ("albert", "electra") else {})
    options = {} if pooling is None else {"pooling": pooling, "normalise": pooling == "mean"}
    model = family.models[kind](family.config(**sizes | changes), dtype=dtype, seed=2, **options)
    rng = np.random.default_rng(0)
    for _, parameter in model.named_parameters():
        if len(parameter.shape) == 1:
            parameter.value += rng.normal(0, 0.5, parameter.shape).astype(dtype)
        else:
            parameter.value *= 4
    model.eval()
    return model


def in_reference(model, batch):
    """The graph's outputs as ONNX's reference implementation computes them, in the dtype of the model."""
    from onnx.reference import ReferenceEvaluator
    from onnx.reference.op_run import OpRun

    class Erf(OpRun):  # theirs rounds to float32
        op_domain = ""

        def _run(self, x):
            return (erf(x),)

    made = onnx_model(model)
    onnx.checker.check_model(made, full_check=True)
    session = ReferenceEvaluator(made, new_ops=[Erf])
    return dict(
        zip(session.output_names, session.run(None, {n: batch[n] for n in inputs_of(model)}), strict=True)
    )


def check_in_reference(model):
    for number, shape in enumerate(((1, 1), (3, 7))):
        batch = random_batch(model, model.config.pad_token_id, shape, seed=number)
        found = in_reference(model, batch)
        outputs, _ = model.forward(**batch)
        for name, their in found.items():
            our = to_numpy(getattr(outputs, name))
            assert their.dtype == our.dtype and their.shape == our.shape
            # LayerNormalization's ε is a float32 in the file, also for a model in float64.
            assert np.linalg.norm(their - our) <= 1e-11 * max(1.0, np.linalg.norm(our)), name
    return set(found)


def check_in_runtime(model, bound=1e-6):
    pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")
    apart = compare_with_runtime(model, TOKENIZER, onnx_model(model).SerializeToString())
    assert apart and max(apart.values()) <= bound, apart


@pytest.mark.parametrize(("name", "kind"), KINDS, ids=lambda part: getattr(part, "__name__", part))
def test_every_head_of_every_family(name, kind):
    found = check_in_reference(make(name, kind))
    expected = {
        BertForPreTraining: {"prediction_logits", "seq_relationship_logits"},
        BertForMaskedLM: {"prediction_logits"},
        BertForNextSentencePrediction: {"seq_relationship_logits"},
        BertForQuestionAnswering: {"start_logits", "end_logits"},
        SentenceEncoder: {"embeddings"},
    }
    has_pooler = FAMILIES[name].models[BertModel].has_pooler
    encoder = {"last_hidden_state"} | ({"pooler_output"} if has_pooler else set())
    assert found == expected.get(kind, encoder if kind is BertModel else {"logits"})
    check_in_runtime(make(name, kind, "float32"))


@pytest.mark.parametrize("pooling", ["mean", "max", "cls", "lasttoken"])
def test_every_pooling(pooling):
    check_in_reference(make("bert", SentenceEncoder, pooling=pooling))
    check_in_runtime(make("bert", SentenceEncoder, "float32", pooling=pooling))


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        (BertModel, {"hidden_act": "gelu_new"}),
        (BertModel, {"hidden_act": "gelu_pytorch_tanh"}),
        (BertModel, {"hidden_act": "relu"}),
        (BertModel, {"hidden_act": "tanh"}),
        (BertModel, {"classifier_pooling": "lasttoken"}),
        (BertForMaskedLM, {"is_decoder": True}),
        (BertForSequenceClassification, {"num_labels": 1}),
        (BertForSequenceClassification, {"num_labels": 5, "feature_layers": [0, -1]}),
        (BertForTokenClassification, {"num_labels": 4, "feature_layers": [1], "crf": True}),
        (BertForQuestionAnswering, {"feature_layers": [-1, -2]}),
    ],
)
def test_what_a_configuration_may_say(kind, changes):
    check_in_reference(make("bert", kind, **changes))
    check_in_runtime(make("bert", kind, "float32", **changes))


def test_electra_without_a_map_and_heads_that_read_the_last_token():
    check_in_reference(make("electra", BertModel, embedding_size=12))
    check_in_reference(make("roberta", BertForSequenceClassification, classifier_pooling="lasttoken"))
    check_in_reference(make("distilbert", BertForSequenceClassification, feature_layers=[1, 2]))
    check_in_reference(make("electra", ElectraForPreTraining, hidden_act="relu"))


def test_padding_changes_nothing_and_roberta_counts_real_tokens():
    model = make("roberta", BertModel)
    batch = random_batch(model, 1, (1, 5), seed=4)
    padded = {
        name: np.pad(row, ((0, 0), (0, 3)), constant_values=(name == "input_ids"))
        for name, row in batch.items()
    }
    short, long = (in_reference(model, each)["last_hidden_state"] for each in (batch, padded))
    np.testing.assert_allclose(long[:, :5], short, rtol=1e-10)


def test_tied_weights_are_stored_once():
    made = onnx_model(make("bert", BertForMaskedLM))
    sizes = [np.prod(tensor.dims) for tensor in made.graph.initializer]
    assert sizes.count(SIZES["vocab_size"] * SIZES["hidden_size"]) == 1
    albert = onnx_model(make("albert", BertModel, num_hidden_layers=5))
    assert len(albert.graph.initializer) == len(onnx_model(make("albert", BertModel)).graph.initializer)


@pytest.mark.parametrize("name", sorted(FAMILIES.keys() - set(onnx_graph.FAMILIES)))
def test_other_families_are_refused(name):
    sizes = {key: size for key, size in SIZES.items() if name != "xlnet" or key != "max_position_embeddings"}
    model = FAMILIES[name].models[BertModel](FAMILIES[name].config(**sizes))
    with pytest.raises(UserError, match=f"type '{name}' cannot be exported to ONNX; those of type bert, "):
        onnx_model(model)


def test_more_than_a_file_holds(monkeypatch):
    monkeypatch.setattr(onnx_graph, "MOST_BYTES", 1000)
    with pytest.raises(UserError, match="an ONNX file holds at most 2 GiB"):
        onnx_model(make("bert", BertModel))


# -- Folders and the command -------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    """A model for masked words."""
    make("bert", BertForMaskedLM, "float32").save_pretrained(tmp_path / "model")
    TOKENIZER.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_the_command_writes_and_compares(folder, tmp_path, capsys):
    pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")
    file = tmp_path / "new" / "model.onnx"
    assert main(["export", str(folder), "--onnx", str(file)]) == 0
    told = capsys.readouterr().out
    assert f"bytes  {file}" in told and "prediction_logits: relative difference from the model" in told
    assert float(told.split("model ")[-1].split(",")[0]) <= 1e-6
    assert BertTokenizer.from_pretrained(file.parent).tokens == TOKENIZER.tokens
    assert {path.name for path in file.parent.iterdir()} >= {"model.onnx", "config.json", "vocab.txt"}
    assert main(["export", str(folder), "--onnx", str(file)]) == 2
    assert "model.onnx exists already; write to a new folder" in capsys.readouterr().err


def test_without_runtime_it_says_so(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert main(["export", str(folder), "--onnx", str(tmp_path / "new" / "model.onnx")]) == 0
    assert "not compared with the model: ONNX Runtime is missing" in capsys.readouterr().out


def test_without_onnx_one_line(folder, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(UserError, match="written with the package onnx; install it with"):
        export_onnx(folder, tmp_path / "new" / "model.onnx")
    assert not (tmp_path / "new").exists()


def test_a_file_that_computes_something_else_is_not_written(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(onnx_exporting, "compare_with_runtime", lambda *_: {"prediction_logits": 1e-3})
    with pytest.raises(UserError, match=r"differs from the model by 1\.0e-03"):
        export_onnx(folder, tmp_path / "new" / "model.onnx")
    assert not (tmp_path / "new").exists()


def test_after_an_error_nothing_is_left(folder, tmp_path, monkeypatch):
    """And a second try is not refused."""
    (tmp_path / "here").mkdir()
    with monkeypatch.context() as full:
        full.setattr(onnx_exporting.Path, "write_bytes", full_disk)
        for where in ("new", "here"):
            with pytest.raises(UserError, match="no space left on the device"):
                export_onnx(folder, tmp_path / where / "model.onnx")
            assert not list((tmp_path / where).iterdir())
    export_onnx(folder, tmp_path / "here" / "model.onnx")
    names = {path.name for path in (tmp_path / "here").iterdir()}
    assert names > {"model.onnx", "config.json", "vocab.txt"} and not [n for n in names if n[0] == "."]


def full_disk(*_):
    raise OSError(errno.ENOSPC, "no space left on the device")


def test_flags_that_do_not_go_together(folder, tmp_path, capsys):
    file = str(tmp_path / "new.onnx")
    assert main(["export", str(folder), "--onnx", file, "--positions", "0"]) == 2
    assert "--positions is for --output" in capsys.readouterr().err
    assert main(["export", str(folder), "--onnx", file, "--dtype", "float16"]) == 2
    assert "--dtype is for --output" in capsys.readouterr().err
    assert main(["export", str(folder), "--onnx", file, "--output", "x"]) == 2
    assert main(["export", str(folder)]) == 2


def test_the_class_is_the_one_that_the_folder_names(tmp_path):
    for kind in (BertForSequenceClassification, SentenceEncoder, BertForNextSentencePrediction):
        make("bert", kind, "float32").save_pretrained(tmp_path / kind.__name__)
        assert type(open_as_trained(tmp_path / kind.__name__)) is kind
    config = tmp_path / "SentenceEncoder" / "config.json"
    (tmp_path / "SentenceEncoder" / "modules.json").unlink()
    config.write_text(config.read_text().replace('"BertModel"', '"BertForSomething"'))
    with pytest.raises(UserError, match=r"names the architectures \['BertForSomething'\]; expected one of"):
        open_as_trained(tmp_path / "SentenceEncoder")


def test_another_tokenizer_goes_beside_the_file(tmp_path):
    tokenizer = MODEL_TYPES["roberta"].train(["a river"], 261)
    make("roberta", BertForMaskedLM, "float32", vocab_size=261).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    export_onnx(tmp_path / "model", tmp_path / "new" / "model.onnx")
    assert (tmp_path / "new" / "merges.txt").is_file()
    for name in (path.name for path in (tmp_path / "new").iterdir()):
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine" / name).write_text("mine")
        with pytest.raises(UserError, match=f"{name} exists already"):
            export_onnx(tmp_path / "model", tmp_path / "mine" / "model.onnx")
        assert [path.read_text() for path in (tmp_path / "mine").iterdir()] == ["mine"]
        shutil.rmtree(tmp_path / "mine")

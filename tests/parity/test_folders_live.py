"""Pretrained folders, live: ours open in transformers, and theirs open here, in every layout people have."""

import re
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from parity.cases import TASK_MODELS, VARIANTS, Case, Draws, draw_batch, of_family
from parity.ours import our_class, our_model, our_results

import minibert
from minibert.nn import Context

pytest.importorskip("torch", reason="compares with torch, which is not installed")
pytest.importorskip("transformers", reason="compares with transformers, which is not installed")
import torch
import transformers
from parity.reference import reference_model, reference_results
from safetensors.torch import save_file

CLASSES = ["BertModel", "BertForPreTraining", "BertForMaskedLM", "BertForNextSentencePrediction"]
ALL_CLASSES = [*CLASSES, *TASK_MODELS]
BOUND = 1e-5  # relative, in float32
WITH_PADDING = Context(padding=True)  # transformers computes it, so that it is compared, too


@pytest.fixture
def case(parity) -> Case:
    """A small model of random shape."""
    draws = Draws(parity.seed)

    def between(low: int, high: int) -> int:
        return int(draws.integers(low, high + 1, 1)[0])

    heads = between(1, 4)
    config = {
        "vocab_size": between(40, 99),
        "hidden_size": heads * between(3, 20),
        "num_hidden_layers": between(1, 3),
        "num_attention_heads": heads,
        "intermediate_size": between(10, 70),
        "max_position_embeddings": between(20, 40),
        "hidden_act": ["gelu", "gelu_new", "relu"][between(0, 2)],
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }
    return Case("BertModel", between(0, 10**6), batch_size=3, length=between(5, 20), config=config)


def outputs(results: dict[str, Any]) -> dict[str, Any]:
    """All results but the gradients, which belong to other tests."""
    return {name: array for name, array in results.items() if not name.startswith("gradient")}


def open_here(name: str, folder: Path) -> Any:
    """Our model of a folder that has exactly what the model needs."""
    with warnings.catch_warnings(action="error"):
        return getattr(minibert, name).from_pretrained(folder)


# -- Ours in transformers ---------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", [*ALL_CLASSES, *VARIANTS])
def test_a_folder_of_ours_opens_in_transformers(case, parity, tmp_path, name, dtype):
    case = replace(case, model=name, config=of_family(name, case.config, embedding_size=6))
    ours = our_model(case, dtype)
    ours.save_pretrained(tmp_path)
    theirs, info = getattr(transformers, name).from_pretrained(
        tmp_path, dtype="auto", attn_implementation="eager", output_loading_info=True
    )
    assert not any(info.values()), info
    assert str(theirs.dtype) == f"torch.{dtype}", "the precision that was saved"
    assert theirs.config.architectures == [name]
    batch = draw_batch(case)
    actual, expected = outputs(our_results(ours, batch)), outputs(reference_results(theirs.eval(), batch))
    parity.compare(f"folder of ours, {dtype}", actual, expected, BOUND if dtype == "float32" else 1e-12)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_folder_of_ours_in_sixteen_bits_and_shards(case, tmp_path, dtype):
    """The numbers that torch reads are those that torch rounds to."""
    ours = our_model(replace(case, model="BertForPreTraining"), "float32")
    size = max(parameter.value.nbytes for _, parameter in ours.named_parameters())
    ours.save_pretrained(tmp_path, dtype=dtype, max_shard_size=size + 1000)
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    theirs, info = transformers.BertForPreTraining.from_pretrained(
        tmp_path, dtype="auto", output_loading_info=True
    )
    assert not any(info.values()), info
    weights = theirs.state_dict()
    for name, parameter in ours.named_parameters():
        assert weights[name].dtype == getattr(torch, dtype)
        assert torch.equal(weights[name], torch.from_numpy(parameter.value).to(getattr(torch, dtype))), name


def test_the_automatic_classes_find_what_it_is(case, tmp_path):
    our_model(replace(case, model="BertForMaskedLM"), "float32").save_pretrained(tmp_path)
    assert isinstance(transformers.AutoModel.from_pretrained(tmp_path), transformers.BertModel)
    model = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path)
    assert isinstance(model, transformers.BertForMaskedLM)


def test_labels_keep_their_names(case, tmp_path):
    names = {0: "O", 1: "B-place", 2: "I-place"}
    config = case.config | {"id2label": names, "problem_type": "single_label_classification"}
    our_model(replace(case, model="BertForTokenClassification", config=config), "float32").save_pretrained(
        tmp_path
    )
    theirs = transformers.AutoModelForTokenClassification.from_pretrained(tmp_path)
    assert theirs.config.id2label == names and theirs.config.num_labels == 3
    assert theirs.config.label2id == {name: i for i, name in names.items()}
    theirs.save_pretrained(tmp_path / "again")
    config = open_here("BertForTokenClassification", tmp_path / "again").config
    assert config.id2label == names and config.problem_type == "single_label_classification"


def test_a_tagger_with_a_crf_gives_transformers_its_logits(case, parity, tmp_path):
    """The CRF's three tensors are reported as not used, and nothing else is wrong."""
    case = replace(
        case, model="BertForTokenClassification", config=case.config | {"num_labels": 4, "crf": True}
    )
    ours = our_model(case, "float32")
    ours.save_pretrained(tmp_path)
    theirs, info = transformers.BertForTokenClassification.from_pretrained(tmp_path, output_loading_info=True)
    assert set(info.pop("unexpected_keys")) == {
        f"crf.{name}" for name in ("transitions", "start_transitions", "end_transitions")
    }
    assert not any(info.values()), info
    batch = {name: a for name, a in draw_batch(case).items() if name != "labels"}
    with torch.no_grad():
        expected = theirs.eval()(**{name: torch.from_numpy(a) for name, a in batch.items()}).logits.numpy()
    actual = ours.forward(**batch, context=WITH_PADDING)[0].logits
    parity.compare("folder of ours, float32", {"logits": actual}, {"logits": expected}, BOUND)


def test_a_sentence_encoder_is_a_bert_to_transformers(case, parity, tmp_path):
    ours = minibert.SentenceEncoder(minibert.BertConfig(**case.config), pooling="cls", normalise=True)
    ours.eval()
    ours.save_pretrained(tmp_path)
    theirs = transformers.AutoModel.from_pretrained(tmp_path)
    batch = {name: a for name, a in draw_batch(case).items() if not name.startswith("d")}
    with torch.no_grad():
        states = theirs.eval()(**{name: torch.from_numpy(a) for name, a in batch.items()}).last_hidden_state
    expected = torch.nn.functional.normalize(states[:, 0], dim=1).numpy()
    parity.compare(
        "folder of ours, float32",
        {"embeddings": ours.forward(**batch)[0].embeddings},
        {"embeddings": expected},
        BOUND,
    )


@pytest.mark.parametrize("lowercase", [True, False])
def test_a_tokenizer_beside_the_model(case, tmp_path, lowercase):
    sentences = ["Ein Zürcher Häuschen,", "the Quick brown fox jumps!", "東京 and naïve cafés"] * 3
    tokenizer = minibert.BertTokenizer.train(sentences, 90, lowercase=lowercase)
    config = case.config | {"vocab_size": len(tokenizer)}
    our_model(replace(case, config=config), "float32").save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert transformers.AutoModel.from_pretrained(tmp_path).config.vocab_size == len(theirs)
    for text in [*sentences[:3], "Zürich jumps quickly over 東京"]:
        assert tokenizer(text, "Häuschen")["input_ids"] == theirs(text, "Häuschen")["input_ids"]


def test_the_model_of_the_package_gives_the_same_guesses(parity):
    """Its weights, stored in 16 bits, are the same numbers in float32 on both sides."""
    folder = minibert.assets.model_folder("mini")
    ours, tokenizer = open_here("BertForPreTraining", folder), minibert.BertTokenizer.from_pretrained(folder)
    theirs = transformers.BertForPreTraining.from_pretrained(folder, dtype=torch.float32)
    text = "The capital of France is [MASK].", "He was born there in [MASK]."
    batch = tokenizer([text[0]], [text[1]])
    assert (
        transformers.AutoTokenizer.from_pretrained(folder)([text[0]], [text[1]])["input_ids"]
        == batch["input_ids"]
    )
    with torch.no_grad():
        expected = theirs.eval()(**{name: torch.tensor(rows) for name, rows in batch.items()})
    actual, _ = ours.forward(**batch)
    names = ("prediction_logits", "seq_relationship_logits")
    parity.compare(
        "folder of ours, float32",
        {name: getattr(actual, name) for name in names},
        {name: getattr(expected, name).numpy() for name in names},
        BOUND,
    )


# -- Theirs here ------------------------------------------------------------------------------------


def save_sharded(model: Any, folder: Path) -> None:
    model.save_pretrained(folder, max_shard_size=300)  # bytes
    assert len(list(folder.glob("model-*.safetensors"))) > 2


def save_old(model: Any, folder: Path) -> None:
    """As the first BERTs were written: gamma and beta, the decoder twice, position numbers for a tensor."""
    prefix = "" if isinstance(model, transformers.BertModel) else "bert."
    positions = model.config.max_position_embeddings
    tensors = {f"{prefix}embeddings.position_ids": torch.arange(positions)[None]}
    for name, tensor in model.state_dict().items():
        name = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
        tensors[name] = tensor.clone()
    assert "decoder" in " ".join(tensors) or not hasattr(getattr(model, "cls", None), "predictions")
    model.config.save_pretrained(folder)
    save_file(tensors, folder / "model.safetensors")


def save_without_prefix(model: Any, folder: Path) -> None:
    model.config.save_pretrained(folder)
    tensors = {name.removeprefix("bert."): tensor.clone() for name, tensor in model.state_dict().items()}
    save_file(tensors, folder / "model.safetensors")


LAYOUTS = {
    "one file": lambda model, folder: model.save_pretrained(folder),
    "shards": save_sharded,
    "float16": lambda model, folder: model.half().save_pretrained(folder),
    "bfloat16": lambda model, folder: model.bfloat16().save_pretrained(folder),
    "float64": lambda model, folder: model.double().save_pretrained(folder),
    "float16 shards": lambda model, folder: save_sharded(model.half(), folder),
    "old names": save_old,
    "no prefix": save_without_prefix,
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ALL_CLASSES)
def test_a_folder_of_transformers_opens_here(case, parity, tmp_path, name, layout):
    case = replace(case, model=name)
    theirs = reference_model(case, "float32")
    LAYOUTS[layout](theirs, tmp_path)
    ours = open_here(name, tmp_path)
    batch = draw_batch(case)
    expected = reference_results(theirs.float(), batch)  # its weights are those of the file, rounded or not
    parity.compare("folder of theirs", outputs(our_results(ours, batch)), outputs(expected), BOUND)


@pytest.mark.parametrize("layout", ["one file", "float16 shards"])
@pytest.mark.parametrize("name", VARIANTS)
def test_a_folder_of_a_descendant_opens_here(case, parity, tmp_path, name, layout):
    case = replace(case, model=name, config=of_family(name, case.config, embedding_size=6))
    theirs = reference_model(case, "float32")
    LAYOUTS[layout](theirs, tmp_path)
    with warnings.catch_warnings(action="error"):
        ours = our_class(case).from_pretrained(tmp_path, complete=True)
    batch = draw_batch(case)
    expected = reference_results(theirs.float(), batch)
    parity.compare("folder of theirs", outputs(our_results(ours, batch)), outputs(expected), BOUND)


@pytest.mark.parametrize("opened", CLASSES)
@pytest.mark.parametrize("saved", CLASSES)
def test_one_class_opened_as_another(case, parity, tmp_path, saved, opened):
    """What both have is the same; what the folder lacks or has too much is told by name."""
    theirs = reference_model(replace(case, model=saved), "float32")
    theirs.save_pretrained(tmp_path)
    missing, unexpected = expected_report(getattr(transformers, opened), tmp_path)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ours = getattr(minibert, opened).from_pretrained(tmp_path)
    told = {
        ("newly initialised" in str(w.message)): set(re.findall("'(.*?)'", str(w.message))) for w in caught
    }
    assert told.get(True, set()) == missing and told.get(False, set()) == unexpected
    batch = draw_batch(replace(case, model=opened))
    encoder = getattr(theirs, "bert", theirs)
    inputs = {
        name: torch.from_numpy(batch[name]) for name in ("input_ids", "token_type_ids", "attention_mask")
    }
    with torch.no_grad():
        expected = {"last_hidden_state": encoder(**inputs).last_hidden_state.numpy()}
    outputs, _ = ours.forward(**{name: batch[name] for name in inputs}, context=WITH_PADDING)
    actual = {"last_hidden_state": outputs.last_hidden_state}
    parity.compare("folder of theirs", actual, expected, BOUND)


def expected_report(theirs: Any, folder: Path) -> tuple[set[str], set[str]]:
    """What transformers says is missing from a folder, and what it does not use."""
    _, info = theirs.from_pretrained(folder, output_loading_info=True)
    tied = {name for name in info["missing_keys"] if ".decoder." in name}  # the other names of two tensors
    return set(info["missing_keys"]) - tied, set(info["unexpected_keys"])


@pytest.mark.parametrize("as_zip", [True, False])
@pytest.mark.parametrize("name", ["BertModel", "BertForPreTraining"])
def test_a_file_of_torchs(case, parity, tmp_path, name, as_zip):
    case = replace(case, model=name)
    theirs = reference_model(case, "float32")
    theirs.config.save_pretrained(tmp_path)
    torch.save(theirs.state_dict(), tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=as_zip)
    batch = draw_batch(case)
    expected = outputs(reference_results(theirs, batch))
    parity.compare(
        "folder of theirs", outputs(our_results(open_here(name, tmp_path), batch)), expected, BOUND
    )

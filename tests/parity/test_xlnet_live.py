"""XLNet against transformers, live: models, batches and orders drawn afresh, read and written as folders.

The environment variable PARITY_SEED repeats a run.
"""

import itertools
import random
import warnings
from typing import Any

import numpy as np
import pytest
from parity.cases import ZERO, draw_weights, numbered
from parity.two_streams import our_streams, their_streams

from minibert.data.permutations import factorisation_orders, last_of_an_order
from minibert.folders.names import name_in_file
from minibert.tasks import fill_mask
from minibert.text import XLNetTokenizer
from minibert.variants import xlnet

pytest.importorskip("torch", reason="compares with torch")
pytest.importorskip("transformers", reason="compares with transformers")
import torch
import transformers
from parity.reference import compute_distances_in_float64, forward

MODELS = ["XLNetModel", "XLNetLMHeadModel", "XLNetForSequenceClassification", "XLNetForTokenClassification"]
MODELS += ["XLNetForQuestionAnsweringSimple"]
TWO_STREAMS = MODELS[:2]
OUTPUTS = ("loss", "last_hidden_state", "logits", "start_logits", "end_logits")


def random_config(rng: random.Random, model: str) -> Any:
    heads = rng.randint(1, 5)
    labels = rng.randint(1, 4) if model == "XLNetForSequenceClassification" else rng.randint(2, 4)
    return transformers.XLNetConfig(
        vocab_size=rng.randint(20, 300),
        d_model=2 * heads * rng.randint(2, 8),
        n_layer=rng.randint(1, 3),
        n_head=heads,
        d_inner=rng.randint(8, 60),
        ff_activation=rng.choice(["gelu", "gelu_new", "relu"]),
        layer_norm_eps=10.0 ** rng.randint(-12, -3),
        num_labels=2 if model == "XLNetForQuestionAnsweringSimple" else labels,
        attn_implementation="eager",
    )


def random_batch(
    rng: np.random.Generator, model: str, vocabulary: int, padding: str
) -> dict[str, np.ndarray]:
    """Texts of up to three segments; few different ids, so that they recur."""
    size, length = int(rng.integers(1, 5)), int(rng.integers(4, 24))
    if padding == "holes":
        mask = rng.integers(0, 3, (size, length)) > 0
    else:
        mask = np.arange(length) < rng.integers(1, length + 1, size)[:, None]
        mask = mask[:, ::-1] if padding == "left" else mask
    mask = mask | (np.arange(size) == 0)[:, None]
    if model == "XLNetForSequenceClassification":
        mask = mask | (np.arange(length) == length - 1)
    types = rng.integers(0, 4, (size, length))
    types[0, :2] = 0, 2
    ids = rng.integers(0, vocabulary, 12)[rng.integers(0, 12, (size, length))]
    return {"input_ids": ids, "token_type_ids": types, "attention_mask": mask.astype(np.int64)}


def permuted(rng: np.random.Generator, batch: dict[str, np.ndarray], kind: str) -> dict[str, np.ndarray]:
    """The factorisation orders of training, or any mask and targets that see something."""
    ids, mask = batch["input_ids"], batch["attention_mask"]
    size, length = ids.shape
    if kind == "orders":
        predicted = last_of_an_order(ids, mask, rng, one_in=rng.uniform(1.0, 7.0))
        return batch | factorisation_orders(ids, mask, predicted, rng)._asdict()
    perm_mask = (rng.random((size, length, length)) < 0.5).astype(np.float32)
    sees = ((mask[:, None] == 1) & (perm_mask == 0)).any(axis=2)
    mapping = np.zeros((size, 6, length), np.float32)
    for b, places in enumerate(sees):
        for row, token in enumerate(rng.permutation(np.flatnonzero(places))[:5]):
            mapping[b, row + b % 2, token] = 1
    mapping = mapping[:, : max(1, np.flatnonzero(mapping.any(axis=(0, 2))).max() + 1)]
    labels = np.where(mapping.any(axis=2), rng.integers(0, ids.max() + 1, mapping.shape[:2]), -100)
    return batch | {"perm_mask": perm_mask, "target_mapping": mapping, "labels": labels}


def task_labels(rng: np.random.Generator, model: str, mask: np.ndarray, config: Any) -> dict[str, np.ndarray]:
    size, length = mask.shape
    if model == "XLNetForQuestionAnsweringSimple":
        spans = rng.integers(0, length + 1, (2, size))
        spans[:, 0] = length - 1
        return {"start_positions": spans[0], "end_positions": spans[1]}
    if model == "XLNetForSequenceClassification" and config.num_labels == 1:
        return {"labels": rng.normal(size=size)}
    if model == "XLNetForSequenceClassification":
        return {"labels": rng.integers(0, config.num_labels, size)}
    count = config.vocab_size if model == "XLNetLMHeadModel" else config.num_labels
    labels = np.where(mask * rng.integers(0, 2, mask.shape), rng.integers(0, count, mask.shape), -100)
    labels[0, 0] = 1
    return {"labels": labels}


def draw(
    parity: Any, tmp_path: Any, model: str, streams: str, number: Any, dtype: str
) -> tuple[Any, Any, dict]:
    """This run's models, theirs and ours, which is read from the folder of theirs; and a batch."""
    rng = random.Random(f"{parity.seed} {model} {streams} {number}")
    config = random_config(rng, model)
    print(f"PARITY_SEED={parity.seed}", config)
    numbers = np.random.default_rng(rng.getrandbits(31))
    batch = random_batch(numbers, model, config.vocab_size, rng.choice(["left", "right", "holes"]))
    if streams == "one":
        batch |= task_labels(numbers, model, batch["attention_mask"], config)
    else:
        batch = permuted(numbers, batch, streams)
    theirs = getattr(transformers, model)(config).to(getattr(torch, dtype)).eval()
    shapes = {name: tuple(parameter.shape) for name, parameter in theirs.named_parameters()}
    weights = draw_weights(shapes, rng.getrandbits(31))
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            parameter.copy_(torch.from_numpy(weights[name]))
    theirs.save_pretrained(tmp_path / "theirs")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours = getattr(xlnet, model).from_pretrained(tmp_path / "theirs", dtype=dtype, complete=True)
    if model == "XLNetModel":
        batch.pop("labels")
    if dtype == "float64":
        compute_distances_in_float64(theirs)
    return ours, theirs, batch


def run_both(ours: Any, theirs: Any, batch: dict[str, np.ndarray]) -> tuple[dict, dict]:
    """All outputs and gradients of both sides, by name."""
    out, cache = ours.forward(**batch, return_hidden_states=True, return_attentions=True)
    ref = forward(theirs, batch, output_hidden_states=True, output_attentions=True)
    ours.zero_grad()
    theirs.zero_grad()
    mapping = batch.get("target_mapping")
    if hasattr(ref, "last_hidden_state"):
        dout = np.random.default_rng(0).normal(size=out.last_hidden_state.shape).astype(ours.dtype)
        if mapping is not None:
            dout *= mapping.any(axis=2)[:, :, None]
        ours.backward(cache, dlast_hidden_state=dout)
        torch.autograd.backward([ref.last_hidden_state], [torch.from_numpy(dout)])
    else:
        ours.backward(cache)
        ref.loss.backward()
    mine, their = _results(out, ref, batch)
    _add_gradients(mine, their, ours, theirs)
    return mine, their


def _results(out: Any, ref: Any, batch: dict[str, np.ndarray]) -> tuple[dict, dict]:
    mine, their = {}, {}
    mapping = batch.get("target_mapping")
    real = None if mapping is None else mapping.any(axis=2)
    for name in OUTPUTS:
        if getattr(ref, name, None) is None:
            continue
        theirs = getattr(ref, name).detach().numpy()
        if name == "logits" and hasattr(out, "prediction_logits"):
            theirs, mine[name] = theirs[batch["labels"] != -100], out.prediction_logits
        else:
            mine[name] = getattr(out, name)
        their[name] = theirs
        if name == "last_hidden_state" and real is not None:
            mine[name], their[name] = mine[name][real], theirs[real]
    if mapping is None:
        their |= numbered("hidden_states", ref.hidden_states) | numbered("attentions", ref.attentions)
        mine |= numbered("hidden_states", out.hidden_states) | numbered("attentions", out.attentions)
    else:
        their |= their_streams(ref.hidden_states, ref.attentions, batch)
        mine |= our_streams(out.hidden_states, out.attentions, batch)
    return mine, {name: torch.as_tensor(array).detach().numpy() for name, array in their.items()}


def _add_gradients(mine: dict, their: dict, ours: Any, theirs: Any) -> None:
    """Every gradient. One that is zero but for rounding is compared absolutely, as the others cannot be."""
    gradients = {name: p.grad for name, p in theirs.named_parameters()}
    parameters = dict(ours.named_parameters())
    assert {name_in_file(name, ours.tensor_names) for name in parameters} == gradients.keys()
    for name, parameter in parameters.items():
        gradient = gradients[name_in_file(name, ours.tensor_names)]
        gradient = np.zeros(parameter.shape) if gradient is None else gradient.numpy()
        key = f"gradient {name}" + ZERO * bool(np.linalg.norm(gradient) < 1e-12)
        mine[key], their[key] = parameter.grad, gradient


@pytest.mark.parametrize("number", range(6))
@pytest.mark.parametrize("model", MODELS)
def test_one_stream_in_float64(model, number, parity, tmp_path):
    ours, theirs, batch = draw(parity, tmp_path, model, "one", number, "float64")
    parity.compare("live, XLNet, float64", *run_both(ours, theirs, batch), 1e-10)


@pytest.mark.parametrize("number", range(6))
@pytest.mark.parametrize("streams", ["orders", "any mask"])
@pytest.mark.parametrize("model", TWO_STREAMS)
def test_two_streams_in_float64(model, streams, number, parity, tmp_path):
    ours, theirs, batch = draw(parity, tmp_path, model, streams, number, "float64")
    parity.compare("live, XLNet, two streams, float64", *run_both(ours, theirs, batch), 1e-10)


@pytest.mark.parametrize("streams", ["one", "orders"])
def test_outputs_in_float32_where_their_positions_are_untouched(streams, parity, tmp_path):
    ours, theirs, batch = draw(parity, tmp_path, "XLNetLMHeadModel", streams, 0, "float32")
    out, _ = ours.forward(**batch, return_hidden_states=True, return_attentions=True)
    ref = forward(theirs, batch, output_hidden_states=True, output_attentions=True)
    parity.compare("live, XLNet, float32", *_results(out, ref, batch), 1e-5)


def test_guesses_for_masks(parity, tmp_path):
    """Against transformers' model and tokenizer, with the arguments that its documentation gives them."""
    ours, theirs, _ = draw(parity, tmp_path, "XLNetLMHeadModel", "one", "masks", "float64")
    # Few letters: with the special tokens they fit into the smallest vocabulary that is drawn.
    words = ["".join(letters) for letters in itertools.product("abc", repeat=5)]
    tokenizer = XLNetTokenizer.train([" ".join(words)] * 2, ours.config.vocab_size)
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    rng = random.Random(parity.seed)
    text = " ".join(rng.choice([*words, "<mask>"]) for _ in range(12)) + " <mask>"
    guesses = fill_mask(ours, tokenizer, text, top_k=len(tokenizer))
    encoded = transformers.AutoTokenizer.from_pretrained(tmp_path / "tokenizer")(
        text, return_tensors="np", return_token_type_ids=True
    )
    masks = np.flatnonzero(encoded["input_ids"][0] == tokenizer.mask_id)
    length = encoded["input_ids"].shape[1]
    perm_mask, mapping = np.zeros((1, length, length)), np.zeros((1, len(masks), length))
    perm_mask[:, :, masks] = 1.0
    mapping[0, np.arange(len(masks)), masks] = 1.0
    batch = {**encoded, "perm_mask": perm_mask, "target_mapping": mapping}
    p = forward(theirs, batch).logits.softmax(-1).detach().numpy()[0, :, : len(tokenizer)]
    their_guesses = {f"probabilities {i}": row for i, row in enumerate(-np.sort(-p, axis=1))}
    ours_sorted = {f"probabilities {i}": np.array([n for _, n in row]) for i, row in enumerate(guesses)}
    parity.compare("live, XLNet, masks, float64", ours_sorted, their_guesses, 1e-10)
    for row, theirs_row in zip(guesses, p, strict=True):
        assert row[0][0] == tokenizer.token_text(int(theirs_row.argmax()))


@pytest.mark.parametrize("model", MODELS)
def test_a_folder_of_ours_is_read_by_transformers(model, parity, tmp_path):
    ours, theirs, batch = draw(parity, tmp_path, model, "one", "folder", "float64")
    ours.save_pretrained(tmp_path / "ours")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        back = getattr(transformers, model).from_pretrained(tmp_path / "ours").double()
    assert type(back.config) is type(theirs.config)
    for name in ("d_model", "n_layer", "n_head", "d_inner", "ff_activation", "layer_norm_eps", "dropout"):
        assert getattr(back.config, name) == getattr(theirs.config, name)
    compute_distances_in_float64(back)
    for one, other in zip(back.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(one, other)
    with torch.no_grad():  # torch's sums depend on where in memory the weights lie, so not to the bit
        torch.testing.assert_close(forward(back, batch)[0], forward(theirs, batch)[0], rtol=0, atol=1e-13)

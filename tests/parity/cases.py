"""What is compared with transformers: models and batches, which both sides build from a seed."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

GOLDEN = Path(__file__).parent / "golden"
LARGE = 20_000  # elements; of a larger result the golden file keeps combinations only

TASKS = ("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")
TASK_MODELS = tuple(f"Bert{kind}" for kind in TASKS)
WITH_POOLER = ("Bert", "Roberta", "Albert")  # the families whose encoder has one
ZERO = " (zero)"  # ends the name of a gradient that is zero but for rounding
OUTPUT_DERIVATIVES = ("dlast_hidden_state", "dpooler_output")  # what a BertModel's backward begins with
VARIANTS = [
    f"{family}{kind}"
    for family in ("Roberta", "DistilBert", "Albert", "Electra")
    for kind in ("Model", "ForPreTraining", "ForMaskedLM", *TASKS)
    if kind != "ForPreTraining" or family in ("Albert", "Electra")
]


@dataclass(frozen=True)
class Case:
    """A model and a batch (B, S). The class has the same name in both libraries, and so has every setting.

    (But some settings of DistilBERT and XLNet: see `reference_settings`.)
    """

    model: str
    seed: int
    batch_size: int
    length: int
    padding: str = "right"  # or "left", or "holes": masked tokens anywhere
    config: dict[str, Any] = field(default_factory=dict)

    @property
    def family(self) -> str:
        """How the class's name begins: "Bert", "Roberta", …"""
        return self.model.removesuffix("Model").removesuffix("LMHead").partition("For")[0]

    @property
    def kind(self) -> str:
        """How it ends: "Model", "ForMaskedLM", …"""
        return self.model.removeprefix(self.family)


DISTILBERT = {
    "hidden_size": "dim",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "intermediate_size": "hidden_dim",
    "hidden_act": "activation",
    "hidden_dropout_prob": "dropout",
    "attention_probs_dropout_prob": "attention_dropout",
}


XLNET = {
    "hidden_size": "d_model",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "intermediate_size": "d_inner",
    "hidden_dropout_prob": "dropout",
}
NOT_XLNET = ("attention_probs_dropout_prob", "max_position_embeddings")  # which has one dropout, no positions


def of_family(model: str, sizes: Mapping[str, Any], embedding_size: int) -> dict[str, Any]:
    """BERT's settings as the family of a model has them; E where that may differ from H."""
    sizes = dict(sizes)
    if model.startswith(("Albert", "Electra")):
        sizes["embedding_size"] = embedding_size
    if model.startswith("Roberta"):
        sizes = {"type_vocab_size": 2, "layer_norm_eps": 1e-12} | sizes  # where the defaults differ
        sizes |= {"pad_token_id": 1, "max_position_embeddings": sizes["max_position_embeddings"] + 2}
    if model.startswith("DistilBert"):
        for fixed in ("layer_norm_eps", "is_decoder", "type_vocab_size"):
            sizes.pop(fixed, None)
    return sizes


def reference_settings(case: Case) -> dict[str, Any]:
    """The case's settings under the names that transformers has for them."""
    names = {"DistilBert": DISTILBERT, "XLNet": XLNET}.get(case.family, {})
    left_out = NOT_XLNET if case.family == "XLNet" else ()
    return {names.get(name, name): value for name, value in case.config.items() if name not in left_out}


class Draws:
    """Random numbers that are the same everywhere and always, as NumPy promises it for raw bits."""

    def __init__(self, seed: int):
        self._bits = np.random.PCG64(seed)

    def uniform(self, *shape: int) -> np.ndarray:
        """Uniform in [−1, 1), of 24 bits."""
        return ((self._bits.random_raw(math.prod(shape)) >> 40) * 2.0**-23 - 1.0).reshape(shape)

    def integers(self, low: int, high: int, *shape: int) -> np.ndarray:
        """From low up to, but not including, high."""
        raw = self._bits.random_raw(math.prod(shape)) >> 1  # one bit less, so that it fits an int64
        return low + (raw.astype(np.int64) % (high - low)).reshape(shape)


def draw_weights(shapes: Mapping[str, tuple[int, ...]], seed: int) -> dict[str, np.ndarray]:
    """A value for every parameter, by name: matrices of variance 1/fan-in; γ, β and biases of order one.

    They are float32, so the float32 model and the float64 model have exactly the same weights.
    """
    draws = Draws(seed)
    weights = {}
    for name, shape in sorted(shapes.items()):
        if len(shape) > 1:
            fan_in = shape[0] if len(shape) == 3 else shape[1]  # XLNet's maps are (H, A, D)
            value = draws.uniform(*shape) * math.sqrt(3 / fan_in)
        else:
            is_scale = "norm" in name.lower() and name.endswith("weight")
            value = 0.5 * draws.uniform(*shape) + is_scale
        weights[name] = value.astype(np.float32)
    return weights


def draw_batch(case: Case) -> dict[str, np.ndarray]:
    """Arguments of our forward and, for a BertModel, the derivatives that its backward begins with.

    The first sequence is whole, the others are padded. Only padding has its id (0, in RoBERTa 1):
    transformers' look-up drops the gradient of that id. (With scores for all tokens padding has a gradient,
    so there it has another id.) A batch has twelve different ids at most, so that they recur.
    """
    draws = Draws(case.seed + 1)
    shape = batch_size, length = case.batch_size, case.length
    vocab_size, types = case.config["vocab_size"], case.config.get("type_vocab_size", 2)
    if case.padding == "holes":
        mask = draws.integers(0, 3, *shape) > 0
    else:
        lengths = draws.integers(1, length + 1, batch_size)
        mask = np.arange(length) < lengths[:, None]
    mask[0], mask[:, 0] = True, True
    mask = mask[:, ::-1] if case.padding == "left" else mask
    pad = case.config.get("pad_token_id", 0)
    some_ids = draws.integers(1 + pad, vocab_size, 12)
    starts = draws.integers(1, length + 1, batch_size)  # of the second sentence
    padding_id = pad if case.kind != "ForQuestionAnswering" else 1 - pad
    batch = {
        "input_ids": np.where(mask, some_ids[draws.integers(0, 12, *shape)], padding_id),
        "token_type_ids": np.where(mask & (np.arange(length) >= starts[:, None]), types - 1, 0),
        "attention_mask": mask.astype(np.int64),
    }
    if case.model == "XLNetLMHeadModel":
        return batch | _targets_of_an_order(case, mask, draws)
    if case.model == "ElectraForPreTraining":
        return batch | {"labels": draws.integers(0, 2, *shape)}
    if case.kind in ("ForPreTraining", "ForMaskedLM"):
        labelled = mask & (draws.integers(0, 4, *shape) == 0)
        labelled[0, -1] = True
        batch["labels"] = np.where(labelled, draws.integers(0, vocab_size, *shape), -100)
    if case.kind in ("ForPreTraining", "ForNextSentencePrediction"):
        batch["next_sentence_label"] = draws.integers(0, 2, batch_size)
    if case.kind in TASKS:
        batch |= _task_labels(case, mask, draws)
    if case.kind == "Model":
        hidden_size = case.config["hidden_size"]
        batch["dlast_hidden_state"] = draws.uniform(*shape, hidden_size) * mask[..., None]
        if case.family in WITH_POOLER:
            batch["dpooler_output"] = draws.uniform(batch_size, hidden_size)
    return batch


def _targets_of_an_order(case: Case, mask: np.ndarray, draws: Draws) -> dict[str, np.ndarray]:
    """Who may not see whom in an XLNet, and up to four targets per text; the last row never has one."""
    batch_size, length = mask.shape
    perm_mask = draws.integers(0, 2, batch_size, length, length)
    sees = (mask[:, None] & (perm_mask == 0)).any(axis=2)  # (B, S): who sees anything
    mapping = np.zeros((batch_size, 5, length), np.int64)
    for text, tokens in enumerate(map(np.flatnonzero, sees & mask)):
        mapping[text, np.arange(len(tokens[:4])), tokens[::-1][:4]] = 1
    words = draws.integers(0, case.config["vocab_size"], *mapping.shape[:2])
    labels = np.where(mapping.any(axis=2), words, -100)
    return {"perm_mask": perm_mask, "target_mapping": mapping, "labels": labels}


def _task_labels(case: Case, mask: np.ndarray, draws: Draws) -> dict[str, np.ndarray]:
    """What fine-tuning gives: classes or numbers, tags of some tokens, spans, some of them out of reach."""
    batch_size, length = mask.shape
    num_labels = case.config.get("num_labels", 2)
    if case.kind == "ForQuestionAnswering":
        spans = draws.integers(0, length + 1, 2, batch_size)  # the length itself is outside
        spans[:, 0] = length - 1
        return {"start_positions": spans[0], "end_positions": spans[1]}
    if case.kind == "ForTokenClassification":
        labelled = mask & (draws.integers(0, 2, *mask.shape) == 0)
        labelled[0, -1] = True
        return {"labels": np.where(labelled, draws.integers(0, num_labels, *mask.shape), -100)}
    if num_labels == 1 or case.config.get("problem_type") == "regression":
        return {"labels": draws.uniform(batch_size, num_labels) * 3}
    labels = draws.integers(0, num_labels, batch_size)
    labels[1:2] = -100
    return {"labels": labels}


def named_gradients(model: Any, gradients: Mapping[str, Any]) -> dict[str, Any]:
    """Gradients under the names of results, from either side's model.

    Scores for the tokens, with a softmax over these, make two more of them zero but for rounding than
    ``_is_zero`` can know by name: what the head's bias and the last layer's add to all scores is not seen.
    """
    zeros = ()
    if type(model).__name__.endswith("ForQuestionAnswering"):
        count = model.config.num_hidden_layers
        last = f"layer.{count - 1}."
        zeros = ("qa_outputs.bias", f"{last}output.LayerNorm.bias", f"{last}output_layer_norm.bias")
        zeros += ("full_layer_layer_norm.bias",) * (count == 1)  # ALBERT's one layer, used once
    return {
        f"gradient {name}" + ZERO * name.endswith(zeros): gradient for name, gradient in gradients.items()
    }


def numbered(name: str, arrays: Any) -> dict[str, Any]:
    """A list of arrays under one name each: "name 0", "name 1", …"""
    return {f"{name} {index}": array for index, array in enumerate(arrays)}


def kind(name: str) -> str:
    """What a result is, for the report: several results are of one kind."""
    if _is_zero(name):
        return "gradients that are zero, absolute"
    return {"gradient": "gradients"}.get(name.split()[0], name.split()[0].replace("_", " "))


def _is_zero(name: str) -> bool:
    """The gradient of a key bias adds the same to all scores of a query, which softmax does not see."""
    return name.startswith("gradient") and name.endswith(("key.bias", "k_lin.bias", ZERO))


def difference(name: str, ours: np.ndarray, theirs: np.ndarray) -> float:
    """‖ours − theirs‖ / ‖theirs‖, without the division where the result is zero but for rounding."""
    assert ours.shape == theirs.shape, f"{name}: {ours.shape} here, {theirs.shape} there"
    apart = float(np.linalg.norm(np.subtract(ours, theirs, dtype=np.float64)))
    return apart if _is_zero(name) else apart / float(np.linalg.norm(theirs))


def compact(array: np.ndarray) -> np.ndarray:
    """The array, or if it is large 64 random combinations along its longest axis.

    Two arrays that differ have combinations that differ, and by about as much (Johnson and Lindenstrauss).
    """
    if array.size <= LARGE:
        return array
    longest = int(np.argmax(array.shape))
    combinations = Draws(0).uniform(64, array.shape[longest])
    return np.tensordot(combinations, array.astype(np.float64), axes=(1, longest))


def _sizes(vocab: int, layers: int, hidden: int, heads: int, feed_forward: int, **others: Any) -> dict:
    return {
        "vocab_size": vocab,
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "intermediate_size": feed_forward,
        "max_position_embeddings": 40,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        **others,
    }


GOLDEN_CASES = {
    "roberta": Case(
        "RobertaForMaskedLM",
        120,
        3,
        13,
        config=_sizes(61, 2, 16, 4, 28, pad_token_id=1, type_vocab_size=1, layer_norm_eps=1e-5),
    ),
    "distilbert": Case(
        "DistilBertForSequenceClassification", 130, 4, 9, config=_sizes(37, 2, 12, 3, 20, num_labels=3)
    ),
    "albert": Case("AlbertForPreTraining", 140, 3, 11, config=_sizes(53, 3, 12, 2, 18, embedding_size=8)),
    "electra_generator": Case(
        "ElectraForMaskedLM", 150, 3, 10, config=_sizes(47, 2, 12, 3, 16, embedding_size=8)
    ),
    "electra_discriminator": Case(
        "ElectraForPreTraining", 160, 3, 12, config=_sizes(43, 2, 12, 2, 16, embedding_size=8)
    ),
    "xlnet": Case("XLNetLMHeadModel", 170, 3, 11, "left", _sizes(43, 2, 12, 3, 16)),
    "pretraining": Case("BertForPreTraining", 10, 3, 13, config=_sizes(61, 2, 16, 4, 28)),
    "pretraining_tanh_gelu": Case(
        "BertForPreTraining", 20, 2, 19, config=_sizes(53, 3, 12, 2, 18, hidden_act="gelu_new")
    ),
    "pretraining_relu": Case(
        "BertForPreTraining", 30, 4, 7, "holes", _sizes(41, 3, 12, 3, 15, hidden_act="relu")
    ),
    "pretraining_cased": Case("BertForPreTraining", 40, 3, 9, config=_sizes(28_996, 1, 8, 1, 12)),
    "masked_lm": Case("BertForMaskedLM", 50, 3, 17, config=_sizes(71, 1, 16, 2, 36, layer_norm_eps=1e-5)),
    "next_sentence": Case("BertForNextSentencePrediction", 60, 5, 11, config=_sizes(43, 1, 12, 1, 7)),
    "classification": Case(
        "BertForSequenceClassification", 80, 4, 9, config=_sizes(37, 2, 12, 3, 20, num_labels=3)
    ),
    "regression": Case(
        "BertForSequenceClassification", 90, 3, 8, config=_sizes(29, 1, 8, 2, 12, num_labels=1)
    ),
    "tagging": Case("BertForTokenClassification", 100, 3, 11, config=_sizes(41, 2, 12, 2, 16, num_labels=5)),
    "question_answering": Case("BertForQuestionAnswering", 110, 3, 14, config=_sizes(47, 2, 16, 4, 24)),
    "encoder": Case(
        "BertModel", 70, 2, 5, config=_sizes(31, 2, 15, 5, 8, hidden_act="tanh", type_vocab_size=3)
    ),
}

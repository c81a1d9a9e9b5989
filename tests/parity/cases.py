"""What is compared with transformers: models and batches, which both sides build from a seed."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

GOLDEN = Path(__file__).parent / "golden"
LARGE = 20_000  # elements; of a larger result the golden file keeps combinations only

TASK_MODELS = ("BertForSequenceClassification", "BertForTokenClassification", "BertForQuestionAnswering")
ZERO = " (zero)"  # ends the name of a gradient that is zero but for rounding
OUTPUT_DERIVATIVES = ("dlast_hidden_state", "dpooler_output")  # what a BertModel's backward begins with


@dataclass(frozen=True)
class Case:
    """A model and a batch (B, S). The class has the same name in both libraries, and so has every setting."""

    model: str
    seed: int
    batch_size: int
    length: int
    padding: str = "right"  # or "holes": masked tokens anywhere
    config: dict[str, Any] = field(default_factory=dict)


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
        if len(shape) == 2:
            value = draws.uniform(*shape) * math.sqrt(3 / shape[1])
        else:
            value = 0.5 * draws.uniform(*shape) + name.endswith("LayerNorm.weight")
        weights[name] = value.astype(np.float32)
    return weights


def draw_batch(case: Case) -> dict[str, np.ndarray]:
    """Arguments of our forward and, for a BertModel, the derivatives that its backward begins with.

    The first sequence is whole, the others are padded. Only padding has id 0: transformers' look-up
    drops the gradient of that id. (With scores for all tokens padding has a gradient, so there it has id 1.)
    A batch has twelve different ids at most, so that they recur.
    """
    draws = Draws(case.seed + 1)
    shape = batch_size, length = case.batch_size, case.length
    vocab_size, types = case.config["vocab_size"], case.config.get("type_vocab_size", 2)
    if case.padding == "right":
        lengths = draws.integers(1, length + 1, batch_size)
        mask = np.arange(length) < lengths[:, None]
    else:
        mask = draws.integers(0, 3, *shape) > 0
    mask[0], mask[:, 0] = True, True
    some_ids = draws.integers(1, vocab_size, 12)
    starts = draws.integers(1, length + 1, batch_size)  # of the second sentence
    padding_id = int(case.model == "BertForQuestionAnswering")
    batch = {
        "input_ids": np.where(mask, some_ids[draws.integers(0, 12, *shape)], padding_id),
        "token_type_ids": np.where(mask & (np.arange(length) >= starts[:, None]), types - 1, 0),
        "attention_mask": mask.astype(np.int64),
    }
    if case.model in ("BertForPreTraining", "BertForMaskedLM"):
        labelled = mask & (draws.integers(0, 4, *shape) == 0)
        labelled[0, -1] = True
        batch["labels"] = np.where(labelled, draws.integers(0, vocab_size, *shape), -100)
    if case.model in ("BertForPreTraining", "BertForNextSentencePrediction"):
        batch["next_sentence_label"] = draws.integers(0, 2, batch_size)
    if case.model in TASK_MODELS:
        batch |= _task_labels(case, mask, draws)
    if case.model == "BertModel":
        hidden_size = case.config["hidden_size"]
        batch["dlast_hidden_state"] = draws.uniform(*shape, hidden_size) * mask[..., None]
        batch["dpooler_output"] = draws.uniform(batch_size, hidden_size)
    return batch


def _task_labels(case: Case, mask: np.ndarray, draws: Draws) -> dict[str, np.ndarray]:
    """What fine-tuning gives: classes or numbers, tags of some tokens, spans, some of them out of reach."""
    batch_size, length = mask.shape
    num_labels = case.config.get("num_labels", 2)
    if case.model == "BertForQuestionAnswering":
        spans = draws.integers(0, length + 1, 2, batch_size)  # the length itself is outside
        spans[:, 0] = length - 1
        return {"start_positions": spans[0], "end_positions": spans[1]}
    if case.model == "BertForTokenClassification":
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
    if type(model).__name__ == "BertForQuestionAnswering":
        last = model.config.num_hidden_layers - 1
        zeros = ("qa_outputs.bias", f"encoder.layer.{last}.output.LayerNorm.bias")
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
    return name.startswith("gradient") and name.endswith(("key.bias", ZERO))


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

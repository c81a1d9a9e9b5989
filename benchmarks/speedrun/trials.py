"""Ideas that minibert has no setting for, tried out in a record: each changes the library during its run.

What proves worth it gets a setting; the others stay here, so that nobody who reads the library pays for them.
A record names one as its ``trial`` (see ``records.toml``).
"""

import dataclasses
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from minibert import ops
from minibert.arrays import Array
from minibert.bert.config import BertConfig
from minibert.bert.heads import BertLMPredictionHead
from minibert.nn import Parameter
from minibert.nn.targets import Targets
from minibert.ops import Cache
from minibert.ops.stable_softmax import log_sum_exp
from minibert.tasks import pretraining
from minibert.tasks.pretraining_settings import Phase, PretrainSettings
from minibert.train.step import TrainingStep

Z_WEIGHT = 1e-4
DECAY = 0.99  # of the mean of the weights, a step


@contextmanager
def z_loss() -> Iterator[None]:
    """Weight · mean (log Z)² is added to the loss, Z = Σ exp of a word's scores (Chowdhery et al. 2022).

    Only its derivative is: the loss that is told stays that of masked words.
    """

    def loss(head: BertLMPredictionHead, hidden: Array, targets: Targets) -> tuple[Array, Cache]:
        logits, cache = head.forward(hidden, targets.positions)  # (N, V)
        value, loss_cache = ops.cross_entropy(logits, targets.labels, targets.weights, targets.denominator)
        return value, Cache(head, cache, loss_cache, logits, targets)

    def loss_backward(head: BertLMPredictionHead, dloss: Array | float, cache: Cache) -> Array:
        targets, logits, loss_cache, head_cache = (cache.pop(head) for _ in range(4))
        dlogits = ops.cross_entropy_backward(dloss, loss_cache)
        # d (log Z)² = 2 log Z · softmax(logits)
        share = 2 * Z_WEIGHT * log_sum_exp(logits, axis=-1) * targets.weights / targets.denominator  # (N,)
        dlogits += dloss * share[:, None] * ops.softmax(logits)[0]
        return head.backward(dlogits, head_cache)

    with patch.multiple(BertLMPredictionHead, loss=loss, loss_backward=loss_backward):
        yield


@contextmanager
def averaged() -> Iterator[None]:
    """Held-out text is measured with a mean of the weights, in which those of a step fade by `DECAY`."""
    take, evaluate, means = TrainingStep.take, pretraining.evaluate, {}

    def take_and_average(training: TrainingStep, *arguments: Any) -> None:
        take(training, *arguments)
        value = training.model.buffers.value
        mean = means.setdefault(id(training.model), value.copy())
        mean += (1 - DECAY) * (value - mean)

    def evaluate_mean(model: Any, *arguments: Any) -> dict[str, float]:
        value = model.buffers.value
        kept = value.copy()
        value[...] = means.get(id(model), kept)
        try:
            return evaluate(model, *arguments)
        finally:
            value[...] = kept

    with (
        patch.object(TrainingStep, "take", take_and_average),
        patch.object(pretraining, "evaluate", evaluate_mean),
    ):
        yield


@contextmanager
def untied() -> Iterator[None]:
    """The decoder has a matrix of its own, which begins with the values of the word embeddings."""
    make, set_first_values = BertLMPredictionHead.__init__, pretraining.set_first_values

    def make_untied(head: BertLMPredictionHead, config: BertConfig, word_weight: Parameter) -> None:
        make(head, config, word_weight)
        head.decoder_weight = head._decoder_weight = Parameter(word_weight.shape)  # type: ignore[attr-defined]

    def set_both(model: Any, *arguments: Any) -> None:
        set_first_values(model, *arguments)
        model.cls.predictions.decoder_weight.value[...] = model.bert.embeddings.word_embeddings.weight.value

    with (
        patch.object(BertLMPredictionHead, "__init__", make_untied),
        patch.object(pretraining, "set_first_values", set_both),
    ):
        yield


def changed_first_values(change: Callable[[Any], None]) -> Callable[[], Any]:
    """A trial that changes a new model's first values."""

    @contextmanager
    def trial() -> Iterator[None]:
        set_first_values = pretraining.set_first_values

        def set_and_change(model: Any, *arguments: Any) -> None:
            set_first_values(model, *arguments)
            change(model)

        with patch.object(pretraining, "set_first_values", set_and_change):
            yield

    return trial


def zero_last(model: Any) -> None:
    """Each feed-forward network ends in a matrix of zeros: at first it adds nothing to its input."""
    for layer in model.bert.encoder.layer:
        layer.output.dense.weight.value[...] = 0


def large_words(model: Any) -> None:
    """Word embeddings of twice the length."""
    model.bert.embeddings.word_embeddings.weight.value[...] *= 2


def changed_phases(change: Callable[[Phase], list[Phase]]) -> Callable[[], Any]:
    """A trial that takes the steps of a run's only phase in other ways."""

    @contextmanager
    def trial() -> Iterator[None]:
        def phases(settings: PretrainSettings) -> list[Phase]:
            instances = settings.instance_settings()
            return change(Phase(0, settings.steps, settings.batch_size, instances))

        with patch.object(PretrainSettings, "phases", phases):
            yield

    return trial


def fewer_masks_later(phase: Phase) -> list[Phase]:
    """Half as many words are hidden in the last two fifths of the steps."""
    border = math.ceil(0.6 * phase.stop)
    fewer = dataclasses.replace(phase.instances, masked_lm_prob=phase.instances.masked_lm_prob / 2)
    later = dataclasses.replace(phase, start=border, instances=fewer)
    return [dataclasses.replace(phase, stop=border), later]


def growing_batch(phase: Phase) -> list[Phase]:
    """The first half of the steps have half as many sequences, the others half as many again."""
    border, half = phase.stop // 2, phase.batch_size // 2
    first = dataclasses.replace(phase, stop=border, batch_size=half)
    return [first, dataclasses.replace(phase, start=border, batch_size=phase.batch_size + half)]


TRIALS: dict[str, Callable[[], Any]] = {
    "z-loss": z_loss,
    "averaged": averaged,
    "untied": untied,
    "zero-last": changed_first_values(zero_last),
    "large-words": changed_first_values(large_words),
    "fewer-masks-later": changed_phases(fewer_masks_later),
    "growing-batch": changed_phases(growing_batch),
}

"""Steps of two models and of permuted text can be captured, and compute the same when they are replayed."""

import numpy as np
import pytest
from recorder import recording_device
from small_pretraining import masked_batch

from minibert.arrays import to_numpy
from minibert.bert import BertConfig, BertForMaskedLM
from minibert.data.permutations import factorisation_orders, last_of_an_order
from minibert.replay import WARM_UP
from minibert.train import AdamW
from minibert.train.step import TrainingStep
from minibert.variants.distilbert_training import MaskedWordDistillation
from minibert.variants.electra import ElectraConfig
from minibert.variants.electra_training import ElectraGeneratorAndDiscriminator, generator_config
from minibert.variants.modern import ModernConfig, ModernForMaskedLM
from minibert.variants.xlnet import XLNetConfig, XLNetLMHeadModel

LENGTH, ROWS, STEPS, TARGETS = 12, 4, 9, 3
SIZES = dict(
    vocab_size=40,
    hidden_size=8,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=16,
    max_position_embeddings=LENGTH,
    hidden_dropout_prob=0.2,
    attention_probs_dropout_prob=0.2,
)


def masked(seed):
    return masked_batch(ROWS, seed, LENGTH, SIZES["vocab_size"])


def permuted(seed):
    rng, batch = np.random.default_rng(seed), masked(seed)
    read = batch["input_ids"], batch["attention_mask"]
    orders = factorisation_orders(*read, last_of_an_order(*read, rng, one_in=4), rng, targets=TARGETS)
    return {"input_ids": read[0], "attention_mask": read[1], **orders._asdict()}


def make(kind, device):
    """What is trained, what holds the parameters, its batches, and how many targets there may be."""
    options = {"device": device, "dtype": "float64", "seed": 3}
    if kind == "electra":
        config = ElectraConfig(embedding_size=6, **SIZES)
        model = ElectraGeneratorAndDiscriminator(config, generator_config(config, 0.5), **options)
        return model, model, masked, ROWS * LENGTH
    if kind == "teacher":
        student, teacher = (BertForMaskedLM(BertConfig(**SIZES), **options) for _ in range(2))
        return MaskedWordDistillation(student, teacher), student, masked, ROWS * LENGTH
    if kind == "modern":
        model = ModernForMaskedLM(ModernConfig(**SIZES), **options)
        return model, model, masked, ROWS * LENGTH
    model = XLNetLMHeadModel(XLNetConfig(**SIZES), **options)
    return model, model, permuted, ROWS * TARGETS


def train(kind, device, graph):
    trainee, model, make_batch, predictions = make(kind, device)
    optimiser = AdamW(model, bias_correction=True)
    training = TrainingStep(trainee, optimiser, seed=5, predictions=predictions, graph=graph)
    for step in range(STEPS):
        training.take([make_batch(2 * step), make_batch(2 * step + 1)], 0.02 / (1 + step), step)
    return to_numpy(model.buffers.value), training.read(), training


@pytest.mark.parametrize("kind", ["electra", "teacher", "modern", "xlnet"])
def test_a_replayed_step_computes_the_same_as_one_that_is_called(kind):
    called, told, training = train(kind, recording_device(), graph=False)
    assert not training.repetition.replaying
    device = recording_device()
    replayed, told_too, training = train(kind, device, graph=True)
    assert training.repetition.replaying
    (graph,) = device.xp.cuda.graphs
    assert graph.launches == STEPS - WARM_UP
    np.testing.assert_array_equal(replayed, called)
    assert told_too == told and np.isfinite(told["loss"])

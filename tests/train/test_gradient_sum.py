"""Steps on several ranks: the same bits as accumulation in one process."""

import json

import pytest
from mpi import mpirun

STEPS = """
import json, sys
import numpy as np
from small_pretraining import masked_batch, VOCAB_SIZE, LENGTH
from minibert.bert import BertConfig, BertForMaskedLM, BertForPreTraining
from minibert.ranks import Ranks, world
from minibert.threads import set_threads
from minibert.train import AdamW, Muon, gradient_sum
from minibert.train.step import TrainingStep
from minibert.variants.albert import AlbertConfig, AlbertForPreTraining
from minibert.variants.electra import ElectraConfig

set_threads(1)
gradient_sum.PIECE = 500  # so that there are several, which do not end where layers end
SIZES = dict(vocab_size=VOCAB_SIZE, hidden_size=8, num_hidden_layers=3, num_attention_heads=2,
             intermediate_size=16, max_position_embeddings=LENGTH, hidden_dropout_prob=0.2,
             attention_probs_dropout_prob=0.2)

def batch(number, pairs):
    rows = 2 + number % 3  # none is like another
    found = masked_batch(rows, number)
    if number % 4 == 3 and pairs:
        found["labels"][:] = -100  # nothing to predict here
    return found | ({"next_sentence_label": np.arange(rows) % 2} if pairs else {})

def steps(ranks, dtype, micro_batches, Model, config, Optimiser=AdamW, fast=False):
    model = Model(config, dtype=dtype, seed=3)
    training = TrainingStep(model, Optimiser(model), seed=5, ranks=ranks, fast_reduce=fast)
    for step in range(3):
        numbers = range(step * micro_batches, (step + 1) * micro_batches)
        batches = [batch(number, Model is not BertForMaskedLM) for number in numbers]
        training.take(batches[ranks.rank :: ranks.size], 0.01, step)
    return model.buffers.value, training.read()

ranks = world()
MODELS = [(BertForPreTraining, BertConfig(**SIZES)), (BertForMaskedLM, BertConfig(**SIZES)),
          (AlbertForPreTraining, AlbertConfig(embedding_size=4, **SIZES))]
for Model, config in MODELS:
    for dtype in ("float32", "float64"):
        for rounds in (1, 2, 3):
            arguments = dtype, rounds * ranks.size, Model, config
            alone, losses = steps(Ranks(), *arguments)
            together, same_losses = steps(ranks, *arguments)
            assert together.tobytes() == alone.tobytes(), arguments[:3]
            assert losses == same_losses, arguments[:3]
            assert np.isfinite(alone).all() and losses["grad_norm"] > 0
fast, _ = steps(ranks, *arguments, fast=True)
assert fast.tobytes() != alone.tobytes() and np.abs(fast - alone).max() < 1e-12
muon, _ = steps(Ranks(), *arguments, Muon)
assert steps(ranks, *arguments, Muon)[0].tobytes() == muon.tobytes() != alone.tobytes()
"""


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_the_bits_are_those_of_accumulation_on_one(ranks):
    """Losses, gradient norm and parameters; tied and shared weights; batches of any kind; one to 3 rounds.

    Two ranks add in one order only, so that --fast-reduce has the same bits there.
    """
    code = STEPS if ranks > 2 else STEPS.replace("fast.tobytes() != alone.tobytes() and ", "")
    mpirun(ranks, "-c", code)


BYTES = """
import json
from small_pretraining import masked_batch, VOCAB_SIZE, LENGTH
from minibert.bert import BertConfig, BertForMaskedLM
from minibert.ranks import world
from minibert.train import AdamW, gradient_sum
from minibert.train.step import TrainingStep

ranks, sent = world(), [0]
start, share = ranks.start_exchange, ranks.share
def counting_start(array, sizes, received):
    sent[0] += array.itemsize * (sum(sizes) - sizes[ranks.rank])
    return start(array, sizes, received)
def counting_share(array, sizes):
    sent[0] += array.itemsize * sizes[ranks.rank] * (ranks.size - 1)
    share(array, sizes)
ranks.start_exchange, ranks.share = counting_start, counting_share
config = BertConfig(vocab_size=VOCAB_SIZE, hidden_size=8, num_hidden_layers=2, num_attention_heads=2,
                    intermediate_size=16, max_position_embeddings=LENGTH)
model = BertForMaskedLM(config, seed=3)
training = TrainingStep(model, AdamW(model), ranks=ranks)
for step in range(2):
    training.take([masked_batch(2, 2 * step + number) for number in range(2)], 0.01, step)
words = model.bert.embeddings.word_embeddings.weight.size
everybody = ranks.gather(sent[0] / 2)
if ranks.first:
    print(json.dumps([everybody, 4 * model.buffers.value.size, 4 * words]))
"""


def test_bytes_per_step_are_those_of_theory():
    """(k + 1)(N − 1)/N of the gradient in k rounds, and k (N − 1)/N of what is used twice: the embeddings."""
    everybody, gradient, words = json.loads(mpirun(4, "-c", BYTES)[0])
    rounds, share = 2, 3 / 4
    expected = share * ((rounds + 1) * gradient + rounds * words)
    assert sum(everybody) / 4 == pytest.approx(expected, rel=1e-3)
    assert max(everybody) < 1.05 * expected  # and nobody has much more to do

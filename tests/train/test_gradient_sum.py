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
from minibert.ops import optimise
from minibert.train import AdamW, Muon, shards
from minibert.train.step import TrainingStep
from minibert.variants.albert import AlbertConfig, AlbertForPreTraining
from minibert.variants.electra import ElectraConfig

set_threads(1)
optimise.BLOCK, shards.PIECE = 64, 512  # so that there are several, which do not end where layers end
SIZES = dict(vocab_size=VOCAB_SIZE, hidden_size=8, num_hidden_layers=3, num_attention_heads=2,
             intermediate_size=16, max_position_embeddings=LENGTH, hidden_dropout_prob=0.2,
             attention_probs_dropout_prob=0.2)

def batch(number, pairs):
    rows = 2 + number % 3  # none is like another
    found = masked_batch(rows, number)
    if number % 4 == 3 and pairs:
        found["labels"][:] = -100  # nothing to predict here
    return found | ({"next_sentence_label": np.arange(rows) % 2} if pairs else {})

def steps(ranks, dtype, micro_batches, Model, config, Optimiser=AdamW, fast=False, sharded=False):
    model = Model(config, dtype=dtype, seed=3)
    model.buffers.parameters[2].frozen = True
    optimiser = Optimiser(model, clip_norm=0.3, **({"ranks": ranks} if sharded else {}))
    training = TrainingStep(model, optimiser, seed=5, ranks=ranks, fast_reduce=fast)
    for step in range(3):
        numbers = range(step * micro_batches, (step + 1) * micro_batches)
        batches = [batch(number, Model is not BertForMaskedLM) for number in numbers]
        training.take(batches[ranks.rank :: ranks.size], 0.01, step)
    return model.buffers.value, training.read(), optimiser.state_arrays()

ranks = world()
MODELS = [(BertForPreTraining, BertConfig(**SIZES)), (BertForMaskedLM, BertConfig(**SIZES)),
          (AlbertForPreTraining, AlbertConfig(embedding_size=4, **SIZES))]
for Model, config in MODELS:
    for dtype in ("float32", "float64"):
        for rounds in (1, 2, 3):
            arguments = dtype, rounds * ranks.size, Model, config
            alone, losses, means = steps(Ranks(), *arguments)
            for sharded in (False, True):
                together, same_losses, same_means = steps(ranks, *arguments, sharded=sharded)
                assert together.tobytes() == alone.tobytes(), arguments[:3]
                assert losses == same_losses, arguments[:3]
                if ranks.first or not sharded:
                    assert list(means) == list(same_means)
                    assert all(means[name].tobytes() == same_means[name].tobytes() for name in means)
                else:
                    assert same_means == {}
            assert np.isfinite(alone).all() and losses["grad_norm"] > 0.3  # is clipped
fast, _, _ = steps(ranks, *arguments, fast=True)
assert fast.tobytes() != alone.tobytes() and np.abs(fast - alone).max() < 1e-12
shared, _, _ = steps(ranks, *arguments, fast=True, sharded=True)
assert np.abs(shared - alone).max() < 1e-12
ranks.agree({"the sharded parameters": shared.tobytes().hex()})
muon, _, _ = steps(Ranks(), *arguments, Muon)
assert steps(ranks, *arguments, Muon)[0].tobytes() == muon.tobytes() != alone.tobytes()
"""


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_the_bits_are_those_of_accumulation_on_one(ranks):
    """Losses, gradient norm, parameters and moments, with these shared out or not.

    Tied, shared and frozen weights; batches of any kind; one to 3 rounds.

    Two ranks add in one order only, so that --fast-reduce has the same bits there.
    """
    code = STEPS if ranks > 2 else STEPS.replace("fast.tobytes() != alone.tobytes() and ", "")
    mpirun(ranks, "-c", code)


BYTES = """
import json, sys
from small_pretraining import masked_batch, VOCAB_SIZE, LENGTH
from minibert.bert import BertConfig, BertForMaskedLM
from minibert.ranks import world
from minibert.ops import optimise
from minibert.train import AdamW
from minibert.train.step import TrainingStep

optimise.BLOCK = 64
ranks, sent = world(), [0]
start, share = ranks.start_exchange, ranks.start_share
def counting_start(array, sizes, received):
    sent[0] += array.itemsize * (sum(sizes) - sizes[ranks.rank])
    return start(array, sizes, received)
def counting_share(array, sizes):
    sent[0] += array.itemsize * sizes[ranks.rank] * (ranks.size - 1)
    return share(array, sizes)
ranks.start_exchange, ranks.start_share = counting_start, counting_share
config = BertConfig(vocab_size=VOCAB_SIZE, hidden_size=8, num_hidden_layers=2, num_attention_heads=2,
                    intermediate_size=16, max_position_embeddings=LENGTH)
model = BertForMaskedLM(config, seed=3)
optimiser = AdamW(model, **({"ranks": ranks} if "sharded" in sys.argv else {}))
training = TrainingStep(model, optimiser, ranks=ranks)
for step in range(2):
    training.take([masked_batch(2, 2 * step + number) for number in range(2)], 0.01, step)
words = model.bert.embeddings.word_embeddings.weight.size
everybody = ranks.gather(sent[0] / 2)
if ranks.first:
    print(json.dumps([everybody, 4 * model.buffers.value.size, 4 * words]))
"""


@pytest.mark.parametrize("sharded", [False, True])
def test_bytes_per_step_are_those_of_theory(sharded):
    """(k + 1)(N − 1)/N of the gradient in k rounds, and k (N − 1)/N of what is used twice: the embeddings.

    A sharded optimiser sends as much: parameters in place of sums.
    """
    arguments = ["sharded"] if sharded else []
    everybody, gradient, words = json.loads(mpirun(4, "-c", BYTES, *arguments)[0])
    rounds, share = 2, 3 / 4
    expected = share * ((rounds + 1) * gradient + rounds * words)
    assert sum(everybody) / 4 == expected
    assert max(everybody) < 1.05 * expected  # and nobody has much more to do


EARLY = """
from small_pretraining import masked_batch, VOCAB_SIZE, LENGTH
from minibert.bert import BertConfig, BertForMaskedLM
from minibert.ops import optimise
from minibert.ranks import world
from minibert.train import AdamW, shards
from minibert.train.step import TrainingStep

optimise.BLOCK = shards.PIECE = 64
ranks, started, early = world(), [0], []
start = ranks.start_exchange
def counting_start(*arguments):
    started[0] += 1
    return start(*arguments)
ranks.start_exchange = counting_start
config = BertConfig(vocab_size=VOCAB_SIZE, hidden_size=8, num_hidden_layers=2, num_attention_heads=2,
                    intermediate_size=16, max_position_embeddings=LENGTH)
model = BertForMaskedLM(config, seed=3)
training = TrainingStep(model, AdamW(model), ranks=ranks)
stored = training._sum.stored
def noting_stored(parameter):
    if parameter.name == "bert.embeddings.position_embeddings.weight":
        early.append(started[0])
    stored(parameter)
training._sum.stored = noting_stored
for step in range(3):
    started[0] = 0
    training.take([masked_batch(2, 2 * step + ranks.rank)], 0.01, step)
pieces = len(training._sum._pieces)
assert early[0] < early[1] == early[2], early  # the order of the first step is not that of the model
assert early[1] > 0.8 * pieces, (early, pieces)  # all but those of the embeddings, which are final last
"""


def test_pieces_are_sent_as_the_backward_completes_them():
    mpirun(2, "-c", EARLY)

"""Ranks with a GPU each, for which stand-ins stand: the recorder as CuPy, MPI as NCCL."""

import sys

import nccl_stand_in
import numpy as np
import pytest
from mpi import mpirun
from recorder import recording_device
from small_pretraining import LENGTH, VOCAB_SIZE, masked_batch

from minibert.arrays import to_numpy
from minibert.bert import BertConfig, BertForMaskedLM
from minibert.devices import Device
from minibert.errors import UserError
from minibert.ranks import ALONE, Ranks
from minibert.replay import WARM_UP
from minibert.train import AdamW
from minibert.train.gradient_sum import GpuSum
from minibert.train.nccl import connect, new_gpus
from minibert.train.shards import Shards
from minibert.train.step import TrainingStep

STEPS = """
import sys
import numpy as np
import nccl_stand_in
from recorder import recording_device
from small_pretraining import masked_batch, VOCAB_SIZE, LENGTH
from minibert.arrays import to_numpy
from minibert.bert import BertConfig, BertForMaskedLM
from minibert.devices import Device
from minibert.train.nccl import connect
from minibert.ops import optimise
from minibert.ranks import ALONE, world
from minibert.replay import WARM_UP
from minibert.train import AdamW, shards
from minibert.train.step import TrainingStep

optimise.BLOCK, shards.PIECE = 64, 512
config = BertConfig(vocab_size=VOCAB_SIZE, hidden_size=8, num_hidden_layers=2, num_attention_heads=2,
                    intermediate_size=16, max_position_embeddings=LENGTH)
STEPS = WARM_UP + 3

def train(device, ranks, sharded=False, graph=True):
    model = BertForMaskedLM(config, device=device, dtype="float64", seed=3)
    optimiser = AdamW(model, clip_norm=0.3, **({"ranks": ranks} if sharded else {}))
    training = TrainingStep(model, optimiser, seed=5, ranks=ranks, predictions=40, graph=graph)
    for step in range(STEPS):
        batches = [masked_batch(4, 6 * step + number) for number in range(6)]
        training.take(batches[ranks.rank :: ranks.size], 0.01, step)
    return to_numpy(model.buffers.value), training.read(), optimiser.state_arrays()

ranks = world()
alone, losses, means = train(Device("cpu", np), ALONE)
sys.modules |= nccl_stand_in.modules()
for sharded in (False, True):
    for graph in (False, True):
        device = recording_device(ranks.rank)
        connect(ranks, device)
        nccl_stand_in.calls.clear()
        together, same_losses, same_means = train(device, ranks, sharded, graph)
        assert np.abs(together - alone).max() < 1e-12
        assert all(abs(losses[name] - same_losses[name]) < 1e-12 for name in losses)
        assert same_losses["grad_norm"] > 0.3
        ranks.agree({"the weights": together.tobytes().hex()})
        for name in same_means:
            assert np.abs(means[name] - same_means[name]).max() < 1e-12
        assert ranks.first or not sharded or not same_means
        if graph:
            (recorded,) = device.xp.cuda.graphs
            assert recorded.launches == STEPS - WARM_UP
        size = together.size
        counts = {name: sum(n for what, n in nccl_stand_in.calls if what == name)
                  for name in ("allReduce", "reduce", "broadcast")}
        times = WARM_UP + 1 if graph else STEPS  # a replay makes no calls
        assert counts["reduce"] == counts["broadcast"] == (times * size if sharded else 0), counts
        assert (counts["allReduce"] >= times * size) != sharded, counts
"""


@pytest.mark.parametrize("ranks", [2, 3])
def test_gpus_take_the_step_of_one_process(ranks):
    """Also when the step, its sums over the ranks included, is replayed, and with a sharded optimiser."""
    mpirun(ranks, "-c", STEPS)


SIZES = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "max_position_embeddings": LENGTH,
}


def _gpus():
    try:
        from cupy.cuda import nccl, runtime

        return nccl.available and runtime.getDeviceCount()
    except Exception:  # no CuPy, or no driver
        return 0


class Two(Ranks):
    """Two ranks, of which the other has the same as this one, or what ``others`` says."""

    size = local_size = 2

    def __init__(self, *others):
        self.others = others

    def gather(self, value):
        return [value, *(self.others or [value])]


def test_two_ranks_cannot_have_the_same_gpu():
    with pytest.raises(UserError, match=r"ranks 0 and 1 have the same GPU \(0000:00:00.0 of .*\); start as"):
        connect(Two(), recording_device())


def test_without_nccl_it_says_what_to_install(monkeypatch):
    for name, module in nccl_stand_in.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(nccl_stand_in, "available", False)
    device = recording_device()
    device.xp.cuda.runtime = type("runtime", (), {"runtimeGetVersion": lambda: 12090})
    with pytest.raises(UserError, match=r"run  pip install nvidia-nccl-cu12$"):
        connect(Two(["elsewhere", "0"]), device)


def test_one_process_and_cpus_need_no_nccl():
    connect(ALONE, recording_device())
    connect(Two(), Device("cpu", np))
    assert ALONE.gpus is None


@pytest.mark.skipif(not _gpus(), reason="there is no GPU with CuPy and NCCL")
def test_nccl_itself_in_a_captured_step():
    """On a GPU: a communicator of one rank, whose sums change nothing."""
    trained = []
    for with_nccl in (False, True):
        model = BertForMaskedLM(BertConfig(**SIZES), device="cuda", seed=3)
        training = TrainingStep(model, AdamW(model), seed=5, predictions=40)
        if with_nccl:
            ranks = Ranks()
            ranks.gpus = new_gpus(ranks, model.device)
            training._sum = GpuSum(model.buffers, Shards(model.buffers.value.size, ranks), own_only=False)
        for step in range(WARM_UP + 3):
            training.take([masked_batch(4, step)], 0.01, step)
        assert training.repetition.replaying
        trained.append(to_numpy(model.buffers.value))
    np.testing.assert_array_equal(*trained)

"""What every rank runs: training steps in several ways, in turns. Rank 0 prints what was measured, as JSON.

    mpirun -n 2 python -m benchmarks.ranks.steps --preset tiny --ways alone exact --rounds 3

Each rank has one micro-batch per step. The ways:

    alone          each rank trains by itself, and tells the others nothing
    exact          the sum in the order of one process, sent in pieces during the backward pass
    exact, after   the same, but sent after the backward pass
    all-reduce     MPI's own sum (--fast-reduce), after the backward pass
    sharded        as exact, with the optimiser's means shared out (--shard-optimiser)
    one process    rank 0 takes the step of all ranks alone, with as many threads as there are ranks
"""

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks import inputs
from benchmarks.ranks.links import ONLY_TCP
from benchmarks.worker import resident
from minibert import BertConfig, BertForPreTraining
from minibert.ranks import ALONE, Ranks, world
from minibert.threads import set_threads
from minibert.train import AdamW
from minibert.train.gradient_sum import ExactSum
from minibert.train.step import TrainingStep

LINK = Path("/sys/class/net/eth0/statistics/tx_bytes")  # of a rank in a network namespace of its own
STEPS_BEFORE = 2  # things are compiled, memory is fetched


class AfterwardsSum(ExactSum):
    """The exact sum, of which nothing is sent before the backward pass has ended."""

    def stored(self, parameter: object) -> None:
        """Wait for the end of the round, which sends all pieces that are left."""


def way(name: str, ranks: Ranks, config: BertConfig, batch: dict[str, np.ndarray]) -> Callable[[], None]:
    """A function that takes a step."""
    model = BertForPreTraining(config, seed=0)
    together = ALONE if name in ("alone", "one process") else ranks
    optimiser = AdamW(model, ranks=together if name == "sharded" else ALONE)
    training = TrainingStep(model, optimiser, ranks=together, fast_reduce=name == "all-reduce")
    if name == "exact, after":
        training._sum = AfterwardsSum(model.buffers, training._sum._shards, own_only=False)
    batches = [batch] * (ranks.size if name == "one process" else 1)

    def step() -> None:
        if name == "one process":
            if not ranks.first:
                return
            set_threads(ranks.size)
        training.take(batches, 1e-5, 0)
        training.read()
        set_threads(1)

    return step


def timed(ranks: Ranks, step: Callable[[], None], count: int) -> float:
    """Seconds per step, from when all begin until the last is done."""
    ranks.barrier()
    began = time.perf_counter()
    for _ in range(count):
        step()
    ranks.barrier()
    return (time.perf_counter() - began) / count


def sent_bytes() -> int | None:
    """What this rank has sent over its link so far; None without a link of its own."""
    return int(LINK.read_text()) if ONLY_TCP.items() <= os.environ.items() else None


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--preset", default="tiny")
    parser.add_argument("--ways", nargs="+", required=True)
    for name, default in {"batch-size": 16, "length": 128, "rounds": 5, "steps": 3}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    ranks = world()
    set_threads(1)
    imported = resident()["VmRSS"]
    config = BertConfig.preset(options.preset, vocab_size=8192)
    batch = inputs.pretraining_batch(config.vocab_size, options.batch_size, options.length)
    steps = {name: way(name, ranks, config, batch) for name in options.ways}
    for step in steps.values():
        timed(ranks, step, STEPS_BEFORE)
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    sent: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(options.rounds):
        for name in list(steps) if number % 2 == 0 else reversed(list(steps)):
            before = sent_bytes()
            seconds[name].append(timed(ranks, steps[name], options.steps))
            if before is not None:
                sent[name].append(((sent_bytes() or 0) - before) / options.steps)
    memory = ranks.gather(resident()["VmHWM"] - imported)
    everybody = ranks.gather(sent)
    if ranks.first:
        found = {
            "seconds": seconds,
            "sent": {name: [each[name] for each in everybody] for name in steps if sent[name]},
            "memory": memory,  # of all ranks; it tells something only of one way
            "gradient_bytes": BertForPreTraining(config).buffers.value.nbytes,
            "words_bytes": 4 * config.vocab_size * config.hidden_size,
        }
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()

"""How long a step of each record takes, measured in turn in one process."""

import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from benchmarks.speedrun.tracks import Track, with_track
from minibert.bert import BertForMaskedLM, BertForPreTraining
from minibert.data import BatchStream
from minibert.errors import UserError
from minibert.products import NUMPY, fastest_library, use_products
from minibert.tasks.pretraining_model import set_first_values
from minibert.tasks.run import learning_rates, make_optimiser, matrix_shapes
from minibert.train.step import TrainingStep

ROUNDS, STEPS = 15, 6  # so many times, so many steps of each record in turn


def measure(track: Track, records: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Of each record, by name: the median seconds of a step, and those of what comes before the first.

    Each multiplies with the library that a run would choose (``products``).
    """
    takers = {name: _Taker(track, settings) for name, settings in records.items()}
    times: dict[str, list[float]] = {name: [] for name in records}
    for round_ in range(ROUNDS + 1):
        for name, taker in takers.items():
            use_products(taker.products)
            start = time.perf_counter()
            for _ in range(STEPS):
                taker.step()
            if round_:  # the first is to warm up
                times[name].append((time.perf_counter() - start) / STEPS)
    use_products(NUMPY)
    return {
        name: {
            "step_seconds": float(np.median(times[name])),
            "start_seconds": taker.start_seconds,
            "products": taker.products,
        }
        for name, taker in takers.items()
    }


class _Taker:
    """Takes the first steps of a run."""

    def __init__(self, track: Track, settings: Mapping[str, Any]):
        chosen = with_track(settings, track)
        if len(chosen.phases()) > 1:
            raise UserError(
                "the steps of a run with long sequences are not all alike, so they cannot be timed"
            )
        tokenizer, documents = track.tokenizer, track.prepared.train
        config = chosen.model_config(len(tokenizer))
        model = (BertForPreTraining if chosen.instance_settings().next_sentence else BertForMaskedLM)(config)
        start = time.perf_counter()
        set_first_values(model, chosen, documents)
        self.start_seconds = time.perf_counter() - start
        self.products = fastest_library(matrix_shapes(model))  # which a run would choose
        self.stream = BatchStream(documents, tokenizer, chosen.instance_settings(), chosen.batch_size)
        self.training = TrainingStep(model, make_optimiser(chosen, model))
        self.rates, self.taken = learning_rates(chosen, chosen.steps), 0

    def step(self) -> None:
        """Take one, with the batch that it needs."""
        self.training.take([next(self.stream)], self.rates(self.taken), self.taken)
        self.taken += 1

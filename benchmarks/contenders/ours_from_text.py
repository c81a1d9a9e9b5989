"""Ours, from texts on: fine-tuning and sentence vectors as the commands make them.

Apart from `ours`, because the tasks import more than the memory of a bare training step should count.
"""

import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.texts import describe_lengths
from benchmarks.worker import Contender
from minibert import open_tokenizer
from minibert.data.tasks import Feature, Place, TextExample, collate, single_features
from minibert.products import NUMPY, fastest_library, use_products
from minibert.tasks.classify import Classify
from minibert.tasks.embed import TextEncoder
from minibert.tasks.finetuning_settings import FinetuneSettings
from minibert.tasks.run import learning_rates, make_optimiser, matrix_shapes
from minibert.tasks.task import TableOptions
from minibert.train import Trainer
from minibert.train.metrics import MetricsLog, as_float

LABELS = ("0", "1")  # of every other sentence; speed does not depend on them


def fine_tuning(folder: str, pieces: Sequence[Sequence[str]], batch_size: int, max_length: int) -> Contender:
    """`minibert finetune` with its defaults, one pass over one of the ``pieces`` of sentences at a time.

    ``train`` is the pass, from the texts to the last update, without evaluations and checkpoints. ``loss`` is
    that of the last piece's first batch, without dropout. ``products`` is the library that was chosen.
    """
    settings = FinetuneSettings(task="classify", train="pieces", batch_size=batch_size)
    task = Classify(open_tokenizer(folder), TableOptions(max_length=max_length), labels=LABELS)
    model = task.new_model(folder)
    products = fastest_library(matrix_shapes(model))
    use_products(products)
    optimiser = make_optimiser(settings, model)

    def train(number: int) -> None:
        batches = task.batches(_features(task, pieces[number]), batch_size, max(number, 0))
        steps = batches.batches_per_epoch
        Trainer(
            task.trainee(model),
            optimiser,
            batches,
            learning_rates(settings, steps),
            evaluate=dict,
            save=lambda state: Path(folder),
            metrics=MetricsLog(Path(folder) / "metrics.jsonl"),
            steps=steps,
            graph=False,
        ).run()

    def loss_without_dropout() -> float:
        model.eval()
        batch = collate(_features(task, pieces[-1][:batch_size]), task.tokenizer.pad_id)
        return as_float(model.forward(**batch)[0].loss)

    return {
        "train": train,
        "loss": loss_without_dropout,
        "products": lambda: products,
        "lengths": lambda: _lengths(_features(task, list(itertools.chain(*pieces)))),
    }


def _features(task: Classify, sentences: Sequence[str]) -> list[Feature]:
    examples = [
        TextExample(text, None, LABELS[number % 2], Place("sentences", number + 1))
        for number, text in enumerate(sentences)
    ]
    return task.features(examples, training=True)


def embedding(folder: str, pieces: Sequence[Sequence[str]], products: str = NUMPY) -> Contender:
    """`minibert embed` with its defaults, or with other ``products``: ``embed`` one of the ``pieces``.

    ``save`` writes the vectors of the last piece.
    """
    use_products(products)
    encoder = TextEncoder.open(folder)

    def lengths() -> dict[str, int | float]:
        sentences = list(itertools.chain(*pieces))
        return _lengths(single_features(sentences, encoder.tokenizer, encoder.max_length))

    return {
        "embed": lambda number: encoder.embed(pieces[number]),
        "save": lambda path: np.save(path, encoder.embed(pieces[-1])),
        "lengths": lengths,
    }


def _lengths(features: Sequence[Feature]) -> dict[str, int | float]:
    """To be asked for after the measurement: the tokenizer remembers every word that it has seen."""
    return describe_lengths([len(feature) for feature in features])

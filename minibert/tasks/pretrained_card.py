"""The model card of a pre-trained model."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from minibert.tasks.model_card import write_model_card
from minibert.tasks.pretraining_settings import PretrainSettings
from minibert.train.progress import format_seconds
from minibert.variants import open_config


def write_pretrained_card(
    folder: str | Path,
    settings: PretrainSettings,
    results: Mapping[str, Any],
    *,
    data: Mapping[str, str] | None = None,
    **more: Any,
) -> None:
    """Write ``README.md`` into the folder of a model that a run with these settings has made.

    ``results`` are those that ``results.json`` holds. ``data`` describes the text in place of the names of
    its files; its size is added. ``more`` are arguments of ``write_model_card``.
    """
    environment = results["environment"]
    rows = dict(data or {"text": ", ".join(settings.corpus) or "the documentation installed with Python"})
    rows |= {
        part: f"{results[text]['tokens']:,} tokens in {results[text]['documents']:,} documents"
        for part, text in (("to train on", "training_text"), ("held out", "held_out_text"))
    }
    recipe: dict[str, Any] = {"began from": settings.model or "nothing"}
    recipe |= {"teacher": settings.teacher} if settings.teacher else {}
    recipe |= dict(phase.describe().split(": ") for phase in settings.phases())
    recipe |= {
        "read": f"{results['tokens']:,} tokens in {format_seconds(results['seconds'])} of training",
        "machine": f"{environment['processor']} ({environment['device']})",
    }
    recipe["dropout"] = open_config(folder).hidden_dropout_prob
    recipe |= {name: getattr(settings, name) for name in RECIPE}
    words = "permuted words" if settings.predicts == "permuted" else "masked words"
    words += " (the generator)" if settings.family.together else ""
    scores = {
        told.format(words=words, pairs=settings.learned_of_pairs): [results[name]]
        for name, told in SCORES.items()
        if results.get(name) is not None
    }
    write_model_card(
        folder,
        name=settings.folder.name,
        data=rows,
        recipe=recipe,
        command=shlex.join([*settings.command.split(), *settings.as_typed().flags()]),
        scores=scores,
        scored_on=f"the held-out documents, in sequences of {settings.max_seq_length} tokens",
        **more,
    )


RECIPE = "optimiser learning_rate schedule warmup weight_decay beta2 precision seed".split()
SCORES = {
    "held_out_mlm_loss": "{words}, loss in nats",
    "plateau_loss": "the same, guessing by frequency",
    "held_out_mlm_accuracy": "{words}, accuracy",
    "plateau_accuracy": "the same, always naming the commonest",
    "held_out_nsp_accuracy": "sentence pairs ({pairs}), accuracy",
    "held_out_rtd_loss": "replaced words, loss in nats",
    "held_out_rtd_accuracy": "replaced words, accuracy",
}

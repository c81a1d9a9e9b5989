"""Evaluation of pre-training on held-out text: on which batches, and how."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from minibert.arrays import Array, to_numpy
from minibert.data import InstanceSettings, PreparedCorpus, held_out_batches
from minibert.nn import Context
from minibert.nn.targets import IGNORED
from minibert.ranks import Ranks
from minibert.tasks.pretraining_settings import PretrainSettings
from minibert.text import PretrainedTokenizer
from minibert.train.metrics import as_float, count_targets

HELD_OUT_MASKED = 0.15  # share of the tokens to predict


def evaluation_batches(
    settings: PretrainSettings, tokenizer: PretrainedTokenizer, prepared: PreparedCorpus
) -> list[dict[str, np.ndarray]]:
    """The micro-batches that every evaluation of the run uses: as many examples as ``eval_batches`` steps.

    The examples in them are the same however the batch of a step is divided into micro-batches. 15 % of the
    tokens are hidden, one by one, in BERT's way. The run's own rate, limit and way do not matter, so that the
    losses of runs can be compared.
    """
    examples = settings.eval_batches * settings.accumulation * settings.batch_size
    own = settings.instance_settings()
    instances = replace(
        own,
        masked_lm_prob=HELD_OUT_MASKED,
        max_predictions=own.max_seq_length,
        mask_shares=InstanceSettings.mask_shares,
        whole_word_masking=False,
    )
    batch_size = settings.batch_size
    batches = []
    seed = settings.split["seed"]
    for batch in held_out_batches(prepared.held_out, tokenizer, instances, batch_size, seed):
        batches.append({name: rows[:examples] for name, rows in batch.items()})
        examples -= len(batches[-1]["input_ids"])
        if examples == 0:
            break
    return batches


def evaluate(
    model: Any, batches: Sequence[Mapping[str, Any]], ranks: Ranks | None = None
) -> dict[str, float]:
    """Losses (nats) and accuracies in pre-training, dropout off, over all predictions in these batches.

    Every prediction counts the same, whichever batch it is in: the sums are divided once, by the
    counts of all batches. Each of the ``ranks`` computes some of them. Leaves the model in evaluation mode.
    """
    ranks = ranks or Ranks()
    model.eval()
    counts = count_targets(model, batches)
    own = [_measure(model, batch, counts) for batch in batches[ranks.rank :: ranks.size]]
    everybody = ranks.gather(own)
    losses, right = dict.fromkeys(("mlm", "nsp", "rtd"), 0.0), dict.fromkeys(("mlm", "nsp", "rtd"), 0)
    for number in range(len(batches)):  # in the same order, however many ranks there are
        for head, (loss, correct) in everybody[number % ranks.size][number // ranks.size].items():
            losses[head] += loss
            right[head] += correct
    results: dict[str, float] = {}
    for argument, count in counts.items():
        head = argument.removesuffix("_denominator")
        results |= {f"{head}_loss": losses[head], f"{head}_accuracy": right[head] / count}
    return results


def _measure(model: Any, batch: Mapping[str, Any], counts: Mapping[str, Any]) -> dict[str, tuple[float, int]]:
    """What a batch adds to the loss of each head, and how many of its predictions are right."""
    outputs, _ = model.forward(**batch, **counts, context=Context(backward=False))
    measured = {}
    if "labels" in batch:
        labels = batch["labels"][batch["labels"] != IGNORED]  # row-major, as the logits are
        measured["mlm"] = as_float(outputs.mlm_loss), _count_right(outputs.prediction_logits, labels)
    if "next_sentence_label" in batch:
        right = _count_right(outputs.seq_relationship_logits, batch["next_sentence_label"])
        measured["nsp"] = as_float(outputs.nsp_loss), right
    if "rtd_denominator" in counts:  # ELECTRA's discriminator
        judged = to_numpy((outputs.rtd_logits > 0) == outputs.replaced)
        measured["rtd"] = as_float(outputs.rtd_loss), int(judged[batch["attention_mask"] > 0].sum())
    return measured


def _count_right(logits: Array, labels: np.ndarray) -> int:
    return int(np.sum(to_numpy(logits.argmax(axis=-1)) == labels))

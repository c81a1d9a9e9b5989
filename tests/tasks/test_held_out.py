import numpy as np
import pytest

from minibert.bert import BertForMaskedLM, BertForPreTraining
from minibert.tasks.held_out import evaluate


def joined(batches):
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}


def test_every_prediction_counts_the_same_whichever_batch_it_is_in(model, make_batch):
    batches = [make_batch(rows, seed) for seed, rows in enumerate((1, 7, 3))]
    assert evaluate(model, batches) == pytest.approx(evaluate(model, [joined(batches)]), rel=1e-12)


def test_losses_and_accuracies_are_those_of_the_whole_probability_table(model, make_batch):
    batch = make_batch(5, seed=1)
    model.cls.predictions.bias.value[...] = np.linspace(
        0, 3, model.config.vocab_size
    )  # something to be right on
    results = evaluate(model, [batch])
    outputs, _ = model.forward(
        **{name: batch[name] for name in ("input_ids", "token_type_ids", "attention_mask")}
    )
    rows, columns = np.nonzero(batch["labels"] != -100)
    labels = batch["labels"][rows, columns]
    logits = outputs.prediction_logits[rows, columns]
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    assert results["mlm_loss"] == pytest.approx(-log_p[np.arange(len(labels)), labels].mean())
    assert results["mlm_accuracy"] == np.mean(logits.argmax(-1) == labels)
    assert results["nsp_accuracy"] == np.mean(
        outputs.seq_relationship_logits.argmax(-1) == batch["next_sentence_label"]
    )


def test_evaluation_is_without_dropout(config, make_batch):
    batches, found = [make_batch(4, seed=0)], []
    for share in (0.0, 0.5):
        config.hidden_dropout_prob = config.attention_probs_dropout_prob = share
        model = BertForPreTraining(config, dtype="float64", seed=1)
        found += [evaluate(model, batches), evaluate(model, batches)]
        assert not model.training
    assert found == [found[0]] * 4


def test_a_model_without_sentence_pairs_is_not_measured_on_them(config, make_batch):
    batch = make_batch(4, seed=0)
    del batch["next_sentence_label"]
    assert set(evaluate(BertForMaskedLM(config), [batch])) == {"mlm_loss", "mlm_accuracy"}


def test_evaluation_runs_on_every_array_library(device, config, model, make_batch):
    batches = [make_batch(3, seed=0)]
    elsewhere = BertForPreTraining(config, device=device, dtype="float64", seed=3)
    assert evaluate(elsewhere, batches) == pytest.approx(evaluate(model, batches), rel=1e-12)

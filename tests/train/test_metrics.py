import json
import os
from pathlib import Path

import numpy as np
import pytest

from minibert.arrays import Device
from minibert.bert import BertForMaskedLM, BertForPreTraining
from minibert.errors import UserError
from minibert.train.metrics import MetricsLog, count_targets, evaluate, peak_memory, read_metrics


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
    outputs, _ = model.forward(batch["input_ids"], batch["token_type_ids"], batch["attention_mask"])
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
    config.hidden_dropout_prob = 0.5
    model = BertForPreTraining(config, dtype="float64")
    batches = [make_batch(4, seed=0)]
    model.set_dropout_stream(seed=0, step=0)
    first = evaluate(model, batches)
    model.set_dropout_stream(seed=0, step=1)
    assert evaluate(model, batches) == first


def test_a_model_without_sentence_pairs_is_not_measured_on_them(config, make_batch):
    batch = make_batch(4, seed=0)
    del batch["next_sentence_label"]
    assert set(evaluate(BertForMaskedLM(config), [batch])) == {"mlm_loss", "mlm_accuracy"}


def test_evaluation_runs_on_every_array_library(device, config, model, make_batch):
    batches = [make_batch(3, seed=0)]
    elsewhere = BertForPreTraining(config, device=device, dtype="float64", seed=3)
    assert evaluate(elsewhere, batches) == pytest.approx(evaluate(model, batches), rel=1e-12)


def test_targets_are_counted_over_all_batches(model, make_batch):
    batches = [make_batch(rows, seed) for seed, rows in enumerate((2, 3))]
    masked = sum(int((batch["labels"] != -100).sum()) for batch in batches)
    assert count_targets(model, batches) == {"mlm_denominator": masked, "nsp_denominator": 5}


def test_lines_after_a_step_are_dropped_and_so_is_half_a_line(tmp_path):
    log = MetricsLog(tmp_path / "metrics.jsonl")
    for step in range(4):
        log.write({"step": step, "loss": step / 3})
    with open(log.path, "a") as file:
        file.write('{"step": 1, "los')  # killed while writing
    log.truncate(2)
    log.write({"step": 3, "loss": 9.0})
    lines = log.path.read_text().splitlines()
    assert [json.loads(line) for line in lines] == read_metrics(log.path)
    assert read_metrics(log.path) == [
        {"step": 0, "loss": 0.0},
        {"step": 1, "loss": 1 / 3},
        {"step": 2, "loss": 2 / 3},
        {"step": 3, "loss": 9.0},
    ]


@pytest.mark.parametrize("line", ['{"step": 1', "[1]", '{"loss": 1.0}', "", "[" * 100_000, '{"step": true}'])
def test_a_damaged_line_is_named(tmp_path, line):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 0}\n' + line + '\n{"step": 2}\n')
    with pytest.raises(UserError, match=r"metrics\.jsonl: line 2 is damaged; delete that line"):
        read_metrics(path)


def test_no_metrics_are_no_file(tmp_path):
    assert read_metrics(tmp_path / "metrics.jsonl") == []


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
def test_a_full_disk_is_told_with_the_file():
    with pytest.raises(UserError, match=r"^/dev/full: cannot be written .No space left"):
        MetricsLog(Path("/dev/full")).write({"step": 1})


def test_peak_memory_grows_with_what_is_held():
    device = Device("cpu", np)
    before = peak_memory(device)
    if before is None:
        pytest.skip("this system does not count it")
    held = np.ones(before // 8 + (1 << 24))  # more than ever before by 128 MiB, and touched
    assert peak_memory(device) >= held.nbytes

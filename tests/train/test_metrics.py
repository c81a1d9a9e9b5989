import json
import os
from pathlib import Path

import numpy as np
import pytest

from minibert.devices import Device
from minibert.errors import UserError
from minibert.nn.targets import count_tokens
from minibert.train.metrics import (
    MetricsLog,
    count_targets,
    peak_memory,
    read_metrics,
    without_nan,
)


def test_targets_are_counted_over_all_batches(model, make_batch):
    batches = [make_batch(rows, seed) for seed, rows in enumerate((2, 3))]
    masked = sum(int((batch["labels"] != -100).sum()) for batch in batches)
    assert count_targets(model, batches) == {"mlm_denominator": masked, "nsp_denominator": 5}


def test_tokens_are_counted_without_padding_in_batches_and_pairs_of_them():
    batch = {"attention_mask": np.array([[1, 1, 0], [1, 1, 1]]), "labels": np.ones(2)}
    assert count_tokens(batch) == 5
    assert count_tokens({"first": batch, "second": batch, "labels": np.ones(2)}) == 10
    assert count_tokens({"attention_mask": [[1, 0], [1, 1]]}) == 3  # as a tokenizer gives it
    assert count_tokens({"input_ids": [[5, 6], [7, 8]], "labels": np.ones(2)}) == 4


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


def test_numbers_of_numpy_are_logged_as_those_of_python(tmp_path):
    log = MetricsLog(tmp_path / "metrics.jsonl")
    log.write({"step": np.int64(1), "lr": np.float32(0.5), "x": np.array(2.0), "y": np.float32("nan")})
    assert read_metrics(tmp_path / "metrics.jsonl") == [{"step": 1, "lr": 0.5, "x": 2.0, "y": None}]


def test_what_json_cannot_hold_is_none():
    assert without_nan({"a": float("nan"), "b": float("-inf"), "c": 2, "d": None, "e": "inf"}) == {
        "a": None,
        "b": None,
        "c": 2,
        "d": None,
        "e": "inf",
    }

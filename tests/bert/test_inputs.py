"""Batches are checked on the host: every mistake is named before it reaches the device."""

import numpy as np
import pytest

from minibert.arrays import to_numpy
from minibert.bert.inputs import encoder_inputs, masked_lm_targets, next_sentence_targets
from minibert.errors import UserError

IDS = [[1, 2, 3], [4, 5, 0]]


def test_defaults_and_dtypes(config, device):
    """No token types is 0, no mask is 1; lists and any integer type give the same device arrays."""
    for ids in (IDS, np.array(IDS, "int32"), np.array(IDS, "uint8"), device.asarray(IDS)):
        inputs = encoder_inputs(config(), device, ids)
        assert to_numpy(inputs.input_ids).tolist() == IDS
        assert to_numpy(inputs.token_type_ids).tolist() == [[0] * 3] * 2
        assert to_numpy(inputs.attention_mask).tolist() == [[1] * 3] * 2
        arrays = (inputs.input_ids, inputs.token_type_ids, inputs.attention_mask)
        assert all(isinstance(array, device.xp.ndarray) and array.dtype == "int32" for array in arrays)


def test_a_mask_may_be_of_truth_values(config, device):
    mask = np.array([[True, True, False]] * 2)
    inputs = encoder_inputs(config(), device, IDS, attention_mask=mask)
    assert to_numpy(inputs.attention_mask).tolist() == [[1, 1, 0]] * 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"input_ids": [1, 2, 3]}, r"input_ids has shape \(3,\); expected \(batch, sequence length\)"),
        ({"input_ids": 5}, r"input_ids has shape \(\)"),
        ({"input_ids": np.zeros((2, 3, 4), int)}, r"input_ids has shape \(2, 3, 4\)"),
        ({"input_ids": []}, r"input_ids has shape \(0,\)"),
        ({"input_ids": [[], []]}, r"input_ids has shape \(2, 0\); .*neither of them 0"),
        ({"input_ids": [[1, 2], [3]]}, "input_ids is a list of lists of unequal length"),
        ({"input_ids": np.array(IDS, float)}, "input_ids has dtype float64; expected integers"),
        ({"input_ids": [["a", "b"]]}, "input_ids has dtype <U1; expected integers"),
        ({"input_ids": [[1, None]]}, "input_ids has dtype object; expected integers"),
        ({"input_ids": [[1] * 17]}, "17 tokens long but the model has only 16 positions"),
        ({"input_ids": [[1, 50]]}, r"input_ids contains 50; expected 0 to 49 \(vocab_size\)"),
        ({"input_ids": [[-1, 50]]}, "input_ids contains -1; expected 0 to 49"),
        ({"token_type_ids": [[0, 0, 0]]}, r"token_type_ids has shape \(1, 3\); .*input_ids, \(2, 3\)"),
        (
            {"token_type_ids": [[0, 1, 2]] * 2},
            r"token_type_ids contains 2; expected 0 to 1 \(type_vocab_size",
        ),
        ({"attention_mask": [[1, 1]] * 2}, r"attention_mask has shape \(2, 2\); .*\(2, 3\)"),
        ({"attention_mask": [[1, 1, 2]] * 2}, "attention_mask contains 2; expected 0 to 1"),
        ({"attention_mask": [[1, 1, -1]] * 2}, "attention_mask contains -1"),
        ({"attention_mask": [[1.0, 1.0, 0.0]] * 2}, "attention_mask has dtype float64; expected integers"),
    ],
)
def test_batches_that_are_refused(config, device, arguments, message):
    with pytest.raises(UserError, match=message) as caught:
        encoder_inputs(config(), device, **({"input_ids": IDS} | arguments))
    assert "\n" not in str(caught.value)


def test_the_ends_of_the_ranges_are_inside(config, device):
    encoder_inputs(config(), device, [[0, 49] * 8], [[0, 1] * 8], [[0, 1] * 8])


def test_labels_become_rows(config, device):
    labels = [[-100, 7, -100, 0, 49], [-100] * 5, [5, -100, -100, -100, -100]]
    targets = masked_lm_targets(config(), device, "float32", labels, (3, 5))
    assert to_numpy(targets.positions).tolist() == [1, 3, 4, 10]
    assert to_numpy(targets.labels).tolist() == [7, 0, 49, 5]
    assert to_numpy(targets.weights).tolist() == [1.0] * 4
    assert float(to_numpy(targets.denominator)) == 4.0
    assert targets.weights.dtype == "float32"


def test_no_labels_at_all(config, device):
    targets = masked_lm_targets(config(), device, "float32", [[-100, -100]], (1, 2))
    assert to_numpy(targets.weights).tolist() == [0.0] and float(to_numpy(targets.denominator)) == 1.0
    assert to_numpy(targets.positions).tolist() == to_numpy(targets.labels).tolist() == [0]


def test_a_fixed_number_of_rows(config, device):
    labels = [[-100, 7, -100], [5, -100, -100]]
    targets = masked_lm_targets(config(), device, "float32", labels, (2, 3), rows=4)
    assert to_numpy(targets.positions).tolist() == [1, 3, 0, 0]
    assert to_numpy(targets.labels).tolist() == [7, 5, 0, 0]
    assert to_numpy(targets.weights).tolist() == [1.0, 1.0, 0.0, 0.0]
    assert float(to_numpy(targets.denominator)) == 2.0
    full = masked_lm_targets(config(), device, "float32", labels, (2, 3), rows=2)
    assert to_numpy(full.weights).tolist() == [1.0, 1.0]
    with pytest.raises(UserError, match="2 positions to predict; expected at most 1"):
        masked_lm_targets(config(), device, "float32", labels, (2, 3), rows=1)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([[1, 2]], r"labels has shape \(1, 2\); expected that of input_ids, \(2, 2\)"),
        ([[1, 2], [3, 50]], r"labels contains 50; expected 0 to 49 \(vocab_size, or −100 for ignored\)"),
        ([[1, 2], [3, -1]], "labels contains -1"),
        ([[1, 2], [3, -99]], "labels contains -99"),
        ([[1.0, 2.0], [3.0, 4.0]], "labels has dtype float64; expected integers"),
        ([[1, 2], [3]], "labels is a list of lists of unequal length"),
        ([], r"labels has shape \(0,\)"),
    ],
)
def test_labels_that_are_refused(config, device, labels, message):
    with pytest.raises(UserError, match=message):
        masked_lm_targets(config(), device, "float32", labels, (2, 2))


def test_next_sentence_labels(device):
    for labels in ([0, -100, 1], np.array([[0], [-100], [1]])):
        targets = next_sentence_targets(device, "float64", labels, 3)
        assert to_numpy(targets.weights).tolist() == [1.0, 0.0, 1.0]
        assert to_numpy(targets.labels)[[0, 2]].tolist() == [0, 1]
        assert 0 <= to_numpy(targets.labels)[1] < 2
        assert float(to_numpy(targets.denominator)) == 2.0


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0, 1], r"next_sentence_label has shape \(2,\); expected \(3,\)"),
        ([0, 1, 2], "next_sentence_label contains 2; expected 0 to 1"),
        ([0, 1, -1], "next_sentence_label contains -1"),
        ([0.0, 1.0, 1.0], "next_sentence_label has dtype float64"),
    ],
)
def test_next_sentence_labels_that_are_refused(device, labels, message):
    with pytest.raises(UserError, match=message):
        next_sentence_targets(device, "float64", labels, 3)

"""Batches are checked on the host: every mistake is named before it reaches the device."""

import numpy as np
import pytest

from minibert.bert.inputs import encoder_inputs
from minibert.errors import UserError
from minibert.heads import BertForSequenceClassification
from minibert.heads.inputs import (
    computed_earlier,
    number_targets,
    span_targets,
    tag_targets,
    words_back,
    words_first,
)
from minibert.nn.targets import class_targets, masked_lm_targets

IDS = [[1, 2, 3], [4, 5, 0]]


def test_defaults_and_dtypes(config, device):
    """No token types is 0, no mask is 1; lists and any integer type give the same arrays on the host."""
    for ids in (IDS, np.array(IDS, "int32"), np.array(IDS, "uint8"), device.asarray(IDS)):
        inputs = encoder_inputs(config(), ids)
        assert inputs.input_ids.tolist() == IDS
        assert inputs.token_type_ids.tolist() == [[0] * 3] * 2
        assert inputs.attention_mask.tolist() == [[1] * 3] * 2
        arrays = (inputs.input_ids, inputs.token_type_ids, inputs.attention_mask)
        assert all(isinstance(array, np.ndarray) and array.dtype == "int32" for array in arrays)


def test_a_row_that_is_all_padding_has_no_features(config):
    """Their mean over its tokens would be 0/0."""
    with pytest.raises(UserError, match="attention_mask is 0 throughout row 1; an empty text has no vector"):
        BertForSequenceClassification(config(feature_layers=[-1])).forward(
            IDS, attention_mask=[[1, 1, 1], [0, 0, 0]]
        )


def test_a_mask_may_be_of_truth_values(config):
    mask = np.array([[True, True, False]] * 2)
    inputs = encoder_inputs(config(), IDS, attention_mask=mask)
    assert inputs.attention_mask.tolist() == [[1, 1, 0]] * 2


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
        ({"token_type_ids": [[0, 0, 0]]}, r"token_type_ids has shape \(1, 3\); .*the input, \(2, 3\)"),
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
def test_batches_that_are_refused(config, arguments, message):
    with pytest.raises(UserError, match=message) as caught:
        encoder_inputs(config(), **({"input_ids": IDS} | arguments))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("vectors", "message"),
    [
        ([[[0.0] * 12, [0.0] * 12], [[0.0] * 12]], "inputs_embeds is a list of lists of unequal length"),
        ([[[0.0] * 12, [0.0] * 11]], "inputs_embeds is a list of lists of unequal length"),
        ([[["a"] * 12]], "inputs_embeds has dtype <U1; expected numbers"),
    ],
)
def test_vectors_that_are_refused(config, vectors, message):
    with pytest.raises(UserError, match=message):
        encoder_inputs(config(), inputs_embeds=vectors)


def test_ragged_features_are_refused():
    with pytest.raises(UserError, match="features is a list of lists of unequal length"):
        computed_earlier("features", [[1.0, 2.0], [3.0]], (2, 2), "float32")


def test_the_ends_of_the_ranges_are_inside(config):
    encoder_inputs(config(), [[0, 49] * 8], [[0, 1] * 8], [[0, 1] * 8])


def test_labels_become_rows(config):
    labels = [[-100, 7, -100, 0, 49], [-100] * 5, [5, -100, -100, -100, -100]]
    targets = masked_lm_targets(labels, (3, 5), config().vocab_size, "float32")
    assert targets.positions.tolist() == [1, 3, 4, 10]
    assert targets.labels.tolist() == [7, 0, 49, 5]
    assert targets.weights.tolist() == [1.0] * 4
    assert float(targets.denominator) == 4.0
    assert targets.weights.dtype == "float32"


def test_no_labels_at_all(config):
    targets = masked_lm_targets([[-100, -100]], (1, 2), config().vocab_size, "float32")
    assert targets.weights.tolist() == [0.0] and float(targets.denominator) == 1.0
    assert targets.positions.tolist() == targets.labels.tolist() == [0]


def test_a_fixed_number_of_rows(config):
    labels = [[-100, 7, -100], [5, -100, -100]]
    targets = masked_lm_targets(labels, (2, 3), config().vocab_size, "float32", rows=4)
    assert targets.positions.tolist() == [1, 3, 0, 0]
    assert targets.labels.tolist() == [7, 5, 0, 0]
    assert targets.weights.tolist() == [1.0, 1.0, 0.0, 0.0]
    assert float(targets.denominator) == 2.0
    full = masked_lm_targets(labels, (2, 3), config().vocab_size, "float32", rows=2)
    assert full.weights.tolist() == [1.0, 1.0]
    with pytest.raises(UserError, match="2 positions to predict; expected at most 1"):
        masked_lm_targets(labels, (2, 3), config().vocab_size, "float32", rows=1)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([[1, 2]], r"labels has shape \(1, 2\); expected that of the input, \(2, 2\)"),
        ([[1, 2], [3, 50]], r"labels contains 50; expected 0 to 49 \(vocab_size, or −100 for ignored\)"),
        ([[1, 2], [3, -1]], "labels contains -1"),
        ([[1, 2], [3, -99]], "labels contains -99"),
        ([[1.0, 2.0], [3.0, 4.0]], "labels has dtype float64; expected integers"),
        ([[1, 2], [3]], "labels is a list of lists of unequal length"),
        ([], r"labels has shape \(0,\)"),
    ],
)
def test_labels_that_are_refused(config, labels, message):
    with pytest.raises(UserError, match=message):
        masked_lm_targets(labels, (2, 2), config().vocab_size, "float32")


def test_next_sentence_labels():
    for labels in ([0, -100, 1], np.array([[0], [-100], [1]])):
        targets = class_targets("next_sentence_label", labels, (3,), 2, "float64")
        assert targets.weights.tolist() == [1.0, 0.0, 1.0]
        assert targets.labels[[0, 2]].tolist() == [0, 1]
        assert 0 <= targets.labels[1] < 2
        assert float(targets.denominator) == 2.0


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0, 1], r"next_sentence_label has shape \(2,\); expected \(3,\)"),
        ([0, 1, 2], "next_sentence_label contains 2; expected 0 to 1"),
        ([0, 1, -1], "next_sentence_label contains -1"),
        ([0.0, 1.0, 1.0], "next_sentence_label has dtype float64"),
    ],
)
def test_next_sentence_labels_that_are_refused(labels, message):
    with pytest.raises(UserError, match=message):
        class_targets("next_sentence_label", labels, (3,), 2, "float64")


def test_words_first_and_back():
    """Each row's chosen places in order, then places that are not its own; an empty row has none."""
    chosen = np.array([[0, 1, 0, 1], [0, 0, 0, 0], [1, 1, 0, 1]], dtype=bool)
    positions, inside = words_first(chosen)
    assert positions.shape == inside.shape == (3, 3)
    assert inside.tolist() == [[True, True, False], [False] * 3, [True] * 3]
    assert positions[inside].tolist() == [1, 3, 8, 9, 11]
    back = words_back(np.arange(9).reshape(3, 3), positions, inside, (3, 4))
    assert back.tolist() == [[-100, 0, -100, 1], [-100] * 4, [6, 7, -100, 8]]
    nothing, inside = words_first(np.zeros((2, 3), dtype=bool))
    assert nothing.shape == (2, 1) and not inside.any()


def test_tags_stand_side_by_side():
    targets = tag_targets([[-100, 2, -100, 0], [-100] * 4, [1, -100, -100, -100]], (3, 4), 3, "float32")
    assert targets.positions[[0, 0, 2], [0, 1, 0]].tolist() == [1, 3, 8]
    assert targets.labels.tolist() == [[2, 0], [0, 0], [1, 0]]
    assert targets.weights.tolist() == [[1.0, 1.0], [0.0, 0.0], [1.0, 0.0]]
    assert targets.denominator == 2
    assert targets.weights.dtype == "float32"


def test_spans():
    """A start (an end) counts for 1 / their number, or 1 / denominator; one beyond the tokens for nothing."""
    targets = span_targets([0, 4, 2, 9], [[1], [5], [4], [7]], (4, 5), None, "float32")
    assert targets.positions[:, [0, 2]].tolist() == [[0, 2], [1, 4]]
    np.testing.assert_allclose(targets.weights, [[1 / 3, 1 / 3, 1 / 3, 0], [1 / 2, 0, 1 / 2, 0]], rtol=1e-7)
    for denominator, weight in ((4, 0.25), ([4, 2], 0.25), ([0, 2], 1.0)):
        weights = span_targets([0, 9], [9, 9], (2, 5), denominator, "float32").weights
        assert weights.tolist() == [[weight, 0.0], [0.0, 0.0]] and weights.dtype == "float32"


def test_numbers():
    for labels in ([1, 2.5], [[1], [2.5]], np.array([1, 2.5], dtype="float32")):
        targets = number_targets(labels, (2, 1), None, "float32")
        assert targets.numbers.tolist() == [[1.0], [2.5]] and targets.numbers.dtype == "float32"
        assert targets.denominator == 2 and targets.denominator.dtype == "float32"

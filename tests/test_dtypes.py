"""Nothing widens by accident: every array made in a whole float32 training step is float32 or integer.

The strict array library tells the dtype of each result, with the function that made it.
"""

import numpy as np
import pytest
import strict

from minibert.arrays import Device
from minibert.bert import BertConfig, BertForPreTraining
from minibert.bert.cases import BATCH, CONFIG, LABELS, NEXT_SENTENCE_LABEL
from minibert.train.optimiser import AdamW

STRICT = Device("strict", strict.xp)


def training_step(model: BertForPreTraining) -> None:
    """Forward, backward, clip and update, as a trainer does it."""
    _, cache = model.forward(**BATCH, labels=LABELS, next_sentence_label=NEXT_SENTENCE_LABEL)
    model.zero_grad()
    model.backward(cache)
    AdamW(model, bias_correction=True).step(learning_rate=1e-3, step=3)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("hidden_act", ["gelu", "gelu_new", "relu", "tanh"])
@pytest.mark.parametrize("is_decoder", [False, True])
def test_a_training_step_stays_in_its_dtype(dtype, hidden_act, is_decoder):
    config = BertConfig.from_dict(CONFIG.to_dict() | {"hidden_act": hidden_act, "is_decoder": is_decoder})
    model = BertForPreTraining(config, device=STRICT, dtype=dtype)
    with strict.record() as made:
        training_step(model)
    floats = {(function, result) for function, result in made if result.kind not in "iub"}
    assert len(made) > 500
    assert len(floats) > 10
    assert {pair for pair in floats if pair[1] != dtype} == set()


def test_the_test_sees_an_array_that_widens():
    with strict.record() as made:
        STRICT.asarray([1.0, 2.0], dtype="float32") * np.float64(2.0)
    assert ("multiply", np.dtype("float64")) in made

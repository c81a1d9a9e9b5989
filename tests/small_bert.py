"""A small BERT for the tests of this room, and batches for it."""

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest

from minibert.bert import BertConfig, BertForPreTraining
from minibert.devices import Device
from minibert.folders.model import PretrainedModel

SIZES = {
    "vocab_size": 50,
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 20,
    "max_position_embeddings": 16,
}


@pytest.fixture
def config() -> Callable[..., BertConfig]:
    """config(…): a small configuration, with any field given another value."""
    return lambda **overrides: BertConfig(**(SIZES | overrides))


@pytest.fixture
def build(device: Device) -> Callable[..., PretrainedModel]:
    """build(BertModel, is_decoder=True): a model on the device with all its parameters random.

    Matrices are large enough for the attention to matter, biases, γ and β of order one. It is in
    evaluation mode.
    """

    def build(model_class=BertForPreTraining, dtype="float64", **overrides):
        model = model_class(model_class.config_class(**SIZES | overrides), device=device, dtype=dtype)
        rng = np.random.default_rng(0)
        for _, parameter in model.named_parameters():
            scale = 1 / np.sqrt(parameter.shape[-1]) if len(parameter.shape) == 2 else 1.0
            parameter.value[...] = device.asarray(scale * rng.normal(size=parameter.shape), dtype=dtype)
        model.eval()
        return model

    return build


@pytest.fixture
def batch() -> SimpleNamespace:
    """Four sequences of up to seven tokens, on the host; they hold 3, 1, 0 and 2 labels.

    ``encoder`` are the inputs, ``labels`` the targets, ``all`` both.
    """
    rng = np.random.default_rng(1)
    ids = rng.integers(1, 50, (4, 7))
    types = np.array([[0, 0, 0, 1, 1, 1, 1], [0, 0, 1, 1, 1, 0, 0], [0] * 7, [0, 1, 0, 1, 1, 1, 0]])
    mask = np.array([[1] * 7, [1, 1, 1, 1, 1, 0, 0], [1] * 7, [1, 1, 1, 1, 1, 1, 0]])
    labels = np.full((4, 7), -100)
    labels[0, [1, 4, 6]], labels[1, 2], labels[3, [0, 3]] = [7, 0, 49], 3, [11, 7]
    encoder = {"input_ids": ids, "token_type_ids": types, "attention_mask": mask}
    targets = {"labels": labels, "next_sentence_label": np.array([0, 1, 1, 0])}
    return SimpleNamespace(encoder=encoder, labels=targets, all=encoder | targets)

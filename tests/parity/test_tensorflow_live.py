"""Checkpoints as TensorFlow writes them today: needs tensorflow."""

import json
import re

import numpy as np
import pytest
from parity.cases import GOLDEN_CASES
from parity.ours import our_model

from minibert import BertForPreTraining, BertTokenizer

pytest.importorskip("tensorflow", reason="writes a checkpoint with tensorflow, which is not installed")
import tensorflow as tf


def original_name(name: str) -> str:
    """What google-research/bert calls a parameter of ours."""
    name = re.sub(r"layer\.(\d+)", r"layer_\1", name)
    name = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
    name = name.replace("_embeddings.weight", "_embeddings").replace(
        "predictions.bias", "predictions.output_bias"
    )
    name = name.replace("relationship.weight", "relationship.output_weights")
    name = name.replace("relationship.bias", "relationship.output_bias").replace(".weight", ".kernel")
    return name.replace(".", "/")


def test_a_checkpoint_of_the_original_code(tmp_path):
    model = our_model(GOLDEN_CASES["pretraining"], "float32")
    variables = {"global_step": np.int64(7)}
    for name, parameter in model.named_parameters():
        path = original_name(name)
        value = parameter.value.T if path.endswith("kernel") else parameter.value
        variables |= {path: value, f"{path}/adam_m": value, f"{path}/adam_v": value}
    source = tmp_path / "original"
    source.mkdir()
    tf.raw_ops.SaveV2(
        prefix=str(source / "bert_model.ckpt"),
        tensor_names=list(variables),
        shape_and_slices=[""] * len(variables),
        tensors=[tf.constant(value) for value in variables.values()],
    )
    (source / "bert_config.json").write_text(json.dumps(model.config.to_dict()))
    (source / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n")

    read = dict(BertForPreTraining.from_pretrained(source).named_parameters())
    for name, parameter in model.named_parameters():
        np.testing.assert_array_equal(read[name].value, parameter.value, err_msg=name)
    assert len(BertTokenizer.from_pretrained(source)) == 5

"""The script in docs/weights.md that converts checkpoints of google-research/bert: needs tensorflow."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from parity.cases import GOLDEN_CASES
from parity.ours import our_model

from minibert import BertForPreTraining, BertTokenizer

pytest.importorskip("tensorflow", reason="writes a checkpoint with tensorflow, which is not installed")
import tensorflow as tf

PAGE = Path(__file__).resolve().parents[2] / "docs" / "weights.md"


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
    source, folder = tmp_path / "original", tmp_path / "converted"
    source.mkdir()
    tf.raw_ops.SaveV2(
        prefix=str(source / "bert_model.ckpt"),
        tensor_names=list(variables),
        shape_and_slices=[""] * len(variables),
        tensors=[tf.constant(value) for value in variables.values()],
    )
    (source / "bert_config.json").write_text(json.dumps(model.config.to_dict()))
    (source / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n")

    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    (script,) = [block for block in blocks if "load_checkpoint" in block]
    subprocess.run([sys.executable, "-c", script, source, folder], check=True)

    converted = dict(BertForPreTraining.from_pretrained(folder).named_parameters())
    for name, parameter in model.named_parameters():
        np.testing.assert_array_equal(converted[name].value, parameter.value, err_msg=name)
    assert len(BertTokenizer.from_pretrained(folder)) == 5

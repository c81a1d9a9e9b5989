"""The explorer names the equation, the code and the parameters of every value that it shows."""

import numpy as np
import pytest

from minibert import BertForPreTraining, BertTokenizer
from minibert.explore.passes import encode, run
from minibert.explore.provenance import provenance
from minibert.explore.questions import HiddenWord
from minibert.variants.xlnet import XLNetConfig, XLNetLMHeadModel

SIZES = {"A": 4, "S": 9, "D": 64, "H": 256, "F": 1024}


@pytest.fixture(scope="module")
def model():
    return BertForPreTraining.from_pretrained("mini")


@pytest.fixture(scope="module")
def found(model):
    tokenizer = BertTokenizer.from_pretrained("mini")
    sentence = encode(tokenizer, "the capital of france is [MASK] .")
    return run(model, sentence, HiddenWord(6, tokenizer.vocab["paris"], tokenizer.mask_id))


def test_every_value_is_explained(model, found):
    for name, value in found.values.items():
        told = provenance(model, name)
        assert value.shape == tuple(SIZES[letter] for letter in told.shape.strip("()").split(", ")), name
        assert told.equation and told.forward.startswith("def ") and "_backward(dout" in told.backward


def test_all_parameters_of_the_encoder_belong_to_values(model, found):
    """Each to one, but for those of the heads above the last value."""
    told = [name for value in found.values for name in provenance(model, value).parameters]
    encoder = [name for name, _ in model.named_parameters() if name.startswith("bert.")]
    assert sorted(told) == sorted(name for name in encoder if not name.startswith("bert.pooler"))


def test_the_equations_are_those_that_were_computed(model, found):
    """Here the sums and products are written out, with the parameters that the explanation names."""
    parameters, values = dict(model.named_parameters()), found.values
    layer = "bert.encoder.layer.1"

    def of(name):
        return [parameters[p].value for p in provenance(model, name).parameters]

    weight, bias = of(f"{layer}.attention.self.k")
    keys = (values["bert.encoder.layer.0"] @ weight.T + bias).reshape(9, 4, 64).transpose(1, 0, 2)
    np.testing.assert_allclose(values[f"{layer}.attention.self.k"], keys, rtol=1e-4, atol=1e-5)
    weight, bias, gamma, beta = of(layer)
    total = values[f"{layer}.attention"] + values[f"{layer}.intermediate"] @ weight.T + bias
    centred = total - total.mean(axis=-1, keepdims=True)
    normal = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-12)
    np.testing.assert_allclose(values[layer], gamma * normal + beta, rtol=1e-4, atol=1e-5)


def test_a_variants_own_code_is_shown():
    model = XLNetLMHeadModel(
        XLNetConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=2)
    )
    told = provenance(model, "bert.encoder.layer.0.attention.self.scores")
    assert told.equation == "" and "ops.relative_attention(" in told.forward
    assert "ops.relative_attention_backward(" in told.backward

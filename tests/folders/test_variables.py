"""What Google's programs call their variables, and Hugging Face the same tensors."""

import pytest

from minibert.folders.variables import tensor_names

GROUP = "bert/encoder/transformer/group_0/inner_group_0"
LAYER = "albert.encoder.albert_layer_groups.0.albert_layers.0"


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("bert/embeddings/word_embeddings", "bert.embeddings.word_embeddings.weight"),
        ("bert/embeddings/LayerNorm/gamma", "bert.embeddings.LayerNorm.weight"),
        (
            "bert/encoder/layer_11/attention/self/query/kernel",
            "bert.encoder.layer.11.attention.self.query.weight",
        ),
        ("cls/predictions/output_bias", "cls.predictions.bias"),
        ("cls/seq_relationship/output_weights", "cls.seq_relationship.weight"),
        ("output_weights", "classifier.weight"),
        ("cls/squad/output_bias", "qa_outputs.bias"),
        ("discriminator_predictions/dense_1/kernel", "discriminator_predictions.dense_prediction.weight"),
    ],
)
def test_names(path, name):
    optimiser = [f"{path}/adam_m", f"{path}/adam_v", "global_step", "generator/embeddings_project/kernel"]
    assert tensor_names([path, *optimiser]) == {path: name}


def test_names_of_albert():
    names = {
        f"{GROUP}/attention_1/self/key/kernel": f"{LAYER}.attention.key.weight",
        f"{GROUP}/attention_1/output/dense/bias": f"{LAYER}.attention.dense.bias",
        f"{GROUP}/LayerNorm/beta": f"{LAYER}.attention.LayerNorm.bias",
        f"{GROUP}/LayerNorm_1/beta": f"{LAYER}.full_layer_layer_norm.bias",
        f"{GROUP}/ffn_1/intermediate/dense/kernel": f"{LAYER}.ffn.weight",
        f"{GROUP}/ffn_1/intermediate/output/dense/kernel": f"{LAYER}.ffn_output.weight",
        "bert/encoder/embedding_hidden_mapping_in/bias": "albert.encoder.embedding_hidden_mapping_in.bias",
        "bert/pooler/dense/kernel": "albert.pooler.weight",
        "cls/predictions/transform/dense/kernel": "predictions.dense.weight",
        "cls/predictions/output_bias": "predictions.bias",
        "cls/seq_relationship/output_weights": "sop_classifier.classifier.weight",
    }
    assert tensor_names(names) == names

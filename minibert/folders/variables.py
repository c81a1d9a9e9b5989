"""What Google's programs for BERT, ALBERT and ELECTRA call their variables.

A variable has a path, such as ``bert/encoder/layer_0/attention/self/query/kernel``, and may have variables of
the optimiser below it (``…/kernel/adam_m``). Hugging Face's names came from these paths, with dots.
"""

import re
from collections.abc import Iterable

# The last part of a parameter's path. What ends otherwise belongs to an optimiser.
_LAST = {"kernel": "weight", "gamma": "weight", "output_weights": "weight"}
_LAST |= {"bias": "bias", "beta": "bias", "output_bias": "bias"}
_LAST |= {f"{kind}_embeddings": f"{kind}_embeddings.weight" for kind in ("word", "position", "token_type")}

# How paths begin: in the checkpoint, and here. Only the first that fits is used.
_BERT = {
    "output_": "classifier/output_",  # of run_classifier.py, which gave its head no name
    "cls/squad/": "qa_outputs/",
    "discriminator_predictions/dense_1/": "discriminator_predictions/dense_prediction/",  # of ELECTRA
}
_GROUP, _LAYER = "bert/encoder/transformer/group_0/", "albert/encoder/albert_layer_groups/0/albert_layers/0/"
_ALBERT = {
    f"{_GROUP}inner_group_0/attention_1/self/": f"{_LAYER}attention/",
    f"{_GROUP}inner_group_0/attention_1/output/": f"{_LAYER}attention/",
    f"{_GROUP}inner_group_0/LayerNorm/": f"{_LAYER}attention/LayerNorm/",
    f"{_GROUP}inner_group_0/ffn_1/intermediate/dense/": f"{_LAYER}ffn/",
    f"{_GROUP}inner_group_0/ffn_1/intermediate/output/dense/": f"{_LAYER}ffn_output/",
    f"{_GROUP}inner_group_0/LayerNorm_1/": f"{_LAYER}full_layer_layer_norm/",
    "bert/pooler/dense/": "albert/pooler/",
    "bert/": "albert/",
    "cls/predictions/transform/": "predictions/",
    "cls/predictions/": "predictions/",
    "cls/seq_relationship/": "sop_classifier/classifier/",
} | _BERT


def tensor_names(paths: Iterable[str]) -> dict[str, str]:
    """Hugging Face's names of the parameters among the variables of a checkpoint, by their paths.

    Left out are the optimiser's variables, and the generator that lies beside an ELECTRA.
    """
    paths = list(paths)
    table = _ALBERT if any(path.startswith(_GROUP) for path in paths) else _BERT
    parameters = [path for path in paths if path.split("/")[-1] in _LAST and not path.startswith("generator")]
    return {path: _tensor_name(path, table) for path in parameters}


def _tensor_name(path: str, table: dict[str, str]) -> str:
    begins = next((begins for begins in table if path.startswith(begins)), "")
    *parts, last = (table.get(begins, "") + path.removeprefix(begins)).split("/")
    return ".".join([*(re.sub(r"^layer_(\d+)$", r"layer.\1", part) for part in parts), _LAST[last]])

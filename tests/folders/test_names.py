"""Names of tensors in files and in models."""

import pytest

from minibert.folders.names import name_in_file, name_in_model

NAMES = (
    ("robin.", "bert."),
    (".wing.", ".layer."),
    ("head.dense.", "cls.transform."),
    ("head.", "cls."),
)


@pytest.mark.parametrize(
    ("in_file", "in_model"),
    [
        ("robin.wing.0.weight", "bert.layer.0.weight"),
        ("robin.wing.0.wing.1", "bert.layer.0.layer.1"),
        ("head.dense.bias", "cls.transform.bias"),  # the first beginning that fits
        ("head.bias", "cls.bias"),
        ("feather.head.bias", "feather.head.bias"),  # a beginning is one only at the beginning
        ("robinson.weight", "robinson.weight"),
    ],
)
def test_names_there_and_back(in_file, in_model):
    assert name_in_model(in_file, NAMES) == in_model
    assert name_in_file(in_model, NAMES) == in_file


def test_without_names_nothing_changes():
    assert name_in_model("bert.pooler.dense.bias", ()) == "bert.pooler.dense.bias"

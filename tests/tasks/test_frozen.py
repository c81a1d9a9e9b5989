import numpy as np
import pytest

from minibert.bert import BertConfig
from minibert.data.tasks import Feature
from minibert.heads import BertForSequenceClassification, BertForTokenClassification
from minibert.tasks.frozen import FrozenEncoder

SIZES = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}


def row(*ids, example=0, second=0):
    """A row of tokens, of which the last ``second`` are of the second text."""
    types = [0] * (len(ids) - second) + [1] * second
    return Feature(
        {"input_ids": np.array(ids, np.int32), "token_type_ids": np.array(types, np.int32)}, example
    )


ROWS = [row(2, 5, 3), row(2, 6, 7, 8, 3, example=1), row(2, 5, 3, example=2), row(2, 5, 3, second=1)]


@pytest.mark.parametrize("model_class", [BertForTokenClassification, BertForSequenceClassification])
def test_features_are_those_of_each_row_alone_without_padding(model_class, tmp_path, monkeypatch):
    config = BertConfig(vocab_size=10, feature_layers=[-1, 0], initializer_range=0.5, **SIZES)
    model = model_class(config, seed=1)
    model.eval()
    alone = [
        model.forward(**{name: [part.tolist()] for name, part in row.inputs.items()})[0].features[0]
        for row in ROWS
    ]
    forward, read = model.forward, []
    monkeypatch.setattr(
        model, "forward", lambda input_ids, **more: read.append(len(input_ids)) or forward(input_ids, **more)
    )
    encoder = FrozenEncoder(model, 0, 2, tmp_path / "of" / "a run")
    for _ in range(2):
        found = encoder(ROWS)
        for ours, theirs, expected in zip(found, ROWS, alone, strict=True):
            assert ours.example == theirs.example and ours.inputs["features"].dtype == np.float32
            np.testing.assert_allclose(ours.inputs["features"], expected, rtol=1e-5, atol=1e-6)
    assert sum(read) == 3, "the first and the third row are the same, and the second time all are known"
    assert not np.allclose(alone[0], alone[3]), "the types of the tokens matter"
    (new,) = encoder([row(2, 9, 3)])
    assert new.inputs["input_ids"].tolist() == [2, 9, 3] and sum(read) == 4
    assert not new.inputs["features"].flags.writeable, "other epochs read them too"
    assert [*(tmp_path / "of" / "a run").iterdir()] == []

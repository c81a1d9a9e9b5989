"""The gradients of BERTs of real sizes, along random directions."""

import pytest

from minibert.bert import BertForPreTraining
from minibert.devices import resolve_device
from minibert.proofs.presets import preset_rows

CPU = resolve_device("cpu")


@pytest.mark.parametrize("name", ["tiny", "mini", "small"])
def test_all_parameters_at_once(name):
    [row] = preset_rows(name, CPU)
    assert row.ok, str(row)


def test_every_parameter_by_itself():
    rows = list(preset_rows("tiny", CPU, every_parameter=True))
    assert len(rows) == 1 + 5 + 2 * 16 + 2 + 5 + 2  # all; embeddings, layers, pooler, the two heads
    assert [str(row) for row in rows if not row.ok] == []
    assert [row.parameter for row in rows if row.note] == [
        f"bert.encoder.layer.{layer}.attention.self.key.bias" for layer in (0, 1)
    ]


def test_notices_a_single_number_that_is_wrong_by_a_millionth(monkeypatch):
    """One of 4.4 million."""
    right = BertForPreTraining.backward

    def wrong(model, cache):
        right(model, cache)
        model.bert.pooler.dense.bias.grad[0] *= 1.0 + 1e-6

    monkeypatch.setattr(BertForPreTraining, "backward", wrong)
    [row] = preset_rows("tiny", CPU)
    assert not row.ok

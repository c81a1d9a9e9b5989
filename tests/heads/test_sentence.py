"""The sentence encoder: its vectors, its losses over pairs, its folder."""

import json

import numpy as np
import pytest

from minibert.arrays import to_numpy
from minibert.bert import BertModel
from minibert.dropout_bits import dropout_stream
from minibert.errors import UserError
from minibert.heads import BertForSequenceClassification, SentenceEncoder, SentencePairs
from minibert.nn import Context
from minibert.train import AdamW

FIRST = {
    "input_ids": [[2, 7, 5, 3], [2, 9, 3, 0], [2, 4, 4, 3]],
    "attention_mask": [[1, 1, 1, 1], [1, 1, 1, 0], [1, 1, 1, 1]],
}
SECOND = {"input_ids": [[2, 7, 3], [2, 8, 3], [2, 40, 3]]}  # of another length


@pytest.fixture
def encoder(build):
    """encoder(pooling=…, normalise=…): with random parameters, in evaluation mode."""

    def make(pooling="mean", normalise=False, **overrides):
        model = build(SentenceEncoder, **overrides)
        model.pooling, model.normalise = pooling, normalise
        return model

    return make


@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize("pooling", ["mean", "max", "cls", "lasttoken"])
def test_embeddings_are_pooled_hidden_states(encoder, pooling, normalise):
    output, _ = encoder(pooling, normalise).forward(**FIRST)
    expected = []
    for states, mask in zip(to_numpy(output.last_hidden_state), FIRST["attention_mask"], strict=True):
        states = states[np.array(mask) == 1]
        vectors = {"mean": states.mean(axis=0), "max": states.max(axis=0)}
        vector = (vectors | {"cls": states[0], "lasttoken": states[-1]})[pooling]
        expected.append(vector / np.linalg.norm(vector) if normalise else vector)
    np.testing.assert_allclose(to_numpy(output.embeddings), expected, rtol=1e-12)


def test_token_types_are_read(encoder):
    model = encoder()
    plain, typed = (
        model.forward([[2, 9, 3]], token_type_ids=types)[0].embeddings for types in ([[0, 0, 0]], [[0, 1, 1]])
    )
    assert not np.allclose(to_numpy(plain), to_numpy(typed))


def test_padding_does_not_change_a_vector(encoder):
    model = encoder(normalise=True)
    padded = to_numpy(model.forward(**FIRST)[0].embeddings)[1]
    alone = to_numpy(model.forward([[2, 9, 3]])[0].embeddings)[0]
    np.testing.assert_allclose(padded, alone, rtol=1e-10)


def test_an_empty_text_is_refused(encoder):
    with pytest.raises(UserError, match="attention_mask is 0 throughout row 1; an empty text has no vector"):
        encoder().forward([[2, 3], [0, 0]], attention_mask=[[1, 1], [0, 0]])


def test_parameters_begin_from_the_seed_and_there_is_no_pooler(config):
    one, same, other = (SentenceEncoder(config(), seed=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one.buffers.value, same.buffers.value)
    assert (one.buffers.value != other.buffers.value).any()
    assert not any("pooler" in name for name, _ in one.named_parameters())


def test_unknown_pooling(config):
    with pytest.raises(UserError, match="unknown pooling 'median'; expected one of cls, mean, max"):
        SentenceEncoder(config(), pooling="median")


# -- Pairs ------------------------------------------------------------------------------------------


def cosines(model):
    x, y = (to_numpy(model.forward(**side)[0].embeddings) for side in (FIRST, SECOND))
    return (x / np.linalg.norm(x, axis=1)[:, None]) @ (y / np.linalg.norm(y, axis=1)[:, None]).T


def test_with_labels_the_cosines_are_to_be_those(encoder):
    model = encoder()
    output, _ = SentencePairs(model).forward(FIRST, SECOND, [0.5, -1.0, 0.2])
    expected = np.mean((np.diag(cosines(model)) - [0.5, -1.0, 0.2]) ** 2)
    assert float(output.loss) == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("symmetric", [False, True])
def test_without_labels_each_has_to_find_its_partner(encoder, symmetric):
    model = encoder("max")
    output, _ = SentencePairs(model, scale=7.0, symmetric=symmetric).forward(FIRST, SECOND)
    scores = np.exp(7.0 * cosines(model))
    expected = -np.log(np.diag(scores) / scores.sum(axis=1)).mean()
    if symmetric:
        expected = (expected - np.log(np.diag(scores) / scores.sum(axis=0)).mean()) / 2
    assert float(output.loss) == pytest.approx(expected, rel=1e-10)
    summed, _ = SentencePairs(model, scale=7.0, symmetric=symmetric).forward(FIRST, SECOND, denominator=1)
    assert float(summed.loss) == pytest.approx(3 * expected, rel=1e-10)


def test_the_two_texts_of_a_pair_have_dropout_of_their_own(encoder):
    """Equal texts get different vectors, and the same again in the same place; so do micro-batches."""
    pairs = SentencePairs(encoder(hidden_dropout_prob=0.3))

    def loss(**place):
        context = Context(training=True, stream=pairs.device.asarray(dropout_stream(**place)))
        return float(pairs.forward(SECOND, SECOND, [1.0, 1.0, 1.0], context=context)[0].loss)

    first = loss(seed=1, step=2)
    assert first > 1e-4
    assert loss(seed=1, step=2) == first
    assert len({first, loss(seed=1, step=2, micro_batch=1), loss(seed=1, step=3), loss(seed=2, step=2)}) == 4


def test_a_batch_counts_as_many_pairs_as_it_has(encoder):
    batch = {"first": {"input_ids": np.ones((3, 4))}, "second": {"input_ids": np.ones((3, 2))}}
    assert SentencePairs(encoder()).count_targets(batch) == {"denominator": 3}


def test_recomputed_layers_of_both_texts_have_the_dropout_that_they_had(encoder):
    model = encoder(hidden_dropout_prob=0.3)
    pairs = SentencePairs(model)
    pairs.train()
    found = []
    for recompute in (False, True):
        model.encoder.recompute = recompute
        pairs.seed_dropout(0)
        pairs.zero_grad()
        pairs.backward(pairs.forward(FIRST, SECOND)[1])
        found.append(to_numpy(model.buffers.grad).copy())
    np.testing.assert_array_equal(*found)


def test_pairs_are_of_one_number(encoder):
    with pytest.raises(UserError, match="3 first texts but 1 second texts; expected pairs"):
        SentencePairs(encoder()).forward(FIRST, {"input_ids": [[2, 3]]})
    with pytest.raises(UserError, match=r"labels has shape \(2,\); expected \(3,\)"):
        SentencePairs(encoder()).forward(FIRST, SECOND, [0.0, 1.0])


# -- Folders ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize("pooling", ["mean", "max", "cls", "lasttoken"])
def test_a_folder_tells_how_to_pool(encoder, device, tmp_path, capsys, recwarn, pooling, normalise):
    model = encoder(pooling, normalise)
    model.save_pretrained(tmp_path)
    again = SentenceEncoder.from_pretrained(tmp_path, device=device, dtype="float64")
    assert (again.pooling, again.normalise) == (pooling, normalise)
    vectors = (to_numpy(side.forward(**FIRST)[0].embeddings) for side in (model, again))
    np.testing.assert_array_equal(*vectors)
    other = SentenceEncoder.from_pretrained(tmp_path, pooling="cls", normalise=False, hidden_dropout_prob=0.5)
    assert (other.pooling, other.normalise, other.config.hidden_dropout_prob) == ("cls", False, 0.5)
    assert not recwarn.list and not capsys.readouterr().err


def test_the_layout_is_that_of_sentence_transformers(encoder, tmp_path):
    encoder("max", normalise=True).save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == ["BertModel"]
    modules = json.loads((tmp_path / "modules.json").read_text())
    assert [(module["path"], module["type"]) for module in modules] == [
        ("", "sentence_transformers.models.Transformer"),
        ("1_Pooling", "sentence_transformers.models.Pooling"),
        ("2_Normalize", "sentence_transformers.models.Normalize"),
    ]
    assert json.loads((tmp_path / "1_Pooling" / "config.json").read_text()) == {
        "word_embedding_dimension": 12,
        "pooling_mode_cls_token": False,
        "pooling_mode_mean_tokens": False,
        "pooling_mode_max_tokens": True,
        "pooling_mode_lasttoken": False,
    }


@pytest.mark.parametrize("pooling", ["mean", "max", "cls", "lasttoken"])
def test_the_layout_of_newer_versions(encoder, tmp_path, pooling):
    """As 6.2.0 of the library writes it."""
    encoder("cls" if pooling == "max" else "max").save_pretrained(tmp_path)
    (tmp_path / "1_Pooling" / "config.json").write_text(
        json.dumps({"embedding_dimension": 12, "pooling_mode": pooling, "include_prompt": True})
    )
    types = [
        "sentence_transformers.base.modules.transformer.Transformer",
        "sentence_transformers.sentence_transformer.modules.pooling.Pooling",
        "sentence_transformers.base.modules.normalize.Normalize",
    ]
    (tmp_path / "modules.json").write_text(json.dumps([{"type": kind} for kind in types]))
    model = SentenceEncoder.from_pretrained(tmp_path)
    assert (model.pooling, model.normalise) == (pooling, True)


def test_other_switches_are_none_of_pooling(encoder, tmp_path):
    encoder("mean").save_pretrained(tmp_path)
    switches = {"pooling_mode_max_tokens": True, "pooling_mode_mean_tokens": False, "include_prompt": True}
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(switches))
    assert SentenceEncoder.from_pretrained(tmp_path).pooling == "max"


@pytest.mark.parametrize("saved", [BertModel, BertForSequenceClassification])
def test_any_encoder_is_a_sentence_encoder_without_a_word(build, tmp_path, capsys, recwarn, saved):
    """Nothing of it is new: what is left aside are heads."""
    build(saved).save_pretrained(tmp_path)
    model = SentenceEncoder.from_pretrained(tmp_path)
    assert (model.pooling, model.normalise) == ("mean", False)
    assert not recwarn.list and not capsys.readouterr().err


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("modules.json", "{}", "modules.json: the modules are ; only Transformer"),
        ("modules.json", "[1]", "modules.json: damaged, expected a list of modules"),
        ("modules.json", '[{"type": "a.Transformer"}, {"type": "a.Dense"}]', "are Transformer, Dense; only"),
        ("1_Pooling/config.json", "[]", r"pools by \[\]; expected one of cls, mean, max"),
        ("1_Pooling/config.json", '{"pooling_mode": "weightedmean"}', "pools by .'weightedmean'"),
        ("1_Pooling/config.json", '{"pooling_mode": ["cls", "mean"]}', r"pools by \[\['cls', 'mean'\]\]"),
        (
            "1_Pooling/config.json",
            '{"pooling_mode_mean_tokens": true, "pooling_mode_max_tokens": true}',
            "pools by .'pooling_mode_mean_tokens', 'pooling_mode_max_tokens'.; expected one of",
        ),
    ],
)
def test_modules_that_are_refused(encoder, tmp_path, file, content, message):
    encoder().save_pretrained(tmp_path)
    (tmp_path / file).write_text(content)
    with pytest.raises(UserError, match=message):
        SentenceEncoder.from_pretrained(tmp_path)


def test_labels_of_pairs_are_cosines(encoder):
    pairs = SentencePairs(encoder())
    pairs.forward(FIRST, SECOND, [-1.0, 0.0, 1.0])
    with pytest.raises(UserError, match=r"labels of pairs are cosines, from −1 to 1; got 4\.2"):
        pairs.forward(FIRST, SECOND, [0.5, 4.2, 1.0])


def test_a_prepared_batch_of_pairs_is_complete(encoder):
    pairs = SentencePairs(encoder())
    with pytest.raises(TypeError, match="a prepared batch is complete; it cannot be given labels as well"):
        pairs.forward(pairs.prepare(FIRST, SECOND), labels=[0.5, 1.0, 0.0])


def test_pairs_notice_that_the_encoder_was_allocated_anew(config):
    encoder = SentenceEncoder(config())
    pairs = SentencePairs(encoder)
    optimiser = AdamW(pairs)
    encoder.allocate(dtype="float64")
    assert pairs.buffers is encoder.buffers and pairs.dtype == "float64"
    with pytest.raises(ValueError, match="the model has been allocated anew since"):
        optimiser.step(1e-3, 0)

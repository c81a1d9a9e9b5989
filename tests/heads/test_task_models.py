"""The models of fine-tuning: what their losses count, and how they start. Their numbers: tests/parity."""

import itertools

import numpy as np
import pytest
import scipy.special

from minibert.arrays import map_arrays, to_numpy
from minibert.bert import BertForMaskedLM, BertForPreTraining, BertModel
from minibert.errors import UserError
from minibert.heads import BertForQuestionAnswering, BertForSequenceClassification, BertForTokenClassification

TAGS = np.array(
    [[-100, 2, 0, -100, 1, 1, -100], [-100, 0, -100, 2, -100, -100, -100], [-100] * 7, [2] * 6 + [-100]]
)
CLASSES = np.array([2, 0, -100, 1])
SPANS = {"start_positions": [1, 0, 6, 7], "end_positions": [3, 0, 6, 9]}  # the last one is out of reach

TASKS = [  # class, settings of the configuration, labels, what the loss is divided by
    pytest.param(BertForSequenceClassification, {"num_labels": 3}, {"labels": CLASSES}, 3, id="classes"),
    pytest.param(
        BertForSequenceClassification, {"num_labels": 1}, {"labels": [0.5, 1, -2, 0]}, 4, id="numbers"
    ),
    pytest.param(BertForTokenClassification, {"num_labels": 3}, {"labels": TAGS}, 12, id="tags"),
    pytest.param(BertForTokenClassification, {"num_labels": 3, "crf": True}, {"labels": TAGS}, 3, id="CRF"),
    pytest.param(BertForQuestionAnswering, {}, SPANS, 3, id="spans"),
]


def gradients(model):
    return {name: to_numpy(parameter.grad).copy() for name, parameter in model.named_parameters()}


def assert_equal_gradients(actual, expected):
    for name, gradient in expected.items():
        np.testing.assert_allclose(actual[name], gradient, rtol=1e-9, atol=1e-12, err_msg=name)


def rows(inputs, part):
    return {name: np.asarray(array)[part] for name, array in inputs.items()}


@pytest.mark.parametrize(
    ("pooling", "counts", "side"),
    [("cls", [1, 0, 0, 0], "right"), ("lasttoken", [1] * 4, "right"), ("lasttoken", [1] * 4, "left")],
)
def test_the_token_that_stands_for_a_text_read_from_left_to_right(build, pooling, counts, side):
    """The first knows no other token; the last, wherever the padding is, knows all."""
    model = build(BertForSequenceClassification, is_decoder=True, classifier_pooling=pooling)
    texts = np.random.default_rng(0).normal(size=(2, 4, model.config.hidden_size))
    padding = np.zeros((2, 3, model.config.hidden_size))
    order = [texts, padding] if side == "right" else [padding, texts]
    mask = np.concatenate([np.full(part.shape[:2], part is texts) for part in order], axis=1)
    _, cache = model.forward(inputs_embeds=np.concatenate(order, axis=1), attention_mask=mask, labels=[1, 0])
    dembeds = to_numpy(model.backward(cache))
    reached = np.abs(dembeds).sum(axis=-1) > 0  # (B, S): the tokens that the loss depends on
    np.testing.assert_array_equal(reached[mask].reshape(2, 4), [counts, counts])
    assert not reached[~mask].any()


@pytest.mark.parametrize(("model_class", "settings", "labels", "count"), TASKS)
def test_micro_batches_add_up_to_the_one_large_batch(build, batch, model_class, settings, labels, count):
    """Although they hold different numbers of labels; by default the loss is divided by that number."""
    model = build(model_class, **settings)
    model.zero_grad()
    output, cache = model.forward(**batch.encoder, **labels)
    model.backward(cache)
    expected = gradients(model)
    model.zero_grad()
    total = 0.0
    for part in (slice(0, 1), slice(1, 3), slice(3, 4)):
        piece, cache = model.forward(**rows(batch.encoder | labels, part), denominator=count)
        model.backward(cache)
        total += float(piece.loss)
    assert total == pytest.approx(float(output.loss), rel=1e-12)
    assert_equal_gradients(gradients(model), expected)


@pytest.mark.parametrize(("model_class", "settings", "labels", "count"), TASKS)
def test_what_a_loss_is_divided_by_is_counted_in_the_batch(
    build, batch, model_class, settings, labels, count
):
    inputs = {name: np.asarray(array) for name, array in (batch.encoder | labels).items()}
    counted = build(model_class, **settings).count_targets(inputs)
    assert counted.keys() == {"denominator"} and (np.asarray(counted["denominator"]) == count).all()


def test_starts_and_ends_are_counted_each_for_itself(build, batch):
    spans = {"start_positions": np.array([1, 0, 6, 7]), "end_positions": np.array([3, 0, 7, 9])}
    ids = {"input_ids": np.asarray(batch.encoder["input_ids"])}
    assert build(BertForQuestionAnswering).count_targets(ids | spans)["denominator"].tolist() == [3, 2]


def test_in_training_everything_has_dropout_but_an_encoder_that_does_not_learn(build, batch):
    for settings, trains in (({}, True), ({"feature_layers": [-1]}, False)):
        model = build(BertForSequenceClassification, hidden_dropout_prob=0.5, **settings)
        hidden = to_numpy(model.forward(**batch.encoder)[0].last_hidden_state)
        model.train()
        outputs = [model.forward(**batch.encoder)[0] for _ in range(2)]
        assert (to_numpy(outputs[0].last_hidden_state) != hidden).any() == trains
        assert (to_numpy(outputs[0].logits) != to_numpy(outputs[1].logits)).any()


@pytest.mark.parametrize(("model_class", "settings", "labels", "count"), TASKS)
def test_scale_and_numpy_counts_keep_the_dtype(build, batch, model_class, settings, labels, count):
    model = build(model_class, dtype="float32", **settings)
    model.zero_grad()
    output, cache = model.forward(**batch.encoder, **labels, denominator=np.float64(count))
    model.backward(cache)
    once = gradients(model)
    model.backward(model.forward(**batch.encoder, **labels)[1], np.float64(2.0))
    assert output.loss.dtype == "float32"
    for name, gradient in gradients(model).items():
        assert gradient.dtype == "float32"
        np.testing.assert_allclose(gradient, 3.0 * once[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("model_class", "settings", "labels", "count"), TASKS)
def test_without_labels_there_are_scores_and_no_backward(build, batch, model_class, settings, labels, count):
    model = build(model_class, **settings)
    output, cache = model.forward(**batch.encoder, return_hidden_states=True, return_attentions=True)
    with_labels, _ = model.forward(**batch.encoder, **labels)
    assert output.loss is None
    assert len(output.hidden_states) == 3 and len(output.attentions) == 2
    for name in set(model.head_outputs) - {"loss"}:
        logits = to_numpy(getattr(output, name))
        np.testing.assert_array_equal(logits, to_numpy(getattr(with_labels, name)))
    with pytest.raises(ValueError, match="without a loss: give labels to forward"):
        model.backward(cache)


@pytest.mark.parametrize(("model_class", "settings", "labels", "count"), TASKS)
def test_nothing_labelled(build, batch, model_class, settings, labels, count):
    """The loss is 0 and so are all gradients; in transformers it is not a number."""
    if settings.get("num_labels") == 1:
        return  # a number cannot be left out
    model = build(model_class, **settings)
    nothing = {
        name: np.full_like(value, 99 if "positions" in name else -100) for name, value in labels.items()
    }
    output, cache = model.forward(**batch.encoder, **nothing)
    assert float(output.loss) == 0.0
    model.backward(cache)
    assert not to_numpy(model.buffers.grad).any()


def test_the_head_has_a_dropout_of_its_own(build, batch):
    """``classifier_dropout``, or that of the hidden states where it is not given."""
    off = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    for settings, dropped in (
        (off, False),
        (off | {"classifier_dropout": 0.5}, True),
        (off | {"hidden_dropout_prob": 0.5, "classifier_dropout": 0.0}, False),
    ):
        model = build(BertForSequenceClassification, **settings)
        pooled = model.forward(**batch.encoder)[0].pooler_output
        plain = to_numpy(pooled @ model.classifier.weight.value.T + model.classifier.bias.value)
        model.train()
        assert np.allclose(to_numpy(model.classifier.forward(pooled)[0]), plain) != dropped


# -- Classes and numbers ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "is_regression"),
    [
        ({"num_labels": 1}, True),
        ({"num_labels": 2}, False),
        ({"num_labels": 3, "problem_type": "regression"}, True),
        ({"num_labels": 3, "problem_type": "single_label_classification"}, False),
    ],
)
def test_when_it_is_a_regression(build, batch, settings, is_regression):
    model = build(BertForSequenceClassification, **settings)
    assert model.config.is_regression is is_regression
    if is_regression:
        labels = np.linspace(-1, 1, 4 * settings["num_labels"]).reshape(4, -1)
        output, _ = model.forward(**batch.encoder, labels=labels)
        assert float(output.loss) == pytest.approx(
            ((to_numpy(output.logits) - labels) ** 2).mean(), rel=1e-12
        )


def test_several_labels_a_text_have_no_loss(build, batch):
    model = build(BertForSequenceClassification, num_labels=3, problem_type="multi_label_classification")
    assert model.forward(**batch.encoder)[0].logits.shape == (4, 3)
    with pytest.raises(UserError, match="multi_label_classification has no loss here"):
        model.forward(**batch.encoder, labels=np.zeros((4, 3)))


THREE, ONE = {"num_labels": 3}, {"num_labels": 1}
SEQUENCES, TOKENS, ANSWERS = (
    BertForSequenceClassification,
    BertForTokenClassification,
    BertForQuestionAnswering,
)


@pytest.mark.parametrize(
    ("model_class", "settings", "labels", "message"),
    [
        (SEQUENCES, THREE, {"labels": [0, 1, 3, 0]}, "labels contains 3; expected 0 to 2"),
        (SEQUENCES, THREE, {"labels": [0, 1]}, r"labels has shape \(2,\); expected \(4,\)"),
        (SEQUENCES, THREE, {"labels": [0.0, 1.0, 2.0, 0.0]}, "dtype float64; expected integers"),
        (SEQUENCES, ONE, {"labels": [0, 1, np.nan, 0]}, "must be finite numbers"),
        (SEQUENCES, ONE, {"labels": [0, 1, 1e400, 0]}, "must be finite numbers"),
        (SEQUENCES, ONE, {"labels": [0, 1]}, r"shape \(2,\); expected \(4, 1\)"),
        (SEQUENCES, ONE, {"labels": ["a", "b", "c", "d"]}, "must be numbers"),
        (TOKENS, THREE, {"labels": TAGS.T}, r"shape \(7, 4\); expected \(4, 7\)"),
        (TOKENS, {"crf": True}, {"labels": TAGS}, "labels contains 2; expected 0 to 1"),
        (ANSWERS, {}, {"start_positions": [0] * 4}, "both start_positions and end_positions"),
        (ANSWERS, {}, {"labels": [0] * 4}, "both start_positions and end_positions"),
        (ANSWERS, {}, SPANS | {"end_positions": [-1, 0, 0, 0]}, "end_positions contains -1; expected 0"),
        (ANSWERS, {}, SPANS | {"start_positions": [1]}, r"start_positions has shape \(1,\)"),
    ],
)
def test_labels_that_are_refused(build, batch, model_class, settings, labels, message):
    with pytest.raises(UserError, match=message):
        build(model_class, **settings).forward(**batch.encoder, **labels)


# -- Tags -------------------------------------------------------------------------------------------


def test_the_crf_sees_the_labelled_tokens_as_neighbours(build, batch):
    """The loss of a sequence is that of its labelled tokens alone, by the definition."""
    model = build(BertForTokenClassification, num_labels=3, crf=True)
    output, _ = model.forward(**batch.encoder, labels=TAGS)
    logits, start, end, transitions = (
        to_numpy(array) for array in (output.logits, *(p.value for _, p in model.crf.named_parameters()))
    )
    losses = []
    for scores, tags in zip(logits, TAGS, strict=True):
        scores, tags = scores[tags != -100], tags[tags != -100]
        if not len(tags):
            continue
        points = {}
        for path in np.ndindex(*[3] * len(tags)):
            steps = sum(transitions[i, j] for i, j in itertools.pairwise(path))
            points[path] = (
                start[path[0]] + end[path[-1]] + steps + sum(scores[t, i] for t, i in enumerate(path))
            )
        losses.append(scipy.special.logsumexp(list(points.values())) - points[tuple(tags)])
    assert len(losses) == 3
    assert float(output.loss) == pytest.approx(np.mean(losses), rel=1e-12)


@pytest.mark.parametrize("crf", [False, True])
def test_best_tags_stand_at_the_tokens_they_were_asked_for(build, batch, crf):
    model = build(BertForTokenClassification, num_labels=3, crf=crf)
    if crf:
        model.crf.transitions.value *= -10.0  # so that the likeliest tag does not follow itself
    logits = model.forward(**batch.encoder)[0].logits
    best = model.best_tags(logits, TAGS != -100)
    assert isinstance(best, np.ndarray) and best.shape == TAGS.shape
    np.testing.assert_array_equal(best == -100, TAGS == -100)
    alone = to_numpy(logits.argmax(axis=-1))
    same = (best == alone)[TAGS != -100]
    assert same.all() != crf
    if crf:  # without them it does not
        model.buffers.value[...] = 0
        assert not model.best_tags(logits * 0.0, TAGS != -100)[TAGS != -100].any()
    with pytest.raises(UserError, match=r"chosen has shape \(4,\); expected that of the tokens, \(4, 7\)"):
        model.best_tags(logits, [1, 1, 1, 1])


def test_best_tags_have_the_least_loss(build, batch):
    """Of all taggings of the second sequence, which has two labelled tokens."""
    model = build(BertForTokenClassification, num_labels=3, crf=True)
    second = rows(batch.encoder, slice(1, 2))
    best = model.best_tags(model.forward(**second)[0].logits, TAGS[1:2] != -100)
    losses = {}
    for path in np.ndindex(3, 3):
        tags = TAGS[1:2].copy()
        tags[tags != -100] = path
        losses[path] = float(model.forward(**second, labels=tags)[0].loss)
    assert tuple(best[best != -100]) == min(losses, key=losses.get)


def test_a_crf_begins_as_a_softmax(config):
    """Its own scores are 0 and not decayed; the argument stands above the configuration's word."""
    model = BertForTokenClassification(config(num_labels=3), crf=True)
    assert model.config.crf
    for _, parameter in model.crf.named_parameters():
        assert not parameter.value.any() and not parameter.decay
    assert BertForTokenClassification(config(crf=True), crf=False).crf is None
    assert BertForTokenClassification(config(crf=True)).crf is not None


# -- Spans ------------------------------------------------------------------------------------------


def test_positions_beyond_the_sequence_are_ignored(build, batch):
    """Each side by itself: the last start and end are out of reach, the third end too."""
    model = build(BertForQuestionAnswering)
    spans = {"start_positions": [1, 0, 6, 7], "end_positions": [3, 0, 7, 9]}
    output, _ = model.forward(**batch.encoder, **spans)
    starts = -scipy.special.log_softmax(to_numpy(output.start_logits), axis=1)[[0, 1, 2], [1, 0, 6]]
    ends = -scipy.special.log_softmax(to_numpy(output.end_logits), axis=1)[[0, 1], [3, 0]]
    assert float(output.loss) == pytest.approx((starts.mean() + ends.mean()) / 2, rel=1e-12)
    summed, _ = model.forward(**batch.encoder, **spans, denominator=1)
    assert float(summed.loss) == pytest.approx((starts.sum() + ends.sum()) / 2, rel=1e-12)


# -- Folders ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("saved", [BertModel, BertForMaskedLM, BertForPreTraining])
@pytest.mark.parametrize(
    ("opened", "settings", "new"),
    [
        (BertForSequenceClassification, {"num_labels": 3}, "classifier"),
        (BertForTokenClassification, {"id2label": {0: "O", 1: "B"}}, "classifier"),
        (BertForTokenClassification, {"crf": True}, "classifier and crf"),
        (BertForQuestionAnswering, {}, "qa_outputs"),
    ],
)
def test_an_encoder_opens_with_a_new_head_and_one_line(
    build, tmp_path, capsys, recwarn, saved, opened, settings, new
):
    build(saved).save_pretrained(tmp_path)
    model = opened.from_pretrained(tmp_path, dtype="float64", **settings)
    if saved is BertForMaskedLM and opened is BertForSequenceClassification:
        new = f"pooler and {new}"
    assert capsys.readouterr().err == f"{tmp_path}: {opened.__name__} begins with a new {new}\n"
    with pytest.raises(
        UserError,
        match=f"has no {new}, which {opened.__name__} needs; use another model, or train this one first",
    ):
        opened.from_pretrained(tmp_path, complete=True, **settings)
    model.save_pretrained(tmp_path / "whole")
    opened.from_pretrained(tmp_path / "whole", complete=True)
    assert not recwarn.list
    assert all(getattr(model.config, name) == value for name, value in settings.items())
    words = build(saved).buffers.parameters[0]
    np.testing.assert_array_equal(model.buffers.parameters[0].value, to_numpy(words.value))
    weights = dict(model.named_parameters())
    head = weights["qa_outputs.weight" if opened is BertForQuestionAnswering else "classifier.weight"]
    assert 0 < np.abs(head.value).max() <= 0.04, "drawn as config.initializer says"
    other = opened.from_pretrained(tmp_path, dtype="float64", seed=1, **settings)
    moved = {
        name for name, parameter in other.named_parameters() if (parameter.value != weights[name].value).any()
    }
    fresh = tuple(head + "." for head in new.split(" and "))
    assert moved and all(name.removeprefix("bert.").startswith(fresh) for name in moved)


@pytest.mark.parametrize(("model_class", "settings", "labels", "count"), TASKS)
def test_a_folder_of_its_own_opens_without_a_word(
    build, batch, device, tmp_path, capsys, recwarn, model_class, settings, labels, count
):
    model = build(model_class, classifier_dropout=0.25, **settings)
    model.save_pretrained(tmp_path)
    again = model_class.from_pretrained(tmp_path, device=device, dtype="float64")
    assert not recwarn.list and not capsys.readouterr().err
    assert again.config == model.config
    loss = float(model.forward(**batch.encoder, **labels)[0].loss)
    assert float(again.forward(**batch.encoder, **labels)[0].loss) == loss


def test_a_head_of_another_size_is_refused(build, tmp_path):
    build(BertForSequenceClassification, num_labels=3).save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"'classifier.weight' has shape \(3, 12\).*expects \(2, 12\)"):
        BertForSequenceClassification.from_pretrained(tmp_path, num_labels=2)


def test_tensors_of_nobody_are_still_told(build, tmp_path):
    model = build(BertForSequenceClassification)
    model.classifier.stranger = model.classifier.bias  # a second name, as a file of another program has it
    model.stranger = BertForQuestionAnswering(model.config).qa_outputs
    model.allocate("cpu", "float64")
    model.save_pretrained(tmp_path)
    with pytest.warns(UserWarning, match="does not use: 'stranger.bias', 'stranger.weight'$"):
        BertForSequenceClassification.from_pretrained(tmp_path)


def test_a_label_beyond_single_precision_is_not_finite(build):
    model = build(BertForSequenceClassification, num_labels=1, dtype="float32")
    with pytest.raises(UserError, match="must be finite numbers of type float32"):
        model.forward([[2, 7]], labels=[1e40])


class Column:
    """What a pandas column looks like: it has a dtype, and a ``get`` that is not CuPy's."""

    dtype = np.dtype("int64")

    def __init__(self, values):
        self.values = values

    def get(self, key):
        raise KeyError(key)

    def __array__(self, dtype=None, copy=None):
        return np.array(self.values, dtype)


@pytest.mark.parametrize("num_labels", [1, 2])
def test_labels_may_be_a_column_of_a_table(build, num_labels):
    model = build(BertForSequenceClassification, num_labels=num_labels)
    ids = {"input_ids": [[2, 7], [2, 8]]}
    expected = model.forward(**ids, labels=[1, 0])[0].loss
    assert model.forward(**ids, labels=Column([1, 0]))[0].loss == expected
    assert model.count_targets({"labels": Column([1, 0])}) == {"denominator": 2}


@pytest.mark.parametrize(
    "kind", [BertForSequenceClassification, BertForTokenClassification, BertForQuestionAnswering]
)
def test_features_are_for_models_that_learn_from_features(build, kind):
    with pytest.raises(UserError, match="features are for a model with feature_layers; leave them out"):
        build(kind).forward([[1, 2]], features=np.zeros((1, 2, 8)))


@pytest.mark.parametrize("kind", [BertForMaskedLM, BertForSequenceClassification])
def test_a_batch_that_only_the_encoder_prepared_is_refused_by_a_model_with_a_head(build, kind):
    """Its targets, or that there are none, are part of a prepared batch."""
    model, ids = build(kind), [[1, 2, 3]]
    expected = f"{kind.__name__} reads {kind.prepared.__name__}, but was given EncoderInputs; prepare"
    with pytest.raises(UserError, match=expected):
        model.forward(model.bert.prepare(input_ids=ids))
    prepared = map_arrays(model.device.asarray, model.prepare(input_ids=ids))
    of_encoder, _ = model.bert.forward(prepared)  # which reads a part
    of_model, _ = model.forward(prepared, return_hidden_states=True)
    assert of_model.hidden_states[-1].shape == of_encoder.last_hidden_state.shape


def test_labels_in_lists_are_counted(config):
    denominator = {
        BertForSequenceClassification: ({"labels": [0, -100]}, {}, 1),
        BertForTokenClassification: ({"labels": [[0, -100], [1, 1]]}, {}, 3),
        BertForQuestionAnswering: (
            {"input_ids": [[5, 6, 7]] * 2, "start_positions": [0, 9], "end_positions": [1, 2]},
            {},
            [1, 2],
        ),
    }
    cases = [(kind, *case) for kind, case in denominator.items()]
    cases.append((BertForTokenClassification, {"labels": [[0, -100], [-100, -100]]}, {"crf": True}, 1))
    cases.append((BertForSequenceClassification, {"labels": [0.5, 1.0]}, {"num_labels": 1}, 2))
    for kind, batch, settings, expected in cases:
        found = kind(config(**settings), device=None).count_targets(batch)
        assert np.array_equal(found["denominator"], expected)
    both = {"labels": [[0, -100]], "next_sentence_label": [1]}
    counted = BertForPreTraining(config(), device=None).count_targets(both)
    assert counted == {"mlm_denominator": 1, "nsp_denominator": 1}

"""A training step: accumulation, dropout, and the same numbers whether it is called or replayed."""

import numpy as np
import pytest
from recorder import recording_device

from minibert.arrays import map_arrays, to_numpy
from minibert.bert import BertForMaskedLM, BertForPreTraining
from minibert.dropout_bits import dropout_stream
from minibert.errors import UserError
from minibert.heads import (
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    SentenceEncoder,
    SentencePairs,
)
from minibert.replay import WARM_UP
from minibert.train import AdamW
from minibert.train.metrics import count_targets
from minibert.train.step import TrainingStep, accumulate_gradients

PREDICTIONS = 4 * 11  # more than a batch of four ever has in these tests


def gradients(model, batches, step=0):
    """What a step does up to the update: the losses."""
    counts = count_targets(model, batches)
    checked = [map_arrays(model.device.asarray, model.prepare(**batch, **counts)) for batch in batches]
    streams = [dropout_stream(0, step, index, 0) for index in range(len(batches))]
    losses = accumulate_gradients(model, checked, streams)
    return {name: float(value) for name, value in losses.items()}


def test_micro_batches_with_different_mask_counts_equal_the_one_large_batch(model, make_batch):
    pieces = [make_batch(rows, seed) for seed, rows in enumerate((1, 6, 3))]
    counts = [int((piece["labels"] != -100).sum()) for piece in pieces]
    assert len({count / len(piece["labels"]) for count, piece in zip(counts, pieces, strict=True)}) == 3
    whole = {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}

    expected = gradients(model, [whole])
    gradient = model.buffers.grad.copy()
    assert gradients(model, pieces) == pytest.approx(expected, rel=1e-13)
    difference = np.linalg.norm(model.buffers.grad - gradient) / np.linalg.norm(gradient)
    assert difference < 1e-13


ENCODER = {
    "input_ids": np.random.default_rng(1).integers(1, 40, (4, 7)),
    "attention_mask": np.arange(7) < np.array([[7], [5], [7], [6]]),
}
TAGS = np.array([[-100, 2, 0, -100, 1, 1, -100], [-100, 0, -100, 2, -100, -100, -100], [-100] * 7, [2] * 7])
SPANS = {"start_positions": np.array([1, 0, 6, 7]), "end_positions": np.array([3, 9, 6, 9])}  # 7, 9: ignored


@pytest.mark.parametrize(
    ("Model", "settings", "labels"),
    [
        (BertForSequenceClassification, {"num_labels": 3}, {"labels": np.array([2, 0, -100, 1])}),
        (BertForSequenceClassification, {"num_labels": 1}, {"labels": np.array([0.5, 1, -2, 0])}),
        (BertForTokenClassification, {"num_labels": 3}, {"labels": TAGS}),
        (BertForTokenClassification, {"num_labels": 3, "crf": True}, {"labels": TAGS}),
        (BertForQuestionAnswering, {}, SPANS),
        (SentenceEncoder, {}, {"labels": np.array([0.5, 1, -0.5, 0])}),
    ],
)
def test_micro_batches_of_every_task_equal_the_one_large_batch(device, config, Model, settings, labels):
    """The loss, the gradient and the update, though the pieces hold different numbers of labels."""
    batch = ENCODER | labels
    states, read = [], []
    for rows in ([slice(0, 4)], [slice(0, 1), slice(1, 3), slice(3, 4)]):
        model = Model(config.replace(**settings), device=device, dtype="float64", seed=3)
        pieces = [{name: array[part] for name, array in batch.items()} for part in rows]
        if Model is SentenceEncoder:
            model = SentencePairs(model)
            pieces = [
                {
                    "first": piece,
                    "second": {"input_ids": piece["input_ids"][:, 2:]},
                    "labels": piece.pop("labels"),
                }
                for piece in pieces
            ]
        training = TrainingStep(model, AdamW(model), graph=False)
        training.take(pieces, 0.01, 0)
        read.append(training.read())
        states.append(to_numpy(model.buffers.value))
    assert read[1] == pytest.approx(read[0], rel=1e-12) and read[0]["loss"] > 0
    assert read[0].keys() == {"loss", "grad_norm"}
    np.testing.assert_allclose(states[1], states[0], rtol=1e-9, atol=1e-12)


def test_batches_of_other_lengths_every_time(config):
    """As fine-tuning has them: on a GPU without a graph, through the same memory as with one."""
    values = []
    for device in ("cpu", recording_device()):
        model = BertForSequenceClassification(config, device=device, dtype="float64", seed=3)
        training = TrainingStep(model, AdamW(model), graph=False)
        for step, length in enumerate((7, 4, 6, 4)):
            batch = {"input_ids": ENCODER["input_ids"][: length - 1, :length]}
            training.take([batch | {"labels": np.arange(len(batch["input_ids"])) % 2}], 0.01, step)
        values.append(to_numpy(model.buffers.value))
    np.testing.assert_allclose(*values, rtol=1e-12, atol=1e-15)


def test_every_micro_batch_drops_other_elements(config, make_batch):
    config.hidden_dropout_prob = 0.5
    model = BertForPreTraining(config, dtype="float64")
    batch = make_batch(4, seed=0)
    model.eval()  # as an evaluation leaves it

    def loss(batches, step):
        return gradients(model, batches, step)["loss"]

    once, twice = loss([batch], step=0), loss([batch, batch], step=0)
    assert once == loss([batch], step=0)  # a pure function of the step
    assert once != pytest.approx(twice, rel=1e-6)  # the same batch with the same bits would be the mean, once
    assert once != pytest.approx(loss([batch], step=1), rel=1e-6)


def train(
    device,
    config,
    make_batch,
    *,
    Model=BertForPreTraining,
    precision="float64",
    steps=20,
    accumulation=2,
    predictions=None,
    graph=True,
    padding=True,
):
    """A run of ``steps``: the parameters, both means of Adam, and all that was read, every third step."""
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.2
    model = Model(config, device=device, precision=precision, seed=3)
    optimiser = AdamW(model, bias_correction=True)
    if optimiser.loss_scale:
        optimiser.loss_scale.value[...] = 2.0**27  # the first steps overflow
    training = TrainingStep(model, optimiser, seed=5, predictions=predictions, graph=graph)
    read = []
    for step in range(steps):
        batches = [make_batch(4, seed=accumulation * step + index) for index in range(accumulation)]
        for batch in batches:
            if not model.next_sentence:
                del batch["next_sentence_label"]
            if not padding:
                batch["attention_mask"][...] = 1
        training.take(batches, 0.02 / (1 + step), step)
        if step % 3 == 2:
            read.append(training.read())
    state = [to_numpy(array) for array in (model.buffers.value, optimiser.mean, optimiser.variance)]
    return np.stack(state), read, training


@pytest.mark.parametrize("Model", [BertForPreTraining, BertForMaskedLM])
def test_a_replayed_step_computes_the_same_as_one_that_is_called(config, make_batch, Model):
    """Same bits after twenty steps with dropout, other learning rates and numbers of masked words in each."""
    called, told, training = train(
        recording_device(), config, make_batch, predictions=PREDICTIONS, graph=False, Model=Model
    )
    assert not training.repetition.replaying
    device = recording_device()
    replayed, told_too, training = train(device, config, make_batch, predictions=PREDICTIONS, Model=Model)
    assert training.repetition.replaying
    (graph,) = device.xp.cuda.graphs
    assert graph.launches == 20 - WARM_UP
    np.testing.assert_array_equal(replayed, called)
    assert told_too == told


def test_a_replayed_step_halves_the_loss_scale_and_leaves_out_what_overflows(config, make_batch):
    results = []
    for graph in (True, False):
        with np.errstate(over="ignore", invalid="ignore"):
            state, read, training = train(
                recording_device(), config, make_batch, precision="float16", predictions=44, graph=graph
            )
        assert training.repetition.replaying == graph
        results.append((state, read, float(to_numpy(training.optimiser.loss_scale.value))))
    (state, read, scale), (called, told, other_scale) = results
    np.testing.assert_array_equal(state, called)
    np.testing.assert_equal(read, told)  # a NaN is one in both
    norms = [means["grad_norm"] for means in read]
    assert not np.isfinite(norms[1]) and np.isfinite(norms[-1])  # also in steps that were replayed
    assert scale == other_scale < 2.0**27 / 2**WARM_UP


@pytest.mark.parametrize("kind", ["numpy", "recorder"])
def test_padded_targets_on_any_library_are_the_plain_step(config, make_batch, kind):
    plain, told, _ = train("cpu", config, make_batch)
    device = "cpu" if kind == "numpy" else recording_device()
    other, told_too, training = train(device, config, make_batch, predictions=PREDICTIONS)
    assert training.repetition.fixed_shapes == (kind == "recorder")
    assert np.linalg.norm(other - plain) <= 1e-11 * np.linalg.norm(plain)
    for means, right in zip(told_too, told, strict=True):
        assert means == pytest.approx(right, rel=1e-11)


BOUNDS = {"float64": 1e-10, "float32": 1e-5}  # relative, of all numbers after twenty steps


@pytest.mark.parametrize("precision", BOUNDS)
def test_every_library_agrees_over_twenty_steps_and_gives_the_same_bits_twice(
    device, config, make_batch, precision
):
    """With dropout and repeated token ids: on a GPU the proof that no sum depends on an order of threads.

    Without padding: the CPU's kernels would leave it out, and then dropout draws other bits.
    """
    how = {"precision": precision, "padding": False}
    expected, told, _ = train("cpu", config, make_batch, **how)
    got, told_too, _ = train(device, config, make_batch, **how, predictions=PREDICTIONS)
    again, told_again, _ = train(device, config, make_batch, **how, predictions=PREDICTIONS)
    np.testing.assert_array_equal(got, again)
    assert told_too == told_again
    error = np.linalg.norm(got - expected) / np.linalg.norm(expected)
    assert error <= BOUNDS[precision]
    for means, right in zip(told_too, told, strict=True):
        assert means == pytest.approx(right, rel=BOUNDS[precision])


def test_a_step_without_dropout_or_accumulation_is_the_optimisers(model, make_batch):
    """The step written out with the model's own methods."""
    batch = make_batch(4, seed=1)
    other = BertForPreTraining(model.config, dtype="float64", seed=3)
    outputs, cache = other.forward(**batch)
    other.zero_grad()
    other.backward(cache)
    norm = AdamW(other).step(0.01, 0)

    training = TrainingStep(model, AdamW(model))
    training.take([batch], 0.01, 0)
    read = training.read()
    assert read == pytest.approx(
        {
            "loss": float(outputs.loss),
            "mlm_loss": float(outputs.mlm_loss),
            "nsp_loss": float(outputs.nsp_loss),
            "grad_norm": float(norm),
        },
        rel=1e-13,
    )
    np.testing.assert_allclose(model.buffers.value, other.buffers.value, rtol=1e-12, atol=1e-15)


def test_the_dropout_of_a_step_depends_on_seed_step_and_micro_batch(config, make_batch):
    config.hidden_dropout_prob = 0.5
    batch = make_batch(4, seed=0)

    def loss(batches, seed, step=0):
        model = BertForPreTraining(config, dtype="float64", seed=3)
        training = TrainingStep(model, AdamW(model), seed=seed)
        training.take(batches, 0.01, step)
        return training.read()["loss"]

    once = loss([batch], seed=1)
    assert once == loss([batch], seed=1)
    for other in (loss([batch], seed=2), loss([batch], seed=1, step=1), loss([batch, batch], seed=1)):
        assert other != pytest.approx(once, rel=1e-6)


def test_what_is_read_are_means_since_the_last_time(model, make_batch):
    other = BertForPreTraining(model.config, dtype="float64", seed=3)
    training, whole, single = TrainingStep(model, AdamW(model)), TrainingStep(other, AdamW(other)), []
    for step in range(3):
        for each in (training, whole):
            each.take([make_batch(4, seed=step)], 0.01, step)
        single.append(training.read())
    assert whole.read() == pytest.approx({name: np.mean([r[name] for r in single]) for name in single[0]})
    with pytest.raises(ValueError, match="no step"):
        whole.read()


def test_more_masked_words_than_there_is_room_for(config, make_batch):
    model = BertForPreTraining(config, device=recording_device())
    training = TrainingStep(model, AdamW(model), predictions=2)
    with pytest.raises(UserError, match="positions to predict; expected at most 2"):
        training.take([make_batch(4, seed=0)], 0.01, 0)


def test_ids_out_of_range_are_refused_before_they_reach_the_device(config, make_batch):
    """In a recorded step too, where a GPU would wrap them silently."""
    model = BertForPreTraining(config, device=recording_device())
    training = TrainingStep(model, AdamW(model), predictions=PREDICTIONS)
    for step in range(WARM_UP + 1):
        training.take([make_batch(4, seed=step)], 0.01, step)
    assert training.repetition.replaying
    before = to_numpy(model.buffers.value)
    wrong = make_batch(4, seed=0)
    wrong["input_ids"][0, 0] = config.vocab_size
    with pytest.raises(UserError, match=f"input_ids contains {config.vocab_size}"):
        training.take([wrong], 0.01, 9)
    np.testing.assert_array_equal(to_numpy(model.buffers.value), before)


@pytest.mark.parametrize("order", [[0, 1], [1, 0]])
def test_means_are_over_the_steps_that_had_the_loss(model, make_batch, order):
    batches, single = [make_batch(4, seed=seed) for seed in (0, 1)], []
    del batches[1]["next_sentence_label"]
    training = TrainingStep(model, AdamW(model))
    for batch in batches:
        training.take([batch], 0.0, 0)
        single.append(training.read())
    assert "nsp_loss" not in single[1]
    for index in order:
        training.take([batches[index]], 0.0, 0)
    read = training.read()
    for name in ("loss", "mlm_loss", "grad_norm"):
        assert read[name] == pytest.approx((single[0][name] + single[1][name]) / 2)
    assert read["nsp_loss"] == pytest.approx(single[0]["nsp_loss"])

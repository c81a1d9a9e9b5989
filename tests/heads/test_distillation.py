"""What a student loses to its teacher's layers."""

import copy
from dataclasses import replace

import numpy as np
import pytest

from minibert.arrays import to_numpy
from minibert.bert import BertConfig
from minibert.errors import UserError
from minibert.heads import BertForSequenceClassification, Distillation
from minibert.heads.distillation import ATTENTION
from minibert.nn import Context
from minibert.variants.roberta import RobertaConfig, RobertaForSequenceClassification

SMALL = BertConfig(
    vocab_size=30,
    hidden_size=8,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=12,
    max_position_embeddings=16,
    initializer_range=0.5,
    num_labels=3,
)
LARGE = SMALL.replace(hidden_size=12, num_hidden_layers=3, num_attention_heads=3)
BATCH = {
    "input_ids": np.arange(3 * 5).reshape(3, 5) % 11 + 4,
    "attention_mask": np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 1, 0, 0, 0]]),
}
TARGETS = {"labels": [0, 2, 1], "teacher_logits": np.zeros((3, 3))}


def make(student, teacher, device="cpu", **weights):
    models = [
        BertForSequenceClassification(config, device=device, dtype="float64", seed=seed)
        for seed, config in enumerate((student, teacher))
    ]
    models[0].eval()
    return Distillation(models[0], teacher=models[1], **weights), *models


def inside(model):
    """Hidden states and attention of all layers, on the host."""
    outputs, _ = model.forward(**BATCH, context=Context(), return_hidden_states=True, return_attentions=True)
    return [[to_numpy(x) for x in values] for values in (outputs.hidden_states[1:], outputs.attentions)]


def test_labels_are_needed():
    with pytest.raises(UserError, match="a batch without labels; the student learns from them, too"):
        make(SMALL, LARGE)[0].forward(**BATCH, **TARGETS | {"labels": None})


def test_the_teacher_has_no_dropout_and_stays_as_it_is(monkeypatch):
    """It is asked without dropout and without keeping anything for a backward pass, even in training mode."""
    distillation, _, teacher = make(SMALL, LARGE, hidden_weight=1.0)
    encoder, contexts = teacher.bert.encoder, []
    forward = encoder.forward

    def spy(hidden, bias, context, *others):
        contexts.append(context)
        return forward(hidden, bias, context, *others)

    monkeypatch.setattr(encoder, "forward", spy)
    losses = [float(distillation.forward(**BATCH, **TARGETS)[0].hidden_loss) for _ in range(2)]
    assert teacher.training and losses[0] == losses[1]
    assert [context.backward for context in contexts] == [False, False]


def cosines(hidden):
    return [[x @ y / np.linalg.norm(x) / np.linalg.norm(y) for y in hidden] for x in hidden]


def test_the_losses_of_layers_in_plain_loops(device):
    """Two layers imitate the second and the third of three: text by text, the mean over its real tokens."""
    trainee, student, teacher = make(SMALL, LARGE, device, hidden_weight=1.0, attention_weight=1.0)
    (mine, my_attention), (its, its_attention) = inside(student), inside(teacher)
    hidden_loss = attention_loss = 0.0
    for layer, other in enumerate((1, 2)):
        for text, length in enumerate(BATCH["attention_mask"].sum(axis=1)):
            relations = [np.array(cosines(h[text, :length])) for h in (mine[layer], its[other])]
            hidden_loss += ((relations[0] - relations[1]) ** 2).mean() / 2 / 3
            looks = [p[text].mean(axis=0)[:length] for p in (my_attention[layer], its_attention[other])]
            attention_loss += ((looks[0] - looks[1]) ** 2).sum(axis=1).mean() / 2 / 3
    losses, _ = trainee.forward(**BATCH, **TARGETS)
    assert float(to_numpy(losses.hidden_loss)) == pytest.approx(hidden_loss, rel=1e-10)
    assert float(to_numpy(losses.attention_loss)) == pytest.approx(attention_loss, rel=1e-10)
    parts = 0.5 * (losses.hard_loss + losses.soft_loss) + losses.hidden_loss + losses.attention_loss
    assert float(to_numpy(losses.loss)) == pytest.approx(float(to_numpy(parts)))


@pytest.mark.parametrize(
    ("layers", "of_teacher", "imitated"),
    [(4, 6, [2, 3, 5, 6]), (2, 12, [6, 12]), (3, 3, [1, 2, 3]), (4, 1, [1, 1, 1, 1]), (4, 2, [1, 1, 2, 2])],
)
def test_the_layers_that_are_imitated(layers, of_teacher, imitated, monkeypatch):
    """Here all of a layer's attention in the teacher is the number of the layer."""
    trainee, *_ = make(
        SMALL.replace(num_hidden_layers=layers),
        LARGE.replace(num_hidden_layers=of_teacher),
        attention_weight=1.0,
    )
    forward, seen = trainee._ask, []

    def ask(*arguments, **options):
        outputs, cache = forward(*arguments, **options)
        outputs.attentions = [np.full_like(p, number) for number, p in enumerate(outputs.attentions, 1)]
        return outputs, cache

    trainee._ask = ask
    losses = replace(ATTENTION, forward=lambda mine, its, weights: (seen.append(its.mean()) or 0.0, None))
    monkeypatch.setattr("minibert.heads.distillation.ATTENTION", losses)
    trainee.imitated = {losses: 1.0}
    trainee.forward(**BATCH, **TARGETS)
    assert seen == imitated


def test_micro_batches_add_up():
    trainee, *_ = make(SMALL, LARGE, hidden_weight=2.0, attention_weight=3.0)
    whole, _ = trainee.forward(**BATCH, **TARGETS)
    pieces = []
    for rows in (slice(0, 1), slice(1, 3)):
        piece = {name: values[rows] for name, values in (BATCH | TARGETS).items()}
        pieces.append(trainee.forward(**piece, denominator=3)[0])
    for name in trainee.losses:
        assert sum(getattr(p, name) for p in pieces) == pytest.approx(getattr(whole, name), rel=1e-12)


def test_a_text_without_tokens_loses_nothing_to_the_layers():
    """It counts for the labels, whatever that means, but does not make the loss NaN."""
    trainee, *_ = make(SMALL, LARGE, hidden_weight=1.0, attention_weight=1.0)
    mask = BATCH["attention_mask"].copy()
    mask[2] = 0
    losses, _ = trainee.forward(**BATCH | {"attention_mask": mask}, **TARGETS)
    assert np.isfinite(losses.loss)


def test_a_teacher_that_cannot_read_all_of_it_is_refused():
    with pytest.raises(UserError, match="so give the teacher, too"):
        Distillation(BertForSequenceClassification(SMALL), hidden_weight=1.0)
    for size in ("vocab_size", "type_vocab_size", "max_position_embeddings"):
        smaller = LARGE.replace(**{size: getattr(SMALL, size) - 1})
        told = size.replace("max_position_embeddings", "longest_sequence")
        with pytest.raises(
            UserError, match=f"the teacher's {told} is {getattr(smaller, size)}, the student's"
        ):
            make(SMALL, smaller, attention_weight=1.0)
    students = BertForSequenceClassification(SMALL)  # 16 positions, of which a RoBERTa cannot use two
    sizes = {"vocab_size": 30, "type_vocab_size": 2, "hidden_size": 8, "num_attention_heads": 2}
    for positions, works in ((16, False), (18, True)):
        config = RobertaConfig(**sizes, num_hidden_layers=2, max_position_embeddings=positions)
        teacher = RobertaForSequenceClassification(config)
        if works:
            Distillation(students, teacher=teacher, hidden_weight=1.0)
        else:
            with pytest.raises(UserError, match="the teacher's longest_sequence is 14, the student's 16"):
                Distillation(students, teacher=teacher, hidden_weight=1.0)


def test_a_prepared_batch_is_complete():
    trainee, *_ = make(SMALL, LARGE)
    with pytest.raises(TypeError, match="a prepared batch is complete; it cannot be given labels as well"):
        trainee.forward(trainee.prepare(**BATCH, **TARGETS), labels=TARGETS["labels"])


def test_a_deep_copy_learns_the_same():
    trainee, *_ = make(SMALL, LARGE, hidden_weight=1.0, attention_weight=2.0)
    gradients = []
    for one in (trainee, copy.deepcopy(trainee)):
        one.zero_grad()
        one.backward(one.forward(**BATCH, **TARGETS)[1])
        gradients.append(one.buffers.grad)
    np.testing.assert_array_equal(*gradients)
    assert gradients[0].any() and not np.shares_memory(*gradients)


def test_a_student_that_is_allocated_anew():
    trainee, student, _ = make(SMALL, LARGE)
    student.allocate(dtype="float32")
    assert trainee.buffers is student.buffers and trainee.dtype == "float32"

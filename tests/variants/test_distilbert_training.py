"""A student that learns from masked words and from a teacher's predictions of them."""

import numpy as np
import pytest
from scipy.special import log_softmax
from small_pretraining import masked_batch

from minibert.bert import BertConfig, BertForMaskedLM
from minibert.devices import resolve_device
from minibert.errors import UserError
from minibert.tasks.pretraining_model import open_teacher
from minibert.tasks.pretraining_settings import PretrainSettings
from minibert.text import BertTokenizer
from minibert.train.metrics import count_targets
from minibert.train.step import accumulate_gradients
from minibert.variants.albert import AlbertConfig, AlbertForMaskedLM
from minibert.variants.distilbert import DistilBertConfig, DistilBertForMaskedLM
from minibert.variants.distilbert_training import MaskedWordDistillation, take_layers
from minibert.variants.roberta import RobertaConfig, RobertaForMaskedLM

SIZES = dict(
    vocab_size=30,
    hidden_size=8,
    num_attention_heads=2,
    intermediate_size=12,
    max_position_embeddings=10,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
    initializer_range=0.5,
)


def make_student(**options):
    return DistilBertForMaskedLM(
        DistilBertConfig(num_hidden_layers=2, **SIZES | options), dtype="float64", seed=1
    )


def make_teacher(**options):
    return BertForMaskedLM(BertConfig(num_hidden_layers=4, **SIZES | options), dtype="float64", seed=2)


def make_batch(rows=6, seed=0):
    return masked_batch(rows, seed, length=10, vocab_size=30)


def test_the_losses_are_their_definitions():
    student, teacher, batch = make_student(), make_teacher(), make_batch()
    outputs, _ = MaskedWordDistillation(
        student, teacher, temperature=3.0, soft_weight=0.5, mlm_weight=0.25, cosine_weight=2.0
    ).forward(**batch)
    mine, its = (model.forward(**batch)[0] for model in (student, teacher))
    soft = cosine = 0.0
    for z, u in zip(mine.prediction_logits, its.prediction_logits, strict=True):
        log_p, log_q = log_softmax(z / 3), log_softmax(u / 3)
        soft += 9 * (np.exp(log_q) * (log_q - log_p)).sum() / len(mine.prediction_logits)
    for row, column in zip(*np.nonzero(batch["attention_mask"]), strict=True):
        x, y = mine.last_hidden_state[row, column], its.last_hidden_state[row, column]
        cosine += (1 - x @ y / np.sqrt((x @ x) * (y @ y))) / batch["attention_mask"].sum()
    assert outputs.mlm_loss == pytest.approx(mine.mlm_loss, rel=1e-12)
    assert outputs.soft_loss == pytest.approx(soft, rel=1e-12)
    assert outputs.cosine_loss == pytest.approx(cosine, rel=1e-12)
    expected = 0.5 * soft + 0.25 * mine.mlm_loss + 2 * cosine
    assert outputs.loss == pytest.approx(expected, rel=1e-12)


def test_the_teacher_has_no_dropout_and_stays_as_it_is():
    teacher = make_teacher(hidden_dropout_prob=0.5)
    pairs = MaskedWordDistillation(make_student(), teacher)
    losses = [float(pairs.forward(**make_batch())[0].soft_loss) for _ in range(2)]
    assert teacher.training and losses[0] == losses[1]


def test_masked_words_are_needed():
    pairs = MaskedWordDistillation(make_student(), make_teacher())
    with pytest.raises(UserError, match="a batch without labels; the student learns from masked words"):
        pairs.forward(input_ids=make_batch()["input_ids"])


def test_what_the_teacher_cannot_read_or_nobody_learns_from_is_refused():
    pairs, batch = MaskedWordDistillation(make_student(), make_teacher(type_vocab_size=1)), make_batch()
    with pytest.raises(UserError, match="token_type_ids contains 1; expected 0 to 0"):
        pairs.forward(**batch | {"token_type_ids": np.ones_like(batch["input_ids"])})
    with pytest.raises(
        UserError, match="the student learns from masked words alone; leave out next_sentence"
    ):
        pairs.forward(**batch, next_sentence_label=[0] * len(batch["input_ids"]))


def gradients(model, batches, **more):
    counts = count_targets(model, batches)
    prepared = [model.prepare(**batch, **counts, **more) for batch in batches]
    losses = accumulate_gradients(model, prepared, [np.zeros(5, dtype=np.uint32)] * len(batches))
    return losses, {name: p.grad.copy() for name, p in model.student.named_parameters()}


def test_micro_batches_and_rows_that_fill_up_a_shape_change_nothing():
    model, batch = MaskedWordDistillation(make_student(), make_teacher()), make_batch()
    losses, whole = gradients(model, [batch])
    parts = [{name: x[rows] for name, x in batch.items()} for rows in (slice(2), slice(2, None))]
    for batches, more in ((parts, {}), ([batch], {"predictions": 40})):
        again, found = gradients(model, batches, **more)
        assert again["loss"] == pytest.approx(losses["loss"], rel=1e-12)
        for name, grad in whole.items():
            assert np.linalg.norm(found[name] - grad) <= 1e-12 * (1 + np.linalg.norm(grad)), name


def test_the_teacher_is_no_part_of_what_learns():
    teacher = make_teacher()
    before = {name: p.value.copy() for name, p in teacher.named_parameters()}
    model = MaskedWordDistillation(make_student(), teacher)
    gradients(model, [make_batch()])
    assert not any("teacher" in name for name, _ in model.named_parameters())
    for name, parameter in teacher.named_parameters():
        assert (parameter.value == before[name]).all() and not parameter.grad.any()


def test_a_student_begins_with_every_second_layer():
    student, teacher = make_student(), make_teacher()
    taken = take_layers(student, teacher)
    values = dict(teacher.named_parameters())
    assert taken == sum(p.size for _, p in student.named_parameters())
    for name, parameter in student.named_parameters():
        its = name.replace("layer.1.", "layer.2.")
        assert (parameter.value == values[its].value).all(), name


def test_a_student_of_an_albert_has_its_one_layer_everywhere():
    config = AlbertConfig(num_hidden_layers=4, embedding_size=8, **SIZES)
    teacher, student = AlbertForMaskedLM(config, dtype="float64", seed=5), make_student()
    take_layers(student, teacher)
    its = dict(teacher.named_parameters())["bert.encoder.layer.0.output.dense.weight"].value
    for layer in student.bert.encoder.layer:
        assert (layer.output.dense.weight.value == its).all()


@pytest.mark.parametrize("roberta_teaches", [True, False])
def test_positions_are_taken_although_robertas_begin_further_on(roberta_teaches):
    bert = make_student(max_position_embeddings=7)
    config = RobertaConfig(num_hidden_layers=2, pad_token_id=0, **SIZES | {"max_position_embeddings": 10})
    roberta = RobertaForMaskedLM(config, dtype="float64", seed=6)
    tables = [model.bert.embeddings.position_embeddings.weight.value for model in (bert, roberta)]
    before = tables[1].copy()
    take_layers(*((bert, roberta) if roberta_teaches else (roberta, bert)))
    np.testing.assert_array_equal(tables[0], tables[1][1:8])  # row 0 is that of padding
    np.testing.assert_array_equal(tables[1][[0, 8, 9]], before[[0, 8, 9]])


def test_a_student_of_another_size_takes_what_fits():
    student = make_student(hidden_size=4)
    assert (
        take_layers(student, make_teacher()) == 30 + 2 * 12
    )  # the bias of the words, those of the wide layers
    model = MaskedWordDistillation(student, make_teacher(), cosine_weight=0.0)
    losses, _ = gradients(model, [make_batch()])
    assert losses["cosine_loss"] == 0 and losses["soft_loss"] > 0


def test_a_teacher_with_another_vocabulary_is_refused(tmp_path):
    folders = {}
    for name, words in (("one", "a b c"), ("other", "d e f")):
        tokenizer = BertTokenizer(f"[PAD] [UNK] [CLS] [SEP] [MASK] {words}".split())
        folders[name] = tmp_path / name
        make_teacher(vocab_size=len(tokenizer)).save_pretrained(folders[name])
        tokenizer.save_pretrained(folders[name])
    settings = PretrainSettings(teacher=str(folders["one"]), precision="float32")
    same, another = (BertTokenizer.from_pretrained(folder) for folder in folders.values())
    assert open_teacher(settings, resolve_device("cpu"), same).config.num_hidden_layers == 4
    with pytest.raises(UserError, match="has another vocabulary than the student"):
        open_teacher(settings, resolve_device("cpu"), another)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"vocab_size": 31}, "teacher's vocab_size is 31, the student's 30"),
        ({"max_position_embeddings": 9}, "teacher's longest_sequence is 9, the student's 10"),
        ({"hidden_size": 12}, "teacher's hidden size is 12, the student's 8; a cosine needs the same"),
    ],
)
def test_a_teacher_that_does_not_fit(options, message):
    with pytest.raises(UserError, match=message):
        MaskedWordDistillation(make_student(), make_teacher(**options))


def test_a_batch_without_a_mask_has_no_padding():
    batch = make_batch()
    whole = batch | {"attention_mask": np.ones_like(batch["attention_mask"])}
    del batch["attention_mask"]
    trainee = MaskedWordDistillation(make_student(), make_teacher())
    assert trainee.count_targets(batch) == trainee.count_targets(whole)
    assert trainee.forward(**batch)[0].loss == trainee.forward(**whole)[0].loss


def test_a_prepared_batch_is_complete():
    trainee, batch = MaskedWordDistillation(make_student(), make_teacher()), make_batch()
    with pytest.raises(TypeError, match="a prepared batch is complete; it cannot be given labels as well"):
        trainee.forward(trainee.prepare(**batch), labels=batch["labels"])

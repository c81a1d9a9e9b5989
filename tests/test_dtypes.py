"""Nothing widens by accident: every array made in a whole float32 training step is float32 or integer.

And in a step in 16 bits just what should be rounded is. The strict array library tells the dtype of each
result, with the function that made it.
"""

import numpy as np
import pytest
import strict

from minibert.bert import BertConfig, BertForMaskedLM, BertForPreTraining, BertModel
from minibert.devices import Device
from minibert.heads import (
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    Distillation,
    SentenceEncoder,
    SentencePairs,
)
from minibert.proofs.small_bert import (
    BATCH,
    CLASSES,
    CONFIG,
    LABELS,
    NEXT_SENTENCE_LABEL,
    SECOND_TEXTS,
    SPANS,
    TAGS,
)
from minibert.train.optimiser import AdamW
from minibert.variants import FAMILIES
from minibert.variants.distilbert_training import MaskedWordDistillation
from minibert.variants.electra import ElectraConfig
from minibert.variants.electra_training import ElectraGeneratorAndDiscriminator, generator_config
from minibert.variants.modern import ModernConfig, ModernForPreTraining

STRICT = Device("strict", strict.xp)


def training_step(model: BertForPreTraining) -> None:
    """Forward, backward, clip and update, as a trainer does it."""
    _, cache = model.forward(**BATCH, labels=LABELS, next_sentence_label=NEXT_SENTENCE_LABEL)
    model.zero_grad()
    model.backward(cache)
    AdamW(model, bias_correction=True).step(learning_rate=1e-3, step=3)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("hidden_act", ["gelu", "gelu_new", "relu", "tanh"])
@pytest.mark.parametrize("is_decoder", [False, True])
def test_a_training_step_stays_in_its_dtype(dtype, hidden_act, is_decoder):
    config = BertConfig.from_dict(CONFIG.to_dict() | {"hidden_act": hidden_act, "is_decoder": is_decoder})
    model = BertForPreTraining(config, device=STRICT, dtype=dtype)
    with strict.record() as made:
        training_step(model)
    floats = {(function, result) for function, result in made if result.kind not in "iub"}
    assert len(made) > 500
    assert len(floats) > 10
    assert {pair for pair in floats if pair[1] != dtype} == set()


# What gives 16 bits: roundings, views and copies, and adding two derivatives where a residual branches off.
HALF_COMES_FROM = {"astype", "zeros", "getitem", "reshape", "add"}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("hidden_act", ["gelu", "gelu_new"])
def test_in_16_bits_only_activations_and_operands_are(dtype, hidden_act):
    config = BertConfig.from_dict(CONFIG.to_dict() | {"hidden_act": hidden_act})
    model = BertForPreTraining(config, device=STRICT, precision=dtype)
    with strict.record() as made:
        training_step(model)
    floats = {(function, result.name) for function, result in made if result.kind not in "iub"}
    assert {result for _, result in floats} == {"float32", dtype}
    assert {function for function, result in floats if result == dtype} == HALF_COMES_FROM
    assert model.buffers.value.dtype == model.buffers.grad.dtype == "float32"
    assert model.buffers.operand.dtype.name == dtype
    output, _ = model.forward(**BATCH, labels=LABELS, next_sentence_label=NEXT_SENTENCE_LABEL)
    assert output.last_hidden_state.dtype.name == output.pooler_output.dtype.name == dtype
    for array in (output.loss, output.mlm_loss, output.nsp_loss, output.prediction_logits):
        assert array.dtype == "float32"
    assert output.seq_relationship_logits.dtype == "float32"


OPTIONS = pytest.mark.parametrize(
    "options", [{}, {"normalisation": "post"}, {"positions": "learned"}], ids=["both", "rotary", "pre-LN"]
)


@OPTIONS
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_pre_ln_and_rotary_positions_stay_in_their_dtype(dtype, options):
    model = ModernForPreTraining(ModernConfig(**CONFIG.to_dict(), **options), device=STRICT, dtype=dtype)
    with strict.record() as made:
        training_step(model)
    assert {result.name for _, result in made if result.kind not in "iub"} == {dtype}


@OPTIONS
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_pre_ln_and_rotary_positions_in_16_bits_add_nothing_up_in_them(dtype, options):
    model = ModernForPreTraining(ModernConfig(**CONFIG.to_dict(), **options), device=STRICT, precision=dtype)
    with strict.record() as made:
        training_step(model)
    floats = {(function, result.name) for function, result in made if result.kind not in "iub"}
    assert {result for _, result in floats} == {"float32", dtype}
    assert {function for function, result in floats if result == dtype} <= HALF_COMES_FROM
    assert model.forward(**BATCH)[0].last_hidden_state.dtype.name == dtype


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "minibert-modern", "xlnet"])
def test_gradients_of_tables_are_not_rounded_to_16_bits(family, dtype):
    members = FAMILIES[family]
    sizes = ("num_hidden_layers", "num_attention_heads", "hidden_size", "intermediate_size")
    sizes = {name: getattr(CONFIG, name) for name in sizes}
    config = members.config(vocab_size=40, max_position_embeddings=20, **sizes)
    model = members.models[BertModel](config, precision=dtype, seed=0)
    rng = np.random.default_rng(0)
    outputs, cache = model.forward(rng.integers(2, 40, (6, 12)))
    hidden = outputs.last_hidden_state
    model.backward(cache, dlast_hidden_state=rng.standard_normal(hidden.shape).astype(hidden.dtype))
    tables = {name: p.grad for name, p in model.named_parameters() if "_embeddings" in name}
    assert tables
    for name, gradient in tables.items():
        rounded = gradient.astype(hidden.dtype).astype(np.float32)
        assert (rounded != gradient).any(), name


TASKS = pytest.mark.parametrize(
    ("model_class", "settings", "labels"),
    [
        (BertForSequenceClassification, {"num_labels": 3}, {"labels": CLASSES}),
        (BertForSequenceClassification, {"num_labels": 1}, {"labels": [0.5, -1.0, 2.0]}),
        (BertForTokenClassification, {"num_labels": 3}, {"labels": TAGS}),
        (BertForTokenClassification, {"num_labels": 3, "crf": True}, {"labels": TAGS}),
        (BertForQuestionAnswering, {}, SPANS),
    ],
)


@TASKS
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_fine_tuning_stays_in_its_dtype(dtype, model_class, settings, labels):
    model = model_class(CONFIG.replace(**settings), device=STRICT, dtype=dtype)
    with strict.record() as made:
        output, cache = model.forward(**BATCH, **labels)
        model.backward(cache, np.float64(2.0))
        if model_class is BertForTokenClassification:
            model.best_tags(output.logits, BATCH["attention_mask"])
    assert {result.name for _, result in made if result.kind not in "iub"} == {dtype}


@TASKS
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_fine_tuning_in_16_bits_adds_nothing_up_in_them(dtype, model_class, settings, labels):
    model = model_class(CONFIG.replace(**settings), device=STRICT, precision=dtype)
    with strict.record() as made:
        output, cache = model.forward(**BATCH, **labels)
        model.backward(cache)
    floats = {(function, result.name) for function, result in made if result.kind not in "iub"}
    assert {result for _, result in floats} == {"float32", dtype}
    assert {function for function, result in floats if result == dtype} <= HALF_COMES_FROM
    told = {getattr(output, name).dtype.name for name in model.head_outputs}
    assert told == {"float32"}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("pooling", ["cls", "mean", "max", "lasttoken"])
def test_learning_from_pairs_stays_in_its_dtype(dtype, pooling):
    model = SentenceEncoder(CONFIG, pooling=pooling, normalise=True, device=STRICT, dtype=dtype)
    with strict.record() as made:
        pairs = SentencePairs(model)
        for labels in (None, [0.5, 1.0, 0.0]):
            pairs.backward(pairs.forward(BATCH, SECOND_TEXTS, labels)[1], np.float64(2.0))
    assert {result.name for _, result in made if result.kind not in "iub"} == {dtype}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("layers", [{}, {"hidden_weight": 2.0, "attention_weight": 3.0}], ids=["", "layers"])
@pytest.mark.parametrize("classes", [3, 1], ids=["classes", "numbers"])
def test_learning_from_a_teacher_stays_in_its_dtype(dtype, classes, layers):
    student = BertForSequenceClassification(CONFIG.replace(num_labels=classes), device=STRICT, dtype=dtype)
    labels = CLASSES if classes > 1 else [0.5, -1.0, 2.0]
    with strict.record() as made:
        trainee = Distillation(student, teacher=student, **layers)
        _, cache = trainee.forward(**BATCH, labels=labels, teacher_logits=np.ones((len(labels), classes)))
        trainee.backward(cache, np.float64(2.0))
    assert {result.name for _, result in made if result.kind not in "iub"} == {dtype}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", ["teacher", "generator"])
def test_two_models_in_one_step_stay_in_their_dtype(dtype, kind):
    sizes, options = CONFIG.to_dict(), {"device": STRICT, "dtype": dtype}
    with strict.record() as made:
        if kind == "teacher":
            student, teacher = (BertForMaskedLM(CONFIG, **options) for _ in range(2))
            trainee = MaskedWordDistillation(student, teacher)
        else:
            config = ElectraConfig.from_dict(sizes | {"embedding_size": 6})
            trainee = ElectraGeneratorAndDiscriminator(config, generator_config(config, 0.5), **options)
        _, cache = trainee.forward(**BATCH, labels=LABELS)
        trainee.backward(cache, np.float64(2.0))
    assert {result.name for _, result in made if result.kind not in "iub"} == {dtype}


def test_the_test_sees_an_array_that_widens():
    with strict.record() as made:
        STRICT.asarray([1.0, 2.0], dtype="float32") * np.float64(2.0)
    assert ("multiply", np.dtype("float64")) in made

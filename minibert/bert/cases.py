"""Gradient checks of BERT, module by module and as a whole, and the list of all checks there are."""

from collections.abc import Sequence
from typing import Any

from minibert import ops
from minibert.arrays import Array, Device
from minibert.bert import models, task_models
from minibert.bert.config import BertConfig
from minibert.bert.embeddings import BertEmbeddings
from minibert.bert.encoder import (
    BertAttention,
    BertEncoder,
    BertIntermediate,
    BertLayer,
    BertPooler,
    BertResidualOutput,
    BertSelfAttention,
)
from minibert.bert.fine_tuning import freeze
from minibert.bert.heads import (
    BertLMPredictionHead,
    BertPredictionHeadTransform,
    Classifier,
    LinearChainCRF,
    NextSentenceHead,
)
from minibert.bert.models import PretrainedModel
from minibert.bert.sentence import SentenceEncoder, SentencePairs
from minibert.gradcheck import (
    Case,
    Draws,
    forget_gradients,
    model_case,
    module_case,
    operation_cases,
    same_dropout,
)
from minibert.nn import Module
from minibert.nn.cases import layer_cases

CONFIG = BertConfig(
    vocab_size=13,
    hidden_size=8,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=10,
    hidden_dropout_prob=0.3,
    attention_probs_dropout_prob=0.3,
    max_position_embeddings=7,
)

# Three sequences of six tokens: two are padded, words occur more than once, one has no masked word.
BATCH: dict[str, Any] = {
    "input_ids": [[2, 7, 5, 7, 11, 3], [2, 4, 7, 8, 3, 0], [2, 9, 9, 3, 0, 0]],
    "token_type_ids": [[0, 0, 0, 1, 1, 1], [0, 1, 1, 1, 1, 0], [0, 0, 0, 0, 0, 0]],
    "attention_mask": [[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 0, 0]],
}
LABELS = [[-100, 7, 3, -100, 7, -100], [-100, -100, 12, -100, -100, -100], [-100] * 6]
NEXT_SENTENCE_LABEL = [0, 1, 1]
PAIR_PARTS = ("pooler.", "seq_relationship.")  # unused without a loss on sentence pairs

# For the heads of fine-tuning: K = 3 labels. The last sequence has none, and one answer is out of reach.
CLASSES = [2, 0, -100]
TAGS = [[-100, 0, -100, 2, 1, -100], [-100, 1, 1, -100, -100, -100], [-100] * 6]
# A softmax over tokens takes out what is added to all of them: the head's bias and the last layer's.
SPAN_ZEROS = ("qa_outputs.bias", "encoder.layer.1.output.LayerNorm.bias")
SPANS = {"start_positions": [2, 6, 0], "end_positions": [4, 9, 0]}
SECOND_TEXTS = {"input_ids": [[2, 6, 3], [2, 7, 3], [2, 7, 3]], "attention_mask": [[1, 1, 1]] * 3}


def all_cases(device: Device) -> list[Case]:
    """Every gradient check of the package: operations, layers, modules, models."""
    return [
        *operation_cases(device),
        *layer_cases(device),
        *module_cases(device),
        *model_cases(device),
        *task_cases(device),
    ]


def module_cases(device: Device) -> list[Case]:
    """Every module of BERT with dropout on, each used twice. B = 3, S = 6, H = 8, A = 2, F = 10, V = 13."""
    draw = Draws(device, 4)
    config = CONFIG
    ids, types, mask = (device.asarray(array) for array in BATCH.values())
    bias = ops.attention_bias(mask, "float64")
    causal_bias = ops.attention_bias(mask, "float64", causal=True)

    def case(
        what: str,
        module: Module,
        shapes: dict[str, tuple[int, ...]],
        constants: Sequence[Any] = (),
        zeros: Sequence[str] = (),
    ) -> Case:
        _prepare(module, draw)
        inputs = {name: draw.normal(*shape) for name, shape in shapes.items()}
        return module_case(what, module, inputs, constants, zeros)

    hidden = {"hidden": (3, 6, 8)}
    word_weight = BertEmbeddings(config).word_embeddings.weight
    positions = device.asarray([1, 3, 0, 3])  # of the words that are scored, one of them twice
    weighted_mask = mask.astype("float64")
    encoder_zeros = [f"layer.{i}.attention.self.key.bias" for i in range(config.num_hidden_layers)]
    return [
        case("BertEmbeddings", BertEmbeddings(config), {}, [ids, types]),
        case("BertSelfAttention", BertSelfAttention(config), hidden, [bias], ["key.bias"]),
        case("  left to right", BertSelfAttention(config), hidden, [causal_bias], ["key.bias"]),
        case("BertResidualOutput", BertResidualOutput(10, config), {"x": (3, 6, 10), "residual": (3, 6, 8)}),
        case("BertAttention", BertAttention(config), hidden, [bias], ["self.key.bias"]),
        case("BertIntermediate", BertIntermediate(config), hidden),
        case("BertLayer", BertLayer(config), hidden, [bias], ["attention.self.key.bias"]),
        case("BertEncoder", BertEncoder(config), hidden, [bias], encoder_zeros),
        case("BertPooler", BertPooler(config), hidden),
        case("BertPredictionHeadTransform", BertPredictionHeadTransform(config), {"hidden": (5, 8)}),
        case(
            "BertLMPredictionHead",
            BertLMPredictionHead(config, word_weight),
            hidden,
            [positions],
        ),
        case("NextSentenceHead", NextSentenceHead(config), {"pooled": (3, 8)}),
        case("Classifier", Classifier(config), {"x": (3, 6, 8)}),
        case("LinearChainCRF", LinearChainCRF(2), {"emissions": (3, 6, 2)}, [types, weighted_mask, 2.5]),
    ]


def model_cases(device: Device) -> list[Case]:
    """The models as they are trained: dropout on, tied weights, padding, sentence pairs."""
    draw = Draws(device, 5)
    masked, following = {"labels": LABELS}, {"next_sentence_label": NEXT_SENTENCE_LABEL}
    tanh_form = BertConfig.from_dict(CONFIG.to_dict() | {"hidden_act": "gelu_new", "is_decoder": True})
    models_and_batches = [
        ("BertForPreTraining", models.BertForPreTraining, CONFIG, masked | following),
        ("  tanh GELU, left to right", models.BertForPreTraining, tanh_form, masked | following),
        ("  no sentence pairs", models.BertForPreTraining, CONFIG, masked),
        ("BertForMaskedLM", models.BertForMaskedLM, CONFIG, masked | {"mlm_denominator": 2.5}),
        ("BertForNextSentencePrediction", models.BertForNextSentencePrediction, CONFIG, following),
    ]
    cases = [_encoder_case(device, draw, used) for used in (["hidden"], ["pooled"], ["hidden", "pooled"])]
    for what, model_class, config, targets in models_and_batches:
        model = model_class(config, device=device, dtype="float64")
        _prepare(model, draw)
        unused = () if "next_sentence_label" in targets else PAIR_PARTS
        cases.append(model_case(what, model, BATCH | targets, _zeros(model, unused)))
    return cases


def task_cases(device: Device) -> list[Case]:
    """The models as they are fine-tuned: dropout on, padding, labels that do not count, frozen layers."""
    draw = Draws(device, 8)
    classification = CONFIG.replace(num_labels=3, classifier_dropout=0.2)
    regression, crf = CONFIG.replace(num_labels=1), CONFIG.replace(num_labels=3, crf=True)
    scores = {"labels": [0.5, -1.0, 2.0], "denominator": 2.5}
    sequences = task_models.BertForSequenceClassification
    tokens = task_models.BertForTokenClassification
    spans = task_models.BertForQuestionAnswering
    cases = []
    frozen = {"  embeddings frozen": 0, "  a layer frozen": 1, "  only the head learns": None}
    for what, model_class, config, targets in [
        ("BertForSequenceClassification", sequences, classification, {"labels": CLASSES}),
        ("  only the head learns", sequences, classification, {"labels": CLASSES}),
        ("  regression", sequences, regression, scores),
        (
            "  from two layers",
            sequences,
            classification.replace(feature_layers=[-2, -1]),
            {"labels": CLASSES},
        ),
        ("BertForTokenClassification", tokens, classification, {"labels": TAGS}),
        ("  embeddings frozen", tokens, classification, {"labels": TAGS}),
        ("  a layer frozen", tokens, classification, {"labels": TAGS}),
        ("  with a CRF", tokens, crf, {"labels": TAGS}),
        ("  from two layers, with a CRF", tokens, crf.replace(feature_layers=[-1, 0]), {"labels": TAGS}),
        ("BertForQuestionAnswering", spans, CONFIG, SPANS),
        ("BertForQuestionAnswering, from two layers", spans, CONFIG.replace(feature_layers=[1, 2]), SPANS),
    ]:
        model = model_class(config, device=device, dtype="float64")
        _prepare(model, draw)
        if what in frozen:
            freeze(model, frozen[what])
        zeros = _zeros(model, SPAN_ZEROS if model_class is spans else ())
        cases.append(model_case(what, model, BATCH | targets, zeros))
    for pooling, normalise, targets in [("mean", True, {}), ("max", False, {"labels": [0.5, -1.0, 0.2]})]:
        model = SentenceEncoder(CONFIG, pooling=pooling, normalise=normalise, device=device, dtype="float64")
        what = f"SentenceEncoder, {pooling}, {'cosine' if targets else 'softmax'}"
        model.encoder.recompute = bool(targets)  # the right dropout comes back for each side
        pairs = SentencePairs(model, scale=3.0)
        _prepare(pairs, draw)
        batch = {"first": BATCH, "second": SECOND_TEXTS, **targets}
        cases.append(model_case(what, pairs, batch, _zeros(pairs)))
    return cases


def _encoder_case(device: Device, draw: Draws, used: list[str]) -> Case:
    """The encoder alone, with a loss that uses the last hidden states, the pooled vector, or both."""
    model = models.BertModel(CONFIG, device=device, dtype="float64")
    _prepare(model, draw)
    parameters = dict(model.named_parameters())

    def forward() -> list[Array]:
        same_dropout(model)
        output, _ = model.forward(**BATCH)
        outputs = {"hidden": output.last_hidden_state, "pooled": output.pooler_output}
        return [outputs[name] for name in used]

    def backward(douts: Sequence[Array]) -> dict[str, Array]:
        forget_gradients(model)
        same_dropout(model)
        _, cache = model.forward(**BATCH)
        given = dict(zip(used, douts, strict=True))
        model.backward(cache, dlast_hidden_state=given.get("hidden"), dpooler_output=given.get("pooled"))
        return {name: parameter.grad for name, parameter in parameters.items()}

    values = {name: parameter.value for name, parameter in parameters.items()}
    zeros = _zeros(model, () if "pooled" in used else PAIR_PARTS)
    return Case(f"BertModel, {' and '.join(used)}", values, forward, backward, zeros)


def _prepare(module: Module, draw: Draws) -> None:
    """Random parameters, float64, dropout on with bits of its own at every site."""
    if not isinstance(module, PretrainedModel | SentencePairs):
        module.allocate(draw.device, "float64")
    draw.randomise(module)
    module.train()


def _zeros(module: Module, also: Sequence[str] = ()) -> list[str]:
    """The parameters whose derivative is zero: each key's bias, and those with one of ``also`` in the name.

    A key's bias adds the same number to all scores of a query, which the softmax takes out again.
    """
    parts = ("self.key.bias", *also)
    learning = (name for name, parameter in module.named_parameters() if not parameter.frozen)
    return [name for name in learning if any(part in name for part in parts)]

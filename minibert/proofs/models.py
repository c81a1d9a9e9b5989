"""Gradient checks of the models, as they are pre-trained and as they are fine-tuned."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from minibert.arrays import Array, to_numpy
from minibert.bert.config import BertConfig
from minibert.bert.models import (
    BertForMaskedLM,
    BertForNextSentencePrediction,
    BertForPreTraining,
    BertModel,
    BertPretrainedModel,
)
from minibert.bert.outputs import BertOutput
from minibert.devices import Device
from minibert.dropout_bits import dropout_stream
from minibert.gradcheck import Case, Draws, bearing, forget_gradients, model_case
from minibert.heads.distillation import Distillation
from minibert.heads.freezing import freeze
from minibert.heads.sentence import SentenceEncoder, SentencePairs
from minibert.heads.task_models import (
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
)
from minibert.nn import Context, Module, Observer
from minibert.nn.places import Places
from minibert.proofs.small_bert import (
    BATCH,
    CLASSES,
    CONFIG,
    LABELS,
    NEXT_SENTENCE_LABEL,
    PAIR_PARTS,
    SECOND_TEXTS,
    SPAN_ZEROS,
    SPANS,
    TAGS,
    with_twin,
)

Make = Callable[..., BertPretrainedModel]
Trained = tuple[str, Make, BertConfig, dict[str, Any]]  # what, the class, its configuration, the targets


def model_cases(device: Device) -> list[Case]:
    """The models as they are trained: dropout on, tied weights, padding, sentence pairs."""
    draw = Draws(device, 5)
    masked, following = {"labels": LABELS}, {"next_sentence_label": NEXT_SENTENCE_LABEL}
    tanh_form = BertConfig.from_dict(CONFIG.to_dict() | {"hidden_act": "gelu_new", "is_decoder": True})
    models_and_batches: list[Trained] = [
        ("BertForPreTraining", BertForPreTraining, CONFIG, masked | following),
        ("  tanh GELU, left to right", BertForPreTraining, tanh_form, masked | following),
        ("  no sentence pairs", BertForPreTraining, CONFIG, masked),
        ("BertForMaskedLM", BertForMaskedLM, CONFIG, masked | {"mlm_denominator": 2.5}),
        ("  without logits", BertForMaskedLM, CONFIG, masked | {"return_logits": False}),
        ("BertForNextSentencePrediction", BertForNextSentencePrediction, CONFIG, following),
    ]
    cases = []
    for what, model_class, config, targets in models_and_batches:
        model, twin = with_twin(partial(model_class, config, device=device), draw)
        unused = () if "next_sentence_label" in targets else PAIR_PARTS
        cases.append(model_case(what, model, BATCH | targets, zeros(model, unused), twin))
    return cases


def task_cases(device: Device) -> list[Case]:
    """The models as they are fine-tuned: dropout on, padding, labels that do not count, frozen layers."""
    draw = Draws(device, 8)
    classification = CONFIG.replace(num_labels=3, classifier_dropout=0.2)
    regression, crf = CONFIG.replace(num_labels=1), CONFIG.replace(num_labels=3, crf=True)
    scores = {"labels": [0.5, -1.0, 2.0], "denominator": 2.5}
    sequences = BertForSequenceClassification
    tokens = BertForTokenClassification
    spans = BertForQuestionAnswering
    cases = []
    frozen = {"  embeddings frozen": 0, "  a layer frozen": 1, "  only the head learns": None}
    models_and_batches: list[Trained] = [
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
    ]
    for what, model_class, config, targets in models_and_batches:
        model, twin = with_twin(partial(model_class, config, device=device), draw)
        if what in frozen:
            freeze(model, frozen[what])
        unmoved = zeros(model, SPAN_ZEROS if model_class is spans else ())
        cases.append(model_case(what, model, BATCH | targets, unmoved, twin))
    for pooling, normalise, targets in [("mean", True, {}), ("max", False, {"labels": [0.5, -1.0, 0.2]})]:
        cases.append(_pairs_case(device, draw, pooling, normalise, targets))
    for what, config, targets, layers in (
        ("Distillation", classification, {"labels": CLASSES}, {}),
        ("Distillation of a regression", regression, scores, {}),
        (
            "  and of layers",
            classification,
            {"labels": CLASSES},
            {"hidden_weight": 2.0, "attention_weight": 50.0},
        ),
    ):
        cases.append(_distillation_case(what, config, device, draw, targets, layers))
    return cases


def _distillation_case(
    what: str,
    config: BertConfig,
    device: Device,
    draw: Draws,
    targets: dict[str, Any],
    layers: dict[str, float],
) -> Case:
    """A classifier that learns from labels and from a teacher's scores, with other weights than a half.

    With the weights of ``layers`` it also imitates a teacher of another shape.
    """
    shape = {"hidden_size": 24, "num_attention_heads": 3, "num_hidden_layers": 3}
    larger = BertConfig.from_dict(config.to_dict() | shape)

    def make(dtype: str) -> Distillation:
        student = BertForSequenceClassification(config, device=device, dtype=dtype)
        teacher = (
            BertForSequenceClassification(larger, device=device, dtype=dtype, seed=5) if layers else None
        )
        return Distillation(student, temperature=1.7, weight=0.3, teacher=teacher, **layers)

    trainee, twin = with_twin(make, draw)
    teacher_logits = to_numpy(draw.normal(len(CLASSES), config.num_labels))
    batch = BATCH | targets | {"teacher_logits": teacher_logits}
    return model_case(what, trainee, batch, zeros(trainee), twin)


def _pairs_case(device: Device, draw: Draws, pooling: str, normalise: bool, targets: dict[str, Any]) -> Case:
    """Pairs of texts and their vectors, with the cosine loss if there are targets."""

    def make(dtype: str) -> SentencePairs:
        encoder = SentenceEncoder(CONFIG, pooling=pooling, normalise=normalise, device=device, dtype=dtype)
        encoder.encoder.recompute = bool(targets)  # each side must get its own dropout back
        return SentencePairs(encoder, scale=3.0)

    pairs, twin = with_twin(make, draw)
    what = f"SentenceEncoder, {pooling}, {'cosine' if targets else 'softmax'}"
    batch = {"first": BATCH, "second": SECOND_TEXTS, **targets}
    return model_case(what, pairs, batch, zeros(pairs), twin)


def outputs_case(
    what: str,
    make: Make,
    draw: Draws,
    names: Sequence[str],
    unused: Sequence[str],
    **batch: Any,
) -> Case:
    """A model with a custom loss: a random combination of these outputs.

    If an output is a list, its name has a number, as in "hidden_states[1]". ``unused`` are parts of the
    names of parameters that these outputs do not depend on.
    """
    model, twin = with_twin(make, draw)
    parameters = dict(model.named_parameters())
    values = {name: parameter.value for name, parameter in parameters.items()}
    inside = {f"return_{name}": any(name in given for given in names) for name in LISTS}

    def forward(variables: dict[str, Array]) -> list[Array]:
        outputs, _ = bearing(variables, model, twin).forward(**BATCH, **batch, **inside)
        return [_output(outputs, name) for name in names]

    def backward(douts: Sequence[Array]) -> dict[str, Array]:
        forget_gradients(model)
        outputs, cache = bearing(values, model, twin).forward(**BATCH, **batch, **inside)
        derivatives: dict[str, Any] = {}
        for name, dout in zip(names, douts, strict=True):
            output, number = _of_a_list(name)
            if number is not None:
                several = derivatives.setdefault(f"d{output}", [None] * len(getattr(outputs, output)))
                several[number] = dout
            else:
                derivatives[f"d{output}"] = dout
        model.backward(cache, **derivatives)
        return {name: parameter.grad for name, parameter in parameters.items()}

    return Case(what, values, forward, backward, zeros(model, unused))


class WithoutPadding(BertModel):
    """A BertModel that leaves padding out, though there is no kernel for it in float64."""

    def new_context(self) -> Context:
        return super().new_context().with_padding(False)


class WhereRead(BertModel):
    """A BertModel whose last layer is computed at some places only, in any order."""

    def new_context(self) -> Context:
        rows = self.device.asarray(np.array([12, 0, 9, 2, 6]))
        return super().new_context().only_at(Places((3, 6), rows))


class WhereReadWithoutPadding(WhereRead, WithoutPadding):
    """Both."""


LISTS = ("hidden_states", "attentions")


def _of_a_list(name: str) -> tuple[str, int | None]:
    """The output that a name means, and the number if it is a list: "attentions[1]" → "attentions", 1."""
    output, _, number = name.removesuffix("]").partition("[")
    return output, int(number) if number else None


def _output(outputs: BertOutput, name: str) -> Array:
    output, number = _of_a_list(name)
    return getattr(outputs, output) if number is None else getattr(outputs, output)[number]


def output_cases(device: Device) -> list[Case]:
    """Models whose backward starts from outputs other than their loss, one by one and all at once."""
    draw = Draws(device, 11)
    inside = [f"hidden_states[{i}]" for i in range(3)] + [f"attentions[{i}]" for i in range(2)]
    inside.append("last_hidden_state")
    losses, logits = ["mlm_loss", "nsp_loss"], ["prediction_logits", "seq_relationship_logits"]
    both = {"labels": LABELS, "next_sentence_label": NEXT_SENTENCE_LABEL}
    words_only, pairs_only = PAIR_PARTS, ("cls.predictions.",)
    behind_maps = ("self.value.", "attention.output.", "intermediate.", "output.dense.", "output.LayerNorm.")
    last_maps = [f"layer.1.{part}" for part in ("attention.self.value.", *behind_maps[1:])] + ["pooler."]
    pretraining = partial(BertForPreTraining, CONFIG, device=device)
    kinds = BertModel, WithoutPadding, WhereRead, WhereReadWithoutPadding, SentenceEncoder
    plain, unpadded, few, both_few, sentences = (partial(kind, CONFIG, device=device) for kind in kinds)
    classes = partial(BertForSequenceClassification, CONFIG.replace(num_labels=3), device=device)
    tags = partial(BertForTokenClassification, CONFIG.replace(num_labels=3, crf=True), device=device)
    spans = partial(BertForQuestionAnswering, CONFIG, device=device)
    asked: list[tuple[str, Make, Sequence[str], Sequence[str], dict[str, Any]]] = [
        ("BertModel, last_hidden_state", plain, ["last_hidden_state"], PAIR_PARTS, {}),
        ("  pooler_output", plain, ["pooler_output"], (), {}),
        ("  two hidden states", plain, inside[:2], ("layer.1.", "pooler."), {}),
        ("  attentions", plain, inside[3:5], last_maps, {}),
        ("  all outputs", plain, [*inside, "pooler_output"], (), {}),
        ("BertForPreTraining, logits", pretraining, logits, (), {}),
        ("  logits beside a loss", pretraining, logits[:1], words_only, both),
        ("  logits of pairs beside a loss", pretraining, logits[1:], pairs_only, both),
        ("  one loss of two", pretraining, losses[:1], words_only, both),
        ("  the other loss", pretraining, losses[1:], pairs_only, both),
        ("  all outputs", pretraining, [*inside, "pooler_output", *losses, *logits], (), both),
        ("BertForSequenceClassification, logits", classes, ["logits"], (), {"labels": CLASSES}),
        ("  all outputs", classes, [*inside, "pooler_output", "loss", "logits"], (), {"labels": CLASSES}),
        ("BertForTokenClassification, no head", tags, inside[5:], ("classifier.", "crf."), {"labels": TAGS}),
        ("  logits", tags, ["logits"], ("crf.",), {"labels": TAGS}),
        ("  all outputs", tags, [*inside, "loss", "logits"], (), {"labels": TAGS}),
        ("BertForQuestionAnswering, starts", spans, ["start_logits"], (), SPANS),
        ("  ends", spans, ["end_logits"], (), {}),
        ("  all outputs", spans, [*inside, "loss", "start_logits", "end_logits"], (), SPANS),
        ("SentenceEncoder, all outputs", sentences, [*inside, "embeddings"], (), {}),
        ("  no embeddings", sentences, inside[5:], (), {}),
        ("BertModel without padding", unpadded, ["last_hidden_state", "pooler_output"], (), {}),
        ("  at some places", both_few, ["last_hidden_state", "pooler_output"], (), {}),
        ("  with padding", few, ["last_hidden_state", "pooler_output"], (), {}),
    ]
    cases = [embeddings_case(BertForMaskedLM, CONFIG, device, draw), _observed_case(device, draw)]
    for what, make, names, unused, batch in asked:
        cases.append(outputs_case(what, make, draw, names, unused, **batch))
    return cases


def embeddings_case(kind: type[BertForMaskedLM], config: BertConfig, device: Device, draw: Draws) -> Case:
    """Vectors in place of the words: the derivative with respect to the model's input."""
    model, twin = with_twin(partial(kind, config, device=device), draw)
    parameters = dict(model.named_parameters())
    vectors = draw.normal(3, 6, config.embedding_size)
    rest = {name: array for name, array in BATCH.items() if name != "input_ids"} | {"labels": LABELS}
    values = {"inputs_embeds": vectors} | {name: parameter.value for name, parameter in parameters.items()}

    def forward(variables: dict[str, Array]) -> list[Array]:
        weights = dict(list(variables.items())[1:])
        vectors = to_numpy(variables["inputs_embeds"])
        return [bearing(weights, model, twin).forward(inputs_embeds=vectors, **rest)[0].loss]

    def backward(douts: Sequence[Array]) -> dict[str, Array]:
        forget_gradients(model)
        _, cache = bearing(values, model, twin).forward(inputs_embeds=to_numpy(vectors), **rest)
        dvectors = model.backward(cache, douts[0])
        return {"inputs_embeds": dvectors} | {name: p.grad for name, p in parameters.items()}

    return Case(f"{kind.__name__}, inputs_embeds", values, forward, backward, zeros(model))


class Bends(Observer):
    """Bends every value a little, y = x + c x² with a c for each name, and goes back through that.

    One value is replaced by a constant.
    """

    def __init__(self, share: float, constant: str = ""):
        self.share, self.constant = share, constant
        self.seen: dict[str, Array] = {}

    def forward(self, name: str, value: Array) -> Array:
        if name == self.constant:
            return value * 0.0 + 0.5
        self.seen[name] = value
        return value + self._factor(name) * value * value

    def backward(self, name: str, dvalue: Array) -> Array | None:
        if name == self.constant:
            return None
        return dvalue * (1.0 + 2.0 * self._factor(name) * self.seen[name])

    def _factor(self, name: str) -> float:
        return self.share * (1.0 + list(self.seen).index(name))


class _Turns(Observer):
    """Reverses the features of one value, so that the order of observers matters in both passes."""

    def wants(self, name: str) -> bool:
        return name == "bert.encoder.layer.1.intermediate"

    def forward(self, name: str, value: Array) -> Array:
        return value[..., ::-1]

    def backward(self, name: str, dvalue: Array) -> Array:
        return dvalue[..., ::-1]


def _observed_case(device: Device, draw: Draws) -> Case:
    """Three observers that change what they see, and one that only looks."""
    model, twin = with_twin(partial(BertForMaskedLM, CONFIG, device=device), draw)
    parameters = dict(model.named_parameters())
    values = {name: parameter.value for name, parameter in parameters.items()}
    batch = BATCH | {"labels": LABELS}

    def forward(variables: dict[str, Array]) -> tuple[Any, Any]:
        used = bearing(variables, model, twin)
        stream = used.device.asarray(dropout_stream(seed=6, step=7))
        context = Context(training=True, stream=stream, observer=Bends(0.01))
        context = context.with_observer(Bends(-0.02, constant="bert.encoder.layer.0.intermediate"))
        context = context.with_observer(_Turns()).with_observer(Observer())
        return used.forward(**batch, context=context)

    def backward(douts: Sequence[Array]) -> dict[str, Array]:
        forget_gradients(model)
        model.backward(forward(values)[1], douts[0])
        return {name: parameter.grad for name, parameter in parameters.items()}

    # a query's scores are bent, so that the key's bias matters
    unmoved = [name for name in parameters if "layer.0.intermediate." in name]
    return Case("BertForMaskedLM, observed", values, lambda v: [forward(v)[0].loss], backward, unmoved)


def zeros(module: Module, also: Sequence[str] = ()) -> list[str]:
    """The parameters whose derivative is zero: each key's bias, and those with one of ``also`` in the name.

    A key's bias adds the same number to all scores of a query, which the softmax cancels. It does not if keys
    are turned by their positions.
    """
    turned = any(getattr(part, "rotary", False) for part in module.modules())
    parts = tuple(also) if turned else ("self.key.bias", *also)
    learning = (name for name, parameter in module.named_parameters() if not parameter.frozen)
    return [name for name in learning if any(part in name for part in parts)]

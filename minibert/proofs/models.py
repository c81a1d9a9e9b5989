"""The models, as they are pre-trained and as they are fine-tuned, to be checked."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from minibert.arrays import Array, Device
from minibert.bert.config import BertConfig
from minibert.bert.models import BertForMaskedLM, BertForNextSentencePrediction, BertForPreTraining, BertModel
from minibert.bert.outputs import BertOutput
from minibert.folders.model import PretrainedModel
from minibert.gradcheck import Case, Draws, bearing, forget_gradients, model_case
from minibert.heads.freezing import freeze
from minibert.heads.sentence import SentenceEncoder, SentencePairs
from minibert.heads.task_models import (
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
)
from minibert.nn import Module
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


def model_cases(device: Device) -> list[Case]:
    """The models as they are trained: dropout on, tied weights, padding, sentence pairs."""
    draw = Draws(device, 5)
    masked, following = {"labels": LABELS}, {"next_sentence_label": NEXT_SENTENCE_LABEL}
    tanh_form = BertConfig.from_dict(CONFIG.to_dict() | {"hidden_act": "gelu_new", "is_decoder": True})
    models_and_batches = [
        ("BertForPreTraining", BertForPreTraining, CONFIG, masked | following),
        ("  tanh GELU, left to right", BertForPreTraining, tanh_form, masked | following),
        ("  no sentence pairs", BertForPreTraining, CONFIG, masked),
        ("BertForMaskedLM", BertForMaskedLM, CONFIG, masked | {"mlm_denominator": 2.5}),
        ("BertForNextSentencePrediction", BertForNextSentencePrediction, CONFIG, following),
    ]
    cases = []
    for what, model_class, config, targets in models_and_batches:
        model, twin = with_twin(partial(model_class, config, device=device), draw)
        unused = () if "next_sentence_label" in targets else PAIR_PARTS
        cases.append(model_case(what, model, BATCH | targets, _zeros(model, unused), twin))
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
        model, twin = with_twin(partial(model_class, config, device=device), draw)
        if what in frozen:
            freeze(model, frozen[what])
        zeros = _zeros(model, SPAN_ZEROS if model_class is spans else ())
        cases.append(model_case(what, model, BATCH | targets, zeros, twin))
    for pooling, normalise, targets in [("mean", True, {}), ("max", False, {"labels": [0.5, -1.0, 0.2]})]:
        cases.append(_pairs_case(device, draw, pooling, normalise, targets))
    return cases


def _pairs_case(device: Device, draw: Draws, pooling: str, normalise: bool, targets: dict[str, Any]) -> Case:
    """Pairs of texts and their vectors, with the cosine loss if there are targets."""

    def make(dtype: str) -> SentencePairs:
        encoder = SentenceEncoder(CONFIG, pooling=pooling, normalise=normalise, device=device, dtype=dtype)
        encoder.encoder.recompute = bool(targets)  # the right dropout comes back for each side
        return SentencePairs(encoder, scale=3.0)

    pairs, twin = with_twin(make, draw)
    what = f"SentenceEncoder, {pooling}, {'cosine' if targets else 'softmax'}"
    batch = {"first": BATCH, "second": SECOND_TEXTS, **targets}
    return model_case(what, pairs, batch, _zeros(pairs), twin)


def _outputs_case(
    what: str, make: Callable[..., PretrainedModel], draw: Draws, names: Sequence[str], **batch: Any
) -> Case:
    """A model and a loss of one's own: a random combination of these outputs, all arrays of each."""
    model, twin = with_twin(make, draw)
    parameters = dict(model.named_parameters())
    values = {name: parameter.value for name, parameter in parameters.items()}
    options = {"return_hidden_states": "hidden_states" in names, "return_attentions": "attentions" in names}

    def arrays(outputs: BertOutput, name: str) -> list[Array]:
        output = getattr(outputs, name)
        return output if isinstance(output, list) else [output]

    def forward(variables: dict[str, Array]) -> list[Array]:
        outputs, _ = bearing(variables, model, twin).forward(**BATCH, **batch, **options)
        return [array for name in names for array in arrays(outputs, name)]

    def backward(douts: Sequence[Array]) -> dict[str, Array]:
        forget_gradients(model)
        outputs, cache = bearing(values, model, twin).forward(**BATCH, **batch, **options)
        left, derivatives = iter(douts), {}
        for name in names:
            several = [next(left) for _ in arrays(outputs, name)]
            derivatives[f"d{name}"] = several if isinstance(getattr(outputs, name), list) else several[0]
        model.backward(cache, **derivatives)
        return {name: parameter.grad for name, parameter in parameters.items()}

    unused = PAIR_PARTS if names == ["last_hidden_state"] else ()
    return Case(what, values, forward, backward, _zeros(model, unused))


def output_cases(device: Device) -> list[Case]:
    """Models whose backward starts from other outputs than their loss, alone and all at once."""
    draw, inside = Draws(device, 11), ["last_hidden_state", "hidden_states", "attentions"]
    classification, crf = CONFIG.replace(num_labels=3), CONFIG.replace(num_labels=3, crf=True)
    both = {"labels": LABELS, "next_sentence_label": NEXT_SENTENCE_LABEL}
    losses = ["mlm_loss", "nsp_loss"]
    logits = ["prediction_logits", "seq_relationship_logits"]
    cases = []
    for what, model_class, config, names, batch in [
        ("BertModel, last_hidden_state", BertModel, CONFIG, ["last_hidden_state"], {}),
        ("  pooler_output", BertModel, CONFIG, ["pooler_output"], {}),
        ("  all outputs", BertModel, CONFIG, [*inside, "pooler_output"], {}),
        ("BertForPreTraining, logits", BertForPreTraining, CONFIG, logits, {}),
        ("  all outputs", BertForPreTraining, CONFIG, [*inside, "pooler_output", *losses, *logits], both),
        ("BertForSequenceClassification, all outputs", BertForSequenceClassification, classification,
         [*inside, "pooler_output", "loss", "logits"], {"labels": CLASSES}),
        ("BertForTokenClassification, all outputs", BertForTokenClassification, crf,
         [*inside, "loss", "logits"], {"labels": TAGS}),
        ("BertForQuestionAnswering, all outputs", BertForQuestionAnswering, CONFIG,
         [*inside, "loss", "start_logits", "end_logits"], SPANS),
        ("  one kind of logits", BertForQuestionAnswering, CONFIG, ["start_logits"], {}),
        ("SentenceEncoder, all outputs", SentenceEncoder, CONFIG, [*inside, "embeddings"], {}),
    ]:  # fmt: skip
        cases.append(_outputs_case(what, partial(model_class, config, device=device), draw, names, **batch))
    return cases


def _zeros(module: Module, also: Sequence[str] = ()) -> list[str]:
    """The parameters whose derivative is zero: each key's bias, and those with one of ``also`` in the name.

    A key's bias adds the same number to all scores of a query, which the softmax takes out again.
    """
    parts = ("self.key.bias", *also)
    learning = (name for name, parameter in module.named_parameters() if not parameter.frozen)
    return [name for name in learning if any(part in name for part in parts)]

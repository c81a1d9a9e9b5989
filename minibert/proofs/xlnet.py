"""Gradient checks of XLNet: its modules and models, with one stream and with two.

B = 3, S = 6, P = 3, H = 8, A = 2, F = 10, V = 13. Dropout is on, texts are padded on the left, words recur.
The targets of the first text are in the order 3, 0, 2; the last text has none.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from minibert.arrays import Array, map_arrays, to_numpy
from minibert.devices import Device
from minibert.dropout_bits import dropout_stream
from minibert.gradcheck import Case, Draws, bearing, forget_gradients, model_case
from minibert.heads.freezing import freeze
from minibert.heads.layers import ClassificationHead
from minibert.nn import Context
from minibert.proofs.layers import drawn_case
from minibert.proofs.models import Bends, outputs_case
from minibert.proofs.small_bert import CLASSES, with_twin
from minibert.variants import xlnet, xlnet_layers
from minibert.variants.permutations import permuted_inputs
from minibert.variants.xlnet_layers import distance_waves, surroundings

CONFIG = xlnet.XLNetConfig(
    vocab_size=13,
    hidden_size=8,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=10,
    hidden_dropout_prob=0.3,
    pad_token_id=0,
)
BATCH: dict[str, Any] = {
    "input_ids": [[7, 5, 7, 11, 3, 2], [0, 4, 7, 8, 3, 2], [0, 0, 9, 9, 3, 2]],
    "token_type_ids": [[0, 0, 0, 1, 1, 2], [3, 0, 1, 1, 1, 2], [3, 3, 0, 0, 0, 2]],
    "attention_mask": [[1, 1, 1, 1, 1, 1], [0, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1]],
}
# Tokens 3, 0, 2 of the first text are predicted in this order, 3 and 2 of the second, none of the third.
_HIDDEN: list[list[list[int]]] = [
    [[0, 2], [0, 2, 3], [2], [0, 2, 3], [0, 2, 3], [0, 2, 3]],
    [[2, 3], [2, 3], [2], [2, 3], [2, 3], [2, 3]],
    [[]] * 6,
]
_TARGETS: list[list[int | None]] = [[0, 2, 3], [2, 3, None], [None] * 3]
ORDERS: dict[str, Any] = {
    "perm_mask": np.array([[[int(j in hidden) for j in range(6)] for hidden in text] for text in _HIDDEN]),
    "target_mapping": np.array(
        [[[int(j == target) for j in range(6)] for target in text] for text in _TARGETS]
    ),
    "labels": np.array([[7, 7, 11], [7, 8, -100], [-100] * 3]),
}
TWO_STREAMS = {name: array for name, array in ORDERS.items() if name != "labels"}
LABELS = [[-100, 7, 3, -100, 7, -100], [-100, -100, 12, -100, -100, -100], [-100] * 6]
TAGS = [[-100, 0, -100, 2, 1, -100], [-100, 1, 1, -100, -100, -100], [-100] * 6]
SPANS = {"start_positions": [2, 6, 3], "end_positions": [4, 9, 3]}
QUERY_PARTS = ("mask_emb",)  # without a query stream, nothing reads it


def xlnet_cases(device: Device) -> list[Case]:
    """Everything of XLNet that has a derivative."""
    return [*_module_cases(device), *_model_cases(device), *_output_cases(device)]


def _module_cases(device: Device) -> list[Case]:
    draw = Draws(device, 13)
    case = partial(drawn_case, draw)
    inputs = map_arrays(device.asarray, permuted_inputs(CONFIG, **BATCH, **TWO_STREAMS))
    waves = distance_waves(inputs.attention_mask, 6, CONFIG.hidden_size)
    near = surroundings(inputs, waves, "float64")
    hidden = {"hidden": (3, 9, 8)}
    head = partial(ClassificationHead, CONFIG, "tanh", 0.1, drops_input=False)
    ids, types = inputs.input_ids, inputs.token_type_ids
    return [
        case("XLNetEmbeddings", lambda: xlnet.XLNetEmbeddings(CONFIG), {}, [ids, types, None, None, 3]),
        case("HeadMap", lambda: xlnet_layers.HeadMap(CONFIG), {"x": (3, 6, 8)}),
        case("  back", lambda: xlnet_layers.HeadMap(CONFIG, back=True), {"x": (3, 6, 8)}),
        case("XLNetSelfAttention", lambda: xlnet_layers.XLNetSelfAttention(CONFIG), hidden, [near]),
        case(
            "XLNetOutput",
            lambda: xlnet_layers.XLNetOutput(10, CONFIG),
            {"x": (3, 9, 10), "residual": (3, 9, 8)},
        ),
        case("XLNetLayer", lambda: xlnet_layers.XLNetLayer(CONFIG), hidden, [near]),
        case("XLNetEncoder", lambda: xlnet_layers.XLNetEncoder(CONFIG), hidden, [near]),
        case("ClassificationHead", head, {"x": (3, 6, 8)}),
        case(
            "  padded on the right",
            head,
            {"x": (3, 6, 8)},
            [None, inputs.attention_mask[:, ::-1]],
        ),
    ]


def _model_cases(device: Device) -> list[Case]:
    """The models as they are trained."""
    draw = Draws(device, 16)
    language, classes = xlnet.XLNetLMHeadModel, CONFIG.replace(num_labels=3)
    sequences, features = xlnet.XLNetForSequenceClassification, classes.replace(feature_layers=[-2, 1])
    scores = {"labels": [0.5, -1.0, 2.0], "denominator": 2.5}
    tokens = xlnet.XLNetForTokenClassification
    relu = CONFIG.replace(hidden_act="relu")
    asked: list[tuple[str, type, xlnet.XLNetConfig, dict[str, Any]]] = [
        ("XLNetLMHeadModel", language, CONFIG, ORDERS),
        ("  ReLU, without logits", language, relu, ORDERS | {"return_logits": False}),
        ("  recomputed", language, CONFIG, ORDERS),
        ("  one stream", language, CONFIG, {"labels": LABELS, "mlm_denominator": 2.5}),
        ("  one stream, permuted", language, CONFIG, {"labels": LABELS, "perm_mask": ORDERS["perm_mask"]}),
        ("XLNetForSequenceClassification", sequences, classes, {"labels": CLASSES}),
        ("  regression", sequences, CONFIG.replace(num_labels=1), scores),
        ("  from two layers", sequences, features, {"labels": CLASSES}),
        ("XLNetForTokenClassification", tokens, classes, {"labels": TAGS}),
        ("  embeddings frozen", tokens, classes, {"labels": TAGS}),
        ("  a layer frozen", tokens, classes, {"labels": TAGS}),
        ("XLNetForQuestionAnsweringSimple", xlnet.XLNetForQuestionAnsweringSimple, CONFIG, SPANS),
    ]
    frozen = {"  embeddings frozen": 0, "  a layer frozen": 1}
    cases = []
    for what, model_class, config, targets in asked:
        model, twin = with_twin(partial(model_class, config, device=device), draw)
        if what in frozen:
            freeze(model, frozen[what])
        for each in (model, twin):
            each.bert.encoder.recompute = what == "  recomputed"
        unused: tuple[str, ...] = () if "target_mapping" in targets else QUERY_PARTS
        unused += ("qa_outputs.bias",) if "start_positions" in targets else ()
        learning = [name for name, parameter in model.named_parameters() if not parameter.frozen]
        zeros = [name for name in learning if name.endswith(unused)]
        cases.append(model_case(what, model, BATCH | targets, zeros, twin))
    return cases


def _output_cases(device: Device) -> list[Case]:
    """Models whose backward starts from other outputs than their loss; words given as vectors; observers."""
    draw = Draws(device, 15)
    make = partial(xlnet.XLNetModel, CONFIG, device=device)
    language = partial(xlnet.XLNetLMHeadModel, CONFIG, device=device)
    inside = [f"hidden_states[{i}]" for i in range(3)] + [f"attentions[{i}]" for i in range(2)]
    everything = [*inside, "last_hidden_state"]
    last = ["last_hidden_state"]
    return [
        outputs_case("XLNetModel, last_hidden_state", make, draw, last, QUERY_PARTS),
        outputs_case("  of the queries", make, draw, last, (), **TWO_STREAMS),
        outputs_case("  all outputs", make, draw, everything, (), **TWO_STREAMS),
        outputs_case(
            "XLNetLMHeadModel, all outputs",
            language,
            draw,
            [*everything, "loss", "prediction_logits"],
            (),
            **ORDERS,
        ),
        _embeddings_case(device, draw),
        _observed_case(device, draw),
    ]


def _embeddings_case(device: Device, draw: Draws) -> Case:
    """Vectors in place of the words: the derivative with respect to the model's input."""
    model, twin = with_twin(partial(xlnet.XLNetLMHeadModel, CONFIG, device=device), draw)
    vectors = draw.normal(3, 6, CONFIG.hidden_size)
    rest = {name: array for name, array in BATCH.items() if name != "input_ids"} | ORDERS
    parameters = dict(model.named_parameters())
    values = {"inputs_embeds": vectors} | {name: parameter.value for name, parameter in parameters.items()}

    def forward(variables: dict[str, Array]) -> tuple[Any, Any]:
        weights = dict(list(variables.items())[1:])
        given = to_numpy(variables["inputs_embeds"])
        return bearing(weights, model, twin).forward(inputs_embeds=given, **rest)

    def backward(douts: Sequence[Array]) -> dict[str, Array]:
        forget_gradients(model)
        dvectors = model.backward(forward(values)[1], douts[0])
        return {"inputs_embeds": dvectors} | {name: p.grad for name, p in parameters.items()}

    return Case("XLNetLMHeadModel, inputs_embeds", values, lambda v: [forward(v)[0].loss], backward)


def _observed_case(device: Device, draw: Draws) -> Case:
    """An observer that changes every value that it sees; what must not be seen (−10000), downwards."""
    model, twin = with_twin(partial(xlnet.XLNetLMHeadModel, CONFIG, device=device), draw)
    parameters = dict(model.named_parameters())
    values = {name: parameter.value for name, parameter in parameters.items()}

    def forward(variables: dict[str, Array]) -> tuple[Any, Any]:
        used = bearing(variables, model, twin)
        stream = used.device.asarray(dropout_stream(seed=6, step=7))
        context = Context(training=True, stream=stream, observer=Bends(-0.003))
        return used.forward(**BATCH, **ORDERS, context=context)

    def backward(douts: Sequence[Array]) -> dict[str, Array]:
        forget_gradients(model)
        model.backward(forward(values)[1], douts[0])
        return {name: parameter.grad for name, parameter in parameters.items()}

    return Case("XLNetLMHeadModel, observed", values, lambda v: [forward(v)[0].loss], backward)

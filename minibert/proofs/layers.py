"""Gradient checks of every layer of ``nn`` and every module of BERT, each used twice."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from minibert import ops
from minibert.arrays import Array
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
from minibert.bert.heads import BertLMPredictionHead, BertPredictionHeadTransform, NextSentenceHead
from minibert.devices import Device
from minibert.gradcheck import Case, Draws, function_case, module_case
from minibert.heads.layers import ClassificationHead, Classifier, LinearChainCRF
from minibert.nn import Module
from minibert.nn.layers import Embedding, LayerNorm, Linear, LinearActivation
from minibert.nn.parameter import Parameter, ParameterBuffers
from minibert.proofs.small_bert import BATCH, CONFIG, with_twin


def layer_cases(device: Device) -> list[Case]:
    """Every layer with a derivative. B = 3, S = 4."""
    draw = Draws(device, 3)
    case = partial(drawn_case, draw)
    return [
        case("Linear", lambda: Linear(6, 5), {"x": (3, 4, 6)}),
        case("LayerNorm", lambda: LayerNorm(6, eps=0.5), {"x": (3, 4, 6)}),
        case("Embedding", lambda: Embedding(7, 6), {}, [draw.ids(7, 3, 4)]),
        heard_case(draw),
        case("LinearActivation", lambda: LinearActivation(6, 5, "gelu"), {"x": (3, 4, 6)}),
    ]


class Total:
    """Adds up every gradient that a parameter tells its listener of."""

    def stored(self, parameter: Parameter) -> None:
        """The first."""
        self.gradient = parameter.grad.copy()

    def added(self, parameter: Parameter, gradient: Array) -> None:
        """Another one."""
        self.gradient += gradient


def heard_case(draw: Draws) -> Case:
    """y = x ⊙ w + w, where the two gradients of w reach a listener, as those of several processes do."""
    inputs = {"x": draw.normal(3, 4), "w": draw.normal(3, 4)}

    def forward(x: Array, w: Array) -> tuple[Array, tuple[Array, Array]]:
        return x * w + w, (x, w)

    def backward(dout: Array, cache: tuple[Array, Array]) -> tuple[Array, Array]:
        x, w = cache
        parameter = Parameter(w.shape)
        ParameterBuffers([parameter], draw.device, "float64")
        parameter.listener = total = Total()
        parameter.add_grad(dout * x)
        parameter.add_grad(dout)
        return dout * w, total.gradient

    return function_case("Gradients heard by a listener", forward, backward, inputs)


def module_cases(device: Device) -> list[Case]:
    """Every module of BERT with dropout on, each used twice. B = 3, S = 6, H = 8, A = 2, F = 10, V = 13."""
    draw = Draws(device, 4)
    config, features = CONFIG, CONFIG.replace(feature_layers=[0, 1])
    last = config.replace(classifier_pooling="lasttoken")
    ids, types, mask = (device.asarray(array) for array in BATCH.values())
    bias = ops.attention_bias(mask, "float64")
    causal_bias = ops.attention_bias(mask, "float64", causal=True)
    case = partial(drawn_case, draw)
    hidden = {"hidden": (3, 6, 8)}
    positions = device.asarray([1, 3, 0, 3])  # of the words that are scored, one of them twice
    weighted_mask = mask.astype("float64")
    encoder_zeros = [f"layer.{i}.attention.self.key.bias" for i in range(config.num_hidden_layers)]
    return [
        case("BertEmbeddings", lambda: BertEmbeddings(config), {}, [ids, types]),
        case("BertSelfAttention", lambda: BertSelfAttention(config), hidden, [bias], ["key.bias"]),
        case("  left to right", lambda: BertSelfAttention(config), hidden, [causal_bias], ["key.bias"]),
        case(
            "BertResidualOutput",
            lambda: BertResidualOutput(10, config),
            {"x": (3, 6, 10), "residual": (3, 6, 8)},
        ),
        case("BertAttention", lambda: BertAttention(config), hidden, [bias], ["self.key.bias"]),
        case("BertIntermediate", lambda: BertIntermediate(config), hidden),
        case("BertLayer", lambda: BertLayer(config), hidden, [bias], ["attention.self.key.bias"]),
        case("BertEncoder", lambda: BertEncoder(config), hidden, [bias], encoder_zeros),
        case("BertPooler", lambda: BertPooler(config), hidden),
        case("  of the last token", lambda: BertPooler(last), hidden, [weighted_mask]),
        case("BertPredictionHeadTransform", lambda: BertPredictionHeadTransform(config), {"hidden": (5, 8)}),
        case(
            "BertLMPredictionHead",
            lambda: BertLMPredictionHead(config, BertEmbeddings(config).word_embeddings.weight),
            hidden,
            [positions],
        ),
        case("NextSentenceHead", lambda: NextSentenceHead(config), {"pooled": (3, 8)}),
        case("Classifier", lambda: Classifier(config), {"x": (3, 6, 8)}),
        case(
            "LinearChainCRF", lambda: LinearChainCRF(2), {"emissions": (3, 6, 2)}, [types, weighted_mask, 2.5]
        ),
        case("ClassificationHead", lambda: ClassificationHead(config, "gelu", 0.2), {"x": (3, 6, 8)}),
        case("  of features", lambda: ClassificationHead(features, "gelu", 0.2), {"x": (3, 16)}),
    ]


def drawn_case(
    draw: Draws,
    what: str,
    make: Callable[[], Module],
    shapes: Mapping[str, tuple[int, ...]],
    constants: Sequence[Any] = (),
    zeros: Sequence[str] = (),
) -> Case:
    """A module with random parameters and inputs of these shapes."""

    def allocated(dtype: str) -> Module:
        module = make()
        module.allocate(draw.device, dtype)
        return module

    module, twin = with_twin(allocated, draw)
    inputs = {name: draw.normal(*shape) for name, shape in shapes.items()}
    return module_case(what, module, inputs, constants, zeros, twin)

"""A model as an ONNX graph: the forward pass once more, node by node, in the terms of ONNX's operators.

Read it beside ``bert/``: each function here lays the nodes of one module there. Shapes are B, S, … as
everywhere; B and S stay open, so that one graph reads batches of any size and length. All sizes that are
fixed, the number of heads for instance, are written into the graph. There is no dropout, as in inference.

A value of the graph is the name of a tensor. Operators: https://onnx.ai/onnx/operators, version ``OPSET``.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from minibert import ops
from minibert.arrays import to_numpy
from minibert.bert import BertForPreTraining, BertModel
from minibert.bert.embeddings import BertEmbeddings
from minibert.bert.encoder import BertAttention, BertLayer, BertPooler
from minibert.bert.heads import BertLMPredictionHead
from minibert.errors import UserError
from minibert.folders.model import PretrainedModel
from minibert.heads import (
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    SentenceEncoder,
)
from minibert.heads.layers import ClassificationHead
from minibert.nn import LayerNorm, Linear, LinearActivation, Parameter
from minibert.ops.pooling import LOWEST
from minibert.ops.similarity import EPS
from minibert.variants.distilbert import DistilBertEmbeddings
from minibert.variants.electra import DiscriminatorHead, ElectraForPreTraining
from minibert.variants.embeddings import ProjectedEmbeddings
from minibert.variants.roberta import RobertaEmbeddings

OPSET, IR_VERSION = 17, 8  # since 2022: LayerNormalization is an operator
FAMILIES = ("bert", "roberta", "distilbert", "albert", "electra")  # whose layers are BERT's
MOST_BYTES = 2**31 - 2**20  # a file in Protocol Buffers is smaller than 2 GiB

Value = str


class Graph:
    """Nodes, weights and constants, collected one by one; each method returns the name of its result."""

    def __init__(self, dtype: str):
        self.dtype = np.dtype(dtype)
        self.nodes: list[Any] = []
        self.tensors: dict[str, np.ndarray] = {}

    def add(self, operator: str, *inputs: Value, **attributes: Any) -> Value:
        """Lay a node of one output."""
        from onnx import helper

        output = f"{operator.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [output], **attributes))
        return output

    def rename(self, value: Value, name: str) -> None:
        """Give a value a name by which it is asked for."""
        from onnx import helper

        self.nodes.append(helper.make_node("Identity", [value], [name]))

    def weight(self, parameter: Parameter) -> Value:
        """The values of a parameter, stored once, however many users it has."""
        self.tensors.setdefault(parameter.name, to_numpy(parameter.value))
        return parameter.name

    def transposed(self, parameter: Parameter) -> Value:
        """The transposed values of a matrix, (in, out), as MatMul takes them."""
        name = f"{parameter.name}.T"
        self.tensors.setdefault(name, np.ascontiguousarray(to_numpy(parameter.value).T))
        return name

    def number(self, value: float) -> Value:
        """A 0-d constant in the dtype of the model."""
        return self.constant(np.array(value, self.dtype))

    def whole(self, *values: int) -> Value:
        """A 1-d constant of whole numbers: a shape, axes, or places."""
        return self.constant(np.array(values, np.int64))

    def constant(self, array: np.ndarray) -> Value:
        """Any constant; equal ones are stored once."""
        name = f"constant_{array.dtype}_{array.shape}_{array.tolist()}"
        self.tensors.setdefault(name, array)
        return name

    def cast(self, value: Value, dtype: Any = None) -> Value:
        """The same numbers in another dtype, by default the model's."""
        from onnx import helper

        return self.add("Cast", value, to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype or self.dtype)))


# -- Layers ------------------------------------------------------------------------------------------


def linear(graph: Graph, x: Value, layer: Linear) -> Value:
    """x (…, in) → x Wᵀ + b (…, out), or the activation of that, if the layer has one."""
    product = graph.add("MatMul", x, graph.transposed(layer.weight))
    y = graph.add("Add", product, graph.weight(layer.bias))
    return activation(graph, y, layer.activation) if isinstance(layer, LinearActivation) else y


def layer_norm(graph: Graph, x: Value, layer: LayerNorm) -> Value:
    """γ (x − μ)/σ + β over the last axis."""
    weight, bias = graph.weight(layer.weight), graph.weight(layer.bias)
    return graph.add("LayerNormalization", x, weight, bias, axis=-1, epsilon=layer.eps)


def activation(graph: Graph, x: Value, name: str) -> Value:
    """f(x), elementwise. Raises UserError for an activation that is not known here."""
    half = graph.number(0.5)
    if name in ("relu", "tanh"):
        return graph.add({"relu": "Relu", "tanh": "Tanh"}[name], x)
    if name == "gelu":  # x · ½ (1 + erf(x / √2))
        bent = graph.add("Erf", graph.add("Mul", x, graph.number(math.sqrt(0.5))))
    elif name in ("gelu_new", "gelu_pytorch_tanh"):  # x · ½ (1 + tanh(√(2/π) (x + 0.044715 x³)))
        cube = graph.add("Mul", graph.add("Mul", x, x), x)
        inner = graph.add("Add", x, graph.add("Mul", cube, graph.number(0.044715)))
        bent = graph.add("Tanh", graph.add("Mul", inner, graph.number(math.sqrt(2.0 / math.pi))))
    else:
        raise UserError(
            f"the activation {name!r} has no nodes in ONNX here; use gelu, gelu_new, relu or tanh"
        )
    return graph.add("Mul", x, graph.add("Mul", graph.add("Add", bent, graph.number(1.0)), half))


def embeddings(graph: Graph, layer: BertEmbeddings) -> Value:
    """input_ids, and token_type_ids where they are read → hidden (B, S, H)."""
    ids = "input_ids"
    words = graph.add("Gather", graph.weight(layer.word_embeddings.weight), ids)  # (B, S, E)
    table = graph.weight(layer.position_embeddings.weight)
    if isinstance(layer, RobertaEmbeddings):  # real tokens count from the padding id + 1
        padding = graph.constant(np.array(layer.padding, np.int64))
        real = graph.cast(graph.add("Not", graph.add("Equal", ids, padding)), np.int64)
        counted = graph.add("Mul", graph.add("CumSum", real, graph.constant(np.array(1))), real)
        positions = graph.add("Gather", table, graph.add("Add", counted, padding))  # (B, S, E)
    else:
        positions = graph.add("Slice", table, graph.whole(0), length_of(graph))  # (S, E)
    total = graph.add("Add", words, positions)
    if not isinstance(layer, DistilBertEmbeddings):
        types = graph.weight(layer.token_type_embeddings.weight)
        total = graph.add("Add", total, graph.add("Gather", types, "token_type_ids"))
    hidden = layer_norm(graph, total, layer.LayerNorm)
    if isinstance(layer, ProjectedEmbeddings) and layer.project:
        hidden = linear(graph, hidden, layer.project)  # (B, S, H)
    return hidden


def length_of(graph: Graph) -> Value:
    """S, as a 1-d tensor of one number."""
    return graph.add("Slice", graph.add("Shape", "input_ids"), graph.whole(1), graph.whole(2))


def attention_bias(graph: Graph, causal: bool) -> Value:
    """0 where a key may be seen, −10000 where not: (B, 1, 1, S), or (B, 1, S, S) if ``causal``."""
    padding = graph.add("Sub", graph.number(1.0), graph.cast("attention_mask"))  # (B, S)
    padding = graph.add("Unsqueeze", padding, graph.whole(1, 2))  # (B, 1, 1, S)
    bias = graph.add("Mul", padding, graph.number(ops.MASKED))
    if causal:
        length = graph.add("Squeeze", length_of(graph))
        zero, one = (graph.constant(np.array(number)) for number in (0, 1))
        places = graph.add("Range", zero, length, one)  # (S,)
        later = graph.add("Greater", places, graph.add("Unsqueeze", places, graph.whole(1)))  # (S, S)
        bias = graph.add("Add", bias, graph.add("Mul", graph.cast(later), graph.number(ops.MASKED)))
    return bias


def attention(graph: Graph, hidden: Value, bias: Value, layer: BertAttention) -> Value:
    """Norm(hidden + the projection of softmax(Q Kᵀ/√D + bias) V): (B, S, H) → (B, S, H)."""
    inner = layer.self
    heads, size = inner.num_heads, inner.query.weight.shape[0]
    split = graph.whole(0, 0, heads, size // heads)  # 0 keeps a size of the input

    def by_head(part: Linear, order: Sequence[int]) -> Value:
        projected = graph.add("Reshape", linear(graph, hidden, part), split)  # (B, S, A, D)
        return graph.add("Transpose", projected, perm=order)

    queries, values = by_head(inner.query, (0, 2, 1, 3)), by_head(inner.value, (0, 2, 1, 3))  # (B, A, S, D)
    keys = by_head(inner.key, (0, 2, 3, 1))  # (B, A, D, S)
    root = graph.number(1.0 / math.sqrt(size // heads))
    scores = graph.add("Mul", graph.add("MatMul", queries, keys), root)  # (B, A, S, S)
    weights = graph.add("Softmax", graph.add("Add", scores, bias), axis=-1)
    context = graph.add("Transpose", graph.add("MatMul", weights, values), perm=(0, 2, 1, 3))  # (B, S, A, D)
    context = graph.add("Reshape", context, graph.whole(0, 0, size))  # (B, S, H)
    projected = linear(graph, context, layer.output.dense)
    return layer_norm(graph, graph.add("Add", projected, hidden), layer.output.LayerNorm)


def transformer_layer(graph: Graph, hidden: Value, bias: Value, layer: BertLayer) -> Value:
    """Attention, then the feed-forward network: (B, S, H) → (B, S, H)."""
    attended = attention(graph, hidden, bias, layer.attention)
    wide = linear(graph, attended, layer.intermediate.dense)  # (B, S, F)
    narrow = linear(graph, wide, layer.output.dense)
    return layer_norm(graph, graph.add("Add", narrow, attended), layer.output.LayerNorm)


def encoder(graph: Graph, model: BertModel) -> list[Value]:
    """The L + 1 hidden states (B, S, H): the embeddings, and what each layer makes of them."""
    states = [embeddings(graph, model.embeddings)]
    bias = attention_bias(graph, model.config.is_decoder)
    for layer in model.encoder.layer:
        states.append(transformer_layer(graph, states[-1], bias, layer))
    return states


# -- Heads -------------------------------------------------------------------------------------------


def pooled(graph: Graph, hidden: Value, pooling: str) -> Value:
    """One vector for a text, as in ``ops.POOLING``: (B, S, H) → (B, H)."""
    if pooling == "cls":
        return graph.add("Gather", hidden, graph.constant(np.array(0)), axis=1)
    if pooling == "lasttoken":
        last = graph.add("ArgMax", "attention_mask", axis=1, keepdims=1, select_last_index=1)  # (B, 1)
        return graph.add("GatherND", hidden, last, batch_dims=1)
    mask = graph.add("Unsqueeze", graph.cast("attention_mask"), graph.whole(2))  # (B, S, 1)
    if pooling == "mean":
        total = graph.add("ReduceSum", graph.add("Mul", hidden, mask), graph.whole(1), keepdims=0)
        return graph.add("Div", total, graph.add("ReduceSum", mask, graph.whole(1), keepdims=0))
    is_token = graph.add("Greater", mask, graph.number(0.0))
    lowest = graph.number(LOWEST)
    return graph.add("ReduceMax", graph.add("Where", is_token, hidden, lowest), axes=[1], keepdims=0)


def unit_length(graph: Graph, x: Value) -> Value:
    """x / max(‖x‖, ε) over the last axis."""
    norm = graph.add("ReduceL2", x, axes=[-1], keepdims=1)
    return graph.add("Div", x, graph.add("Max", norm, graph.number(EPS)))


def pooler_output(graph: Graph, hidden: Value, layer: BertPooler, pooling: str) -> Value:
    """tanh(W h + b) of the token that stands for the text: (B, S, H) → (B, H)."""
    return linear(graph, pooled(graph, hidden, pooling), layer.dense)


def word_scores(graph: Graph, hidden: Value, head: BertLMPredictionHead) -> Value:
    """A score for every word at every place: (B, S, H) → (B, S, V). The matrix is the table of embeddings."""
    transform = head.transform
    active = linear(graph, hidden, transform.dense)
    table = graph.add("Transpose", graph.weight(head._decoder_weight), perm=(1, 0))  # (E, V)
    scores = graph.add("MatMul", layer_norm(graph, active, transform.LayerNorm), table)
    return graph.add("Add", scores, graph.weight(head.bias))


def class_scores(graph: Graph, read: Value, head: ClassificationHead, pooling: str) -> Value:
    """The head of models without a pooler: W₂ f(W₁ h + b₁) + b₂ → (B, K)."""
    if head.dense:
        read = linear(graph, pooled(graph, read, pooling), head.dense)
    return linear(graph, read, head.out_proj)


def replaced_scores(graph: Graph, hidden: Value, head: DiscriminatorHead) -> Value:
    """The log odds that each token was replaced: (B, S, H) → (B, S)."""
    odds = linear(graph, linear(graph, hidden, head.dense), head.dense_prediction)
    return graph.add("Squeeze", odds, graph.whole(2))


# -- Models ------------------------------------------------------------------------------------------


def outputs_of(graph: Graph, model: PretrainedModel) -> dict[str, Value]:
    """All nodes of a model; its outputs, under the names that they have in Python.

    Raises UserError for a class of models that is not known here.
    """
    config = model.config
    bert = model if isinstance(model, BertModel) else model.bert  # type: ignore[attr-defined]
    states = encoder(graph, bert)
    last = states[-1]
    pooler = pooler_output(graph, last, bert.pooler, config.classifier_pooling) if bert.pooler else ""
    if isinstance(model, SentenceEncoder):
        vector = pooled(graph, last, model.pooling)
        return {"embeddings": unit_length(graph, vector) if model.normalise else vector}
    if isinstance(model, BertModel):
        return {"last_hidden_state": last} | ({"pooler_output": pooler} if pooler else {})
    if isinstance(model, BertForPreTraining):
        words, pairs = model.cls.predictions, model.cls.seq_relationship
        found = {"prediction_logits": word_scores(graph, last, words)} if words else {}
        return found | ({"seq_relationship_logits": linear(graph, pooler, pairs)} if pairs else {})
    if isinstance(model, ElectraForPreTraining):
        return {"logits": replaced_scores(graph, last, model.discriminator_predictions)}
    read = last
    if config.feature_layers:
        read = graph.add("Concat", *(states[layer] for layer in config.feature_layers), axis=-1)
    if isinstance(model, BertForTokenClassification):
        return {"logits": linear(graph, read, model.classifier)}
    if isinstance(model, BertForQuestionAnswering):
        scores = linear(graph, read, model.qa_outputs)  # (B, S, 2)
        return {
            f"{end}_logits": graph.add("Gather", scores, graph.constant(np.array(i)), axis=2)
            for i, end in enumerate(("start", "end"))
        }
    if isinstance(model, BertForSequenceClassification):
        if config.feature_layers:
            read = pooled(graph, read, "mean")
        if isinstance(model.classifier, ClassificationHead):
            return {"logits": class_scores(graph, read, model.classifier, config.classifier_pooling)}
        return {"logits": linear(graph, read if config.feature_layers else pooler, model.classifier)}
    raise UserError(f"no ONNX graph is known for a {type(model).__name__}")


def inputs_of(model: PretrainedModel) -> list[str]:
    """What the graph reads. DistilBERT has no token types."""
    names = ["input_ids", "attention_mask", "token_type_ids"]
    return names[:2] if model.config.model_type == "distilbert" else names


def onnx_model(model: PretrainedModel) -> Any:
    """The model as an ``onnx.ModelProto``, with its weights in it.

    Inputs: input_ids, attention_mask and token_type_ids (B, S), int64; B and S are any.
    Raises UserError for a family whose layers are not BERT's, and for more weights than a file can hold.
    """
    from onnx import helper, numpy_helper

    family = model.config.model_type
    if family not in FAMILIES:
        raise UserError(
            f"models of type {family!r} cannot be exported to ONNX; those of type {', '.join(FAMILIES)} can"
        )
    graph = Graph(model.dtype)
    outputs = outputs_of(graph, model)
    for name, value in outputs.items():
        graph.rename(value, name)
    size = sum(tensor.nbytes for tensor in graph.tensors.values())
    if size > MOST_BYTES:
        raise UserError(f"the weights take {size / 2**30:.1f} GiB, but an ONNX file holds at most 2 GiB")
    kind = helper.np_dtype_to_tensor_dtype(graph.dtype)
    whole = helper.np_dtype_to_tensor_dtype(np.dtype(np.int64))
    made = helper.make_graph(
        graph.nodes,
        type(model).__name__,
        [helper.make_tensor_value_info(name, whole, ["batch", "sequence"]) for name in inputs_of(model)],
        [helper.make_tensor_value_info(name, kind, shape_of(name, model)) for name in outputs],
        [numpy_helper.from_array(tensor, name) for name, tensor in graph.tensors.items()],
    )
    opsets = [helper.make_opsetid("", OPSET)]
    return helper.make_model(made, opset_imports=opsets, ir_version=IR_VERSION, producer_name="minibert")


def shape_of(output: str, model: PretrainedModel) -> list[str | int]:
    """The shape of an output, with names for what is open."""
    config = model.config
    by_token = "last_hidden_state", "prediction_logits", "start_logits", "end_logits"
    tags = isinstance(model, BertForTokenClassification | ElectraForPreTraining) and output == "logits"
    last: dict[str, list[str | int]] = {
        "prediction_logits": [config.vocab_size],
        "seq_relationship_logits": [2],
        "logits": [] if isinstance(model, ElectraForPreTraining) else [config.num_labels],
        "start_logits": [],
        "end_logits": [],
    }
    sequence: list[str | int] = ["sequence"] if output in by_token or tags else []
    return ["batch", *sequence, *last.get(output, [config.hidden_size])]

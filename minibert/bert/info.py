"""What a BERT of a given size is made of and costs, worked out from its configuration alone.

Nothing is allocated here, so the sizes of a model that would not fit in memory can be looked at too.
"""

import itertools
import math
from dataclasses import dataclass

from minibert.bert.config import BertConfig
from minibert.errors import UserError

BYTES = {"float32": 4, "float64": 8}


@dataclass(frozen=True)
class Matrix:
    """One parameter: its name, its shape, and the part of the model it belongs to."""

    name: str
    shape: tuple[int, ...]
    part: str

    @property
    def count(self) -> int:
        """How many numbers it holds."""
        return math.prod(self.shape)


def parameter_table(config: BertConfig) -> list[Matrix]:
    """Every parameter of a pre-training model, in the order in which the input meets them.

    The parts are "embeddings", "layer 0" … "layer L−1", "pooler" and "heads". All but the heads make
    up the encoder (``BertModel``). The decoder's matrix is the word embeddings again and not listed.
    """
    hidden, feed_forward, vocabulary = config.hidden_size, config.intermediate_size, config.vocab_size
    rows: list[tuple[str, str, tuple[int, ...]]] = []

    def norm(part: str, name: str) -> None:
        rows.extend([(part, f"{name}.weight", (hidden,)), (part, f"{name}.bias", (hidden,))])

    def linear(part: str, name: str, inputs: int, outputs: int) -> None:
        rows.extend([(part, f"{name}.weight", (outputs, inputs)), (part, f"{name}.bias", (outputs,))])

    part, prefix = "embeddings", "bert.embeddings"
    rows.append((part, f"{prefix}.word_embeddings.weight", (vocabulary, hidden)))
    rows.append((part, f"{prefix}.position_embeddings.weight", (config.max_position_embeddings, hidden)))
    rows.append((part, f"{prefix}.token_type_embeddings.weight", (config.type_vocab_size, hidden)))
    norm(part, f"{prefix}.LayerNorm")

    for i in range(config.num_hidden_layers):
        part, prefix = f"layer {i}", f"bert.encoder.layer.{i}"
        for projection in ("query", "key", "value"):
            linear(part, f"{prefix}.attention.self.{projection}", hidden, hidden)
        linear(part, f"{prefix}.attention.output.dense", hidden, hidden)
        norm(part, f"{prefix}.attention.output.LayerNorm")
        linear(part, f"{prefix}.intermediate.dense", hidden, feed_forward)
        linear(part, f"{prefix}.output.dense", feed_forward, hidden)
        norm(part, f"{prefix}.output.LayerNorm")

    linear("pooler", "bert.pooler.dense", hidden, hidden)

    linear("heads", "cls.predictions.transform.dense", hidden, hidden)
    norm("heads", "cls.predictions.transform.LayerNorm")
    rows.append(("heads", "cls.predictions.bias", (vocabulary,)))
    linear("heads", "cls.seq_relationship", hidden, 2)

    return [Matrix(name, shape, part) for part, name, shape in rows]


@dataclass(frozen=True)
class StepCost:
    """What one optimiser step costs: FLOPs, and bytes by what they are for."""

    encoder_flops: int
    heads_flops: int
    parameter_bytes: int
    gradient_bytes: int
    moment_bytes: int
    activation_bytes: int

    @property
    def forward_flops(self) -> int:
        """Of the forward pass."""
        return self.encoder_flops + self.heads_flops

    @property
    def backward_flops(self) -> int:
        """Of the backward pass: every product y = x Wᵀ has two, dx = dy W and dW = dyᵀ x, of its size."""
        return 2 * self.forward_flops

    @property
    def total_bytes(self) -> int:
        """All that is held when the backward pass begins."""
        return self.parameter_bytes + self.gradient_bytes + self.moment_bytes + self.activation_bytes


def step_cost(
    config: BertConfig, batch_size: int, length: int, predictions: int, dtype: str = "float32"
) -> StepCost:
    """The cost of a pre-training step on B sequences of S tokens with P predicted positions each.

    FLOPs are those of the matrix products, 2 a multiply-add; what is elementwise is left out.

        encoder   2 · (L · (B·S·(4·H² + 2·H·F) + 2·B·S²·H) + B·H²)      attention is the term in S²
        heads     2 · (B·P·(H² + H·V) + 2·B·H)                          MLM at the P positions only

    Bytes: parameters, their gradients, Adam's two moments, and the activations that the caches of the
    reference operations hold from forward to backward; see ``_activation_count``. What an operation
    needs only while it runs comes on top. Measured (tracemalloc; tiny, V = 8192, B = 32, S = 128,
    P = 20): of 129.0 MiB in all 129.2 were held, and the peak of the step was 179 MiB with the reference
    operations, 143 MiB with the CPU kernels.

    Raises UserError if a number is below 1 or the sequences are longer than the model's positions.
    """
    if min(batch_size, length, predictions) < 1:
        raise UserError(f"expected sizes of at least 1, got {batch_size}, {length} and {predictions}")
    if length > config.max_position_embeddings:
        raise UserError(
            f"sequences of {length} tokens, but the model has only {config.max_position_embeddings} positions"
        )
    layers, hidden = config.num_hidden_layers, config.hidden_size
    tokens, predicted = batch_size * length, batch_size * predictions
    layer = tokens * (4 * hidden**2 + 2 * hidden * config.intermediate_size) + 2 * tokens * length * hidden
    pooler = batch_size * hidden**2
    heads = predicted * (hidden**2 + hidden * config.vocab_size) + batch_size * 2 * hidden
    parameter_bytes = BYTES[dtype] * sum(matrix.count for matrix in parameter_table(config))
    return StepCost(
        encoder_flops=2 * (layers * layer + pooler),
        heads_flops=2 * heads,
        parameter_bytes=parameter_bytes,
        gradient_bytes=parameter_bytes,
        moment_bytes=2 * parameter_bytes,
        activation_bytes=BYTES[dtype] * _activation_count(config, batch_size, length, predictions),
    )


# How many arrays of its input's size the backward of an activation needs.
_ACTIVATION_CACHE = {"gelu": 1, "gelu_new": 2, "gelu_pytorch_tanh": 2, "relu": 1, "tanh": 1}


def _activation_count(config: BertConfig, batch_size: int, length: int, predictions: int) -> int:
    """How many numbers the caches of one training forward hold, each array counted once.

    LayerNorm keeps its normalised input and 1/σ, a linear map its input, attention q, k, v and its
    probabilities before and after dropout, a loss its log-probabilities and the weight of each label.
    """
    tokens, predicted = batch_size * length, batch_size * predictions
    hidden, held = config.hidden_size, _ACTIVATION_CACHE[config.hidden_act]
    norm = 2 * hidden + 1  # a row of it: normalised input, output (the next operation's input), 1/σ
    wide = held + (config.hidden_act != "tanh")  # tanh remembers its output, which the next map holds anyway
    maps = 1 + (config.attention_probs_dropout_prob > 0)

    embeddings = tokens * norm
    layer = tokens * (3 * hidden + hidden + 2 * norm + wide * config.intermediate_size)  # qkv, context, …
    layer += maps * batch_size * config.num_attention_heads * length**2
    pooler = batch_size * hidden
    heads = predicted * (hidden + held * hidden + norm + config.vocab_size + 1) + 3 * batch_size
    return embeddings + config.num_hidden_layers * layer + pooler + heads


# -- As text ----------------------------------------------------------------------------------------


def describe_parameters(config: BertConfig) -> str:
    """The parameters matrix by matrix with running totals; the first layer stands for all."""
    lines = [f"{'name':<58}{'shape':>14}{'numbers':>14}{'running total':>16}"]
    total = in_layers = 0
    for part, group in itertools.groupby(parameter_table(config), key=lambda matrix: matrix.part):
        matrices = list(group)
        start, count = total, sum(matrix.count for matrix in matrices)
        total += count
        in_layers += count * part.startswith("layer ")
        if part in ("embeddings", "layer 0", "pooler", "heads"):
            for matrix in matrices:
                start += matrix.count
                lines.append(_row(matrix.name, " × ".join(map(str, matrix.shape)), matrix.count, start))
            lines.append(_row(f"= {part}", "", count, total))
        if part == f"layer {config.num_hidden_layers - 1}":
            lines.append(_row(f"= layers: {config.num_hidden_layers} like layer 0", "", in_layers, total))
        if part == "pooler":
            lines += [_row("= the encoder (BertModel)", "", total, total), ""]
    lines.append(_row("= the pre-training model (BertForPreTraining)", "", total, total))
    lines.append("The decoder of masked words is bert.embeddings.word_embeddings.weight again, counted once.")
    return "\n".join(lines)


def describe_step(config: BertConfig, batch_size: int, length: int, predictions: int) -> str:
    """The FLOPs and the memory of a training step in float32, as text."""
    cost = step_cost(config, batch_size, length, predictions)
    rows = [
        ("forward, encoder", _flops(cost.encoder_flops)),
        ("forward, heads", _flops(cost.heads_flops)),
        ("backward, twice the forward", _flops(cost.backward_flops)),
        ("= a step", _flops(cost.forward_flops + cost.backward_flops)),
        ("parameters", _bytes(cost.parameter_bytes)),
        ("gradients", _bytes(cost.gradient_bytes)),
        ("the optimiser's two moments", _bytes(cost.moment_bytes)),
        ("activations kept for the backward", _bytes(cost.activation_bytes)),
        ("= memory, float32", _bytes(cost.total_bytes)),
    ]
    title = (
        f"A training step on {batch_size} sequences of {length} tokens ({batch_size * length:,} tokens), "
        f"{predictions} of them predicted in each"
    )
    return "\n".join([title, *(f"  {what:<34}{amount:>16}" for what, amount in rows)])


def _row(name: str, shape: str, count: int, total: int) -> str:
    return f"{name:<58}{shape:>14}{count:>14,}{total:>16,}"


def _flops(count: int) -> str:
    return f"{count / 1e9:,.2f} GFLOP"


def _bytes(count: int) -> str:
    return f"{count / 2**20:,.1f} MiB"

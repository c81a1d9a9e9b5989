"""What a BERT of a given size is made of and costs.

Nothing is allocated here, so this also works for a model that would not fit in memory.
"""

import itertools
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from minibert.bert import BertConfig, BertForMaskedLM, BertForPreTraining, BertModel
from minibert.errors import UserError
from minibert.folders.names import name_in_file
from minibert.nn import Linear, Module
from minibert.ops import ACTIVATIONS
from minibert.precision import choose_precision
from minibert.tasks import xlnet_cost
from minibert.variants import FAMILIES, Kind, architectures, family
from minibert.variants.electra import ElectraForPreTraining
from minibert.variants.xlnet import XLNetConfig

FILLED_UP = 64  # to a multiple of this, as kernels.cuda.cross_entropy fills up the vocabulary in 16 bits

NO_DISCRIMINATOR = (
    "the cost of a training step is only known for models that predict masked words, as the generator does: "
    "minibert info FOLDER/generator"
)
BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}


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


def pretraining_kind(folder: str | Path) -> Kind:
    """The class of the model in a pretrained folder, if that is one with heads of pre-training.

    Otherwise it is the class with all heads of its family's pre-training.
    """
    kinds, named = _pretraining_kinds(family(folder).models), architectures(folder)[:1]
    return next((kind for kind in kinds if [kind.architecture or kind.__name__] == named), kinds[0])


def _pretraining_kinds(models: dict[Kind, Kind]) -> list[Kind]:
    """A family's classes with heads of pre-training: the one with all heads first."""
    kinds = BertForPreTraining, BertForMaskedLM, ElectraForPreTraining
    return [models[kind] for kind in kinds if kind in models]


def parameter_table(config: BertConfig, kind: Kind | None = None) -> list[Matrix]:
    """Every parameter of a pre-training model, once, under the name that it has in files.

    The model is of the class ``kind``, by default the one with all heads of its family's pre-training.

    The parts are "embeddings", "layer 0" … "layer L−1", "pooler" and "heads", as far as there are such. All
    but the heads make up the encoder. The decoder's matrix is the word embeddings again, and is not listed.
    """
    model = pretraining_model(config, kind)
    return [
        Matrix(name_in_file(name, model.tensor_names), parameter.shape, _part(name))
        for name, parameter in model.named_parameters()
    ]


def pretraining_model(config: BertConfig, kind: Kind | None = None) -> Any:
    """The model of this class, or with all heads of its family's pre-training, without memory."""
    kind = kind or _pretraining_kinds(FAMILIES[config.model_type].models)[0]
    return kind(config, device=None)


def _part(name: str) -> str:
    """The part of the model that a parameter belongs to, by its name."""
    whose, part, *rest = name.split(".")
    if whose != "bert":
        return "heads"
    return f"layer {rest[1]}" if part == "encoder" else part


@dataclass(frozen=True)
class StepCost:
    """What one optimiser step costs: FLOPs, and bytes by what they are for."""

    encoder_flops: int
    heads_flops: int
    parameter_bytes: int
    copy_bytes: int  # of the parameters in 16 bits
    gradient_bytes: int
    moment_bytes: int
    encoder_activation_bytes: int
    heads_activation_bytes: int
    encoder_working_bytes: int  # what the backward pass of a layer needs on top, while it runs
    heads_working_bytes: int

    @property
    def forward_flops(self) -> int:
        """The FLOPs of the forward pass."""
        return self.encoder_flops + self.heads_flops

    @property
    def backward_flops(self) -> int:
        """The FLOPs of the backward pass: for y = x Wᵀ it has two such products, dx = dy W and dW = dyᵀ x."""
        return 2 * self.forward_flops

    @property
    def activation_bytes(self) -> int:
        """All that is kept for the backward pass when it begins."""
        return self.encoder_activation_bytes + self.heads_activation_bytes

    @property
    def working_bytes(self) -> int:
        """What comes on top at the peak: in the backward pass of the heads or, after it, of a layer."""
        in_encoder = self.encoder_working_bytes - self.heads_activation_bytes
        return max(self.heads_working_bytes, in_encoder)

    @property
    def peak_bytes(self) -> int:
        """The most memory that is held at once."""
        states = self.parameter_bytes + self.copy_bytes + self.gradient_bytes + self.moment_bytes
        return states + self.activation_bytes + self.working_bytes


def step_cost(
    config: BertConfig,
    batch_size: int,
    length: int,
    predictions: int,
    precision: str = "float32",
    recompute: bool = False,
    kind: Kind | None = None,
) -> StepCost:
    """The cost of a pre-training step on B sequences of S tokens with P predicted positions each.

    ``kind`` is the class of the model, as for ``parameter_table``.

    FLOPs are those of the matrix products, 2 per multiply-add. Elementwise operations are left out, and so is
    what ``recompute`` computes again.

        encoder   2 · (L · (B·S·(4·H² + 2·H·F) + 2·B·S²·H) + B·H²)      attention is the term in S²
                − 2 · B·(S − P − 1)·(H² + 2·H·F)                        not read in the last layer
        heads     2 · (B·P·(H² + H·V) + 2·B·H)                          MLM at the P positions only; NSP

    The last layer is computed only where a head reads it (``nn.places``), but a model that reads from left to
    right predicts every token. For XLNet, whose layers compute and keep more, see ``xlnet_cost.py``.

    Bytes: parameters, their copy in 16 bits, their gradients, Adam's two moments, and the activations that
    the caches hold from the forward to the backward pass; see ``_activations``. On top comes what the
    backward pass needs while it runs; see ``_working_bytes``. This is the memory of the CUDA kernels, whose
    arrays a test counts (``tests/kernels/cuda/test_memory.py``: at most 3 % more than predicted). On the CPU,
    the reference operations take more while they run, and the kernels keep freed memory for reuse and one
    attention map instead of two. Measured there by tracemalloc, in float32: tiny, V = 8192, 32 × 128, 138 MiB
    where 114 are predicted (149 with the reference operations; 107 where 84 are, with ``recompute``); mini,
    16 × 128, 267 where 248 are; mini, 4 × 512, 316 where 352 are.

    Raises UserError if a number is below 1 or the sequences are longer than the model's positions.
    """
    if min(batch_size, length, predictions) < 1:
        raise UserError(
            f"expected at least 1 sequence of 1 token, and 1 to predict; got {batch_size} of {length}, and "
            f"{predictions} to predict"
        )
    if length > config.longest_sequence:
        raise UserError(
            f"sequences of {length} tokens, but the model has only {config.longest_sequence} positions"
        )
    sizes = batch_size, length, predictions
    is_xlnet = isinstance(config, XLNetConfig)
    model, kept = pretraining_model(config, kind), _arrays_kept(config.hidden_act)
    in_encoder, in_heads = xlnet_cost.products(config, *sizes) if is_xlnet else _products(model, *sizes)
    activations = (
        xlnet_cost.activations(config, *sizes, kept) if is_xlnet else _activations(model, *sizes, kept)
    )

    chosen = choose_precision(precision=precision)
    number, operand = BYTES[chosen.dtype], BYTES[chosen.operand]
    parameters = sum(parameter.size for _, parameter in model.named_parameters())
    embeddings, layer, last, heads = (numbers * operand + sums * number for numbers, sums in activations)
    rows = batch_size * (length + predictions * is_xlnet)
    read = rows if is_xlnet else _read(model, *sizes)
    maps = batch_size * config.num_attention_heads * length**2
    working_heads, *working = _working_bytes(
        config, (rows, read, batch_size * predictions), maps, number, operand
    )
    if is_xlnet:
        working = [max(working[0], number * xlnet_cost.working_numbers(config, *sizes))] * 2
    if recompute:
        working = [working[0] + layer, working[1] + last]
        layer = last = rows * config.hidden_size * operand
    working_layer = max(working[0] - last, working[1])  # when the last layer has let go, or in it
    return StepCost(
        encoder_flops=2 * in_encoder,
        heads_flops=2 * in_heads,
        parameter_bytes=number * parameters,
        copy_bytes=0 if operand == number else operand * parameters,
        gradient_bytes=number * parameters,
        moment_bytes=2 * number * parameters,
        encoder_activation_bytes=embeddings + (config.num_hidden_layers - 1) * layer + last,
        heads_activation_bytes=heads,
        encoder_working_bytes=working_layer,
        heads_working_bytes=working_heads,
    )


def _products(model: Any, batch_size: int, length: int, predictions: int) -> tuple[int, int]:
    """Multiply-adds of the forward pass: of the encoder, and of the heads."""
    tokens, predicted, config = batch_size * length, batch_size * predictions, model.config
    encoder = tokens * (_weights(model.bert.embeddings) + _weights(model.bert.encoder))
    encoder += batch_size * _weights(model.bert.pooler)
    last = model.bert.encoder.layer[-1]
    after_attention = _weights(last) - _weights(last.attention.self)
    encoder -= (tokens - _read(model, batch_size, length, predictions)) * after_attention
    encoder += config.num_hidden_layers * 2 * tokens * length * config.hidden_size  # attention: q kᵀ and p v
    words = model.bert.embeddings.word_embeddings.weight.size
    heads = predicted * (_weights(model.cls.predictions) + words)
    return encoder, heads + batch_size * _weights(model.cls.seq_relationship)


def _read(model: Any, batch_size: int, length: int, predictions: int) -> int:
    """The tokens that the last layer computes after its attention: those that a head reads."""
    return batch_size * (min(predictions + 1, length) if model.reads_few else length)


def _weights(module: Module | None) -> int:
    """The numbers of all matrices that a vector goes through; those of a layer used twice count twice."""
    modules = module.modules() if module else ()
    return sum(linear.weight.size for linear in modules if isinstance(linear, Linear))


def _arrays_kept(activation: str) -> tuple[int, int]:
    """How many arrays of its input's size an activation keeps for its backward pass; and with its output."""
    y, cache = ACTIVATIONS[activation][0](np.ones(1))
    return len(cache), len({id(array) for array in (*cache, y)})


def _activations(
    model: Any, batch_size: int, length: int, predictions: int, kept: tuple[int, int]
) -> tuple[tuple[int, int], ...]:
    """How many numbers a training forward pass keeps: for embeddings, each layer, the last layer, and heads.

    Each array is counted once, and a layer's output where it is made. The second number of each pair is that
    of sums, which are never in 16 bits. LayerNorm keeps its normalised input and 1/σ; a linear map keeps its
    input; attention keeps q, k, v and its probabilities before and after dropout; a loss keeps its
    log-probabilities and the weight of each label. ``kept`` says how many arrays the activation function
    keeps, without and with its output.

    What is not counted: B·S·(H + 1) more with pre-LN, for its last LayerNorm, and S·D per layer with rotary
    positions. These have no kernels, and work in float32: where the peak is in a layer, in 16 bits, it was up
    to 8 % higher than predicted.
    """
    tokens, predicted, config = batch_size * length, batch_size * predictions, model.config
    pairs = batch_size if model.cls.seq_relationship else 0
    hidden, words, (held, wide) = config.hidden_size, config.embedding_size, kept
    norm = 2 * hidden  # a row of it: normalised input, and the output, which is the next operation's input
    maps = 1 + (config.attention_probs_dropout_prob > 0)

    read = _read(model, batch_size, length, predictions)
    attention = tokens * 3 * hidden + maps * batch_size * config.num_attention_heads * length**2  # qkv, maps
    after = hidden + 2 * norm + wide * config.intermediate_size  # context, … of a token
    last = attention + read * after + (tokens - read) * hidden  # whose output has all places
    heads = pairs * hidden + predicted * (hidden + held * words + 2 * words + config.vocab_size)  # pooled, …
    layers = (attention + tokens * after, 2 * tokens), (last, 2 * read)
    return (tokens * 2 * words, tokens), *layers, (heads, 2 * predicted + 3 * pairs)


def _working_bytes(
    config: BertConfig, rows: tuple[int, int, int], maps: int, number: int, operand: int
) -> tuple[int, int, int]:
    """What the backward passes of the masked-word head, of a layer, and of the last layer hold, in bytes.

    That is besides the caches. ``rows`` are the tokens of a layer, those that the last one computes after its
    attention, and those predicted; ``maps`` are the attention weights of a layer.

    The head: the gradient of the word embeddings before it is added to the others, and that of its input,
    twice; in 16 bits also the word embeddings once more, where their number is filled up.
    A layer, at its peak: the derivative of the feed-forward's wide activation, three of width H, and the
    gradient of the matrix. The last layer may have its peak in attention: the derivatives of its weights, and
    six of width H.
    """
    tokens, read, predicted = rows
    hidden, wide = config.hidden_size, config.intermediate_size
    words = config.vocab_size * config.embedding_size
    head = words * number + 2 * predicted * hidden * operand
    if operand < number and config.vocab_size % FILLED_UP:
        head += words * operand
    layer, last = (count * (wide + 3 * hidden) * operand + wide * hidden * number for count in (tokens, read))
    return head, layer, max(last, (maps + 6 * tokens * hidden) * operand)


# -- As text ----------------------------------------------------------------------------------------


def describe_parameters(config: BertConfig, kind: Kind | None = None) -> str:
    """The parameters, matrix by matrix, with running totals, as text; the first layer stands for all."""
    models = FAMILIES[config.model_type].models
    encoder, whole = models[BertModel].__name__, type(pretraining_model(config, kind)).__name__
    words = name_in_file("bert.embeddings.word_embeddings.weight", models[BertModel].tensor_names)
    lines = [f"{'name':<58}{'shape':>14}{'numbers':>14}{'running total':>16}"]
    table, total, in_layers, in_first = parameter_table(config, kind), 0, 0, 0
    for part, group in itertools.groupby(table, key=lambda matrix: matrix.part):
        matrices = list(group)
        if part == "heads":
            lines += [_row(f"= the encoder ({encoder})", "", total, total), ""]
        start, count = total, sum(matrix.count for matrix in matrices)
        total += count
        in_layers += count * part.startswith("layer ")
        if part in ("embeddings", "layer 0", "pooler", "heads"):
            for matrix in matrices:
                start += matrix.count
                lines.append(_row(matrix.name, " × ".join(map(str, matrix.shape)), matrix.count, start))
            lines.append(_row(f"= {part}", "", count, total))
        if part == "layer 0":
            in_first = count
        if part == "layer 0" and config.different_layers < config.num_hidden_layers:
            lines.append(_row(f"= layers: layer 0, {config.num_hidden_layers} times", "", count, total))
        elif part == f"layer {config.num_hidden_layers - 1}":
            more = in_layers - config.num_hidden_layers * in_first  # pre-LN's last LayerNorm
            what = f"= layers: {config.num_hidden_layers} like layer 0" + (f", and {more:,}" if more else "")
            lines.append(_row(what, "", in_layers, total))
    lines.append(_row(f"= the pre-training model ({whole})", "", total, total))
    if kind is not ElectraForPreTraining:
        lines.append(f"The decoder of masked words is {words} again, counted once.")
    return "\n".join(lines)


def describe_step(
    config: BertConfig,
    batch_size: int,
    length: int,
    predictions: int,
    precision: str = "float32",
    recompute: bool = False,
    kind: Kind | None = None,
) -> str:
    """The FLOPs and the memory of a training step, as text."""
    cost = step_cost(config, batch_size, length, predictions, precision, recompute, kind)
    rows = [
        ("forward, encoder", _flops(cost.encoder_flops)),
        ("forward, heads", _flops(cost.heads_flops)),
        ("backward, twice the forward", _flops(cost.backward_flops)),
        ("= a step", _flops(cost.forward_flops + cost.backward_flops)),
        ("parameters", _bytes(cost.parameter_bytes)),
        *([("their copy in 16 bits", _bytes(cost.copy_bytes))] if cost.copy_bytes else []),
        ("gradients", _bytes(cost.gradient_bytes)),
        ("the optimiser's two moments", _bytes(cost.moment_bytes)),
        ("activations, embeddings and layers", _bytes(cost.encoder_activation_bytes)),
        ("activations, heads", _bytes(cost.heads_activation_bytes)),
        ("working memory, at the peak", _bytes(cost.working_bytes)),
        (f"= peak, {precision}", _bytes(cost.peak_bytes)),
    ]
    title = (
        f"A training step on {batch_size} sequences of {length} tokens ({batch_size * length:,} tokens), "
        f"{predictions} of them predicted in each"
    )
    return "\n".join([title, *(f"  {what:<34}{amount:>16}" for what, amount in rows)])


def info_record(
    config: BertConfig,
    batch_size: int,
    length: int,
    predictions: int,
    precision: str = "float32",
    recompute: bool = False,
    kind: Kind | None = None,
) -> dict[str, Any]:
    """The same for programs: every parameter, and the step with its totals (None where not known)."""
    table = parameter_table(config, kind)
    record: dict[str, Any] = {
        "parameters": sum(matrix.count for matrix in table),
        "matrices": [asdict(matrix) | {"count": matrix.count} for matrix in table],
        "step": None,
    }
    if kind is ElectraForPreTraining:
        return record
    cost = step_cost(config, batch_size, length, predictions, precision, recompute, kind)
    totals = ("forward_flops", "backward_flops", "activation_bytes", "working_bytes", "peak_bytes")
    sizes = {"batch_size": batch_size, "max_seq_length": length, "max_predictions": predictions}
    how = {"precision": precision, "recompute": recompute}
    record["step"] = sizes | how | asdict(cost) | {name: getattr(cost, name) for name in totals}
    return record


def _row(name: str, shape: str, count: int, total: int) -> str:
    return f"{name:<58}{shape:>14}{count:>14,}{total:>16,}"


def _flops(count: int) -> str:
    return f"{count / 1e9:,.2f} GFLOP"


def _bytes(count: int) -> str:
    return f"{count / 2**20:,.1f} MiB"

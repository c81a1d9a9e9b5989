"""20 Your BERT: the model, its backward pass and its training, put together from the pieces of the course.

The functions below are the solutions. They call the pieces through ``mine``, here the library's, and pass the
parameters in dictionaries, under the names that they have in a file of weights. A model is tiny here: B = 2,
S = 5, H = 6 in two heads, F = 8, V = 11, two layers.
"""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from minibert.arrays import Array
from minibert.bert.config import BertConfig
from minibert.bert.embeddings import BertEmbeddings
from minibert.bert.encoder import BertLayer, BertSelfAttention
from minibert.bert.models import BertForPreTraining
from minibert.course.exercise import Trial, exercise
from minibert.course.judge import both
from minibert.course.mine import Mine
from minibert.gradcheck import Case, Draws, central_differences
from minibert.nn.context import Recorder
from minibert.ops.attention import attention_bias
from minibert.train.optimiser import AdamW
from minibert.train.schedule import original

mine = Mine({})
EPS = 1e-12
IGNORED = -100
CONFIG = BertConfig(
    vocab_size=11,
    hidden_size=6,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=8,
    max_position_embeddings=7,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)
MASK = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
Parameters = dict[str, Array]
Batch = dict[str, Array]


# -- What the notebook gives -------------------------------------------------------------------------------


def inside(parameters: Parameters, prefix: str) -> Parameters:
    """The parameters whose names begin with the prefix; it is removed from their names."""
    return {name.removeprefix(prefix): value for name, value in parameters.items() if name.startswith(prefix)}


def dense(x: Array, p: Parameters, name: str) -> tuple[Array, tuple]:
    """The linear map of this name: x (…, K) → y (…, N), cache."""
    return mine.linear(x, p[f"{name}.weight"], p[f"{name}.bias"])


def dense_backward(dout: Array, cache: tuple, name: str) -> tuple[Array, Parameters]:
    """dx, and the two gradients under their names."""
    dx, dweight, dbias = mine.linear_backward(dout, cache)
    return dx, {f"{name}.weight": dweight, f"{name}.bias": dbias}


def norm(x: Array, p: Parameters, name: str) -> tuple[Array, tuple]:
    """The LayerNorm of this name: x (…, H) → y (…, H), cache."""
    return mine.layer_norm(x, p[f"{name}.weight"], p[f"{name}.bias"], EPS)


def norm_backward(dout: Array, cache: tuple, name: str) -> tuple[Array, Parameters]:
    """dx, and the two gradients under their names."""
    dx, dweight, dbias = mine.layer_norm_backward(dout, cache)
    return dx, {f"{name}.weight": dweight, f"{name}.bias": dbias}


# -- Trials --------------------------------------------------------------------------------------------------


def _pair_trial(
    draw: Draws, forward: Callable, inputs: dict[str, Array], p: Parameters, **fixed: Any
) -> Trial:
    """The call f(dout, *inputs, p, *fixed) of a forward pass and its backward pass, with random values for p.

    ``forward`` takes the same without dout. The numeric gradients are those of the inputs and of p.
    """
    p = {name: draw.normal(*value.shape) / np.sqrt(value.shape[-1]) for name, value in p.items()}

    def outputs(variables: Parameters) -> list[Array]:
        used = [variables[name] for name in inputs], {name: variables[name] for name in p}
        return [forward(*used[0], used[1], *fixed.values())[0]]

    case = Case("", inputs | p, outputs, backward=lambda douts: {})
    numeric = central_differences(case)
    independent = {
        f"d{name}" if name in inputs else name: gradient
        for name, gradient in numeric.items()
        if not name.endswith(KEY_BIAS)
    }
    return Trial({"dout": case.douts[0], **inputs, "p": p, **fixed}, independent=independent)


def _parameters_of(module: Any) -> Parameters:
    module.allocate("cpu", "float64")
    return {name: parameter.value for name, parameter in module.named_parameters()}


def _by_module(make: Callable, forward: Callable, backward: Callable) -> Callable:
    """The reference (dout, *arguments, p, *fixed) → y, gradients by a module of the library."""

    def run(dout, *arguments):
        [p] = [argument for argument in arguments if isinstance(argument, dict)]
        module = make(CONFIG)
        for name, value in _parameters_of(module).items():
            value[...] = p[name]
        module.zero_grad()
        y, cache = forward(module, *arguments)
        dx = backward(module, dout, cache)
        grads = {name: parameter.grad.copy() for name, parameter in module.named_parameters()}
        return (y, grads) if dx is None else (y, dx, grads)

    return run


EMBEDDINGS = _parameters_of(BertEmbeddings(CONFIG))
ATTENTION = _parameters_of(BertSelfAttention(CONFIG))
LAYER = _parameters_of(BertLayer(CONFIG))
MODEL = _parameters_of(BertForPreTraining(CONFIG))
WORDS = "bert.embeddings.word_embeddings.weight"
MASKED_WORDS = {name: MODEL[name] for name in MODEL if name == WORDS or name.startswith("cls.predictions.")}
NEXT_SENTENCE = {name: MODEL[name] for name in MODEL if "pooler" in name or "seq_relationship" in name}
# The bias of the keys adds the same number to all scores of a query, and the softmax does not see it. Its
# gradient is 0, apart from rounding, so there is nothing to compare.
KEY_BIAS = "key.bias"
LABELS = np.array([[IGNORED, 3, IGNORED, IGNORED, 7], [4, IGNORED, IGNORED, IGNORED, IGNORED]])


def _judged(p: Parameters) -> list[str]:
    """The names of the gradients to compare, in the order in which a backward pass comes to them."""
    return [name for name in reversed(p) if not name.endswith(KEY_BIAS)]


# -- The embeddings --------------------------------------------------------------------------------------


def embed(p: Parameters, input_ids: Array, token_type_ids: Array) -> tuple[Array, tuple]:
    """The three tables added and normalised: ids (B, S) → y (B, S, H), cache."""
    words, word_cache = mine.embedding(p["word_embeddings.weight"], input_ids)
    types, type_cache = mine.embedding(p["token_type_embeddings.weight"], token_type_ids)
    positions = p["position_embeddings.weight"]
    y, norm_cache = norm(words + types + positions[: input_ids.shape[1]], p, "LayerNorm")
    return y, (word_cache, type_cache, positions, norm_cache)


def embed_backward(dout: Array, cache: tuple) -> Parameters:
    """The gradients of the three tables and of the LayerNorm, under their names."""
    word_cache, type_cache, positions, norm_cache = cache
    dtotal, gradients = norm_backward(dout, norm_cache, "LayerNorm")
    dpositions = np.zeros_like(positions)
    dpositions[: dout.shape[1]] = dtotal.sum(axis=0)
    gradients["word_embeddings.weight"] = mine.embedding_backward(dtotal, word_cache)
    gradients["token_type_embeddings.weight"] = mine.embedding_backward(dtotal, type_cache)
    gradients["position_embeddings.weight"] = dpositions
    return gradients


def _embed_trials(draw: Draws) -> list[Trial]:
    """Two sequences of five words, shorter than the table of positions; words occur twice."""
    return [
        _pair_trial(
            draw,
            embed,
            {},
            EMBEDDINGS,
            input_ids=draw.ids(CONFIG.vocab_size, 2, 5),
            token_type_ids=np.array([[0, 0, 0, 1, 1], [0, 1, 1, 1, 1]]),
        )
    ]


@exercise(
    "20",
    outputs=" ".join(["y", *EMBEDDINGS]),
    trials=_embed_trials,
    reference=_by_module(
        BertEmbeddings,
        lambda module, p, input_ids, token_type_ids: module.forward(input_ids, token_type_ids),
        lambda module, dout, cache: module.backward(dout, cache),
    ),
    level=2,
    minutes=15,
    needs="the three tables of [06](06_embeddings.ipynb), and that a sum passes its gradient on to all terms",
    hints=(
        "Three rows are added for each token, and the sum is normalised. The gradient of the sum goes to all "
        "three tables.",
        "Words and token types are looked up, so embedding_backward scatters their gradients. Position s was "
        "used once in every sequence: its gradient is a sum over the batch.",
        "dtotal from norm_backward; dpositions = zeros like the table, with dtotal.sum(axis=0) in its first "
        "S rows. See `embed_backward` in minibert/ops/composites.py.",
    ),
    hints_for={
        "position_embeddings.weight": (
            "Only the positions are wrong. How often was row s of their table used?",
            "Row s was added to token s of every sequence: its gradient is a sum over the batch.",
            "zeros like the whole table, and dtotal.sum(axis=0) in its first S rows.",
        ),
    },
)
def embed_gradients(dout, p, input_ids, token_type_ids):
    return both(embed, embed_backward)(dout, p, input_ids, token_type_ids)


def _embed_but(**changed: Callable) -> Callable:
    """The right answer with some gradients changed: name → function of (dtotal, cache)."""

    def run(dout, p, input_ids, token_type_ids):
        y, cache = embed(p, input_ids, token_type_ids)
        gradients = embed_backward(dout, cache)
        dtotal, _ = norm_backward(dout, cache[3], "LayerNorm")
        for name, change in changed.items():
            gradients[f"{name}_embeddings.weight"] = change(dtotal, cache)
        return y, gradients

    return run


def _positions(cache: tuple, rows: Array) -> Array:
    dpositions = np.zeros_like(cache[2])
    dpositions[: len(rows)] = rows
    return dpositions


@embed_gradients.mistake(
    "The gradient of the positions is a mean over the batch; every sequence used the row once, so it is the "
    "sum."
)
def positions_averaged(dout, p, input_ids, token_type_ids):
    change = _embed_but(position=lambda dtotal, cache: _positions(cache, dtotal.mean(axis=0)))
    return change(dout, p, input_ids, token_type_ids)


@embed_gradients.mistake(
    "The positions get the gradient of the first sequence only. All sequences used their rows: sum over the "
    "batch."
)
def positions_of_the_first_sequence(dout, p, input_ids, token_type_ids):
    change = _embed_but(position=lambda dtotal, cache: _positions(cache, dtotal[0]))
    return change(dout, p, input_ids, token_type_ids)


@embed_gradients.mistake(
    "dout went to the tables as it came. The sum was normalised, so it has to go through norm_backward first."
)
def past_the_norm(dout, p, input_ids, token_type_ids):
    change = _embed_but(
        word=lambda _, cache: mine.embedding_backward(dout, cache[0]),
        token_type=lambda _, cache: mine.embedding_backward(dout, cache[1]),
        position=lambda _, cache: _positions(cache, dout.sum(axis=0)),
    )
    return change(dout, p, input_ids, token_type_ids)


# -- Attention -----------------------------------------------------------------------------------------------


def self_attention(hidden: Array, p: Parameters, bias: Array, num_heads: int) -> tuple[Array, tuple]:
    """Attention of all heads: hidden (B, S, H), bias (B, 1, S) → y (B, S, H), cache."""
    heads, caches = [], []
    for name in ("query", "key", "value"):
        projected, cache = dense(hidden, p, name)
        split = mine.split_heads(projected, num_heads)  # (B, A, S, D)
        heads.append(split.reshape(-1, *split.shape[2:]))  # (B·A, S, D): a head is one more sequence
        caches.append(cache)
    y, cache = mine.attention(*heads, bias.repeat(num_heads, axis=0))
    return mine.merge_heads(y.reshape(split.shape)), (caches, cache, split.shape)


def self_attention_backward(dout: Array, cache: tuple) -> tuple[Array, Parameters]:
    """dhidden (B, S, H), and the gradients of the three linear maps under their names."""
    caches, attention_cache, shape = cache
    dy = mine.split_heads(dout, shape[1]).reshape(-1, *shape[2:])  # (B·A, S, D)
    dhidden = np.zeros_like(dout)
    gradients: Parameters = {}
    dheads = mine.attention_backward(dy, attention_cache)
    for name, dhead, linear_cache in zip(("query", "key", "value"), dheads, caches, strict=True):
        dprojected = mine.merge_heads(dhead.reshape(shape))
        dx, more = dense_backward(dprojected, linear_cache, name)
        dhidden = dhidden + dx
        gradients |= more
    return dhidden, gradients


def _attention_trials(draw: Draws) -> list[Trial]:
    bias = attention_bias(MASK, "float64")[:, 0]  # (B, 1, S)
    inputs = {"hidden": draw.normal(2, 5, CONFIG.hidden_size)}
    return [_pair_trial(draw, self_attention, inputs, ATTENTION, bias=bias, num_heads=2)]


@exercise(
    "20",
    outputs=" ".join(["y", *_judged(ATTENTION), "dhidden"]),
    in_order=True,
    trials=_attention_trials,
    reference=_by_module(
        BertSelfAttention,
        lambda module, hidden, p, bias, num_heads: module.forward(hidden, bias[:, None]),
        lambda module, dout, cache: module.backward(dout, cache),
    ),
    level=3,
    minutes=30,
    needs=(
        "one head of [08](08_attention.ipynb), `split_heads` and `merge_heads` of [09](09_many_heads.ipynb)"
    ),
    hints=(
        "Your attention takes one head and any number of sequences. What is a head, seen from there?",
        "Split (B, S, H) into (B, A, S, D), reshape to (B·A, S, D), and every head is a sequence of its own. "
        "The bias of a sequence is the same for all of its heads: bias.repeat(num_heads, axis=0).",
        "Backwards: split dout in the same way and call attention_backward. Then merge the heads of each of "
        "dq, dk and dv and go back through its linear map. The three dx add up.",
    ),
    hints_for={
        "dhidden": (
            "The gradients of all weights are right. hidden took three paths: to q, to k and to v.",
            "Every one of the three linear maps sends a dx back.",
            "dhidden is the sum of the three dx.",
        ),
    },
)
def self_attention_gradients(dout, hidden, p, bias, num_heads):
    return both(self_attention, self_attention_backward)(dout, hidden, p, bias, num_heads)


@self_attention_gradients.mistake(
    "dhidden has only the part that came through v. hidden was used three times, for q, k and v: the three "
    "parts add up."
)
def values_only(dout, hidden, p, bias, num_heads):
    y, (caches, attention_cache, shape) = self_attention(hidden, p, bias, num_heads)
    _, gradients = self_attention_backward(dout, (caches, attention_cache, shape))
    dy = mine.split_heads(dout, shape[1]).reshape(-1, *shape[2:])
    *_, dv = mine.attention_backward(dy, attention_cache)
    return y, dense_backward(mine.merge_heads(dv.reshape(shape)), caches[2], "value")[0], gradients


@self_attention_gradients.mistake(
    "np.tile repeats the biases as a whole, 1, 2, 1, 2. The sequences stand in the order of the split, all "
    "heads of the first before those of the second: 1, 1, 2, 2, which is bias.repeat(num_heads, axis=0)."
)
def biases_in_the_order_of_tile(dout, hidden, p, bias, num_heads):
    order = np.arange(len(bias) * num_heads) % len(bias)
    return _with_biases(dout, hidden, p, bias[order], num_heads)


@self_attention_gradients.mistake("The padding is not hidden: the bias has to go into your attention.")
def without_the_bias(dout, hidden, p, bias, num_heads):
    return _with_biases(dout, hidden, p, np.zeros_like(bias).repeat(num_heads, axis=0), num_heads)


@self_attention_gradients.mistake(
    "The heads are cut by a reshape to (B·A, S, D) alone, which mixes tokens and features. First "
    "split_heads, which moves the axes, then the reshape."
)
def reshaped_without_the_split(dout, hidden, p, bias, num_heads):
    batch, length, size = hidden.shape
    shape = (batch * num_heads, length, size // num_heads)
    heads, caches = [], []
    for name in ("query", "key", "value"):
        projected, cache = dense(hidden, p, name)
        heads.append(projected.reshape(shape))
        caches.append(cache)
    y, attention_cache = mine.attention(*heads, bias.repeat(num_heads, axis=0))
    dhidden = np.zeros_like(dout)
    gradients: Parameters = {}
    dheads = mine.attention_backward(dout.reshape(shape), attention_cache)
    for name, dhead, cache in zip(("query", "key", "value"), dheads, caches, strict=True):
        dx, more = dense_backward(dhead.reshape(hidden.shape), cache, name)
        dhidden, gradients = dhidden + dx, gradients | more
    return y.reshape(hidden.shape), dhidden, gradients


def _with_biases(dout, hidden, p, biases, num_heads):
    """The right answer with these biases (B·A, 1, S) for the folded heads."""
    _, (caches, (q, k, v, _), shape) = self_attention(hidden, p, biases[: len(hidden)], num_heads)
    y, attention_cache = mine.attention(q, k, v, biases)
    merged = mine.merge_heads(y.reshape(shape))
    return merged, *self_attention_backward(dout, (caches, attention_cache, shape))


# -- A layer -------------------------------------------------------------------------------------------------


def attention_half(hidden: Array, p: Parameters, bias: Array, num_heads: int) -> tuple[Array, tuple]:
    """norm(hidden + attention's output): hidden (B, S, H) → y (B, S, H), cache."""
    attended, attention_cache = self_attention(hidden, inside(p, "attention.self."), bias, num_heads)
    projected, dense_cache = dense(attended, p, "attention.output.dense")
    y, norm_cache = norm(hidden + projected, p, "attention.output.LayerNorm")
    return y, (attention_cache, dense_cache, norm_cache)


def attention_half_backward(dout: Array, cache: tuple) -> tuple[Array, Parameters]:
    """dhidden (B, S, H), and the gradients under their names."""
    attention_cache, dense_cache, norm_cache = cache
    dsum, gradients = norm_backward(dout, norm_cache, "attention.output.LayerNorm")
    dattended, more = dense_backward(dsum, dense_cache, "attention.output.dense")
    dhidden, inner = self_attention_backward(dattended, attention_cache)
    inner = {f"attention.self.{name}": gradient for name, gradient in inner.items()}
    return dhidden + dsum, gradients | more | inner


def feed_forward_half(hidden: Array, p: Parameters) -> tuple[Array, tuple]:
    """norm(hidden + the feed-forward network's output): hidden (B, S, H) → y (B, S, H), cache."""
    wide, up_cache = dense(hidden, p, "intermediate.dense")  # (B, S, F)
    active, gelu_cache = mine.gelu(wide)
    narrow, down_cache = dense(active, p, "output.dense")
    y, norm_cache = norm(hidden + narrow, p, "output.LayerNorm")
    return y, (up_cache, gelu_cache, down_cache, norm_cache)


def feed_forward_half_backward(dout: Array, cache: tuple) -> tuple[Array, Parameters]:
    """dhidden (B, S, H), and the gradients under their names."""
    up_cache, gelu_cache, down_cache, norm_cache = cache
    dsum, gradients = norm_backward(dout, norm_cache, "output.LayerNorm")
    dactive, down = dense_backward(dsum, down_cache, "output.dense")
    dhidden, up = dense_backward(mine.gelu_backward(dactive, gelu_cache), up_cache, "intermediate.dense")
    return dhidden + dsum, gradients | down | up


def layer(hidden: Array, p: Parameters, bias: Array, num_heads: int) -> tuple[Array, tuple]:
    """One layer of the encoder, its two halves: hidden (B, S, H) → y (B, S, H), cache."""
    middle, first_cache = attention_half(hidden, p, bias, num_heads)
    y, second_cache = feed_forward_half(middle, p)
    return y, (first_cache, second_cache)


def layer_backward(dout: Array, cache: tuple) -> tuple[Array, Parameters]:
    """dhidden (B, S, H), and the gradients of the layer under their names."""
    first_cache, second_cache = cache
    dmiddle, second = feed_forward_half_backward(dout, second_cache)
    dhidden, first = attention_half_backward(dmiddle, first_cache)
    return dhidden, first | second


def _layer_trials(draw: Draws) -> list[Trial]:
    bias = attention_bias(MASK, "float64")[:, 0]
    inputs = {"hidden": draw.normal(2, 5, CONFIG.hidden_size)}
    return [_pair_trial(draw, layer, inputs, LAYER, bias=bias, num_heads=2)]


@exercise(
    "20",
    outputs=" ".join(["y", *_judged(LAYER), "dhidden"]),
    in_order=True,
    trials=_layer_trials,
    reference=_by_module(
        BertLayer,
        lambda module, hidden, p, bias, num_heads: module.forward(hidden, bias[:, None]),
        lambda module, dout, cache: module.backward(dout, cache),
    ),
    level=2,
    minutes=30,
    needs="the block of [10](10_encoder.ipynb), which is the second half of this one",
    hints=(
        "Two halves: attention and a linear map; then linear map, GELU, linear map. Each ends with "
        "norm(its input + its result).",
        "In the backward pass the halves come in the opposite order. In each, the gradient of the sum goes "
        "both into the sublayer and past it.",
        "In both halves dhidden = (what comes back through the sublayer) + dsum. See `BertLayer` and "
        "`BertAttention` in minibert/bert/encoder.py.",
    ),
    hints_for={
        "dhidden": (
            "All weights have their gradients. hidden took two paths: into the attention and past it.",
            "The sum hidden + projected passes its gradient to both of its terms.",
            "dhidden is what comes back through the attention plus the gradient of the sum.",
        ),
    },
)
def layer_gradients(dout, hidden, p, bias, num_heads):
    return both(layer, layer_backward)(dout, hidden, p, bias, num_heads)


@layer_gradients.mistake(
    "The residual connection of attention is missing on the way back: dhidden lacks the gradient of the sum "
    "hidden + projected."
)
def first_residual_forgotten(dout, hidden, p, bias, num_heads):
    y, (first_cache, second_cache) = layer(hidden, p, bias, num_heads)
    dmiddle, second = feed_forward_half_backward(dout, second_cache)
    dhidden, first = attention_half_backward(dmiddle, first_cache)
    dsum, _ = norm_backward(dmiddle, first_cache[-1], "")
    return y, dhidden - dsum, first | second


@layer_gradients.mistake(
    "The residual connection of the feed-forward half is missing on the way back: what goes on to attention "
    "lacks the gradient of the sum hidden + narrow."
)
def second_residual_forgotten(dout, hidden, p, bias, num_heads):
    y, (first_cache, second_cache) = layer(hidden, p, bias, num_heads)
    dmiddle, second = feed_forward_half_backward(dout, second_cache)
    dsum, _ = norm_backward(dout, second_cache[-1], "")
    dhidden, first = attention_half_backward(dmiddle - dsum, first_cache)
    return y, dhidden, first | second


@layer_gradients.mistake(
    "The second half reads hidden, the input of the layer. It should read the output of the first half: the "
    "halves are a chain."
)
def halves_side_by_side(dout, hidden, p, bias, num_heads):
    _, first_cache = attention_half(hidden, p, bias, num_heads)
    y, second_cache = feed_forward_half(hidden, p)
    dmiddle, second = feed_forward_half_backward(dout, second_cache)
    dhidden, first = attention_half_backward(dmiddle, first_cache)
    return y, dhidden, first | second


# -- The heads and their losses ----------------------------------------------------------------------------


def masked_words(hidden: Array, p: Parameters, labels: Array) -> tuple[float, tuple]:
    """The mean loss of the masked words, and a cache: hidden (B, S, H), labels (B, S), −100 where none."""
    chosen = labels != IGNORED
    rows = hidden[chosen]  # (P, H): only these positions are scored
    active, dense_cache = dense(rows, p, "cls.predictions.transform.dense")
    active, gelu_cache = mine.gelu(active)
    active, norm_cache = norm(active, p, "cls.predictions.transform.LayerNorm")
    logits, decoder_cache = mine.linear(active, p[WORDS], p["cls.predictions.bias"])  # (P, V): tied
    count = chosen.sum()
    weights = np.ones(count, dtype=hidden.dtype)
    loss, loss_cache = mine.cross_entropy(logits, labels[chosen], weights, count)
    caches = dense_cache, gelu_cache, norm_cache, decoder_cache, loss_cache
    return loss, (hidden.shape, chosen, caches)


def masked_words_backward(dloss: float, cache: tuple) -> tuple[Array, Parameters]:
    """dhidden (B, S, H), zero where nothing was predicted, and the gradients under their names."""
    shape, chosen, (dense_cache, gelu_cache, norm_cache, decoder_cache, loss_cache) = cache
    dlogits = mine.cross_entropy_backward(dloss, loss_cache)
    dactive, dwords, dbias = mine.linear_backward(dlogits, decoder_cache)
    gradients = {WORDS: dwords, "cls.predictions.bias": dbias}
    dactive, inner = norm_backward(dactive, norm_cache, "cls.predictions.transform.LayerNorm")
    dactive = mine.gelu_backward(dactive, gelu_cache)
    dactive, outer = dense_backward(dactive, dense_cache, "cls.predictions.transform.dense")
    dhidden = np.zeros(shape, dtype=dactive.dtype)
    dhidden[chosen] = dactive
    return dhidden, gradients | inner | outer


@exercise(
    "20",
    outputs=" ".join(["loss", *_judged(MASKED_WORDS), "dhidden"]),
    in_order=True,
    trials=lambda draw: [
        _pair_trial(draw, masked_words, {"hidden": draw.normal(2, 5, 6)}, MASKED_WORDS, labels=LABELS)
    ],
    level=2,
    minutes=25,
    needs=(
        "the tied decoder of [11](11_heads_losses.ipynb) and the ignored positions of "
        "[12](12_pretraining_data.ipynb)"
    ),
    hints=(
        "Take the chosen positions out of hidden first, (P, H). What you do to them is a chain of five "
        "pieces.",
        "dense, GELU, norm, the linear map with the table of word embeddings, cross-entropy. In the last, "
        "the weights are all 1 and the denominator is the number of chosen positions.",
        "On the way back, dhidden is zeros of hidden's shape, and dhidden[chosen] is what came back. See "
        "`BertLMPredictionHead` in minibert/bert/heads.py.",
    ),
)
def masked_words_gradients(dout, hidden, p, labels):
    return both(masked_words, masked_words_backward)(dout, hidden, p, labels)


@masked_words_gradients.mistake(
    "The loss is divided by the number of all positions, B·S. It should be a mean over those that are "
    "predicted."
)
def divided_by_all_positions(dout, hidden, p, labels):
    loss, dhidden, gradients = masked_words_gradients.solution(dout, hidden, p, labels)
    share = (labels != IGNORED).mean()
    return loss * share, dhidden * share, {name: gradient * share for name, gradient in gradients.items()}


@masked_words_gradients.mistake(
    "The loss is a sum: its denominator is 1. It should be a mean over the positions that are predicted."
)
def summed_instead_of_averaged(dout, hidden, p, labels):
    loss, dhidden, gradients = masked_words_gradients.solution(dout, hidden, p, labels)
    count = (labels != IGNORED).sum()
    return loss * count, dhidden * count, {name: gradient * count for name, gradient in gradients.items()}


@masked_words_gradients.mistake(
    "The rows of dhidden went to the first positions. They belong where the words were taken from: "
    "dhidden[chosen] = …"
)
def gradient_at_the_first_positions(dout, hidden, p, labels):
    loss, dhidden, gradients = masked_words_gradients.solution(dout, hidden, p, labels)
    moved = np.zeros_like(hidden)
    rows = dhidden[labels != IGNORED]
    moved.reshape(-1, hidden.shape[-1])[: len(rows)] = rows
    return loss, moved, gradients


def next_sentence(hidden: Array, p: Parameters, labels: Array) -> tuple[float, tuple]:
    """The mean loss of the sentence pairs, and a cache: hidden (B, S, H), labels (B,), 0 or 1."""
    projected, pooler_cache = dense(hidden[:, 0], p, "bert.pooler.dense")  # (B, H): of [CLS]
    pooled = np.tanh(projected)
    logits, head_cache = dense(pooled, p, "cls.seq_relationship")  # (B, 2)
    weights = np.ones(len(labels), dtype=hidden.dtype)
    loss, loss_cache = mine.cross_entropy(logits, labels, weights, len(labels))
    return loss, (hidden.shape, pooled, pooler_cache, head_cache, loss_cache)


def next_sentence_backward(dloss: float, cache: tuple) -> tuple[Array, Parameters]:
    """dhidden (B, S, H), zero but for the first tokens, and the gradients under their names."""
    shape, pooled, pooler_cache, head_cache, loss_cache = cache
    dlogits = mine.cross_entropy_backward(dloss, loss_cache)
    dpooled, head = dense_backward(dlogits, head_cache, "cls.seq_relationship")
    dfirst, pooler = dense_backward(dpooled * (1 - pooled**2), pooler_cache, "bert.pooler.dense")
    dhidden = np.zeros(shape, dtype=dfirst.dtype)
    dhidden[:, 0] = dfirst
    return dhidden, head | pooler


@exercise(
    "20",
    outputs=" ".join(["loss", *_judged(NEXT_SENTENCE), "dhidden"]),
    in_order=True,
    trials=lambda draw: [
        _pair_trial(
            draw, next_sentence, {"hidden": draw.normal(2, 5, 6)}, NEXT_SENTENCE, labels=np.array([1, 0])
        )
    ],
    level=2,
    minutes=15,
    needs="the pooler of [11](11_heads_losses.ipynb) and the derivative of tanh, 1 − tanh²",
    hints=(
        "The first token of each sequence goes through a linear map, a tanh, and a linear map with two "
        "outputs.",
        "Keep the output of the tanh: its derivative is 1 − tanh², with the output squared.",
        "dhidden is zeros; dhidden[:, 0] is what came back through the pooler.",
    ),
)
def next_sentence_gradients(dout, hidden, p, labels):
    return both(next_sentence, next_sentence_backward)(dout, hidden, p, labels)


@next_sentence_gradients.mistake(
    "The derivative of the tanh is missing on the way back: dpooled · (1 − pooled²) goes into the pooler's "
    "map."
)
def tanh_skipped(dout, hidden, p, labels):
    loss, (_, _, pooler_cache, head_cache, loss_cache) = next_sentence(hidden, p, labels)
    dpooled, head = dense_backward(
        mine.cross_entropy_backward(dout, loss_cache), head_cache, "cls.seq_relationship"
    )
    return _through_the_pooler(loss, dpooled, pooler_cache, hidden, head)


@next_sentence_gradients.mistake(
    "1 − tanh² was computed from the tanh's input; it is 1 − pooled², with the square of its output."
)
def square_of_the_input(dout, hidden, p, labels):
    loss, (_, pooled, pooler_cache, head_cache, loss_cache) = next_sentence(hidden, p, labels)
    dpooled, head = dense_backward(
        mine.cross_entropy_backward(dout, loss_cache), head_cache, "cls.seq_relationship"
    )
    return _through_the_pooler(loss, dpooled * (1 - np.arctanh(pooled) ** 2), pooler_cache, hidden, head)


@next_sentence_gradients.mistake(
    "The gradient of the first token is in all tokens. Only [CLS] was read: all others get 0."
)
def gradient_at_all_tokens(dout, hidden, p, labels):
    loss, dhidden, gradients = next_sentence_gradients.solution(dout, hidden, p, labels)
    return loss, np.repeat(dhidden[:, :1], hidden.shape[1], axis=1), gradients


def _through_the_pooler(loss, dprojected, pooler_cache, hidden, head):
    dfirst, pooler = dense_backward(dprojected, pooler_cache, "bert.pooler.dense")
    dhidden = np.zeros_like(hidden)
    dhidden[:, 0] = dfirst
    return loss, dhidden, head | pooler


# -- The whole model -----------------------------------------------------------------------------------------


def loss_and_gradients(parameters: Parameters, batch: Batch, num_heads: int) -> tuple[Parameters, Parameters]:
    """The values of the forward pass in order, and the gradients of the loss, both under their names."""
    embeddings = inside(parameters, "bert.embeddings.")
    hidden, embed_cache = embed(embeddings, batch["input_ids"], batch["token_type_ids"])
    values = {"embeddings": hidden}
    bias = ((1 - batch["attention_mask"]) * -10000.0)[:, None, :].astype(hidden.dtype)  # (B, 1, S)
    caches: list = []
    while p := inside(parameters, f"bert.encoder.layer.{len(caches)}."):
        hidden, cache = layer(hidden, p, bias, num_heads)
        values[f"encoder.layer.{len(caches)}"] = hidden
        caches.append(cache)
    mlm_loss, mlm_cache = masked_words(hidden, parameters, batch["labels"])
    nsp_loss, nsp_cache = next_sentence(hidden, parameters, batch["next_sentence_label"])
    values |= {"mlm_loss": mlm_loss, "nsp_loss": nsp_loss}

    dhidden, gradients = next_sentence_backward(1.0, nsp_cache)
    dmasked, more = masked_words_backward(1.0, mlm_cache)
    dhidden, gradients = dhidden + dmasked, gradients | more
    for i in reversed(range(len(caches))):
        dhidden, more = layer_backward(dhidden, caches[i])
        gradients |= {f"bert.encoder.layer.{i}.{name}": gradient for name, gradient in more.items()}
    more = embed_backward(dhidden, embed_cache)
    more["word_embeddings.weight"] = more["word_embeddings.weight"] + gradients[WORDS]  # the tied table
    return values, gradients | {f"bert.embeddings.{name}": gradient for name, gradient in more.items()}


def library_values(model: BertForPreTraining, batch: dict[str, Array]) -> tuple[Parameters, Parameters]:
    """What ``loss_and_gradients`` returns, by a model of the library: values in order, gradients."""
    recorder = Recorder(_names_of_values(model.config.num_hidden_layers))
    context = model.new_context().with_observer(recorder)
    model.zero_grad()
    outputs, cache = model.forward(**batch, context=context, return_logits=False)
    model.backward(cache)
    values = {name.removeprefix("bert."): value for name, value in recorder.values.items()}
    values |= {"mlm_loss": outputs.mlm_loss, "nsp_loss": outputs.nsp_loss}
    return values, {name: parameter.grad.copy() for name, parameter in model.named_parameters()}


def _names_of_values(layers: int) -> list[str]:
    return ["bert.embeddings", *(f"bert.encoder.layer.{i}" for i in range(layers))]


VALUES = [name.removeprefix("bert.") for name in _names_of_values(CONFIG.num_hidden_layers)]
ORDER = [*VALUES, "mlm_loss", "nsp_loss", *_judged(MODEL)]  # from the losses down to the embeddings


def _model_trial(draw: Draws) -> tuple[Parameters, dict[str, Array]]:
    p = {name: draw.normal(*value.shape) / np.sqrt(value.shape[-1]) for name, value in MODEL.items()}
    batch = {
        "input_ids": draw.ids(CONFIG.vocab_size, 2, 5),
        "token_type_ids": np.array([[0, 0, 0, 1, 1], [0, 1, 1, 0, 0]]),
        "attention_mask": MASK,
        "labels": LABELS,
        "next_sentence_label": np.array([1, 0]),
    }
    return p, batch


def _library_model(p: Parameters) -> BertForPreTraining:
    model = BertForPreTraining(CONFIG, dtype="float64")
    for name, parameter in model.named_parameters():
        parameter.value[...] = p[name]
    return model


@exercise(
    "20",
    outputs=" ".join(ORDER),
    trials=lambda draw: [
        Trial(dict(zip(("parameters", "batch", "num_heads"), (*_model_trial(draw), 2), strict=True)))
    ],
    reference=lambda parameters, batch, num_heads: library_values(_library_model(parameters), batch),
    level=3,
    minutes=40,
    needs="all that you have written above",
    in_order=True,
    hints=(
        "Forward pass: embed, all layers, both heads. Backward pass: both heads, all layers from the last to "
        "the first, embed. Where was something used twice?",
        "The last hidden states go to both heads, so their two dhidden add up. The table of words is used by "
        "the embeddings and by the decoder, so its two gradients add up.",
        "The gradients of layer i are those of layer_backward with bert.encoder.layer.i. in front of their "
        "names; bias = (1 − attention_mask) · −10000, (B, 1, S).",
    ),
)
def bert_gradients(parameters, batch, num_heads):
    return loss_and_gradients(parameters, batch, num_heads)


@bert_gradients.mistake(
    "The table of word embeddings has only the gradient of the look-up: the decoder uses it, too, and the "
    "two gradients add up."
)
def decoder_lost(parameters, batch, num_heads):
    values, gradients = loss_and_gradients(parameters, batch, num_heads)
    return values, gradients | {WORDS: gradients[WORDS] - _decoder_share(parameters, batch, num_heads)}


@bert_gradients.mistake(
    "The table of word embeddings has only the decoder's gradient: the embeddings look up its rows, too, and "
    "the two gradients add up."
)
def table_lost(parameters, batch, num_heads):
    values, gradients = loss_and_gradients(parameters, batch, num_heads)
    return values, gradients | {WORDS: _decoder_share(parameters, batch, num_heads)}


def _decoder_share(parameters, batch, num_heads):
    values, _ = loss_and_gradients(parameters, batch, num_heads)
    last = values[f"encoder.layer.{CONFIG.num_hidden_layers - 1}"]
    _, cache = masked_words(last, parameters, batch["labels"])
    return masked_words_backward(1.0, cache)[1][WORDS]


@bert_gradients.mistake("The padding is not hidden: attention_mask has to become the bias of the layers.")
def mask_forgotten(parameters, batch, num_heads):
    everything = {"attention_mask": np.ones_like(batch["attention_mask"])}
    return loss_and_gradients(parameters, batch | everything, num_heads)


# -- Training ------------------------------------------------------------------------------------------------


def train(
    parameters: Parameters, batches: Iterable[Batch], num_heads: int, steps: int, peak: float, warmup: int
) -> tuple[Array, Parameters]:
    """Train for this many steps, with a batch for each → the losses (steps,), the new parameters by name."""
    means = {name: np.zeros_like(value) for name, value in parameters.items()}
    variances = {name: np.zeros_like(value) for name, value in parameters.items()}
    parameters, losses = dict(parameters), []
    for step, batch in zip(range(steps), batches, strict=False):
        values, gradients = loss_and_gradients(parameters, batch, num_heads)
        losses.append(values["mlm_loss"] + values["nsp_loss"])
        clip = 1.0 / max(np.sqrt(sum((gradient**2).sum() for gradient in gradients.values())), 1.0)
        rate = mine.learning_rate(step, steps, warmup, peak)
        for name, value in parameters.items():
            decay = 0.01 if value.ndim > 1 else 0.0  # biases and LayerNorm's parameters do not decay
            old = value, clip * gradients[name], means[name], variances[name]
            new = mine.adamw_step(*old, step, rate, 0.9, 0.999, 1e-6, decay)
            parameters[name], means[name], variances[name] = new
    return np.array(losses), parameters


def _train_trials(draw: Draws) -> list[Trial]:
    """Four steps on two batches, of which the second is the first with its two texts exchanged.

    There are more batches than steps. The matrices are large, so that some gradients have a norm above 1 even
    by themselves.
    """
    parameters, batch = _model_trial(draw)
    parameters = {name: 3.0 * p if p.ndim > 1 else p for name, p in parameters.items()}
    turned = {name: array[::-1].copy() for name, array in batch.items()}
    settings = {"num_heads": 2, "steps": 4, "peak": 0.05, "warmup": 2}
    return [Trial({"parameters": parameters, "batches": [batch, turned] * 3, **settings})]


def _library_train(
    parameters: Parameters, batches: Iterable[dict], num_heads: int, steps: int, peak: float, warmup: int
) -> tuple[Array, Parameters]:
    model = _library_model(parameters)
    optimiser, losses = AdamW(model), []
    for step, batch in zip(range(steps), batches, strict=False):
        model.zero_grad()
        outputs, cache = model.forward(**batch)
        model.backward(cache)
        losses.append(outputs.loss)
        optimiser.step(original(step, steps, warmup, peak), step)
    return np.array(losses), {name: parameter.value.copy() for name, parameter in model.named_parameters()}


@exercise(
    "20",
    outputs=" ".join(["losses", *_judged(MODEL)]),
    in_order=True,
    trials=_train_trials,
    reference=_library_train,
    bound=1e-9,
    level=3,
    minutes=30,
    needs="all of [13](13_optimiser.ipynb): the schedule, clipping, AdamW, and what does not decay",
    hints=(
        "A step is: loss and gradients, the norm of all gradients together, the rate of this step, and Adam "
        "for every parameter. What has to be remembered from one step to the next?",
        "A mean and a variance for each parameter, zeros at first. If the norm of all gradients is above 1, "
        "every gradient is divided by it.",
        "parameters[name], means[name], variances[name] = mine.adamw_step(value, clip · gradient, mean, "
        "variance, step, rate, 0.9, 0.999, 1e-6, decay); decay is 0.01 for matrices and 0 for vectors.",
    ),
    hints_for={
        " ".join(_judged(MODEL)): (
            "The losses are right, so the model is. What is left is the update of the parameters.",
            "Look at the clipping, at the decay and at the rate of each step, in this order.",
            "clip = 1 / max(norm of all gradients together, 1); decay only where value.ndim > 1.",
        ),
    },
)
def train_bert(parameters, batches, num_heads, steps, peak, warmup):
    return train(parameters, batches, num_heads, steps, peak, warmup)


def _trained(parameters, batches, num_heads, steps, peak, warmup, decays=None, clipped="all", forget=False):
    """The solution with one thing changed: what decays, whose norm is clipped, or Adam that forgets."""
    zeros = {name: np.zeros_like(value) for name, value in parameters.items()}
    means, variances, parameters, losses = dict(zeros), dict(zeros), dict(parameters), []
    for step, batch in zip(range(steps), batches, strict=False):
        values, gradients = loss_and_gradients(parameters, batch, num_heads)
        losses.append(values["mlm_loss"] + values["nsp_loss"])
        squares = {name: (gradient**2).sum() for name, gradient in gradients.items()}
        total = sum(squares.values())
        for name, value in parameters.items():
            square = {"all": total, "each": squares[name], "none": 0.0}[clipped]
            decay = 0.01 if (value.ndim > 1 if decays is None else decays) else 0.0
            state = (zeros[name], zeros[name]) if forget else (means[name], variances[name])
            old = value, gradients[name] / max(np.sqrt(square), 1.0), *state
            rate = mine.learning_rate(step, steps, warmup, peak)
            new = mine.adamw_step(*old, step, rate, 0.9, 0.999, 1e-6, decay)
            parameters[name], means[name], variances[name] = new
    return np.array(losses), parameters


@train_bert.mistake(
    "Every gradient is clipped by a norm of its own. There is only one norm, that of all gradients together, "
    "and one factor."
)
def each_gradient_clipped(parameters, batches, num_heads, steps, peak, warmup):
    return _trained(parameters, batches, num_heads, steps, peak, warmup, clipped="each")


@train_bert.mistake("Nothing is clipped: gradients whose common norm is above 1 are divided by it.")
def not_clipped(parameters, batches, num_heads, steps, peak, warmup):
    return _trained(parameters, batches, num_heads, steps, peak, warmup, clipped="none")


@train_bert.mistake(
    "Everything decays. Biases and the parameters of LayerNorm, which are vectors, should not: their "
    "decay is 0."
)
def everything_decays(parameters, batches, num_heads, steps, peak, warmup):
    return _trained(parameters, batches, num_heads, steps, peak, warmup, decays=True)


@train_bert.mistake(
    "The means and variances begin at 0 in every step. Keep them from one step to the next: that makes them "
    "running means."
)
def state_forgotten(parameters, batches, num_heads, steps, peak, warmup):
    return _trained(parameters, batches, num_heads, steps, peak, warmup, forget=True)

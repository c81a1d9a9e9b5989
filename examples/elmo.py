"""A language model in ELMo's manner in one file: bidirectional LSTMs, by hand.

    python examples/elmo.py            # reads the docstrings of Python and its packages, for some minutes
    python examples/elmo.py novels/ --steps 3000

Before BERT, ELMo gave a word another vector in each sentence. One stack of LSTMs reads from left to right and
predicts each next token; another one reads from right to left and predicts each token before. Both use the
same table of words, to read and to predict. Neither sees both sides of a token at once: a vector of ELMo is
the states of both, one beside the other. Here tokens are WordPieces, and not words made from characters.

An LSTM reads token by token. It keeps a cell c, which it can forget, add to and show:

    i, f, o = σ(Wᵢ x + Uᵢ h + bᵢ), …     g = tanh(W x + U h + b)        h, the state after the token before
    c ← f · c + i · g                     h = o · tanh(c)

Shapes: S tokens, B sequences, H numbers in a state, V vocabulary, L layers. Time is the first axis, so that
each step of the loop reads one piece of memory.

Sources: Hochreiter and Schmidhuber 1997, "Long Short-Term Memory", with the forget gate of Gers et al. 2000;
Peters et al. 2018, "Deep Contextualized Word Representations".
"""

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from minibert import ops
from minibert.arrays import Array
from minibert.assets import model_folder
from minibert.cli.parser import Parser
from minibert.cli.setting_flags import add_setting_flags, given_settings
from minibert.data import open_corpus
from minibert.data.randomness import generator
from minibert.errors import UserError
from minibert.nn import Embedding, Module, Parameter
from minibert.ops import Cache
from minibert.settings import Settings, setting
from minibert.text import PretrainedTokenizer, open_tokenizer
from minibert.train.optimiser import AdamW
from minibert.train.schedule import trapezoid

REPORTS = 10  # how often the loss is told


@dataclass(frozen=True)
class LstmSettings(Settings):
    """The sizes of the model, and its training."""

    hidden_size: int = setting(128, "Model", "numbers in a state, H", least=1)
    num_hidden_layers: int = setting(2, "Model", "LSTMs in each direction, L", least=1)
    length: int = setting(64, "Training", "tokens in a sequence, S", least=4)
    batch_size: int = setting(32, "Training", "sequences per step, B", least=1)
    predictions: int = setting(
        512, "Training", "neighbours in a step, each of which predicts the other", least=1
    )
    steps: int = setting(1500, "Training", "updates", least=1)
    learning_rate: float = setting(5e-3, "Training", "peak; it falls in the last two fifths", least=0.0)
    seed: int = setting(0, "Training", "of all that is random", least=0)


# -- The operation ------------------------------------------------------------------------------------
def lstm(x: Array, mask: Array, weight: Array, state_weight: Array, bias: Array) -> tuple[Array, tuple]:
    """x (S, B, E) → the states after each token (S, B, H).

    weight (4H, E), state_weight (4H, H) and bias (4H,) hold the gates i, f, o and then g. Where the mask
    (S, B) is 0, cell and state are 0, so that reading begins anew behind padding.
    """
    steps, batch, _ = x.shape
    size = state_weight.shape[1]
    sums, x_cache = ops.linear(x, weight, bias)  # (S, B, 4H): all that does not wait for a state
    gates = np.empty_like(sums)
    tanhs = np.empty_like(sums[..., :size])
    states = np.zeros((steps + 1, batch, size), sums.dtype)  # states[t]: before token t
    cells = np.zeros_like(states)
    for t in range(steps):
        before = sums[t] + states[t] @ state_weight.T  # (B, 4H)
        gates[t, :, : 3 * size] = sigmoid(before[:, : 3 * size])
        gates[t, :, 3 * size :] = np.tanh(before[:, 3 * size :])
        i, f, o, g = np.split(gates[t], 4, axis=1)
        cells[t + 1] = (f * cells[t] + i * g) * mask[t, :, None]
        tanhs[t] = np.tanh(cells[t + 1])
        states[t + 1] = o * tanhs[t]
    return states[1:], (gates, tanhs, states, cells, mask, state_weight, x_cache)


def lstm_backward(dout: Array, cache: tuple) -> tuple[Array, Array, Array, Array]:
    """dout (S, B, H) → dx (S, B, E), dweight, dstate_weight, dbias.

    forward, from the last token to the first: a state was used as output, and by the gates of the next token,
    so both derivatives add up; a cell was used by its state, and by the next cell, which kept f of it. The
    gates' derivatives are σ' = σ (1 − σ) and tanh' = 1 − tanh².
    """
    gates, tanhs, states, cells, mask, state_weight, x_cache = cache
    dsums = np.empty_like(gates)
    dstate, dcell = np.zeros_like(states[0]), np.zeros_like(cells[0])
    for t in reversed(range(len(dout))):
        i, f, o, g = np.split(gates[t], 4, axis=1)
        dstate = dstate + dout[t]
        dcell = (dcell + dstate * o * (1 - tanhs[t] ** 2)) * mask[t, :, None]
        dsums[t] = np.concatenate(
            [
                dcell * g * i * (1 - i),
                dcell * cells[t] * f * (1 - f),
                dstate * tanhs[t] * o * (1 - o),
                dcell * i * (1 - g**2),
            ],
            axis=1,
        )
        dstate, dcell = dsums[t] @ state_weight, dcell * f
    dstate_weight = dsums.reshape(-1, dsums.shape[-1]).T @ states[:-1].reshape(-1, states.shape[-1])
    dx, dweight, dbias = ops.linear_backward(dsums, x_cache)
    return dx, dweight, dstate_weight, dbias


def sigmoid(x: Array) -> Array:
    """σ(x) = 1 / (1 + exp(−x)) = (1 + tanh(x / 2)) / 2, which cannot overflow."""
    return (1 + np.tanh(x / 2)) / 2


# -- The model ----------------------------------------------------------------------------------------
class LSTM(Module):
    """One layer, whose state is as wide as its input."""

    def __init__(self, size: int):
        super().__init__()
        self.weight, self.state_weight = Parameter((4 * size, size)), Parameter((4 * size, size))
        self.bias = Parameter((4 * size,), init="zeros", decay=False)

    def forward(self, x: Array, mask: Array) -> tuple[Array, tuple]:
        """x (S, B, H), mask (S, B) → states (S, B, H)."""
        return lstm(x, mask, self.weight.value, self.state_weight.value, self.bias.value)

    def backward(self, dout: Array, cache: tuple) -> Array:
        """dout (S, B, H) → dx (S, B, H); adds to the gradients of its parameters."""
        dx, dweight, dstate_weight, dbias = lstm_backward(dout, cache)
        self.weight.add_grad(dweight)
        self.state_weight.add_grad(dstate_weight)
        self.bias.add_grad(dbias)
        return dx


class Reader(Module):
    """A stack of LSTMs that reads in one direction. Each adds its states to what it has read."""

    def __init__(self, size: int, layers: int, step: int):
        super().__init__()
        self.layer = [LSTM(size) for _ in range(layers)]
        self.order = slice(None, None, step)  # 1: from left to right, −1: from right to left

    def forward(self, x: Array, mask: Array) -> tuple[list[Array], Cache]:
        """x (S, B, H), mask (S, B) → x and the output of each layer, all (S, B, H)."""
        hidden, mask, caches = [x[self.order]], mask[self.order], []
        for layer in self.layer:
            states, cache = layer.forward(hidden[-1], mask)
            hidden.append(hidden[-1] + states)
            caches.append(cache)
        return [states[self.order] for states in hidden], Cache(self, *caches)

    def backward(self, dout: Array, cache: Cache) -> Array:
        """dout (S, B, H), of the last layer's output → dx (S, B, H).

        forward: y = x + lstm(x), so dx is dout and what comes back through the layer.
        """
        dout = dout[self.order]
        for layer in reversed(self.layer):
            dout = dout + layer.backward(dout, cache.pop(self))
        return dout[self.order]


@dataclass
class Outputs:
    """What a training step reads: the mean of all predictions' −log p, a 0-d array, in nats."""

    loss: Array


class BidirectionalLM(Module):
    """Two readers over one table of words, which also scores their states: logits = h Wᵀ + b, as in BERT."""

    def __init__(self, vocab_size: int, settings: LstmSettings, dtype: str = "float32"):
        super().__init__()
        size, layers = settings.hidden_size, settings.num_hidden_layers
        self.words = Embedding(vocab_size, size)
        self.bias = Parameter((vocab_size,), init="zeros", decay=False)
        self.to_right, self.to_left = Reader(size, layers, 1), Reader(size, layers, -1)
        self.allocate(dtype=dtype, first_values=False)
        self.initialise(settings.seed, std=(3 / size) ** 0.5)  # smaller ones leave the gates at ½
        for reader in (self.to_right, self.to_left):
            for layer in reader.layer:
                layer.bias.value[size : 2 * size] = 1  # remembers at first (Jozefowicz et al. 2015)

    def forward(self, input_ids: Array, neighbours: Array) -> tuple[Outputs, Cache]:
        """input_ids (B, S), neighbours (N,) → outputs, cache.

        A neighbour is a position s · B + b with s < S − 1. The token there has to predict the next one, from
        the left, and the next one this token, from the right: 2N predictions.
        """
        ids = np.asarray(input_ids).T  # (S, B)
        x, words_cache = self.words.forward(ids)
        mask = np.ones(ids.shape, self.dtype)
        right, right_cache = self.to_right.forward(x, mask)
        left, left_cache = self.to_left.forward(x, mask)
        after = neighbours + ids.shape[1]
        states = np.stack([right[-1], left[-1]])  # (2, S, B, H)
        rows, rows_cache = ops.embedding(
            states.reshape(-1, x.shape[-1]), np.concatenate([neighbours, ids.size + after])
        )
        labels = ids.reshape(-1)[np.concatenate([after, neighbours])].astype(np.int32)  # (2N,)
        loss, loss_cache = ops.masked_lm_loss(
            rows,
            self.words.weight.value,
            self.bias.value,
            labels,
            np.ones(len(labels), self.dtype),
            float(len(labels)),
        )
        caches = words_cache, left_cache, right_cache, states.shape, rows_cache, loss_cache
        return Outputs(loss), Cache(self, *caches)

    def backward(self, cache: Cache, dloss: Array | float = 1.0) -> None:
        """Add the gradient of ``dloss · loss`` to that of every parameter. The cache is used up.

        The table of words collects three gradients: of its scores, and of both readers, who read it.
        """
        drows, dweight, dbias = ops.masked_lm_loss_backward(dloss, cache.pop(self))
        self.words.weight.add_grad(dweight)
        self.bias.add_grad(dbias)
        dstates = ops.embedding_backward(drows, cache.pop(self)).reshape(cache.pop(self))
        dx = self.to_right.backward(dstates[0], cache.pop(self))
        dx = dx + self.to_left.backward(dstates[1], cache.pop(self))
        self.words.backward(dx, cache.pop(self))

    def hidden_states(self, input_ids: Array, attention_mask: Array) -> list[Array]:
        """input_ids and attention_mask (B, S) → L + 1 times (B, S, 2H): the words, then each layer."""
        x, _ = self.words.forward(np.asarray(input_ids).T)
        mask = np.asarray(attention_mask).T.astype(self.dtype)
        read = (reader.forward(x, mask)[0] for reader in (self.to_right, self.to_left))
        return [np.concatenate(both, axis=-1).swapaxes(0, 1) for both in zip(*read, strict=True)]


# -- Training -----------------------------------------------------------------------------------------
def make_rows(paths: Sequence[str | Path], tokenizer: PretrainedTokenizer, length: int) -> np.ndarray:
    """A text in rows of ``length`` tokens: [CLS], a piece of a document, [SEP]. (rows, S) int32.

    Raises UserError if no document is so long.
    """
    special, before = tokenizer.with_special_tokens([])[0], tokenizer.special_counts(1)[0]
    inside = length - len(special)
    pieces = [np.empty((0, inside), np.int32)]
    for document in open_corpus(paths):
        ids = np.array([i for sentence in tokenizer.token_ids_batch(document) for i in sentence], np.int32)
        pieces.append(ids[: len(ids) // inside * inside].reshape(-1, inside))
    rows = np.concatenate(pieces)
    if not len(rows):
        raise UserError(f"no document has {inside} tokens; give a longer text or a lower --length")
    ends = np.tile(np.array(special, np.int32), (len(rows), 1))
    return np.concatenate([ends[:, :before], rows, ends[:, before:]], axis=1)


def say_nothing(step: int, loss: float) -> None:
    """What training reports to by default."""


def train(
    rows: np.ndarray,
    vocab_size: int,
    settings: LstmSettings,
    tell: Callable[[int, float], None] = say_nothing,
) -> BidirectionalLM:
    """Learn from random rows; ``tell`` is given the number of steps and the mean loss since the last report.

    Of a step's neighbours only ``predictions`` are scored, at random: the product with the whole vocabulary
    would take most of the time. Raises UserError if the loss is no finite number.
    """
    model = BidirectionalLM(vocab_size, settings)
    optimiser, rng = AdamW(model), generator("elmo", settings.seed)
    steps, total, told = settings.steps, 0.0, 0
    neighbours = (settings.length - 1) * settings.batch_size
    for step in range(steps):
        batch = rows[rng.integers(len(rows), size=settings.batch_size)]
        chosen = rng.choice(neighbours, size=min(settings.predictions, neighbours), replace=False)
        model.zero_grad()
        outputs, cache = model.forward(batch, chosen)
        model.backward(cache)
        optimiser.step(trapezoid(step, steps, max(1, steps // 20), settings.learning_rate), step)
        total += float(outputs.loss)
        if not np.isfinite(total):
            raise UserError(f"the loss is {total}: training has diverged; choose a lower --learning-rate")
        if (step + 1) * REPORTS // steps > step * REPORTS // steps:
            tell(step + 1, total / (step + 1 - told))
            total, told = 0.0, step + 1
    return model


# -- The command line ---------------------------------------------------------------------------------
def run(arguments: Sequence[str] | None) -> None:
    """Read, learn, and guess what comes next. Raises UserError for wrong flags."""
    parser = Parser(prog="elmo.py", description="Train bidirectional LSTMs on a text, as ELMo was trained.")
    parser.add_argument("texts", nargs="*", metavar="TEXT", help="files or folders (default: docstrings)")
    parser.add_argument("--start", default="this method returns a", help="text to continue at the end")
    add_setting_flags(parser, LstmSettings)
    parser.usage = f"{parser.prog} [TEXT ...] [flags]"
    flags = parser.parse_args(arguments)
    settings = LstmSettings.from_dict(given_settings(flags), flags.config or "settings")
    tokenizer = open_tokenizer(model_folder("mini"))
    rows = make_rows(flags.texts, tokenizer, settings.length)
    shares = np.bincount(rows.ravel()) / rows.size
    known = shares[shares > 0]
    print(f"{rows.size:,} tokens; loss of a guess by frequency: {-(known * np.log(known)).sum():.3f}")
    start = time.perf_counter()

    def tell(step: int, loss: float) -> None:
        print(f"step {step:6,}    loss {loss:.3f}    {time.perf_counter() - start:4.0f} s", flush=True)

    model = train(rows, len(tokenizer.tokens), settings, tell)
    print(flags.start, "…", *continue_text(model, tokenizer, flags.start))


def continue_text(
    model: BidirectionalLM, tokenizer: PretrainedTokenizer, text: str, count: int = 5
) -> list[str]:
    """The tokens that the reader from the left finds likeliest after a text."""
    ids, _ = tokenizer.with_special_tokens(tokenizer.token_ids_batch([text])[0])
    ids = ids[: -tokenizer.special_counts(1)[1]]
    hidden = model.hidden_states(np.array([ids]), np.ones((1, len(ids))))[-1][0, -1]  # (2H,)
    logits = model.words.weight.value @ hidden[: len(hidden) // 2] + model.bias.value
    return [tokenizer.tokens[i] for i in np.argsort(-logits)[:count]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line; return the exit code."""
    try:
        run(arguments)
    except UserError as error:
        print(f"elmo: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("elmo: interrupted", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The whole of BERT in one file of NumPy, with every derivative written by hand.

    python bert_in_one_file.py  # reads the docstrings of Python and NumPy, and learns to guess hidden words

Every operation is a pair. The forward returns its result and a cache. The backward, below it, takes dout,
the derivative of the loss with respect to that result, and the cache; it adds the derivatives of the
parameters to grads and returns that of the input. Shapes: B batch, S sequence length, H hidden size, A
heads, D = H / A, F feed-forward size, V vocabulary, L layers, P predicted positions. Dropout is left out. In
a minute it learns about words; pairs of sentences stay a coin toss.
"""

import argparse
import math
import re
import sysconfig
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np

V, S, H, A, F, L = 2000, 32, 128, 2, 512, 2
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PAD, UNK, CLS, SEP, MASK = range(5)
IGNORED = -100  # the label of a token that is not to be guessed


# -- Text ---------------------------------------------------------------------------------------------
def read_documents():
    """The docstrings of Python and NumPy: one list of sentences per source file, each a list of words."""
    documents, seen = [], set[str]()
    for folder in (Path(sysconfig.get_path("stdlib")), Path(np.__file__).parent):
        for path in sorted([*folder.glob("*.py"), *folder.glob("*/*.py")]):
            source = path.read_text(encoding="utf-8", errors="ignore").replace("`", "")
            docstrings = "\n\n".join(re.findall(r'"""(.*?)"""', source, re.DOTALL))
            sentences = [" ".join(s.split()) for s in re.split(r"\n\s*\n|(?<=[.:])\s", docstrings)]
            prose = dict.fromkeys(s for s in sentences if re.fullmatch(r"[A-Z][A-Za-z ,;'()-]{20,}\.", s))
            documents.append([re.findall(r"\w+|[^\w\s]", s.lower()) for s in prose if s not in seen])
            seen.update(prose)
    return documents


def learn_vocabulary(documents):
    """Ids for V pieces: all characters, to spell any word with; common endings ("##ing"); common words."""
    counts = Counter(word for sentences in documents for sentence in sentences for word in sentence)
    endings = Counter("##" + w[i:] for w in counts for i in range(1, len(w)) if w[:i] in counts)
    characters = sorted(set("".join(counts)))
    pieces = SPECIAL + characters + ["##" + c for c in characters]
    pieces += [piece for piece, _ in endings.most_common(V // 10) + counts.most_common(V)]
    return {piece: i for i, piece in enumerate(list(dict.fromkeys(pieces))[:V])}


def word_to_ids(word, ids, prefix=""):
    """Greedy WordPiece: the longest piece that the word begins with, then the same for the rest of it."""
    for end in range(len(word), 0, -1):
        if prefix + word[:end] in ids:
            return [ids[prefix + word[:end]], *word_to_ids(word[end:], ids, "##")]
    return [UNK] if word else []


def make_batch(pairs, size, rng):
    """Pairs of sentences, half of them wrong, with 15 % of the tokens to guess: the input of forward."""
    input_ids, token_type_ids = np.zeros((2, size, S), int)  # (B, S) each, full of [PAD]
    next_sentence_label = rng.integers(2, size=size)  # 0: b follows a; 1: b is any sentence
    for row, wrong in enumerate(next_sentence_label):
        a, b = pairs[rng.integers(len(pairs))]
        b = pairs[rng.integers(len(pairs))][1] if wrong else b
        a, b = [CLS, *a[: S // 2 - 2], SEP], [*b[: S // 2 - 1], SEP]
        input_ids[row, : len(a + b)] = a + b
        token_type_ids[row, len(a) : len(a + b)] = 1
    chosen = (rng.random(input_ids.shape) < 0.15) & (input_ids > MASK)  # never a special token
    fate = rng.random(input_ids.shape)  # of the chosen, 80 % are masked, 10 % become any token, 10 % stay
    anything = rng.integers(len(SPECIAL), V, input_ids.shape)
    replaced = np.where(fate < 0.8, MASK, np.where(fate < 0.9, anything, input_ids))
    labels, masked_ids = np.where(chosen, input_ids, IGNORED), np.where(chosen, replaced, input_ids)
    return masked_ids, token_type_ids, input_ids != PAD, labels, next_sentence_label


# -- Operations ---------------------------------------------------------------------------------------
def linear(x, params, name):
    """y = x Wᵀ + b.    x (…, K), W (N, K), b (N,) → y (…, N)"""
    weight, bias = params[f"{name}.weight"], params[f"{name}.bias"]
    rows = x.reshape(-1, x.shape[-1])  # (R, K)
    return (rows @ weight.T + bias).reshape(*x.shape[:-1], -1), (rows, weight, name)


def linear_backward(dout, cache, grads):
    """forward: y[r, n] = Σₖ x[r, k] W[n, k] + b[n]. Every row r used the same W and b, so we sum over r."""
    rows, weight, name = cache
    drows = dout.reshape(-1, dout.shape[-1])  # (R, N)
    grads[f"{name}.weight"] += drows.T @ rows  # dW[n, k] = Σᵣ dy[r, n] x[r, k]
    grads[f"{name}.bias"] += drows.sum(axis=0)  # db[n] = Σᵣ dy[r, n]
    return (drows @ weight).reshape(*dout.shape[:-1], -1)  # dx[r, k] = Σₙ dy[r, n] W[n, k]


def layer_norm(x, params, name):
    """y = γ x̂ + β, where x̂ = (x − μ) / σ has mean 0 and variance 1 in each row.    x, y (…, H)"""
    weight, bias = params[f"{name}.weight"], params[f"{name}.bias"]  # γ and β, (H,)
    centred = x - x.mean(axis=-1, keepdims=True)
    std = np.sqrt((centred * centred).mean(axis=-1, keepdims=True) + 1e-12)  # σ, (…, 1)
    return centred / std * weight + bias, (centred / std, std, weight, name)


def layer_norm_backward(dout, cache, grads):
    """forward: x reaches x̂ directly, through μ and through σ: dx = (dx̂ − mean(dx̂) − x̂ mean(dx̂ x̂)) / σ."""
    normalised, std, weight, name = cache
    grads[f"{name}.weight"] += (dout * normalised).reshape(-1, len(weight)).sum(axis=0)
    grads[f"{name}.bias"] += dout.reshape(-1, len(weight)).sum(axis=0)
    dnormalised = dout * weight
    through_mean = dnormalised.mean(axis=-1, keepdims=True)
    through_std = normalised * (dnormalised * normalised).mean(axis=-1, keepdims=True)
    return (dnormalised - through_mean - through_std) / std


def gelu(x):
    """y = ½ x (1 + t), where t = tanh(√(2/π) (x + 0.044715 x³)): a smooth form of max(0, x)."""
    t = np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x))
    return 0.5 * x * (1 + t), (x, t)


def gelu_backward(dout, cache):
    """forward: y = ½ x (1 + t), so dy/dx = ½ (1 + t) + ½ x dt/dx; the slope of tanh(u) is 1 − tanh²(u)."""
    x, t = cache
    dt_dx = (1 - t * t) * math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x * x)
    return dout * 0.5 * (1 + t + x * dt_dx)


def softmax(x):
    """p[i] = exp(x[i]) / Σⱼ exp(x[j]). The maximum cancels out: it only keeps exp from overflowing."""
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def softmax_backward(dout, p):
    """forward: ∂p[i]/∂x[j] = p[i] ([i = j] − p[j]), so dx[j] = p[j] (dout[j] − Σᵢ dout[i] p[i])."""
    return p * (dout - (dout * p).sum(axis=-1, keepdims=True))


def cross_entropy(logits, labels):
    """The mean of −log p[label], p = softmax(logits); and dlogits, its backward.    (N, V), labels (N,)"""
    p, rows = softmax(logits), np.arange(len(labels))
    loss = -np.log(p[rows, labels]).mean()  # a row's loss is log Σⱼ exp(z[j]) − z[label],
    p[rows, labels] -= 1  # so its dz[j] = p[j] − [j = label]: the guess minus the truth
    return loss, p / len(labels)


def attention(hidden, attention_mask, params, name):
    """y = p v, p = softmax(q kᵀ / √D), in each of A heads: tokens read tokens.    (B, S, H) → (B, S, H)"""
    heads = (*hidden.shape[:2], A, hidden.shape[2] // A)  # B, S, A, D
    qkv = [linear(hidden, params, f"{name}.{x}") for x in ("query", "key", "value")]
    q, k, v = (x.reshape(heads).swapaxes(1, 2) for x, _ in qkv)  # (B, A, S, D)
    scores = q @ k.swapaxes(2, 3) / math.sqrt(heads[3])  # (B, A, S, S): who reads, and whom
    p = softmax(np.where(attention_mask[:, None, None, :], scores, -math.inf))  # padding gets exp(−∞) = 0
    return (p @ v).swapaxes(1, 2).reshape(hidden.shape), (q, k, v, p, heads, [cache for _, cache in qkv])


def attention_backward(dout, cache, grads):
    """forward: y = p v, p = softmax(s), s = q kᵀ / √D. hidden fed q, k and v, so three derivatives add up."""
    q, k, v, p, heads, caches = cache
    dy = dout.reshape(heads).swapaxes(1, 2)  # (B, A, S, D)
    dscores = softmax_backward(dy @ v.swapaxes(2, 3), p) / math.sqrt(heads[3])  # (B, A, S, S)
    dqkv = [dscores @ k, dscores.swapaxes(2, 3) @ q, p.swapaxes(2, 3) @ dy]  # (B, A, S, D) each
    dqkv = [x.swapaxes(1, 2).reshape(dout.shape) for x in dqkv]  # (B, S, H) each
    return sum(linear_backward(x, cache, grads) for x, cache in zip(dqkv, caches, strict=True))


def layer(hidden, attention_mask, params, name):
    """Attention, where tokens meet; then a small network for each token alone.    (B, S, H) → (B, S, H)"""
    context, c1 = attention(hidden, attention_mask, params, f"{name}.attention.self")
    projected, c2 = linear(context, params, f"{name}.attention.output.dense")
    attended, c3 = layer_norm(hidden + projected, params, f"{name}.attention.output.LayerNorm")
    wide, c4 = linear(attended, params, f"{name}.intermediate.dense")  # (B, S, F)
    active, c5 = gelu(wide)
    narrow, c6 = linear(active, params, f"{name}.output.dense")
    y, c7 = layer_norm(attended + narrow, params, f"{name}.output.LayerNorm")  # (B, S, H)
    return y, (c1, c2, c3, c4, c5, c6, c7)


def layer_backward(dout, cache, grads):
    """The forward in reverse. A sum passes dout on to both terms; what was used twice collects twice."""
    c1, c2, c3, c4, c5, c6, c7 = cache
    dsum = layer_norm_backward(dout, c7, grads)  # of attended + narrow
    dwide = gelu_backward(linear_backward(dsum, c6, grads), c5)
    dattended = dsum + linear_backward(dwide, c4, grads)
    dsum = layer_norm_backward(dattended, c3, grads)  # of hidden + projected
    return dsum + attention_backward(linear_backward(dsum, c2, grads), c1, grads)


# -- BERT ---------------------------------------------------------------------------------------------
WORDS = "bert.embeddings.word_embeddings.weight"  # (V, H)
POSITIONS = "bert.embeddings.position_embeddings.weight"  # (S, H)
TYPES = "bert.embeddings.token_type_embeddings.weight"  # (2, H)
LAYERS = [f"bert.encoder.layer.{i}" for i in range(L)]


def new_parameters(rng):
    """By Hugging Face's names: weights are random and small (BERT: 0.02), biases 0, LayerNorm's γ 1."""
    shapes = {"bert.embeddings.LayerNorm": (H,), "bert.pooler.dense": (H, H), "cls.seq_relationship": (2, H)}
    shapes |= {"cls.predictions.transform.dense": (H, H), "cls.predictions.transform.LayerNorm": (H,)}
    for name in LAYERS:
        shapes |= {f"{name}.attention.self.{x}": (H, H) for x in ("query", "key", "value")}
        shapes |= {f"{name}.attention.output.dense": (H, H)}
        shapes |= {f"{name}.intermediate.dense": (F, H), f"{name}.output.dense": (H, F)}
        shapes |= {f"{name}.{x}.LayerNorm": (H,) for x in ("attention.output", "output")}
    params = {name: rng.normal(0, 0.05, (rows, H)) for name, rows in ((WORDS, V), (POSITIONS, S), (TYPES, 2))}
    params["cls.predictions.bias"] = np.zeros(V)
    for name, shape in shapes.items():
        params[f"{name}.weight"] = rng.normal(0, 0.05, shape) if len(shape) == 2 else np.ones(shape)
        params[f"{name}.bias"] = np.zeros(shape[0])
    return {name: value.astype(np.float32) for name, value in params.items()}


def forward(params, input_ids, token_type_ids, attention_mask, labels, next_sentence_label):
    """ids, mask, labels (B, S), pair labels (B,) → losses (words, pairs), logits (P, V) of words, cache"""
    positions = params[POSITIONS][: input_ids.shape[1]]  # (S, H)
    embedded = params[WORDS][input_ids] + positions + params[TYPES][token_type_ids]  # (B, S, H)
    hidden, c1 = layer_norm(embedded, params, "bert.embeddings.LayerNorm")
    layer_caches = []
    for name in LAYERS:
        hidden, layer_cache = layer(hidden, attention_mask, params, name)
        layer_caches.append(layer_cache)
    chosen = labels != IGNORED  # (B, S), true P times
    dense, c2 = linear(hidden[chosen], params, "cls.predictions.transform.dense")  # (P, H)
    active, c3 = gelu(dense)
    guess, c4 = layer_norm(active, params, "cls.predictions.transform.LayerNorm")
    logits = guess @ params[WORDS].T + params["cls.predictions.bias"]  # (P, V): how well each word fits
    word_loss, dlogits = cross_entropy(logits, labels[chosen])
    dense, c5 = linear(hidden[:, 0], params, "bert.pooler.dense")  # (B, H): [CLS] speaks for the pair
    pooled = np.tanh(dense)
    pair_logits, c6 = linear(pooled, params, "cls.seq_relationship")  # (B, 2)
    pair_loss, dpair_logits = cross_entropy(pair_logits, next_sentence_label)
    head_caches = (chosen, guess, dlogits, c2, c3, c4), (pooled, dpair_logits, c5, c6)
    return (word_loss, pair_loss), logits, (input_ids, token_type_ids, c1, layer_caches, head_caches)


def backward(params, cache):
    """The derivatives of word_loss + pair_loss with respect to all parameters, under their names."""
    input_ids, token_type_ids, c1, layer_caches, head_caches = cache
    (chosen, guess, dlogits, c2, c3, c4), (pooled, dpair_logits, c5, c6) = head_caches
    grads = {name: np.zeros_like(value) for name, value in params.items()}
    dhidden = np.zeros((*input_ids.shape, guess.shape[1]), guess.dtype)  # (B, S, H)
    dpooled = linear_backward(dpair_logits, c6, grads)
    dhidden[:, 0] = linear_backward(dpooled * (1 - pooled * pooled), c5, grads)  # tanh' = 1 − tanh²
    grads[WORDS] += dlogits.T @ guess  # forward: logits = guess Wᵀ + b, where W is the table of words
    grads["cls.predictions.bias"] += dlogits.sum(axis=0)
    dactive = layer_norm_backward(dlogits @ params[WORDS], c4, grads)
    dhidden[chosen] += linear_backward(gelu_backward(dactive, c3), c2, grads)
    for layer_cache in reversed(layer_caches):
        dhidden = layer_backward(dhidden, layer_cache, grads)
    dembedded = layer_norm_backward(dhidden, c1, grads)
    grads[POSITIONS][: input_ids.shape[1]] += dembedded.sum(axis=0)
    np.add.at(grads[TYPES], token_type_ids, dembedded)  # grads[…][ids] += … would count a repeated id once
    np.add.at(grads[WORDS], input_ids, dembedded)  # the table's other use: both add up
    return grads


def adamw(params, grads, means, squares, learning_rate, beta1=0.9, beta2=0.98, weight_decay=0.01):
    """Adam with decoupled weight decay; as in BERT (where β₂ is 0.999) clipped, and not bias-corrected."""
    norm = math.sqrt(sum((grad * grad).sum() for grad in grads.values()))
    for name, value in params.items():
        grad = grads[name] / max(1, norm)  # all gradients together are no longer than 1
        means[name] += (1 - beta1) * (grad - means[name])
        squares[name] += (1 - beta2) * (grad * grad - squares[name])
        decay = weight_decay * value if value.ndim == 2 else 0  # not for biases and LayerNorm
        value -= learning_rate * (means[name] / (np.sqrt(squares[name]) + 1e-6) + decay)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train a small BERT on the docstrings of Python and NumPy.")
    parser.add_argument("steps", type=int, nargs="?", default=1200, help="default: %(default)s")
    steps = parser.parse_args().steps
    documents = read_documents()
    ids = learn_vocabulary(text for i, text in enumerate(documents) if i % 10)
    documents = [[[i for word in s for i in word_to_ids(word, ids)] for s in text] for text in documents]
    training = [pair for i, text in enumerate(documents) if i % 10 for pair in pairwise(text)]
    held_out = [pair for text in documents[::10] for pair in pairwise(text)]  # every tenth source file
    test = make_batch(held_out, 512, np.random.default_rng(0))
    counts = 1 + np.bincount([i for a, _ in training for i in a], minlength=V)
    unigram = -np.log(counts / counts.sum())[test[3][test[3] != IGNORED]].mean()
    print(f"{len(training):,} pairs of sentences to learn from; the losses are of {len(held_out):,} others")
    print(f"without learning    words {unigram:.2f} (by frequency)    pairs {math.log(2):.2f} (by a coin)")
    params, rng = new_parameters(np.random.default_rng(1)), np.random.default_rng(2)
    means, squares = ({name: np.zeros_like(value) for name, value in params.items()} for _ in range(2))
    for step in range(steps):
        _, _, cache = forward(params, *make_batch(training, 32, rng))
        learning_rate = 2e-3 * min(1, 10 * step / steps) * (1 - step / steps)  # a tenth of the steps warms up
        adamw(params, backward(params, cache), means, squares, learning_rate)
        if (step + 1) % 100 == 0 or step + 1 == steps:
            (word_loss, pair_loss), _, _ = forward(params, *test)
            print(f"step {step + 1:5}    words {word_loss:.2f}    pairs {pair_loss:.2f}", flush=True)
    for text in (
        "returns a [MASK] of strings .",
        "return the number [MASK] elements in the list .",
        "if the file does [MASK] exist , an error is raised .",
    ):
        row = np.array([[CLS, *(i for word in text.split() for i in word_to_ids(word, ids)), SEP]])  # (1, S)
        labels = np.where(row == MASK, 0, IGNORED)  # any label will do where only the logits are wanted
        _, logits, _ = forward(params, row, 0 * row, row != PAD, labels, [0])
        p = softmax(logits[0])
        print(f"{text:55}", *(f"{list(ids)[i]} {p[i]:.0%}" for i in p.argsort()[:-4:-1]), sep="  ")

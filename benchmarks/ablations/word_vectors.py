"""Word vectors: Word2Vec, LSTMs, the input embeddings of a pretrained encoder, and its contextual vectors."""

import argparse
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.__main__ import positive
from benchmarks.ablations.in_context import Encoder, LstmEncoder, Use, sample_uses
from benchmarks.parts.common import BLUE, GREY, RED, named, new_axes, save_figure
from benchmarks.results import paragraph, table
from benchmarks.speedrun.tracks import SHARED, ten_million_words
from examples import elmo
from examples.word2vec import SkipGramSettings, WordVectors, read_text, train
from minibert import ops
from minibert.data.lines import read_lines
from minibert.errors import UserError
from minibert.settings import read_settings
from minibert.tasks.metrics import spearman
from minibert.text import PretrainedTokenizer
from minibert.text.normalise import Normaliser

WORD2VEC, LSTMS, INPUT, ALONE, SENTENCES = (
    "Word2Vec",
    "LSTMs, sentences",
    "input embeddings",
    "contextual, alone",
    "contextual, sentences",
)
COLOURS = {WORD2VEC: GREY, LSTMS: "#d9a441", INPUT: "#8fb3d9", ALONE: RED, SENTENCES: BLUE}
PROBES = "king river music doctor war red happy walk money bread ship science".split()
NEIGHBOURS = 5
FEWEST = 10  # pairs without which there is no correlation
MEANINGS = Path(__file__).with_name("meanings.toml")
QUICK = {"size": 16, "passes": 1, "most_words": 20_000}  # settings of Word2Vec
LSTM = {"hidden_size": 256, "steps": 3000}
QUICK_LSTM = {"hidden_size": 8, "steps": 10, "length": 8, "batch_size": 4}

Pairs = list[tuple[str, str, float]]


def add_options(parser: argparse.ArgumentParser) -> None:
    """The models, the text, and the sets of pairs."""
    parser.add_argument(
        "--models",
        nargs="+",
        default=["mini"],
        metavar="NAME=FOLDER",
        help="pretrained encoders, each a case; the name may be left out (default: mini)",
    )
    parser.add_argument(
        "--layer", type=int, metavar="N", help="whose hidden states are taken (default: the last)"
    )
    parser.add_argument(
        "--sentences", type=positive, metavar="N", help="for the mean vector of a word, at most (default: 20)"
    )
    parser.add_argument(
        "--words", type=positive, metavar="N", help="that Word2Vec reads (default: all of the text)"
    )
    parser.add_argument("--passes", type=positive, metavar="N", help="of Word2Vec over the text")
    parser.add_argument(
        "--lstm-steps", type=positive, metavar="N", help=f"training steps (default: {LSTM['steps']:,})"
    )
    parser.add_argument(
        "--text", nargs="+", metavar="PATH", help="default: the ten million words of benchmarks.speedrun"
    )
    parser.add_argument(
        "--folder", type=Path, default=Path("runs/speedrun"), help="where those are (default: %(default)s)"
    )
    parser.add_argument(
        "--pairs",
        type=Path,
        default=SHARED / "wordsim",
        metavar="FOLDER",
        help="pairs that people have judged",
    )


def measure(options: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    """A case for each model; Word2Vec and the LSTMs are trained once, those with the first model's tokens."""
    sets = read_pairs(options.pairs)
    encoders = {name: Encoder(folder, options.layer) for name, folder in map(named, options.models)}
    text = options.text or [str(ten_million_words(options.folder / "10m"))]
    given = {"most_words": options.words, "passes": options.passes}
    settings = SkipGramSettings.from_dict(
        (QUICK if options.quick else {}) | {name: value for name, value in given.items() if value is not None}
    )
    word2vec, about = learn(text, settings)
    lstm_settings = elmo.LstmSettings.from_dict(
        (QUICK_LSTM if options.quick else LSTM)
        | ({"steps": options.lstm_steps} if options.lstm_steps is not None else {})
    )
    lstm, about_lstm = learn_lstm(text, next(iter(encoders.values())).tokenizer, lstm_settings)
    wanted = {word for pairs in sets.values() for pair in pairs for word in pair[:2]} | {*PROBES}
    count = options.sentences or (2 if options.quick else 20)
    uses = sample_uses(text, sorted(wanted & {*word2vec.vocabulary}), count, settings.most_words)
    for name, encoder in encoders.items():
        start = time.perf_counter()
        words = [word for word, found in uses.items() if found and encoder.knows(word) and lstm.knows(word)]
        vectors = all_vectors(words, word2vec, lstm, encoder, uses)
        yield (
            name,
            {
                "word2vec": about,
                "lstm": about_lstm,
                "layer": encoder.layer,
                "layers": encoder.layers,
                "sentences": count,
                "words": len(words),
                "pairs": {title: correlations(pairs, words, vectors) for title, pairs in sets.items()},
                "neighbours": nearest(words, vectors),
                "meanings": tell_meanings_apart(word2vec, lstm, encoder),
                "seconds": time.perf_counter() - start,
            },
        )


def learn(text: Sequence[str], settings: SkipGramSettings) -> tuple[WordVectors, dict[str, Any]]:
    """Word2Vec's vectors, and what there is to tell of its training."""
    start = time.perf_counter()
    read = read_text(text, settings.least, settings.most_words)
    print(f"Word2Vec: {len(read.ids):,} words of text, {len(read.vocabulary):,} different ones", flush=True)
    learned = train(read, settings, lambda done, loss: print(f"{done:4.0%}    loss {loss:.3f}", flush=True))
    return learned, {
        "text": [Path(path).name for path in text],
        "words": len(read.ids),
        "vocabulary": len(read.vocabulary),
        "settings": settings.to_dict(),
        "losses": learned.losses,
        "seconds": time.perf_counter() - start,
    }


def learn_lstm(
    text: Sequence[str], tokenizer: PretrainedTokenizer, settings: elmo.LstmSettings
) -> tuple[LstmEncoder, dict[str, Any]]:
    """The LSTMs, and what there is to tell of their training."""
    start, losses = time.perf_counter(), list[float]()

    def tell(step: int, loss: float) -> None:
        losses.append(loss)
        print(f"LSTMs: step {step:,}    loss {loss:.3f}", flush=True)

    rows = elmo.make_rows(text, tokenizer, settings.length)
    model = elmo.train(rows, len(tokenizer.tokens), settings, tell)
    return LstmEncoder(model, tokenizer, max_length=10 * settings.length), {
        "tokens": settings.steps * settings.batch_size * settings.length,
        "settings": settings.to_dict(),
        "losses": losses,
        "seconds": time.perf_counter() - start,
    }


def all_vectors(
    words: Sequence[str],
    word2vec: WordVectors,
    lstm: LstmEncoder,
    encoder: Encoder,
    uses: Mapping[str, Sequence[Use]],
) -> dict[str, np.ndarray]:
    """The vectors of the words by each method: (N, D) or (N, H). Raises UserError if there are no words."""
    if not words:
        raise UserError("no word of the pairs is known to all methods; read more of the text (--words)")
    rows = {word: row for row, word in enumerate(word2vec.vocabulary)}
    uses = {word: uses[word] for word in words}
    return {
        WORD2VEC: word2vec.vectors[[rows[word] for word in words]],
        LSTMS: lstm.mean_contextual(uses),
        INPUT: encoder.input_embeddings(words),
        ALONE: encoder.contextual([Use.alone(word) for word in words]),
        SENTENCES: encoder.mean_contextual(uses),
    }


# -- Pairs that people have judged -------------------------------------------------------------------


def read_pairs(folder: Path) -> dict[str, Pairs]:
    """The sets of pairs in a folder, by the names of their files, each line: word word score.

    Words are put in lower case. Raises UserError, naming file and line, if one is not like that.
    """
    sets: dict[str, Pairs] = {}
    for path in sorted(folder.glob("*.txt")):
        pairs = sets.setdefault(path.stem.removeprefix("EN-"), [])
        for number, line in enumerate(read_lines(path), start=1):
            try:
                first, second, score = line.split()
                if not math.isfinite(float(score)):
                    raise ValueError
                pairs.append((first.lower(), second.lower(), float(score)))
            except ValueError:
                raise UserError(
                    f"{path}: line {number} is {line!r}; expected two words and a score"
                ) from None
    if not sets:
        raise UserError(
            f"{folder}: there are no sets of pairs (.txt) here; give their folder, --pairs FOLDER"
        )
    return sets


def correlations(pairs: Pairs, words: Sequence[str], vectors: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Spearman's correlation of cosines and judgements, by method, on the pairs of ``words``.

    None for a set of which fewer than ``FEWEST`` pairs are left.
    """
    rows = {word: row for row, word in enumerate(words)}
    shared = [(rows[a], rows[b], score) for a, b, score in pairs if a in rows and b in rows]
    found: dict[str, float | None] = dict.fromkeys(vectors)
    if len(shared) >= FEWEST:
        first, second, scores = zip(*shared, strict=True)
        for method, matrix in vectors.items():
            found[method] = number(spearman(cosines(matrix[[*first]], matrix[[*second]]), scores))
    return {"pairs": len(pairs), "shared": len(shared), "spearman": found}


def cosines(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """(N, H) and (N, H) → (N,)."""
    return ops.cosine_similarity(x, y)[0]


def number(value: float) -> float | None:
    """A number as JSON can hold it."""
    return float(value) if math.isfinite(value) else None


def nearest(words: Sequence[str], vectors: Mapping[str, np.ndarray]) -> dict[str, dict[str, list[str]]]:
    """The nearest neighbours of some words by each method, among ``words``."""
    return {
        word: {
            method: WordVectors([*words], matrix, []).nearest(word, NEIGHBOURS)
            for method, matrix in vectors.items()
        }
        for word in PROBES
        if word in words
    }


# -- Two meanings ------------------------------------------------------------------------------------


def tell_meanings_apart(
    word2vec: WordVectors, lstm: LstmEncoder, encoder: Encoder
) -> dict[str, dict[str, Any] | None]:
    """By method, how often a word is nearer to itself in the same meaning than in another one.

    A comparison takes a word in three sentences; two of them share the meaning. It counts 1 if the cosine of
    these two is the higher one, ½ if both cosines are equal. None where a method knows none of the words.
    """
    sentences = {
        word: [sentence for uses in meanings.values() for sentence in uses]
        for word, meanings in read_settings(MEANINGS).items()
    }  # two of one meaning, then two of the other
    static = {
        WORD2VEC: {
            w: v for w, v in zip(word2vec.vocabulary, word2vec.vectors, strict=True) if w in sentences
        },
        INPUT: {word: encoder.input_embeddings([word])[0] for word in sentences if encoder.knows(word)},
    }
    found: dict[str, dict[str, Any] | None] = {}
    for method, known in static.items():
        found[method] = compare({word: np.stack([vector] * 4) for word, vector in known.items()})
    normaliser = Normaliser()
    uses = {
        word: [Use.of(normaliser.words(sentence).index(word), sentence, normaliser) for sentence in each]
        for word, each in sentences.items()
        if encoder.knows(word) and lstm.knows(word)
    }
    for method, reader in ((LSTMS, lstm), (SENTENCES, encoder)):
        found[method] = compare({word: reader.contextual(each) for word, each in uses.items()})
    return found


def compare(vectors: Mapping[str, np.ndarray]) -> dict[str, Any] | None:
    """Of each word four vectors (4, H), the first two and the last two of one meaning → what came out."""
    if not vectors:
        return None
    wins: dict[str, float] = {}
    same: list[float] = []
    other: list[float] = []
    for word, four in vectors.items():
        first, second = np.divmod(np.arange(16), 4)
        table_of_cosines = cosines(four[first], four[second]).reshape(4, 4)
        won = []
        for anchor in range(4):
            partner = anchor ^ 1
            strangers = [i for i in range(4) if i // 2 != anchor // 2]
            near, far = table_of_cosines[anchor, partner], table_of_cosines[anchor, strangers]
            won += [float(near > one) + 0.5 * float(near == one) for one in far]
            same.append(float(near))
            other += far.tolist()
        wins[word] = float(np.mean(won))
    share = float(np.mean([*wins.values()]))
    return {"share": share, "same": float(np.mean(same)), "other": float(np.mean(other)), "words": wins}


# -- As text -----------------------------------------------------------------------------------------


def section(cases: Mapping[str, Mapping[str, Any]], folder: Path) -> str:
    """Correlations, as a picture too, neighbours and meanings, for each model."""
    plot(cases, folder / "word_vectors.png")
    parts = [
        paragraph("""
            *Word2Vec* is skip-gram with negative sampling (`examples/word2vec.py`). *LSTMs* read from both
            sides (`examples/elmo.py`); of a word the mean over *sentences* is taken. *Input embeddings* are
            rows of the encoder's table, and of a word of several subwords their mean. *Contextual* vectors
            are hidden states: of the word *alone* between [CLS] and [SEP], and the mean over *sentences* of
            the text that hold it. Spearman's correlation compares the cosines of pairs of words with people's
            judgements; each set is cut down to the pairs that all methods know. A correlation of n pairs is
            uncertain by about 1/√n."""),
        "![Correlation with people's judgements, by set and method](word_vectors.png)",
    ]
    for name, record in cases.items():
        parts += [f"### {name}", describe(record), correlation_table(record["pairs"])]
        parts += [meanings_table(record["meanings"]), neighbours_table(record["neighbours"])]
    return "\n\n".join(filter(None, parts))


def describe(record: Mapping[str, Any]) -> str:
    """What was compared."""
    word2vec, lstm = record["word2vec"], record["lstm"]
    sizes = lstm["settings"]
    return paragraph(f"""
        Word2Vec read {word2vec["settings"]["passes"]} × {word2vec["words"]:,} words
        ({", ".join(word2vec["text"])}), of which {word2vec["vocabulary"]:,} are different, and its vectors
        have {word2vec["settings"]["size"]} numbers; its loss ended at {word2vec["losses"][-1]:.3f}. The LSTMs
        ({sizes["num_hidden_layers"]} layers of {sizes["hidden_size"]} in each direction) read
        {lstm["tokens"] / 1e6:.1f} million tokens; their loss ended at {lstm["losses"][-1]:.3f}. Hidden
        states are those after layer {record["layer"]} of {record["layers"]}. Means are over at most
        {record["sentences"]} sentences per word. All methods know {record["words"]:,} words of the sets,
        among which the nearest are looked for.""")


def correlation_table(sets: Mapping[str, Mapping[str, Any]]) -> str:
    """A row a set."""
    rows = [
        [name, f"{one['shared']:,} of {one['pairs']:,}", *(told(one["spearman"][m], 2) for m in COLOURS)]
        for name, one in sets.items()
    ]
    return table(["Spearman's correlation", "pairs", *COLOURS], rows)


def meanings_table(meanings: Mapping[str, Mapping[str, Any] | None]) -> str:
    """A row a method, and which words were hardest."""
    rows = [
        [method, *(told(found[key] if found else None, 2) for key in ("same", "other", "share"))]
        for method, found in meanings.items()
    ]
    text = paragraph("""
        A word in sentences written by hand (`meanings.toml`): is it nearer to itself in the same meaning than
        in the other one? Equal cosines count ½, so a vector that ignores the sentence gets 0.50.""")
    header = ["a word with two meanings", "cosine, same meaning", "cosine, other meaning", "same is nearer"]
    parts = [text, table(header, rows)]
    if contextual := meanings.get(SENTENCES):
        words = ", ".join(f"{word} {told(share, 2)}" for word, share in contextual["words"].items())
        parts.append(f"By word, contextual: {words}.")
    return "\n\n".join(parts)


def neighbours_table(neighbours: Mapping[str, Mapping[str, Sequence[str]]]) -> str:
    """A row a word."""
    rows = [[word, *(" ".join(found[method]) for method in COLOURS)] for word, found in neighbours.items()]
    return table(["nearest", *COLOURS], rows) if rows else ""


def told(value: float | None, digits: int) -> str:
    """A number, or a dash where there is none."""
    return "–" if value is None else f"{value:.{digits}f}"


# -- As a picture ------------------------------------------------------------------------------------


def plot(cases: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    """Correlations as bars, a group a set, a panel a model."""
    figure, axes = new_axes(11, 0.6 + 3.2 * len(cases), nrows=len(cases), sharey=True, squeeze=False)
    width = 0.8 / len(COLOURS)
    for one, (name, record) in zip(axes[:, 0], cases.items(), strict=True):
        sets = {title: found for title, found in record["pairs"].items() if found["shared"] >= FEWEST}
        for place, (method, colour) in enumerate(COLOURS.items()):
            heights = [found["spearman"][method] for found in sets.values()]
            left = np.arange(len(sets)) + (place - (len(COLOURS) - 1) / 2) * width
            one.bar(left, [math.nan if h is None else h for h in heights], width, color=colour, label=method)
        ticks = [f"{title}\n{found['shared']:,} pairs" for title, found in sets.items()]
        one.set_xticks(range(len(sets)), ticks, fontsize=7)
        one.set_xlim(-0.6, max(len(sets), 1) - 0.4)
        one.axhline(0, color=GREY, linewidth=0.8)
        one.set_title(f"{name}, layer {record['layer']} of {record['layers']}", fontsize=10)
        one.set_ylabel("Spearman's correlation")
        one.grid(axis="x", visible=False)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(COLOURS), frameon=False)
    save_figure(figure, path)

"""``python -m benchmarks.domain_words RUN …``: what new tokens for a domain's words bring.

Reads finished runs of ``minibert pretrain`` over one corpus, with different vocabularies, and writes
``domain_words.md``. Losses per token of different vocabularies cannot be compared: the fewer tokens a text
has, the more each must say. So each model scores the same held-out sentences, and the sum is divided by their
words and by their characters.
"""

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.measure import ROOT
from benchmarks.results import paragraph, table
from minibert.bert import BertForMaskedLM
from minibert.data import open_corpus
from minibert.data.prepared import split_documents
from minibert.errors import UserError
from minibert.files import read_json, write_text
from minibert.tasks import pseudo_log_likelihoods
from minibert.tasks.pretraining_settings import SIZES, PretrainSettings
from minibert.text import open_tokenizer
from minibert.threads import set_threads
from minibert.train.progress import format_seconds
from minibert.variants import open_model

WORDS = (5, 40)  # of a sentence that is scored
SEED = 0


class Score(NamedTuple):
    """One run, and what its model makes of the sentences."""

    settings: PretrainSettings
    results: dict
    vocabulary: int
    tokens_per_word: float
    nats_per_word: float
    nats_per_character: float


def main() -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.domain_words", description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a run's folder")
    parser.add_argument("--sentences", type=int, default=300, metavar="N", help="default: %(default)s")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="default: %(default)s")
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results", metavar="FOLDER")
    options = parser.parse_args()
    set_threads(options.threads)
    try:
        runs = [PretrainSettings.from_dict(read_json(run / "config.json")) for run in options.runs]
        sentences = held_out_sentences(runs, options.sentences)
        scores = [score(run, settings, sentences) for run, settings in zip(options.runs, runs, strict=True)]
        write_text(options.results / "domain_words.md", "\n\n".join(page(scores, sentences)) + "\n")
        print(score_table(scores))
    except UserError as error:
        print(f"benchmarks.domain_words: error: {error}", file=sys.stderr)
        return 2
    return 0


def held_out_sentences(runs: Sequence[PretrainSettings], count: int) -> list[str]:
    """Random sentences of the documents that all runs held out. Raises UserError if these differ."""
    texts = {(run.corpus, run.layout, *run.split.values()) for run in runs}
    if len(texts) > 1:
        raise UserError("the runs have held out different texts; compare runs over one corpus with one seed")
    corpus = open_corpus(runs[0].corpus, runs[0].layout)
    is_held_out = split_documents(corpus.name, corpus.document_keys(), **runs[0].split)
    sentences = [
        sentence
        for document, held_out in zip(corpus.raw_documents(), is_held_out, strict=True)
        if held_out
        for sentence in document.sentences()
        if WORDS[0] <= len(sentence.split()) <= WORDS[1]
    ]
    different = sorted(set(sentences))
    chosen = np.random.default_rng(SEED).permutation(len(different))[:count]
    return [different[i] for i in chosen]


def score(run: Path, settings: PretrainSettings, sentences: Sequence[str]) -> Score:
    """Score the sentences with the run's model: each word given all others, its pieces from left to right."""
    tokenizer = open_tokenizer(run / "final")
    model = open_model(BertForMaskedLM, run / "final")
    room = model.config.longest_sequence - sum(tokenizer.special_counts(1))
    if any(len(ids) > room for ids in tokenizer.token_ids_batch(sentences)):
        raise UserError(f"{run}: a sentence has more than {room} tokens")
    nats = -pseudo_log_likelihoods(model, tokenizer, sentences, batch_size=64, progress=True).sum()
    words = sum(len(sentence.split()) for sentence in sentences)
    characters = sum(len("".join(sentence.split())) for sentence in sentences)
    tokens = sum(map(len, tokenizer.token_ids_batch(sentences)))
    results = read_json(run / "results.json")
    return Score(settings, results, len(tokenizer), tokens / words, nats / words, nats / characters)


def score_table(scores: Sequence[Score]) -> str:
    """A row for each run."""
    rows = [
        [
            f"`{each.settings.name}`",
            f"{each.vocabulary:,}",
            f"{each.tokens_per_word:.3f}",
            f"{each.results['held_out_mlm_loss']:.3f}",
            f"{each.nats_per_word:.3f}",
            f"{each.nats_per_character:.4f}",
            f"{each.settings.steps:,}",
            format_seconds(each.results["seconds"]),
        ]
        for each in scores
    ]
    header = ["run", "vocabulary", "tokens per word", "nats per masked token (not comparable)"]
    return table([*header, "nats per word", "nats per character", "steps", "training"], rows)


def command(settings: PretrainSettings) -> str:
    """What was typed, without what follows from the model; a folder from elsewhere is called $model."""
    follows = dict.fromkeys(("tokenizer", "vocab_size", *SIZES))
    typed = shlex.join([*settings.command.split(), *settings.replace(**follows).flags()])
    model = settings.model or ""
    return typed.replace(model, "$model") if Path(model).is_absolute() else typed


def _places(scores: Sequence[Score]) -> str:
    """Where the runs were made."""
    environments = [each.results["environment"] for each in scores]
    told = [f"{each['processor']} with --threads {each['threads']}" for each in environments]
    return "; ".join(dict.fromkeys(told))


def page(scores: Sequence[Score], sentences: Sequence[str]) -> list[str]:
    """The paragraphs of the page."""
    commands = [command(each.settings) for each in scores]
    runs = " ".join(str(each.settings.folder) for each in scores)
    return [
        "# New tokens for the words of a domain",
        paragraph(
            f"""The same model is trained further on the same text, in as many steps of as many tokens, with
            its own vocabulary and with new tokens that `minibert pretrain --learn-tokens` has learned from
            the text. Then each scores the same {len(sentences)} held-out sentences: how probable is each
            word, given all others, its pieces one after the other, while the later ones are hidden
            ([Likelihoods](../../docs/python.md#likelihoods))? A loss per token is no measure here. The fewer
            tokens a text has, the more each of them must say. So the nats are divided by words (what has
            white space around it) and by characters."""
        ),
        score_table(scores),
        paragraph(
            f"""Trained on {_places(scores)}. One run may have had more of its machine than another, so the
            times say little. One seed."""
        ),
        "\n".join(
            [
                "```sh",
                *commands,
                f"python -m benchmarks.domain_words {runs} --sentences {len(sentences)}",
                "```",
            ]
        ),
    ]


if __name__ == "__main__":
    sys.exit(main())

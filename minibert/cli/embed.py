"""``minibert embed``."""

import argparse
from typing import Any

from minibert.cli.flags import (
    BY_LENGTH,
    add_batch_flags,
    add_encoder_flags,
    add_model_flag,
    add_skip_flag,
    check_written,
    chosen_device,
    encoder_options,
    tell,
)
from minibert.cli.parser import add_command
from minibert.data.tasks import FORMATS, Faults, TextExample, read_texts, warn_of_cut
from minibert.data.tasks.tables import column_of
from minibert.errors import UserError
from minibert.tasks.embed import COMBINE, WORD_POOLING, TextEncoder, WordChoice
from minibert.tasks.vector_files import check_output, write_vectors, write_word_vectors


def add(commands: Any) -> None:
    """Add the command and its flags."""
    parser = add_command(
        commands,
        "embed",
        _run,
        "turn texts into vectors that can be compared by their cosine",
        "minibert embed --model all-MiniLM-L6-v2 --input sentences.txt --output vectors.npy",
        "minibert embed --model runs/tiny/final --pooling cls --input rows.tsv --column title --output v.npz",
        "minibert embed --model mini --input sentences.txt --tokens --layers -1,-2 --output words.parquet",
    )
    parser.usage = f"{parser.prog} --model FOLDER --input FILE --output FILE [flags]"
    add_model_flag(parser, "a BERT or sentence-transformers model", default=None)
    add_encoder_flags(parser)
    parser.add_argument(
        "--input", required=True, metavar="FILE", help="one text per line, or .tsv, .csv, .jsonl"
    )
    parser.add_argument(
        "--column", metavar="NAME", help="column of the texts, by name or number (default: text or sentence)"
    )
    parser.add_argument(
        "--header", action="store_true", help="the first line is no text, although --column is a number"
    )
    parser.add_argument("--format", choices=FORMATS, help="format of FILE, if its suffix does not tell")
    parser.add_argument(
        "--output",
        required=True,
        metavar="FILE",
        help="file to write: .npy (texts × H, float32), .npz (also line numbers), .jsonl or .parquet (also "
        "the texts); with --tokens .npz or .parquet, which say where each word is",
    )
    parser.add_argument(
        "--normalise",
        action=argparse.BooleanOptionalAction,
        default=argparse.SUPPRESS,
        help="scale every vector to length 1 (default: as the folder says)",
    )
    _add_word_flags(parser)
    add_skip_flag(parser)
    add_batch_flags(parser, None, BY_LENGTH)


def _add_word_flags(parser: argparse.ArgumentParser) -> None:
    words = parser.add_argument_group("vectors of words, in their context")
    words.add_argument("--tokens", action="store_true", help="a vector per word, instead of one per text")
    words.add_argument(
        "--pieces", action="store_true", default=argparse.SUPPRESS, help="a vector per token, not per word"
    )
    words.add_argument(
        "--layers",
        type=_numbers,
        default=argparse.SUPPRESS,
        metavar="N,N",
        help="hidden states: 0 are the embeddings, -1 is the last layer (default: -1)",
    )
    words.add_argument(
        "--combine",
        choices=COMBINE,
        default=argparse.SUPPRESS,
        help="several layers: averaged, one after the other, or kept apart (default: mean)",
    )
    words.add_argument(
        "--word-pooling",
        choices=WORD_POOLING,
        default=argparse.SUPPRESS,
        help="the tokens of a word: their mean, or the first (default: mean)",
    )


def _numbers(text: str) -> tuple[int, ...]:
    """Numbers with commas between."""
    return tuple(int(number) for number in text.split(","))


_numbers.__name__ = "whole numbers with commas between them"  # in the message for others


def _run(flags: argparse.Namespace) -> None:
    check_output(flags.output, flags.tokens)
    choice = _word_choice(flags)
    check_written(flags.output, flags.input)
    faults = Faults(flags.skip_bad)
    column = column_of(flags.column)
    texts = read_texts(flags.input, column, header=flags.header, file_format=flags.format, faults=faults)
    encoder = TextEncoder.open(flags.model, device=chosen_device(flags), **encoder_options(flags))
    if flags.tokens:
        _write_words(flags, encoder, texts, choice)
    else:
        vectors = encoder.embed([text.text for text in texts], flags.batch_size, progress=True)
        write_vectors(flags.output, texts, vectors)
        print(f"{len(vectors):,} vectors of {encoder.dimension} numbers written to {flags.output}")
    tell(faults)


def _word_choice(flags: argparse.Namespace) -> WordChoice:
    """The flags for words. Raises UserError for those without --tokens, and for others with it."""
    flag_of = {"pieces": "pieces", "layers": "layers", "combine": "combine", "pooling": "word_pooling"}
    given = {name: getattr(flags, flag) for name, flag in flag_of.items() if hasattr(flags, flag)}
    if given and not flags.tokens:
        flag = flag_of[next(iter(given))].replace("_", "-")
        raise UserError(f"--{flag} is for vectors of words; add --tokens")
    for name in ("pooling", "normalise"):
        if flags.tokens and hasattr(flags, name):
            raise UserError(f"--{name} is for vectors of texts; leave it out, or --tokens")
    return WordChoice(**given)


def _write_words(
    flags: argparse.Namespace, encoder: TextEncoder, texts: list[TextExample], choice: WordChoice
) -> None:
    parts = encoder.word_vectors([text.text for text in texts], choice, flags.batch_size, progress=True)
    count, cut = write_word_vectors(flags.output, texts, parts)
    size = " × ".join(map(str, choice.shape(encoder.dimension)))
    print(f"{count:,} vectors of {size} numbers written to {flags.output}")
    warn_of_cut(cut, len(texts), encoder.max_length)

"""``minibert embed``."""

import argparse
from typing import Any

from minibert.cli.flags import (
    add_batch_flags,
    add_encoder_flags,
    add_skip_flag,
    check_written,
    chosen_device,
    encoder_options,
    tell,
)
from minibert.cli.parser import add_command
from minibert.data.tasks import FORMATS, Faults, read_texts
from minibert.data.tasks.tables import column_of
from minibert.tasks.embed import TextEncoder, check_output, write_vectors


def add(commands: Any) -> None:
    """Add the command and its flags."""
    parser = add_command(
        commands,
        "embed",
        _run,
        "turn texts into vectors that can be compared by their cosine",
        "minibert embed --model all-MiniLM-L6-v2 --input sentences.txt --output vectors.npy",
        "minibert embed --model runs/tiny/final --pooling cls --input rows.tsv --column title --output v.npz",
    )
    parser.usage = f"{parser.prog} --model FOLDER --input FILE --output FILE [flags]"
    add_encoder_flags(parser, "a BERT or sentence-transformers model", required=True)
    parser.add_argument(
        "--input", required=True, metavar="FILE", help="one text per line, or .tsv, .csv, .jsonl"
    )
    parser.add_argument(
        "--column", metavar="NAME", help="column of the texts, by name or number (default: text or sentence)"
    )
    parser.add_argument("--format", choices=FORMATS, help="format of FILE, if its suffix does not tell")
    parser.add_argument(
        "--output",
        required=True,
        metavar="FILE",
        help="file to write: .npy (texts × H, float32), .npz (also line numbers), .jsonl (also the texts)",
    )
    parser.add_argument(
        "--normalise",
        action=argparse.BooleanOptionalAction,
        default=argparse.SUPPRESS,
        help="scale every vector to length 1 (default: as the folder says)",
    )
    add_skip_flag(parser)
    add_batch_flags(parser)


def _run(flags: argparse.Namespace) -> None:
    check_output(flags.output)
    check_written(flags.output, flags.input)
    faults = Faults(flags.skip_bad)
    texts = read_texts(flags.input, column_of(flags.column), file_format=flags.format, faults=faults)
    encoder = TextEncoder.open(flags.model, device=chosen_device(flags), **encoder_options(flags))
    vectors = encoder.embed([text.text for text in texts], flags.batch_size, progress=True)
    write_vectors(flags.output, texts, vectors)
    print(f"{len(vectors):,} vectors of {encoder.dimension} numbers written to {flags.output}")
    tell(faults)

"""``minibert tokenizer train | encode | decode``."""

import argparse
import itertools
import sys
from pathlib import Path
from typing import Any

from minibert.cli.flags import DEFAULT_MODEL
from minibert.cli.parser import add_command, add_group
from minibert.cli.setting_flags import add_setting_flags, check_effects, pretrain_settings
from minibert.data import open_corpus, running_text
from minibert.errors import UserError
from minibert.files import check_writable
from minibert.tasks.pretraining_settings import PretrainSettings
from minibert.text import learn_tokenizer, open_tokenizer


def add(commands: Any) -> None:
    """Add the command and its flags."""
    actions = add_group(commands, "tokenizer", "learn a vocabulary, or turn text into token ids and back")

    train = add_command(
        actions,
        "train",
        _train,
        "learn a vocabulary from a whole corpus",
        "minibert tokenizer train --corpus books/*.txt --vocab-size 8192 --output vocabulary",
    )
    names = "corpus layout variant vocab_size alphabet_limit lowercase"
    add_setting_flags(train, PretrainSettings, names=names.split())
    train.add_argument("--output", required=True, metavar="FOLDER", help="folder for the vocabulary")
    train.usage = f"{train.prog} --output FOLDER [--config FILE] [flags]"

    encode = add_command(
        actions,
        "encode",
        _encode,
        "print the tokens and token ids of a text",
        'minibert tokenizer encode --tokenizer vocabulary "Hello, world!"',
    )
    encode.add_argument("text", nargs="+", help="a text, or the two texts of a pair")

    decode = add_command(
        actions,
        "decode",
        _decode,
        "print the text that token ids stand for",
        "minibert tokenizer decode --tokenizer vocabulary 2 731 4 3",
    )
    decode.add_argument("ids", nargs="+", type=int, metavar="ID", help="token ids")
    decode.add_argument("--skip-special-tokens", action="store_true", help="leave out [CLS], [SEP], [PAD] …")
    for parser in (encode, decode):
        parser.add_argument(
            "--tokenizer",
            default=DEFAULT_MODEL,
            metavar="FOLDER",
            help="folder of a model or a vocabulary (default: %(default)s, which comes with minibert)",
        )


def _train(flags: argparse.Namespace) -> None:
    output = Path(flags.output)
    for name in ("vocab.txt", "vocab.json", "tokenizer.json"):
        if (output / name).exists():
            raise UserError(f"{output / name}: there is a vocabulary already; choose another --output")
    check_writable(output / "vocab.txt")
    settings = pretrain_settings(flags)
    check_effects(flags, settings)
    settings = settings.with_sizes()
    corpus = open_corpus(settings.corpus, settings.layout)
    print(corpus.describe())
    sentences = itertools.chain.from_iterable(map(running_text, corpus))
    tokenizer = learn_tokenizer(
        settings.variant,
        sentences,
        settings.vocabulary_size,
        alphabet_limit=settings.alphabet_limit,
        lowercase=settings.lowercase,
        progress=sys.stderr.isatty(),
    )
    tokenizer.save_pretrained(output)
    asked = settings.vocabulary_size
    less = f" (of {asked:,}; the corpus has no more)" if len(tokenizer) < asked else ""
    print(f"{len(tokenizer):,} tokens written to {output}{less}")


def _encode(flags: argparse.Namespace) -> None:
    if len(flags.text) > 2:
        raise UserError(f"expected a text or a pair of texts, got {len(flags.text)}; quote texts with spaces")
    tokenizer = open_tokenizer(flags.tokenizer)
    ids = tokenizer(*flags.text)["input_ids"]
    print(" ".join(tokenizer.tokens[i] for i in ids))
    print(" ".join(map(str, ids)))


def _decode(flags: argparse.Namespace) -> None:
    tokenizer = open_tokenizer(flags.tokenizer)
    print(tokenizer.decode(flags.ids, skip_special_tokens=flags.skip_special_tokens))

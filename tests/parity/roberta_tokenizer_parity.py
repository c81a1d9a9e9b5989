"""Compare minibert's RobertaTokenizer with Hugging Face's, as tokenizer_parity.py does it for BERT's.

    pip install tokenizers==0.23.3 && export PYTHONPATH=tests
    python tests/parity/roberta_tokenizer_parity.py --folder FOLDER --strings 1000000 --seed 0
    python tests/parity/roberta_tokenizer_parity.py --folder FOLDER [--prefix-space] --files FILE …

FOLDER is that of a tokenizer, with vocab.json and merges.txt. Of every text its ids, the places of its tokens
and the decoded text are compared. A difference is printed; the exit status tells whether there was one.
"""

import argparse
import sys
from pathlib import Path

from parity.tokenizer_parity import (
    POOLS,
    add_texts,
    compare,
    difference_with_spans,
    random_texts,
    report,
)
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers, processors
from tokenizers.models import BPE

from minibert.text import RobertaTokenizer
from minibert.text.byte_level import token_bytes
from minibert.text.normalise import WHITE_SPACE
from minibert.text.roberta_tokenizer import MASK, SPECIAL_TOKENS

ROBERTA_POOLS = [
    *POOLS,
    [*WHITE_SPACE, *"\x1c\x1d\x1e\x1f\u180e\u200b"],
    [" ", "  ", "   ", "\n", " \n", "\r\n"],
    ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S", "'", "''", "s", "ſ", "’s"],
    [*SPECIAL_TOKENS.values(), f" {MASK}", f"\u3000{MASK}", f"{MASK} ", "<mask", "<MASK>", "</s></s>", "<"],
]


def reference_tokenizer(ours: RobertaTokenizer) -> Tokenizer:
    """Hugging Face's tokenizer with the options of ours, put together as transformers does it."""
    theirs = Tokenizer(
        BPE(ours.vocab, ours.merges, continuing_subword_prefix="", end_of_word_suffix="", fuse_unk=False)
    )
    theirs.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=ours.add_prefix_space)
    theirs.decoder = decoders.ByteLevel()
    theirs.post_processor = processors.RobertaProcessing(
        ("</s>", ours.sep_id), ("<s>", ours.cls_id), ours.trim_offsets, ours.add_prefix_space
    )
    theirs.add_special_tokens(
        [
            AddedToken(token, lstrip=token == MASK and ours.mask_strips_space, normalized=False)
            for token in SPECIAL_TOKENS.values()
        ]
    )
    return theirs


def pieces(ours: RobertaTokenizer) -> list[str]:
    """The texts of the tokens, as far as they are texts."""
    return [token_bytes(token).decode("utf-8", errors="replace") for token in ours.tokens]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--prefix-space", action="store_true", help="with add_prefix_space")
    add_texts(parser)
    args = parser.parse_args()
    options = {"add_prefix_space": True} if args.prefix_space else {}
    ours = RobertaTokenizer.from_pretrained(args.folder, **options)
    theirs = reference_tokenizer(ours)
    strings = random_texts(args.strings, args.seed, pieces(ours), ROBERTA_POOLS)
    return report(args, strings, lambda texts: compare(ours, theirs, texts, difference_with_spans))


if __name__ == "__main__":
    sys.exit(main())

"""Compare minibert's tokenizer with Hugging Face's on random strings or on files, and count the differences.

    pip install tokenizers==0.23.3
    python tests/parity/tokenizer_parity.py --strings 1000000 --seed 0 [--cased]
    python tests/parity/tokenizer_parity.py --vocab VOCAB.TXT [--cased] --files FILE …

Of every text three things are compared: its ids; the text that those ids are decoded to; and the ids of
that text, which must be the first ids again, [UNK] and all. (Or, one uncased random string in 100,000: those
of the same characters in another order. Where an accent without a combining class, which is stripped,
stood between two marks with one, which are not, these are sorted the second time.) A difference is printed;
the exit status tells whether there was one.
"""

import argparse
import gzip
import random
import sys
import unicodedata
from collections.abc import Iterable, Iterator
from pathlib import Path

from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import WordPiece

from minibert.text import BertTokenizer, unicode_tables
from minibert.text.bert_tokenizer import SPECIAL_TOKENS
from minibert.text.normalise import code_points


def reference_tokenizer(ours: BertTokenizer) -> Tokenizer:
    """Hugging Face's tokenizer with the options of ours, put together as transformers does it."""
    theirs = Tokenizer(
        WordPiece(ours.vocab, unk_token="[UNK]", max_input_chars_per_word=ours.max_characters_per_word)
    )
    theirs.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=ours.split_cjk,
        strip_accents=ours.strip_accents,
        lowercase=ours.lowercase,
    )
    theirs.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    theirs.decoder = decoders.WordPiece(prefix="##")
    theirs.add_special_tokens(list(SPECIAL_TOKENS.values()))
    return theirs


def characters(ranges: str) -> list[str]:
    """Of a text such as "41-5A 61-7A"; surrogates left out."""
    return [chr(code) for run in code_points(ranges) for code in run if not 0xD800 <= code < 0xE000]


# What random strings are drawn from: each pool as likely as the others, whatever its size.
POOLS = [
    [*"abcdefghijklmnopqrstuvwxyz"],
    [*"ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"],
    characters("21-2F 3A-40 5B-60 7B-7E"),  # ASCII punctuation
    characters(
        "0-20 7F-A0 AD 1680 180E 2000-200F 2028-202F 205F-2064 3000 FEFF FFF9-FFFD"
    ),  # spaces and controls
    characters("A0-24F"),  # Latin with accents
    characters("370-5FF"),  # Greek, Cyrillic, Armenian, Hebrew
    characters("600-6FF 900-97F E00-E7F"),  # Arabic, Devanagari, Thai
    characters("1100-11FF AC00-AD00"),  # Hangul: letters and syllables
    characters("3040-30FF 4E00-4E40 9FFF 3400 20000 2A6DF 2B81F-2B822 2B91F-2B921 F900-FAFF 2F800-2F810"),
    [char for char in characters("0-1FFFF") if unicodedata.combining(char)],  # marks that NFD sorts
    characters("1F1E6-1F1FF 1F3FB-1F3FF 1F466-1F469 2640-2642 2764 200D FE0F 20E3"),  # pieces of emoji
    characters("0-10FFFF"),
    [char for char in characters("0-10FFFF") if unicodedata.category(char) not in ("Cn", "Co", "Lo")],
    characters(" ".join(vars(unicode_tables)[name] for name in vars(unicode_tables) if name.isupper())),
    [*SPECIAL_TOKENS.values(), "[MASK", "[mask]", "MASK]", "[MA\x0bSK]", "##", "##ing", "[CLS][SEP]"],
    [" ", "  ", "\n", "\t"],
]


def character_vocabulary() -> list[str]:
    """Each character that the pools or their normal forms hold, starting and continuing a word."""
    drawn = {
        char
        for pool in POOLS
        for char in pool
        if len(char) == 1 and unicodedata.category(char) not in ("Cn", "Co")
    }
    forms = {
        form
        for char in drawn
        for text in (char, char.lower(), unicodedata.normalize("NFD", char))
        for form in text
    }
    chars = sorted(drawn | forms)
    return [*SPECIAL_TOKENS.values(), *chars, *("##" + char for char in chars)]


def random_text(rng: random.Random, vocabulary: list[str]) -> str:
    """A string that mixes a few of the pools with pieces of the vocabulary, at times in very long words."""
    pools = rng.sample(POOLS, rng.randint(1, 4))
    length = rng.choice((3, 10, 30)) if rng.random() < 0.97 else rng.randint(90, 220)
    parts = [
        rng.choice(vocabulary).removeprefix("##") if rng.random() < 0.2 else rng.choice(rng.choice(pools))
        for _ in range(length)
    ]
    return (" " if rng.random() < 0.2 else "").join(parts)


def random_texts(count: int, seed: int, vocabulary: list[str]) -> Iterator[str]:
    rng = random.Random(seed)
    return (random_text(rng, vocabulary) for _ in range(count))


def difference(ours: BertTokenizer, theirs: Tokenizer, text: str) -> str | None:
    """The first difference on a text, if there is one: what it is, ours, and what it should be."""
    ids, expected = ours.token_ids(text), theirs.encode(text, add_special_tokens=False)
    if ids != expected.ids:
        return _report(text, "tokens", ours.tokenize(text), expected.tokens)
    decoded, expected_text = ours.decode(ids), theirs.decode(ids, skip_special_tokens=False)
    if decoded != expected_text:
        return _report(text, "decoded", decoded, expected_text)
    again = theirs.encode(decoded, add_special_tokens=False)
    if ours.token_ids(decoded) != again.ids:
        return _report(text, "tokens of the decoded text", ours.tokenize(decoded), again.tokens)
    if again.ids != ids and sorted(ours.decode(again.ids)) != sorted(decoded):
        return _report(text, "the ids do not come back", again.tokens, expected.tokens)
    return None


def _report(text: str, what: str, ours: object, theirs: object) -> str:
    return f"{text!a}: {what}\n  ours   {ours!a}\n  theirs {theirs!a}"


def compare(ours: BertTokenizer, theirs: Tokenizer, texts: Iterable[str]) -> tuple[int, list[str]]:
    """How many texts there were, and the differences."""
    found = [difference(ours, theirs, text) for text in texts]
    return len(found), [report for report in found if report]


def lines(path: str) -> Iterator[str]:
    with (gzip.open if path.endswith(".gz") else open)(path, "rt", encoding="utf-8-sig", newline="") as file:
        yield from file


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--vocab", type=Path, help="a vocab.txt (default: single characters, which hides nothing in [UNK])"
    )
    parser.add_argument("--cased", action="store_true")
    parser.add_argument("--strings", type=int, default=0, help="how many random strings")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--files", nargs="*", default=[], help="text files, .gz or not, compared line by line"
    )
    args = parser.parse_args()
    if args.vocab:
        ours = BertTokenizer.from_pretrained(args.vocab, lowercase=not args.cased)
    else:
        ours = BertTokenizer(character_vocabulary(), lowercase=not args.cased)
    theirs = reference_tokenizer(ours)
    sources = {path: lines(path) for path in args.files}
    if args.strings:
        sources[f"{args.strings} random strings"] = random_texts(args.strings, args.seed, ours.tokens)
    if not sources:
        parser.error("nothing to compare: give --strings or --files")
    total = 0
    for name, texts in sources.items():
        compared, found = compare(ours, theirs, texts)
        print("\n".join([*found[:10], f"{name}: {compared:,} texts, {len(found)} differences"]), flush=True)
        total += len(found)
    return int(total > 0)


if __name__ == "__main__":
    sys.exit(main())

"""Compare minibert's tokenizer with Hugging Face's on random strings or on files, and count the differences.

    pip install tokenizers==0.23.3
    python tests/parity/tokenizer_parity.py --strings 1000000 --seed 0 [--cased]
    python tests/parity/tokenizer_parity.py --vocab VOCAB.TXT [--cased] --files FILE …

Of every text three things are compared: its ids (by itself, and among many texts); the text that those ids
are decoded to; and the ids of that text, which must be the first ids again, [UNK] and all. (Or, one uncased
random string in 100,000: those of the same characters in another order. Where an accent without a combining
class, which is stripped, stood between two marks with one, which are not, these are sorted the second time.)
A difference is printed; the exit status tells whether there was one.
"""

import argparse
import gzip
import random
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import WordPiece

from minibert.errors import UserError
from minibert.text import BertTokenizer, PretrainedTokenizer, unicode_tables
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


def random_text(rng: random.Random, vocabulary: list[str], pools: list[list[str]] = POOLS) -> str:
    """A string that mixes a few of the pools with pieces of the vocabulary, at times in very long words."""
    pools = rng.sample(pools, rng.randint(1, 4))
    length = rng.choice((3, 10, 30)) if rng.random() < 0.97 else rng.randint(90, 220)
    parts = [
        rng.choice(vocabulary).removeprefix("##") if rng.random() < 0.2 else rng.choice(rng.choice(pools))
        for _ in range(length)
    ]
    return (" " if rng.random() < 0.2 else "").join(parts)


def random_texts(
    count: int, seed: int, vocabulary: list[str], pools: list[list[str]] = POOLS
) -> Iterator[str]:
    rng = random.Random(seed)
    return (random_text(rng, vocabulary, pools) for _ in range(count))


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


def difference_with_spans(ours: PretrainedTokenizer, theirs: Tokenizer, text: str) -> str | None:
    """The same of any kind of tokenizer: its ids, where in the text the tokens are, the decoded text."""
    ids, spans = ours.token_ids_with_spans(text)
    expected = theirs.encode(text, add_special_tokens=False)
    if ids != expected.ids:
        return _report(text, "tokens", ours.tokenize(text), expected.tokens)
    if spans != expected.offsets:
        return _report(text, "spans", spans, expected.offsets)
    decoded, expected_text = ours.decode(ids), theirs.decode(ids, skip_special_tokens=False)
    return None if decoded == expected_text else _report(text, "decoded", decoded, expected_text)


def _report(text: str, what: str, ours: object, theirs: object) -> str:
    return f"{text!a}: {what}\n  ours   {ours!a}\n  theirs {theirs!a}"


def compare(
    ours: Any,
    theirs: Tokenizer,
    texts: Iterable[str],
    difference: Callable[[Any, Tokenizer, str], str | None] = difference,
) -> tuple[int, list[str]]:
    """How many texts there were, and the differences.

    Few texts are tokenized in Python, many together by compiled loops; both ways are compared.
    """
    count, found, left = 0, [], iter(texts)
    while some := [*islice(left, 1000)]:
        count += len(some)
        found += [report for text in some if (report := difference(ours, theirs, text))]
        together = ours.token_ids_batch(some)
        found += [
            f"{text!a}: other ids among many texts"
            for text, ids in zip(some, together, strict=True)
            if ids != ours.token_ids(text)
        ]
    return count, found


def random_call(
    rng: random.Random, vocabulary: list[str], pools: list[list[str]] = POOLS
) -> tuple[tuple, dict]:
    """Arguments for a tokenizer: one text or some, perhaps in pairs; any padding, truncation and length."""

    def text() -> str:
        whole = random_text(rng, vocabulary, pools)
        return whole[: rng.choice((0, 2, 10, 30, 200))]

    texts = [[text() for _ in range(rng.randint(1, 4))]]
    if rng.random() < 0.6:
        texts.append([text() for _ in texts[0]])
    if rng.random() < 0.3:
        texts = [batch[0] for batch in texts]
    return tuple(texts), dict(
        padding=rng.choice([False, True, "longest", "max_length"]),
        truncation=rng.choice([None, False, True, "longest_first", "only_first", "only_second"]),
        max_length=rng.choice([None, 0, 1, 2, 3, 4, 5, 8, 13, 30, 64]),
    )


def compare_calls(
    ours: PretrainedTokenizer, theirs: Any, calls: Iterable[tuple[tuple, dict]]
) -> tuple[int, int, list]:
    """Calls that both answered, calls that both refused, and the calls where the answers differ.

    Whatever is asked for, we give what transformers gives, or refuse. Refused is what transformers refuses,
    and where it silently does something else: with a max_length below the special tokens it does not
    truncate; with just their number, "only_first" and "only_second" empty both texts; padding="max_length"
    without a max_length does not pad.
    """
    given, refused, differing = 0, 0, []
    for texts, options in calls:
        try:
            expected = dict(theirs(*texts, return_token_type_ids=True, **options))
        except Exception:  # the Rust library raises no narrower class
            expected = None
        try:
            result = ours(*texts, **options)
        except UserError:
            specials, length = len(ours.with_special_tokens(*[[]] * len(texts))[0]), options["max_length"]
            one_sided = options["truncation"] in ("only_first", "only_second")
            silent = length is None or length < specials or (length == specials and one_sided)
            assert expected is None or silent, (texts, options)
            refused += expected is None
            continue
        assert expected is not None, (texts, options)
        given += 1
        if result != expected:
            differing.append((texts, options))
    return given, refused, differing


def lines(path: str) -> Iterator[str]:
    with (gzip.open if path.endswith(".gz") else open)(path, "rt", encoding="utf-8-sig", newline="") as file:
        yield from file


def add_texts(parser: argparse.ArgumentParser) -> None:
    """The flags for what is compared."""
    parser.add_argument("--strings", type=int, default=0, help="how many random strings")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--files", nargs="*", default=[], help="text files, .gz or not, compared line by line"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--vocab", type=Path, help="a vocab.txt (default: single characters, which hides nothing in [UNK])"
    )
    parser.add_argument("--cased", action="store_true")
    add_texts(parser)
    args = parser.parse_args()
    if args.vocab:
        ours = BertTokenizer.from_pretrained(args.vocab, lowercase=not args.cased)
    else:
        ours = BertTokenizer(character_vocabulary(), lowercase=not args.cased)
    strings = random_texts(args.strings, args.seed, ours.tokens)
    return report(args, strings, lambda texts: compare(ours, reference_tokenizer(ours), texts))


def report(
    args: argparse.Namespace,
    strings: Iterator[str],
    compare: Callable[[Iterable[str]], tuple[int, list[str]]],
) -> int:
    """Compare the files and strings that were asked for, print what differs, and give the exit status."""
    sources = {path: lines(path) for path in args.files}
    if args.strings:
        sources[f"{args.strings} random strings"] = strings
    if not sources:
        sys.exit("nothing to compare: give --strings or --files")
    total = 0
    for name, texts in sources.items():
        compared, found = compare(texts)
        print("\n".join([*found[:10], f"{name}: {compared:,} texts, {len(found)} differences"]), flush=True)
        total += len(found)
    return int(total > 0)


if __name__ == "__main__":
    sys.exit(main())

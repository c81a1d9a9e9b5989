"""Compare minibert's ALBERT and XLNet tokenizers with transformers' on random strings or on files.

    pip install -e . -r tests/parity/requirements.txt
    PYTHONPATH=tests python tests/parity/unigram_parity.py --strings 1000000 --seed 0 [--model SPIECE.MODEL]
    PYTHONPATH=tests python tests/parity/unigram_parity.py --model SPIECE.MODEL --files FILE …

Of every text four things are compared: its ids, where they stand, the text that they are decoded to, and the
ids of that text. A difference is printed; the exit status tells whether there was one.

Where tokens stand is left out for texts in which transformers' places are shifted: those where the rules of
normalisation drop characters at the beginning, or right after one that became several, or where they make
several characters of a cluster of several.
"""

import argparse
import random
import sys
import tempfile
import unicodedata
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path

import sentencepiece
import transformers
from parity import tokenizer_parity
from tokenizers import Tokenizer

from minibert.text import AlbertTokenizer, XLNetTokenizer
from minibert.text.sentencepiece import SentencePieceFile, read_sentencepiece
from minibert.text.unigram_files import AddedToken
from minibert.text.unigram_tokenizer import UnigramTokenizer

CLASSES: tuple[type[UnigramTokenizer], ...] = (AlbertTokenizer, XLNetTokenizer)
RULES = ("nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf")  # of normalisation, that SentencePiece brings
DECLARED = list('()"-.–£€')  # what released models declare as user-defined
POOLS = [
    *tokenizer_parity.POOLS,
    [
        "``",
        "''",
        "'",
        "`",
        "▁",
        "▁▁",
        "<unk>",
        "<UNK>",
        "<s>",
        "<mask>",
        "  <mask>",
        "[MASK]",
        "1,",
        "23,0",
        *DECLARED,
    ],
    tokenizer_parity.characters("0-20 7F-A0 1680 200B-200F 2028-2029 2581 FEFF FFFD"),
]


def reference_tokenizer(ours: UnigramTokenizer) -> Tokenizer:
    """What transformers makes of the folder that ours writes."""
    with tempfile.TemporaryDirectory() as folder:
        ours.save_pretrained(folder)
        return getattr(transformers, type(ours).__name__).from_pretrained(folder).backend_tokenizer


def learned_by_sentencepiece(
    kind: type[UnigramTokenizer], texts: Iterable[str], size: int, **options
) -> bytes:
    """A spiece.model with the special tokens and the declared ones of ALBERT or XLNet."""
    if kind is AlbertTokenizer:
        special = dict(pad_id=0, unk_id=1, bos_id=-1, eos_id=-1, control_symbols=["[CLS]", "[SEP]", "[MASK]"])
        declared = DECLARED
    else:
        special = dict(control_symbols=["<cls>", "<sep>", "<pad>", "<mask>", "<eod>"])
        declared = ["<eop>", *DECLARED]
    return trained(texts, vocab_size=size, user_defined_symbols=declared, **special, **options)


def trained(texts: Iterable[str], **options) -> bytes:
    """A SentencePiece model of these texts."""
    with tempfile.TemporaryDirectory() as folder:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts),
            model_prefix=f"{folder}/m",
            num_threads=1,
            max_sentence_length=10**6,
            minloglevel=2,
            **options,
        )
        return Path(folder, "m.model").read_bytes()


def read(model: bytes) -> SentencePieceFile:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "spiece.model")
        path.write_bytes(model)
        return read_sentencepiece(path)


def rules_named(name: str) -> bytes | None:
    """The compiled rules of normalisation that SentencePiece has under this name."""
    if name == "none":
        return None
    return read(trained(["a b"] * 3, vocab_size=6, normalization_rule_name=name)).charsmap


def character_tokenizer(kind: type[UnigramTokenizer], seed: int, **options) -> UnigramTokenizer:
    """Single characters and longer pieces of them, whose scores often tie."""
    rng = random.Random(seed)
    drawn = {char for pool in POOLS for text in rng.sample(pool, min(len(pool), 1000)) for char in text}
    forms = {
        form
        for char in sorted(drawn)
        for text in (char.lower(), unicodedata.normalize("NFKD", char))
        for form in text
    }
    chars = [c for c in sorted(drawn | forms) if rng.random() < 0.9 and not 0xD800 <= ord(c) < 0xE000]
    letters = "abcdefgABCDEFGéàü1,.()'\"-ↂ가각αβ"
    longer = {
        rng.choice(("", "▁")) + "".join(rng.choices(letters, k=rng.randint(1, 4))) for _ in range(20_000)
    }
    special = [token.content for token in kind.added]
    pieces = [
        *special,
        *(piece for piece in dict.fromkeys(["▁", *chars, *sorted(longer)]) if piece not in special),
    ]
    scores = [rng.choice((-1.0, -2.0, -2.5, -3.1, -5.2, -7.3, rng.uniform(-12, -1))) for _ in pieces]
    return kind(list(zip(pieces, scores, strict=True)), **options)


def random_texts(count: int, seed: int, ours: UnigramTokenizer) -> Iterator[str]:
    """Like tokenizer_parity's, from more pools, with ▁ as a space."""
    rng = random.Random(seed)
    for _ in range(count):
        pools = rng.sample(POOLS, rng.randint(1, 4))
        length = rng.choice((3, 6, 15)) if rng.random() < 0.99 else rng.randint(60, 120)
        parts = [
            rng.choice(ours.tokens).replace("▁", " ") if rng.random() < 0.3 else rng.choice(rng.choice(pools))
            for _ in range(length)
        ]
        yield (" " if rng.random() < 0.2 else "").join(parts)


def places_are_shifted(ours: UnigramTokenizer, text: str) -> bool:
    """Whether dropped characters shift transformers' places; see above."""
    normaliser = ours._normaliser
    if normaliser.character_map is None:
        return False
    begin, segments = 0, []
    for match in ours._added.finditer(text):
        segments.append(text[begin : match.start()])
        begin = match.end()
    segments.append(text[begin:])
    for segment in segments:
        before = segment.replace("``", '"').replace("''", '"')
        if not normaliser.keep_accents:
            before = normaliser._rules.decompose(before, "NFKD")
        before = before.translate(normaliser._finish)
        parts = [*normaliser.character_map.parts(before), (len(before), "end")]
        if parts[0][1] == "" or any(
            len(new) > 1 and (after == "" or stop - start > 1)
            for (start, new), (stop, after) in pairwise(parts)
        ):
            return True
    return False


def difference(ours: UnigramTokenizer, theirs: Tokenizer, text: str) -> str | None:
    """The first difference on a text, if there is one: what it is, ours, and what it should be."""
    ids, expected = ours.token_ids(text), theirs.encode(text, add_special_tokens=False)
    if ids != expected.ids:
        return _report(text, "tokens", ours.tokenize(text), expected.tokens)
    if (found := ours.token_ids_with_spans(text)) != (ids, expected.offsets) and not places_are_shifted(
        ours, text
    ):
        return _report(text, f"places of {expected.tokens}", found[1], expected.offsets)
    decoded, expected_text = ours.decode(ids), theirs.decode(ids, skip_special_tokens=False)
    if decoded != expected_text:
        return _report(text, "decoded", decoded, expected_text)
    again = theirs.encode(decoded, add_special_tokens=False)
    if ours.token_ids(decoded) != again.ids:
        return _report(text, "tokens of the decoded text", ours.tokenize(decoded), again.tokens)
    return None


def _report(text: str, what: str, ours: object, theirs: object) -> str:
    return f"{text!a}: {what}\n  ours   {ours!a}\n  theirs {theirs!a}"


def compare(ours: UnigramTokenizer, theirs: Tokenizer, texts: Iterable[str]) -> tuple[int, list[str]]:
    """How many texts there were, and the differences."""
    return tokenizer_parity.compare(ours, theirs, texts, difference)


def tokenizers(model: bytes | None) -> Iterator[tuple[str, UnigramTokenizer]]:
    """What is compared: both classes, with and without each set of rules and each option."""
    for kind in CLASSES:
        if model is not None:
            file = read(model)
            if {token.content for token in kind.added} <= {piece for piece, _ in file.pieces}:
                declared = [AddedToken(token, special=False) for token in DECLARED]
                for added in (None, [*kind.added, *declared]):
                    name = f"{kind.__name__}{', declared tokens' * bool(added)}"
                    yield name, kind(file.pieces, charsmap=file.charsmap, added_tokens=added)
            continue
        for number, rules in enumerate(("none", *RULES)):
            for lowercase in (False, True):
                options = dict(charsmap=rules_named(rules), lowercase=lowercase)
                name = f"{kind.__name__}, {rules}{', lower case' * lowercase}"
                yield name, character_tokenizer(kind, number, **options)
        if kind is AlbertTokenizer:
            for rules in RULES:
                options = dict(charsmap=rules_named(rules), keep_accents=True, lowercase=rules == "nfkc")
                yield f"{kind.__name__}, {rules}, accents kept", character_tokenizer(kind, 7, **options)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--model", type=Path, help="a SentencePiece model (default: made-up ones, with all rules)"
    )
    parser.add_argument("--strings", type=int, default=0, help="how many random strings, in all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--files", nargs="*", default=[], help="text files, .gz or not, compared line by line"
    )
    args = parser.parse_args()
    if not args.strings and not args.files:
        parser.error("nothing to compare: give --strings or --files")
    named = list(tokenizers(args.model.read_bytes() if args.model else None))
    total = 0
    for number, (name, ours) in enumerate(named):
        theirs = reference_tokenizer(ours)
        sources = {path: tokenizer_parity.lines(path) for path in args.files}
        if args.strings:
            texts = random_texts(-(-args.strings // len(named)), args.seed + number, ours)
            sources["random strings"] = texts
        for source, texts in sources.items():
            compared, found = compare(ours, theirs, texts)
            print(
                "\n".join([*found[:5], f"{name}, {source}: {compared:,} texts, {len(found)} differences"]),
                flush=True,
            )
            total += len(found)
    return int(total > 0)


if __name__ == "__main__":
    sys.exit(main())

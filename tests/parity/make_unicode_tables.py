"""Make minibert/text/unicode_tables.py: where Hugging Face's tokenizers depart from Python's Unicode.

The fast tokenizers' Rust code carries Unicode tables of several ages, frozen when its libraries were
built, whereas each Python brings the tables of its own year. For every code point this script compares
what the tokenizers do with what the rules in minibert/text/normalise.py say under the oldest Unicode
that we support (that of the running Python 3.11) and under the newest (that of `unicodedata2`), and
writes down the code points where either disagrees. So the tokens do not depend on the Python.

    pip install tokenizers==0.23.3 unicodedata2==18.0.0
    PYTHONPATH=tests python3.11 tests/parity/make_unicode_tables.py
"""

import textwrap
import unicodedata
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import tokenizers
import unicodedata2
from charsmaps import compiled
from tokenizers import normalizers, pre_tokenizers

OUTPUT = Path(__file__).resolve().parents[2] / "minibert" / "text" / "unicode_tables.py"
UNICODES = (unicodedata, unicodedata2)
CHARACTERS = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]


def bert(**options: bool) -> Callable[[str], str]:
    """One step of the BERT normaliser, the others switched off."""
    steps = dict(clean_text=False, handle_chinese_chars=False, strip_accents=False, lowercase=False)
    return normalizers.BertNormalizer(**{**steps, **options}).normalize_str


def ranges(characters: Iterable[str]) -> str:
    """Code points as text: "A7CB-A7CC 1C89"."""
    runs: list[list[int]] = []
    for code in sorted(map(ord, characters)):
        if runs and runs[-1][1] == code - 1:
            runs[-1][1] = code
        else:
            runs.append([code, code])
    return " ".join(f"{first:X}" if first == last else f"{first:X}-{last:X}" for first, last in runs)


def disagreements(does: Callable[[str], bool], rules: list[Callable[[str], bool]]) -> tuple[str, str]:
    """Characters with the property in the tokenizer but not by some rule, and the other way round."""
    extra, missing = [], []
    for char in CHARACTERS:
        truth = does(char)
        if any(rule(char) != truth for rule in rules):
            (extra if truth else missing).append(char)
    return ranges(extra), ranges(missing)


def by_category(*starts: str) -> list[Callable[[str], bool]]:
    return [lambda char, u=u: u.category(char).startswith(starts) for u in UNICODES]


def decomposed(normalise: Callable[[str], str], char: str) -> tuple[str, ...]:
    """What tells decomposition and combining class: the form alone, and beside marks of class 1 and 230."""
    return tuple(normalise(text) for text in (char, f"a{char}\u0334", f"a\u0301{char}"))


def is_punctuation(char: str) -> bool:
    return len(pre_tokenizers.BertPreTokenizer().pre_tokenize_str(f"a{char}b")) == 3


def stays_with(neighbour: str, char: str) -> bool:
    """Whether the byte-level pre-tokenizer keeps a character together with such neighbours."""
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return len(byte_level.pre_tokenize_str(neighbour + char + neighbour)) == 1


def unknown_to(form: str) -> str:
    """Characters whose decomposition, NFD or NFKD, or combining class is younger than the tokenizer's."""
    rust = getattr(normalizers, form)().normalize_str
    pythons = [lambda text, u=u: u.normalize(form, text) for u in UNICODES]
    unknown = [
        c for c in CHARACTERS if any(decomposed(rust, c) != decomposed(python, c) for python in pythons)
    ]
    assert all(rust(char) == char for char in unknown), "an unknown character must be left alone"
    return ranges(unknown)


def lower_case() -> tuple[str, str]:
    """Capitals that only the tokenizer lowers, as "capital-small", and those that only new Unicode does."""
    lower = bert(lowercase=True)
    lowered = [char for char in CHARACTERS if lower(char) != char.lower()]
    young = [
        char
        for char in CHARACTERS
        if lower(char) == char.lower() == char
        and unicodedata.category(char) == "Cn"
        and unicodedata2.category(char) in ("Lu", "Lt")
    ]
    return " ".join(f"{ord(char):X}-{ord(lower(char)):X}" for char in lowered), ranges(young)


def clusters() -> dict[str, tuple[str, str]]:
    """What makes characters stand together in a grapheme cluster, of which compiled rules see the whole.

    Each map has one rule only: that of a whole cluster replaces what follows "a"; "e" and its accent are
    replaced unless something before them belongs to their cluster; two accents, if nothing before does.
    """
    extends, accent, accents = (
        normalizers.Precompiled(compiled({key: "Z"})).normalize_str
        for key in ("a", "e\u0301", "\u0340\u0301")
    )
    return {
        "EXTENDS": (
            "In a cluster with the character before: marks, joiners.",
            ranges(char for char in CHARACTERS if extends(f"a{char}") == "Z"),
        ),
        "PREPENDED": (
            "In a cluster with the character after.",
            ranges(char for char in CHARACTERS if accent(f"{char}e\u0301") == f"{char}e\u0301"),
        ),
        "CONTROLS": (
            "In no cluster with marks after it (of up to three bytes; longer ones make no difference).",
            ranges(char for char in CHARACTERS if accents(f"{char}\u0340\u0301") == f"{char}Z"),
        ),
    }


def main() -> None:
    clean, strip = bert(clean_text=True), bert(strip_accents=True)
    spaces_only = " \t\n\r\u2028\u2029"
    tables: dict[str, tuple[str, str]] = {}
    removed = disagreements(lambda char: clean(char) == "", by_category("Cc", "Cf", "Co"))
    assert set(removed[0].split()) <= {"0", "FFFD"}, removed
    kept = [
        char
        for char in CHARACTERS
        if clean(char) == char and any(rule(char) for rule in by_category("Cc", "Cf", "Co"))
    ]
    spaces = disagreements(
        lambda char: clean(char) == " ", [lambda c, r=r: r(c) or c in spaces_only for r in by_category("Zs")]
    )
    assert spaces == ("", ""), spaces
    tables["KEPT"] = (
        "Controls, formats and private characters by category, which the tokenizer keeps.",
        ranges(kept),
    )
    marks, not_marks = disagreements(lambda char: strip(char) == "", by_category("Mn"))
    tables["MARKS"] = ("Stripped with the accents though not of category Mn (everywhere).", marks)
    tables["NOT_MARKS"] = ("Category Mn (somewhere), yet not stripped.", not_marks)
    punctuation, not_punctuation = disagreements(
        lambda char: char > "\x7f" and is_punctuation(char),
        [lambda char, r=r: char > "\x7f" and r(char) for r in by_category("P")],
    )
    tables["PUNCTUATION"] = ("Split off though not of category P* (everywhere).", punctuation)
    tables["NOT_PUNCTUATION"] = ("Category P* (somewhere), yet not split off.", not_punctuation)
    for name, category, example in (("LETTERS", "L", "a"), ("NUMBERS", "N", "0")):
        young, too_young = disagreements(partial(stays_with, example), by_category(category))
        tables[name] = (f"Category {category}* to the byte-level tokenizer (not everywhere).", young)
        tables[f"NOT_{name}"] = (f"Category {category}* (somewhere), not to the byte-level one.", too_young)
    lowered, not_lowered = lower_case()
    tables["LOWERED"] = ("Capitals too young for Python 3.11, as pairs capital-small.", lowered)
    tables["NOT_LOWERED"] = ("Capitals too young for the tokenizer.", not_lowered)
    tables["NOT_DECOMPOSED"] = (
        "Decomposition or combining class unknown to the tokenizer: left alone by NFD.",
        unknown_to("NFD"),
    )
    tables["NOT_DECOMPOSED_COMPATIBLY"] = (
        "The same of NFKD.",
        unknown_to("NFKD"),
    )
    strip_all = normalizers.StripAccents().normalize_str
    combining, not_combining = disagreements(lambda char: strip_all(char) == "", by_category("M"))
    tables["COMBINING"] = ("Stripped by StripAccents though not of category M* (everywhere).", combining)
    tables["NOT_COMBINING"] = ("Category M* (somewhere), yet not stripped by it.", not_combining)
    tables |= clusters()

    lines = [
        '"""Where Hugging Face\'s tokenizers depart from the running Python\'s Unicode data.',
        "",
        f"Made by tests/parity/make_unicode_tables.py from tokenizers {tokenizers.__version__} and Unicode "
        f"{unicodedata.unidata_version} to {unicodedata2.unidata_version}; do not edit.",
        'Code points in hexadecimal, "first-last" for a run. See normalise.py and charsmap.py for their use.',
        '"""',
    ]
    for name, (comment, text) in tables.items():
        lines += ["", f"# {comment}", *assignment(name, text)]
    OUTPUT.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{OUTPUT}: " + ", ".join(f"{name} {len(text.split())}" for name, (_, text) in tables.items()))


def assignment(name: str, text: str) -> list[str]:
    """Lines of Python that give ``name`` the value ``text``."""
    lines = textwrap.wrap(text, width=100)
    if len(lines) == 1 and len(name) + len(text) < 105:
        return [f'{name} = "{text}"']
    return [f"{name} = (", *(f'    "{line} "' for line in lines[:-1]), f'    "{lines[-1]}"', ")"]


if __name__ == "__main__":
    main()

"""07 WordPiece: normalising, cutting a word, and one step of learning the vocabulary."""

import re
import unicodedata
from collections import Counter
from collections.abc import Mapping
from itertools import pairwise

from minibert.course.exercise import Trial, exercise
from minibert.text.normalise import ASCII_PUNCTUATION, Normaliser
from minibert.text.wordpiece import CONTINUATION, WordPiece

# -- Normalising ------------------------------------------------------------------------------------

TEXTS = (
    "Héllo, World!",
    "naïve CAFÉ",
    "don't",
    "C++ costs $5",
    "tabs\tand\nnew  lines",
    "“½ ﬁne”",
    "Groß",
    "snake_case",
    "5€ → 4£",
    "กัน की",  # the mark above the Thai letter has no class; the last sign is a vowel, Mc, which stays
)


@exercise(
    "07",
    outputs="words",
    trials=lambda draw: [Trial({"text": text}, repr(text)) for text in TEXTS],
    reference=lambda text: Normaliser().words(text),
    level=2,
    minutes=15,
    needs="section 2, and `unicodedata` as it is used there",
    hints=(
        "Three things have to be done: letters become lower case, accents are removed, and each punctuation "
        "character becomes a word of its own.",
        "unicodedata.normalize('NFD', text) takes é apart into e and an accent of category Mn. Then the "
        "accents can be dropped.",
        "For every character: leave it out if its category is Mn; put spaces around it if its category "
        "begins with P or it is one of the signs of ASCII (string.punctuation). Then join all, and split at "
        "white space.",
    ),
)
def normalise(text):
    out = []
    for char in unicodedata.normalize("NFD", text.lower()):
        category = unicodedata.category(char)
        if category == "Mn":
            continue
        is_punctuation = category.startswith("P") or char in ASCII_PUNCTUATION
        out.append(f" {char} " if is_punctuation else char)
    return "".join(out).split()


def _is_punctuation(char):
    return unicodedata.category(char).startswith("P") or char in ASCII_PUNCTUATION


def _words(text, form="NFD", is_punctuation=_is_punctuation, in_place=" {} "):
    """The solution, except for lower case, with its choices left open."""
    kept = (char for char in unicodedata.normalize(form, text) if unicodedata.category(char) != "Mn")
    return "".join(in_place.format(char) if is_punctuation(char) else char for char in kept).split()


@normalise.mistake("Punctuation sticks to its word. Each sign is a word of its own: “don't” has three.")
def punctuation_left_on_the_words(text):
    return _words(text.lower(), in_place="{}")


@normalise.mistake(
    "Punctuation is gone. BERT keeps it, each sign as a word: a question mark is informative, too."
)
def punctuation_dropped(text):
    return _words(text.lower(), in_place=" ")


@normalise.mistake(
    "$ and + stay with their words. In Unicode they are symbols (S…), not punctuation (P…); BERT treats "
    "every sign of ASCII as punctuation."
)
def category_p_only(text):
    return _words(text.lower(), is_punctuation=lambda char: unicodedata.category(char).startswith("P"))


@normalise.mistake(
    "“ and ” stay with their words: string.punctuation has only the signs of ASCII. Unicode has more, in the "
    "categories that begin with P."
)
def ascii_punctuation_only(text):
    return _words(text.lower(), is_punctuation=lambda char: char in ASCII_PUNCTUATION)


@normalise.mistake(
    "Every sign is cut off, including €, → and £. BERT does so only for punctuation (categories P…, and the "
    "signs of ASCII); other symbols stay with their words."
)
def all_symbols_cut_off(text):
    return _words(text.lower(), is_punctuation=lambda char: not char.isalnum() and not char.isspace())


@normalise.mistake(
    r"This takes [^\w\s] for punctuation, which is something else: \w contains the underscore, so snake_case "
    "stays one word, and all symbols are cut off, even €. Use the category, and the signs of ASCII."
)
def punctuation_of_a_regular_expression(text):
    return _words(text.lower(), is_punctuation=lambda char: re.match(r"[^\w\s]", char))


@normalise.mistake(
    "unicodedata.combining is 0 for some marks, such as the vowel signs of Thai. Use the category: Mn."
)
def combining_class_for_category(text):
    kept = (char for char in unicodedata.normalize("NFD", text.lower()) if not unicodedata.combining(char))
    return "".join(f" {char} " if _is_punctuation(char) else char for char in kept).split()


@normalise.mistake("The accents are still there: é should become e (NFD, then drop what has category Mn).")
def accents_kept(text):
    return _words(text.lower(), form="NFC")


@normalise.mistake(
    "Letters with accents have vanished completely (héllo → hllo), and with them every other character "
    "outside ASCII. Take é apart first, with NFD; then drop only the accent."
)
def characters_outside_ascii_dropped(text):
    return _words(text.lower().encode("ascii", "ignore").decode())


@normalise.mistake("casefold does more than lower: it turns ß into ss. BERT uses lower, and keeps the ß.")
def case_folded(text):
    return _words(text.casefold())


@normalise.mistake("The capitals are still there: this model is uncased.")
def case_kept(text):
    return _words(text)


@normalise.mistake(
    "NFKD also replaces characters by similar ones: ½ by 1⁄2, ﬁ by fi. BERT uses NFD, which only separates "
    "letters from accents."
)
def compatibility_decomposition(text):
    return _words(text.lower(), form="NFKD")


@normalise.mistake(
    r"“++” is one word here, as with \w+|[^\w\s]+. Every punctuation character is a word by itself."
)
def signs_in_a_row_are_one_word(text):
    return re.findall(r"\w+|[^\w\s]+", " ".join(_words(text.lower(), in_place="{}")))


# -- Cutting a word ---------------------------------------------------------------------------------

VOCABULARY = frozenset("[UNK] un a ab abc play player ##aff ##able ##ab ##cd ##s ##ing ##er ##a".split())
WORDS = ("unaffable", "players", "playing", "unplay", "abcd", "playxing", "un", "able", "zap", "aable")


def library_wordpiece(word: str, vocabulary: frozenset[str]) -> list[str]:
    """The pieces of a word as ``text/wordpiece.py`` cuts it, which gives their ids."""
    tokens = sorted(vocabulary)
    ids = WordPiece({token: i for i, token in enumerate(tokens)}, tokens.index("[UNK]")).ids(word)
    return [tokens[i] for i in ids]


@exercise(
    "07",
    outputs="pieces",
    trials=lambda draw: [Trial({"word": word, "vocabulary": VOCABULARY}, repr(word)) for word in WORDS],
    reference=library_wordpiece,
    level=2,
    minutes=15,
    needs="section 4",
    hints=(
        "From left to right, and greedy: which is the longest piece of the vocabulary that the word begins "
        "with?",
        "After the first piece, look for ## plus the characters: a piece inside a word is another token than "
        "a word.",
        "while start < len(word): try end = len(word), len(word) − 1, …, start + 1, and take the first "
        "word[start:end] (with ## if start > 0) that is in the vocabulary; if none is, the whole word is "
        "[UNK].",
    ),
)
def wordpiece(word, vocabulary):
    pieces, start = [], 0
    while start < len(word):
        for end in range(len(word), start, -1):
            piece = ("##" if start > 0 else "") + word[start:end]
            if piece in vocabulary:
                break
        else:
            return ["[UNK]"]
        pieces.append(piece)
        start = end
    return pieces


def _cut(word, vocabulary, ends, unknown, prefix=CONTINUATION):
    """The solution with its choices left open.

    ``ends(start, length)`` are tried in order; where none fits, ``unknown(pieces, start)`` gives the pieces
    and the place to go on from.
    """
    pieces, start = [], 0
    while start < len(word):
        found = [
            (piece, end)
            for end in ends(start, len(word))
            if (piece := (prefix if start > 0 else "") + word[start:end]) in vocabulary
        ]
        if found:
            pieces.append(found[0][0])
            start = found[0][1]
        else:
            pieces, start = unknown(pieces, start)
    return pieces


def _longest(start, length):
    return range(length, start, -1)


@wordpiece.mistake(
    "You take the shortest piece that fits. WordPiece takes the longest: begin at the word's end."
)
def shortest_match(word, vocabulary):
    return _cut(word, vocabulary, lambda start, n: range(start + 1, n + 1), lambda *_: (["[UNK]"], len(word)))


@wordpiece.mistake(
    "Inside a word you look for pieces without ##. “play” is a word. As a continuation, only “##play” would "
    "count, and that is not in the vocabulary."
)
def without_the_hashes(word, vocabulary):
    plain = {token.removeprefix("##") for token in vocabulary}
    pieces = _cut(word, plain, _longest, lambda *_: (["[UNK]"], len(word)), prefix="")
    return pieces


@wordpiece.mistake(
    "Only the rest of the word becomes [UNK]. If a word cannot be cut to its end, the whole word is one "
    "[UNK]: its first pieces alone would pretend to be another word."
)
def only_the_rest_is_unknown(word, vocabulary):
    return _cut(word, vocabulary, _longest, lambda pieces, start: ([*pieces, "[UNK]"], len(word)))


@wordpiece.mistake(
    "Single characters become [UNK], and you go on after them. If a word cannot be cut to its end, the whole "
    "word is one [UNK]."
)
def single_characters_are_unknown(word, vocabulary):
    return _cut(word, vocabulary, _longest, lambda pieces, start: ([*pieces, "[UNK]"], start + 1))


@wordpiece.mistake(
    "Where no piece fits, you stop and return what you have. If a word cannot be cut to its end, the whole "
    "word is one [UNK]."
)
def stops_where_nothing_fits(word, vocabulary):
    return _cut(word, vocabulary, _longest, lambda pieces, start: (pieces, len(word)))


@wordpiece.mistake(
    "A word that cannot be cut is returned as it is, but it is not a token: the model has no row for it. The "
    "answer is [UNK]."
)
def the_word_itself(word, vocabulary):
    return _cut(word, vocabulary, _longest, lambda *_: ([word], len(word)))


@wordpiece.mistake(
    "You found a cut that greedy matching does not find: “abc” is the longest beginning of “abcd”, and then "
    "“##d” is missing: [UNK]. WordPiece never takes a piece back."
)
def pieces_taken_back(word, vocabulary):
    def cuts(start):
        if start == len(word):
            return []
        for end in _longest(start, len(word)):
            piece = ("##" if start > 0 else "") + word[start:end]
            if piece in vocabulary and (rest := cuts(end)) is not None:
                return [piece, *rest]
        return None

    return cuts(0) or ["[UNK]"]


# -- Learning the vocabulary ------------------------------------------------------------------------

# What words are cut into so far, and how often each word occurs.
CORPORA = {
    "hug, pug, pun, bun, hugs": {
        ("h", "##u", "##g"): 10,
        ("p", "##u", "##g"): 5,
        ("p", "##u", "##n"): 12,
        ("b", "##u", "##n"): 14,
        ("h", "##u", "##g", "##s"): 5,
    },
    "a tie": {("m", "##o"): 3, ("a", "##b"): 3, ("z", "##c"): 3},
    "baaa": {("b", "##a", "##a", "##a"): 4, ("b", "##o"): 1},
}


@exercise(
    "07",
    outputs="pair words",
    trials=lambda draw: [Trial({"words": words}, name) for name, words in CORPORA.items()],
    level=2,
    minutes=12,
    needs="section 7",
    hints=(
        "Count every pair of neighbours as often as its word occurs. The most frequent pair becomes one "
        "token.",
        "Of equally frequent pairs, take the first in alphabetical order: min(counts, key=lambda pair: "
        "(−counts[pair], pair)).",
        "Then go through each word from left to right: where the two halves of the pair are neighbours, put "
        "left + right.removeprefix('##') in their place.",
    ),
    hints_for={
        "words": (
            "The pair is right. In the words, what is the merged token called, and what are the counts?",
            "The token is left + right, but without a ## in the middle. The counts of the words stay as they "
            "are.",
            "{replace_pair(tokens, pair, left + right.removeprefix('##')): count for tokens, count in "
            "words.items()}.",
        ),
    },
)
def merge_once(words):
    counts = pair_counts(words)
    left, right = best = min(counts, key=lambda pair: (-counts[pair], pair))
    token = left + right.removeprefix("##")
    return best, {replace_pair(tokens, best, token): count for tokens, count in words.items()}


def pair_counts(words: Mapping[tuple[str, ...], int]) -> Counter[tuple[str, str]]:
    """How often each pair of neighbouring tokens occurs."""
    counts: Counter[tuple[str, str]] = Counter()
    for tokens, count in words.items():
        for pair in pairwise(tokens):
            counts[pair] += count
    return counts


def replace_pair(tokens: tuple[str, ...], pair: tuple[str, str], token: str) -> tuple[str, ...]:
    """The tokens with ``token`` wherever the two of ``pair`` were neighbours, from left to right."""
    out: list[str] = []
    for right in tokens:
        if out and (out[-1], right) == pair:
            out[-1] = token
        else:
            out.append(right)
    return tuple(out)


def _merge(words, pair, token=None):
    """The second half of the solution: the pair as one token."""
    token = token or pair[0] + pair[1].removeprefix("##")
    return pair, {replace_pair(tokens, pair, token): count for tokens, count in words.items()}


@merge_once.mistake(
    "Every word counts once here, however frequent it is. A pair occurs as often as the words that contain "
    "it: add the word's count."
)
def counts_of_words_forgotten(words):
    counts = pair_counts(dict.fromkeys(words, 1))
    return _merge(words, min(counts, key=lambda pair: (-counts[pair], pair)))


@merge_once.mistake(
    "This is the pair with the highest count(pair) / (count(left) · count(right)). WordPiece is often "
    "explained in this way, but the trainer that makes BERT vocabularies today, and ours, take the most "
    "frequent pair."
)
def score_of_the_likelihood(words):
    singles: Counter[str] = Counter()
    for tokens, count in words.items():
        for token in tokens:
            singles[token] += count
    pairs = pair_counts(words).items()
    scores = {pair: count / (singles[pair[0]] * singles[pair[1]]) for pair, count in pairs}
    return _merge(words, min(scores, key=lambda pair: (-scores[pair], pair)))


@merge_once.mistake(
    "Among equally frequent pairs, you take the one that came first, so the vocabulary would depend on the "
    "order of the texts. Take the first in alphabetical order."
)
def ties_to_the_first_seen(words):
    counts = pair_counts(words)
    return _merge(words, max(counts, key=lambda pair: counts[pair]))


@merge_once.mistake(
    "Among equally frequent pairs, you take the last in alphabetical order, as max does with (count, pair). "
    "Take the first: min with (−count, pair)."
)
def ties_to_the_last(words):
    counts = pair_counts(words)
    return _merge(words, max(counts, key=lambda pair: (counts[pair], pair)))


@merge_once.mistake(
    "The words have not changed. Put the new token wherever the pair occurs in them: use replace_pair."
)
def pair_not_replaced(words):
    return merge_once.solution(words)[0], dict(words)


@merge_once.mistake("The ## of the right half is still inside the new token: ##u and ##n make ##un.")
def hashes_left_inside(words):
    pair, _ = merge_once.solution(words)
    return _merge(words, pair, "".join(pair))


@merge_once.mistake(
    "The ## of the left half is lost, too. ##u and ##n make ##un, which is still inside a word."
)
def hashes_lost_in_front(words):
    pair, _ = merge_once.solution(words)
    return _merge(words, pair, "".join(half.removeprefix("##") for half in pair))

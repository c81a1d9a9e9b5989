"""The compiled way of the tokenizers gives the ids of the plain one, whatever the text."""

import copy
import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from minibert import UserError
from minibert.data import open_corpus
from minibert.kernels.cpu import pieces, spelling
from minibert.text import AlbertTokenizer, BertTokenizer, RobertaTokenizer, XLNetTokenizer
from minibert.text.tokenizer import PretrainedTokenizer

NEVER = 10**12  # characters
WAYS = [
    (BertTokenizer, {}),
    (BertTokenizer, {"lowercase": False, "max_characters_per_word": 12}),
    (BertTokenizer, {"strip_accents": False, "split_cjk": False}),
    (RobertaTokenizer, {}),
    (RobertaTokenizer, {"add_prefix_space": True}),
    (AlbertTokenizer, {}),
    (AlbertTokenizer, {"lowercase": False, "keep_accents": True}),
    (XLNetTokenizer, {}),
]
PARTS = [
    *"abcdefghijklmnopqrstuvwxyzABCDEFXYZ0123456789" * 3,
    *" \n\t\r\x0b\x0c\x1c\x1f\x85\xa0\u1680\u2000\u200a\u200b\u2028\u2029\u202f\u205f\u3000" * 4,
    *"'\"!?,.;:-_[]<>/`''#@&*(){}|~^$%+=\\" * 3,
    *"éüßøñçаяЖωΣς中文日本\u0301\u0302\u200d\ufe0f\u3099각힣ﬁ½²Ⅳ🎉\U0001f3fb\x00\x01\x7f\xad▁Ġ\u0e33\u0903"
    * 2,
    *[
        "[MASK]",
        "<mask>",
        "</s>",
        "[SEP]",
        "<pad>",
        "'s",
        "'ll",
        "'re",
        " don't",
        "the ",
        "and ",
        "tion",
        "##ing",
    ],
    *["x" * 99, "y" * 130, "▁the", "[UNK]", "<unk>"],
]


@pytest.fixture(scope="module")
def corpus():
    """A few pages of Python's documentation."""
    documents = open_corpus().raw_documents()
    return ["\n".join(next(documents).paragraphs) for _ in range(40)]


@pytest.fixture(scope="module", params=WAYS, ids=lambda way: f"{way[0].__name__} {way[1]}")
def tokenizer(request, corpus):
    """It knows the random texts, too, so that it has tokens that a wrong cut would miss."""
    kind, options = request.param
    spaces = ["é\xa0  b c\u2003 \u2003 d\n\xa0e \n f"] * 50
    return kind.train([*corpus, *spaces, *random_texts(2000, seed=9)], 2000, **options)


def plain(tokenizer, texts, monkeypatch):
    """The ids as Python computes them."""
    with monkeypatch.context() as patch:
        patch.setattr(PretrainedTokenizer, "COMPILED_FROM", NEVER)
        return tokenizer.token_ids_batch(texts)


def random_texts(count, seed=0):
    rng = random.Random(seed)
    return ["".join(rng.choices(PARTS, k=rng.randrange(40))) for _ in range(count)]


def test_random_texts(tokenizer, monkeypatch):
    texts = random_texts(2000)
    assert tokenizer.token_ids_batch(texts) == plain(tokenizer, texts, monkeypatch)
    assert tokenizer._memory._seen.used[pieces.ROWS] > 100


def test_all_kinds_of_white_space_next_to_letters(tokenizer, monkeypatch):
    rng = random.Random(5)
    texts = ["".join(rng.choices("é\xa0\xa0\u2003\u2003  \nb'", k=12)) for _ in range(2000)]
    assert tokenizer.token_ids_batch(texts) == plain(tokenizer, texts, monkeypatch)


def test_real_texts(tokenizer, corpus, monkeypatch):
    assert tokenizer.token_ids_batch(corpus) == plain(tokenizer, corpus, monkeypatch)


def test_most_pieces_of_real_text_need_no_python(tokenizer, corpus):
    """Else it would hardly be faster."""
    memory, asked = tokenizer._new_memory(), []
    compute = memory.compute
    memory.compute = lambda piece: asked.append(piece) or compute(piece)
    memory.token_ids([text.encode() for text in corpus])
    assert len(asked) < 0.1 * memory._seen.used[pieces.ROWS]


def test_single_text(tokenizer, corpus, monkeypatch):
    text = " ".join(corpus)
    assert tokenizer.token_ids(text) == plain(tokenizer, [text], monkeypatch)[0]


def test_options_changed_afterwards_are_ignored_by_both_ways(tokenizer, monkeypatch):
    texts = ["A word, Naïve", "A " * 600 + "word " * 50 + "supercalifragilistic"]
    before = tokenizer.token_ids_batch(texts)
    changed = copy.deepcopy(tokenizer)  # it remembers nothing
    changed.lowercase, changed.max_characters_per_word = not tokenizer.lowercase, 1000
    assert changed.token_ids_batch(texts) == before
    assert plain(changed, texts, monkeypatch) == before


def test_a_memory_that_overflows_forgets(tokenizer, monkeypatch):
    monkeypatch.setattr(PretrainedTokenizer, "CACHED_CHARACTERS", 500)
    memory = tokenizer._new_memory()
    tokenizer.__dict__["_memory"] = memory
    for seed in range(5):
        texts = random_texts(100, seed)
        assert tokenizer.token_ids_batch(texts) == plain(tokenizer, texts, monkeypatch)
        assert memory._seen.used[pieces.KEYS] <= 500
    del tokenizer._memory


def test_after_one_huge_text_nothing_large_is_kept(tokenizer):
    memory = tokenizer._new_memory()
    memory.limit = 10_000
    [ids] = memory.token_ids([" ".join(map(str, range(20_000))).encode()])
    assert len(ids) >= 20_000
    assert memory._seen.used.tolist() == [0, 0, 0]
    assert sum(array.nbytes for array in memory._seen) < 500_000


def test_memory_grows_with_what_is_new_in_a_text_not_with_its_length(tokenizer):
    memory = tokenizer._new_memory()
    words = " ".join(map(str, range(10_000, 15_000))) + " "  # too many for the first table
    memory.token_ids([words.encode() * 100])
    assert memory._seen.used[pieces.ROWS] < 6000
    assert len(memory._seen.keys) < 2 * len(words)


def test_texts_larger_than_a_block(tokenizer, monkeypatch):
    monkeypatch.setattr("minibert.text.piece_memory.BLOCK", 1000)
    texts = [*random_texts(300), "word " * 500, "", *random_texts(10, seed=1)]
    assert tokenizer.token_ids_batch(texts) == plain(tokenizer, texts, monkeypatch)


def test_after_an_interruption_all_ids_are_right(tokenizer, monkeypatch):
    memory = tokenizer._new_memory()
    compute = memory.compute

    def interrupt(piece):
        raise KeyboardInterrupt

    memory.compute = interrupt
    text = "naïve words, façades"
    with pytest.raises(KeyboardInterrupt):
        memory.token_ids([tokenizer._bytes_to_cut(text)])
    memory.compute = compute
    assert memory.token_ids([tokenizer._bytes_to_cut(text)]) == plain(tokenizer, [text], monkeypatch)


def test_threads_share_a_memory(tokenizer, monkeypatch):
    texts = random_texts(1000, seed=3)
    parts = [texts[start::4] for start in range(4)]
    expected = [plain(tokenizer, part, monkeypatch) for part in parts]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(tokenizer.token_ids_batch, parts)) == expected


def test_without_numba_python_computes(tokenizer, monkeypatch):
    texts = random_texts(300)
    tokenizer.__dict__.pop("_memory", None)
    monkeypatch.setattr("minibert.text.tokenizer.has_numba", lambda: False)
    assert tokenizer.token_ids_batch(texts) == plain(tokenizer, texts, monkeypatch)
    assert tokenizer._memory is None
    del tokenizer._memory


def test_a_lone_surrogate_in_a_long_text_is_refused(tokenizer):
    with pytest.raises(UserError, match=r"U\+D800"):
        tokenizer.token_ids("many words " * 200 + "\ud800")


# -- The table --------------------------------------------------------------------------------------------


def table_of(*words):
    text = np.frombuffer(b"".join(words), np.uint8)
    table = pieces.new_table(rows=len(words), keys=len(text), ids=0)
    pieces.add_all(table, text, np.cumsum([0, *map(len, words)]))
    return table


def found(table, word, digest):
    return pieces.find(table, digest, np.frombuffer(word, np.uint8), 0, len(word), 0)


def test_equal_hashes_are_not_taken_for_equal_strings():
    table = table_of(b"first", b"other")
    first, other = table.rows[:2, pieces.HASH]
    assert (found(table, b"first", first), found(table, b"other", other)) == (0, 1)
    assert found(table, b"fable", first) < 0
    assert found(table, b"firs", first) < 0


def test_strings_that_differ_in_two_bytes_have_different_hashes():
    """That is why `find` need not compare the "##" of a token."""
    states = {pieces.hashed(pieces.hashed(pieces.NOTHING, a), b) for a in range(256) for b in range(256)}
    assert len(states) == 256**2


def test_an_enlarged_table_knows_what_it_knew():
    words = [str(number).encode() for number in range(1000)]
    table = table_of(*words)
    larger = pieces.enlarged(table, rows=1, keys=10, ids=3)
    assert (len(larger.rows), len(larger.keys), len(larger.ids)) == (2000, 2 * len(table.keys), 3)
    assert [found(larger, word, table.rows[i, pieces.HASH]) for i, word in enumerate(words)] == [*range(1000)]
    assert pieces.enlarged(larger, rows=1, keys=1, ids=1) is larger


def test_of_a_merge_that_is_there_twice_the_last_rank_counts():
    slots, rows = spelling.pair_table({(1, 2): 2, (3, 4): 1}, [5, 6, 5])
    assert (spelling._rank(slots, rows, 1, 2), spelling._rank(slots, rows, 3, 4)) == (2, 1)
    assert spelling._rank(slots, rows, 2, 1) == spelling.NEVER

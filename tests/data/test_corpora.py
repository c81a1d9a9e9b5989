"""Files of a person's own, in all their formats, and what is said about bad ones."""

import gzip
import hashlib
import json
from hashlib import blake2b
from pathlib import Path

import numpy as np
import pytest

from minibert.data import corpora, open_corpus
from minibert.errors import UserError
from minibert.ranks import Ranks

TWO_DOCUMENTS = "It rained.\nWe stayed in.\n\n\nIt cleared up.\nWe went out.\n"
SENTENCES = [["It rained.", "We stayed in."], ["It cleared up.", "We went out."]]
WIKI = (
    '<doc id="1" url="u" title="Rain &amp; Sun">\nRain & Sun\n\nIt rained. We stayed in.\n</doc>\n'
    '<doc id="2" url="u" title="Empty">\nEmpty\n</doc>\n'
    '<doc id="3" url="u" title="Sun">\nSun\n\nIt cleared up.\nWe went out.\n</doc>\n'
)
JSONL = '{"text": "It rained. We stayed in."}\n\n"It cleared up.\\nWe went out."\n'
WRAPPED = (
    "It was a dark night and the rain fell in\ntorrents. We stayed in the house\nall day and did not go\n"
    " Then, when the morning\ncame, it cleared. We went out\nto see\n\nthe garden.\n"
)
WRAPPED_SENTENCES = [
    "It was a dark night and the rain fell in torrents.",
    "We stayed in the house all day and did not go",
    "Then, when the morning came, it cleared.",
    "We went out to see",
    "the garden.",
]


def write(path: Path, text: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = text.encode() if isinstance(text, str) else text
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.txt", TWO_DOCUMENTS),
        ("a.txt", b"\xef\xbb\xbf" + TWO_DOCUMENTS.replace("\n", "\r\n").encode()),  # as Windows writes it
        ("a.txt.gz", TWO_DOCUMENTS),
        ("a.jsonl", JSONL),
        ("a.jsonl.gz", JSONL),
        ("wiki_00", WIKI),
        ("wiki_00.gz", WIKI),
        ("wiki_01", "\n".join(json.dumps({"id": i, "text": " ".join(s)}) for i, s in enumerate(SENTENCES))),
    ],
)
def test_every_format_gives_the_same_documents(tmp_path, name, text):
    assert list(open_corpus([write(tmp_path / name, text)])) == SENTENCES


def test_folders_and_globs(tmp_path):
    for name in ["b/wiki_00", "b/wiki_01.gz", "a.txt", "c.md", ".hidden.txt", ".git/d.txt", "e.jsonl"]:
        write(tmp_path / name, {"wiki": WIKI, "e.js": JSONL}.get(Path(name).name[:4], TWO_DOCUMENTS))
    corpus = open_corpus([tmp_path])
    assert [file.name for file in corpus.files] == ["a.txt", "wiki_00", "wiki_01.gz", "e.jsonl"]
    assert list(corpus) == SENTENCES * 4
    assert list(corpus) == SENTENCES * 4  # a second time
    assert len(open_corpus([f"{tmp_path}/**/wiki_*"]).files) == 2
    assert len(open_corpus([tmp_path / "a.txt", tmp_path / "c.md", f"{tmp_path}/a.*"]).files) == 2


def test_a_compressed_file_in_capitals(tmp_path):
    (tmp_path / "BOOK.TXT.GZ").write_bytes(gzip.compress(TWO_DOCUMENTS.encode()))
    assert list(open_corpus([tmp_path])) == SENTENCES
    (tmp_path / "BOOK.ZIP").write_bytes(b"anything")
    with pytest.raises(UserError, match="an archive; unpack it first"):
        open_corpus([tmp_path / "BOOK.ZIP"])


def test_a_pattern_takes_folders_as_the_shell_does(tmp_path):
    for name in ("a.txt", "sub/B.TXT", "sub/deep/c.txt", "sub/notes.md"):
        write(tmp_path / name, f"In {name}.")
    found = {str(file.relative_to(tmp_path)) for file in open_corpus([f"{tmp_path}/*"]).files}
    assert found == {"a.txt", "sub/B.TXT", "sub/deep/c.txt"}
    assert len(open_corpus([f"{tmp_path}/s*"]).files) == 2
    assert len(open_corpus([f"{tmp_path}/**/*.txt"]).files) == 2


def test_a_file_that_changes_is_noticed_and_each_is_hashed_once(tmp_path, monkeypatch):
    file = write(tmp_path / "a.txt", TWO_DOCUMENTS)
    corpus, hashed = open_corpus([file]), []
    monkeypatch.setattr(corpora.hashlib, "file_digest", lambda *_: hashed.append(1) or hashlib.sha256(b""))
    assert corpus.fingerprint() == corpus.fingerprint() and corpus.describe()
    assert len(hashed) == 1
    corpus.check_unchanged()
    for change in (lambda: write(file, TWO_DOCUMENTS + "More.\n"), file.unlink):
        change()
        with pytest.raises(
            UserError, match=r"a.txt: it has changed since the corpus was opened; start again"
        ):
            corpus.check_unchanged()
    with pytest.raises(UserError, match=r"a.txt: no such file any more"):
        corpus.share()


def test_a_file_counts_once_however_it_is_called(tmp_path):
    path = write(tmp_path / "b" / "a.txt", TWO_DOCUMENTS)
    (tmp_path / "link.txt").symlink_to(path)
    corpus = open_corpus([path, tmp_path / "b" / ".." / "b" / "a.txt", tmp_path])
    assert corpus.files == [path] and list(corpus) == SENTENCES


def test_a_single_path_is_no_list_of_letters(tmp_path):
    path = write(tmp_path / "a.txt", TWO_DOCUMENTS)
    assert open_corpus(path).files == open_corpus(str(path)).files == [path]


def test_positions_rise_to_the_size(tmp_path):
    for number in range(3):
        write(tmp_path / f"{number}.txt", TWO_DOCUMENTS * 2000)
    corpus = open_corpus([tmp_path])
    positions = [document.position for document in corpus.raw_documents()]
    assert positions == sorted(positions)
    assert positions[-1] == corpus.size == sum(file.stat().st_size for file in tmp_path.iterdir())


def test_layouts_of_plain_text(tmp_path):
    paragraphs = "It was dark. The rain fell.\nWe stayed in. We read.\n\nIt cleared up. We went out.\n"
    whole = [
        ["It was dark.", "The rain fell.", "We stayed in.", "We read.", "It cleared up.", "We went out."]
    ]
    assert list(open_corpus([write(tmp_path / "p.txt", paragraphs)])) == whole
    assert list(open_corpus([write(tmp_path / "w.txt", WRAPPED)])) == [WRAPPED_SENTENCES]
    assert list(open_corpus([write(tmp_path / "s.txt", TWO_DOCUMENTS)])) == SENTENCES


def test_the_layout_is_judged_by_the_first_thousand_lines_with_text(tmp_path):
    sentence, fragment, two = "It rained.\n", "a part of a sentence without\n", "It rained. We read.\n"

    def documents(text: str) -> int:
        return len(list(open_corpus([write(tmp_path / "a.txt", text)])))

    assert documents("\n".join([sentence] * 1000 + [fragment] * 1000)) == 2000  # sentences
    assert documents("\n".join([fragment] * 1000 + [sentence] * 1000)) == 1  # wrapped
    assert documents(sentence * 1000 + fragment * 1000 + "\n" + sentence) == 2  # sentences
    assert documents("\n".join([sentence] * 8 + [two] * 2)) == 10
    assert documents("\n".join([sentence] * 7 + [two] * 3)) == 1  # paragraphs
    assert documents("\n".join([sentence] + [fragment] * 9)) == 1  # lines without an end are no sentences


def test_lines_without_punctuation_are_sentences(tmp_path):
    """Joined, all of them would be one."""
    lines = [f"word number {i} and no mark at its end" for i in range(30)]
    assert list(open_corpus([write(tmp_path / "a.txt", "\n".join(lines))])) == [lines]
    verses = "\n".join(f"{line}\n" * (number % 5 == 4) or line for number, line in enumerate(lines))
    assert [len(verse) for verse in open_corpus([write(tmp_path / "b.txt", verses)])] == [6]  # in six parts


@pytest.mark.parametrize("beginning", ['{"text": ', '{ "text" : ', ' {"id": 1, "text": '])
def test_objects_are_known_whatever_the_name(tmp_path, beginning):
    text = "".join(f"{beginning}{json.dumps(' '.join(sentences))}}}\n" for sentences in SENTENCES)
    assert list(open_corpus([write(tmp_path / "a.json", text)])) == SENTENCES


@pytest.mark.parametrize("text", ['[{"text": "It rained."}]', "[\n  1\n]", '{\n  "text": "It rained."\n}'])
def test_json_of_another_form_is_refused(tmp_path, text):
    with pytest.raises(UserError, match=r"a.json: JSON, but not an object in each line; write it as JSON li"):
        list(open_corpus([write(tmp_path / "a.json", text)]))


def test_the_layout_of_texts_in_json_can_be_said(tmp_path):
    file = write(tmp_path / "a.jsonl", json.dumps(WRAPPED) + "\n" + json.dumps("One. Two\nthree."))
    assert list(open_corpus([file], layout="wrapped")) == [WRAPPED_SENTENCES, ["One.", "Two three."]]
    assert list(open_corpus([file]))[1] == ["One.", "Two", "three."]
    assert list(open_corpus([file], layout="sentences"))[1] == ["One. Two", "three."]


def test_a_carriage_return_alone_ends_a_line(tmp_path):
    assert list(open_corpus([write(tmp_path / "a.txt", TWO_DOCUMENTS.replace("\n", "\r"))])) == SENTENCES


def test_wikiextractor_leaves_entities(tmp_path):
    text = '<doc id="1" title="AT&amp;T">\nAT&amp;T\n\nAT&amp;T is &lt;large&gt;.\n</doc>\n'
    assert list(open_corpus([write(tmp_path / "wiki_00", text)])) == [["AT&T is <large>."]]


def test_the_layout_can_be_said(tmp_path):
    file = write(tmp_path / "a.txt", "One. Two\nthree. Four.\n\nFive.\n")
    assert list(open_corpus([file], layout="sentences")) == [["One. Two", "three. Four."], ["Five."]]
    assert list(open_corpus([file], layout="paragraphs")) == [["One.", "Two", "three.", "Four.", "Five."]]
    assert list(open_corpus([file], layout="wrapped")) == [["One.", "Two three.", "Four.", "Five."]]
    with pytest.raises(UserError, match="layout 'words'; expected one of auto, sentences"):
        open_corpus([file], layout="words")


@pytest.mark.parametrize("layout", ["sentences", "paragraphs", "wrapped"])
def test_an_endless_text_is_cut_into_documents(tmp_path, monkeypatch, layout):
    monkeypatch.setattr(corpora, "MAX_DOCUMENT_CHARACTERS", 100)
    blank = "\n" if layout == "wrapped" else ""
    file = write(tmp_path / "a.txt", f"This is a sentence of it.\n{blank}" * 50)
    documents = list(open_corpus([file], layout=layout))
    assert list(map(len, documents)) == [4] * 12 + [2]  # of 25 characters each


@pytest.mark.parametrize("name", ["a.jsonl", "wiki_00", "wrapped.txt"])
def test_so_is_one_of_any_other_format(tmp_path, monkeypatch, name):
    monkeypatch.setattr(corpora, "MAX_DOCUMENT_CHARACTERS", 100)
    lines = ["This is a sentence of it."] * 50
    text = {
        "a.jsonl": json.dumps("\n".join(lines)),
        "wiki_00": "\n".join(['<doc title="A">', "A", *lines]),
        "wrapped.txt": "\n".join(lines),
    }[name]
    documents = list(open_corpus([write(tmp_path / name, text)], layout="wrapped"))
    assert sum(map(len, documents)) == 50
    assert max(map(len, documents)) <= 5


def test_articles_whose_end_is_missing_or_not_on_a_line_of_its_own(tmp_path):
    first, second = '<doc id="1" title="A">\nA\n\nIt rained.', '<doc id="2" title="B">\nB\n\nIt cleared up.'
    for number, end in enumerate(["\n", "</doc>\n", "\n</doc>\n"]):
        file = write(tmp_path / f"wiki_0{number}", first + end + second + end)
        assert list(open_corpus([file])) == [["It rained."], ["It cleared up."]]


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("", "empty"),
        ("  ", "empty"),
        ("a" * 300, "too long"),
        ("é" * 200, "too long"),
        ("a/" * 3000 + "x", "no such"),
    ],
)
def test_what_is_no_path_is_refused(path, told):
    with pytest.raises(UserError, match=told):
        open_corpus([path])


def test_the_key_of_a_document_is_its_text_alone(tmp_path):
    write(tmp_path / "a.txt", TWO_DOCUMENTS)
    write(tmp_path / "b.jsonl", '"It cleared up.\\nWe went out."\n"It cleared."\n')
    first, second = (open_corpus([tmp_path / name]).document_keys() for name in ("a.txt", "b.jsonl"))
    assert first.dtype == np.uint64 and len({*first.tolist(), *second.tolist()}) == 3
    assert first[1] == second[0]
    write(tmp_path / "c.jsonl", '"It rained.  \\n\\nWe stayed in.\\n"\n')
    assert open_corpus([tmp_path / "c.jsonl"]).document_keys().tolist() == [first[0]], "other white space"
    assert first[0] == int.from_bytes(blake2b(b"It rained.\nWe stayed in.", digest_size=8).digest(), "little")


def test_documents_without_text_are_left_out(tmp_path):
    file = write(tmp_path / "a.jsonl", '" \\n"\n"It rained."\n""\n')
    corpus = open_corpus([file])
    assert list(corpus) == [["It rained."]]
    assert len(corpus.document_keys()) == 1


def test_the_fingerprint_follows_the_content_and_not_the_name(tmp_path):
    first = open_corpus([write(tmp_path / "a.txt", TWO_DOCUMENTS)])
    second = open_corpus([write(tmp_path / "b.txt", TWO_DOCUMENTS)])
    third = open_corpus([write(tmp_path / "c.txt", TWO_DOCUMENTS + "!")])
    assert first.fingerprint() == second.fingerprint() != third.fingerprint()
    assert open_corpus([tmp_path / "a.txt"], layout="wrapped").fingerprint() != first.fingerprint()
    assert first.fingerprint()[:16] in first.describe()


def test_the_share_of_a_rank_is_a_corpus_of_its_own(tmp_path):
    class Second(Ranks):
        rank, size = 1, 2

    for number in range(4):
        write(tmp_path / f"{number}.txt", f"It rained {number} times.\n")
    share = open_corpus([tmp_path], ranks=Second()).share()
    alone = open_corpus([tmp_path / "2.txt", tmp_path / "3.txt"])
    assert list(share) == list(share.share()) == list(alone)
    assert share.fingerprint() == alone.fingerprint() and share.size == alone.size


def test_the_fingerprint_follows_the_name_where_that_decides_how_a_file_is_read(tmp_path):
    def opened(name, text):
        return open_corpus([write(tmp_path / name, text)])

    strings = '"It rained."\n"He slept."\n'
    text, documents = opened("a.txt", strings), opened("a.jsonl", strings)
    assert list(text) != list(documents) and text.fingerprint() != documents.fingerprint()
    objects = '\n{"text": "It rained."}\n'  # which are recognised by themselves
    text, documents = opened("b.txt", objects), opened("b.jsonl", objects)
    assert list(text) == list(documents) and text.fingerprint() == documents.fingerprint()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"", "file is empty"),
        ("a.txt", b"It rained.\nna\xefve\n", "line 2 is not UTF-8 text .byte 0xef at column 2.*iconv"),
        ("a.txt", b"\x7fELF\x00\x01\x02", "line 1 holds zero bytes: a binary or UTF-16 file"),
        ("a.txt", "It rained.".encode("utf-16"), "not UTF-8|zero bytes"),
        ("a.jsonl", b'{"text": "It rained."}\n{"text":', "line 2 is not valid JSON"),
        ("a.jsonl", b'"It rained."\n' + b"[" * 100_000, "line 2 is not valid JSON"),
        ("a.jsonl", b'"It rained."\n' + b"9" * 5000, "line 2 is not valid JSON"),
        ("a.jsonl", b'\n \n"It rained."\n{', "line 4 is not valid JSON"),
        ("a.jsonl", b'{"body": "It rained."}', 'line 1 should be an object with a string "text"'),
        ("a.jsonl", b'{"text": "\\ud800"}', "line 1 holds half a surrogate pair"),
        ("a.tar.gz", b"anything", "an archive; unpack it first"),
        ("a.txt.bz2", b"anything", "compressed, but not with gzip; unpack it, or compress it as .gz"),
    ],
)
def test_a_bad_file_is_named_with_the_remedy(tmp_path, name, content, message):
    file = write(tmp_path / name, content)
    with pytest.raises(UserError, match=message) as caught:
        list(open_corpus([file]))
    assert str(caught.value).startswith(f"{file}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "damage", [lambda whole: whole[:-20], lambda whole: b"no gzip", lambda whole: whole[:30] * 2]
)
def test_a_damaged_gzip_file_is_named(tmp_path, damage):
    file = write(tmp_path / "a.txt.gz", TWO_DOCUMENTS * 100)
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(UserError, match="damaged gzip file") as caught:
        list(open_corpus([file]))
    assert str(caught.value).startswith(f"{file}: ")


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="this system has no endless file")
def test_an_endless_file_is_refused():
    with pytest.raises(UserError, match=r"^/dev/zero: a device or a pipe"):
        open_corpus(["/dev/zero"])


def test_paths_that_lead_nowhere(tmp_path):
    for path, message in [
        ("none.txt", "no such file"),
        ("*.txt", "no file matches"),
        ("", "this folder holds no"),
    ]:
        with pytest.raises(UserError, match=message):
            open_corpus([f"{tmp_path}/{path}"])


def test_every_article_of_a_wikipedia_shard_is_read(shared_data):
    corpus = open_corpus([shared_data / "wikipedia_en"])
    with gzip.open(corpus.files[0], "rt", encoding="utf-8") as file:
        articles = sum(line.startswith("<doc ") for line in file)
    assert len(corpus.files) == 8
    assert (
        sum(1 for document in corpora.FileCorpus([str(corpus.files[0])]).raw_documents()) == articles > 1000
    )

"""The corpus that every machine already has."""

import re
import sys

import pytest

from minibert.data import embedded, open_corpus
from minibert.data.corpora import EmbeddedCorpus
from minibert.data.prose import is_prose


@pytest.fixture(scope="module")
def corpus() -> EmbeddedCorpus:
    return open_corpus(None)


def test_it_is_large_enough_and_tells_its_size_and_hash(corpus):
    documents = list(corpus)
    characters = sum(len(sentence) for document in documents for sentence in document)
    assert 500 <= len(documents) == corpus.size
    assert 2e6 < characters < 10e6
    description = corpus.describe()
    assert f"{len(documents):,} documents" in description
    assert corpus.fingerprint()[:16] in description
    assert "numpy" in description


def test_no_sentence_stands_in_it_twice(corpus):
    keys = [
        re.sub(r"[\W\d_]+", " ", sentence.lower()).strip() for document in corpus for sentence in document
    ]
    assert len(keys) == len(set(keys))


def test_it_is_prose(corpus):
    assert all(is_prose(sentence) for document in corpus for sentence in document)


def test_short_documents_are_left_out(corpus):
    assert min(len(document) for document in corpus) >= embedded.MIN_SENTENCES


def test_a_library_of_ones_own(tmp_path, monkeypatch):
    library = tmp_path / "lib"
    (library / "pydoc_data").mkdir(parents=True)
    (library / "test").mkdir()
    topic = "".join(
        f"This is what the {name} of the topic is about. " for name in ["one", "two", "six", "ten"]
    )
    (library / "pydoc_data" / "topics.py").write_text(f"topics = {{'assert': {topic!r}}}\n")
    docs = [
        "There is a first of all in here.",
        "There is a function in it too.",
        "There is a method in it as well.",
    ]
    (library / "module.py").write_text(
        f'"""{docs[0]}"""\nraise SystemExit("imported!")\nif True:\n    def f():\n        """{docs[1]}"""\n'
        f'class C:\n    def g(self):\n        """{docs[2]}\n\n        {docs[0]}"""\n'
        f'add_newdoc("m", "g", """There is something that is written in C.""")\n'
    )
    (library / "test" / "module.py").write_text('"""This is a test which is not to be read."""')
    (library / "broken.py").write_text("def (")
    monkeypatch.setattr(embedded.sysconfig, "get_path", lambda name: str(library))
    monkeypatch.setattr(embedded, "PACKAGES", ("surely_not_installed",))
    documents = embedded.embedded_documents()
    assert len(documents[0]) == 4
    assert documents[1:] == [[*docs, "There is something that is written in C."]]
    assert embedded.embedded_sources() == [f"Python {sys.version.split()[0]}"]


def test_a_folder_left_behind_is_no_package(tmp_path, monkeypatch):
    (tmp_path / "left_behind").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(embedded, "PACKAGES", ("left_behind",))
    assert embedded.embedded_sources() == [f"Python {sys.version.split()[0]}"]
    assert {module.package for module in embedded.installed_modules()} == {"python"}

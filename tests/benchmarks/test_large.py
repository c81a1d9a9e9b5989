"""The large corpus: what is held out is not learned from."""

import sys

import numpy as np
import pytest

from benchmarks import large
from minibert.data import PreparedCorpus
from minibert.tasks import prepare
from minibert.tasks.pretraining_settings import PretrainSettings

WORDS = "river stone window garden winter summer teacher letter silver bridge music paper shadow".split()


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("large")
    rng = np.random.default_rng(0)
    documents = ["\n".join(f"the {' '.join(rng.choice(WORDS, 9))} ." for _ in range(6)) for _ in range(30)]
    (folder / "text.txt").write_text("\n\n".join(documents))
    settings = PretrainSettings(corpus=(str(folder),), vocab_size=60, prepared=str(folder), processes=1)
    return prepare(settings)[1]


@pytest.mark.parametrize(("flags", "vocabulary"), [([], "mini"), (["--model", "mini"], None)])
def test_a_run_has_the_corpus_and_its_vocabulary_or_that_of_its_model(monkeypatch, flags, vocabulary):
    runs = []
    monkeypatch.setattr(large, "large_text", lambda folder: "the text")
    monkeypatch.setattr(large, "pretrain", lambda settings, text: runs.append((settings, text)))
    monkeypatch.setattr(sys, "argv", ["large", "--steps", "3", *flags])
    assert large.main() == 0
    ((settings, text),) = runs
    assert (settings.corpus, settings.tokenizer, settings.steps) == (("large",), vocabulary, 3)
    assert text == "the text"


@pytest.mark.parametrize("flags", [["--corpus", "mine"], ["--tokenizer", "mini"]])
def test_another_text_is_refused(monkeypatch, capsys, flags):
    monkeypatch.setattr(sys, "argv", ["large", *flags])
    assert large.main() == 2
    assert "leave --corpus and --tokenizer out" in capsys.readouterr().err


def test_documents_are_held_out_by_their_keys_and_the_others_are_the_first(prepared):
    keys = large._keys(prepared)
    held_out = [3, 11, 25]
    tokens = int(prepared.train.sentence_starts[prepared.train.document_starts[20]])
    parted = large.split(prepared, keys[held_out], tokens)
    assert parted.held_out.chosen.tolist() == held_out  # also beyond these tokens
    assert parted.train.chosen.tolist() == [number for number in range(20) if number not in held_out]
    assert large.split(prepared, keys[held_out], tokens - 1).train.chosen[-1] == 18
    assert PreparedCorpus.open(prepared.folder).train.chosen.tolist() == prepared.train.chosen.tolist()

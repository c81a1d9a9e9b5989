"""What the README and the pages of docs/ show in Python is what happens."""

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import pytest
from markdown_pages import ROOT, Block, code_blocks
from small_encoder import TOKENIZER, write_encoder

from minibert.bert import BertConfig, BertForMaskedLM
from minibert.ops import TABLE
from minibert.tasks.classify import Classify
from minibert.tasks.question_answering import AnswerOptions, AnswerQuestions
from minibert.tasks.tag import Tag, TagOptions

SIZES = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
LEARNT = {  # the folders that the examples speak of, and for which task
    "runs/sst2/best": Classify(TOKENIZER, labels=["0", "1"]),
    "runs/wnut17/best": Tag(TOKENIZER, TagOptions(crf=True), ["B-person", "O"]),
    "runs/squad/best": AnswerQuestions(TOKENIZER, AnswerOptions(max_length=64)),
}

BLOCKS = code_blocks("python")
# Quotations from the code, where each stands; and what another test runs: tasks/test_documentation.py.
QUOTED = {
    "c1, c2, ": "examples/bert_in_one_file.py",
    "centred = ": "minibert/ops/layer_normalisation.py",
    "normalised, inverse_std, weight = cache": "minibert/ops/layer_normalisation.py",
}
ELSEWHERE = ("from minibert.data.tasks import RECIPES\n",)
EXAMPLES = [block for block in BLOCKS if not block.text.startswith((*QUOTED, *ELSEWHERE))]


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """A working directory with small random models where those of the examples lie."""
    monkeypatch.chdir(tmp_path)
    write_encoder(tmp_path / "all-MiniLM-L6-v2")
    for folder, task in LEARNT.items():
        task.save(task.new_model("all-MiniLM-L6-v2"), folder)
    BertForMaskedLM(BertConfig(len(TOKENIZER), **SIZES)).save_pretrained("bert-base-uncased")
    TOKENIZER.save_pretrained("bert-base-uncased")
    Path("test.conll").write_text("ann\tB-person\nsings\tO\n", encoding="utf-8")
    Path("books").mkdir()
    documents = (f"Ann sings song {i}.\nBob dances in the river.\nRome has {i} bridges." for i in range(40))
    Path("books/songs.txt").write_text("\n\n".join(documents), encoding="utf-8")


@pytest.fixture
def table(monkeypatch):
    """The table of kernels, which is after the test what it was before."""
    for entry in TABLE.values():
        monkeypatch.setattr(entry, "kernels", dict(entry.kernels))


@pytest.mark.parametrize("block", EXAMPLES, ids=str)
@pytest.mark.usefixtures("folders", "table")
def test_every_example_runs_and_prints_what_it_says(block: Block):
    """Each by itself. ``# prints X`` behind a call of print says what it prints, up to a colon."""
    promised = re.findall(r"# prints (.+?)(?:: .*)?$", block.text, flags=re.MULTILINE)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(block.text, {})
    if promised:
        assert printed.getvalue().splitlines() == promised


def test_the_readme_shows_a_gradient_and_the_trial_that_proves_it():
    promised = [re.findall(r"# prints (\S+)", block.text) for block in BLOCKS if "+= 1e-5" in block.text]
    assert promised == [["10.7120:", "-0.01054453", "-0.01054453"]]


def test_the_training_loop_learns():
    (example,) = (block.text for block in BLOCKS if "AdamW" in block.text)
    names: dict[str, Any] = {}
    exec(example, names)
    outputs, _ = names["model"].forward(**names["batch"], labels=[1, 0])
    assert outputs.loss < 0.1


@pytest.mark.parametrize("start", QUOTED)
def test_code_is_quoted_as_it_stands(start):
    source = (ROOT / QUOTED[start]).read_text(encoding="utf-8")
    quotations = [block.text for block in BLOCKS if block.text.startswith(start)]
    assert quotations
    assert all(quoted in re.sub(r"^    ", "", source, flags=re.MULTILINE) for quoted in quotations)

"""What the README shows is what happens."""

import contextlib
import io
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from small_encoder import TOKENIZER, write_encoder

from minibert.bert import BertConfig, BertForMaskedLM
from minibert.cli import parse
from minibert.tasks.classify import Classify
from minibert.tasks.question_answering import AnswerOptions, AnswerQuestions
from minibert.tasks.tag import Tag, TagOptions

README = (Path(__file__).resolve().parents[1] / "README.md").read_text(encoding="utf-8")
SIZES = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}


def code_blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)


def test_the_example_prints_what_it_says():
    example = code_blocks("python")[0]
    promised = re.findall(r"# prints (\S+?)(?::|$)", example, flags=re.MULTILINE)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(example, {})
    assert promised == printed.getvalue().split()
    assert len(promised) == 3


LEARNT = {  # the folders that the examples speak of, and for which task
    "runs/sst2/best": Classify(TOKENIZER, labels=["0", "1"]),
    "runs/wnut17/best": Tag(TOKENIZER, TagOptions(crf=True), ["B-person", "O"]),
    "runs/squad/best": AnswerQuestions(TOKENIZER, AnswerOptions(max_length=64)),
}
# Not run here: a quotation, a program that needs TensorFlow, and what data/tasks/test_documentation.py runs.
SHOWN = ("centred = ", "import json, shutil, sys\n", "from minibert.data.tasks import RECIPES\n")


@pytest.mark.parametrize("block", [block for block in code_blocks("python") if not block.startswith(SHOWN)])
def test_every_example_runs(block, tmp_path, monkeypatch):
    """Each by itself, on small random models that lie where the README's lie."""
    monkeypatch.chdir(tmp_path)
    write_encoder(tmp_path / "all-MiniLM-L6-v2")
    for folder, task in LEARNT.items():
        task.save(task.new_model("all-MiniLM-L6-v2"), folder)
    BertForMaskedLM(BertConfig(len(TOKENIZER), **SIZES)).save_pretrained("bert-base-uncased")
    TOKENIZER.save_pretrained("bert-base-uncased")
    Path("test.conll").write_text("ann\tB-person\nsings\tO\n", encoding="utf-8")
    exec(block, {})


def test_the_example_of_fine_tuning_learns():
    (example,) = (block for block in code_blocks("python") if "AdamW" in block)
    names: dict[str, Any] = {}
    exec(example, names)
    outputs, _ = names["model"].forward(**names["batch"], labels=[1, 0])
    assert outputs.loss < 0.1


def command_lines() -> list[str]:
    blocks = [block.replace("\\\n", " ") for block in code_blocks("sh")]  # a \ continues a line
    lines = [line.split("  #")[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if re.match(r"minibert |\.venv/bin/python -m minibert ", line)]


@pytest.mark.parametrize("line", command_lines())
def test_every_command_is_one(line):
    parse(shlex.split(line.replace(".venv/bin/python -m ", ""))[1:])


def test_layer_norm_is_quoted_as_it_stands():
    source = (Path(__file__).resolve().parents[1] / "minibert/ops/layer_norm.py").read_text(encoding="utf-8")
    quoted = code_blocks("python")[1]
    assert quoted in re.sub(r"^    ", "", source, flags=re.MULTILINE)

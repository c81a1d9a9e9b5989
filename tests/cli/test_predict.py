"""``minibert predict`` and ``minibert evaluate`` as a person meets them."""

import functools
import io
import json
import shlex
import sys
from pathlib import Path

import pytest

from minibert.bert import BertConfig, BertModel
from minibert.cli import main
from minibert.tasks.classify import Classify
from minibert.tasks.tag import Tag
from minibert.text import BertTokenizer

TOKENIZER = BertTokenizer("[PAD] [UNK] [CLS] [SEP] [MASK] ann lee sings in rome a fine film .".split())
SIZES = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
FILES = {
    "words.conll": "Ann\nsings\n\nRome\n",
    "tagged.conll": "Ann\tB-person\nsings\tO\n\nRome\tO\n",
    "animals.conll": "Ann\tB-person\n\nLee\tB-animal\n",
    "broken.conll": "Ann\tO\nLee\tI-person\n",
    "texts.tsv": "text\nA fine film\nRome\n",
    "labelled.tsv": "text\tlabel\nA fine film\t1\nRome\t0\n",
    "short.tsv": "text\tlabel\nA fine film\n",
    "gap.tsv": "text\nA fine film\n \nRome\n",
    "lines.txt": "A fine film\nRome\tAnn\n",
    "empty.tsv": "",
}


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """The current directory: an encoder, a tagger and a classifier, all random, and files."""
    monkeypatch.chdir(tmp_path)
    BertModel(BertConfig(vocab_size=len(TOKENIZER), **SIZES)).save_pretrained("encoder")
    TOKENIZER.save_pretrained("encoder")
    for name, task in (
        ("tagger", Tag(TOKENIZER, labels=["B-person", "O"])),
        ("classifier", Classify(TOKENIZER, labels=["0", "1"])),
    ):
        task.save(task.new_model("encoder"), name)
    for name, content in FILES.items():
        Path(name).write_text(content)
    return tmp_path


def run(line: str) -> int:
    return main([*shlex.split(line), "--device", "cpu"])


def typed(monkeypatch, text: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))


def printed(capsys) -> list[dict]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_texts_on_the_command_line(workplace, capsys):
    assert run('predict --model classifier "a fine film" Rome') == 0
    first, second = printed(capsys)
    assert (first["text"], second["text"]) == ("a fine film", "Rome")
    assert first["prediction"] in first["probabilities"]
    assert run('predict --model classifier "a fine film" --pair Rome') == 0
    assert printed(capsys)[0]["text_pair"] == "Rome"
    assert run('predict --model tagger "Ann sings in Rome ."') == 0
    assert len(printed(capsys)[0]["prediction"]) == 5


def test_lines_of_stdin_and_of_files(workplace, capsys, monkeypatch):
    typed(monkeypatch, "a fine film\r\nété\tRome\n".encode())
    assert run("predict --model classifier") == 0
    assert [(r["text"], r.get("text_pair")) for r in printed(capsys)] == [
        ("a fine film", None),
        ("été", "Rome"),
    ]
    assert run("predict --model classifier --input lines.txt --lines") == 0
    assert [r["text"] for r in printed(capsys)] == ["A fine film", "Rome"]


def test_files_as_the_task_reads_them(workplace, capsys):
    assert run("predict --model classifier --input texts.tsv --output out/answers.jsonl --batch-size 1") == 0
    assert capsys.readouterr().out == "2 prediction(s) written to out/answers.jsonl\n"
    written = Path("out/answers.jsonl").read_text().splitlines()
    assert [json.loads(line)["text"] for line in written] == ["A fine film", "Rome"]
    assert run("predict --model tagger --input words.conll --output out.conll") == 0
    lines = Path("out.conll").read_text().splitlines()
    assert [line.split("\t")[0] for line in lines] == ["Ann", "sings", "", "Rome"]


def test_bad_rows_can_be_left_out(workplace, capsys):
    assert run("evaluate --model tagger --data animals.conll --skip-bad") == 0
    told = capsys.readouterr()
    assert "1 examples" in told.out
    assert told.err.splitlines()[0].startswith(
        "minibert: 1 bad row(s) left out, the first: animals.conll: line 3"
    )
    assert run("predict --model classifier --input gap.tsv --skip-bad") == 0
    told = capsys.readouterr()
    assert len(told.out.splitlines()) == 2
    assert told.err.startswith("minibert: 1 bad row(s) left out, the first: gap.tsv: line 3")


def test_the_machine_is_used_as_the_flags_say(workplace, monkeypatch):
    told = {}
    for name in ("set_threads", "use_products", "require_kernels"):
        monkeypatch.setattr(f"minibert.cli.flags.{name}", functools.partial(told.__setitem__, name))
    assert run("predict --model classifier rome") == 0
    assert told == {"use_products": "numpy", "require_kernels": False}
    assert run("predict --model classifier rome --threads 3 --products onednn --strict-kernels") == 0
    assert told == {"set_threads": 3, "use_products": "onednn", "require_kernels": True}


def test_evaluate_prints_and_writes_all_scores(workplace, capsys):
    assert run("evaluate --model classifier --data labelled.tsv --json scores.json") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "classifier (classify) on labelled.tsv: 2 examples"
    written = json.loads(Path("scores.json").read_text())
    assert {line.split()[0] for line in lines[2:]} == set(written["scores"]) >= {"accuracy", "f1"}
    assert run("evaluate --model classifier --data labelled.tsv --limit 1") == 0
    assert capsys.readouterr().out.splitlines()[0].endswith(": 1 examples")
    assert run("evaluate --model tagger --data tagged.conll") == 0
    assert capsys.readouterr().out.splitlines()[-1].split()[0] == "person"


MISTAKES = {  # the command line, what the message has to say
    "no such folder": ("predict --model nowhere x", ["nowhere", "no such folder"]),
    "a file for a folder": ("predict --model lines.txt x", ["lines.txt", "this is a file"]),
    "a folder without a head": ("predict --model encoder x", ["encoder", "finetune"]),
    "no model": ("predict x", ["--model"]),
    "no data": ("evaluate --model tagger", ["--data"]),
    "texts and a file": ("predict --model tagger x --input words.conll", ["--input", "one of them"]),
    "a pair of nothing": ("predict --model tagger --pair x", ["--pair"]),
    "lines of nothing": ("predict --model tagger x --lines", ["--lines", "--input"]),
    "the input for output": (
        "predict --model tagger --input words.conll --output ./words.conll",
        ["words.conll", "overwrite the input"],
    ),
    "a folder for predictions": ("predict --model tagger x --output encoder", ["encoder", "folder"]),
    "the data for scores": (
        "evaluate --model tagger --data tagged.conll --json tagged.conll",
        ["tagged.conll", "overwrite the input"],
    ),
    "an empty text": ("predict --model tagger ' '", ["empty text"]),
    "no lines": ("predict --model tagger", ["stdin", "no text"]),
    "an empty file": ("predict --model classifier --input empty.tsv", ["empty.tsv", "no example"]),
    "no such file": ("predict --model classifier --input nowhere.tsv", ["nowhere.tsv", "no such file"]),
    "missing columns": (
        "evaluate --model classifier --data texts.tsv",
        ["texts.tsv", "line 1", "expected the columns", "label"],
    ),
    "a short row": ("evaluate --model classifier --data short.tsv", ["short.tsv: line 2", "1 column(s)"]),
    "an unknown label": (
        "evaluate --model tagger --data animals.conll",
        ["animals.conll: line 3", "B-animal"],
    ),
    "untagged words": ("evaluate --model tagger --data words.conll", ["words.conll: line 1", "the tag"]),
    "broken BIO": ("evaluate --model tagger --data broken.conll", ["broken.conll: line 2", "I-person"]),
    "a recipe of another task": (
        "evaluate --model tagger --data tagged.conll --recipe mrpc",
        ["mrpc", "classify", "tag"],
    ),
    "an unknown recipe": ("evaluate --model tagger --data tagged.conll --recipe mprc", ["recipe", "mrpc"]),
    "scoring of minimal pairs": (
        "evaluate --model tagger --data tagged.conll --scoring original",
        ["scoring", "only with the recipe blimp"],
    ),
    "columns of another task": ("predict --model tagger --text-column 1 x", ["text_column", "tag_column"]),
    "columns of a text": ("predict --model classifier --text-column 1 x", ["--text-column", "--input"]),
    "columns of lines": (
        "predict --model classifier --input lines.txt --lines --recipe sst2",
        ["--recipe", "--input"],
    ),
    "a batch of nothing": ("predict --model tagger x --batch-size 0", ["batch size", "0"]),
}


@pytest.mark.parametrize(
    "line",
    [
        "predict --model tagger --input words.conll --output empty.tsv/a.conll",
        "evaluate --model tagger --data tagged.conll --json empty.tsv/s.json",
    ],
)
def test_a_place_for_results_is_looked_for_before_they_are_computed(line, workplace, capsys, monkeypatch):
    for name in ("predict.open_task", "evaluate.evaluate"):
        monkeypatch.setattr(f"minibert.cli.{name}", lambda *arguments, **options: pytest.fail("too late"))
    assert run(line) == 2
    assert "cannot write here" in capsys.readouterr().err


@pytest.mark.parametrize(("line", "said"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_told_in_one_line_and_leaves_nothing_behind(line, said, workplace, capsys, monkeypatch):
    typed(monkeypatch, b"")
    before = {path: path.read_bytes() for path in workplace.rglob("*") if path.is_file()}
    capsys.readouterr()
    assert run(line) == 2
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 1 and errors[0].startswith("minibert: error: ")
    for words in said:
        assert words in errors[0]
    assert {path: path.read_bytes() for path in workplace.rglob("*") if path.is_file()} == before


def test_nothing_is_read_from_a_terminal(workplace, capsys, monkeypatch):
    typed(monkeypatch, b"")
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    assert run("predict --model tagger") == 2
    assert "nothing to read; give a text, --input FILE, or lines on stdin" in capsys.readouterr().err

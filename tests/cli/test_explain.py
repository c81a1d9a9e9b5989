"""``minibert explain``: what it prints, writes and refuses."""

import json
import shlex
import sys
from pathlib import Path

import pytest
from small_subjects import OTHER, open_small
from small_subjects import TEXT as SMALL_TEXT

from minibert.cli import main
from minibert.explore.explain import explain

TEXT = '"the capital of france is [MASK] ."'
QUICK = "--steps 2 --device cpu"


def run(line, code=0):
    assert main(["explain", *shlex.split(f"{QUICK} {line}")]) == code


def test_text_json_and_a_page(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run(f"{TEXT} --target paris")
    printed = capsys.readouterr().out
    assert "ln p(paris)" in printed and "\x1b" not in printed
    run(f"{TEXT} --target paris --json --html page.html --dtype float64")
    told = json.loads(capsys.readouterr().out)
    assert told["answer"] == "paris" and [word["word"] for word in told["words"]][3] == "france"
    assert told["sum"] == pytest.approx(sum(word["integrated_gradients"] for word in told["words"]))
    assert told["gap"] == pytest.approx(told["sum"] - (told["value"] - told["baseline"]["value"]))
    assert "ln p(paris)" in Path("page.html").read_text(encoding="utf-8")
    run(f"{TEXT} --html page.html")
    assert capsys.readouterr() == ("", "written to page.html: open it in a browser; it needs no network\n")


@pytest.mark.parametrize("refused", [False, True])
def test_colours_on_a_terminal_that_may_have_them(monkeypatch, capsys, refused):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1" * refused)
    run(f"{TEXT} --target paris")
    assert ("\x1b[" in capsys.readouterr().out) != refused


def test_texts_in_a_file(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("texts.txt").write_text("ann sings a [MASK] .\n\nshe left .\tthen it rained .\n", encoding="utf-8")
    run("--file texts.txt --json --pieces --leave-out remove --baseline zero")
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert first["word"]["word"] == "[MASK]" and "second" not in first and "pieces" in first
    assert second["second"] == "then it rained ." and second["baseline"]["kind"] == "zero"
    run("--file texts.txt")
    assert capsys.readouterr().out.count("gradient × input") == 2


def test_of_two_compared_texts_each_has_its_turn(tmp_path, capsys):
    folder = tmp_path / "encoder"
    subject = open_small("similarity", folder)
    run(f'"{SMALL_TEXT}" --pair "{OTHER}" --model {folder} --json --dtype float64 --steps 40')
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    for told, text, other in ((first, SMALL_TEXT, OTHER), (second, OTHER, SMALL_TEXT)):
        assert (told["text"], told["second"]) == (text, other)
        assert [word["word"] for word in told["words"]] == text.split()
        assert told["value"] == pytest.approx(explain(subject, text, other).value)
    assert first["value"] == pytest.approx(second["value"])


def test_a_large_gap_is_said_beside_the_json(capsys):
    for steps, large in (("1", True), ("20", False)):
        run(f"{TEXT} --target paris --json --steps {steps}")
        told, err = capsys.readouterr()
        assert (json.loads(told)["relative_gap"] > 0.05) == large
        assert ("text 1: the gap is more than 5% of the difference" in err) == large


def test_a_gap_of_rounding_is_no_large_one(capsys):
    """Nothing but the hidden word differs from the baseline, and that is the same there."""
    run("[MASK]")
    out, err = capsys.readouterr()
    assert "the difference is" in out and "warning" not in out + err


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "give texts, in quotes, or --file FILE with one text per line"),
        ("'a b' ' '", "an empty text cannot be explained; give some words"),
        ("'a b' --pair ' '", "an empty text cannot be explained; give some words"),
        (f"{TEXT} --file texts.txt", "with one text per line, not both"),
        ("--file texts.txt --pair b", "in a file, put a tab between the two"),
        ("--file empty.txt", "empty.txt: there is no text to read"),
        ("--file half.txt", "half.txt: line 2: an empty text cannot be explained"),
        ("--file missing.txt", "missing.txt: no such file"),
        (f"{TEXT} --model missing", "missing"),
        (f"{TEXT} --target parisparis", "'parisparis' is not a token of the vocabulary"),
        (f"{TEXT} --word 9", "there is no word 9; the text has 7, counted from 1"),
        (f"{TEXT} --html .", "cannot write here (there is a folder)"),
        (f"{TEXT} --baseline none", "unknown --baseline 'none'"),
    ],
)
def test_what_is_refused(tmp_path, monkeypatch, capsys, line, message):
    monkeypatch.chdir(tmp_path)
    Path("texts.txt").write_text("a [MASK]\n")
    Path("empty.txt").write_text("")
    Path("half.txt").write_text("a b\n\tc d\n")
    run(line, code=2)
    err = capsys.readouterr().err
    assert message in err and err.count("\n") == 1

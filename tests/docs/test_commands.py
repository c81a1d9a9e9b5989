"""The commands that the README and the pages of docs/ show exist, and those shown with output print it."""

import importlib.util
import os
import re
import shlex
from pathlib import Path

import pytest
from markdown_pages import PAGES, ROOT, Block, code_blocks, name_of
from parsers import every_parser

from minibert.cli import main, make_parser, parse
from minibert.devices import resolve_device
from minibert.proofs import all_cases

# Programs that are not ours.
OTHERS = ("python -m venv ", "python -c ", "python convert.py ", ".venv/bin/python -m pip ")
OTHERS += (".venv/bin/python -m shtab ", "mkdir -p ")
# Commands whose output is shown but takes too long to be made again here, or that go on until stopped.
LONG = ("pretrain", "finetune", "gradcheck", "predict", "explain", "explore")


def shown_with_output(block: Block) -> list[tuple[str, str]]:
    """The commands of a console block, each with what is printed below it."""
    parts = re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]
    return [tuple(part.split("\n", 1)) for part in parts]


def command_lines() -> list[str]:
    """All lines of shell that the pages show, without comments; a \\ continues a line."""
    text = "".join(block.text.replace("\\\n", " ") for block in code_blocks("sh"))
    lines = text.splitlines()
    lines += [command for block in code_blocks("console") for command, _ in shown_with_output(block)]
    return list(dict.fromkeys(line.split("  #")[0].strip() for line in lines if line))


def targets() -> list[str]:
    """What ``make`` can make."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    return re.findall(r"^(\w+):.*?##", makefile, flags=re.MULTILINE)


@pytest.mark.parametrize("line", command_lines())
def test_every_command_is_one(line):
    line = re.sub(r"^mpirun -n \d+ ", "", line.split(" # ")[0].strip())
    line = re.sub(r"^\.venv/bin/python -m minibert ", "minibert ", line)
    program, *words = shlex.split(line)
    if program == "minibert":
        parse(words)
    elif program == "make":
        assert set(words[:1]) <= set(targets())
    elif script := re.match(r"python (\S+/\S+\.py)", line):
        needed = r'add_argument\(\s*"(--[\w-]+)"[^)]*required=True'
        assert set(re.findall(needed, (ROOT / script[1]).read_text(encoding="utf-8"))) <= set(words)
    elif module := re.match(r"(?:\.venv/bin/)?python -m (pytest|benchmarks|notebooks)\b", line):
        assert importlib.util.find_spec(module[1])
    elif (ROOT / program).is_file():
        assert program.endswith(".py") or os.access(ROOT / program, os.X_OK)
    else:
        assert line.startswith(OTHERS)


OUTPUTS = [
    (command, output)
    for block in code_blocks("console")
    for command, output in shown_with_output(block)
    if (words := command.split())[0] == "minibert" and words[1] not in LONG
]


@pytest.mark.parametrize("command, output", OUTPUTS, ids=[command for command, _ in OUTPUTS])
def test_commands_print_what_is_shown(command, output, tmp_path, monkeypatch, capsys):
    """A line of three dots stands for lines left out."""
    monkeypatch.chdir(tmp_path)
    assert main(shlex.split(command)[1:]) == 0
    printed = capsys.readouterr().out
    parts = [part.strip() for part in re.split(r"^…$", output, flags=re.MULTILINE)]
    assert re.fullmatch(".*".join(map(re.escape, parts)), printed.strip(), flags=re.DOTALL)


def test_the_readme_counts_the_gradients():
    """What `minibert gradcheck` is shown to end with: all gradients, and an adjoint test for each case."""
    (count,) = (
        int(re.search(r"(\d+) comparisons", output)[1])
        for block in code_blocks("console")
        for command, output in shown_with_output(block)
        if command == "minibert gradcheck"
    )
    assert count == sum(len(case.variables) + 1 for case in all_cases(resolve_device("cpu")))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_flags_that_the_prose_names_exist(page: Path):
    prose = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    flags = {flag for parser in every_parser(make_parser()) for flag in parser._option_string_actions}
    assert set(re.findall(r"`(--[a-z-]+)", prose)) <= flags

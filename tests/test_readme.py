"""What the README shows is what happens."""

import contextlib
import io
import re
import shlex
from pathlib import Path

import pytest

from minibert.cli import parse

README = (Path(__file__).resolve().parents[1] / "README.md").read_text(encoding="utf-8")


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

"""``minibert gradcheck``."""

import pytest

from minibert.cli import main
from minibert.gradcheck import Row


def test_a_preset(capsys):
    assert main(["gradcheck", "--preset", "tiny", "--device", "cpu"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("tiny ")
    assert lines[1].endswith("ok")
    assert lines[-1].endswith("GiB of memory")


def test_every_parameter_on_demand(monkeypatch):
    asked = []
    monkeypatch.setattr(
        "minibert.cli.gradcheck.preset_rows", lambda preset, _, every: asked.append((preset, every)) or []
    )
    for flags in ([], ["--every-parameter"]):
        assert main(["gradcheck", "--preset", "mini", "--device", "cpu", *flags]) == 0
    assert asked == [("mini", False), ("mini", True)]


def test_a_wrong_gradient_is_exit_code_1(monkeypatch, capsys):
    monkeypatch.setattr("minibert.cli.gradcheck.preset_rows", lambda *a: [Row("it", "w", 1e-12, 1e-13)])
    assert main(["gradcheck", "--preset", "tiny", "--device", "cpu"]) == 1
    assert "WRONG" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--preset", "huge"], "unknown preset 'huge'; expected one of tiny, mini"),
        (["--every-parameter"], "--every-parameter needs --preset"),
    ],
)
def test_mistakes(flags, message, capsys):
    assert main(["gradcheck", *flags]) == 2
    out, error = capsys.readouterr()
    assert message in error and out == ""

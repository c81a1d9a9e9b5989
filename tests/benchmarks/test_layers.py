"""Which layers a head reads: the commands, and the page."""

import json
import shlex
from string import Template

import pytest

from benchmarks.ablations import layers
from benchmarks.ablations.__main__ import main
from benchmarks.finetuning import __main__ as finetuning
from benchmarks.finetuning.figures import MEASURED
from minibert.cli import parse
from minibert.errors import UserError
from minibert.files import write_json


@pytest.fixture
def made(monkeypatch):
    """The runs that were asked for; each leaves scores of two seeds."""
    runs = []

    def make(run, data, folder, quick):
        runs.append(run)
        scores = [{"scores": {"f1": 0.01 * len(runs) + difference}} for difference in (0.1, 0.2)]
        write_json(folder / run.name / "results.json", {"runs": scores})
        write_json(folder / run.name / MEASURED, {})

    monkeypatch.setattr(layers, "make_once", make)
    return runs


def test_the_page_has_a_row_for_each_layer(made, tmp_path):
    places = ["--folder", str(tmp_path / "runs"), "--results", str(tmp_path / "results")]
    assert main(["layers", "--models", "mini", "other=mini", "--seeds", "2", *places]) == 0
    page = (tmp_path / "results" / "ablations.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| ")]
    assert [row.split(" | ")[0].strip("| ") for row in rows[2:]] == [
        "fine-tuned, rate 1e-4",
        "fine-tuned, rate 2e-4",
        "embeddings",
        *(f"layer {layer}" for layer in range(1, 5)),
        "the last two",
        "the last four",
    ]
    assert "| layer 1 | 19.0 ± 7.1 (2 seeds) | 28.0 ± 7.1 (2 seeds) |" in page  # the fourth, the thirteenth
    assert "Devlin et al. 2019, table 7" in page
    assert (tmp_path / "results" / "ablation-layers.png").stat().st_size > 5000
    record = json.loads((tmp_path / "results" / "ablations.json").read_text())["layers"]
    assert record["mini"]["layers"] == 4 and len(record["other"]["f1"]) == 9


def test_its_commands_are_those_that_everybody_has(made, tmp_path):
    assert main(["layers", "--models", "mini", "--folder", str(tmp_path), "--results", str(tmp_path)]) == 0
    places = dict.fromkeys(("data", "runs", "run"), "folder")
    learned = [parse(shlex.split(Template(run.commands[0]).substitute(places))[1:]) for run in made]
    assert [flags.features for flags in learned if hasattr(flags, "features")] == [
        *([layer] for layer in range(5)),
        [-2, -1],
        [-4, -3, -2, -1],
    ]
    assert {flags.restarts for flags in learned} == {3} and len({run.name for run in made}) == 9


def test_quick_runs_are_kept_apart(made, tmp_path):
    flags = ["layers", "--quick", "--models", "mini", "--folder", str(tmp_path / "runs")]
    assert main([*flags, "--results", str(tmp_path)]) == 0
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["quick"]


def test_weights_that_are_not_installed_are_asked_for_by_the_right_flag(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(finetuning.importlib.util, "find_spec", lambda name: None)
    assert main(["layers", "--folder", str(tmp_path), "--results", str(tmp_path)]) == 2
    assert "or give a sentence encoder, --models NAME=FOLDER" in capsys.readouterr().err
    with pytest.raises(UserError, match="--encoder FOLDER"):
        finetuning.find_encoder()

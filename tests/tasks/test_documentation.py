"""Fine-tuning without files: the tasks made from the installed documentation, here a small one of our own."""

import itertools
import json
from pathlib import Path

import pytest
from small_encoder import TOKENIZER, write_encoder

from minibert.cli import main
from minibert.data.embedded import Module
from minibert.data.tasks import RECIPES, documentation
from minibert.errors import UserError
from minibert.tasks import finetuning
from minibert.tasks.similarity import Similarity, SimilarityOptions

DOCS = [name for name in RECIPES if name.startswith("docs-")]
FUNCTION = '''
def function(values, axis):
    """Return the {thing} of all the {other} in a table.

    The {thing} is what the *values* along the `axis` of {other} are, when they are many.

    Parameters
    ----------
    values : list
        All of the {other} that have a {thing}.
    axis : int
        Where each {thing} of the {other} is to be found.
    """
'''
THINGS = "river stone window garden winter summer teacher letter bridge paper".split()


@pytest.fixture(autouse=True)
def small_documentation(tmp_path, monkeypatch):
    """Four libraries of twenty files with a function in each; an encoder; the test runs in its folder."""
    files = itertools.product(documentation.LIBRARIES, range(20))
    modules = []
    for (library, number), (thing, other) in zip(files, itertools.permutations(THINGS, 2), strict=False):
        path = tmp_path / library / f"file{number}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(FUNCTION.format(thing=thing, other=other))
        modules.append(Module(library, path.name, path))
    monkeypatch.setattr(documentation, "installed_modules", lambda: iter(modules))
    monkeypatch.setattr(finetuning, "plot_finetuning", lambda *_: None)  # which takes most of the time
    monkeypatch.chdir(tmp_path)
    write_encoder(tmp_path / "encoder")
    documentation._all_entries.cache_clear()
    yield
    documentation._all_entries.cache_clear()


def read(part="dev", **options):
    return Similarity(TOKENIZER, SimilarityOptions(**options)).read(part)


@pytest.mark.parametrize("recipe", DOCS)
def test_a_recipe_and_a_model_are_enough(recipe, capsys):
    short = ["--epochs", "1", "--max-length", "32", "--device", "cpu", "--threads", "1"]
    assert main(["finetune", "--recipe", recipe, "--model", "encoder", *short]) == 0, capsys.readouterr().err
    (run,) = Path("runs").glob(f"20??-??-??-{recipe}")
    results = json.loads((run / "results.json").read_text())
    parts = {part: RECIPES[recipe].read(part) for part in documentation.PARTS}
    assert {part: results["examples"][part] for part in parts} == {part: len(parts[part]) for part in parts}
    capsys.readouterr()
    assert main(["evaluate", "--model", str(run / "best"), "--data", "dev", "--json", "scores.json"]) == 0
    scores = json.loads(Path("scores.json").read_text())["scores"]
    assert scores == pytest.approx(results["best"]["scores"])


def test_pairs_of_a_search_are_for_the_softmax():
    pairs = read(recipe="docs-search", loss="softmax")
    assert pairs == documentation.search_pairs("dev")
    with pytest.raises(UserError, match="recipe docs-search gives no pairs for the loss cosine"):
        read(recipe="docs-search")


def test_questions_and_their_passages_are_pairs():
    questions = documentation.parameter_questions("dev")
    pairs = read(recipe="docs-questions", loss="softmax")
    assert [(pair.text, pair.text_pair) for pair in pairs] == [(q.text, q.passage) for q in questions]
    assert pairs


@pytest.mark.parametrize("recipe", DOCS)
def test_nothing_to_learn_from(recipe, monkeypatch, capsys):
    monkeypatch.setattr(documentation, "installed_modules", lambda: iter([]))
    assert main(["finetune", "--recipe", recipe, "--model", "encoder"]) == 2
    assert "numpy, python, scipy: no documentation for this task" in capsys.readouterr().err


def test_a_file_in_the_place_of_a_part(capsys):
    assert main("finetune --recipe docs-library --train my.tsv --model encoder".split()) == 2
    assert "the documentation has the parts train and dev, but no 'my.tsv'" in capsys.readouterr().err

"""What the reader writes is kept, put together, and put in the place of the library's operations."""

import importlib.util
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import jupytext
import matplotlib
import numpy as np
import pytest

from minibert import BertForPreTraining, UserError, ops
from minibert.course import Mine, both, check, keep, kept
from minibert.course.exercises import n20_your_bert as n20
from minibert.course.mine import PIECES
from minibert.course.module_of import module_of
from minibert.devices import resolve_device
from minibert.gradcheck import Draws
from minibert.nn import Context
from minibert.ops.activations import gelu
from minibert.ops.table import TABLE

NOTEBOOKS = Path(__file__).parents[2] / "notebooks" / "src"


def imported(path: Path):
    """A Python file as a module; functions of it have a text, as those of a notebook's cells have."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def cells_of(number: str) -> list:
    [source] = NOTEBOOKS.glob(f"{number}_*.py")
    return jupytext.read(source, fmt="py:percent").cells


@pytest.fixture(scope="module")
def solutions(tmp_path_factory) -> dict:
    """What a reader who follows the notebooks writes, by the name of the exercise."""
    folder, written = tmp_path_factory.mktemp("notebooks"), {}
    for number in sorted({name[:2] for name in PIECES.values()}):
        cells = [cell for cell in cells_of(number) if cell.cell_type == "code"]
        solved = [cell.source for cell in cells if "solution" in cell.metadata.get("tags", [])]
        imports = re.sub(r"^plots\..*$", "", cells[0].source, flags=re.MULTILINE)
        path = folder / f"n{number}.py"
        path.write_text("\n\n\n".join([imports, *solved]), encoding="utf-8")
        module = imported(path)
        checks = re.findall(r'check\("([\w.]+)", (\w+)\)', "\n".join(cell.source for cell in cells))
        written |= {name: getattr(module, function) for name, function in checks if name in PIECES.values()}
    assert written.keys() == set(PIECES.values())
    return written


@pytest.fixture
def module_with(tmp_path):
    """A function of this name out of a text, as if a cell of a notebook had it."""

    def make(text: str, name: str):
        path = tmp_path / "cell.py"
        path.write_text(text, encoding="utf-8")
        return getattr(imported(path), name)

    return make


# -- keep and kept -----------------------------------------------------------------------------------


def test_what_is_kept_is_a_module_of_its_own(module_with, tmp_path, capsys):
    text = """
import numpy as np
from math import prod
from minibert.ops import softmax as also_there

FACTOR = 1.0
unused = np.zeros(3)

def summed(array, axes=(0,)):
    return array.sum(axis=axes) * FACTOR

def my_linear_backward(dout, cache):
    x, weight = cache
    rows = dout.reshape(-1, dout.shape[-1])
    count = prod(x.shape[:-1])
    return (dout @ weight), rows.T @ x.reshape(count, -1), summed(rows)
"""
    keep("02.linear_backward", module_with(text, "my_linear_backward"), tmp_path / "mine")
    file = (tmp_path / "mine" / "02_linear_backward.py").read_text(encoding="utf-8")
    assert file.startswith("from math import prod\n\n\nFACTOR = 1.0\n\n\ndef summed(")
    assert "unused" not in file and "also_there" not in file
    assert "You have 1 of the 16 pieces" in capsys.readouterr().out
    mine = kept(tmp_path / "mine")
    assert set(mine.yours) == {"linear_backward"}
    check("02.linear_backward", mine.linear_backward)
    assert "1 of the 16 pieces are yours" in str(mine)
    assert re.search(r"02\.linear_backward +yours\n", str(mine))
    assert re.search(r"05\.layer_norm_backward +the library's\n", str(mine))


def test_constants_and_functions_of_numpy_and_scipy_are_kept(module_with, tmp_path):
    text = """
import numpy as np
from numpy import exp
from scipy.special import erf

ROOT = np.sqrt(2.0)
LOWEST, NOTHING = -np.inf, np.nan

def gelu(x):
    assert LOWEST < 0 and NOTHING != NOTHING and exp(0.0) == 1
    phi = 0.5 * (1.0 + erf(x / ROOT))
    return x * phi, x
"""
    path = tmp_path / "kept.py"
    path.write_text(module_of(module_with(text, "gelu")), encoding="utf-8")
    assert "ROOT = 1.414" in path.read_text(encoding="utf-8")
    x = np.linspace(-3, 3, 7)
    np.testing.assert_allclose(imported(path).gelu(x)[0], gelu(x)[0])


def test_what_is_wrong_is_not_kept(tmp_path, capsys):
    keep("02.linear_backward", lambda dout, cache: (1, 2, 3), tmp_path / "mine")
    assert capsys.readouterr().out == "02.linear_backward does not pass its check yet, so it is not kept.\n"
    assert not (tmp_path / "mine").exists()


def test_what_was_changed_and_is_wrong_is_not_used(solutions, tmp_path):
    keep("05.layer_norm_backward", solutions["05.layer_norm_backward"], tmp_path)
    file = tmp_path / "05_layer_norm_backward.py"
    file.write_text(file.read_text(encoding="utf-8").replace("return ", "return 2 * "), encoding="utf-8")
    mine = kept(tmp_path)
    assert mine.yours == {} and "the library's: yours fails its check" in str(mine)
    ones = np.ones((2, 3))
    assert len(mine.layer_norm_backward(ones, (ones, np.ones((2, 1)), np.ones(3)))) == 3


RIGHT = """
import numpy as np
from minibert.ops.linear_map import linear_backward

table = np.ones(3)

def reads_an_array(dout, cache):
    assert table.all()
    return linear_backward(dout, cache)

def outer():
    factor = 1.0
    def inside(dout, cache):
        return linear_backward(dout * factor, cache)
    return inside

inside = outer()
nameless = lambda dout, cache: linear_backward(dout, cache)

def calls_a_lambda(dout, cache):
    return nameless(dout, cache)

class Scale:
    one = 1.0

def reads_a_class(dout, cache):
    return linear_backward(dout * Scale.one, cache)
"""


@pytest.mark.parametrize(
    "name, message",
    [
        ("reads_an_array", "reads table of its notebook, which a file cannot have"),
        ("inside", "inside was made inside of another function"),
        ("nameless", "expected a function that was written with def"),
        ("calls_a_lambda", "calls nameless, which is a lambda; write nameless with def"),
        ("reads_a_class", "reads Scale of its notebook, which a file cannot have"),
    ],
)
def test_a_function_that_a_file_cannot_hold(module_with, monkeypatch, tmp_path, name, message):
    function = module_with(RIGHT, name)
    notebook = SimpleNamespace(**function.__globals__)
    monkeypatch.setitem(sys.modules, function.__module__, notebook)  # as __main__ is in a notebook
    with pytest.raises(UserError, match=message):
        keep("02.linear_backward", function, tmp_path / "mine")


def test_the_folder_is_made_if_there_is_none_and_refused_if_it_is_a_file(solutions, tmp_path):
    keep("02.linear", solutions["02.linear"], tmp_path / "two" / "deep")
    assert (tmp_path / "two" / "deep" / "02_linear.py").exists()

    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write here"):
        keep("02.linear", solutions["02.linear"], tmp_path / "file")


def test_only_pieces_are_kept(tmp_path):
    with pytest.raises(UserError, match=r"'00\.predictions' is no piece of your BERT"):
        keep("00.predictions", lambda: None, tmp_path)


@pytest.mark.parametrize(
    "text, message",
    [("def f(:", "cannot be imported: SyntaxError"), ("import math\n", "defines no function")],
)
def test_a_file_that_is_broken(tmp_path, text, message):
    (tmp_path / "04_gelu_backward.py").write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=message):
        kept(tmp_path)


def test_there_is_no_such_piece():
    with pytest.raises(
        AttributeError, match="there is no piece 'gelo_backward'; there are linear, linear_backward"
    ):
        Mine({}).gelo_backward  # noqa: B018


# -- Your BERT ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [(0, 1, 2, 3), (0, 3), (1, 2)], ids=["all", "half", "other-half"])
def test_notebook_20_runs_on_the_solutions(solutions, tmp_path, share, monkeypatch, capsys):
    """Up to real weights, number by number; then some steps of training as the library trains."""
    # Half of them: of one operation the forward is the reader's, of the next the backward.
    names = [name for i, name in enumerate(solutions) if i % 4 in share]
    for name in names:
        keep(name, solutions[name], tmp_path / "my_bert")
    monkeypatch.chdir(tmp_path)
    mine = kept()
    assert len(mine.yours) == len(names)
    used = dict.fromkeys(mine.yours, 0)

    def counting(piece):
        def call(*arguments):
            used[piece] += 1
            return mine.yours[piece](*arguments)

        return call

    counted = Mine({piece: counting(piece) for piece in mine.yours})
    cells = [cell for cell in cells_of("20") if cell.cell_type == "code"]
    wanted = [cell.source for cell in cells if not {"figure", "yours"} & set(cell.metadata.get("tags", []))]
    code = "\n\n".join(wanted).replace("mine = Mine({})", "mine = counted")
    code = code[: code.index("SENTENCE = ")] + code[code.index("def train(") : code.index('check("20.train')]
    names = {"counted": counted, "__name__": "notebook"}
    with matplotlib.rc_context():  # the notebook sets its own style
        exec(compile(code, "notebook 20", "exec"), names)
    assert f"{len(mine.yours)} of the 16 pieces are yours" in capsys.readouterr().out
    assert check("20.train_bert", names["train"]).passed
    assert all(used.values()), used


def test_in_the_library_the_pieces_compute():
    draw = Draws(resolve_device("cpu"), seed=3)
    parameters, batch = n20._model_trial(draw)
    model = n20._library_model(parameters)
    values, gradients = n20.library_values(model, batch)
    calls = []

    def norm_backward(dout, cache):
        calls.append(dout.shape)
        return Mine({}).layer_norm_backward(dout, cache)

    kernels = {name: dict(entry.kernels) for name, entry in TABLE.items()}
    mine = Mine({"layer_norm_backward": norm_backward, "split_heads": n20.mine.split_heads})
    with mine.in_the_library():
        there, there_gradients = n20.library_values(model, batch)
    assert {name: dict(entry.kernels) for name, entry in TABLE.items()} == kernels
    assert len(calls) == 6  # the embeddings, two for each layer, the head
    for name in there:
        np.testing.assert_allclose(there[name], values[name], rtol=1e-12)
    for name in there_gradients:
        np.testing.assert_allclose(there_gradients[name], gradients[name], rtol=1e-9, atol=1e-15)


def test_in_the_library_dropout_is_the_library_s():
    model = BertForPreTraining(n20.CONFIG.replace(hidden_dropout_prob=0.5), dtype="float64", seed=1)
    _, batch = n20._model_trial(Draws(resolve_device("cpu"), seed=3))
    stream = np.array([1, 2], np.uint32)
    with ops.reference_only():
        outputs, _ = model.forward(**batch, context=Context(training=True, stream=stream))
    with Mine({}).in_the_library():
        there, _ = model.forward(**batch, context=Context(training=True, stream=stream))
    assert there.loss == pytest.approx(outputs.loss, rel=1e-12)


# -- both --------------------------------------------------------------------------------------------


def test_both_leaves_the_cache_to_the_reader(capsys):
    def embed(p, input_ids, token_type_ids):
        return n20.embed(p, input_ids, token_type_ids)[0], {"ids": input_ids, "kinds": token_type_ids, "p": p}

    def embed_backward(dout, cache):
        _, inner = n20.embed(cache["p"], cache["ids"], cache["kinds"])
        gradients = n20.embed_backward(dout, inner)
        return dict(reversed(gradients.items()))

    assert check("20.embed_gradients", both(embed, embed_backward)).passed

    def lacks_one(dout, cache):
        return {name: value for name, value in embed_backward(dout, cache).items() if "position" not in name}

    result = check("20.embed_gradients", both(embed, lacks_one))
    assert not result.passed
    assert "lacks position_embeddings.weight; expected 6 outputs" in capsys.readouterr().out.replace(
        "\n  ", " "
    )


def test_of_what_follows_from_each_other_only_the_first_difference_is_told(capsys):
    def mask_forgotten(parameters, batch, num_heads):
        return n20.loss_and_gradients(parameters, batch | {"attention_mask": np.ones((2, 5), int)}, num_heads)

    result = check("20.bert_gradients", mask_forgotten)
    noted = [row.name for row in result.rows if row.note]
    assert noted == ["encoder.layer.0"]
    assert "The first difference is in encoder.layer.0." in capsys.readouterr().out

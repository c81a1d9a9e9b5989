"""One source, two notebooks."""

import nbformat
import pytest

from notebooks.make.convert import complete_notebook, exercise_notebook, links, stub

SOURCE = '''# %% [markdown]
r"""
# 05 · A title

See [the code](../minibert/nn/layers.py), [that picture](figures/x.png#a), [06](06_next.ipynb), [up](#title),
[elsewhere](https://example.org/a) and the formula $[x](y)$ and `[z](w)`.
"""

# %%
import math

# %% tags=["solution"]
def double(x):
    """Twice x.

    x (…,)
    """
    # the trick
    return 2 * x

# %%
check("05.double", double)

# %% [markdown] tags=["answer"]
"""
It is 2x.
"""

# %% tags=["answer"]
print(double(3))
'''


def test_the_complete_notebook_has_everything():
    notebook = complete_notebook(SOURCE, "05_title")
    assert [cell.cell_type for cell in notebook.cells] == ["markdown", *["code"] * 3, "markdown", "code"]
    assert "return 2 * x" in notebook.cells[2].source
    assert notebook.cells[4].source == "It is 2x."
    assert links(notebook.cells[0].source)[-1] == "exercises/05_title.ipynb"


def test_the_exercises_have_everything_but_the_answers():
    notebook = exercise_notebook(SOURCE, "05_title")
    assert [cell.cell_type for cell in notebook.cells] == ["markdown", *["code"] * 3]
    assert notebook.cells[2].source == (
        'def double(x):\n    """Twice x.\n\n    x (…,)\n    """\n    raise NotImplementedError'
    )
    assert "2 * x" not in nbformat.writes(notebook) and "trick" not in nbformat.writes(notebook)


def test_links_are_the_same_places_one_folder_further_down():
    assert links(exercise_notebook(SOURCE, "05_title").cells[0].source) == [
        "../../minibert/nn/layers.py",
        "../figures/x.png#a",
        "06_next.ipynb",
        "#title",
        "https://example.org/a",
        "../05_title.ipynb",
    ]
    assert "$[x](y)$ and `[z](w)`" in exercise_notebook(SOURCE, "05_title").cells[0].source


def test_the_code_of_a_figure_is_folded_away():
    source = '# %% [markdown]\n# Title\n\n# %% tags=["figure"]\nplt.plot(x)\n\n# %%\nx\n'
    cells = complete_notebook(source, "05_title").cells
    assert [cell.metadata.get("jupyter", {}).get("source_hidden") for cell in cells] == [None, True, None]


FIGURE = """# %% [markdown]
# # Title

# %% tags=["figure"]
# Caption: A line. It
#   rises.
plt.plot(x)

"""


@pytest.mark.parametrize("convert", [complete_notebook, exercise_notebook])
@pytest.mark.parametrize(
    ("after", "below"),
    [
        ("# %% [markdown]\n# Text.\n", "*A line. It rises.*\n\nText."),
        ("# %%\nx\n", "*A line. It rises.*"),
        ("", "*A line. It rises.*"),
    ],
)
def test_a_caption_stands_below_its_figure(convert, after, below):
    _, figure, text, *_ = convert(FIGURE + after, "05_title").cells
    assert figure.source == "plt.plot(x)"
    assert text.cell_type == "markdown" and text.source == below


def test_the_caption_of_an_answer_is_an_answer():
    source = FIGURE.replace('["figure"]', '["figure", "answer"]') + "# %% [markdown]\n# Text.\n"
    assert "It rises" in complete_notebook(source, "05_title").cells[2].source
    assert [cell.source for cell in exercise_notebook(source, "05_title").cells[1:]] == ["Text."]


@pytest.mark.parametrize("convert", [complete_notebook, exercise_notebook])
def test_the_same_source_gives_the_same_file(convert):
    notebook = convert(SOURCE, "05_title")
    nbformat.validate(notebook)
    assert nbformat.writes(notebook) == nbformat.writes(convert(SOURCE, "05_title"))


def test_what_is_left_to_do():
    code = '''
LIMIT, other = f(
    3
)


class Head:
    """A head."""

    size = 3

    def forward(self, x):
        """y = f(x)"""

        def inner():
            return x
        return inner()


@once
def backward(dout):
    """dx"""
    return dout'''
    assert (
        stub(code)
        == '''
(LIMIT, other) = ...


class Head:
    """A head."""

    size = 3

    def forward(self, x):
        """y = f(x)"""
        raise NotImplementedError


@once
def backward(dout):
    """dx"""
    raise NotImplementedError'''
    )


def test_a_solution_must_say_what_is_to_be_done():
    with pytest.raises(ValueError, match="double has no docstring"):
        stub("def double(x):\n    return 2 * x")
    with pytest.raises(ValueError, match="does neither"):
        stub("print(3)")

"""Docstrings, and what they say of parameters."""

from minibert.data.docstrings import Docstring, ParameterText, documented_parameters, read_docstrings

MODULE = '''"""What the module is for."""

class Path:
    """A path."""

    def __init__(self, parts, *, strict=lambda x: x):
        self.parts = parts

    def exists(self):
        """Whether it is there."""

        def inner(a, /, b, *args, c=1, **kwargs):
            """Inside."""

async def wait(seconds: float = 1.0):
    pass

if True:
    add_newdoc("module", "dot", "The product.")
    add_newdoc(name, "Nameless.")
raise SystemExit("this module was run")
'''


def test_docstrings_with_names_lines_and_parameters(tmp_path):
    (tmp_path / "module.py").write_text(MODULE)
    documented = [docstring for docstring in read_docstrings(tmp_path / "module.py") if docstring.text]
    assert documented == [
        Docstring("What the module is for.", "", 1),
        Docstring("A path.", "Path", 3, ("parts", "strict")),
        Docstring("Whether it is there.", "Path.exists", 9),
        Docstring("Inside.", "Path.exists.inner", 12, ("a", "b", "args", "c", "kwargs")),
        Docstring("module", "", 19),
        Docstring("dot", "module", 19),
        Docstring("The product.", "dot", 19),
        Docstring("Nameless.", "", 20),
    ]


def test_bad_syntax_has_no_docstrings(tmp_path):
    (tmp_path / "module.py").write_text('"""Text."""\ndef (')
    assert read_docstrings(tmp_path / "module.py") == []


def test_parameters_are_read_from_their_sections():
    text = """Summary.

    Parameters
    ----------
    x, y : array_like
        Coordinates.

        More of them.
    scale
        The scale.
    - no parameter : int
        Of nothing.

    Returns
    -------
    z : int
        The result.

    Other Parameters
    ----------------
    **kwargs : dict, optional
        The rest.
    """
    assert documented_parameters(text) == [
        ParameterText(("x", "y"), "array_like", "    Coordinates.\n\n    More of them."),
        ParameterText(("scale",), "", "    The scale."),
        ParameterText(("kwargs",), "dict, optional", "    The rest."),
    ]


def test_text_without_sections_explains_no_parameters():
    assert documented_parameters("Return x.\n\nx : an int\n    It is returned.\n") == []

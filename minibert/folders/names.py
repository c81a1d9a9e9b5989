"""Tensor names of BERT's descendants: what files call a parameter that BERT has under another name."""

from collections.abc import Sequence

# Pairs (in the files, in the model). A pair without a dot in front is the beginning of a name, and only the
# first that fits is used; a pair with a dot in front is a part of a name, and all that fit are used.
Names = Sequence[tuple[str, str]]


def name_in_model(name: str, names: Names) -> str:
    """The name of the parameter that a file calls ``name``."""
    return _renamed(name, names)


def name_in_file(name: str, names: Names) -> str:
    """The name under which files hold the parameter ``name``: the inverse of `name_in_model`."""
    return _renamed(name, [(ours, theirs) for theirs, ours in names])


def _renamed(name: str, names: Names) -> str:
    for old, new in names:
        if old.startswith("."):
            name = name.replace(old, new)
    begins = next(((old, new) for old, new in names if old[0] != "." and name.startswith(old)), ("", ""))
    return begins[1] + name.removeprefix(begins[0])

"""Write cupy_api.txt: the functions and methods that CuPy has, with the names of their parameters.

Run it where CuPy is installed (no GPU is needed) after a new release of CuPy:

    python tests/list_cupy_api.py

The strict array library of the tests (``strict.py``) offers what stands in that file and nothing else.
"""

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import cupy
import numpy as np

API_FILE = Path(__file__).with_name("cupy_api.txt")


def parameters(function: object) -> str:
    """The names of a function's parameters, with their stars; of a compiled one as its docstring begins."""
    try:
        return " ".join(
            {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "") + p.name
            for p in inspect.signature(function).parameters.values()
        )
    except (TypeError, ValueError):
        signature = re.search(r"\((.*?)\)", (function.__doc__ or "").split("\n")[0])
        words = signature.group(1).split(", ") if signature else []
        return " ".join(re.sub(r"=.*", "", word).split()[-1] for word in words if word)


def entries() -> Iterator[str]:
    """One line a name: what it is, the name, its parameters."""
    for name in dir(cupy):
        thing = getattr(cupy, name)
        if name.startswith("_") or not hasattr(np, name):
            continue
        if isinstance(thing, cupy.ufunc) or name == "matmul":
            yield f"ufunc {name}"
        elif thing is getattr(np, name) or isinstance(thing, float):  # float32, dtype, newaxis, pi, inf, …
            yield f"constant {name}"
        elif inspect.isroutine(thing) and "*args **kwargs" not in parameters(
            thing
        ):  # those only pass on to NumPy
            yield f"function {name} {parameters(thing)}".rstrip()
    for name in dir(cupy.ndarray):
        if name.startswith("_") or not (hasattr(np.ndarray, name) or name in ("get", "set")):
            continue
        thing = getattr(cupy.ndarray, name)
        yield f"method {name} {parameters(thing)}".rstrip() if callable(thing) else f"attribute {name}"


if __name__ == "__main__":
    heading = f"# What CuPy {cupy.__version__} and NumPy both have; written by list_cupy_api.py"
    API_FILE.write_text("\n".join([heading, *entries()]) + "\n", encoding="utf-8")

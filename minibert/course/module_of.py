"""A function that was written in a notebook, as the text of a module that has all that it needs."""

import ast
import dis
import inspect
import math
import sys
import textwrap
from collections.abc import Callable
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

from minibert.errors import UserError

UFUNCS = ("numpy", "scipy.special")  # where such functions may come from, which they do not say themselves
PLAIN = (bool, int, float, complex, str, bytes, type(None))


def module_of(function: Callable) -> str:
    """The text of a module with this function at its end.

    Above it stand the imports and the numbers and texts that it reads, and the functions of its notebook that
    it calls. Raises UserError for a function without a text of its own, and for one that reads anything else
    of its notebook.
    """
    if not isinstance(function, FunctionType) or function.__name__ == "<lambda>":
        raise UserError(f"expected a function that was written with def, got {function!r}")
    parts = _Parts(function.__globals__, function.__module__)
    parts.add_function(function)
    blocks = ["\n".join(sorted(parts.imports)), "\n".join(parts.constants), *parts.functions]
    return "\n\n\n".join(block for block in blocks if block) + "\n"


class _Parts:
    """What the module is made of, found from one function to the next."""

    def __init__(self, names: dict[str, Any], home: str):
        self.names, self.home = names, home  # of the notebook
        self.imports: list[str] = []
        self.constants: list[str] = []
        self.functions: list[str] = []
        self._seen: set[str] = set()

    def add_function(self, function: FunctionType) -> None:
        """The text of a function, after everything that it needs."""
        self._seen.add(function.__name__)
        if function.__closure__:
            raise UserError(f"{function.__name__} was made inside of another function; write it by itself")
        try:
            text = textwrap.dedent(inspect.getsource(function)).rstrip()
        except (OSError, TypeError):
            raise UserError(
                f"the text of {function.__name__} is not to be found; run its cell again"
            ) from None
        for name in [*_names_of_the_heading(text), *_globals_of(function.__code__)]:
            if name not in self._seen and name in self.names:
                self._seen.add(name)
                self._add(name, self.names[name], function.__name__)
        self.functions.append(text)

    def _add(self, name: str, value: Any, user: str) -> None:
        if isinstance(value, np.generic):
            value = value.item()  # of np.float64, which is a float, the text would need an import
        if isinstance(value, ModuleType):
            self.imports.append(f"import {value.__name__}" + f" as {name}" * (name != value.__name__))
        elif isinstance(value, PLAIN):
            self.constants.append(f"{name} = {_literal(value)}")
        elif isinstance(value, FunctionType) and value.__module__ == self.home:
            if value.__name__ == "<lambda>":
                raise UserError(f"{user} calls {name}, which is a lambda; write {name} with def")
            self.add_function(value)
            if name != value.__name__:
                self.functions.append(f"{name} = {value.__name__}")
        elif (home := _importable(value)) and home != self.home:
            original = value.__name__
            self.imports.append(f"from {home} import {original}" + f" as {name}" * (name != original))
        else:
            raise UserError(
                f"{user} reads {name} of its notebook, which a file cannot have: give it as an argument, or "
                f"make it inside of {user}"
            )


def _literal(value: Any) -> str:
    """A number or a text as Python reads it; inf and nan have no literals."""
    return f"float('{value}')" if isinstance(value, float) and not math.isfinite(value) else repr(value)


def _globals_of(code: CodeType) -> list[str]:
    """The names that a function may look up in its module, with those of functions inside of it, in order."""
    names = [
        step.argval for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")
    ]
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names += _globals_of(constant)
    return names


def _names_of_the_heading(text: str) -> list[str]:
    """The names in the decorators, defaults and annotations of a function."""
    definition = ast.parse(text).body[0]
    assert isinstance(definition, ast.FunctionDef)
    parts = [*definition.decorator_list, definition.args, *filter(None, [definition.returns])]
    return [node.id for part in parts for node in ast.walk(part) if isinstance(node, ast.Name)]


def _importable(value: Any) -> str:
    """The module from which a function or class can be imported by its name; empty if there is none."""
    module = getattr(value, "__module__", None) or ""
    package = module.rpartition(".")[0]  # ops exports functions of its modules, wrapped
    for home in (package, module, *(UFUNCS if isinstance(value, np.ufunc) else ())):
        if home in sys.modules and getattr(sys.modules[home], getattr(value, "__name__", ""), None) is value:
            return home
    return ""

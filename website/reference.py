"""The reference: a page for each room, with the public names (``__all__``) and their docstrings."""

import ast
import importlib
import inspect
import re
import textwrap
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from website.pages import ROOT

ROOMS = "ops nn bert heads variants text data data.tasks train tasks explore gradcheck course".split()
WITHOUT_ALL = {"variants": ["open_config", "open_model", "Family"]}
SHORT = 120  # characters of a value that is shown whole


def reference_pages() -> dict[str, str]:
    """The pages in reST, by their names."""
    modules = {room: importlib.import_module(f"minibert.{room}") for room in ROOMS}
    pages = [_top(modules), *(_room(room, module) for room, module in modules.items())]
    return {f"api/{name}.rst": page for name, page in zip(_names(), pages, strict=True)}


def _names() -> list[str]:
    """What the pages are called: numbered, so that they stand in the order of the rooms."""
    return [f"{number:02}-{room}" for number, room in enumerate(["minibert", *ROOMS])]


def public_names(room: str, module: ModuleType) -> list[str]:
    """The names that a room offers: classes, functions, the rest."""
    names = WITHOUT_ALL.get(room) or module.__all__
    return sorted(names, key=lambda name: (_kind(getattr(module, name)), name))


@cache
def documented() -> dict[str, str]:
    """Where each public name is documented: "BertModel" → "minibert.bert.BertModel"."""
    where = {"UserError": "minibert.errors.UserError"}
    for room in reversed(ROOMS):
        module = importlib.import_module(f"minibert.{room}")
        where |= {name: f"minibert.{room}.{name}" for name in public_names(room, module)}
    return where


@cache
def base_classes() -> dict[str, str]:
    """What public classes inherit from and no room offers, by its full name: the first room that needs it."""
    found: dict[str, str] = {}
    for room in ROOMS:
        module = importlib.import_module(f"minibert.{room}")
        members = (getattr(module, name) for name in public_names(room, module))
        for base in (base for member in members if inspect.isclass(member) for base in member.__mro__[1:]):
            ours = base.__module__.startswith("minibert.") and not base.__name__.startswith("_")
            if ours and base.__name__ not in documented():
                found.setdefault(f"{base.__module__}.{base.__name__}", room)
    return found


def _kind(member: Any) -> int:
    return 0 if inspect.isclass(member) else 1 if inspect.isfunction(member) else 2


def _top(modules: dict[str, ModuleType]) -> str:
    """The page of the package: where each of its names is, and in one line what it is."""
    import minibert

    where = documented()
    rows = []
    for name in minibert.__all__:
        target = where.get(name)
        member = f":py:obj:`{name} <{target}>`" if target else f"``{name}``"
        rows.append(f"   * - {member}\n     - {escaped(_first_line(minibert, name))}")
    lead = "What ``import minibert`` offers. Everything else is imported from the package where it is, as in"
    lead += "\n``from minibert.ops import layer_norm``."
    table = ".. list-table::\n\n" + "\n".join(rows)
    contents = ".. toctree::\n   :hidden:\n\n   " + "\n   ".join(_names()[1:])
    error = ".. autoexception:: minibert.errors.UserError"
    return "\n\n".join([_title("Reference"), lead, table, error, contents]) + "\n"


def _first_line(module: ModuleType, name: str) -> str:
    member = getattr(module, name)
    doc = inspect.getdoc(member) if _kind(member) < 2 else "the sizes of BERT that Google published"
    return (doc or "").split("\n\n")[0].replace("\n", " ")


def _room(room: str, module: ModuleType) -> str:
    name = f"minibert.{room}"
    lines = [_title(name), *to_rest(inspect.getdoc(module) or ""), "", f".. py:currentmodule:: {name}", ""]
    for member_name in public_names(room, module):
        member, full = getattr(module, member_name), f"{name}.{member_name}"
        if inspect.isclass(member):
            lines += _class(full, member)
        elif inspect.isfunction(member):
            lines += [f".. autofunction:: {full}", ""]
        else:
            lines += [f".. py:data:: {member_name}", "", f"   {_value(member)}", ""]
    for full in (full for full, first in base_classes().items() if first == room):
        home, _, member_name = full.rpartition(".")
        lines += _class(full, getattr(importlib.import_module(home), member_name))
    return "\n".join(lines)


def _class(full: str, member: type) -> list[str]:
    bases = ["   :show-inheritance:"] * (member.__base__ is not object)
    return [f".. autoclass:: {full}", "   :members:", *bases, ""]


def _title(name: str) -> str:
    return f"{name}\n{'=' * len(name)}\n"


def _value(value: Any) -> str:
    """A value in a line: whole if it is short, else its keys."""
    if len(repr(value)) <= SHORT:
        return f"``{value!r}``"
    if isinstance(value, dict):
        return f"{len(value)} entries: " + ", ".join(f"``{key}``" for key in value)
    return f"A ``{type(value).__name__}``."


# -- From the docstrings of this package to reST -----------------------------------------------------


ITEM = re.compile(r"\s*[*-] ")
FIELD = re.compile(r"\s*([a-z_]\w*(?:, \w+)*): (.*)")


def to_rest(doc: str, names: dict[str, str] | None = None) -> list[str]:
    """A docstring in plain text as lines of reST.

    Code stands between one or two backticks, and becomes a link where it is one of ``names``. What is
    indented after an empty line is shown as it is. "- …", "* …", and lines "name: …" are lists. Nothing
    else is markup.
    """
    lines: list[str] = []
    verbatim = False
    for block in re.split(r"\n\s*\n", textwrap.dedent(doc).strip("\n")):
        if block.startswith(" "):
            lines += ([] if verbatim else ["::", ""]) + textwrap.indent(block, "    ").splitlines()
        else:
            lines += _prose(block.splitlines(), names)
        verbatim = block.startswith(" ")
        lines.append("")
    return lines


def _prose(block: list[str], names: dict[str, str] | None) -> list[str]:
    """A paragraph, or a list, or one after the other."""
    fields = block[0] == "Args:" or sum(bool(FIELD.match(line)) for line in block if line[0] != " ") > 1
    lines: list[str] = []
    in_list = False
    for line in block[block[0] == "Args:" :]:
        if (found := FIELD.match(line)) and fields:
            item = f"- **{escaped(found[1])}**: {escaped(found[2], names)}"
        elif ITEM.match(line):
            item = "- " + escaped(line.strip()[2:], names)
        else:
            item = ""
        belongs = in_list and line.startswith(" ")
        if (item and not in_list) or (in_list and not item and not belongs):
            lines.append("")  # a list begins or ends
        in_list = bool(item) or belongs
        lines.append(item or "  " * belongs + escaped(line.strip(), names))
    return lines


def escaped(text: str, names: dict[str, str] | None = None) -> str:
    """A line of prose in reST: code between backticks stays code, nothing else is markup."""
    parts = re.split(r"(?::\w+:)?(``.+?``|`[^`]+`)", text)
    return "".join(
        _code(part.strip("`"), names or {}) if number % 2 else _plain(part)
        for number, part in enumerate(parts)
    )


def _plain(text: str) -> str:
    return re.sub(r"([\\*`|]|_(?=\W|$))", r"\\\1", text)


def _code(code: str, names: dict[str, str]) -> str:
    """Code, which may touch the words around it; a link if it is a public name."""
    target = names.get(code.rpartition(".")[2]) if re.fullmatch(r"(ops\.|nn\.)?\w+", code) else None
    return f"\\ :py:obj:`{code} <{target}>`\\ " if target else f"\\ ``{code}``\\ "


# -- What autodoc asks for ---------------------------------------------------------------------------


def signature(function: Any) -> tuple[str, str] | None:
    """The arguments and the result of a function as its source has them, where Array is not Any."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function))))
    except (OSError, TypeError, SyntaxError):
        return None
    node = tree.body[0]
    if not isinstance(node, ast.FunctionDef):
        return None
    arguments = node.args
    for positional in (arguments.posonlyargs, arguments.args):
        if positional and positional[0].arg in ("self", "cls"):
            del positional[0]
    return f"({ast.unparse(arguments)})", ast.unparse(node.returns) if node.returns else ""


def process_signature(_app: Any, what: str, _name: str, member: Any, *_: Any) -> tuple[str, str] | None:
    """Of a class, the arguments are those of ``__init__``; what a dataclass makes stays as it is."""
    if what in ("class", "exception"):
        own = vars(member).get("__init__")
        found = signature(own) if own is not None and not hasattr(member, "__dataclass_fields__") else None
        return (found[0], "") if found else None
    return signature(member)


def process_docstring(
    _app: Any, _what: str, name: str, _member: Any, _options: Any, lines: list[str]
) -> None:
    """Replace the lines of a docstring by reST."""
    others = {short: full for short, full in documented().items() if full != name}
    lines[:] = to_rest("\n".join(lines), others)


def source_lines(module: str, name: str) -> tuple[str, int] | None:
    """The file of the package where a name is defined, and the line there."""
    member: Any = importlib.import_module(module)
    for part in name.split("."):
        member = getattr(member, part, None)
    member = inspect.unwrap(getattr(member, "fget", None) or member) if member is not None else None
    try:
        line = inspect.getsourcelines(member)[1]
        path = Path(inspect.getsourcefile(member) or "").relative_to(ROOT)
    except (OSError, TypeError, ValueError):  # made by a dataclass, or not ours
        return None
    return path.as_posix(), line


def setup(app: Any) -> dict[str, bool]:
    """Hand docstrings and signatures to autodoc."""
    app.connect("autodoc-process-docstring", process_docstring)
    app.connect("autodoc-process-signature", process_signature)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

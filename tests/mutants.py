"""Wrong versions of our own backward functions, made by machine from their syntax trees.

``backward_functions()`` finds the functions, ``mutants(function)`` makes every wrong version of one that
the rules below can make, and ``put_in_place(mutant)`` lets the package run with it for a while.
"""

import ast
import copy
import importlib
import itertools
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType

PACKAGE = Path(__file__).resolve().parents[1] / "minibert"
ROOMS = ("ops", "nn", "folders", "bert", "heads", "variants")
# What runs in a backward without being called so: how gradients reach the parameters.
ALSO = {"add_grad", "settle_grad"}


@dataclass(frozen=True)
class Backward:
    """A backward function of the package: where it stands, its syntax tree, and the function itself."""

    file: str
    name: str
    tree: ast.FunctionDef
    function: FunctionType

    def __str__(self) -> str:
        return f"{self.file} {self.name}"


@dataclass(frozen=True)
class Mutant:
    """A wrong version: the statement before and after the change, and the code to run instead."""

    of: Backward
    before: str
    after: str
    code: CodeType

    def __str__(self) -> str:
        return f"{self.of}\n- {self.before}\n+ {self.after}"


def backward_functions(rooms: Sequence[str] = ROOMS) -> Iterator[Backward]:
    """Every function and method of these rooms named ``…backward``, and those in ``ALSO``."""
    for path in sorted(path for room in rooms for path in (PACKAGE / room).rglob("[!_]*.py")):
        file = path.relative_to(PACKAGE).as_posix()
        module = importlib.import_module("minibert." + file.removesuffix(".py").replace("/", "."))
        for scope, node in _functions(ast.parse(path.read_text(encoding="utf-8"))):
            if (node.name.endswith("backward") or node.name in ALSO) and not _is_abstract(node):
                owner = getattr(module, scope) if scope else module
                name = f"{scope}.{node.name}" if scope else node.name
                yield Backward(file, name, _bare(node), getattr(owner, node.name))


def _functions(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef]]:
    """The functions of a module and the methods of its classes, with the name of the class."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield "", node
        elif isinstance(node, ast.ClassDef):
            yield from ((node.name, item) for item in node.body if isinstance(item, ast.FunctionDef))


def _is_abstract(function: ast.FunctionDef) -> bool:
    """Whether there is nothing in a function but a docstring and perhaps ``raise NotImplementedError``."""
    return all(isinstance(statement, ast.Expr | ast.Raise) for statement in function.body)


def _bare(function: ast.FunctionDef) -> ast.FunctionDef:
    """The function without docstring, annotations and decorators: what is left is what can go wrong."""
    function = copy.deepcopy(function)
    function.decorator_list, function.returns = [], None
    for argument in function.args.args:
        argument.annotation = None
    if ast.get_docstring(function) is not None:
        function.body = function.body[1:] or [ast.Pass()]
    return function


def compiled(backward: Backward, tree: ast.FunctionDef) -> CodeType:
    """The code object of ``tree``, which can stand in for that of ``backward``.

    It is compiled inside another function, from which a method that calls ``super()`` gets its class.
    """
    inner = copy.copy(tree)
    if backward.function.__closure__:  # such a method; it must name the class even where its call is left out
        inner.body = [*tree.body, ast.Expr(ast.Name("__class__", ast.Load()))]
    outer = ast.parse("def outer(__class__): pass")
    outer.body[0].body = [inner, ast.Return(ast.Name(tree.name, ast.Load()))]
    namespace = dict(backward.function.__globals__)
    exec(compile(ast.fix_missing_locations(outer), f"mutant of {backward}", "exec"), namespace)
    return namespace["outer"](None).__code__


@contextmanager
def put_in_place(function: FunctionType, code: CodeType) -> Iterator[None]:
    """Run ``code`` wherever the package calls ``function``, under whatever name it was imported."""
    right = function.__code__
    function.__code__ = code
    try:
        yield
    finally:
        function.__code__ = right


def mutants(backward: Backward) -> Iterator[Mutant]:
    """Every mutant of one function, no two with the same code text."""
    tree = copy.deepcopy(backward.tree)
    seen = {ast.unparse(tree)}
    names = _Names(tree)
    for statement, holder, field, index in _places(tree):
        node = getattr(holder, field) if index is None else getattr(holder, field)[index]
        before = _first_line(statement)
        for wrong in _wrong_versions(node, holder, field, names):
            _put(holder, field, index, wrong)
            text = ast.unparse(ast.fix_missing_locations(tree))
            changed = wrong if node is statement else statement
            if text not in seen:
                seen.add(text)
                yield Mutant(backward, before, _first_line(changed), compiled(backward, copy.deepcopy(tree)))
            _put(holder, field, index, node)


def _places(tree: ast.FunctionDef) -> Iterator[tuple[ast.stmt, ast.AST, str, int | None]]:
    """Every node of a derivative: the statement it belongs to, and where it hangs (node, field, index)."""

    def visit(node: ast.AST, statement: ast.stmt) -> Iterator:
        for field, value in ast.iter_fields(node):
            for index, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
                if not isinstance(child, ast.AST) or _is_plumbing(child, node):
                    continue
                owner = child if isinstance(child, ast.stmt) else statement
                if isinstance(child, ast.stmt | ast.expr):
                    yield owner, node, field, index
                yield from visit(child, owner)

    for index, statement in enumerate(tree.body):
        if not _is_plumbing(statement, tree):
            yield statement, tree, "body", index
            yield from visit(statement, statement)


def _is_plumbing(node: ast.AST, parent: ast.AST) -> bool:
    """Whether a node is no part of the derivative: checks, conversions, types, library, precision.

    (That dtypes are right is another test's business, as all is float64 here; and the −1 of a reshape
    only says "as many as there are".)
    """
    if isinstance(node, ast.Raise | ast.Assert) or (
        isinstance(node, ast.If) and isinstance(node.body[0], ast.Raise)
    ):
        return True
    if isinstance(node, ast.keyword):
        return node.arg == "dtype"
    if isinstance(node, ast.Expr) and ast.unparse(node).startswith("allow_tf32("):
        return True
    if isinstance(node, ast.Assign) and re.match(r"float\(|\w+\.astype\(", ast.unparse(node.value)):
        return True
    if isinstance(parent, ast.Call):
        function = ast.unparse(parent.func)
        chooses_library = function == "get_array_module"
        fills_up = function.endswith(".reshape") and isinstance(node, ast.UnaryOp)
        return chooses_library or fills_up
    return False


def _put(holder: ast.AST, field: str, index: int | None, node: ast.AST) -> None:
    if index is None:
        setattr(holder, field, node)
    else:
        getattr(holder, field)[index] = node


def _first_line(statement: ast.stmt) -> str:
    return textwrap.shorten(ast.unparse(statement).split("\n")[0], 200)


class _Names:
    """What can be confused: the local variables of a function, and the attributes of each object."""

    def __init__(self, tree: ast.FunctionDef):
        parameters = [argument.arg for argument in tree.args.args if argument.arg != "self"]
        stored = [n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
        self.local = list(dict.fromkeys(parameters + [name for name in stored if name != "_"]))
        self.attributes: dict[str, list[str]] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute):
                known = self.attributes.setdefault(ast.unparse(node.value), [])
                if node.attr not in known:
                    known.append(node.attr)


# -- The rules: what a wrong version of a node looks like ---------------------------------------------

SWAPPED_OPERATOR = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult}
SWAPPED_COMPARISON = {
    ast.Gt: (ast.GtE, ast.Lt), ast.Lt: (ast.LtE, ast.Gt), ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,), ast.IsNot: (ast.Is,), ast.In: (ast.NotIn,), ast.NotIn: (ast.In,),
}  # fmt: skip
SWAPPED_METHOD = {"sum": ("mean", "max"), "mean": ("sum",), "exp": ("log",), "zeros": ("ones",)}
SCALE = 1.001
SYMMETRIC = {"total"}  # a sum: its arguments have no order


def _wrong_versions(node: ast.AST, holder: ast.AST, field: str, names: _Names) -> Iterator[ast.AST]:
    """Every wrong version of one node. ``holder`` and ``field`` say where it hangs."""
    if isinstance(node, ast.stmt):
        yield from _wrong_statements(node)
        return
    rules: dict[type, Callable[..., Iterator[ast.AST]]] = {
        ast.BinOp: _wrong_operation,
        ast.UnaryOp: lambda node: iter([node.operand]),
        ast.Constant: _wrong_constant,
        ast.Call: _wrong_call,
        ast.Compare: _wrong_comparison,
        ast.Subscript: _wrong_subscript,
        ast.Slice: _wrong_slice,
        ast.Tuple: _wrong_tuple,
        ast.IfExp: lambda node: iter([node.body, node.orelse]),
    }
    if type(node) in rules:
        yield from rules[type(node)](node)
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in names.local:
        yield from (ast.Name(name, ast.Load()) for name in names.local if name != node.id)
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
        yield from _wrong_attribute(node, names)
    if _is_result(node, holder, field):
        yield ast.BinOp(node, ast.Mult(), ast.Constant(SCALE))
        yield ast.UnaryOp(ast.USub(), node)


def _is_result(node: ast.AST, holder: ast.AST, field: str) -> bool:
    """Whether a node is something computed: assigned, returned, or added to a gradient."""
    if not isinstance(node, ast.Name | ast.Attribute | ast.Call | ast.BinOp | ast.Subscript):
        return False
    if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".zeros"):
        return False  # zeros times anything are zeros
    if isinstance(holder, ast.Tuple):
        return isinstance(node.ctx, ast.Load) if hasattr(node, "ctx") else True
    if isinstance(holder, ast.Call):
        return field == "args" and getattr(holder.func, "attr", "") == "add_grad"
    return field == "value" and isinstance(holder, ast.Return | ast.Assign | ast.AugAssign)


def _wrong_statements(node: ast.stmt) -> Iterator[ast.stmt]:
    """A statement left out; ``+=`` for ``=`` and the other way round; a condition turned round or ignored."""
    if isinstance(node, ast.Assign | ast.AugAssign | ast.Expr | ast.For):
        yield ast.Pass()
    if isinstance(node, ast.AugAssign):
        yield ast.Assign([node.target], node.value)
        yield ast.AugAssign(node.target, SWAPPED_OPERATOR[type(node.op)](), node.value)
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
        yield ast.AugAssign(node.targets[0], ast.Add(), node.value)
    if isinstance(node, ast.If):
        yield ast.If(ast.UnaryOp(ast.Not(), node.test), node.body, node.orelse)
        yield from (ast.If(ast.Constant(answer), node.body, node.orelse) for answer in (True, False))


def _wrong_operation(node: ast.BinOp) -> Iterator[ast.expr]:
    """A dropped term or factor, another operator, operands the other way round, a transpose too many."""
    yield node.left
    yield ast.UnaryOp(ast.USub(), node.right) if isinstance(node.op, ast.Sub) else node.right
    if type(node.op) in SWAPPED_OPERATOR:
        yield ast.BinOp(node.left, SWAPPED_OPERATOR[type(node.op)](), node.right)
    if isinstance(node.op, ast.Sub | ast.Div | ast.MatMult):
        yield ast.BinOp(node.right, node.op, node.left)
    if isinstance(node.op, ast.MatMult):
        for left, right in ((_transposed(node.left), node.right), (node.left, _transposed(node.right))):
            yield ast.BinOp(left, node.op, right)
            yield ast.BinOp(right, node.op, left)


def _transposed(node: ast.expr) -> ast.expr:
    return ast.Attribute(node, "mT", ast.Load())


def _wrong_constant(node: ast.Constant) -> Iterator[ast.expr]:
    """A number one larger, doubled or zero; the other truth value."""
    if isinstance(node.value, bool):
        yield ast.Constant(not node.value)
    elif isinstance(node.value, int | float):
        yield from (ast.Constant(wrong) for wrong in (node.value + 1, 2 * node.value, 0 * node.value))


def _wrong_call(node: ast.Call) -> Iterator[ast.expr]:
    """The function not applied; two arguments exchanged; an argument by name left out; a related function."""
    if isinstance(node.func, ast.Attribute):
        yield node.func.value
        for other in SWAPPED_METHOD.get(node.func.attr, ()):
            yield ast.Call(ast.Attribute(node.func.value, other, ast.Load()), node.args, node.keywords)
    if node.args:
        yield node.args[0]
    if ast.unparse(node.func) in SYMMETRIC:
        return
    for i, j in itertools.combinations(range(len(node.args)), 2):
        args = list(node.args)
        args[i], args[j] = args[j], args[i]
        yield ast.Call(node.func, args, node.keywords)
    for keyword in node.keywords:
        if keyword.arg == "dtype":
            continue
        yield ast.Call(node.func, node.args, [other for other in node.keywords if other is not keyword])


def _wrong_comparison(node: ast.Compare) -> Iterator[ast.expr]:
    for operator in SWAPPED_COMPARISON[type(node.ops[0])]:
        yield ast.Compare(node.left, [operator()], node.comparators)


def _wrong_subscript(node: ast.Subscript) -> Iterator[ast.expr]:
    """All of the array where a part was meant."""
    if isinstance(node.ctx, ast.Load):
        yield node.value
    else:
        yield ast.Subscript(node.value, ast.Constant(...), node.ctx)


def _wrong_slice(node: ast.Slice) -> Iterator[ast.expr]:
    """Without its beginning, without its end."""
    if node.lower is not None:
        yield ast.Slice(None, node.upper, node.step)
    if node.upper is not None:
        yield ast.Slice(node.lower, None, node.step)


def _wrong_tuple(node: ast.Tuple) -> Iterator[ast.expr]:
    """Two neighbours exchanged: results in the wrong order, or unpacked into the wrong names."""
    for i in range(len(node.elts) - 1):
        elements = list(node.elts)
        elements[i], elements[i + 1] = elements[i + 1], elements[i]
        yield ast.Tuple(elements, node.ctx)


def _wrong_attribute(node: ast.Attribute, names: _Names) -> Iterator[ast.expr]:
    """Not transposed; another attribute of the same object that the function uses."""
    if node.attr in ("T", "mT"):
        yield node.value
    for other in names.attributes[ast.unparse(node.value)]:
        if other != node.attr:
            yield ast.Attribute(node.value, other, ast.Load())

"""The rules of the house that no single file can keep alone, read off the source itself."""

import ast
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "minibert"
FILES = sorted(PACKAGE.rglob("*.py"))

# A room imports only rooms before it.
ROOMS = "interrupts errors files assets settings arrays devices precision threads".split()
ROOMS += "blas onednn mkl products ranks dropout_bits replay".split()
ROOMS += "ops kernels gradcheck nn folders bert heads variants proofs text".split()
ROOMS += "data train plots tasks explore course cli __main__".split()
# Rooms that stand on less than all that is before them.
ONLY = {
    "text": {"errors", "files", "assets", "arrays", "threads", "ranks", "kernels"},
    "data": {"errors", "files", "arrays", "threads", "ranks", "dropout_bits", "text"},
}
# The faster operations are put in from outside; whoever uses operations does not know of them. (Text has no
# operations, but compiled loops.)
BLIND_TO_KERNELS = set(ROOMS[ROOMS.index("gradcheck") :]) - {"text"}

# Where ``numpy`` may be named although the code around it runs on any array library, and for what.
HOST_NUMPY = {
    "nn/initialise.py": "first values are drawn on the host, so that they are the same on every device",
    "nn/module.py": "likewise",
    "nn/parameter.py": "likewise",
    "bert/inputs.py": "a batch is checked on the host before it goes to the device",
    "heads/inputs.py": "likewise",
    "nn/places.py": "likewise",
    "nn/targets.py": "likewise",
    "folders/model.py": "a file is written on the host",
    "folders/tensors.py": "a file is read on the host",
    "folders/bundle.py": "a file is read on the host",
    "folders/crc32c.py": "likewise",
    "folders/stored.py": "likewise",
    "folders/shards.py": "a file is written on the host",
    "train/optimiser.py": "what a checkpoint takes is on the host",
    "train/metrics.py": "a batch is on the host, where its tokens are counted",
    "train/checkpoint.py": "a file is read and written on the host",
    "train/gradient_sum.py": "ranks exchange arrays of the host",
    "train/shards.py": "ranks exchange arrays of the host",
}

FORBIDDEN_MODULES = {
    *("pickle", "_pickle", "marshal", "shelve", "dill", "joblib"),  # loading would run what is in the file
    *("urllib", "http", "socket", "ssl", "ftplib", "requests", "httpx"),  # the network
}
FORBIDDEN_CALLS = {"eval", "exec", "__import__"}


def relative(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def room_of(path: Path) -> str:
    return relative(path).split("/")[0].removesuffix(".py")


def imported_modules(path: Path) -> Iterator[str]:
    """Dotted names of all that a file imports, wherever in it; ``from a import b`` gives a.b."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{relative(path)}: imports are absolute here"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def imported_rooms(path: Path) -> set[str]:
    names = (module.split(".") for module in imported_modules(path))
    return {parts[1] if len(parts) > 1 else "(minibert itself)" for parts in names if parts[0] == "minibert"}


def allowed_rooms(room: str) -> set[str]:
    before = set(ROOMS[: ROOMS.index(room)]) if room not in ONLY else ONLY[room]
    if room in BLIND_TO_KERNELS:
        before = before - {"kernels"}
    return before | {room, "__version__"}


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_a_room_imports_only_rooms_before_it(path):
    if path == PACKAGE / "__init__.py":
        return  # brings all rooms together
    assert imported_rooms(path) <= allowed_rooms(room_of(path))


def test_numpy_is_named_only_where_data_is_on_the_host():
    rooms = {"ops", "nn", "folders", "bert", "heads", "train"}
    naming = {
        relative(path)
        for path in FILES
        if room_of(path) in rooms and any(name.split(".")[0] == "numpy" for name in imported_modules(path))
    }
    assert naming == set(HOST_NUMPY)


def test_cupy_is_named_only_in_arrays_devices_kernels_and_for_nccl():
    for path in FILES:
        if room_of(path) not in ("arrays", "devices", "kernels") and relative(path) != "train/nccl.py":
            assert not any(name.split(".")[0] in ("cupy", "cupyx") for name in imported_modules(path)), path


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_nothing_runs_what_it_reads_or_calls_the_network(path):
    assert not {name.split(".")[0] for name in imported_modules(path)} & FORBIDDEN_MODULES
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            assert not (isinstance(node.func, ast.Name) and node.func.id in FORBIDDEN_CALLS), node.lineno
            assert not any(keyword.arg == "allow_pickle" for keyword in node.keywords), node.lineno


@pytest.mark.parametrize("path", [path for path in FILES if path.stem != "__main__"], ids=relative)
def test_no_function_hides_a_module(path):
    """``from minibert.ops import x`` and ``import minibert.ops.x`` mean one thing."""
    module = importlib.import_module(module_name(path))
    parent, _, name = module.__name__.rpartition(".")
    assert not parent or getattr(importlib.import_module(parent), name) is module


def module_name(path: Path) -> str:
    return ".".join(["minibert", *path.relative_to(PACKAGE).with_suffix("").parts]).removesuffix(".__init__")


def public_members(path: Path) -> Iterator[tuple[str, object]]:
    """The public functions and classes of a file, and the public methods of its classes, by name."""
    name = module_name(path)
    module = importlib.import_module(name)
    yield name, module
    for member_name, member in vars(module).items():
        if member_name.startswith("_") or getattr(member, "__module__", None) != name:
            continue
        if inspect.isfunction(member):
            yield member_name, member
        elif inspect.isclass(member):
            yield member_name, member
            for method_name, method in vars(member).items():
                function = getattr(method, "__func__", getattr(method, "fget", method))
                if not method_name.startswith("_") and inspect.isfunction(function):
                    yield f"{member_name}.{method_name}", function


@pytest.mark.parametrize("path", [path for path in FILES if path.name != "__main__.py"], ids=relative)
def test_public_names_have_docstrings_and_type_hints(path):
    for name, member in public_members(path):
        doc = inspect.getdoc(member)
        made_by_dataclass = f"{name}("
        assert doc and not doc.startswith(made_by_dataclass), f"{name} has no docstring"
        if inspect.isfunction(member):
            signature = inspect.signature(member)
            untyped = [
                parameter.name
                for parameter in signature.parameters.values()
                if parameter.annotation is parameter.empty and parameter.name not in ("self", "cls")
            ]
            assert not untyped, f"{name}: no type hint on {untyped}"
            assert signature.return_annotation is not signature.empty, f"{name}: no return type"

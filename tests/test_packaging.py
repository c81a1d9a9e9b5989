"""What is written about the package agrees with what the package is."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def names(requirements: list[str]) -> set[str]:
    return {re.match(r"[\w-]+", requirement)[0] for requirement in requirements}


def third_party_imports(folder: Path) -> set[str]:
    """The top-level modules that the files below a folder import and that neither Python nor we provide."""
    found = set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                found.add(node.module.split(".")[0])
    return found - set(sys.stdlib_module_names) - {"minibert"}


# CuPy's own packages, the finder of NVIDIA's libraries that comes with it, and bfloat16 for NumPy.
ONLY_WITH_A_GPU = {"cupy", "cupyx", "cuda", "ml_dtypes"}
ONLY_TO_SEARCH = {"lancedb"}  # the vector database
ONLY_FOR_TABLES = {"pyarrow"}  # those that the database takes, and Parquet files
ONLY_TO_EXPLORE = {"tornado"}  # the server behind the page
ONLY_FOR_ONNX = {"onnx", "onnxruntime"}  # the files, and what they are compared in
ONLY_WITH_RANKS = {"mpi4py"}  # for several processes
BROUGHT_ALONG = {"PIL", "matplotlib_inline"}  # by matplotlib; by IPython, and used only there


def test_the_package_imports_what_it_requires_and_nothing_else():
    assert third_party_imports(ROOT / "minibert") == (
        names(PROJECT["dependencies"])
        | ONLY_WITH_A_GPU
        | ONLY_TO_SEARCH
        | ONLY_FOR_TABLES
        | ONLY_TO_EXPLORE
        | ONLY_FOR_ONNX
        | ONLY_WITH_RANKS
        | BROUGHT_ALONG
    )


def test_each_cuda_version_has_its_extra():
    extras = PROJECT["optional-dependencies"]
    assert names(extras["cuda12"]) == {"cupy-cuda12x", "ml_dtypes"}
    assert names(extras["cuda13"]) == {"cupy-cuda13x", "ml_dtypes"}


def test_the_vector_database_is_an_extra_and_tested():
    extras = PROJECT["optional-dependencies"]
    assert names(extras["search"]) == {"lancedb"}
    assert any(requirement.startswith(extras["search"][0]) for requirement in extras["dev"])


def test_the_writer_of_tables_is_an_extra_and_tested():
    extras = PROJECT["optional-dependencies"]
    assert names(extras["parquet"]) == ONLY_FOR_TABLES <= names(extras["dev"])


def test_the_explorers_server_is_an_extra_and_tested():
    extras = PROJECT["optional-dependencies"]
    assert names(extras["explore"]) == ONLY_TO_EXPLORE <= names(extras["dev"])


def test_onnx_is_an_extra_and_tested():
    extras = PROJECT["optional-dependencies"]
    assert names(extras["onnx"]) == ONLY_FOR_ONNX <= names(extras["dev"])


def test_mpi_is_an_extra_and_tested():
    extras = PROJECT["optional-dependencies"]
    assert names(extras["mpi"]) == {"mpi4py", "mpich"} <= names(extras["dev"])


def test_nobody_is_sent_to_somebody_elses_package():
    assert PROJECT["name"] == "minibert-from-scratch"
    for folder in ("minibert", "tests", "notebooks", "benchmarks", "."):
        paths = (ROOT / folder).iterdir() if folder == "." else (ROOT / folder).rglob("*")
        for path in paths:
            if path.suffix in (".py", ".md", ".toml", ".txt", ".ipynb") or path.name == "Makefile":
                text = path.read_text(encoding="utf-8")
                assert not re.search(r"pip3? install [^\n]*(?<![\w./-])minibert(?![\w-])", text), path


def test_requirements_is_the_list_in_pyproject_and_no_second_one():
    lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if not line.startswith("#")] == ["-e .[dev]"]


def test_importing_the_package_loads_neither_the_course_nor_the_data():
    """Both are large, and most who import it need neither."""
    code = "import sys, minibert; print(*(name for name in sys.modules if name.startswith('minibert.')))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    rooms = {name.split(".")[1] for name in loaded.split()}
    assert {"bert", "kernels"} <= rooms
    assert not rooms & {"course", "data", "train", "tasks", "cli", "proofs", "gradcheck"}

"""``python -m benchmarks.vector_databases``: embedded vector databases, side by side on vectors of yours.

Each candidate is installed by itself into a folder (``pip install --target``) and measured in a process of
its own: what it takes on disk without NumPy, the time to import it, to store the vectors with a text each and
to find the ten nearest of a query (the median over all queries), and how many of those that are really the
nearest are among them.
Vectors and queries are files of ``minibert embed --normalise``.
"""

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import ROOT
from benchmarks.results import describe_machine, paragraph, table
from minibert.files import write_text
from minibert.tasks.search import exact_search

TOP = 10
Search = Callable[[np.ndarray], list[int]]  # a query (H,) → rows, the nearest first
Stages = Iterator[tuple[str, Search]]  # ways to search, each after what has to be built for it


def lancedb(folder: Path, vectors: np.ndarray, texts: list[str]) -> Stages:
    """A table of Arrow; all rows are compared, then an HNSW graph over 8-bit numbers."""
    import lancedb
    import pyarrow
    from lancedb.index import HnswSq

    rows = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(vectors.ravel()), vectors.shape[1])
    columns = {"id": np.arange(len(vectors)), "text": texts, "vector": rows}
    stored = lancedb.connect(folder).create_table("passages", pyarrow.table(columns))

    def search(vector: np.ndarray) -> list[int]:
        query = stored.search(vector).distance_type("cosine").limit(TOP).nprobes(20).refine_factor(5)
        return query.select(["id", "_distance"]).to_arrow()["id"].to_pylist()

    yield "all compared", search
    stored.create_index("vector", config=HnswSq(distance_type="cosine"))
    yield "HNSW", search


def chromadb(folder: Path, vectors: np.ndarray, texts: list[str]) -> Stages:
    """A collection; there is only the HNSW graph."""
    import chromadb

    client = chromadb.PersistentClient(folder, settings=chromadb.Settings(anonymized_telemetry=False))
    stored = client.create_collection("passages", embedding_function=None, metadata={"hnsw:space": "cosine"})
    for start in range(0, len(vectors), 5000):
        part = slice(start, start + 5000)
        names = [str(i) for i in range(*part.indices(len(vectors)))]
        stored.add(ids=names, embeddings=vectors[part], documents=texts[part])
    yield (
        "HNSW",
        lambda vector: [
            int(name) for name in stored.query(query_embeddings=[vector], n_results=TOP, include=[])["ids"][0]
        ],
    )


def qdrant_client(folder: Path, vectors: np.ndarray, texts: list[str]) -> Stages:
    """Its mode without a server: NumPy and a file of SQLite."""
    from qdrant_client import QdrantClient, models

    client = QdrantClient(path=str(folder))
    shape = models.VectorParams(size=vectors.shape[1], distance=models.Distance.COSINE)
    client.create_collection("passages", vectors_config=shape)
    payload = [{"text": text} for text in texts]
    client.upload_collection("passages", vectors=vectors, ids=list(range(len(vectors))), payload=payload)
    yield (
        "all compared",
        lambda vector: [
            point.id for point in client.query_points("passages", query=vector, limit=TOP).points
        ],
    )


def duckdb(folder: Path, vectors: np.ndarray, texts: list[str]) -> Stages:
    """A table of SQL. Its HNSW is an extension that has to be fetched over the network."""
    import duckdb

    width = vectors.shape[1]
    database = duckdb.connect(str(folder / "passages.duckdb"))
    database.execute(f"create table passages (id integer primary key, text varchar, vector float[{width}])")
    database.execute(
        f"insert into passages select unnest($1), unnest($2), unnest($3)::float[{width}]",
        [list(range(len(vectors))), texts, vectors.tolist()],
    )
    nearest = (
        f"select id from passages order by array_cosine_distance(vector, $1::float[{width}]) limit {TOP}"
    )
    yield (
        "all compared",
        lambda vector: [row for (row,) in database.execute(nearest, [vector.tolist()]).fetchall()],
    )


def sqlite_vec(folder: Path, vectors: np.ndarray, texts: list[str]) -> Stages:
    """An extension of SQLite, in the SQLite of APSW: not every Python's own can load extensions."""
    import apsw
    import sqlite_vec

    database = apsw.Connection(str(folder / "passages.sqlite"))
    database.enable_load_extension(True)
    database.load_extension(sqlite_vec.loadable_path())
    database.execute(
        "create virtual table passages using vec0(id integer primary key, "
        f"vector float[{vectors.shape[1]}] distance_metric=cosine, +text text)"
    )
    with database:
        rows = ((i, vector.tobytes(), texts[i]) for i, vector in enumerate(vectors))
        database.executemany("insert into passages (id, vector, text) values (?, ?, ?)", rows)
    nearest = f"select id from passages where vector match ? and k = {TOP}"
    yield "all compared", lambda vector: [row for (row,) in database.execute(nearest, (vector.tobytes(),))]


def usearch(folder: Path, vectors: np.ndarray, texts: list[str]) -> Stages:
    """No database, but what one can be built on: vectors and their numbers, without the texts."""
    from usearch.index import Index

    stored = Index(ndim=vectors.shape[1], metric="cos", dtype="f32")
    stored.add(np.arange(len(vectors)), vectors)
    stored.save(str(folder / "vectors.usearch"))
    yield "HNSW", lambda vector: stored.search(vector, TOP).keys.tolist()


ABOUT = """
    Each was installed by itself and measured in a process of its own: what it takes on disk without NumPy,
    the time to import it, to store the vectors with a text each, and to find the ten nearest of a query (the
    median over all queries). The last column says how many of the ten that are really the nearest it
    found."""

CANDIDATES: dict[str, tuple[Callable[..., Stages], list[str]]] = {
    "LanceDB": (lancedb, ["lancedb"]),
    "Chroma": (chromadb, ["chromadb"]),
    "Qdrant, local mode": (qdrant_client, ["qdrant-client"]),
    "DuckDB": (duckdb, ["duckdb"]),
    "sqlite-vec": (sqlite_vec, ["sqlite-vec", "apsw"]),
    "USearch": (usearch, ["usearch"]),
}


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.vector_databases", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--vectors", required=True, type=Path, metavar="FILE", help=".npy, (N, H)")
    parser.add_argument("--queries", required=True, type=Path, metavar="FILE", help=".npy, (Q, H)")
    parser.add_argument("--install", required=True, type=Path, metavar="FOLDER", help="for the candidates")
    parser.add_argument("--only", nargs="+", choices=CANDIDATES, help="print these; write nothing")
    parser.add_argument("--worker", choices=CANDIDATES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(measure(options.worker, np.load(options.vectors), np.load(options.queries))))
        return
    rows = [row for name in options.only or CANDIDATES for row in candidate_rows(name, options)]
    header = "|packages|MB|import, s|search|store, s|MB stored|ms per query|found of the nearest".split("|")
    counts = ", ".join(
        f"{len(np.load(path, 'r')):,} {what}"
        for path, what in ((options.vectors, "vectors"), (options.queries, "queries"))
    )
    machine = describe_machine()
    where = f"{machine['processor']}, {machine['cores']} cores, Python {machine['python']}"
    origin = f"{counts}; {date.today()}, {where}"
    report = "\n\n".join(["# Embedded vector databases", paragraph(ABOUT), table(header, rows), origin])
    if not options.only:  # a page with some of them would lose the others
        write_text(ROOT / "benchmarks" / "results" / "vector_databases.md", report + "\n")
    print(report)


def candidate_rows(name: str, options: argparse.Namespace) -> list[list[str]]:
    """Install a candidate, if it is not there yet, and measure it; a row for each way to search."""
    _, packages = CANDIDATES[name]
    place = options.install / packages[0]
    if not place.exists():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--target", place]
        subprocess.run([*pip, *packages], check=True)
    command = [sys.executable, "-m", "benchmarks.vector_databases", "--worker", name]
    command += ["--vectors", options.vectors, "--queries", options.queries, "--install", options.install]
    path = os.pathsep.join([str(ROOT), str(place)])
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": path}, check=True, capture_output=True, text=True
    )
    result = json.loads(done.stdout.splitlines()[-1])
    versions = " ".join(
        path.name.removesuffix(".dist-info").replace("-", " ")
        for path in place.glob("*.dist-info")
        if path.name.lower().replace("_", "-").startswith(packages[0])
    )
    installed = [path for path in place.iterdir() if not path.name.startswith("numpy")]
    others = sum(path.suffix == ".dist-info" for path in installed)
    told = [
        f"{name} ({versions})",
        str(others),
        f"{sum(map(size, installed)):,.0f}",
        f"{result['import']:.2f}",
    ]
    return [
        [
            *told,
            stage["search"],
            f"{stage['build']:.1f}",
            f"{stage['stored']:.0f}",
            f"{stage['query']:.2f}",
            f"{stage['found']:.2%}",
        ]
        for stage in result["stages"]
    ]


def measure(name: str, vectors: np.ndarray, queries: np.ndarray) -> dict[str, Any]:
    """What a candidate takes, in this process."""
    make, packages = CANDIDATES[name]
    texts = [f"passage {i} " * 50 for i in range(len(vectors))]
    nearest, _ = exact_search(queries, vectors, TOP)
    start = time.perf_counter()
    for package in packages:
        importlib.import_module(package.replace("-", "_"))
    result: dict[str, Any] = {"import": time.perf_counter() - start, "stages": []}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        start = time.perf_counter()
        for way, search in make(Path(folder), vectors, texts):
            stage = {"search": way, "build": time.perf_counter() - start, "stored": size(Path(folder))}
            times, found = [], []
            for query, best in zip(queries, nearest.tolist(), strict=True):
                start = time.perf_counter()
                rows = search(query)
                times.append(time.perf_counter() - start)
                found.append(len(set(rows) & set(best)) / TOP)
            stage |= {"query": 1e3 * float(np.median(times)), "found": float(np.mean(found))}
            result["stages"].append(stage)
            start = time.perf_counter()
    return result


def size(path: Path) -> float:
    """Of a file, or of all files below a folder, in MB."""
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return sum(file.stat().st_size for file in files if file.suffix != ".pyc") / 1e6


if __name__ == "__main__":
    main()

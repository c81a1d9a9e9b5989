"""The page of vector databases is written only when all of them were measured. None is installed here."""

import sys

import numpy as np
import pytest

from benchmarks import vector_databases


@pytest.mark.parametrize(("only", "written"), [([], True), (["--only", "DuckDB"], False)])
def test_some_alone_do_not_replace_the_page(only, written, tmp_path, monkeypatch, capsys):
    (tmp_path / "benchmarks" / "results").mkdir(parents=True)
    page = tmp_path / "benchmarks" / "results" / "vector_databases.md"
    page.write_text("before\n")
    np.save(tmp_path / "vectors.npy", np.eye(3, dtype="float32"))
    monkeypatch.setattr(vector_databases, "ROOT", tmp_path)
    monkeypatch.setattr(vector_databases, "candidate_rows", lambda name, options: [[name, *["–"] * 8]])
    files = ["--vectors", "vectors.npy", "--queries", "vectors.npy", "--install", "candidates"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["", *files, *only])
    vector_databases.main()
    assert "| DuckDB |" in capsys.readouterr().out
    assert ("| LanceDB |" in page.read_text()) == written

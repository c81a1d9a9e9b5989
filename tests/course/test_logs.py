import pytest

from minibert.course import read_log, read_results, write_log
from minibert.errors import UserError


def test_a_log_is_found_from_both_folders_of_notebooks(tmp_path, monkeypatch):
    for folder in ("logs", "exercises"):
        (tmp_path / folder).mkdir()
    (tmp_path / "logs" / "run.jsonl").write_text('{"step": 1}\n{"step": 2}\n', encoding="utf-8")
    for folder in (tmp_path, tmp_path / "exercises"):
        monkeypatch.chdir(folder)
        assert read_log("run.jsonl") == [{"step": 1}, {"step": 2}]
    with pytest.raises(UserError, match=r"^walk[.]jsonl: not in logs/"):
        read_log("walk.jsonl")


def test_a_log_is_written_where_it_is_read_and_only_whole(tmp_path, monkeypatch):
    for folder in ("logs", "exercises"):
        (tmp_path / folder).mkdir()
    rows = [{"B": 1, "how": "NumPy’s"}, {"B": 2, "how": "–"}]
    monkeypatch.chdir(tmp_path / "exercises")
    assert write_log("run.jsonl", iter(rows)) == rows

    def broken():
        yield rows[0]
        raise ArithmeticError

    with pytest.raises(ArithmeticError):
        write_log("run.jsonl", broken())
    monkeypatch.chdir(tmp_path)
    assert read_log("run.jsonl") == rows
    assert [path.name for path in (tmp_path / "logs").iterdir()] == ["run.jsonl"]
    monkeypatch.chdir(tmp_path.parent)
    with pytest.raises(UserError, match=r"^run[.]jsonl: no folder logs/"):
        write_log("run.jsonl", broken())


def test_results_are_found_from_both_folders_of_notebooks(tmp_path, monkeypatch):
    (tmp_path / "benchmarks" / "results").mkdir(parents=True)
    (tmp_path / "benchmarks" / "results" / "speed.json").write_text('{"step": 1}', encoding="utf-8")
    (tmp_path / "notebooks" / "exercises").mkdir(parents=True)
    for folder in (tmp_path / "notebooks", tmp_path / "notebooks" / "exercises"):
        monkeypatch.chdir(folder)
        assert read_results("speed") == {"step": 1}
    with pytest.raises(UserError, match=r"^sped: not in benchmarks/results"):
        read_results("sped")

import pytest

from minibert.course import read_log
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

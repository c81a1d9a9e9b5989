"""Turns, statistics, and the talk between a worker and its parent. Nothing is timed."""

import json
import subprocess
import sys

import pytest

from benchmarks import measure, worker
from benchmarks.measure import (
    ContenderError,
    Race,
    Spread,
    Turn,
    Worker,
    environment_of_worker,
    fastest,
    paired_ratio,
    spread,
    take_turns,
)


class Recorder:
    """A worker whose time is its own number, and which notes who was asked."""

    def __init__(self, calls: list, seconds: float):
        self.calls, self.seconds = calls, seconds

    def time(self, function: str, seconds: float, number: int) -> float:
        self.calls.append((function, number))
        return self.seconds + number


def test_workers_have_their_threads_and_choose_their_code_themselves(monkeypatch):
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    environment = environment_of_worker(3)
    assert environment["OMP_NUM_THREADS"] == environment["MKL_NUM_THREADS"] == "3"
    assert "OPENBLAS_CORETYPE" not in environment
    assert environment["PATH"]


def test_turns_reverse_every_other_round_and_keep_the_rounds_apart(monkeypatch):
    monkeypatch.setattr(measure, "PAUSE", 0.0)
    calls: list = []
    turns = [Turn(name, Recorder(calls, seconds), name) for name, seconds in (("a", 1.0), ("b", 2.0))]
    times = take_turns(turns, rounds=3, seconds=0.5)
    assert calls == [("a", 0), ("b", 0), ("b", 1), ("a", 1), ("a", 2), ("b", 2)]
    assert times == {"a": [1.0, 2.0, 3.0], "b": [2.0, 3.0, 4.0]}


def test_spread_is_median_and_quartiles():
    assert spread([5.0, 1.0, 2.0, 4.0, 3.0]) == Spread(2.0, 3.0, 4.0)
    assert spread([7.0]) == Spread(7.0, 7.0, 7.0)


def test_ratios_are_paired_by_round():
    # twice as slow in every round, although the machine was four times as slow in the last
    assert paired_ratio([2.0, 2.0, 8.0], [1.0, 1.0, 4.0]) == Spread(2.0, 2.0, 2.0)
    with pytest.raises(ValueError):
        paired_ratio([1.0, 2.0], [1.0])


def test_fastest_goes_by_the_median_and_leaves_out_who_was_not_measured():
    times = {"steady": [2.0, 2.0, 2.0], "moody": [1.0, 3.0, 3.0], "us": [1.0, 1.0, 1.0]}
    assert fastest(times, ["absent", "moody", "steady"], "us") == "steady"
    assert fastest(times, ["absent"], "us") is None


def test_fastest_goes_by_the_rounds():
    """In the rounds in which the first looks slow, everybody was."""
    times = {"first": [2.0, 8.0, 8.0], "second": [3.0, 3.0, 12.0], "us": [1.0, 4.0, 4.0]}
    assert fastest(times, ["first", "second"], "us") == "first"


def test_a_call_is_repeated_until_its_time_is_over(monkeypatch):
    clock = iter([0.0, 0.4, 0.8, 1.2])
    monkeypatch.setattr(worker.time, "perf_counter", lambda: next(clock))
    numbers: list[int] = []
    assert worker.time_calls(numbers.append, 1.0, 7) == pytest.approx(0.4)
    assert numbers == [7, 7, 7]


def test_the_server_builds_calls_and_refuses(monkeypatch):
    server = worker.Server()
    module = type(sys)("benchmarks.contenders.made_up")
    module.adder = lambda start: {"add": lambda amount: start + amount}
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert server.reply({"build": "made_up:adder", "arguments": {"start": 2}}) is None
    assert server.reply({"call": "add", "arguments": {"amount": 3}}) == 5
    memory = server.reply({"memory": "report"})
    assert 0 < memory["imported"] <= memory["peak"]
    with pytest.raises(ValueError, match="unknown request"):
        server.reply({"sing": "loudly"})


def test_libraries_that_print_do_not_disturb_the_replies():
    requests = [{"call": "absent", "arguments": {}}, {"sing": "loudly"}]
    process = subprocess.run(
        [sys.executable, "-m", "benchmarks.worker"],
        input="".join(json.dumps(request) + "\n" for request in requests),
        capture_output=True,
        text=True,
        cwd=measure.ROOT,
    )
    replies = [json.loads(line) for line in process.stdout.splitlines()]
    assert [reply["error"].split(":")[0] for reply in replies] == ["KeyError", "ValueError"]
    assert "Traceback" in process.stderr


def test_a_rival_that_is_missing_is_left_out_but_ours_must_be_there(capsys):
    with Race(threads=1) as race:
        race.enter("Rival", "no_such_library:step")
        assert race.workers == {}
        assert "no_such_library" in race.missing["Rival"]
        assert "left out: Rival" in capsys.readouterr().err
        for module in ("ours", "ours_from_text"):
            with pytest.raises(ContenderError, match="no_such_function"):
                race.enter("minibert", f"{module}:no_such_function")


def test_a_worker_learns_in_a_process_of_its_own(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("some words and some more words\n" * 20)
    with Worker("ours:learning", {"text": str(text), "vocab_size": 40, "limit": None}, threads=1) as ours:
        assert ours.time("learn", 0.0, 0) > 0
        assert "words" in ours.call("tokens")
        ours.start_working()
        memory = ours.memory()
        assert memory["imported"] > 2**20
        assert memory["peak"] >= memory["working"]

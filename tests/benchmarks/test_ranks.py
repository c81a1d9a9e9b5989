import json

import pytest
from mpi import mpirun

from benchmarks.ranks import __main__ as ranks
from benchmarks.ranks.links import command, run
from minibert.errors import UserError

RECORD = {
    "ranks": 4,
    "megabits": 100.0,
    "gradient_bytes": 4_000_000,
    "words_bytes": 1_000_000,
    "seconds": {
        way: [seconds, seconds]
        for way, seconds in zip(("alone", *ranks.TOGETHER), (1.0, 1.5, 2.0, 1.8, 1.6), strict=True)
    },
    "sent": {way: [[7.0 * 2**20]] * 4 for way in ("alone", *ranks.TOGETHER)},
    "load": 0.5,
    "busy": None,
}


def test_theory_is_that_of_a_ring_and_of_the_embeddings_once_more():
    theory = ranks.theory_bytes(RECORD)
    assert theory["all-reduce"] == 6_000_000
    assert theory["exact"] == theory["sharded"] == 6_750_000


def test_the_table_sets_what_was_sent_beside_theory():
    text = ranks.section_of_links({"tiny": RECORD})
    assert "| exact, after | 2,000 (2,000–2,000) | 1,000 (1,000–1,000) | 540 | 7.0 | 6.4 |" in text
    assert "saves 500.0 (500.0–500.0) ms" in text


def test_every_rank_gets_its_own_prefix(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name, path: name)
    words = command([["ip", "a"], ["ip", "b"]], "module", "--x")
    assert [words.count(word) for word in ("-n", ":", "ip", "module", "--x")] == [2, 1, 2, 2, 2]
    assert words.index("a") < words.index(":") < words.index("b")


def test_without_mpi_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name, path: None)
    with pytest.raises(UserError, match="mpiexec: no such command"):
        command([[]], "module")


def test_what_a_command_says_is_told():
    with pytest.raises(UserError, match=r"^ip no-such-object: .*needs root|no such command"):
        run("ip", "no-such-object")


def test_all_ways_take_their_steps():
    """On two ranks; the times are not looked at."""
    words = ["--preset", "tiny", "--batch-size", "1", "--length", "16", "--rounds", "1", "--steps", "1"]
    ways = ["alone", *ranks.TOGETHER, "one process"]
    out, _ = mpirun(2, "-m", ranks.MODULE, *words, "--ways", *ways)
    found = json.loads(out)
    assert list(found["seconds"]) == ways and all(times[0] > 0 for times in found["seconds"].values())
    assert len(found["memory"]) == 2 and found["sent"] == {}

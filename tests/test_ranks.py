"""Several processes: what they tell each other, and how they end."""

import re
import select
import subprocess
import sys

import numpy as np
import pytest
from mpi import mpirun

from minibert.errors import UserError
from minibert.ranks import Ranks, launched_rank, world

TALK = """
import numpy as np
from minibert.ranks import world
r = world()
assert (r.size, r.local_size, r.local_rank, r.first) == (3, 3, r.rank, r.rank == 0)
assert r.gather({"rank": r.rank}) == [{"rank": 0}, {"rank": 1}, {"rank": 2}]
assert r.broadcast(f"from {r.rank}") == "from 0"
assert r.any(r.rank == 2) and not r.any(False)
r.agree({"a": 1})

small = np.float32([1e8, 1.0, -1e8][r.rank] + np.arange(2))  # the order of addition shows
by_hand = (np.float32(1e8 + np.arange(2)) + np.float32(1 + np.arange(2))) + np.float32(-1e8 + np.arange(2))
assert r.sum(small).tobytes() == by_hand.tobytes()

arrays = {"x": np.full((r.rank, 2), r.rank, np.float64), "n": np.arange(3, dtype=np.int32)}
for rank, found in enumerate(r.gather_arrays(arrays)):
    assert found["x"].shape == (rank, 2) and (found["x"] == rank).all() and found["n"].dtype == np.int32

sizes = [1, 0, 3]
received = np.empty((3, sizes[r.rank]))
r.start_exchange(10.0 * r.rank + np.arange(4), sizes, received).wait()
wanted = [10.0 * rank + np.arange(4) for rank in range(3)]
begin = sum(sizes[: r.rank])
assert (received == [row[begin : begin + sizes[r.rank]] for row in wanted]).all()
whole = np.zeros(4)
whole[begin : begin + sizes[r.rank]] = r.rank + 1
r.start_share(whole, sizes).wait()
assert whole.tolist() == [1, 3, 3, 3]
place = np.zeros(4) if r.first else None
r.collect(np.full(sizes[r.rank], r.rank + 1.0), sizes, place)
assert not r.first or place.tolist() == [1, 3, 3, 3]
own = 10.0 * r.rank + np.arange(4)
r.sum_share_fast(own, sizes)
assert own[begin : begin + sizes[r.rank]].tolist() == [30, 33, 36, 39][begin : begin + sizes[r.rank]]
print("all of it was right", flush=True)
"""


def test_what_ranks_tell_each_other():
    out, _ = mpirun(3, "-c", TALK)
    assert out.count("all of it was right") == 3


ENDS = """
import sys
from minibert.errors import UserError
from minibert.ranks import end_with_error, world
r = world()
try:
    {}
    r.barrier()
except UserError as error:
    sys.exit(end_with_error(2, f"error: {{error}}"))
"""


@pytest.mark.parametrize(
    ("does", "told"),
    [
        ("if r.rank == 1: raise UserError('one')", "error: one (rank 1)"),  # the others wait in the barrier
        ("if r.rank == 0: raise UserError('first')", "error: first"),
        ("raise UserError('all')", "error: all"),
        (
            "r.agree({'threads': 1 + r.rank // 2})",
            "error: threads is 1 on rank 0, but 2 on rank 2; all ranks must have the same",
        ),
    ],
)
def test_an_error_ends_all_ranks_with_one_message(does, told):
    _, err = mpirun(3, "-c", ENDS.format(does), code=2)
    assert err.splitlines() == [told]


KILLED = """
import os, signal, sys, time
from minibert.ranks import world
r = world()
if r.first: print("all are here", flush=True)
r.barrier()
if r.rank == {}:
    os.kill(os.getpid(), signal.SIGKILL)
{}
"""


@pytest.mark.skipif(not hasattr(select, "epoll"), reason="only Linux tells other processes of an end")
@pytest.mark.parametrize("meanwhile", ["r.barrier()", "while True: sum(range(1000))", "time.sleep(60)"])
@pytest.mark.parametrize("rank", [0, 2])
def test_a_rank_that_is_killed_ends_all_and_is_named(rank, meanwhile):
    """Whatever the others are doing at that time; MPI's own message may name another."""
    _, err = mpirun(3, "-c", KILLED.format(rank, meanwhile), code=9)
    assert re.fullmatch(rf"minibert: error: rank {rank} \(process \d+ on .+\) was killed or crashed\n", err)


def test_one_process_needs_no_mpi():
    """Neither is it imported, nor does anything change."""
    assert launched_rank() is None
    ranks = world()
    assert (ranks.rank, ranks.size, ranks.first) == (0, 1, True)
    assert ranks.gather("x") == ["x"] and ranks.broadcast(3) == 3
    array = np.arange(3.0)
    assert ranks.sum(array).tolist() == [0, 1, 2] and ranks.sum(array) is not array
    ranks.agree({"a": 1})
    code = (
        "import sys, minibert.cli; from minibert.ranks import world; world(); print('mpi4py' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_what_differs_is_named():
    class Two(Ranks):
        def gather(self, value):
            return [value, value | {"learning_rate": 0.1}]

    with pytest.raises(UserError, match=r"learning_rate is 0.2 on rank 0, but 0.1 on rank 1"):
        Two().agree({"name": "x", "learning_rate": 0.2})
    with pytest.raises(UserError, match=r"learning_rate is None on rank 0, but 0.1 on rank 1"):
        Two().agree({"name": "x"})


def test_one_process_of_a_launcher_is_alone(monkeypatch):
    """srun with PMIx says no more than the rank; how many tasks there are, Slurm says itself."""
    monkeypatch.setenv("PMIX_RANK", "0")
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "1")
    assert launched_rank() is None
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "2")
    assert launched_rank() == 0


def test_without_mpi4py_mpirun_is_told_what_to_install(monkeypatch):
    world.cache_clear()
    monkeypatch.setenv("PMI_RANK", "1")
    monkeypatch.setenv("PMI_SIZE", "2")
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(UserError, match=r"install mpi4py and an MPI: .*\[mpi\]"):
        world()
    monkeypatch.setenv("PMI_SIZE", "1")
    assert world().size == 1  # of which there is no other
    world.cache_clear()

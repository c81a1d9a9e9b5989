"""``mpirun -n N minibert prepare`` makes what one process makes, byte by byte."""

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mpi4py")
MPIEXEC = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
pytestmark = pytest.mark.skipif(MPIEXEC is None, reason="there is no mpiexec")


# Prepares the corpus in the working directory for three kinds of vocabularies, each twice.
SCRIPT = """
import sys
from minibert.ranks import world
from minibert.tasks import prepare
from minibert.tasks.pretraining_settings import PretrainSettings

for variant, size in (("bert", 120), ("roberta", 330), ("albert", 120)) * 2:
    settings = PretrainSettings(
        corpus=("books",), layout="sentences", processes=1,
        variant=variant, vocab_size=size, prepared=sys.argv[1],
    )
    prepare(settings, world())
"""


def run(ranks: int, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [MPIEXEC, "-n", str(ranks), sys.executable, *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def corpus(tmp_path) -> Path:
    """Five files of very different sizes."""
    rng, folder = random.Random(0), tmp_path / "books"
    folder.mkdir()
    words = ["river", "bridge", "Ann", "sings", "walks", "over", "a", "the", "café", "日本", "old"]
    for number, documents in enumerate((30, 1, 8, 90, 4)):
        texts = [
            "\n".join(" ".join(rng.choices(words, k=6)) + f" {rng.randrange(200)}." for _ in range(4))
            for _ in range(documents)
        ]
        (folder / f"{number}.txt").write_text("\n\n".join(texts), encoding="utf-8")
    return folder


def test_any_number_of_ranks_makes_the_same_bytes(corpus, tmp_path):
    made = []
    for ranks in (1, 2, 3):
        result = run(ranks, tmp_path, "-c", SCRIPT, f"on{ranks}")
        assert result.returncode == 0, result.stderr
        assert (result.stdout.count("written to"), result.stdout.count("reused from")) == (6, 6)
        made.append(files_of(tmp_path / f"on{ranks}"))
        assert not list((tmp_path / f"on{ranks}").glob(".*"))
    assert made[0] == made[1] == made[2] and sum(name.endswith("tokens.bin") for name in made[0]) == 3


def test_a_file_that_cannot_be_read_ends_all_ranks_with_one_line(corpus, tmp_path):
    (corpus / "4.txt").write_bytes(b"a good line.\n\xff\xfe broken\n")
    result = run(3, tmp_path, "-m", "minibert", "prepare", "--corpus", "books", "--prepared", "out")
    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    assert "4.txt" in line and "UTF-8" in line and line.endswith("(rank 2)")
    assert not [path for path in (tmp_path / "out").glob("*") if not path.name.startswith(".")]

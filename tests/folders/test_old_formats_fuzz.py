"""Files of torch and TensorFlow with faults, by the thousand, and hostile ones.

Each is refused with one clear line, or gives what it may: nothing in it is run. FUZZ_CASES in the environment
says how many.
"""

import os
import random
from collections import Counter

import pytest
from old_folders import GOLDEN, LAYOUTS
from pickle_files import Called, Named, entry, pickled, sequence_file, table, tensor, zip_file

from minibert.errors import UserError
from minibert.folders.bundle import read_checkpoint
from minibert.folders.torch_file import read_torch_file

CASES = int(os.environ.get("FUZZ_CASES", "1000"))


def result_of(reader, path):
    """Open a file and read every tensor in it."""
    try:
        for stored in reader(path).values():
            if stored.dtype.startswith(("F", "BF")):
                stored.read()
        return "read"
    except UserError as error:
        assert "\n" not in str(error) and str(error).isprintable() and len(str(error)) < 2500
        return "refused"


def mutate(rng, data):
    """A few bytes changed, cut out, doubled or put in."""
    data = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 5])):
        start = rng.randrange(len(data) or 1)
        stop = start + rng.choice([1, 2, 8, 100])
        fault = rng.randrange(5)
        if fault == 0 and data:
            data[start % len(data)] ^= 1 << rng.randrange(8)
        elif fault == 1:
            data[start:stop] = rng.randbytes(len(data[start:stop]))
        elif fault == 2:
            del data[start : rng.choice([stop, stop, len(data)])]
        elif fault == 3:
            data[start:start] = data[start:stop]
        else:
            data[start:start] = rng.choice(
                [b"cposix\nsystem\nX\4\0\0\0true\x85R", b"\xff" * 8, b"\0", b"\x80"]
            )
    return bytes(data)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_faults(layout, tmp_path):
    results = Counter()
    files = {name: (GOLDEN / name).read_bytes() for name in LAYOUTS[layout]}
    first = next(iter(files))
    reader = read_checkpoint if layout == "checkpoint" else read_torch_file
    for case in range(CASES // 3):
        rng = random.Random(f"{layout} {case}")
        hurt = rng.choice(list(files))
        for name, data in files.items():
            (tmp_path / name).write_bytes(mutate(rng, data) if name == hurt else data)
        results[result_of(reader, tmp_path / first)] += 1
    assert results["refused"] > 0.3 * CASES / 3


@pytest.mark.parametrize("as_zip", [True, False])
def test_faults_in_the_description(as_zip, tmp_path):
    """With right lengths around it, so that the pickle itself is what is read."""
    good = pickled({"a": tensor("0", (2, 3)), "b": tensor("1", (4,))})
    results = Counter()
    for case in range(CASES // 3):
        bad = mutate(random.Random(f"{as_zip} {case}"), good)
        numbers = {"0": bytes(24), "1": bytes(16)}
        rows = {"0": (6, bytes(24)), "1": (4, bytes(16))}
        (tmp_path / "x").write_bytes(zip_file(bad, numbers) if as_zip else sequence_file(bad, rows))
        results[result_of(read_torch_file, tmp_path / "x")] += 1
    assert results["refused"] > 0.3 * CASES / 3


@pytest.mark.parametrize("as_zip", [True, False])
def test_a_program_is_refused_and_not_run(as_zip, tmp_path):
    marker = tmp_path / "was-run"
    hostile = pickled({"a": Called(Named("posix system"), f"touch {marker}")})
    (tmp_path / "x").write_bytes(zip_file(hostile, {}) if as_zip else sequence_file(hostile, {}))
    with pytest.raises(UserError, match=r"it calls posix\.system, which is refused"):
        read_torch_file(tmp_path / "x")
    assert not marker.exists()


GOOD = pickled({"a": tensor("0", (2, 3))})


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (zip_file(GOOD, {"0": bytes(24)}, compression=8), "compressed or encrypted"),
        (zip_file(GOOD, {"0": bytes(20)}), "another size"),
        (zip_file(GOOD, {}), "archive/data/0"),
        (zip_file(GOOD, {"0": bytes(24)}, byteorder=b"big"), "big-endian"),
        (zip_file(bytes(2**21), {}), "a description of 2,097,152 bytes"),
        (zip_file(pickled([1]), {}), "no dictionary of tensors"),
        (zip_file(pickled({"epoch": 3}), {}), "'epoch' is no tensor"),
        (zip_file(pickled({"model": {}}), {}), "'model' holds others, as in a checkpoint of a training"),
        (
            zip_file(pickled({f"{i}": tensor("0", (999,)) for i in range(99)}), {"0": bytes(3996)}),
            "much larger",
        ),
        (sequence_file(GOOD, {"0": (5, bytes(20))}), "another size"),
        (sequence_file(GOOD, {"0": (6, bytes(20))}), "cut off"),
        (sequence_file(GOOD, {"0": (6, bytes(24))}, little_endian=False), "big-endian"),
        (sequence_file(GOOD, {}), "'0'"),
        (b"", "pickle exhausted"),
    ],
)
def test_what_torch_does_not_write(tmp_path, data, message):
    (tmp_path / "x").write_bytes(data)
    with pytest.raises(UserError, match=message) as caught:
        read_torch_file(tmp_path / "x")
    assert "fetch or save it again" in str(caught.value)


NAME, NUMBERS = "bert/embeddings/word_embeddings", bytes(range(24))


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (table({NAME: entry((2, 3), 0, NUMBERS)}, compression=1), "compressed"),
        (table({NAME: entry((2, 3), 0, NUMBERS)}, places=[0, 1]), "two blocks overlap"),
        (table({NAME: entry((2, 3), 0, NUMBERS, size=20)}), "another size"),
        (table({NAME: entry((2**31, 2**31), 0, NUMBERS)}), "another size"),
        (table({NAME: entry((2**60, 0), 0, b"")}), "the shape"),
        (table({NAME: entry((2, 3), 1, NUMBERS)}), "cut off"),
        (table({NAME: entry((2, 3), 0, NUMBERS, dtype=7)}), "another type"),
        (table({NAME: entry((2, 3), 0, NUMBERS, shard=3)}), "data-00003-of-00001: no such model file"),
        (table({NAME: entry((2, 3), 0, NUMBERS, checksum=1)}), "the checksum of .* is wrong"),
        (table({"_CHECKPOINTABLE_OBJECT_GRAPH": entry((), 0, b"", dtype=7)}), "no variables of Google's"),
    ],
)
def test_what_tensorflow_does_not_write(tmp_path, index, message):
    (tmp_path / "x.index").write_bytes(index)
    (tmp_path / "x.data-00000-of-00001").write_bytes(NUMBERS)
    with pytest.raises(UserError, match=message):
        for stored in read_checkpoint(tmp_path / "x.index").values():
            stored.read()

import errno
import importlib.metadata
import json

import numpy as np
import pytest

from minibert.devices import Device
from minibert.errors import UserError
from minibert.train import AdamW, checkpoint
from minibert.train.checkpoint import (
    describe_environment,
    describe_program,
    environment_changes,
    list_checkpoints,
    open_checkpoint,
    save_checkpoint,
)


@pytest.fixture
def save(tmp_path, model):
    """Write a checkpoint of this step, keeping so many."""
    optimiser = AdamW(model)
    optimiser.mean[...] = 0.25

    def save(step, keep=9, save_model=model.save_pretrained):
        return save_checkpoint(tmp_path, {"step": step, "data": {"row": 7}}, save_model, optimiser, keep)

    return save


def test_a_checkpoint_gives_back_what_went_into_it(save, model):
    checkpoint = open_checkpoint(save(30))
    assert checkpoint.folder.name == "checkpoint-30"
    assert checkpoint.state["step"] == 30 and checkpoint.state["data"] == {"row": 7}
    optimiser = AdamW(model)
    optimiser.load_state_arrays(*checkpoint.optimiser_arrays())
    assert optimiser.state_arrays()["mean.cls.predictions.bias"].tolist() == [0.25] * model.config.vocab_size
    again = type(model).from_pretrained(checkpoint.folder, dtype="float64")
    np.testing.assert_array_equal(again.buffers.value, model.buffers.value)


def test_the_newest_are_kept_in_the_order_of_their_steps(save, tmp_path):
    for step in (5, 10, 100, 20):
        save(step)
    assert [folder.name for folder in list_checkpoints(tmp_path)] == [
        "checkpoint-5",
        "checkpoint-10",
        "checkpoint-20",
        "checkpoint-100",
    ]
    save(101, keep=2)
    assert [folder.name for folder in list_checkpoints(tmp_path)] == ["checkpoint-100", "checkpoint-101"]


def test_what_is_no_checkpoint_is_not_taken_for_one(save, tmp_path):
    save(5)
    (tmp_path / "checkpoint-best").mkdir()
    (tmp_path / ".checkpoint-6.x.part").mkdir()
    assert [folder.name for folder in list_checkpoints(tmp_path)] == ["checkpoint-5"]


FILES = ("model.safetensors", "optimiser.safetensors", "config.json")


@pytest.mark.parametrize("name", FILES)
def test_a_truncated_file_is_found(save, name):
    folder = save(10)
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[:-1])
    with pytest.raises(UserError, match=f"checkpoint-10 is damaged .{name} is not what was written"):
        open_checkpoint(folder)


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit_is_found(save, name):
    folder = save(10)
    content = bytearray((folder / name).read_bytes())
    content[-1] ^= 1
    (folder / name).write_bytes(content)
    with pytest.raises(UserError, match=f"checkpoint-10 is damaged .{name} is not what was written"):
        open_checkpoint(folder)


@pytest.mark.parametrize("name", [*FILES, "state.json"])
def test_a_missing_file_is_found(save, name):
    folder = save(10)
    (folder / name).unlink()
    with pytest.raises(UserError, match=f"checkpoint-10 is damaged .*{name}"):
        open_checkpoint(folder)


def test_damage_in_a_folder_inside_is_found(save, model):
    """Such as the generator's of an ELECTRA."""

    def save_both(folder):
        model.save_pretrained(folder)
        model.save_pretrained(folder / "generator")

    folder = save(10, save_model=save_both)
    (folder / "generator" / "config.json").write_text("{}")
    with pytest.raises(UserError, match=r"damaged .generator/config\.json is not what was written"):
        open_checkpoint(folder)


@pytest.mark.parametrize("content", ["", '{"step": 10', "[]", "{}", "null", '{"files": {"config.json": 0}}'])
def test_a_damaged_state_is_found(save, content):
    folder = save(10)
    (folder / "state.json").write_text(content)
    with pytest.raises(UserError, match="checkpoint-10 is damaged"):
        open_checkpoint(folder)


def test_an_edited_state_is_found_and_another_layout_of_it_is_not_one(save):
    folder = save(10)
    state = json.loads((folder / "state.json").read_text())
    (folder / "state.json").write_text(json.dumps(dict(reversed(state.items()))))
    assert open_checkpoint(folder).state["data"] == {"row": 7}
    for edited in (
        state | {"step": 9},
        state | {"more": 1},
        state | {"digest": "0"},
        state | {"digest": None},
    ):
        (folder / "state.json").write_text(json.dumps(edited))
        with pytest.raises(UserError, match=r"checkpoint-10 is damaged .state\.json is not what was written"):
            open_checkpoint(folder)


def test_the_way_out_is_the_next_older_checkpoint(save):
    folders = [save(step) for step in (5, 10, 15)]
    for folder in folders[::2]:
        (folder / "config.json").unlink()
    with pytest.raises(UserError, match=r"delete that folder and resume again, from checkpoint-10$"):
        open_checkpoint(folders[2])
    with pytest.raises(UserError, match=r"there is no older one: start the run again with --overwrite$"):
        open_checkpoint(folders[0])


def test_a_full_disk_leaves_the_older_checkpoints_and_no_half_of_a_new_one(save, tmp_path):
    save(5)

    def fill_the_disk(folder):
        (folder / "model.safetensors").write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(UserError, match="checkpoint-10: no space left"):
        save(10, keep=1, save_model=fill_the_disk)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-5"]
    open_checkpoint(tmp_path / "checkpoint-5")


def test_the_hash_of_the_program_is_that_of_all_its_source(tmp_path, monkeypatch):
    (tmp_path / "train").mkdir()
    monkeypatch.setattr(checkpoint, "__file__", str(tmp_path / "train" / "checkpoint.py"))
    hashes = [describe_program()["the hash of minibert's source"]]
    for name in ("a.py", "a.cu", "train/a.cuh", "b.py"):
        (tmp_path / name).write_text("x")
        hashes.append(describe_program()["the hash of minibert's source"])
    (tmp_path / "a.pyc").write_text("x")
    assert len(set(hashes)) == 5 and describe_program()["the hash of minibert's source"] == hashes[-1]


@pytest.mark.parametrize(
    ("products", "told"), [("numpy", ["mkl 3", "openblas 1"]), ("mkl", ["mkl 2", "mkl 3", "openblas 1"])]
)
def test_a_library_that_was_only_timed_is_no_part_of_the_environment(monkeypatch, products, told):
    """Otherwise a resumed run, which times nothing, would seem to be on another machine."""
    pools = [
        {"user_api": "blas", "internal_api": name, "version": n, "filepath": f"/lib/{n}.so"}
        for name, n in (("openblas", 1), ("mkl", 2), ("mkl", 3))  # NumPy may have an MKL of its own
    ]
    pools.append({"user_api": "openmp", "internal_api": "openmp", "version": None, "filepath": "/lib/4.so"})
    monkeypatch.setattr(checkpoint.threadpoolctl, "threadpool_info", lambda: pools)
    monkeypatch.setattr(checkpoint, "opened", {"/lib/2.so"})
    monkeypatch.setattr(checkpoint, "products_library", lambda: products)
    assert describe_environment(Device("cpu", np))["blas"] == told


def test_the_environment_says_what_bits_can_depend_on():
    environment = describe_environment(Device("cpu", np))
    assert environment["numpy"] == np.__version__ and environment["device"] == "cpu"
    assert environment["threads"] >= 1
    before = {**environment, "threads": 0, "cupy": "13.0"}
    assert environment_changes(environment, environment) == []
    assert environment_changes(before, environment) == [
        f"threads was 0, is now {environment['threads']}",
        "cupy was 13.0, is now None",
    ]


def test_another_numba_is_another_environment_and_another_program(monkeypatch):
    """Its code computes, and differs in the last bits; so does that of the references where it is missing."""

    def described(number):
        version = importlib.metadata.version
        with monkeypatch.context() as patch:
            patch.setattr(importlib.metadata, "version", lambda p: number if p == "numba" else version(p))
            return checkpoint.describe_environment(Device("cpu", np)), checkpoint.describe_program()

    (before, one), (now, other) = described("1.0"), described("2.0")
    assert checkpoint.environment_changes(before, now) == ["numba was 1.0, is now 2.0"]
    assert one != other

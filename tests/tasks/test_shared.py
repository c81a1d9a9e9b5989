"""Whole runs on several ranks leave what one process leaves, bit for bit."""

import json
import shutil
import threading

import numpy as np
import pytest
from mpi import mpirun

from minibert import threads as threads_module
from minibert.devices import resolve_device
from minibert.errors import UserError
from minibert.ranks import Ranks
from minibert.tasks import finetune, pretrain
from minibert.tasks.pretraining import prepare
from minibert.tasks.shared import FEW_THREADS, share_out
from minibert.threads import set_threads
from minibert.train.step import TrainingStep


def flags(settings):
    """The command line of these settings, as of one process."""
    given = settings.replace(accumulation=4, batch_size=2)
    return ["-m", "minibert", "pretrain", *given.flags()], given


def measured(folder):
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    times = ("seconds", "tokens_per_second")
    return [{k: v for k, v in json.loads(line).items() if k not in times} for line in lines]


def weights(folder):
    return (folder / "final/model.safetensors").read_bytes()


def forget_the_end(folder):
    """Leave the run as if it had been killed after its last checkpoint but one."""
    (folder / "results.json").unlink()
    shutil.rmtree(folder / "checkpoint-6")


def test_pretraining_leaves_the_same_bits_and_goes_on_with_another_number_of_ranks(small):
    command, alone = flags(small(name="alone"))
    pretrain(alone)
    command, shared = flags(small(name="shared", steps=6))
    mpirun(2, *command)
    assert measured(shared.folder) == measured(alone.folder)  # also tokens, and what is held out
    assert weights(shared.folder) == weights(alone.folder)
    forget_the_end(shared.folder)
    mpirun(4, *command, "--resume")
    assert weights(shared.folder) == weights(alone.folder)
    assert measured(shared.folder) == measured(alone.folder)


def test_a_checkpoint_of_a_sharded_optimiser_is_whole(small):
    """One process may go on from it, and other ranks from one process's."""
    large = {"hidden_size": 128, "num_hidden_layers": 2}  # so that every rank has some of it
    command, alone = flags(small(name="alone", **large))
    pretrain(alone)
    command, sharded = flags(small(name="sharded", **large))
    mpirun(2, *command, "--shard-optimiser")
    forget_the_end(sharded.folder)
    pretrain(sharded.replace(resume=True))
    assert weights(sharded.folder) == weights(alone.folder)
    forget_the_end(sharded.folder)
    mpirun(4, *command, "--resume", "--shard-optimiser")
    assert weights(sharded.folder) == weights(alone.folder)
    assert measured(sharded.folder) == measured(alone.folder)
    both = [run.folder / "checkpoint-6/optimiser.safetensors" for run in (sharded, alone)]
    assert both[0].read_bytes() == both[1].read_bytes()


def test_muon_cannot_be_sharded(small):
    with pytest.raises(UserError, match="shard_optimiser works with the optimiser adamw, not with muon"):
        small(optimiser="muon", shard_optimiser=True)


@pytest.mark.parametrize("flags", [[], ["--shard-optimiser"]])
def test_fine_tuning_leaves_the_same_bits(encoder_folder, tmp_path, flags):
    rows = [f"the {'river' if i % 3 else 'stone'} number {i},{'ab'[i % 2]}" for i in range(23)]
    (tmp_path / "train.csv").write_text("text,label\n" + "\n".join(rows) + "\n")
    values = {"task": "classify", "train": str(tmp_path / "train.csv"), "model": str(encoder_folder)}
    values |= {
        "out": str(tmp_path / "runs"),
        "batch_size": 2,
        "accumulation": 3,
        "epochs": 2.0,
        "device": "cpu",
    }
    finetune(**values, name="alone", threads=1)
    words = [word for name, value in values.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    mpirun(3, "-m", "minibert", "finetune", *words, "--name", "shared", "--threads", "1", *flags)
    alone, shared = (tmp_path / "runs" / name for name in ("alone", "shared"))
    assert (shared / "best/model.safetensors").read_bytes() == (alone / "best/model.safetensors").read_bytes()
    assert measured(shared / "seed-0") == measured(alone / "seed-0")


def test_questions_are_learned_on_several_ranks_too(encoder_folder, tmp_path):
    """Starts and ends are counted separately: micro-batches may hold different numbers of each."""
    passage = "ann sings in rome and bob dances by the river"
    asked = [
        {"id": str(i), "question": "who ?", "answers": [{"text": word, "answer_start": passage.index(word)}]}
        for i, word in enumerate("ann sings rome bob dances river".split() * 2)
    ]
    paragraphs = [{"context": passage, "qas": asked}]
    (tmp_path / "qa.json").write_text(json.dumps({"data": [{"title": "a", "paragraphs": paragraphs}]}))
    file = str(tmp_path / "qa.json")
    values = {"task": "qa", "train": file, "dev": file, "model": str(encoder_folder), "epochs": 2.0}
    values |= {"out": str(tmp_path / "runs"), "batch_size": 2, "accumulation": 2, "device": "cpu"}
    finetune(**values, name="alone", threads=1)
    words = [word for name, value in values.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    mpirun(2, "-m", "minibert", "finetune", *words, "--name", "shared", "--threads", "1")
    alone, shared = (tmp_path / "runs" / name / "best/model.safetensors" for name in ("alone", "shared"))
    assert shared.read_bytes() == alone.read_bytes()


def test_ranks_that_cannot_share_a_step_are_told_so_at_once(small):
    command, settings = flags(small())
    _, err = mpirun(3, *command, code=2)
    assert err == (
        "minibert: error: accumulation is 4, which 3 ranks cannot share equally; it counts the micro-batches "
        "of all of them: give --accumulation 6\n"
    )
    assert not settings.folder.exists()


class Another(Ranks):
    """The first of two ranks; what the other says differs in one value."""

    size = 2

    def __init__(self, name, value):
        self.change = {name: value}

    def gather(self, value):
        differs = isinstance(value, dict) and value.keys() & self.change.keys()
        return [value, value | self.change] if differs else [value, value]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("learning_rate", 0.1),
        ("corpus", ["other.txt"]),
        ("resume", True),
        ("the hash of minibert's source", "0123"),
        ("the version of NumPy", "1.0"),
        ("the kind of device", "cuda"),
        ("the checksum of the training data", 5),
        ("the checksum of the weights", 5),
    ],
)
def test_ranks_that_differ_are_refused_before_the_first_step(small, monkeypatch, name, value):
    steps = []
    monkeypatch.setattr(TrainingStep, "take", lambda *arguments: steps.append(arguments))
    monkeypatch.setattr("minibert.tasks.pretraining.world", lambda: Another(name, value))
    monkeypatch.setattr("minibert.tasks.pretraining.prepare", lambda settings, ranks: prepare(settings))
    _, settings = flags(small())
    with pytest.raises(UserError, match=f"^{name} is .* on rank 0, but .* on rank 1; all ranks must have"):
        pretrain(settings)
    assert not steps


@pytest.mark.parametrize("size", [1, 2, 3])
def test_every_batch_is_computed_once_and_nothing_is_left_out(small, size):
    """Each rank takes the micro-batches whose number leaves its rank: together, those of one process."""
    from minibert.data import BatchStream

    settings = small()
    tokenizer, prepared = prepare(settings)
    streams = [
        BatchStream(prepared.train, tokenizer, settings.instance_settings(), 3) for _ in range(size + 1)
    ]
    for number in range(60):  # several passes over the text
        expected = next(streams[-1])
        for rank, stream in enumerate(streams[:-1]):
            if number % size == rank:
                found = next(stream)
                assert all((found[name] == expected[name]).all() for name in expected)
            else:
                stream.skip()
            assert stream.state() == streams[-1].state()


def test_one_rank_gets_outputs_as_they_are():
    batches = [("rows", 2)]
    assert list(share_out(batches, lambda batch: batch + 1, Ranks(), resolve_device("cpu"))) == [("rows", 3)]


@pytest.mark.parametrize("threads", [1, 2, 3, FEW_THREADS + 1])
def test_threads_compute_a_batch_each_and_the_last_ones_together(monkeypatch, restore_threads, threads):
    computing = []  # for every batch the thread, and whether that computes a task of its own
    together = threading.Barrier(threads)

    def forward(batch):
        computing.append((batch, threading.get_ident(), threads_module._here.in_task))
        if threads_module._here.in_task:
            together.wait(timeout=30)  # which it would not, one after the other
        return batch * batch

    set_threads(threads)
    batches = zip("abcdefgh", range(8), strict=True)
    found = list(share_out(batches, forward, Ranks(), resolve_device("cpu")))
    assert found == [(name, number * number) for number, name in enumerate("abcdefgh")]
    each = [batch for batch, _, alone in computing if alone]
    assert sorted(each) == [*range(8 // threads * threads if 1 < threads <= FEW_THREADS else 0)]


def test_predictions_do_not_depend_on_who_computes_them(encoder, restore_threads):
    """The same bits: as one batch after the other on two threads gives.

    The longest text comes first, so the batches are the same. (On some processors, OpenBLAS gives a row other
    bits in another batch.)
    """
    texts = [" ".join(["ann sings in rome ?"] * n) for n in range(13, 0, -1)]
    set_threads(2)
    together = encoder.embed(texts, batch_size=2)
    one_by_one = np.concatenate([encoder.embed(texts[i : i + 2], batch_size=2) for i in range(0, 13, 2)])
    np.testing.assert_array_equal(together, one_by_one)

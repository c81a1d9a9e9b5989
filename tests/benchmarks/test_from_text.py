"""The parts that begin with text: both sides read the same sentences, and ours does what the commands do."""

import json
from argparse import Namespace
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from benchmarks import minilm
from benchmarks.__main__ import main
from benchmarks.contenders import ours_from_text
from benchmarks.parts import embedding, fine_tuning
from benchmarks.parts.common import DOCUMENTATION, OURS, sentence_files
from benchmarks.texts import sentence_pieces
from minibert import BertConfig, SentenceEncoder, open_tokenizer
from minibert.errors import UserError
from minibert.tasks import finetune
from minibert.tasks.embed import TextEncoder
from minibert.train.metrics import read_metrics

TINY = BertConfig(
    num_hidden_layers=1, hidden_size=16, num_attention_heads=2, intermediate_size=16, vocab_size=8192
)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    """A small sentence encoder, as sentence-transformers can read it, too."""
    folder = str(tmp_path_factory.mktemp("encoder"))
    SentenceEncoder(TINY, seed=0).save_pretrained(folder)
    open_tokenizer("mini").save_pretrained(folder)
    return folder


@pytest.fixture
def with_encoder(encoder, monkeypatch):
    """The parts measure this encoder instead of MiniLM."""

    @contextmanager
    def small_folder():
        yield encoder, "random"

    for part in (embedding, fine_tuning):
        monkeypatch.setattr(part, "encoder_folder", small_folder)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """SST-2's file with 300 sentences, each of them twice."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "sst2_glue").mkdir()
    lines = [
        f"{number % 2}\tit is film number {number}{' , and long' * (number % 7)}" for number in range(300)
    ]
    (folder / "sst2_glue" / "train.tsv").write_text("\n".join(["label\tsentence", *lines, *lines]) + "\n")
    return folder


def file_of(data):
    return str(data / "sst2_glue" / "train.tsv")


def measured(part, data, tmp_path):
    """The record of a quick run of a part."""
    flags = ["--quick", "--rounds", "2", "--threads", "1", "--data", str(data), "--results", str(tmp_path)]
    assert main([part, *flags]) == 0
    (path,) = tmp_path.glob("*/cpu.json")
    ((case, record),) = json.loads(path.read_text())[part].items()
    return case, record


# -- Sentences ----------------------------------------------------------------------------------------


def test_no_sentence_comes_twice_and_each_piece_is_from_all_over_the_table(data):
    pieces = sentence_pieces(file_of(data), 3, 90)
    assert [len(piece) for piece in pieces] == [90] * 3
    assert len({sentence for piece in pieces for sentence in piece}) == 270
    for piece in pieces:
        numbers = [int(sentence.split()[4]) for sentence in piece]
        assert min(numbers) < 10 and max(numbers) > 290
    with pytest.raises(UserError, match=r"has 300 different sentences, not 4 times 90; fewer --rounds"):
        sentence_pieces(file_of(data), 4, 90)


def test_sentences_come_from_the_first_source_that_is_there(data, tmp_path, capsys):
    sources = ["STS-B", "SST-2", DOCUMENTATION]
    assert next(sentence_files(Namespace(data=data), sources)) == ("SST-2", file_of(data))
    assert capsys.readouterr().out == f"skipped: {data / 'stsb' / 'stsb-en-train.csv'} is not there\n"
    assert list(sentence_files(Namespace(data=tmp_path), sources)) == [(DOCUMENTATION, None)]


# -- Models -------------------------------------------------------------------------------------------


def test_without_the_real_weights_there_are_random_ones(monkeypatch, capsys):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr(minilm, "MINILM", TINY)
    with minilm.encoder_folder() as (folder, weights):
        assert weights == "random"
        assert TextEncoder.open(folder).embed(["a text"]).shape == (1, 16)
    assert "not installed: random weights of the same size" in capsys.readouterr().out


def test_ours_trains_as_the_command_does(encoder, data, tmp_path):
    """The same losses, step by step. (Which library multiplies may differ, and with it the last bits.)"""
    sentences = sentence_pieces(file_of(data), 1, 80)
    file = tmp_path / "train.tsv"
    rows = [f"{number % 2}\t{sentence}" for number, sentence in enumerate(sentences[0])]
    file.write_text("\n".join(["label\ttext", *rows]) + "\n")
    with minilm.classifier_folder(encoder) as folder:
        contender = ours_from_text.fine_tuning(folder, sentences, batch_size=32, max_length=128)
        values = {"task": "classify", "train": str(file), "dev": str(file), "model": folder, "epochs": 1.0}
        finetune(**values, out=str(tmp_path), name="run", device="cpu")
        contender["train"](0)
        ours = read_metrics(tmp_path / "run" / "seed-0" / "metrics.jsonl")
        told = read_metrics(Path(folder) / "metrics.jsonl")
    losses = [[record["loss"] for record in records if "loss" in record] for records in (ours, told)]
    assert len(losses[0]) == 3
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)


def test_ours_embeds_as_the_command_does(encoder, data, tmp_path):
    pieces = sentence_pieces(file_of(data), 2, 40)
    contender = ours_from_text.embedding(encoder, pieces)
    contender["save"](path=str(tmp_path / "vectors.npy"))
    vectors = np.load(tmp_path / "vectors.npy")
    np.testing.assert_array_equal(vectors, TextEncoder.open(encoder).embed(pieces[1]))
    assert contender["lengths"]()["texts"] == 80


def test_the_distance_is_that_of_the_least_similar_pair():
    a = np.array([[3.0, 0.0], [0.0, 2.0]], np.float32)
    assert embedding.distance(a, 5 * a) == pytest.approx(0, abs=1e-12)
    assert embedding.distance(a, np.array([[1.0, 0.0], [1.0, 1.0]])) == pytest.approx(1 - 0.5**0.5)


# -- Parts. Where there is no torch, only ours is measured. -------------------------------------------


def test_vectors_are_compared_before_they_are_timed(with_encoder, data, tmp_path):
    case, record = measured("embedding", data, tmp_path)
    assert (case, record["weights"], record["count"], record["texts"]) == ("SST-2", "random", 64, 192)
    assert record["differences"].keys() == record["seconds"].keys() >= {OURS}
    assert all(difference <= 1e-5 for difference in record["differences"].values())
    assert embedding.THEIRS in record["seconds"].keys() | record["missing"].keys()
    assert all(len(times) == 2 for times in record["seconds"].values())


def test_losses_are_compared_before_steps_are_timed(with_encoder, data, tmp_path):
    case, record = measured("fine_tuning", data, tmp_path)
    assert (case, record["weights"], record["count"], record["texts"]) == ("SST-2", "random", 64, 192)
    assert record["losses"].keys() == record["seconds"].keys() >= {OURS}
    assert list(record["losses"].values()) == pytest.approx(
        [record["losses"][OURS]] * len(record["losses"]), 1e-4
    )
    assert record["seconds"].keys() | record["missing"].keys() == {OURS, *fine_tuning.TRAINERS}
    assert all(len(times) == 2 for times in record["seconds"].values())

"""The comparison of vocabularies: on sentences that both runs held out, per word and per character."""

import sys

import pytest

from benchmarks import domain_words
from benchmarks.domain_words import command, held_out_sentences, score
from minibert.errors import UserError
from minibert.tasks import prepare, pretrain, pseudo_log_likelihoods
from minibert.tasks.pretraining_settings import PretrainSettings
from minibert.text import open_tokenizer


@pytest.fixture
def settings(tmp_path, monkeypatch):
    """A small run, in the current directory."""
    monkeypatch.chdir(tmp_path)
    documents = [
        f"The river rose and took bridge {i} away.\nNobody had seen a flood like {i}." for i in range(9)
    ]
    (tmp_path / "text.txt").write_text("\n\n".join(documents))
    return PretrainSettings(
        name="old",
        corpus=("text.txt",),
        held_out=0.3,
        vocab_size=60,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        steps=2,
        batch_size=4,
        max_seq_length=32,
        nsp=False,
        device="cpu",
        threads=1,
        processes=1,
    )


def test_two_runs_are_scored_on_the_same_sentences(settings, tmp_path, monkeypatch, capsys):
    pretrain(settings)
    new = PretrainSettings(
        **{
            f: getattr(settings, f)
            for f in "corpus held_out steps batch_size max_seq_length nsp device".split()
        },
        name="new",
        model="runs/old/final",
        learn_tokens=4,
        processes=1,
    )
    pretrain(new)
    sentences = held_out_sentences([settings, new], 50)
    _, prepared = prepare(settings)
    assert len(sentences) == sum(
        len(prepared.held_out.sentence_bounds(i)) - 1 for i in range(len(prepared.held_out))
    )
    monkeypatch.setattr(
        sys, "argv", ["", "runs/old", "runs/new", "--results", str(tmp_path), "--threads", "1"]
    )
    assert domain_words.main() == 0
    told = (tmp_path / "domain_words.md").read_text()
    assert "| `old` | 60 |" in told and "| `new` | 64 |" in told
    assert "minibert pretrain --name new" in told and "--learn-tokens 4 --model runs/old/final" in told

    assert " with --threads 1" in told

    one = score(settings.folder, settings, sentences[:1])
    model = domain_words.open_model(domain_words.BertForMaskedLM, "runs/old/final")
    nats = -pseudo_log_likelihoods(model, open_tokenizer("runs/old/final"), sentences[:1])[0]
    words = sentences[0].split()
    assert one.nats_per_word == pytest.approx(nats / len(words))
    assert one.nats_per_character == pytest.approx(nats / sum(map(len, words)))


def test_runs_on_different_texts_are_refused(settings):
    with pytest.raises(UserError, match="held out different texts"):
        held_out_sentences([settings, settings.replace(seed=1)], 5)


def test_a_folder_from_elsewhere_has_no_path_in_the_command(settings):
    assert "--model '$model'" in command(
        settings.replace(model="/home/me/model")
    ) or "--model $model" in command(settings.replace(model="/home/me/model"))

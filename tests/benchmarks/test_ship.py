import sys
import warnings

import numpy as np
import pytest

from benchmarks import ship
from minibert.bert import BertForPreTraining
from minibert.files import write_json
from minibert.tasks import pretrain
from minibert.tasks.pretraining_settings import PretrainSettings

WORDS = "river stone window garden winter summer teacher letter silver bridge music paper shadow".split()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Finished runs: mini, and those before it, in runs, of the text of its card; and other/mini."""
    folder = tmp_path_factory.mktemp("ship")
    rng = np.random.default_rng(0)
    for name in ("large", "diaries"):
        (folder / name).mkdir()
        documents = ["\n".join(f"the {' '.join(rng.choice(WORDS, 9))} ." for _ in range(6)) for _ in range(8)]
        (folder / name / "text.txt").write_text("\n\n".join(documents))
    runs = [(name, "runs", ["large"]) for name in ("mini-begun", "mini-pairs", "mini")]
    for name, out, corpus in (*runs, ("mini", "other", ["diaries"])):
        settings = PretrainSettings(
            **dict(name=name, out=str(folder / out), prepared=str(folder / "prepared"), held_out=0.2),
            **dict(
                vocab_size=80,
                num_hidden_layers=1,
                hidden_size=16,
                num_attention_heads=2,
                max_position_embeddings=64,
                max_seq_length=32,
                steps=6,
            ),
            **dict(long_seq_length=64, long_share=0.5, processes=1, threads=1, device="cpu"),
            corpus=tuple(str(folder / text) for text in corpus),
        )
        pretrain(settings)
    scores = {"details": {"binding": {"accuracy": 0.25, "pairs": 40}}, "scores": {"accuracy": 0.625}}
    for out in ("runs", "other"):
        write_json(folder / out / "mini" / "blimp.json", {"examples": 80, **scores})
    return folder


def run(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["ship", *map(str, arguments)])
    return ship.main()


def test_a_run_becomes_a_model_with_a_card(folder, tmp_path, monkeypatch, capsys):
    assert run(monkeypatch, folder / "runs" / "mini", "--assets", tmp_path) == 0
    model = tmp_path / "mini"
    assert f"written to {model}: {ship.folder_size(model):,} bytes" in capsys.readouterr().out
    with warnings.catch_warnings(action="error"):
        shipped = BertForPreTraining.from_pretrained(model)
    trained = BertForPreTraining.from_pretrained(folder / "runs" / "mini" / "final")
    np.testing.assert_array_equal(
        shipped.buffers.value, trained.buffers.value.astype("float16").astype("float32")
    )
    card = (model / "README.md").read_text()
    assert "![Loss of masked words during the training](loss.png)" in card
    assert (model / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert "| steps 4 to 6 | 16 sequences of 64 tokens, up to 10 predicted in each |" in card
    assert "--corpus large" in card and str(folder) not in card, "places of one machine"
    parts = ("## Before this run", "### mini-begun", "### mini-pairs", "## Course")
    assert sorted(parts, key=card.index) == list(parts)
    assert card.count("- the capital of france is [MASK] . *") == 1
    assert "| all | 80 | 62.5 |\n| binding | 40 | 25.0 |\n" in card
    assert card.startswith("---\nlicense: cc-by-sa-3.0\n")


def test_a_run_that_was_not_evaluated_is_refused(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(ship, "BLIMP", "other.json")
    assert run(monkeypatch, folder / "runs" / "mini", "--assets", tmp_path) == 2
    assert "other.json: no such file of scores; make it with  minibert evaluate" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_the_card_is_not_given_to_another_text(folder, tmp_path, monkeypatch, capsys):
    assert run(monkeypatch, folder / "other" / "mini", "--assets", tmp_path) == 2
    assert "was trained on diaries; its model card tells of large" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_is_too_large_is_refused(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(ship, "LARGEST", 1000)
    assert run(monkeypatch, folder / "runs" / "mini", "--assets", tmp_path) == 2
    assert "bytes, more than 1,000" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []

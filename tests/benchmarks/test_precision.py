import json
import sys

import numpy as np

from benchmarks import precision


def test_the_tail_is_the_end_and_the_distance_the_largest():
    assert precision.tail([5.0] * 45 + [1.0] * 5) == 1.0
    assert precision.distance([3.0, 2.0, 1.0], [3.0, 2.5, 0.75]) == 0.5


def test_it_trains_in_each_precision_and_draws_the_curves(tmp_path, monkeypatch, capsys):
    rng = np.random.default_rng(0)
    words = ["".join(rng.choice(list("abcdefgh"), 4)) for _ in range(60)]
    documents = ["\n".join(" ".join(rng.choice(words, 8)) + " ." for _ in range(6)) for _ in range(40)]
    (tmp_path / "corpus.txt").write_text("\n\n".join(documents))
    monkeypatch.chdir(tmp_path)
    command = "precision --device cpu --steps 3 --batch-size 2 --corpus corpus.txt --results out"
    monkeypatch.setattr(sys, "argv", [*command.split(), "--precisions", "bfloat16"])
    assert precision.main() == 0
    record = json.loads((tmp_path / "out" / "precision.json").read_text())
    assert {name: len(losses) for name, losses in record["losses"].items()} == {"float32": 3, "bfloat16": 3}
    assert record["losses"]["float32"][0] != record["losses"]["bfloat16"][0]
    assert np.allclose(record["losses"]["float32"], record["losses"]["bfloat16"], rtol=1e-2)
    assert (tmp_path / "out" / "precision.png").read_bytes().startswith(b"\x89PNG")
    assert "| bfloat16 |" in capsys.readouterr().out


def test_a_mistake_is_told_in_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["precision", "--device", "abacus"])
    assert precision.main() == 2
    assert "unknown device 'abacus'" in capsys.readouterr().err

"""The curves that the package carries are those of the committed results."""

import json

import numpy as np

from benchmarks.expected import RESULTS, averaged, plot
from minibert.tasks.expectation import CURVES


def test_the_file_in_the_package_is_made_from_the_results():
    key = lambda c: (c["text"], c["recipe"], c["nsp"], c["hidden_size"], c["layers"])  # noqa: E731
    assert sorted(averaged(RESULTS), key=key) == json.loads(CURVES.read_text())


def test_seeds_are_averaged():
    curves = list(averaged(RESULTS))
    assert {c["seeds"] for c in curves if c["source"] == "ablations"} == {3}
    runs = json.loads((RESULTS / "ablations.json").read_text())["size"]
    ends = [runs[f"L2 H256, seed {seed}"]["evaluations"][-1]["mlm_loss"] for seed in range(3)]
    found = next(c for c in curves if (c["layers"], c["hidden_size"]) == (2, 256))
    np.testing.assert_allclose(found["points"][-1][1], np.mean(ends), atol=1e-4)


def test_the_figure_is_drawn(tmp_path):
    plot(json.loads(CURVES.read_text()), tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")

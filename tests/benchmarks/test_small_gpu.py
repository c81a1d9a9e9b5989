"""The documented run on a GPU: its settings are settings, and its script goes on where it stopped."""

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from minibert.tasks.pretraining_settings import PretrainSettings

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
SMALLER = "--layers 1 --hidden 16 --heads 2 --vocab-size 80 --steps 8 --batch-size 8 --precision float32"
SMALLER += (
    " --max-seq-length 16 --long-seq-length 32 --long-share 0.5 --eval-batches 1 --processes 1 --threads 1"
)
WORDS = "river stone window garden winter summer teacher letter silver bridge music paper shadow".split()


def test_the_settings_are_those_of_two_phases():
    values = tomllib.loads((BENCHMARKS / "small_gpu.toml").read_text())
    settings = PretrainSettings.from_dict(values)
    first, second = settings.phases()
    tokens = [phase.batch_size * phase.instances.max_seq_length for phase in (first, second)]
    assert tokens == [256 * 128, 64 * 512]
    config = settings.model_config(8192)
    assert (config.num_hidden_layers, config.hidden_size) == (4, 512)


@pytest.mark.skipif(sys.platform != "linux", reason="the script needs the timeout command of GNU")
def test_the_script_trains_stops_goes_on_and_exports(tmp_path):
    documents = [[f"the {' '.join(WORDS[i:])} ." for i in range(8)] + [f"{word} {word} ."] for word in WORDS]
    (tmp_path / "corpus.txt").write_text("\n\n".join(map("\n".join, documents)))
    environment = {**os.environ, "OUT": str(tmp_path), "PYTHON": sys.executable, "DEVICE": "cpu"}
    environment["CORPUS"] = str(tmp_path / "corpus.txt")
    sentences = "".join(f"{i % 2}\tthe {word}\n" for i, word in enumerate(WORDS))
    (tmp_path / "sst2.tsv").write_text(f"label\tsentence\n{sentences}")
    environment["SST2"] = f"{tmp_path}/sst2.tsv {tmp_path}/sst2.tsv"

    def piece(minutes):
        done = subprocess.run(
            [BENCHMARKS / "small_gpu.sh", *SMALLER.split()],
            env={**environment, "MINUTES": minutes},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "call this again" in piece("0.005") and not (tmp_path / "small").exists()
    assert "resuming" not in piece("2")
    config = json.loads((tmp_path / "small" / "config.json").read_text())
    assert (config["hidden_size"], config["dtype"]) == (16, "float16")
    assert "## small" in (tmp_path / "pretraining.md").read_text()
    results = json.loads((tmp_path / "runs" / "small-sst2" / "results.json").read_text())
    assert results["task"] == "classify" and not (tmp_path / "runs" / "small-mrpc").exists()
    shutil.rmtree(tmp_path / "small")
    assert "resuming from" in piece("2") and (tmp_path / "small" / "model.safetensors").exists()

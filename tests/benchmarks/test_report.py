"""The file of results and the report: whatever was measured, and never at the cost of what was before."""

import argparse
import importlib
import json
import subprocess
import sys
from datetime import datetime

import numpy as np
import pytest

from benchmarks import operations
from benchmarks.__main__ import PARTS, folder_of, main
from benchmarks.inputs import count_masked
from benchmarks.measure import ROOT, Spread
from benchmarks.parts import embedding, fine_tuning, gpu_step, scaling, train_step
from benchmarks.parts.common import against_ours, check_agreement
from benchmarks.results import Results, folder_name, milliseconds, ratio, share, table
from minibert import BertConfig, ops

TIMES = {
    "minibert": [0.1, 0.2, 0.1],
    "Hugging Face": [0.4, 0.8, 0.4],
    "PyTorch, eager": [0.2, 0.4, 0.2],
    "PyTorch, compiled": [0.3, 0.6, 0.3],
}
BATCH = {"batch_size": 32, "length": 128}
MEMORY = {"imported": 2**20, "peak": 9 * 2**20, "working": 5 * 2**20}
RECORDS = {
    "train_step": {
        "tiny, V 8,192": {
            "batch": BATCH,
            "seconds": TIMES | {"bare products": [0.08, 0.16, 0.08]},
            "missing": {"PyTorch, compiled, max-autotune": "no compiler"},
            "flops": 16_000_000_000,
            "blas": "openblas",
        }
    },
    "bfloat16": {
        "tiny, V 8,192": {"batch": BATCH, "seconds": TIMES, "missing": {"PyTorch, compiled": "no compiler"}}
    },
    "memory": {"tiny": {"batch": BATCH, "bytes": {"minibert": MEMORY, "PyTorch, eager": MEMORY}}},
    "inference": {"MiniLM": {"batch": BATCH, "seconds": TIMES, "differences": dict.fromkeys(TIMES, 1e-6)}},
    "padding": {
        "SST-2, inference": {
            "texts": 512,
            "mean": 12.5,
            "longest": 50,
            "computed": {"with padding": 9000, "sorted by length": 7000, "without padding": 6400},
            "seconds": {
                "with padding": [0.4, 0.8, 0.4],
                "sorted by length": [0.3, 0.6, 0.3],
                "without padding": [0.2, 0.4, 0.2],
            },
        }
    },
    "fine_tuning": {
        "SST-2": {
            "weights": "real",
            "texts": 6144,
            "mean": 15.4,
            "longest": 60,
            "products": "onednn",
            "count": 512,
            "batch": {"batch_size": 32, "max_length": 128},
            "seconds": {"minibert": [3.0, 6.0, 3.0], "Trainer": [9.0, 18.0, 9.0]},
            "missing": {"Trainer, group_by_length": "no accelerate"},
        }
    },
    "embedding": {
        "STS-B": {
            "weights": "random",
            "texts": 9216,
            "mean": 14.4,
            "longest": 50,
            "count": 768,
            "seconds": {
                "minibert": [1.0, 2.0, 1.0],
                "minibert, oneDNN": [0.5, 1.0, 0.5],
                "sentence-transformers": [3.0, 6.0, 3.0],
            },
            "differences": {
                "minibert": 0.0,
                "minibert, oneDNN": 2e-13,
                "sentence-transformers": 6e-13,
            },
        }
    },
    "tokenizer": {
        "tokenizer": {
            "text": "wiki.txt",
            "characters": [10, 20, 10],
            "seconds": {"minibert": [1.0, 2.0, 1.0], "tokenizers (Rust)": [2.0, 4.0, 2.0]},
        }
    },
    "vocabulary": {
        "vocabulary": {
            "text": "wiki.txt",
            "seconds": {"minibert": [3.0], "tokenizers (Rust)": [2.0]},
            "tokens": {"minibert": 8192, "tokenizers (Rust)": 8192},
            "in_all": 8000,
        }
    },
    "scaling": {
        "batch": {
            "base": {"batch_size": 16, "layers": 4, "hidden": 256, "length": 128},
            "seconds": {"2": [0.3], "4": [0.5], "8": [0.9]},
        }
    },
    "profile": {
        "tiny": {
            "batch": BATCH,
            "rounds": {
                "reference": [{"linear": 0.2, "embed": 0.1, "rest": 0.01}],
                "kernels": [{"linear": 0.1, "embed": 0.1, "rest": 0.01}],
            },
        }
    },
    "gpu_step": {
        "tiny, 256 × 128": {
            "batch": {"batch_size": 256, "length": 128},
            "device": "a GPU",
            "replaying": True,
            "seconds": {
                "minibert": [0.1, 0.2, 0.1],
                "minibert, CPU": [20.0, 30.0, 20.0],
                "PyTorch, eager": [0.2, 0.4, 0.2],
            },
            "bytes": {"minibert": 2**30, "PyTorch, eager": 2**31},
            "missing": {"PyTorch, compiled": "no compiler at all"},
            "floor": {"compute": 0.01, "memory": 0.05},
            "rates": {"tflops": 790.0, "terabytes": 4.3},
        }
    },
    "held_out": {
        "tiny": {
            "plateau": {"loss": 6.4, "accuracy": 0.07},
            "held_out": {"held_out_mlm_loss": 5.3, "held_out_mlm_accuracy": 0.2},
            "step": 3600,
            "tokens": 7_000_000,
            "seconds": 290.0,
        }
    },
}


def aims_of(part: str) -> dict[str, tuple[str, str]]:
    rows = importlib.import_module(f"benchmarks.parts.{part}").aims(RECORDS[part])
    return {what: (least, measured) for what, least, measured in rows}


def test_every_part_has_a_record_here():
    assert sorted(RECORDS) == sorted(PARTS)


def test_a_report_is_made_of_whatever_was_measured(tmp_path, capsys):
    for count in range(len(RECORDS) + 1):
        for part in list(RECORDS)[:count]:
            machine = "gpu" if part == "gpu_step" else "cpu"
            results = Results(tmp_path / f"a-{machine}", machine)
            for case, record in RECORDS[part].items():
                results.save(part, case, record, threads=2)
        assert main(["report", "--results", str(tmp_path)]) == 0
    on_gpu = (tmp_path / "a-gpu" / "gpu.md").read_text()
    assert (
        on_gpu.startswith("# Measured on a GPU") and "Left out: PyTorch, compiled: no compiler at" in on_gpu
    )
    assert "| PyTorch, eager | 200.0 (200.0–300.0) | 163,840 | 25% | 2,048 | 2.00 (2.00–2.00) |" in on_gpu
    report = (tmp_path / "a-cpu" / "cpu.md").read_text()
    assert "PyTorch, compiled: no compiler at all" not in report
    assert "Left out: PyTorch, compiled, max-autotune: no compiler" in report
    pictures = {line.split("(")[1].rstrip(")") for line in report.splitlines() if line.startswith("![")}
    assert pictures == {"train_step.png", "scaling.png", "profile_tiny.png"}
    for picture in pictures:
        assert (tmp_path / "a-cpu" / picture).read_bytes().startswith(b"\x89PNG")


def test_processors_stand_side_by_side(tmp_path, monkeypatch):
    faster = {"minibert, oneDNN": [0.05, 0.1, 0.05]}
    for processor, more in (("One (family 1)", {}), ("Two", faster)):
        monkeypatch.setattr("benchmarks.results.describe_processor", lambda device, name=processor: name)
        record = RECORDS["train_step"]["tiny, V 8,192"]
        record = record | {"seconds": record["seconds"] | more}
        Results(tmp_path / folder_name()).save("train_step", "tiny, V 8,192", record, threads=2)
    Results(tmp_path / "two").save("tokenizer", "tokenizer", RECORDS["tokenizer"]["tokenizer"], threads=1)
    assert main(["report", "--results", str(tmp_path)]) == 0
    page = (tmp_path / "processors.md").read_text()
    assert "|  | [One (family 1)](one-family-1/cpu.md) | [Two](two/cpu.md) |" in page
    assert "tiny, V 8,192: the fastest PyTorch / ours | 2.00 (2.00–2.00) | 4.00 (4.00–4.00) |" in page
    assert "one thread: Rust / ours |  | 2.00 (2.00–2.00) |" in page
    today = datetime.now().astimezone().date().isoformat()
    assert page.endswith(f"| measured | {today} | {today} |\n")
    assert "minibert, oneDNN | 50.0" in (tmp_path / "two" / "cpu.md").read_text()


def test_results_of_processes_that_end_together_are_all_kept(tmp_path):
    program = (
        "import sys; from pathlib import Path; from benchmarks.results import Results\n"
        "for i in range(10): Results(Path(sys.argv[1])).save('part', f'{sys.argv[2]}-{i}', {}, 1)"
    )
    names = "abc"
    running = [subprocess.Popen([sys.executable, "-c", program, tmp_path, name], cwd=ROOT) for name in names]
    assert [process.wait() for process in running] == [0] * len(names)
    assert len(json.loads((tmp_path / "cpu.json").read_text())["part"]) == 10 * len(names)
    assert [path.name for path in tmp_path.iterdir()] == ["cpu.json"]


def test_every_gpu_has_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr("benchmarks.results.resolve_device", lambda name: name)
    names = {"cuda:0": "NVIDIA H100 80GB HBM3", "cuda:1": "NVIDIA H200"}
    monkeypatch.setattr("benchmarks.results.describe_processor", names.get)
    folders = [folder_of(argparse.Namespace(results=tmp_path, device=device), "gpu").name for device in names]
    assert folders == ["nvidia-h100-80gb-hbm3", "nvidia-h200"]


def test_without_results_there_is_nothing_to_compare(tmp_path):
    assert main(["report", "--results", str(tmp_path)]) == 0
    assert list(tmp_path.iterdir()) == []


def test_padding_is_held_against_both_other_ways():
    aims = aims_of("padding")
    assert aims["SST-2, inference: with padding / without padding"] == ("", "2.00 (2.00–2.00)")
    assert aims["SST-2, inference: sorted by length / without padding"] == ("", "1.50 (1.50–1.50)")


def test_what_begins_with_text_is_held_against_what_people_use(tmp_path):
    assert aims_of("fine_tuning") == {
        "fine-tuning from text, SST-2: Trainer / ours": ("1.5", "3.00 (3.00–3.00)")
    }
    assert aims_of("embedding") == {
        "sentence vectors, STS-B: sentence-transformers / minibert": ("2.5", "3.00 (3.00–3.00)"),
        "sentence vectors, STS-B: sentence-transformers / minibert, oneDNN": ("", "6.00 (6.00–6.00)"),
    }
    (row,) = embedding.compared(RECORDS["embedding"])
    assert row == ("sentence vectors, STS-B: sentence-transformers / ours", Spread(6.0, 6.0, 6.0))
    told = fine_tuning.section(RECORDS["fine_tuning"], tmp_path)
    assert "**SST-2**, real weights: 6,144 texts of 15.4 tokens on average, the longest of 60." in told
    assert "Batches of 32; ours multiplied with onednn." in told
    assert "|  | ms per 512 sentences (quartiles) | times ours (quartiles) |" in told
    assert "Left out: Trainer, group_by_length: no accelerate" in told
    told = embedding.section(RECORDS["embedding"], tmp_path)
    assert "| sentence-transformers | 3,000 (3,000–4,500) | 3.00 (3.00–3.00) | 6e-13 |" in told


def test_a_part_without_rivals_has_no_aims():
    alone = {"minibert": [1.0], "minibert, oneDNN": [0.5]}
    for part in (embedding, fine_tuning):
        assert part.aims({"SST-2": {"seconds": alone}}) == part.compared({"SST-2": {"seconds": alone}}) == []


def test_a_new_record_replaces_only_its_own_case(tmp_path):
    beside = Results(tmp_path)  # of a process that measures at the same time
    beside.save("memory", "tiny", {"bytes": {"minibert": 1}}, threads=2)
    Results(tmp_path).save("memory", "mini", {"bytes": {"minibert": 2}}, threads=2)
    beside.save("scaling", "batch", {"seconds": {}}, threads=2)
    Results(tmp_path).save("memory", "tiny", {"bytes": {"minibert": 3}}, threads=1)
    stored = json.loads((tmp_path / "cpu.json").read_text())
    assert stored["memory"]["tiny"]["bytes"] == {"minibert": 3}
    assert stored["memory"]["tiny"]["origin"]["threads"] == 1
    assert stored["memory"]["mini"]["bytes"] == {"minibert": 2}


def test_the_training_step_is_held_against_the_fastest_pytorch():
    aims = aims_of("train_step")
    assert aims["training step, tiny, V 8,192: PyTorch, eager / minibert"] == ("1.5", "2.00 (2.00–2.00)")
    assert aims["training step, tiny, V 8,192: Hugging Face / minibert"] == ("3.0", "4.00 (4.00–4.00)")
    assert aims["training step, tiny, V 8,192: bare products' share"] == ("70%", "80% (80%–80%)")


@pytest.mark.parametrize(("measured", "expected"), [(True, "60% (60%–60%)"), (False, "80% (80%–80%)")])
def test_the_share_of_the_products_is_that_of_the_faster_library(measured, expected, tmp_path):
    record = RECORDS["train_step"]["tiny, V 8,192"]
    faster = {"minibert, oneDNN": [0.05, 0.1, 0.05]}
    bare = {"bare products, oneDNN": [0.03, 0.06, 0.03]} if measured else {}
    cases = {"tiny, V 8,192": record | {"seconds": record["seconds"] | faster | bare}}
    told = {name: found for name, _, found in train_step.aims(cases)}
    assert told["training step, tiny, V 8,192: bare products' share"] == expected
    rows = [row for row in train_step.section(cases, tmp_path).splitlines() if row.startswith("| bare")]
    assert rows[0] == "| bare products (200 GFLOP/s) | 80.0 (80.0–120.0) | 0.80 (0.80–0.80) |"
    assert (
        rows[1:]
        == ["| bare products, oneDNN (533 GFLOP/s) | 30.0 (30.0–45.0) | 0.30 (0.30–0.30) |"] * measured
    )


def test_other_aims():
    assert aims_of("memory") == {
        "peak memory of a step, tiny: ours / least of PyTorch": ("below 1.0", "1.00 (above imports: 1.00)")
    }
    assert aims_of("tokenizer") == {
        "tokenizing (WordPiece), one thread: Rust / ours": ("5.0", "2.00 (2.00–2.00)")
    }
    assert aims_of("vocabulary") == {
        "learning a vocabulary: ours / Rust": ("at most 3.0", "1.50 (1.50–1.50)")
    }
    assert list(aims_of("held_out").values()) == [("1.0", "1.100")]


def test_the_fastest_contender_is_the_fastest_beside_ours_at_its_best():
    """Beside ours with NumPy's products, which are slower, eager would seem to be the fastest."""
    times = {
        "minibert": [1.0, 2.0, 3.0],
        "minibert, oneDNN": [1.0, 1.0, 1.0],
        "PyTorch, eager": [0.9, 3.0, 2.7],  # 0.9 times NumPy's
        "PyTorch, compiled": [2.0, 2.0, 2.0],  # 1.0 times NumPy's
    }
    best, ours, times_ours = against_ours(times, ["PyTorch, eager", "PyTorch, compiled"])
    assert (best, ours, times_ours.median) == ("PyTorch, compiled", "minibert, oneDNN", 2.0)


def test_a_gpu_is_held_against_pytorch_the_floor_and_the_cpu():
    assert aims_of("gpu_step") == {
        "training step on a GPU, tiny, 256 × 128: PyTorch, eager / ours": ("1.5", "2.00 (2.00–2.00)"),
        "training step on a GPU, tiny, 256 × 128: floor / step": ("40%", "50%"),
        "training step, tiny, 256 × 128: CPU / GPU": ("100", "200.00 (175.00–200.00)"),
    }


def test_the_floor_of_a_step_counts_its_products():
    """Base at 256 × 128: the FLOPs of its bare products, which another file counts shape by shape."""
    config = BertConfig.preset("base")
    tokens, hidden, masked = 256 * 128, 768, count_masked(256, 128)
    layer = tokens * (4 * hidden**2 + 2 * hidden * 3072) + 2 * tokens * 128 * hidden
    not_read = (tokens - masked - 256) * (hidden**2 + 2 * hidden * 3072)  # in the last layer
    heads = masked * (hidden**2 + hidden * 30522)
    floor = gpu_step.floor(config, 256, 128, tflops=790, terabytes=4.3)
    assert floor["compute"] == pytest.approx(6 * (12 * layer - not_read + heads) / 790e12, rel=1e-3)
    assert floor["memory"] < floor["compute"]
    tiny = gpu_step.floor(BertConfig.preset("tiny"), 256, 128, tflops=790, terabytes=4.3)
    assert tiny["memory"] > tiny["compute"]
    halved = gpu_step.floor(BertConfig.preset("tiny"), 256, 128, tflops=790, terabytes=8.6)
    assert halved["memory"] == pytest.approx(tiny["memory"] / 2)


def test_mistakes_are_one_line_and_code_2(tmp_path, capsys):
    (tmp_path / "broken" / "a-cpu").mkdir(parents=True)
    (tmp_path / "broken" / "a-cpu" / "cpu.json").write_text("{")
    (tmp_path / "short.txt").write_text("One sentence.")
    for arguments, told in (
        (["no_such_part"], "no_such_part"),
        (["memory", "--rounds", "0"], "at least 1"),
        (["train_step", "--presets", "giant", "--results", str(tmp_path / "new")], "giant"),
        (["tokenizer", "--text", str(tmp_path / "none.txt"), "--results", str(tmp_path / "new")], "none.txt"),
        (
            ["tokenizer", "--text", str(tmp_path / "short.txt"), "--results", str(tmp_path)],
            "not 11 documents",
        ),
        (["held_out", "--run", str(tmp_path), "--results", str(tmp_path / "new")], "not a finished run"),
        (["report", "--results", str(tmp_path / "broken")], "not valid JSON"),
    ):
        assert main(arguments) == 2
        error = capsys.readouterr().err
        assert told in error
        assert error.count("\n") == 1


def test_a_contender_that_computes_something_else_is_found_out():
    check_agreement({"minibert": 9.7, "PyTorch": 9.70005}, tolerance=1e-4)
    for other in (9.8, float("nan")):
        with pytest.raises(Exception, match="not the same work"):
            check_agreement({"minibert": 9.7, "PyTorch": other}, tolerance=1e-4)


def test_numbers_as_text():
    assert table(["", "ms"], [["a", "1"]]) == "|  | ms |\n| --- | ---: |\n| a | 1 |"
    assert milliseconds(Spread(0.0012, 0.0015, 0.0021)) == "1.5 (1.2–2.1)"
    assert milliseconds(Spread(1.2, 1.5, 2.1)) == "1,500 (1,200–2,100)"
    assert ratio(Spread(1.0, 1.5, 2.0)) == "1.50 (1.00–2.00)"
    assert share(Spread(0.5, 0.75, 0.8)) == "75% (50%–80%)"


@pytest.mark.parametrize("coefficients", [(0.5, 0.25), (1e-3, 2e-4, 3e-6), (0.0, 0.0, 1e-5)])
def test_a_curve_of_theorys_shape_is_found_again(coefficients):
    x = np.array([32, 64, 128, 256, 512])
    seconds = np.polynomial.Polynomial(coefficients)(x)
    found = scaling.fit(x, seconds, degree=len(coefficients) - 1)
    np.testing.assert_allclose(found.coefficients, coefficients, rtol=1e-6, atol=1e-12)
    assert found.r_squared == pytest.approx(1.0)


def test_no_part_of_a_cost_is_negative_and_a_wrong_shape_fits_badly():
    x = np.array([1.0, 2.0, 3.0, 4.0])
    falling = scaling.fit(x, 5.0 - x, degree=1)
    assert min(falling.coefficients) >= 0
    assert falling.r_squared < 0.5


def test_the_profile_adds_up_and_leaves_the_table_as_it_was():
    before = {name: (entry.reference, dict(entry.kernels)) for name, entry in ops.TABLE.items()}
    x, weight, bias = np.ones((4, 8), "float32"), np.ones((8, 8), "float32"), np.ones(8, "float32")
    calls = []

    def step(number):
        calls.append(number)
        y, cache = ops.linear(x, weight, bias)
        ops.linear_backward(y, cache)

    for kernels in (False, True):
        calls.clear()
        seconds = operations.profile(step, kernels=kernels, steps=3)
        assert calls == [0, 0, 1, 2]
        assert set(seconds) == {"linear", operations.REST}
        assert min(seconds.values()) > 0
    after = {name: (entry.reference, dict(entry.kernels)) for name, entry in ops.TABLE.items()}
    assert before == after

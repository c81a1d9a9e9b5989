"""The training step on a GPU: ours, replayed and called, against PyTorch, eager and compiled."""

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.inputs import count_masked
from benchmarks.measure import Race, fastest, paired_ratio, spread, take_turns
from benchmarks.parts.common import (
    add_presets,
    check_agreement,
    missing_lines,
    pretrained_folder,
    pytorch_names,
)
from benchmarks.results import milliseconds, paragraph, ratio, table
from minibert import BertConfig
from minibert.tasks.info import step_cost

MACHINE = "gpu"  # not one of the parts that are measured on a CPU

OURS, CALLED, ON_CPU = "minibert", "minibert, no graph", "minibert, CPU"
PYTORCH: dict[str, dict[str, Any] | None] = {
    "PyTorch, eager": None,
    "PyTorch, compiled": {},
    "PyTorch, reduce-overhead": {"mode": "reduce-overhead"},
}
CASES = (  # preset, batch size, length
    ("tiny", 256, 128),
    ("mini", 256, 128),
    ("small", 256, 128),
    ("base", 256, 128),
    ("base", 64, 512),
)
# Of each case: PyTorch's time / ours, and the floor's share of ours.
AIMS = {
    "tiny, 256 × 128": ("1.5", "40%"),
    "mini, 256 × 128": ("1.5", "45%"),
    "small, 256 × 128": ("1.0", "50%"),
    "base, 256 × 128": ("1.0", "50%"),
    "base, 64 × 512": ("0.8", "50%"),
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """The sizes, the device and what it can do at best."""
    add_presets(parser)
    parser.add_argument("--device", default="cuda", help="cpu sees that it works (default: %(default)s)")
    parser.add_argument(
        "--tflops", type=float, default=790, help="in bfloat16, for the floor (default: %(default)s, an H200)"
    )
    parser.add_argument(
        "--terabytes", type=float, default=4.3, help="a second, likewise (default: %(default)s, an H200)"
    )


def measure(options: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    """A case for each size and shape, V 30,522."""
    cases = [case for case in CASES if not options.presets or case[0] in options.presets]
    for preset, batch_size, length in [("tiny", 4, 32)] if options.quick else cases:
        shape = {"batch_size": batch_size, "length": length}
        yield f"{preset}, {batch_size} × {length}", _measure_case(BertConfig.preset(preset), shape, options)


def _measure_case(config: BertConfig, shape: dict[str, int], options: argparse.Namespace) -> dict[str, Any]:
    steps = 2 if options.quick else 20  # between two looks at the loss
    precision = "float32" if options.device == "cpu" else "bfloat16"
    common = {**shape, "device": options.device, "steps": steps}
    modes = {"PyTorch, eager": None} if options.quick else PYTORCH
    with pretrained_folder(config) as folder, Race(options.threads) as race:
        for name, graph in ((OURS, True), (CALLED, False)):
            race.enter(name, "ours:gpu_steps", folder=folder, precision=precision, graph=graph, **common)
        for name, arguments in modes.items():
            race.enter(name, "pytorch:gpu_steps", folder=folder, compile=arguments, **common)
        if config.num_hidden_layers == 2:  # the same step on the CPU, in float32
            on_cpu = common | {"device": "cpu", "steps": 1}
            race.enter(ON_CPU, "ours:gpu_steps", folder=folder, precision="float32", graph=False, **on_cpu)
        losses = race.ask("loss")
        check_agreement(losses, tolerance=0.05)  # bfloat16 has three digits
        race.warm_up("steps")
        seconds = take_turns(race.turns("steps"), rounds=options.rounds, seconds=options.seconds)
        each = {name: 1 if name == ON_CPU else steps for name in seconds}
        return {
            "batch": shape,
            "device": race.workers[OURS].call("device"),
            "replaying": race.workers[OURS].call("replaying"),
            "seconds": {name: [time / each[name] for time in times] for name, times in seconds.items()},
            "bytes": race.ask("memory"),
            "losses": losses,
            "missing": race.missing,
            "floor": floor(config, **shape, tflops=options.tflops, terabytes=options.terabytes),
            "rates": {"tflops": options.tflops, "terabytes": options.terabytes},
        }


def floor(
    config: BertConfig, batch_size: int, length: int, *, tflops: float, terabytes: float
) -> dict[str, float]:
    """Seconds that no step on a GPU can be faster than: of ``compute`` and ``memory`` the larger counts.

    ``compute``: the FLOPs of all products, forward and backward, at the rate of bfloat16.

    ``memory``: each of these kernels reads its inputs and writes its results once, in 16 bits; whatever is
    elementwise is fused into the one before. In numbers a token, for F = 4 H (8 F of these are in F):

        forward    qkv 4 H, attention 4 H, projection + residual + norm 4 H, up + GELU 9 H, down + … 7 H
        backward   norm 3 H, down + GELU 14 H, up 11 H, norm 3 H, projection 4 H, attention 7 H, qkv 9 H

    In the last layer, all but qkv and attention (24 H) are those of the tokens that a head reads. The
    embeddings take 10 H a token; the scores five passes over N · V numbers (written, softmax read and
    written, two products that read them); the optimiser 34 bytes a parameter (value and both means read and
    written, the gradient written and read, the 16-bit copy written).
    """
    masked, tokens = count_masked(batch_size, length), batch_size * length
    hidden = config.hidden_size
    one, two = (step_cost(config, batch_size, length, predictions) for predictions in (1, 2))
    flops = 3 * (one.forward_flops + (masked / batch_size - 1) * (two.forward_flops - one.forward_flops))
    of_layer = (28 + 51) * hidden + 8 * (config.intermediate_size - 4 * hidden)
    numbers = tokens * ((config.num_hidden_layers - 1) * of_layer + (24 + 10) * hidden)
    numbers += (masked + batch_size) * (of_layer - 24 * hidden) + 5 * masked * config.vocab_size
    bytes_moved = 2 * numbers + 34 * one.parameter_bytes / 4
    return {"compute": flops / (tflops * 1e12), "memory": bytes_moved / (terabytes * 1e12)}


# -- Report -----------------------------------------------------------------------------------------


def section(cases: Mapping[str, Mapping[str, Any]], folder: Path) -> str:
    """A table for each case."""
    parts = [
        paragraph("""
            Forward, backward, clipping and AdamW in bfloat16 with parameters in float32, dropout 0.1, 15 % of
            the positions masked, V 30,522, no padding; the loss is read every 20 steps. Ours checks
            every batch on the host and copies it to the GPU, PyTorch's lies there already; PyTorch scores
            masked positions only, and has SDPA, autocast and the fused AdamW. Memory is what each one's
            allocator has taken from the GPU. The floor is the least time that a step could take: its
            products at the GPU's speed in bfloat16, or its reads and writes at the speed of its memory,
            whichever takes longer (counted in `benchmarks/parts/gpu_step.py`).""")
    ]
    for case, record in cases.items():
        tokens = record["batch"]["batch_size"] * record["batch"]["length"]
        least = max(record["floor"].values())
        rows = []
        for name, times in record["seconds"].items():
            median = spread(times).median
            memory = record["bytes"].get(name)
            rows.append(
                [
                    name,
                    milliseconds(spread(times)),
                    f"{tokens / median:,.0f}",
                    f"{least / median:.0%}" if name != ON_CPU else "",
                    f"{memory / 2**20:,.0f}" if memory is not None else "",
                    ratio(paired_ratio(times, record["seconds"][OURS])),
                ]
            )
        header = ["", "ms per step", "tokens/s", "floor / step", "MiB", "times ours"]
        by, rates = max(record["floor"], key=record["floor"].get), record["rates"]
        parts += [
            f"### {case}",
            table(header, rows),
            f"On {record['device']}; floor {1e3 * least:.2f} ms ({by}, at {rates['tflops']:g} TFLOP/s and "
            f"{rates['terabytes']:g} TB/s); "
            + ("ours was replayed." if record["replaying"] else "ours was NOT replayed."),
            missing_lines(record),
        ]
    return "\n\n".join(filter(None, parts))


def aims(cases: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str, str]]:
    """Of each case the ratio to the fastest PyTorch and the floor's share; once the ratio to the CPU."""
    rows = []
    for case, record in cases.items():
        seconds = record["seconds"]
        rate, share = AIMS.get(case, ("", ""))
        if best := fastest(seconds, pytorch_names(seconds), OURS):
            times = paired_ratio(seconds[best], seconds[OURS])
            rows.append((f"training step on a GPU, {case}: {best} / ours", rate, ratio(times)))
        least = max(record["floor"].values()) / spread(seconds[OURS]).median
        rows.append((f"training step on a GPU, {case}: floor / step", share, f"{least:.0%}"))
        if ON_CPU in seconds:
            times = paired_ratio(seconds[ON_CPU], seconds[OURS])
            rows.append((f"training step, {case}: CPU / GPU", "100", ratio(times)))
    return rows

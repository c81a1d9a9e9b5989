"""Inference with an encoder of MiniLM's size in float32: ours, PyTorch, ONNX Runtime."""

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import Race, Spread, take_turns
from benchmarks.parts.common import (
    HELD,
    KEEP_MEMORY,
    MINILM,
    OURS,
    against_ours,
    batch_shape,
    case_name,
    check_agreement,
    missing_lines,
    ours_here,
    outputs,
    pinned,
    pretrained_folder,
    pytorch_names,
    rows_beside_ours,
)
from benchmarks.results import paragraph, ratio, table
from minibert import BertModel

CASE = "L 6, H 384, A 12, F 1,536, V 30,522"
FREEZING = {"options": {"freezing": True, "max_autotune": True}}
PYTORCH = {"PyTorch, eager": None, "PyTorch, compiled": {}, "PyTorch, compiled, frozen weights": FREEZING}
ONNX = {"ONNX Runtime": "exported.onnx", "ONNX Runtime, its transformer optimiser": "fused.onnx"}


def add_options(parser: argparse.ArgumentParser) -> None:
    """None of its own."""


def measure(options: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    """One case."""
    shape = batch_shape(options)
    with (
        pretrained_folder(MINILM, BertModel) as folder,
        Race(options.threads, pinned(options)) as race,
    ):
        with Race(options.threads) as exporter:
            exporter.enter("export", "onnx_runtime:export", folder=folder, **shape)
            fused = exporter.ask("fused")
        for name, library in ours_here().items():
            race.enter(name, "ours:inference", folder=folder, products=library, **shape)
        for name, arguments in PYTORCH.items():
            if arguments is None or not options.quick:
                race.enter(name, "pytorch:inference", KEEP_MEMORY, folder=folder, compile=arguments, **shape)
        for name, file in ONNX.items():
            race.enter(
                name, "onnx_runtime:inference", folder=folder, file=file, threads=options.threads, **shape
            )
        race.missing |= exporter.missing
        race.warm_up("encode")
        found = outputs(race)
        differences = {name: float(np.abs(output - found[OURS]).max()) for name, output in found.items()}
        check_agreement(differences, tolerance=1e-4)
        seconds = take_turns(race.turns("encode"), rounds=options.rounds, seconds=options.seconds)
    yield (
        case_name(CASE, options),
        {
            "batch": shape,
            "seconds": seconds,
            "missing": race.missing,
            "differences": differences,
            "fused": fused,
        },
    )


def section(cases: Mapping[str, Mapping[str, Any]], folder: Path) -> str:
    """A table."""
    parts = []
    for case, record in cases.items():
        seconds, batch = record["seconds"], record["batch"]
        rows = [[*row, f"{record['differences'][row[0]]:.1e}"] for row in rows_beside_ours(seconds)]
        parts += [
            paragraph(f"""
                {case}, batch {batch["batch_size"]} × {batch["length"]}, the same random weights, no
                pooler, no padding; ours has an attention mask all the same. The last column is the
                largest difference from our output."""),
            "ONNX Runtime cannot be held to AVX2: it was free." if case.endswith(HELD) else "",
            table(["", "ms a batch (quartiles)", "times ours (quartiles)", "differs by"], rows),
            missing_lines(record),
        ]
    return "\n\n".join(filter(None, parts))


def comparable_onnx(case: str) -> list[str]:
    """ONNX Runtime's contenders, unless everybody else was held to AVX2: it cannot be."""
    return [] if case.endswith(HELD) else list(ONNX)


def aims(cases: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str, str]]:
    """Against the faster ONNX Runtime, and the fastest PyTorch."""
    rows = []
    for case, record in cases.items():
        seconds = record["seconds"]
        for least, names in (("1.0", comparable_onnx(case)), ("", pytorch_names(seconds))):
            if found := against_ours(seconds, names):
                best, ours, times = found
                rows.append((f"inference{case.removeprefix(CASE)}: {best} / {ours}", least, ratio(times)))
    return rows


def compared(cases: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, Spread]]:
    """What every processor is compared by: ONNX Runtime's and PyTorch's time over ours."""
    rows = []
    for case, record in cases.items():
        seconds = record["seconds"]
        for told, names in (
            ("ONNX Runtime", comparable_onnx(case)),
            ("the fastest PyTorch", pytorch_names(seconds)),
        ):
            if found := against_ours(seconds, names):
                rows.append((f"inference{case.removeprefix(CASE)}: {told} / ours", found[-1]))
    return rows

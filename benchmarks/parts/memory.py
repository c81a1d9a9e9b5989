"""The memory of a training step: the most that a process holds while it takes some."""

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.measure import Race
from benchmarks.parts.common import (
    HUGGING_FACE,
    OURS,
    add_presets,
    batch_shape,
    missing_lines,
    pretrained_folder,
    pytorch_modes,
    pytorch_names,
)
from benchmarks.results import paragraph, table
from minibert import BertConfig

PRESETS = ("tiny", "mini", "small")
STEPS = 5


def add_options(parser: argparse.ArgumentParser) -> None:
    """The sizes."""
    add_presets(parser)


def measure(options: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    """A case for each size, with a vocabulary of 8,192. The contenders run one after the other."""
    contenders = {OURS: ("ours:training_step", {}), HUGGING_FACE: ("hugging_face:training_step", {})}
    for name, arguments in pytorch_modes(options).items():
        contenders[name] = ("pytorch:training_step", {"compile": arguments})
    presets = options.presets or PRESETS
    for preset in presets[:1] if options.quick else presets:
        memory, missing = {}, {}
        with pretrained_folder(BertConfig.preset(preset, vocab_size=8192)) as folder:
            for name, (builder, more) in contenders.items():
                with Race(options.threads) as race:
                    race.enter(name, builder, folder=folder, **batch_shape(options), **more)
                    race.warm_up("step")
                    for worker in race.workers.values():
                        worker.start_working()
                    race.warm_up("step", STEPS)
                    memory |= {name: worker.memory() for name, worker in race.workers.items()}
                    missing |= race.missing
        yield preset, {"batch": batch_shape(options), "bytes": memory, "missing": missing}


def section(cases: Mapping[str, Mapping[str, Any]], folder: Path) -> str:
    """A table for each size."""
    parts = [
        paragraph(f"""
            Resident memory of the whole process, V 8,192: its peak during {STEPS} steps after the first
            three (what compiling and loading took is forgotten), and how much that is above what it was
            after the imports, before there was a model. glibc's settings are its own here, with which
            PyTorch takes less.""")
    ]
    for case, record in cases.items():
        rows = [
            [name, _mebibytes(memory["working"]), _mebibytes(_growth(memory)), _mebibytes(memory["peak"])]
            for name, memory in record["bytes"].items()
        ]
        header = ["", "peak in steps, MiB", "above imports, MiB", "peak of all, MiB"]
        parts += [
            f"### {case}, batch {record['batch']['batch_size']} × {record['batch']['length']}",
            table(header, rows),
            missing_lines(record),
        ]
    return "\n\n".join(filter(None, parts))


def aims(cases: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str, str]]:
    """Ours against the least that a PyTorch takes."""
    rows = []
    for case, record in cases.items():
        memory = record["bytes"]
        rivals = [memory[name] for name in pytorch_names(memory)]
        if not rivals:
            continue
        whole = memory[OURS]["working"] / min(rival["working"] for rival in rivals)
        growth = _growth(memory[OURS]) / min(map(_growth, rivals))
        told = f"{whole:.2f} (above imports: {growth:.2f})"
        rows.append((f"peak memory of a step, {case}: ours / least of PyTorch", "below 1.0", told))
    return rows


def _growth(memory: Mapping[str, int]) -> int:
    return memory["working"] - memory["imported"]


def _mebibytes(count: int) -> str:
    return f"{count / 2**20:,.0f}"

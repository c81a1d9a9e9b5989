"""The training step in bfloat16 on a CPU that has it: ours, and the fastest PyTorch under autocast."""

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.measure import Race, Spread, take_turns
from benchmarks.parts.common import (
    KEEP_MEMORY,
    OURS,
    add_presets,
    against_pytorch,
    batch_shape,
    check_agreement,
    missing_lines,
    pretrained_folder,
    pytorch_modes,
    rows_beside_ours,
)
from benchmarks.results import paragraph, ratio, table
from minibert import BertConfig
from minibert.products import BFLOAT16, NUMPY, ONEDNN, is_available

FLOAT32 = "minibert, float32"
AIM = 1.2  # PyTorch's time / ours


def add_options(parser: argparse.ArgumentParser) -> None:
    """The sizes."""
    add_presets(parser)


def measure(options: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    """A case per size."""
    if not is_available(BFLOAT16):
        print("skipped: there are no bfloat16 products here, or no oneDNN", flush=True)
        return
    for preset in (options.presets or ["tiny", "mini", "small"])[: 1 if options.quick else None]:
        config = BertConfig.preset(preset, vocab_size=8192)
        yield f"{preset}, V 8,192", _measure_case(config, options)


def _measure_case(config: BertConfig, options: argparse.Namespace) -> dict[str, Any]:
    shape = batch_shape(options)
    with pretrained_folder(config) as folder, Race(options.threads) as race:
        given = {"folder": folder, **shape}
        race.enter(OURS, "ours:training_step", products=BFLOAT16, **given)
        race.enter(FLOAT32, "ours:training_step", products=ONEDNN if is_available(ONEDNN) else NUMPY, **given)
        for name, arguments in pytorch_modes(options).items():
            race.enter(name, "pytorch:training_step", KEEP_MEMORY, compile=arguments, autocast=True, **given)
        losses = race.ask("loss")
        check_agreement(losses, tolerance=0.05)  # bfloat16 has three digits
        race.warm_up("step")
        seconds = take_turns(race.turns("step"), rounds=options.rounds, seconds=options.seconds)
        return {"batch": shape, "seconds": seconds, "missing": race.missing, "losses": losses}


# -- Report -----------------------------------------------------------------------------------------


def section(cases: Mapping[str, Mapping[str, Any]], folder: Path) -> str:
    """A table per size."""
    parts = [
        paragraph("""
            Forward, backward, gradient clipping and AdamW, as in the training step above. Ours rounds the
            factors of the linear maps' and the vocabulary's products to bfloat16 (`--precision bfloat16`
            on a CPU); everything else is in float32. PyTorch runs under `torch.autocast`.""")
    ]
    for case, record in cases.items():
        rows = rows_beside_ours(record["seconds"])
        parts.append(f"### {case}, batch {record['batch']['batch_size']} × {record['batch']['length']}")
        parts += [
            table(["", "ms per step (quartiles)", "times ours (quartiles)"], rows),
            missing_lines(record),
        ]
    return "\n\n".join(filter(None, parts))


def aims(cases: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str, str]]:
    """Per case, the time of the strongest PyTorch over ours."""
    return [
        (f"training step in bfloat16, {case}: {best} / {ours}", f"{AIM:.1f}", ratio(times))
        for case, (best, ours, times) in against_pytorch(cases).items()
    ]


def compared(cases: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, Spread]]:
    """What every processor is compared by."""
    return [
        (f"training step in bfloat16, {case}: the fastest PyTorch / ours", times)
        for case, (*_, times) in against_pytorch(cases).items()
    ]

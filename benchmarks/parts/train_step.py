"""The training step: ours, Hugging Face's, the fastest PyTorch, and the bare matrix products of the step."""

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.measure import Race, Spread, Turn, fastest, paired_ratio, spread, take_turns
from benchmarks.parts.common import (
    BLUE,
    GREY,
    HUGGING_FACE,
    KEEP_MEMORY,
    ORANGE,
    OURS,
    PRODUCTS,
    RED,
    add_presets,
    against_ours,
    against_pytorch,
    batch_shape,
    case_name,
    check_agreement,
    missing_lines,
    new_axes,
    ours_at_best,
    ours_here,
    pinned,
    pretrained_folder,
    pytorch_modes,
    pytorch_names,
    rows_beside_ours,
    save_figure,
)
from benchmarks.results import milliseconds, paragraph, ratio, share, table
from minibert import BertConfig

BARE = {name: name.replace(OURS, "bare products") for name in PRODUCTS}  # those of a step of ours
SHOWN = ("tiny, V 8,192", "mini, V 8,192", "small, V 8,192")  # in the picture
AIMS = {"tiny": (1.5, 0.7), "mini": (1.5, 0.8), "small": (1.2, 0.8)}  # PyTorch's time / ours, products / step


def add_options(parser: argparse.ArgumentParser) -> None:
    """The sizes."""
    add_presets(parser)
    parser.add_argument(
        "--vocabularies",
        nargs="+",
        type=int,
        default=(8192, 30522),
        metavar="V",
        help="sizes of the vocabulary (default: 8192 30522)",
    )


def measure(options: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    """A case for each pair of sizes."""
    presets, vocabularies = options.presets or list(AIMS), options.vocabularies
    for vocab_size in vocabularies[:1] if options.quick else vocabularies:
        for preset in presets[:1] if options.quick else presets:
            config = BertConfig.preset(preset, vocab_size=vocab_size)
            yield case_name(f"{preset}, V {vocab_size:,}", options), _measure_case(config, options)


def _measure_case(config: BertConfig, options: argparse.Namespace) -> dict[str, Any]:
    shape = batch_shape(options)
    with pretrained_folder(config) as folder, Race(options.threads, pinned(options)) as race:
        for name, library in ours_here().items():
            race.enter(name, "ours:step_and_products", folder=folder, products=library, **shape)
        race.enter(HUGGING_FACE, "hugging_face:training_step", folder=folder, **shape)
        for name, arguments in pytorch_modes(options).items():
            race.enter(name, "pytorch:training_step", KEEP_MEMORY, folder=folder, compile=arguments, **shape)
        losses = race.ask("loss")
        check_agreement(losses, tolerance=1e-4)
        race.warm_up("step")
        ours = race.workers[OURS]
        bare = [Turn(BARE[n], race.workers[n], "products") for n in BARE if n in race.workers]
        turns = [*race.turns("step"), *bare]
        seconds = take_turns(turns, rounds=options.rounds, seconds=options.seconds)
        return {
            "batch": shape,
            "seconds": seconds,
            "missing": race.missing,
            "losses": losses,
            "flops": ours.call("flops"),
            "blas": ours.call("blas"),
        }


# -- Report -----------------------------------------------------------------------------------------


def section(cases: Mapping[str, Mapping[str, Any]], folder: Path) -> str:
    """A table for each case, and a picture of all."""
    _plot(cases, folder / "train_step.png")
    parts = [
        paragraph("""
            Forward, backward, gradient clipping and AdamW, dropout 0.1, 15 % of the positions masked,
            no padding. All start from the same weights and, without dropout, have the same loss. The
            fast PyTorch model scores the vocabulary only at masked positions (Hugging Face's at all),
            makes q, k, v in one product, uses `scaled_dot_product_attention` without a mask and the
            fused AdamW, and glibc is told to keep freed memory. "Eager's random numbers" means that the
            compiled model draws dropout as the model that is not compiled does, which is faster
            (`fallback_random`); max-autotune does so, too. The bare products are all matrix
            products of our step and nothing else, timed in turn with it (those of attention are always
            NumPy's, as in the step). Every library chooses its own code for the
            processor, unless the title says otherwise. Ours and the fast PyTorch model compute the last
            layer only where a head reads it; in what was measured before 2026-11-28T23:00, they compute
            all of it."""),
        "![Seconds of a training step](train_step.png)",
    ]
    for case, record in cases.items():
        batch = record["batch"]
        parts.append(f"### {case}, batch {batch['batch_size']} × {batch['length']}")
        parts.append(_table(record))
        parts += [f"Our matrix products: {record['blas']}.", missing_lines(record)]
    return "\n\n".join(filter(None, parts))


def _table(record: Mapping[str, Any]) -> str:
    seconds = record["seconds"]
    bare = [name for name in BARE.values() if name in seconds]
    rows = rows_beside_ours({name: times for name, times in seconds.items() if name not in bare})
    for name in bare:
        products = spread(seconds[name])
        speed = record["flops"] / products.median / 1e9
        times = paired_ratio(seconds[name], seconds[OURS])
        rows.append([f"{name} ({speed:,.0f} GFLOP/s)", milliseconds(products), ratio(times)])
    return table(["", "ms per step (quartiles)", "times ours (quartiles)"], rows)


def _bare(seconds: Mapping[str, Any]) -> tuple[str, str]:
    """The bare products of ours at its best, or by NumPy if only those were measured; and that step."""
    best = ours_at_best(seconds)
    ours = best if BARE[best] in seconds else OURS
    return BARE[ours], ours


def _share(seconds: Mapping[str, Any]) -> Spread:
    """Of the bare products in the step."""
    products, ours = _bare(seconds)
    return paired_ratio(seconds[products], seconds[ours])


def aims(cases: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str, str]]:
    """Of each case the ratios to the strongest PyTorch and to Hugging Face, and the products' share."""
    rows = []
    for case, record in cases.items():
        seconds = record["seconds"]
        rate, least_share = AIMS.get(case.split(",")[0], (1.0, 0.8))
        for least, names in ((rate, pytorch_names(seconds)), (3.0, [HUGGING_FACE])):
            if found := against_ours(seconds, names):
                best, ours, times = found
                rows.append((f"training step, {case}: {best} / {ours}", f"{least:.1f}", ratio(times)))
        rows.append(
            (f"training step, {case}: bare products' share", f"{least_share:.0%}", share(_share(seconds)))
        )
    return rows


def compared(cases: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, Spread]]:
    """What every processor is compared by: the strongest PyTorch's time over ours."""
    return [
        (f"training step, {case}: the fastest PyTorch / ours", times)
        for case, (*_, times) in against_pytorch(cases).items()
    ]


def _plot(cases: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    """Bars for each size: the bare products, ours, the fastest PyTorch, Hugging Face."""
    usual = [case for case in cases if case in SHOWN]
    shown = {case: cases[case]["seconds"] for case in usual or list(cases)[:3]}
    figure, axes = new_axes(8, 0.8 + 1.1 * len(shown))
    for number, seconds in enumerate(shown.values()):
        for offset, (name, color) in enumerate(_bars(seconds)):
            times = paired_ratio(seconds[name], seconds[ours_at_best(seconds)]).median
            place = 5 * number + offset
            axes.barh(place, times, color=color)
            axes.annotate(
                f"{name}: {times:.2f}", (times, place), (4, 0), textcoords="offset points", va="center"
            )
    axes.set_yticks([5 * number + 1.5 for number in range(len(shown))], list(shown))
    axes.grid(visible=False, axis="y")
    axes.invert_yaxis()
    axes.margins(x=0.35, y=0.02)
    axes.set_xlim(left=0)
    axes.axvline(1.0, color=BLUE, linewidth=0.8, linestyle="--", zorder=0.5)
    axes.set_xlabel("time of a training step, as a multiple of ours (median of paired rounds)")
    save_figure(figure, path)


def _bars(seconds: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The four contenders that are drawn, and their colours."""
    bars = [(_bare(seconds)[0], GREY), (ours_at_best(seconds), BLUE)]
    if best := fastest(seconds, pytorch_names(seconds), ours_at_best(seconds)):
        bars.append((best, ORANGE))
    return [*bars, (HUGGING_FACE, RED)] if HUGGING_FACE in seconds else bars

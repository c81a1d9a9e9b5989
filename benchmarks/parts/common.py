"""What several parts need."""

import argparse
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.measure import AVX2, ContenderError, Race, Spread, Worker, fastest, paired_ratio, spread
from benchmarks.results import milliseconds, paragraph, ratio
from minibert import BertConfig, BertForPreTraining
from minibert.files import atomic_file
from minibert.folders.model import PretrainedModel
from minibert.products import MKL, NUMPY, ONEDNN, is_available

OURS, HUGGING_FACE, RUST = "minibert", "Hugging Face", "tokenizers (Rust)"
# Ours, and who computes its products. (The extras onednn and mkl bring the other two.)
PRODUCTS = {OURS: NUMPY, "minibert, oneDNN": ONEDNN, "minibert, MKL": MKL}

# Eager's random numbers cost less than those that the compiler makes by default.
EAGER_RANDOM = {"fallback_random": True}
PYTORCH: dict[str, dict[str, Any] | None] = {  # how the fast PyTorch model is compiled
    "PyTorch, eager": None,
    "PyTorch, compiled": {},
    "PyTorch, compiled, eager's random numbers": {"options": EAGER_RANDOM},
    "PyTorch, compiled, max-autotune": {"options": EAGER_RANDOM | {"max_autotune": True}},
}

# glibc keeps what was freed, instead of giving it back and fetching it anew for every large array. It makes
# PyTorch faster by up to a quarter.
KEEP_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40)}

TEXT = Path("../shared/data/wikipedia_en/enwiki_wikiextractor_0.txt.gz")
DATA = Path("../shared/data")
SENTENCES = {"SST-2": "sst2_glue/train.tsv", "STS-B": "stsb/stsb-en-train.csv"}  # their files in DATA
DOCUMENTATION = "documentation"  # sentences that are on every machine

# The sizes of all-MiniLM-L6-v2.
MINILM = BertConfig(
    num_hidden_layers=6, hidden_size=384, num_attention_heads=12, intermediate_size=1536, vocab_size=30522
)

# Colours of the pictures.
BLUE, RED, GREY, ORANGE = "#2c5d8a", "#c0392b", "#4d4d4d", "#e59866"


def named(text: str) -> tuple[str, str]:
    """NAME=FOLDER, or a folder, whose own name then serves → name and folder."""
    name, _, folder = text.rpartition("=")
    return name or Path(folder).name, folder


def add_presets(parser: argparse.ArgumentParser) -> None:
    """The flag that says which sizes of the model are measured; None for those that a part has chosen."""
    parser.add_argument("--presets", nargs="+", metavar="NAME", help="sizes of the model: tiny, mini, …")


def add_text(parser: argparse.ArgumentParser) -> None:
    """The flag that says which text is read."""
    parser.add_argument(
        "--text", type=Path, metavar="FILE", help=f"text, plain or .gz (default: {TEXT}, if it is there)"
    )


def find_text(options: argparse.Namespace) -> Path | None:
    """The text that was asked for, or the usual one; None, with a word about it, if that is not there."""
    if options.text is not None or TEXT.exists():
        return (options.text or TEXT).resolve()
    print(f"skipped: {TEXT} is not there; give another text with --text FILE", flush=True)
    return None


def add_data(parser: argparse.ArgumentParser) -> None:
    """The flag that says where the data sets are."""
    parser.add_argument(
        "--data",
        type=Path,
        default=DATA,
        metavar="FOLDER",
        help=f"has {' and '.join(SENTENCES)} (default: %(default)s)",
    )


def sentence_files(options: argparse.Namespace, sources: Iterable[str]) -> Iterator[tuple[str, str | None]]:
    """Those sources of sentences that are there, with their files; the documentation has None.

    Says which are not.
    """
    for source in sources:
        path = None if source == DOCUMENTATION else options.data / SENTENCES[source]
        if path is None or path.exists():
            yield source, path and str(path.resolve())
        else:
            print(f"skipped: {path} is not there", flush=True)


def batch_shape(options: argparse.Namespace) -> dict[str, int]:
    """B and S of a batch."""
    return {"batch_size": 4, "length": 32} if options.quick else {"batch_size": 32, "length": 128}


def pinned(options: argparse.Namespace) -> dict[str, str]:
    """The variables that hold every library to the instructions that were asked for, if they were."""
    return AVX2 if options.avx2 else {}


HELD = ", everybody on AVX2"  # at the end of a case's name


def case_name(name: str, options: argparse.Namespace) -> str:
    """The case's name, and whether everybody was held to AVX2."""
    return name + HELD if options.avx2 else name


def pytorch_modes(options: argparse.Namespace) -> dict[str, dict[str, Any] | None]:
    """How PyTorch is measured; compiling takes too long for a quick run."""
    return {name: arguments for name, arguments in PYTORCH.items() if arguments is None or not options.quick}


def pytorch_names(names: Mapping[str, Any]) -> list[str]:
    """Those of the names that are the fast PyTorch model's."""
    return [name for name in names if name.startswith("PyTorch")]


@contextmanager
def pretrained_folder(config: BertConfig, Model: type[PretrainedModel] = BertForPreTraining) -> Iterator[str]:
    """A temporary folder with a new model from seed 0, which all contenders start from."""
    with tempfile.TemporaryDirectory(prefix="minibert-benchmarks-") as folder:
        Model(config, seed=0).save_pretrained(folder)
        yield folder


def outputs(race: Race) -> dict[str, np.ndarray]:
    """The arrays that everyone's ``save`` writes."""
    with tempfile.TemporaryDirectory(prefix="minibert-benchmarks-") as folder:
        path = Path(folder) / "output.npy"

        def read(worker: Worker) -> np.ndarray:
            worker.call("save", path=str(path))
            return np.load(path)

        return race.for_everyone(read)


def check_agreement(values: Mapping[str, float], tolerance: float) -> None:
    """Raise ContenderError unless all are within ``tolerance`` of ours: they would not do the same work."""
    for name, value in values.items():
        if not abs(value - values[OURS]) <= tolerance:
            raise ContenderError(f"{name} computes {value}, but {OURS} {values[OURS]}: not the same work")


def ours_here() -> dict[str, str]:
    """Ours with each library that is installed here: its name, and that of the library."""
    return {name: library for name, library in PRODUCTS.items() if is_available(library)}


def ours_at_best(seconds: Mapping[str, Sequence[float]]) -> str:
    """Ours as a run chooses it: with another library than NumPy's where that was measured and is faster."""
    return fastest(seconds, list(PRODUCTS), OURS) or OURS


def against_ours(
    seconds: Mapping[str, Sequence[float]], names: Sequence[str]
) -> tuple[str, str, Spread] | None:
    """The fastest of these contenders (by its ratio to ours at its best), that one of ours, and the ratio.

    None if none of the contenders was measured.
    """
    ours = ours_at_best(seconds)
    best = fastest(seconds, names, ours)
    return (best, ours, paired_ratio(seconds[best], seconds[ours])) if best else None


def against_pytorch(cases: Mapping[str, Mapping[str, Any]]) -> dict[str, tuple[str, str, Spread]]:
    """:func:`against_ours` with the fast PyTorch model, of each case in which that was measured."""
    found = {case: against_ours(r["seconds"], pytorch_names(r["seconds"])) for case, r in cases.items()}
    return {case: each for case, each in found.items() if each}


def rows_beside_ours(seconds: Mapping[str, Sequence[float]]) -> list[list[str]]:
    """A row for each contender: its name, its time, and that by ours."""
    return [
        [name, milliseconds(spread(times)), ratio(paired_ratio(times, seconds[OURS]))]
        for name, times in seconds.items()
    ]


def describe_texts(case: str, record: Mapping[str, Any]) -> str:
    """The texts of a case, whose record has `texts.describe_lengths`, and which weights read them."""
    weights = f", {record['weights']} weights" if "weights" in record else ""
    return paragraph(f"""
        **{case}**{weights}: {record["texts"]:,} texts of {record["mean"]:.1f} tokens on average, the longest
        of {record["longest"]}.""")


def missing_lines(record: Mapping[str, Any]) -> str:
    """Who could not take part, and why."""
    return "\n".join(f"Left out: {name}: {reason}\n" for name, reason in record.get("missing", {}).items())


def new_axes(width: float, height: float, **keywords: Any) -> tuple[Figure, Axes]:
    """An empty picture in the style of the others; sizes in inches."""
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(**keywords)
    for each in figure.axes:
        each.spines[["top", "right"]].set_visible(False)
        each.grid(color="#e6e6e6", linewidth=0.6)
        each.set_axisbelow(True)
    return figure, axes


def save_figure(figure: Figure, path: Path) -> None:
    """Write a picture as PNG."""
    with atomic_file(path) as file:
        figure.savefig(file, format="png", dpi=150)

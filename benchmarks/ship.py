"""``python -m benchmarks.ship RUN``: makes a model of ``minibert/assets`` of a finished pre-training run.

The model in float16, its vocabulary, its learning curve, and its model card. Every measured number in that
comes from the model, from the run's own files, or from ``blimp.json``, which ``minibert evaluate`` leaves in
its folder. The rest is told in ``benchmarks/NAME.toml``, NAME being the run's, and which runs came before.
"""

import argparse
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.finetuning.figures import by_phenomenon, points
from benchmarks.pretraining import course, describe, milestones, read_run
from benchmarks.results import table
from minibert.assets import ASSETS
from minibert.bert import BertForPreTraining
from minibert.errors import UserError
from minibert.files import atomic_folder, read_json
from minibert.settings import read_settings
from minibert.tasks import export, fill_mask
from minibert.tasks.pretrained_card import write_pretrained_card
from minibert.tasks.pretraining_settings import PretrainSettings
from minibert.text import BertTokenizer

BLIMP = "blimp.json"  # in the folder of the run
LARGEST = 12_000_000  # bytes of the whole folder
PLACES = {"out": "runs", "prepared": "prepared", "device": "auto", "threads": None, "processes": None}


def main() -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ship", description=__doc__.split(": ")[1])
    parser.add_argument("run", type=Path, metavar="RUN", help="the run's folder, such as runs/mini")
    parser.add_argument("--assets", type=Path, default=ASSETS, metavar="FOLDER")
    options = parser.parse_args()
    try:
        folder = ship(options.run, options.assets)
    except UserError as error:
        print(f"benchmarks.ship: error: {error}", file=sys.stderr)
        return 2
    print(f"written to {folder}: {folder_size(folder):,} bytes")
    return 0


def ship(run: Path, assets: Path) -> Path:
    """Write the folder, and return it.

    Raises UserError if the run is not finished, was trained on other text than its card tells of, was not
    evaluated on minimal pairs, or has left too large a model.
    """
    record = read_run(run)
    settings = PretrainSettings.from_dict(record["settings"] | PLACES)
    about = read_settings(Path(__file__).with_name(f"{settings.name}.toml"))
    if sorted(settings.corpus) != about["corpus"]:
        read, told = (", ".join(sorted(corpus)) for corpus in (settings.corpus, about["corpus"]))
        raise UserError(f"{run} was trained on {read}; its model card tells of {told}")
    with atomic_folder(assets / settings.name) as folder:
        export(run / "final", folder, dtype="float16")
        shutil.copyfile(run / "loss.png", folder / "loss.png")
        curve = "![Loss of masked words during the training](loss.png)"
        write_pretrained_card(
            folder,
            settings,
            record["results"],
            data=about["data"],
            sections={
                "Before this run": "\n\n".join(runs_before(run, about)),
                "Course": "\n\n".join([curve, course(record), milestones(record)]),
                "Minimal pairs": minimal_pairs(run),
                "Examples": "\n".join(examples(folder, about["sentences"])),
                "Licence and attribution": about["licence_text"].strip(),
            },
            limits=about["limits"],
            licence=about["licence"],
        )
        if (size := folder_size(folder)) > LARGEST:
            raise UserError(
                f"{run}: its model takes {size:,} bytes, more than {LARGEST:,}; take a smaller one"
            )
    return assets / settings.name


def runs_before(run: Path, about: Mapping[str, Any]) -> Iterator[str]:
    """The paragraphs about the runs that this one goes on from, the first of them first."""
    yield about["before_text"].strip()
    for name in about["before"]:
        record = read_run(run.with_name(name))
        yield from (f"### {name}", *describe(record), course(record))


def minimal_pairs(run: Path) -> str:
    """How often the model finds the English one of two sentences likelier, by phenomenon."""
    evaluate = f"minibert evaluate --model {run}/final --recipe blimp --data BLiMP.zip --json {run / BLIMP}"
    measured = read_json(run / BLIMP, f"file of scores; make it with  {evaluate}")
    shares = {"all": (measured["scores"]["accuracy"], measured["examples"])}
    shares |= by_phenomenon(measured["details"])
    rows = [[name.replace("_", " "), f"{n:,}", points(share)] for name, (share, n) in shares.items()]
    told = (
        "Of each pair of [BLiMP](https://github.com/alexwarstadt/blimp) one sentence is grammatical, the "
        "other differs in one detail and is not. The model should find the first one likelier "
        "(`within_word_l2r`). "
        "Guessing would be right in 50 of 100."
    )
    return f"{told}\n\n{table(['phenomenon', 'pairs', 'correct, of 100'], rows)}"


def examples(folder: Path, sentences: Iterable[str]) -> Iterator[str]:
    """What the model guesses, a line a sentence."""
    model, tokenizer = BertForPreTraining.from_pretrained(folder), BertTokenizer.from_pretrained(folder)
    for sentence in sentences:
        (guesses,) = fill_mask(model, tokenizer, sentence)
        yield f"- {sentence} *{', '.join(f'{token} {probability:.0%}' for token, probability in guesses)}*"


def folder_size(folder: Path) -> int:
    """The bytes of all its files."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


if __name__ == "__main__":
    sys.exit(main())

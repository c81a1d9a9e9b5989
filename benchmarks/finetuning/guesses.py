"""``python -m benchmarks.finetuning.guesses NAME=MODEL …``: what models guess of hidden words."""

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

from benchmarks.parts.common import named
from minibert.bert import BertForMaskedLM
from minibert.errors import UserError
from minibert.files import write_json
from minibert.settings import read_settings
from minibert.tasks import fill_mask
from minibert.text import open_tokenizer
from minibert.variants import open_model

SENTENCES = Path(__file__).parent.with_name("mini.toml")  # those of the model card


def main() -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.finetuning.guesses", description=__doc__.split(": ")[1]
    )
    parser.add_argument("models", nargs="+", metavar="NAME=MODEL", help="a name, and the model's folder")
    parser.add_argument("--json", type=Path, required=True, metavar="FILE", help="where the guesses go")
    parser.add_argument("--limit", type=int, metavar="N", help="the first N sentences (default: all)")
    options = parser.parse_args()
    try:
        sentences = read_settings(SENTENCES)["sentences"][: options.limit]
        models = dict(map(named, options.models))
        guesses = {name: best_words(folder, sentences) for name, folder in models.items()}
        write_json(options.json, {"sentences": sentences, "guesses": guesses})
    except UserError as error:
        print(f"guesses: error: {error}", file=sys.stderr)
        return 2
    return 0


def best_words(folder: str, sentences: Iterable[str]) -> list[list[str]]:
    """The five likeliest words of each sentence's [MASK], the likeliest first."""
    model, tokenizer = open_model(BertForMaskedLM, folder), open_tokenizer(folder)
    return [[word for word, _ in fill_mask(model, tokenizer, sentence)[0]] for sentence in sentences]


if __name__ == "__main__":
    sys.exit(main())

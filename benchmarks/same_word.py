"""``python -m benchmarks.same_word MODEL …``: do a model's heads find a word of one text in the other?

To compare two texts, a model has to see which words both have. So this measures, over pairs of STS-B, how
much of its attention a word of the second text gives to the same word in the first, and to its own place.
"""

import argparse
import csv
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from minibert.bert import BertModel
from minibert.errors import UserError
from minibert.text import PretrainedTokenizer, open_tokenizer
from minibert.variants import open_model

PAIRS = 200
SHORTEST = 4  # letters: shorter words are in most sentences


class SameWord(NamedTuple):
    """Mean weights of attention over ``count`` words that stand once in each text of a pair."""

    other: np.ndarray  # (L, A), on the same word in the other text
    own: np.ndarray  # (L, A), on the word itself
    alike: float  # what each token gets where all get the same
    count: int


def main() -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.same_word", description=__doc__)
    parser.add_argument("models", nargs="+", metavar="MODEL", help="folders, or the name of a model")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), metavar="FOLDER")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", ".* does not use")  # heads are not looked at
    try:
        pairs = read_pairs(options.data / "stsb" / "stsb-en-dev.csv")
        for folder in options.models:
            found = same_word(open_model(BertModel, folder), open_tokenizer(folder), pairs)
            print(f"{folder}, {found.count} words; alike would be {found.alike:.2f}\n{described(found)}\n")
    except UserError as error:
        print(f"benchmarks.same_word: error: {error}", file=sys.stderr)
        return 2
    return 0


def read_pairs(path: Path) -> list[tuple[str, str]]:
    """The first pairs of a file of STS-B."""
    if not path.is_file():
        raise UserError(f"{path} does not exist; benchmarks/README.md says where it is from")
    with path.open(encoding="utf-8", newline="") as file:
        return [(row[0], row[1]) for row, _ in zip(csv.reader(file), range(PAIRS), strict=False)]


def same_word(model: BertModel, tokenizer: PretrainedTokenizer, pairs: Sequence[tuple[str, str]]) -> SameWord:
    """Look at all words of at least ``SHORTEST`` letters that are one token, and stand once in each text.

    Pairs that are too long for the model are left out.
    """
    heads = model.config.num_hidden_layers, model.config.num_attention_heads
    other, own, alike, count = np.zeros(heads), np.zeros(heads), 0.0, 0
    for first, second in pairs:
        batch = tokenizer([first], [second])
        ids, types = (np.array(batch[name][0]) for name in ("input_ids", "token_type_ids"))
        if len(ids) > model.config.longest_sequence:
            continue
        outputs, _ = model.forward(**batch, return_attentions=True)
        maps = np.stack([p[0] for p in outputs.attentions or ()])  # (L, A, S, S)
        for token in np.flatnonzero(types):
            (same,) = np.nonzero(ids == ids[token])
            name = tokenizer.tokens[ids[token]]
            if len(same) == 2 and types[same[0]] == 0 and name.isalpha() and len(name) >= SHORTEST:
                other += maps[:, :, token, same[0]]
                own += maps[:, :, token, token]
                alike += 1 / len(ids)
                count += 1
    if not count:
        raise UserError("no word stands once in each text of a pair")
    return SameWord(other / count, own / count, alike / count, count)


def described(found: SameWord) -> str:
    """A line for each layer, and in it for each head: the other's share, and its own."""
    return "\n".join(
        f"  layer {layer}: " + "  ".join(f"{a:.2f} (own {b:.2f})" for a, b in zip(other, own, strict=True))
        for layer, (other, own) in enumerate(zip(found.other, found.own, strict=True))
    )


if __name__ == "__main__":
    sys.exit(main())

"""``python -m benchmarks.finetuning.more_phrases FILE``: makes phrases of others, for a teacher to label.

A short phrase is often joined to another one. Then some words are hidden, and a masked language model draws
others in their place. Jiao et al. (TinyBERT, 2020, section 3.2) make more training data in a similar way.
"""

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from tqdm import tqdm

from minibert.bert import BertForMaskedLM
from minibert.data.randomness import generator
from minibert.data.tasks import ordered_batches, read_table, single_features
from minibert.errors import UserError, check_count
from minibert.files import check_writable, write_text
from minibert.nn import Context
from minibert.tasks.masked_words import masked_word_head
from minibert.text import PretrainedTokenizer, open_tokenizer
from minibert.variants import open_model

JOINS = (",", "and", "", ", but")
SHARES = (0.1, 0.25, 0.4)  # of the words, hidden in a phrase
MOST_WORDS = 50


def main() -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.finetuning.more_phrases", description=__doc__.split(": ")[1].split("\n")[0]
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="a table with phrases, as finetune reads it")
    parser.add_argument("--model", required=True, metavar="FOLDER", help="a masked language model")
    parser.add_argument("--count", type=int, default=200_000, metavar="N", help="(default: %(default)s)")
    parser.add_argument("--output", type=Path, required=True, metavar="FILE", help="text, a phrase per line")
    options = parser.parse_args()
    try:
        check_count("count", options.count)
        check_writable(options.output)
        model, tokenizer = open_model(BertForMaskedLM, options.model), open_tokenizer(options.model)
        phrases = [example.text.split()[:MOST_WORDS] for example in read_table(options.file, labelled=False)]
        made = list(more_phrases(model, tokenizer, phrases, options.count, generator("more phrases")))
        write_text(options.output, "".join(f"{phrase}\n" for phrase in dict.fromkeys(made)))
        print(f"{len(set(made)):,} different phrases of {len(made):,} in {options.output}")
    except UserError as error:
        print(f"more_phrases: error: {error}", file=sys.stderr)
        return 2
    return 0


def more_phrases(
    model: BertForMaskedLM,
    tokenizer: PretrainedTokenizer,
    phrases: Sequence[Sequence[str]],
    count: int,
    random: np.random.Generator,
) -> Iterator[str]:
    """So many new phrases, the longest first: each of the old ones is a list of its words."""
    words = np.array(tokenizer.tokens)
    replaceable = {word for word in tokenizer.tokens if word.isalpha()}  # words of one token
    never = np.array([word not in replaceable for word in words])
    drafts = [hide(join(phrases, random), replaceable, random, tokenizer) for _ in range(count)]
    features = single_features(
        [" ".join(draft) for draft in drafts], tokenizer, model.config.max_position_embeddings
    )
    model.eval()
    with tqdm(total=count, unit=" phrases", disable=None) as bar:
        for rows, batch in ordered_batches(features, None, tokenizer.pad_id):
            masks = batch["input_ids"] == tokenizer.mask_id  # (B, S)
            hidden = np.flatnonzero(masks)  # (N,)
            encoded, _ = model.bert.forward(**batch, context=Context(backward=False))
            logits, _ = masked_word_head(model).forward(encoded.last_hidden_state, hidden)  # (N, V)
            noise = random.gumbel(size=(len(hidden), len(words)))  # the largest sum draws from the softmax
            drawn = words[np.argmax(np.where(never, -np.inf, logits[:, : len(words)] + noise), axis=-1)]
            ends = np.cumsum(masks.sum(axis=1))
            for row, new in zip(rows, np.split(drawn, ends[:-1]), strict=True):
                yield fill(drafts[row], new, tokenizer)
            bar.update(len(rows))


def join(phrases: Sequence[Sequence[str]], random: np.random.Generator) -> list[str]:
    """A phrase, or two with something between them: the shorter the first, the more often."""
    first, second = (phrases[index] for index in random.integers(len(phrases), size=2))
    chance = 0.7 if len(first) < 6 else 0.3 if len(first) < 14 else 0.0
    if random.random() >= chance:
        return list(first)
    return [*first, *JOINS[random.integers(len(JOINS))].split(), *second]


def hide(
    words: Sequence[str], replaceable: set[str], random: np.random.Generator, tokenizer: PretrainedTokenizer
) -> list[str]:
    """The same words, of which some of the replaceable ones have become [MASK]."""
    share = SHARES[random.integers(len(SHARES))]
    mask = tokenizer.special_tokens["mask_token"]
    return [mask if word in replaceable and random.random() < share else word for word in words]


def fill(words: Sequence[str], new: Iterable[str], tokenizer: PretrainedTokenizer) -> str:
    """The phrase with new words for [MASK]; without those beyond the positions, which were cut off."""
    left, mask = iter(new), tokenizer.special_tokens["mask_token"]
    filled = (next(left, "") if word == mask else word for word in words)
    return " ".join(word for word in filled if word)


if __name__ == "__main__":
    sys.exit(main())

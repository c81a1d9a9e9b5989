"""``minibert fill-mask``."""

import argparse
import warnings
from typing import Any

from minibert.bert import BertForMaskedLM
from minibert.cli.flags import DEFAULT_MODEL, add_machine_flags, add_model_flag, chosen_device
from minibert.cli.parser import add_command
from minibert.tasks import fill_mask
from minibert.text import open_tokenizer
from minibert.variants import open_model


def add(commands: Any) -> None:
    """Add the command and its flags."""
    parser = add_command(
        commands,
        "fill-mask",
        _run,
        "guess the words hidden by [MASK]",
        'minibert fill-mask "the capital of france is [MASK] ."',
        'minibert fill-mask --model runs/books/final --top-k 3 "it was a [MASK] and [MASK] night ."',
    )
    parser.add_argument("text", help="a text with one or more [MASK] (of a RoBERTa or an XLNet: <mask>)")
    add_model_flag(parser, "a pretrained model")
    parser.add_argument(
        "--top-k", type=int, default=5, metavar="N", help="guesses per [MASK] (default: %(default)s)"
    )
    add_machine_flags(parser)


def _run(flags: argparse.Namespace) -> None:
    warnings.filterwarnings("ignore", ".* does not use")  # an unused pooler is nothing to warn about
    model = open_model(BertForMaskedLM, flags.model, device=chosen_device(flags), complete=True)
    tokenizer = open_tokenizer(flags.model)
    print(f"model: {flags.model}" + ", which comes with minibert" * (flags.model == DEFAULT_MODEL))
    for guesses in fill_mask(model, tokenizer, flags.text, top_k=flags.top_k):
        print(tokenizer.special_tokens["mask_token"])
        for token, probability in guesses:
            print(f"  {probability:7.2%}  {token}")

"""``python -m benchmarks.finetuning.untrained MODEL``: saves a model of its sizes with random weights."""

import argparse
import sys
from pathlib import Path

from minibert import BertConfig, BertForPreTraining, BertTokenizer
from minibert.errors import UserError


def main() -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.finetuning.untrained", description=__doc__.split(": ")[1]
    )
    parser.add_argument("model", metavar="MODEL", help="folder whose sizes and vocabulary it takes over")
    parser.add_argument("--output", type=Path, required=True, metavar="FOLDER", help="where the new one goes")
    parser.add_argument("--seed", type=int, default=0, help="of its weights (default: %(default)s)")
    options = parser.parse_args()
    try:
        model = BertForPreTraining(BertConfig.from_pretrained(options.model), seed=options.seed)
        model.save_pretrained(options.output)
        BertTokenizer.from_pretrained(options.model).save_pretrained(options.output)
    except UserError as error:
        print(f"untrained: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

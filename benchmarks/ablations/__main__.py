"""``python -m benchmarks.ablations PART …``: measure one part, and write the page anew. See ``--help``."""

import argparse
import importlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.__main__ import RESULTS, positive
from benchmarks.ablations.experiments import groups
from benchmarks.results import Results, describe_origins, paragraph, usable_cores
from minibert.cli.parser import Parser
from minibert.errors import UserError
from minibert.threads import set_threads

MODULES = ["layers", "word_vectors"]  # besides the groups of experiments
PROGRAM = "benchmarks.ablations"
LIMITS = """\
## What this scale cannot show

BERT read 3.3 billion words some 40 times. The BERTs and their descendants that were pre-trained for this
page (not MiniLM, nor the second mini, which came with the package before the present one) have read 1.6 to
4.4 million tokens once. They know which words are frequent and which stand beside each other, and little
more.

- Minimal pairs (BLiMP) are near 50 %, which is chance. So a difference of a point there says nothing.
- Most of SST-2 can be answered from single words, so a model that knows no more than these does well.
- Names (WNUT-17) are too rare to be learned from so little text: every score of these models is below 5 %.
- The next sentence takes a share of every step, from the first one on. What it gives may come only after
  these runs have ended.
- All sizes have read equally much. A large model is worth more only with more text.
- All are fine-tuned in the same way. None has the learning rate that would be best for it.

Three seeds tell apart what is further apart than about two standard deviations. The rest is not decided.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line; return the exit code."""
    parts: dict[str, Any] = {name: importlib.import_module(f"{PROGRAM}.{name}") for name in MODULES}
    parts |= groups()
    try:
        options = parse(parts, arguments)
        set_threads(options.threads)
        results = Results(options.results, "ablations", PROGRAM)
        if options.part != "report":
            for case, record in parts[options.part].measure(options):
                results.save(options.part, case, record, options.threads)
        print(f"written: {write_page(parts, results)}")
    except UserError as error:
        print(f"{PROGRAM}: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{PROGRAM}: interrupted; cases that have ended are kept", file=sys.stderr)
        return 130
    return 0


def parse(parts: Mapping[str, Any], arguments: Sequence[str] | None) -> argparse.Namespace:
    """The flags of one part."""
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--quick", action="store_true", help="see that it works: no figure means anything")
    common.add_argument("--threads", type=positive, default=usable_cores(), help="default: the cores")
    common.add_argument(
        "--results", type=Path, metavar="FOLDER", help="where to write (default: benchmarks/results)"
    )
    parser = Parser(prog=f"python -m {PROGRAM}", description="What a decision is worth.")
    commands = parser.add_subparsers(dest="part", required=True, metavar="PART")
    for name, part in parts.items():
        about = (part.__doc__ or "").strip()
        part.add_options(commands.add_parser(name, parents=[common], help=about, description=about))
    commands.add_parser("report", parents=[common], help="write the page anew from what was measured")
    options = parser.parse_args(arguments)
    options.results = options.results or (RESULTS / "quick" if options.quick else RESULTS)
    return options


def write_page(parts: Mapping[str, Any], results: Results) -> Path:
    """The page of everything that was ever measured."""
    sections = [paragraph(f"Written by `python -m {PROGRAM}`; all figures are in `{results.path.name}`.")]
    for name, part in parts.items():
        if cases := results.parts.get(name):
            title = f"## {(part.__doc__ or '').strip().removesuffix('.')}"
            sections += [title, part.section(cases, results.folder), describe_origins(cases)]
    return results.write_report("Ablations", [*sections, LIMITS.strip()])


if __name__ == "__main__":
    sys.exit(main())

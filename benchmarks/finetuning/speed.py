"""``python -m benchmarks.finetuning.speed DATA MODEL …``: speed of fine-tuned models, in turn."""

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from minibert.errors import UserError
from minibert.files import write_json
from minibert.tasks.registry import open_task

ROUNDS = 5
BATCH_SIZE = 32


def main() -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.finetuning.speed", description=__doc__.split(": ")[1]
    )
    parser.add_argument("data", type=Path, metavar="DATA", help="file of SST-2")
    parser.add_argument("models", type=Path, nargs="+", metavar="MODEL", help="their folders")
    parser.add_argument("--json", type=Path, required=True, metavar="FILE", help="where the figures go")
    options = parser.parse_args()
    try:
        figures = measure(options.models, options.data)
    except UserError as error:
        print(f"speed: error: {error}", file=sys.stderr)
        return 2
    write_json(options.json, figures)
    return 0


def measure(folders: Sequence[Path], data: Path) -> dict[str, list[float]]:
    """For each model its parameters, the bytes of its weights, and the median of sentences a second."""
    opened = [open_task(folder) for folder in folders]
    texts = [task.read(data) for task, _ in opened]
    seconds: list[list[float]] = [[] for _ in opened]
    for _ in range(ROUNDS + 1):
        for (task, model), examples, taken in zip(opened, texts, seconds, strict=True):
            start = time.perf_counter()
            task.predict(model, examples, BATCH_SIZE)
            taken.append(time.perf_counter() - start)
    return {
        "parameters": [sum(p.size for _, p in model.named_parameters()) for _, model in opened],
        "bytes": [(folder / "model.safetensors").stat().st_size for folder in folders],
        "sentences_per_second": [
            len(examples) / statistics.median(taken[1:])  # the first round warms up
            for examples, taken in zip(texts, seconds, strict=True)
        ],
    }


if __name__ == "__main__":
    sys.exit(main())

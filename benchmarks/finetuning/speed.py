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
    parser.add_argument("models", type=Path, nargs="+", metavar="MODEL", help="their folders, RUN/best")
    parser.add_argument("--json", type=Path, required=True, metavar="FILE", help="where the figures go")
    parser.add_argument("--limit", type=int, metavar="N", help="the first N sentences (default: all)")
    options = parser.parse_args()
    try:
        write_json(options.json, {"speeds": measure(options.models, options.data, options.limit)})
    except UserError as error:
        print(f"speed: error: {error}", file=sys.stderr)
        return 2
    return 0


def measure(folders: Sequence[Path], data: Path, limit: int | None = None) -> dict[str, dict[str, float]]:
    """Of each run its model's parameters, the bytes of the weights, and sentences per second.

    That includes tokenizing, and is the median of several rounds, in which the models take turns.
    """
    models = {folder: open_task(folder) for folder in folders}
    examples = {folder: task.read(data)[:limit] for folder, (task, _) in models.items()}
    seconds: dict[Path, list[float]] = {folder: [] for folder in folders}
    for _ in range(1 + ROUNDS):  # the first one is only for warming up
        for folder, (task, model) in models.items():
            start = time.perf_counter()
            task.predict(model, examples[folder], BATCH_SIZE)
            seconds[folder].append(time.perf_counter() - start)
    return {
        folder.parent.name: {
            "parameters": sum(parameter.size for _, parameter in model.named_parameters()),
            "bytes": (folder / "model.safetensors").stat().st_size,
            "sentences_per_second": len(examples[folder]) / statistics.median(seconds[folder][1:]),
        }
        for folder, (_, model) in models.items()
    }


if __name__ == "__main__":
    sys.exit(main())

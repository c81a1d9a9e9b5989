"""Write the golden files: what transformers computes, in float64, for the cases in ``cases.GOLDEN_CASES``.

    pip install -e . -r tests/parity/requirements.txt
    PYTHONPATH=tests python tests/parity/make_golden.py

Weights and batches are not in the files: both sides draw them from the case's seed. When they are written
again, the last digits may differ.
"""

import torch
import transformers
from parity.cases import GOLDEN, GOLDEN_CASES, compact, draw_batch
from parity.reference import reference_model, reference_results
from safetensors.numpy import save_file


def main() -> None:
    """One file a case, and its size."""
    made_by = {"torch": torch.__version__, "transformers": transformers.__version__}
    for name, case in GOLDEN_CASES.items():
        results = reference_results(reference_model(case, "float64"), draw_batch(case))
        path = GOLDEN / f"{name}.safetensors"
        save_file({what: compact(array) for what, array in results.items()}, path, metadata=made_by)
        print(f"{path.name:36} {len(results):4} arrays {path.stat().st_size:8,} bytes")


if __name__ == "__main__":
    main()

"""Run a notebook from top to bottom, as Run All does."""

import os
import re
import time
from pathlib import Path

from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError
from nbformat import NotebookNode

# One thread for each notebook, as several run at the same time; sets are printed in the same order each time.
LIBRARIES = ("OPENBLAS", "OMP", "MKL", "NUMBA", "VECLIB_MAXIMUM")
ENVIRONMENT = {f"{library}_NUM_THREADS": "1" for library in LIBRARIES} | {"PYTHONHASHSEED": "0"}
CELL_SECONDS = 600  # a cell that takes longer hangs, even on a busy machine


def execute(notebook: NotebookNode, folder: Path) -> float:
    """Run all cells with ``folder`` as working directory, as JupyterLab would; return the seconds it took.

    The outputs go into the notebook. Raises RuntimeError at the first cell that fails or hangs.
    """
    os.environ.update(ENVIRONMENT)  # the kernel inherits it
    folder.mkdir(exist_ok=True)
    metadata = notebook.metadata.copy()
    client = NotebookClient(
        notebook,
        timeout=CELL_SECONDS,
        record_timing=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(folder)}},
        extra_arguments=["--log-level=ERROR"],  # it warns that it can be listened to on this machine
    )
    start = time.perf_counter()
    try:
        client.execute()
    except (CellExecutionError, CellTimeoutError) as error:
        without_colours = re.sub(r"\x1b\[[\d;]*m", "", str(error))
        raise RuntimeError(f"{folder.name}: {without_colours}") from None
    notebook.metadata = metadata  # the kernel adds the version of Python
    return time.perf_counter() - start

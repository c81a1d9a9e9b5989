"""Checkpoints: all that a run needs to go on, bit for bit, as if it had never stopped.

A checkpoint is a folder ``checkpoint-STEP``:

    model.safetensors, config.json, vocab.txt, …   a pretrained folder, which every command can read
    optimiser.safetensors                           the two means of every parameter
    state.json                                      the step, the position in the data, the machine and its
                                                    libraries, and a SHA-256 of every file, this one included

It appears under its name only when it is complete and on the disk.
"""

import hashlib
import importlib.metadata
import json
import platform
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import threadpoolctl

from minibert import __version__
from minibert.blas import opened
from minibert.devices import Device, describe_processor
from minibert.errors import UserError
from minibert.files import atomic_folder, read_json, write_json
from minibert.products import BFLOAT16, MKL, ONEDNN, products_library
from minibert.threads import get_threads
from minibert.train.optimiser import AdamW

PREFIX = "checkpoint-"


def save_checkpoint(
    run: Path, state: Mapping[str, Any], save_model: Callable[[Path], None], optimiser: AdamW, keep: int
) -> Path:
    """Write ``run/checkpoint-STEP``, then remove all but the newest ``keep`` checkpoints.

    ``state`` is what the run must remember, as JSON, including its "step"; ``save_model`` writes the
    pretrained folder.
    """
    folder = run / f"{PREFIX}{state['step']}"
    with atomic_folder(folder) as unfinished:
        save_model(unfinished)
        # bytes first, rather than save_file: a full disk is then an ordinary OSError
        (unfinished / "optimiser.safetensors").write_bytes(safetensors.numpy.save(optimiser.state_arrays()))
        written = sorted(file for file in unfinished.rglob("*") if file.is_file())
        files = {file.relative_to(unfinished).as_posix(): _digest(file) for file in written}
        environment = describe_environment(optimiser.device)
        state = {**state, "environment": environment, "files": files}
        write_json(unfinished / "state.json", {**state, "digest": _digest_of_state(state)})
    for old in list_checkpoints(run)[:-keep]:
        shutil.rmtree(old)
    return folder


def list_checkpoints(run: Path) -> list[Path]:
    """The checkpoints of a run, the oldest first."""
    folders = [folder for folder in run.glob(f"{PREFIX}*") if folder.name.removeprefix(PREFIX).isdecimal()]
    return sorted(folders, key=_step_of)


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose files have been checked, with its state."""

    folder: Path
    state: dict[str, Any]

    def optimiser_arrays(self) -> tuple[dict[str, np.ndarray], str]:
        """The arguments of ``AdamW.load_state_arrays``: the arrays, and the name of their file."""
        path = self.folder / "optimiser.safetensors"
        return safetensors.numpy.load_file(path), str(path)


def open_checkpoint(folder: Path) -> Checkpoint:
    """Read a checkpoint's state and check all its files.

    Raises UserError if one is missing or is not what was written, saying which and what to do.
    """
    try:
        state = read_json(folder / "state.json", "checkpoint's state")
        if not isinstance(state, dict) or state.pop("digest", None) != _digest_of_state(state):
            changed = ["state.json"]
        else:
            changed = [name for name, digest in state["files"].items() if _digest(folder / name) != digest]
    except (UserError, OSError) as error:
        raise UserError(f"{folder} is damaged ({error}); {_way_out(folder)}") from None
    if changed:
        raise UserError(
            f"{folder} is damaged ({', '.join(changed)} is not what was written); {_way_out(folder)}"
        )
    return Checkpoint(folder, state)


def describe_environment(device: Device) -> dict[str, Any]:
    """What the last bit of a result can depend on, besides the settings and the text."""
    blas = [pool for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"]
    if products_library() != MKL:  # it may have been opened to be timed; NumPy may have one of its own
        blas = [pool for pool in blas if pool["filepath"] not in opened]
    environment = {
        "minibert": __version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "numba": _version("numba"),  # without it the references compute
        "blas": sorted(
            f"{pool['internal_api']} {pool['version']} {pool.get('architecture', '')}".strip()
            for pool in blas
        ),
        "threads": get_threads(),
        "products": products_library(),
        "platform": f"{platform.system()} {platform.machine()}",
        "device": device.name,
        "processor": describe_processor(device),
    }
    if products_library() in (ONEDNN, BFLOAT16):
        environment["onednn"] = _version("onednn-cpu-gomp")
    if device.name != "cpu":
        environment["cupy"] = device.xp.__version__
    return environment


def describe_program() -> dict[str, str | None]:
    """What all ranks of a run must have alike: versions of what computes, and a hash of our own source."""
    package = Path(__file__).parents[1]
    sources = sorted(path for path in package.rglob("*") if path.suffix in (".py", ".cu", ".cuh"))
    digest = hashlib.sha256()
    for path in sources:
        digest.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes())
    return {
        "the version of Python": platform.python_version(),
        "the version of NumPy": np.__version__,
        "the version of Numba": _version("numba"),
        "the hash of minibert's source": digest.hexdigest()[:16],
    }


def _version(package: str) -> str | None:
    """The version of an installed package."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def environment_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What differs between two environments, one line each."""
    names = [*now, *(name for name in before if name not in now)]
    return [
        f"{name} was {before.get(name)}, is now {now.get(name)}"
        for name in names
        if before.get(name) != now.get(name)
    ]


def _way_out(folder: Path) -> str:
    older = [other for other in list_checkpoints(folder.parent) if _step_of(other) < _step_of(folder)]
    if older:
        return f"delete that folder and resume again, from {older[-1].name}"
    return "there is no older one: start the run again with --overwrite"


def _step_of(folder: Path) -> int:
    return int(folder.name.removeprefix(PREFIX))


def _digest_of_state(state: Mapping[str, Any]) -> str:
    """A SHA-256 of the content of ``state.json``, however it is laid out there."""
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

"""Models on disk: tensors under Hugging Face's names in ``model.safetensors``."""

from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from minibert.arrays import to_numpy
from minibert.errors import UserError
from minibert.files import atomic_file
from minibert.nn import Module

FILE_NAME = "model.safetensors"


def save_parameters(model: Module, folder: str | Path) -> None:
    """Write every parameter of a model to ``folder/model.safetensors``, atomically."""
    tensors = {name: np.ascontiguousarray(to_numpy(p.value)) for name, p in model.named_parameters()}
    with atomic_file(Path(folder) / FILE_NAME) as file:
        file.write(save(tensors, metadata={"format": "pt"}))


def load_parameters(model: Module, folder: str | Path) -> None:
    """Set every parameter of a model from ``folder/model.safetensors``; tensors it does not have are left.

    Raises UserError, before any parameter is changed, if the file is missing or damaged, or a tensor
    is missing or of another shape.
    """
    path = Path(folder) / FILE_NAME
    if not path.is_file():
        raise UserError(f"{path}: no such model file; give a folder with config.json and {FILE_NAME}")
    try:
        with safe_open(path, framework="numpy") as file:
            _set_parameters(model, path, file)
    except SafetensorError as error:
        raise UserError(
            f"{path}: damaged or not a safetensors file ({error}); fetch or save it again"
        ) from None


def _set_parameters(model: Module, path: Path, file: safe_open) -> None:
    parameters = dict(model.named_parameters())
    missing = sorted(parameters.keys() - set(file.keys()))
    if missing:
        raise UserError(f"{path}: {len(missing)} tensors are missing, the first is {missing[0]!r}")
    for name, parameter in parameters.items():
        shape = tuple(file.get_slice(name).get_shape())
        if shape != parameter.shape:
            raise UserError(
                f"{path}: tensor {name!r} has shape {shape}, the configuration expects {parameter.shape}"
            )
    for name, parameter in parameters.items():
        parameter.value[...] = model.device.asarray(file.get_tensor(name), dtype=model.dtype)

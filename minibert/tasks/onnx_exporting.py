"""Exporting a model to ONNX, the format in which other languages and runtimes read it."""

import os
from pathlib import Path
from typing import Any

import numpy as np

from minibert.arrays import to_numpy
from minibert.assets import model_folder
from minibert.errors import UserError
from minibert.files import atomic_folder, check_writable
from minibert.folders.model import PretrainedModel
from minibert.heads import SentenceEncoder
from minibert.heads.sentence import MODULES_FILE
from minibert.nn import Context
from minibert.tasks.onnx_graph import inputs_of, onnx_model
from minibert.text import PretrainedTokenizer, open_tokenizer
from minibert.variants import architectures, family

BESIDE = ("config.json", "tokenizer_config.json")  # among others, which depend on the tokenizer
SHAPES = ((1, 5), (3, 12), (2, 31))  # of the batches on which a file is checked
MOST_APART = 1e-4  # relative: beyond this the file computes something else


def export_onnx(folder: str | Path, output: str | Path) -> dict[str, float] | None:
    """Write the model in a folder, with its head, to an ONNX file; its configuration and tokenizer beside it.

    The graph reads batches of any size and length: see `onnx_model`. If ONNX Runtime is installed, the file
    is run beside the model on random batches with padding, before anything is written. Returns the relative
    difference of each output, by its norm, or None if there is no ONNX Runtime.

    Raises UserError if the package onnx is missing, for a model that has no graph, if a file that would be
    written exists already, and if the file does not compute what the model does.
    """
    try:
        import onnx
    except ImportError:
        raise UserError(
            'ONNX files are written with the package onnx; install it with  pip install "onnx>=1.16"'
        ) from None
    folder, output = model_folder(folder), Path(output)
    _check_free(output.parent, output.name, *BESIDE)
    check_writable(output)
    model, tokenizer = open_as_trained(folder), open_tokenizer(folder)
    tokenizer.check_size(model.config.vocab_size)
    made = onnx_model(model)
    onnx.checker.check_model(made)
    content = made.SerializeToString()
    differences = compare_with_runtime(model, tokenizer, content)
    if differences and not max(differences.values()) <= MOST_APART:
        raise UserError(
            f"the ONNX graph of {folder} differs from the model by {max(differences.values()):.1e}"
        )
    complete = output.parent / f".{output.name}.new"
    with atomic_folder(complete) as new:
        model.config.save_pretrained(new, architectures=[model.architecture or type(model).__name__])
        tokenizer.save_pretrained(new)
        (new / output.name).write_bytes(content)
        _check_free(output.parent, *(path.name for path in new.iterdir()))
    for path in complete.iterdir():
        os.replace(path, output.parent / path.name)
    complete.rmdir()
    return differences


def _check_free(folder: Path, *names: str) -> None:
    """Raise UserError if one of these files is in the folder already."""
    for name in names:
        if (folder / name).exists():
            raise UserError(
                f"{folder / name} exists already; write to a new folder, such as --onnx new/model.onnx"
            )


def open_as_trained(folder: Path) -> PretrainedModel:
    """The model in a folder, of the class that its files name. Raises UserError for one that is not known."""
    models = family(folder).models
    if (folder / MODULES_FILE).is_file():
        return models[SentenceEncoder].from_pretrained(folder)
    named = architectures(folder)
    for kind in models.values():
        if (kind.architecture or kind.__name__) in named:
            return kind.from_pretrained(folder, complete=True)
    names = ", ".join(kind.__name__ for kind in models.values())
    raise UserError(f"{folder}: config.json names the architectures {named}; expected one of {names}")


def compare_with_runtime(
    model: Any, tokenizer: PretrainedTokenizer, content: bytes
) -> dict[str, float] | None:
    """How far a file's outputs are from the model's; None without ONNX Runtime.

    For each output ‖theirs − ours‖ / ‖ours‖, over all `SHAPES` together: the scores of a single text may
    happen to be close to 0, where rounding errors are relatively large.
    """
    try:
        import onnxruntime
    except ImportError:
        return None
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    apart, size = np.zeros((2, len(names)))
    for number, shape in enumerate(SHAPES):
        batch = random_batch(model, tokenizer.pad_id, shape, seed=number)
        theirs = session.run(names, {name: batch[name] for name in inputs_of(model)})
        outputs, _ = model.forward(**batch, context=Context(padding=True))  # which the graph computes, too
        for i, (name, their) in enumerate(zip(names, theirs, strict=True)):
            our = to_numpy(getattr(outputs, name))
            if their.shape != our.shape:
                raise UserError(f"the graph's {name} has shape {their.shape}, the model's {our.shape}")
            apart[i] += np.square(their - our, dtype=float).sum()
            size[i] += np.square(our, dtype=float).sum()
    return dict(zip(names, np.sqrt(apart / size).tolist(), strict=True))


def random_batch(model: PretrainedModel, pad_id: int, shape: tuple[int, int], seed: int) -> dict[str, Any]:
    """Random ids (B, S) that fit the model, in rows of different lengths, padded on the right."""
    config, rng = model.config, np.random.default_rng(seed)
    rows, length = shape[0], min(shape[1], config.longest_sequence)
    real = np.arange(length) < np.sort(rng.integers(1, length + 1, (rows, 1)), axis=0)
    real[-1] = True
    ids = rng.integers(0, config.vocab_size, (rows, length))
    ids[ids == pad_id] = (pad_id + 1) % config.vocab_size
    types = rng.integers(0, config.type_vocab_size, (rows, length)) * real
    batch = {"input_ids": np.where(real, ids, pad_id), "attention_mask": real, "token_type_ids": types}
    return {name: array.astype(np.int64) for name, array in batch.items()}

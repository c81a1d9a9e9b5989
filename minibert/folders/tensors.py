"""Pretrained folders: the tensors that their files hold, and the parameters that they belong to."""

import sys
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from minibert.errors import UserError
from minibert.files import read_json
from minibert.folders.config import config_file
from minibert.folders.names import Names, name_in_file, name_in_model
from minibert.folders.stored import STORAGE, StoredTensor, list_names
from minibert.nn import Module, Parameter

# What may be missing from a file, each part as a whole; the model then initialises it.
HEADS: tuple[str, ...] = (
    *("pooler.", "cls.predictions.", "cls.seq_relationship.", "classifier.", "crf.", "qa_outputs."),
    *("pre_classifier.", "discriminator_predictions."),  # of DistilBERT and ELECTRA
)

# Second names of tensors that some files hold twice, or only under this name.
TIED = {
    "cls.predictions.decoder.weight": "embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}

# 0, 1, 2, … and 0, 0, 0, …, which old files hold although they are no parameters.
CONSTANTS = {"embeddings.position_ids", "embeddings.token_type_ids"}


@dataclass(frozen=True)
class Match:
    """Which tensor each parameter of a model is read from, and what had no counterpart."""

    sources: dict[str, StoredTensor]  # by the parameter's name
    missing: list[str]  # parameters without a tensor
    unexpected: list[str]  # tensors without a parameter, as the file names them


def match_tensors(model: Module, stored: dict[str, StoredTensor], folder: Path, renamed: Names = ()) -> Match:
    """Find the tensor of every parameter. The model need not have any memory yet.

    ``renamed`` are names that differ in the files and in the model (``names.py``).
    Names may start with ``bert.`` or not, and LayerNorm's γ and β may be called ``gamma`` and ``beta``.
    Raises UserError, naming the tensors, if a tensor of the encoder or part of a head is missing, if one has
    the wrong shape or is not of a floating-point type, if two are the same parameter, or if the decoder of
    masked words is not tied to the word embeddings.
    """
    tensors = _by_common_name(stored, folder, renamed)
    has_own_decoder = "cls.predictions.decoder.weight" in tensors
    parameters = {_common_name(name): (name, parameter) for name, parameter in model.named_parameters()}
    for second, first in TIED.items():
        if second in tensors and first not in tensors:
            tensors[first] = tensors.pop(second)
    missing = parameters.keys() - tensors.keys()
    in_files = {key: name_in_file(name, renamed) for key, (name, _) in parameters.items()}
    _check_missing(in_files, missing, folder)
    for key, (_, parameter) in parameters.items():
        if key in tensors:
            _check_tensor(tensors[key], parameter)
    has_decoder = "cls.predictions.bias" in parameters.keys() - missing
    if has_decoder and not has_own_decoder:
        _check_tied(folder)
    for second, first in TIED.items():
        if has_decoder and second in tensors:
            _check_equal(tensors.pop(second), tensors[first])
    return Match(
        {name: tensors[key] for key, (name, _) in parameters.items() if key in tensors},
        [name for key, (name, _) in parameters.items() if key in missing],
        [tensor.name for key, tensor in tensors.items() if key not in parameters and key not in CONSTANTS],
    )


def without_constants(stored: dict[str, StoredTensor], renamed: Names = ()) -> dict[str, StoredTensor]:
    """The tensors without `CONSTANTS`."""
    return {name: tensor for name, tensor in stored.items() if _common_name(name, renamed) not in CONSTANTS}


def without_heads(stored: dict[str, StoredTensor], renamed: Names = ()) -> dict[str, StoredTensor]:
    """Only the tensors of the encoder and its pooler."""
    heads = tuple(head for head in HEADS if head != "pooler.")
    return {
        name: tensor for name, tensor in stored.items() if not _common_name(name, renamed).startswith(heads)
    }


def _common_name(name: str, renamed: Names = ()) -> str:
    """The name that a tensor has in all layouts: BERT's, no ``bert.``, no ``gamma`` or ``beta``."""
    name = name_in_model(name, renamed).removeprefix("bert.")
    for old, new in (("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias")):
        if name.endswith(old):
            name = name.removesuffix(old) + new
    return name


def _by_common_name(
    stored: dict[str, StoredTensor], folder: Path, renamed: Names = ()
) -> dict[str, StoredTensor]:
    tensors: dict[str, StoredTensor] = {}
    for name, tensor in stored.items():
        other = tensors.setdefault(_common_name(name, renamed), tensor)
        if other is not tensor:
            names = list_names([name, other.name])
            raise UserError(f"{folder}: the tensors {names} are for the same parameter; remove one of them")
    return tensors


def _check_missing(names: dict[str, str], missing: Iterable[str], folder: Path) -> None:
    """Raise UserError unless the missing ones are whole heads. ``names``: common names → those in files."""
    fatal = set(missing)
    for head in HEADS:
        whole = {key for key in names if key.startswith(head)}
        if whole <= fatal:
            fatal -= whole
    if fatal:
        listed = list_names(names[key] for key in fatal)
        verb = "tensor is" if len(fatal) == 1 else "tensors are"
        in_layers = all(key.startswith("encoder.layer.") for key in fatal)
        doubt = "num_hidden_layers correct" if in_layers else "config.json that of these weights"
        raise UserError(f"{folder}: {len(fatal)} {verb} missing: {listed}; is {doubt}?")


def check_type(tensor: StoredTensor) -> None:
    """Raise UserError if the tensor does not hold floating-point numbers."""
    if tensor.dtype not in STORAGE:
        raise UserError(
            f"{tensor.file}: tensor {tensor.name!r} has type {tensor.dtype}, expected {', '.join(STORAGE)}"
        )


def _check_tensor(tensor: StoredTensor, parameter: Parameter) -> None:
    check_type(tensor)
    if tensor.shape != parameter.shape:
        raise UserError(
            f"{tensor.file}: tensor {tensor.name!r} has shape {tensor.shape}, the configuration expects "
            f"{parameter.shape}"
        )


def _check_equal(second: StoredTensor, first: StoredTensor) -> None:
    """Raise UserError if the decoder of masked words has a weight or bias of its own."""
    same = (second.dtype, second.shape) == (first.dtype, first.shape)
    if not same or second.read().tobytes() != first.read().tobytes():
        raise UserError(
            f"{second.file}: {second.name!r} differs from {first.name!r}; minibert always ties them "
            "(tie_word_embeddings), so a model with a decoder of its own cannot be read"
        )


def _check_tied(folder: Path) -> None:
    """Raise UserError if the configuration promises a decoder of its own, which the files do not have."""
    path = config_file(folder)
    if read_json(path, "model configuration").get("tie_word_embeddings") is False:
        raise UserError(
            f"{path}: tie_word_embeddings is false, but there is no tensor 'cls.predictions.decoder.weight'; "
            "if the decoder is tied to the word embeddings, set it to true"
        )


def encoder_tensors(
    stored: dict[str, StoredTensor], folder: Path, renamed: Names = ()
) -> dict[str, StoredTensor]:
    """The tensors of embeddings, layers and pooler, under the names that they have in a BertModel."""
    parts, named = ("embeddings.", "encoder.", "pooler."), _by_common_name(stored, folder, renamed)
    return {name: tensor for name, tensor in named.items() if name.startswith(parts)}


def load_tensors(model: Module, sources: dict[str, StoredTensor]) -> None:
    """Set parameters of an allocated model, each from its tensor, rounded once to the model's dtype.

    Warns of numbers that are NaN or infinite. Raises UserError for one that is too large for that dtype.
    """
    parameters, unusable = dict(model.named_parameters()), []
    for name, tensor in sources.items():
        try:
            with np.errstate(over="raise", invalid="ignore"):
                numbers = tensor.read().astype(model.dtype, copy=False)
        except FloatingPointError:
            raise UserError(
                f"{tensor.file}: tensor {tensor.name!r} has numbers too large for {model.dtype}; "
                "read it with dtype='float64'"
            ) from None
        if not np.isfinite(numbers).all():
            unusable.append(tensor)
        parameters[name].value[...] = model.device.asarray(numbers)
    if unusable:
        warnings.warn(
            f"{unusable[0].file} has numbers that are NaN or infinite, as after training that diverged: "
            f"{list_names(tensor.name for tensor in unusable)}",
            stacklevel=3,
        )
    model.buffers.round_operand()


def check_complete(match: Match, folder: Path, model: Module, renamed: Names = ()) -> None:
    """Raise UserError if a part of the model is missing from the files."""
    if match.missing:
        configs = sorted(folder.glob("*/config.json"))  # such as that of ELECTRA's generator
        inside = [path.parent for path in configs if "model_type" in read_json(path, "configuration")]
        heads = _heads_among(match.missing, renamed)
        raise UserError(
            f"{folder} has no {heads}, which {type(model).__name__} needs; "
            + (f"is {inside[0]} meant?" if inside else "use another model, or train this one first")
        )


def report(
    match: Match, folder: Path, model_name: str, begins_with_new_head: bool, renamed: Names = ()
) -> None:
    """Report, in one line each, parameters that were missing and tensors that are not used.

    Each line is a warning. But a model for fine-tuning is expected to begin with a new head and to ignore
    other heads. For such a model, a line on stderr names the new heads, and unused heads are not reported.
    """
    missing, unexpected = [name_in_file(name, renamed) for name in match.missing], match.unexpected
    if begins_with_new_head:
        if missing:
            print(f"{folder}: {model_name} begins with a new {_heads_among(match.missing)}", file=sys.stderr)
        missing = []
        unexpected = [name for name in unexpected if not _common_name(name, renamed).startswith(HEADS)]
    for names, what in (
        (missing, f"has no tensors for these parameters of {model_name}, which are newly initialised"),
        (unexpected, f"has tensors that {model_name} does not use"),
    ):
        if names:
            warnings.warn(f"{folder} {what}: {list_names(names)}", stacklevel=3)


def _heads_among(names: Iterable[str], renamed: Names = ()) -> str:
    """The heads that parameters belong to, such as "pooler and classifier", as they are called in files."""
    found = []
    for name in names:
        in_file = name_in_file(name, renamed)
        number, head = next(pair for pair in enumerate(HEADS) if _common_name(name).startswith(pair[1]))
        found.append((number, head.removesuffix(".") if head in in_file else in_file.split(".")[0]))
    return " and ".join(dict.fromkeys(head for _, head in sorted(found)))

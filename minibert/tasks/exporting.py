"""Exporting a model: a copy of its folder, with the weights in another type or in other files."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from minibert.assets import model_folder
from minibert.bert import BertModel
from minibert.errors import UserError
from minibert.files import atomic_folder, read_json, read_text, write_json, write_text
from minibert.folders.config import NO_HEAD, config_file
from minibert.folders.names import name_in_file
from minibert.folders.shards import replacing_weights
from minibert.folders.stored import DTYPES, StoredTensor
from minibert.folders.tensors import check_type, encoder_tensors, without_constants
from minibert.folders.weights import INDEX_NAME, TORCH_NAME, open_weights
from minibert.heads.sentence import POOLING_FOLDER
from minibert.tasks.embed import LENGTH_FILE
from minibert.tasks.model_card import CARD, longest_input, parameters
from minibert.tasks.task import TASK_FILE
from minibert.variants import family, open_config
from minibert.variants.electra_training import GENERATOR

# Vocabulary, tokenizer, task, model card and its pictures.
COMPANIONS = (".txt", ".json", ".model", ".md", ".png")
# The configuration and an index of shards are made again; the state is a checkpoint's.
NOT_COMPANIONS = ("config.json", "bert_config.json", INDEX_NAME, f"{TORCH_NAME}.index.json", "state.json")

# Where a number of tokens stands that must not be larger than that of the positions.
LENGTHS = {
    TASK_FILE: "max_length",
    LENGTH_FILE: "max_seq_length",
    "tokenizer_config.json": "model_max_length",
}

POSITION_TABLE = "embeddings.position_embeddings.weight"


def export(
    folder: str | Path,
    output: str | Path,
    dtype: str | None = None,
    max_shard_size: int | str | None = None,
    encoder_only: bool = False,
    positions: int | None = None,
) -> None:
    """Write the model in a pretrained folder (of a run, fine-tuned, anybody's) to a new folder, ``output``.

    ``dtype`` and ``max_shard_size``: see ``save_pretrained``; by default the type stays as it is. With
    ``encoder_only`` the heads are left out, and with them what the model was fine-tuned for. ``positions`` is
    the number of positions of the new model: the first ones of the old model or, if it has fewer, all of them
    over and over. This is a better start for learning from longer sequences than new position embeddings are
    (Beltagy et al., 2020, section 5). XLNet has none; there it is the most tokens of a sequence. The new
    folder appears only once it is complete.

    A generator in the folder of an ELECTRA is exported with it.

    Raises UserError if there is no such model, if the output exists already, for an impossible number of
    positions, for a weight that is too large for the type, and for a tensor larger than a file may be.
    """
    folder, output = model_folder(folder), Path(output)
    parts = [Path()]
    if (folder / GENERATOR).is_dir() and not encoder_only:  # an ELECTRA that can be pre-trained further
        parts.append(Path(GENERATOR))
    copies = [_prepare(folder / part, dtype, encoder_only, positions) for part in parts]
    if output.is_file() or (output.is_dir() and any(output.iterdir())):
        raise UserError(f"{output} exists already; choose another --output")
    left_out = (*NOT_COMPANIONS, TASK_FILE, CARD) if encoder_only else NOT_COMPANIONS
    with atomic_folder(output) as unfinished:
        for part, (config, stored, before) in zip(parts, copies, strict=True):
            (unfinished / part).mkdir(exist_ok=True)
            _copy_companions(folder / part, unfinished / part, left_out)
            tensors = {name: tensor.read() for name, tensor in stored.items()}
            if positions is not None:
                count = _count(tensors)
                for name in [name for name in tensors if name.endswith(POSITION_TABLE)]:
                    tensors[name] = np.resize(tensors[name], (positions, tensors[name].shape[1]))  # repeats
                _fit_lengths(unfinished / part, before, positions)
                _fit_card(
                    unfinished / part / CARD,
                    {
                        longest_input(before): longest_input(positions),
                        parameters(count): parameters(_count(tensors)),
                    },
                )
            with replacing_weights(unfinished / part, tensors, config["dtype"], max_shard_size):
                write_json(unfinished / part / "config.json", config)


def _prepare(
    folder: Path, dtype: str | None, encoder_only: bool, positions: int | None
) -> tuple[dict[str, Any], dict[str, StoredTensor], int]:
    """The configuration of the new folder, the tensors that it takes from the old one, and a length.

    That is the longest sequence that the old model reads. No tensor is read.
    """
    stored = open_weights(folder)
    resized = {} if positions is None else {"max_position_embeddings": positions}
    members, old = family(folder), open_config(folder)
    if positions is not None and old.longest_sequence != old.max_position_embeddings:
        raise UserError(f"{folder}: the positions of a {members.config.model_type} cannot be changed")
    old.replace(**resized)  # raises for an impossible number
    if positions is not None and positions < 4:  # the least that a task reads, too
        raise UserError(
            f"{positions} positions have no room for two words between [CLS] and [SEP]; give at least 4"
        )
    in_file = {members.config.names_in_file.get(name, name): value for name, value in resized.items()}
    config = {"model_type": members.config.model_type} | read_json(config_file(folder)) | in_file
    encoder = members.models[BertModel]
    stored = without_constants(stored, encoder.tensor_names)
    if encoder_only:
        named = encoder_tensors(stored, folder, encoder.tensor_names).items()
        stored = {name_in_file(name, encoder.tensor_names): tensor for name, tensor in named}
        config["architectures"] = [encoder.__name__]
        for name in (*NO_HEAD, "label2id", "num_labels"):
            config.pop(name, None)
    for tensor in stored.values():
        check_type(tensor)
    types = {tensor.dtype for tensor in stored.values()}
    config.pop("torch_dtype", None)  # the same by its older name, of the old weights
    config["dtype"] = dtype or next(name for name, code in DTYPES.items() if code in types)  # the widest
    return config, stored, old.longest_sequence


def _copy_companions(folder: Path, output: Path, left_out: Sequence[str]) -> None:
    """Copy what a model's folder has besides the model, but not the files of these names."""
    for path in folder.iterdir():
        if path.is_file() and path.suffix in COMPANIONS and path.name not in left_out:
            shutil.copyfile(path, output / path.name)
    if (folder / POOLING_FOLDER).is_dir():
        shutil.copytree(folder / POOLING_FOLDER, output / POOLING_FOLDER)


def _fit_lengths(folder: Path, before: int, positions: int) -> None:
    """Lower the lengths in a folder's files to what a model with so many positions can read.

    What read as many tokens as the model did ``before`` also follows it to more.
    """
    for file, key in LENGTHS.items():
        values = read_json(folder / file) if (folder / file).is_file() else {}
        length = values.get(key) if isinstance(values, dict) else None
        if isinstance(length, int | float) and (length > positions or length == before):
            write_json(folder / file, values | {key: positions})


def _fit_card(card: Path, lines: Mapping[str, str]) -> None:
    """Replace these lines of a model card, if there is one."""
    if card.is_file():
        text = read_text(card, "model card")
        for old, new in lines.items():
            text = text.replace(old, new)
        write_text(card, text)


def _count(tensors: Mapping[str, np.ndarray]) -> int:
    return sum(tensor.size for tensor in tensors.values())

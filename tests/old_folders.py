"""Folders as one finds them, with the files that torch and TensorFlow wrote into tests/folders/golden."""

import json
import shutil
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

GOLDEN = Path(__file__).parent / "folders" / "golden"
LAYOUTS = {  # name in golden/ → name in a folder
    "zip": {"zip.bin": "pytorch_model.bin"},
    "sequence": {"sequence.bin": "pytorch_model.bin"},
    "checkpoint": {name: name for name in ("bert_model.ckpt.index", "bert_model.ckpt.data-00000-of-00001")},
}
SIZES = {"vocab_size": 7, "hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 2}
SIZES |= {"intermediate_size": 5, "max_position_embeddings": 6}
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b"]


def fill(folder: Path, layout: str) -> Path:
    """Make a folder of a layout, with a vocabulary and a configuration."""
    folder.mkdir(exist_ok=True)
    for name, in_folder in LAYOUTS[layout].items():
        shutil.copyfile(GOLDEN / name, folder / in_folder)
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    config_name = "bert_config.json" if layout == "checkpoint" else "config.json"
    (folder / config_name).write_text(json.dumps({"hidden_act": "gelu", "type_vocab_size": 2, **SIZES}))
    return folder


def golden_numbers() -> dict[str, np.ndarray]:
    """The parameters of the model that was saved, by name."""
    return load_file(GOLDEN / "model.safetensors")

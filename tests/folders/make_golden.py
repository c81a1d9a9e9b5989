"""Write tests/folders/golden: one small model, as torch and TensorFlow write it themselves.

    .venv-parity/bin/python tests/folders/make_golden.py torch
    python tests/folders/make_golden.py tensorflow    # where tensorflow-cpu and safetensors are installed

The numbers are those of ``model.safetensors`` there, which is written first if it is missing. Each program
adds what its files have beside the parameters: tied and transposed views, constants, an optimiser's state.
"""

import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

GOLDEN = Path(__file__).parent / "golden"
V, H, F, P = 7, 4, 5, 6  # vocabulary, hidden size, feed-forward size, positions

LAYER = {
    **{f"attention.self.{name}": (H, H) for name in ("query", "key", "value")},
    "attention.output.dense": (H, H),
    "intermediate.dense": (F, H),
    "output.dense": (H, F),
}


def draw() -> dict[str, np.ndarray]:
    """Random tensors for every parameter of a BertForPreTraining with one layer."""
    shapes: dict[str, tuple[int, ...]] = {
        "bert.embeddings.word_embeddings.weight": (V, H),
        "bert.embeddings.position_embeddings.weight": (P, H),
        "bert.embeddings.token_type_embeddings.weight": (2, H),
        "cls.predictions.bias": (V,),
    }
    linear = {f"bert.encoder.layer.0.{name}": shape for name, shape in LAYER.items()}
    linear |= {"bert.pooler.dense": (H, H), "cls.predictions.transform.dense": (H, H)}
    linear |= {"cls.seq_relationship": (2, H)}
    for name, (outputs, inputs) in linear.items():
        shapes |= {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}
    for owner in (
        "bert.embeddings",
        "bert.encoder.layer.0.attention.output",
        "bert.encoder.layer.0.output",
        "cls.predictions.transform",
    ):
        shapes |= {f"{owner}.LayerNorm.weight": (H,), f"{owner}.LayerNorm.bias": (H,)}
    rng = np.random.default_rng(0)
    return {name: rng.normal(size=shape).astype("float32") for name, shape in sorted(shapes.items())}


def write_torch(tensors: dict[str, np.ndarray]) -> None:
    """A file as since torch 1.6, with parameters, and one as before, with LayerNorm's old names."""
    import torch

    words, bias = "bert.embeddings.word_embeddings.weight", "cls.predictions.bias"
    state = {name: torch.nn.Parameter(torch.tensor(array)) for name, array in tensors.items()}
    state[words] = torch.nn.Parameter(torch.tensor(tensors[words].T.copy()).T)  # lies transposed
    state |= {"cls.predictions.decoder.weight": state[words], "cls.predictions.decoder.bias": state[bias]}
    state["bert.embeddings.position_ids"] = torch.arange(P).expand((1, -1))
    torch.save(state, GOLDEN / "zip.bin")
    rows = torch.cat([state[bias].detach(), torch.zeros(3)])  # a view of a longer storage
    old = {name: value.detach() for name, value in state.items() if "decoder" not in name}
    old |= {bias: rows[:V], "cls.predictions.decoder.weight": old[words]}
    for new, name in ((".LayerNorm.weight", ".LayerNorm.gamma"), (".LayerNorm.bias", ".LayerNorm.beta")):
        old = {key.replace(new, name): value for key, value in old.items()}
    torch.save(old, GOLDEN / "sequence.bin", _use_new_zipfile_serialization=False)


def variable(name: str) -> str:
    """What google-research/bert calls a parameter."""
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    old |= {"_embeddings.weight": "_embeddings", "predictions.bias": "predictions.output_bias"}
    old |= {
        "relationship.weight": "relationship.output_weights",
        "relationship.bias": "relationship.output_bias",
    }
    for ours, theirs in (old | {".weight": ".kernel", "layer.": "layer_"}).items():
        name = name.replace(ours, theirs)
    return name.replace(".", "/")


def write_tensorflow(tensors: dict[str, np.ndarray], prefix: Path = GOLDEN / "bert_model.ckpt") -> None:
    """A checkpoint with the variables of Adam and the number of the step."""
    import tensorflow as tf

    variables: dict[str, np.ndarray] = {"global_step": np.array(7)}
    for name, array in tensors.items():
        path = variable(name)
        variables[path] = array.T if path.endswith("kernel") else array
        variables |= {f"{path}/adam_m": np.zeros_like(array[:1]), f"{path}/adam_v": np.zeros_like(array[:1])}
    tf.raw_ops.SaveV2(
        prefix=str(prefix),
        tensor_names=list(variables),
        shape_and_slices=[""] * len(variables),
        tensors=[tf.constant(value) for value in variables.values()],
    )


if __name__ == "__main__":
    if not (GOLDEN / "model.safetensors").exists():
        save_file(draw(), GOLDEN / "model.safetensors")
    {"torch": write_torch, "tensorflow": write_tensorflow}[sys.argv[1]](
        load_file(GOLDEN / "model.safetensors")
    )

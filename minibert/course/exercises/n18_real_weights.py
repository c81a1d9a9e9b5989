"""18 Real weights: reading a file by hand, and from the names of the original checkpoints to today's."""

import json
import re

import numpy as np

from minibert.course.exercise import Trial, exercise
from minibert.gradcheck import Draws

# -- A file of weights, read by hand --------------------------------------------------------------------


def weights_file(tensors: dict[str, np.ndarray]) -> bytes:
    """The bytes of a safetensors file: the header's length, the header, the tensors one after another."""
    header: dict[str, dict] = {"__metadata__": {"format": "np"}}
    data = b""
    for name, tensor in tensors.items():
        kind = {2: "F16", 4: "F32", 8: "F64"}[tensor.itemsize]
        offsets = [len(data), len(data) + tensor.nbytes]
        header[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": offsets}
        data += tensor.tobytes()
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def _files(draw: Draws) -> list[Trial]:
    tensors = {
        "embeddings.weight": draw.normal(5, 3).astype("<f4"),
        "dense.weight": draw.normal(4, 2).astype("<f2"),
        "dense.bias": draw.normal(4).astype("<f4"),
    }
    raw = weights_file(tensors)
    return [Trial({"raw": raw, "name": name}, name, {"tensor": tensor}) for name, tensor in tensors.items()]


@exercise(
    "18",
    outputs="tensor",
    trials=_files,
    independent="as written",
    level=1,
    minutes=15,
    needs="section 2",
    bound=0.0,
    views=True,
    hints=(
        "The first 8 bytes are a whole number, least significant first: the length of the header, which is "
        "JSON.",
        "data_offsets count from the end of the header, not from the beginning of the file.",
        "N = int.from_bytes(raw[:8], 'little'); header = json.loads(raw[8 : 8 + N]); "
        "np.frombuffer(raw[8 + N + start : 8 + N + end], kind).reshape(shape).",
    ),
)
def read_tensor(raw, name):
    return _tensor(raw, name)


KINDS = {"F16": "<f2", "F32": "<f4", "F64": "<f8"}


def _tensor(raw, name, shift=0, kinds=KINDS, order="C"):
    """The tensor, with one thing done in another way."""
    N = int.from_bytes(raw[:8], "little")
    entry = json.loads(raw[8 : 8 + N])[name]
    start, end = (8 + N + offset + shift for offset in entry["data_offsets"])
    data = (raw + bytes(max(0, end - len(raw))))[max(start, 0) : end]
    return np.frombuffer(data, kinds[entry["dtype"]]).reshape(entry["shape"], order=order)


@read_tensor.mistake(
    "You count the offsets from the 8th byte. They count from the end of the header: add 8 + N."
)
def counted_from_the_header(raw, name):
    return _tensor(raw, name, shift=-int.from_bytes(raw[:8], "little"))


@read_tensor.mistake("You forget the 8 bytes before the header: the data begin at 8 + N.")
def eight_bytes_forgotten(raw, name):
    return _tensor(raw, name, shift=-8)


@read_tensor.mistake("The bytes of each number are in the wrong order. The format is little-endian: '<f4'.")
def big_endian(raw, name):
    return (
        _tensor(raw, name, kinds={"F16": ">f2", "F32": ">f4"}).astype(float).astype(_tensor(raw, name).dtype)
    )


@read_tensor.mistake("The numbers are in the wrong places: rows come one after another, order='C'.")
def column_after_column(raw, name):
    return np.ascontiguousarray(_tensor(raw, name, order="F"))


@read_tensor.mistake("The shape is missing: these are the right numbers in one long row. Reshape them.")
def without_the_shape(raw, name):
    return _tensor(raw, name).ravel()


# -- Sixteen bits of thirty-two -------------------------------------------------------------------------


def _numbers(draw: Draws) -> list[Trial]:
    ties = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x3F807FFF, 0xBF808000], np.uint32).view(np.float32)
    return [
        Trial({"x": draw.normal(6, 5).astype(np.float32)}, "random"),
        Trial({"x": ties}, "half way between two"),
        Trial({"x": (1e30 * draw.normal(8)).astype(np.float32)}, "large"),
    ]


@exercise(
    "18",
    outputs="rounded",
    trials=_numbers,
    level=2,
    minutes=15,
    needs="the bits of a float32: 1 sign, 8 exponent, 23 fraction",
    bound=0.0,
    hints=(
        "x.view(np.uint32) gives the bits as a whole number. bfloat16 keeps the upper 16 of the 32.",
        "Cutting rounds towards zero. To round to the nearest, add half of the last kept bit before you cut.",
        "bits + 0x7FFF + ((bits >> 16) & 1), then & 0xFFFF0000. The last term sends a tie to the even one.",
    ),
)
def to_bfloat16(x):
    bits = x.view(np.uint32)
    return _upper(bits + np.uint32(0x7FFF) + ((bits >> 16) & 1))


def _upper(bits):
    return (bits & np.uint32(0xFFFF0000)).view(np.float32)


@to_bfloat16.mistake("The lower bits are only cut off, which rounds towards zero. Round to the nearest.")
def cut_off(x):
    return _upper(x.view(np.uint32))


@to_bfloat16.mistake(
    "Nearly right, but you always round away from zero what lies half way between two. It goes to the one "
    "whose last kept bit is 0."
)
def ties_away_from_zero(x):
    return _upper(x.view(np.uint32) + np.uint32(0x8000))


@to_bfloat16.mistake("Ties go to the odd number here. They should go to the one whose last kept bit is 0.")
def ties_to_odd(x):
    bits = x.view(np.uint32)
    return _upper(bits + np.uint32(0x8000) - ((bits >> 16) & 1))


@to_bfloat16.mistake("This is float16: 10 bits and a small range. bfloat16 keeps the exponent of float32.")
def float16(x):
    with np.errstate(over="ignore"):
        return x.astype(np.float16).astype(np.float32)


@to_bfloat16.mistake("You always round up: add half of the last kept bit, not all of it.")
def always_up(x):
    return _upper(x.view(np.uint32) + np.uint32(0xFFFF))


# -- Old names -------------------------------------------------------------------------------------------

# Variables of google-research/bert's checkpoints; the last three are from old files of PyTorch.
NAMES = (
    "bert/embeddings/word_embeddings",
    "bert/embeddings/token_type_embeddings",
    "bert/embeddings/LayerNorm/gamma",
    "bert/encoder/layer_0/attention/self/query/kernel",
    "bert/encoder/layer_11/output/dense/bias",
    "bert/encoder/layer_3/attention/output/LayerNorm/beta",
    "bert/pooler/dense/kernel",
    "cls/predictions/output_bias",
    "cls/seq_relationship/output_weights",
    "bert.encoder.layer.10.output.LayerNorm.gamma",
    "bert.encoder.layer.1.intermediate.dense.weight",
    "bert.embeddings.position_embeddings.weight",
)

ENDINGS = {
    "LayerNorm.gamma": "LayerNorm.weight",
    "LayerNorm.beta": "LayerNorm.bias",
    "output_bias": "bias",
    "output_weights": "weight",
    "kernel": "weight",
    "_embeddings": "_embeddings.weight",
}


@exercise(
    "18",
    outputs="renamed",
    trials=lambda draw: [Trial({"old": old}, old) for old in NAMES],
    level=2,
    minutes=15,
    needs="section 3",
    hints=(
        "Compare an old name with `[name for name, _ in model.named_parameters()]`, piece by piece.",
        "Slashes become dots, layer_3 becomes layer.3, and the ending changes: gamma and beta, kernel, "
        "output_bias, output_weights; the tables have no ending. Which matrices does TensorFlow keep as "
        "(inputs, outputs)?",
        "name = old.replace('/', '.').replace('layer_', 'layer.'), then the endings. Only kernels are "
        "transposed: output_weights is (2, H) already.",
    ),
)
def rename(old):
    name = old.replace("/", ".").replace("layer_", "layer.")
    for ending, new in ENDINGS.items():
        if name.endswith(ending):
            name = name.removesuffix(ending) + new
    return name, old.endswith("kernel")


@rename.mistake(
    "You transpose both kernel and output_weights. Only a kernel is (inputs, outputs); "
    "output_weights is stored as (2, H), as here."
)
def output_weights_transposed(old):
    name, transposed = rename.solution(old)
    return name, transposed or old.endswith("output_weights")


@rename.mistake(
    "Nothing is transposed. TensorFlow's kernels are (inputs, outputs), ours are (outputs, inputs); for a "
    "square one no shape will tell you, and the model's answers are nonsense."
)
def nothing_transposed(old):
    return rename.solution(old)[0], False


@rename.mistake("The tables of embeddings need an ending, too: word_embeddings.weight.")
def tables_without_an_ending(old):
    name, transposed = rename.solution(old)
    return name.removesuffix(".weight") if old.endswith("_embeddings") else name, transposed


@rename.mistake("gamma and beta are still there: today they are called weight and bias.")
def gamma_and_beta_kept(old):
    name, transposed = rename.solution(old)
    if old.endswith(("gamma", "beta")):
        name = re.sub(r"\w+$", re.split("[/.]", old)[-1], name)
    return name, transposed


@rename.mistake(
    "gamma and beta are mixed up: y = γ x̂ + β, so gamma is the weight and beta the bias. The shapes are "
    "the same, so nothing complains."
)
def gamma_and_beta_mixed_up(old):
    other = {"gamma": "beta", "beta": "gamma"}
    return rename.solution(re.sub(r"(gamma|beta)$", lambda match: other[match[0]], old))


@rename.mistake(
    "The second digit of a layer's number is lost: layer_11 becomes layer.11. Only “layer_” is replaced."
)
def one_digit_of_the_layer(old):
    name, transposed = rename.solution(old)
    return re.sub(r"layer\.(\d)\d", r"layer.\1", name), transposed


@rename.mistake(
    "You transpose the tables, too. word_embeddings is (V, H) in both: a look-up takes a row by its id. Only "
    "kernels are the other way round."
)
def tables_transposed(old):
    name, transposed = rename.solution(old)
    return name, transposed or old.endswith("_embeddings")


@rename.mistake(
    "You decide by the new name what to transpose. But the weights of early PyTorch files are stored as "
    "here, and so are tables and output_weights: only a kernel is (inputs, outputs)."
)
def judged_by_the_new_name(old):
    name, _ = rename.solution(old)
    return name, name.endswith("weight") and "LayerNorm" not in name


@rename.mistake("output_bias and output_weights are still there: the heads call theirs bias and weight.")
def names_of_the_heads_kept(old):
    name, transposed = rename.solution(old)
    if old.endswith(("output_bias", "output_weights")):
        name = old.replace("/", ".")
    return name, transposed


@rename.mistake("Every underscore became a dot. Only that of layer_3 does: word_embeddings is one name.")
def every_underscore_a_dot(old):
    name, transposed = rename.solution(old)
    return name.replace("_", "."), transposed

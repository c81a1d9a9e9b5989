"""18 Real weights: from the names of the original checkpoints to today's."""

import re

from minibert.course.exercise import Trial, exercise

# Variables of google-research/bert's checkpoints; the last but one is from old files of PyTorch.
NAMES = (
    "bert/embeddings/word_embeddings",
    "bert/embeddings/LayerNorm/gamma",
    "bert/encoder/layer_0/attention/self/query/kernel",
    "bert/encoder/layer_11/output/dense/bias",
    "bert/encoder/layer_3/attention/output/LayerNorm/beta",
    "bert/pooler/dense/kernel",
    "cls/predictions/output_bias",
    "cls/seq_relationship/output_weights",
    "bert.encoder.layer.10.output.LayerNorm.gamma",
    "bert.encoder.layer.1.intermediate.dense.weight",
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
        "output_bias, output_weights, and the tables have none. Which matrices does TensorFlow keep as "
        "(inputs, outputs)?",
        "name = old.replace('/', '.').replace('layer_', 'layer.'), then the endings. Transposed are the "
        "kernels, and only they: output_weights is (2, H) already.",
    ),
)
def rename(old):
    name = old.replace("/", ".").replace("layer_", "layer.")
    for ending, new in ENDINGS.items():
        if name.endswith(ending):
            name = name.removesuffix(ending) + new
    return name, old.endswith("kernel")


@rename.mistake(
    "kernel and output_weights are both taken for transposed. Only a kernel is (inputs, outputs); "
    "output_weights is stored as (2, H), as here."
)
def output_weights_transposed(old):
    name, transposed = rename.solution(old)
    return name, transposed or old.endswith("output_weights")


@rename.mistake(
    "Nothing is transposed. TensorFlow's kernels are (inputs, outputs), ours are (outputs, inputs); for a "
    "square one no shape will tell you, and the model only talks nonsense."
)
def nothing_transposed(old):
    return rename.solution(old)[0], False


@rename.mistake("The tables of embeddings need an ending, too: word_embeddings.weight.")
def tables_without_an_ending(old):
    name, transposed = rename.solution(old)
    return name.replace("_embeddings.weight", "_embeddings"), transposed


@rename.mistake("gamma and beta are still there: today they are called weight and bias.")
def gamma_and_beta_kept(old):
    name, transposed = rename.solution(old)
    if old.endswith(("gamma", "beta")):
        name = re.sub(r"\w+$", old.split("/")[-1], name)
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
    "Tables are transposed, too. word_embeddings is (V, H) in both: a look-up takes a row by its id. Only "
    "kernels are the other way round."
)
def tables_transposed(old):
    name, transposed = rename.solution(old)
    return name, transposed or old.endswith("_embeddings")


@rename.mistake(
    "What is transposed is judged by the new name. Early PyTorch files say weight, too, stored as here, "
    "and so are tables and output_weights: only a kernel is (inputs, outputs)."
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

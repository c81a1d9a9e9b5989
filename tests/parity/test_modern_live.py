"""Pre-LN and rotary positions: each against transformers, and both against a plain loop in torch.

Models and batches are drawn afresh in each run; PARITY_SEED repeats one.
"""

import random

import numpy as np
import pytest
from parity.cases import Case, Draws, draw_batch, draw_weights, named_gradients
from parity.ours import our_results

from minibert import ops
from minibert.variants.modern import NORMALISATIONS, POSITIONS, ModernConfig, ModernModel

pytest.importorskip("torch", reason="compares with torch, which is not installed")
pytest.importorskip("transformers", reason="compares with transformers, which is not installed")
import torch
import transformers
from parity.reference import reference_results
from torch.nn import functional
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb as llama_rotary
from transformers.models.modernbert import modeling_modernbert as modernbert

# -- The operation ------------------------------------------------------------------------------------


@pytest.fixture
def shape(parity):
    """B, S, A, D."""
    rng = random.Random(parity.seed)
    return rng.randint(1, 4), rng.randint(1, 600), rng.randint(1, 5), 2 * rng.randint(1, 40)


def heads(qkv, shape):
    """(B, S, 3H) → q, k, v, each (B, A, S, D)."""
    batch, length, count, size = shape
    return list(np.moveaxis(qkv.reshape(batch, length, 3, count, size), [2, 3], [0, 2]))


def angles(shape):
    """cos and sin as transformers wants them: (1, S, D), in float64."""
    _, length, _, size = shape
    frequencies = 1.0 / 10000.0 ** (torch.arange(0, size, 2, dtype=torch.float64) / size)
    angle = torch.arange(length, dtype=torch.float64)[:, None] * frequencies
    both = torch.cat([angle, angle], dim=-1)[None]
    return both.cos(), both.sin()


@pytest.mark.parametrize(
    ("name", "theirs"), [("ModernBERT", modernbert.apply_rotary_pos_emb), ("Llama", llama_rotary)]
)
def test_the_rotary_embedding(name, theirs, shape, parity):
    """ModernBERT rounds q and k to float32 on the way, and their gradients. So the numbers are float32's."""
    draws = Draws(parity.seed)
    batch, length, count, size = shape
    qkv, dout = (draws.uniform(batch, length, 3 * count * size) for _ in range(2))  # 24 bits
    y, cache = ops.rotary_embedding(qkv, count)
    dqkv = ops.rotary_embedding_backward(dout, cache)

    q, k, _ = (torch.tensor(array, requires_grad=True) for array in heads(qkv, shape))
    turned = theirs(q, k, *angles(shape))
    torch.autograd.backward(turned, [torch.tensor(array) for array in heads(dout, shape)[:2]])
    where = f"rotary positions, {name}"
    for part, ours, expected, doubt in zip("qk", heads(y, shape), turned, (q, k), strict=False):
        parity.compare(where, {part: ours}, {part: expected.detach().numpy()}, 1e-12)
        gradient = {f"gradient {part}": heads(dqkv, shape)["qk".index(part)]}
        bound = 1e-6 if name == "ModernBERT" else 1e-12
        parity.compare(where, gradient, {f"gradient {part}": doubt.grad.numpy()}, bound)
    np.testing.assert_array_equal(heads(y, shape)[2], heads(qkv, shape)[2])


def test_the_angles_are_those_of_modernbert(shape, parity):
    """Its own table, which is in float32."""
    _, length, count, size = shape
    config = transformers.ModernBertConfig(hidden_size=count * size, num_attention_heads=count)
    config.rope_parameters = {
        kind: {"rope_type": "default", "rope_theta": 10000.0} for kind in set(config.layer_types)
    }
    table = modernbert.ModernBertRotaryEmbedding(config)
    cos, sin = table(torch.zeros(1, dtype=torch.float64), torch.arange(length)[None], config.layer_types[0])
    expected_cos, expected_sin = angles(shape)
    np.testing.assert_allclose(cos.numpy(), expected_cos.numpy(), rtol=0, atol=2e-4)
    np.testing.assert_allclose(sin.numpy(), expected_sin.numpy(), rtol=0, atol=2e-4)


# -- Models -------------------------------------------------------------------------------------------


def draw_case(parity, *what) -> Case:
    """This run's own sizes and batch. (If all words were the same one, no query would have a gradient.)"""
    rng = random.Random(f"{parity.seed} {what}")
    count, length = rng.randint(1, 5), rng.randint(10, 40)
    sizes = {
        "vocab_size": rng.randint(20, 500),
        "num_hidden_layers": rng.randint(1, 4),
        "hidden_size": count * 2 * rng.randint(2, 8),
        "num_attention_heads": count,
        "intermediate_size": rng.randint(8, 60),
        "max_position_embeddings": length + rng.randint(0, 9),
        "type_vocab_size": rng.randint(1, 3),
        "layer_norm_eps": 10.0 ** rng.randint(-12, -3),
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }
    case = Case("BertModel", rng.getrandbits(31), rng.randint(2, 5), length, "holes", sizes)
    print(f"PARITY_SEED={parity.seed}", case)
    return case


def our_model(case: Case, **options) -> ModernModel:
    model = ModernModel(ModernConfig(**case.config, **options), dtype="float64")
    parameters = dict(model.named_parameters())
    weights = draw_weights({name: parameter.shape for name, parameter in parameters.items()}, case.seed)
    for name, parameter in parameters.items():
        parameter.value[...] = weights[name]
    model.eval()
    return model


def turned(x):
    """x (B, S, A, D), its points as complex numbers times e^(i φ)."""
    half = x.shape[-1] // 2
    frequencies = 10000.0 ** -(torch.arange(half, dtype=torch.float64) / half)
    angle = torch.arange(x.shape[1])[:, None, None] * frequencies  # (S, 1, D/2)
    y = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat([y.real, y.imag], dim=-1)


def plain_loop(weights, config: ModernConfig, batch):
    """The last hidden state and the pooled vector, from the papers' equations."""

    def norm(x, name):
        x = functional.layer_norm(x, x.shape[-1:], eps=config.layer_norm_eps)
        return x * weights[f"{name}.LayerNorm.weight"] + weights[f"{name}.LayerNorm.bias"]

    def linear(x, name):
        return functional.linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"])

    def attention(x, name):
        q, k, v = (
            linear(x, f"{name}.{part}").unflatten(-1, (config.num_attention_heads, -1))
            for part in ("query", "key", "value")
        )  # (B, S, A, D)
        q, k = (turned(q), turned(k)) if config.positions == "rotary" else (q, k)
        y = functional.scaled_dot_product_attention(*(z.transpose(1, 2) for z in (q, k, v)), allowed)
        return y.transpose(1, 2).flatten(2)

    pre = config.normalisation == "pre"
    ids, types = (torch.tensor(batch[name]) for name in ("input_ids", "token_type_ids"))
    allowed = torch.tensor(batch["attention_mask"])[:, None, None, :] > 0
    x = weights["embeddings.word_embeddings.weight"][ids]
    x = x + weights["embeddings.token_type_embeddings.weight"][types]
    if config.positions == "learned":
        x = x + weights["embeddings.position_embeddings.weight"][: ids.shape[1]]
    x = norm(x, "embeddings")
    for number in range(config.num_hidden_layers):
        layer = f"encoder.layer.{number}"
        inside = norm(x, f"{layer}.attention.self") if pre else x
        x = x + linear(attention(inside, f"{layer}.attention.self"), f"{layer}.attention.output.dense")
        x = x if pre else norm(x, f"{layer}.attention.output")
        inside = norm(x, f"{layer}.intermediate") if pre else x
        wide = functional.gelu(linear(inside, f"{layer}.intermediate.dense"))
        x = x + linear(wide, f"{layer}.output.dense")
        x = x if pre else norm(x, f"{layer}.output")
    if pre:
        x = norm(x, f"{layer}.output")  # the LayerNorm after all layers
    return x, torch.tanh(linear(x[:, 0], "pooler.dense"))


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("normalisation", NORMALISATIONS)
def test_the_encoder_is_that_of_a_plain_loop(normalisation, positions, number, parity):
    case = draw_case(parity, normalisation, positions, number)
    ours = our_model(case, normalisation=normalisation, positions=positions)
    batch = draw_batch(case)
    results = our_results(ours, batch)
    weights = {
        name: torch.tensor(parameter.value, requires_grad=True) for name, parameter in ours.named_parameters()
    }
    hidden, pooled = plain_loop(weights, ours.config, batch)
    douts = [torch.tensor(batch[name]) for name in ("dlast_hidden_state", "dpooler_output")]
    torch.autograd.backward([hidden, pooled], douts)
    last = f"hidden_states {ours.config.num_hidden_layers}"
    expected = {last: hidden.detach().numpy(), "pooler_output": pooled.detach().numpy()}
    expected |= named_gradients(ours, {name: weight.grad.numpy() for name, weight in weights.items()})
    compared = {name: array for name, array in results.items() if name in expected}
    parity.compare(f"{normalisation}-LN, {positions} positions, a loop", compared, expected, 1e-10)


def their_model(kind: str, case: Case, values, **settings):
    config = getattr(transformers, f"{kind}Config")(
        **case.config | settings, attn_implementation="eager", pad_token_id=0
    )
    model = getattr(transformers, f"{kind}Model")(config).double().eval()
    with torch.no_grad():
        for name, value in values.items():
            model.get_parameter(name).copy_(torch.tensor(value))
    return model


@pytest.mark.parametrize("number", range(3))
def test_pre_ln_is_that_of_transformers(number, parity):
    """RobertaPreLayerNorm, whose first position is 1 where the padding id is 0."""
    case = draw_case(parity, "pre-LN", number)
    ours = our_model(case, positions="learned")
    last = f"encoder.layer.{case.config['num_hidden_layers'] - 1}.output.LayerNorm."

    def theirs(name):
        return name.replace(last, "LayerNorm.").replace(".self.LayerNorm.", ".LayerNorm.")

    values = {theirs(name): parameter.value for name, parameter in ours.named_parameters()}
    table = "embeddings.position_embeddings.weight"
    values[table] = np.concatenate([np.zeros_like(values[table][:1]), values[table]])
    more = {"max_position_embeddings": case.config["max_position_embeddings"] + 1}
    reference = their_model("RobertaPreLayerNorm", case, values, **more)
    batch = draw_batch(case)
    batch["input_ids"] = np.where(batch["attention_mask"], batch["input_ids"], 1)  # positions go on there
    expected = reference_results(reference, batch)
    expected[f"gradient {table}"] = expected[f"gradient {table}"][1:]
    results = {theirs(name): array for name, array in our_results(ours, batch).items()}
    parity.compare("pre-LN, RobertaPreLayerNorm", results, expected, 1e-10)


@pytest.mark.parametrize("number", range(3))
def test_rotary_positions_are_those_of_roformer(number, parity):
    """Whose pairs of features are neighbours: the rows of its queries and keys are in another order."""
    case = draw_case(parity, "rotary", number)
    ours = our_model(case, normalisation="post")
    hidden, count = case.config["hidden_size"], case.config["num_attention_heads"]
    order = np.arange(hidden).reshape(count, 2, -1).swapaxes(1, 2).reshape(-1)

    def reordered(name, array):
        return array[order] if ".self.query." in name or ".self.key." in name else array

    values = {
        name: reordered(name, parameter.value)
        for name, parameter in ours.named_parameters()
        if "pooler" not in name
    }
    reference = their_model("RoFormer", case, values)
    cos, sin = (array[0, :, : array.shape[-1] // 2] for array in angles((1, case.length, 1, hidden // count)))
    table = reference.encoder.embed_positions
    del table.weight  # a parameter that does not learn, in float32
    table.weight = torch.cat([sin, cos], dim=-1)
    batch = {name: array for name, array in draw_batch(case).items() if name != "dpooler_output"}
    expected = reference_results(reference, batch)
    results = {n: reordered(n, array) for n, array in our_results(ours, batch).items() if "pooler" not in n}
    parity.compare("rotary positions, RoFormer", results, expected, 1e-10)

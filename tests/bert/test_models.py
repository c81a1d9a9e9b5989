"""The models as things: names, layout, modes, accumulation, caches, mistakes in their use."""

import copy
import gc
import itertools
import weakref

import numpy as np
import pytest

from minibert.arrays import to_numpy
from minibert.bert import BertForMaskedLM, BertForNextSentencePrediction, BertForPreTraining, BertModel
from minibert.bert.encoder import BertLayer
from minibert.dropout_bits import dropout_stream
from minibert.errors import UserError
from minibert.nn import Context, Parameter
from minibert.nn.context import DropoutKeys
from minibert.ops import Cache

ENCODER_NAMES = [
    "embeddings.word_embeddings.weight",
    "embeddings.position_embeddings.weight",
    "embeddings.token_type_embeddings.weight",
    "embeddings.LayerNorm.weight",
    "embeddings.LayerNorm.bias",
    "encoder.layer.0.attention.self.query.weight",
    "encoder.layer.0.attention.self.query.bias",
    "encoder.layer.0.attention.self.key.weight",
    "encoder.layer.0.attention.self.key.bias",
    "encoder.layer.0.attention.self.value.weight",
    "encoder.layer.0.attention.self.value.bias",
    "encoder.layer.0.attention.output.dense.weight",
    "encoder.layer.0.attention.output.dense.bias",
    "encoder.layer.0.attention.output.LayerNorm.weight",
    "encoder.layer.0.attention.output.LayerNorm.bias",
    "encoder.layer.0.intermediate.dense.weight",
    "encoder.layer.0.intermediate.dense.bias",
    "encoder.layer.0.output.dense.weight",
    "encoder.layer.0.output.dense.bias",
    "encoder.layer.0.output.LayerNorm.weight",
    "encoder.layer.0.output.LayerNorm.bias",
]
POOLER_NAMES = ["pooler.dense.weight", "pooler.dense.bias"]
MASKED_LM_NAMES = [
    "cls.predictions.bias",
    "cls.predictions.transform.dense.weight",
    "cls.predictions.transform.dense.bias",
    "cls.predictions.transform.LayerNorm.weight",
    "cls.predictions.transform.LayerNorm.bias",
]
NEXT_SENTENCE_NAMES = ["cls.seq_relationship.weight", "cls.seq_relationship.bias"]


def with_prefix(names):
    return [f"bert.{name}" for name in names]


# -- Names and layout -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model_class", "names"),
    [
        (BertModel, ENCODER_NAMES + POOLER_NAMES),
        (BertForMaskedLM, with_prefix(ENCODER_NAMES) + MASKED_LM_NAMES),
        (
            BertForNextSentencePrediction,
            with_prefix(ENCODER_NAMES + POOLER_NAMES) + NEXT_SENTENCE_NAMES,
        ),
        (
            BertForPreTraining,
            with_prefix(ENCODER_NAMES + POOLER_NAMES) + MASKED_LM_NAMES + NEXT_SENTENCE_NAMES,
        ),
    ],
)
def test_names_are_those_of_hugging_face(config, model_class, names):
    model = model_class(config(num_hidden_layers=1))
    found = [name for name, _ in model.named_parameters()]
    assert sorted(found) == sorted(names)
    assert len(set(found)) == len(found)


def test_an_encoder_without_pooler(config, batch):
    model = BertModel(config(num_hidden_layers=1), add_pooling_layer=False)
    assert [name for name, _ in model.named_parameters()] == ENCODER_NAMES
    assert model.forward(**batch.encoder)[0].pooler_output is None


@pytest.mark.parametrize("sizes", [(12, 3), (5, 1), (16, 4)])
def test_query_key_and_value_are_one_matrix(config, device, sizes):
    """Also where H² or H are no multiples of 64 (or of 8): nothing lies between the three."""
    hidden, heads = sizes
    model = BertModel(config(hidden_size=hidden, num_attention_heads=heads), device=device, dtype="float64")
    for layer in model.encoder.layer:
        attention = layer.attention.self
        linears = (attention.query, attention.key, attention.value)
        for i, linear in enumerate(linears):
            linear.weight.value[...] = i + 1.0
            linear.bias.value[...] = i + 10.0
        expected = np.repeat([1.0, 2.0, 3.0], hidden)
        assert attention.qkv_weight.value.shape == (3 * hidden, hidden)
        np.testing.assert_array_equal(
            to_numpy(attention.qkv_weight.value), expected[:, None] * np.ones(hidden)
        )
        np.testing.assert_array_equal(to_numpy(attention.qkv_bias.value), expected + 9)


def places(model):
    """Where each parameter lies in the flat buffer: name → slice."""
    found = {}
    for name, parameter in model.named_parameters():
        model.buffers.value[...] = 0
        parameter.value[...] = 1
        where = np.flatnonzero(to_numpy(model.buffers.value))
        assert len(where) == parameter.size == where[-1] - where[0] + 1
        found[name] = slice(where[0], where[-1] + 1)
    return found


def test_decay_is_for_all_but_biases_and_layer_norm(build):
    """The segments cover the buffer end to end; element by element they decay what the names say."""
    model = build()
    decayed, stop = np.zeros(model.buffers.value.shape, bool), 0
    for segment in model.buffers.segments:
        assert segment.start == stop < segment.stop
        assert (segment.lr_scale, segment.frozen) == (1.0, False)
        stop = segment.stop
        decayed[segment.start : segment.stop] = segment.decay
    assert stop == len(decayed)
    for name, place in places(model).items():
        expected = not (name.endswith("bias") or "LayerNorm" in name)
        assert (decayed[place] == expected).all(), name


def test_pieces_are_aligned_and_do_not_overlap(build):
    """All begin at a multiple of 64 elements but the second and third of each packed triple."""
    found = places(build())
    ordered = sorted((place.start, place.stop) for place in found.values())
    assert all(stop <= start for (_, stop), (start, _) in itertools.pairwise(ordered))
    for name, place in found.items():
        aligned = place.start % 64 == 0
        assert aligned or ".key." in name or ".value." in name, name


def test_a_layer_lies_together_in_the_order_of_the_design(build):
    names = [parameter.name for parameter in build().buffers]
    layer = "bert.encoder.layer.1."
    block = [name.removeprefix(layer) for name in names if name.startswith(layer)]
    first = names.index(layer + block[0])
    assert names[first : first + 16] == [layer + name for name in block]
    assert block[:6] == [
        *(f"attention.self.{kind}.weight" for kind in ("query", "key", "value")),
        *("attention.output.dense.weight", "intermediate.dense.weight", "output.dense.weight"),
    ]
    assert block[6:9] == [f"attention.self.{kind}.bias" for kind in ("query", "key", "value")]


def test_the_decoder_is_the_word_embedding(build, batch):
    """Changing the table changes the logits for the same hidden state, without any copying."""
    model = build()
    hidden = model.forward(**batch.encoder)[0].last_hidden_state
    positions = model.device.asarray(np.arange(28))
    before = to_numpy(model.cls.predictions.forward(hidden, positions)[0])
    model.bert.embeddings.word_embeddings.weight.value[3] += 1.0
    changed = to_numpy(model.cls.predictions.forward(hidden, positions)[0]) != before
    assert changed[..., 3].all() and changed.sum() == changed[..., 3].sum()


def test_first_values_follow_from_the_seed(config, device):
    """Whatever the device and dtype; truncated at two deviations, or not, as the configuration says."""
    reference = BertForPreTraining(config(), dtype="float64", seed=3).buffers.value
    for dtype in ("float32", "float64"):
        value = to_numpy(BertForPreTraining(config(), device=device, dtype=dtype, seed=3).buffers.value)
        np.testing.assert_array_equal(value, reference.astype(dtype))
    assert (BertForPreTraining(config(), dtype="float64", seed=4).buffers.value != reference).any()
    words = "embeddings.word_embeddings.weight"
    for initializer, cut in (("truncated_normal", True), ("normal", False)):
        model = BertModel(config(initializer=initializer, initializer_range=0.5, vocab_size=500))
        value = dict(model.named_parameters())[words].value
        assert (np.abs(value).max() <= 1.0) == cut
        assert value.std() == pytest.approx(0.44 if cut else 0.5, abs=0.02)


def test_positions_may_start_as_waves(config, device):
    """Of the size that drawn ones have; from position to position the same rotation; the rest is drawn."""
    made = config(position_initializer="sinusoidal", initializer_range=0.5, max_position_embeddings=40)
    parameters = dict(BertModel(made, device=device, dtype="float64").named_parameters())
    table = to_numpy(parameters["embeddings.position_embeddings.weight"].value)  # (40, H)
    assert (table**2).mean() == pytest.approx(0.25)
    np.testing.assert_allclose(table[3, :2], np.sqrt(0.5) * np.array([np.sin(3), np.cos(3)]))
    for wave in range(0, table.shape[1], 2):  # sin and cos of one frequency, as a complex number
        steps = (table[1:, wave + 1] + 1j * table[1:, wave]) / (table[:-1, wave + 1] + 1j * table[:-1, wave])
        np.testing.assert_allclose(steps, np.exp(1j / 10000 ** (wave / table.shape[1])))
    words = to_numpy(parameters["embeddings.word_embeddings.weight"].value)
    assert 0.3 < words.std() < 0.6


# -- Backward ---------------------------------------------------------------------------------------


def gradients(model):
    return {name: to_numpy(parameter.grad).copy() for name, parameter in model.named_parameters()}


def assert_equal_gradients(actual, expected, tolerance=1e-12):
    """Relative to each gradient's largest element."""
    assert actual.keys() == expected.keys()
    for name, gradient in expected.items():
        difference = np.abs(actual[name] - gradient).max()
        assert difference <= tolerance * max(np.abs(gradient).max(), 1e-3), name


def training(model, seed=0, step=0, **place):
    """The context of a training step at this place."""
    return Context(training=True, stream=model.device.asarray(dropout_stream(seed, step, **place)))


def step(model, inputs, **arguments):
    """One forward and backward → loss, gradients."""
    model.zero_grad()
    output, cache = model.forward(**inputs, **arguments)
    model.backward(cache)
    return float(output.loss), gradients(model)


def test_micro_batches_add_up_to_the_one_large_batch(build, batch):
    """Although they hold 3, 1 and 2 labels: a mean of means would weigh them wrongly. Dropout is off."""
    model = build(loss_denominator_epsilon=1e-5)
    loss, expected = step(model, batch.all)
    model.zero_grad()
    total, wrong = 0.0, 0.0
    for part in (slice(0, 1), slice(1, 3), slice(3, 4)):
        inputs = {name: array[part] for name, array in batch.all.items()}
        output, cache = model.forward(**inputs, mlm_denominator=6, nsp_denominator=4)
        model.backward(cache)
        total += float(output.loss)
        wrong += float(model.forward(**inputs)[0].loss) / 3
    assert total == pytest.approx(loss, rel=1e-12)
    assert wrong != pytest.approx(loss, rel=1e-3), "else this batch could not show the difference"
    assert_equal_gradients(gradients(model), expected)


def test_denominators_divide_each_loss_and_its_gradients(build, batch):
    model = build()
    plain, _ = model.forward(**batch.all)
    scaled, _ = model.forward(**batch.all, mlm_denominator=12, nsp_denominator=40)
    assert float(scaled.mlm_loss) == pytest.approx(float(plain.mlm_loss) * 6 / 12, rel=1e-12)
    assert float(scaled.nsp_loss) == pytest.approx(float(plain.nsp_loss) * 4 / 40, rel=1e-12)


def test_scale_multiplies_the_gradients(build, batch):
    model = build()
    _, expected = step(model, batch.all)
    model.zero_grad()
    model.backward(model.forward(**batch.all)[1], 0.25)
    assert_equal_gradients(gradients(model), {name: 0.25 * gradient for name, gradient in expected.items()})


def test_gradients_accumulate_until_zero_grad(build, batch):
    model = build()
    _, once = step(model, batch.all)
    model.backward(model.forward(**batch.all)[1])
    assert_equal_gradients(gradients(model), {name: 2 * gradient for name, gradient in once.items()})
    _, again = step(model, batch.all)
    assert_equal_gradients(again, once, tolerance=0.0)


def test_a_gradient_of_an_unused_head_is_zero_and_not_what_was_left(build, batch):
    model = build()
    step(model, batch.all)
    _, found = step(model, batch.encoder | {"next_sentence_label": [0, 1, 1, 0]})
    assert not any(found[name].any() for name in MASKED_LM_NAMES)
    assert all(found[name].any() for name in NEXT_SENTENCE_NAMES)
    _, found = step(model, batch.encoder | {"labels": batch.all["labels"]})
    assert not any(found[name].any() for name in NEXT_SENTENCE_NAMES)
    assert not found["bert.pooler.dense.weight"].any()
    assert found["cls.predictions.bias"].any()


def test_gradients_of_both_losses_are_the_sum(build, batch):
    model = build()
    _, both = step(model, batch.all)
    _, words = step(model, batch.encoder | {"labels": batch.all["labels"]})
    _, pairs = step(model, batch.encoder | {"next_sentence_label": batch.all["next_sentence_label"]})
    assert_equal_gradients({name: words[name] + pairs[name] for name in both}, both)


def test_two_forwards_then_two_backwards_in_reverse(build, batch):
    """The caches do not know of each other: the sum is that of two separate steps. Dropout is on."""
    model = build(hidden_dropout_prob=0.3)
    parts = [{name: array[part] for name, array in batch.all.items()} for part in (slice(0, 2), slice(2, 4))]
    separate = []
    for number, part in enumerate(parts):
        separate.append(step(model, part, context=training(model, step=number))[1])
    model.zero_grad()
    caches = []
    for number, part in enumerate(parts):
        caches.append(model.forward(**part, context=training(model, step=number))[1])
    for cache in reversed(caches):
        model.backward(cache)
    assert_equal_gradients(
        gradients(model), {name: separate[0][name] + separate[1][name] for name in separate[0]}
    )


def test_a_layer_used_twice(config, device):
    """x → layer → layer, as in a model with shared layers: the gradient is the sum over both uses."""
    rng = np.random.default_rng(0)
    shared, first, second = layers = [BertLayer(config()) for _ in range(3)]
    for layer in layers:
        layer.allocate(device, "float64")
        if layer is shared:
            numbers = rng.normal(size=layer.buffers.value.shape) * 0.5
        layer.buffers.value[...] = device.asarray(numbers)
        layer.eval()
    x, dout = (device.asarray(rng.normal(size=(2, 5, 12))) for _ in range(2))
    bias = device.asarray(np.zeros((2, 1, 1, 5)))

    def run(lower, upper):
        middle, lower_cache = lower.forward(x, bias)
        y, upper_cache = upper.forward(middle, bias)
        return to_numpy(y), to_numpy(lower.backward(upper.backward(dout, upper_cache), lower_cache))

    (y, dx), (y_expected, dx_expected) = run(shared, shared), run(first, second)
    np.testing.assert_array_equal(y, y_expected)
    np.testing.assert_allclose(dx, dx_expected, rtol=1e-12)
    expected = {name: gradient + gradients(second)[name] for name, gradient in gradients(first).items()}
    assert_equal_gradients(gradients(shared), expected)


def test_backward_of_the_encoder_takes_either_output_or_both(build, batch):
    model = build(BertModel)
    rng = np.random.default_rng(2)
    dhidden = model.device.asarray(rng.normal(size=(4, 7, 12)))
    dpooled = model.device.asarray(rng.normal(size=(4, 12)))

    def backward(**derivatives):
        model.zero_grad()
        model.backward(model.forward(**batch.encoder)[1], **derivatives)
        return gradients(model)

    pooled = backward(dpooler_output=dpooled)
    hidden = backward(dlast_hidden_state=dhidden)  # after it, so that nothing may be left of the pooler's
    both = backward(dlast_hidden_state=dhidden, dpooler_output=dpooled)
    assert not hidden["pooler.dense.weight"].any() and pooled["pooler.dense.weight"].any()
    assert_equal_gradients({name: hidden[name] + pooled[name] for name in both}, both)
    with pytest.raises(
        ValueError, match="without a loss: give labels to forward, or a derivative to backward"
    ):
        backward()


def test_backward_refuses_the_gradient_of_a_pooler_that_is_not_there(config, device, batch):
    model = BertModel(config(), device=device, add_pooling_layer=False)
    output, cache = model.forward(**batch.encoder)
    with pytest.raises(TypeError, match=r"got dpooler_output, .* only for dlast_hidden_state"):
        model.backward(cache, dpooler_output=output.last_hidden_state[:, 0])


def test_backward_without_labels_is_an_error(build, batch):
    model = build()
    _, cache = model.forward(**batch.encoder)
    with pytest.raises(ValueError, match="without a loss: give labels to forward"):
        model.backward(cache)


def parts_of(cache):
    return cache.parts(cache.maker)


def arrays_in(cache):
    """Every array in a nest of caches; single numbers, such as a denominator, are none."""
    if isinstance(cache, list | tuple | Cache):
        for item in parts_of(cache) if isinstance(cache, Cache) else cache:
            yield from arrays_in(item)
    elif hasattr(cache, "dtype") and cache.ndim:
        yield cache


def test_backward_uses_its_cache_up_layer_by_layer(build, batch, monkeypatch):
    """When a layer's turn comes, the caches above it are gone; at the end all are."""
    model = build(num_hidden_layers=3)
    model.train()
    parameters = {id(array) for _, p in model.named_parameters() for array in (p.value, p.grad)}
    packed = [layer.attention.self for layer in model.bert.encoder.layer]
    parameters |= {id(array) for each in packed for array in (each.qkv_weight.value, each.qkv_bias.value)}
    cache = model.forward(**batch.all)[1]

    def watch(item):
        return [weakref.ref(array) for array in arrays_in(item) if id(array) not in parameters]

    encoder_cache = parts_of(parts_of(cache)[0])[2]
    everything, by_layer = watch(cache), [watch(layer_cache) for layer_cache in parts_of(encoder_cache)]
    del encoder_cache
    assert all(len(refs) > 10 for refs in by_layer)
    backward, seen = BertLayer.backward, []

    def spy(self, dout, layer_cache):
        number = model.bert.encoder.layer.index(self)
        seen.append(number)
        gc.collect()
        assert not any(ref() is not None for refs in by_layer[number + 1 :] for ref in refs)
        assert all(ref() is not None for refs in by_layer[: number + 1] for ref in refs)
        return backward(self, dout, layer_cache)

    monkeypatch.setattr(BertLayer, "backward", spy)
    model.backward(cache)
    gc.collect()
    assert seen == [2, 1, 0]
    assert repr(cache) == "Cache(BertForPreTraining, spent)"
    with pytest.raises(ValueError, match="this cache of BertForPreTraining is spent"):
        model.backward(cache)
    assert not any(ref() is not None for ref in everything)


# -- Labels -----------------------------------------------------------------------------------------


def test_nothing_to_predict(build, batch):
    """All labels −100: the losses are 0, there are no logits, and no gradients."""
    model = build()
    inputs = batch.encoder | {"labels": np.full((4, 7), -100), "next_sentence_label": [-100] * 4}
    output, cache = model.forward(**inputs)
    assert float(output.mlm_loss) == float(output.nsp_loss) == float(output.loss) == 0.0
    assert output.prediction_logits.shape == (0, 50)
    model.backward(cache)
    assert not to_numpy(model.buffers.grad).any()


def test_an_ignored_pair_does_not_count(build, batch):
    model = build()
    some, _ = model.forward(**batch.encoder, next_sentence_label=[0, -100, 1, -100])
    chosen = {name: array[[0, 2]] for name, array in batch.encoder.items()}
    alone, _ = model.forward(**chosen, next_sentence_label=[0, 1])
    assert float(some.nsp_loss) == pytest.approx(float(alone.nsp_loss), rel=1e-12)


@pytest.mark.parametrize(
    ("model_class", "label"),
    [(BertForMaskedLM, "next_sentence_label"), (BertForNextSentencePrediction, "labels")],
)
def test_labels_for_a_head_that_is_not_there(build, batch, model_class, label):
    """Left unsaid, they would be left out of the loss, too."""
    with pytest.raises(UserError, match=f"{model_class.__name__} has no head for {label}"):
        build(model_class).forward(**batch.all)


def test_mistakes_in_the_batch_reach_the_caller(build, batch):
    """See test_inputs.py for all of them; here, that forward checks before it computes."""
    model = build()
    for name, value in (("input_ids", 50), ("labels", 50), ("next_sentence_label", 2)):
        wrong = batch.all[name].copy()
        wrong[0] = value
        with pytest.raises(UserError, match=f"{name} contains {value}"):
            model.forward(**(batch.all | {name: wrong}))


@pytest.mark.parametrize("number", [np.int64, np.float64, np.float32, int])
def test_counts_out_of_numpy_do_not_widen_the_dtype(build, batch, monkeypatch, number):
    """A NumPy scalar, such as a sum of a mask, is not weak: float32 divided by it may become float64."""
    model = build(dtype="float32")
    dtypes = set()
    add_grad = Parameter.add_grad
    monkeypatch.setattr(
        Parameter, "add_grad", lambda self, g: (dtypes.add(g.dtype.name), add_grad(self, g))[1]
    )
    output, cache = model.forward(**batch.all, mlm_denominator=number(6), nsp_denominator=number(4))
    model.backward(cache, number(2))
    assert dtypes == {"float32"}
    assert output.loss.dtype == output.mlm_loss.dtype == output.nsp_loss.dtype == "float32"


# -- Dropout ----------------------------------------------------------------------------------------


def hidden(model, batch, **place):
    context = training(model, **place) if place else None
    return to_numpy(model.forward(**batch.encoder, context=context)[0].last_hidden_state)


def test_dropout_is_off_in_evaluation(build, batch):
    model, without = build(), build(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    expected = hidden(without, batch)
    np.testing.assert_array_equal(hidden(model, batch), expected)
    assert (hidden(model, batch, seed=1, step=1) != expected).any()
    model.train()
    assert (hidden(model, batch) != expected).any()
    np.testing.assert_array_equal(hidden(without, batch, seed=1, step=1), expected)


@pytest.mark.parametrize("kind", ["hidden_dropout_prob", "attention_probs_dropout_prob"])
def test_dropout_is_a_pure_function_of_its_place(build, batch, kind):
    """Each kind on its own. The bits depend on seed, step, micro-batch and replica and on nothing else."""
    off = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = build(**(off | {kind: 0.4}))
    place = {"seed": 1, "step": 2, "micro_batch": 3, "replica": 4}
    first = hidden(model, batch, **place)
    for name in place:
        assert (hidden(model, batch, **(place | {name: place[name] + 1})) != first).any(), name
    np.testing.assert_array_equal(hidden(model, batch, **place), first)
    twin = build(**(off | {kind: 0.4}))
    np.testing.assert_array_equal(hidden(twin, batch, **place), first)


def test_dropout_drops_the_share_that_was_asked_for(build, batch):
    """The embeddings are what dropout left: zeros with p = 0.3 (6σ of 50 steps), the rest scaled."""
    model = build(BertModel, hidden_dropout_prob=0.3)
    kept = to_numpy(model.forward(**batch.encoder, return_hidden_states=True)[0].hidden_states[0])
    model.train()
    dropped = []
    for _ in range(50):
        state = model.forward(**batch.encoder, return_hidden_states=True)[0].hidden_states[0]
        dropped.append(to_numpy(state) == 0)
        np.testing.assert_allclose(to_numpy(state), np.where(dropped[-1], 0, kept / 0.7), rtol=1e-4)
    share, count = np.mean(dropped), np.size(dropped)
    assert abs(share - 0.3) < 6 * np.sqrt(0.3 * 0.7 / count)


def test_no_two_uses_of_dropout_share_their_bits(build, batch, monkeypatch):
    """Within a pass and from one to the next, without anyone having chosen a stream."""
    model, keys = build(), []
    model.train()
    next_key = DropoutKeys.next
    monkeypatch.setattr(
        DropoutKeys, "next", lambda self, wanted: keys.append(next_key(self, wanted)) or keys[-1]
    )
    for _ in range(3):
        model.forward(**batch.encoder)
    assert len(keys) == 3 * (1 + 3 * model.config.num_hidden_layers)
    assert len({tuple(to_numpy(key).tolist()) for key in keys}) == len(keys)


def test_a_loop_of_ones_own_has_real_dropout(build, batch):
    """Every forward of a model in training draws anew: as many hidden states as passes."""
    model = build()
    model.train()
    states = {hidden(model, batch).tobytes() for _ in range(8)}
    assert len(states) == 8
    model.seed_dropout(0)
    assert hidden(model, batch).tobytes() in states


def test_a_shared_layer_draws_anew_at_each_use(config, device):
    layer = BertLayer(config(attention_probs_dropout_prob=0.0, hidden_dropout_prob=0.5))
    layer.allocate(device, "float64")
    x, bias = device.asarray(np.ones((2, 5, 12))), device.asarray(np.zeros((2, 1, 1, 5)))
    context = training(layer)
    first, second = (to_numpy(layer.forward(x, bias, context)[0]) for _ in range(2))
    again = to_numpy(layer.forward(x, bias, training(layer))[0])
    assert (first != second).any()
    np.testing.assert_array_equal(first, again)


@pytest.mark.parametrize("precision", [None, "bfloat16"])
def test_a_deep_copy_is_a_model_of_its_own(config, batch, precision):
    model = BertForPreTraining(config(), precision=precision)
    model.eval()
    model.bert.pooler.dense.weight.frozen = True
    _, cache = model.forward(**batch.all)
    model.backward(cache)
    twin = copy.deepcopy(model)
    for (name, one), (_, other) in zip(model.named_parameters(), twin.named_parameters(), strict=True):
        assert one.frozen == other.frozen
        np.testing.assert_array_equal(one.grad, other.grad, err_msg=name)
        assert np.shares_memory(other.value, twin.buffers.value), name
    word_weight = twin.bert.embeddings.word_embeddings.weight
    assert twin.cls.predictions._decoder_weight is word_weight, "still tied"
    before = hidden(model, batch)
    np.testing.assert_array_equal(hidden(twin, batch), before)
    twin.buffers.value[...] = 0
    twin.buffers.round_operand()
    assert (hidden(twin, batch) != before).any(), "all that it computes with lies in its buffers"
    np.testing.assert_array_equal(hidden(model, batch), before)


def test_a_copy_of_a_layer_stays_packed(config):
    """Also of one that was never part of a model."""
    attention = BertLayer(config()).attention.self
    assert attention.qkv_weight.value.any()
    twin = copy.deepcopy(attention)
    twin.key.weight.value += 1.0
    np.testing.assert_array_equal(twin.qkv_weight.value[12:24], twin.key.weight.value)
    np.testing.assert_array_equal(twin.key.weight.value, attention.key.weight.value + 1.0)

"""First values that are not random."""

import numpy as np
import pytest

from minibert.arrays import to_numpy
from minibert.bert import BertConfig, BertForPreTraining
from minibert.data import log_frequencies, unigram_plateau, word_vectors
from minibert.data.prepared import Documents
from minibert.tasks.first_values import (
    OFFSETS,
    count_words,
    look_at_neighbours,
    pass_through,
    repeat_positions,
)
from minibert.tasks.pretraining_model import set_first_values
from minibert.tasks.pretraining_settings import PretrainSettings
from minibert.variants.albert import AlbertConfig, AlbertForMaskedLM
from minibert.variants.electra import ElectraConfig
from minibert.variants.electra_training import ElectraGeneratorAndDiscriminator, generator_config
from minibert.variants.roberta import RobertaConfig, RobertaForMaskedLM

V, H = 60, 32


@pytest.fixture
def config():
    return BertConfig(
        vocab_size=V,
        hidden_size=H,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=16,
        initializer_range=0.05,
    )


@pytest.fixture
def texts():
    """Five topics of ten words each, one topic a document; 0 to 9 are special tokens."""
    rng = np.random.default_rng(0)
    tokens = [rng.integers(10, 20, 40) + 10 * rng.integers(5) for _ in range(200)]
    return Documents(
        np.concatenate(tokens).astype(np.uint16), np.arange(0, 8001, 40), np.arange(201), np.arange(200)
    )


def test_what_is_changed_and_what_is_not(device, config, texts):
    model, plain = (BertForPreTraining(config, device=device, seed=3) for _ in range(2))
    count_words(model, texts, seed=5)
    expected = {name: to_numpy(p.value).copy() for name, p in plain.named_parameters()}
    expected["bert.embeddings.word_embeddings.weight"] = 0.05 * word_vectors(texts, V, H, seed=5)
    expected["cls.predictions.bias"] = log_frequencies(texts.token_counts(V))
    expected["cls.predictions.transform.dense.weight"] += np.eye(H)
    for layer in range(2):
        for name in ("self.value", "output.dense"):
            expected[f"bert.encoder.layer.{layer}.attention.{name}.weight"] += np.eye(H)
    for name, parameter in model.named_parameters():
        assert parameter.value.dtype == np.float32
        np.testing.assert_allclose(to_numpy(parameter.value), expected[name], rtol=1e-6, atol=1e-7)


def test_the_seed_of_the_settings_decides_on_the_vectors(config, texts):
    found = []
    for change in (
        lambda model: count_words(model, texts, seed=5),
        lambda model: set_first_values(model, PretrainSettings(word_initializer="counts", seed=5), texts),
        lambda model: set_first_values(model, PretrainSettings(word_initializer="counts", seed=6), texts),
    ):
        model = BertForPreTraining(config, seed=3)
        change(model)
        found.append(model.bert.embeddings.word_embeddings.weight.value)
    np.testing.assert_array_equal(found[1], found[0])
    assert not np.array_equal(found[2], found[0])


def test_it_guesses_by_the_words_around_before_it_has_learned_anything(config, texts):
    """A random model is worse than guessing by frequency; this one is far better, since it sees the topic."""
    rng = np.random.default_rng(1)
    rows = np.stack([rng.integers(10, 20, 12) + 10 * (i % 5) for i in range(100)])
    labels = np.full_like(rows, -100)
    labels[:, 5] = rows[:, 5]
    rows[:, 5] = 4  # [MASK]
    plateau, _ = unigram_plateau(texts.token_counts(V), labels)
    losses = []
    for change in (lambda model: None, lambda model: count_words(model, texts)):
        model = BertForPreTraining(config, seed=3)
        model.eval()
        change(model)
        losses.append(float(model.forward(rows, labels=labels)[0].mlm_loss))
    assert losses[1] < plateau - 0.3 < plateau < losses[0]


@pytest.mark.parametrize("size", [8, H, 48])
def test_word_vectors_of_another_size_are_carried_through_the_layers(config, texts, size):
    """ALBERT's one layer is changed once, and the maps to H and back are parts of the identity."""
    sizes = config.to_dict() | {"embedding_size": size, "num_hidden_layers": 3}
    config = AlbertConfig.from_dict(sizes | {"initializer_range": 1e-9})
    model = AlbertForMaskedLM(config, dtype="float64")
    pass_through(model)
    count_words(model, texts)
    look_at_neighbours(model)
    embeddings, transform = model.bert.embeddings, model.cls.predictions.transform.dense
    np.testing.assert_allclose(embeddings.project.weight.value, np.eye(H, size), atol=1e-7)
    np.testing.assert_allclose(transform.weight.value, np.eye(size, H), atol=1e-7)
    attention = model.bert.encoder.layer[0].attention
    np.testing.assert_allclose(attention.self.value.weight.value, np.eye(H), atol=1e-7)
    assert embeddings.word_embeddings.weight.value.shape == (V, size)
    queries, keys = attention.self.query.weight.value, attention.self.key.weight.value
    assert np.linalg.matrix_rank(queries, tol=1e-3) == 2 * (min(size, H) // 8) and abs(keys).max() <= 1 + 1e-6


def test_heads_that_look_at_neighbours(device, config):
    model, plain = (BertForPreTraining(config, device=device, seed=3) for _ in range(2))
    look_at_neighbours(model)
    changed = {
        name
        for (name, one), (_, other) in zip(model.named_parameters(), plain.named_parameters(), strict=True)
        if not np.array_equal(to_numpy(one.value), to_numpy(other.value))
    }
    matrices = {
        f"bert.encoder.layer.{i}.attention.self.{m}.weight" for i in range(2) for m in ("query", "key")
    }
    tables = {f"bert.embeddings.{kind}_embeddings.weight" for kind in ("word", "position", "token_type")}
    assert changed == tables | matrices


def test_half_of_the_heads_look_at_a_neighbour_whatever_the_words_are(config, texts):
    """Words that recur, and two segments. Two of four heads in two layers look at the four offsets."""
    config = config.replace(num_attention_heads=4, hidden_size=128, max_position_embeddings=64)
    model = BertForPreTraining(config, dtype="float64", seed=1)
    model.eval()
    count_words(model, texts)
    look_at_neighbours(model)
    length = 24
    rows = np.random.default_rng(0).integers(10, 16, (8, length))
    types = np.tile(np.arange(length) > 10, (8, 1))
    outputs, _ = model.forward(rows, token_type_ids=types, return_attentions=True)
    inner, offsets = np.arange(length)[3:-3], iter(OFFSETS)
    for layer, share in zip(outputs.attentions, (0.9, 0.6), strict=True):  # (B, A, S, S)
        for head in range(2):
            best = layer[:, head].argmax(axis=-1)[:, inner]
            assert np.mean(inner - best == next(offsets)) > share
        assert layer[:, 2:].max() < 0.5


def pairs_of_texts(length=12):
    """Each text has different words; the two of a pair have one in common: ids, segments, its two places."""
    rng = np.random.default_rng(5)
    ids = np.stack([rng.permutation(np.arange(5, V))[: 2 * length] for _ in range(16)])
    types = np.tile(np.repeat([0, 1], length), (16, 1))
    first, second = rng.integers(length, size=16), rng.integers(length, 2 * length, size=16)
    ids[np.arange(16), second] = ids[np.arange(16), first]
    return ids, types, first, second


@pytest.mark.parametrize("counted", [True, False])
def test_one_head_looks_for_the_same_word(config, texts, counted):
    config = config.replace(num_attention_heads=4, hidden_size=256, max_position_embeddings=64)
    ids, types, first, second = pairs_of_texts()

    found = {}
    for same_word in (False, True):
        model = BertForPreTraining(config, dtype="float64", seed=1)
        model.eval()
        if counted:
            count_words(model, texts)
        look_at_neighbours(model, same_word=same_word)
        outputs, _ = model.forward(ids, token_type_ids=types, return_attentions=True)
        rows = outputs.attentions[0][np.arange(16), :, second]  # (B, A, S)
        found[same_word] = [rows[np.arange(16), :, place].mean(axis=0) for place in (first, second)]
    (other, own), (before, _) = found[True], found[False]
    assert other[3] > max(0.4, 3 * own[3])
    np.testing.assert_array_equal(other[:3], before[:3])  # the other heads are as they were
    assert before.max() < 0.2


def test_there_may_be_no_head_left_for_words(config):
    """The only one looks at a neighbour."""
    config = config.replace(num_attention_heads=1)
    models = [BertForPreTraining(config, seed=1) for _ in range(2)]
    for model, same_word in zip(models, (False, True), strict=True):
        look_at_neighbours(model, same_word=same_word)
    np.testing.assert_array_equal(*(to_numpy(model.buffers.value) for model in models))


def to_neighbours(model, heads):
    """The mean attention of the first layer's first heads to the neighbours that they should look at."""
    model.eval()
    rows = np.random.default_rng(0).integers(10, V, (4, 32))
    outputs, _ = model.bert.forward(rows, return_attentions=True)
    found, at = outputs.attentions[0], np.arange(4, 28)  # (B, A, S, S)
    return np.array([found[:, head, at, at - OFFSETS[head]].mean() for head in range(heads)])


SHARING = {"vocab_size": V, "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4}
SHARING |= {"intermediate_size": 32, "max_position_embeddings": 32, "initializer_range": 0.05}
NEIGHBOURS = PretrainSettings(attention_initializer="neighbours")


@pytest.mark.parametrize("size", [128, 300])
def test_heads_find_their_neighbours_behind_a_map_of_the_embeddings(size):
    """Without counts, too, which need that map to let numbers through as well."""
    model = AlbertForMaskedLM(AlbertConfig(**SHARING, embedding_size=size))
    before = to_neighbours(model, 2)
    set_first_values(model, NEIGHBOURS, None)
    assert (to_neighbours(model, 2) > 3 * before).all()


def test_two_models_that_share_their_embeddings_read_the_same_numbers_of_them():
    config = ElectraConfig(**SHARING, embedding_size=128)
    both = ElectraGeneratorAndDiscriminator(config, generator_config(config, 0.25))
    before = to_neighbours(both.discriminator, 2), to_neighbours(both.generator, 1)
    set_first_values(both, NEIGHBOURS, None)
    assert (to_neighbours(both.discriminator, 2) > 3 * before[0]).all()
    assert (to_neighbours(both.generator, 1) > 3 * before[1]).all()


def test_the_query_of_each_position_fits_the_key_of_its_neighbour_best(config):
    """With positions alone and without the random part; one of two heads in four layers looks somewhere."""
    config = config.replace(initializer_range=1e-9, num_hidden_layers=4)
    model = BertForPreTraining(config, dtype="float64")
    look_at_neighbours(model)
    positions = model.bert.embeddings.position_embeddings.weight.value * 1e9  # (S, H)
    found = []
    for layer in model.bert.encoder.layer:
        queries = positions @ layer.attention.self.query.weight.value.T
        keys = positions @ layer.attention.self.key.weight.value.T
        looks, idle = slice(0, H // 2), slice(H // 2, H)
        best = (queries[:, looks] @ keys[:, looks].T).argmax(axis=1)
        found.append(set((np.arange(16) - best)[3:-3].tolist()))
        assert np.abs(queries[:, idle]).max() < 1e-6
    assert found == [{offset} for offset in OFFSETS]


@pytest.mark.parametrize(("hidden", "heads"), [(4, 4), (8, 8), (2, 1), (192, 3)])
def test_heads_of_any_size(hidden, heads):
    config = BertConfig(hidden_size=hidden, num_attention_heads=heads)
    config = config.replace(num_hidden_layers=2, intermediate_size=8, vocab_size=V)
    model = BertForPreTraining(config)
    look_at_neighbours(model)
    assert np.isfinite(to_numpy(model.bert.embeddings.position_embeddings.weight.value)).all()


def test_positions_are_repeated_beyond_those_learned(device, config):
    model = BertForPreTraining(config, device=device)
    before = {name: to_numpy(p.value).copy() for name, p in model.named_parameters()}
    repeat_positions(model, learned=6)  # of 16
    name = "bert.embeddings.position_embeddings.weight"
    learned = before[name][:6]
    before[name] = np.concatenate([learned, learned, learned[:4]])
    for name, parameter in model.named_parameters():
        assert np.array_equal(to_numpy(parameter.value), before[name]), name


def test_roberta_repeats_the_positions_after_those_of_padding():
    config = RobertaConfig(
        **dict(vocab_size=V, hidden_size=H, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64),
        max_position_embeddings=10,
        pad_token_id=1,
    )
    model = RobertaForMaskedLM(config)
    table = model.bert.embeddings.position_embeddings.weight.value
    before = table.copy()
    repeat_positions(model, learned=3)  # rows 2, 3 and 4
    assert np.array_equal(table, before[[0, 1, 2, 3, 4, 2, 3, 4, 2, 3]])

"""ELECTRA's generator and discriminator, pre-trained together."""

import numpy as np
import pytest
from small_pretraining import masked_batch

from minibert.bert import BertForMaskedLM, BertModel
from minibert.dropout_bits import dropout_stream
from minibert.errors import UserError
from minibert.nn import Context
from minibert.tasks.held_out import evaluate
from minibert.variants import open_model
from minibert.variants.electra import ElectraConfig, ElectraForMaskedLM, ElectraForPreTraining
from minibert.variants.electra_training import (
    SHARED,
    ElectraGeneratorAndDiscriminator,
    generator_config,
)

CONFIG = ElectraConfig(
    vocab_size=30,
    embedding_size=6,
    hidden_size=8,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=12,
    max_position_embeddings=10,
    initializer_range=0.5,
)


def make(**options):
    return ElectraGeneratorAndDiscriminator(
        CONFIG, generator_config(CONFIG, 0.5), dtype="float64", seed=2, **options
    )


def make_batch(rows=6, seed=0):
    return masked_batch(rows, seed, length=10, vocab_size=30)


def filled_in(batch, outputs):
    """The discriminator's text, from what it says was replaced: only where that is, the word is unknown."""
    original = np.where(batch["labels"] == -100, batch["input_ids"], batch["labels"])
    return original, outputs.replaced == 1


def test_only_masked_words_are_replaced_and_a_right_guess_is_original():
    model, batch = make(), make_batch(rows=300)
    model.eval()
    outputs, _ = model.forward(**batch)
    chosen = batch["labels"] != -100
    assert not outputs.replaced[~chosen].any()
    right = (outputs.replaced[chosen] == 0).mean()
    probabilities = np.exp(outputs.prediction_logits - outputs.prediction_logits.max(1, keepdims=True))
    probabilities /= probabilities.sum(1, keepdims=True)
    expected = probabilities[np.arange(chosen.sum()), batch["labels"][chosen]]
    spread = np.sqrt((expected * (1 - expected)).sum()) / chosen.sum()
    assert abs(right - expected.mean()) < 4.5 * spread and right > 0


def test_labels_are_needed():
    with pytest.raises(UserError, match="a batch without labels; the generator learns from masked words"):
        make().forward(**make_batch() | {"labels": None})


def test_the_loss_and_all_gradients_are_those_of_the_two_models_by_themselves(tmp_path, monkeypatch):
    """The same weights in two separate models, with the text that the discriminator was given."""
    model, batch = make(), make_batch()
    seen = []
    forward = ElectraForPreTraining.forward

    def spy(self, *inputs, **more):
        seen.extend(inputs)
        return forward(self, *inputs, **more)

    monkeypatch.setattr(ElectraForPreTraining, "forward", spy)
    model.eval()
    outputs, cache = model.forward(**batch)
    model.zero_grad()
    model.backward(cache, 0.5)
    model.save_pretrained(tmp_path)

    text, mask = seen[0].input_ids, batch["attention_mask"]
    original, replaced = filled_in(batch, outputs)
    assert ((text != original) == replaced).all() and replaced.any()
    generator = ElectraForMaskedLM.from_pretrained(tmp_path / "generator", dtype="float64")
    discriminator = ElectraForPreTraining.from_pretrained(tmp_path, dtype="float64")
    words, words_cache = generator.forward(**batch)
    judgement, judgement_cache = discriminator.forward(
        input_ids=text, attention_mask=mask, labels=replaced.astype(np.int32)
    )
    assert outputs.loss == pytest.approx(words.loss + 50 * judgement.loss, rel=1e-14)
    np.testing.assert_allclose(outputs.rtd_logits, judgement.logits, rtol=1e-13)
    for part, part_cache, factor in ((generator, words_cache, 0.5), (discriminator, judgement_cache, 25.0)):
        part.zero_grad()
        part.backward(part_cache, factor)
    expected = {f"generator.{name}": p.grad for name, p in generator.named_parameters()}
    for name, parameter in discriminator.named_parameters():
        both = f"generator.{name}" if name.split(".")[-2] in SHARED and "embeddings" in name else None
        expected[f"discriminator.{name}"] = parameter.grad + (expected.pop(both) if both else 0.0)
    found = dict(model.named_parameters())
    assert found.keys() == expected.keys()
    for name, parameter in found.items():
        assert np.linalg.norm(parameter.grad - expected[name]) <= 1e-13 * (
            1 + np.linalg.norm(expected[name])
        ), name


def test_rows_that_only_fill_up_a_fixed_shape_change_nothing():
    model, batch = make(), make_batch()
    batch["labels"][0, 0] = batch["input_ids"][0, 0]  # the position that those rows stand for
    model.eval()
    plain, _ = model.forward(**batch)
    fixed, _ = model.forward(**batch, predictions=40)
    assert (fixed.replaced == plain.replaced).all()
    assert fixed.loss == pytest.approx(plain.loss, rel=1e-14)


def test_padding_is_not_judged_and_denominators_divide():
    model, batch = make(), make_batch()
    model.eval()
    outputs, _ = model.forward(**batch)
    log_odds = np.where(outputs.replaced == 1, outputs.rtd_logits, -outputs.rtd_logits)
    expected = np.log1p(np.exp(-log_odds))[batch["attention_mask"] > 0].mean()
    assert outputs.rtd_loss == pytest.approx(expected, rel=1e-12)
    assert model.count_targets(batch)["rtd_denominator"] == batch["attention_mask"].sum()
    halved, _ = model.forward(**batch, rtd_denominator=2 * batch["attention_mask"].sum(), mlm_denominator=1)
    assert halved.rtd_loss == pytest.approx(expected / 2, rel=1e-12)
    assert halved.mlm_loss == pytest.approx(outputs.mlm_loss * (batch["labels"] != -100).sum(), rel=1e-12)


def test_every_step_draws_other_words_and_measuring_always_the_same():
    model, batch = make(), make_batch(rows=50)
    drawn = [
        model.forward(**batch, context=Context(training=True, stream=dropout_stream(0, step)))[0].replaced
        for step in (0, 0, 1)
    ]
    assert (drawn[0] == drawn[1]).all() and (drawn[0] != drawn[2]).any()
    results = [evaluate(model, [batch]) for _ in range(2)]
    assert results[0] == results[1]
    outputs, _ = model.forward(**batch)
    real = batch["attention_mask"] > 0
    right = ((outputs.rtd_logits > 0) == (outputs.replaced == 1))[real].mean()
    assert results[0]["rtd_accuracy"] == pytest.approx(right, rel=1e-12)
    assert results[0]["rtd_loss"] == pytest.approx(float(outputs.rtd_loss), rel=1e-12)


def test_a_folder_gives_both_back_and_each_by_itself(tmp_path):
    model, batch = make(replaced_weight=50.0), make_batch()
    model.eval()
    model.save_pretrained(tmp_path)
    again = ElectraGeneratorAndDiscriminator.from_pretrained(tmp_path, dtype="float64")
    assert again.forward(**batch)[0].loss == model.forward(**batch)[0].loss
    assert again.discriminator.bert.embeddings.LayerNorm is again.generator.bert.embeddings.LayerNorm
    words = open_model(BertForMaskedLM, tmp_path / "generator", dtype="float64")
    logits, _ = words.forward(**batch)
    np.testing.assert_allclose(logits.mlm_loss, model.forward(**batch)[0].mlm_loss, rtol=1e-14)
    assert open_model(BertModel, tmp_path).config.hidden_size == 8
    by_precision = ElectraGeneratorAndDiscriminator.from_pretrained(tmp_path, precision="float64")
    np.testing.assert_array_equal(by_precision.buffers.value, model.buffers.value)


def test_a_generator_has_a_share_of_the_heads_but_one_at_least():
    shares = {share: generator_config(CONFIG, share) for share in (0.25, 0.5, 1.0)}
    sizes = {
        share: (c.num_attention_heads, c.hidden_size, c.intermediate_size) for share, c in shares.items()
    }
    assert sizes == {0.25: (1, 4, 6), 0.5: (1, 4, 6), 1.0: (2, 8, 12)}
    assert all(c.embedding_size == 6 and c.num_hidden_layers == 2 for c in shares.values())


def test_two_models_that_cannot_share_their_embeddings():
    with pytest.raises(UserError, match="generator's embedding_size is 4, the discriminator's 6"):
        ElectraGeneratorAndDiscriminator(CONFIG, CONFIG.replace(embedding_size=4))


def test_a_batch_without_a_mask_has_no_padding():
    batch = make_batch()
    whole = batch | {"attention_mask": np.ones_like(batch["attention_mask"])}
    del batch["attention_mask"]
    model = make()
    assert model.count_targets(batch) == model.count_targets(whole)
    losses = []
    for given in (batch, whole):
        model.seed_dropout(1)
        losses.append(model.forward(**given)[0].loss)
    assert losses[0] == losses[1]


def test_a_prepared_batch_is_complete():
    model, batch = make(), make_batch()
    with pytest.raises(TypeError, match="a prepared batch is complete; it cannot be given labels as well"):
        model.forward(model.prepare(**batch), labels=batch["labels"])

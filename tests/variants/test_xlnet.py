"""XLNet: what its two streams see, what padding and positions do, batches that do not fit, folders."""

import dataclasses
import json
import warnings

import numpy as np
import pytest

from minibert.arrays import map_arrays, to_numpy
from minibert.data.permutations import factorisation_orders, last_of_an_order
from minibert.dropout_bits import dropout_stream
from minibert.errors import UserError
from minibert.nn import Context
from minibert.proofs.xlnet import BATCH, CONFIG, ORDERS, SPANS, TAGS, TWO_STREAMS
from minibert.train.optimiser import AdamW
from minibert.variants import xlnet

CLASSES = {
    xlnet.XLNetModel: {},
    xlnet.XLNetLMHeadModel: {"labels": TAGS},
    xlnet.XLNetForSequenceClassification: {"labels": [0, 1, -100]},
    xlnet.XLNetForTokenClassification: {"labels": [[min(tag, 1) for tag in row] for row in TAGS]},
    xlnet.XLNetForQuestionAnsweringSimple: SPANS,
    xlnet.XLNetSentenceEncoder: {},
}


def ready(model):
    """In evaluation mode, with weights large enough to matter."""
    rng = np.random.default_rng(1)
    for _, parameter in model.named_parameters():
        scale = 0.3 if len(parameter.shape) > 1 else 0.5
        parameter.value[...] += model.device.asarray(scale * rng.normal(size=parameter.shape), model.dtype)
    model.buffers.round_operand()
    model.eval()
    return model


def encoder(device="cpu", **options):
    return ready(xlnet.XLNetModel(CONFIG, device=device, dtype="float64", **options))


def states(model, **batch):
    return to_numpy(model.forward(**batch)[0].last_hidden_state)


# -- Shapes -----------------------------------------------------------------------------------------


def test_shapes(device):
    model = encoder(device)
    one, _ = model.forward(**BATCH, return_hidden_states=True, return_attentions=True)
    assert one.last_hidden_state.shape == (3, 6, 8) and one.pooler_output is None
    assert [h.shape for h in one.hidden_states] == [(3, 6, 8)] * 3
    assert [a.shape for a in one.attentions] == [(3, 2, 6, 6)] * 2
    two, _ = model.forward(**BATCH, **TWO_STREAMS, return_hidden_states=True, return_attentions=True)
    assert two.last_hidden_state.shape == (3, 3, 8)
    assert [h.shape for h in two.hidden_states] == [(3, 9, 8)] * 3
    assert [a.shape for a in two.attentions] == [(3, 2, 9, 6)] * 2
    for attention in map(to_numpy, two.attentions):
        np.testing.assert_allclose(attention.sum(axis=-1), 1.0)


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_class_runs_forwards_and_backwards(kind, device):
    model = kind(CONFIG, device=device, seed=3)
    outputs, cache = model.forward(**BATCH, **CLASSES[kind])
    if outputs.loss is None:
        model.backward(cache, dlast_hidden_state=outputs.last_hidden_state)
    else:
        model.backward(cache)
    gradients = {name: to_numpy(parameter.grad) for name, parameter in model.named_parameters()}
    assert all(
        gradient.dtype == np.float32 and np.isfinite(gradient).all() for gradient in gradients.values()
    )
    unused = {name for name, gradient in gradients.items() if not gradient.any()}
    assert {name.rpartition(".")[2] for name in unused} == {"mask_emb"}


def test_scores_of_words(device):
    model = ready(xlnet.XLNetLMHeadModel(CONFIG, device=device, dtype="float64"))
    loss = model.forward(**BATCH, **ORDERS)[0]
    assert loss.prediction_logits.shape == (5, 13)
    outputs, _ = model.forward(**BATCH, **TWO_STREAMS)
    assert outputs.loss is None and outputs.prediction_logits.shape == (3, 3, 13)
    scores = to_numpy(outputs.prediction_logits)
    p = np.exp(scores) / np.exp(scores).sum(axis=-1, keepdims=True)
    correct = [
        p[b, i, word] for b, row in enumerate(ORDERS["labels"]) for i, word in enumerate(row) if word > 0
    ]
    np.testing.assert_allclose(float(loss.loss), -np.log(correct).mean())


def test_16_bits_are_close():
    exact, rough = (ready(xlnet.XLNetLMHeadModel(CONFIG, precision=name)) for name in ("float32", "float16"))
    losses = []
    for model in (exact, rough):
        outputs, cache = model.forward(**BATCH, **ORDERS)
        model.backward(cache)
        losses.append(float(outputs.loss))
    assert losses[0] != losses[1] and abs(losses[0] / losses[1] - 1) < 0.01
    assert outputs.last_hidden_state.dtype == "float16"
    gradients = [np.concatenate([p.grad.ravel() for _, p in m.named_parameters()]) for m in (exact, rough)]
    assert np.linalg.norm(gradients[0] - gradients[1]) < 0.02 * np.linalg.norm(gradients[0])


# -- Who sees whom ----------------------------------------------------------------------------------


def test_a_prediction_depends_on_what_is_before_it_in_the_order_and_on_nothing_else():
    """Every token is changed in turn. Of the targets, exactly those change that may see it."""
    model = encoder()
    ids = np.array(BATCH["input_ids"])
    before = states(model, **BATCH, **TWO_STREAMS)
    for text, token in np.argwhere(np.array(BATCH["attention_mask"])):
        changed = ids.copy()
        changed[text, token] = (changed[text, token] + 1) % 13
        after = states(model, **BATCH | {"input_ids": changed}, **TWO_STREAMS)
        differs = (after != before).any(axis=2)
        for target, place in np.argwhere(ORDERS["target_mapping"][text]):
            may_see = ORDERS["perm_mask"][text, place, token] == 0
            assert differs[text, target] == may_see, (text, target, place, token)
            assert place != token or not differs[text, target], "never itself"
        others = np.arange(3) != text
        assert not differs[others].any()


def test_the_content_of_a_target_knows_the_token_and_that_of_the_others_does_not():
    model = encoder()
    ids = np.array(BATCH["input_ids"])
    predicted = np.array(ORDERS["target_mapping"]).any(axis=1)

    def content(input_ids):
        batch = BATCH | {"input_ids": input_ids}
        outputs, _ = model.forward(**batch, **TWO_STREAMS, return_hidden_states=True)
        return outputs.hidden_states[-1][:, :6]

    differs = (content(np.where(predicted, (ids + 1) % 13, ids)) != content(ids)).any(axis=2)
    assert (differs == predicted).all()


def test_the_order_of_the_rows_of_targets_is_free():
    model = encoder()
    before = states(model, **BATCH, **TWO_STREAMS)
    turned = TWO_STREAMS | {"target_mapping": TWO_STREAMS["target_mapping"][:, ::-1]}
    np.testing.assert_allclose(states(model, **BATCH, **turned)[:, ::-1], before, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_on_either_side_equals_no_padding(side):
    model = encoder()
    rng = np.random.default_rng(2)
    texts = [rng.integers(1, 13, length) for length in (9, 4, 1)]
    ids, mask = np.zeros((3, 9), int), np.zeros((3, 9), int)
    for row, text in enumerate(texts):
        part = slice(9 - len(text), 9) if side == "left" else slice(0, len(text))
        ids[row, part], mask[row, part] = text, 1
    together = states(model, input_ids=ids, attention_mask=mask, token_type_ids=3 * (1 - mask))
    for row, text in enumerate(texts):
        alone = states(model, input_ids=[text])
        np.testing.assert_allclose(together[row][mask[row] == 1], alone[0], rtol=1e-12, atol=1e-13)


def test_a_classifier_reads_the_last_token_wherever_the_padding_is(device):
    """Left, right, or some of each: the same scores and gradients, those of the vectors included."""
    config = CONFIG.replace(num_labels=3)
    model = ready(xlnet.XLNetForSequenceClassification(config, device=device, dtype="float64"))
    vectors = np.random.default_rng(2).normal(size=(2, 4, 8))
    found = []
    for starts in ((3, 3), (0, 0), (1, 2)):
        embeds, mask = np.zeros((2, 7, 8)), np.zeros((2, 7), int)
        for row, (start, text) in enumerate(zip(starts, vectors, strict=True)):
            embeds[row, start : start + 4], mask[row, start : start + 4] = text, 1
        outputs, cache = model.forward(inputs_embeds=embeds, attention_mask=mask, labels=[2, 0])
        model.zero_grad()
        dembeds = to_numpy(model.backward(cache))
        assert not dembeds[mask == 0].any()
        gradients = [to_numpy(parameter.grad).ravel() for _, parameter in model.named_parameters()]
        found.append([to_numpy(outputs.logits), dembeds[mask == 1], np.concatenate(gradients)])
    for other in found[1:]:
        for one, same in zip(found[0], other, strict=True):
            np.testing.assert_allclose(same, one, rtol=1e-9, atol=1e-12)


def test_which_segment_it_is_makes_no_difference_but_another_one_does():
    model = encoder()
    types = np.array(BATCH["token_type_ids"])
    before = states(model, **BATCH)
    assert np.array_equal(states(model, **BATCH | {"token_type_ids": 1000 - 7 * types}), before)
    assert (
        (states(model, **BATCH | {"token_type_ids": np.zeros_like(types)}) != before).any(axis=(1, 2)).all()
    )


def test_the_order_of_words_matters():
    model = encoder()
    there, back = states(model, input_ids=[[3, 4, 5, 6]]), states(model, input_ids=[[6, 5, 4, 3]])
    assert np.abs(there[0] - back[0, ::-1]).max() > 1e-3


def test_a_sequence_of_one_token():
    assert states(encoder(), input_ids=[[4]]).shape == (1, 1, 8)


# -- Training ---------------------------------------------------------------------------------------


def test_dropout_is_a_function_of_the_stream_and_recomputing_changes_nothing():
    model = xlnet.XLNetLMHeadModel(CONFIG, dtype="float64")
    found = []
    for seed, recompute in ((1, False), (1, True), (2, False)):
        model.bert.encoder.recompute = recompute
        model.zero_grad()
        context = Context(training=True, stream=dropout_stream(seed, 0))
        outputs, cache = model.forward(**BATCH, **ORDERS, context=context)
        model.backward(cache)
        found.append((float(outputs.loss), model.buffers.grad.copy()))
    assert found[0][0] == found[1][0] and np.array_equal(found[0][1], found[1][1])
    assert found[0][0] != found[2][0]


def test_nothing_is_left_of_a_cache():
    model = xlnet.XLNetLMHeadModel(CONFIG)
    _, cache = model.forward(**BATCH, **ORDERS)
    model.backward(cache)
    assert "spent" in repr(cache)


def test_epsilon_is_added_to_the_number_of_predictions():
    plain, larger = (
        xlnet.XLNetLMHeadModel(dataclasses.replace(CONFIG, loss_denominator_epsilon=epsilon), dtype="float64")
        for epsilon in (0.0, 0.5)
    )
    losses = [float(model.forward(**BATCH, **ORDERS)[0].loss) for model in (plain, larger)]
    assert losses[1] == pytest.approx(losses[0] * 5 / 5.5, rel=1e-12)


def test_micro_batches_add_up(device):
    """As a trainer gives them: prepared, with the denominators of the whole batch, and rows to spare."""
    model = xlnet.XLNetLMHeadModel(CONFIG, device=device, dtype="float64", seed=3)
    whole = {name: np.array(array) for name, array in (BATCH | ORDERS).items()}
    assert model.losses[0] == "loss" and model.count_targets(whole) == {"mlm_denominator": 5}
    losses, gradients = [], []
    for rows in ([slice(0, 3)], [slice(0, 1), slice(1, 3)]):
        model.zero_grad()
        losses.append(0.0)
        for part in rows:
            batch = {name: array[part] for name, array in whole.items()}
            prepared = model.prepare(**batch, **model.count_targets(whole), predictions=9)
            inputs = map_arrays(device.asarray, prepared)
            outputs, cache = model.forward(inputs, context=Context())
            assert outputs.prediction_logits is None
            model.backward(cache, 2.0)
            losses[-1] += float(outputs.loss)
        gradients.append(to_numpy(model.buffers.grad).copy())
    assert losses[0] == pytest.approx(losses[1], rel=1e-12)
    np.testing.assert_allclose(*gradients, rtol=1e-9, atol=1e-14)


def test_it_learns_to_predict_in_any_order():
    """Texts that count upwards: neighbours on either side tell a word."""
    settings = {"hidden_size": 16, "hidden_dropout_prob": 0.0, "initializer_range": 0.2}
    model = xlnet.XLNetLMHeadModel(CONFIG.replace(**settings), seed=4)
    optimiser, rng = AdamW(model, weight_decay=0.0), np.random.default_rng(6)
    mask, losses = np.ones((16, 8), int), []
    for step in range(150):
        ids = (rng.integers(0, 13, (16, 1)) + np.arange(8)) % 13
        orders = factorisation_orders(ids, mask, last_of_an_order(ids, mask, rng, one_in=4), rng)
        outputs, cache = model.forward(input_ids=ids, attention_mask=mask, **orders._asdict())
        model.zero_grad()
        model.backward(cache)
        optimiser.step(0.01, step)
        losses.append(float(outputs.loss))
    assert np.mean(losses[:5]) > 2.4 and np.mean(losses[-20:]) < 0.5, losses[-1]


def test_only_the_head_learns_from_features():
    config = CONFIG.replace(feature_layers=[-1], num_labels=2)
    model = xlnet.XLNetForSequenceClassification(config)
    outputs, cache = model.forward(**BATCH, labels=[0, 1, 1])
    model.backward(cache)
    learning = {name for name, parameter in model.named_parameters() if to_numpy(parameter.grad).any()}
    assert learning == {"classifier.out_proj.weight", "classifier.out_proj.bias"}
    assert outputs.features.shape == (3, 8)


# -- What does not fit ------------------------------------------------------------------------------

NO_MASK, TWICE = np.zeros((3, 6, 6)), np.zeros((3, 2, 6))
TWICE[:, :, 4] = 1
BLIND, ONLY_PADDING = np.ones((3, 6, 6)), np.zeros((3, 6, 6))
ONLY_PADDING[1, 4, 1:] = 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"perm_mask": NO_MASK[0]}, r"perm_mask has shape \(6, 6\); expected \(3, 6, 6\)"),
        ({"perm_mask": NO_MASK + 2}, "perm_mask must hold nothing but 0 and 1"),
        ({"perm_mask": [[[0], [0, 1]]]}, "perm_mask is a list of lists of unequal length"),
        (
            {"target_mapping": NO_MASK[:2]},
            r"target_mapping has shape .*; expected \(3, targets, 6\)",
        ),
        ({"target_mapping": NO_MASK[:, :0]}, "target_mapping has no rows"),
        ({"target_mapping": NO_MASK + 1}, "target_mapping must have at most one 1 in each row"),
        ({"target_mapping": TWICE}, "and at most one per token"),
        ({"target_mapping": TWICE[:, :1], "perm_mask": BLIND}, "target 0 of text 0 may see no token at all"),
        (
            {"target_mapping": TWICE[:, :1], "perm_mask": ONLY_PADDING},
            "target 0 of text 1 may see no token at all",
        ),
        ({"input_ids": [[13] * 6] * 3}, "input_ids contains 13"),
        ({"token_type_ids": [[-1] * 6] * 3}, "token_type_ids contains -1"),
        ({"attention_mask": [[2] * 6] * 3}, "attention_mask contains 2"),
        (
            {"labels": [[1] * 5] * 3},
            r"labels has shape \(3, 5\); expected \(3, 6\), a label for each",
        ),
        (ORDERS | {"labels": TAGS}, r"labels has shape \(3, 6\); expected \(3, 3\)"),
        ({"labels": [[13] * 6] * 3}, "labels contains 13"),
        (
            {"target_mapping": NO_MASK[:, :2], "perm_mask": NO_MASK, "labels": [[1, -100]] * 3},
            "labels has a word at a row of zeros in target_mapping; give −100 there",
        ),
    ],
)
def test_a_batch_that_does_not_fit_is_refused_in_a_line(change, message):
    model = xlnet.XLNetLMHeadModel(CONFIG)
    with pytest.raises(UserError, match=message) as error:
        model.prepare(**BATCH | change)
    assert "\n" not in str(error.value)


def test_a_sequence_beyond_the_chosen_limit_is_refused():
    model = xlnet.XLNetModel(CONFIG.replace(max_position_embeddings=5))
    with pytest.raises(UserError, match="6 tokens long but the model has only 5 positions"):
        model.forward(**BATCH)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"attn_type": "uni"}, "attn_type is 'uni'; only XLNets with 'bi' are supported"),
        ({"bi_data": True}, "bi_data is True"),
        ({"clamp_len": 400}, "clamp_len is 400"),
        ({"same_length": True}, "same_length is True"),
        ({"untie_r": False}, "untie_r is False"),
        ({"summary_type": "first"}, "summary_type is 'first'"),
        ({"is_decoder": True}, "is_decoder is True"),
        ({"hidden_size": 9, "num_attention_heads": 3}, "hidden_size is 9; an XLNet needs an even one"),
        ({"hidden_act": "swish"}, "unknown hidden_act 'swish'"),
    ],
)
def test_a_configuration_that_is_not_supported_is_refused_in_a_line(setting, message):
    with pytest.raises(UserError, match=message):
        CONFIG.replace(**setting)


# -- Folders ----------------------------------------------------------------------------------------


def test_the_configuration_of_a_released_model_is_read(tmp_path):
    """What config.json of xlnet-base-cased holds, memories included, which are not read."""
    values = {"model_type": "xlnet", "d_model": 64, "n_layer": 3, "n_head": 4, "d_inner": 100, "d_head": 16}
    values |= {"ff_activation": "gelu", "dropout": 0.2, "summary_last_dropout": 0.3, "mem_len": None}
    values |= {"reuse_len": None, "bi_data": False, "clamp_len": -1, "same_length": False, "untie_r": True}
    values |= {
        "attn_type": "bi",
        "summary_type": "last",
        "start_n_top": 5,
        "pad_token_id": 5,
        "vocab_size": 99,
    }
    (tmp_path / "config.json").write_text(json.dumps(values))
    config = xlnet.XLNetConfig.from_pretrained(tmp_path)
    assert (config.hidden_size, config.num_hidden_layers, config.num_attention_heads) == (64, 3, 4)
    assert (config.intermediate_size, config.vocab_size, config.classifier_dropout) == (100, 99, 0.3)
    assert config.hidden_dropout_prob == config.attention_probs_dropout_prob == 0.2
    assert config.longest_sequence == 512 and config.initializer == "normal"
    longer = xlnet.XLNetConfig.from_pretrained(tmp_path, max_position_embeddings=4096)
    longer.save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    assert written["longest_sequence"] == 4096 and "max_position_embeddings" not in written
    assert xlnet.XLNetConfig.from_pretrained(tmp_path) == longer


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_a_folder_and_back(kind, tmp_path):
    model = ready(kind(CONFIG, seed=2))
    model.save_pretrained(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        back = kind.from_pretrained(tmp_path, complete=True)
    assert back.config == model.config
    for (name, one), (same, other) in zip(model.named_parameters(), back.named_parameters(), strict=True):
        assert name == same and np.array_equal(one.value, other.value)
    before, after = (m.forward(**BATCH, **CLASSES[kind])[0] for m in (model, back))
    assert np.array_equal(before.last_hidden_state, after.last_hidden_state)


def test_a_classifier_begins_from_a_pretrained_folder_with_a_new_head(tmp_path, capsys):
    language = ready(xlnet.XLNetLMHeadModel(CONFIG))
    language.save_pretrained(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = xlnet.XLNetForSequenceClassification.from_pretrained(tmp_path)
    assert "begins with a new classifier" in capsys.readouterr().err
    before, after = (m.forward(**BATCH)[0].last_hidden_state for m in (language, model))
    assert np.array_equal(before, after)

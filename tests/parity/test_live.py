"""Ours against transformers, live, on models and batches drawn afresh in each run.

The environment variable PARITY_SEED repeats a run.
"""

import random
from dataclasses import replace

import numpy as np
import pytest
from parity.cases import TASK_MODELS, VARIANTS, Case, difference, draw_batch, of_family
from parity.ours import our_model, our_results

from minibert.train.optimiser import AdamW
from minibert.train.schedule import SCHEDULES
from minibert.train.step import TrainingStep

pytest.importorskip("torch", reason="compares with torch, which is not installed")
pytest.importorskip("transformers", reason="compares with transformers, which is not installed")
from parity.reference import forward, reference_model, reference_results, train

MODELS = ["BertForPreTraining", "BertForMaskedLM", "BertForNextSentencePrediction", "BertModel"]
MODELS += TASK_MODELS
WITHOUT_PADDING = ["BertModel", *TASK_MODELS]  # pre-training computes it
STEPS = 20


def random_case(rng: random.Random, model: str, **config) -> Case:
    """A model of any shape that stays small, and a batch for it."""
    heads = rng.randint(1, 6)
    length = rng.randint(2, 48)
    causal = model == "BertModel" and rng.random() < 0.5
    sizes = {
        "vocab_size": rng.randint(20, 3000),
        "num_hidden_layers": rng.randint(1, 4),
        "hidden_size": heads * rng.randint(-(-16 // heads), 16),
        "num_attention_heads": heads,
        "intermediate_size": rng.randint(8, 80),
        "max_position_embeddings": length + rng.randint(0, 20),
        "type_vocab_size": rng.randint(1, 3),
        "hidden_act": rng.choice(["gelu", "gelu_new", "relu", "tanh"]),
        "layer_norm_eps": 10.0 ** rng.randint(-12, -3),
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "is_decoder": causal,
    }
    if model.endswith("ForTokenClassification"):
        sizes["num_labels"] = rng.randint(2, 5)
    elif model.endswith("ForSequenceClassification"):
        sizes["num_labels"] = rng.randint(1, 5)  # one is a regression; others, too, if asked for
        sizes["problem_type"] = rng.choice([None, None, "regression"])
    # of a few numbers ReLU may leave one, whose layer normalisation has no gradient but rounding
    few = 16 if sizes["hidden_act"] == "relu" else 4
    sizes = of_family(model, sizes, embedding_size=rng.choice([sizes["hidden_size"], rng.randint(few, 24)]))
    padding = "right" if causal else rng.choice(["right", "holes"])
    return Case(model, rng.getrandbits(31), rng.randint(1, 5), length, padding, sizes | config)


def draw(parity, *what, **config) -> Case:
    """This run's own case for a test, its model first in ``what``; printed, for when the test fails."""
    case = random_case(random.Random(f"{parity.seed} {what}"), what[0], **config)
    print(f"PARITY_SEED={parity.seed}", case)
    return case


@pytest.mark.parametrize("number", range(6))
@pytest.mark.parametrize("model", [*MODELS, *VARIANTS])
def test_forward_and_backward_in_float64(model, number, parity):
    case = draw(parity, model, number)
    batch = draw_batch(case)
    ours = our_results(our_model(case, "float64"), batch)
    theirs = reference_results(reference_model(case, "float64"), batch)
    parity.compare("live, float64", ours, theirs, 1e-10)


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize(
    "model", [*WITHOUT_PADDING, *(name for name in VARIANTS if "Classification" in name)]
)
def test_padding_left_out(model, number, parity):
    """The same at every real token, and the same gradients, though ours never computes padding."""
    case = draw(parity, model, "without padding", number, is_decoder=False)
    batch = draw_batch(case)
    real = batch["attention_mask"] > 0
    ours = our_results(our_model(case, "float64"), batch, padding=False)
    theirs = reference_results(reference_model(case, "float64"), batch)
    sides = (
        {name: side[name][real] if side[name].shape[:2] == real.shape else side[name] for name in ours}
        for side in (ours, theirs)
    )
    parity.compare("live, float64, without padding", *sides, 1e-10)


@pytest.mark.parametrize("act", ["gelu", "gelu_new", "tanh"])  # relu has a jump: rounding picks its side
@pytest.mark.parametrize("model", MODELS)
def test_forward_and_backward_in_float32(model, act, parity):
    """Against the exact numbers. Some gradients are sums that cancel, where float32 loses digits on both
    sides: what transformers itself gets wrong by more than 1e-6, ours may get wrong by ten times as much.
    """
    case = draw(parity, model, act, "float32", hidden_act=act)
    batch = draw_batch(case)
    if "next_sentence_label" in batch:  # its bias has but two numbers, where the errors' ratio is a gamble:
        batch["next_sentence_label"][:] = 1  # no sum of different signs here
    ours = our_results(our_model(case, "float32"), batch)
    theirs = reference_results(reference_model(case, "float32"), batch)
    exact = reference_results(reference_model(case, "float64"), batch)
    assert ours.keys() == exact.keys()
    their_error = {name: difference(name, theirs[name], exact[name]) for name in exact}
    cancelling = {name for name, error in their_error.items() if error > 1e-6}
    for name in cancelling:
        ratio = difference(name, ours[name], exact[name]) / their_error[name]
        parity.hold("live, float32, where sums cancel", "times transformers' error", ratio, 10)
    ours, exact = ({name: side[name] for name in side.keys() - cancelling} for side in (ours, exact))
    parity.compare("live, float32", ours, exact, 1e-5)


@pytest.mark.parametrize("model", ["BertForPreTraining", "BertForMaskedLM"])
def test_logits_everywhere_without_labels(model, parity):
    case = draw(parity, model, "without labels")
    batch = {name: a for name, a in draw_batch(case).items() if "label" not in name}
    ours, _ = our_model(case, "float64").forward(**batch)
    theirs = forward(reference_model(case, "float64"), batch)
    logits = theirs.logits if model == "BertForMaskedLM" else theirs.prediction_logits
    parity.compare(
        "live, float64",
        {"prediction_logits": ours.prediction_logits},
        {"prediction_logits": logits.detach().numpy()},
        1e-10,
    )


def test_only_the_look_up_of_id_0_differs(parity):
    """transformers drops the gradient that id 0 gets from being looked up; ours keeps it. Nothing else."""
    case = draw(parity, "BertForPreTraining", "id 0")
    batch = draw_batch(case)
    batch["input_ids"][0, 0] = 0
    ours = our_results(our_model(case, "float64"), batch)
    theirs = reference_results(reference_model(case, "float64"), batch)
    words = "gradient bert.embeddings.word_embeddings.weight"
    assert difference(words, ours[words][0], theirs[words][0]) > 1e-6
    ours[words][0] = theirs[words][0]
    parity.compare("live, float64", ours, theirs, 1e-10)


@pytest.mark.parametrize(
    ("model", "head"),
    [
        ("BertForSequenceClassification", {"num_labels": 3, "problem_type": None}),
        ("BertForSequenceClassification", {"num_labels": 1, "problem_type": None}),
        ("BertForTokenClassification", {"num_labels": 5}),
        ("BertForQuestionAnswering", {}),
    ],
)
def test_twenty_steps_of_fine_tuning(model, head, parity):
    """The same weights and batches, both trained as transformers is by default: AdamW, a linear schedule.

    Ours takes a batch in up to three micro-batches, theirs as a whole.
    """
    case = replace(draw(parity, model, "fine-tuning", **head), batch_size=6)
    batches = [draw_batch(replace(case, seed=case.seed + step)) for step in range(STEPS)]
    recipe = {"eps": 1e-8, "weight_decay": 0.01, "clip_norm": 1.0, "bias_correction": True}
    plan = {"warmup": 2, "peak": 1e-3}

    theirs = reference_model(case, "float64")
    their_losses = train(theirs, batches, "triangle", betas=(0.9, 0.999), **plan, **recipe)
    ours = our_model(case, "float64")
    training, our_losses = TrainingStep(ours, AdamW(ours, **recipe)), []
    for step, batch in enumerate(batches):
        pieces = micro_batches(batch, random.Random(case.seed + step).choice([2, 3, 6]))
        training.take(pieces, SCHEDULES["triangle"](step, STEPS, **plan), step)
        our_losses.append(training.read()["loss"])
    largest = np.max(np.abs(np.divide(our_losses, their_losses) - 1))
    parity.hold(f"live, {STEPS} steps of fine-tuning", "losses", largest, 1e-9)


@pytest.mark.parametrize("bias_correction", [False, True])
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("model", MODELS[:3])
def test_twenty_steps(model, schedule, bias_correction, parity):
    """The same weights and batches, both trained: the losses on the way, and the weights at the end.

    Ours takes a batch in up to three micro-batches, theirs as a whole.
    """
    case = replace(draw(parity, model, schedule, bias_correction), batch_size=6)
    rng = random.Random(case.seed)
    recipe = {
        "eps": rng.choice([1e-6, 1e-8]),
        "weight_decay": rng.choice([0.01, 0.1]),
        "clip_norm": rng.choice([0.1, 1.0, 100.0]),
        "bias_correction": bias_correction,
    }
    beta1, beta2 = rng.choice([0.8, 0.9]), rng.choice([0.98, 0.999])
    plan = {"warmup": rng.randint(0, 10), "peak": 10 ** rng.uniform(-4, -2)}
    print(recipe, beta1, beta2, plan)
    batches = [draw_batch(replace(case, seed=case.seed + step)) for step in range(STEPS)]

    theirs = reference_model(case, "float64")
    their_losses = train(theirs, batches, schedule, betas=(beta1, beta2), **plan, **recipe)
    ours = our_model(case, "float64")
    optimiser = AdamW(ours, beta1=beta1, beta2=beta2, **recipe)
    training, our_losses = TrainingStep(ours, optimiser), []
    for step, batch in enumerate(batches):
        pieces = micro_batches(batch, rng.choice([2, 3, 6]))
        training.take(pieces, SCHEDULES[schedule](step, STEPS, **plan), step)
        our_losses.append(training.read()["loss"])

    where = f"live, {STEPS} steps, " + ("bias-corrected" if bias_correction else "not bias-corrected")
    our_weights = {f"final_weights {name}": p.value for name, p in ours.named_parameters()}
    their_weights = {f"final_weights {name}": p.detach().numpy() for name, p in theirs.named_parameters()}
    largest = np.max(np.abs(np.divide(our_losses, their_losses) - 1))
    parity.hold(where, "losses", largest, 1e-9)
    parity.compare(where, our_weights, their_weights, 1e-8)


def micro_batches(batch: dict, size: int) -> list[dict]:
    """The batch in pieces of so many sequences."""
    rows = len(batch["input_ids"])
    return [{name: a[i : i + size] for name, a in batch.items()} for i in range(0, rows, size)]

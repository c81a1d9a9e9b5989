"""How likely a sentence is, against minicons, live: both scorings, in float64, on a model drawn afresh."""

import random

import numpy as np
import pytest

from minibert.bert import BertForMaskedLM
from minibert.data.tasks import RECIPES
from minibert.tasks import pseudo_log_likelihoods
from minibert.tasks.likelihood import SCORINGS
from minibert.text import learn_tokenizer, open_tokenizer
from minibert.variants import FAMILIES, open_model

PAIRS = 60  # drawn from BLiMP


@pytest.fixture(scope="module", params=["bert", "roberta", "albert"])
def folder(request, parity, shared_data, tmp_path_factory):
    """A model with random weights that are large enough for sentences to differ.

    Its vocabulary is small, so that many words have several pieces.
    """
    if request.param == "bert":
        tokenizer = open_tokenizer("mini")
    else:
        pairs = RECIPES["blimp"].read(shared_data / "blimp" / "BLiMP.zip")
        tokenizer = learn_tokenizer(request.param, [pair.good for pair in pairs[::100]], 600)
    members = FAMILIES[request.param]
    config = members.config.preset(
        "tiny", vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_id, initializer_range=0.3
    )
    folder = tmp_path_factory.mktemp("model")
    members.models[BertForMaskedLM](config, seed=parity.seed).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("scoring", SCORINGS)
def test_pseudo_log_likelihoods(parity, shared_data, folder, scoring):
    scorer = pytest.importorskip("minicons.scorer", reason="compares with minicons, which is not installed")
    pairs = RECIPES["blimp"].read(shared_data / "blimp" / "BLiMP.zip")
    pairs = random.Random(parity.seed).sample(pairs, PAIRS)
    sentences = [text for pair in pairs for text in (pair.good, pair.bad)]
    model, tokenizer = open_model(BertForMaskedLM, folder, dtype="float64"), open_tokenizer(folder)
    ours = pseudo_log_likelihoods(model, tokenizer, sentences, scoring=scoring)
    reference = scorer.MaskedLMScorer(str(folder), "cpu", dtype="float64")
    # the name by which minicons 0.3.39 calls a tokenizer; transformers 5 has dropped it
    reference.tokenizer.batch_encode_plus = reference.tokenizer
    theirs = reference.sequence_score(
        sentences, reduction=lambda scores: scores.double().sum(0).item(), PLL_metric=scoring
    )
    assert np.std(theirs) > 10  # the sentences do differ
    parity.hold(
        f"BLiMP, {model.config.model_type}, {scoring}, minicons",
        "PLL, largest relative difference",
        float(np.max(np.abs(ours / np.array(theirs) - 1))),
        1e-7,  # minicons rounds each token's log p to float32: by 6e-8 of it at most
    )

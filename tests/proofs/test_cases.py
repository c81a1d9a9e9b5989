"""Every hand-written derivative of the package against numeric ones, on every array library."""

import pytest

from minibert.bert import BertForMaskedLM, BertForNextSentencePrediction, BertForPreTraining
from minibert.devices import Device, resolve_device
from minibert.gradcheck import CENTRAL_DIFFERENCES, COMPLEX_STEP, Case, check, check_adjoint
from minibert.heads import BertForQuestionAnswering, BertForSequenceClassification, BertForTokenClassification
from minibert.proofs import all_cases
from minibert.proofs.models import output_cases
from minibert.proofs.small_bert import CONFIG
from minibert.proofs.variants import variant_cases
from minibert.proofs.xlnet import xlnet_cases

NAMES = [case.what.strip() for case in all_cases(resolve_device("cpu"))]
# The complex step is the sharper proof and the quicker one. Central differences, which would also notice an
# operation that is not analytic, are made of every operation, every layer and one model; by
# `minibert gradcheck` of all.
WITH_CENTRAL = NAMES.index("BertForPreTraining") + 1
MODELS = [
    BertForPreTraining,
    BertForMaskedLM,
    BertForNextSentencePrediction,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertForQuestionAnswering,
]
XLNETS = len(xlnet_cases(resolve_device("cpu")))
DESCENDANTS = len(variant_cases(resolve_device("cpu")))  # the others
LOSSES = len(NAMES) - len(output_cases(resolve_device("cpu"))) - DESCENDANTS - XLNETS


@pytest.fixture(scope="module")
def cases(device: Device) -> list[Case]:
    return all_cases(device)


@pytest.mark.parametrize(
    ("number", "method"),
    [
        pytest.param(number, method, id=f"{method.name}-{name}")
        for method, count in ((CENTRAL_DIFFERENCES, WITH_CENTRAL), (COMPLEX_STEP, len(NAMES)))
        for number, name in enumerate(NAMES[:count])
    ],
)
def test_hand_written_derivative_equals_the_numeric_one(number, method, cases, gradient_cases):
    case = cases[number]  # the same numbers were drawn, and all libraries must agree
    rows = check(case, method, gradient_cases[number])
    assert len(rows) == len(case.variables)
    assert [str(row) for row in rows if not row.ok] == []


@pytest.mark.parametrize("number", range(len(NAMES)), ids=NAMES)
def test_backward_is_the_transpose_of_the_derivative(number, cases, gradient_cases):
    row = check_adjoint(cases[number], gradient_cases[number])
    assert row.ok, str(row)


def test_nothing_is_let_off_as_zero_but_what_a_softmax_takes_out_and_an_unused_head(gradient_cases):
    losses = gradient_cases[:LOSSES]
    zeros = {(case.what.strip(), name) for case in losses for name in case.zeros}
    others = {(what, name) for what, name in zeros if not name.endswith("key.bias")}
    answers = "BertForQuestionAnswering"
    spans = {(what, name) for what, name in others if what.startswith(answers)}
    assert spans == {
        (answers, "qa_outputs.bias"),
        (answers, "bert.encoder.layer.1.output.LayerNorm.bias"),
        (f"{answers}, from two layers", "qa_outputs.bias"),
    }
    unused = {(what, name) for what, name in others if "pooler" in name or "relationship" in name}
    assert {what for what, _ in unused} == {"no sentence pairs"}
    assert len(others) == len(spans) + len(unused)


def test_nothing_of_the_descendants_is_let_off_but_what_a_softmax_takes_out(gradient_cases):
    descendants = gradient_cases[-DESCENDANTS - XLNETS : -XLNETS]
    zeros = {(case.what.strip(), name) for case in descendants for name in case.zeros}
    assert {(what, name) for what, name in zeros if not name.endswith("key.bias")} == {
        ("answers", "qa_outputs.bias"),
        ("answers", "bert.encoder.layer.1.output.LayerNorm.bias"),
    }


def test_nothing_of_xlnet_is_let_off_but_an_unused_query_and_what_a_softmax_takes_out(gradient_cases):
    zeros = {(case.what, name) for case in gradient_cases[-XLNETS:] for name in case.zeros}
    assert {name.rpartition("embeddings.")[2] for _, name in zeros} == {"mask_emb", "qa_outputs.bias"}
    assert "XLNetLMHeadModel" not in {what for what, _ in zeros}  # which has both streams


def test_with_all_outputs_every_parameter_counts(gradient_cases):
    everything = [case for case in gradient_cases if case.what.endswith("all outputs")]
    assert len(everything) == 10
    assert all("key.bias" in name for case in everything for name in case.zeros)


def test_every_parameter_of_every_model_is_compared(gradient_cases):
    compared = {case.what: set(case.variables) for case in gradient_cases}
    for kind in MODELS:
        assert compared[kind.__name__] == {name for name, _ in kind(CONFIG).named_parameters()}
    assert len(compared["BertForPreTraining"]) == 5 + 2 * 16 + 2 + 5 + 2  # embeddings, layers, pooler, heads

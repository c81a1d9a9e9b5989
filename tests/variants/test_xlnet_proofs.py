"""XLNet's hand-written derivatives against numeric ones; wrong versions of them must be noticed."""

import numpy as np
import pytest
from mutants import backward_functions, mutants
from test_mutants import exercise, first_verdict

from minibert.devices import Device, resolve_device
from minibert.gradcheck import CENTRAL_DIFFERENCES, COMPLEX_STEP, Case, check, check_adjoint
from minibert.proofs.xlnet import xlnet_cases

NAMES = [case.what.strip() for case in xlnet_cases(resolve_device("cpu"))]
WITH_CENTRAL = NAMES.index("XLNetLMHeadModel") + 1
# Enough to notice every mutant; each is small or has what no other has.
FOR_MUTANTS = [
    "XLNetEmbeddings",
    "HeadMap",
    "back",
    "XLNetSelfAttention",
    "XLNetOutput",
    "LastTokenClassifier",
]
FOR_MUTANTS += ["from two layers", "XLNetLMHeadModel", "XLNetForSequenceClassification"]
FOR_MUTANTS += ["XLNetLMHeadModel, inputs_embeds"]


@pytest.fixture(scope="module")
def on_host() -> list[Case]:
    return xlnet_cases(resolve_device("cpu"))


@pytest.fixture(scope="module")
def cases(device: Device) -> list[Case]:
    return xlnet_cases(device)


@pytest.mark.parametrize(
    ("number", "method"),
    [
        pytest.param(number, method, id=f"{method.name}-{name}")
        for method, count in ((CENTRAL_DIFFERENCES, WITH_CENTRAL), (COMPLEX_STEP, len(NAMES)))
        for number, name in enumerate(NAMES[:count])
    ],
)
def test_hand_written_derivative_equals_the_numeric_one(number, method, cases, on_host):
    rows = check(cases[number], method, on_host[number])
    assert len(rows) == len(cases[number].variables)
    assert [str(row) for row in rows if not row.ok] == []


@pytest.mark.parametrize("number", range(len(NAMES)), ids=NAMES)
def test_backward_is_the_transpose_of_the_derivative(number, cases, on_host):
    row = check_adjoint(cases[number], on_host[number])
    assert row.ok, str(row)


def test_nothing_is_let_off_as_zero_but_an_unused_query_and_what_a_softmax_takes_out(
    on_host,
):
    zeros = {name.rpartition("embeddings.")[2] for case in on_host for name in case.zeros}
    assert zeros == {"mask_emb", "qa_outputs.bias"}
    two_streams = [case for case in on_host if case.what.strip() in ("XLNetLMHeadModel", "all outputs")]
    assert len(two_streams) == 2 and not any(list(case.zeros) for case in two_streams)


def test_no_wrong_version_of_a_backward_survives(on_host):
    chosen = [case for case in on_host if case.what.strip() in FOR_MUTANTS]
    assert len(chosen) == len(FOR_MUTANTS)
    survivors, made = [], 0
    for backward in backward_functions(["variants"]):
        if "xlnet" in backward.file:
            exercised = exercise(chosen, backward)
            assert exercised, backward
            for mutant in mutants(backward):
                made += 1
                if not first_verdict(exercised, mutant):
                    survivors.append(str(mutant))
    assert survivors == []
    assert made > 500
    assert all(np.isfinite(x).all() for case in chosen for x in case.variables.values())

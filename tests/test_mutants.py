"""The checker is checked: it has to notice when our own backward functions are made wrong, in every way."""

import ast
import copy
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType

import numpy as np
import pytest
from mutants import Backward, Mutant, backward_functions, compiled, mutants, put_in_place

from minibert.gradcheck import COMPLEX_STEP, Case, check

EQUIVALENTS = Path(__file__).with_name("equivalent_mutants.txt")


@dataclass
class Outcome:
    """What became of the mutants of one function."""

    backward: Backward
    wrong_number: int = 0  # killed by a row of the table
    raised: int = 0  # killed by an exception on the way
    survivors: list[Mutant] = field(default_factory=list)


def exercise(cases: list[Case], backward: Backward) -> list[Case]:
    """The cases that call this function at all: those that notice when it raises."""
    tripwire = copy.copy(backward.tree)
    tripwire.body = ast.parse("raise AssertionError('reached')").body
    code = compiled(backward, tripwire)
    return [case for case in cases if verdict(case, backward, code) == "raised"]


def verdict(case: Case, backward: Backward, code: CodeType) -> str:
    """What the checker says of a case while ``code`` runs in place of the function: "" if all is well."""
    before = {name: x.copy() for name, x in case.variables.items()}
    try:
        with put_in_place(backward.function, code), np.errstate(all="ignore"):
            return "" if all(row.ok for row in check(case, COMPLEX_STEP)) else "wrong number"
    except Exception:
        return "raised"
    finally:
        for name, x in case.variables.items():
            x[...] = before[name]


def first_verdict(cases: list[Case], mutant: Mutant) -> str:
    verdicts = (verdict(case, mutant.of, mutant.code) for case in cases)
    return next((found for found in verdicts if found), "")


@pytest.fixture(scope="module")
def outcomes(gradient_cases) -> list[Outcome]:
    """Every mutant of every backward function, put in place and run through the cases that exercise it."""
    results = []
    for backward in backward_functions():
        outcome = Outcome(backward)
        cases = exercise(gradient_cases, backward)
        for mutant in mutants(backward):
            found = first_verdict(cases, mutant)
            outcome.raised += found == "raised"
            outcome.wrong_number += found == "wrong number"
            if not found:
                outcome.survivors.append(mutant)
        results.append(outcome)
    return results


def equivalents() -> dict[str, str]:
    """The mutants that compute the same thing as the original, each with its proof."""
    blocks = EQUIVALENTS.read_text(encoding="utf-8").strip().split("\n\n")
    return dict(block.rsplit("\n", 1) for block in blocks)


def test_only_the_mutants_proven_equivalent_survive(outcomes):
    survivors = {str(mutant) for outcome in outcomes for mutant in outcome.survivors}
    assert survivors == set(equivalents())


def test_thousands_are_made_and_killed_and_over_a_thousand_by_their_numbers(outcomes):
    wrong_number = sum(outcome.wrong_number for outcome in outcomes)
    raised = sum(outcome.raised for outcome in outcomes)
    survived = sum(len(outcome.survivors) for outcome in outcomes)
    made = wrong_number + raised + survived
    print(
        f"{len(outcomes)} backward functions, {made} mutants: {wrong_number} killed by a wrong number, "
        f"{raised} by an exception, {survived} survived"
    )
    assert made > 2500
    assert wrong_number > 1000
    assert survived == len(equivalents()) < 0.01 * made


def test_every_backward_function_is_exercised(outcomes):
    assert [str(o.backward) for o in outcomes if o.wrong_number + o.raised == 0] == []
    names = {outcome.backward.function.__name__ for outcome in outcomes}
    assert {"layer_norm_backward", "attention_backward", "add_grad", "backward"} <= names


def test_every_equivalent_has_a_proof():
    for mutant, proof in equivalents().items():
        assert len(mutant.split("\n")) == 3
        assert proof.endswith(".")
        assert not proof.startswith(("+", "-"))


def test_nothing_is_left_of_the_mutants(outcomes, gradient_cases):
    assert all(row.ok for case in gradient_cases for row in check(case, COMPLEX_STEP))


# -- The generator ----------------------------------------------------------------------------------


def example(x, dout, cache):
    y, scale = cache
    dx = -dout * y + x.sum(axis=1)
    dx += dout @ y.T
    return dx / scale, y[:, 0]


def versions_of_example() -> list[str]:
    source = ast.parse(
        "def example(x, dout, cache):\n"
        "    y, scale = cache\n"
        "    dx = -dout * y + x.sum(axis=1)\n"
        "    dx += dout @ y.T\n"
        "    return dx / scale, y[:, 0]\n"
    )
    return [mutant.after for mutant in mutants(Backward("here", "example", source.body[0], example))]


@pytest.mark.parametrize(
    "wrong",
    [
        "dx = -dout * y",  # a dropped term
        "dx = x.sum(axis=1)",
        "dx = -dout * y - x.sum(axis=1)",  # a sign
        "dx = dout * y + x.sum(axis=1)",
        "dx = -dout + x.sum(axis=1)",  # a forgotten factor
        "dx = -dout / y + x.sum(axis=1)",
        "dx = -dout * scale + x.sum(axis=1)",  # a wrong factor
        "dx = (-dout * y + x.sum(axis=1)) * 1.001",  # a scale
        "dx = -dout * y + x.sum(axis=2)",  # an axis
        "dx = -dout * y + x.sum()",
        "dx = -dout * y + x.mean(axis=1)",
        "dx = dout @ y.T",  # = for +=
        "dx -= dout @ y.T",
        "dx += dout @ y",  # a transpose
        "dx += y.T @ dout",  # the product the other way round
        "return (dx * scale, y[:, 0])",
        "return (dx / scale, y[:, 1])",  # an index
        "return (dx / scale, y)",
        "return (y[:, 0], dx / scale)",  # results in the wrong order
        "scale, y = cache",
    ],
)
def test_the_generator_makes_every_kind_of_mistake(wrong):
    assert wrong in versions_of_example()


def test_a_mutant_runs_only_while_it_is_in_place():
    def right(x):
        return x + 1

    tree = ast.parse("def right(x):\n    return x - 1").body[0]
    code = compiled(Backward("here", "right", tree, right), tree)
    with put_in_place(right, code):
        assert right(1) == 0
    assert right(1) == 2

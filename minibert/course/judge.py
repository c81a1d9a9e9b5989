"""Judging what a learner wrote: against the numeric gradient, against the library, against known mistakes."""

import copy
import functools
import inspect
import itertools
import re
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from minibert import ops
from minibert.course.exercise import EXERCISES, Exercise, Mistake, Trial, flat_outputs, nested
from minibert.course.result import Result, Row, Verdict
from minibert.errors import UserError, did_you_mean
from minibert.gradcheck import RELATIVE_BOUND, describe_difference, relative_distance

# Where the values are at fault, and hints are about values.
WRONG_VALUES = {Verdict.FAIL, Verdict.WRONG_SHAPE, Verdict.NOT_A_NUMBER}
NEARLY_RIGHT = 1e-6  # relative error: a mistake in the formula is never so small, rounding in float32 is


# -- check ------------------------------------------------------------------------------------------

_failures: Counter[str] = Counter()  # failed calls of each exercise since it was last passed


def check(name: str, answer: Any) -> Result:
    """Judge a learner's ``answer`` to the exercise ``name``, such as "05.layer_norm_backward".

    The answer is a function, or, where something is asked that no function answers, the thing itself. A
    function that raises NotImplementedError, ``...`` and anything that holds ``...`` are not attempted yet.

    Prints a table with a row for each output, and below it what seems to be wrong: a registered mistake if
    its numbers are the same, else a hint that says more with every failing call, up to three. Returns the
    same as a ``Result``.

    Raises UserError for a name that is no exercise's, and for no function where one is to be written.
    """
    exercise = _find(name)
    with ops.reference_only():
        rows, answers = _judge_all(exercise, answer)
        mistakes, in_order = _recognise(exercise, answers), not _in_another_order(exercise, answers)
    if in_order:
        hints = _hints(exercise, rows, mistakes)
    else:  # numbers in the wrong place say nothing about how they were made
        rows, mistakes = [replace(row, note="") for row in rows], []
        hints = [f"All outputs are right, but in another order: return {exercise.form}."]
    if exercise.in_order:
        rows = _only_the_first_note(rows)
    names = [mistake.name for mistake in mistakes]
    result = Result(name, rows, names, hints, exercise.independent)
    print(result)
    return result


def _only_the_first_note(rows: list[Row]) -> list[Row]:
    """The rows, of which only the first that is wrong says why: the others may follow from it."""
    wrong = [row for row in rows if row.verdict in WRONG_VALUES]
    if len(wrong) < 2:
        return rows
    first = replace(wrong[0], note=f"The first difference is in {wrong[0].name}. {wrong[0].note}")
    return [first if row is wrong[0] else replace(row, note="") for row in rows]


def passes(name: str, answer: Any) -> bool:
    """Whether ``check`` would pass this answer. Prints nothing and counts nothing. Raises as ``check``."""
    with ops.reference_only():
        rows, _ = _judge_all(_find(name), answer)
    return all(row.verdict is Verdict.PASS for row in rows)


def both(forward: Callable, backward: Callable) -> Callable:
    """One function for ``check`` out of two that share a cache of any form.

    (dout, *inputs) → (y, *gradients), where y, cache = forward(*inputs) and backward(dout, cache) returns
    the gradients.
    """

    @functools.wraps(forward)
    def run(dout: Any, *inputs: Any) -> tuple:
        y, cache = forward(*inputs)
        gradients = backward(dout, cache)
        return y, *(gradients if isinstance(gradients, tuple | list) else (gradients,))

    return run


def _judge_all(exercise: Exercise, answer: Any) -> tuple[list[Row], list[tuple | None]]:
    """A row for each output of each trial, and what the answer returned in each trial, if it did."""
    rows: list[Row] = []
    answers: list[tuple | None] = []
    call: Call | None = None
    if not callable(answer) and answer is not ... and exercise.trials[0].arguments:
        raise UserError(f"{exercise.name}: expected the function that you wrote, got {_describe(answer)}")
    for trial, expected in zip(exercise.trials, exercise.expected, strict=True):
        if call is None or call.verdict is not Verdict.STOPPED:  # who stops one call stops them all
            call = _call(answer, exercise, trial)
        rows += _judge(exercise, trial, call, expected)
        answers.append(call.outputs)
    return rows, answers


def _find(name: str) -> Exercise:
    if not isinstance(name, str):
        raise UserError(f"expected the name of an exercise first, then your function; got {_describe(name)}")
    if name not in EXERCISES:
        raise UserError(f"there is no exercise {name!r}; {did_you_mean(name, EXERCISES, cutoff=0.4)}")
    return EXERCISES[name]


def _hints(exercise: Exercise, rows: list[Row], mistakes: list[Mistake]) -> list[str]:
    verdicts = {row.verdict for row in rows}
    if verdicts == {Verdict.PASS}:
        del _failures[exercise.name]
        return []
    if not mistakes and not verdicts & WRONG_VALUES:
        return []
    _failures[exercise.name] += 1
    if mistakes:
        return [f"Recognised: {mistake.hint}" for mistake in mistakes]
    outputs = itertools.cycle(exercise.outputs)  # in the order of the rows
    hints = exercise.hints_about(
        {output for row, output in zip(rows, outputs, strict=False) if row.verdict in WRONG_VALUES}
    )
    level = min(_failures[exercise.name], len(hints))
    return [f"Hint {level} of {len(hints)}: {hints[level - 1]}"]


# -- Calling the function -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Call:
    """What became of one call: the outputs, if it returned them, or what is wrong with it as a whole."""

    arguments: dict[str, Any]
    outputs: tuple | None
    verdict: Verdict = Verdict.PASS
    note: str = ""


def _call(answer: Any, exercise: Exercise, trial: Trial) -> Call:
    arguments = copy.deepcopy(trial.arguments)
    try:
        value = answer(*arguments.values()) if callable(answer) else answer
    except NotImplementedError:
        return Call(arguments, None, Verdict.NOT_ATTEMPTED)
    except Exception as error:
        note = f"{type(error).__name__}: {_in_words(error)}{_where(error, answer)}{_cause(error, answer)}"
        return Call(arguments, None, Verdict.RAISES, note)
    except KeyboardInterrupt as error:
        note = f"You stopped it{_where(error, answer)}. Does every loop come to an end?"
        return Call(arguments, None, Verdict.STOPPED, note)
    if any(leaf is ... for _, leaf in _leaves(value)):
        return Call(arguments, None, Verdict.NOT_ATTEMPTED)
    wanted = exercise.outputs
    if value is None:
        return Call(arguments, None, Verdict.WRONG_TYPE, "It returned None: is a return missing at its end?")
    if isinstance(value, np.ndarray) and value.shape == (len(wanted),) != (1,):
        value = tuple(value)  # several numbers in one array, as np.quantile returns them
    outputs: tuple
    if len(wanted) == 1:
        outputs = (value,)
    elif isinstance(value, tuple | list) and len(flat := flat_outputs(value, wanted)) == len(wanted):
        outputs = flat
        if (form := nested(value, wanted)) != exercise.form:
            note = f"What it returned is {form}, expected {exercise.form}: mind the parentheses."
            return Call(arguments, None, Verdict.WRONG_FORM, note)
        if exercise.secret:  # answers in words, whose capitals mean nothing
            outputs = tuple(word.lower() if isinstance(word, str) else word for word in outputs)
    else:
        note = _wrong_count("What it returned" if callable(answer) else "The answer", value, exercise)
        return Call(arguments, None, Verdict.WRONG_COUNT, note)
    if changed := _changed(trial.arguments, arguments):
        note = f"It changed {changed}, which its caller may still need: work on a copy, or make a new array."
        return Call(arguments, outputs, Verdict.OVERWRITES, note)
    return Call(arguments, outputs)


def _wrong_count(what: str, value: Any, exercise: Exercise) -> str:
    """What to say of an answer with other outputs than those that are wanted."""
    wanted = exercise.outputs
    tables = [item for item in value if isinstance(item, dict)] if isinstance(value, tuple | list) else []
    there = {name for table in tables for name in table}
    if there & set(wanted):
        missing = ", ".join(name for name in wanted if "." in name and name not in there)
        return f"{what} lacks {missing or 'an output'}; expected {len(wanted)} outputs in all."
    return f"{what} is {_describe(value)}, expected {exercise.form}."


def _own_line(error: BaseException, function: Callable) -> tuple[dict[str, np.ndarray], str, int] | None:
    """The last line of the learner's own code that led to an error: arrays that stand in it, text, number."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    frames = traceback.walk_tb(error.__traceback__)
    lines = traceback.extract_tb(error.__traceback__)
    own = [
        (frame.f_locals, line)
        for (frame, _), line in zip(frames, lines, strict=True)
        if code is not None and line.filename == code.co_filename
    ]
    if not own:
        return None
    values, line = own[-1]
    text = line.line or ""
    names = dict.fromkeys(re.findall(r"\w+", text))  # each once
    arrays = {name: values[name] for name in names if isinstance(values.get(name), np.ndarray)}
    return arrays, text, line.lineno or 0


def _where(error: BaseException, function: Callable) -> str:
    """The learner's own line, with the shapes of the arrays in it; empty if there is none."""
    if not (own := _own_line(error, function)):
        return ""
    arrays, text, number = own
    shapes = [f"{name} {array.shape}" for name, array in arrays.items()]
    return f" (line {number}: {'; '.join([text, *shapes])})"


PRODUCT = re.compile(r"matmul: Input operand 1 has a mismatch.* \(size (\d+) is different from (\d+)\)")
BROADCAST = re.compile(r"operands could not be broadcast together with shapes \((.*?)\) \((.*?)\)")


def _in_words(error: Exception) -> str:
    """What an error says; where NumPy names the axes of a product by letters, in words."""
    if match := PRODUCT.search(str(error)):
        return (
            "in a matrix product the last axis on the left has to be as long as the last but one on the "
            f"right, but they have {match[2]} and {match[1]}"
        )
    return str(error)


def _cause(error: Exception, function: Callable) -> str:
    """A sentence about what often leads to such an error; empty if this is not such a case."""
    arrays, line, _ = _own_line(error, function) or ({}, "", 0)
    for name, array in arrays.items():
        if array.ndim > 2 and re.search(rf"\b{name}\.T\b", line):
            return f". {name}.T turns all axes around; {name}.swapaxes(-1, -2) exchanges the last two."
    if match := BROADCAST.search(str(error)):
        short, long = sorted((part.strip(",").split(",") for part in match.groups()), key=len)
        if any(long[:i] + long[i + 1 :] == short for i in range(len(long))):
            return (
                ". One of the two lacks an axis. If it is a sum, mean or maximum over this axis, say "
                "keepdims=True; otherwise give it the axis, as w[:, None] does."
            )
    if "inhomogeneous shape" in str(error):
        return ". Is one of these the pair (result, cache) that a forward function returns? Unpack it."
    return ""


def _changed(before: dict[str, Any], after: dict[str, Any]) -> str:
    """The first argument, or part of one, that is no longer what it was; empty if there is none."""
    old, new = dict(_leaves(before)), dict(_leaves(after))
    for name in old | new:
        if name not in old or name not in new:
            return name
        if isinstance(old[name], np.ndarray):
            if np.shape(new[name]) != old[name].shape:
                return f"the shape of {name}"
            if not np.array_equal(old[name], new[name], equal_nan=old[name].dtype.kind in "fc"):
                return f"{name} (by up to {np.abs(_difference(new[name], old[name])).max():.1e})"
        elif not _equal(old[name], new[name]):
            return name
    return ""


def _leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """What nested tuples, lists and dictionaries hold, each with the way there: "cache[0]"."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(item, f"{name}[{key!r}]" if name else str(key))
    elif isinstance(value, tuple | list):
        for i, item in enumerate(value):
            yield from _leaves(item, f"{name}[{i}]")
    else:
        yield name, value


# -- Judging the outputs ------------------------------------------------------------------------------


def _judge(exercise: Exercise, trial: Trial, call: Call, expected: tuple) -> Iterator[Row]:
    """A row for each output of one call."""
    for i, output in enumerate(exercise.outputs):
        name = exercise.row_name(output, trial)
        right = _as_array(expected[i])
        if call.outputs is None:
            yield Row(name, call.verdict, *_form(right), note=call.note)
            continue
        got = _as_array(call.outputs[i])
        if isinstance(right, tuple) and isinstance(got, list):
            got = tuple(got)  # both are several things in a row
        row = _judge_output(exercise, name, got, right, trial.independent.get(output))
        if call.verdict is not Verdict.PASS:
            row = replace(row, verdict=call.verdict, note=call.note)
        elif row.verdict is Verdict.PASS and not exercise.views:
            row = _unless_view(row, got, call.arguments)
        elif row.verdict in WRONG_VALUES:
            row = replace(row, note=row.note + _out_of_place(got, exercise.outputs, expected))
        yield row


def _out_of_place(got: Any, outputs: tuple[str, ...], expected: tuple) -> str:
    """A sentence about an array that would be right in the place of another; empty if it would not."""
    for output, right in zip(outputs, expected, strict=True):
        if isinstance(got, np.ndarray) and got.size > 1 and _same(got, right):
            return f" It is what {output} should be: mind the order."
    return ""


def _unless_view(row: Row, got: Any, arguments: dict[str, Any]) -> Row:
    """The row, or its verdict if an array shares its memory with an argument."""
    for name, leaf in _leaves(arguments):
        if isinstance(got, np.ndarray) and isinstance(leaf, np.ndarray) and np.shares_memory(got, leaf):
            note = (
                f"{row.name} is {name} itself or a view of it: a change of one changes both. Return a copy."
            )
            return replace(row, verdict=Verdict.IS_VIEW, note=note)
    return row


def _judge_output(exercise: Exercise, name: str, got: Any, right: Any, independent: np.ndarray | None) -> Row:
    shape, dtype = _form(got)
    row = Row(name, Verdict.PASS, shape, dtype)
    if not isinstance(got, type(right)) or isinstance(got, np.ma.MaskedArray):
        note = f"{name} is {_describe(got)}, expected {_describe(right)}."
        return replace(row, verdict=Verdict.WRONG_TYPE, note=note)
    if not isinstance(right, np.ndarray):
        if _same(got, right):
            return row
        note = "" if exercise.secret else f"{name}: {got!r}, expected {right!r}."
        return replace(row, verdict=Verdict.FAIL, note=note)
    if got.shape != right.shape:
        note = f"{name} has shape {got.shape}, expected {right.shape}."
        return replace(row, verdict=Verdict.WRONG_SHAPE, note=note)
    if got.dtype.kind != right.dtype.kind or (right.dtype.kind == "f" and got.dtype != right.dtype):
        note = f"{name} is {got.dtype}, expected {right.dtype}."
        return replace(row, verdict=Verdict.WRONG_DTYPE, note=note)
    if not np.isfinite(got).all():
        first = np.argwhere(~np.isfinite(got))[0].tolist()
        note = f"{name} has numbers that are NaN or infinite, the first at {first}."
        return replace(row, verdict=Verdict.NOT_A_NUMBER, note=note)
    return _judge_numbers(row, got, right, independent, exercise.bound)


def _judge_numbers(
    row: Row, got: np.ndarray, right: np.ndarray, independent: np.ndarray | None, bound: float
) -> Row:
    """Two finite arrays of the same shape and kind."""
    errors = np.abs(_difference(got, right))
    relative_error = relative_distance(got, right)
    row = replace(
        row,
        largest_error=float(errors.max(initial=0.0)),
        relative_error=relative_error,
        independent_error=None if independent is None else relative_distance(got, independent),
    )
    close = row.independent_error is None or row.independent_error <= RELATIVE_BOUND
    if _same(got, right, bound) and close:
        return row
    if got.dtype.kind == "f" and relative_error <= NEARLY_RIGHT:
        note = (
            f"{row.name} is right to six digits or more, but not to all of float64: is something in it "
            "computed in float32, or a small number added?"
        )
        return replace(row, verdict=Verdict.IMPRECISE, note=note)
    note = describe_difference(row.name, got, right, RELATIVE_BOUND)
    return replace(row, verdict=Verdict.FAIL, note=note)


def _difference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.subtract(a, b, dtype=np.float64)  # also of whole numbers and of truth values


def _as_array(value: Any) -> Any:
    """Single numbers as arrays, so that 0.5, np.float64(0.5) and np.array(0.5) are one, and 0 is 0.0."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return np.asarray(value, dtype=np.float64)
    return np.asarray(value) if isinstance(value, bool | np.generic) else value


def _form(value: Any) -> tuple[str, str]:
    """What the table says of shape and dtype."""
    if isinstance(value, np.ndarray):
        return str(value.shape), str(value.dtype)
    return "", type(value).__name__


def _describe(value: Any) -> str:
    if type(value) is np.ndarray:
        return f"an array of shape {value.shape}"
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    return f"of type {type(value).__name__}"


# -- Recognising mistakes -----------------------------------------------------------------------------


def _recognise(exercise: Exercise, answers: list[tuple | None]) -> list[Mistake]:
    """The mistakes that explain an output: in every trial that gave one it is what the mistake returns."""
    expected, given = _by_output(exercise.expected, answers), _by_output(answers, answers)
    return [
        mistake
        for mistake, mistaken in exercise.mistaken
        if any(
            not _all_same(wrong, right) and _all_same(wrong, answer)
            for wrong, right, answer in zip(_by_output(mistaken, answers), expected, given, strict=True)
        )
    ]


def _in_another_order(exercise: Exercise, answers: list[tuple | None]) -> bool:
    """Whether each output is right in the place of another one, the same in all trials that gave any."""
    expected, given = _by_output(exercise.expected, answers), _by_output(answers, answers)
    places = [next((i for i, right in enumerate(expected) if _all_same(right, got)), -1) for got in given]
    moved = sorted(places) == list(range(len(expected))) != places
    return moved and not exercise.secret  # there it would give the answer away


def _by_output(values: Sequence[tuple | None], answers: Sequence[tuple | None]) -> list[tuple]:
    """From outputs for each trial to trials for each output: those trials that gave an answer."""
    there = [value for value, answer in zip(values, answers, strict=True) if answer is not None]
    return list(zip(*there, strict=True))


def _all_same(a: tuple, b: tuple) -> bool:
    return all(_same(*pair) for pair in zip(a, b, strict=True))


def _same(a: Any, b: Any, bound: float = RELATIVE_BOUND) -> bool:
    """Whether two outputs are equal, numbers to within a relative error: that of the gradient checks."""
    a, b = _as_array(a), _as_array(b)
    if not isinstance(a, np.ndarray) or not isinstance(b, np.ndarray):
        return _equal(a, b)
    if a.shape != b.shape or a.dtype.kind != b.dtype.kind:
        return False
    if a.dtype.kind != "f":
        return np.array_equal(a, b)
    finite = np.isfinite(a)
    return np.array_equal(finite, np.isfinite(b)) and relative_distance(a[finite], b[finite]) <= bound


def _equal(a: Any, b: Any) -> bool:
    try:
        return bool(a == b)
    except ValueError:  # there are arrays in it, where texts or numbers belong
        return False

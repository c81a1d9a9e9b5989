"""What ``check`` says to all that a function may do. The judge is tried on 05.layer_norm_backward."""

import numpy as np
import pytest

import minibert.course.exercise
from minibert import UserError
from minibert.course import EXERCISES, check, judge
from minibert.course.exercise import Trial, exercise

NAME = "05.layer_norm_backward"
SOLUTION = EXERCISES[NAME].solution
HINTS = ("first", "second", "third")


@pytest.fixture(autouse=True)
def first_call():
    judge._failures.clear()


def verdicts(function) -> list[str]:
    return [row.verdict for row in check(NAME, function).rows]


def not_yet(*arguments):
    raise NotImplementedError


def returning(change):
    """The right gradients, changed."""
    return lambda dout, cache: change(*SOLUTION(dout, cache))


def zeros(dout, cache):
    return tuple(np.zeros_like(gradient) for gradient in SOLUTION(dout, cache))


def test_the_table(capsys):
    result = check(NAME, SOLUTION)
    printed = capsys.readouterr().out
    assert printed == f"{result}\n"
    summary, _, heading, dx, dweight, dbias, *of_rows_only = printed.splitlines()
    assert summary == "05.layer_norm_backward: passed"
    assert heading.split() == "output shape dtype largest error relative from numeric verdict".split()
    assert dx.startswith("dx                 (3, 4, 6)  float64")
    assert dweight.startswith("dweight            (6,)       float64")
    assert all(line.endswith("pass") for line in (dx, dweight, dbias, *of_rows_only))
    assert repr(result) == "<05.layer_norm_backward: passed>"


def test_errors_are_those_of_the_answer():
    row = check(NAME, returning(lambda dx, dweight, dbias: (dx, 3.0 * dweight, dbias))).rows[1]
    _, dweight, _ = EXERCISES[NAME].expected[0]
    assert row.verdict == "fail"
    assert row.largest_error == pytest.approx(2.0 * np.abs(dweight).max())
    assert row.relative_error == pytest.approx(0.5)  # |3 − 1| / (3 + 1)
    assert row.independent_error == pytest.approx(0.5)


def test_not_attempted_shows_what_is_asked_for():
    result = check(NAME, not_yet)
    assert not result.passed
    assert repr(result) == "<05.layer_norm_backward: not attempted>"
    assert result.rows[0].cells() == [
        "dx",
        "(3, 4, 6)",
        "float64",
        *[""] * 3,
        "not attempted",
    ]
    assert not result.hints


@pytest.mark.parametrize(
    "change, verdict, note",
    [
        (lambda dx, dw, db: (dx.tolist(), dw, db), "wrong type", "dx is a list of 3, expected an array of"),
        (lambda dx, dw, db: (None, dw, db), "wrong type", "dx is of type NoneType"),
        (lambda dx, dw, db: (dx[0], dw, db), "wrong shape", "dx has shape (4, 6), expected (3, 4, 6)."),
        (
            lambda dx, dw, db: (dx.astype("float32"), dw, db),
            "wrong dtype",
            "dx is float32, expected float64.",
        ),
        (lambda dx, dw, db: (dx.astype(int), dw, db), "wrong dtype", "dx is int64, expected float64."),
        (lambda dx, dw, db: (np.ma.array(dx, mask=dx > 0), dw, db), "wrong type", "dx is of type Masked"),
        (lambda dx, dw, db: (dx.astype("float32").astype(float), dw, db), "imprecise", "in float32, or a "),
        (lambda dx, dw, db: (dx + 1e-8, dw, db), "imprecise", "dx is right to six digits or more"),
        (lambda dx, dw, db: (dx / 0.0 * 0.0, dw, db), "not a number", "the first at [0, 0, 0]"),
        (
            lambda dx, dw, db: (dx + (dx == dx.max()), dw, db),
            "fail",
            "dx is off the most at [0, 2, 0]: 2.7542408, expected 1.7542408.",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:divide by zero", "ignore:invalid value")
def test_one_output_is_odd(change, verdict, note):
    odd, *others = check(NAME, returning(change)).rows[:3]  # of the first call
    assert odd.verdict == verdict
    assert note in odd.note
    assert [row.verdict for row in others] == ["pass", "pass"]


@pytest.mark.parametrize(
    "change, verdict, note",
    [
        (
            lambda *gradients: gradients[:2],
            "wrong number of outputs",
            "a tuple of 2, expected (dx, dweight, dbias).",
        ),
        (lambda *gradients: list(gradients[1:]), "wrong number of outputs", "a list of 2, expected (dx, dw"),
        (lambda *gradients: gradients[0], "wrong number of outputs", "an array of shape (3, 4, 6), expected"),
        (lambda *gradients: None, "wrong type", "returned None: is a return missing"),
    ],
)
def test_what_is_returned_is_odd_as_a_whole(change, verdict, note):
    rows = check(NAME, returning(change)).rows
    assert {row.verdict for row in rows} == {verdict}
    assert note in rows[0].note


@pytest.mark.parametrize("factor, said", [(-1.0, "-1"), (1 / 12, "0.08333"), (2.0, "2"), (0.0, "0")])
def test_a_factor_is_named(factor, said):
    row = check(NAME, returning(lambda dx, dw, db: (factor * dx, dw, db))).rows[0]
    assert row.verdict == "fail"
    assert row.note.endswith(f" All its numbers are {said} times what they should be.")


def test_no_factor_is_named_where_there_is_none():
    row = check(NAME, returning(lambda dx, dw, db: (dx + 1.0, dw, db))).rows[0]
    assert row.verdict == "fail" and "All its numbers" not in row.note
    assert row.largest_error == pytest.approx(1.0)
    assert check(NAME, SOLUTION).rows[0].largest_error == 0.0


def test_one_number_that_is_none_is_enough():
    def one_nan(dx, dweight, dbias):
        dx[0, 1, 2] = np.nan
        return dx, dweight, dbias

    row = check(NAME, returning(one_nan)).rows[0]
    assert row.verdict == "not a number" and "the first at [0, 1, 2]" in row.note


@pytest.mark.usefixtures("own_exercises")
def test_whole_numbers_may_be_of_any_size_but_must_be_whole():
    @exercise("99", outputs="ids", trials=lambda draw: [Trial({"x": np.arange(3)})], hints=HINTS)
    def ids(x):
        return x + 1

    assert check("99.ids", lambda x: (x + 1).astype("int32")).passed
    assert check("99.ids", lambda x: x + 1.0).rows[0].verdict == "wrong dtype"


@pytest.mark.usefixtures("own_exercises")
@pytest.mark.parametrize(("dtype", "huge"), [("float32", 1e30), ("float64", 1e300)])
def test_numbers_whose_squares_overflow_are_judged_like_others(dtype, huge):
    def trials(draw):
        return [Trial({"x": huge * np.arange(1.0, 4.0, dtype=dtype)})]

    @exercise("99", outputs="y", trials=trials, hints=HINTS)
    def doubled(x):
        return 2 * x

    assert check("99.doubled", lambda x: x + x).passed
    row = check("99.doubled", lambda x: 2.5 * x).rows[0]
    assert row.verdict == "fail" and row.relative_error == pytest.approx(1 / 9)


@pytest.mark.usefixtures("own_exercises")
def test_an_argument_that_holds_no_number_is_unchanged_if_nobody_touches_it():
    @exercise("99", outputs="y", trials=lambda draw: [Trial({"x": np.array([1.0, np.nan])})], hints=HINTS)
    def finite(x):
        return float(np.isfinite(x).mean())

    assert check("99.finite", lambda x: 0.5).passed


@pytest.mark.usefixtures("own_exercises")
@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda counts: counts.update(b=1), "counts['b']"),
        (lambda counts: counts.pop("a"), "counts['a']"),
        (lambda counts: counts.update(a=2), "counts['a']"),
        (lambda counts: counts["list"].append(5), "counts['list'][1]"),
    ],
)
def test_changing_what_is_no_array(change, name):
    @exercise(
        "99", outputs="two", trials=lambda draw: [Trial({"counts": {"a": 1, "list": [4]}})], hints=HINTS
    )
    def two(counts):
        return 2.0

    row = check("99.two", lambda counts: (change(counts), 2.0)[1]).rows[0]
    assert row.verdict == "overwrites an input"
    assert row.note.startswith(f"It changed {name}")


def test_an_error_inside_a_library_is_shown_with_the_learners_line():
    def broken(dout, cache):
        return np.linalg.inv(np.zeros((2, 3)))

    row = check(NAME, broken).rows[0]
    assert row.note.startswith("LinAlgError") and "return np.linalg.inv(np.zeros((2, 3)))" in row.note


@pytest.mark.parametrize("order", [(1, 0, 2), (0, 2, 1), (1, 2, 0)])
def test_right_outputs_in_another_order_are_told_this_and_nothing_else(order):
    result = check(NAME, returning(lambda *gradients: tuple(gradients[i] for i in order)))
    assert not result.passed and not result.mistakes
    assert result.hints == ["All outputs are right, but in another order: return (dx, dweight, dbias)."]
    assert not any(row.note for row in result.rows)


def test_the_order_of_answers_that_are_secret_is_not_told():
    a, b, c = EXERCISES["26.diagnosis"].solution()
    assert len({a, b, c}) == 3
    assert not any("order" in hint for hint in check("26.diagnosis", (b, c, a)).hints)


def test_a_list_of_outputs_is_as_good_as_a_tuple():
    assert check(NAME, returning(lambda *gradients: list(gradients))).passed


def test_hints_are_about_the_outputs_that_are_wrong():
    only_dx = check(NAME, returning(lambda dx, dw, db: (dx + 1.0, dw, db))).hints
    judge._failures.clear()
    no_dx = check(NAME, returning(lambda dx, dw, db: (dx, dw + 1.0, db + 1.0))).hints
    judge._failures.clear()
    everything = check(NAME, returning(lambda *gradients: tuple(g + 1.0 for g in gradients))).hints
    assert "from x to x̂" in only_dx[0] and "rows" not in only_dx[0]
    assert "added up" in no_dx[0] and "x̂" not in no_dx[0]
    assert everything == [f"Hint 1 of 3: {EXERCISES[NAME].hints[0]}"]


def test_an_output_in_the_place_of_another():
    dx, dweight, dbias = check(NAME, returning(lambda dx, dw, db: (dw, dx, db + 1.0))).rows[:3]
    assert dx.note == "dx has shape (6,), expected (3, 4, 6). It is what dweight should be: mind the order."
    assert dweight.note.endswith("It is what dx should be: mind the order.")
    assert dbias.verdict == "fail"


def test_rounding_gets_no_hint_about_the_formula():
    rounded = returning(lambda *gradients: tuple(g.astype("float32").astype(float) for g in gradients))
    assert set(verdicts(rounded)) == {"imprecise"}
    assert not check(NAME, rounded).hints


def test_an_error_is_shown_with_the_learners_line():
    def broken(dout, cache):
        return np.matmul(dout, np.ones((7, 7)))

    row = check(NAME, broken).rows[0]
    assert row.verdict == "raises"
    assert row.note.startswith("ValueError: in a matrix product the last axis on the left has to be as long")
    assert "they have 6 and 7 (line" in row.note and "gufunc" not in row.note
    assert row.note.endswith(": return np.matmul(dout, np.ones((7, 7))); dout (3, 4, 6))")


def test_the_commonest_slips_with_axes_are_named():
    def transposed(dout, cache):
        return dout.T @ cache[0]

    def axis_lost(dout, cache):
        mean = dout.mean(axis=-1)
        return dout - mean

    assert (
        check(NAME, transposed)
        .rows[0]
        .note.endswith(". dout.T turns all axes around; dout.swapaxes(-1, -2) exchanges the last two.")
    )
    note = check(NAME, axis_lost).rows[0].note
    assert "dout (3, 4, 6); mean (3, 4))" in note
    assert "a sum, mean or maximum over this axis, say keepdims=True" in note


def test_a_result_that_is_still_with_its_cache_is_named():
    def pair(x):
        return x, (x,)

    def not_unpacked(dout, cache):
        return pair(dout) @ np.ones((6, 6))

    note = check(NAME, not_unpacked).rows[0].note
    assert note.endswith(
        "Is one of these the pair (result, cache) that a forward function returns? Unpack it."
    )


@pytest.mark.parametrize(
    "name, change, told",
    [
        ("02.linear", lambda y, cache: (y, *cache), "(y, cached_x, cached_weight)"),
        ("03.softmax", lambda y, cache: (y, *cache), "(y, cached_y)"),
        ("05.layer_norm", lambda y, cache: (y, *cache), "(y, normalised, inverse_std, cached_weight)"),
    ],
)
def test_a_cache_that_is_not_one_thing_is_refused(name, change, told):
    solution = EXERCISES[name].solution
    assert check(name, lambda *arguments: solution(*arguments)).passed
    row = check(name, lambda *arguments: change(*solution(*arguments))).rows[0]
    assert row.verdict == "wrong form"
    assert told in row.note and f"expected {EXERCISES[name].form}: mind the parentheses." in row.note


def test_other_errors_get_no_cause():
    def other_shapes(dout, cache):
        return dout + np.zeros((5, 5))

    assert check(NAME, other_shapes).rows[0].note.endswith("dout (3, 4, 6))")


def test_a_call_that_never_ends_and_is_stopped():
    calls = []

    def endless(dout, cache):
        calls.append(dout.shape)
        raise KeyboardInterrupt  # as from the notebook's stop button

    rows = check(NAME, endless).rows
    assert calls == [(3, 4, 6)]  # there was another call to come
    assert {row.verdict for row in rows} == {"stopped"}
    assert "raise KeyboardInterrupt" in rows[0].note


def test_another_number_of_arguments():
    result = check(NAME, lambda dout: dout)
    assert result.rows[0].verdict == "raises"
    assert "takes 1 positional argument but 2 were given" in result.rows[0].note


def test_changing_an_input():
    def in_place(dout, cache):
        gradients = SOLUTION(dout, cache)
        cache[0][0, ..., 2] += 0.25
        return gradients

    rows = check(NAME, in_place).rows
    assert {row.verdict for row in rows} == {"overwrites an input"}
    assert rows[0].note.startswith("It changed cache[0] (by up to 2.5e-01)")
    assert check(NAME, SOLUTION).passed  # the next call gets the inputs unharmed


def test_changing_the_shape_of_an_input():
    def in_place(dout, cache):
        gradients = SOLUTION(dout, cache)
        dout.resize(dout.size, refcheck=False)
        return gradients

    rows = check(NAME, in_place).rows
    assert {row.verdict for row in rows} == {"overwrites an input"}
    assert rows[0].note.startswith("It changed the shape of dout, which")


@pytest.fixture
def own_exercises(monkeypatch):
    """Exercises that a test makes are found, and gone after it."""
    table = {}
    for module in (judge, minibert.course.exercise):
        monkeypatch.setattr(module, "EXERCISES", table)


@pytest.mark.usefixtures("own_exercises")
def test_returning_a_view_of_an_input():
    """In an exercise where that gives the right numbers: the gradient of a sum is dout, for either term."""

    def trials(draw):
        return [Trial({"dout": draw.normal(3, 4)})]

    @exercise("99", outputs="dx dy", trials=trials, hints=HINTS)
    def add_backward(dout):
        return dout.copy(), dout.copy()

    dx, dy = check("99.add_backward", lambda dout: (dout.copy(), dout[:])).rows
    assert dx.verdict == "pass"
    assert dy.verdict == "view of an input"
    assert dy.note.startswith("dy is dout itself or a view of it")
    assert check("99.add_backward", lambda dout: (dout.copy(), dout[::-1])).rows[1].verdict == "fail"


@pytest.mark.usefixtures("own_exercises")
def test_views_where_they_are_allowed():
    @exercise("99", outputs="y", trials=lambda draw: [Trial({"x": draw.normal(3)})], hints=HINTS, views=True)
    def backwards(x):
        return x[::-1]

    assert check("99.backwards", backwards.solution).passed


@pytest.mark.usefixtures("own_exercises")
@pytest.mark.parametrize("number", [2, 2.0, np.float64(2), np.array(2.0)], ids=repr)
def test_single_numbers_of_all_kinds(number):
    @exercise("99", outputs="two", trials=lambda draw: [Trial({"x": 1})], hints=HINTS)
    def double(x):
        return np.float64(2 * x)

    assert check("99.double", lambda x: number).passed
    assert check("99.double", lambda x: number + 1).rows[0].verdict == "fail"


@pytest.mark.usefixtures("own_exercises")
@pytest.mark.parametrize("secret", [False, True])
def test_texts_are_compared_one_by_one(secret):
    def trials(draw):
        return [Trial({"text": text}, repr(text)) for text in ("Ab", "c")]

    @exercise("99", outputs="letters", trials=trials, hints=HINTS, secret=secret)
    def letters(text):
        return list(text.lower())

    first, second = check("99.letters", list).rows
    assert first.cells() == ["'Ab'", "", "list", "", "", "", "fail"]
    assert first.note == ("" if secret else "'Ab': ['A', 'b'], expected ['a', 'b'].")
    assert second.verdict == "pass"
    assert [row.verdict for row in check("99.letters", str).rows] == ["wrong type"] * 2


def test_hints_say_more_with_every_failing_call():
    told = [check(NAME, zeros).hints for _ in range(4)]
    first, second, third = EXERCISES[NAME].hints
    assert told == [[f"Hint 1 of 3: {first}"], [f"Hint 2 of 3: {second}"], *[[f"Hint 3 of 3: {third}"]] * 2]
    check(NAME, SOLUTION)
    assert check(NAME, zeros).hints == told[0]  # passed in between: it begins anew


@pytest.mark.usefixtures("own_exercises")
def test_an_answer_that_is_no_function():
    @exercise("99", outputs="choices", trials=lambda draw: [Trial({})], hints=HINTS, secret=True)
    def diagnosis():
        return {"A": "b", "B": "c"}

    assert check("99.diagnosis", {"A": "b", "B": "c"}).passed
    for nothing_yet in (..., {"A": "b", "B": ...}, not_yet):
        (row,) = check("99.diagnosis", nothing_yet).rows
        assert row.verdict == "not attempted"
    (row,) = check("99.diagnosis", {"A": "b", "B": "b"}).rows
    assert row.verdict == "fail"
    assert not row.note


def test_answers_in_words_may_stand_in_a_list_and_one_text_is_no_six_answers():
    right = EXERCISES["00.predictions"].solution()
    assert check("00.predictions", list(right)).passed
    row = check("00.predictions", " ".join(right)).rows[0]
    assert row.note == "The answer is of type str, expected (A, B, C, D, E, F)."


def test_capitals_in_an_answer_in_words():
    right = EXERCISES["00.predictions"].solution()
    assert check("00.predictions", [word.title() for word in right]).passed
    wrong = check("00.predictions", ["Other", *right[1:]])
    assert wrong.mistakes == ["change A misjudged"]


def test_not_attempting_does_not_use_up_hints():
    check(NAME, not_yet)
    check(NAME, lambda dout, cache: 1 / 0)
    assert check(NAME, zeros).hints[0].startswith("Hint 1 of 3")


def test_two_mistakes_at_once_get_both_hints():
    first, second = (
        mistake for mistake in EXERCISES[NAME].mistakes if mistake.name.startswith(("no mean", "dweight"))
    )

    def both(dout, cache):
        dx, _, dbias = first.function(dout, cache)
        return dx, second.function(dout, cache)[1], dbias

    assert check(NAME, both).mistakes == [first.name, second.name]


def test_a_mistake_is_recognised_even_if_another_call_raised():
    mistake = EXERCISES[NAME].mistakes[0]

    def for_three_axes(dout, cache):
        assert dout.ndim == 3
        return mistake.function(dout, cache)

    result = check(NAME, for_three_axes)
    assert [row.verdict for row in result.rows[3:]] == ["raises"] * 3
    assert result.mistakes == [mistake.name]


def test_the_same_function_is_judged_the_same(capsys):
    for _ in range(2):
        check(NAME, EXERCISES[NAME].mistakes[0].function)
    printed = capsys.readouterr().out
    assert printed[: len(printed) // 2] == printed[len(printed) // 2 :]


def test_a_name_that_is_no_exercise():
    with pytest.raises(
        UserError, match=r"no exercise '05.layernorm_backward'; did you mean '05.layer_norm_back"
    ):
        check("05.layernorm_backward", SOLUTION)
    with pytest.raises(UserError, match=r"no exercise 'zzz'; expected one of .*05.layer_norm_backward"):
        check("zzz", SOLUTION)
    with pytest.raises(UserError, match="the name of an exercise first, then your function; got of type fu"):
        check(SOLUTION, NAME)


def test_something_else_than_a_function():
    with pytest.raises(UserError, match="expected the function that you wrote, got a tuple of 2"):
        check(NAME, (1, 2))
    assert {row.verdict for row in check(NAME, ...).rows} == {"not attempted"}


def test_a_notebook_shows_the_table_once():
    """IPython asks an object that ends a cell to display itself; what check returns has been printed."""
    assert check(NAME, SOLUTION)._ipython_display_() is None

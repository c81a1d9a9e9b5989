"""What an exercise of the course is: a function to write, and all that is needed to judge what was written.

An exercise reads from top to bottom: what the function is called with and held against, the solution, and
the mistakes that people make, each with what to tell them:

    @exercise("05", outputs="dx dweight dbias", trials=…, reference=library_backward, hints=(…))
    def layer_norm_backward(dout, cache):
        …                                     # the solution; the exercise is "05.layer_norm_backward"

    @layer_norm_backward.mistake("γ belongs inside the two means: …")
    def gamma_outside_the_means(dout, cache):
        …                                     # who returns the same numbers as this is told so

Inputs are random, from a fixed seed, and such that mistakes show (see ``gradcheck``): B > 1, γ, β and ε of
order one, ids that occur twice, padding.
"""

import copy
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from minibert.arrays import Array
from minibert.devices import resolve_device
from minibert.gradcheck import Case, Draws, central_differences

LEVELS = ("one step", "a whole formula", "open: find your own way")

Hints = tuple[str, str, str]  # a nudge, a bit more, the place to look

EXERCISES: dict[str, "Exercise"] = {}  # by name, in the order of the course


@dataclass(frozen=True)
class Trial:
    """One call of the function.

    ``arguments`` by name, in order; ``label`` tells trials apart. ``independent`` has outputs, by name, as
    found in another way than the reference finds them: numeric gradients above all.
    """

    arguments: dict[str, Any]
    label: str = ""
    independent: dict[str, Array] = field(default_factory=dict)


def gradient_trial(forward: Callable, inputs: dict[str, Array], label: str = "") -> Trial:
    """The call gradients(dout, cache) after y, cache = forward(*inputs), with a random dout of y's shape.

    ``inputs`` are the float64 arrays to differentiate with respect to, by name; their gradients are to be
    returned, "dx" for "x".
    """
    # Of the case only the numeric side is used: the other is what the learner writes.
    case = Case(label, inputs, lambda variables: [forward(*variables.values())[0]], backward=lambda douts: {})
    _, cache = forward(*inputs.values())
    numeric = {f"d{name}": gradient for name, gradient in central_differences(case).items()}
    return Trial({"dout": case.douts[0], "cache": cache}, label, independent=numeric)


@dataclass(frozen=True)
class Mistake:
    """A wrong implementation that people write, and what to tell them."""

    name: str
    function: Callable
    hint: str


@dataclass
class Exercise:
    """A function to write, named "NN.function" after its notebook and its solution.

    ``outputs`` names what it returns: one thing, or a tuple of so many, in which the parts of a cache are
    named one by one. ``make_trials`` draws the calls.
    ``reference`` is the library's own function, or, where the library has none, the solution; ``independent``
    says in a word where the trials' independent outputs come from. ``hints`` are for answers that match no
    registered mistake. Where only some outputs are wrong, the first of ``hints_for`` that names them all
    takes their place. ``bound`` is on the relative error from the reference: tight, as both compute in
    float64, unless the learner's method is itself an approximation. A ``secret`` exercise does not show the
    right answer; where ``views`` are allowed, an output may share its memory with an argument.
    Where outputs are ``in_order`` of their computation, the first that is wrong is the one to look at.

    The ``level`` is one of ``LEVELS``. ``minutes`` says how long it takes somebody who has just read the
    notebook so far, and ``needs`` what this somebody has to remember, in Markdown.
    """

    name: str
    solution: Callable
    reference: Callable
    outputs: tuple[str, ...]
    make_trials: Callable[[Draws], Sequence[Trial]]
    hints: Hints
    hints_for: dict[str, Hints] = field(default_factory=dict)  # by outputs, with spaces between them
    independent: str = "numeric"
    level: int = 0
    minutes: int = 0
    needs: str = ""
    bound: float = 1e-10
    secret: bool = False
    views: bool = False
    in_order: bool = False
    mistakes: list[Mistake] = field(default_factory=list)

    def mistake(self, hint: str) -> Callable[[Callable], Mistake]:
        """Decorator: register a wrong implementation, to be recognised by what it returns."""

        def register(function: Callable) -> Mistake:
            self.mistakes.append(Mistake(function.__name__.replace("_", " "), function, hint))
            return self.mistakes[-1]

        return register

    def about(self) -> str:
        """A line of Markdown about the exercise, to stand above it. Raises ValueError if nothing is known."""
        if not (self.level and self.minutes and self.needs):
            raise ValueError(f"the exercise {self.name} should have a level, minutes and needs")
        return (
            f"> **Exercise** `{self.name}` · level {self.level} of {len(LEVELS)}, {LEVELS[self.level - 1]} · "
            f"about {self.minutes} minutes · **you need** {self.needs}"
        )

    def hints_about(self, wrong: Set[str]) -> Hints:
        """The hints for an answer of which only these outputs are wrong."""
        fitting = (hints for names, hints in self.hints_for.items() if wrong <= set(names.split()))
        return next(fitting, self.hints)

    @cached_property
    def trials(self) -> list[Trial]:
        """The calls, always the same."""
        return list(self.make_trials(Draws(resolve_device("cpu"), seed=1)))

    @cached_property
    def expected(self) -> list[tuple]:
        """What the reference returns: a tuple of outputs for each trial."""
        return self._answers(self.reference)

    @cached_property
    def form(self) -> str:
        """How the outputs are to stand in tuples, such as "(y, (x, weight))": see `nested`."""
        return nested(self.reference(*copy.deepcopy(self.trials[0].arguments).values()), self.outputs)

    @cached_property
    def mistaken(self) -> list[tuple[Mistake, list[tuple]]]:
        """Each registered mistake, with what it returns."""
        return [(mistake, self._answers(mistake.function)) for mistake in self.mistakes]

    def row_name(self, output: str, trial: Trial) -> str:
        """What one output of one trial is called."""
        if len(self.outputs) == 1 and trial.label:
            return trial.label
        return f"{output}, {trial.label}" if trial.label else output

    def _answers(self, function: Callable) -> list[tuple]:
        values = [function(*copy.deepcopy(trial.arguments).values()) for trial in self.trials]
        if len(self.outputs) == 1:
            return [(value,) for value in values]
        return [flat_outputs(value, self.outputs) for value in values]


def flat_outputs(value: tuple | list, names: Sequence[str]) -> tuple:
    """The outputs of these names in a row, where what was returned has them in tuples or dictionaries.

    A cache (x, weight) counts as two outputs, and a dictionary as those that it has under their names. What
    does not come to the right number is returned as it is.
    """
    named: dict[str, Any] = {}
    others = list(_without_names(value, names, named))
    if len(named) + len(others) != len(names):
        return tuple(value)
    next_one = iter(others)
    return tuple(named[name] if name in named else next(next_one) for name in names)


def nested(value: Any, names: Sequence[str]) -> str:
    """How outputs stand in tuples, such as "(y, (x, weight))". If there is a dict, they are just listed."""
    remaining = iter(names)

    def told(item: Any) -> str:
        if not isinstance(item, tuple):
            return next(remaining, "…")
        return f"({', '.join(map(told, item))}{',' * (len(item) == 1)})"

    return f"({', '.join(names)})" if _holds_dict(value) else told(tuple(value))


def _holds_dict(value: Any) -> bool:
    return isinstance(value, dict) or (isinstance(value, tuple | list) and any(map(_holds_dict, value)))


def _without_names(value: tuple | list, names: Sequence[str], named: dict[str, Any]) -> Iterator[Any]:
    """What is in no dictionary, in order; ``named`` collects what is in one, under one of the names."""
    for item in value:
        if isinstance(item, tuple):
            yield from _without_names(item, names, named)
        elif isinstance(item, dict) and item.keys() & set(names):
            named |= {name: item[name] for name in names if name in item}
        else:
            yield item


def exercise(
    notebook: str,
    *,
    outputs: str,
    trials: Callable[[Draws], Sequence[Trial]],
    hints: Hints,
    reference: Callable | None = None,
    **options: Any,
) -> Callable[[Callable], Exercise]:
    """Decorator: make an exercise of its solution.

    ``outputs`` are names with spaces between them; options as in ``Exercise``.
    """

    def define(solution: Callable) -> Exercise:
        name = f"{notebook}.{solution.__name__}"
        names = tuple(outputs.split())
        EXERCISES[name] = Exercise(name, solution, reference or solution, names, trials, hints, **options)
        return EXERCISES[name]

    return define

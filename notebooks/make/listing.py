"""The page that lists the exercises: notebooks/EXERCISES.md."""

from collections.abc import Iterable

from minibert.course import EXERCISES
from minibert.course.exercise import LEVELS, Exercise

FILE = "EXERCISES.md"


def exercise_list(stems: Iterable[str]) -> str:
    """The page, from what the course knows about the exercises of these notebooks."""
    notebooks = {stem[:2]: stem for stem in stems}
    exercises = [exercise for name, exercise in EXERCISES.items() if name[:2] in notebooks]
    parts = [
        "# The exercises",
        f"{_together(exercises)}. The minutes are estimates, for somebody who has just read the notebook up "
        "to there. (This page is made by `make course`.)",
    ]
    for level, name in enumerate(LEVELS, 1):
        chosen = [exercise for exercise in exercises if exercise.level == level]
        rows = [
            f"| {_link(exercise, notebooks)} | {exercise.minutes} | {exercise.needs} |" for exercise in chosen
        ]
        table = ["| exercise | minutes | what it needs |", "|---|---|---|", *rows]
        parts += [f"## Level {level}: {name}", f"{_together(chosen)}.", "\n".join(table)]
    return "\n\n".join(parts) + "\n"


def _link(exercise: Exercise, notebooks: dict[str, str]) -> str:
    return f"[{exercise.name}](exercises/{notebooks[exercise.name[:2]]}.ipynb)"


def _together(exercises: list[Exercise]) -> str:
    hours, minutes = divmod(sum(exercise.minutes for exercise in exercises), 60)
    return f"{len(exercises)} exercises, {hours} hours and {minutes} minutes together"

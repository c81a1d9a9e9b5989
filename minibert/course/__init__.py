"""The exercises of the course, and the judge that answers back. The notebooks call ``check``."""

from minibert.course import exercises  # noqa: F401  (enters them in the table)
from minibert.course.exercise import EXERCISES
from minibert.course.judge import Result, check

__all__ = ["EXERCISES", "Result", "check"]

"""The exercises of the course, and the judge that answers back. The notebooks call ``check``."""

from minibert.course import exercises  # noqa: F401  (enters them in the table)
from minibert.course.exercise import EXERCISES
from minibert.course.judge import both, check
from minibert.course.logs import read_log, read_results, write_log
from minibert.course.mine import Mine, keep, kept
from minibert.course.result import Result

__all__ = [
    "EXERCISES",
    "Mine",
    "Result",
    "both",
    "check",
    "keep",
    "kept",
    "read_log",
    "read_results",
    "write_log",
]

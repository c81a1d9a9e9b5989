"""The small BERT of tests/small_bert.py, for the tests of this room."""

from small_bert import batch, build, config

__all__ = ["batch", "build", "config"]

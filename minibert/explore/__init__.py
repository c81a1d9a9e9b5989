"""Look into a model: what it computes of a sentence, and how its loss depends on each of these numbers."""

from minibert.explore.attention import view

__all__ = ["view"]

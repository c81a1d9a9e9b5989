"""The exercises, a file a notebook."""

from minibert.course.exercises import (  # noqa: F401
    n05_layer_norm,
)

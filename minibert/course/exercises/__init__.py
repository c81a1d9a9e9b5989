"""The exercises, a file a notebook."""

from minibert.course.exercises import (  # noqa: F401
    n01_gradients,
    n02_linear,
    n03_softmax,
    n04_gelu_dropout,
    n05_layer_norm,
    n06_embeddings,
    n07_wordpiece,
    n08_attention,
    n09_heads,
    n10_encoder,
    n11_heads_losses,
)

"""The exercises, a file a notebook."""

from minibert.course.exercises import (  # noqa: F401
    n00_start_here,
    n01_gradients,
    n02_linear,
    n03_softmax_cross_entropy,
    n04_gelu_dropout,
    n05_layer_norm,
    n06_embeddings,
    n07_wordpiece,
    n08_attention,
    n09_many_heads,
    n10_encoder,
    n11_heads_losses,
    n12_pretraining_data,
    n13_optimiser,
    n14_pretraining,
    n15_fine_tuning,
    n16_looking_inside,
    n17_numpy_to_cupy,
    n18_real_weights,
    n19_applications,
)

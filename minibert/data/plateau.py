"""The baseline of guessing by frequency, which a language model has to beat."""

import numpy as np

from minibert.data.masking import IGNORED


def unigram_plateau(token_counts: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
    """The masked-LM loss (nats per token) and accuracy of guesses that ignore the context.

    token_counts (V,): how often each token occurs in the training documents; labels (any shape): those
    of held-out batches, −100 where nothing is predicted. The loss is that of always giving each token its
    frequency in training, with one added to every count, so that none is impossible:

        p(t) = (count(t) + 1) / (Σ counts + V),    loss = −mean log p(label);

    the accuracy is that of always guessing the commonest token. A model that has learned nothing but
    frequencies stops there: it is the plateau at which training first seems to stand still.
    """
    labels = np.asarray(labels)
    labels = labels[labels != IGNORED]
    log_probability = np.log(token_counts + 1) - np.log(token_counts.sum() + len(token_counts))
    return float(-log_probability[labels].mean()), float(np.mean(labels == token_counts.argmax()))

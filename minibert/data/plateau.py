"""The baseline of guessing by frequency, which a language model has to beat."""

import numpy as np

from minibert.data.masking import IGNORED


def log_frequencies(token_counts: np.ndarray) -> np.ndarray:
    """The log of each token's share of a text, with one added to every count: (V,) → (V,), in nats.

    p(t) = (count(t) + 1) / (Σ counts + V), so that no token is impossible.
    """
    return np.log(token_counts + 1) - np.log(token_counts.sum() + len(token_counts))


def unigram_plateau(token_counts: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
    """The masked-LM loss (nats per token) and accuracy of guesses that ignore the context.

    token_counts (V,): how often each token occurs in the training documents; labels (any shape): those
    of held-out batches, −100 where nothing is predicted. The loss is that of always giving each token its
    frequency in training (`log_frequencies`): −mean log p(label). The accuracy is that of always guessing the
    commonest token. A model that has learned nothing but
    frequencies stops there: it is the plateau at which training first seems to stand still.
    """
    labels = np.asarray(labels)
    labels = labels[labels != IGNORED]
    loss = -log_frequencies(token_counts)[labels].mean()
    return float(loss), float(np.mean(labels == token_counts.argmax()))

"""The first values of parameters."""

import numpy as np

STREAM = 0x1817  # tells this use of a seed from all others
STD = 0.02  # of weights, in google-research/bert


def first_values(
    init: str, shape: tuple[int, ...], rng: np.random.Generator, std: float, truncated: bool = True
) -> np.ndarray | float:
    """Where a parameter starts: random weights ("normal"), waves ("sinusoidal"), 0 ("zeros") or 1 ("ones").

    Weights are normal with mean 0 and standard deviation ``std``. With ``truncated`` (google-research/bert)
    a number beyond two standard deviations is drawn again; without (Hugging Face) it stays. They are drawn on
    the host in float64, so that they depend on neither device nor dtype. The waves of ``sinusoids`` are as
    large as if they were normal.
    """
    if init == "normal":
        return std * _standard_normal(rng, shape, truncated)
    if init == "sinusoidal":
        return std * sinusoids(*shape)
    return {"zeros": 0.0, "ones": 1.0}[init]


def sinusoids(count: int, size: int) -> np.ndarray:
    """Positions as waves (Vaswani et al., 2017, section 3.5), times √2: row p, columns 2i and 2i + 1 are

        √2 sin(p / 10000^(2i / size))  and  √2 cos(p / 10000^(2i / size))

    so that the mean square is 1. The row of position p + k is a rotation of that of p, the same for all p.
    (count, size) float64.
    """
    columns = np.arange(size)
    angles = np.arange(count)[:, None] / 10000.0 ** ((columns - columns % 2) / size)  # (count, size)
    return np.sqrt(2.0) * np.where(columns % 2, np.cos(angles), np.sin(angles))


def _standard_normal(rng: np.random.Generator, shape: tuple[int, ...], truncated: bool) -> np.ndarray:
    numbers = rng.standard_normal(shape)
    beyond = np.abs(numbers) > 2.0
    while truncated and beyond.any():
        numbers[beyond] = rng.standard_normal(int(beyond.sum()))
        beyond = np.abs(numbers) > 2.0
    return numbers

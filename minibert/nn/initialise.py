"""The initial values of parameters."""

import numpy as np

STREAM = 0x1817  # distinguishes this use of a seed from all others
STD = 0.02  # standard deviation of weights in google-research/bert


def first_values(
    init: str, shape: tuple[int, ...], rng: np.random.Generator, std: float, truncated: bool = True
) -> np.ndarray | float:
    """A parameter's initial value: random ("normal"), waves ("sinusoidal"), 0 ("zeros") or 1 ("ones").

    Random weights are normal with mean 0 and standard deviation ``std``. With ``truncated``
    (google-research/bert) numbers beyond two standard deviations are drawn again; without it (Hugging Face)
    they are kept. Weights are drawn on the host in float64, so that they depend on neither device nor dtype.
    The waves of ``sinusoids`` are scaled to the same root mean square.
    """
    if init == "normal":
        return std * _standard_normal(rng, shape, truncated)
    if init == "sinusoidal":
        return std * sinusoids(*shape)
    return {"zeros": 0.0, "ones": 1.0}[init]


def sinusoids(count: int, size: int, longest: float = 10000.0) -> np.ndarray:
    """Sinusoidal positions (Vaswani et al., 2017, section 3.5) times √2. Row p, columns 2i and 2i + 1 are

        √2 sin(p / longest^(2i / size))  and  √2 cos(p / longest^(2i / size))

    so that the mean square is 1. Row p + k is a rotation of row p, and the rotation is the same for all p.
    Returns (count, size) float64.
    """
    columns = np.arange(size)
    angles = np.arange(count)[:, None] / longest ** ((columns - columns % 2) / size)  # (count, size)
    return np.sqrt(2.0) * np.where(columns % 2, np.cos(angles), np.sin(angles))


def _standard_normal(rng: np.random.Generator, shape: tuple[int, ...], truncated: bool) -> np.ndarray:
    numbers = rng.standard_normal(shape)
    beyond = np.abs(numbers) > 2.0
    while truncated and beyond.any():
        numbers[beyond] = rng.standard_normal(int(beyond.sum()))
        beyond = np.abs(numbers) > 2.0
    return numbers

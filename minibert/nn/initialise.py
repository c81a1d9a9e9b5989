"""How parameters start."""

from collections.abc import Collection

import numpy as np

from minibert.nn.module import Module

STREAM = 0x1817  # tells this use of a seed from all others


def initialise(
    module: Module, seed: int, std: float, truncated: bool = True, only: Collection[str] | None = None
) -> None:
    """Set every parameter of an allocated module, or ``only`` those named: weights random, biases 0, γ 1.

    Weights are normal with mean 0 and deviation ``std``; with ``truncated`` (google-research/bert) a
    number beyond two deviations is drawn again, without (Hugging Face) it stays. They are drawn on
    the host in float64, in the order of the names, so that they do not depend on device, dtype or the
    layout of the buffer. A "sinusoidal" table starts as ``sinusoids``, as large as if it were normal.
    """
    rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence([STREAM, seed])))
    for name, parameter in module.named_parameters():
        if only is not None and name not in only:
            continue
        if parameter.init in ("normal", "sinusoidal"):
            drawn = parameter.init == "normal"
            start = (
                _standard_normal(rng, parameter.shape, truncated) if drawn else sinusoids(*parameter.shape)
            )
            parameter.value[...] = module.device.asarray(std * start, dtype=module.dtype)
        else:
            parameter.value[...] = {"zeros": 0.0, "ones": 1.0}[parameter.init]
    module.buffers.round_operand()


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

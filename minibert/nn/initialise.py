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
    layout of the buffer.
    """
    rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence([STREAM, seed])))
    for name, parameter in module.named_parameters():
        if only is not None and name not in only:
            continue
        if parameter.init == "normal":
            start = std * _standard_normal(rng, parameter.shape, truncated)
            parameter.value[...] = module.device.asarray(start, dtype=module.dtype)
        else:
            parameter.value[...] = {"zeros": 0.0, "ones": 1.0}[parameter.init]
    module.buffers.round_operand()


def _standard_normal(rng: np.random.Generator, shape: tuple[int, ...], truncated: bool) -> np.ndarray:
    numbers = rng.standard_normal(shape)
    beyond = np.abs(numbers) > 2.0
    while truncated and beyond.any():
        numbers[beyond] = rng.standard_normal(int(beyond.sum()))
        beyond = np.abs(numbers) > 2.0
    return numbers

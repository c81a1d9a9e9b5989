"""Where two arrays that should be equal differ the most, and whether by one factor throughout."""

import numpy as np


def relative_distance(a: np.ndarray, b: np.ndarray) -> float:
    """‖a − b‖ / (‖a‖ + ‖b‖) in float64; 0 if both are zero. The size of the numbers does not matter."""
    a, b = (np.asarray(x, dtype=np.float64) for x in (a, b))
    largest = max(np.abs(a).max(initial=0.0), np.abs(b).max(initial=0.0))
    if not largest:
        return 0.0
    a, b = a / largest, b / largest  # else the squares in the norms overflow where numbers are huge
    return float(np.linalg.norm(a - b) / (np.linalg.norm(a) + np.linalg.norm(b)))


def describe_difference(what: str, got: np.ndarray, right: np.ndarray, bound: float) -> str:
    """A sentence about the largest difference of two finite arrays of one shape, and one about their ratio.

    The ratio is told if ``got`` is ``right`` times one number, to within ``bound`` (a `relative_distance`).
    """
    errors = np.abs(np.subtract(got, right, dtype=np.float64))  # also of whole numbers and of truth values
    worst = np.unravel_index(errors.argmax(), errors.shape)
    place = f" is off the most at {[int(i) for i in worst]}" if worst else ""
    told = f"{what}{place}: {got[worst].item():.8g}, expected {right[worst].item():.8g}."
    return told + _factor(got, right, bound)


def _factor(got: np.ndarray, right: np.ndarray, bound: float) -> str:
    """A sentence about the factor that all numbers are off by; empty if there is none."""
    if got.size < 2 or got.dtype.kind != "f" or not right.any():
        return ""
    largest = np.abs(right).max()
    got, right = got / largest, right / largest
    factor = float((got * right).sum() / (right * right).sum())
    if f"{factor:.4g}" == "1" or relative_distance(got, factor * right) > bound:
        return ""
    return f" All its numbers are {factor:.4g} times what they should be."

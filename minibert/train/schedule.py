"""The learning rate of each step: it rises linearly during the warm-up, and falls to 0 at the end.

Steps t are counted from 0 to T − 1, so the first has learning rate 0 if there is a warm-up of w steps.
"""

import math

COOLDOWN = 0.4  # share of the steps in which a trapezoid falls


def original(step: int, steps: int, warmup: int, peak: float) -> float:
    """The schedule of google-research/bert (optimization.py).

        lr = peak · t / w        for t < w
        lr = peak · (1 − t / T)  from then on

    The falling line starts at step 0, not at the end of the warm-up: there the rate jumps down from the peak
    to peak · (1 − w / T).
    """
    if step < warmup:
        return peak * step / warmup
    return peak * (1.0 - step / steps)


def triangle(step: int, steps: int, warmup: int, peak: float) -> float:
    """The schedule of Hugging Face's ``get_linear_schedule_with_warmup``, which has no jump.

    lr = peak · t / w              for t < w
    lr = peak · (T − t) / (T − w)  from then on
    """
    if step < warmup:
        return peak * step / warmup
    return peak * (steps - step) / (steps - warmup)


def trapezoid(step: int, steps: int, warmup: int, peak: float) -> float:
    """The peak for most of the time, then a line to 0: "warm-up, stable, decay" (Hu et al. 2024, MiniCPM).

        lr = peak · t / w                      for t < w
        lr = peak · min(1, (T − t) / (0.4 T))  from then on

    After a warm-up longer than 0.6 T, the rate jumps down.
    """
    if step < warmup:
        return peak * step / warmup
    return peak * min(1.0, (steps - step) / (COOLDOWN * steps))


def cosine(step: int, steps: int, warmup: int, peak: float) -> float:
    """Half a wave of the cosine (Loshchilov and Hutter 2017), without restarts.

    lr = peak · t / w                               for t < w
    lr = peak · (1 + cos(π (t − w) / (T − w))) / 2  from then on
    """
    if step < warmup:
        return peak * step / warmup
    return peak * (1.0 + math.cos(math.pi * (step - warmup) / (steps - warmup))) / 2


SCHEDULES = {"original": original, "triangle": triangle, "trapezoid": trapezoid, "cosine": cosine}

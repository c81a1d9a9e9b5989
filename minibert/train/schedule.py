"""The learning rate of each step: it rises linearly during the warm-up, then falls linearly to 0.

Steps t are counted from 0 to T − 1, so the first has learning rate 0 if there is a warm-up of w steps.
"""


def original(step: int, steps: int, warmup: int, peak: float) -> float:
    """The schedule of google-research/bert (optimization.py).

        lr = peak · t / w      for t < w
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


SCHEDULES = {"original": original, "triangle": triangle}

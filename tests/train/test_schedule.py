import pytest

from minibert.train.schedule import SCHEDULES, cosine, original, trapezoid, triangle


def test_original_rises_from_zero_then_falls_on_the_line_from_step_zero():
    rates = [original(step, steps=10, warmup=4, peak=2.0) for step in range(10)]
    assert rates == pytest.approx([0.0, 0.5, 1.0, 1.5, 1.2, 1.0, 0.8, 0.6, 0.4, 0.2])


def test_triangle_falls_from_the_peak():
    rates = [triangle(step, steps=8, warmup=2, peak=3.0) for step in range(8)]
    assert rates == pytest.approx([0.0, 1.5, 3.0, 2.5, 2.0, 1.5, 1.0, 0.5])


def test_trapezoid_stays_at_the_peak_and_falls_in_the_last_two_fifths():
    rates = [trapezoid(step, steps=10, warmup=2, peak=2.0) for step in range(10)]
    assert rates == pytest.approx([0.0, 1.0, 2.0, 2.0, 2.0, 2.0, 2.0, 1.5, 1.0, 0.5])


def test_cosine_falls_as_half_a_wave():
    rates = [cosine(step, steps=8, warmup=2, peak=2.0) for step in range(8)]
    half = 3**0.5 / 2  # of cos 30°
    assert rates == pytest.approx([0.0, 1.0, 2.0, 1 + half, 1.5, 1.0, 0.5, 1 - half])


@pytest.mark.parametrize("schedule", SCHEDULES.values())
def test_the_extremes_of_the_warm_up(schedule):
    assert schedule(0, steps=5, warmup=0, peak=1.0) == 1.0  # none: the first step is at the peak
    assert schedule(4, steps=5, warmup=5, peak=1.0) == 0.8  # nothing else: it never falls

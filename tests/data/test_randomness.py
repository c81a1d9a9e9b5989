"""One random stream a purpose."""

from minibert.data.randomness import generator, scalar_generator


def test_streams_repeat_and_differ_by_purpose_and_numbers():
    keys = [("masking", 1, 2), ("masking", 2, 1), ("masking", 1), ("order", 1, 2)]
    for make in (
        lambda *key: generator(*key).random(4).tolist(),
        lambda *key: [scalar_generator(*key).random()],
    ):
        draws = [make(*key) for key in keys]
        assert draws == [make(*key) for key in keys]
        assert len({tuple(draw) for draw in draws}) == len(keys)


def test_streams_stay_what_they_are():
    """Other draws after an update would silently change every training run."""
    assert generator("masking", 0).integers(1000, size=3).tolist() == [277, 65, 552]
    assert scalar_generator("masking", 0).randrange(1000) == 848

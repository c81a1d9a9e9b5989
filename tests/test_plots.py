import matplotlib.colors
import matplotlib.image
import numpy as np
import pytest

from minibert.plots import HELD_OUT, PLATEAU, TRAINING, plot_loss

METRICS = [
    {"step": 0, "held_out_mlm_loss": 9.0},
    *({"step": step, "mlm_loss": 9.5 - 3.0 * step / 200} for step in range(1, 201)),
    {"step": 200, "held_out_mlm_loss": 6.0},
]


def rows_of(colour, image):
    """In which rows the left half of the picture, where no legend is, has this colour."""
    wanted = np.array(matplotlib.colors.to_rgb(colour))
    return np.nonzero(np.abs(image[:, : image.shape[1] // 2, :3] - wanted).max(axis=2) < 0.02)[0]


def test_the_picture_shows_both_curves_and_the_plateau(tmp_path):
    plot_loss(METRICS, 8.5, tmp_path / "loss.png")
    image = matplotlib.image.imread(tmp_path / "loss.png")
    assert image.shape[0] > 600 and image.shape[1] > 1000
    plateau = np.bincount(rows_of(PLATEAU, image)).argmax()  # the one row that is full of it
    for colour in (HELD_OUT, TRAINING):
        rows = rows_of(colour, image)
        assert rows.min() < plateau - 50 and plateau + 50 < rows.max()  # from above the plateau to below


@pytest.mark.parametrize("metrics", [METRICS[:1], METRICS[:2], METRICS[:1] + METRICS[-1:]])
def test_a_run_of_hardly_any_steps_can_be_drawn(tmp_path, metrics):
    plot_loss(metrics, 8.0, tmp_path / "loss.png")
    assert (tmp_path / "loss.png").stat().st_size > 10_000

from io import BytesIO

import matplotlib.colors
import matplotlib.image
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from minibert.plots import (
    BLUE,
    HELD_OUT,
    PLATEAU,
    TRAINING,
    description,
    graph,
    heatmap,
    notebook_picture,
    notebook_style,
    plot_finetuning,
    plot_loss,
)

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


@pytest.fixture
def drawn(monkeypatch) -> list[tuple[list[float], list[float]]]:
    """The curves (x, y) that have been drawn."""
    curves = []
    monkeypatch.setattr(Axes, "plot", lambda axes, x, y, **_: curves.append((list(x), list(y))))
    return curves


def test_an_expected_curve_over_tokens_is_drawn_over_the_steps_of_the_run(tmp_path, drawn):
    metrics = [
        {"step": 10, "tokens": 1024, "mlm_loss": 8.0},
        {"step": 20, "tokens": 2048, "mlm_loss": 7.0},
        {"step": 20, "held_out_mlm_loss": 7.0},
    ]
    expected = np.array([[0.0, 9.0], [512.0, 8.0], [4096.0, 1.0]])
    plot_loss(metrics, 8.5, tmp_path / "loss.png", expected)
    assert drawn[-1] == ([0, 5, 20], [9, 8, 5])
    plot_loss(metrics, 8.5, tmp_path / "loss.png", expected[:2])  # the run went on beyond it
    assert drawn[-1] == ([0, 5], [9, 8])


def test_about_sixty_means_are_drawn_of_a_long_curve(tmp_path, drawn):
    curve = [{"step": step, "mlm_loss": 2.0 * step} for step in range(605)]
    plot_loss([*curve, {"step": 604, "held_out_mlm_loss": 7.0}], 8.5, tmp_path / "loss.png")
    middles = np.arange(60) * 10 + 4.5
    assert drawn[1] == (middles.tolist(), (2 * middles).tolist())


def test_every_restart_has_its_curves(tmp_path, drawn):
    """Two restarts fall and rise; an evaluation without a score is left out."""
    curves = {
        seed: [
            {"step": 0, "held_out_f1": None},
            *({"step": step, "loss": 2.0 + seed - step / 10} for step in range(1, 11)),
            {"step": 10, "held_out_f1": 0.5 + seed / 10, "held_out_accuracy": 0.1},
        ]
        for seed in (3, 4)
    }
    plot_finetuning(curves, "f1", tmp_path / "training.png")
    assert (tmp_path / "training.png").stat().st_size > 10_000
    for (steps, losses), (evaluated, scores), seed in zip(drawn[::2], drawn[1::2], (3, 4), strict=True):
        assert steps == [*range(1, 11)] and losses == [2.0 + seed - step / 10 for step in steps]
        assert evaluated == [0, 10] and np.isnan(scores[0]) and scores[1] == 0.5 + seed / 10


def test_numbers_in_a_heatmap_can_be_read_on_any_colour():
    values = np.linspace(-1, 1, 12).reshape(3, 4)
    for drawn in (values, np.abs(values)):
        axes = Figure().add_subplot()
        image = heatmap(axes, drawn, digits=1)
        assert [text.get_text() for text in axes.texts] == [f"{x:.1f}".replace("-", "−") for x in drawn.flat]
        for text, value in zip(axes.texts, drawn.flat, strict=True):
            background = np.array(image.cmap(image.norm(value))[:3])
            assert abs(background @ [0.299, 0.587, 0.114] - (text.get_color() == "white")) > 0.45


def test_what_rounds_to_zero_has_no_sign_in_a_heatmap():
    axes = Figure().add_subplot()
    heatmap(axes, np.array([[-0.04, -0.06]]), digits=1)
    assert [text.get_text() for text in axes.texts] == ["0.0", "−0.1"]


def test_zero_is_white_where_values_have_either_sign():
    image = heatmap(Figure().add_subplot(), np.array([[-0.1, 0.0, 3.0]]))
    assert min(image.cmap(image.norm(0.0))) > 0.95
    assert image.get_clim() == (-3.0, 3.0)
    assert heatmap(Figure().add_subplot(), np.array([[0.0, 0.5]]), limit=2.0).get_clim() == (-2.0, 2.0)


def test_a_graph_has_its_nodes_and_arrows():
    axes = Figure().add_subplot()
    graph(axes, {"x": (0, 0), "y": (2, 1)}, [("x", "y", "times W")])
    assert {text.get_text(): text.get_position() for text in axes.texts if text.get_text()} == {
        "times W": (1, 0.5),
        "x": (0, 0),
        "y": (2, 1),
    }
    [arrow] = [text.arrow_patch for text in axes.texts if not text.get_text()]
    assert arrow is not None
    assert axes.get_xlim()[0] < 0 and axes.get_xlim()[1] > 2


def test_the_style_of_notebooks_stays_in_them():
    with matplotlib.rc_context():
        notebook_style()
        assert matplotlib.rcParams["axes.prop_cycle"].by_key()["color"][0] == BLUE
    assert matplotlib.rcParams["axes.prop_cycle"].by_key()["color"][0] != BLUE


def test_a_notebooks_picture_is_sharp_small_and_described():
    figure = Figure(figsize=(2, 1), dpi=100)
    axes = figure.add_subplot()
    axes.plot([0, 1], label="baseline")
    axes.legend()
    axes.set(title="Losses", xlabel="step", ylabel="loss (nats)")
    png, metadata = notebook_picture(figure)
    image = matplotlib.image.imread(BytesIO(png), format="png")
    assert image.shape[1] // 2 == metadata["width"] and image.shape[0] // 2 == metadata["height"]
    assert len(png) < 20_000
    assert metadata["alt"] == "Losses; loss (nats) against step; baseline"


def test_a_picture_is_described_by_its_label_or_by_the_words_in_it():
    figure = Figure()
    axes = figure.add_subplot()
    for word in ("linear", "GELU", "linear"):
        axes.text(0, 0, word)
    assert description(figure) == "linear, GELU"
    figure.set_label("two layers")
    assert description(figure) == "two layers"
    assert notebook_picture(Figure()) is None


def test_a_table_of_numbers_is_described_by_its_rows_and_columns():
    figure = Figure()
    heatmap(axes := figure.add_subplot(), np.eye(2), digits=1)
    axes.set_xticks([0, 1], ["before", "after"])
    axes.set_yticks([0, 1], ["γ = 1", "0.5"])
    assert description(figure) == "γ = 1, before, after"

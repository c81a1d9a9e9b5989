"""The poster tells the truth: its shapes, and what it says is kept, are those of a real pass."""

import re
import xml.etree.ElementTree as ElementTree
from collections import Counter
from dataclasses import fields, is_dataclass
from pathlib import Path

import numpy as np
import pytest

from minibert.bert.config import BertConfig
from minibert.bert.models import BertForPreTraining
from minibert.course.poster import LETTERS, STAGES, Stage, draw, save, text_of
from minibert.explore.passes import Keeper
from minibert.nn.context import Context
from minibert.ops.cache import Cache

COMMITTED = Path(__file__).parents[2] / "docs" / "images" / "poster.svg"
SIZES = {"B": 2, "S": 7, "H": 12, "A": 3, "D": 4, "F": 20, "L": 2, "P": 3, "V": 40}


def sizes(shape: str) -> tuple[int, ...]:
    """The letters of a shape as numbers."""
    return tuple(SIZES[letter] if letter in SIZES else int(letter) for letter in shape.split())


@pytest.fixture(scope="module")
def a_pass():
    """A model, its caches by part, what an observer saw, and the outputs, after a pass forward and back."""
    config = BertConfig(
        vocab_size=SIZES["V"],
        hidden_size=SIZES["H"],
        num_hidden_layers=SIZES["L"],
        num_attention_heads=SIZES["A"],
        intermediate_size=SIZES["F"],
        max_position_embeddings=16,
    )
    model = BertForPreTraining(config, dtype="float64", seed=3)
    model.eval()
    rng = np.random.default_rng(0)
    input_ids = rng.integers(5, SIZES["V"], (SIZES["B"], SIZES["S"]))
    labels = np.full_like(input_ids, -100)
    labels[[0, 1, 1], [2, 1, 4]] = 7, 8, 9
    keeper = Keeper()
    outputs, cache = model.forward(
        input_ids=input_ids,
        token_type_ids=input_ids % 2,
        labels=labels,
        next_sentence_label=np.array([0, 1]),
        context=Context().with_observer(keeper),
    )
    shapes = shapes_by_part(model, cache)
    model.backward(cache)
    return shapes, keeper, outputs


def shapes_by_part(model, cache) -> dict[str, Counter]:
    """The shapes of the activations that each part's caches hold: no parameters, nothing with one axis."""
    parameters = [parameter.value for _, parameter in model.named_parameters()]

    def is_parameter(array):
        return any(np.shares_memory(array, parameter) for parameter in parameters)

    makers = {
        "BertEmbeddings": "embeddings",
        "BertLayer": "layer",
        "BertLMPredictionHead": "masked words",
        "BertPooler": "next sentence",
        "linear": "next sentence",
        "cross_entropy": "next sentence",
    }
    found: dict[str, dict[int, np.ndarray]] = {part: {} for part in makers.values()}
    layers = []

    def walk(thing, part):
        if isinstance(thing, Cache):
            maker = thing.maker if isinstance(thing.maker, str) else type(thing.maker).__name__
            if part is None and maker == "BertLMPredictionHead":
                found["masked words"].clear()  # one for the logits, then one for the loss
            part = part or makers.get(maker)
            if maker == "BertLayer":
                layers.append(thing)
                if len(layers) > 1:  # all are alike
                    return
            for inner in thing._parts:
                walk(inner, part)
        elif isinstance(thing, (tuple, list)):
            for inner in thing:
                walk(inner, part)
        elif is_dataclass(thing):
            for field in fields(thing):
                walk(getattr(thing, field.name), part)
        elif isinstance(thing, np.ndarray) and part and thing.ndim > 1 and not is_parameter(thing):
            found[part][thing.__array_interface__["data"][0]] = thing

    walk(cache, None)
    assert len(layers) == SIZES["L"]
    return {
        part: Counter(tuple(size for size in array.shape if size > 1) for array in arrays.values())
        for part, arrays in found.items()
    }


def kept_on_the_poster(part: str) -> Counter:
    """The shapes of what the poster says is kept. What the stage before keeps, too, is one array."""
    shapes: Counter = Counter()
    before: set[str] = set()
    for stage in (stage for stage in STAGES if stage.part == part):
        symbols = {
            symbol.strip(" $"): sizes(shape) for group, shape in stage.kept for symbol in group.split(",")
        }
        shapes.update(shape for symbol, shape in symbols.items() if symbol not in before)
        before = set(symbols)
    return shapes


@pytest.mark.parametrize("part", ["embeddings", "layer", "masked words", "next sentence"])
def test_what_is_kept_is_what_the_caches_hold(a_pass, part):
    shapes, _, _ = a_pass
    assert kept_on_the_poster(part) == shapes[part]


@pytest.mark.parametrize("stage", [stage for stage in STAGES if stage.observed], ids=lambda stage: stage.name)
def test_values_and_gradients_have_the_shape_on_the_poster(a_pass, stage: Stage):
    _, keeper, _ = a_pass
    name = f"bert.{stage.observed}"
    expected = sizes(stage.shape)[1:]  # an observer keeps the first sequence of the batch
    assert keeper.values[name].shape == expected
    assert keeper.derivatives[name].shape == expected


def test_outputs_have_the_shapes_on_the_poster(a_pass):
    _, _, outputs = a_pass
    by_name = {stage.name: stage for stage in STAGES}
    assert outputs.prediction_logits.shape == sizes(by_name["Tied decoder"].shape)
    assert outputs.pooler_output.shape == sizes(by_name["Pooler"].shape)
    assert float(outputs.loss) == float(outputs.mlm_loss + outputs.nsp_loss)


def test_every_letter_is_explained():
    used = {letter for stage in STAGES for shape in [stage.shape] for letter in shape.split()}
    used |= {letter for stage in STAGES for _, shape in stage.kept for letter in shape.split()}
    assert used - {"2"} <= set(LETTERS)


def test_gradients_of_two_uses_are_added_in_the_order_of_the_backward_pass():
    """From bottom to top: the first use makes the gradient, and the second adds to it."""
    made: Counter = Counter()
    for stage in reversed(STAGES):
        for line in stage.gradients:
            for name, before in re.findall(
                r"(?<![\w])(d[Eha])(?:\[v\])? (?:\\leftarrow|=) (d[Eha](?:\[v\])? \+)?", line
            ):
                assert bool(before) == bool(made[name]), line
                made[name] += 1
    assert made == {"dE": 2, "dh": 2, "da": 2}


def test_committed_poster_is_drawn_from_the_table():
    """Compare the words, not the bytes: another matplotlib writes other curves."""
    root = ElementTree.parse(COMMITTED).getroot()
    (description,) = root.iter("{http://purl.org/dc/elements/1.1/}description")
    assert description.text == text_of()


def test_all_text_is_inside_the_page_and_no_two_overlap():
    figure = draw()
    figure.canvas.draw()
    page = figure.bbox
    boxes = [(text.get_text(), text.get_window_extent()) for text in figure.axes[0].texts]
    for text, box in boxes:
        assert page.x0 <= box.x0 and box.x1 <= page.x1, text
        assert page.y0 <= box.y0 and box.y1 <= page.y1, text
    for number, (text, box) in enumerate(boxes):
        for other, other_box in boxes[number + 1 :]:
            assert not box.overlaps(other_box), f"{text!r} overlaps {other!r}"


def test_same_table_gives_the_same_file(tmp_path):
    save(tmp_path / "one.svg")
    save(tmp_path / "two.svg")
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()
    assert not re.search(r"\d{4}-\d{2}-\d{2}T", (tmp_path / "one.svg").read_text())

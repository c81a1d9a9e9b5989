"""Gradient checks of the layers (see ``minibert.gradcheck``)."""

from minibert.arrays import Device
from minibert.gradcheck import Case, Draws, module_case
from minibert.nn.layers import Embedding, LayerNorm, Linear


def layer_cases(device: Device) -> list[Case]:
    """Every layer with a derivative, used twice. B = 3, S = 4."""
    draw = Draws(device, 3)
    linear, norm, table = Linear(6, 5), LayerNorm(6, eps=0.5), Embedding(7, 6)
    for module in (linear, norm, table):
        module.allocate(device, "float64")
        draw.randomise(module)
    return [
        module_case("Linear", linear, {"x": draw.normal(3, 4, 6)}),
        module_case("LayerNorm", norm, {"x": draw.normal(3, 4, 6)}),
        module_case("Embedding", table, {}, constants=[draw.ids(7, 3, 4)]),
    ]

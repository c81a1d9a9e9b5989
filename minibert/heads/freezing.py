"""How much of the encoder learns in fine-tuning: all of it, its upper layers, or nothing."""

from collections.abc import Sequence
from typing import Any

from minibert.arrays import Array, get_array_module, map_arrays, to_numpy
from minibert.bert.config import BertConfig
from minibert.bert.inputs import encoder_inputs
from minibert.bert.models import BertModel, BertPretrainedModel
from minibert.errors import UserError
from minibert.nn import Context, Module

LAST_FOUR = (-4, -3, -2, -1)  # what did best without fine-tuning in Devlin et al. (2019), table 7


def encoder_of(model: BertPretrainedModel) -> BertModel:
    """The encoder inside a model, or the model if it is one."""
    return model if isinstance(model, BertModel) else model.bert


def freeze(model: BertPretrainedModel, layers: int | None = None) -> None:
    """Freeze the embeddings and the lowest ``layers`` layers; None freezes the whole encoder.

    Everything else learns, whatever was frozen before. The backward pass stops where nothing below learns,
    and the forward pass keeps no caches there. With None the pooler is frozen too, and only the head learns.
    Raises UserError if the encoder does not have that many layers.
    """
    if layers is not None:
        check_frozen_layers(model.config, layers)
    unfreeze(model)
    for part in _parts(encoder_of(model))[: None if layers is None else layers + 1]:
        _set(part, "frozen", True)


def check_frozen_layers(config: BertConfig, layers: int) -> None:
    """Raise UserError if an encoder does not have ``layers`` layers to freeze."""
    count = config.num_hidden_layers
    if not 0 <= layers <= count:
        raise UserError(f"cannot freeze {layers} layers: the encoder has {count}; give 0 to {count}")
    if config.different_layers == 1 and 0 < layers < count:
        raise UserError(f"cannot freeze {layers} layers: all {count} are the same one; give 0 or {count}")


def unfreeze(model: BertPretrainedModel) -> None:
    """Let everything learn again."""
    _set(model, "frozen", False)


def layerwise_lr(model: BertPretrainedModel, decay: float) -> None:
    """Lower the learning rate of lower layers: by a factor ``decay`` from each layer to the one below.

    Heads and pooler have the full learning rate, the top layer has ``decay`` times that, …, the embeddings
    decay^(L + 1) times that (Howard and Ruder, 2018; the powers are those of BEiT's code; in ELECTRA's, every
    part below the heads has one more). L counts layers with weights of their own, so in ALBERT it is 1.
    A ``decay`` of 1 undoes it. Raises UserError if ``decay`` is not above 0 and at most 1.
    """
    if not 0.0 < decay <= 1.0:
        raise UserError(f"decay must be above 0 and at most 1, got {decay}")
    _set(model, "lr_scale", 1.0)
    encoder = encoder_of(model)
    upwards = [encoder.embeddings, *dict.fromkeys(encoder.encoder.layer)]  # ALBERT's one layer only once
    for depth, part in enumerate(reversed(upwards), start=1):
        _set(part, "lr_scale", decay**depth)


def extract_features(
    model: BertPretrainedModel, input_ids: Any = None, *, layers: Sequence[int] = LAST_FOUR, **batch: Any
) -> Array:
    """Hidden states of chosen layers side by side, as a NumPy array (B, S, len(layers) · H).

    Layer 0 is the output of the embeddings, 1 … L are those of the layers, and −1 is the last. They are
    computed without dropout. Raises UserError for a layer that does not exist, and for a batch that does not
    fit (see ``encoder_inputs``).
    """
    model.config.check_layers(layers)
    inputs = map_arrays(
        model.device.asarray, encoder_inputs(model.config, input_ids, **batch, dtype=model.dtype)
    )
    outputs, _ = encoder_of(model).forward(inputs, context=Context(backward=False), return_hidden_states=True)
    assert outputs.hidden_states is not None  # they were asked for
    return to_numpy(side_by_side(outputs.hidden_states, layers).astype(model.dtype, copy=False))


def side_by_side(hidden_states: Sequence[Array], layers: Sequence[int]) -> Array:
    """Some of the L + 1 hidden states (B, S, H), concatenated to (B, S, len(layers) · H)."""
    states = [hidden_states[layer] for layer in layers]
    return get_array_module(states[0]).concatenate(states, axis=-1)


def _parts(encoder: BertModel) -> list[Module]:
    """From the bottom up: the embeddings, the layers, the pooler if there is one."""
    return [encoder.embeddings, *encoder.encoder.layer, *([encoder.pooler] if encoder.pooler else [])]


def _set(module: Module, name: str, value: Any) -> None:
    for _, parameter in module.named_parameters():
        setattr(parameter, name, value)
